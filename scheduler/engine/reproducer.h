// What a refused plan (contract 20 of docs/contracts.md) is reproduced from: a folder with `rows`,
// of the State that it was decided for, and plan.txt, which begins with why it was refused and when
// it was decided.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/decide/decide.h"
#include "scheduler/state/options.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

// Each row as kind, id and bytes, each with its length (32 bit, little-endian) before it. Durable
// when it returns OK.
absl::Status SaveRows(const std::string& path, const std::vector<RowChange>& rows);
// DATA_LOSS if the file ends inside a row.
absl::StatusOr<std::vector<RowChange>> LoadRows(const std::string& path);

// Writes the folder of a plan that was refused for this State. Durable when it returns OK.
absl::Status SaveRefusedPlan(const std::string& directory, const State& state, const Plan& plan,
                             int64_t now_ns, const absl::Status& why);

struct RefusedAgain {
  std::string then;   // why Validate refused the plan
  std::string now;    // and why it refuses what is decided now; empty: it doesn't
  size_t events = 0;  // of what is decided now
};
// Decides once more what the folder holds. DATA_LOSS if it isn't such a folder, or a damaged one.
absl::StatusOr<RefusedAgain> ReplayRefusedPlan(
    const std::string& directory, const SchedulingOptions& options,
    const std::function<Plan(const State&, int64_t now_ns, const SchedulingOptions&)>& decide =
        Decide);

}  // namespace muster
