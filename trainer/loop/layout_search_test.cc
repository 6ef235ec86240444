#include "trainer/loop/layout_search.h"
#include "trainer/loop/auto_layout.h"

#include <chrono>
#include <cmath>
#include <map>
#include <utility>

#include <gtest/gtest.h>

#include "trainer/loop/mfu.h"
#include "trainer/loop/sizes.h"

namespace muster::trainer {
namespace {

using nlohmann::json;

// Of the shapes of Llama 3 8B (Grattafiori et al., arXiv 2407.21783, table 3).
ModelConfig Model8B() {
  Problems problems;
  ModelConfig model = ParseModelConfig(json{{"model_type", "llama"},
                                            {"vocab_size", 128256},
                                            {"hidden_size", 4096},
                                            {"intermediate_size", 14336},
                                            {"num_hidden_layers", 32},
                                            {"num_attention_heads", 32},
                                            {"num_key_value_heads", 8}},
                                       "model", /*strict=*/true, problems);
  EXPECT_TRUE(problems.empty()) << ToText(problems);
  return model;
}

TrainConfig Training(int64_t batch = 64, int64_t length = 4096) {
  TrainConfig config;
  config.dtype = "bf16";
  config.max_length = length;
  config.global_batch_size = batch;
  return config;
}

GpuHosts H100s() {
  return {.peak_flops = 989e12,
          .device_bytes = int64_t{80} << 30,
          .ranks_per_host = 8,
          .within_bytes_per_s = 450e9,
          .between_bytes_per_s = 50e9};
}

// Of the shapes of Mixtral 8x7B, with 8 of its layers.
ModelConfig ModelOfExperts() {
  Problems problems;
  ModelConfig model = ParseModelConfig(json{{"model_type", "mixtral"},
                                            {"vocab_size", 32000},
                                            {"hidden_size", 4096},
                                            {"intermediate_size", 14336},
                                            {"num_hidden_layers", 8},
                                            {"num_attention_heads", 32},
                                            {"num_key_value_heads", 8},
                                            {"num_local_experts", 8},
                                            {"num_experts_per_tok", 2}},
                                       "model", /*strict=*/true, problems);
  EXPECT_TRUE(problems.empty()) << ToText(problems);
  return model;
}

TEST(LayoutSearch, TheBestOfManyAreTheBestOfFew) {
  const ModelConfig model = Model8B();
  for (const int ranks : {8, 16}) {
    // As many as there are leave nothing out.
    const FoundLayouts all = SearchLayouts(Training(), model, ranks, H100s(), 100'000);
    const FoundLayouts few = SearchLayouts(Training(), model, ranks, H100s(), 5);
    ASSERT_EQ(few.best.size(), 5u);
    EXPECT_LT(few.tried, all.tried);
    for (size_t i = 0; i < few.best.size(); ++i)
      EXPECT_EQ(few.best[i].step_s, all.best[i].step_s) << ranks << " ranks, " << i;
  }
}

TEST(LayoutSearch, WhatItFindsFitsAndCanBe) {
  const ModelConfig model = Model8B();
  const FoundLayouts found = SearchLayouts(Training(), model, 64, H100s());
  ASSERT_EQ(found.best.size(), 5u);
  double before = 0;
  for (const Layout& layout : found.best) {
    EXPECT_LE(layout.estimate.DeviceBytes(), H100s().device_bytes) << layout.fields;
    EXPECT_GE(layout.step_s, before) << layout.fields;
    before = layout.step_s;
    Problems problems;
    CheckLayoutKeys(layout.config, problems);
    CheckLayout(layout.config, model, 64, true, true, problems);
    EXPECT_TRUE(problems.empty()) << layout.fields << ToText(problems);
  }
}

TEST(LayoutSearch, SlowLinksKeepTrafficInsideHosts) {
  GpuHosts slow = H100s();
  slow.between_bytes_per_s = 1e9;
  const FoundLayouts found = SearchLayouts(Training(), Model8B(), 32, slow);
  ASSERT_FALSE(found.best.empty());
  const Layout& best = found.best[0];
  const int64_t group =
      best.config.shard_size > 0 ? best.config.shard_size : 32 / best.config.parallel.pp;
  EXPECT_LE(group, 8) << best.fields;
  EXPECT_LE(best.config.parallel.tp * best.config.parallel.cp, 8) << best.fields;
}

TEST(LayoutSearch, TimeCountsWhatIsDoneAgainAndWhatIsWaitedFor) {
  const ModelConfig model = Model8B();
  const TrainConfig plain = Training();
  const auto step_s = [&](TrainConfig config, const char* recompute, double bubble) {
    config.recompute = recompute;
    Estimate estimate;
    estimate.flops = 1e18;
    estimate.bubble = bubble;
    return StepSeconds(estimate, config, model, 8, H100s());
  };
  const double none = step_s(plain, "none", 0);
  EXPECT_NEAR(none, 1e18 / (989e12 * kUsualShareOfPeak * 8), 1e-9 * none);
  EXPECT_EQ(step_s(plain, "pointwise", 0), none);
  EXPECT_NEAR(step_s(plain, "full", 0), none * 4 / 3, 1e-9 * none);
  EXPECT_GT(step_s(plain, "keep_attention", 0), none);
  EXPECT_LT(step_s(plain, "keep_attention", 0), none * 4 / 3);
  EXPECT_NEAR(step_s(plain, "none", 0.5), none * 2, 1e-9 * none);
  EXPECT_NEAR(step_s(Training(/*batch=*/9), "none", 0), none * 16 / 9, 1e-9 * none)
      << "7 of 8 ranks wait for the one with two rows";
}

// 32 ranks, tp 2 x pp 2 with 8 that share a copy: products take 1 s per 16 PFLOP. A rank sends 200
// GB of weights to its 7, 75 of gradients to all 15 of its stage, which run beside products, and 40
// inside layers and 10 to the other stage, which don't. 400 GB/s inside a host, 50 between hosts.
TEST(LayoutSearch, TimeSaysWhatEachLinkCarriesAndWhatProductsDontHide) {
  struct Case {
    const char* name;
    double flops;
    int ranks_per_host;
    LinkUse within, between;
    double step_s;
  };
  const Case cases[] = {
      // Beside the product's second: 200 / 400 + 75 / 50 = 2, so half of each is exposed.
      {"long",
       16e15,
       8,
       {240'000'000'000, 0.5 + 0.1, 0.25 + 0.1},
       {85'000'000'000, 1.5 + 0.2, 0.75 + 0.2},
       2.3},
      {"hidden", 48e15, 8, {240'000'000'000, 0.6, 0.1}, {85'000'000'000, 1.7, 0.2}, 3.3},
      {"one host", 16e15, 32, {325'000'000'000, 0.8125, 50.0 / 400}, {}, 1.125},
      // Of 8 neighbours some are on another host; of 2 none is. (200 + 75) / 50 = 5.5.
      {"hosts of 6", 16e15, 6, {40'000'000'000, 0.1, 0.1}, {285'000'000'000, 5.7, 4.5 + 0.2}, 5.8}};
  TrainConfig config = Training(/*batch=*/64);
  config.parallel.tp = config.parallel.pp = 2;
  config.shard_size = 8;
  Estimate estimate;
  estimate.gather_bytes = 200'000'000'000, estimate.reduce_bytes = 75'000'000'000;
  estimate.slice_bytes = 40'000'000'000, estimate.pipeline_bytes = 10'000'000'000;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    estimate.flops = c.flops;
    GpuHosts hosts = H100s();
    hosts.peak_flops = 16e15 / 32 / kUsualShareOfPeak;
    hosts.within_bytes_per_s = 400e9, hosts.ranks_per_host = c.ranks_per_host;
    const StepTime time = TimeOfStep(estimate, config, Model8B(), 32, hosts);
    EXPECT_NEAR(time.products_s, c.flops / 16e15, 1e-9);
    EXPECT_NEAR(time.step_s, c.step_s, 1e-9);
    for (const auto& [found, wanted] :
         {std::pair(time.within, c.within), std::pair(time.between, c.between)}) {
      EXPECT_EQ(found.bytes, wanted.bytes);
      EXPECT_NEAR(found.seconds, wanted.seconds, 1e-9);
      EXPECT_NEAR(found.exposed_s, wanted.exposed_s, 1e-9);
    }
    EXPECT_EQ(StepSeconds(estimate, config, Model8B(), 32, hosts), time.step_s);
  }
}

// Four replicas of tp 2 x pp 2, on two hosts. The first stage, which has 17 layers, needs the most.
// A rank's 16 rows of 4,096 tokens of 4,096 numbers of 2 bytes are 512 MiB: half of that goes to
// the other stage, and as much 10 times for each layer and twice for the embedding to the other
// slice.
TEST(Estimate, TellsBytesAndTimesByLink) {
  TrainConfig config = Training();
  config.parallel.tp = config.parallel.pp = 2;
  const ModelConfig model = Model8B();
  const Estimate e = MakeEstimate(config, model, 16, /*gpus=*/true, 0);
  ASSERT_EQ(e.stage, 0);
  const int64_t half = int64_t{256} << 20, slices = half * (17 * 10 + 2);
  const auto told = ToJson(e, config, model, 16, {"h100-80g", 8});
  const auto& within = told["links"]["within_host"];
  const auto& between = told["links"]["between_hosts"];
  EXPECT_EQ(within["bytes_per_step"], e.gather_bytes + e.reduce_bytes + slices);
  EXPECT_EQ(between["bytes_per_step"], half);
  EXPECT_EQ(told["ranks_per_host"], 8);
  const double within_s = within["exposed_s_per_step"].get<double>(),
               between_s = between["exposed_s_per_step"].get<double>();
  EXPECT_NEAR(within_s, static_cast<double>(slices) / 450e9, 1e-9);  // weights are hidden
  EXPECT_NEAR(between_s, static_cast<double>(half) / 50e9, 1e-9);
  EXPECT_NEAR(told["exposed_communication_s"].get<double>(), within_s + between_s, 1e-9);
  EXPECT_GT(told["step_time_s"].get<double>(), within_s + between_s);
  const std::string text = ToText(e, config, model, 16, {"h100-80g", 8});
  EXPECT_NE(text.find(" 256.0 MiB  0.00537 s, 0.00537 of them exposed\n"), std::string::npos)
      << text;
  // As they are given, whatever the GPU's name says.
  const auto slow = ToJson(e, config, model, 16, {"h100-80g", 8, 45e9, 5e9});
  for (const char* link : {"within_host", "between_hosts"})
    EXPECT_NEAR(slow["links"][link]["seconds_per_step"].get<double>(),
                10 * told["links"][link]["seconds_per_step"].get<double>(), 1e-9);
  EXPECT_GT(slow["step_time_s"].get<double>(), told["step_time_s"].get<double>());
  // Of links that nobody knows, how many bytes go over them.
  const auto unknown = ToJson(e, config, model, 16, {"", 16});
  EXPECT_FALSE(unknown.contains("exposed_communication_s"));
  EXPECT_FALSE(unknown["links"]["within_host"].contains("seconds_per_step"));
  EXPECT_EQ(unknown["links"]["between_hosts"]["bytes_per_step"], 0);
  EXPECT_EQ(unknown["links"]["within_host"]["bytes_per_step"],
            e.gather_bytes + e.reduce_bytes + slices + half);
}

// A layer has 2 * 4096 * 4096 + 2 * 4096 * 1024 numbers of attention, 3 * 4096 * 14336 of the MLP
// and 2 * 4096 of norms: 218,112,000. The head's products are those of 2.4 layers, so it is 17 and
// 15. With 128256 * 4096 of the embedding, and as many of the head with its norm's 4,096:
TEST(Estimate, TellsMemoryByClassOfEachStage) {
  TrainConfig config = Training();
  config.parallel.pp = 2;
  const ModelConfig model = Model8B();
  const Estimate e = MakeEstimate(config, model, 2, /*gpus=*/true, 0);
  const auto told = ToJson(e, config, model, 2, {"", 8});
  ASSERT_EQ(told["stages"].size(), 2u);
  const int64_t numbers[] = {4'233'240'576, 3'797'020'672};
  const int layers[] = {17, 15};
  for (size_t stage = 0; stage < 2; ++stage) {
    SCOPED_TRACE(stage);
    int64_t together = 0;
    std::map<std::string, int64_t> memory;
    for (const auto& one : told["stages"][stage]["memory"]) {
      const int64_t bytes = one["bytes"].get<int64_t>();
      memory[one["class"].get<std::string>()] = bytes;
      together += bytes;
    }
    EXPECT_EQ(told["stages"][stage]["layers"], layers[stage]);
    EXPECT_EQ(memory["weights"], 2 * numbers[stage]);
    EXPECT_EQ(memory["gradients"], 4 * numbers[stage]);
    EXPECT_EQ(memory["masters"], 4 * numbers[stage]);
    EXPECT_EQ(memory["moments"], 8 * numbers[stage]);
    EXPECT_EQ(told["stages"][stage]["memory_bytes"], together);
  }
  EXPECT_EQ(told["stages"][told["stage"].get<size_t>()]["memory"], told["memory"]);
  const std::string text = ToText(e, config, model, 2, {"", 8});
  // 33,865,924,608 and 30,376,165,376 bytes.
  const std::string row = "  moments" + std::string(37, ' ') + "      31.54 GiB      28.29 GiB\n";
  EXPECT_NE(text.find(row), std::string::npos) << text;
}

// 64 pairs of 2 · 4,095 tokens, which attend to 4,096 at most.
TEST(Estimate, CountsTheReferenceOfPreferences) {
  const ModelConfig model = Model8B();
  TrainConfig config = Training();
  config.dpo.given = true;
  const auto step_s = [&](const Estimate& e, const char* recompute) {
    config.recompute = recompute;
    return StepSeconds(e, config, model, 8, H100s());
  };
  for (const bool lora : {false, true}) {
    SCOPED_TRACE(lora);
    if (lora) config.lora.rank = 16, config.lora.target_modules = {"all-linear"};
    const Estimate e = MakeEstimate(config, model, 8, /*gpus=*/true, 0);
    const FlopsPerToken flops =
        ModelFlopsPerToken(model, 4096, lora ? e.trained_parameters : 0, /*dpo=*/true);
    EXPECT_EQ(e.flops, flops.causal * (64 * 2 * 4095));
    Estimate products;
    products.flops = e.flops;
    EXPECT_NEAR(step_s(products, "full") / step_s(products, "none"), 4.0 / 3, 1e-9)
        << "one of three passes again";
  }
}

// Each stage of pp 2 is a rank alone, of which no stage of ZeRO shares anything out.
TEST(LayoutSearch, TellsLayoutsOnceThatAZeroStageDoesNothingTo) {
  GpuHosts hosts = H100s();
  hosts.device_bytes = int64_t{96} << 30;
  const FoundLayouts found = SearchLayouts(Training(), Model8B(), 2, hosts, 100);
  std::map<std::string, int> told;
  for (const Layout& layout : found.best) {
    json others = layout.fields;
    others.erase("zero_stage");
    if (layout.config.parallel.pp == 2) ++told[others.dump()];
  }
  ASSERT_FALSE(told.empty());
  for (const auto& [fields, times] : told) EXPECT_EQ(times, 1) << fields;
}

TEST(LayoutSearch, FindsNothingWhereNothingFits) {
  GpuHosts small = H100s();
  small.device_bytes = int64_t{2} << 30;
  const FoundLayouts found = SearchLayouts(Training(), Model8B(), 8, small);
  EXPECT_TRUE(found.best.empty());
  EXPECT_GT(found.tried, 0);
}

TEST(LayoutSearch, KeysThatStayAreAsConfigured) {
  TrainConfig config = Training();
  config.zero_stage = 2;
  config.recompute = "full";
  config.micro_batch_size = 4;
  const FoundLayouts found = SearchLayouts(
      config, Model8B(), 16, H100s(), 5,
      {.shard_size = true, .zero_stage = true, .recompute = true, .micro_batch_size = true});
  ASSERT_FALSE(found.best.empty());
  for (const Layout& layout : found.best) {
    EXPECT_EQ(layout.config.zero_stage, 2) << layout.fields;
    EXPECT_EQ(layout.config.recompute, "full") << layout.fields;
    EXPECT_EQ(layout.config.shard_size, 0) << layout.fields;
    EXPECT_EQ(layout.config.micro_batch_size, 4) << layout.fields;
  }
}

// A rank's share is less; what the file says isn't changed by that.
TEST(LayoutSearch, ANamedMicroBatchSizeIsWrittenAsNamed) {
  TrainConfig config = Training();
  config.micro_batch_size = 64;
  const FoundLayouts found =
      SearchLayouts(config, Model8B(), 16, H100s(), 5, {.micro_batch_size = true});
  ASSERT_FALSE(found.best.empty());
  for (const Layout& layout : found.best)
    EXPECT_EQ(layout.fields.value("micro_batch_size", 0), 64) << layout.fields;
}

TEST(LayoutSearch, NoLayoutTrainsAnotherModel) {
  TrainConfig config = Training();
  config.router_aux_loss = "batch";
  config.micro_batch_size = 2;
  const FoundLayouts found = SearchLayouts(config, ModelOfExperts(), 16, H100s(), 100);
  ASSERT_FALSE(found.best.empty());
  for (const Layout& layout : found.best) {
    EXPECT_EQ(layout.config.micro_batch_size, 2) << layout.fields;
    EXPECT_EQ(layout.fields.value("micro_batch_size", 0), 2) << layout.fields;
  }
}

TEST(LayoutSearch, NoFileWithOneOfItsLayoutsIsRefusedOrTrainsToOtherBits) {
  const json plain = {{"model", json::object()}, {"data", "d"},      {"dtype", "bf16"},
                      {"max_length", 4096},      {"max_steps", 100}, {"learning_rate", 1e-4},
                      {"global_batch_size", 64}};
  struct Case {
    const char* change;
    int64_t micro_batch = 0;  // of all layouts; 0: the search's own
  };
  const Case cases[] = {{"{}"},
                        {R"({"moments": "int8", "masters": "split"})"},
                        {R"({"offload": "parameters", "zero_stage": 3})"},
                        {R"({"deterministic": "elastic", "micro_batch_size": 4})", 4},
                        {R"({"deterministic": "elastic", "micro_batch_size": 2, "moments": "int8",
           "zero_stage": 0})",
                         2}};
  const ModelConfig model = Model8B();
  for (const Case& c : cases) {
    SCOPED_TRACE(c.change);
    json file = plain;
    file.merge_patch(json::parse(c.change));
    Problems problems;
    const TrainConfig config = ParseTrainConfig(file, problems);
    ASSERT_TRUE(problems.empty()) << ToText(problems);
    const FoundLayouts found = SearchLayouts(config, model, 16, H100s(), 100);
    ASSERT_FALSE(found.best.empty());
    for (const Layout& layout : found.best) {
      json with = file;
      for (const auto& [name, value] : layout.fields.items()) with[name] = value;
      const TrainConfig named = ParseTrainConfig(with, problems);
      CheckLayout(named, model, 16, true, true, problems);
      EXPECT_TRUE(problems.empty()) << layout.fields << ToText(problems);
      if (c.micro_batch > 0) EXPECT_EQ(named.micro_batch_size, c.micro_batch) << layout.fields;
      problems.clear();
    }
  }
}

TEST(LayoutSearch, ARankAloneTakesStage3ToOffloadParameters) {
  TrainConfig config = Training();
  config.offload = "parameters";
  const FoundLayouts found = SearchLayouts(config, Model8B(), 1, H100s());
  ASSERT_FALSE(found.best.empty());
  for (const Layout& layout : found.best) {
    EXPECT_EQ(layout.config.zero_stage, 3) << layout.fields;
    EXPECT_EQ(layout.fields.value("zero_stage", 0), 3) << layout.fields;
  }
}

TEST(LayoutSearch, WhatShardsNothingHasNoGroupsThatShard) {
  TrainConfig config = Training();
  config.zero_stage = 0;
  const FoundLayouts found =
      SearchLayouts(config, Model8B(), 16, H100s(), 100, {.zero_stage = true});
  ASSERT_FALSE(found.best.empty());
  for (const Layout& layout : found.best)
    EXPECT_FALSE(layout.fields.contains("shard_size")) << layout.fields;
}

TEST(LayoutSearch, SlicesGoAcrossHostsOnlyWhereNothingElseFits) {
  const ModelConfig model = Model8B();
  GpuHosts apart = H100s();
  apart.ranks_per_host = 1;
  for (const Layout& layout : SearchLayouts(Training(), model, 8, apart).best)
    EXPECT_EQ(layout.config.parallel.tp, 1) << layout.fields;
  GpuHosts tiny = H100s();
  tiny.device_bytes = 1;
  const int64_t least = SearchLayouts(Training(), model, 8, tiny).least_bytes;
  apart.device_bytes = least + least / 19 + 20;  // a twentieth of it is spare
  const FoundLayouts found = SearchLayouts(Training(), model, 8, apart);
  ASSERT_FALSE(found.best.empty());
  for (const Layout& layout : found.best) EXPECT_GT(layout.config.parallel.tp, 1) << layout.fields;
}

TEST(LayoutSearch, EndsAtTheFirstThatFitsOrInTime) {
  const ModelConfig model = Model8B();
  const FoundLayouts all = SearchLayouts(Training(), model, 16, H100s(), 5);
  EXPECT_FALSE(all.out_of_time);
  const FoundLayouts first =
      SearchLayouts(Training(), model, 16, H100s(), 5, {}, {.at_first = true});
  EXPECT_EQ(first.best.size(), 1u);
  EXPECT_LT(first.tried, all.tried);
  const FoundLayouts late = SearchLayouts(Training(), model, 16, H100s(), 1, {},
                                          {.at = std::chrono::steady_clock::now()});
  EXPECT_TRUE(late.best.empty());
  EXPECT_TRUE(late.out_of_time);
  EXPECT_EQ(late.tried, 0);
}

TEST(LayoutSearch, WhatGoesNotTogetherIsNoLayout) {
  TrainConfig config = Training(/*batch=*/64, /*length=*/8192);
  config.cuda_graphs = true;
  for (const Layout& layout : SearchLayouts(config, Model8B(), 16, H100s(), 100).best) {
    EXPECT_EQ(layout.config.parallel.tp * layout.config.parallel.cp, 1) << layout.fields;
    EXPECT_EQ(layout.config.parallel.pp, 1) << layout.fields;
  }
}

// In so little room that all that there is is tried, and in more.
TEST(FindRemedy, NamesNothingThatTheFileIsRefusedForOrThatTrainsAnotherModel) {
  const ModelConfig experts = ModelOfExperts();
  struct Case {
    const char* name;
    void (*change)(TrainConfig&);
    const char* never;   // is part of a remedy
    const char* at_all;  // is part of one
    bool experts = false;
  };
  const Case cases[] = {
      {"plain", [](TrainConfig&) {}, "moments", "offload: parameters"},
      {"moments: int8", [](TrainConfig& c) { c.moments = "int8"; }, "offload", "zero_stage: 3"},
      {"masters: split", [](TrainConfig& c) { c.masters = "split"; }, "offload", "zero_stage: 3"},
      {"quantize",
       [](TrainConfig& c) {
         c.lora.rank = 16, c.lora.target_modules = {"all-linear"};
         c.quantize.on = true;
       },
       "offload: parameters", "recompute: full"},
      {"router_aux_loss: batch", [](TrainConfig& c) { c.router_aux_loss = "batch"; },
       "micro_batch_size", "zero_stage: 3", true}};
  for (const Case& c : cases) {
    TrainConfig config = Training();
    c.change(config);
    std::string all;
    const ModelConfig model = c.experts ? experts : Model8B();
    for (int64_t gib = 1; gib <= 96; gib += gib < 48 ? 2 : 8) {
      const std::optional<Remedy> remedy = FindRemedy(config, model, 2, gib << 30);
      if (remedy) all += std::to_string(gib) + " GiB: " + remedy->fields + "\n";
    }
    EXPECT_EQ(all.find(c.never), std::string::npos) << c.name << "\n" << all;
    EXPECT_NE(all.find(c.at_all), std::string::npos) << c.name << "\n" << all;
  }
}

TEST(AutoLayout, NeighboursAreThoseThatEveryHostHas) {
  EXPECT_EQ(NeighboursOnHosts({"a"}), 1);
  EXPECT_EQ(NeighboursOnHosts({"a", "a", "a", "a"}), 4);
  EXPECT_EQ(NeighboursOnHosts({"a", "a", "a", "a", "b", "b"}), 2);
  EXPECT_EQ(NeighboursOnHosts({"a", "a", "a", "b"}), 1);
  EXPECT_EQ(NeighboursOnHosts({"a", "a", "b", "b", "a", "a"}), 2);
}

TEST(AutoLayout, TheLeastOfRanksThatDifferCounts) {
  const RankDevice cpus =
      LeastOf({{"a", "", 300}, {"a", "", 300}, {"b", "", 200}, {"b", "", 200}}, /*bf16=*/false);
  EXPECT_EQ(cpus.gpu, "");
  EXPECT_EQ(cpus.bytes, 200);
  EXPECT_EQ(cpus.ranks_per_host, 2);
  const RankDevice gpus = LeastOf(
      {{"a", "NVIDIA H100 80GB HBM3", 80}, {"b", "NVIDIA A100-SXM4-80GB", 79}}, /*bf16=*/true);
  EXPECT_EQ(gpus.gpu, "NVIDIA A100-SXM4-80GB");
  EXPECT_EQ(gpus.bytes, 79);
  EXPECT_EQ(gpus.ranks_per_host, 1);
  EXPECT_EQ(LeastOf({{"a", "", 300}, {"b", "", 0}}, /*bf16=*/false).bytes, 0) << "nobody knows";
}

TEST(AutoLayout, MemoryPerRankBoundsWhatADeviceHas) {
  TrainConfig config = Training();
  EXPECT_EQ(BytesToFill(config, 0), 0);
  EXPECT_EQ(BytesToFill(config, int64_t{2} << 20), int64_t{2} << 20);
  config.memory_per_rank = "1MiB";
  EXPECT_EQ(BytesToFill(config, 0), 1 << 20);
  EXPECT_EQ(BytesToFill(config, int64_t{2} << 20), 1 << 20);
  EXPECT_EQ(BytesToFill(config, 1 << 19), 1 << 19);
}

TEST(AutoLayout, SaysWhyNoLayoutCanBe) {
  TrainConfig config = Training();
  config.masters = "split";
  const RankDevice h100{
      .gpu = "h100-80g", .bytes = int64_t{80} << 30, .ranks_per_host = 4, .gpu_kernels = false};
  const auto none = ChooseLayout(nlohmann::json::object(), config, Model8B(), 4, h100);
  ASSERT_FALSE(none.ok());
  const std::string said(none.status().message());
  EXPECT_NE(said.find("of the plain one trainer.masters: split needs our own kernels"),
            std::string::npos)
      << said;
}

TEST(AutoLayout, TakesWhatFitsAndSaysWhatWouldWhereNothingDoes) {
  const nlohmann::json plain = nlohmann::json::object();
  const RankDevice h100{.gpu = "h100-80g", .bytes = int64_t{80} << 30, .ranks_per_host = 8};
  const auto roomy = ChooseLayout(plain, Training(), Model8B(), 16, h100);
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  EXPECT_FALSE(roomy->config.parallel.automatic);
  RankDevice small = h100;
  small.bytes = int64_t{24} << 30;
  const auto tight = ChooseLayout(plain, Training(), Model8B(), 16, small);
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_LE(tight->estimate.DeviceBytes(), small.bytes);
  EXPECT_GE(tight->step_s, roomy->step_s);
  const auto none = ChooseLayout(plain, Training(), Model8B(), 2, small);
  ASSERT_FALSE(none.ok());
  const std::string said(none.status().message());
  EXPECT_NE(said.find("none fits the 24.00 GiB"), std::string::npos) << said;
  EXPECT_NE(said.find("2 ranks, 8 to a host,"), std::string::npos) << said;
  EXPECT_NE(said.find("what would do: "), std::string::npos) << said;
  EXPECT_EQ(said.find("memory_per_rank"), std::string::npos) << "it is the GPU's: " << said;
  const auto hopeless = ChooseLayout(plain, Training(), Model8B(), 2,
                                     {.gpu = "h100-80g", .bytes = 1 << 20, .ranks_per_host = 8});
  ASSERT_FALSE(hopeless.ok());
  EXPECT_EQ(std::string(hopeless.status().message()).find("; what would do: "), std::string::npos)
      << hopeless.status();
}

TEST(AutoLayout, WhereTheFileBoundsTheMemorySaysWhichBoundWouldDo) {
  const nlohmann::json plain = nlohmann::json::object();
  TrainConfig bounded = Training();
  bounded.memory_per_rank = "24GiB";
  RankDevice device{.gpu = "h100-80g", .bytes = int64_t{24} << 30, .ranks_per_host = 8};
  const auto none = ChooseLayout(plain, bounded, Model8B(), 2, device);
  ASSERT_FALSE(none.ok());
  const std::string said(none.status().message()), mark = "; memory_per_rank: ";
  ASSERT_NE(said.find(mark), std::string::npos) << said;
  const size_t at = said.find(mark) + mark.size();
  device.bytes = ParseBytes(said.substr(at, said.find(' ', at) - at));
  EXPECT_TRUE(ChooseLayout(plain, bounded, Model8B(), 2, device).ok()) << said;
}

TEST(LayoutSearch, LinksAreKnownByName) {
  EXPECT_EQ(LinkWithinHost("h100-80g"), 450e9);
  EXPECT_EQ(LinkWithinHost("NVIDIA A100-SXM4-80GB"), 300e9);
  EXPECT_EQ(LinkBetweenHosts("a100-40g"), 25e9);
  EXPECT_EQ(LinkWithinHost("tpu"), 0);
}

}  // namespace
}  // namespace muster::trainer
