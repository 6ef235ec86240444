#include "trainer/parallel/engine.h"

#include <utility>

#include "trainer/model/lora.h"

namespace muster::trainer {

Engine::Engine(const ModelConfig& config, int64_t max_length, World* world, int zero_stage, at::ScalarType dtype, const LoraConfig& lora, uint64_t seed)
    : frozen_(lora.on()) {
  ModelLayout layout = MakeLlamaLayout(config);
  block_flats_ = std::move(layout.block_flats);
  for (FlatLayout& flat : layout.flats) model_.push_back(std::make_unique<FlatParam>(std::move(flat), world, zero_stage, dtype, frozen_));
  Adapters adapters;
  if (frozen_) {
    ModelLayout trained = MakeLoraLayout(config, lora);
    block_flats_ = std::move(trained.block_flats);
    for (FlatLayout& flat : trained.flats) adapters_.push_back(std::make_unique<FlatParam>(std::move(flat), world, zero_stage, dtype));
    adapters = {FindAdapters(adapters_), lora.Scale(), lora.dropout, seed};
  }
  blocks_ = MakeLlamaBlocks(config, model_, adapters, max_length, world->device());
}

double Engine::Run(const std::vector<Action>& schedule, const std::vector<BatchMeta>& batches) {
  for (const std::unique_ptr<FlatParam>& flat : flats()) flat->ZeroGradients();
  std::vector<std::vector<Saved>> saved(batches.size(), std::vector<Saved>(blocks_.size()));
  std::vector<at::Tensor> passing(batches.size());  // what the last block handed on, per micro-batch
  at::Tensor loss;
  for (const Action& action : schedule) {
    switch (action.kind) {
      case Action::kGather:
        flats()[action.index]->StartGather();
        break;
      case Action::kForward: {
        for (const int flat : block_flats()[action.index]) flats()[flat]->FinishGather();
        at::Tensor& x = passing[action.micro];
        x = blocks_[action.index]->Forward(x, batches[action.micro], saved[action.micro][action.index]);
        if (action.index + 1 == static_cast<int>(blocks_.size())) {
          loss = loss.defined() ? loss + x : x;
          x = at::Tensor();
        }
        break;
      }
      case Action::kBackward: {
        at::Tensor& d = passing[action.micro];
        d = blocks_[action.index]->Backward(d, batches[action.micro], saved[action.micro][action.index]);
        saved[action.micro][action.index].clear();
        break;
      }
      case Action::kReduce:
        flats()[action.index]->StartReduce();
        break;
      case Action::kRelease:
        break;  // weights are resident with ZeRO-0 and ZeRO-1
    }
  }
  for (const std::unique_ptr<FlatParam>& flat : flats()) flat->FinishReduce();
  return loss.item<double>();
}

double Engine::Evaluate(std::vector<BatchMeta>& batches) {
  GatherAll();
  double loss = 0;
  for (BatchMeta& batch : batches) {
    batch.loss_only = true;
    at::Tensor x;
    for (const std::unique_ptr<Block>& block : blocks_) {
      Saved saved;
      x = block->Forward(x, batch, saved);
    }
    loss += x.item<double>();
  }
  return loss;
}

void Engine::GatherAll() {
  for (const std::unique_ptr<FlatParam>& flat : flats()) flat->StartGather();
  for (const std::unique_ptr<FlatParam>& flat : flats()) flat->FinishGather();
}

}  // namespace muster::trainer
