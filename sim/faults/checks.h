// What may never happen, checked from outside: of the scheduler only what it committed and what it
// sent is read, of the hosts what really ran. Nothing here uses the engine's code. The rules are
// S0 to S4 of docs/contracts.md, of R1 what checkpoints and ends show, and single rules where it
// says so.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "muster/v1/agent.pb.h"
#include "muster/v1/record.pb.h"
#include "scheduler/engine/ports.h"
#include "scheduler/state/plan.h"
#include "sim/faults/counters.h"
#include "sim/faults/quarantine_checks.h"
#include "sim/faults/row_checks.h"
#include "sim/faults/schedule_checks.h"

namespace muster::sim::faults {

// What a host's shim knows of the end of its part.
struct TrueEnd {
  bool recorded = false;  // DIR/exits was written
  bool all_exited_0 = false;
  bool stop_sent = false;
};

using Rows = std::map<std::pair<std::string, std::string>, std::string>;  // by kind and id

class Checker {
 public:
  explicit Checker(Counters* counters)
      : counters_(*counters),
        rows_(&jobs_, &hosts_, counters,
              [this](const std::string& what) { Violate(now_ns_, what); }),
        schedules_(&jobs_, counters, [this](const std::string& what) { Violate(now_ns_, what); }),
        quarantines_(&hosts_, counters,
                     [this](const std::string& what) { Violate(now_ns_, what); }) {}

  const std::vector<std::string>& violations() const { return violations_; }
  void Violate(int64_t now_ns, const std::string& what);

  // ---- what really happens on hosts (cluster/host) ----
  void OnStart(int64_t now_ns, const std::string& host, const std::string& boot_id,
               const std::string& prepared_boot_id, const pb::Prepare& prepare);
  // A message of the scheduler has reached the host's agent.
  void OnAgentHeard(int64_t now_ns, const std::string& host) { agent_heard_ns_[host] = now_ns; }
  // Its agent has acted on a command of this epoch and commit.
  void OnActed(const std::string& host, uint64_t epoch, uint64_t commit) {
    acted_[host] = std::max(acted_[host], {epoch, commit});
  }
  // A loss of power has left what it acted on until then at the earliest.
  void OnSeenLost(const std::string& host, std::pair<uint64_t, uint64_t> left) {
    acted_[host] = std::min(acted_[host], left);
  }
  // What its agent says that it has seen, and can do.
  void OnHello(int64_t now_ns, const std::string& host, const pb::Hello& hello);
  // It has checked a device, or the whole host (-1).
  void OnHostChecked(int64_t now_ns, const std::string& host, int32_t device, bool passed) {
    quarantines_.OnHostChecked(now_ns, host, device, passed);
  }
  // No process of it is left there; its shim may go on until it could write how they ended.
  void OnProcessesGone(const std::string& host, const pb::AttemptKey& key);
  // Nor its shim.
  void OnEnd(const std::string& host, const pb::AttemptKey& key, const TrueEnd& end);
  // Nothing runs there from now on, though it is there: a machine that sleeps. `killed`: attempts
  // of which nothing will run again.
  void OnAsleep(const std::string& host);
  void OnAwake(int64_t now_ns, const std::string& host, const std::set<std::string>& killed);
  // The attempt's export has been brought to its target, where that of `by` lies now.
  void OnPublished(int64_t now_ns, const std::string& host, const pb::AttemptKey& key,
                   const std::string& by);
  // It could not be: a disk is full, or a file system refuses.
  void OnExportRefused(const pb::AttemptKey& key) { refused_.insert(Text(key)); }
  // Of how the attempt ended there the host may know no more.
  void OnRecordTorn(const std::string& host, const pb::AttemptKey& key) {
    records_lost_.insert({Text(key), host});
  }
  // Everything that the host knew of its attempts is gone.
  void OnStateLost(const std::string& host);

  // ---- what the scheduler does ----
  void OnEpoch(int64_t now_ns, uint64_t epoch);
  // A message of this host has reached the scheduler that owns the store, in a session of the
  // epoch.
  void OnHeard(int64_t now_ns, const std::string& host, uint64_t epoch) {
    heard_ns_[host] = now_ns;
    if (epoch == epoch_) answered_.insert(host);
  }
  void OnCommit(const Transaction& transaction, int64_t true_now_ns);
  // Its wall clock was set.
  void OnClockSet() { quarantines_.OnClockSet(); }
  // A host's answer to a check has reached the scheduler that owns the store.
  void OnCheckAnswer(int64_t now_ns, const std::string& host, const pb::AgentMessage& message) {
    quarantines_.OnAnswer(now_ns, host, message);
  }
  // A host's word of a checkpoint has reached the scheduler that owns the store.
  void OnCheckpointReport(const pb::CheckpointReport& report) {
    reported_[{Text(report.key()), report.sequence()}] = report.checkpoint().path();
  }
  void OnPlan(int64_t now_ns, const Plan& plan);
  void OnDispatch(int64_t now_ns, const std::string& host, const pb::SchedulerMessage& message);
  // By a scheduler that another has replaced: the other may already have decided that a fence has
  // ended what this one puts it off for. `alone`: it serves the original of a store whose copy is
  // the one that counts.
  void OnStaleDispatch(int64_t now_ns, const std::string& host, const pb::SchedulerMessage& message,
                       bool alone);
  // `rows`: all of its store, this commit's among them.
  void OnCommitAlone(const Transaction& transaction, const Rows& rows);
  // `key` as KeyOfUser has it.
  void OnAcknowledgedSubmission(int64_t now_ns, const std::string& key, uint64_t number);
  void OnAcknowledgedCancel(int64_t now_ns, uint64_t number);
  // The store holds these rows again, of its commit `commit`; what was committed since is unknown
  // to it. `newest`: nothing was; it is a copy.
  void OnRestored(const Rows& rows, uint64_t commit, bool newest);
  bool Stores(const std::string& key) const { return committed_key_.count(key) > 0; }
  // The scheduler starts, and this is what the store holds.
  void OnRecovered(int64_t now_ns);

  // Whether the program of an attempt stands still.
  std::function<bool(const pb::AttemptKey&, const pb::TaskSpec&)> hangs;
  // The checkpoint that an attempt's program has resumed from; empty: none.
  std::function<std::string(const pb::AttemptKey&)> loaded_by;
  static std::string Text(const pb::AttemptKey& key);
  // Some of what its programs say may be lost from now on, though the host is heard.
  void OnMuted(const std::string& host) { muted_.insert(host); }
  void set_lease_ns(int64_t lease_ns) {
    lease_ns_ = lease_ns;
    rows_.set_lease_ns(lease_ns);
    quarantines_.set_lease_ns(lease_ns);
  }
  int64_t unfinished_jobs() const;
  // What is left although every job has ended; empty: nothing.
  std::vector<std::string> Leaks() const;
  bool AnyQuarantine() const { return quarantines_.Any(); }
  // Nothing has failed since `calm_ns`.
  void CheckQuarantinesEnd(int64_t now_ns, int64_t calm_ns) {
    now_ns_ = now_ns;
    quarantines_.CheckEnd(now_ns, calm_ns);
  }
  const std::map<std::string, pb::JobRecord>& jobs() const { return jobs_; }  // by uid

 private:
  struct Live {
    pb::Prepare prepare;
    std::string host;
  };
  struct Known {
    const pb::JobRecord* job = nullptr;
    const pb::TaskRecord* task = nullptr;
    const pb::AttemptRecord* attempt = nullptr;
    int task_index = 0;
    int part = -1;  // on the host asked for; -1: none
  };

  Known Find(const pb::AttemptKey& key, const std::string& host) const;
  void OnConfiguration(const std::string& bytes);
  static bool Replaceable(const pb::JobRecord& job, int task, const pb::AttemptRecord& attempt);
  // Nobody else's work is where one user's is.
  bool TakesJobsOf(const std::string& cluster, const std::string& owner) const;
  void CheckStartIsCommitted(int64_t now_ns, const std::string& host, const pb::AttemptKey& key);
  void CheckStartsAlone(int64_t now_ns, const std::string& host, const pb::AttemptKey& key);
  void CheckDevicesAreFree(int64_t now_ns, const std::string& host, const pb::Prepare& prepare);
  void CheckMember(int64_t now_ns, const pb::JobRecord* before, const pb::JobRecord& after);
  // Nothing of it has started before those that it comes after have ended as they had to.
  void CheckPredecessors(int64_t now_ns, const pb::JobRecord* before, const pb::JobRecord& after);
  void CheckTime(int64_t now_ns, const pb::JobRecord* before, const pb::JobRecord& after);
  // What this commit has placed on a job's devices has them while that one runs, beside others.
  void CheckHosted(int64_t now_ns, const pb::AttemptKey& placed);
  void RememberHolder(const pb::JobRecord& job, const pb::AttemptRecord& attempt,
                      const pb::JobRecord& holder);
  void RememberHolder(const pb::AttemptKey& placed);
  void RememberHoldersAlone(const pb::JobRecord& job, const Rows& rows);
  // The attempt on whose devices this one runs; without a job: on its own.
  pb::AttemptKey HolderKeyOf(const pb::AttemptKey& key) const;
  // That one has these devices on the host still, or they were lost with it there.
  bool IsOnHolder(const pb::AttemptKey& key, const std::string& host) const;
  // What starts together does, or beside what runs of it, and stops as one for a claim.
  void CheckTogether(int64_t now_ns, const pb::JobRecord* before, const pb::JobRecord& after);
  void CheckTurns(int64_t now_ns, uint64_t array);
  void CheckJob(int64_t now_ns, const pb::JobRecord* before, const pb::JobRecord& after);
  void CheckAttempt(int64_t now_ns, const pb::JobRecord& job, int t,
                    const pb::AttemptRecord* before, const pb::AttemptRecord& after);
  // Of an attempt that resumed from an earlier record, the first one strikes those with more steps
  // than that: an abandoned branch.
  void Record(const pb::AttemptKey& key, const pb::Checkpoint& checkpoint);
  void CheckEnd(int64_t now_ns, const pb::JobRecord& job, int t, const pb::AttemptRecord& attempt);
  void CheckExport(int64_t now_ns, const pb::JobRecord& job, int t, const pb::TaskRecord* before);
  void CheckDevices(int64_t now_ns, const pb::AttemptKey& placed);
  void CheckUid(int64_t now_ns, const std::string& uid);
  void ViolateDispatch(int64_t now_ns, const std::string& host, const std::string& what,
                       const pb::AttemptKey& key);
  void CheckPrepare(int64_t now_ns, const std::string& host, const pb::Prepare& prepare);
  void CheckStop(int64_t now_ns, const std::string& host, const pb::AttemptKey& key);
  void OnWelcome(const std::string& host);
  void CheckCheckpointAck(int64_t now_ns, const std::string& host, const pb::CheckpointAck& ack);
  void CheckLedger(int64_t now_ns, const pb::MetaRecord& meta);
  bool AnyTaskWaits() const;
  void RestoreHistories();
  bool Lives(const std::string& attempt, const std::string& host) const {
    return live_.count({attempt, host}) > 0;
  }
  bool Executes(const std::string& attempt, const std::string& host) const {
    return Lives(attempt, host) && asleep_.count({attempt, host}) == 0;
  }

  Counters& counters_;
  std::vector<std::string> violations_;
  int64_t lease_ns_ = 0;
  std::map<std::pair<std::string, std::string>, Live> live_;     // by (attempt, host)
  std::set<std::pair<std::string, std::string>> asleep_;         // of those, which execute nothing
  std::set<std::pair<std::string, std::string>> started_;        // ever
  std::map<std::pair<std::string, std::string>, TrueEnd> ends_;  // by (attempt, host)
  std::set<std::pair<std::string, std::string>>
      records_lost_;                           // (attempt, host): nobody there knows of it any more
  std::map<std::string, pb::JobRecord> jobs_;  // by uid, as committed
  std::map<std::string, std::string> uid_of_row_;  // by row id
  std::map<std::string, uint64_t> number_of_key_;  // acknowledged
  std::map<std::string, uint64_t> committed_key_;  // in the store
  std::set<uint64_t> cancelled_;                   // acknowledged
  std::map<std::string, int64_t> heard_ns_,
      agent_heard_ns_;  // by host: by the scheduler of it, by it of the scheduler
  std::map<std::string, std::pair<uint64_t, uint64_t>> acted_;  // by host: epoch and commit
  std::set<std::string> muted_;                                 // hosts
  std::map<std::string, pb::HostRecord> hosts_;
  std::vector<pb::AttemptKey> placed_;  // by the newest commit
  // By attempt, of all that were ever placed on others' devices, by whichever store.
  std::map<std::string, pb::AttemptKey> holder_of_;
  std::set<std::string> abandoned_;  // attempts that only the time after a backup knows
  std::set<std::string> of_backup_;  // attempts that the newest backup knows
  std::set<std::pair<std::string, std::string>>
      starts_sent_;  // (attempt, host), when it was committed that the gang starts
  std::map<std::string, uint64_t>
      publishes_sent_;  // by attempt: `restores_` when its export's publication was ordered
  std::set<std::string> published_;  // attempts
  std::set<std::string> refused_;    // attempts whose export was, at some time
  std::map<std::string, std::string>
      published_for_;  // attempt by job and task, since the newest restore
  uint64_t restores_ = 0;
  std::map<std::string, std::vector<pb::Checkpoint>>
      records_;                   // by job and task, since the newest restore
  std::set<std::string> struck_;  // paths of them
  // Fenced ones there, put off by a scheduler whose store was cloned, until their processes are
  // gone or the other scheduler serves the host.
  std::set<std::pair<std::string, std::string>> renewed_alone_;  // (attempt, host)
  std::set<std::pair<std::string, std::string>>
      publishes_sent_alone_;        // (attempt, host), until the other scheduler serves the host
  std::set<std::string> answered_;  // hosts that know of the newest restore
  std::set<std::string> unheard_;   // hosts that nobody waited for any more
  std::set<std::string>
      forgot_;  // hosts that lost their memory since: nothing keeps them from a store's original
  std::set<std::pair<std::string, std::string>>
      unheard_before_;  // (attempt, host): ran unknown there when a store was restored once more
  bool restoring_ = false;
  uint64_t epoch_ = 0;
  int64_t epoch_ns_ = 0;  // when its scheduler started
  uint64_t commit_ = 0;
  int64_t now_ns_ = 0;                // of the newest commit
  int64_t engine_now_ns_ = 0;         // the same by its engine's clock
  std::set<std::string> uids_;        // of jobs, ever, of whichever store
  std::set<std::string> uids_alone_;  // of jobs that only the original of a cloned store knows
  std::map<std::pair<std::string, uint64_t>, std::string>
      reported_;                       // paths of checkpoints, by (attempt, sequence)
  std::set<std::string> checkpoints_;  // paths that were committed, since the newest restore
  std::map<std::string, std::string> only_user_;  // by cluster: whose jobs alone it takes
  RowChecks rows_;
  ScheduleChecks schedules_;
  QuarantineChecks quarantines_;
};

}  // namespace muster::sim::faults
