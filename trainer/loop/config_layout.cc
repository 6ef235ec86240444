// What is wrong with a configuration for a model, ranks and devices.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "trainer/loop/config.h"
#include "trainer/model/families.h"
#include "trainer/parallel/mesh.h"

namespace muster::trainer {
namespace {

// What is about routers' biases, and the loss that models with them don't have.
void CheckRouterBias(const TrainConfig& config, const ModelConfig& model, Problems& problems) {
  if (config.router_bias_speed > 0 && !model.experts.sigmoid)
    problems.push_back({"trainer.router_bias_speed",
                        absl::StrCat("is for models whose routers have biases (dots1), and this "
                                     "one is of model_type ",
                                     model.family, "; leave it out")});
  else if (config.router_bias_speed > 0 && config.lora.on())
    problems.push_back({"trainer.router_bias_speed",
                        "with lora the model stays as it is, its routers' biases too; leave it "
                        "out, or lora"});
  if (model.experts.sigmoid &&
      (config.router_aux_loss == "sequence" || config.router_aux_loss == "batch"))
    problems.push_back(
        {"trainer.router_aux_loss",
         absl::StrCat(config.router_aux_loss, " is not supported for model_type ", model.family,
                      ", whose experts are scored one by one; leave it out, and "
                      "balance them by router_bias_speed: 0.001")});
}

// What is about experts.
void CheckExperts(const TrainConfig& config, const ModelConfig& model, Problems& problems) {
  if (model.num_layers == 0) return;  // what is wrong with the model is said elsewhere
  CheckRouterBias(config, model, problems);
  const bool without = config.router_aux_loss == "none" || model.experts.count == 0 ||
                       model.experts.sigmoid ||
                       (config.router_aux_loss == "auto" && !model.experts.output_router_logits);
  if (config.router_aux_loss_coef > 0 && without) {
    problems.push_back({"trainer.router_aux_loss_coef",
                        model.experts.count == 0
                            ? "has no effect, as the model has no experts; leave it out"
                        : model.experts.sigmoid
                            ? "has no effect, as such a model has no such loss; leave it out"
                            : "has no effect, as there is no such loss: the model's config.json "
                              "doesn't ask for it; add router_aux_loss: sequence"});
  }
  if (model.experts.count == 0) {
    if (config.router_aux_loss == "sequence" || config.router_aux_loss == "batch")
      problems.push_back(
          {"trainer.router_aux_loss",
           absl::StrCat("is for models with experts (mixtral, qwen3_moe, dots1), and this one is "
                        "of model_type ",
                        model.family, "; leave it out")});
    return;
  }
  if (config.OfPairs() && !without)
    problems.push_back(
        {"trainer.router_aux_loss",
         absl::StrCat("the loss that balances experts is not supported yet with ",
                      config.dpo.on() ? "dpo" : "reward", "; set router_aux_loss: none")});
  if (config.quantize.on)
    problems.push_back({"trainer.quantize",
                        "is not supported yet for models with experts, whose weights are no "
                        "linears for bitsandbytes; leave it out"});
  if (config.cuda_graphs)
    problems.push_back({"trainer.cuda_graphs",
                        "a layer with experts is not recorded, as its products depend on what the "
                        "router chose; leave it out"});
  if (config.router_aux_loss == "batch" && config.parallel.pp > 1)
    problems.push_back({"trainer.router_aux_loss",
                        "batch counts all layers at once, and a stage of a pipeline has some of "
                        "them; use sequence, or leave parallel.pp out"});
}

// An adapter beside linears that are one has rows of each, of which a slice would have some.
void CheckJoinedAdapters(const TrainConfig& config, const ModelConfig& model, Problems& problems) {
  if (config.lora.on() && config.parallel.tp > 1 && FieldsOfFamily(model.family).joined_linears)
    problems.push_back(
        {"trainer.lora",
         absl::StrCat("is not supported yet with parallel.tp for model_type ", model.family,
                      ", whose q, k and v have one adapter, and whose gate and up; share the model "
                      "out by zero_stage: 3, parallel.pp or parallel.cp")});
}

// Products in 8 bits are of widths that GPUs can do; whole models are told of once.
void CheckFp8Layers(const TrainConfig& config, const ModelConfig& model, Problems& problems) {
  constexpr int64_t kMultiple = 16;
  if (config.matmul != "fp8" || model.num_layers == 0) return;
  if (model.experts.count > 0) {
    problems.push_back({"trainer.matmul",
                        "fp8 is not supported yet for models with experts, whose products are of "
                        "as many rows as tokens chose them; leave it out"});
    return;
  }
  const auto tp = static_cast<int>(std::max<int64_t>(1, config.parallel.tp));
  for (const LinearModule& linear : LayerLinears(model, 0)) {
    for (int slice = 0; slice < tp; ++slice) {
      const auto [begin, end] = PartOf(linear.units, slice, tp);
      const int64_t cut = linear.sliced_dim == 0 ? linear.out : linear.in;
      const int64_t own = (end - begin) * (cut / std::max<int64_t>(1, linear.units));
      const int64_t in = linear.sliced_dim == 0 ? linear.in : own,
                    out = linear.sliced_dim == 0 ? own : linear.out;
      if (in % kMultiple == 0 && out % kMultiple == 0) continue;
      problems.push_back(
          {"trainer.matmul",
           absl::StrCat("fp8 needs linears whose widths are multiples of 16, and ", linear.name,
                        " (and that of other layers) has ", in, " inputs and ", out, " outputs",
                        tp > 1 ? absl::StrCat(" on a rank, with parallel.tp: ", tp) : "",
                        "; leave matmul out", tp > 1 ? ", or use another parallel.tp" : "")});
      return;
    }
  }
}

// What is about scores in place of tokens.
void CheckScore(const TrainConfig& config, const ModelConfig& model, Problems& problems) {
  if (model.score && !config.reward.on() && config.model)
    problems.push_back({"trainer.model.architectures",
                        "is of models for sequence classification, whose heads know no tokens; "
                        "leave it out"});
  else if (model.score && !config.reward.on())
    problems.push_back({"trainer.init",
                        "is a model for sequence classification, whose head knows no tokens; add "
                        "reward: {}, or give the model for causal language modelling"});
  if (config.reward.on() && model.num_layers > 0 && !FieldsOfFamily(model.family).has_score_class)
    problems.push_back(
        {"trainer.reward", absl::StrCat("is not for model_type ", model.family,
                                        ", which transformers has no class for sequence "
                                        "classification of; give a model of another type")});
}

// What doesn't go with its kind of pipeline.
void CheckPipeline(const TrainConfig& config, Problems& problems) {
  if (config.parallel.pp == 1) return;
  if (config.cuda_graphs) {
    problems.push_back({"trainer.cuda_graphs",
                        "graphs are recorded of micro-batches that run one after another, and a "
                        "pipeline's don't; leave it or parallel.pp out"});
  }
  if (config.parallel.pipeline != PipelineKind::kZeroBubble) return;
  const char* why = config.recompute == "full"
                        ? "recompute: full would compute a layer twice more, or keep all of it; "
                          "use keep_attention"
                    : config.zero_stage > 1
                        ? "zero_stage: 2 and 3 sum a micro-batch's gradients when its backward "
                          "ends, and these wait; use zero_stage: 1"
                    : config.deterministic == Determinism::kElastic
                        ? "deterministic: elastic sums a micro-batch's gradients when its backward "
                          "ends, and these wait; leave it out"
                    : config.deterministic == Determinism::kYes
                        ? "deterministic: true adds a micro-batch's gradients when its backward "
                          "ends, and these wait; leave it out, as pipelines give the same bits "
                          "without"
                    : config.gradient_dtype == "bf16"
                        ? "gradient_dtype: bf16 rounds a micro-batch's gradients when its backward "
                          "ends, and these wait; use fp32"
                        : nullptr;
  if (why != nullptr)
    problems.push_back(
        {"trainer.parallel.pipeline",
         absl::StrCat("zero_bubble puts off gradients of weights: ", why, ", or pipeline: 1f1b")});
}

}  // namespace

void CheckLayoutKeys(const TrainConfig& config, Problems& problems) {
  CheckPipeline(config, problems);
  if (config.offload == "parameters" && config.zero_stage != 3) {
    problems.push_back({"trainer.offload",
                        "parameters come block by block, as zero_stage: 3 has them; set that, or "
                        "use offload: optimizer"});
  }
  if ((config.parallel.tp > 1 || config.parallel.cp > 1) && config.cuda_graphs) {
    problems.push_back({"trainer.cuda_graphs",
                        absl::StrCat("a layer that ranks share out is not recorded, as they speak "
                                     "inside it; leave it or parallel.",
                                     config.parallel.tp > 1 ? "tp" : "cp", " out")});
  }
  if (config.parallel.cp > 1 && config.lora.dropout > 0) {
    problems.push_back({"trainer.lora.dropout",
                        "is not supported yet with parallel.cp: what is dropped goes by a token's "
                        "place in its row, and a rank has parts of rows; leave one of them out"});
  }
  if (config.parallel.cp > 1 && config.OfPairs()) {
    problems.push_back(
        {"trainer.parallel.cp",
         absl::StrCat("is not supported yet with ", config.dpo.on() ? "dpo" : "reward",
                      ", which sums over whole documents; use tp, or leave it "
                      "out")});
  }
  if (config.parallel.tp > 1 && config.quantize.on)
    problems.push_back({"trainer.quantize",
                        "doesn't go with parallel.tp: blocks go on from row to row of a matrix, "
                        "and a slice would have parts of them; share weights out by zero_stage: 3 "
                        "or parallel.pp"});
}

bool GoTogether(const TrainConfig& c) {
  return !(c.masters == "split" && (c.dtype != "bf16" || c.offload != "none")) &&
         !(c.moments == "int8" && c.offload != "none") &&
         !(c.moments == "int8" && c.deterministic == Determinism::kElastic && c.zero_stage > 0) &&
         !(c.quantize.on && c.offload == "parameters") && !(c.shard_size > 0 && c.zero_stage == 0);
}

void CheckGpu(const TrainConfig& config, int capability, Problems& problems) {
  constexpr int kFp8 = 89;
  if (config.matmul == "fp8" && capability < kFp8)
    problems.push_back(
        {"trainer.matmul",
         absl::StrCat("fp8 needs a GPU of compute capability 8.9 or later (L4, L40, H100 and "
                      "after), and this one has ",
                      capability / 10, ".", capability % 10,
                      "; leave it out, or ask for another")});
}

void CheckLayout(const TrainConfig& config, const ModelConfig& model, int ranks, bool gpus,
                 bool gpu_kernels, Problems& problems) {
  CheckParallel(config.parallel, model, ranks, config.shard_size, "trainer.parallel", problems);
  CheckExperts(config, model, problems);
  CheckFp8Layers(config, model, problems);
  CheckJoinedAdapters(config, model, problems);
  CheckScore(config, model, problems);
  const int64_t pp = config.parallel.pp;
  const int in_stage = static_cast<int>(ranks % pp == 0 ? ranks / pp : ranks);
  if (config.shard_size > 1 && ranks == 1) {
    problems.push_back(
        {"trainer.shard_size",
         absl::StrCat("needs ", config.shard_size,
                      " ranks, or a multiple of them, and this run has one; leave it out")});
  } else if (config.shard_size > 0 && in_stage % config.shard_size != 0) {
    std::string divisors;
    for (int n = 1; n <= in_stage; ++n) {
      if (in_stage % n == 0) absl::StrAppend(&divisors, divisors.empty() ? "" : ", ", n);
    }
    problems.push_back({"trainer.shard_size",
                        absl::StrCat(config.shard_size, " doesn't divide the ", in_stage, " ranks",
                                     in_stage < ranks ? " of a stage" : "", "; use one of ",
                                     divisors, ", or leave it out: all ranks share one copy")});
  }
  const int64_t tp = config.parallel.tp, unit = tp * config.parallel.cp;
  if (config.shard_size > 0 && config.shard_size % unit != 0) {
    problems.push_back({"trainer.shard_size",
                        absl::StrCat(config.shard_size, " is no multiple of parallel.tp",
                                     unit == tp ? "" : " times parallel.cp", ", ", unit,
                                     ": ranks that share out a layer share one copy; use ",
                                     (config.shard_size / unit + 1) * unit, ", or leave it out")});
  }
  if (gpus && config.offload == "none" && (!gpu_kernels || config.reference_ops)) {
    const char* remedy =
        gpu_kernels ? "leave out reference_ops"
                    : "build with nvcc (deploy/setup.sh), use offload: optimizer, or leave it out";
    if (config.masters == "split")
      problems.push_back(
          {"trainer.masters", absl::StrCat("split needs our own kernels on GPUs; ", remedy)});
    if (config.moments != "fp32")
      problems.push_back(
          {"trainer.moments",
           absl::StrCat(config.moments, " needs our own kernels on GPUs; ", remedy)});
  }
}

}  // namespace muster::trainer
