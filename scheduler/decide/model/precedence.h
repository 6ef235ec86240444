// Who may stop whom (docs/scheduling.md, reclaim): rules about a claimant, which is a unit of S
// that waits or grows, and a victim, which has devices or would take some.
//
// Inside of scheduler/decide.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/decide/model/inputs.h"
#include "scheduler/decide/model/queue_use.h"

namespace muster {

// How far a queue is over its guarantee, as a fraction of its weight.
struct QueueLevel {
  int32_t rank = 0;  // 0: within the guarantee or without quota; 1: borrows; 2: borrows, weight 0
  int64_t over = 0, weight = 1;
};
// Below 0: a is lower.
int Compare(const QueueLevel& a, const QueueLevel& b);
// Of a queue that holds `used` of the flavour.
QueueLevel LevelOf(const Model& model, int32_t node, int32_t flavour, int64_t used);

// The claimant may stop the victim, min_runtime and levels apart. `grows`: to grow.
bool MayTake(const Inputs& in, const Gang& claimant, const Gang& victim, bool grows = false);

// Of the same queue and priority, and in front by its band: it may stop the other one only after
// that one's min_runtime, whatever is guaranteed.
bool IsAhead(const Gang& a, const Gang& b);

// Levels have a say between these two, unless the claimant is within its guarantee: their queues
// differ.
bool LevelsCount(const Inputs& in, const Gang& claimant, const Gang& victim);
// The level of the claimant's queue with `demand` more than in `after` against that of the victim's
// with `more` than in `before`: below 0 if it is lower. The queues are those below the nearest one
// that both are in.
int CompareLevels(const Inputs& in, const Gang& claimant, int32_t pool, int64_t demand,
                  const QueueUse& after, const Gang& victim, int64_t more, const QueueUse& before);
// Once the claimant has started its level is lower than the victim's was, with `more` than in
// `use`; or levels have no say.
bool LevelAllows(const Inputs& in, const Gang& claimant, int32_t pool, int64_t demand,
                 const Gang& victim, const QueueUse& use, int64_t more = 0);
// They count against the same queue below the root.
bool SharesQueue(const Model& model, const Gang& a, const Gang& b);

// It runs elsewhere than S has it, and may be stopped there to start where it is charged.
bool IsMover(const Gang& gang);
// Such a one that counts against the levels of its queues as before when it starts again.
bool OnlyMoves(const Model& model, const Gang& victim);

// How long what starts in the queue is left alone by claims beyond a guarantee.
int64_t MinRuntimeNs(const Inputs& in, int32_t leaf);
// Until when the victim, which runs, is left alone by the claimant; 0: not at all. `grows`: it
// claims to grow. The second: its growth workers alone; it goes on without them.
int64_t ProtectedUntil(const Inputs& in, const Gang& claimant, const Gang& victim,
                       bool grows = false);
int64_t GrowthProtectedUntil(const Inputs& in, const Gang& claimant, const Gang& victim,
                             bool grows = false);
// How long the claimant would leave the gang alone that starts now, outside S.
int64_t ProtectedFor(const Inputs& in, const Gang& claimant, const Gang& gang);
// The gang has worked for a checkpoint interval, once it has run for so long in this attempt.
bool HasIntervalsWork(const Gang& gang, int64_t run_ns);
// The claimant has waited within its guarantee for so long that what others do for it may cost
// more.
bool Overdue(const Inputs& in, const Gang& claimant);

// Why the victim stops, for whoever submitted it.
std::string EntitledTo(const Gang& claimant, const Gang& victim);

}  // namespace muster
