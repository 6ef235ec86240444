// Quarantines, checked from the rows that were committed, from the checks that hosts really made
// and from what was asked of them: one ends when its time is over and its host has passed a check
// since, a check that failed puts its end off, and none that is over is forgotten. Nothing here
// uses the engine's code.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "muster/v1/agent.pb.h"
#include "muster/v1/record.pb.h"
#include "sim/faults/counters.h"

namespace muster::sim::faults {

namespace pb = ::muster::v1;

// Of the clusters of a run.
inline constexpr int64_t kReleaseAfterNs = 60'000'000'000, kHostCheckTimeoutNs = 20'000'000'000;

class QuarantineChecks {
 public:
  // `hosts` by cluster/host, as committed: the caller's, who keeps them.
  QuarantineChecks(const std::map<std::string, pb::HostRecord>* hosts, Counters* counters,
                   std::function<void(const std::string&)> violate)
      : hosts_(*hosts), counters_(*counters), violate_(std::move(violate)) {}

  void set_lease_ns(int64_t lease_ns) { lease_ns_ = lease_ns; }

  // ---- what really happens on hosts; true time ----
  // Its agent says that it checks its host when it is asked.
  void OnHello(const std::string& host, bool checks) { checks_[host] = checks; }
  // A check of a device, or of the whole host (-1), has ended there.
  void OnHostChecked(int64_t true_ns, const std::string& host, int32_t device, bool passed);

  // ---- of the scheduler that owns the store ----
  void OnEpoch();
  void OnAsked(int64_t true_ns, const std::string& host, const pb::SchedulerMessage& message);
  void OnWelcome(const std::string& host);
  void OnAnswer(int64_t true_ns, const std::string& host, const pb::AgentMessage& message);
  // A host's row of a commit, before the caller's map has it. `now_ns` is the engine's time.
  void OnHost(int64_t now_ns, int64_t true_ns, const std::string& name,
              const pb::HostRecord& after);
  void Committed(int64_t now_ns, int64_t true_ns);
  // The map holds what a backup has.
  void OnRestored();
  // The scheduler's wall clock was set: what it does by that clock, it does at other times.
  void OnClockSet() { clock_was_set_ = true; }

  // In force or withheld.
  bool Any() const;
  // None lasts for ever once nothing fails any more, which is since `calm_ns`; true time.
  void CheckEnd(int64_t true_ns, int64_t calm_ns) const;

 private:
  using Device = std::pair<std::string, int32_t>;  // of a host; -1: the whole host
  struct Asked {
    uint64_t request = 0;
    std::string session;
    int32_t device = 0;
    int64_t true_ns = 0;
    bool answered = false;
  };
  struct Answer {
    int64_t true_ns = 0;
    bool passed = false;
  };

  void CheckLifted(int64_t now_ns, const std::string& name, const pb::Quarantine& row);
  void CheckOver(int64_t now_ns, int64_t true_ns, const std::string& name,
                 const pb::HostRecord& host);
  void CheckAnswers(int64_t now_ns, int64_t true_ns);

  const std::map<std::string, pb::HostRecord>& hosts_;
  Counters& counters_;
  const std::function<void(const std::string&)> violate_;
  int64_t lease_ns_ = 0;
  bool clock_was_set_ = false;
  std::map<std::string, bool> checks_;      // by host
  std::map<Device, int64_t> began_;         // true time of a quarantine's commit, or of a restore
  std::map<Device, int64_t> passed_;        // true time of the newest check, if that has passed
  std::map<std::string, Asked> asked_;      // by host, in its present session
  std::map<Device, Answer> answers_;        // without a commit that shows them yet
  std::map<std::string, int64_t> overdue_;  // hosts with one that is over: since then, true time
  int64_t committed_ns_ = 0;                // true time of the newest commit
};

}  // namespace muster::sim::faults
