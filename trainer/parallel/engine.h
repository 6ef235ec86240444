// The engine holds what a rank has of a model, flats and blocks, and carries out schedules. It
// knows nothing of Llama: a model is a list of blocks and the flats that each uses.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/model/balance.h"
#include "trainer/model/blocks.h"
#include "trainer/model/dpo_config.h"
#include "trainer/model/lora_config.h"
#include "trainer/model/reward_config.h"
#include "trainer/parallel/flat_param.h"
#include "trainer/parallel/graphs.h"
#include "trainer/parallel/pipeline_links.h"
#include "trainer/parallel/schedule.h"

namespace muster::trainer {

struct EngineOptions {
  int64_t max_length = 0;  // tokens of the longest row
  FlatOptions flats;       // of what is trained
  RecomputeMode recompute = RecomputeMode::kNone;
  LoraConfig lora;    // on: the model's own flats are frozen and the adapters' are what is trained
  uint64_t seed = 0;  // decides what dropout drops
  MakeGraph graphs = {};  // layers run by them; null: by plain launches
  double z_loss =
      0;  // coefficient of the mean square of the logits' log-sum-exp, added to the loss
  PipelineKind pipeline = PipelineKind::k1F1B;  // of a mesh with several stages
  int chunks = 1;                               // stretches of the model a stage
  BalanceOptions balance = {};                  // the loss that balances experts, beside the loss
  bool count_tokens = false;                    // of each expert, where routers have biases
  DpoConfig dpo = {};                           // the loss of batches of pairs
  bool fp8 = false;          // products of the layers' linears are of numbers in 8 bits
  RewardConfig reward = {};  // of a model whose head is a score, the loss of batches of pairs
};

// Loss of this rank's micro-batches: their share of the global mean. `z` is the z-loss's share, and
// `balance` that of the loss that balances experts; neither is in `loss`.
struct EngineLoss {
  double loss = 0, z = 0, balance = 0;
};

// Not thread-safe. All ranks run the same schedules.
class Engine {
 public:
  Engine(const ModelConfig& config, World* world, const EngineOptions& options);

  // What is trained: the model's flats, or the adapters'.
  std::vector<std::unique_ptr<FlatParam>>& flats() { return frozen_ ? adapters_ : model_; }
  // The model's, trained or frozen.
  std::vector<std::unique_ptr<FlatParam>>& model_flats() { return model_; }

  // Forward and backward of `batches`. Afterwards the gradients are summed over all ranks (in each
  // rank's owned range).
  EngineLoss Run(const std::vector<BatchMeta>& batches);

  // This rank's loss of `batches`, without gradients; collective.
  double Evaluate(std::vector<BatchMeta>& batches);

  // Has each pair of `batches` know its reference: the log-probabilities that the model gives it as
  // its weights are, without the adapters. Collective.
  void FindReference(const std::vector<BatchMeta>& batches);

  // Brings all weights up to date on every rank; those in slots, and those that ranks share out,
  // stay on rank 0 alone, in the host's memory. Collective; nothing is trained afterwards.
  void UnshardAll();
  // After that, on rank 0: a parameter of the model or the adapters, whole.
  at::Tensor WholeWeight(const std::string& name) const;

  // Micro-batches so far whose layers ran as CUDA graphs that had been recorded before.
  int64_t replayed_micro_batches() const { return graphs_ ? graphs_->replayed() : 0; }

  // Whether the slots' memory is registered with NCCL (World::RegisteredMemory).
  bool slots_are_registered() const { return registered_; }

  // Seconds that this rank waited for messages of other stages since the last call.
  double TakeWaited() { return links_.TakeWaited(); }

 private:
  ModelPart PartOfRank(int rank) const;
  ScheduleNeeds Needs() const;
  std::string RangeName(const Action& action, size_t micro_batches) const;
  void BindSlots();
  at::Tensor MemoryOfSlots(int64_t bytes);
  std::vector<Action> Schedule(size_t micro_batches, bool training) const;
  // What passes between the blocks of one micro-batch, and waits.
  struct Passing;
  void Carry(const std::vector<Action>& schedule, const std::vector<BatchMeta>& batches,
             EngineLoss& loss);
  void Forward(const Action& action, const BatchMeta& batch, Passing& passing, at::Tensor& losses);
  void Recompute(const Action& action, const BatchMeta& batch, Passing& passing);
  void Backward(const Action& action, const BatchMeta& batch, Passing& passing);
  void Exchange(const Action& action, const BatchMeta& batch, Passing& passing);
  void Await(int block);
  bool RunsByGraph(int block) const { return graphs_ && graphs_->Runs(block); }
  EngineLoss RunBalanced(std::vector<BatchMeta> batches, const std::vector<Action>& schedule);
  bool Balances() const { return options_.balance.kind != BalanceKind::kNone; }
  const std::vector<FlatLayout>& LayoutsOf(int rank);
  bool IsCollectedFrom(int rank, const FlatLayout& layout) const;
  void SendToFirst(int flat);
  void CollectStage(int stage);
  void Collect(int rank, const FlatLayout& layout, int flat);

  World* world_;
  const ModelConfig config_;
  const EngineOptions options_;
  const bool frozen_;
  std::map<int, std::vector<FlatLayout>> layouts_of_;  // ranks with this part of the model
  std::map<std::string, at::Tensor>
      collected_;  // parameters that other ranks had, or parts of them
  std::vector<std::unique_ptr<FlatParam>> model_, adapters_;
  std::vector<FlatParam*> all_;  // model_, then adapters_
  ModelPart part_;
  std::vector<int> blocks_in_model_;
  BlockFlats block_flats_;  // of all_
  PipelinePart pipeline_;
  PipelineLinks links_;
  std::vector<at::Tensor> slots_;
  bool registered_ = false;                         // with NCCL
  std::vector<int> weight_slots_, gradient_slots_;  // by flat; -1: none
  std::vector<std::unique_ptr<Block>> blocks_;
  std::optional<BlockGraphs> graphs_;
  std::vector<std::vector<Action>> schedules_;  // by number of micro-batches, as they are met
};

}  // namespace muster::trainer
