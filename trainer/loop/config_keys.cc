#include "trainer/loop/config_keys.h"

namespace muster::trainer {
namespace {

using C = TrainConfig;

// What is trained, on what, and in which portions.
std::vector<Key> DataKeys() {
  return {
      {"init", &C::init,
       "Hugging Face directory (config.json and safetensors) whose weights training starts from. "
       "Exactly one of init and model."},
      {"model", &C::model,
       "Content of a Hugging Face config.json (Llama, Mistral, Mixtral, Qwen2, Qwen3, "
       "Qwen3-MoE, dots1, Phi-3 and 4, Gemma 2 and 3): "
       "weights are drawn from scratch. Exactly one of init and model."},
      {"data", &C::data,
       "Directory of token shards made by `muster-trainer prepare`; relative to the job's "
       "directory. Exactly one of data and mixture."},
      {"mixture", &C::mixture,
       "Several such directories with weights: each gives its share of the sequences of every "
       "batch. Exactly one of data and mixture."},
      {"dpo", &C::dpo,
       "Train on preferences (DPO): data is pairs of a chosen and a rejected answer to a prompt, "
       "and global_batch_size and micro_batch_size count pairs. Needs init, whose model is the "
       "reference, too. {}: all defaults."},
      {"reward", &C::reward,
       "Train a reward model on preferences: data is pairs, as with dpo, and the head is a score "
       "of "
       "an answer at its last token. init is a model for sequence classification with one label, "
       "or "
       "one for causal language modelling, whose head is left. {}: all defaults."},
      {"packing",
       &C::packing,
       "How documents become sequences. wrapped: one stream, cut every max_length tokens; bfd: "
       "whole documents, best fit decreasing; none: one document each; balanced: whole documents "
       "in sequences of like work instead of like length (WLB-LLM). But for wrapped, attention "
       "stays within a document.",
       false,
       0,
       0,
       false,
       {"wrapped", "bfd", "none", "balanced"}},
      {"document_mask", &C::document_mask,
       "With packing: wrapped, attention and positions begin anew in each document, as the other "
       "packings always have it."},
      {"max_row_length", &C::max_row_length,
       "With packing: balanced, the most tokens of a sequence (memory bounds it); 0: a quarter "
       "more than max_length.",
       false, 0, 1 << 25},
      {"max_length", &C::max_length, "Tokens per sequence.", true, 1, 1 << 24},
      {"global_batch_size", &C::global_batch_size,
       "Sequences per optimizer step over all ranks, whatever their number.", true, 1, 1 << 24},
      {"micro_batch_size", &C::micro_batch_size,
       "Sequences per rank and forward pass; 0: as many as make about 8192 tokens, at most the "
       "rank's share.",
       false, 0, 1 << 24},
      {"max_steps", &C::max_steps, "Optimizer steps.", true, 1, 1e9},
  };
}

// How a step changes the weights.
std::vector<Key> OptimizerKeys() {
  return {
      {"learning_rate", &C::learning_rate, "Peak learning rate.", true, 0, 1e3, true},
      {"lr_scheduler_type",
       &C::lr_scheduler_type,
       "Course of the learning rate after the warm-up, as in transformers.",
       false,
       0,
       0,
       false,
       {"cosine", "linear", "constant", "warmup_stable_decay"}},
      {"decay_steps", &C::decay_steps,
       "With lr_scheduler_type: warmup_stable_decay, how long the decay at the end takes: from 1 "
       "on a number of steps, below 1 a share of max_steps.",
       false, 0, 1e9},
      {"decay_type",
       &C::decay_type,
       "With lr_scheduler_type: warmup_stable_decay, the decay's course.",
       false,
       0,
       0,
       false,
       {"cosine", "linear", "1-sqrt"}},
      {"warmup_steps", &C::warmup_steps,
       "Linear warm-up: from 1 on a number of steps, below 1 a share of max_steps.", false, 0, 1e9},
      {"min_lr_ratio", &C::min_lr_ratio,
       "Where cosine, linear and warmup_stable_decay end, as a share of learning_rate.", false, 0,
       1},
      {"weight_decay", &C::weight_decay,
       "AdamW's decoupled weight decay; norms are left out, as in transformers.", false, 0, 1e3},
      {"adam_beta1", &C::adam_beta1, "AdamW's beta1.", false, 0, 0.999999},
      {"adam_beta2", &C::adam_beta2, "AdamW's beta2.", false, 0, 0.999999999},
      {"adam_epsilon", &C::adam_epsilon, "AdamW's epsilon.", false, 0, 1, true},
      {"max_grad_norm", &C::max_grad_norm,
       "Gradients are clipped to this norm over the whole model; 0: never.", false, 0, 1e9},
      {"z_loss", &C::z_loss,
       "Weight of the mean square of the logits' log-sum-exp, which is added to what is minimised "
       "(PaLM took 1e-4); progress lines have it as z_loss, beside loss.",
       false, 0, 1},
      {"router_aux_loss",
       &C::router_aux_loss,
       "Of models with experts, the auxiliary loss that keeps their routers from always choosing "
       "the same ones, added to what is minimised; progress lines have it as aux_loss, beside "
       "loss. sequence: of each row and layer by itself, the same in every layout of ranks; batch: "
       "of all layers and all rows of a micro-batch at once, as transformers has it; auto: "
       "sequence, if the model's config.json says output_router_logits: true.",
       false,
       0,
       0,
       false,
       {"auto", "none", "sequence", "batch"}},
      {"router_aux_loss_coef", &C::router_aux_loss_coef,
       "The coefficient of that loss; 0: the model's own.", false, 0, 1e6},
      {"router_bias_speed", &C::router_bias_speed,
       "Of models whose routers have biases (dots1), what is added to an expert's bias after each "
       "step if it met fewer tokens than the mean, or taken off if it met more (DeepSeek-V3 took "
       "0.001); 0: the biases stay as they are.",
       false, 0, 1},
      {"spike_factor", &C::spike_factor,
       "A step whose loss is more than this many times the mean of the last 32 counts as bad; 0: "
       "only one that isn't finite.",
       false, 0, 1e6},
      {"skip_limit", &C::skip_limit,
       "Bad steps in a row that are skipped (reported, no update) before the run stops; 0: the "
       "first one stops it.",
       false, 0, 1e9},
      {"seed", &C::seed, "Seed of initialisation and data order.", false, 0, 9007199254740991.0},
  };
}

// What is kept where, and in which type.
std::vector<Key> MemoryKeys() {
  return {
      {"zero_stage", &C::zero_stage,
       "What is shared out over the ranks instead of whole on each (ZeRO): 0 nothing; 1 optimizer "
       "state; 2 gradients as well, summed after each micro-batch; 3 weights as well, gathered a "
       "block ahead of their use.",
       false, 0, 3},
      {"shard_size", &C::shard_size,
       "Hybrid sharding: the number of ranks that share one copy of what zero_stage shards, such "
       "as those of a host; the other groups hold copies. It must divide the number of ranks, and "
       "be a multiple of parallel.tp times parallel.cp. 0: all share one.",
       false, 0, 1 << 20},
      {"parallel", &C::parallel,
       "How ranks share out one model, beside taking different rows: tp slices of its layers, in "
       "pp stages, its experts among ep ranks, and each row's tokens among cp ranks. auto: the "
       "ranks of each attempt choose what takes the least time by estimate of what fits, and so "
       "they do with shard_size, zero_stage, recompute and micro_batch_size where these are left "
       "out."},
      {"memory_per_rank", &C::memory_per_rank,
       "With parallel: auto, the most memory that a rank may fill, such as 64GiB. Default: all of "
       "the GPU's; on CPUs what the control group, else the host, has, shared out over the host's "
       "ranks."},
      {"dtype",
       &C::dtype,
       "Type of weights and activations; masters and sums are fp32 unless masters, moments or "
       "gradient_dtype say otherwise.",
       false,
       0,
       0,
       false,
       {"fp32", "bf16"}},
      {"matmul",
       &C::matmul,
       "Numbers that the layers' linears multiply. fp8: in 8 bits with one scale a tensor, weights "
       "and activations as e4m3, gradients as e5m2, summed in fp32; embeddings, norms and the head "
       "stay in dtype. On GPUs of compute capability 8.9 and later (and slowly on CPUs).",
       false,
       0,
       0,
       false,
       {"dtype", "fp8"}},
      {"masters",
       &C::masters,
       "With dtype: bf16, how the exact weights are kept. split: as the bf16 weight and 16 bits "
       "more, the same numbers in 2 bytes a parameter less.",
       false,
       0,
       0,
       false,
       {"fp32", "split"}},
      {"moments",
       &C::moments,
       "Type of AdamW's moments. bf16: 4 bytes a parameter less, rounded stochastically. int8: 6 "
       "bytes less, by blocks of 256; embeddings, and parameters of less than 4,096 elements, stay "
       "fp32.",
       false,
       0,
       0,
       false,
       {"fp32", "bf16", "int8"}},
      {"gradient_dtype",
       &C::gradient_dtype,
       "With dtype: bf16, type of the sum of a step's gradients; ranks are summed in fp32 all the "
       "same.",
       false,
       0,
       0,
       false,
       {"fp32", "bf16"}},
      {"recompute",
       &C::recompute,
       "What of the activations is computed again in the backward pass instead of kept: nothing; "
       "pointwise: norms and activations, which take no product; keep_attention: all but "
       "attention; "
       "full: all but each layer's input. The numbers don't change.",
       false,
       0,
       0,
       false,
       {"none", "pointwise", "keep_attention", "full"}},
      {"offload",
       &C::offload,
       "What is kept in the host's memory instead of the GPU's: nothing; optimizer: masters and "
       "moments, updated there; parameters: with zero_stage: 3, the weights as well. The numbers "
       "don't change.",
       false,
       0,
       0,
       false,
       {"none", "optimizer", "parameters"}},
  };
}

// Frozen weights, and what is trained beside them.
std::vector<Key> AdapterKeys() {
  return {
      {"lora", &C::lora,
       "Train low-rank adapters beside frozen weights (needs init): rank, alpha, dropout, "
       "target_modules. The export has them merged, and in adapter/ for peft."},
      {"quantize", &C::quantize,
       "With lora, keep the frozen matrices of the layers' linears in 4 bits (QLoRA): type, "
       "double. "
       "init may be a directory that bitsandbytes has quantised so."},
  };
}

// The run: export, checkpoints, evaluation, and what it tells.
std::vector<Key> RunKeys() {
  return {
      {"export", &C::export_dir,
       "Hugging Face directory that is written after the last step; relative to the job's "
       "directory, and apart from that of init. s3://BUCKET/PREFIX: it goes to this object store."},
      {"cuda_graphs", &C::cuda_graphs,
       "On GPUs, layers are recorded as CUDA graphs and started whole, where micro-batches are of "
       "one shape. The numbers don't change, but for rounding where documents are packed."},
      {"deterministic", &C::deterministic,
       "true: refuse kernels whose result may differ from run to run. elastic: and sum "
       "micro-batches as a binary tree, so that any number of ranks trains to the same bits (with "
       "tp, pp, ep and cp as they are: more ranks take more rows at once); gradients are sent for "
       "each micro-batch. Of ranks as many compute as the largest power of two that divides the "
       "step's micro-batches."},
      {"reference_ops", &C::reference_ops,
       "Compute with ATen's plain operations instead of our kernels and, on GPUs, FlashAttention: "
       "slower, to tell whether those are at fault."},
      {"poison", &C::poison,
       "For tests: memory that sharded weights and gradients have left is filled with NaN."},
      {"log_interval", &C::log_interval, "Steps between progress lines.", false, 1, 1e9},
      {"profile_steps", &C::profile_steps,
       "Steps, after the first two, of which every rank writes a Chrome trace to profile/ in the "
       "job's directory (chrome://tracing, Perfetto); 0: none.",
       false, 0, kMostProfiledSteps},
      {"peak_tflops", &C::peak_tflops,
       "Peak of one rank's device in TFLOP/s, dense, in the dtype of the products: what MFU is a "
       "share of; 0: looked up by the GPU's name, and no MFU where that is unknown.",
       false, 0, 1e6},
      {"checkpoints", &C::checkpoints,
       "s3://BUCKET/PREFIX: checkpoints go to this object store instead of the job's "
       "checkpoint.storage, below PREFIX/JOB/TASK/ATTEMPT."},
      {"save_steps", &C::save_steps,
       "Steps between checkpoints, beside those that the job's checkpoint.interval asks for; 0: "
       "off.",
       false, 0, 1e9},
      {"save_in_background", &C::save_in_background,
       "Checkpoints are copied to memory and written beside training; false: training waits until "
       "they are on disk."},
      {"warm_restart", &C::warm_restart,
       "A run that is stopped (resized, moved, preempted) doesn't wait for the disk: its last "
       "checkpoint counts once the host's file cache has it, from where the next attempt reads it. "
       "A host that crashes within half a minute costs the steps since the checkpoint before."},
      {"eval_interval", &C::eval_interval,
       "Steps between evaluations on the validation split, also after the last step; 0: off.",
       false, 0, 1e9},
      {"eval_sequences", &C::eval_sequences,
       "Sequences of the validation split that an evaluation takes; 0: all.", false, 0, 1e9},
      {"eval_data", &C::eval_data,
       "Directory of token shards to evaluate on, instead of the validation split of data "
       "(`prepare --validation-share`)."},
      {"step_timeout_s", &C::step_timeout_s,
       "Seconds that ranks wait for each other once the first step is done; when one has stopped, "
       "the others end with failure after that.",
       false, 1, 86400},
      {"threads", &C::threads, "CPU threads per rank; 0: cores / ranks on the host.", false, 0,
       4096},
  };
}

}  // namespace

const std::vector<Key>& Keys() {
  static const std::vector<Key> keys = [] {
    std::vector<Key> all;
    for (const std::vector<Key>& part :
         {DataKeys(), OptimizerKeys(), MemoryKeys(), AdapterKeys(), RunKeys()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return keys;
}

const std::vector<std::pair<std::string, std::string>>& Hints() {
  static const std::vector<std::pair<std::string, std::string>> hints = {
      {"per_device_train_batch_size",
       "the batch is global, so that it survives a resize; use global_batch_size"},
      {"train_batch_size",
       "the batch is global, so that it survives a resize; use global_batch_size"},
      {"batch_size", "use global_batch_size (sequences a step, over all ranks)"},
      {"gradient_accumulation_steps",
       "follows from global_batch_size, micro_batch_size and the number of ranks; leave it out"},
      {"num_train_epochs", "training is measured in steps; use max_steps"},
      {"epochs", "training is measured in steps; use max_steps"},
      {"steps", "use max_steps"},
      {"lr", "use learning_rate"},
      {"lr_scheduler", "use lr_scheduler_type"},
      {"warmup_ratio", "use warmup_steps with a value below 1 (a share of max_steps)"},
      {"max_seq_length", "use max_length"},
      {"max_seq_len", "use max_length"},
      {"seq_len", "use max_length"},
      {"sequence_length", "use max_length"},
      {"model_name_or_path", "use init (a Hugging Face directory)"},
      {"pretrained", "use init (a Hugging Face directory)"},
      {"output_dir",
       "use export for the final model; checkpoints go where the job's checkpoint.storage says"},
      {"save_strategy", "use save_steps, or the job's checkpoint.interval"},
      {"save_total_limit", "use the job's checkpoint.keep"},
      {"resume_from_checkpoint",
       "Muster resumes from the newest valid checkpoint by itself; leave it out"},
      {"logging_steps", "use log_interval"},
      {"profile", "use profile_steps"},
      {"bf16", "use dtype: bf16"},
      {"fp16", "fp16 is not supported; use dtype: bf16"},
      {"fp8", "use matmul: fp8"},
      {"float8", "use matmul: fp8"},
      {"optim", "AdamW is the optimizer; leave it out"},
      {"adam_beta", "use adam_beta1 and adam_beta2"},
      {"beta1", "use adam_beta1"},
      {"beta2", "use adam_beta2"},
      {"eps", "use adam_epsilon"},
      {"gradient_clipping", "use max_grad_norm"},
      {"clip_grad_norm", "use max_grad_norm"},
      {"eval_steps", "use eval_interval"},
      {"eval_dataset", "use eval_data"},
      {"eval_strategy", "use eval_interval"},
      {"packing_strategy", "use packing"},
      {"sample_packing", "use packing: bfd"},
      {"datasets", "use mixture (a list of {data, weight})"},
      {"dataset", "use data (a directory made by `muster-trainer prepare`)"},
      {"train_file", "use data (a directory made by `muster-trainer prepare`)"},
      {"peft_config", "use lora"},
      {"beta", "use dpo: {beta: …}"},
      {"loss_type", "use dpo: {loss_type: …}"},
      {"tp", "it stands in parallel: use parallel: {tp: …}"},
      {"pp", "it stands in parallel: use parallel: {pp: …}"},
      {"cp", "it stands in parallel: use parallel: {cp: …}"},
      {"ep", "it stands in parallel: use parallel: {ep: …}"},
      {"pipeline", "it stands in parallel: use parallel: {pipeline: …}"},
      {"chunks", "it stands in parallel: use parallel: {chunks: …}"},
      {"cp_sharding", "it stands in parallel: use parallel: {cp_sharding: …}"},
      {"ref_model", "use dpo: the reference is the model of init"},
      {"center_rewards_coefficient", "use reward: {center_rewards_coefficient: …}"},
      {"num_labels", "use reward: {}, which has one"},
      {"lora_r", "use lora: {rank: …}"},
      {"lora_rank", "use lora: {rank: …}"},
      {"lora_alpha", "use lora: {alpha: …}"},
      {"lora_dropout", "use lora: {dropout: …}"},
      {"quantization_config", "use quantize: {type: nf4}, with lora"},
      {"load_in_4bit", "use quantize: {type: nf4}, with lora"},
      {"qlora", "use quantize: {type: nf4}, with lora"},
      {"deepspeed", "use zero_stage"},
      {"fsdp", "use zero_stage"},
      {"async_save", "use save_in_background"},
      {"ddp_timeout", "use step_timeout_s"},
      {"sharding_strategy",
       "use zero_stage (3 shards everything), with shard_size for hybrid sharding"},
      {"gradient_checkpointing", "use recompute: full"},
      {"activation_checkpointing", "use recompute: full"},
      {"cpu_offload", "use offload: optimizer, or with zero_stage: 3 offload: parameters"},
      {"num_decay_steps", "use decay_steps"},
      {"output_router_logits", "use router_aux_loss: sequence, or batch as transformers has it"},
      {"bias_update_speed", "use router_bias_speed"},
      {"moe_router_bias_update_rate", "use router_bias_speed"},
      {"num_workers", "ranks come from the job's workers and processes_per_worker"},
  };
  return hints;
}

}  // namespace muster::trainer
