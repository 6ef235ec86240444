// What was promised to users and operators, checked from the rows that were committed and from
// nothing else: time limits, budgets of restarts, limits of queues up to the root, losses while
// most of a cluster is silent, and that nothing is left behind. Nothing here uses the engine's
// code. Times are the engine's (Transaction::now_ns).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "muster/v1/record.pb.h"
#include "sim/faults/counters.h"

namespace muster::sim::faults {

namespace pb = ::muster::v1;

class RowChecks {
 public:
  // `jobs` by uid and `hosts` by cluster/host, as committed: the caller's, who keeps them.
  RowChecks(const std::map<std::string, pb::JobRecord>* jobs,
            const std::map<std::string, pb::HostRecord>* hosts, Counters* counters,
            std::function<void(const std::string&)> violate)
      : jobs_(*jobs), hosts_(*hosts), counters_(*counters), violate_(std::move(violate)) {}

  void set_lease_ns(int64_t lease_ns) { lease_ns_ = lease_ns; }

  // Of each commit in this order: its configuration, its hosts, its jobs, each before the caller's
  // maps have it; then Committed.
  void OnConfiguration(const pb::ConfigurationRecord& configuration);
  void OnHost(int64_t now_ns, const std::string& name, const pb::HostRecord& after);
  void OnJob(int64_t now_ns, const pb::JobRecord* before, const pb::JobRecord& after);
  // `placed`: job and task of what it has placed. `restoring`: nothing was decided.
  void Committed(int64_t now_ns, bool restoring,
                 const std::set<std::pair<std::string, std::string>>& placed);
  // A part of an attempt was lost there, and nobody has said that the host is off. Its hosts are as
  // committed with it.
  void OnLost(int64_t now_ns, const std::string& cluster, const std::string& attempt);
  // The maps hold what a backup has: nothing before counts.
  void OnRestored();
  // What is left although every job has ended; empty: nothing.
  std::vector<std::string> Leaks() const;

 private:
  struct Progress {  // of a task
    int64_t ran_ns = 0;
    int32_t ended = 0;   // number of the newest attempt that counts in the others
    int32_t failed = 0;  // attempts that ended by the program's own fault
  };
  struct HostTimes {
    int64_t left_ns = 0;  // when it fell silent; 0: it speaks
    int64_t back_ns = 0;  // when it spoke again; 0: it was never silent
  };
  struct Queue {
    std::map<std::string, int64_t> limit_milli;  // by flavour
  };

  void ReadQueues(const std::string& above, const pb::QueueSpec& spec);
  void CheckTimeLimit(int64_t now_ns, const std::string& name, const pb::TaskSpec& spec,
                      const pb::TaskRecord* before, const pb::TaskRecord& after);
  // Whatever has a number of workers has a multiple of what its spec says.
  void CheckMultiples(const std::string& name, const pb::TaskSpec& spec,
                      const pb::TaskRecord* before, const pb::TaskRecord& after);
  // Nothing of a task starts once its program has said by its exit code that it ends for good.
  void CheckFinalExits(const std::string& name, const pb::TaskSpec& spec,
                       const pb::TaskRecord* before, const pb::TaskRecord& after);
  void CheckLimits(const pb::JobRecord& job, const std::string& task);
  int64_t HeldBelow(const std::string& queue, const std::string& flavour) const;
  bool CantBeReached(const pb::AttemptRecord& attempt) const;

  const std::map<std::string, pb::JobRecord>& jobs_;
  const std::map<std::string, pb::HostRecord>& hosts_;
  Counters& counters_;
  const std::function<void(const std::string&)> violate_;
  int64_t lease_ns_ = 0;
  std::map<std::string, Progress> progress_;      // by job and task
  std::map<std::string, int64_t> limit_over_ns_;  // by job and task that runs: when its limit is
  std::map<std::string, HostTimes> times_;        // by host
  std::map<std::string, Queue> queues_;           // by path
};

}  // namespace muster::sim::faults
