// Direct preference optimisation (DPO; Rafailov et al., arXiv 2305.18290): what of it a user says.
// Names and meanings are TRL's.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "trainer/model/config.h"

namespace muster::trainer {

// What a pair costs (model/pairs.h has the formulas).
enum class PairLoss { kSigmoid, kHinge, kIpo, kRobust };

struct DpoConfig {
  bool given = false;
  PairLoss loss_type = PairLoss::kSigmoid;
  double beta = 0.1;           // above 0
  double label_smoothing = 0;  // of kRobust, from 0 to below 0.5

  bool on() const { return given; }
};

// The `dpo:` map. Adds every problem under `path`.
DpoConfig ParseDpo(const nlohmann::json& value, const std::string& path, Problems& problems);
// Its JSON Schema.
nlohmann::ordered_json DpoSchema();

}  // namespace muster::trainer
