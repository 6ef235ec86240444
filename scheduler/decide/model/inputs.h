// What a decision reads, and what follows from that alone. Nothing in it changes while the passes
// run.
//
// Inside of scheduler/decide. S is the entitled set (entitle.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "scheduler/decide/model/model.h"
#include "scheduler/state/options.h"
#include "scheduler/state/state.h"

namespace muster {

// A running gang, and when it is expected to end.
struct RunEnd {
  int64_t end_ns = 0;  // kUnbounded: unknown
  int64_t place_ns = 0;
  int32_t gang = 0;
  bool gpus = false;
  int64_t milli = 0;  // that it gives back then
  bool operator<(const RunEnd& other) const {
    return std::tie(end_ns, place_ns, gang) < std::tie(other.end_ns, other.place_ns, other.gang);
  }
};

struct Inputs {
  // `model` is the state's, with its entitled set. All of them outlive this.
  Inputs(const State& state, int64_t now_ns, const SchedulingOptions& options, const Model& model);

  const State& state;
  const int64_t now_ns;
  const SchedulingOptions& options;
  const Model& model;

  // Gangs that want a place, come back smaller or larger after a stop, or (of S) may have to start
  // elsewhere because a host was lost. Ascending.
  std::vector<int32_t> entitled, others;

  const Gang& gang(int32_t index) const { return model.gangs[index]; }
  int32_t IndexOf(const Gang& gang) const {
    return static_cast<int32_t>(&gang - model.gangs.data());
  }
  const std::string& ClusterOf(int32_t pool) const {
    return state.clusters()[model.pools[pool].cluster].name;
  }
  // Its queue is held, or its job astray: what runs goes on and, where others need its devices,
  // comes back smaller, the latter once nothing is astray; nothing grows, moves or starts anew.
  bool HeldBack(const Gang& gang) const {
    return gang.astray || (gang.leaf >= 0 && state.queues().nodes[gang.leaf].held);
  }
  // When what is being stopped should have answered, killed if need be.
  int64_t AnswerDueNs(const Gang& gang) const;
  // That has passed: nobody knows when its hosts will answer, and nothing that it holds is counted
  // on any more.
  bool Unanswered(const Gang& gang) const {
    return gang.stopping && !gang.may_be_lost && AnswerDueNs(gang) <= now_ns;
  }
  // Its reachable members have left: what it held is free once the others are declared lost.
  bool AllOver(const AttemptRow& attempt) const;
  // When a gang that starts now is expected to end; 0: unknown.
  int64_t EndIfStarted(const Gang& gang) const {
    const int64_t left_ns = gang.run_left_ns();
    return left_ns == kUnbounded ? 0 : now_ns + left_ns;
  }
  // Of what runs in the pool: by end, and of those whose end nobody knows the longest running
  // first.
  const std::vector<RunEnd>& EndsIn(int32_t pool) const;

 private:
  mutable std::vector<std::optional<std::vector<RunEnd>>> ends_;  // by pool, once asked for
};

// How long the task may take to end after SIGTERM.
int64_t GraceOf(const pb::TaskSpec& spec);

// The devices of the attempt's workers [from, to).
HostSlices SlicesOf(const pb::TaskSpec& spec, const AttemptRow& attempt, int32_t from, int32_t to);
// The workers first all of whose devices are sound, each kind in its order. Of a task that requires
// blocks of ranks: the largest blocks first all of which are, so that what is kept of it is whole.
AttemptRow SoundFirst(const State& state, const pb::TaskSpec& spec, const AttemptRow& attempt);
bool AllSound(const State& state, const HostSlices& slices);
// Whether they are as near to each other as the task requires of the whole gang and of blocks of
// its ranks: what was taken by others' leave may be torn, and racks may have changed since.
bool AreTogether(const State& state, const pb::TaskSpec& spec, const HostSlices& slices);
// Those of the workers [from, to) of such slices.
HostSlices RanksOf(const pb::TaskSpec& spec, const HostSlices& slices, int32_t from, int32_t to);
int32_t WorkersIn(const HostSlices& slices);

}  // namespace muster
