#include "trainer/loop/config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "trainer/loop/guard.h"
#include "trainer/loop/mfu.h"
#include "trainer/model/families.h"
#include "trainer/optim/lr_schedule.h"

namespace muster::trainer {
namespace {

using nlohmann::json;

json GoodModel() {
  return {{"model_type", "llama"},   {"vocab_size", 100},      {"hidden_size", 64},
          {"intermediate_size", 96}, {"num_hidden_layers", 2}, {"num_attention_heads", 4},
          {"num_key_value_heads", 2}};
}
json GoodConfig() {
  return {{"model", GoodModel()},   {"data", "d"},      {"max_length", 64},
          {"global_batch_size", 8}, {"max_steps", 100}, {"learning_rate", 1e-3}};
}

// Text of the problems of the good value with `change` merged in (null removes a key).
std::string Problem(const json& good, const json& change, bool model) {
  json value = good;
  value.merge_patch(change);
  Problems problems;
  if (model)
    ParseModelConfig(value, "model", /*strict=*/true, problems);
  else
    ParseTrainConfig(value, problems);
  return ToText(problems);
}

TEST(TrainConfig, BadValuesAreRefusedWithKeyAndRemedy) {
  EXPECT_EQ(Problem(GoodConfig(), json::object(), false), "");
  struct Case {
    json change;
    const char* wanted;
  };
  const Case cases[] = {
      {{{"learning_rate", 0}}, "trainer.learning_rate: must be a number above 0"},
      {{{"learning_rate", "1e-3"}}, "trainer.learning_rate: must be a number"},
      {{{"max_steps", 1.5}}, "trainer.max_steps: must be a whole number"},
      {{{"max_steps", nullptr}}, "trainer.max_steps: is missing"},
      {{{"zero_stage", 4}}, "trainer.zero_stage: must be a whole number from 0 to 3"},
      {{{"zero_stage", 0}, {"shard_size", 2}}, "trainer.shard_size: is for zero_stage 1 to 3"},
      {{{"masters", "split"}}, "trainer.masters: is for dtype: bf16"},
      {{{"dtype", "bf16"}, {"masters", "split"}, {"offload", "optimizer"}},
       "trainer.masters: split saves memory beside the weights"},
      {{{"gradient_dtype", "bf16"}}, "trainer.gradient_dtype: is for dtype: bf16"},
      {{{"offload", "parameters"}},
       "trainer.offload: parameters come block by block, as zero_stage: 3"},
      {{{"parallel", "auto"}, {"router_aux_loss", "batch"}},
       "trainer.micro_batch_size: is missing: router_aux_loss: batch is over all rows"},
      {{{"recompute", "some"}}, "one of none pointwise keep_attention full"},
      {{{"lr_scheduler_type", "warmup_stable_decay"}}, "trainer.decay_steps: is missing"},
      {{{"decay_steps", 5}}, "trainer.decay_steps: is for lr_scheduler_type: warmup_stable_decay"},
      {{{"lr_scheduler_type", "warmup_stable_decay"}, {"warmup_steps", 60}, {"decay_steps", 0.5}},
       "50 steps of decay and 60 of warm-up are more than max_steps, 100"},
      {{{"gradient_checkpointing", true}}, "use recompute: full"},
      {{{"dtype", "fp16"}}, "one of fp32 bf16"},
      {{{"deterministic", 1}}, "true, false or elastic"},
      {{{"deterministic", "elastic"}, {"micro_batch_size", 2}, {"parallel", "auto"}},
       "elastic keeps one layout for all numbers of ranks"},
      {{{"deterministic", "elastic"}, {"micro_batch_size", 2}, {"moments", "int8"}},
       "trainer.moments: int8 doesn't go with deterministic: elastic"},
      {{{"deterministic", "elastic"},
        {"micro_batch_size", 2},
        {"parallel", {{"pp", 2}, {"pipeline", "zero_bubble"}}}},
       "trainer.parallel.pipeline: zero_bubble puts off gradients of weights: deterministic: "
       "elastic sums"},
      {{{"deterministic", "elastic"}}, "trainer.micro_batch_size: is missing"},
      {{{"deterministic", "elastic"},
        {"micro_batch_size", 2},
        {"dtype", "bf16"},
        {"gradient_dtype", "bf16"}},
       "bf16 doesn't go with deterministic: elastic"},
      {{{"lr", 1}}, "trainer.lr: use learning_rate"},
      {{{"max_lenght", 1}}, "Did you mean max_length?"},
      {{{"init", "x"}}, "exclude each other"},
      {{{"model", nullptr}}, "give init"},
      {{{"warmup_steps", 101}}, "trainer.warmup_steps"},
      {{{"micro_batch_size", 9}}, "above global_batch_size"},
      {{{"data", ""}}, "trainer.data: must be text"},
      {{{"data", nullptr}}, "trainer.data: give data"},
      {{{"mixture", {{{"data", "a"}, {"weight", 1}}}}}, "data and mixture exclude each other"},
      {{{"data", nullptr}, {"mixture", json::array()}}, "trainer.mixture: must be a list of maps"},
      {{{"data", nullptr}, {"mixture", {{{"data", "a"}}}}},
       "trainer.mixture[0]: must be a map with data and weight"},
      {{{"data", nullptr},
        {"mixture", {{{"data", "a"}, {"weight", 1}}, {{"data", "b"}, {"weight", 0}}}}},
       "trainer.mixture[1].weight: must be a number above 0"},
      {{{"packing", "best"}}, "one of wrapped bfd none balanced"},
      {{{"packing", "bfd"}, {"document_mask", true}},
       "trainer.document_mask: is for packing: wrapped"},
      {{{"max_row_length", 64}}, "trainer.max_row_length: is for packing: balanced"},
      {{{"packing", "balanced"}, {"max_row_length", 63}}, "63 is below max_length, 64"},
      {{{"lora", {{"rank", 4}}}}, "trainer.lora: adapters stand beside trained weights; give init"},
      {{{"checkpoints", "/data/run"}},
       "trainer.checkpoints: must be s3://BUCKET/PREFIX; got /data/run"},
      {{{"export", "gs://acme/model"}},
       "trainer.export: must be s3://BUCKET/PREFIX; got gs://acme/model. Or give a directory"},
      {{{"export", "s3://"}}, "trainer.export: must be s3://BUCKET/PREFIX"},
      {{{"export", "s3:///model"}}, "trainer.export: must be s3://BUCKET/PREFIX"},
      {{{"export", "s3://acme"}}, "trainer.export: must be s3://BUCKET/PREFIX"},
      {{{"export", "s3://acme//"}}, "trainer.export: must be s3://BUCKET/PREFIX"},
      {{{"export", "s3://Acme/model"}}, "BUCKET has 3 to 63 of [a-z0-9.-]"},
      {{{"export", "s3://ac/model"}}, "BUCKET has 3 to 63 of [a-z0-9.-]"},
      {{{"export", "s3://acme/a//b"}}, "no part of PREFIX is empty"},
      {{{"export", "s3://acme/a/../b"}}, "no part of PREFIX is empty"},
      {{{"export", "s3://acme/a\n"}}, "has control characters"},
      {{{"lora", {{"r", 4}}}}, "trainer.lora.r: use rank"},
      {{{"lora", {{"rank", 0}}}}, "trainer.lora.rank: must be a whole number from 1"},
      {{{"lora", {{"rank", 4}, {"dropout", 1}}}},
       "trainer.lora.dropout: must be a number from 0 to below 1"},
      {{{"lora", {{"rank", 4}, {"target_modules", "q_proj"}}}},
       "trainer.lora.target_modules: must be a list"},
      {{{"lora", {{"rank", 4}, {"target_modules", {"(q"}}}}},
       "(q is neither a name nor a regular expression"},
      {{{"eval_sequences", 5}}, "trainer.eval_sequences: is for evaluations"},
      {{{"eval_steps", 5}}, "use eval_interval"},
  };
  for (const Case& c : cases)
    EXPECT_NE(Problem(GoodConfig(), c.change, false).find(c.wanted), std::string::npos)
        << c.change << "\n"
        << Problem(GoodConfig(), c.change, false);
}

TEST(TrainConfig, KeysOfParallelAreSaidToStandThere) {
  const nlohmann::ordered_json schema = ParallelSchema();
  for (const auto& [name, unused] : schema["properties"].items()) {
    json change;
    change[name] = 2;
    EXPECT_EQ(Problem(GoodConfig(), change, false),
              absl::StrCat("  trainer.", name, ": it stands in parallel: use parallel: {", name,
                           ": …}\n"));
  }
}

TEST(TrainConfig, AnExportGoesToADirectoryOrAPrefixOfABucket) {
  for (const char* place : {"model", "/shared/model", "s3://acme/model", "s3://a.b-1/x y/1=é//"})
    EXPECT_EQ(Problem(GoodConfig(), {{"export", place}}, false), "") << place;
}

TEST(TrainConfig, CheckpointsGoToABucketWhateverItIsCalled) {
  for (const char* place : {"s3://acme", "s3://acme/runs/", "s3://Acme_2/a//b", "s3://ac/../x"})
    EXPECT_EQ(Problem(GoodConfig(), {{"checkpoints", place}}, false), "") << place;
}

TEST(TrainConfig, LayoutsThatDontMakeUpTheWorldAreRefusedWithWhatWould) {
  struct Case {
    json change;
    int ranks;
    bool gpus;
    const char* wanted;
    bool kernels = false;
  };
  for (const Case& c :
       {Case{{{"shard_size", 4}},
             6,
             false,
             "trainer.shard_size: 4 doesn't divide the 6 ranks; use one of 1, 2, 3, 6"},
        {{{"shard_size", 3}}, 6, false, ""},
        {{{"shard_size", 8}}, 4, false, "use one of 1, 2, 4"},
        {{{"moments", "bf16"}},
         1,
         true,
         "trainer.moments: bf16 needs our own kernels on GPUs; build with nvcc"},
        {{{"moments", "bf16"}, {"offload", "optimizer"}}, 1, true, ""},
        {{{"dtype", "bf16"}, {"masters", "split"}},
         1,
         true,
         "trainer.masters: split needs our own kernels"},
        {{{"dtype", "bf16"}, {"masters", "split"}, {"moments", "bf16"}}, 1, true, "", true},
        {{{"moments", "bf16"}, {"reference_ops", true}}, 1, true, "leave out reference_ops", true},
        {{{"dtype", "bf16"}, {"masters", "split"}, {"moments", "bf16"}}, 1, false, ""}}) {
    json value = GoodConfig();
    value.merge_patch(c.change);
    Problems problems;
    const TrainConfig config = ParseTrainConfig(value, problems);
    CheckLayout(config, ModelConfig(), c.ranks, c.gpus, c.kernels, problems);
    EXPECT_NE(ToText(problems).find(c.wanted), std::string::npos) << ToText(problems);
    EXPECT_EQ(problems.empty(), *c.wanted == '\0') << ToText(problems);
  }
}

TEST(Guard, FindsWhatIsNotFiniteAndWhatJumps) {
  Guard guard(2, 2);
  const double nan = std::nan("");
  for (int i = 0; i < 10; ++i) EXPECT_EQ(guard.Judge(3, 1), "");
  EXPECT_EQ(guard.Judge(5.9, 1), "");
  EXPECT_NE(guard.Judge(7, 1), "");
  EXPECT_TRUE(guard.MaySkip());
  EXPECT_NE(guard.Judge(nan, 1).find("not finite"), std::string::npos);
  EXPECT_TRUE(guard.MaySkip());
  EXPECT_NE(guard.Judge(3, nan), "");
  EXPECT_FALSE(guard.MaySkip()) << "three in a row where two may be";
  EXPECT_EQ(guard.Judge(3, 1), "");
  EXPECT_TRUE(guard.MaySkip());
  EXPECT_EQ(guard.skipped(), 3);
  Guard resumed(2, 2), fresh(2, 2);
  resumed.Restore(guard.recent());
  EXPECT_NE(resumed.Judge(7, 1), "");
  EXPECT_EQ(fresh.Judge(7, 1), "") << "too few losses to tell";
  Guard off(0, 0);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(off.Judge(1, 1), "");
  EXPECT_EQ(off.Judge(1e9, 1), "");
  off.Judge(nan, 1);
  EXPECT_FALSE(off.MaySkip());
}

TEST(TrainConfig, WarmupBelowOneIsAShareOfTheSteps) {
  Problems problems;
  json value = GoodConfig();
  value["warmup_steps"] = 0.03;
  EXPECT_EQ(ParseTrainConfig(value, problems).WarmupSteps(), 3);
  value["warmup_steps"] = 7;
  EXPECT_EQ(ParseTrainConfig(value, problems).WarmupSteps(), 7);
}

TEST(Lora, PatternsMeanModulesAsInPeft) {
  struct Case {
    const char* pattern;
    bool q, down;
  };
  for (const Case& c : {Case{"q_proj", true, false},
                        {"proj", false, false},
                        {"self_attn.q_proj", true, false},
                        {"all-linear", true, true},
                        {R"(model\.layers\.1\..*)", true, true},
                        {R"(model\.layers\.[02]\..*)", false, false},
                        {"_proj", false, false}}) {
    EXPECT_EQ(MatchesModule(c.pattern, "model.layers.1.self_attn.q_proj"), c.q) << c.pattern;
    EXPECT_EQ(MatchesModule(c.pattern, "model.layers.1.mlp.down_proj"), c.down) << c.pattern;
  }
  Problems problems;
  ModelConfig model = ParseModelConfig(GoodModel(), "model", true, problems);
  EXPECT_EQ(
      TargetModules(model, {.rank = 1, .target_modules = {"q_proj", "model.layers.1.mlp.up_proj"}},
                    "trainer.lora", problems)
          .size(),
      3u);
  EXPECT_TRUE(problems.empty());
  EXPECT_FALSE(MatchesModule("all-linear", "lm_head"));
  EXPECT_EQ(TargetModules(model, {.rank = 1, .target_modules = {"lm_head", "down_proj"}},
                          "trainer.lora", problems)
                .back(),
            "lm_head");
  EXPECT_TRUE(problems.empty());
  model.tie_word_embeddings = true;
  TargetModules(model, {.rank = 1, .target_modules = {"lm_head", "norm"}}, "trainer.lora",
                problems);
  EXPECT_NE(
      ToText(problems).find("trainer.lora.target_modules: lm_head is this model's embedding, too"),
      std::string::npos);
  EXPECT_NE(ToText(problems).find("trainer.lora.target_modules: norm means no linear"),
            std::string::npos);
}

TEST(ModelConfig, BadModelsAreRefusedWithFieldAndRemedy) {
  EXPECT_EQ(Problem(GoodModel(), json::object(), true), "");
  struct Case {
    json change;
    const char* wanted;
  };
  const Case cases[] = {
      {{{"model_type", "gpt2"}},
       "model.model_type: \"gpt2\" can't be trained; can be: llama, mistral, qwen2, qwen3, "
       "mixtral, "
       "qwen3_moe"},
      {{{"architectures", {"Qwen3ForCausalLM"}}},
       "model.architectures: [\"Qwen3ForCausalLM\"] can't be trained with model_type llama"},
      {{{"model_type", nullptr}, {"architectures", {"GPT2LMHeadModel"}}},
       "model.architectures: [\"GPT2LMHeadModel\"] can't be trained; can be: LlamaForCausalLM"},
      {{{"num_experts", 4}}, "model.num_experts: has no meaning for model_type llama; remove it"},
      {{{"model_type", "mixtral"}}, "model.num_local_experts: is missing"},
      {{{"model_type", "mixtral"}, {"num_local_experts", 4}, {"num_experts_per_tok", 5}},
       "model.num_experts_per_tok: 5 is above num_local_experts, 4; a token can't meet more"},
      {{{"model_type", "mixtral"},
        {"num_local_experts", 4},
        {"num_experts_per_tok", 2},
        {"norm_topk_prob", false}},
       "model.norm_topk_prob: has no meaning for model_type mixtral"},
      {{{"model_type", "mixtral"},
        {"num_local_experts", 4},
        {"num_experts_per_tok", 2},
        {"router_jitter_noise", 0.1}},
       "model.router_jitter_noise: 0.1 can't be trained; use 0"},
      {{{"vocab_size", nullptr}}, "model.vocab_size: is missing"},
      {{{"vocab_size", -1}}, "model.vocab_size: must be"},
      {{{"vocab_size", 1'000'000'000}},
       "model.vocab_size: must be a whole number from 1 to 100000000; got 1000000000"},
      {{{"hidden_size", 1'000'000'000}},
       "model.hidden_size: must be a whole number from 1 to 1000000; got 1000000000"},
      {{{"num_hidden_layers", 1'000'000'000}},
       "model.num_hidden_layers: must be a whole number from 1 to 10000; got 1000000000"},
      {{{"model_type", "mixtral"},
        {"num_local_experts", 1'000'000'000},
        {"num_experts_per_tok", 1}},
       "model.num_local_experts: must be a whole number from 1 to 10000; got 1000000000"},
      {{{"model_type", "mixtral"},
        {"num_hidden_layers", 10'000},
        {"num_local_experts", 10'000},
        {"num_experts_per_tok", 2}},
       "model: 10000 experts in each of 10000 layers (num_hidden_layers) are more than 200000"},
      {{{"hidden_size", 1'000'000},
        {"intermediate_size", 10'000'000},
        {"num_hidden_layers", 10'000}},
       "model: its sizes (vocab_size, hidden_size, num_hidden_layers and their like) make a model "
       "of more than 10^15 parameters"},
      {{{"num_key_value_heads", 3}}, "model.num_key_value_heads: 3 doesn't divide"},
      {{{"hidden_size", 66}}, "model.hidden_size: 66 is no multiple"},
      {{{"head_dim", 15}}, "model.head_dim: 15 is odd"},
      {{{"attention_bias", 1}}, "model.attention_bias: must be true or false"},
      {{{"model_type", "mistral"}, {"attention_bias", true}},
       "model.attention_bias: contradicts model_type mistral"},
      {{{"model_type", "qwen2"}, {"attention_bias", false}},
       "model.attention_bias: contradicts model_type qwen2"},
      {{{"model_type", "qwen3"}, {"mlp_bias", true}},
       "model.mlp_bias: has no meaning for model_type qwen3"},
      {{{"model_type", "mistral"}, {"num_key_value_heads", nullptr}},
       "model.num_key_value_heads: is missing"},
      {{{"sliding_window", 8}}, "model.sliding_window: has no meaning for model_type llama"},
      {{{"model_type", "mistral"}, {"sliding_window", 0}},
       "model.sliding_window: must be a whole number from 1"},
      {{{"model_type", "mistral"}, {"layer_types", {"full_attention", "full_attention"}}},
       "model.layer_types: contradicts sliding_window"},
      {{{"model_type", "qwen2"}, {"layer_types", {"full_attention"}}},
       "model.layer_types: must be a list of full_attention or sliding_attention, one for each of "
       "the 2 layers"},
      {{{"model_type", "qwen2"}, {"layer_types", {"full_attention", "sliding_attention"}}},
       "model.layer_types: names sliding_attention, but use_sliding_window is false"},
      {{{"model_type", "qwen2"}, {"max_window_layers", -1}},
       "model.max_window_layers: must be a whole number from 0"},
      {{{"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}}},
       "rope_parameters.partial_rotary_factor: 0.5 can't be trained"},
      {{{"rope_parameters", {{"rope_type", "yarn"}}}}, "rope_parameters.factor: is missing"},
      {{{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 2}, {"beta_fast", 0.5}}}},
       "rope_parameters.beta_fast: must be at least beta_slow"},
      {{{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 2}, {"low_freq_factor", 1}}}},
       "rope_parameters.low_freq_factor: has no meaning for this rope_type"},
      {{{"attention_dropout", 0.1}}, "model.attention_dropout"},
      {{{"hidden_act", "gelu"}}, "model.hidden_act"},
      {{{"rope_theta", 5e5}, {"rope_parameters", {{"rope_theta", 1e4}}}},
       "model.rope_theta: contradicts"},
      {{{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}}},
       "rope_scaling.rope_type: \"dynamic\" can't be trained; default, linear, llama3, yarn and "
       "longrope can"},
      {{{"rope_parameters", {{"rope_type", "linear"}}}}, "factor: is missing"},
      {{{"dtype", "float32"}, {"torch_dtype", "bfloat16"}}, "contradicts dtype"},
      {{{"num_layers", 3}}, "model.num_layers: no such field"},
      {{{"eos_token_id", 100}}, "model.eos_token_id: 100"},
  };
  for (const Case& c : cases)
    EXPECT_NE(Problem(GoodModel(), c.change, true).find(c.wanted), std::string::npos)
        << c.change << "\n"
        << Problem(GoodModel(), c.change, true);
}

TEST(ModelConfig, TheSchemaNamesWhatIsTaken) {
  const nlohmann::ordered_json schema = ModelSchema();
  EXPECT_EQ(schema["additionalProperties"], false);
  for (const std::string key : schema["required"]) {
    json value = GoodModel();
    value.erase(key);
    Problems problems;
    ParseModelConfig(value, "model", true, problems);
    EXPECT_NE(ToText(problems).find(absl::StrCat("model.", key, ": is missing")),
              std::string::npos);
  }
  for (const auto& [key, property] : schema["properties"].items()) {
    EXPECT_NE(property.value("description", ""), "") << key;
    Problems problems;
    const bool required = std::find(schema["required"].begin(), schema["required"].end(), key) !=
                          schema["required"].end();
    json value = GoodModel();
    if (!required) value[key] = nullptr;  // as a config.json may have it
    ParseModelConfig(value, "model", true, problems);
    EXPECT_EQ(ToText(problems), "") << key;
  }
  for (const FamilyFields& family : kFamilies) {
    ModelConfig config;
    config.family = family.model_type;
    config.rope.type = "yarn";
    config.sliding_window = 8;
    config.num_layers = 1;
    config.sliding_layers = {true};
    const nlohmann::ordered_json written = ToHuggingFace(config, "float32");
    for (const auto& [key, value] : written.items())
      EXPECT_TRUE(schema["properties"].contains(key)) << key;
    for (const auto& [key, value] : written["rope_parameters"].items())
      EXPECT_TRUE(schema["properties"]["rope_parameters"]["properties"].contains(key)) << key;
  }
}

TEST(ModelConfig, FamiliesMeanWhatTransformersMeansByThem) {
  const auto parsed = [](const json& change) {
    json value = GoodModel();
    value.merge_patch(change);
    Problems problems;
    const ModelConfig config = ParseModelConfig(value, "model", true, problems);
    EXPECT_EQ(ToText(problems), "") << change;
    const ModelConfig again =
        ParseModelConfig(ToHuggingFace(config, "bfloat16"), "again", true, problems);
    EXPECT_EQ(ToText(problems), "") << change;
    EXPECT_TRUE(config.SameModel(again)) << change;
    EXPECT_EQ(config.NumParameters(), again.NumParameters()) << change;
    return config;
  };
  const auto windows = [](const ModelConfig& c) {
    return std::vector<int64_t>{c.Window(0), c.Window(1)};
  };
  using W = std::vector<int64_t>;
  const ModelConfig llama = parsed({{"attention_bias", true}, {"mlp_bias", true}});
  EXPECT_TRUE(llama.qkv_bias && llama.out_bias && llama.mlp_bias && !llama.qk_norm);
  const ModelConfig mistral = parsed({{"model_type", "mistral"}});
  EXPECT_FALSE(mistral.qkv_bias || mistral.out_bias || mistral.mlp_bias || mistral.qk_norm);
  EXPECT_EQ(windows(mistral), (W{4096, 4096}));
  EXPECT_EQ(mistral.max_position_embeddings, 131072);
  EXPECT_EQ(windows(parsed({{"model_type", "mistral"}, {"sliding_window", 8}})), (W{8, 8}));
  json unlimited = GoodModel();
  unlimited["model_type"] = "mistral", unlimited["sliding_window"] = nullptr;
  Problems problems;
  EXPECT_EQ(windows(ParseModelConfig(unlimited, "model", true, problems)), (W{0, 0}));
  const ModelConfig qwen2 = parsed({{"model_type", "qwen2"}, {"sliding_window", 8}});
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.out_bias && !qwen2.qk_norm);
  EXPECT_EQ(windows(qwen2), (W{0, 0})) << "use_sliding_window is false";
  EXPECT_EQ(windows(parsed({{"model_type", "qwen2"},
                            {"use_sliding_window", true},
                            {"sliding_window", 8},
                            {"max_window_layers", 1}})),
            (W{0, 8}));
  EXPECT_EQ(windows(parsed({{"model_type", "qwen2"},
                            {"use_sliding_window", true},
                            {"sliding_window", 8},
                            {"layer_types", {"sliding_attention", "full_attention"}}})),
            (W{8, 0}));
  const ModelConfig qwen3 =
      parsed({{"architectures", {"Qwen3ForCausalLM"}}, {"model_type", nullptr}});
  EXPECT_TRUE(qwen3.qk_norm && !qwen3.qkv_bias && !qwen3.out_bias);
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_TRUE(
      parsed({{"model_type", "qwen3"}, {"head_dim", 32}, {"attention_bias", true}}).out_bias);
  const json moe = {{"num_experts", 8}, {"num_experts_per_tok", 2}};
  json of_mixtral = moe, of_qwen = moe;
  of_mixtral["model_type"] = "mixtral";
  const ModelConfig mixtral = parsed(of_mixtral);
  EXPECT_EQ(mixtral.experts.width, mixtral.intermediate_size);
  EXPECT_EQ(mixtral.experts.sparse_layers, (std::vector<bool>{true, true}));
  EXPECT_TRUE(mixtral.experts.normalise);
  EXPECT_EQ(windows(mixtral), (W{0, 0}));
  EXPECT_EQ(mixtral.rope_theta, 1e6);
  EXPECT_EQ(mixtral.rms_norm_eps, 1e-5);
  of_qwen.update({{"model_type", "qwen3_moe"},
                  {"moe_intermediate_size", 24},
                  {"mlp_only_layers", {0}},
                  {"sliding_window", 8}});
  const ModelConfig qwen3_moe = parsed(of_qwen);
  EXPECT_TRUE(qwen3_moe.qk_norm && !qwen3_moe.experts.normalise);
  EXPECT_EQ(qwen3_moe.experts.sparse_layers, (std::vector<bool>{false, true}));
  EXPECT_EQ(qwen3_moe.head_dim, 16);
  EXPECT_EQ(windows(qwen3_moe), (W{0, 0})) << "use_sliding_window is false";
  of_qwen["use_sliding_window"] = true;
  EXPECT_EQ(windows(parsed(of_qwen)), (W{8, 8}));
  of_qwen.update({{"mlp_only_layers", json::array()}, {"decoder_sparse_step", 2}});
  EXPECT_EQ(parsed(of_qwen).experts.sparse_layers, (std::vector<bool>{false, true}));
  // A token meets two of eight.
  EXPECT_EQ(qwen3_moe.NumParameters() - qwen3_moe.NumActiveParameters(), 6 * 3 * 64 * 24);
  json of_dots = {{"model_type", "dots1"},     {"n_routed_experts", 8},
                  {"num_experts_per_tok", 3},  {"moe_intermediate_size", 24},
                  {"n_shared_experts", 2},     {"n_group", 4},
                  {"topk_group", 2},           {"routed_scaling_factor", 2.5},
                  {"first_k_dense_replace", 1}};
  const ModelConfig dots1 = parsed(of_dots);
  EXPECT_TRUE(dots1.qk_norm && dots1.experts.sigmoid && !dots1.experts.normalise);
  EXPECT_EQ(dots1.experts.sparse_layers, (std::vector<bool>{false, true}));
  EXPECT_EQ(dots1.experts.shared_width, 48);
  EXPECT_EQ(windows(dots1), (W{0, 0})) << "max_window_layers is 62";
  of_dots.update({{"sliding_window", 8}, {"max_window_layers", 1}});
  EXPECT_EQ(windows(parsed(of_dots)), (W{0, 8}));
  // A token meets three of eight, and the shared ones.
  EXPECT_EQ(dots1.NumParameters() - dots1.NumActiveParameters(), 5 * 3 * 64 * 24);
  const json others = {{"n_group", 2},
                       {"topk_group", 3},
                       {"routed_scaling_factor", 1},
                       {"n_shared_experts", 1},
                       {"first_k_dense_replace", 0}};
  for (const auto& [field, other] : others.items()) {
    json changed = of_dots;
    changed[field] = other;
    EXPECT_FALSE(parsed(of_dots).SameModel(parsed(changed))) << field;
  }
  EXPECT_FALSE(llama.SameModel(parsed(json::object())));
  EXPECT_FALSE(mistral.SameModel(parsed({{"model_type", "mistral"}, {"sliding_window", 8}})));
  EXPECT_EQ(ToHuggingFace(qwen3, "float32")["architectures"], json::array({"Qwen3ForCausalLM"}));
}

TEST(ModelConfig, YarnSurvivesTheRoundTrip) {
  json value = GoodModel();
  value["rope_parameters"] = {{"rope_type", "yarn"},   {"rope_theta", 1e6},
                              {"factor", 4.0},         {"original_max_position_embeddings", 32768},
                              {"beta_fast", 16},       {"mscale", 1.0},
                              {"mscale_all_dim", 0.5}, {"truncate", false}};
  Problems problems;
  const ModelConfig a = ParseModelConfig(value, "a", true, problems),
                    b = ParseModelConfig(ToHuggingFace(a, "float32"), "b", true, problems);
  EXPECT_EQ(ToText(problems), "");
  EXPECT_TRUE(a.SameModel(b));
  EXPECT_EQ(b.rope.beta_fast, 16);
  EXPECT_DOUBLE_EQ(b.rope.AttentionFactor(),
                   (0.1 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1));
  value["rope_parameters"].erase("original_max_position_embeddings");
  EXPECT_EQ(ParseModelConfig(value, "c", true, problems).rope.original_max_position_embeddings,
            2048)
      << "max_position_embeddings";
  EXPECT_EQ(ToText(problems), "");
}

TEST(ModelConfig, OldAndNewKeysMeanTheSameAndSurviveTheRoundTrip) {
  json old_keys = GoodModel(), new_keys = GoodModel();
  old_keys["rope_theta"] = 5e5;
  old_keys["rope_scaling"] = {{"type", "llama3"},
                              {"factor", 8.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 8192}};
  new_keys["rope_parameters"] = {
      {"rope_type", "llama3"},   {"rope_theta", 5e5},
      {"factor", 8.0},           {"low_freq_factor", 1.0},
      {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
  Problems problems;
  const ModelConfig a = ParseModelConfig(old_keys, "a", true, problems),
                    b = ParseModelConfig(new_keys, "b", true, problems);
  const ModelConfig c = ParseModelConfig(ToHuggingFace(a, "float32"), "c", true, problems);
  EXPECT_EQ(ToText(problems), "");
  EXPECT_TRUE(a.SameModel(b));
  EXPECT_TRUE(a.SameModel(c));
  EXPECT_EQ(a.rope.type, "llama3");
}

TEST(ChangedFields, TellsWhatIsNotTheSameGivenOrByDefault) {
  const json before = {{"max_steps", 40}, {"learning_rate", 1e-4}, {"seed", 42}, {"data", "a"}};
  EXPECT_EQ(ChangedFields(before, before), std::vector<std::string>{});
  EXPECT_EQ(
      ChangedFields(
          before, {{"max_steps", 40.0}, {"learning_rate", 1e-4}, {"zero_stage", 1}, {"data", "a"}}),
      std::vector<std::string>{})
      << "42 and 1 are the defaults";
  EXPECT_EQ(ChangedFields({{"lora", {{"rank", 8}}}}, {{"lora", {{"rank", 8}, {"dropout", 0}}}}),
            std::vector<std::string>{});
  EXPECT_EQ(ChangedFields({{"lora", {{"rank", 8}}}}, {{"lora", {{"rank", 4}}}}).size(), 1u);
  EXPECT_EQ(ChangedFields(before, {{"max_steps", 60},
                                   {"learning_rate", 1e-4},
                                   {"data", std::string(80, 'x')},
                                   {"export", "m"}}),
            (std::vector<std::string>{"data", "max_steps: 40 -> 60", "export: none -> \"m\""}));
}

TEST(ParseJson, SaysWhereItIsNotJson) {
  const struct {
    const char *text, *place;
  } kCases[] = {{"", "f.json:1:1: not JSON: "},
                {"{\"a\": ", "f.json:1:7: not JSON: "},
                {"{\n \"a\": 1,\n \"b\" 2}", "f.json:3:6: not JSON: "},
                {"[1]]", "f.json:1:4: not JSON: "}};
  for (const auto& one : kCases) {
    const auto parsed = ParseJson(one.text, "f.json");
    ASSERT_FALSE(parsed.ok()) << one.text;
    EXPECT_EQ(std::string(parsed.status().message()).substr(0, std::string(one.place).size()),
              one.place);
    EXPECT_EQ(std::string(parsed.status().message()).find("json.exception"), std::string::npos);
  }
  EXPECT_EQ(*ParseJson("[1]", "f.json"), json::array({1}));
}

TEST(LrSchedule, FollowsTransformersFormulas) {
  const LrSchedule cosine{"cosine", 2.0, 10, 110, 0}, linear{"linear", 2.0, 10, 110, 0},
      constant{"constant", 2.0, 10, 110, 0};
  const LrSchedule floored{"cosine", 2.0, 0, 100, 0.1};
  for (const LrSchedule* s : {&cosine, &linear, &constant}) {
    EXPECT_EQ(s->At(0), 0);
    EXPECT_DOUBLE_EQ(s->At(5), 1.0);
    EXPECT_DOUBLE_EQ(s->At(10), 2.0);
  }
  EXPECT_DOUBLE_EQ(cosine.At(35), 1.0 + std::cos(std::numbers::pi / 4));
  EXPECT_DOUBLE_EQ(cosine.At(60), 1.0);
  EXPECT_NEAR(cosine.At(110), 0, 1e-15);
  EXPECT_DOUBLE_EQ(linear.At(60), 1.0);
  EXPECT_DOUBLE_EQ(linear.At(120), 0);
  EXPECT_DOUBLE_EQ(constant.At(100), 2.0);
  EXPECT_DOUBLE_EQ(floored.At(100), 0.2);
  // get_wsd_schedule(num_warmup_steps=10, num_decay_steps=20, num_training_steps=110,
  // min_lr_ratio=0.1)
  LrSchedule wsd{"warmup_stable_decay", 2.0, 10, 110, 0.1, 20, "cosine"};
  EXPECT_DOUBLE_EQ(wsd.At(5), 2 * (0.5 * 0.9 + 0.1));
  EXPECT_DOUBLE_EQ(wsd.At(10), 2);
  EXPECT_DOUBLE_EQ(wsd.At(89), 2);
  EXPECT_DOUBLE_EQ(wsd.At(95), 2 * (0.5 * (1 + std::cos(std::numbers::pi / 4)) * 0.9 + 0.1));
  EXPECT_DOUBLE_EQ(wsd.At(110), 0.2);
  wsd.decay_type = "linear";
  EXPECT_DOUBLE_EQ(wsd.At(100), 2 * (0.5 * 0.9 + 0.1));
  wsd.decay_type = "1-sqrt";
  EXPECT_DOUBLE_EQ(wsd.At(95), 2 * (0.5 * 0.9 + 0.1));
}

TEST(Mfu, CountsParametersAndAttention) {
  Problems problems;
  const ModelConfig config = ParseModelConfig(GoodModel(), "model", true, problems);
  // By hand: layer = 64·16·(8 + 4) + 3·64·96 + 2·64
  EXPECT_EQ(config.NumParameters(), 2 * (12288 + 18432 + 128) + 64 + 2 * 6400);
  const FlopsPerToken flops = ModelFlopsPerToken(config, 32);
  EXPECT_EQ(flops.causal, 6.0 * static_cast<double>(config.NumParameters()) + 6.0 * 2 * 64 * 32);
  EXPECT_EQ(flops.full - flops.causal, 6.0 * 2 * 64 * 32);
  EXPECT_EQ(PeakFlops("NVIDIA H200", true), 989e12);
  EXPECT_EQ(PeakFlops("some CPU", true), 0);
  EXPECT_EQ(PeakFlops("h100-80g", true), 989e12);
  EXPECT_EQ(PeakFlops("NVIDIA A10G", true), 125e12);
  for (const char* other : {"H1000", "h1000-80g", "NVIDIA RTX A4000"})
    EXPECT_EQ(PeakFlops(other, true), 0) << other;
}

// By hand: N = 74,560; attention 6·2·64·32 = 24,576, once more where all attend to all; the
// reference 2·74,560 + 24,576 / 3 = 149,120 + 8,192.
TEST(Mfu, CountsTheReferenceOfPreferencesButNotTheirLogitsTwice) {
  struct Case {
    const char* name;
    int64_t adapters;
    bool dpo;
    double causal, full;
  };
  const Case cases[] = {{"all weights", 0, false, 447360 + 24576, 447360 + 2 * 24576},
                        {"all weights, dpo", 0, true, 447360 + 24576, 447360 + 2 * 24576},
                        {"lora", 1000, false, 298240 + 6000 + 24576, 298240 + 6000 + 2 * 24576},
                        {"lora, dpo", 1000, true, 298240 + 6000 + 24576 + 149120 + 8192,
                         298240 + 6000 + 2 * 24576 + 149120 + 2 * 8192}};
  Problems problems;
  const ModelConfig config = ParseModelConfig(GoodModel(), "model", true, problems);
  for (const Case& c : cases) {
    const FlopsPerToken flops = ModelFlopsPerToken(config, 32, c.adapters, c.dpo);
    EXPECT_EQ(flops.causal, c.causal) << c.name;
    EXPECT_EQ(flops.full, c.full) << c.name;
  }
}

}  // namespace
}  // namespace muster::trainer
