// The `parallel:` map: how ranks share out one model beside taking different rows.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "trainer/model/config.h"

namespace muster::trainer {

struct ParallelConfig {
  int64_t tp = 1;  // slices of each layer's weights
};

// The map. Adds every problem under `path`.
ParallelConfig ParseParallel(const nlohmann::json& value, const std::string& path,
                             Problems& problems);
// Its JSON Schema.
nlohmann::ordered_json ParallelSchema();

// Whether `ranks` can train the model so; if not, the nearest layouts that can are named.
void CheckSlices(const ParallelConfig& config, const ModelConfig& model, int ranks,
                 const std::string& path, Problems& problems);

}  // namespace muster::trainer
