// Families of models: how their flats are laid out, which blocks they are made of, and what a layer
// keeps, for the memory estimate.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "trainer/model/blocks.h"
#include "trainer/model/config.h"
#include "trainer/model/dpo_config.h"
#include "trainer/model/reward_config.h"
#include "trainer/parallel/expert_group.h"
#include "trainer/parallel/flat_param.h"

namespace muster::trainer {

struct BlockOptions {
  TensorGroup tensor, context;
  ExpertGroup experts;
  int64_t max_length = 0;  // tokens of the longest row
  at::Device device = at::kCPU;
  double z_loss = 0;
  DpoConfig dpo = {};
  bool fp8 = false;  // products of the layers' linears are of numbers in 8 bits
  RewardConfig reward = {};
};

// Elements a token that a layer keeps for its backward, by part.
struct LayerElements {
  int64_t attention = 0, mlp = 0;
  int64_t all() const { return attention + mlp; }
};

// Stateless.
class Family {
 public:
  virtual ~Family() = default;
  // Flats in the order of the blocks: the embedding; the layers; final norm, and lm_head where it
  // isn't tied to the embedding. Of a slice, layers and an lm_head have two: of their slices, and
  // of what every rank has alike; layers whose experts are shared out one more, of those, layers
  // whose linears stand apart another, and layers whose router has biases one of these. Depends on
  // ranks by the slice and the share alone.
  virtual ModelLayout Layout(const ModelConfig& config, const ModelPart& part) const = 0;
  // The blocks of `layout`, of which `flats` are made (they must outlive the blocks), and over
  // `adapters`.
  virtual std::vector<std::unique_ptr<Block>> MakeBlocks(
      const ModelConfig& config, const ModelLayout& layout,
      const std::vector<std::unique_ptr<FlatParam>>& flats, const Adapters& adapters,
      const BlockOptions& options) const = 0;
  // By a rank with the largest of `slices`; `groups` of ranks share out experts.
  virtual LayerElements SavedByLayer(const ModelConfig& config, int64_t layer,
                                     ops::AttentionKind kind, int64_t length, RecomputeMode mode,
                                     int slices, int groups) const = 0;
};

// The shape of a layer as a rank with this slice of it sees it: heads and the MLP's width, and
// where the experts aren't shared out among `groups` theirs.
ModelConfig SlicedConfig(const ModelConfig& config, const TensorSlice& slice, int groups = 1);

const Family& FamilyFor(const ModelConfig& config);
// Its layout.
inline ModelLayout MakeLayout(const ModelConfig& config, const ModelPart& part = {}) {
  return Restrict(config, FamilyFor(config).Layout(config, part), part);
}

}  // namespace muster::trainer
