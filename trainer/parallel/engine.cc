#include "trainer/parallel/engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/model/family.h"
#include "trainer/model/lora.h"
#include "trainer/parallel/range.h"

namespace muster::trainer {

Engine::Engine(const ModelConfig& config, World* world, const EngineOptions& options)
    : world_(world), config_(config), options_(options), frozen_(options.lora.on()) {
  const Family& family = FamilyFor(config);
  const TensorGroup tensor(world->tensor());
  ModelLayout layout = family.Layout(config, {tensor.rank(), tensor.size()});
  block_flats_ = std::move(layout.block_flats);
  FlatOptions own = options.flats;
  own.frozen = frozen_;
  for (FlatLayout& flat : layout.flats)
    all_.push_back(
        model_.emplace_back(std::make_unique<FlatParam>(std::move(flat), world, own)).get());
  if (frozen_) {
    ModelLayout trained = MakeLoraLayout(config, options.lora, {tensor.rank(), tensor.size()});
    for (size_t block = 0; block < block_flats_.size(); ++block) {
      for (const int flat : trained.block_flats[block])
        block_flats_[block].push_back(static_cast<int>(model_.size()) + flat);
    }
    for (FlatLayout& flat : trained.flats)
      all_.push_back(
          adapters_.emplace_back(std::make_unique<FlatParam>(std::move(flat), world, options.flats))
              .get());
  }
  BindSlots();
  Adapters adapters;
  if (frozen_)
    adapters = {FindAdapters(adapters_), options.lora.Scale(), options.lora.dropout, options.seed};
  blocks_ = family.MakeBlocks(config, model_, adapters,
                              {tensor, options.max_length, world->device(), options.z_loss});
  if (options.graphs) graphs_.emplace(blocks_, options.recompute, options.graphs);
}

// "forward layer 3", "unshard embedding", with the micro-batch where there are several.
std::string Engine::RangeName(const Action& action, size_t micro_batches) const {
  static constexpr const char* kNames[] = {"unshard",
                                           "reshard",
                                           "forward",
                                           "recompute",
                                           "backward",
                                           "open gradients of",
                                           "accumulate gradients of",
                                           "reduce",
                                           "wait for the sum of"};
  const bool of_block = action.kind == Action::kForward || action.kind == Action::kRecompute ||
                        action.kind == Action::kBackward;
  int block = action.index;
  if (!of_block) {
    const auto has = [&](const std::vector<int>& flats) {
      return std::find(flats.begin(), flats.end(), action.index) != flats.end();
    };
    block = static_cast<int>(std::find_if(block_flats_.begin(), block_flats_.end(), has) -
                             block_flats_.begin());
  }
  const std::string what = block == 0 ? "embedding"
                           : block + 1 == static_cast<int>(blocks_.size())
                               ? "head"
                               : absl::StrCat("layer ", block - 1);
  return absl::StrCat(
      kNames[action.kind], " ", what,
      !of_block && action.index >= static_cast<int>(model_.size()) ? "'s adapters" : "",
      of_block && micro_batches > 1 ? absl::StrCat(", micro-batch ", action.micro) : "");
}

ScheduleNeeds Engine::Needs() const {
  ScheduleNeeds needs;
  for (const FlatParam* flat : all_)
    needs.flats.push_back({!flat->frozen(), flat->weights_in_slot(), flat->gradients_in_slot(),
                           flat->reduces_each_micro_batch()});
  needs.recompute = options_.recompute != RecomputeMode::kNone;
  return needs;
}

void Engine::BindSlots() {
  const ScheduleNeeds needs = Needs();
  // What more micro-batches do, two do already.
  const std::vector<std::vector<Action>> schedules = {
      MakeSchedule(block_flats_, needs, 2),
      MakeSchedule(block_flats_, needs, 2, /*training=*/false)};
  const auto bind = [&](bool weights) {
    std::vector<int64_t> numel;
    for (const FlatParam* flat : all_)
      numel.push_back((weights ? flat->weights_in_slot() : flat->gradients_in_slot())
                          ? flat->padded_numel()
                          : 0);
    const SlotMap map = weights
                            ? AssignSlots(schedules, Action::kUnshard, {Action::kReshard}, numel)
                            : AssignSlots(schedules, Action::kOpen,
                                          {Action::kAccumulate, Action::kWaitReduce}, numel);
    const size_t first = slots_.size();
    int64_t bytes = 0;
    for (const int64_t slot : map.slot_numel) {
      slots_.push_back(at::empty({slot}, at::TensorOptions()
                                             .device(world_->device())
                                             .dtype(weights ? options_.flats.dtype : at::kFloat)));
      // Poisoned from the start: what was never whole is as wrong as what was resharded.
      if (options_.flats.poison) slots_.back().fill_(std::numeric_limits<double>::quiet_NaN());
      bytes += static_cast<int64_t>(slots_.back().nbytes());
    }
    for (size_t f = 0; f < all_.size(); ++f) {
      if (map.slot_of[f] < 0) continue;
      void* memory = slots_[first + static_cast<size_t>(map.slot_of[f])].data_ptr();
      if (weights)
        all_[f]->BindWeights(memory);
      else
        all_[f]->BindGradient(memory);
    }
    return bytes;
  };
  weight_slot_bytes_ = bind(true);
  gradient_slot_bytes_ = bind(false);
}

void Engine::Carry(const std::vector<Action>& schedule, const std::vector<BatchMeta>& batches,
                   EngineLoss& loss) {
  std::vector<std::vector<Saved>> saved(batches.size(), std::vector<Saved>(blocks_.size()));
  std::vector<at::Tensor> passing(
      batches.size());  // what the last block handed on, per micro-batch
  at::Tensor losses;
  const auto await = [&](int block) {
    for (const int flat : block_flats_[block]) all_[flat]->WaitUnshard();
  };
  for (const Action& action : schedule) {
    const Range range([&] { return RangeName(action, batches.size()); });
    switch (action.kind) {
      case Action::kUnshard:
        all_[action.index]->StartUnshard();
        break;
      case Action::kReshard:
        all_[action.index]->Reshard();
        break;
      case Action::kForward: {
        await(action.index);
        at::Tensor& x = passing[action.micro];
        Saved& kept = saved[action.micro][action.index];
        if (graphs_ && action.index == 0) graphs_->Begin(batches[action.micro]);
        if (graphs_ && graphs_->Runs(action.index)) {
          x = graphs_->Forward(action.index, x, kept);
          break;
        }
        x = blocks_[action.index]->Forward(x, batches[action.micro], kept);
        if (batches[action.micro].loss_only)
          kept.clear();
        else
          blocks_[action.index]->Drop(kept, options_.recompute);
        if (action.index + 1 == static_cast<int>(blocks_.size())) {
          losses = losses.defined() ? losses + x : x;
          x = at::Tensor();
        }
        break;
      }
      case Action::kRecompute:
        if (action.index > 0) await(action.index);
        if (graphs_ && graphs_->Runs(action.index)) break;
        blocks_[action.index]->Recompute(batches[action.micro], saved[action.micro][action.index]);
        break;
      case Action::kBackward: {
        if (action.index > 0) await(action.index);  // the first reads no weights
        at::Tensor& d = passing[action.micro];
        if (graphs_ && graphs_->Runs(action.index)) {
          d = graphs_->Backward(action.index, d, saved[action.micro][action.index]);
          break;
        }
        d = blocks_[action.index]->Backward(d, batches[action.micro],
                                            saved[action.micro][action.index]);
        saved[action.micro][action.index].clear();
        break;
      }
      case Action::kOpen:
        all_[action.index]->OpenGradient();
        break;
      case Action::kAccumulate:
        all_[action.index]->AccumulateGradient();
        break;
      case Action::kReduce:
        all_[action.index]->StartReduce();
        break;
      case Action::kWaitReduce:
        all_[action.index]->WaitReduce();
        break;
    }
  }
  const at::Tensor host = losses.cpu();
  loss.loss += host[0].item<double>();
  loss.z += host[1].item<double>();
}

EngineLoss Engine::Run(const std::vector<BatchMeta>& batches) {
  for (const std::unique_ptr<FlatParam>& flat : flats()) flat->ZeroGradients();
  if (schedules_.size() <= batches.size()) schedules_.resize(batches.size() + 1);
  std::vector<Action>& schedule = schedules_[batches.size()];
  if (schedule.empty())
    schedule = MakeSchedule(block_flats_, Needs(), static_cast<int>(batches.size()));
  if (graphs_) graphs_->BeginStep();
  EngineLoss loss;
  Carry(schedule, batches, loss);
  return loss;
}

double Engine::Evaluate(std::vector<BatchMeta>& batches) {
  for (BatchMeta& batch : batches) batch.loss_only = true;
  EngineLoss loss;
  Carry(MakeSchedule(block_flats_, Needs(), static_cast<int>(batches.size()), /*training=*/false),
        batches, loss);
  return loss.loss;
}

void Engine::UnshardAll() {
  for (size_t f = 0; f < all_.size(); ++f) {
    FlatParam& flat = *all_[f];
    flat.StartUnshard();
    flat.WaitUnshard();
    if (flat.layout().sliced()) CollectSlices(static_cast<int>(f));
    if (world_->rank() == 0 && !flat.layout().sliced())
      flat.LeaveSlot();
    else
      flat.Reshard();
  }
}

// Of any rank's slice.
FlatLayout Engine::LayoutOf(int flat, const TensorSlice& slice) const {
  const int own = static_cast<int>(model_.size());
  return flat < own ? MakeLayout(config_, slice).flats[flat]
                    : MakeLoraLayout(config_, options_.lora, slice).flats[flat - own];
}

// Makes a flat's parameters whole on rank 0, from the slices of the ranks beside it.
void Engine::CollectSlices(int flat) {
  if (world_->mesh().DpIndex(world_->rank()) != 0) return;
  const Group& ranks = world_->tensor();
  const std::vector<Segment>& own = all_[flat]->layout().segments();
  if (ranks.rank != 0) {
    for (int s = 0; s < static_cast<int>(own.size()); ++s) {
      std::vector<at::Tensor> sent = {all_[flat]->Weight(s)};
      ranks.backend->send(sent, 0, s)->wait();
    }
    return;
  }
  for (int rank = 0; rank < ranks.size; ++rank) {
    const FlatLayout layout = LayoutOf(flat, {rank, ranks.size});
    for (int s = 0; s < static_cast<int>(own.size()); ++s) {
      const Segment& segment = layout.segments()[s];
      at::Tensor& whole = collected_[segment.name];
      at::Tensor part = all_[flat]->Weight(s);
      if (!whole.defined()) whole = at::empty(segment.parameter_shape(), part.scalar_type());
      if (rank > 0) {
        std::vector<at::Tensor> received = {part = at::empty(segment.shape, part.options())};
        ranks.backend->recv(received, rank, s)->wait();
      }
      whole.narrow(segment.slice->dim, segment.slice->begin, segment.shape[segment.slice->dim])
          .copy_(part);
    }
  }
}

at::Tensor Engine::WholeWeight(const std::string& name) const {
  if (const auto found = collected_.find(name); found != collected_.end()) return found->second;
  for (const FlatParam* flat : all_) {
    const std::vector<Segment>& segments = flat->layout().segments();
    for (size_t s = 0; s < segments.size(); ++s) {
      if (segments[s].name == name) return flat->Weight(static_cast<int>(s));
    }
  }
  TORCH_CHECK(false, "the model has no ", name);
}

}  // namespace muster::trainer
