#include "common/spec/check_trainer.h"

#include <gtest/gtest.h>

#include "common/objects/object_place.h"

namespace muster {
namespace {

struct Case {
  const char* trainer;
  int min_workers, max_workers, processes;  // 0: left out
  const char* said;
  int multiple_of = 0;
};

std::string Check(const Case& c) {
  pb::TaskSpec task;
  task.mutable_workers()->set_min(c.min_workers);
  task.mutable_workers()->set_max(c.max_workers);
  task.mutable_workers()->set_multiple_of(c.multiple_of);
  task.set_processes_per_worker(c.processes);
  task.mutable_resources()->set_gpus_milli(4000);
  std::string said;
  CheckTrainerLayout(nlohmann::json::parse(c.trainer), task, "trainer",
                     [&](const std::string& path, const std::string& message, Document::Where) {
                       said += path + ": " + message;
                     });
  return said;
}

TEST(TrainerLayout, NumbersInFewBitsAreRefusedWithWhatTheyDoNotGoTogetherWith) {
  constexpr char kTogether[] = R"({"quantize": {"type": "nf4"}, "lora": {"rank": 8}})";
  const Case cases[] = {
      {kTogether, 1, 1, 1, ""},
      {R"({"moments": "int8", "offload": "none"})", 1, 1, 1, ""},
      {R"({"quantize": {"type": "nf4"}})", 1, 1, 1,
       "trainer.quantize: is for frozen weights; add lora: {rank: 16}, which trains adapters "
       "beside them"},
      {R"({"quantize": {}, "lora": {}, "parallel": {"tp": 2}})", 1, 1, 2,
       "trainer.quantize: does not go together with parallel.tp; share weights out by zero_stage: "
       "3 or parallel.pp"},
      {R"({"quantize": {}, "lora": {}, "zero_stage": 3, "offload": "parameters"})", 1, 1, 1,
       "trainer.offload: parameters does not go together with quantize; use optimizer, or leave it "
       "out"},
      {R"({"moments": "int8", "offload": "optimizer"})", 1, 1, 1,
       "trainer.moments: int8 does not go together with offload; use bf16, or leave one of them "
       "out"},
  };
  for (const Case& c : cases) EXPECT_EQ(Check(c), c.said) << c.trainer;
}

TEST(TrainerLayout, WhatDoesNotGoWithPairsOrElasticSumsIsRefused) {
  const Case cases[] = {
      {R"({"dpo": {}, "init": "/m", "z_loss": 0, "cuda_graphs": false})", 1, 1, 1, ""},
      {R"({"reward": {}, "init": "/m"})", 1, 1, 1, ""},
      {R"({"packing": "bfd", "model": {}, "z_loss": 1})", 1, 1, 1, ""},
      {R"({"dpo": {}, "reward": {}, "init": "/m"})", 1, 1, 1,
       "trainer.reward: dpo and reward exclude each other, as a model has one head; keep one"},
      {R"({"reward": {}, "packing": "bfd"})", 1, 1, 1,
       "trainer.packing: with reward a row is a pair; leave it out"},
      {R"({"dpo": {}, "mixture": []})", 1, 1, 1,
       "trainer.mixture: is not supported yet with dpo; prepare the inputs into one directory and "
       "give data"},
      {R"({"dpo": {}, "cuda_graphs": true})", 1, 1, 1,
       "trainer.cuda_graphs: is not supported yet with dpo; leave it out"},
      {R"({"reward": {}, "z_loss": 1e-4})", 1, 1, 1,
       "trainer.z_loss: is not supported yet with reward; leave it out"},
      {R"({"dpo": {}, "model": {}})", 1, 1, 1,
       "trainer.model: dpo goes on from a model that can read; give init instead"},
      {R"({"reward": {}, "lora": {}})", 1, 1, 1,
       "trainer.lora: is not supported yet with reward; leave it out"},
      {R"({"dpo": {}, "lora": {}})", 1, 1, 1, ""},
      {R"({"quantize": {}, "lora": {}, "matmul": "fp8"})", 1, 1, 1,
       "trainer.matmul: fp8 does not go together with quantize; leave one of them out"},
      {R"({"deterministic": "elastic", "micro_batch_size": 2})", 1, 1, 1, ""},
      {R"({"deterministic": "elastic"})", 1, 1, 1,
       "trainer.deterministic: elastic sums micro-batches of one size, whatever the number of "
       "ranks; add micro_batch_size"},
      {R"({"deterministic": "elastic", "micro_batch_size": 2, "parallel": "auto"})", 1, 1, 1,
       "trainer.deterministic: elastic keeps one layout for all numbers of ranks, and parallel: "
       "auto chooses another for each; name tp, pp, ep and cp, or use true"},
      {R"({"deterministic": "elastic", "micro_batch_size": 2, "parallel": {"pp": 2}})", 1, 1, 2,
       ""},
      {R"({"deterministic": "elastic", "micro_batch_size": 2, "parallel": {"tp": 2, "cp": 2}})", 1,
       1, 4, ""},
      {R"({"deterministic": "elastic", "micro_batch_size": 2, "moments": "int8"})", 1, 1, 1,
       "trainer.deterministic: elastic does not go together with moments: int8; use bf16, or "
       "zero_stage: 0"},
      {R"({"deterministic": "elastic", "micro_batch_size": 2, "moments": "int8", "zero_stage": 0})",
       1, 1, 1, ""},
      {R"({"deterministic": "elastic", "micro_batch_size": 2,
           "parallel": {"pp": 2, "pipeline": "zero_bubble"}})",
       1, 1, 2,
       "trainer.parallel.pipeline: zero_bubble does not go together with deterministic: elastic; "
       "use 1f1b"},
  };
  for (const Case& c : cases) EXPECT_EQ(Check(c), c.said) << c.trainer;
}

TEST(TrainerLayout, KeysThatExcludeEachOtherAreRefused) {
  const Case cases[] = {
      {R"({"dtype": "bf16", "masters": "split", "gradient_dtype": "bf16", "zero_stage": 3})", 1, 1,
       1, ""},
      {R"({"parallel": "auto", "offload": "parameters", "memory_per_rank": "8GiB"})", 1, 1, 1, ""},
      {R"({"zero_stage": 3.0, "offload": "parameters"})", 1, 1, 1, ""},
      {R"({"zero_stage": 0, "offload": "optimizer", "init": "/m", "lora": {}})", 1, 1, 1, ""},
      {R"({"router_aux_loss": "batch", "parallel": {"ep": 2}})", 1, 1, 2, ""},
      {R"({"router_aux_loss": "batch", "parallel": "auto", "micro_batch_size": 1})", 1, 1, 1, ""},
      {R"({"mixture": [{}], "packing": "balanced", "micro_batch_size": 8,
           "global_batch_size": 8, "warmup_steps": 0.5, "max_steps": 1})",
       1, 1, 1, ""},
      {R"({"zero_stage": 0, "shard_size": 1})", 1, 1, 1,
       "trainer.shard_size: is for zero_stage: 1 to 3, as 0 shards nothing; leave it out"},
      {R"({"memory_per_rank": "8GiB"})", 1, 1, 1,
       "trainer.memory_per_rank: is for parallel: auto; leave it out"},
      {R"({"masters": "split"})", 1, 1, 1,
       "trainer.masters: split is for dtype: bf16; leave it out"},
      {R"({"dtype": "bf16", "masters": "split", "offload": "optimizer"})", 1, 1, 1,
       "trainer.masters: split does not go together with offload; leave one of them out"},
      {R"({"gradient_dtype": "bf16"})", 1, 1, 1,
       "trainer.gradient_dtype: bf16 is for dtype: bf16; leave it out"},
      {R"({"dtype": "bf16", "gradient_dtype": "bf16", "deterministic": "elastic",
           "micro_batch_size": 1})",
       1, 1, 1,
       "trainer.gradient_dtype: bf16 does not go together with deterministic: elastic, which sums "
       "in fp32; leave it out"},
      {R"({"offload": "parameters"})", 1, 1, 1,
       "trainer.offload: parameters is for zero_stage: 3; set that, or use optimizer"},
      {R"({"parallel": "auto", "zero_stage": 2, "offload": "parameters"})", 1, 1, 1,
       "trainer.offload: parameters is for zero_stage: 3; set that, or use optimizer"},
      {R"({"model": {}, "lora": {}})", 1, 1, 1,
       "trainer.lora: is for adapters beside trained weights; give init instead of model"},
      {R"({"dpo": {}, "parallel": {"cp": 2}})", 1, 1, 2,
       "trainer.parallel.cp: does not go together with dpo or reward; use tp, or leave it out"},
      {R"({"router_aux_loss": "batch", "parallel": {"pp": 2}})", 1, 1, 2,
       "trainer.router_aux_loss: batch does not go together with parallel.pp, whose stages have "
       "some of the layers; use sequence"},
      {R"({"router_aux_loss": "batch", "parallel": "auto"})", 1, 1, 1,
       "trainer.router_aux_loss: batch is over all rows of a micro-batch, so with parallel: auto "
       "each layout would train another model; add micro_batch_size, or use sequence"},
      {R"({"model": {"num_experts": 8}, "cuda_graphs": true})", 1, 1, 1,
       "trainer.cuda_graphs: does not go together with a model that has experts; leave it out"},
      {R"({"model": {"n_routed_experts": 8}, "matmul": "fp8"})", 1, 1, 1,
       "trainer.matmul: fp8 does not go together with a model that has experts; leave it out"},
      {R"({"mixture": [{}, {}], "packing": "balanced"})", 1, 1, 1,
       "trainer.packing: balanced puts the documents of one directory together; prepare the inputs "
       "into one, or use bfd"},
      {R"({"micro_batch_size": 9, "global_batch_size": 8})", 1, 1, 1,
       "trainer.micro_batch_size: 9 is above global_batch_size, 8"},
      {R"({"warmup_steps": 9, "max_steps": 8})", 1, 1, 1,
       "trainer.warmup_steps: 9 is above max_steps, 8"},
  };
  for (const Case& c : cases) EXPECT_EQ(Check(c), c.said) << c.trainer;
}

TEST(TrainerLayout, SlicesThatCantBeAreRefusedWithTheNearestThatCan) {
  constexpr char kTwo[] = R"({"parallel": {"tp": 2}, "model": {"num_key_value_heads": 8}})";
  constexpr char kThree[] = R"({"parallel": {"tp": 3}, "model": {"num_key_value_heads": 8}})";
  constexpr char kEight[] = R"({"parallel": {"tp": 8}, "model": {"num_key_value_heads": 4}})";
  constexpr char kUnknown[] = R"({"parallel": {"tp": 4}, "init": "/models/seven"})";
  const Case cases[] = {
      {kTwo, 1, 1, 2, ""},
      {kTwo, 3, 3, 4, ""},
      {kTwo, 1, 7, 2, ""},  // each worker has a multiple
      {kTwo, 1, 1, 0, ""},  // a process for each GPU
      {R"({"parallel": {"tp": 1}, "model": {"num_key_value_heads": 3}})", 5, 5, 1, ""},
      {R"({"max_steps": 1})", 5, 5, 1, ""},
      {R"({"parallel": {"tp": "many"}})", 5, 5, 1, ""},  // as the schema says
      {R"({"parallel": [2]})", 5, 5, 1, ""},
      {R"({"parallel": {"tp": 1e300}})", 5, 5, 1, ""},
      {R"({"parallel": {"tp": 2}, "shard_size": 4, "cuda_graphs": false})", 2, 2, 4, ""},
      {R"({"parallel": {"tp": 4}, "shard_size": 6})", 2, 2, 4,
       "trainer.shard_size: 6 is no multiple of parallel.tp, 4; use 8, or leave it out"},
      {R"({"parallel": {"tp": 4}, "cuda_graphs": true})", 2, 2, 4,
       "trainer.cuda_graphs: does not go together with parallel.tp; leave one of them out"},
      {kThree, 6, 6, 1,
       "trainer.parallel.tp: 3 doesn't divide the model's 8 num_key_value_heads; with 6 ranks use "
       "2"},
      {kThree, 12, 12, 1,
       "trainer.parallel.tp: 3 doesn't divide the model's 8 num_key_value_heads; with 12 ranks use "
       "2 or 4"},
      {kEight, 2, 2, 8,
       "trainer.parallel.tp: 8 doesn't divide the model's 4 num_key_value_heads; with 16 ranks use "
       "4"},
      {R"({"parallel": {"tp": 3}, "model": {"num_attention_heads": 8}})", 6, 6, 1,
       "trainer.parallel.tp: 3 doesn't divide the model's 8 num_key_value_heads; with 6 ranks use "
       "2"},
      {kTwo, 1, 1, 3,
       "trainer.parallel.tp: 2 doesn't divide the 3 ranks (workers x processes_per_worker); use 1, "
       "or 2 or 4 ranks"},
      {kUnknown, 2, 2, 3,
       "trainer.parallel.tp: 4 doesn't divide the 6 ranks (workers x processes_per_worker); use 3 "
       "or 6, or 4 or 8 ranks"},
      {kUnknown, 1, 1, 1,
       "trainer.parallel.tp: 4 doesn't divide the 1 rank (workers x processes_per_worker); use 1, "
       "or 4 ranks (workers: 4, or one worker with gpus: 4)"},
      {kUnknown, 1, 1, 3,
       "trainer.parallel.tp: 4 doesn't divide the 3 ranks (workers x processes_per_worker); use 3, "
       "or 4 ranks (one worker with gpus: 4)"},
      {kEight, 1, 1, 1,
       "trainer.parallel.tp: 8 doesn't divide the model's 4 num_key_value_heads; with 1 rank use "
       "1; 4 slices need 4 ranks (workers: 4, or one worker with gpus: 4)"},
      {R"({"parallel": {"tp": 16}})", 1, 1, 1,
       "trainer.parallel.tp: 16 doesn't divide the 1 rank (workers x processes_per_worker); use 1, "
       "or 16 ranks (workers: 16)"},
      {kTwo, 2, 6, 1,
       "trainer.parallel.tp: 2 must divide the ranks of a gang of 2 to 6 workers, whatever its "
       "size: use 1, which divides the 1 process of a worker, or give workers multiple_of: 2"},
  };
  for (const Case& c : cases)
    EXPECT_EQ(Check(c), c.said) << c.trainer << " " << c.min_workers << " " << c.processes;
}

TEST(TrainerLayout, PartsOfRowsThatCantBeAreRefusedWithTheNearestThatCan) {
  constexpr char kFour[] = R"({"parallel": {"cp": 4}})";
  constexpr char kSliced[] = R"({"parallel": {"cp": 2, "tp": 2}})";
  const Case cases[] = {
      {kFour, 8, 8, 1, ""},
      {kFour, 1, 7, 4, ""},
      {kSliced, 12, 12, 1, ""},
      {R"({"parallel": {"cp": 1}, "shard_size": 3})", 6, 6, 1, ""},
      {R"({"parallel": {"cp": 2, "tp": 2, "pp": 2, "ep": 4}})", 8, 8, 1, ""},
      {kFour, 6, 6, 1,
       "trainer.parallel.cp: 4 parts don't divide the 6 ranks (workers x processes_per_worker); "
       "use 3 or 6, or 4 or 8 ranks"},
      {kSliced, 6, 6, 1,
       "trainer.parallel.cp: 2 parts of 2 ranks (tp) don't divide the 6 ranks (workers x "
       "processes_per_worker); use 1 or 3, or 4 or 8 ranks"},
      {R"({"parallel": {"cp": 2, "pp": 2}})", 6, 6, 1,
       "trainer.parallel.pp: 2 stages of 2 ranks (cp) don't divide the 6 ranks (workers x "
       "processes_per_worker); use 1 or 3, or 4 or 8 ranks"},
      {R"({"parallel": {"cp": 2, "tp": 2, "pp": 2}})", 12, 12, 1,
       "trainer.parallel.pp: 2 stages of 4 ranks (tp times cp) don't divide the 12 ranks (workers "
       "x processes_per_worker); use 1 or 3, or 8 or 16 ranks"},
      {R"({"parallel": {"cp": 4}, "shard_size": 6})", 2, 2, 4,
       "trainer.shard_size: 6 is no multiple of parallel.cp, 4; use 8, or leave it out"},
      {R"({"parallel": {"cp": 2, "tp": 2}, "shard_size": 6})", 2, 2, 4,
       "trainer.shard_size: 6 is no multiple of parallel.tp times parallel.cp, 4; use 8, or leave "
       "it out"},
      {R"({"parallel": {"cp": 2}, "cuda_graphs": true})", 2, 2, 4,
       "trainer.cuda_graphs: does not go together with parallel.cp; leave one of them out"},
      {R"({"parallel": {"cp": 2}, "lora": {"rank": 8, "dropout": 0.1}})", 2, 2, 4,
       "trainer.lora.dropout: does not go together with parallel.cp; leave one of them out"},
      {R"({"parallel": {"cp": 2}, "lora": {"rank": 8, "dropout": 0}})", 2, 2, 4, ""},
      {kFour, 2, 6, 2,
       "trainer.parallel.cp: 4 parts must divide the ranks of a gang of 2 to 6 workers, whatever "
       "its size: use 2, which divides the 2 processes of a worker, or give workers multiple_of: "
       "2"},
  };
  for (const Case& c : cases)
    EXPECT_EQ(Check(c), c.said) << c.trainer << " " << c.min_workers << " " << c.processes;
}

TEST(TrainerLayout, WorkersInMultiplesHoldWhatDividesEachOfThem) {
  constexpr char kEight[] = R"({"parallel": {"tp": 4, "pp": 2}})";
  const Case cases[] = {
      {kEight, 4, 16, 2, "", 4},
      {kEight, 8, 16, 1, "", 8},
      {kEight, 4, 12, 2,
       "trainer.parallel.pp: 2 stages of 4 ranks (tp) must divide the ranks of a gang of 4 to 12 "
       "workers, whatever its size: use 1, which divides the 4 processes of 2 workers, or give "
       "workers multiple_of: 4",
       2},
      {R"({"parallel": {"tp": 8}})", 1, 4, 1,
       "trainer.parallel.tp: 8 must divide the ranks of a gang of 1 to 4 workers, whatever its "
       "size: use 1, which divides the 1 process of a worker, or give it 8 ranks (workers: 8, or "
       "one worker with gpus: 8)"},
  };
  for (const Case& c : cases)
    EXPECT_EQ(Check(c), c.said) << c.trainer << " " << c.min_workers << " " << c.multiple_of;
}

TEST(TrainerLayout, StagesThatCantBeAreRefusedWithTheNearestThatCan) {
  constexpr char kThree[] = R"({"parallel": {"pp": 3}, "model": {"num_hidden_layers": 8}})";
  constexpr char kTwelve[] = R"({"parallel": {"pp": 12}, "model": {"num_hidden_layers": 8}})";
  const Case cases[] = {
      {kThree, 6, 6, 1, ""},
      {R"({"parallel": {"pp": 1}, "model": {"num_hidden_layers": 8}})", 5, 5, 1, ""},
      {R"({"parallel": {"pp": 2, "tp": 2, "pipeline": "zero_bubble"}})", 1, 7, 4, ""},
      {R"({"parallel": {"pp": 4, "pipeline": "interleaved"}, "model": {"num_hidden_layers": 8}})",
       4, 4, 1, ""},
      {kThree, 8, 8, 1,
       "trainer.parallel.pp: 3 stages don't divide the 8 ranks (workers x processes_per_worker); "
       "use 2 or 4, or 6 or 9 ranks"},
      {R"({"parallel": {"pp": 3, "tp": 2}})", 8, 8, 1,
       "trainer.parallel.pp: 3 stages of 2 ranks (tp) don't divide the 8 ranks (workers x "
       "processes_per_worker); use 2 or 4, or 6 or 12 ranks"},
      {kTwelve, 12, 12, 1,
       "trainer.parallel.pp: 12 stages need 12 layers, and the model has 8; with 12 ranks use 6"},
      {kTwelve, 1, 1, 1,
       "trainer.parallel.pp: 12 stages need 12 layers, and the model has 8; with 1 rank use 1; 8 "
       "stages need 8 ranks (workers: 8, or one worker with gpus: 8)"},
      {R"({"parallel": {"pp": 4, "pipeline": "interleaved", "chunks": 3},
           "model": {"num_hidden_layers": 8}})",
       4, 4, 1,
       "trainer.parallel.pp: 4 stages of 3 chunks need 12 layers, and the model has 8; with 4 "
       "ranks use 2, or chunks: 2"},
      {R"({"parallel": {"pp": 2, "pipeline": "interleaved"}, "model": {"num_hidden_layers": 3}})",
       2, 2, 1,
       "trainer.parallel.pp: 2 stages of 2 chunks need 4 layers, and the model has 3; with 2 ranks "
       "use 1, or pipeline: 1f1b"},
      {R"({"parallel": {"pp": 6, "pipeline": "interleaved"}, "model": {"num_hidden_layers": 4}})",
       6, 6, 1,
       "trainer.parallel.pp: 6 stages of 2 chunks need 12 layers, and the model has 4; with 6 "
       "ranks use 2"},
      {kThree, 2, 6, 1,
       "trainer.parallel.pp: 3 stages must divide the ranks of a gang of 2 to 6 workers, whatever "
       "its size: use 1, which divides the 1 process of a worker, or give workers a min and max "
       "that are multiples of 3"},
      {R"({"parallel": {"pp": 2}, "cuda_graphs": true})", 2, 2, 4,
       "trainer.cuda_graphs: does not go together with parallel.pp; leave one of them out"},
      {R"({"parallel": {"pp": 2, "pipeline": "zero_bubble"}, "recompute": "full"})", 2, 2, 4,
       "trainer.parallel.pipeline: zero_bubble does not go together with recompute: full; use "
       "keep_attention, or 1f1b"},
      {R"({"parallel": {"pp": 2, "pipeline": "zero_bubble"}, "zero_stage": 3})", 2, 2, 4,
       "trainer.parallel.pipeline: zero_bubble does not go together with zero_stage: 2 or 3; use "
       "1, or 1f1b"},
      {R"({"parallel": {"pp": 2, "pipeline": "zero_bubble"}, "deterministic": true})", 2, 2, 4,
       "trainer.parallel.pipeline: zero_bubble does not go together with deterministic: true; "
       "leave that out, as pipelines give the same bits without, or use 1f1b"},
      {R"({"parallel": {"pp": 2, "pipeline": "zero_bubble"}, "dtype": "bf16",
           "gradient_dtype": "bf16"})",
       2, 2, 4,
       "trainer.parallel.pipeline: zero_bubble does not go together with gradient_dtype: bf16; use "
       "fp32, or 1f1b"},
  };
  for (const Case& c : cases)
    EXPECT_EQ(Check(c), c.said) << c.trainer << " " << c.min_workers << " " << c.processes;
}

TEST(TrainerLayout, ExpertsThatCantBeSharedOutAreRefusedWithTheNearestThatCan) {
  constexpr char kFour[] = R"({"parallel": {"ep": 4}, "model": {"num_experts": 8}})";
  constexpr char kSix[] = R"({"parallel": {"ep": 6}, "model": {"num_local_experts": 8}})";
  const Case cases[] = {
      {kFour, 8, 8, 1, ""},
      {kFour, 1, 7, 4, ""},
      {R"({"parallel": {"ep": 1}, "model": {"num_experts": 3}})", 5, 5, 1, ""},
      {R"({"parallel": {"ep": 4, "tp": 2, "pp": 2}, "init": "/models/moe"})", 8, 8, 1, ""},
      {R"({"parallel": {"ep": 4}, "shard_size": 8})", 2, 2, 8, ""},
      {kSix, 12, 12, 1,
       "trainer.parallel.ep: 6 doesn't divide the model's 8 experts; with 12 ranks use 4"},
      {kSix, 2, 2, 1,
       "trainer.parallel.ep: 6 doesn't divide the model's 8 experts; with 2 ranks use 2; 4 parts "
       "of them need 4 ranks (workers: 4, or one worker with gpus: 4)"},
      {R"({"parallel": {"ep": 6, "tp": 3}, "model": {"num_experts": 8}})", 3, 3, 1,
       "trainer.parallel.ep: 6 doesn't divide the model's 8 experts; with 3 ranks use 1; 4 parts "
       "of them need 12 ranks (workers: 12)"},
      {R"({"parallel": {"ep": 6}, "model": {"n_routed_experts": 8}})", 12, 12, 1,
       "trainer.parallel.ep: 6 doesn't divide the model's 8 experts; with 12 ranks use 4"},
      {R"({"parallel": {"ep": 2}, "model": {"num_hidden_layers": 8}})", 4, 4, 1,
       "trainer.parallel.ep: is for models with experts, and this one has none; leave it out"},
      {R"({"parallel": {"ep": 16}, "model": {"num_experts": 8}})", 16, 16, 1,
       "trainer.parallel.ep: 16 doesn't divide the model's 8 experts; with 16 ranks use 8"},
      {kFour, 6, 6, 1,
       "trainer.parallel.ep: 4 doesn't divide the 6 ranks (workers x processes_per_worker); use 2, "
       "or 4 or 8 ranks"},
      {R"({"parallel": {"ep": 4, "pp": 2}})", 4, 4, 1,
       "trainer.parallel.ep: 4 ranks of each of 2 stages don't divide the 4 ranks (workers x "
       "processes_per_worker); use 2, or 8 ranks (workers: 8, or one worker with gpus: 8)"},
      {R"({"parallel": {"ep": 4}, "shard_size": 2})", 8, 8, 1,
       "trainer.parallel.ep: 4 doesn't divide shard_size, 2; use 2"},
      {kFour, 2, 6, 2,
       "trainer.parallel.ep: 4 must divide the ranks of a gang of 2 to 6 workers, whatever its "
       "size: use 2, which divides the 2 processes of a worker, or give workers multiple_of: 2"},
      {R"({"parallel": {"ep": 2}, "cuda_graphs": true})", 2, 2, 4,
       "trainer.cuda_graphs: does not go together with parallel.ep; leave one of them out"},
  };
  for (const Case& c : cases)
    EXPECT_EQ(Check(c), c.said) << c.trainer << " " << c.min_workers << " " << c.processes;
}

TEST(TrainerLayout, RanksThatShareOneCopyDivideThoseOfAStage) {
  constexpr char kEight[] = R"({"shard_size": 8})";
  const Case cases[] = {
      {kEight, 2, 2, 4, ""},
      {kEight, 2, 4, 4, "", 2},
      {R"({"shard_size": 8, "parallel": "auto"})", 3, 3, 4, ""},
      {R"({"shard_size": 4, "parallel": {"pp": 2}})", 2, 2, 4, ""},
      {R"({"shard_size": 16777217})", 2, 2, 4, ""},
      {kEight, 3, 3, 4,
       "trainer.shard_size: 8 ranks that share one copy don't divide the 12 ranks (workers x "
       "processes_per_worker); use 6 or 12, or 8 or 16 ranks"},
      {R"({"shard_size": 8, "parallel": {"tp": 2, "pp": 2}})", 2, 2, 4,
       "trainer.shard_size: 8 ranks that share one copy of each of 2 stages don't divide the 8 "
       "ranks (workers x processes_per_worker); use 4, or 16 ranks (workers: 4)"},
      {kEight, 1, 4, 4,
       "trainer.shard_size: 8 ranks that share one copy must divide the ranks of a gang of 1 to 4 "
       "workers, whatever its size: use 4, which divides the 4 processes of a worker, or give "
       "workers a min and max that are multiples of 2"},
  };
  for (const Case& c : cases)
    EXPECT_EQ(Check(c), c.said) << c.trainer << " " << c.min_workers << " " << c.processes;
}

TEST(TrainerPaths, AnExportGoesToADirectoryOrAPrefixOfABucket) {
  const auto said = [](const char* field, const char* given) {
    std::string text;
    CheckTrainerPaths({{field, given}}, "trainer",
                      [&](const std::string& path, const std::string& message, Document::Where) {
                        text = path + ": " + message;
                      });
    return text;
  };
  for (const char* good :
       {"model", "/models/new", "s3://acme/models/new", "s3://acme/a/{{index}}/"})
    EXPECT_EQ(said("export", good), "") << good;
  for (const char* bad : {"gs://acme/model", "s3://", "s3://acme", "s3://acme//", "s3:///model",
                          "s3://ac/model", "s3://Acme/model", "s3://acme/a//b", "s3://acme/a/..",
                          "s3://acme-{{index}}/a", "s3://acme-{user}/a"})
    EXPECT_EQ(said("export", bad),
              "trainer.export: " + WhyNoObjectPlace(bad, ObjectPlace::kPrefix) +
                  ". Or give a directory, absolute or under the job's directory");
  EXPECT_NE(said("init", "s3://acme/model"), "");
  for (const char* good :
       {"", "s3://acme", "s3://acme/runs/", "s3://Acme_2/runs", "s3://acme/a//b"})
    EXPECT_EQ(said("checkpoints", good), "") << good;
  EXPECT_EQ(said("checkpoints", "/data/run"),
            "trainer.checkpoints: must be s3://BUCKET/PREFIX; got /data/run. A directory is the "
            "job's checkpoint.storage");
  EXPECT_EQ(said("checkpoints", "s3://acme/{{index}}"),
            "trainer.checkpoints: {{…}} is replaced in export alone; leave it out: each member has "
            "a place of its own below PREFIX");
}

}  // namespace
}  // namespace muster
