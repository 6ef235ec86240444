// Which directories of weights are read, and as what.
#include "trainer/checkpoint/hugging_face.h"

#include <unistd.h>

#include <filesystem>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/checkpoint/safetensors.h"

namespace muster::trainer {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 3, kWidth = 2;

class HuggingFaceDirectory : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-hugging-face-XXXXXX";
    directory_ = ::mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Embeddings or heads whose elements are `first`, `first` + 1, …
  void Write(const std::vector<std::pair<std::string, float>>& firsts) {
    std::vector<std::vector<float>> values;
    for (const auto& [name, first] : firsts) {
      std::vector<float>& tensor = values.emplace_back(kRows * kWidth);
      std::iota(tensor.begin(), tensor.end(), first);
    }
    std::vector<SafetensorsTensor> tensors;
    for (size_t i = 0; i < firsts.size(); ++i) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(values[i].data());
      tensors.push_back(
          {firsts[i].first, "F32", {kRows, kWidth}, {bytes, values[i].size() * sizeof(float)}});
    }
    const auto written =
        WriteSafetensors(directory_ + "/model.safetensors", tensors, {{"format", "pt"}});
    ASSERT_TRUE(written.ok()) << written.status();
  }
  HuggingFaceWeights Open(bool tied) {
    std::vector<FlatLayout> layouts(1);
    layouts[0].Add("model.embed_tokens.weight", {kRows, kWidth}, true);
    if (!tied) layouts[0].Add("lm_head.weight", {kRows, kWidth}, true);
    return HuggingFaceWeights::Open(directory_, layouts, tied, "init", problems_);
  }
  float First(const HuggingFaceWeights& weights, const std::string& name) {
    float value = -1;
    weights.ReadRange(name, 0, 1, &value);
    return value;
  }

  std::string directory_;
  Problems problems_;
};

TEST_F(HuggingFaceDirectory, OfATiedModelNeedsOneOfEmbeddingAndHead) {
  Write({{"lm_head.weight", 10}});
  const HuggingFaceWeights weights = Open(/*tied=*/true);
  ASSERT_TRUE(problems_.empty()) << problems_[0].text;
  EXPECT_EQ(First(weights, "model.embed_tokens.weight"), 10);
  EXPECT_EQ(weights.Dtype(), "fp32");
}

TEST_F(HuggingFaceDirectory, OfATiedModelThatHasBothGivesTheEmbedding) {
  Write({{"lm_head.weight", 10}, {"model.embed_tokens.weight", 20}});
  const HuggingFaceWeights weights = Open(/*tied=*/true);
  ASSERT_TRUE(problems_.empty()) << problems_[0].text;
  EXPECT_EQ(First(weights, "model.embed_tokens.weight"), 20);
}

TEST_F(HuggingFaceDirectory, OfAModelThatIsNotTiedNeedsBoth) {
  Write({{"lm_head.weight", 10}});
  Open(/*tied=*/false);
  ASSERT_FALSE(problems_.empty());
  EXPECT_THAT(problems_[0].text, HasSubstr("has no model.embed_tokens.weight"));
}

}  // namespace
}  // namespace muster::trainer
