// What the scheduler knows: jobs, hosts, clusters, the queue tree, and the ledger; and Apply, the
// only thing that changes it.
//
// A State is a value. Copies are snapshots and cheap (pages are shared until one side writes).
// Pure: no clock, no randomness, no I/O. One object is used by one thread at a time; copies are
// independent of each other.
//
// Facts are what events said; derived data (indexes, use of hosts and queues, the list of
// unfinished jobs) follows from them: a State loaded from its rows equals the one that wrote them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/units.h"
#include "muster/v1/record.pb.h"
#include "scheduler/state/abilities.h"
#include "scheduler/state/paged.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/rows.h"

namespace muster {

// A row for the store. Kinds: "configuration", "trust" and "meta" (one row each, id ""), "job" (id:
// its number in 20 digits), "host" (id: cluster/host), "certificate" (id: its serial).
struct RowChange {
  std::string kind;
  std::string id;
  std::optional<std::string> bytes;  // nullopt: the row is gone
};

struct ChangedRows {
  bool configuration = false;
  bool meta = false;
  bool trust = false;
  std::vector<HostId> hosts;                // by cluster/host
  std::vector<uint64_t> jobs;               // by number; those that are gone, too
  std::vector<std::string> certificates{};  // by serial; those that are gone, too

  bool empty() const {
    return !configuration && !meta && !trust && hosts.empty() && jobs.empty() &&
           certificates.empty();
  }
};

// A job, or with true the whole array, of this number.
using AwaitedKey = std::pair<uint64_t, bool>;

// What is kept of an array of which a member has not ended.
struct ArrayTally {
  int32_t unfinished = 0;  // members
  int32_t later = 0;       // of these, that wait for their turn
  bool operator==(const ArrayTally&) const = default;
};

// Finished jobs stay in State, for lists and for idempotency keys, until one of these is exceeded;
// history is the store's.
inline constexpr int64_t kFinishedJobsKept = 10'000;
// So many members of arrays count as one of them. An array is forgotten as a whole, and its end is
// that of its last member.
inline constexpr int64_t kMembersKeptAsOne = 10;
inline constexpr int64_t kFinishedKeptNs = 7 * kDay;
// Of a try after a fault of the infrastructure no more counts towards the task's retry_faults_for:
// a program that runs for hours and tells no progress gets as many tries as pauses would allow.
inline constexpr int64_t kFaultTryNs = 5 * kMinute;
// Attempts in a row, none of which told any progress or ran for ten minutes, that lost a host: it
// may be the task that takes its hosts down. It is given no further one.
inline constexpr int32_t kHostsLostInRow = 10;
// Hosts that are up take seconds to prepare and to start a gang: one that says nothing for so long
// is stuck, and its gang starts elsewhere.
inline constexpr int64_t kLaunchTimeoutNs = 10 * kMinute;
inline constexpr int32_t kExportTries = 5;  // to publish an export, after which its task fails
// Where a restored store goes on, attempts are numbered from the seconds since 2026 (contract 19):
// no earlier history, nor an earlier restore of the same backup, came as far, at less than one
// attempt a second.
inline constexpr int64_t kAttemptsSinceS = 1'767'225'600;
inline constexpr int kStraysKept = 1000;          // a host
inline constexpr int kFinishedAttemptsKept = 20;  // of a task
inline constexpr int kCheckpointsKept = 20;       // records of a task
inline constexpr int kBlamesKept = 64;            // a host

// What one State has otherwise than another.
struct Touched {
  bool clusters = false;  // the clusters' file, or a cluster drained
  bool queues = false;
  bool history = false;
  bool host_order = false;     // there are other hosts, or in another order
  std::vector<uint64_t> jobs;  // ascending; gone ones too
  std::vector<HostId> hosts;   // ascending; their derived use counts
};

class State {
 public:
  State();

  // ---- jobs ----
  const JobRow* FindJob(uint64_t number) const;  // nullptr if unknown or forgotten
  const JobRow* FindJobByUid(std::string_view uid) const;
  // Number of the job that `owner` submitted with this key; 0 = none.
  uint64_t FindByIdempotencyKey(std::string_view owner, std::string_view key) const;
  // A number (decimal), a uid, or of an array's member the array's number and its index (17_3);
  // nullptr if it is none or unknown.
  const JobRow* FindJobByText(std::string_view number_or_uid) const;
  const std::vector<uint64_t>& active_jobs() const { return *active_; }  // unfinished, ascending
  std::vector<uint64_t> AllJobs() const;  // with the finished ones kept, ascending
  // Calls f for each job below `end`, the finished ones kept, too, newest first, until it returns
  // false.
  template <typename F>
  void ForEachJobBelow(uint64_t end, F f) const {
    jobs_.ForEachBelow(end, f);
  }
  const std::vector<TaskRef>& reserved_tasks() const {
    return *reserved_;
  }  // for which devices are kept, ascending
  const std::vector<TaskRef>& waiting_tasks() const {
    return *waiting_;
  }  // WAITING or BLOCKED, of unfinished jobs, ascending
  uint64_t next_job_number() const { return next_job_number_; }
  // Unfinished jobs that wait for others, ascending, by whom they wait for.
  const std::map<AwaitedKey, std::vector<uint64_t>>& awaited() const { return *awaited_; }
  // Unfinished jobs that wait for a time (Unix), by it and their numbers.
  const std::set<std::pair<int64_t, uint64_t>>& due() const { return *due_; }
  // Unfinished jobs that run on another one's devices, ascending, by that one's number.
  const std::map<uint64_t, std::vector<uint64_t>>& hosted() const { return *hosted_; }
  // By number, those of which a member has not ended. All members of these are kept.
  const std::map<uint64_t, ArrayTally>& arrays() const { return *arrays_; }
  // The attempt that the key names, if it is kept; *job and *task (optional) say whose it is.
  const AttemptRow* FindAttempt(const pb::AttemptKey& key, const JobRow** job = nullptr,
                                int32_t* task = nullptr) const;
  const AttemptRow* FindAttempt(const AttemptRef& ref) const;
  // Attempts whose export is committed as their task's and not published yet, of unfinished jobs.
  const std::set<AttemptRef>& staged_exports() const { return *staged_exports_; }

  // ---- hosts and clusters ----
  const HostRow& host(HostId id) const;
  HostId FindHost(std::string_view cluster, std::string_view host) const;  // kNoHost if unknown
  // All of them: clusters in file order, listed hosts in file order, then others by name. Placement
  // follows this order.
  const std::vector<HostId>& hosts() const { return *host_order_; }
  const std::vector<ClusterRow>& clusters() const { return *clusters_; }  // in file order
  int32_t FindCluster(std::string_view name) const;                       // -1 if unknown
  const pb::ClusterFile& cluster_file() const { return *cluster_file_; }
  std::string HostName(HostId id) const;  // cluster/host

  // ---- queues ----
  const QueueIndex& queues() const { return *queues_; }  // an empty tree has one leaf, `default`
  // Devices' thousandths (CPUs' for work without GPUs) that the attempts of a queue's own jobs
  // hold, by (queue path, flavour or "cpu"). Only what isn't 0.
  const std::map<std::pair<std::string, std::string>, int64_t>& queue_use() const {
    return *queue_use_;
  }
  const pb::QueueTree& queue_tree() const { return *queue_tree_; }
  uint64_t queue_version() const { return queue_version_; }

  // Roles that were granted, by node. Those of a queue that is gone went with it.
  const Bindings& bindings() const { return *bindings_; }
  const Trust& trust() const { return *trust_; }

  // ---- the rest ----
  int64_t now_ns() const { return now_ns_; }  // of the newest step
  uint64_t epoch() const { return epoch_; }
  // Whoever spoke since then was heard; before it the process didn't run, or stood still.
  int64_t listens_since_ns() const { return listens_since_ns_; }
  // The first epoch since the newest backup that was restored, 0 if none was; what agents saw in
  // earlier ones says nothing.
  uint64_t adopted_epoch() const { return adopted_epoch_; }
  // Hosts may still run what this store doesn't know: nothing may be placed (contract 19).
  bool restoring() const { return restoring_; }
  // Outside events so far (docs/scheduling.md §2): arrivals, ends, failures, capacity,
  // configuration, opened clusters. Within a round the entitled set and its charges are constant.
  uint64_t round() const { return round_; }
  // Booked slot-time in device-microseconds by (queue path, class); "" for idle and down, which are
  // nobody's.
  const std::map<std::pair<std::string, int>, int64_t>& ledger() const { return *ledger_; }
  int64_t ledger_since_ns() const { return ledger_since_ns_; }
  int64_t ledger_until_ns() const { return ledger_until_ns_; }
  int64_t ledger_capacity_device_us() const { return ledger_capacity_device_us_; }

  // By queue path; of the newest tick of kHistoryTickNs.
  const std::map<std::string, QueueHistory>& history() const { return *history_; }

  // ---- the store ----
  // What changed since the last call (or since Load).
  ChangedRows TakeChanges();
  // The rows of it, as they are now, for the store: ordered by kind and id, serialized
  // deterministically.
  std::vector<RowChange> RowsOf(const ChangedRows& changed) const;
  // Every row, as a full save would write them.
  std::vector<RowChange> AllRows() const;
  // DATA_LOSS names the row that can't be read or doesn't fit the others. Order of rows doesn't
  // matter.
  static absl::StatusOr<State> Load(const std::vector<RowChange>& rows);
  // A "job" row by itself, as of a job that is not held any more: hosts and clusters are this
  // State's. DATA_LOSS as above.
  absl::StatusOr<JobRow> ParseJob(const std::string& bytes) const;

  // What was written since `before` was a copy of this State: compares pages and rows by identity,
  // so that a copy kept as `before` costs nothing where nothing was written, and anything else than
  // a copy differs everywhere.
  Touched Since(const State& before) const;

  // Derived data rebuilt from the facts; for tests.
  State Rebuilt() const;
  // Empty if facts and derived data are equal, else the first difference. For tests and fault
  // simulation.
  static std::string Difference(const State& a, const State& b);

 private:
  friend class Applier;
  friend struct StateRecords;

  PagedArray<JobRow> jobs_;    // by number
  PagedArray<HostRow> hosts_;  // by HostId
  HostId host_count_ = 0;
  PagedIndex job_by_uid_;                          // derived
  PagedIndex job_by_key_;                          // derived; owner '\0' key
  PagedIndex host_by_name_;                        // derived; "cluster/host" -> id + 1
  std::shared_ptr<std::vector<uint64_t>> active_;  // derived
  // Derived; by end time, then number. Members of arrays that go on are in neither of both.
  std::shared_ptr<std::vector<uint64_t>> finished_;
  int64_t finished_members_ = 0;                                          // derived; of finished_
  std::shared_ptr<std::map<uint64_t, ArrayTally>> arrays_;                // derived
  std::shared_ptr<std::map<AwaitedKey, std::vector<uint64_t>>> awaited_;  // derived
  std::shared_ptr<std::set<std::pair<int64_t, uint64_t>>> due_;           // derived
  std::shared_ptr<std::map<uint64_t, std::vector<uint64_t>>> hosted_;     // derived
  std::shared_ptr<const std::set<AttemptRef>> staged_exports_;            // derived
  std::shared_ptr<const std::vector<TaskRef>> reserved_;                  // derived
  std::shared_ptr<std::vector<TaskRef>> waiting_;                         // derived
  std::shared_ptr<std::map<std::pair<std::string, std::string>, int64_t>> queue_use_;  // derived
  PagedIndex newest_done_;  // derived; owner '\0' job '\0' task -> number of the newest finished
                            // job where it succeeded
  std::shared_ptr<const std::vector<HostId>> host_order_;  // derived
  std::shared_ptr<const std::vector<ClusterRow>> clusters_;
  std::shared_ptr<const pb::ClusterFile> cluster_file_;
  std::shared_ptr<const pb::QueueTree> queue_tree_;
  std::shared_ptr<const QueueIndex> queues_;  // derived
  std::shared_ptr<const Bindings> bindings_;
  std::shared_ptr<Trust> trust_;
  std::shared_ptr<const std::map<std::pair<std::string, int>, int64_t>> ledger_;
  std::shared_ptr<std::map<std::pair<std::string, int>, int64_t>>
      ledger_rate_;  // derived: devices' thousandths by (queue, class) now
  std::shared_ptr<const std::map<std::string, QueueHistory>> history_;
  int64_t history_tick_ = 0;  // now / kHistoryTickNs of the newest tick; 0: none yet
  std::shared_ptr<std::map<std::pair<std::string, std::string>, int64_t>>
      idle_;                    // derived: booked as idle now, by cluster and flavour
  int64_t capacity_milli_ = 0;  // derived: devices' thousandths of all hosts but removed ones
  uint64_t next_job_number_ = 1;
  uint64_t queue_version_ = 0;
  int64_t now_ns_ = 0;
  uint64_t epoch_ = 0;
  uint64_t adopted_epoch_ = 0;
  bool restoring_ = false;
  uint64_t round_ = 0;
  int64_t restart_backoff_ns_ = 0;
  int64_t listens_since_ns_ = 0;
  int64_t ledger_since_ns_ = 0, ledger_until_ns_ = 0, ledger_capacity_device_us_ = 0;

  // What TakeChanges has to write.
  bool meta_changed_ = false;
  bool configuration_changed_ = false;
  bool trust_changed_ = false;
  std::set<std::string> changed_certificates_;
  std::set<uint64_t> changed_jobs_;
  std::set<HostId> changed_hosts_;
};

// Applies one event with its consequences: the last host Gone ends an attempt, its task waits
// again, succeeds or fails, the job ends, `after` unblocks, checkpoints are sealed or struck. Total
// and deterministic: an event that makes no sense any more (an unknown job, a late report of a Lost
// attempt, a repetition) has no effect.
//
// GONE for an attempt of this host also frees what a Lost attempt held there. StepStarted books the
// ledger up to its time.
void Apply(State* state, const pb::Event& event);

// ---- small readings that engine, decide and ask share ----

pb::AttemptKey KeyOf(const JobRow& job, int32_t task, int32_t attempt);
// Index of the task of that name; -1 if there is none.
int32_t TaskIndex(const pb::JobSpec& spec, std::string_view name);
// All tasks that this one is there for (`until`) have succeeded: what runs of it is stopped, and
// nothing starts.
bool NotNeeded(const JobRow& job, int32_t task);
// Every host of the gang has reported Prepared. False once it is more than PREPARING.
bool AllPrepared(const AttemptRow& attempt);
// What is committed then, before the first Start is sent (contract 6); nullopt: not yet, or not any
// more.
std::optional<pb::Event> PreparedGang(const State& state, const pb::AttemptKey& key);
// Its gang waits for this part to be prepared or, once all are, started.
bool LagsInLaunch(const AttemptRow& attempt, const PartRow& part);
// The host was never told of this part of such a task, and may not be: its agent was exchanged for
// one that knows less.
bool OutgrowsAgent(const HostRow& host, const PartRow& part, Abilities needs);
// The attempt, which has ended, ran for ten minutes; what came after the first of its hosts went
// off doesn't count.
bool RanSoundly(const AttemptRow& attempt);
// The first process that failed by itself, as its host told it: what to call the gang's failure.
// nullopt: none has.
struct Failure {
  pb::Cause cause = pb::CAUSE_UNSPECIFIED;
  std::string detail;
  HostId host = kNoHost;  // where it failed
  int32_t rank = -1;      // -1: no process of it did
  int32_t exit_code = 0;  // of that process; 0: a signal, or what no process said
  bool own = false;       // the process ended so by itself, as its host knows
};
std::optional<Failure> FirstFailure(const AttemptRow& attempt);
// A fault of the infrastructure: it costs the job's budget nothing, and is tried again elsewhere
// (TaskSpec.retry_faults_for).
bool Infrastructure(pb::Cause cause);
// Of an attempt that has ended: its program said with its exit code that another try would fail as
// well (TaskSpec.final_exit_codes). What it said of its own end counts before what its log sounds
// like.
bool EndedForGood(const pb::TaskSpec& task, const AttemptRow& attempt);
bool SaysFinal(const pb::TaskSpec& task, const Failure& failure);  // whatever it ended with
// Where the attempt failed, of which such a fault was the end; kNoHost: nobody told where.
HostId FailedHost(const AttemptRow& attempt);
// One worker of the task on a host with this inventory.
Demand WorkerDemand(const pb::TaskSpec& task, const pb::Inventory& inventory);
// The same of what the task's resources say (0: left out), on a host with so many devices, CPUs and
// so much memory in all.
Demand ShareOfHost(Demand wants, int64_t devices, int64_t cpus_milli, int64_t memory_bytes);
// replace, wait or fence, with the default for what the spec leaves open (a gang over several
// hosts: replace).
pb::WhenUnreachable UnreachableRule(const pb::TaskSpec& task, const AttemptRow& attempt);
// How long a host may have been silent before what runs there with `fence` has been stopped by its
// shim for certain (contract 9): (fence_after + grace + kill) * (1 + drift) / (1 - drift) + 1
// tick, counted from the last word of the host. 0: the rule isn't fence.
int64_t FenceWaitNs(const pb::TaskSpec& task);
// No process of the task runs on this host, although it can't be reached: it was fenced, or
// somebody said so.
bool KnownOff(const HostRow& host, const pb::TaskSpec& task);
// It left the clusters file of a cluster that is not open, is not heard from, and no attempt may
// run there: it is no capacity any more. Its agent would be refused.
bool IsRemoved(const State& state, const HostRow& host);
// The devices (indexes on the host) that the process of this rank may use: one, where a worker runs
// as many processes as it has whole GPUs; else its worker's. Empty: it is none of the part's, or
// uses no devices.
std::vector<int32_t> DevicesOfRank(const pb::TaskSpec& task, const PartRow& part, int32_t rank);
// The cluster's rule with every default filled in.
pb::QuarantineRule QuarantineRuleOf(const State& state, int32_t cluster);
// The storage that holds the job's directory: job_storage of the cluster it is bound to; empty: not
// bound, or none configured.
std::string JobStorage(const State& state, const JobRow& job);
// Whether jobs of this owner may run there: a cluster may be for one user alone.
bool TakesJobsOf(const pb::ClusterSpec& cluster, const std::string& owner);
// Clusters (indexes, in order of preference) that the task may be placed in now, spill apart: its
// job's list, or all, but for those that are for another user's jobs alone; once the job is bound,
// only those that reach the job's storage.
std::vector<int32_t> AllowedClusters(const State& state, const JobRow& job);
// Storage of this name can be reached from the cluster.
bool Reaches(const pb::ClusterFile& file, const std::string& storage, const std::string& cluster);
// Newest first, of those that `cluster` reaches: MUSTER_RESUME_FROM.
std::vector<std::string> ResumeFrom(const State& state, const TaskRow& task,
                                    const std::string& cluster);
// A job that users name, of an array the whole by its number. nullopt: State knows none.
struct NamedJob {
  uint64_t number = 0;
  bool array = false;                              // the whole one
  pb::JobState state = pb::JOB_STATE_UNSPECIFIED;  // of the whole one, if that is meant
  bool ended() const { return state != pb::WAITING && state != pb::RUNNING; }
};
std::optional<NamedJob> FindNamedJob(const State& state, std::string_view id);
// Likewise of a row that State may have forgotten.
NamedJob Named(const JobRow& job, std::string_view id);
// Why a task that is blocked waits: for the job's time, if that alone keeps it.
pb::VerdictCode BlockedCode(const JobRow& job, int32_t task);
// The first member of the job's array, which has what is said of the whole; of no array's the job.
// All members of an array that goes on are kept; where the first is not, the job stands for it.
const JobRow& FirstOf(const State& state, const JobRow& job);
// The job (FirstOf) whose time to wait for has come first, by State's time; nullptr: there is none.
const JobRow* FirstDue(const State& state);
// At the time of a job with a schedule (of an array its first member): the one of the time before
// has not ended, or with `overlap: allow` none of the kMostBeside before it.
inline constexpr int32_t kMostBeside = 10;
bool SkipsItsTime(const State& state, const JobRow& first);
// Whom a job with this spec waits for: those named in after and after_any that have not ended.
// What State doesn't know has ended well, or was refused before.
void SetPredecessors(const State& state, pb::JobSubmitted* submitted);
pb::Placement ToPlacement(const State& state, const PartRow& part);
// How the members of an array are; `first` is member 0.
pb::ArrayStatus ArrayStatusOf(const State& state, const JobRow& first);
// What the array is as a whole: RUNNING while a member has an attempt; ended, FAILED if one failed,
// else CANCELLED if one was.
pb::JobState StateOfArray(const pb::ArrayStatus& status);
// The row that tells most of an array: a member that failed, else one that waits, else the first
// that goes on, else member 0.
const JobRow& TellingMember(const State& state, const JobRow& first);
// The one that explain is about: the first that waits, else that goes on, else member 0.
const JobRow& ExplainedMember(const State& state, const JobRow& first);
// As lists have it: of member 0 that of its array.
pb::JobState ShownState(const State& state, const JobRow& job);

}  // namespace muster
