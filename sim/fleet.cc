#include "sim/fleet.h"

#include <charconv>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"

namespace muster::sim {
namespace {

std::string StateId(const SimulatedHost& host) {
  return absl::StrCat("state-", host.cluster, "/", host.name);
}

Work WorkOf(const Trace& trace, const pb::Prepare& prepare) {
  const int32_t index = TraceIndex(prepare.key().job_uid());
  MUSTER_CHECK(index >= 0);
  const TraceJob& job = trace.jobs[index];
  return {job.duration_ns * job.workers, job.checkpoint_ns, absl::StrCat("/sim/", index)};
}

}  // namespace

std::string TraceUid(size_t index) { return absl::StrFormat("%032x", index + 1); }

int32_t TraceIndex(std::string_view uid) {
  uint32_t number = 0;
  if (uid.size() != 32) return -1;
  const char* const digits = uid.data() + 24;
  const auto [end, error] = std::from_chars(digits, digits + 8, number, 16);
  return error == std::errc() && end == digits + 8 && number > 0 ? static_cast<int32_t>(number - 1)
                                                                 : -1;
}

Fleet::Fleet(const HostOptions& options, std::vector<SimulatedHost> hosts, const Trace* trace,
             Heap* heap, Post post)
    : hosts_(std::move(hosts)),
      post_(std::move(post)),
      model_(
          options, heap, [trace](const pb::Prepare& prepare) { return WorkOf(*trace, prepare); },
          [this](int32_t host, pb::AgentMessage message) { Say(host, std::move(message)); }) {
  for (const SimulatedHost& host : hosts_)
    numbers_.emplace(absl::StrCat(host.cluster, "/", host.name), numbers_.size());
}

void Fleet::Join() {
  for (const SimulatedHost& host : hosts_) {
    pb::Event event;
    pb::HostHello* const hello = event.mutable_host_hello();
    hello->set_cluster(host.cluster);
    hello->set_host(host.name);
    hello->set_state_id(StateId(host));
    hello->set_boot_id("boot");
    *hello->mutable_inventory() = host.inventory;
    post_(std::move(event), true);
  }
}

void Fleet::Send(const std::string& cluster, const std::string& host,
                 const pb::SchedulerMessage& message) {
  model_.Send(numbers_.at(absl::StrCat(cluster, "/", host)), message);
}

void Fleet::Say(int32_t host, pb::AgentMessage message) {
  pb::Event event;
  bool urgent = false;
  if (message.has_report()) {
    pb::AttemptReported* const reported = event.mutable_attempt_reported();
    reported->set_cluster(hosts_[host].cluster);
    reported->set_host(hosts_[host].name);
    reported->set_state_id(StateId(hosts_[host]));
    reported->mutable_report()->Swap(message.mutable_report());
    urgent = reported->report().phase() != pb::STARTED;
  } else if (message.has_checkpoint()) {
    pb::CheckpointSeen* const seen = event.mutable_checkpoint_seen();
    seen->mutable_key()->Swap(message.mutable_checkpoint()->mutable_key());
    seen->mutable_checkpoint()->Swap(message.mutable_checkpoint()->mutable_checkpoint());
    seen->set_loaded_step(message.checkpoint().loaded_step());
  } else {
    pb::ProgressSeen* const seen = event.mutable_progress_seen();
    seen->mutable_key()->Swap(message.mutable_progress()->mutable_key());
    seen->mutable_progress()->Swap(message.mutable_progress()->mutable_progress());
  }
  post_(std::move(event), urgent);
}

}  // namespace muster::sim
