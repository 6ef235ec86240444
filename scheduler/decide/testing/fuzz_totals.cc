#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/fnv.h"
#include "scheduler/decide/testing/fuzz.h"

namespace muster {

void FuzzTotals::Add(const FuzzTotals& o) {
  trees += o.trees;
  steps += o.steps;
  events += o.events;
  starts += o.starts;
  backfills += o.backfills;
  evictions += o.evictions;
  shrinks += o.shrinks;
  moves += o.moves;
  growths += o.growths;
  spills += o.spills;
  lost += o.lost;
  reservations += o.reservations;
  lent += o.lent;
  judged += o.judged;
  beside += o.beside;
  overtaken += o.overtaken;
  spared.victims += o.spared.victims;
  spared.of_several += o.spared.of_several;
  spared.steps += o.spared.steps;
  spared.by_later_ones += o.spared.by_later_ones;
  stopping += o.stopping;
  members += o.members;
  successors += o.successors;
  timed += o.timed;
  together += o.together;
  hosted += o.hosted;
  multiples.tasks += o.multiples.tasks;
  multiples.starts += o.multiples.starts;
  multiples.growths += o.multiples.growths;
  multiples.shrinks += o.multiples.shrinks;
  blocks.tasks += o.blocks.tasks;
  blocks.spread += o.blocks.spread;
  blocks.wishes += o.blocks.wishes;
  blocks.in_islands += o.blocks.in_islands;
  blocks.resizes += o.blocks.resizes;
  one_way += o.one_way;
  evicted_milli += o.evicted_milli;
  requested_milli += o.requested_milli;
  steps_to_settle_max = std::max(steps_to_settle_max, o.steps_to_settle_max);
  settled += o.settled;
  entitled_waiting += o.entitled_waiting;
  entitled += o.entitled;
  digest = Fnv1a(absl::StrCat(o.digest), digest);
}

}  // namespace muster
