// The `parallel:` map, or auto: how ranks share out one model beside taking different rows.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "trainer/model/config.h"
#include "trainer/parallel/context_plan.h"
#include "trainer/parallel/pipeline.h"

namespace muster::trainer {

struct ParallelConfig {
  bool automatic = false;  // the ranks choose when they meet (auto_layout.h); until then all is one
  int64_t tp = 1;          // slices of each layer's weights
  int64_t pp = 1;          // stages of a pipeline
  int64_t ep = 1;          // ranks that share out the experts
  int64_t cp = 1;          // parts of each row
  ContextSharding cp_sharding = ContextSharding::kAuto;
  PipelineKind pipeline = PipelineKind::k1F1B;
  int64_t chunks = 2;  // stretches of the model a stage, where the pipeline is interleaved

  int64_t Chunks() const { return pp > 1 && pipeline == PipelineKind::kInterleaved ? chunks : 1; }
  bool operator==(const ParallelConfig&) const = default;
};

// The map, or "auto". Adds every problem under `path`.
ParallelConfig ParseParallel(const nlohmann::json& value, const std::string& path,
                             Problems& problems);
// Its JSON Schema.
nlohmann::ordered_json ParallelSchema();

// Whether `ranks` can train the model so; if not, the nearest layouts that can are named.
// `shard_size`: ranks that share one copy; 0: all of a stage.
void CheckParallel(const ParallelConfig& config, const ModelConfig& model, int ranks,
                   int64_t shard_size, const std::string& path, Problems& problems);

}  // namespace muster::trainer
