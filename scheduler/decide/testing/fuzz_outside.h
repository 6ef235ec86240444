// Rules that the fuzzer recomputes from State's rows alone, with nothing of scheduler/decide and
// nothing of Validate: what queues hold, and what they may.
//
// Each gives what is broken, or "".
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

// No queue that the plan has placed something of, or keeps devices for, holds more than its limit,
// nor any above it; nor will it when what is being stopped has gone and what devices are held for
// has started. `after`: with the plan applied.
std::string CheckLimitsOutside(const State& after, const Plan& plan);

// What a decision takes queues to hold: now, and once what is being stopped has gone; in
// thousandths.
struct Charges {
  std::vector<std::string> flavours;
  std::function<int64_t(int32_t node, const std::string& flavour)> now, later;
};

// It is what their tasks' attempts hold, each once and by its own size, also while it stops; what
// stops holds nothing later, as long as it is expected to answer, whatever it comes back with.
// *stopping counts those that were looked at.
std::string CheckCharges(const State& state, int64_t now_ns, const Charges& charges,
                         int64_t* stopping);

}  // namespace muster
