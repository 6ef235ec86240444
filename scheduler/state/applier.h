// Inside of Apply: the one writer of State. Private to scheduler/state.
#pragma once

#include <string>
#include <string_view>

#include "scheduler/state/state.h"

namespace muster {

// Key of the index by (owner, idempotency key).
std::string IdempotencyIndexKey(std::string_view owner, std::string_view key);
// Of the array whose member 0 has `uid`.
std::string MemberUid(const std::string& uid, int32_t member);
int LedgerClassOf(std::string_view name);  // -1 if there is none
// What a placement describes, as a reservation has it and as an attempt does; host kNoHost if the
// cluster has no such host.
HostSlice ToSlice(const State& state, std::string_view cluster, const pb::Placement& placement);
PartRow ToPart(const State& state, std::string_view cluster, const pb::Placement& placement);
pb::Predecessor ToRecord(const Predecessor& before);
// The scheduler stopped it, to go on elsewhere or with other workers.
inline bool Moved(pb::Cause cause) {
  return cause == pb::PREEMPTION || cause == pb::RESIZE || cause == pb::DRAIN ||
         cause == pb::HOLDER;
}
// GPUs' thousandths that the attempt holds.
int64_t DevicesMilli(const AttemptRow& attempt, const pb::TaskSpec& task);

class Applier {
 public:
  explicit Applier(State* state) : s_(*state) {}

  void Apply(const pb::Event& event);
  void ReplaceSpec(uint64_t number, const pb::JobSpec& spec);  // what_if.h

  // For State::Load, too.
  void SetQueues(const pb::QueueTree& tree);
  void SetBinding(const pb::Binding& binding, bool revoked);
  void SetTrust(const pb::TrustRecord& record);
  void SetCertificate(const pb::IssuedCertificate& certificate);
  void SetClusters(const pb::ClusterFile& file);
  void SetClusterDrained(const std::string& name, bool drained, const std::string& reason);
  HostId FindOrAddHost(const std::string& cluster,
                       const std::string& host);  // kNoHost without such a cluster
  void GoneOff(AttemptRow* attempt, const HostRow& host);
  void OrderHosts();
  void OrderHost(HostId id);  // that isn't listed, among the others
  void InsertLoaded(JobRow job);
  // Derives which of the task's attempts stages the export that is still to be published, if one
  // does.
  void RefreshStagedExport(const JobRow& job, int32_t task);
  // Derives the host's use and what its devices are booked to (host_use.cc).
  void RefreshHost(HostId id);

 private:
  // A task and its newest attempt, for writing.
  struct Found {
    JobRow* job = nullptr;
    int32_t index = 0;
    TaskRow* task = nullptr;
    AttemptRow* attempt = nullptr;
    explicit operator bool() const { return attempt != nullptr; }
  };

  void Carry(const pb::Event& event);
  JobRow* Job(uint64_t number);  // for writing: a new version, to be saved
  HostRow* Host(HostId id);      // for writing, to be saved
  void NewRound();               // something happened that isn't the scheduler's own act
  // The attempt's devices count as its queue's (sign 1), or no longer (-1).
  void CountUse(const JobRow& job, int32_t task, const AttemptRow& attempt, int64_t sign);
  // Derives which of the job's tasks wait.
  void IndexWaiting(uint64_t number);
  void IndexReservation(const TaskRef& ref, const Reservation& reservation, bool there);
  // Remembers a finished job's tasks that succeeded as the newest of their names, unless a later
  // one is known.
  void IndexDone(const JobRow& job);
  // The job is forgotten: nothing finds it any more.
  void DropFromIndexes(const JobRow& job);
  // How long the newest equal task of the owner ran, for this many workers (linear); 0 = unknown.
  int64_t ExpectedRun(const JobRow& job, int32_t task, int32_t workers) const;
  // Keeps these devices for the task; nullptr: none. `task` is a row of a job that Job() gave.
  void SetReservation(const TaskRef& ref, TaskRow* task,
                      std::shared_ptr<const Reservation> reservation);
  // The named attempt if it is the task's newest. Finished jobs' too.
  Found FindNewest(const pb::AttemptKey& key);
  void RefreshHostsOf(const AttemptRow& attempt);
  void CountShares(const HostRow& host, int64_t sign);

  void On(const pb::AuthorityChanged& e);
  void On(const pb::JoinTokenChanged& e);
  void On(const pb::NetworkUserChanged& e);
  void On(const pb::CertificateIssued& e);
  void On(const pb::CertificatesRevoked& e);
  void On(const pb::StepStarted& e);
  void On(const pb::JobSubmitted& e);
  void On(const pb::JobCancelRequested& e);
  void On(const pb::JobDue& e);
  void On(const pb::QueuesApplied& e);
  void On(const pb::ClustersConfigured& e);
  void On(const pb::DrainChanged& e);
  void On(const pb::HostHello& e);
  void On(const pb::HostStateChanged& e);
  void On(const pb::HostConfirmedOff& e);
  void On(const pb::StoreAdopted& e);
  void On(const pb::HostFenceFailed& e);
  void On(const pb::HostFaultSeen& e);
  void On(const pb::StragglerSeen& e);
  void On(const pb::QuarantineReleased& e);
  void On(const pb::HostCheckFailed& e);
  void On(const pb::AttemptReported& e);
  void On(const pb::GangPrepared& e);
  void On(const pb::CheckpointSeen& e);
  void On(const pb::ProgressSeen& e);
  void On(const pb::ExportStaged& e);
  void On(const pb::ExportPublished& e);
  void On(const pb::LoadedSeen& e);
  void On(const pb::AttemptPlaced& e);
  void On(const pb::AttemptStopping& e);
  void On(const pb::AttemptLost& e);
  void On(const pb::ClusterOpened& e);
  void On(const pb::TaskFailed& e);
  void On(const pb::ReservationChanged& e);

  // Quarantine (apply_quarantine.cc).
  void BlameEnd(const Found& found);
  void BlameHolder(HostId id, int32_t device, const std::string& detail);
  void Blame(HostId id, pb::Blame blame);
  void Judge(HostId id);
  void TakeOut(HostId id, int32_t device, std::string reason, std::vector<pb::Blame> evidence);
  void KeepQuarantines(HostId id, const pb::Inventory& told);
  void Reconsider(int32_t cluster);
  void ShowQuarantines(HostRow* host);
  bool MayTakeOut(HostId id, int32_t device) const;

  void BookLedger(int64_t now_ns);
  std::map<std::string, int64_t> FragmentedMilli() const;
  void TickHistory();
  // The jobs' bands (queue_order.h).
  void TickOrder();
  bool SetBand(uint64_t number, int32_t band);  // it had another one
  void ForgetOldJobs();
  void ForgetExpired();  // tokens and certificates
  void KeepStray(HostId id, const pb::AttemptReported& e);
  void SetHostState(HostRow* host, pb::HostState state);
  // All its processes are gone or lost: frees its devices, and ends it unless it waits for its
  // export.
  void Release(const Found& found);
  void EndAttempt(const Found& found);
  void TryFaultAgain(const Found& found);
  void RestartLost(const Found& found, bool ordered);
  void RestartFailed(const Found& found);
  void BookLoss(const Found& found, pb::Cause cause);
  void FailTask(JobRow* job, int32_t task, pb::Cause cause, const std::string& detail);
  // Unblocks, cancels what can't run any more, ends the job.
  void SettleJob(JobRow* job);
  void EndUnneededTasks(JobRow* job);
  void EndJob(JobRow* job, pb::JobState state, pb::Cause cause);
  void CancelJob(uint64_t number, const std::string& detail);

  // Jobs that wait for others (apply_successors.cc).
  void SetPredecessors(const pb::JobSubmitted& e, JobRow* job);
  // Derives who waits for whom from a job that awaits others, or does so no more.
  void IndexAwaited(const JobRow& job, bool awaits);
  void IndexAwaited(const AwaitedKey& key, uint64_t number, bool awaits);
  void IndexDue(const JobRow& job, bool waits);
  void DueMember(uint64_t number, const pb::JobDue& e);
  void IndexHosted(const JobRow& job, bool there);
  // What ran on the devices of a job that has ended, or isn't known, ends too.
  void EndHosted(uint64_t holder);
  // Those that waited for what the event ended may start, or end, too.
  void SettleSuccessors();
  void SettleSuccessor(uint64_t number, const AwaitedKey& ended);

  // Arrays (apply_arrays.cc).
  // Counts a member that was not counted, or no more (-1).
  void CountMember(const JobRow& job, int32_t sign);
  void EndMember(const JobRow& ended);
  // The waiting and blocked tasks of its array.
  std::pair<std::vector<TaskRef>::const_iterator, std::vector<TaskRef>::const_iterator> WaitingOf(
      const JobRow& member) const;
  void NextTurn(const JobRow& ended);
  void EndUnneeded(const JobRow& ended);
  // If it is the head of a Ray cluster that has ended without success: stops the other members.
  void EndWithHead(uint64_t number);
  // When it counts as ended: with the last member of its array.
  int64_t EndOfWhole(const JobRow& job) const;
  void InsertFinished(uint64_t number);

  State& s_;
  std::vector<uint64_t> written_;  // jobs that the event wrote
  std::vector<AwaitedKey> ended_;  // jobs and arrays that it ended, or that were named in vain
};

}  // namespace muster
