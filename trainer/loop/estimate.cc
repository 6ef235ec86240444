#include "trainer/loop/estimate.h"

#include <algorithm>
#include <set>
#include <utility>

#include "trainer/data/batches.h"
#include "trainer/loop/engine_options.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/mfu.h"
#include "trainer/model/family.h"
#include "trainer/model/lora.h"
#include "trainer/model/parts.h"
#include "trainer/parallel/schedule.h"

namespace muster::trainer {
namespace {

// On a CPU, measured with glibc's allocator (bench/run.sh trainer-memory): what the libraries and
// their products' buffers take once training runs, beyond a process that only has them loaded; what
// kept activations leave unused between them (in bf16 more, as fp32 temporaries stood there).
// Gathers and sums run in place, and Gloo's connections take next to nothing.
constexpr int64_t kProductBuffers = int64_t{78} << 20, kBf16ProductBuffers = int64_t{70} << 20;
constexpr int64_t kHolesShare = 8, kBf16HolesShare = 4;

// What a layer's backward needs beyond what is saved by recompute: none, in elements a token, at
// the worse of its two widest moments: in the MLP, where the gradient of gate and up stands beside
// two products, and in attention, where what the MLP saved is gone.
// Of a slice, what ranks send each other comes to that: all tokens of what goes into a product, and
// of its gradient as it is made and as it is received.
int64_t BackwardElements(const ModelConfig& whole, int64_t layer, ops::AttentionKind kind,
                         int64_t length, int slices, int groups) {
  const ModelConfig model = SlicedConfig(whole, {slices - 1, slices}, groups);
  const int64_t d = model.hidden_size, f = model.intermediate_size;
  const int64_t q = model.num_heads * model.head_dim, kv = model.num_kv_heads * model.head_dim;
  const int64_t scores = AttentionPart::Width(AttentionPart::kScores, model, kind, length, slices);
  // Scores with a cap are computed once more; what stands behind a norm has a gradient of its own.
  const int64_t attention = (model.attention_softcap > 0 ? 4 : 2) * scores + 3 * q + 2 * kv + 2 * d;
  const int64_t slice = (slices > 1 ? 3 * d : 0) + (model.post_norms ? d : 0);
  if (!model.HasExperts(layer)) return d + slice + std::max(5 * f, attention - 3 * f - d);
  // Of experts' rows: what they are given and its gradient, in two orders, beside what their MLP
  // needs.
  const int64_t width = model.experts.width, rows = model.experts.per_token,
                shared = model.experts.shared_width;
  return d + slice +
         std::max({(3 * d + 4 * width) * rows / (groups > 1 ? slices : 1),
                   (shared > 0 ? 2 * d : 0) + 3 * shared,
                   attention - 3 * (width * rows + shared) - d});
}

}  // namespace

int64_t Estimate::DeviceBytes() const {
  int64_t sum = 0;
  for (const MemoryClass& one : memory) sum += one.on_host ? 0 : one.bytes;
  return sum;
}

namespace {

// The run that is estimated.
struct Setting {
  const TrainConfig& config;
  const ModelConfig& model;
  int ranks;
  bool gpus;
  EngineOptions options;
  int64_t element;  // bytes of a weight
  int stage;

  int Slices() const { return static_cast<int>(config.parallel.tp); }
  int Parts() const { return static_cast<int>(config.parallel.cp); }  // of a row
  int Stages() const { return static_cast<int>(config.parallel.pp); }
  int ExpertRanks() const { return static_cast<int>(config.parallel.ep); }
  int InStage() const { return ranks / Stages(); }
  // The last slice: none is larger.
  ModelPart Part() const {
    return {{Slices() - 1, Slices()}, stage, Stages(), options.chunks, {0, ExpertRanks()},
            config.quantize.on};
  }
  // Ranks that hold a flat, and that share one copy of it.
  int Holders(const FlatLayout& flat) const {
    return (flat.sliced() ? InStage() / Slices() : InStage()) * (flat.holding().both_ends ? 2 : 1) /
           (flat.holding().experts ? ExpertRanks() : 1);
  }
  int Group(const FlatLayout& flat) const {
    const int group = config.shard_size > 0 ? static_cast<int>(config.shard_size) : InStage();
    return flat.sliced()            ? group / Slices()
           : flat.holding().experts ? group / ExpertRanks()
                                    : group;
  }
  int64_t Length() const { return config.RowLength(); }
  // Of the longest sequence that attends to itself.
  int64_t Attended() const { return config.OfPairs() ? config.max_length : Length(); }
  // Of a row, that a rank has; and the most keys that its queries see, in the mean.
  int64_t RowTokens() const { return (Length() + Parts() - 1) / Parts(); }
  int64_t Keys() const {
    return Parts() == 1 ? Attended() : (Length() * (Parts() + 1) + 2 * Parts() - 1) / (2 * Parts());
  }
  // Numbers of all parts' keys and values, in a layer.
  int64_t GatheredNumbers(int64_t micro_batch) const {
    const ModelConfig own = SlicedConfig(model, Part().slice, ExpertRanks());
    return Parts() == 1 ? 0
                        : micro_batch * RowTokens() * Parts() * 2 * own.num_kv_heads * own.head_dim;
  }
};

// The flats, as Engine makes them: what a rank keeps of them, and what their schedule needs.
struct FlatsEstimate {
  BlockFlats blocks;
  FlatMemory sum;
  ScheduleNeeds needs;
  std::vector<int64_t> weight_slots, gradient_slots, padded;
  std::vector<FlatOptions> options;
  std::vector<int> holders, groups, in_stage;  // ranks, by flat; the last: holders of one stage
  int64_t layers = 0;
  std::vector<int64_t> gathered;  // bytes of all ranks, by flat
  std::vector<int64_t> arrived;   // gradients of others that are summed as a tree, by flat
  int64_t in_transit = 0;         // and of quantised weights at most at once
  int64_t saved = 0;              // bytes of this rank's share of masters and moments, in fp32
  bool embedding = false, head = false;
  std::set<int64_t> windows;  // of its layers, as masks have them
};

int64_t ParametersIn(const ModelLayout& layout) {
  int64_t numel = 0;
  for (const FlatLayout& flat : layout.flats) {
    if (flat.router_bias()) continue;  // transformers doesn't count them either
    for (const Segment& segment : flat.segments()) numel += segment.numel;
  }
  return numel;
}

FlatsEstimate EstimateFlats(const Setting& s) {
  FlatsEstimate e;
  ModelLayout layout = MakeLayout(s.model, s.Part());
  const size_t own = layout.flats.size();
  e.blocks = layout.block_flats;
  e.embedding = layout.blocks.front() == 0, e.head = layout.blocks.back() > s.model.num_layers;
  e.layers = static_cast<int64_t>(layout.blocks.size()) - (e.embedding ? 1 : 0) - (e.head ? 1 : 0);
  for (const int block : layout.blocks) {
    if (block == 0 || block > s.model.num_layers) continue;
    const int64_t window = s.model.Window(block - 1);
    e.windows.insert(window < s.config.max_length ? window : 0);
  }
  e.needs.pipeline = {s.options.pipeline, s.stage, s.Stages(), layout.stretches};
  if (s.config.lora.on()) {
    ModelLayout adapters = MakeLoraLayout(s.model, s.config.lora, s.Part());
    for (size_t block = 0; block < e.blocks.size(); ++block) {
      for (const int flat : adapters.block_flats[block])
        e.blocks[block].push_back(static_cast<int>(own) + flat);
    }
    for (FlatLayout& flat : adapters.flats) layout.flats.push_back(std::move(flat));
  }
  e.needs.recompute = s.options.recompute != RecomputeMode::kNone;
  for (size_t f = 0; f < layout.flats.size(); ++f) {
    const FlatLayout& flat = layout.flats[f];
    FlatOptions options = OptionsOf(flat, s.options.flats);
    options.frozen = s.config.lora.on() && f < own;
    e.options.push_back(options);
    e.holders.push_back(s.Holders(flat)), e.groups.push_back(s.Group(flat));
    e.in_stage.push_back(flat.holding().both_ends ? e.holders[f] / 2 : e.holders[f]);
    const FlatMemory one = MemoryOf(flat, e.holders[f], e.groups[f], options);
    e.sum.weights += one.weights, e.sum.gradients += one.gradients;
    e.sum.masters += one.masters, e.sum.moments += one.moments;
    // Those of a block are asked for while the block's before are there still.
    e.in_transit = std::max(e.in_transit, 2 * one.in_transit);
    e.padded.push_back(flat.PaddedNumel(e.holders[f]));
    if (!options.frozen) e.saved += 3 * 4 * e.padded[f] / e.holders[f];
    const auto element = static_cast<int64_t>(at::elementSize(options.dtype));
    e.gathered.push_back(options.quantisation != Quantisation::kNone ? one.in_transit
                                                                     : e.padded[f] * element);
    e.weight_slots.push_back(one.weights_in_slot ? e.padded.back() : 0);
    e.gradient_slots.push_back(one.gradients_in_slot ? e.padded.back() : 0);
    const bool comes = options.tree_units > 0 && !options.frozen && e.in_stage[f] > 1;
    e.arrived.push_back(comes ? e.padded.back() : 0);
    e.needs.flats.push_back({!options.frozen, one.weights_in_slot, one.gradients_in_slot,
                             one.reduces_slot, flat.holding().both_ends});
  }
  return e;
}

// What waits between a layer's forward and backward at most, of all micro-batches, in layers:
// whole, or where weights' gradients are put off what those need alone.
struct InFlight {
  int64_t layers = 0, put_off = 0;
  int64_t outputs = 0;  // what the head and other stages are to get
};

InFlight MostInFlight(const Setting& s, const FlatsEstimate& flats, int micro_batches) {
  InFlight now, most;
  const int first = flats.embedding ? 1 : 0, end = first + static_cast<int>(flats.layers);
  const auto weight = [](const InFlight& f) { return 2 * f.layers + f.put_off; };
  for (const Action& action : MakeSchedule(flats.blocks, flats.needs, micro_batches)) {
    if (action.index < first || action.index >= end) continue;
    const bool backward = action.kind == Action::kBackward || action.kind == Action::kBackwardInput;
    now.layers += (action.kind == Action::kForward ? 1 : 0) - (backward ? 1 : 0);
    now.put_off +=
        (action.kind == Action::kBackwardInput ? 1 : 0) - (action.kind == Action::kWeights ? 1 : 0);
    if (flats.head && action.index + 1 == end)
      now.outputs += (action.kind == Action::kForward ? 1 : 0) - (backward ? 1 : 0);
    if (weight(now) > weight(most)) most = now;
  }
  constexpr int64_t kMessages = 3;  // with a neighbour: two that were sent and one asked for
  const bool ring = s.options.chunks > 1;
  if (ring || !flats.embedding) most.outputs += kMessages;
  if (ring || !flats.head) most.outputs += kMessages;
  return most;
}

// Elements a token that a layer's weights' gradients need: what went into its products, and the
// gradients of what came out.
int64_t PutOffElements(const Setting& s) {
  const ModelConfig own = SlicedConfig(s.model, s.Part().slice, s.ExpertRanks());
  const int64_t q = own.num_heads * own.head_dim, kv = own.num_kv_heads * own.head_dim;
  // Of experts' products both sides are rows of their own.
  const int64_t rows = own.experts.per_token,
                sparse = rows * (2 * own.hidden_size + 3 * own.experts.width) +
                         3 * own.experts.shared_width,
                dense = 2 * own.hidden_size + 3 * own.intermediate_size;
  return 2 * own.hidden_size + 2 * q + 2 * kv +
         (sparse * own.NumSparseLayers() + dense * (own.num_layers - own.NumSparseLayers())) /
             own.num_layers;
}

// Bytes of a linear's operands in 8 bits, as rows and as columns, and of what they are made of and
// make, at most at once in a layer's backward (ops/fp8.h).
int64_t Fp8Bytes(const Setting& s, int64_t tokens) {
  if (!s.options.fp8) return 0;
  const ModelConfig own = SlicedConfig(s.model, s.Part().slice, s.ExpertRanks());
  const int64_t d = own.hidden_size, f = own.intermediate_size, q = own.num_heads * own.head_dim,
                kv = own.num_kv_heads * own.head_dim;
  int64_t most = 0;
  for (const auto& [in, out] : {std::pair(d, q + 2 * kv), {q, d}, {d, 2 * f}, {f, d}}) {
    const int64_t rows = tokens * (in + out), weights = in * out;
    most = std::max(
        most, rows + std::max({4 * tokens * std::max(in, out), rows + 4 * weights, 6 * weights}));
  }
  return most;
}

// Bytes of the activations that are kept and of what works on them.
struct WorkEstimate {
  int64_t kept = 0, widest = 0, holes = 0, tables = 0;
};

WorkEstimate EstimateWork(const Setting& s, const FlatsEstimate& flats, const InFlight& in_flight,
                          int64_t micro_batch) {
  const TrainConfig& config = s.config;
  const ModelConfig& model = s.model;
  const int64_t element = s.element, length = s.Attended(), keys = s.Keys();
  const int64_t tokens = micro_batch * s.RowTokens();
  // FlashAttention keeps a sum a head instead of a row of probabilities; our kernels turn logits
  // into their gradients in place.
  const bool kernels = !config.reference_ops;
  const ops::AttentionKind kind =
      ops::ChooseAttention(s.gpus, kernels, s.options.flats.dtype, model);
  const Family& family = FamilyFor(model);
  const int slices = s.Slices();
  // The mean of the layers, and the work of the one that needs the most.
  int64_t kept = 0, layer_elements = 0;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const auto saved = [&](RecomputeMode mode) {
      return family.SavedByLayer(model, layer, kind, keys, mode, slices, s.ExpertRanks()).all();
    };
    const int64_t its = saved(s.options.recompute);
    kept += its;
    layer_elements = std::max(
        layer_elements, saved(RecomputeMode::kNone) - its +
                            BackwardElements(model, layer, kind, keys, slices, s.ExpertRanks()));
  }
  kept /= model.num_layers;
  const int64_t vocabulary = (model.vocab_size + slices - 1) / slices;
  const int64_t chunk = ops::LogitsChunk(tokens, vocabulary, s.gpus);
  // Logits of slices are worked on by ATen.
  const bool logits_in_place = kernels && slices == 1;
  // Of the layer whose backward runs all is there, recomputed or not.
  // What is gathered stands beside what a call takes of it, and its gradient in fp32, as it is made
  // and as it is received.
  const int64_t layer_work = tokens * element * layer_elements +
                             s.GatheredNumbers(micro_batch) * (3 * element + 2 * 4) +
                             Fp8Bytes(s, tokens);
  const int64_t head_work =
      !flats.head   ? 0
      : model.score ? tokens * (element + 4) * 2 * model.hidden_size
                    : tokens * element * 3 * model.hidden_size +
                          chunk * vocabulary *
                              ((logits_in_place ? element : 8 + (element == 2 ? 4 : 0)) +
                               (model.final_softcap > 0 ? element : 0));  // the cap's derivative
  const int64_t layers_kept = in_flight.layers * kept + in_flight.put_off * PutOffElements(s);
  WorkEstimate e;
  e.kept = tokens * element *
           (layers_kept + std::max<int64_t>(1, in_flight.outputs) * model.hidden_size / slices);
  // CUDA graphs' memory is theirs alone.
  e.widest =
      s.gpus && config.cuda_graphs ? layer_work + head_work : std::max(layer_work, head_work);
  if (!s.gpus)
    e.holes = tokens * element * layers_kept / (element == 2 ? kBf16HolesShare : kHolesShare);
  const auto masks = static_cast<int64_t>(flats.windows.size());
  e.tables = (model.local_rope_theta > 0 ? 2 : 1) * length * model.head_dim * 4 +
             (kind == ops::AttentionKind::kFlash
                  ? 0
                  : masks * length * length * (model.num_heads / model.num_kv_heads) * element);
  return e;
}

// What each of n ranks sends so that all have all.
int64_t Ring(int64_t bytes, int n) { return bytes / n * (n - 1); }

// How often ranks that share out a layer gather its tokens, or sum and scatter them: twice on the
// way to attention's product and back from it, so for the MLP's; and what goes into a product once
// more for its weights' gradients.
int64_t ExchangesInALayer(RecomputeMode mode) {
  constexpr int64_t kForward = 4, kBackward = 6;
  switch (mode) {
    case RecomputeMode::kNone:
    case RecomputeMode::kPointwise:
      return kForward + kBackward;
    case RecomputeMode::kKeepAttention:
      return kForward + kBackward + 2;
    case RecomputeMode::kFull:
      return kForward + kBackward + 3;
  }
  return 0;
}

// What a rank sends to experts of other ranks and back, where each is met as often as another: rows
// there and back, forward and backward.
void EstimateExpertTraffic(const Setting& s, const FlatsEstimate& flats, Estimate* e) {
  if (s.ExpertRanks() == 1) return;
  const bool again = s.options.recompute == RecomputeMode::kKeepAttention ||
                     s.options.recompute == RecomputeMode::kFull;
  const int64_t rows = e->micro_batches * e->micro_batch * s.RowTokens() / s.Slices() *
                       s.model.experts.per_token,
                sparse = flats.layers * s.model.NumSparseLayers() / s.model.num_layers;
  e->expert_bytes =
      Ring(rows * s.model.hidden_size * s.element, s.ExpertRanks()) * sparse * (again ? 5 : 4);
}

// Keys and values are gathered forward and once more backward; their gradients are fp32.
void EstimateContextTraffic(const Setting& s, const FlatsEstimate& flats, Estimate* e) {
  const int64_t gathers = s.options.recompute == RecomputeMode::kFull ? 3 : 2;
  e->context_bytes = e->micro_batches * flats.layers *
                     Ring(s.GatheredNumbers(e->micro_batch) * (gathers * s.element + 4), s.Parts());
}

// What a rank sends for one sum of a flat's gradients.
int64_t ReducedBytes(const Setting& s, const FlatsEstimate& flats, int flat) {
  const int holders = flats.holders[flat], group = flats.groups[flat],
            in_stage = flats.in_stage[flat];
  const FlatOptions& options = flats.options[flat];
  const int64_t bytes = flats.padded[flat] * 4;
  if (options.tree_units > 0)
    return (group == in_stage && options.zero_stage > 0 ? 1 : 2) * Ring(bytes, in_stage);
  if (!s.gpus || options.zero_stage == 0) return 2 * Ring(bytes, holders);
  return Ring(bytes, group) + 2 * Ring(bytes / group, holders / group);
}

// What a rank sends once a step where both ends of a pipeline have a tree of a flat's gradients.
int64_t EndsBytes(const FlatsEstimate& flats, int flat) {
  const FlatOptions& options = flats.options[flat];
  const int copies = flats.holders[flat] / flats.groups[flat];
  if (options.frozen || options.tree_units == 0 || flats.in_stage[flat] == flats.holders[flat])
    return 0;
  return 2 *
         Ring(flats.padded[flat] * 4 / (options.zero_stage > 0 ? flats.groups[flat] : 1), copies);
}

// What a rank sends a step.
void EstimateTraffic(const Setting& s, const FlatsEstimate& flats, Estimate* e) {
  const int64_t part_bytes =
      e->micro_batch * s.RowTokens() * s.model.hidden_size * s.element / s.Slices();
  for (const Action& action :
       MakeSchedule(flats.blocks, flats.needs, static_cast<int>(e->micro_batches))) {
    if (action.kind == Action::kSendOutput || action.kind == Action::kSendGradient)
      e->pipeline_bytes += part_bytes;
    if (action.kind != Action::kUnshard && action.kind != Action::kReduce) continue;
    if (action.kind == Action::kReduce)
      e->reduce_bytes += ReducedBytes(s, flats, action.index);
    else if (flats.weight_slots[action.index] > 0 || (flats.options[action.index].zero_stage > 0 &&
                                                      flats.needs.flats[action.index].trained))
      e->gather_bytes += Ring(flats.gathered[action.index], flats.groups[action.index]);
  }
  for (int flat = 0; flat < static_cast<int>(flats.padded.size()); ++flat)
    e->reduce_bytes += EndsBytes(flats, flat);
  EstimateExpertTraffic(s, flats, e);
  EstimateContextTraffic(s, flats, e);
  if (s.Slices() == 1) return;
  const int64_t tokens = e->micro_batches * e->micro_batch * s.RowTokens();
  constexpr int64_t kOfEmbedding = 2;
  // Of a head that scores, a number a token alone.
  const int64_t of_head = s.model.score ? 0 : 2;
  if (flats.head && s.model.score) e->slice_bytes = Ring(tokens * 4, s.Slices());
  // Experts that every token meets: as often as attention's products, beside the others'.
  const int64_t shared = s.model.experts.shared == 0
                             ? 0
                             : flats.layers * s.model.NumSparseLayers() / s.model.num_layers *
                                   ExchangesInALayer(s.options.recompute) / 2;
  e->slice_bytes += Ring(tokens * s.model.hidden_size * s.element, s.Slices()) *
                    (flats.layers * ExchangesInALayer(s.options.recompute) + shared +
                     (flats.embedding ? kOfEmbedding : 0) + (flats.head ? of_head : 0));
}

// Of a rank of the setting's stage.
Estimate EstimateRank(const Setting& s, int64_t runtime_bytes) {
  Estimate e;
  const int64_t share =
      SharePerRank(s.config.global_batch_size, s.InStage() / s.Slices() / s.Parts());
  e.micro_batch = ChooseMicroBatchSize(s.config, share);
  const int tree_units = s.options.flats.tree_units;
  e.micro_batches = tree_units > 0 ? TreeParts(s.config) / tree_units
                                   : (share + e.micro_batch - 1) / e.micro_batch;
  e.stage = s.stage;

  const FlatsEstimate flats = EstimateFlats(s);
  const InFlight in_flight = MostInFlight(s, flats, static_cast<int>(e.micro_batches));
  const WorkEstimate work = EstimateWork(s, flats, in_flight, e.micro_batch);
  const std::vector<std::vector<Action>> schedules = TypicalSchedules(flats.blocks, flats.needs);
  const auto slot_bytes = [&](Action::Kind begin, const std::vector<Action::Kind>& end,
                              const std::vector<int64_t>& numel, int64_t size) {
    int64_t bytes = 0;
    for (const int64_t slot : AssignSlots(schedules, begin, end, numel).slot_numel)
      bytes += slot * size;
    return bytes;
  };
  const bool gpus = s.gpus;
  const FlatOptions& options = s.options.flats;
  if (!gpus) runtime_bytes += s.element == 2 ? kBf16ProductBuffers : kProductBuffers;
  e.memory = {{gpus ? "runtime (CUDA context and libraries, about)"
                    : "runtime (libraries and their buffers)",
               gpus ? int64_t{1} << 30 : runtime_bytes},
              {s.config.zero_stage == 3 ? "weights, this rank's share" : "weights",
               flats.sum.weights, gpus && options.host_weights},
              {"gathered weights (slots)",
               slot_bytes(Action::kUnshard, {Action::kReshard}, flats.weight_slots, s.element)},
              {"quantised weights of all ranks, on their way", flats.in_transit},
              {"gradients", flats.sum.gradients},
              {"gradients of one micro-batch (slots)",
               slot_bytes(Action::kOpen, {Action::kAccumulate, Action::kWaitReduce},
                          flats.gradient_slots, 4)},
              {"gradients of other ranks, as they are summed",
               slot_bytes(Action::kReduce, {Action::kWaitReduce}, flats.arrived, 4)},
              {"masters", flats.sum.masters, gpus && options.host_state},
              {"moments", flats.sum.moments, gpus && options.host_state},
              {"activations kept", work.kept},
              {"work of the widest block", work.widest},
              {"unused between activations", work.holes},
              {"tables (rotary, mask)", work.tables}};
  e.memory.erase(std::remove_if(e.memory.begin(), e.memory.end(),
                                [](const MemoryClass& one) { return one.bytes == 0; }),
                 e.memory.end());
  EstimateTraffic(s, flats, &e);
  constexpr int64_t kChunksInPlace = int64_t{2} << 26;  // as CheckpointWriter takes them
  e.saving_bytes =
      s.config.save_in_background ? flats.saved : std::min(flats.saved, kChunksInPlace);
  // A stretch's layers are in flight together.
  const int64_t stretches = std::max<int64_t>(1, s.options.chunks);
  e.stages = {{flats.layers, e.DeviceBytes(),
               (in_flight.layers * stretches + flats.layers - 1) / flats.layers, e.memory}};
  return e;
}

}  // namespace

Estimate MakeEstimate(const TrainConfig& config, const ModelConfig& model, int ranks, bool gpus,
                      int64_t runtime_bytes) {
  EngineOptions options = MakeEngineOptions(config, model);
  const ParallelConfig& p = config.parallel;
  SumAsTrees(config, static_cast<int>(ranks / (p.tp * p.cp * p.pp)), &options.flats);
  Setting s{config, model, ranks, gpus, options, options.flats.dtype == at::kBFloat16 ? 2 : 4, 0};
  Estimate worst;
  std::vector<StageEstimate> stages;
  for (s.stage = 0; s.stage < s.Stages(); ++s.stage) {
    Estimate one = EstimateRank(s, runtime_bytes);
    stages.push_back(one.stages[0]);
    if (s.stage == 0 || one.DeviceBytes() > worst.DeviceBytes()) worst = std::move(one);
  }
  worst.stages = std::move(stages);
  if (s.Stages() > 1)
    worst.bubble = BubbleShare(options.pipeline, s.Stages(), options.chunks,
                               static_cast<int>(worst.micro_batches));
  worst.parameters = ParametersIn(MakeLayout(model));
  worst.trained_parameters =
      config.lora.on() ? ParametersIn(MakeLoraLayout(model, config.lora)) : worst.parameters;
  worst.flops = ModelFlopsPerToken(model, static_cast<double>(s.Attended()),
                                   config.lora.on() ? worst.trained_parameters : 0, config.dpo.on())
                    .causal *
                static_cast<double>(config.global_batch_size * s.Length());
  return worst;
}

Estimate MakeWholeEstimate(const TrainConfig& config, const ModelConfig& model, int ranks,
                           bool gpus, int64_t runtime_bytes) {
  Estimate e = MakeEstimate(config, model, ranks, gpus, runtime_bytes);
  if (config.parallel.ep == 1) return e;
  ModelConfig uneven = model;
  uneven.experts.per_token *= 2;  // rows of a rank's experts
  e.uneven_bytes = MakeEstimate(config, uneven, ranks, gpus, runtime_bytes).DeviceBytes();
  return e;
}

}  // namespace muster::trainer
