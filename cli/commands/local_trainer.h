// Asks the muster-trainer that lies beside this program, where there is one.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace muster {

// "" where no muster-trainer lies here.
std::string LocalTrainer();

// What `muster-trainer ARGUMENTS` prints. `config`: it may read this from /dev/stdin. Nothing if
// there is no trainer here, it takes longer than ten seconds, or it ends with another code than
// those of `good`.
std::optional<std::string> AskLocalTrainer(const std::vector<std::string>& arguments,
                                           const std::string& config,
                                           const std::vector<int>& good = {0});

// What `trainer:` takes, as `muster-trainer --schema` says it; "" where there is none to ask.
std::string LocalTrainerSchema();

}  // namespace muster
