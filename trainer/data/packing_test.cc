#include "trainer/data/packing.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

constexpr int64_t kEos = 999;

// Shards with documents of the given lengths, spread over two files; document d holds the ids 10 d, 10 d + 1, …
class Packing : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / ("packing_test." + std::to_string(::getpid()));
    ASSERT_TRUE(MakeDirectories(directory_).ok());
  }
  void TearDown() override { RemoveTree(directory_); }

  void Write(const std::vector<int>& lengths, const std::string& index_change = "") {
    std::string shards;
    for (int s = 0; s < 2; ++s) {
      std::ofstream tokens(absl::StrCat(directory_, "/", s, ".tokens"), std::ios::binary), docs(absl::StrCat(directory_, "/", s, ".docs"), std::ios::binary);
      int64_t at = 0, documents = 0;
      docs.write(reinterpret_cast<const char*>(&at), 8);
      for (size_t d = s; d < lengths.size(); d += 2) {
        for (int i = 0; i < lengths[d]; ++i) {
          const uint16_t id = static_cast<uint16_t>(10 * d + i);
          tokens.write(reinterpret_cast<const char*>(&id), 2);
        }
        at += lengths[d];
        ++documents;
        docs.write(reinterpret_cast<const char*>(&at), 8);
      }
      absl::StrAppend(&shards, s ? "," : "", R"({"tokens":")", s, R"(.tokens","documents":")", s, R"(.docs","mask":null,"num_tokens":)", at,
                      R"(,"num_documents":)", documents, "}");
    }
    std::ofstream(directory_ + "/index.json") << R"({"format":"muster-tokens-1","dtype":"uint16","vocab_size":1000,"eos_id":)" << kEos << R"(,"shards":[)"
                                              << shards << "]" << index_change << "}";
  }
  std::string directory_;
};

TEST_F(Packing, EveryEpochHoldsEveryDocumentOnceInAnotherOrderEachFollowedByEos) {
  Write({3, 1, 4, 1, 5, 9, 2, 6});  // 31 tokens + 8 eos
  const auto shards = TokenShards::Open(directory_);
  ASSERT_TRUE(shards.ok()) << shards.status();
  auto packer = Packer::Make(&*shards, 1, 7);
  ASSERT_TRUE(packer.ok());
  ASSERT_EQ(packer->windows_per_epoch(), 38);
  std::vector<std::vector<int64_t>> epochs(2);
  Sequence sequence;
  for (int64_t g = 0; g < 76; ++g) {
    ASSERT_TRUE(packer->Get(g, sequence).ok());
    if (g % 38 == 0) epochs[g / 38].push_back(sequence.tokens[0]);
    EXPECT_EQ(sequence.tokens[0], epochs[g / 38].back()) << "neighbours share one token";
    epochs[g / 38].push_back(sequence.tokens[1]);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  for (const std::vector<int64_t>& stream : epochs) {
    std::map<int64_t, int> seen;
    for (size_t i = 0; i < stream.size(); ++i) {
      ++seen[stream[i]];
      const bool document_start = i == 0 || stream[i - 1] == kEos;
      if (stream[i] != kEos) {
        EXPECT_EQ(stream[i] % 10 == 0, document_start);
      }
    }
    EXPECT_EQ(seen[kEos], 8);
    EXPECT_EQ(seen.size(), 32u);  // 31 different ids, and eos
  }
}

TEST_F(Packing, ASequenceDependsOnSeedAndNumberAlone) {
  Write({13, 11, 24, 9, 5, 9, 12, 6});
  const auto shards = TokenShards::Open(directory_);
  ASSERT_TRUE(shards.ok());
  auto forward = *Packer::Make(&*shards, 8, 7), backward = *Packer::Make(&*shards, 8, 7), other = *Packer::Make(&*shards, 8, 8);
  std::vector<std::vector<int64_t>> wanted(60);
  Sequence sequence;
  int different = 0;
  for (int64_t g = 0; g < 60; ++g) {
    ASSERT_TRUE(forward.Get(g, sequence).ok());
    wanted[g] = sequence.tokens;
    ASSERT_TRUE(other.Get(g, sequence).ok());
    different += wanted[g] != sequence.tokens;
  }
  EXPECT_GT(different, 40);
  for (int64_t g = 59; g >= 0; g -= 7) {  // as another rank count would ask
    ASSERT_TRUE(backward.Get(g, sequence).ok());
    EXPECT_EQ(sequence.tokens, wanted[g]);
  }
}

TEST_F(Packing, BrokenShardsAreRefused) {
  Write({3, 4});
  const auto good = TokenShards::Open(directory_);
  ASSERT_TRUE(good.ok());
  EXPECT_FALSE(Packer::Make(&*good, 100, 1).ok());
  std::ofstream(directory_ + "/0.tokens", std::ios::app) << "x";
  EXPECT_NE(std::string(TokenShards::Open(directory_).status().message()).find("0.tokens"), std::string::npos);
  Write({3, 4});
  const int64_t wrong = 77;
  std::fstream docs(directory_ + "/1.docs", std::ios::binary | std::ios::in | std::ios::out);
  docs.seekp(8);
  docs.write(reinterpret_cast<const char*>(&wrong), 8);
  docs.close();
  EXPECT_NE(std::string(TokenShards::Open(directory_).status().message()).find("1.docs"), std::string::npos);
  EXPECT_NE(std::string(TokenShards::Open("/nowhere").status().message()).find("muster-trainer prepare"), std::string::npos);
}

}  // namespace
}  // namespace muster::trainer
