// What comes of times that jobs wait for.
#pragma once

#include <vector>

#include "scheduler/state/state.h"

namespace muster {

// Of the job whose time (`not_before_ns`) has come first, by State's own time; empty: there is
// none. It may start; of a schedule the job of the next time is submitted, or this one waits for
// the next time: the job of the time before has not ended, or its owner may not submit to its queue
// now (`may_submit`). To be applied before it is asked again.
std::vector<pb::Event> NextDue(const State& state, bool may_submit = true);

}  // namespace muster
