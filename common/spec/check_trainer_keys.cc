#include "common/spec/check_trainer_keys.h"

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/spec/trainer_json.h"

namespace muster {
namespace {

using trainer_json::Inner;
using trainer_json::Number;

// A key that is refused where `is_so`, and why.
struct RefusedKey {
  const char* key;
  bool is_so;
  const char* why;
};

void EmitRefused(std::initializer_list<RefusedKey> keys, const std::string& path,
                 const EmitProblem& emit) {
  for (const RefusedKey& one : keys) {
    if (one.is_so) emit(absl::StrCat(path, ".", one.key), one.why, Document::Where::kValue);
  }
}

// What is kept of weights and their state, and where.
void RefuseKeptState(const nlohmann::json& trainer, const std::string& path,
                     const EmitProblem& emit) {
  const bool chooses = Inner(trainer, "parallel") == "auto",
             bf16 = Inner(trainer, "dtype") == "bf16",
             splits = Inner(trainer, "masters") == "split",
             rounds = Inner(trainer, "gradient_dtype") == "bf16",
             parameters = Inner(trainer, "offload") == "parameters",
             offloads = parameters || Inner(trainer, "offload") == "optimizer";
  const nlohmann::json& stage = Inner(trainer, "zero_stage");
  const bool other_stage = stage.is_null() ? !chooses : stage != 3;
  EmitRefused(
      {{"shard_size", trainer.contains("shard_size") && stage == 0,
        "is for zero_stage: 1 to 3, as 0 shards nothing; leave it out"},
       {"memory_per_rank", trainer.contains("memory_per_rank") && !chooses,
        "is for parallel: auto; leave it out"},
       {"masters", splits && !bf16, "split is for dtype: bf16; leave it out"},
       {"masters", splits && offloads,
        "split does not go together with offload; leave one of them out"},
       {"gradient_dtype", rounds && !bf16, "bf16 is for dtype: bf16; leave it out"},
       {"gradient_dtype", rounds && Inner(trainer, "deterministic") == "elastic",
        "bf16 does not go together with deterministic: elastic, which sums in fp32; leave it out"},
       {"offload", parameters && other_stage,
        "parameters is for zero_stage: 3; set that, or use optimizer"},
       {"lora", Inner(trainer, "lora").is_object() && trainer.contains("model"),
        "is for adapters beside trained weights; give init instead of model"}},
      path, emit);
}

// What parts of a model, or of its rows, don't go with.
void RefuseOfModel(const nlohmann::json& trainer, const std::string& path,
                   const EmitProblem& emit) {
  const nlohmann::json& parallel = Inner(trainer, "parallel");
  const bool pairs = Inner(trainer, "dpo").is_object() || Inner(trainer, "reward").is_object(),
             experts = !KeyOfExperts(Inner(trainer, "model")).empty(),
             batch = Inner(trainer, "router_aux_loss") == "batch";
  EmitRefused(
      {{"parallel.cp", pairs && Number(parallel, "cp").value_or(1) > 1,
        "does not go together with dpo or reward; use tp, or leave it out"},
       {"router_aux_loss", batch && Number(parallel, "pp").value_or(1) > 1,
        "batch does not go together with parallel.pp, whose stages have some of the layers; use "
        "sequence"},
       {"router_aux_loss",
        batch && parallel == "auto" && !Number(trainer, "micro_batch_size").has_value(),
        "batch is over all rows of a micro-batch, so with parallel: auto each layout would train "
        "another model; add micro_batch_size, or use sequence"},
       {"cuda_graphs", experts && Inner(trainer, "cuda_graphs") == true,
        "does not go together with a model that has experts; leave it out"},
       {"matmul", experts && Inner(trainer, "matmul") == "fp8",
        "fp8 does not go together with a model that has experts; leave it out"},
       {"packing", Inner(trainer, "packing") == "balanced" && Inner(trainer, "mixture").size() > 1,
        "balanced puts the documents of one directory together; prepare the inputs into one, or "
        "use bfd"}},
      path, emit);
}

// A number that bounds another.
void RefuseAbove(const nlohmann::json& trainer, const char* key, const char* bound,
                 const std::string& path, const EmitProblem& emit) {
  const std::optional<int64_t> number = Number(trainer, key), most = Number(trainer, bound);
  if (number && most && *number > *most)
    emit(absl::StrCat(path, ".", key), absl::StrCat(*number, " is above ", bound, ", ", *most),
         Document::Where::kValue);
}

}  // namespace

std::string KeyOfExperts(const nlohmann::json& model) {
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    if (!Inner(model, key).is_null()) return key;
  }
  return "";
}

void CheckTrainerKeys(const nlohmann::json& trainer, const std::string& path,
                      const EmitProblem& emit) {
  RefuseKeptState(trainer, path, emit);
  RefuseOfModel(trainer, path, emit);
  RefuseAbove(trainer, "micro_batch_size", "global_batch_size", path, emit);
  RefuseAbove(trainer, "warmup_steps", "max_steps", path, emit);
}

}  // namespace muster
