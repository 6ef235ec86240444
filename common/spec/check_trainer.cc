#include "common/spec/check_trainer.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/objects/object_place.h"
#include "common/spec/check_trainer_keys.h"
#include "common/spec/trainer_json.h"
#include "common/spec/workers.h"

namespace muster {
namespace {

using trainer_json::Inner;
using trainer_json::Number;

// "2 or 4": the nearest numbers to `tp` that divide both.
std::string Nearest(int64_t tp, int64_t one, int64_t other) {
  int64_t below = 1, above = 0;
  for (int64_t n = 1; n <= std::min(one, other); ++n) {
    if (one % n != 0 || other % n != 0) continue;
    if (n < tp) below = n;
    if (n > tp && above == 0) above = n;
  }
  return above > 0 ? absl::StrCat(below, " or ", above) : absl::StrCat(below);
}

// owner/model: one slash, not at an end, and no leading dot.
bool IsHubName(std::string_view text) {
  const size_t slash = text.find('/');
  return slash != std::string_view::npos && slash > 0 && slash + 1 < text.size() &&
         text.find('/', slash + 1) == std::string_view::npos && text[0] != '.';
}

// Nothing is put in for braces here, as it is in export: they would be part of the place's name.
std::string WhyNoCheckpoints(const std::string& given) {
  if (given.empty()) return "";
  if (absl::StrContains(given, "{{"))
    return "{{…}} is replaced in export alone; leave it out: each member has a place of its own "
           "below PREFIX";
  std::string problem = WhyNoObjectPlace(given, ObjectPlace::kBucketOrPrefix);
  if (!problem.empty()) problem += ". A directory is the job's checkpoint.storage";
  return problem;
}

}  // namespace

void CheckTrainerPaths(const nlohmann::json& trainer, const std::string& path,
                       const EmitProblem& emit) {
  for (const char* field : {"init", "data", "export", "checkpoints"}) {
    const auto found = trainer.find(field);
    if (found == trainer.end() || !found->is_string()) continue;
    const std::string& given = found->get_ref<const std::string&>();
    std::string problem;
    if (std::string_view(field) == "checkpoints") {
      problem = WhyNoCheckpoints(given);
    } else if (std::string_view(field) == "export" && absl::StrContains(given, "://")) {
      problem = WhyNoObjectPlace(given, ObjectPlace::kPrefix);
      if (!problem.empty())
        problem += ". Or give a directory, absolute or under the job's directory";
    } else if (absl::StrContains(given, "://")) {
      problem =
          "not yet: URLs. Give a directory that the hosts see, absolute or under the job's "
          "directory";
    } else if (std::string_view(field) == "init" && IsHubName(given)) {
      problem = absl::StrCat("not yet: names on the hub. Give a Hugging Face directory: /models/",
                             given, ", or ./", given, " under the job's directory");
    }
    if (!problem.empty()) emit(JoinPath(path, field), problem, Document::Where::kValue);
  }
}

namespace {

// The ranks that a task has: of a gang of several sizes, what these are multiples of.
struct Ranks {
  int64_t count = 1, processes = 1, least = 1, most = 1;
  int64_t step = 1;  // workers by which it grows
  bool has_gpus = false;
  bool AnySize() const { return least != most; }
  explicit Ranks(const pb::TaskSpec& task) {
    processes = ProcessesOf(task);
    least = std::max<int64_t>(1, task.workers().min());
    most = std::max<int64_t>(least, task.workers().max());
    step = StepOf(task.workers());
    has_gpus = task.resources().gpus_milli() > 0;
    count = (AnySize() ? step : least) * processes;
  }
};

std::string Counted(int64_t count, const char* what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

// How a task gets more ranks, so many: " (workers: 8, or one worker with gpus: 8)".
std::string WaysTo(const Ranks& ranks, int64_t count) {
  constexpr int64_t kMostOnHost = 8;  // GPUs, of common hosts
  std::string ways;
  if (count % ranks.processes == 0) ways = absl::StrCat("workers: ", count / ranks.processes);
  if (count <= kMostOnHost)
    absl::StrAppend(&ways, ways.empty() ? "" : ", or ", "one worker with ",
                    ranks.has_gpus ? "gpus: " : "processes_per_worker: ", count);
  return ways.empty() ? "" : absl::StrCat(" (", ways, ")");
}

// What as much as the model can have would take, where it has fewer ranks: "; 4 slices need 4 ranks
// (workers: 4)".
std::string MoreRanks(const Ranks& ranks, int64_t value, const char* what, int64_t count) {
  if (ranks.AnySize() || count <= ranks.count) return "";
  return absl::StrCat("; ", value, " ", what, " need ", count, " ranks", WaysTo(ranks, count));
}

// The largest number up to `most` that divides `whole`; of many thousands a smaller one.
int64_t LargestDivisor(int64_t whole, int64_t most) {
  int64_t n = std::min({whole, most, int64_t{1} << 16});
  while (n > 1 && whole % n != 0) --n;
  return n;
}

// What to do with the workers of a gang of several sizes, which must be multiples of so many.
std::string OtherWorkers(const Ranks& ranks, int64_t multiple) {
  const int64_t count = multiple * ranks.processes;
  if (multiple > ranks.most)
    return absl::StrCat(", or give it ", count, " ranks", WaysTo(ranks, count));
  if (ranks.least % multiple == 0 && ranks.most % multiple == 0)
    return absl::StrCat(", or give workers multiple_of: ", multiple);
  return absl::StrCat(", or give workers a min and max that are multiples of ", multiple,
                      ranks.step == 1 ? "" : absl::StrCat(", and multiple_of: ", multiple));
}

// That `value` ("2 stages"), which makes units of `unit` ranks, doesn't divide them, and what
// would: `can_be` instead, or other ranks.
std::string DoesNotDivide(const Ranks& ranks, const std::string& value, const char* does_not,
                          int64_t unit, const std::string& can_be) {
  if (ranks.AnySize()) {
    const int64_t multiple = std::lcm(unit, ranks.processes) / ranks.processes;
    return absl::StrCat(
        value, " must divide the ranks of a gang of ", ranks.least, " to ", ranks.most,
        " workers, whatever its size: use ", can_be, ", which divides the ", ranks.count,
        ranks.count == 1 ? " process" : " processes",
        ranks.step == 1 ? " of a worker" : absl::StrCat(" of ", ranks.step, " workers"),
        OtherWorkers(ranks, multiple));
  }
  const int64_t fewer = ranks.count / unit * unit;
  return absl::StrCat(value, " ", does_not, " divide the ", Counted(ranks.count, "rank"),
                      " (workers x processes_per_worker); use ", can_be, ", or ",
                      fewer > 0 ? absl::StrCat(fewer, " or ") : "", fewer + unit, " ranks",
                      fewer > 0 ? "" : WaysTo(ranks, unit));
}

// tp: whether it is refused.
bool RefuseSlices(const nlohmann::json& trainer, const Ranks& ranks, int64_t tp,
                  const std::string& path, const EmitProblem& emit) {
  const auto refuse = [&](const std::string& text) {
    emit(path + ".parallel.tp", text, Document::Where::kValue);
    return true;
  };
  const nlohmann::json& model = Inner(trainer, "model");
  std::optional<int64_t> given = Number(model, "num_key_value_heads");
  if (!given) given = Number(model, "num_attention_heads");  // where each has its own
  const int64_t heads = given.value_or(tp * ranks.count);
  if (heads % tp != 0) {
    const int64_t most = LargestDivisor(heads, tp);
    return refuse(absl::StrCat(tp, " doesn't divide the model's ", heads,
                               " num_key_value_heads; with ", Counted(ranks.count, "rank"), " use ",
                               Nearest(tp, heads, ranks.count),
                               MoreRanks(ranks, most, "slices", most)));
  }
  if (ranks.count % tp == 0) return false;
  return refuse(
      DoesNotDivide(ranks, absl::StrCat(tp), "doesn't", tp, Nearest(tp, heads, ranks.count)));
}

// cp, of a tp that can be: whether it is refused.
bool RefuseParts(const Ranks& ranks, int64_t tp, int64_t cp, const std::string& path,
                 const EmitProblem& emit) {
  const int64_t groups = ranks.count / tp;
  if (groups % cp == 0) return false;
  const std::string parts =
      absl::StrCat(cp, " parts", tp > 1 ? absl::StrCat(" of ", tp, " ranks (tp)") : "");
  emit(path + ".parallel.cp",
       DoesNotDivide(ranks, parts, "don't", cp * tp, Nearest(cp, groups, groups)),
       Document::Where::kValue);
  return true;
}

// Ranks that share out a layer: tp · cp.
struct LayerRanks {
  int64_t count = 1;
  const char* keys = "tp";
};

// What adds a micro-batch's gradients when its backward ends.
void RefuseZeroBubble(const nlohmann::json& trainer, const std::string& path,
                      const EmitProblem& emit) {
  const auto refuse = [&](bool is_so, const char* other, const char* remedy) {
    if (is_so)
      emit(path + ".parallel.pipeline",
           absl::StrCat("zero_bubble does not go together with ", other, "; ", remedy),
           Document::Where::kValue);
  };
  const nlohmann::json& deterministic = Inner(trainer, "deterministic");
  refuse(Inner(trainer, "recompute") == "full", "recompute: full", "use keep_attention, or 1f1b");
  refuse(Number(trainer, "zero_stage").value_or(1) > 1, "zero_stage: 2 or 3", "use 1, or 1f1b");
  refuse(deterministic == "elastic", "deterministic: elastic", "use 1f1b");
  refuse(deterministic == true, "deterministic: true",
         "leave that out, as pipelines give the same bits without, or use 1f1b");
  refuse(Inner(trainer, "gradient_dtype") == "bf16", "gradient_dtype: bf16", "use fp32, or 1f1b");
}

// Of a tp and a cp that can be. Whether pp is refused.
bool RefuseStages(const nlohmann::json& trainer, const Ranks& ranks, const LayerRanks& layer,
                  int64_t pp, const std::string& path, const EmitProblem& emit) {
  const nlohmann::json& parallel = Inner(trainer, "parallel");
  const nlohmann::json& kind = Inner(parallel, "pipeline");
  const auto refuse = [&](const std::string& key, const std::string& text) {
    emit(path + "." + key, text, Document::Where::kValue);
  };
  if (kind == "zero_bubble") RefuseZeroBubble(trainer, path, emit);
  const int64_t chunks = kind == "interleaved" ? Number(parallel, "chunks").value_or(2) : 1;
  const int64_t groups = ranks.count / layer.count;
  const std::optional<int64_t> layers = Number(Inner(trainer, "model"), "num_hidden_layers");
  const int64_t most = layers ? *layers / chunks : std::max(pp, groups);
  int64_t below = 1, above = 0;
  for (int64_t n = 1; n <= std::min(most, groups); ++n) {
    if (groups % n != 0) continue;
    if (n < pp) below = n;
    if (n > pp && above == 0) above = n;
  }
  const std::string nearest = above > 0 ? absl::StrCat(below, " or ", above) : absl::StrCat(below);
  if (pp > most) {
    std::string fewer_chunks;
    if (chunks > 1 && pp <= *layers && groups % pp == 0)
      fewer_chunks =
          *layers / pp > 1 ? absl::StrCat(", or chunks: ", *layers / pp) : ", or pipeline: 1f1b";
    refuse("parallel.pp",
           absl::StrCat(pp, " stages", chunks > 1 ? absl::StrCat(" of ", chunks, " chunks") : "",
                        " need ", pp * chunks, " layers, and the model has ", *layers, "; with ",
                        Counted(ranks.count, "rank"), " use ", nearest, fewer_chunks,
                        MoreRanks(ranks, most, "stages", most * layer.count)));
    return true;
  }
  if (groups % pp == 0) return false;
  const std::string stages = absl::StrCat(
      pp, " stages",
      layer.count > 1 ? absl::StrCat(" of ", layer.count, " ranks (", layer.keys, ")") : "");
  refuse("parallel.pp", DoesNotDivide(ranks, stages, "don't", pp * layer.count, nearest));
  return true;
}

// shard_size, of a layout that can be otherwise.
void RefuseShards(const Ranks& ranks, const LayerRanks& layer, int64_t pp, int64_t shard,
                  const std::string& path, const EmitProblem& emit) {
  const int64_t in_stage = std::max<int64_t>(1, ranks.count / pp);
  if (in_stage % shard == 0) return;
  int64_t below = layer.count, above = 0;
  for (int64_t n = layer.count; n <= in_stage; n += layer.count) {
    if (in_stage % n != 0) continue;
    if (n < shard) below = n;
    if (n > shard && above == 0) above = n;
  }
  const std::string among = absl::StrCat(Counted(shard, "rank"), " that share one copy",
                                         pp > 1 ? absl::StrCat(" of each of ", pp, " stages") : "");
  emit(path + ".shard_size",
       DoesNotDivide(ranks, among, "don't", shard * pp,
                     above > 0 ? absl::StrCat(below, " or ", above) : absl::StrCat(below)),
       Document::Where::kValue);
}

// ep, of a layout that can be otherwise.
void RefuseExperts(const nlohmann::json& trainer, const Ranks& ranks, const LayerRanks& layer,
                   int64_t pp, int64_t ep, const std::string& path, const EmitProblem& emit) {
  const nlohmann::json& model = Inner(trainer, "model");
  const std::optional<int64_t> shard = Number(trainer, "shard_size");
  const int64_t group = shard ? *shard : std::max<int64_t>(1, ranks.count / pp);
  const std::string key = KeyOfExperts(model);
  const int64_t experts = Number(model, key.c_str()).value_or(ep * group);
  const std::string nearest = Nearest(ep, experts, group);
  const auto refuse = [&](const std::string& text) {
    emit(path + ".parallel.ep", text, Document::Where::kValue);
  };
  if (model.is_object() && key.empty()) {
    refuse("is for models with experts, and this one has none; leave it out");
  } else if (experts % ep != 0) {
    const int64_t most = LargestDivisor(experts, ep);
    refuse(absl::StrCat(ep, " doesn't divide the model's ", experts, " experts; with ",
                        Counted(ranks.count, "rank"), " use ", nearest,
                        MoreRanks(ranks, most, "parts of them", std::lcm(most, layer.count) * pp)));
  } else if (shard && *shard % ep != 0) {
    refuse(absl::StrCat(ep, " doesn't divide shard_size, ", *shard, "; use ", nearest));
  } else if (group % ep != 0) {
    const std::string among =
        pp > 1 ? absl::StrCat(ep, " ranks of each of ", pp, " stages") : absl::StrCat(ep);
    refuse(DoesNotDivide(ranks, among, pp > 1 ? "don't" : "doesn't", std::lcm(ep, layer.count) * pp,
                         nearest));
  }
}

// Numbers in few bits, of weights and of moments.
void RefuseLowBits(const nlohmann::json& trainer, int64_t tp, const std::string& path,
                   const EmitProblem& emit) {
  const nlohmann::json& offload = Inner(trainer, "offload");
  const auto refuse = [&](const char* key, const char* text) {
    emit(absl::StrCat(path, ".", key), text, Document::Where::kValue);
  };
  if (Inner(trainer, "quantize").is_object()) {
    if (!Inner(trainer, "lora").is_object())
      refuse("quantize",
             "is for frozen weights; add lora: {rank: 16}, which trains adapters beside them");
    if (tp > 1)
      refuse("quantize",
             "does not go together with parallel.tp; share weights out by zero_stage: 3 or "
             "parallel.pp");
    if (Inner(trainer, "matmul") == "fp8")
      refuse("matmul", "fp8 does not go together with quantize; leave one of them out");
    if (offload == "parameters")
      refuse("offload",
             "parameters does not go together with quantize; use optimizer, or leave it out");
  }
  if (Inner(trainer, "moments") == "int8" && (offload == "parameters" || offload == "optimizer"))
    refuse("moments", "int8 does not go together with offload; use bf16, or leave one of them out");
}

// Rows that are pairs, of dpo or of reward.
void RefusePairs(const nlohmann::json& trainer, const std::string& path, const EmitProblem& emit) {
  const bool dpo = Inner(trainer, "dpo").is_object(), reward = Inner(trainer, "reward").is_object();
  if (!dpo && !reward) return;
  const std::string kind = dpo ? "dpo" : "reward";
  const auto refuse = [&](const char* key, bool is_so, const std::string& text) {
    if (is_so) emit(absl::StrCat(path, ".", key), text, Document::Where::kName);
  };
  refuse("reward", dpo && reward,
         "dpo and reward exclude each other, as a model has one head; keep one");
  for (const char* key : {"packing", "document_mask", "max_row_length"})
    refuse(key, trainer.contains(key),
           absl::StrCat("with ", kind, " a row is a pair; leave it out"));
  refuse("mixture", trainer.contains("mixture"),
         absl::StrCat("is not supported yet with ", kind,
                      "; prepare the inputs into one directory and give data"));
  const nlohmann::json& z_loss = Inner(trainer, "z_loss");
  refuse("cuda_graphs", Inner(trainer, "cuda_graphs") == true,
         absl::StrCat("is not supported yet with ", kind, "; leave it out"));
  refuse("z_loss", z_loss.is_number() && z_loss.get<double>() > 0,
         absl::StrCat("is not supported yet with ", kind, "; leave it out"));
  refuse("model", trainer.contains("model"),
         absl::StrCat(kind, " goes on from a model that can read; give init instead"));
  refuse("lora", reward && trainer.contains("lora"),
         "is not supported yet with reward; leave it out");
}

// Sums that are the same for any number of ranks.
void RefuseElastic(const nlohmann::json& trainer, const std::string& path,
                   const EmitProblem& emit) {
  if (Inner(trainer, "deterministic") != "elastic") return;
  const auto refuse = [&](const std::string& text) {
    emit(path + ".deterministic", text, Document::Where::kValue);
  };
  if (Inner(trainer, "parallel") == "auto")
    refuse(
        "elastic keeps one layout for all numbers of ranks, and parallel: auto chooses another "
        "for each; name tp, pp, ep and cp, or use true");
  if (Inner(trainer, "moments") == "int8" && Inner(trainer, "zero_stage") != 0)
    refuse("elastic does not go together with moments: int8; use bf16, or zero_stage: 0");
  if (!trainer.contains("micro_batch_size"))
    refuse(
        "elastic sums micro-batches of one size, whatever the number of ranks; add "
        "micro_batch_size");
}

}  // namespace

void CheckTrainerLayout(const nlohmann::json& trainer, const pb::TaskSpec& task,
                        const std::string& path, const EmitProblem& emit) {
  constexpr int64_t kMostRanks = int64_t{1} << 24;
  const nlohmann::json& parallel = Inner(trainer, "parallel");
  const int64_t tp = Number(parallel, "tp").value_or(1), pp = Number(parallel, "pp").value_or(1),
                ep = Number(parallel, "ep").value_or(1), cp = Number(parallel, "cp").value_or(1);
  CheckTrainerKeys(trainer, path, emit);
  RefuseLowBits(trainer, tp, path, emit);
  RefusePairs(trainer, path, emit);
  RefuseElastic(trainer, path, emit);
  const std::optional<int64_t> shard = Number(trainer, "shard_size");
  const bool is_plain = tp == 1 && pp == 1 && ep == 1 && cp == 1;
  if (is_plain && (!shard || parallel == "auto")) return;
  if (!is_plain && Inner(trainer, "cuda_graphs") == true) {
    emit(path + ".cuda_graphs",
         absl::StrCat("does not go together with parallel.",
                      tp > 1   ? "tp"
                      : cp > 1 ? "cp"
                      : pp > 1 ? "pp"
                               : "ep",
                      "; leave one of them out"),
         Document::Where::kValue);
  }
  const nlohmann::json& dropout = Inner(Inner(trainer, "lora"), "dropout");
  if (cp > 1 && dropout.is_number() && dropout.get<double>() > 0) {
    emit(path + ".lora.dropout", "does not go together with parallel.cp; leave one of them out",
         Document::Where::kValue);
  }
  const Ranks ranks(task);
  if (std::max({ranks.count, tp, pp, ep, cp, shard.value_or(1)}) > kMostRanks)
    return;  // said elsewhere
  const LayerRanks layer{tp * cp, cp == 1 ? "tp" : tp == 1 ? "cp" : "tp times cp"};
  const bool shares_layers = shard && *shard % layer.count == 0;
  if (shard && !shares_layers) {
    emit(path + ".shard_size",
         absl::StrCat(*shard, " is no multiple of parallel.",
                      tp > 1 && cp > 1 ? "tp times parallel.cp" : layer.keys, ", ", layer.count,
                      "; use ", (*shard / layer.count + 1) * layer.count, ", or leave it out"),
         Document::Where::kValue);
  }
  if (tp > 1 && RefuseSlices(trainer, ranks, tp, path, emit)) return;
  if (cp > 1 && RefuseParts(ranks, tp, cp, path, emit)) return;
  if (pp > 1 && RefuseStages(trainer, ranks, layer, pp, path, emit)) return;
  if (shard && shares_layers) RefuseShards(ranks, layer, pp, *shard, path, emit);
  if (ep > 1) RefuseExperts(trainer, ranks, layer, pp, ep, path, emit);
}

}  // namespace muster
