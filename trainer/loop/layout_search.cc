#include "trainer/loop/layout_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trainer/data/batches.h"
#include "trainer/loop/mfu.h"

namespace muster::trainer {
namespace {

using nlohmann::ordered_json;

// Shorter parts of a row cost more in messages than they save.
constexpr int64_t kShortestPart = 1024;
constexpr std::array<const char*, 4> kRecompute = {"none", "pointwise", "keep_attention", "full"};

struct Links {
  const char* name;
  double within, between;  // bytes a second, one way
};
// First match counts. Within: half of NVLink's total ("900 GB/s"), or of PCIe 4.0 x16. Between: a
// network port for each GPU, 400 Gb/s in hosts with H100 and newer, 200 Gb/s with A100.
constexpr Links kLinks[] = {
    {"H100 PCIE", 64e9, 50e9}, {"H100 NVL", 300e9, 50e9}, {"H800", 200e9, 50e9},
    {"GH200", 450e9, 50e9},    {"H100", 450e9, 50e9},     {"H200", 450e9, 50e9},
    {"B200", 900e9, 50e9},     {"A800", 200e9, 25e9},     {"A100", 300e9, 25e9},
    {"L40S", 32e9, 25e9},      {"A40", 32e9, 25e9},       {"A10", 32e9, 12.5e9},
};

const Links* LinksOf(const std::string& device) {
  const auto* found = std::find_if(std::begin(kLinks), std::end(kLinks), [&](const Links& links) {
    return IsOfModel(device, links.name);
  });
  return found == std::end(kLinks) ? nullptr : found;
}

// The share of a forward pass that recompute does again in the backward.
double ForwardAgain(const TrainConfig& config, const ModelConfig& model) {
  if (config.recompute == "full") return 1;
  if (config.recompute != "keep_attention") return 0;
  const double d = static_cast<double>(model.hidden_size),
               heads = static_cast<double>((model.num_heads * 2 + model.num_kv_heads * 2) *
                                           model.head_dim),
               scores = static_cast<double>(model.num_heads * model.head_dim * config.RowLength());
  const double width = model.experts.count > 0
                           ? static_cast<double>(model.experts.width * model.experts.per_token +
                                                 model.experts.shared_width)
                           : static_cast<double>(model.intermediate_size);
  const double mlp = 3 * d * width;
  return mlp / (mlp + d * heads + scores);
}

// A group of so many neighbours, which begins at a multiple of that, has no rank on another host.
bool IsInHost(int64_t group, int ranks, const GpuHosts& hosts) {
  return ranks <= hosts.ranks_per_host ||
         (group <= hosts.ranks_per_host && hosts.ranks_per_host % group == 0);
}

// Of a step, with what recompute does again and what a pipeline waits.
double ProductSeconds(const Estimate& estimate, const TrainConfig& config, const ModelConfig& model,
                      int ranks, const GpuHosts& hosts) {
  const ParallelConfig& p = config.parallel;
  // Frozen weights have no gradients of their own: a forward is half of such a step, or with the
  // reference's one of three passes again.
  const double forward_share = config.lora.on() && !config.dpo.on() ? 1.0 / 2 : 1.0 / 3;
  // Where rows don't come out even, ranks with fewer of them wait.
  const int64_t with_other_rows = ranks / p.pp / p.tp / p.cp;
  const double uneven = static_cast<double>(SharePerRank(config.global_batch_size,
                                                         static_cast<int>(with_other_rows)) *
                                            with_other_rows) /
                        static_cast<double>(config.global_batch_size);
  return estimate.flops * uneven * (1 + forward_share * ForwardAgain(config, model)) /
         (hosts.peak_flops * kUsualShareOfPeak * ranks * (1 - estimate.bubble));
}

std::vector<int64_t> Divisors(int64_t n, int64_t most, int64_t least = 1) {
  std::vector<int64_t> found;
  for (int64_t i = least; i <= std::min(n, most); ++i) {
    if (n % i == 0) found.push_back(i);
  }
  return found;
}

// Beside those of `given`.
ordered_json FieldsOf(const TrainConfig& config, const TrainConfig& given, int64_t micro_batch,
                      int ranks) {
  const ParallelConfig& p = config.parallel;
  ordered_json fields, parallel;
  for (const auto& [name, value] : {std::pair("tp", p.tp), std::pair("cp", p.cp),
                                    std::pair("pp", p.pp), std::pair("ep", p.ep)}) {
    if (value > 1) parallel[name] = value;
  }
  if (p.pp > 1) parallel["pipeline"] = PipelineName(p.pipeline);
  if (p.Chunks() > 1) parallel["chunks"] = p.chunks;
  if (!parallel.empty() || given.parallel != ParallelConfig())
    fields["parallel"] = parallel.empty() ? ordered_json::object() : std::move(parallel);
  if (ranks > 1 || config.zero_stage != 1 || given.zero_stage != 1)
    fields["zero_stage"] = config.zero_stage;
  if (config.shard_size > 0 || given.shard_size > 0) fields["shard_size"] = config.shard_size;
  fields["recompute"] = config.recompute;
  fields["micro_batch_size"] = micro_batch;
  return fields;
}

std::string TextOf(const ordered_json& fields) {
  std::vector<std::string> texts;
  for (const auto& [name, value] : fields.items()) {
    const std::string text = value.is_object()   ? absl::StrCat("{", TextOf(value), "}")
                             : value.is_string() ? value.get<std::string>()
                                                 : value.dump();
    texts.push_back(absl::StrCat(name, ": ", text));
  }
  return absl::StrJoin(texts, ", ");
}

// Of router_aux_loss: batch another micro-batch size would train another model; of deterministic:
// elastic to other bits.
FixedKeys WithWhatTrains(FixedKeys fixed, const TrainConfig& config) {
  const bool counts =
      config.router_aux_loss == "batch" || config.deterministic == Determinism::kElastic;
  fixed.micro_batch_size |= counts && config.micro_batch_size > 0;
  return fixed;
}

// Whether they differ by zero_stage, and in nothing that it does.
bool AreAlike(const Layout& a, const Layout& b) {
  const auto near = [](double one, double other) {
    return std::abs(one - other) <= 1e-3 * std::max(one, other);
  };
  if (!near(a.step_s, b.step_s) || !near(static_cast<double>(a.estimate.DeviceBytes()),
                                         static_cast<double>(b.estimate.DeviceBytes())))
    return false;
  ordered_json fields = a.fields, others = b.fields;
  fields.erase("zero_stage"), others.erase("zero_stage");
  return fields == others;
}

class Search {
 public:
  Search(const TrainConfig& config, const ModelConfig& model, int ranks, const GpuHosts& hosts,
         size_t most, const FixedKeys& fixed, const SearchEnd& end)
      : config_(config),
        model_(model),
        ranks_(ranks),
        hosts_(hosts),
        most_(most),
        fixed_(WithWhatTrains(fixed, config)),
        end_(end) {}

  FoundLayouts Run() {
    TrySlices(1, hosts_.ranks_per_host);
    // Slower links are better than none that fits. Heads bound it.
    if (found_.best.empty()) TrySlices(hosts_.ranks_per_host + 1, model_.num_kv_heads);
    std::sort(found_.best.begin(), found_.best.end(), Before);
    return std::move(found_);
  }

 private:
  static bool Before(const Layout& a, const Layout& b) {
    return std::tuple(a.step_s, a.estimate.DeviceBytes(), a.fields.dump()) <
           std::tuple(b.step_s, b.estimate.DeviceBytes(), b.fields.dump());
  }

  // What keeps to a host first, and few stages: what comes later has a bar to beat.
  void TrySlices(int64_t least_tp, int64_t most_tp) {
    const int64_t longest_cp = std::max<int64_t>(1, config_.RowLength() / kShortestPart);
    for (const int64_t tp : Divisors(ranks_, most_tp, least_tp)) {
      for (const int64_t pp : Divisors(ranks_ / tp, model_.num_layers)) {
        for (const int64_t cp : Divisors(ranks_ / tp / pp, longest_cp)) {
          for (const int64_t ep :
               Divisors(std::max<int64_t>(1, model_.experts.count), ranks_ / pp)) {
            if (Ends()) return;
            TrainConfig next = config_;
            next.parallel.automatic = false;
            next.parallel.tp = tp, next.parallel.pp = pp;
            next.parallel.cp = cp, next.parallel.ep = ep;
            TryPipelines(next);
          }
        }
      }
    }
  }

  bool Ends() {
    if (end_.at_first && !found_.best.empty()) return true;
    found_.out_of_time |= end_.at && std::chrono::steady_clock::now() >= *end_.at;
    return found_.out_of_time;
  }

  void TryPipelines(TrainConfig config) {
    if (config.parallel.pp == 1) return TryShards(config);
    for (const PipelineKind kind :
         {PipelineKind::k1F1B, PipelineKind::kZeroBubble, PipelineKind::kInterleaved}) {
      config.parallel.pipeline = kind;
      config.parallel.chunks = 2;
      TryShards(config);
    }
  }

  void TryShards(TrainConfig config) {
    const int64_t in_stage = ranks_ / config.parallel.pp;
    std::vector<int64_t> sizes = {0};
    if (in_stage > hosts_.ranks_per_host && in_stage % hosts_.ranks_per_host == 0)
      sizes.push_back(hosts_.ranks_per_host);
    if (config.shard_size > 0 && config.shard_size != sizes.back())
      sizes.push_back(config.shard_size);
    // Stage 0 shards nothing, and a file with both is refused.
    if (fixed_.shard_size || (fixed_.zero_stage && config.zero_stage == 0))
      sizes = {config.shard_size};
    for (const int64_t size : sizes) {
      config.shard_size = size;
      TryMicroBatches(config);
    }
  }

  void TryMicroBatches(TrainConfig config) {
    const ParallelConfig& p = config.parallel;
    const int64_t share =
        SharePerRank(config.global_batch_size, static_cast<int>(ranks_ / p.pp / p.tp / p.cp));
    if (fixed_.micro_batch_size) {
      TryStages(config);
      return;
    }
    bool fits = true;  // with a smaller one
    for (int64_t rows = 1; rows <= std::min<int64_t>(8, share) && fits; rows *= 2) {
      config.micro_batch_size = rows;
      fits = TryStages(config);
    }
  }

  // False: none fits, or could be among the best.
  bool TryStages(TrainConfig config) {
    bool any = false;
    const int64_t given = config.zero_stage;
    // A rank alone has nothing to share out, but offload: parameters goes with stage 3 only.
    const int64_t most = ranks_ > 1 || config.offload == "parameters" ? 3 : 1;
    // Stage 0 takes more memory than 1: it is for what is refused in the others.
    config.zero_stage = 1;
    for (int64_t stage = GoTogether(config) ? 1 : 0; stage <= most; ++stage) {
      config.zero_stage = fixed_.zero_stage ? given : stage;
      const int with = GoTogether(config) ? FirstThatFits(config) : -1;
      any = any || with >= 0;
      // A higher stage sends more, and would have nothing to save.
      if (with == 0 || fixed_.zero_stage) break;
    }
    return any;
  }

  // The least recompute that fits, an index of kRecompute: more of it takes longer. -1: none does,
  // or could be among the best, or the layout can't be.
  int FirstThatFits(TrainConfig config) {
    for (size_t r = 0; r < kRecompute.size(); ++r) {
      if ((fixed_.recompute && r > 0) || Ends()) break;
      if (!fixed_.recompute) config.recompute = kRecompute[r];
      if (found_.best.size() == most_ && LeastSeconds(config) >= found_.best.front().step_s)
        return -1;
      const bool gpus = hosts_.runtime_bytes == 0;
      Problems problems;
      CheckLayoutKeys(config, problems);
      CheckLayout(config, model_, ranks_, gpus, hosts_.gpu_kernels, problems);
      if (!problems.empty()) continue;
      ++found_.tried;
      Estimate estimate = MakeEstimate(config, model_, ranks_, gpus, hosts_.runtime_bytes);
      flops_ = estimate.flops;
      const int64_t needs = estimate.DeviceBytes();
      if (found_.least_bytes == 0 || needs < found_.least_bytes) found_.least_bytes = needs;
      if (needs > BytesButSpare(hosts_.device_bytes)) continue;
      Keep(config, std::move(estimate));
      return static_cast<int>(r);
    }
    return -1;
  }

  // A step takes no less, whatever is sent.
  double LeastSeconds(const TrainConfig& config) const {
    const ParallelConfig& p = config.parallel;
    const int64_t share =
        SharePerRank(config.global_batch_size, static_cast<int>(ranks_ / p.pp / p.tp / p.cp));
    const int64_t micros = (share + config.micro_batch_size - 1) / config.micro_batch_size;
    Estimate least;
    least.flops = flops_;
    if (p.pp > 1)
      least.bubble = BubbleShare(p.pipeline, static_cast<int>(p.pp), static_cast<int>(p.Chunks()),
                                 static_cast<int>(micros));
    return StepSeconds(least, config, model_, ranks_, hosts_);
  }

  void Keep(const TrainConfig& config, Estimate estimate) {
    Layout layout{config, std::move(estimate), 0, {}};
    layout.step_s = StepSeconds(layout.estimate, config, model_, ranks_, hosts_);
    // As named, though a rank's share may be less.
    const int64_t micro_batch =
        fixed_.micro_batch_size ? config.micro_batch_size : layout.estimate.micro_batch;
    layout.fields = FieldsOf(config, config_, micro_batch, ranks_);
    std::vector<Layout>& best = found_.best;
    const auto alike = std::find_if(best.begin(), best.end(),
                                    [&](const Layout& has) { return AreAlike(has, layout); });
    if (alike != best.end()) {
      if (Before(layout, *alike)) *alike = std::move(layout);
      std::make_heap(best.begin(), best.end(), Before);
      return;
    }
    best.push_back(std::move(layout));
    std::push_heap(best.begin(), best.end(), Before);  // the slowest is in front
    if (best.size() <= most_) return;
    std::pop_heap(best.begin(), best.end(), Before);
    best.pop_back();
  }

  const TrainConfig& config_;
  const ModelConfig& model_;
  const int ranks_;
  const GpuHosts& hosts_;
  const size_t most_;
  const FixedKeys fixed_;
  const SearchEnd end_;
  double flops_ = 0;  // a step, in any layout; known once one was tried
  FoundLayouts found_;
};

}  // namespace

std::string Layout::FieldsText() const { return TextOf(fields); }

double LinkWithinHost(const std::string& device) {
  const Links* links = LinksOf(device);
  return links == nullptr ? 0 : links->within;
}

double LinkBetweenHosts(const std::string& device) {
  const Links* links = LinksOf(device);
  return links == nullptr ? 0 : links->between;
}

int64_t BytesButSpare(int64_t device_bytes) {
  constexpr int64_t kSpareShare = 20;
  return device_bytes - device_bytes / kSpareShare;
}

StepTime TimeOfStep(const Estimate& estimate, const TrainConfig& config, const ModelConfig& model,
                    int ranks, const GpuHosts& hosts) {
  const ParallelConfig& p = config.parallel;
  const int64_t in_stage = ranks / p.pp;
  struct Sent {
    int64_t bytes, group;
    bool beside;  // products: what ranks with other rows send each other
  };
  const Sent all[] = {
      {estimate.gather_bytes, config.shard_size > 0 ? config.shard_size : in_stage, true},
      // Copies of what is sharded are summed over all hosts, a part of each rank's alone.
      {estimate.reduce_bytes, in_stage, true},
      {estimate.slice_bytes, p.tp, false},
      {estimate.context_bytes, p.tp * p.cp, false},
      {estimate.expert_bytes, p.ep, false},
      {estimate.pipeline_bytes, ranks, false}};
  const auto seconds = [&](const Sent& sent) {
    return static_cast<double>(sent.bytes) / (IsInHost(sent.group, ranks, hosts)
                                                  ? hosts.within_bytes_per_s
                                                  : hosts.between_bytes_per_s);
  };
  StepTime time;
  time.products_s = ProductSeconds(estimate, config, model, ranks, hosts);
  double beside_s = 0;
  for (const Sent& sent : all) beside_s += sent.beside ? seconds(sent) : 0;
  // Where that takes longer than the products, the same share of each is exposed.
  const double exposed_share = beside_s > time.products_s ? 1 - time.products_s / beside_s : 0;
  time.step_s = std::max(time.products_s, beside_s);
  for (const Sent& sent : all) {
    LinkUse& link = IsInHost(sent.group, ranks, hosts) ? time.within : time.between;
    link.bytes += sent.bytes;
    link.seconds += seconds(sent);
    link.exposed_s += seconds(sent) * (sent.beside ? exposed_share : 1);
    time.step_s += sent.beside ? 0 : seconds(sent);
  }
  return time;
}

double StepSeconds(const Estimate& estimate, const TrainConfig& config, const ModelConfig& model,
                   int ranks, const GpuHosts& hosts) {
  return TimeOfStep(estimate, config, model, ranks, hosts).step_s;
}

FoundLayouts SearchLayouts(const TrainConfig& config, const ModelConfig& model, int ranks,
                           const GpuHosts& hosts, size_t most, const FixedKeys& fixed,
                           const SearchEnd& end) {
  return Search(config, model, ranks, hosts, most, fixed, end).Run();
}

}  // namespace muster::trainer
