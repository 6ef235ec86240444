// Jobs that wait for a time: which the fuzzer submits, and the rules that it asserts from outside,
// by the times that it gave, not by what State keeps of them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "scheduler/decide/testing/dice.h"
#include "scheduler/state/state.h"

namespace muster {

class Dues {
 public:
  // The job waits for a time of the next minute.
  void Draw(Dice* dice, int64_t now_ns, pb::JobSubmitted* e);

  // What comes of the times until now: jobs may start, some wait for a later time instead, and at
  // times one is told twice.
  std::vector<pb::Event> Come(Dice* dice, int64_t now_ns);

  // What the event placed has waited for its time; `before` is the State that it was applied to.
  // "" or what broke.
  std::string CheckPlaced(const State& before, const pb::Event& event) const;
  // Whoever waits for a time does so until it, and nobody else; and is woken then.
  std::string Check(const State& state) const;
  std::string CheckWakes(const State& state, int64_t next_wake_ns) const;

 private:
  std::map<uint64_t, int64_t> times_;  // that have not come, by the number of the job or its array
};

}  // namespace muster
