#include "scheduler/settings.h"

#include <cstdio>

#include <google/protobuf/util/message_differencer.h>
#include "common/base/files.h"
#include "common/spec/config_files.h"
#include "scheduler/ask/ask.h"

namespace muster {
namespace {

constexpr char kDefaultQueue[] = "default";  // without a queues file: one queue, unlimited

bool PrintProblems(const std::vector<Problem>& problems, const std::string& path) {
  ProblemFormat format;
  format.outcome = "musterd did not start";
  std::fputs(FormatProblems(problems, path, format).c_str(), stderr);
  return false;
}

// A file of the operator's, read by `parse`; its problems are printed with their places.
template <typename Parse>
bool ReadConfigFile(const std::string& path, Parse parse) {
  absl::StatusOr<std::string> text = ReadFile(path, int64_t{64} << 20);
  if (!text.ok()) {
    Fail(std::string(text.status().message()));
    return false;
  }
  std::vector<Problem> problems;
  if (parse(*text, &problems)) return true;
  return PrintProblems(problems, path);
}

}  // namespace

int Fail(const std::string& message) {
  std::fprintf(stderr, "musterd: %s\n", message.c_str());
  return 2;
}

bool ReadConfig(const Flags& flags, MusterdConfig* config) {
  const auto parse = [&](const std::string& text, std::vector<Problem>* problems) {
    return ParseMusterdConfig(text, flags.config, config, problems);
  };
  if (!flags.config.empty() && !ReadConfigFile(flags.config, parse)) return false;
  if (!flags.data_dir.empty()) config->data_dir = flags.data_dir;
  if (!flags.listen.empty()) config->listen = flags.listen;
  if (!flags.clusters.empty()) config->clusters = flags.clusters;
  if (!flags.queues.empty()) config->queues = flags.queues;
  if (!flags.master_key.empty()) config->master_key = config->tls.master_key = flags.master_key;
  config->single_user = config->single_user || flags.single_user;
  if (config->single_user && !config->oidc.empty()) {
    Fail("oidc: is for several users: start it without --single-user, or leave oidc: out");
    return false;
  }
  return true;
}

SchedulingOptions OptionsOf(const MusterdConfig& config) {
  SchedulingOptions options;
  options.placement = config.placement == "fgd"        ? PlacementPolicy::kFgd
                      : config.placement == "best_fit" ? PlacementPolicy::kBestFit
                                                       : PlacementPolicy::kV;
  options.grow_interval_ns = config.grow_interval_ns;
  options.restart_cost_ns = config.restart_cost_ns;
  options.starve_after_ns = config.starve_after_ns;
  options.min_runtime_ns = config.min_runtime_ns;
  options.spill_cost_ns = config.spill_cost_ns;
  options.lease_ns = config.lease_ns;
  options.restart_backoff_ns = config.restart_backoff_ns;
  return options;
}

bool FirstEvents(const MusterdConfig& config, const State& state, std::vector<pb::Event>* events) {
  State after = state;
  if (!config.clusters.empty()) {
    pb::ClusterFile file;
    if (!ReadConfigFile(config.clusters,
                        [&](const std::string& text, std::vector<Problem>* problems) {
                          return ParseClusterFile(text, config.clusters, &file, problems);
                        })) {
      return false;
    }
    if (!google::protobuf::util::MessageDifferencer::Equals(file, state.cluster_file())) {
      *events->emplace_back().mutable_clusters_configured()->mutable_file() = file;
      Apply(&after, events->back());
    }
  }
  if (state.queue_version() != 0) return true;
  pb::QueueTree tree;
  std::string queues;
  if (config.queues.empty()) {
    tree.add_queues()->set_name(kDefaultQueue);
  } else if (!ReadConfigFile(
                 config.queues, [&](const std::string& text, std::vector<Problem>* problems) {
                   queues = text;
                   return ParseQueueFile(text, config.queues, QueueContext(), &tree, problems);
                 })) {
    return false;
  }
  const QueueResolution resolution = ResolveQueues(after, tree);
  if (!resolution.ok())
    return PrintProblems(PlaceQueueProblems(queues, config.queues, resolution.problems),
                         config.queues);
  pb::QueuesApplied* applied = events->emplace_back().mutable_queues_applied();
  *applied->mutable_tree() = resolution.resolved;
  applied->set_version(1);
  applied->set_by("musterd");
  return true;
}

}  // namespace muster
