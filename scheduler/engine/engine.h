// The engine: the one place where State changes.
//
// Step() takes everything that is queued, applies it, decides, validates the plan, applies the
// plan's events, commits all of that as one transaction, and only then dispatches commands to
// agents and answers callers (contracts 17, 18, 20 of docs/contracts.md). What arrives while a
// commit runs, and what comes within 2 ms of a step's beginning, goes into the next step together:
// that is the group commit. The first after a rest waits for nobody; who asks one thing after the
// other gets at most 500 answers a second.
//
// Threads: Post, Call, PostProgress, LiveProgress, Full, Stats, Snapshot, Stop, StopServing and
// WhyNotServing may be called from any thread. All else is the engine's thread's, where Step, Run
// and the observers run; the simulator calls Step itself on its virtual clock.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/durations.h"
#include "common/base/units.h"
#include "muster/v1/record.pb.h"
#include "scheduler/decide/decider.h"
#include "scheduler/engine/ports.h"
#include "scheduler/state/options.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"
#include "scheduler/state/validate.h"

namespace muster {

struct EngineOptions {
  SchedulingOptions scheduling;
  uint64_t epoch = 1;
  uint64_t last_commit = 0;  // newest commit of the store when it was opened
  std::string
      refused_plans_directory;  // reproducers of plans that Validate refused; empty: not written
  // For fault injection: decides instead of the engine's Decider.
  std::function<Plan(const State&, int64_t now_ns, const SchedulingOptions&)> decide;
  std::function<void()> end_process;  // after a commit error, in place of _Exit; must not return.
                                      // For fault simulation
  // Of a State that is restoring(): whether hosts that may run what it doesn't know have still to
  // be waited for. Called by Step. Null: nobody is waited for.
  std::function<bool(const State&)> awaits_hosts;
  // Whether jobs are taken now; schedules submit none meanwhile, and their times wait. Called by
  // Step. Null: always.
  std::function<bool()> takes_submissions;
  // Whether the owner of a job with a schedule may submit to its queue now: asked at each of its
  // times. nullopt: that isn't known yet, and is asked again soon. Called by Step, and must not
  // wait for anybody. Null: everybody may.
  std::function<std::optional<bool>(const State&, const std::string& owner,
                                    const std::string& queue)>
      may_submit;
  bool check_plans =
      true;  // Validate each plan; off only for the simulator's peers, which give no verdicts
  // Least time between two journalled progress events of an attempt.
  int64_t progress_interval_ns = kSecond;
  size_t most_queued = 65'536;  // what may wait for the next step before Full says so
};

// What steps cost since the process started.
struct EngineStats {
  uint64_t events = 0;
  Durations decide;            // Decide, Validate and applying the plan
  Durations commit;            // the store's part
  Durations step;              // all of it
  size_t most_queued = 0;      // at the beginning of a step
  uint64_t plans = 0;          // that were accepted
  uint64_t refused_plans = 0;  // by Validate (contract 20); each is to be reported
  uint64_t submissions = 0;    // new jobs
  uint64_t starts = 0;         // attempts that were placed
  uint64_t evictions = 0;  // attempts that were told to stop for somebody else's sake (PREEMPTION)
};

// What readers see: the newest durable State with what the last step said about it. Immutable.
struct View {
  State state;
  std::shared_ptr<const Plan>
      plan;  // of the newest step, as far as it was accepted: verdicts, entitled use; never null
  uint64_t commit = 0;
  int64_t now_ns = 0;  // of the newest step
};

std::string AttemptText(const pb::AttemptKey& key);  // "uid/task/attempt"

// One committed step, for observers.
struct StepRecord {
  std::shared_ptr<const View> view;
  std::vector<pb::Event> events;  // all of it, in order, the plan's own last
};

class Engine {
 public:
  using Done = std::function<void(absl::Status)>;
  // Reads State on the engine's thread, with everything queued before it applied, and returns the
  // events to apply at once. An error reaches `done` and changes nothing.
  using Operation = std::function<absl::StatusOr<std::vector<pb::Event>>(const State&)>;
  using Observer = std::function<void(const StepRecord&)>;

  // Clock, store and link must outlive the engine. `state` is what the store held.
  Engine(EngineOptions options, Clock* clock, Store* store, AgentLink* link, State state);
  ~Engine();

  // `done` is called on the engine's thread, OK once the event is durable, UNAVAILABLE if the
  // engine stops before.
  void Post(pb::Event event, Done done = nullptr);
  void Call(Operation operation, Done done);
  // More waits for the next step than should: who can be told to come back later should be.
  bool Full() const;
  EngineStats Stats() const;
  // Progress of a running attempt; journalled once a progress_interval at most, at once visible to
  // LiveProgress. Without effect once the attempt has ended.
  void PostProgress(const pb::ProgressSeen& progress);
  // The attempt's newest progress, journalled or not; nullopt if it reported none to this process.
  std::optional<pb::Progress> LiveProgress(const pb::AttemptKey& key) const;

  // Called on the engine's thread after each committed step, commands dispatched and callers
  // answered. Register before Run.
  void Observe(Observer observer);

  // One engine step, if anything is queued or due; false if there was nothing to do. A commit error
  // ends the process.
  bool Step();
  // The time of a step made now. Never goes back: a wall clock that was set back is waited for at
  // half speed, so that what is due is late but comes.
  int64_t NowNs() const;
  // When Step next has something to do although nothing is queued: by NowNs, INT64_MAX if never.
  int64_t NextWakeNs() const;
  // Steps until Stop, sleeping between.
  void Run();
  void Stop();
  // From now on nothing changes: every call gets FAILED_PRECONDITION with these words, what is
  // posted is dropped, nothing is decided.
  void StopServing(const std::string& why);
  std::string WhyNotServing() const;  // empty: it serves

  std::shared_ptr<const View> Snapshot() const;

 private:
  struct Queued {
    pb::Event event;
    Operation operation;
    Done done;
  };
  struct PendingProgress {
    int64_t journalled_ns = 0;  // Unix time of the last one in the journal
    bool waiting = false;       // `newest` is not in the journal yet
    pb::ProgressSeen newest;
  };

  // What a step takes from those that post.
  struct Work {
    std::vector<Queued> queue;
    std::vector<pb::Event> last_progress;  // before the ends that come after them
    std::vector<pb::Event> progress;
    bool listens_again = false;
  };

  void Wake();  // under mutex_
  void Gather(int64_t began_ns);
  std::vector<pb::Event> TakeLastProgress(int64_t now_ns);  // under mutex_
  std::vector<pb::Event> TakeDueProgress(int64_t now_ns);   // under mutex_
  int64_t ProgressDueNs() const;                            // under mutex_
  void ForgetProgress(const pb::AttemptKey& key);           // under mutex_
  void ForgetEndedProgress();                               // under mutex_; of what the step ended
  bool RefusesAll();
  bool Take(Work* work);
  std::vector<absl::Status> ApplyWork(Work* work);
  ChangedRows Commit();
  void ApplyEvent(pb::Event event);
  void AppendGangPrepared();
  void AskWhoMaySubmit() const;
  void AppendDue();
  bool AwaitsHosts();
  void DecideAndApply();
  void SaveRefused(const Plan& plan, const absl::Status& why);
  void Dispatch(const ChangedRows& changed, const State& before);
  void ForgetWhatEnded();
  void TellStats(int64_t now_ns);
  void Refuse(const std::vector<Queued>& queue);

  const EngineOptions options_;
  Clock* const clock_;
  Store* const store_;
  AgentLink* const link_;

  // The engine's thread only.
  State state_;
  Decider decider_;
  std::shared_ptr<const Plan> plan_ = std::make_shared<const Plan>();
  uint64_t commit_;
  int64_t now_ns_ = 0;
  int64_t now_at_ns_ = 0;  // MonotonicNs when it was
  bool stepped_ = false;
  int64_t committed_in_ns_ = 0;         // what the newest commit took
  std::vector<pb::Event> step_events_;  // of the step being made
  int64_t due_waits_ns_ = 0;            // some job's time has come, and is looked at again then
  int64_t asks_again_ns_ = 0;           // so much after it was not known who may submit
  int refused_plans_ = 0;
  int64_t told_stats_ns_ = 0;  // MonotonicNs
  uint64_t told_steps_ = 0;
  std::vector<Observer> observers_;

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::vector<Queued> queue_;
  std::map<std::string, PendingProgress>
      progress_;  // of attempts that have not ended, by AttemptText
  std::set<std::pair<int64_t, std::string>>
      progress_due_;  // those that wait, by when they may be journalled
  std::shared_ptr<const View> view_;
  EngineStats stats_;
  int64_t next_wake_ns_ = 0;  // at once: recovery may have left work
  bool gathering_ = false;    // Run waits for company of what is queued
  bool stopping_ = false;
  std::string why_not_;  // not empty: nothing changes any more
};

}  // namespace muster
