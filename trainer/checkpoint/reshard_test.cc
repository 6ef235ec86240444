// Checkpoints of a model in every layout of ranks, read in every other, and saved again.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/model/family.h"
#include "trainer/model/init.h"
#include "trainer/parallel/testing/test_ranks.h"

namespace muster::trainer {
namespace {

struct Layout {
  const char* name;
  int ranks, tp, shard_size, zero_stage;
  at::ScalarType dtype = at::kFloat;
  int pp = 1, chunks = 1, ep = 1, cp = 1;
};
constexpr Layout kLayouts[] = {
    {"dp 1", 1, 1, 0, 0},
    {"dp 2", 2, 1, 0, 1},
    {"dp 3, stage 2", 3, 1, 0, 2},
    {"dp 4, stage 3", 4, 1, 0, 3},
    {"dp 4, two copies", 4, 1, 2, 1},
    {"tp 2", 2, 2, 0, 0},
    {"tp 4", 4, 4, 0, 1},
    {"dp 2 x tp 2", 4, 2, 0, 1},
    {"dp 2 x tp 2, stage 3, bf16", 4, 2, 0, 3, at::kBFloat16},
    {"dp 2 x tp 2, two copies, stage 2", 4, 2, 2, 2},
    {"dp 3 x tp 2, stage 3", 6, 2, 0, 3},
    {"dp 2 x tp 4, stage 2", 8, 4, 0, 2},
    {"pp 2", 2, 1, 0, 0, at::kFloat, 2},
    {"pp 2, two chunks x dp 2, stage 3", 4, 1, 0, 3, at::kFloat, 2, 2},
    {"pp 4 x dp 2, two copies, stage 2", 8, 1, 1, 2, at::kFloat, 4},
    {"pp 2 x tp 2 x dp 2, stage 3, bf16", 8, 2, 0, 3, at::kBFloat16, 2},
    {"ep 2", 2, 1, 0, 1, at::kFloat, 1, 1, 2},
    {"dp 2 x ep 2, two copies, stage 3", 4, 1, 2, 3, at::kFloat, 1, 1, 2},
    {"tp 2 x ep 4, stage 2", 8, 2, 0, 2, at::kFloat, 1, 1, 4},
    {"pp 2 x tp 2 x ep 4, stage 3, bf16", 8, 2, 0, 3, at::kBFloat16, 2, 1, 4},
    {"cp 2", 2, 1, 0, 1, at::kFloat, 1, 1, 1, 2},
    {"dp 2 x cp 2 x tp 2, two copies, stage 2", 8, 2, 4, 2, at::kFloat, 1, 1, 1, 2},
    {"pp 2 x cp 2 x ep 4, stage 3, bf16", 8, 1, 0, 3, at::kBFloat16, 2, 1, 4, 2},
};

// Slices of its MLPs and its vocabulary aren't equal; some are of rows, some of columns. Two of its
// layers have experts, some of which every token meets, and routers with biases.
ModelConfig Model() {
  ModelConfig c;
  c.vocab_size = 37, c.hidden_size = 24, c.intermediate_size = 42, c.num_layers = 4;
  c.tie_word_embeddings = true;
  c.num_heads = 8, c.num_kv_heads = 4, c.head_dim = 6;
  c.qkv_bias = c.out_bias = c.mlp_bias = c.qk_norm = true;
  c.family = "dots1";
  c.experts.count = 4, c.experts.per_token = 2, c.experts.width = 18;
  c.experts.sigmoid = true, c.experts.shared = 1, c.experts.shared_width = 18;
  c.experts.sparse_layers = {false, true, true, false};
  return c;
}

// Flats of this rank, zero.
Flats MakeFlats(World& world, const Layout& layout) {
  Flats flats;
  const ModelPart part = PartOf(world.mesh(), world.rank(), layout.chunks);
  for (FlatLayout& flat : MakeLayout(Model(), part).flats) {
    const FlatOptions options = OptionsOf(flat, {.zero_stage = layout.zero_stage,
                                                 .dtype = layout.dtype,
                                                 .split_masters = layout.dtype == at::kBFloat16});
    flats.push_back(std::make_unique<FlatParam>(std::move(flat), &world, options));
  }
  return flats;
}

// What flat's owned range holds where an element is a function of its parameter and its place
// there.
at::Tensor Wanted(const FlatParam& flat, int kind) {
  const at::Tensor values = at::zeros({flat.owned_end() - flat.owned_begin()}, at::kFloat);
  for (const SegmentPiece& piece : PiecesIn(flat.layout(), flat.owned_begin(), flat.owned_end())) {
    const std::string& name = flat.layout().segments()[piece.segment].name;
    ForEachRun(flat.layout(), piece, [&](int64_t at, int64_t in_parameter, int64_t count) {
      FillNormal(static_cast<uint64_t>(kind), name, 1, in_parameter, count,
                 values.data_ptr<float>() + at);
    });
  }
  return values;
}

absl::Status Save(World& world, const Layout& layout, const Flats& flats,
                  const std::string& parent) {
  const Mesh& mesh = world.mesh();
  std::vector<std::vector<FlatLayout>> parts(mesh.Parts() == 1 ? 0 : mesh.Parts());
  for (int rank = 0; !parts.empty() && rank < mesh.size(); ++rank)
    parts[mesh.PartNumber(rank)] = MakeLayout(Model(), PartOf(mesh, rank, layout.chunks)).flats;
  CheckpointWriter writer(world, flats, parent, 100, std::move(parts));
  CheckpointMeta meta;
  meta.step = 41, meta.next_sequence = 8, meta.dtype = "fp32";
  meta.model = nlohmann::json::object();
  writer.Start(meta);
  return writer.Finish().status;
}

// Elements of a rank's state that aren't what they should be.
int64_t Differing(const Flats& flats) {
  int64_t count = 0;
  for (const auto& flat : flats) {
    for (int kind = 0; kind < 3; ++kind) {
      const at::Tensor found = flat->Owned(static_cast<FlatParam::State>(kind));
      count += found.ne(Wanted(*flat, kind)).sum().item<int64_t>();
    }
  }
  return count;
}

class Reshard : public ::testing::Test {
 protected:
  void SetUp() override {
    parent_ =
        std::filesystem::temp_directory_path() / ("reshard_test." + std::to_string(::getpid()));
    ASSERT_TRUE(MakeDirectories(parent_).ok());
  }
  void TearDown() override { RemoveTree(parent_); }

  void Write(const Layout& layout, const std::string& folder) {
    OnRanks(
        layout.ranks,
        [&](World& world) {
          Flats flats = MakeFlats(world, layout);
          for (const auto& flat : flats) {
            for (int kind = 0; kind < 3; ++kind)
              flat->SetOwned(static_cast<FlatParam::State>(kind), Wanted(*flat, kind));
          }
          EXPECT_TRUE(Save(world, layout, flats, parent_ + "/" + folder).ok());
        },
        layout.shard_size, layout.tp, layout.pp, false, layout.ep, layout.cp);
  }

  // Reads what is in `from` and saves it in `to`. How many elements of any rank weren't as written.
  int64_t Move(const Layout& layout, const std::string& from, const std::string& to) {
    std::atomic<int64_t> differing{0};
    OnRanks(
        layout.ranks,
        [&](World& world) {
          Flats flats = MakeFlats(world, layout);
          LoadOutcome outcome =
              OpenNewest(world, {absl::StrCat(parent_, "/", from, "/step-00000041")}, flats);
          ASSERT_NE(outcome.checkpoint, nullptr);
          for (const auto& flat : flats) EXPECT_TRUE(outcome.checkpoint->Read(*flat).ok());
          differing += Differing(flats);
          EXPECT_TRUE(Save(world, layout, flats, parent_ + "/" + to).ok());
        },
        layout.shard_size, layout.tp, layout.pp, false, layout.ep, layout.cp);
    return differing;
  }

  std::string Bytes(const std::string& folder, const std::string& file) {
    absl::StatusOr<std::string> read =
        ReadFile(absl::StrCat(parent_, "/", folder, "/step-00000041/", file));
    EXPECT_TRUE(read.ok()) << read.status();
    return read.value_or("");
  }

  std::string parent_;
};

// From each to another; with MUSTER_ALL_PAIRS set to all (bench/run.sh reshard-all). What comes
// back to its first layout is the first checkpoint, file for file.
TEST_F(Reshard, AnyLayoutReadsWhatAnyOtherWroteBitForBit) {
  const int count = static_cast<int>(std::size(kLayouts));
  const int others = std::getenv("MUSTER_ALL_PAIRS") != nullptr ? count - 1 : 1;
  for (int i = 0; i < count; ++i) Write(kLayouts[i], absl::StrCat("from", i));
  int pairs = 0;
  int64_t differing = 0;
  for (int i = 0; i < count; ++i) {
    for (int step = 1; step <= others; ++step) {
      const int j = (i + (others == 1 ? 7 : step)) % count;  // 7: unlike it
      SCOPED_TRACE(absl::StrCat(kLayouts[i].name, " to ", kLayouts[j].name));
      const int64_t wrong = Move(kLayouts[j], absl::StrCat("from", i), "to");
      EXPECT_EQ(wrong, 0);
      differing += wrong;
      for (int rank = 0; rank < kLayouts[j].ranks; ++rank) {
        const std::string file = RankFileName(rank, kLayouts[j].ranks);
        const bool same = Bytes("to", file) == Bytes(absl::StrCat("from", j), file);
        EXPECT_TRUE(same) << file;
        differing += same ? 0 : 1;
      }
      ++pairs;
    }
  }
  std::printf("reshard layouts=%d pairs=%d differing=%lld\n", count, pairs,
              static_cast<long long>(differing));
}

TEST_F(Reshard, OnlyAnIndexWithSlicesSaysTheSecondFormat) {
  Write(kLayouts[1], "whole");
  Write(kLayouts[7], "sliced");
  Write(kLayouts[12], "piped");
  EXPECT_NE(Bytes("piped", "index.json").find(kCheckpointFormat), std::string::npos);
  EXPECT_NE(Bytes("whole", "index.json").find(kCheckpointFormat), std::string::npos);
  EXPECT_EQ(Bytes("whole", "index.json").find("slice"), std::string::npos);
  EXPECT_NE(Bytes("sliced", "index.json").find(kSlicedFormat), std::string::npos);
}

TEST_F(Reshard, ACheckpointOfAnotherModelsSlicesIsRefusedByName) {
  Write(kLayouts[5], "sliced");
  OnRanks(1, [&](World& world) {
    ModelConfig other = Model();
    other.intermediate_size = 50;
    FlatParam flat(std::move(MakeLayout(other).flats[1]), &world, {});
    LoadOutcome outcome = OpenNewest(world, {parent_ + "/sliced/step-00000041"});
    ASSERT_NE(outcome.checkpoint, nullptr);
    const absl::Status read = outcome.checkpoint->Read(flat);
    EXPECT_NE(read.message().find("mlp.gate_proj.weight is [42, 24] there and [50, 24] here"),
              std::string::npos)
        << read;
  });
}

}  // namespace
}  // namespace muster::trainer
