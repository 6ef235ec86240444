#include "trainer/data/packing.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

constexpr int64_t kEos = 999;

// Shards with documents of the given lengths, spread over two files; document d holds the ids 10 d,
// 10 d + 1, …, and eos last.
class Packing : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ =
        std::filesystem::temp_directory_path() / ("packing_test." + std::to_string(::getpid()));
    ASSERT_TRUE(MakeDirectories(directory_).ok());
  }
  void TearDown() override { RemoveTree(directory_); }

  // `masked`: the first half of each document doesn't count.
  TokenShards Write(const std::vector<int>& lengths, bool masked = false) {
    std::string shards;
    for (int s = 0; s < 2; ++s) {
      const auto file = [&](const char* suffix) {
        return std::ofstream(absl::StrCat(directory_, "/", s, suffix), std::ios::binary);
      };
      std::ofstream tokens = file(".tokens"), docs = file(".docs"), mask = file(".mask");
      int64_t at = 0, documents = 0;
      docs.write(reinterpret_cast<const char*>(&at), 8);
      for (size_t d = s; d < lengths.size(); d += 2) {
        for (int i = 0; i < lengths[d]; ++i) {
          const uint16_t id = static_cast<uint16_t>(i + 1 == lengths[d] ? kEos : 10 * d + i);
          tokens.write(reinterpret_cast<const char*>(&id), 2);
          mask.put(static_cast<char>(i >= lengths[d] / 2));
        }
        at += lengths[d];
        ++documents;
        docs.write(reinterpret_cast<const char*>(&at), 8);
      }
      if (at == 0) continue;  // an empty file can't be mapped
      absl::StrAppend(&shards, shards.empty() ? "" : ",", R"({"tokens":")", s,
                      R"(.tokens","documents":")", s, R"(.docs","mask":)",
                      masked ? absl::StrCat("\"", s, ".mask\"") : "null", R"(,"num_tokens":)", at,
                      R"(,"num_documents":)", documents, "}");
    }
    std::ofstream(directory_ + "/index.json")
        << R"({"format":"muster-tokens-2","dtype":"uint16","vocab_size":1000,"shards":[)" << shards
        << "]}";
    absl::StatusOr<TokenShards> opened = TokenShards::Open(directory_);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }
  std::string directory_;
};

std::unique_ptr<Packer> Make(const TokenShards& shards, const PackingOptions& options) {
  absl::StatusOr<std::unique_ptr<Packer>> packer = Packer::Make(&shards, options);
  EXPECT_TRUE(packer.ok()) << packer.status();
  return *std::move(packer);
}

TEST_F(Packing, OpenShardsTakeNoDescriptors) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = descriptors();
  const TokenShards shards = Write({4, 2, 5, 2}, /*masked=*/true);
  EXPECT_EQ(descriptors(), before);
  EXPECT_EQ(shards.num_documents(), 4);
}

TEST_F(Packing, EveryEpochHoldsEveryDocumentOnceInAnotherOrder) {
  const TokenShards shards = Write({4, 2, 5, 2, 6, 10, 3, 7});  // 39 tokens
  const auto packer = Make(shards, {.max_length = 1, .seed = 7});
  ASSERT_EQ(packer->rows_per_epoch(), 38);
  std::vector<std::vector<int64_t>> epochs(2);
  Sequence sequence;
  for (int64_t g = 0; g < 76; ++g) {
    ASSERT_TRUE(packer->Get(g, sequence).ok());
    if (g % 38 == 0) epochs[g / 38].push_back(sequence.tokens[0]);
    EXPECT_EQ(sequence.tokens[0], epochs[g / 38].back()) << "neighbours share one token";
    epochs[g / 38].push_back(sequence.targets[0]);
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

class EachKind : public Packing, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, EachKind, ::testing::Values("wrapped", "bfd", "none", "balanced"));

TEST_P(EachKind, ARowDependsOnSeedAndNumberAlone) {
  const TokenShards shards = Write({14, 12, 25, 10, 6, 10, 13, 7});
  const PackingOptions options{
      .kind = GetParam(), .max_length = 8, .seed = 7, .max_row_length = 12, .rows_per_step = 4};
  PackingOptions another = options;
  another.seed = 8;
  const auto forward = Make(shards, options), backward = Make(shards, options),
             other = Make(shards, another);
  std::vector<std::vector<int64_t>> wanted(60);
  Sequence sequence;
  int different = 0;
  for (int64_t g = 0; g < 60; ++g) {
    ASSERT_TRUE(forward->Get(g, sequence).ok());
    wanted[g] = sequence.tokens;
    ASSERT_TRUE(other->Get(g, sequence).ok());
    different += wanted[g] != sequence.tokens;
  }
  EXPECT_GT(different, 30);
  for (int64_t g = 59; g >= 0; g -= 7) {  // as another rank count would ask
    ASSERT_TRUE(backward->Get(g, sequence).ok());
    EXPECT_EQ(sequence.tokens, wanted[g]);
  }
}

void ExpectCountsOfRows(Packer& packer, Packer& reader) {
  Sequence row;
  for (int64_t g = 0; g < 60; ++g) {
    ASSERT_TRUE(reader.Get(g, row).ok());
    const RowCounts wanted = CountsOf(row);
    const absl::StatusOr<RowCounts> found = packer.Count(g);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found->tokens, wanted.tokens) << g;
    EXPECT_EQ(found->targets, wanted.targets) << g;
    EXPECT_EQ(found->attended, wanted.attended) << g;
  }
}

// By a packer that has read no row.
TEST_P(EachKind, CountsAreThoseOfTheRow) {
  for (const bool masked : {false, true}) {
    for (const bool document_mask : {false, true}) {
      SCOPED_TRACE(absl::StrCat(masked, document_mask));
      const TokenShards shards = Write({14, 12, 25, 0, 10, 6, 1, 10, 13, 7}, masked);
      const PackingOptions options{.kind = GetParam(),
                                   .document_mask = document_mask,
                                   .max_length = 8,
                                   .seed = 7,
                                   .max_row_length = 12,
                                   .rows_per_step = 4};
      ExpectCountsOfRows(*Make(shards, options), *Make(shards, options));
    }
  }
}

TEST_F(Packing, CountsOfPairsAndMixturesAreThoseOfTheRow) {
  const TokenShards shards = Write({4, 3, 2, 9, 5, 5, 6, 2}, /*masked=*/true);
  const PackingOptions pairs{.kind = "pairs", .max_length = 5, .seed = 1};
  ExpectCountsOfRows(*Make(shards, pairs), *Make(shards, pairs));
  const PackingOptions scored{.kind = "pairs", .max_length = 5, .seed = 1, .scored = true};
  ExpectCountsOfRows(*Make(shards, scored), *Make(shards, scored));
  const auto mixed = [&] {
    std::vector<std::unique_ptr<Packer>> packers;
    packers.push_back(Make(shards, {.kind = "bfd", .max_length = 5, .seed = 1}));
    packers.push_back(Make(shards, {.max_length = 5, .seed = 1}));
    return MixPackers(std::move(packers), {0.3, 0.1});
  };
  ExpectCountsOfRows(*mixed(), *mixed());
}

TEST_F(Packing, CountsReadNoToken) {
  Write({3, 4});
  std::ofstream(directory_ + "/0.tokens", std::ios::binary) << "\xff\xff\xff\xff\xff\xff";
  const absl::StatusOr<TokenShards> shards = TokenShards::Open(directory_);
  ASSERT_TRUE(shards.ok()) << shards.status();
  for (const char* kind : {"wrapped", "bfd", "none", "balanced"}) {
    const auto packer =
        Make(*shards, {.kind = kind, .max_length = 6, .seed = 1, .max_row_length = 6});
    Sequence row;
    int failed = 0;
    for (int64_t g = 0; g < 2; ++g) {
      EXPECT_TRUE(packer->Count(g).ok()) << kind;
      failed += packer->Get(g, row).ok() ? 0 : 1;
    }
    EXPECT_GT(failed, 0) << kind;
  }
}

// All (token, target) pairs that one epoch's rows hold, and checks of each row's form.
std::multimap<int64_t, int64_t> Pairs(Packer& packer, int64_t rows, int64_t limit) {
  std::multimap<int64_t, int64_t> pairs;
  Sequence row;
  for (int64_t g = 0; g < rows; ++g) {
    EXPECT_TRUE(packer.Get(g, row).ok());
    EXPECT_LE(static_cast<int64_t>(row.tokens.size()), limit);
    EXPECT_EQ(row.targets.size(), row.tokens.size());
    EXPECT_EQ(row.counts.size(), row.tokens.size());
    if (!row.tokens.empty()) {
      EXPECT_EQ(row.bounds.front(), 0);
      EXPECT_EQ(row.bounds.back(), static_cast<int64_t>(row.tokens.size()));
    }
    for (size_t i = 0; i < row.tokens.size(); ++i) pairs.emplace(row.tokens[i], row.targets[i]);
  }
  return pairs;
}

class DocumentKind : public EachKind {};
INSTANTIATE_TEST_SUITE_P(Kinds, DocumentKind, ::testing::Values("bfd", "none", "balanced"));

TEST_P(DocumentKind, AnEpochHoldsEveryPairOfTheDocumentsOnce) {
  const std::vector<int> lengths = {4, 2, 1, 9, 30, 17, 8, 5, 5, 5, 12, 3};
  const TokenShards shards = Write(lengths);
  std::multimap<int64_t, int64_t> wanted;
  for (size_t d = 0; d < lengths.size(); ++d) {
    for (int i = 0; i + 1 < lengths[d]; ++i)
      wanted.emplace(10 * d + i, i + 2 == lengths[d] ? kEos : 10 * d + i + 1);
  }
  const auto packer = Make(
      shards,
      {.kind = GetParam(), .max_length = 8, .seed = 7, .max_row_length = 12, .rows_per_step = 3});
  // One epoch of balanced: as many steps as hold the pairs.
  int64_t rows = packer->rows_per_epoch();
  if (rows < 0) {
    Sequence row;
    size_t had = 0;
    for (rows = 0; had < wanted.size() || rows % 3 != 0; ++rows) {
      ASSERT_TRUE(packer->Get(rows, row).ok());
      had += row.tokens.size();
    }
  }
  const auto found = Pairs(*packer, rows, packer->row_length_max());
  const auto sorted = [](const std::multimap<int64_t, int64_t>& pairs) {
    std::vector<std::pair<int64_t, int64_t>> list(pairs.begin(), pairs.end());
    std::sort(list.begin(), list.end());
    return list;
  };
  EXPECT_EQ(sorted(found), sorted(wanted));
}

TEST_F(Packing, BestFitDecreasingFillsRows) {
  std::vector<int> lengths;
  for (int i = 0; i < 90; ++i) lengths.push_back(2 + i * 37 % 11);  // 1 to 11 pairs, 540 in all
  const TokenShards shards = Write(lengths);
  const auto packer = Make(shards, {.kind = "bfd", .max_length = 12, .seed = 1});
  int64_t pairs = 0;
  for (const int length : lengths) pairs += length - 1;
  EXPECT_LE(packer->rows_per_epoch(), (pairs + 11) / 12 + 1);
}

TEST_F(Packing, MasksComeWithTheirTargets) {
  const TokenShards shards = Write({6, 6}, /*masked=*/true);
  for (const char* kind : {"bfd", "wrapped"}) {
    const auto packer =
        Make(shards, {.kind = kind, .document_mask = true, .max_length = 11, .seed = 1});
    Sequence row;
    ASSERT_TRUE(packer->Get(0, row).ok());
    const std::vector<uint8_t> two = {0, 0, 1, 1, 1, 0, 0, 1, 1, 1},
                               across = {0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1};
    EXPECT_EQ(row.counts, std::string(kind) == "bfd" ? two : across) << kind;
    const std::vector<int64_t> bounds = std::string(kind) == "bfd" ? std::vector<int64_t>{0, 5, 10}
                                                                   : std::vector<int64_t>{0, 6, 11};
    EXPECT_EQ(row.bounds, bounds) << kind;
    EXPECT_FALSE(packer->uniform());
  }
}

TEST_F(Packing, AMixtureKeepsItsSharesAtEveryPoint) {
  const TokenShards first = Write({50});  // ids below 50, and eos
  directory_ += "/second";
  ASSERT_TRUE(MakeDirectories(directory_).ok());
  const TokenShards second = Write({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 60, 0});  // ids from 100 on
  directory_ = std::filesystem::path(directory_).parent_path();
  std::vector<std::unique_ptr<Packer>> packers;
  packers.push_back(Make(first, {.max_length = 2, .seed = 1}));
  packers.push_back(Make(second, {.max_length = 2, .seed = 1}));
  const auto mixed = MixPackers(std::move(packers), {0.3, 0.1});
  Sequence row;
  std::vector<int64_t> from_second;  // first tokens, in order
  for (int64_t g = 0; g < 1000; ++g) {
    ASSERT_TRUE(mixed->Get(g, row).ok());
    if (row.tokens[0] >= 100) from_second.push_back(row.tokens[0]);
    EXPECT_NEAR(static_cast<double>(from_second.size()), 0.25 * static_cast<double>(g + 1), 1.0)
        << g;
  }
  for (size_t i = 0; i < from_second.size(); ++i)
    EXPECT_EQ(from_second[i], 100 + 2 * static_cast<int64_t>(i % 29))
        << "its own epochs, in their order";
}

TEST_F(Packing, BrokenShardsAreRefused) {
  const TokenShards good = Write({3, 4});
  EXPECT_FALSE(Packer::Make(&good, {.max_length = 100}).ok());
  std::ofstream(directory_ + "/0.tokens", std::ios::app) << "x";
  EXPECT_NE(std::string(TokenShards::Open(directory_).status().message()).find("0.tokens"),
            std::string::npos);
  Write({3, 4});
  {
    std::fstream tokens(directory_ + "/1.tokens", std::ios::binary | std::ios::in | std::ios::out);
    const uint16_t id = 1000;
    tokens.seekp(2);
    tokens.write(reinterpret_cast<const char*>(&id), 2);
  }
  const auto beyond = TokenShards::Open(directory_);
  ASSERT_TRUE(beyond.ok());
  Sequence row;
  const std::string said(Make(*beyond, {.max_length = 6})->Get(0, row).message());
  EXPECT_NE(said.find("1.tokens: token 1 "), std::string::npos) << said;
  EXPECT_NE(said.find("id 1000, but vocab_size is 1000"), std::string::npos) << said;
  Write({3, 4});
  const int64_t wrong = 77;
  std::fstream docs(directory_ + "/1.docs", std::ios::binary | std::ios::in | std::ios::out);
  docs.seekp(8);
  docs.write(reinterpret_cast<const char*>(&wrong), 8);
  docs.close();
  EXPECT_NE(std::string(TokenShards::Open(directory_).status().message()).find("1.docs"),
            std::string::npos);
  EXPECT_NE(
      std::string(TokenShards::Open("/nowhere").status().message()).find("muster-trainer prepare"),
      std::string::npos);
}

// Read as that all tokens count, the run would learn prompts.
TEST_F(Packing, AMaskThatIsNoFileNameIsRefused) {
  for (const char* mask : {R"("../0.mask")", R"("")", "7", "true"}) {
    Write({3, 4}, /*masked=*/true);
    std::string index = *ReadFile(directory_ + "/index.json");
    const std::string good = R"("1.mask")";
    index.replace(index.find(good), good.size(), mask);
    std::ofstream(directory_ + "/index.json") << index;
    const std::string said(TokenShards::Open(directory_).status().message());
    EXPECT_NE(said.find("index.json: shards[1].mask: is no file name"), std::string::npos)
        << mask << ": " << said;
  }
}

// Pairs are documents of one file after the other here.
TEST_F(Packing, AScoredRowHasWholeDocumentsAndCountsTheirLastTokenThatIsNoPadding) {
  const TokenShards shards = Write({4, 3, 2, 9});  // pairs of 4 and 2 tokens, and of 3 and 9
  PackingOptions options{.kind = "pairs", .max_length = 4, .seed = 1, .scored = true};
  const auto packer = Make(shards, options);
  EXPECT_EQ(packer->rows_per_epoch(), 1) << "an answer of 9 tokens is too long";
  EXPECT_NE(packer->note().find("of 2 pairs, 1 are left out"), std::string::npos);
  EXPECT_EQ(packer->row_length_max(), 8);
  Sequence row;
  ASSERT_TRUE(packer->Get(0, row).ok());
  EXPECT_EQ(row.tokens, (std::vector<int64_t>{0, 1, 2, kEos, 20, kEos}));
  EXPECT_EQ(row.targets.size(), row.tokens.size());
  EXPECT_EQ(row.bounds, (std::vector<int64_t>{0, 4, 6}));
  EXPECT_EQ(row.counts, (std::vector<uint8_t>{0, 0, 0, 1, 0, 1}));
  options.pad_token = kEos;
  ASSERT_TRUE(Make(shards, options)->Get(0, row).ok());
  EXPECT_EQ(row.counts, (std::vector<uint8_t>{0, 0, 1, 0, 1, 0}));
}

}  // namespace
}  // namespace muster::trainer
