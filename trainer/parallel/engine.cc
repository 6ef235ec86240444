#include "trainer/parallel/engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/model/family.h"
#include "trainer/model/lora.h"
#include "trainer/model/pairs.h"
#include "trainer/model/router_bias.h"
#include "trainer/parallel/range.h"

namespace muster::trainer {
namespace {

const std::vector<Action::Kind> kCloses = {Action::kAccumulate, Action::kWaitReduce};

// A flat of those whose shard group slots are registered for, as one memory has one group: of
// experts, which take most, else of slices, else of what all have alike. By what it is, not by its
// size: all ranks of that group must come to the same. Null: nothing in slots goes between ranks.
const FlatParam* FlatToRegisterFor(const std::vector<FlatParam*>& flats) {
  const auto kind = [](const FlatParam* flat) {
    const Holding holding = flat->layout().holding();
    return holding.experts ? 2 : holding.sliced ? 1 : 0;
  };
  const FlatParam* found = nullptr;
  for (const bool gathered : {true, false}) {
    for (const FlatParam* flat : flats) {
      const bool goes = gathered ? flat->weights_in_slot() : flat->reduces_each_micro_batch();
      if (!goes || flat->gathered_from().size == 1 || flat->layout().holding().both_ends) continue;
      if (found == nullptr || kind(flat) > kind(found)) found = flat;
    }
    if (found != nullptr) break;
  }
  return found;
}

}  // namespace

// What passes between the blocks of one micro-batch, and what waits.
struct Engine::Passing {
  explicit Passing(size_t blocks) : saved(blocks), put_off(blocks) {}
  std::vector<Saved> saved;
  std::vector<ops::PutOff> put_off;                         // weights' gradients
  at::Tensor x;                                             // what the last block handed on
  std::map<int, PipelineLinks::Message> inputs, gradients;  // asked for, by block

  // What was asked for, or what the block before handed on.
  at::Tensor Take(std::map<int, PipelineLinks::Message>& asked, int block, PipelineLinks& links) {
    const auto found = asked.find(block);
    if (found == asked.end()) return std::move(x);
    at::Tensor taken = links.Take(std::move(found->second));
    asked.erase(found);
    return taken;
  }
};

Engine::Engine(const ModelConfig& config, World* world, const EngineOptions& options)
    : world_(world),
      config_(config),
      options_(options),
      frozen_(options.lora.on()),
      part_(PartOfRank(world->rank())),
      links_(world->pipeline()) {
  const TensorGroup tensor(world->tensor());
  ModelLayout layout = MakeLayout(config, part_);
  block_flats_ = layout.block_flats;
  blocks_in_model_ = layout.blocks;
  pipeline_ = {options.pipeline, part_.stage, part_.stages, layout.stretches};
  FlatOptions of_trained = options.flats;
  if (options.graphs) of_trained.zero_first = true;
  FlatOptions own = of_trained;
  own.frozen = frozen_;
  const auto make = [&](FlatLayout& flat, const FlatOptions& of) {
    const FlatOptions its = OptionsOf(flat, of);
    return std::make_unique<FlatParam>(std::move(flat), world, its);
  };
  for (FlatLayout& flat : layout.flats) all_.push_back(model_.emplace_back(make(flat, own)).get());
  if (frozen_) {
    ModelLayout trained = MakeLoraLayout(config, options.lora, part_);
    for (size_t block = 0; block < block_flats_.size(); ++block) {
      for (const int flat : trained.block_flats[block])
        block_flats_[block].push_back(static_cast<int>(model_.size()) + flat);
    }
    for (FlatLayout& flat : trained.flats)
      all_.push_back(adapters_.emplace_back(make(flat, of_trained)).get());
  }
  BindSlots();
  Adapters adapters;
  if (frozen_)
    adapters = {FindAdapters(adapters_), options.lora.Scale(), options.lora.dropout, options.seed};
  const ExpertGroup experts(world->experts(), config.experts.count, world->device());
  blocks_ = FamilyFor(config).MakeBlocks(
      config, layout, model_, adapters,
      {tensor, TensorGroup(world->context()), experts, options.max_length, world->device(),
       options.z_loss, options.dpo, options.fp8, options.reward});
  if (options.graphs) graphs_.emplace(blocks_, options.recompute, options.graphs);
}

ModelPart Engine::PartOfRank(int rank) const {
  ModelPart part = PartOf(world_->mesh(), rank, options_.chunks);
  part.linears_apart = options_.flats.quantisation != Quantisation::kNone;
  return part;
}

// "forward layer 3", "unshard embedding", with the micro-batch where there are several.
std::string Engine::RangeName(const Action& action, size_t micro_batches) const {
  static constexpr const char* kNames[] = {"unshard",
                                           "reshard",
                                           "forward",
                                           "recompute",
                                           "backward",
                                           "backward of the input of",
                                           "weights' gradients of",
                                           "ask for the input of",
                                           "ask for the gradient of",
                                           "send from",
                                           "send the gradient from",
                                           "open gradients of",
                                           "accumulate gradients of",
                                           "reduce",
                                           "wait for the sum of"};
  const bool of_block = action.kind >= Action::kForward && action.kind <= Action::kSendGradient;
  int block = action.index;
  if (!of_block) {
    const auto has = [&](const std::vector<int>& flats) {
      return std::find(flats.begin(), flats.end(), action.index) != flats.end();
    };
    block = static_cast<int>(std::find_if(block_flats_.begin(), block_flats_.end(), has) -
                             block_flats_.begin());
  }
  const int number = blocks_in_model_[block];
  const std::string what = number == 0                        ? "embedding"
                           : number - 1 == config_.num_layers ? "head"
                                                              : absl::StrCat("layer ", number - 1);
  return absl::StrCat(
      kNames[action.kind], " ", what,
      !of_block && action.index >= static_cast<int>(model_.size()) ? "'s adapters" : "",
      of_block && micro_batches > 1 ? absl::StrCat(", micro-batch ", action.micro) : "");
}

ScheduleNeeds Engine::Needs() const {
  ScheduleNeeds needs;
  for (const FlatParam* flat : all_)
    needs.flats.push_back({!flat->frozen(), flat->weights_in_slot(), flat->gradients_in_slot(),
                           flat->reduces_each_micro_batch(), flat->layout().holding().both_ends});
  needs.recompute = options_.recompute != RecomputeMode::kNone;
  needs.pipeline = pipeline_;
  return needs;
}

// All slots lie in one piece: NCCL rounds what it makes up to what multicasting wants, which may be
// hundreds of MiB.
at::Tensor Engine::MemoryOfSlots(int64_t bytes) {
  const FlatParam* of = FlatToRegisterFor(all_);
  at::Tensor memory;
  if (world_->device().is_cuda())
    memory = world_->RegisteredMemory(of == nullptr ? Group{} : of->gathered_from(), bytes);
  registered_ = memory.defined();
  return registered_
             ? memory
             : at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(world_->device()));
}

void Engine::BindSlots() {
  constexpr int64_t kAlign = 512;
  const std::vector<std::vector<Action>> schedules = TypicalSchedules(block_flats_, Needs());
  const auto assign = [&](bool weights) {
    std::vector<int64_t> numel;
    for (const FlatParam* flat : all_)
      numel.push_back((weights ? flat->weights_in_slot() : flat->gradients_in_slot())
                          ? flat->padded_numel()
                          : 0);
    return weights ? AssignSlots(schedules, Action::kUnshard, {Action::kReshard}, numel)
                   : AssignSlots(schedules, Action::kOpen, kCloses, numel);
  };
  const SlotMap maps[] = {assign(true), assign(false)};
  const at::ScalarType types[] = {options_.flats.dtype, at::kFloat};
  std::vector<int64_t> begins, sizes;  // in bytes
  int64_t all = 0;
  for (const int of : {0, 1}) {
    for (const int64_t numel : maps[of].slot_numel) {
      begins.push_back(all);
      sizes.push_back(numel * static_cast<int64_t>(at::elementSize(types[of])));
      all += (sizes.back() + kAlign - 1) / kAlign * kAlign;
    }
  }
  const at::Tensor memory = MemoryOfSlots(all);
  for (const int of : {0, 1}) {
    const size_t first = slots_.size();
    for (size_t slot = 0; slot < maps[of].slot_numel.size(); ++slot) {
      const size_t s = first + slot;
      slots_.push_back(memory.narrow(0, begins[s], sizes[s]).view(types[of]));
      // Poisoned from the start: what was never whole is as wrong as what was resharded.
      if (options_.flats.poison) slots_.back().fill_(std::numeric_limits<double>::quiet_NaN());
    }
    for (size_t f = 0; f < all_.size(); ++f) {
      if (maps[of].slot_of[f] < 0) continue;
      void* place = slots_[first + static_cast<size_t>(maps[of].slot_of[f])].data_ptr();
      if (of == 0)
        all_[f]->BindWeights(place);
      else
        all_[f]->BindGradient(place);
    }
  }
  weight_slots_ = maps[0].slot_of, gradient_slots_ = maps[1].slot_of;
}

std::vector<Action> Engine::Schedule(size_t micro_batches, bool training) const {
  std::vector<Action> schedule =
      MakeSchedule(block_flats_, Needs(), static_cast<int>(micro_batches), training);
  TORCH_CHECK(SlotsHold(schedule, Action::kUnshard, {Action::kReshard}, weight_slots_) &&
                  SlotsHold(schedule, Action::kOpen, kCloses, gradient_slots_),
              "two flats in one slot, with ", micro_batches, " micro-batches");
  return schedule;
}

void Engine::Await(int block) {
  for (const int flat : block_flats_[block]) all_[flat]->WaitUnshard();
}

void Engine::Forward(const Action& action, const BatchMeta& batch, Passing& passing,
                     at::Tensor& losses) {
  Await(action.index);
  at::Tensor x = passing.Take(passing.inputs, action.index, links_);
  Saved& kept = passing.saved[action.index];
  if (graphs_ && action.index == 0) graphs_->Begin(batch);
  if (RunsByGraph(action.index)) {
    passing.x = graphs_->Forward(action.index, x, kept);
    return;
  }
  x = blocks_[action.index]->Forward(x, batch, kept);
  if (batch.loss_only)
    kept.clear();
  else
    blocks_[action.index]->Drop(kept, options_.recompute);
  if (blocks_in_model_[action.index] > config_.num_layers)
    losses = losses.defined() ? losses + x : x;
  else
    passing.x = std::move(x);
}

void Engine::Recompute(const Action& action, const BatchMeta& batch, Passing& passing) {
  Await(action.index);
  if (RunsByGraph(action.index)) return;
  blocks_[action.index]->Recompute(batch, passing.saved[action.index]);
}

void Engine::Backward(const Action& action, const BatchMeta& batch, Passing& passing) {
  Await(action.index);
  const at::Tensor d = passing.Take(passing.gradients, action.index, links_);
  Saved& kept = passing.saved[action.index];
  if (RunsByGraph(action.index)) {
    passing.x = graphs_->Backward(action.index, d, kept);
    return;
  }
  std::optional<ops::PutOffWeights> put_off;
  if (action.kind == Action::kBackwardInput) put_off.emplace(&passing.put_off[action.index]);
  passing.x = blocks_[action.index]->Backward(d, batch, kept);
  kept.clear();
}

// Messages of neighbours.
void Engine::Exchange(const Action& action, const BatchMeta& batch, Passing& passing) {
  const auto memory = [&] {
    return at::empty({TensorGroup(world_->tensor()).PartSize(batch.tokens()), config_.hidden_size},
                     at::TensorOptions().dtype(options_.flats.dtype).device(world_->device()));
  };
  switch (action.kind) {
    case Action::kReceiveInput:
      passing.inputs[action.index] = links_.AskForward(memory());
      break;
    case Action::kReceiveGradient:
      passing.gradients[action.index] = links_.AskBackward(memory());
      break;
    case Action::kSendOutput:
      links_.SendForward(std::exchange(passing.x, {}));
      break;
    default:
      links_.SendBackward(std::exchange(passing.x, {}));
  }
}

void Engine::Carry(const std::vector<Action>& schedule, const std::vector<BatchMeta>& batches,
                   EngineLoss& loss) {
  std::vector<Passing> passing(batches.size(), Passing(blocks_.size()));
  at::Tensor losses;  // of the rank that has the head
  for (const Action& action : schedule) {
    const Range range([&] { return RangeName(action, batches.size()); });
    switch (action.kind) {
      case Action::kUnshard:
        all_[action.index]->StartUnshard();
        break;
      case Action::kReshard:
        all_[action.index]->Reshard();
        break;
      case Action::kForward:
        Forward(action, batches[action.micro], passing[action.micro], losses);
        break;
      case Action::kRecompute:
        Recompute(action, batches[action.micro], passing[action.micro]);
        break;
      case Action::kBackward:
      case Action::kBackwardInput:
        Backward(action, batches[action.micro], passing[action.micro]);
        break;
      case Action::kWeights:
        for (const auto& add : std::exchange(passing[action.micro].put_off[action.index], {}))
          add();
        break;
      case Action::kReceiveInput:
      case Action::kReceiveGradient:
      case Action::kSendOutput:
      case Action::kSendGradient:
        Exchange(action, batches[action.micro], passing[action.micro]);
        break;
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
  links_.Flush();
  if (!losses.defined()) return;
  const at::Tensor host = losses.cpu();
  loss.loss += host[0].item<double>();
  loss.z += host[1].item<double>();
}

EngineLoss Engine::Run(const std::vector<BatchMeta>& batches) {
  // Those that the update still reads begin with the first use of their weights.
  for (const std::unique_ptr<FlatParam>& flat : flats()) {
    if (!flat->being_updated()) flat->BeginGradients();
  }
  if (schedules_.size() <= batches.size()) schedules_.resize(batches.size() + 1);
  std::vector<Action>& schedule = schedules_[batches.size()];
  if (schedule.empty()) schedule = Schedule(batches.size(), /*training=*/true);
  if (graphs_) graphs_->BeginStep();
  EngineLoss loss;
  if ((Balances() || options_.count_tokens) && config_.experts.count > 0)
    loss = RunBalanced(batches, schedule);
  else
    Carry(schedule, batches, loss);
  for (const std::unique_ptr<FlatParam>& flat : flats()) flat->FinishGradients();
  return loss;
}

// With a place in each micro-batch where its routers tell what they chose, or with what says which
// tokens they are to count.
EngineLoss Engine::RunBalanced(std::vector<BatchMeta> batches,
                               const std::vector<Action>& schedule) {
  const TensorGroup tensor(world_->tensor());
  for (BatchMeta& batch : batches) {
    if (Balances())
      batch.balance =
          std::make_shared<RouterBalance>(options_.balance, batch, config_, tensor,
                                          TensorGroup(world_->context()), world_->device());
    if (options_.count_tokens) batch.counted = CountedPart(batch, tensor, world_->device());
  }
  EngineLoss loss;
  Carry(schedule, batches, loss);
  for (const BatchMeta& batch : batches) loss.balance += batch.balance ? batch.balance->Loss() : 0;
  return loss;
}

double Engine::Evaluate(std::vector<BatchMeta>& batches) {
  for (BatchMeta& batch : batches) batch.loss_only = true;
  EngineLoss loss;
  Carry(Schedule(batches.size(), /*training=*/false), batches, loss);
  return loss.loss;
}

void Engine::FindReference(const std::vector<BatchMeta>& batches) {
  std::vector<BatchMeta> alone = batches;
  for (BatchMeta& batch : alone) {
    batch.loss_only = batch.adapters_off = true;
    batch.pairs->reference = {};
  }
  EngineLoss loss;
  Carry(Schedule(alone.size(), /*training=*/false), alone, loss);
  for (const BatchMeta& batch : alone)
    batch.pairs->reference = std::exchange(batch.pairs->policy, {});
}

// Whether rank 0 is sent a flat of this rank: of those that hold it, the first is asked.
bool Engine::IsCollectedFrom(int rank, const FlatLayout& layout) const {
  return rank != 0 && IndexAmongHolders(world_->mesh(), rank, layout.holding()) == 0;
}

void Engine::UnshardAll() {
  const int ranks_of_stage = world_->size() / part_.stages;
  for (int f = 0; f < static_cast<int>(all_.size()); ++f) {
    FlatParam& flat = *all_[f];
    flat.StartUnshard();
    flat.WaitUnshard();
    if (IsCollectedFrom(world_->rank(), flat.layout())) SendToFirst(f);
    if (world_->rank() == 0) {
      if (flat.layout().sliced()) Collect(0, flat.layout(), f);
      for (int rank = 1; rank < ranks_of_stage; ++rank) {
        const bool differs = flat.layout().sliced() || flat.layout().holding().experts;
        if (differs && IsCollectedFrom(rank, flat.layout())) Collect(rank, LayoutsOf(rank)[f], f);
      }
    }
    if (world_->rank() == 0 && !flat.layout().sliced())
      flat.LeaveSlot();
    else
      flat.Reshard();
  }
  for (int stage = 1; world_->rank() == 0 && stage < part_.stages; ++stage) CollectStage(stage);
}

// Takes all that ranks of another stage have: on rank 0.
void Engine::CollectStage(int stage) {
  const int count = world_->size() / part_.stages, first = stage * count;
  for (int f = 0; f < static_cast<int>(LayoutsOf(first).size()); ++f) {
    for (int rank = first; rank < first + count; ++rank) {
      const FlatLayout& layout = LayoutsOf(rank)[f];
      if (IsCollectedFrom(rank, layout)) Collect(rank, layout, f);
    }
  }
}

// Of all flats of a rank.
const std::vector<FlatLayout>& Engine::LayoutsOf(int rank) {
  std::vector<FlatLayout>& layouts = layouts_of_[world_->mesh().PartNumber(rank)];
  if (!layouts.empty()) return layouts;
  const ModelPart part = PartOfRank(rank);
  layouts = MakeLayout(config_, part).flats;
  if (frozen_) {
    for (FlatLayout& flat : MakeLoraLayout(config_, options_.lora, part).flats)
      layouts.push_back(std::move(flat));
  }
  return layouts;
}

void Engine::SendToFirst(int flat) {
  for (int s = 0; s < static_cast<int>(all_[flat]->layout().segments().size()); ++s) {
    std::vector<at::Tensor> sent = {all_[flat]->Weight(s)};
    world_->backend()->send(sent, 0, s)->wait();
  }
}

// Takes what a rank has of a flat: on rank 0.
void Engine::Collect(int rank, const FlatLayout& layout, int flat) {
  for (int s = 0; s < static_cast<int>(layout.segments().size()); ++s) {
    const Segment& segment = layout.segments()[s];
    at::Tensor mine;
    if (rank == world_->rank()) {
      mine = all_[flat]->Weight(s);
    } else {
      mine = at::empty(segment.shape, at::TensorOptions()
                                          .dtype(OptionsOf(layout, options_.flats).dtype)
                                          .device(world_->device()));
      std::vector<at::Tensor> received = {mine};
      world_->backend()->recv(received, rank, s)->wait();
    }
    at::Tensor& whole = collected_[segment.name];
    if (!whole.defined()) whole = at::empty(segment.parameter_shape(), mine.scalar_type());
    if (segment.slice)
      whole.narrow(segment.slice->dim, segment.slice->begin, segment.shape[segment.slice->dim])
          .copy_(mine);
    else
      whole.copy_(mine);
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
