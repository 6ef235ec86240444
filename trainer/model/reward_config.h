// Reward models (Bradley-Terry; Ouyang et al., arXiv 2203.02155, section 3.5): what of it a user
// says. Names and meanings are TRL's.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "trainer/model/config.h"

namespace muster::trainer {

struct RewardConfig {
  bool given = false;
  // Of the mean of (chosen's + rejected's)², which keeps rewards near zero (Eisenstein et al.,
  // arXiv 2312.09244).
  double center_rewards_coefficient = 0;

  bool on() const { return given; }
};

// The `reward:` map. Adds every problem under `path`.
RewardConfig ParseReward(const nlohmann::json& value, const std::string& path, Problems& problems);
// Its JSON Schema.
nlohmann::ordered_json RewardSchema();

}  // namespace muster::trainer
