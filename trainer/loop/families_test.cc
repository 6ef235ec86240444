// What a config.json of Phi-3, Gemma 2 or Gemma 3 means, and what is refused of it.
#include "trainer/model/families.h"

#include <cmath>

#include <gtest/gtest.h>

#include "trainer/loop/config.h"
#include "trainer/model/config.h"
#include "trainer/model/lora_config.h"

namespace muster::trainer {
namespace {

using nlohmann::json;

// A small model of the type with `change` merged in (null removes a key).
json OfFamily(const char* type, const json& change = json::object()) {
  json value = {{"model_type", type},      {"vocab_size", 100},      {"hidden_size", 64},
                {"intermediate_size", 96}, {"num_hidden_layers", 2}, {"num_attention_heads", 4},
                {"num_key_value_heads", 2}};
  if (value["model_type"] != "phi3") value["head_dim"] = 16;
  value.merge_patch(change);
  return value;
}

TEST(ModelConfig, PhiAndGemmaMeanWhatTransformersMeansByThem) {
  const auto parsed = [](const json& value) {
    Problems problems;
    const ModelConfig config = ParseModelConfig(value, "model", true, problems);
    EXPECT_EQ(ToText(problems), "") << value;
    const ModelConfig again =
        ParseModelConfig(ToHuggingFace(config, "bfloat16"), "again", true, problems);
    EXPECT_EQ(ToText(problems), "") << value;
    EXPECT_EQ(config.DifferencesFrom(again), std::vector<std::string>()) << value;
    EXPECT_EQ(config.NumParameters(), again.NumParameters()) << value;
    return config;
  };
  const ModelConfig phi = parsed(OfFamily("phi3", {{"num_key_value_heads", nullptr}}));
  EXPECT_EQ(phi.num_kv_heads, phi.num_heads);
  EXPECT_EQ(phi.rms_norm_eps, 1e-5);
  EXPECT_EQ(phi.Window(0), 0);
  EXPECT_EQ(parsed(OfFamily("phi3", {{"sliding_window", 8}})).Window(1), 8);
  const json factors = {1, 1.5, 2, 2.5};
  const json scaling = {{"type", "su"}, {"short_factor", factors}, {"long_factor", factors}};
  const ModelConfig lengthened = parsed(OfFamily("phi3", {{"partial_rotary_factor", 0.5},
                                                          {"max_position_embeddings", 16384},
                                                          {"rope_scaling", scaling}}));
  EXPECT_EQ(lengthened.RotaryDim(), 8);
  EXPECT_EQ(lengthened.rope.type, "longrope");
  EXPECT_EQ(lengthened.rope.original_max_position_embeddings, 4096);
  EXPECT_DOUBLE_EQ(lengthened.rope.AttentionFactor(),
                   std::sqrt(1 + std::log(4.0) / std::log(4096.0)));
  const ModelConfig gemma2 = parsed(OfFamily("gemma2", {{"num_hidden_layers", 4}}));
  EXPECT_TRUE(gemma2.norms_from_one && gemma2.post_norms && gemma2.scaled_embeddings &&
              gemma2.tie_word_embeddings && !gemma2.qk_norm);
  EXPECT_EQ(gemma2.activation, Activation::kGeluTanh);
  EXPECT_EQ(gemma2.attention_softcap, 50);
  EXPECT_EQ(gemma2.final_softcap, 30);
  EXPECT_EQ(gemma2.query_pre_attn_scalar, 256);
  EXPECT_EQ(gemma2.sliding_layers, (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(gemma2.local_rope_theta, 0);
  json uncapped = OfFamily("gemma2");
  uncapped["attn_logit_softcapping"] = nullptr;
  EXPECT_EQ(parsed(uncapped).attention_softcap, 0);
  const json linear = {{"rope_type", "linear"}, {"factor", 8.0}};
  const ModelConfig gemma3 = parsed(OfFamily("gemma3_text", {{"num_hidden_layers", 3},
                                                             {"sliding_window_pattern", 3},
                                                             {"rope_theta", 5e5},
                                                             {"rope_local_base_freq", 5e3},
                                                             {"rope_scaling", linear}}));
  EXPECT_TRUE(gemma3.qk_norm && gemma3.attention_softcap == 0 && gemma3.final_softcap == 0);
  EXPECT_EQ(gemma3.sliding_layers, (std::vector<bool>{true, true, false}));
  EXPECT_EQ(gemma3.rope_theta, 5e5);
  EXPECT_EQ(gemma3.local_rope_theta, 5e3);
  EXPECT_EQ(gemma3.rope.factor, 8);
  json full = linear;
  full["rope_theta"] = 5e5;
  const json maps = {{"full_attention", full},
                     {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 5e3}}}};
  const json types = {"sliding_attention", "sliding_attention", "full_attention"};
  EXPECT_TRUE(gemma3.SameModel(parsed(
      OfFamily("gemma3_text",
               {{"num_hidden_layers", 3}, {"layer_types", types}, {"rope_parameters", maps}}))));
  EXPECT_EQ(parsed(OfFamily("gemma3_text")).rope_theta, 1e6);
  EXPECT_EQ(parsed(OfFamily("gemma3_text")).local_rope_theta, 1e4);
  EXPECT_EQ(parsed(OfFamily("gemma3_text", {{"final_logit_softcapping", 20.0}})).final_softcap, 20);
}

TEST(ModelConfig, WhatPhiAndGemmaCantBeIsRefusedWithFieldAndRemedy) {
  struct Case {
    const char* type;
    json change;
    const char* wanted;
  };
  const json four = {1, 2, 3, 4};
  const json longrope = {{"rope_type", "longrope"}, {"short_factor", four}, {"long_factor", four}};
  json with_original = longrope;
  with_original["original_max_position_embeddings"] = 1024;
  const json eight = {1, 1, 1, 1, 1, 1, 1, 1};
  const json from_one = {
      {"original_max_position_embeddings", 1},
      {"rope_scaling",
       {{"rope_type", "longrope"}, {"short_factor", eight}, {"long_factor", eight}}}};
  const Case cases[] = {
      {"gemma3", json::object(),
       "model.model_type: \"gemma3\" is of text and images; its text part can be"},
      {"phi3", {{"partial_rotary_factor", 1.5}}, "must be a number above 0, at most 1; got 1.5"},
      {"phi3",
       {{"partial_rotary_factor", 0.2}},
       "model.partial_rotary_factor: means 3 of a head's 16 elements"},
      {"llama", {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor: 0.5 can't be trained"},
      {"phi3", {{"rope_scaling", longrope}}, "short_factor: must be a list of 8 numbers above 0"},
      {"phi3", from_one, "original_max_position_embeddings: is 1; must be at least 2 for longrope"},
      {"phi3",
       {{"partial_rotary_factor", 0.5}, {"rope_parameters", with_original}},
       "model.original_max_position_embeddings: is 4096, and that of rope_parameters 1024"},
      {"phi3",
       {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}},
       "rope_type: \"linear\" can't be trained; default and longrope can"},
      {"phi3", {{"resid_pdrop", 0.1}}, "model.resid_pdrop: 0.1 can't be trained; use 0"},
      {"phi3", {{"query_pre_attn_scalar", 16}}, "has no meaning for model_type phi3; remove it"},
      {"gemma2", {{"hidden_activation", "gelu"}}, "only \"gelu_pytorch_tanh\" can"},
      {"gemma2", {{"use_bidirectional_attention", true}}, "whose tokens see later ones"},
      {"gemma2", {{"attn_logit_softcapping", -1}}, "must be a number above 0; got -1"},
      {"gemma2", {{"rope_local_base_freq", 1e4}}, "has no meaning for model_type gemma2"},
      {"gemma2", {{"hidden_size", 66}}, "model.hidden_size: 66 is no multiple"},
      {"gemma3_text", {{"attn_logit_softcapping", 50}}, "has no effect in transformers'"},
      {"gemma3_text",
       {{"rope_parameters", {{"rope_theta", 1e6}}}},
       "model.rope_parameters: must be a map of full_attention and sliding_attention"},
      {"gemma3_text",
       {{"rope_parameters", {{"sliding_attention", {{"rope_type", "linear"}, {"factor", 2}}}}}},
       "rope_type linear can't be trained in layers with a window; use default"},
      {"gemma3_text",
       {{"rope_local_base_freq", 5e3},
        {"rope_parameters", {{"sliding_attention", {{"rope_theta", 1e4}}}}}},
       "model.rope_local_base_freq: contradicts"},
  };
  for (const Case& c : cases) {
    Problems problems;
    ParseModelConfig(OfFamily(c.type, c.change), "model", true, problems);
    EXPECT_NE(ToText(problems).find(c.wanted), std::string::npos)
        << c.type << " " << c.change << "\n"
        << ToText(problems);
  }
  json no_window = OfFamily("gemma2");
  no_window["sliding_window"] = nullptr;
  Problems problems;
  ParseModelConfig(no_window, "model", true, problems);
  EXPECT_NE(ToText(problems).find("model.sliding_window: is null"), std::string::npos);
}

TEST(Lora, LinearsOfPhiThatAreOneHaveOneAdapter) {
  Problems problems;
  const ModelConfig phi = ParseModelConfig(OfFamily("phi3"), "model", true, problems);
  EXPECT_EQ(TargetModules(phi, {.rank = 1, .target_modules = {"qkv_proj"}}, "lora", problems),
            (std::vector<std::string>{"model.layers.0.self_attn.qkv_proj",
                                      "model.layers.1.self_attn.qkv_proj"}));
  EXPECT_EQ(ToText(problems), "");
  TargetModules(phi, {.rank = 1, .target_modules = {"q_proj"}}, "lora", problems);
  EXPECT_NE(ToText(problems).find("there are qkv_proj, o_proj, gate_up_proj and down_proj"),
            std::string::npos);
  EXPECT_EQ(LayerLinears(phi, 0)[0].out, 64 + 2 * 32);
}

TEST(Lora, AdaptersOfLinearsThatAreOneHaveNoSlices) {
  Problems problems;
  const ModelConfig phi = ParseModelConfig(OfFamily("phi3"), "model", true, problems),
                    llama = ParseModelConfig(OfFamily("llama"), "model", true, problems);
  TrainConfig config;
  config.lora.rank = 4;
  for (const int tp : {1, 2}) {
    config.parallel.tp = tp;
    CheckLayout(config, llama, 2, /*gpus=*/false, /*gpu_kernels=*/false, problems);
    EXPECT_EQ(ToText(problems), "");
  }
  CheckLayout(config, phi, 2, /*gpus=*/false, /*gpu_kernels=*/false, problems);
  EXPECT_NE(ToText(problems).find("trainer.lora: is not supported yet with parallel.tp for "
                                  "model_type phi3"),
            std::string::npos);
}

}  // namespace
}  // namespace muster::trainer
