// Tasks that start together: which the fuzzer submits, and the rules that it asserts from outside,
// by what specs name and rows say.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "scheduler/decide/model/model.h"
#include "scheduler/decide/testing/dice.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

// Gives the job up to three more tasks and joins some of its tasks; some are there until others
// have succeeded.
void PutTogether(Dice* dice, pb::JobSpec* spec);

// A plan that is carried out starts all of a group or, beside what runs of it, one; stops all of it
// for a claim; keeps it in one cluster; and leaves nothing running that isn't needed. "" or what
// broke.
std::string CheckTogether(const State& before, const State& after, const Plan& plan);

// The gang that stands for this one's group.
const Gang& LeaderIn(const Model& m, const Gang& gang);

// What runs of the gang's group, or it, does.
template <typename Does>
bool AllOfGroup(const Model& m, const Gang& gang, Does does) {
  return std::all_of(m.gangs.begin(), m.gangs.end(), [&](const Gang& other) {
    const bool same =
        gang.leader < 0 ? &other == &gang : other.job == gang.job && other.leader == gang.leader;
    return !same || !other.running() || does(other);
  });
}

// Of a leader: a group of which all wait, and for which there is room in whatever order they are
// placed, where nobody else waits for that (`waits`, by cluster), has started. Limits apart.
std::string CheckGroupSettled(const State& state, const Model& m, const Gang& gang,
                              const std::vector<int>& waits);

}  // namespace muster
