// Families of models: how their flats are laid out, which blocks they are made of, and what a layer
// keeps, for the memory estimate.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "trainer/model/blocks.h"
#include "trainer/model/config.h"
#include "trainer/parallel/flat_param.h"

namespace muster::trainer {

struct BlockOptions {
  int64_t max_length = 0;  // tokens of the longest row
  at::Device device = at::kCPU;
  double z_loss = 0;
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
  // Flat 0: embedding. 1..L: layers. L+1: final norm, and lm_head where it isn't tied to the
  // embedding. Independent of ranks.
  virtual ModelLayout Layout(const ModelConfig& config) const = 0;
  // The blocks over `flats` (made from Layout's, which they must outlive) and over `adapters`.
  virtual std::vector<std::unique_ptr<Block>> MakeBlocks(
      const ModelConfig& config, std::vector<std::unique_ptr<FlatParam>>& flats,
      const Adapters& adapters, const BlockOptions& options) const = 0;
  virtual LayerElements SavedByLayer(const ModelConfig& config, ops::AttentionKind kind,
                                     int64_t length, RecomputeMode mode) const = 0;
};

const Family& FamilyFor(const ModelConfig& config);
// Its layout.
inline ModelLayout MakeLayout(const ModelConfig& config) {
  return FamilyFor(config).Layout(config);
}

}  // namespace muster::trainer
