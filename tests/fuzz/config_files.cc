// The files of operators and users: clusters, queues, musterd.yaml, a host's inventory, the
// command's own.
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/spec/config_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<Problem> problems;
  switch (data[0] % 5) {
    case 0: {
      pb::ClusterFile file;
      MUSTER_CHECK(ParseClusterFile(text, "clusters.yaml", &file, &problems) == problems.empty());
      break;
    }
    case 1: {
      pb::QueueTree tree;
      const bool good = ParseQueueFile(text, "queues.yaml", QueueContext{}, &tree, &problems);
      MUSTER_CHECK(good == problems.empty());
      if (good)
        MUSTER_CHECK(
            ParseQueueFile(QueueTreeToYaml(tree), "queues.yaml", QueueContext{}, &tree, &problems));
      break;
    }
    case 2: {
      MusterdConfig config;
      MUSTER_CHECK(ParseMusterdConfig(text, "musterd.yaml", &config, &problems) ==
                   problems.empty());
      break;
    }
    case 3: {
      pb::Inventory inventory;
      MUSTER_CHECK(ParseHostInventory(text, "host.yaml", &inventory, &problems) ==
                   problems.empty());
      break;
    }
    default: {
      ClientConfig config;
      MUSTER_CHECK(ParseClientConfig(text, "config.yaml", {}, &config, &problems) ==
                   problems.empty());
    }
  }
  FormatProblems(problems, "file.yaml");
  return 0;
}
