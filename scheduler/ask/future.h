// What would happen from a State on if nothing else came: the real Decide under a virtual clock, on
// hosts that carry out its plans at once (docs/scheduling.md §4, forecasts). Preview, explain,
// forecast and simulate are built on it.
//
// A model, and its assumptions: what runs makes progress and ends when it is expected to (progress,
// history, time limit; else never), a program that is stopped leaves after `leave_ns` with a
// checkpoint of that moment if it makes any (StartsOver), launching takes no time, nothing fails.
// The work of an elastic gang is workers x time. Pure and deterministic but for `expired`; one
// object is used by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/units.h"
#include "scheduler/state/options.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

class Decider;

struct FutureOptions {
  int64_t horizon_ns = kDay;  // how far to look
  int64_t leave_ns =
      10 * kSecond;      // from a stop to free devices, where the grace period isn't shorter
  int steps_max = 4000;  // decisions
  std::function<bool()> expired;  // asked before each decision: true ends it. Empty: never
  Decider* decider = nullptr;  // shared by futures of copies of one State, on one thread: what they
                               // have in common is read once. Null: one of its own
};

// Whether so many percent of the time for an answer are spent. Empty: time is no matter.
using Spent = std::function<bool(int percent)>;

// Something that a plan did, or that came of one.
struct Foreseen {
  enum Kind { kPlaced, kStopping, kEnded };
  Kind kind = kPlaced;
  int64_t at_ns = 0;
  TaskRef task;
  int32_t workers =
      0;  // kPlaced: it starts with; kStopping: it goes on with (0: unknown); kEnded: it had
  int32_t before = 0;       // kStopping: workers until then
  int64_t lost_gpu_ms = 0;  // kStopping: devices' time since its last checkpoint
  bool starts_over =
      false;  // kStopping: no checkpoint of it is known, and its program isn't one that makes them
  pb::Cause cause = pb::CAUSE_UNSPECIFIED;
  uint64_t claimant = 0;  // kStopping by PREEMPTION: the job for which
  std::string cluster, flavour;
  std::vector<HostId> hosts;
};

class Future {
 public:
  // From `now_ns` on (not before the State's own time).
  Future(State state, int64_t now_ns, const SchedulingOptions& scheduling, FutureOptions options);

  // Applied at that time, before its decision; what is in the past comes first of all. Before the
  // first Step for `now`.
  void At(int64_t when_ns, pb::Event event);
  // The next moment at which something happens, and a decision. False: nothing will happen any
  // more, the horizon is reached, or time is up.
  bool Step();
  // As Step for both, at the same moments: whatever happens in one is a decision in the other, too,
  // so that what differs between them is what was put into them. False: nothing will happen any
  // more in either, or one of them can't go on.
  static bool StepBoth(Future* one, Future* other);
  // Steps until the task has been placed; that placement, or nullptr if it doesn't come before the
  // end.
  const Foreseen* RunUntilPlaced(const TaskRef& task);
  void Run() {
    while (Step()) {
    }
  }

  const State& state() const { return state_; }
  const Plan& plan() const { return plan_; }  // of the newest Step
  int64_t now_ns() const { return now_ns_; }
  const std::vector<Foreseen>& foreseen() const { return foreseen_; }
  // The task's first placement, or nullptr.
  const Foreseen* PlacedAt(const TaskRef& task) const;
  // Ended before its time: `expired` or steps_max. What has not happened by then is unknown.
  bool cut() const { return cut_; }
  // When what runs is expected to end; 0 = unknown, or it doesn't run.
  int64_t EndOf(const TaskRef& task) const;

 private:
  struct Pending {
    enum Kind { kEvent, kLaunch, kEnd, kLeave };
    Kind kind = kEvent;
    pb::Event event;
    AttemptRef attempt;
  };
  // What a task has still to do, in worker-nanoseconds; and when its attempt began to do it.
  struct Work {
    int64_t left = -1;  // -1: unknown
    int64_t since_ns = 0;
    int64_t end_ns = 0;  // of the attempt that runs; 0 = unknown
  };

  // When the next step is due; kNever (future.cc): not before the horizon.
  int64_t NextNs() const;
  // The last moment that a step due at `next_ns` takes in with it.
  int64_t GrainEnd(int64_t next_ns) const;
  bool StepAt(int64_t at_ns);
  void Adopt(const JobRow& job, int32_t task, const AttemptRow& attempt);
  void Launch(const AttemptRef& ref);
  void End(const AttemptRef& ref);
  void Leave(const AttemptRef& ref);
  void Report(const AttemptRef& ref, size_t part, pb::AttemptPhase phase, bool stopped);
  void ApplyDue();
  void ApplyPlan();
  void NotePlaced(const pb::AttemptPlaced& placed);
  void NoteStopping(const pb::AttemptStopping& stopping);
  void NoteEnded(const AttemptRef& ref);
  Work WorkOf(const JobRow& job, int32_t task) const;

  State state_;
  const int64_t begin_ns_;
  const SchedulingOptions scheduling_;
  const FutureOptions options_;
  std::shared_ptr<Decider> own_decider_;
  int64_t now_ns_;
  bool started_ = false, cut_ = false;
  int steps_ = 0;
  int64_t wake_ns_ = std::numeric_limits<int64_t>::max();
  int64_t hang_ns_ = std::numeric_limits<int64_t>::max();  // when what runs in the given State
                                                           // would first count as hung
  int64_t hang_timeout_ns_ = std::numeric_limits<int64_t>::max();  // the shortest of theirs
  std::multimap<int64_t, Pending> pending_;
  std::map<TaskRef, Work> work_;
  std::map<TaskRef, size_t> placed_;  // index of the first kPlaced in foreseen_
  std::vector<Foreseen> foreseen_;
  Plan plan_;
};

// A stop loses all that the task has done: it has no checkpoint, and its program isn't Muster's
// trainer, which makes one when it is told to stop.
bool StartsOver(const TaskRow& task, const pb::TaskSpec& spec);

// Ends the job's processes at once, as if all had succeeded; what waits of it is cancelled. For
// "what if this job ended".
void EndNow(State* state, uint64_t job);

// "phx/r4/h07", "phx/r3,r4", "phx, 12 racks": where these hosts are, as narrowly as that can be
// said in few words.
std::string PlaceText(const State& state, const std::vector<HostId>& hosts);
// "1 host", "1 rack", "1 block", "12 hosts".
std::string WithinText(const State& state, const std::vector<HostId>& hosts);

}  // namespace muster
