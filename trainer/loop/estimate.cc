#include "trainer/loop/estimate.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trainer/checkpoint/files.h"
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

using nlohmann::json;
using nlohmann::ordered_json;

// On a CPU, measured with glibc's allocator (bench/run.sh trainer-memory): what the libraries and
// their products' buffers take once training runs, beyond a process that only has them loaded; what
// kept activations leave unused between them (in bf16 more, as fp32 temporaries stood there).
// Gathers and sums run in place, and Gloo's connections take next to nothing.
constexpr int64_t kProductBuffers = int64_t{78} << 20, kBf16ProductBuffers = int64_t{70} << 20;
constexpr int64_t kHolesShare = 8, kBf16HolesShare = 4;

constexpr int kDoesNotFit = 3;  // exit code

// Share of a GPU's peak that training reaches, for predictions.
constexpr double kUsualShareOfPeak = 0.5;

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
  const int64_t attention = 2 * scores + 3 * q + 2 * kv + 2 * d, slice = slices > 1 ? 3 * d : 0;
  if (!model.HasExperts(layer)) return d + slice + std::max(5 * f, attention - 3 * f - d);
  // Of experts' rows: what they are given and its gradient, in two orders, beside what their MLP
  // needs.
  const int64_t width = model.experts.width, rows = model.experts.per_token;
  return d + slice +
         std::max((3 * d + 4 * width) * rows / (groups > 1 ? slices : 1),
                  attention - 3 * width * rows - d);
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
  int Stages() const { return static_cast<int>(config.parallel.pp); }
  int ExpertRanks() const { return static_cast<int>(config.parallel.ep); }
  int InStage() const { return ranks / Stages(); }
  // The last slice: none is larger.
  ModelPart Part() const {
    return {{Slices() - 1, Slices()}, stage, Stages(), options.chunks, {0, ExpertRanks()}};
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
  int64_t Length() const {
    return config.packing == "balanced" ? config.max_row_length : config.max_length;
  }
};

// The flats, as Engine makes them: what a rank keeps of them, and what their schedule needs.
struct FlatsEstimate {
  BlockFlats blocks;
  FlatMemory sum;
  ScheduleNeeds needs;
  std::vector<int64_t> weight_slots, gradient_slots, padded;
  std::vector<int> holders, groups;  // ranks, by flat
  int64_t layers = 0;
  bool embedding = false, head = false;
};

int64_t ParametersIn(const ModelLayout& layout) {
  int64_t numel = 0;
  for (const FlatLayout& flat : layout.flats) {
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
    e.holders.push_back(s.Holders(flat)), e.groups.push_back(s.Group(flat));
    const FlatMemory one = MemoryOf(flat, e.holders[f], e.groups[f], options);
    e.sum.weights += one.weights, e.sum.gradients += one.gradients;
    e.sum.masters += one.masters, e.sum.moments += one.moments;
    e.padded.push_back(flat.PaddedNumel(e.holders[f]));
    e.weight_slots.push_back(one.weights_in_slot ? e.padded.back() : 0);
    e.gradient_slots.push_back(one.gradients_in_slot ? e.padded.back() : 0);
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
                sparse = rows * (2 * own.hidden_size + 3 * own.experts.width),
                dense = 2 * own.hidden_size + 3 * own.intermediate_size;
  return 2 * own.hidden_size + 2 * q + 2 * kv +
         (sparse * own.NumSparseLayers() + dense * (own.num_layers - own.NumSparseLayers())) /
             own.num_layers;
}

// Bytes of the activations that are kept and of what works on them.
struct WorkEstimate {
  int64_t kept = 0, widest = 0, holes = 0, tables = 0;
};

WorkEstimate EstimateWork(const Setting& s, const FlatsEstimate& flats, const InFlight& in_flight,
                          int64_t micro_batch) {
  const TrainConfig& config = s.config;
  const ModelConfig& model = s.model;
  const int64_t element = s.element, length = s.Length();
  const int64_t tokens = micro_batch * length;
  // FlashAttention keeps a sum a head instead of a row of probabilities; our kernels turn logits
  // into their gradients in place.
  const bool kernels = !config.reference_ops;
  const ops::AttentionKind kind =
      ops::ChooseAttention(s.gpus, kernels, s.options.flats.dtype, model.head_dim);
  const Family& family = FamilyFor(model);
  const int slices = s.Slices();
  // The mean of the layers, and the work of the one that needs the most.
  int64_t kept = 0, layer_elements = 0;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const auto saved = [&](RecomputeMode mode) {
      return family.SavedByLayer(model, layer, kind, length, mode, slices, s.ExpertRanks()).all();
    };
    const int64_t its = saved(s.options.recompute);
    kept += its;
    layer_elements = std::max(
        layer_elements, saved(RecomputeMode::kNone) - its +
                            BackwardElements(model, layer, kind, length, slices, s.ExpertRanks()));
  }
  kept /= model.num_layers;
  const int64_t vocabulary = (model.vocab_size + slices - 1) / slices;
  const int64_t chunk = std::min<int64_t>(
      tokens,
      std::max<int64_t>(1, (s.gpus ? ops::kLogitsChunkOnGpu : ops::kLogitsChunk) / vocabulary));
  // Logits of slices are worked on by ATen.
  const bool logits_in_place = kernels && slices == 1;
  // Of the layer whose backward runs all is there, recomputed or not.
  const int64_t layer_work = tokens * element * layer_elements;
  const int64_t head_work =
      flats.head ? tokens * element * 3 * model.hidden_size +
                       chunk * vocabulary * (logits_in_place ? element : 8 + (element == 2 ? 4 : 0))
                 : 0;
  const int64_t layers_kept = in_flight.layers * kept + in_flight.put_off * PutOffElements(s);
  WorkEstimate e;
  e.kept = tokens * element *
           (layers_kept + std::max<int64_t>(1, in_flight.outputs) * model.hidden_size / slices);
  // CUDA graphs' memory is theirs alone.
  e.widest =
      s.gpus && config.cuda_graphs ? layer_work + head_work : std::max(layer_work, head_work);
  if (!s.gpus)
    e.holes = tokens * element * layers_kept / (element == 2 ? kBf16HolesShare : kHolesShare);
  e.tables = length * model.head_dim * 4 +
             (kind == ops::AttentionKind::kFlash
                  ? 0
                  : length * length * (model.num_heads / model.num_kv_heads) * element);
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
  const int64_t rows = e->micro_batches * e->micro_batch * s.Length() / s.Slices() *
                       s.model.experts.per_token,
                sparse = flats.layers * s.model.NumSparseLayers() / s.model.num_layers;
  e->expert_bytes =
      Ring(rows * s.model.hidden_size * s.element, s.ExpertRanks()) * sparse * (again ? 5 : 4);
}

// What a rank sends a step.
void EstimateTraffic(const Setting& s, const FlatsEstimate& flats, Estimate* e) {
  const int64_t part_bytes =
      e->micro_batch * s.Length() * s.model.hidden_size * s.element / s.Slices();
  for (const Action& action :
       MakeSchedule(flats.blocks, flats.needs, static_cast<int>(e->micro_batches))) {
    if (action.kind == Action::kSendOutput || action.kind == Action::kSendGradient)
      e->pipeline_bytes += part_bytes;
    if (action.kind != Action::kUnshard && action.kind != Action::kReduce) continue;
    const int holders = flats.holders[action.index], group = flats.groups[action.index];
    if (action.kind == Action::kUnshard) {
      if (flats.weight_slots[action.index] > 0 ||
          (s.config.zero_stage > 0 && flats.needs.flats[action.index].trained))
        e->gather_bytes += Ring(flats.padded[action.index] * s.element, group);
    } else if (holders > 1) {
      const int64_t bytes = flats.padded[action.index] * 4;
      if (!s.gpus || s.config.zero_stage == 0)
        e->reduce_bytes += 2 * Ring(bytes, holders);
      else
        e->reduce_bytes += Ring(bytes, group) + 2 * Ring(bytes / group, holders / group);
    }
  }
  EstimateExpertTraffic(s, flats, e);
  if (s.Slices() == 1) return;
  const int64_t tokens = e->micro_batches * e->micro_batch * s.Length();
  constexpr int64_t kOfEmbedding = 2, kOfHead = 2;
  e->slice_bytes = Ring(tokens * s.model.hidden_size * s.element, s.Slices()) *
                   (flats.layers * ExchangesInALayer(s.options.recompute) +
                    (flats.embedding ? kOfEmbedding : 0) + (flats.head ? kOfHead : 0));
}

// Of a rank of the setting's stage.
Estimate EstimateRank(const Setting& s, int64_t runtime_bytes) {
  Estimate e;
  const int64_t share = SharePerRank(s.config.global_batch_size, s.InStage() / s.Slices());
  e.micro_batch = ChooseMicroBatchSize(s.config, share);
  e.micro_batches = (share + e.micro_batch - 1) / e.micro_batch;
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
              {"gradients", flats.sum.gradients},
              {"gradients of one micro-batch (slots)",
               slot_bytes(Action::kOpen, {Action::kAccumulate, Action::kWaitReduce},
                          flats.gradient_slots, 4)},
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
  // A stretch's layers are in flight together.
  const int64_t stretches = std::max<int64_t>(1, s.options.chunks);
  e.stages = {{flats.layers, e.DeviceBytes(),
               (in_flight.layers * stretches + flats.layers - 1) / flats.layers}};
  return e;
}

}  // namespace

Estimate MakeEstimate(const TrainConfig& config, const ModelConfig& model, int ranks, bool gpus,
                      int64_t runtime_bytes) {
  const EngineOptions options = MakeEngineOptions(config, model);
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
  worst.flops = ModelFlopsPerToken(model, static_cast<double>(s.Length()),
                                   config.lora.on() ? worst.trained_parameters : 0)
                    .causal *
                static_cast<double>(config.global_batch_size * s.Length());
  return worst;
}

namespace {

// Seconds a step, or 0 where the device isn't known.
double PredictedStep(const Estimate& e, const TrainConfig& config, int ranks,
                     const std::string& device) {
  const double peak = device.empty() ? 0 : PeakFlops(device, config.dtype == "bf16");
  return peak > 0 ? e.flops / (peak * kUsualShareOfPeak * ranks * (1 - e.bubble)) : 0;
}

// "8.0 KiB", "812.3 MiB", "79.25 GiB", right-aligned to `width`.
std::string SizeText(int64_t bytes, int width = 0) {
  char text[40];
  const double mib = static_cast<double>(bytes) / (1 << 20);
  if (mib < 1)
    std::snprintf(text, sizeof text, "%*.1f KiB", width, mib * 1024);
  else if (mib < 1024)
    std::snprintf(text, sizeof text, "%*.1f MiB", width, mib);
  else
    std::snprintf(text, sizeof text, "%*.2f GiB", width, mib / 1024);
  return text;
}

}  // namespace

int64_t ParseBytes(const std::string& text) {
  const size_t digits = text.find_first_not_of("0123456789.");
  double number = 0;
  if (!absl::SimpleAtod(text.substr(0, digits), &number) || !(number > 0)) return 0;
  std::string unit = digits == std::string::npos
                         ? ""
                         : absl::AsciiStrToUpper(absl::StripAsciiWhitespace(text.substr(digits)));
  int power = 0;
  if (!unit.empty() && unit != "B") {
    constexpr std::string_view kLetters = "KMGT";
    const size_t letter = kLetters.find(unit[0]);
    if (letter == std::string_view::npos) return 0;
    power = static_cast<int>(letter) + 1;
    unit.erase(0, 1);
    if (unit != "" && unit != "IB" && unit != "B") return 0;
  } else {
    unit.clear();
  }
  for (; power > 0; --power) number *= unit == "B" ? 1000 : 1024;
  return number < 1 || number > 1e18 ? 0 : static_cast<int64_t>(number);
}

int64_t MemoryInName(const std::string& device) {
  const size_t dash = device.rfind('-');
  std::string size =
      dash == std::string::npos ? "" : absl::AsciiStrToUpper(device.substr(dash + 1));
  if (size.ends_with('B')) size.pop_back();  // "A100-SXM4-80GB" has 80 GiB
  return size.ends_with('G') ? ParseBytes(size) : 0;
}

std::optional<Remedy> FindRemedy(const TrainConfig& config, const ModelConfig& model, int ranks,
                                 int64_t device_bytes) {
  struct Change {
    const char* text;
    bool (*make)(TrainConfig&, int);  // false: it is so already, or can't be
  };
  // Each beside those before it, the cheapest first.
  static constexpr Change kChanges[] = {
      {"recompute: pointwise",
       [](TrainConfig& c, int) {
         return c.recompute == "none" && (c.recompute = "pointwise", true);
       }},
      {"recompute: keep_attention",
       [](TrainConfig& c, int) {
         return c.recompute == "pointwise" && (c.recompute = "keep_attention", true);
       }},
      {"recompute: full",
       [](TrainConfig& c, int) { return c.recompute != "full" && (c.recompute = "full", true); }},
      {"zero_stage: 3",
       [](TrainConfig& c, int ranks) {
         return c.zero_stage < 3 && ranks > 1 && (c.zero_stage = 3, true);
       }},
      {"micro_batch_size: 1",
       [](TrainConfig& c, int) {
         return c.micro_batch_size != 1 && (c.micro_batch_size = 1, true);
       }},
      {"offload: optimizer",
       [](TrainConfig& c, int) {
         return c.offload == "none" && c.masters == "fp32" && (c.offload = "optimizer", true);
       }},
      {"offload: parameters",
       [](TrainConfig& c, int) {
         return c.zero_stage == 3 && c.offload == "optimizer" && (c.offload = "parameters", true);
       }},
  };
  const auto needed = [&](const TrainConfig& c) {
    return MakeEstimate(c, model, ranks, /*gpus=*/true, 0).DeviceBytes();
  };
  if (needed(config) <= device_bytes) return std::nullopt;
  TrainConfig changed = config;
  std::vector<std::string> fields;
  for (const Change& change : kChanges) {
    TrainConfig next = changed;
    if (!change.make(next, ranks)) continue;
    Problems problems;
    CheckPipeline(next, problems);
    CheckLayout(next, model, ranks, /*gpus=*/true, /*gpu_kernels=*/true, problems);
    if (!problems.empty()) continue;
    changed = std::move(next);
    const std::string key(change.text, std::string_view(change.text).find(':'));
    fields.erase(
        std::remove_if(fields.begin(), fields.end(),
                       [&](const std::string& field) { return field.starts_with(key + ":"); }),
        fields.end());
    fields.push_back(change.text);
    if (const int64_t bytes = needed(changed); bytes <= device_bytes)
      return Remedy{absl::StrJoin(fields, ", "), bytes};
  }
  return std::nullopt;
}

ordered_json ToJson(const Estimate& e, const TrainConfig& config, int ranks,
                    const std::string& device) {
  ordered_json out = {{"ranks", ranks},
                      {"parameters", e.parameters},
                      {"trained_parameters", e.trained_parameters},
                      {"micro_batch_size", e.micro_batch},
                      {"micro_batches", e.micro_batches},
                      {"memory_bytes", e.DeviceBytes()},
                      {"memory", ordered_json::array()},
                      {"gather_bytes_per_step", e.gather_bytes},
                      {"reduce_bytes_per_step", e.reduce_bytes},
                      {"slice_bytes_per_step", e.slice_bytes},
                      {"expert_bytes_per_step", e.expert_bytes},
                      {"flops_per_step", e.flops}};
  for (const MemoryClass& one : e.memory)
    out["memory"].push_back(
        {{"class", one.name}, {"bytes", one.bytes}, {"on", one.on_host ? "host" : "rank"}});
  if (e.stages.size() > 1) {
    out["stage"] = e.stage;
    out["pipeline_bytes_per_step"] = e.pipeline_bytes;
    out["bubble_share"] = e.bubble;
    for (const StageEstimate& one : e.stages)
      out["stages"].push_back({{"layers", one.layers},
                               {"memory_bytes", one.bytes},
                               {"micro_batches_in_flight", one.in_flight}});
  }
  if (const double step_s = PredictedStep(e, config, ranks, device); step_s > 0)
    out["step_time_s"] = step_s;
  return out;
}

std::string ToText(const Estimate& e, const TrainConfig& config, int ranks,
                   const std::string& device) {
  std::string text = absl::StrCat(
      e.parameters, " parameters",
      e.trained_parameters != e.parameters ? absl::StrCat(", ", e.trained_parameters, " trained")
                                           : "",
      ", ", ranks, ranks == 1 ? " rank, " : " ranks, ", e.micro_batches, " x ", e.micro_batch,
      " sequences of ", config.max_length, " tokens a rank and step\n");
  char line[160];
  const auto row = [&](const std::string& name, int64_t bytes, const char* note) {
    std::snprintf(line, sizeof line, "  %-44s %s%s\n", name.c_str(), SizeText(bytes, 10).c_str(),
                  note);
    text += line;
  };
  text += e.stages.size() > 1 ? absl::StrCat("memory of a rank of stage ", e.stage + 1, " of ",
                                             e.stages.size(), ", which needs the most:\n")
                              : "memory of a rank:\n";
  for (const MemoryClass& one : e.memory)
    row(one.name, one.bytes, one.on_host ? "  on the host" : "");
  row("together", e.DeviceBytes(), "");
  for (size_t i = 0; e.stages.size() > 1 && i < e.stages.size(); ++i)
    row(absl::StrCat("a rank of stage ", i + 1, ": ", e.stages[i].layers, " layers, ",
                     e.stages[i].in_flight, " in flight"),
        e.stages[i].bytes, "");
  text += "sent by a rank a step:\n";
  row("weights gathered", e.gather_bytes, "");
  row("gradients summed", e.reduce_bytes, "");
  if (e.slice_bytes > 0) row("tokens inside layers (tp)", e.slice_bytes, "");
  if (e.expert_bytes > 0) row("tokens to experts and back (ep)", e.expert_bytes, "");
  if (e.pipeline_bytes > 0) row("between stages (pp)", e.pipeline_bytes, "");
  if (e.bubble > 0) {
    std::snprintf(line, sizeof line, "stages wait for each other: about %.1f %% of a step\n",
                  100 * e.bubble);
    text += line;
  }
  std::snprintf(line, sizeof line, "products a step: %.4g TFLOP\n", e.flops / 1e12);
  text += line;
  if (const double step_s = PredictedStep(e, config, ranks, device); step_s > 0) {
    std::snprintf(line, sizeof line,
                  "step time: about %.3g s (%s at %.0f %% of its peak, communication hidden)\n",
                  step_s, device.c_str(), 100 * kUsualShareOfPeak);
    text += line;
  } else if (!device.empty()) {
    text += absl::StrCat("step time: unknown, as the peak of ", device, " is; known are ",
                         KnownDevices(), ", and peak_tflops tells another's\n");
  }
  return text;
}

int RunEstimate(const EstimateOptions& options) {
  Problems problems;
  int ranks = 0;
  if (!absl::SimpleAtoi(options.ranks, &ranks) || ranks < 1 || ranks > 1 << 20) {
    problems.push_back(
        {"--ranks", absl::StrCat("must be a whole number from 1; got ", options.ranks)});
    ranks = 1;
  }
  const absl::StatusOr<std::string> text = ReadFile(options.config_path);
  if (!text.ok()) problems.push_back({"--config", std::string(text.status().message())});
  const absl::StatusOr<json> parsed =
      text.ok() ? ParseJson(*text, options.config_path) : json::object();
  if (!parsed.ok()) problems.push_back({"--config", std::string(parsed.status().message())});
  TrainConfig config;
  ModelConfig model;
  if (text.ok() && parsed.ok()) {
    config = ParseTrainConfig(*parsed, problems);
    if (config.model) {
      model = ParseModelConfig(*config.model, "trainer.model", /*strict=*/true, problems);
    } else if (!config.init.empty()) {
      const absl::StatusOr<std::string> content = ReadFile(config.init + "/config.json");
      const absl::StatusOr<json> its =
          content.ok() ? ParseJson(*content, config.init + "/config.json") : content.status();
      if (!its.ok())
        problems.push_back({"trainer.init", absl::StrCat(std::string(its.status().message()),
                                                         "; give a Hugging Face directory")});
      else
        model = ParseModelConfig(*its, "trainer.init/config.json", /*strict=*/false, problems);
    }
    CheckLayout(config, model, ranks, !options.device.empty(), /*gpu_kernels=*/true, problems);
    if (!config.lora.target_modules.empty() && model.num_layers > 0)
      TargetModules(model, config.lora, "trainer.lora", problems);
  }
  const int64_t device_bytes = options.device_memory.empty() ? MemoryInName(options.device)
                                                             : ParseBytes(options.device_memory);
  if (!options.device_memory.empty() && (device_bytes < 1 << 20 || options.device.empty())) {
    problems.push_back(
        {"--device-memory", absl::StrCat("must be a size such as 80GiB, beside --device GPU; got ",
                                         options.device_memory)});
  }
  if (!problems.empty()) {
    std::fprintf(stderr, "estimate: %zu problem%s\n%s", problems.size(),
                 problems.size() == 1 ? "" : "s", ToText(problems).c_str());
    return 2;
  }
  const Estimate estimate = MakeEstimate(config, model, ranks, !options.device.empty(),
                                         ReadMemoryUse(at::kCPU).now_bytes);
  const std::optional<Remedy> remedy =
      device_bytes > 0 ? FindRemedy(config, model, ranks, device_bytes) : std::nullopt;
  const bool fits = device_bytes == 0 || estimate.DeviceBytes() <= device_bytes;
  if (options.json == "true") {
    ordered_json out = ToJson(estimate, config, ranks, options.device);
    if (remedy) out["fits_with"] = remedy->fields, out["fits_with_bytes"] = remedy->bytes;
    std::printf("%s\n", out.dump().c_str());
    return fits ? 0 : kDoesNotFit;
  }
  std::fputs(ToText(estimate, config, ranks, options.device).c_str(), stdout);
  if (fits) {
    if (device_bytes == 0 && !options.device.empty())
      std::printf("whether it fits isn't known, as the memory of %s isn't: --device-memory SIZE\n",
                  options.device.c_str());
    if (device_bytes > 0)
      std::printf("fits: %s has %s\n", options.device.c_str(), SizeText(device_bytes).c_str());
    return 0;
  }
  std::printf("does not fit: %s has %s", options.device.c_str(), SizeText(device_bytes).c_str());
  if (remedy)
    std::printf("; with %s it needs %s", remedy->fields.c_str(), SizeText(remedy->bytes).c_str());
  else
    std::printf("; take more ranks, or a GPU with more memory");
  std::printf("\n");
  return kDoesNotFit;
}

}  // namespace muster::trainer
