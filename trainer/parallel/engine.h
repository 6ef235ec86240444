// The engine holds a model's flats and blocks and carries out schedules. It knows nothing of Llama: a model is a list of
// blocks and the flats that each uses.
#pragma once

#include <memory>
#include <vector>

#include "trainer/model/blocks.h"
#include "trainer/model/lora_config.h"
#include "trainer/parallel/flat_param.h"
#include "trainer/parallel/schedule.h"

namespace muster::trainer {

// Not thread-safe. All ranks run the same schedules.
class Engine {
 public:
  // With `lora` on, the model's own flats are frozen and the adapters' are what is trained; `seed` decides what is dropped.
  Engine(const ModelConfig& config, int64_t max_length, World* world, int zero_stage, at::ScalarType dtype, const LoraConfig& lora = {}, uint64_t seed = 0);

  // What is trained: the model's flats, or the adapters'.
  std::vector<std::unique_ptr<FlatParam>>& flats() { return frozen_ ? adapters_ : model_; }
  // The model's, trained or frozen.
  std::vector<std::unique_ptr<FlatParam>>& model_flats() { return model_; }
  const BlockFlats& block_flats() const { return block_flats_; }

  // Forward and backward of `batches` as `schedule` says. Afterwards the gradients are summed over all ranks (in each
  // rank's owned range). Returns this rank's loss (its share of the global mean).
  double Run(const std::vector<Action>& schedule, const std::vector<BatchMeta>& batches);

  // This rank's loss of `batches`, without gradients. Leaves the weights gathered; collective.
  double Evaluate(std::vector<BatchMeta>& batches);

  // Brings all weights up to date on every rank.
  void GatherAll();

 private:
  BlockFlats block_flats_;  // of flats()
  std::vector<std::unique_ptr<FlatParam>> model_, adapters_;
  bool frozen_ = false;
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace muster::trainer
