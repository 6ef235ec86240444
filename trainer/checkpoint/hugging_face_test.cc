// Which directories of weights are read, and as what.
#include "trainer/checkpoint/hugging_face.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/model/family.h"
#include "trainer/model/quantize_config.h"
#include "trainer/parallel/quantised_weights.h"

namespace muster::trainer {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 3, kWidth = 2;
constexpr char kGate[] = "model.layers.0.mlp.gate_proj.weight";
constexpr char kUp[] = "model.layers.0.mlp.up_proj.weight";
constexpr char kJoined[] = "model.layers.0.mlp.gate_up_proj.weight";

class HuggingFaceDirectory : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-hugging-face-XXXXXX";
    directory_ = ::mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Embeddings or heads whose elements are `first`, `first` + 1, …; in one file, or in one each
  // with an index.
  void Write(const std::vector<std::pair<std::string, float>>& firsts, bool sharded = false) {
    std::vector<std::vector<float>> values;
    std::vector<SafetensorsTensor> tensors;
    for (const auto& [name, first] : firsts) {
      std::vector<float>& tensor = values.emplace_back(kRows * kWidth);
      std::iota(tensor.begin(), tensor.end(), first);
      tensors.push_back(
          {name,
           "F32",
           {kRows, kWidth},
           {reinterpret_cast<const uint8_t*>(tensor.data()), tensor.size() * sizeof(float)}});
    }
    if (!sharded) return WriteFile("model.safetensors", tensors);
    nlohmann::json map;
    for (const SafetensorsTensor& tensor : tensors) {
      map[tensor.name] = tensor.name + ".safetensors";
      WriteFile(map[tensor.name], {tensor});
    }
    WriteIndex(map);
  }
  void WriteFile(const std::string& name, const std::vector<SafetensorsTensor>& tensors) {
    const auto written = WriteSafetensors(directory_ + "/" + name, tensors, {{"format", "pt"}});
    ASSERT_TRUE(written.ok()) << written.status();
  }
  void WriteIndex(const nlohmann::json& map) {
    const absl::Status status = WriteFileDurably(directory_ + "/model.safetensors.index.json",
                                                 nlohmann::json{{"weight_map", map}}.dump());
    ASSERT_TRUE(status.ok()) << status;
  }
  HuggingFaceWeights Open(bool tied) {
    std::vector<FlatLayout> layouts(1);
    layouts[0].Add("model.embed_tokens.weight", {kRows, kWidth}, true);
    if (!tied) layouts[0].Add("lm_head.weight", {kRows, kWidth}, true);
    return HuggingFaceWeights::Open(directory_, layouts, tied, "init", problems_);
  }
  // Of a model whose gate and up have two rows and one.
  HuggingFaceWeights OpenJoined() {
    std::vector<FlatLayout> layouts(1);
    layouts[0].Add(kGate, {2, kWidth}, true);
    layouts[0].Add(kUp, {1, kWidth}, true, /*joined=*/true);
    return HuggingFaceWeights::Open(directory_, layouts, false, "init", problems_);
  }
  float First(const HuggingFaceWeights& weights, const std::string& name) {
    float value = -1;
    weights.ReadRange(name, 0, 1, &value);
    return value;
  }

  std::string directory_;
  Problems problems_;
};

constexpr char kEmbedding[] = "model.embed_tokens.weight", kHead[] = "lm_head.weight";

TEST_F(HuggingFaceDirectory, OfATiedModelNeedsOneOfEmbeddingAndHead) {
  const struct {
    std::vector<std::pair<std::string, float>> tensors;
    float first;  // of the embedding that is read
  } kCases[] = {
      {{{kHead, 10}}, 10},
      {{{kEmbedding, 20}}, 20},
      {{{kHead, 10}, {kEmbedding, 20}}, 20},
  };
  for (const bool sharded : {false, true}) {
    for (const auto& c : kCases) {
      SCOPED_TRACE(testing::Message() << c.first << " of " << c.tensors.size() << ", " << sharded);
      std::filesystem::remove_all(directory_);
      std::filesystem::create_directory(directory_);
      Write(c.tensors, sharded);
      const HuggingFaceWeights weights = Open(/*tied=*/true);
      ASSERT_TRUE(problems_.empty()) << problems_[0].text;
      EXPECT_EQ(First(weights, kEmbedding), c.first);
      EXPECT_EQ(weights.Dtype(), "fp32");
    }
  }
}

TEST_F(HuggingFaceDirectory, OfATiedModelWithoutBothIsRefusedByBothNames) {
  Write({{"model.norm.weight", 1}});
  Open(/*tied=*/true);
  ASSERT_FALSE(problems_.empty());
  EXPECT_THAT(problems_[0].text,
              HasSubstr("has neither model.embed_tokens.weight nor lm_head.weight"));
}

TEST_F(HuggingFaceDirectory, OfAModelThatIsNotTiedNeedsBoth) {
  for (const bool sharded : {false, true}) {
    Write({{kHead, 10}}, sharded);
    problems_.clear();
    Open(/*tied=*/false);
    ASSERT_FALSE(problems_.empty());
    EXPECT_THAT(problems_[0].text, HasSubstr("has no model.embed_tokens.weight"));
  }
}

TEST_F(HuggingFaceDirectory, AnIndexThatLeadsToAFileWithoutTheTensorIsNamedWithBoth) {
  for (const char* meant : {kEmbedding, kHead}) {
    Write({{"model.norm.weight", 1}}, /*sharded=*/true);
    WriteIndex({{"model.norm.weight", "model.norm.weight.safetensors"},
                {meant, "model.norm.weight.safetensors"}});
    problems_.clear();
    Open(/*tied=*/true);
    ASSERT_FALSE(problems_.empty());
    EXPECT_EQ(problems_[0].text,
              absl::StrCat("has no ", meant,
                           " in model.norm.weight.safetensors, where model.safetensors.index.json "
                           "means it to be; download both again"));
  }
}

ModelConfig TinyModel() {
  Problems problems;
  const ModelConfig model = ParseModelConfig({{"model_type", "llama"},
                                              {"vocab_size", 12},
                                              {"hidden_size", 8},
                                              {"intermediate_size", 16},
                                              {"num_hidden_layers", 2},
                                              {"num_attention_heads", 2},
                                              {"num_key_value_heads", 1},
                                              {"tie_word_embeddings", true}},
                                             "model", /*strict=*/true, problems);
  EXPECT_TRUE(problems.empty());
  return model;
}

// An element of the export under test.
float ValueAt(int flat, int segment, int64_t element) {
  return static_cast<float>(1000 * flat + 100 * segment) + static_cast<float>(element) / 256;
}

TEST_F(HuggingFaceDirectory, AnExportInSeveralFilesHasAnIndexAndIsReadAsOneIs) {
  const ModelConfig model = TinyModel();
  const std::vector<FlatLayout> layouts = MakeLayout(model).flats;
  const ReadParameter read = [](int flat, int segment, int64_t begin, const at::Tensor& out) {
    for (int64_t i = 0; i < out.numel(); ++i)
      out.data_ptr<float>()[i] = ValueAt(flat, segment, begin + i);
    return absl::OkStatus();
  };
  std::map<int64_t, size_t> files;  // by the most bytes of one
  for (const int64_t most : {int64_t{1}, int64_t{1000}, int64_t{1} << 40}) {
    SCOPED_TRACE(most);
    const absl::Status status =
        StageExport(read, model, {.dtype = "fp32", .most_file_bytes = most}, directory_);
    ASSERT_TRUE(status.ok()) << status;
    for (const auto& entry : std::filesystem::directory_iterator(directory_))
      files[most] += entry.path().extension() == ".safetensors";
    EXPECT_EQ(std::filesystem::exists(directory_ + "/model.safetensors.index.json"),
              files[most] > 1);
    const HuggingFaceWeights weights =
        HuggingFaceWeights::Open(directory_, layouts, /*tied=*/true, "init", problems_);
    ASSERT_TRUE(problems_.empty()) << problems_[0].text;
    for (size_t f = 0; f < layouts.size(); ++f) {
      for (size_t s = 0; s < layouts[f].segments().size(); ++s) {
        const Segment& segment = layouts[f].segments()[s];
        float last = 0;
        weights.ReadRange(segment.name, segment.numel - 1, 1, &last);
        EXPECT_EQ(last, ValueAt(static_cast<int>(f), static_cast<int>(s), segment.numel - 1))
            << segment.name;
      }
    }
  }
  size_t tensors = 0;
  for (const FlatLayout& layout : layouts) tensors += layout.segments().size();
  EXPECT_EQ(files[1], tensors);
  EXPECT_GT(files[1000], 1u);
  EXPECT_LT(files[1000], tensors);
  EXPECT_EQ(files[int64_t{1} << 40], 1u);
}

TEST_F(HuggingFaceDirectory, LinearsThatAreOneMatrixAreReadEach) {
  Write({{kJoined, 10}});
  const HuggingFaceWeights weights = OpenJoined();
  ASSERT_TRUE(problems_.empty()) << problems_[0].text;
  EXPECT_EQ(First(weights, kGate), 10);
  EXPECT_EQ(First(weights, kUp), 14);
  EXPECT_FALSE(weights.Has(kJoined));
}

TEST_F(HuggingFaceDirectory, AMatrixOfLinearsMustHaveTheRowsOfAll) {
  Write({{kJoined, 10}});
  std::vector<FlatLayout> layouts(1);
  layouts[0].Add(kGate, {2, kWidth}, true);
  layouts[0].Add(kUp, {2, kWidth}, true, /*joined=*/true);
  HuggingFaceWeights::Open(directory_, layouts, false, "init", problems_);
  ASSERT_EQ(problems_.size(), 1u);
  EXPECT_THAT(problems_[0].text,
              HasSubstr("gate_up_proj.weight is [3, 2] where config.json means [4, 2]"));
}

TEST_F(HuggingFaceDirectory, AMissingMatrixOfLinearsIsNamedOnceAsFilesNameIt) {
  Write({{kJoined, 10}});
  std::vector<FlatLayout> layouts(1);
  layouts[0].Add(kGate, {2, kWidth}, true);
  layouts[0].Add(kUp, {1, kWidth}, true, /*joined=*/true);
  layouts[0].Add("model.layers.1.mlp.gate_proj.weight", {2, kWidth}, true);
  layouts[0].Add("model.layers.1.mlp.up_proj.weight", {1, kWidth}, true, /*joined=*/true);
  HuggingFaceWeights::Open(directory_, layouts, false, "init", problems_);
  ASSERT_EQ(problems_.size(), 2u);  // the other says that the two are of different models
  EXPECT_THAT(problems_[0].text, HasSubstr("has no model.layers.1.mlp.gate_up_proj.weight"));
}

TEST_F(HuggingFaceDirectory, AQuantisedMatrixOfLinearsIsRefusedWithTheRemedy) {
  Write({{kJoined, 10}, {std::string(kJoined) + ".absmax", 0}});
  OpenJoined();
  ASSERT_EQ(problems_.size(), 1u);
  EXPECT_THAT(problems_[0].text, HasSubstr("give the unquantised model"));
}

// Linears of two units, of which the last is short, as is its last block. Biases have odd numbers
// of elements, so that what follows them in bf16 isn't aligned by itself.
ModelConfig ModelOfUnits() {
  Problems problems;
  const ModelConfig model = ParseModelConfig({{"model_type", "llama"},
                                              {"vocab_size", 12},
                                              {"hidden_size", 72},
                                              {"intermediate_size", 251},
                                              {"num_hidden_layers", 2},
                                              {"num_attention_heads", 2},
                                              {"num_key_value_heads", 1},
                                              {"mlp_bias", true},
                                              {"tie_word_embeddings", true}},
                                             "model", /*strict=*/true, problems);
  EXPECT_TRUE(problems.empty());
  return model;
}

// Writes ModelOfUnits, with `last` as the last element of every matrix, and opens it.
HuggingFaceWeights PlainWeights(const std::string& directory, float last, Problems& problems) {
  const ModelConfig model = ModelOfUnits();
  const std::vector<FlatLayout> layouts = MakeLayout(model).flats;
  const ReadParameter read = [&](int flat, int segment, int64_t begin, const at::Tensor& out) {
    const int64_t numel = layouts[flat].segments()[segment].numel;
    for (int64_t i = 0; i < out.numel(); ++i)
      out.data_ptr<float>()[i] =
          begin + i + 1 == numel ? last : std::sin(ValueAt(flat, segment, 37 * (begin + i)));
    return absl::OkStatus();
  };
  const absl::Status status = StageExport(read, model, {.dtype = "fp32"}, directory);
  EXPECT_TRUE(status.ok()) << status;
  return HuggingFaceWeights::Open(directory, layouts, /*tied=*/true, "plain", problems);
}

TEST_F(HuggingFaceDirectory, WhatIsWrittenInNf4IsReadAsTheQuantiserMakesIt) {
  const ModelConfig model = ModelOfUnits();
  const std::vector<FlatLayout> layouts = MakeLayout(model, {.linears_apart = true}).flats;
  const HuggingFaceWeights plain = PlainWeights(directory_ + "/plain", 0.5, problems_);
  ASSERT_TRUE(problems_.empty()) << problems_[0].text;
  const struct {
    bool nested;
    const char* dtype;
    at::ScalarType type;
  } kCases[] = {{true, "fp32", at::kFloat},
                {false, "fp32", at::kFloat},
                {true, "bf16", at::kBFloat16},
                {false, "bf16", at::kBFloat16}};
  for (const auto& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.dtype << ", nested " << c.nested);
    const Nf4Export nf4{&plain, c.nested};
    const std::string directory = directory_ + "/nf4";
    const absl::Status status = StageExport({}, model, {.dtype = c.dtype, .nf4 = &nf4}, directory);
    ASSERT_TRUE(status.ok()) << status;
    const HuggingFaceWeights saved =
        HuggingFaceWeights::Open(directory, layouts, /*tied=*/true, "saved", problems_, c.nested);
    ASSERT_TRUE(problems_.empty()) << problems_[0].text;
    const auto kind = c.nested ? Quantisation::kNf4Nested : Quantisation::kNf4;
    int linears = 0;
    for (const FlatLayout& layout : layouts) {
      for (const Segment& segment : layout.segments()) {
        SCOPED_TRACE(segment.name);
        const int64_t n = segment.numel;
        if (!layout.linears()) {
          const at::Tensor wanted = at::empty({n}), found = at::empty({n});
          plain.ReadRange(segment.name, 0, n, wanted.data_ptr<float>());
          saved.ReadRange(segment.name, 0, n, found.data_ptr<float>());
          EXPECT_TRUE(at::equal(found, wanted.to(c.type).to(at::kFloat)));
          continue;
        }
        ++linears;
        // Of a type that isn't the saved one: what is saved counts.
        const Nf4Units wanted = plain.ReadUnits(segment.name, n, kind, c.type, 0, UnitsOf(n)),
                       found = saved.ReadUnits(segment.name, n, kind, at::kHalf, 0, UnitsOf(n));
        EXPECT_TRUE(at::equal(found.rows, wanted.rows));
        EXPECT_EQ(found.common.offset, wanted.common.offset);
        EXPECT_EQ(found.common.type, c.type);
        const at::Tensor values = at::empty({n}), again = at::empty({n});
        DequantiseUnits(wanted.rows, kind, wanted.common, values);
        DequantiseUnits(found.rows, kind, found.common, again);
        EXPECT_TRUE(at::equal(again, values));
      }
    }
    EXPECT_EQ(linears, 14);
  }
}

TEST_F(HuggingFaceDirectory, NumbersBesideNf4AreAlignedAndItsConfigNamesIt) {
  const ModelConfig model = ModelOfUnits();
  const HuggingFaceWeights plain = PlainWeights(directory_ + "/plain", 0.5, problems_);
  ASSERT_TRUE(problems_.empty()) << problems_[0].text;
  for (const bool nested : {true, false}) {
    const Nf4Export nf4{&plain, nested};
    const std::string directory = directory_ + "/nf4";
    ASSERT_TRUE(StageExport({}, model, {.dtype = "bf16", .nf4 = &nf4}, directory).ok());
    const auto file = SafetensorsFile::Open(directory + "/model.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    for (const auto& [name, entry] : file->header().tensors)
      EXPECT_EQ(entry.begin % SafetensorsElementBytes(entry.dtype), 0u) << name;
    const SafetensorsEntry& weight =
        file->header().tensors.at("model.layers.1.mlp.down_proj.weight");
    EXPECT_EQ(weight.dtype, "U8");
    EXPECT_EQ(weight.shape, (std::vector<int64_t>{72 * 251 / 2, 1}));
    const auto text = ReadFile(directory + "/config.json");
    ASSERT_TRUE(text.ok());
    const nlohmann::json content = nlohmann::json::parse(*text);
    const nlohmann::json& how = content.at("quantization_config");
    EXPECT_TRUE(how.at("load_in_4bit").get<bool>());
    EXPECT_EQ(how.at("bnb_4bit_compute_dtype").get<std::string>(), "bfloat16");
    EXPECT_EQ(how.at("llm_int8_skip_modules").dump(), R"(["lm_head"])");
    const nlohmann::json read =
        WithoutQuantization(content, {.on = true, .nested = nested}, "config.json", problems_);
    EXPECT_TRUE(problems_.empty()) << problems_[0].text;
    EXPECT_FALSE(read.contains("quantization_config"));
  }
}

TEST_F(HuggingFaceDirectory, WeightsThatAreNotFiniteAreNotWrittenInNf4) {
  using Limits = std::numeric_limits<float>;
  const struct {
    float last;
    const char* dtype;
  } kCases[] = {{Limits::infinity(), "fp32"}, {Limits::quiet_NaN(), "fp32"}, {1e6, "fp16"}};
  for (const auto& c : kCases) {
    const HuggingFaceWeights plain = PlainWeights(directory_ + "/plain", c.last, problems_);
    ASSERT_TRUE(problems_.empty()) << problems_[0].text;
    for (const bool nested : {true, false}) {
      SCOPED_TRACE(testing::Message() << c.last << " as " << c.dtype << ", nested " << nested);
      const Nf4Export nf4{&plain, nested};
      const absl::Status status =
          StageExport({}, ModelOfUnits(), {.dtype = c.dtype, .nf4 = &nf4}, directory_ + "/nf4");
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("proj.weight has values that aren't finite as ", c.dtype,
                                         "; give a model")));
      EXPECT_FALSE(std::filesystem::exists(directory_ + "/nf4"));
    }
  }
}

}  // namespace
}  // namespace muster::trainer
