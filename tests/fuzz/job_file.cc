// Job files: whatever the text, there is a spec or a problem; a spec that is written as YAML and
// read again is the same job.
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/spec/spec.h"
#include "google/protobuf/util/message_differencer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  SpecContext context;
  context.default_queue = "research";
  pb::JobSpec spec;
  std::vector<Problem> problems;
  const bool good = ParseJobFile(text, "job.yaml", context, &spec, &problems);
  MUSTER_CHECK(good == problems.empty());
  FormatProblems(problems, "job.yaml");
  if (!good) return 0;
  MUSTER_CHECK(CheckSpec(spec, context).empty());
  const std::string yaml = SpecToYaml(spec);
  pb::JobSpec again;
  MUSTER_CHECK(ParseJobFile(yaml, "job.yaml", context, &again, &problems));
  ApplyDefaults(&spec);  // among them the name of an only task
  ApplyDefaults(&again);
  MUSTER_CHECK(google::protobuf::util::MessageDifferencer::Equals(spec, again));
  return 0;
}
