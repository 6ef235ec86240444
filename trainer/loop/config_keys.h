// The table of the `trainer:` map's keys.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "trainer/loop/config.h"

namespace muster::trainer {

// One key of the map. The member's type decides the JSON type.
struct Key {
  const char* name;
  std::variant<std::string TrainConfig::*, int64_t TrainConfig::*, double TrainConfig::*,
               bool TrainConfig::*, Determinism TrainConfig::*,
               std::optional<nlohmann::json> TrainConfig::*,
               std::vector<MixturePart> TrainConfig::*, LoraConfig TrainConfig::*,
               ParallelConfig TrainConfig::*, DpoConfig TrainConfig::*,
               QuantizeConfig TrainConfig::*, RewardConfig TrainConfig::*>
      member;
  const char* description;
  bool required = false;
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  bool above_minimum = false;  // minimum itself is not allowed
  std::vector<std::string> values = {};
};

// In the order in which the schema and the documents have them.
const std::vector<Key>& Keys();

// What to say to names that users of other tools try.
const std::vector<std::pair<std::string, std::string>>& Hints();

}  // namespace muster::trainer
