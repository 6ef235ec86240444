// Sharding maps, schedules, and checkpoints that any number of ranks reads. Ranks are threads with
// a Gloo group each.
#include "trainer/checkpoint/checkpoint.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "trainer/checkpoint/writer.h"
#include "trainer/model/blocks.h"
#include "trainer/model/init.h"
#include "trainer/ops/testing/allocations.h"
#include "trainer/optim/adamw.h"
#include "trainer/parallel/testing/test_ranks.h"

namespace muster::trainer {
namespace {

std::vector<FlatLayout> Layouts() {
  std::vector<FlatLayout> layouts(2);
  layouts[0].Add("a", {7, 5}, true);
  layouts[0].Add("b", {3}, false);
  layouts[0].Add("c", {4, 9}, true, /*joined=*/true);
  layouts[1].Add("d", {50, 3}, true);
  return layouts;
}

// Flats whose element e of segment s holds a value that only (segment, e, kind) decides.
Flats MakeFlats(World& world, int zero_stage, bool fill) {
  Flats flats;
  for (FlatLayout& layout : Layouts()) {
    flats.push_back(std::make_unique<FlatParam>(std::move(layout), &world,
                                                FlatOptions{.zero_stage = zero_stage}));
    FlatParam& flat = *flats.back();
    for (int kind = 0; fill && kind < 3; ++kind) {
      const at::Tensor values = at::zeros({flat.owned_end() - flat.owned_begin()}, at::kFloat);
      for (const SegmentPiece& p : PiecesIn(flat.layout(), flat.owned_begin(), flat.owned_end())) {
        FillNormal(static_cast<uint64_t>(kind), flat.layout().segments()[p.segment].name, 1,
                   p.segment_begin, p.numel, values.data_ptr<float>() + p.range_begin);
      }
      flat.SetOwned(static_cast<FlatParam::State>(kind), values);
    }
  }
  return flats;
}

void ExpectFilled(World& world, Flats& flats, int zero_stage) {
  Flats wanted = MakeFlats(world, zero_stage, true);
  for (size_t i = 0; i < flats.size(); ++i) {
    for (const FlatParam::State kind :
         {FlatParam::kMaster, FlatParam::kExpAvg, FlatParam::kExpAvgSq}) {
      EXPECT_TRUE(at::equal(flats[i]->Owned(kind), wanted[i]->Owned(kind)));
    }
  }
}

class Checkpoints : public ::testing::Test {
 protected:
  void SetUp() override {
    parent_ =
        std::filesystem::temp_directory_path() / ("checkpoint_test." + std::to_string(::getpid()));
    ASSERT_TRUE(MakeDirectories(parent_).ok());
  }
  void TearDown() override { RemoveTree(parent_); }
  CheckpointMeta Meta(int64_t step) {
    CheckpointMeta meta;
    meta.step = step, meta.next_sequence = 8 * step, meta.model = nlohmann::json::object(),
    meta.dtype = "fp32";
    return meta;
  }
  absl::Status Save(World& world, Flats& flats, const CheckpointMeta& meta) {
    CheckpointWriter writer(world, flats, parent_, 100);
    writer.Start(meta);
    return writer.Finish().status;
  }
  std::string parent_;
};

TEST(FlatLayout, SegmentsDontMoveWithTheNumberOfRanksAndPiecesCoverEachOnce) {
  const FlatLayout layout = Layouts()[0];
  EXPECT_EQ(layout.segments()[1].offset, 64);  // 35 elements, rounded up to 32s
  EXPECT_EQ(layout.segments()[2].offset, 67);  // joined
  for (int ranks = 1; ranks <= 9; ++ranks) {
    const int64_t shard = layout.PaddedNumel(ranks) / ranks;
    EXPECT_EQ(shard % 32, 0);
    std::vector<std::vector<int>> seen;
    for (const Segment& segment : layout.segments()) seen.emplace_back(segment.numel, 0);
    for (int r = 0; r < ranks; ++r) {
      for (const SegmentPiece& p : PiecesIn(layout, r * shard, (r + 1) * shard)) {
        EXPECT_EQ(layout.segments()[p.segment].offset + p.segment_begin, r * shard + p.range_begin);
        for (int64_t e = 0; e < p.numel; ++e) ++seen[p.segment][p.segment_begin + e];
      }
    }
    for (const std::vector<int>& counts : seen) {
      for (const int count : counts) EXPECT_EQ(count, 1);
    }
  }
}

TEST(FillNormal, AnElementDependsOnSeedNameAndPlaceAlone) {
  std::vector<float> whole(101), parts(101), other(101);
  FillNormal(5, "w", 0.02, 0, 101, whole.data());
  for (const auto& [begin, end] : {std::pair<int, int>{0, 3}, {3, 50}, {50, 101}})
    FillNormal(5, "w", 0.02, begin, end - begin, parts.data() + begin);
  EXPECT_EQ(whole, parts);
  FillNormal(5, "v", 0.02, 0, 101, other.data());
  EXPECT_NE(whole, other);
  std::vector<float> many(200000);
  FillNormal(6, "w", 2.0, 0, 200000, many.data());
  double sum = 0, squares = 0;
  for (const float x : many) sum += x, squares += x * x;
  EXPECT_NEAR(sum / 200000, 0, 0.02);
  EXPECT_NEAR(squares / 200000, 4, 0.06);
}

TEST(Reduce, SumsOverRanksAndNormsCountEveryElementOnce) {
  for (const int stage : {0, 1}) {
    OnRanks(3, [&](World& world) {
      Flats flats = MakeFlats(world, stage, false);
      for (auto& flat : flats) {
        flat->BeginGradients();
        for (size_t s = 0; s < flat->layout().segments().size(); ++s)
          flat->SumOf(static_cast<int>(s)).ToAdd().fill_(world.rank() + 1);
        flat->StartReduce();
      }
      for (auto& flat : flats) flat->WaitReduce();
      double squared = 0;
      for (const auto& row : world.GatherRows({ShardSquaredNorm(flats).Value()})) squared += row[0];
      EXPECT_EQ(squared, 36.0 * (35 + 3 + 36 + 150));
      for (auto& flat : flats) {
        for (const SegmentPiece& p :
             PiecesIn(flat->layout(), flat->owned_begin(), flat->owned_end())) {
          EXPECT_TRUE(
              (flat->OwnedGradient().narrow(0, p.range_begin, p.numel) == 6).all().item<bool>());
        }
      }
    });
  }
}

TEST(Gather, BringsEveryRanksMastersToAll) {
  OnRanks(3, [&](World& world) {
    Flats sharded = MakeFlats(world, 1, true), whole = MakeFlats(world, 0, true);
    for (size_t i = 0; i < sharded.size(); ++i) {
      sharded[i]->StartUnshard();
      sharded[i]->WaitUnshard();
      for (int s = 0; s < static_cast<int>(sharded[i]->layout().segments().size()); ++s)
        EXPECT_TRUE(at::equal(sharded[i]->Weight(s), whole[i]->Weight(s)));
    }
  });
}

TEST_F(Checkpoints, AnyNumberOfRanksAndEitherStageReadsWhatAnotherWrote) {
  for (const auto& [writers, write_stage] : {std::pair<int, int>{3, 1}, {2, 0}, {1, 1}, {3, 3}}) {
    OnRanks(writers, [&, stage = write_stage](World& world) {
      Flats flats = MakeFlats(world, stage, true);
      EXPECT_TRUE(Save(world, flats, Meta(41)).ok());
    });
    for (const auto& [readers, read_stage] :
         {std::pair<int, int>{1, 0}, {2, 1}, {4, 1}, {3, 0}, {2, 3}}) {
      OnRanks(readers, [&, stage = read_stage](World& world) {
        const Flats none;
        for (const bool while_checking : {false, true}) {
          Flats flats = MakeFlats(world, stage, false);
          LoadOutcome outcome =
              OpenNewest(world, {parent_ + "/step-00000041"}, while_checking ? flats : none);
          ASSERT_NE(outcome.checkpoint, nullptr);
          EXPECT_EQ(outcome.checkpoint->meta().step, 41);
          EXPECT_EQ(outcome.checkpoint->meta().next_sequence, 8 * 41);
          for (auto& flat : flats) EXPECT_TRUE(outcome.checkpoint->Read(*flat).ok());
          ExpectFilled(world, flats, stage);
        }
      });
    }
    RemoveTree(parent_ + "/step-00000041");
  }
}

TEST_F(Checkpoints, RanksThatFoundDifferentOnesOpenWhatTheFirstFound) {
  OnRanks(2, [&](World& world) {
    Flats flats = MakeFlats(world, 1, true);
    EXPECT_TRUE(Save(world, flats, Meta(1)).ok());
    EXPECT_TRUE(Save(world, flats, Meta(2)).ok());
    const std::string older = parent_ + "/step-00000001", newer = parent_ + "/step-00000002",
                      none = parent_ + "/step-00000003";
    const std::vector<std::vector<std::string>> found[] = {
        {{newer, older}, {older}}, {{older}, {newer, older}}, {{none, older}, {}}, {{}, {older}}};
    for (const std::vector<std::vector<std::string>>& lists : found) {
      const LoadOutcome outcome = OpenNewest(world, lists[world.rank()]);
      ASSERT_EQ(outcome.checkpoint == nullptr, lists[0].empty());
      if (outcome.checkpoint != nullptr)
        EXPECT_EQ(outcome.checkpoint->path(), lists[0][0] == none ? older : lists[0][0]);
      EXPECT_EQ(outcome.skipped.size(), lists[0].empty() || lists[0][0] != none ? 0u : 1u);
    }
  });
}

TEST_F(Checkpoints, ShardGroupsWriteEachPartOnceAndReadAnyOthers) {
  OnRanks(
      4,
      [&](World& world) {
        Flats flats = MakeFlats(world, 1, true);
        EXPECT_EQ(flats[0]->owned_end() - flats[0]->owned_begin(), 2 * flats[0]->shard_numel());
        EXPECT_TRUE(Save(world, flats, Meta(41)).ok());
      },
      /*shard_size=*/2);
  for (const auto& [readers, shard_size] : {std::pair<int, int>{1, 0}, {4, 1}, {6, 3}, {4, 2}}) {
    OnRanks(
        readers,
        [&](World& world) {
          Flats flats = MakeFlats(world, 1, false);
          LoadOutcome outcome = OpenNewest(world, {parent_ + "/step-00000041"}, flats);
          ASSERT_NE(outcome.checkpoint, nullptr);
          for (auto& flat : flats) EXPECT_TRUE(outcome.checkpoint->Read(*flat).ok());
          ExpectFilled(world, flats, 1);
        },
        shard_size);
  }
}

TEST_F(Checkpoints, EveryFlippedByteOfTheIndexIsNoticed) {
  OnRanks(1, [&](World& world) {
    Flats flats = MakeFlats(world, 1, true);
    ASSERT_TRUE(Save(world, flats, Meta(1)).ok());
  });
  const std::string path = parent_ + "/step-00000001";
  const std::string text = *ReadFile(path + "/index.json");
  ASSERT_TRUE(Checkpoint::Parse(path, text).ok());
  for (size_t i = 0; i < text.size(); i += 3) {
    if (std::isspace(static_cast<unsigned char>(text[i]))) continue;  // layout is not content
    std::string broken = text;
    broken[i] ^= 1;
    EXPECT_FALSE(Checkpoint::Parse(path, broken).ok()) << "byte " << i << " '" << text[i] << "'";
  }
}

TEST_F(Checkpoints, PruningKeepsTheNewestAndUnpublishedNewerOnes) {
  for (const int step : {1, 2, 3, 4}) {
    const std::string path = parent_ + "/" + CheckpointName(step);
    ASSERT_TRUE(MakeDirectories(path).ok());
    if (step != 1 && step != 4) std::ofstream(path + "/index.json") << "{}";
  }
  PruneCheckpoints(parent_, 1, 3);
  EXPECT_EQ(ListCheckpoints(parent_), (std::vector<std::string>{parent_ + "/step-00000003"}));
  EXPECT_TRUE(std::filesystem::exists(parent_ + "/step-00000004"));   // perhaps being written
  EXPECT_FALSE(std::filesystem::exists(parent_ + "/step-00000001"));  // a leftover
}

TEST_F(Checkpoints, AListSaysWhyAPlaceCannotBeListed) {
  ASSERT_TRUE(MakeDirectories(parent_ + "/empty").ok());
  std::ofstream(parent_ + "/file") << "text";
  for (const auto& [name, why] : {std::pair("/empty", ""), {"/new", ""}, {"/file", "Not a dir"}}) {
    absl::Status status;
    EXPECT_TRUE(ListCheckpoints(parent_ + name, &status).empty()) << name;
    EXPECT_EQ(status.ok(), *why == '\0') << name << ": " << status;
    EXPECT_NE(status.message().find(why), std::string::npos) << name << ": " << status;
  }
}

TEST_F(Checkpoints, PruningNeverCountsThoseLaterThanTheOneJustWritten) {
  for (const int step :
       {10, 15, 20}) {  // 20 was found bad, so the run went back to 10 and now has 15
    const std::string path = parent_ + "/" + CheckpointName(step);
    ASSERT_TRUE(MakeDirectories(path).ok());
    std::ofstream(path + "/index.json") << "{}";
  }
  PruneCheckpoints(parent_, 1, 15);
  EXPECT_EQ(ListCheckpoints(parent_),
            (std::vector<std::string>{parent_ + "/step-00000020", parent_ + "/step-00000015"}));
}

TEST_F(Checkpoints,
       WhatChangesAfterTheCopyIsNotInTheCheckpointAndItIsPublishedOnlyWhenAllHaveWritten) {
  OnRanks(3, [&](World& world) {
    Flats flats = MakeFlats(world, 1, true);
    CheckpointWriter writer(world, flats, parent_, 1);
    EXPECT_FALSE(writer.busy());
    for (const int64_t step : {1, 2}) {
      writer.Start(Meta(step));
      EXPECT_TRUE(writer.busy());
      for (auto& flat : flats) {
        flat->SetOwned(FlatParam::kMaster, flat->Owned(FlatParam::kMaster) + 1);
        flat->SetOwned(FlatParam::kExpAvg, at::zeros_like(flat->Owned(FlatParam::kExpAvg)));
      }
      // As training does it: reports travel with each step's exchange.
      std::optional<CheckpointOutcome> outcome;
      while (!outcome) {
        const CheckpointWriter::Report mine = writer.Mine();
        std::vector<CheckpointWriter::Report> all;
        for (const auto& row : world.GatherRows({mine.begin(), mine.end()}))
          all.push_back({row[0], row[1], row[2]});
        const bool last_has_written = all[2][1] > 0;
        if (!last_has_written && step == 1) {
          EXPECT_TRUE(ListCheckpoints(parent_).empty());
        }
        outcome = writer.Take(all);
      }
      EXPECT_TRUE(outcome->status.ok()) << outcome->status;
      EXPECT_EQ(outcome->path, parent_ + "/" + CheckpointName(step));
      EXPECT_FALSE(writer.busy());
      world.GatherRows({0});
      EXPECT_EQ(ListCheckpoints(parent_).front(), outcome->path);
      if (step == 1) {
        Flats found = MakeFlats(world, 1, false);
        LoadOutcome loaded = OpenNewest(world, {outcome->path});
        EXPECT_NE(loaded.checkpoint, nullptr);
        for (auto& flat : found) EXPECT_TRUE(loaded.checkpoint->Read(*flat).ok());
        ExpectFilled(world, found, 1);
      }
    }
  });
}

TEST_F(Checkpoints, WrittenInPlaceIsTheSameFileInTheMemoryOfTwoChunks) {
  constexpr int64_t kChunkBytes = 4096;
  OnRanks(2, [&](World& world) {
    std::vector<std::string> files;
    for (const bool split : {false, true}) {
      Flats flats;
      FlatLayout layout;
      layout.Add("a", {100, 301}, true);
      const FlatOptions options = split ? FlatOptions{.zero_stage = 1,
                                                      .dtype = at::kBFloat16,
                                                      .split_masters = true,
                                                      .bf16_moments = true}
                                        : FlatOptions{1};
      flats.push_back(std::make_unique<FlatParam>(layout, &world, options));
      const int64_t owned = flats[0]->owned_end() - flats[0]->owned_begin();
      for (const auto state : {FlatParam::kMaster, FlatParam::kExpAvg, FlatParam::kExpAvgSq})
        flats[0]->SetOwned(state,
                           at::arange(owned, at::kFloat).mul_(0.37 + static_cast<int>(state)));
      CheckpointWriter writer(world, flats, parent_, 1, {}, kChunkBytes);
      std::vector<std::string> contents;
      for (const auto way : {CheckpointWriter::kBeside, CheckpointWriter::kInPlace}) {
        const Allocations allocations;
        writer.Start(Meta(way + 1), way);
        if (way == CheckpointWriter::kInPlace) {
          EXPECT_LE(allocations.peak(), 2 * kChunkBytes);
        } else {
          EXPECT_EQ(allocations.peak(), writer.CopyBytes());
        }
        const CheckpointOutcome outcome = writer.Finish();
        EXPECT_TRUE(outcome.status.ok()) << outcome.status;
        contents.push_back(
            *ReadFile(outcome.path + "/" + RankFileName(world.rank(), world.size())));
      }
      EXPECT_EQ(contents[0], contents[1]) << split;
    }
  });
}

// State of a GPU, and state of the host that goes the same way.
class CopiesByChunks : public Checkpoints, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    Checkpoints::SetUp();
    if (std::string(GetParam()) != "gpu") return;
    const absl::StatusOr<at::Device> chosen = ChooseDevice(0);
    ASSERT_TRUE(chosen.ok()) << chosen.status();
    if (!chosen->is_cuda()) GTEST_SKIP() << "no GPU here";
    device_ = *chosen;
  }
  at::NoGradGuard no_grad_;
  at::Device device_ = at::kCPU;
};
INSTANTIATE_TEST_SUITE_P(, CopiesByChunks, ::testing::Values("cpu", "gpu"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CopiesByChunks, GiveTheFileThatIsWrittenInPlace) {
  constexpr int64_t kChunkBytes = 4096;
  const std::unique_ptr<World> world = World::Connect({}, device_);
  world->MakeGroups(Mesh(1, 1, 0));
  const FlatOptions kinds[] = {
      {.zero_stage = 1},
      {.zero_stage = 1, .host_state = true},
      {.zero_stage = 1, .dtype = at::kBFloat16, .split_masters = true, .bf16_moments = true},
      {.zero_stage = 1, .int8_moments = true}};
  for (const FlatOptions& options : kinds) {
    Flats flats;
    for (const int64_t rows :
         {100, 1, 37}) {  // some with a chunk and a part of one, some with less
      FlatLayout layout;
      layout.Add("a", {rows, 301}, true);
      flats.push_back(std::make_unique<FlatParam>(layout, world.get(), options));
      for (const auto state : {FlatParam::kMaster, FlatParam::kExpAvg, FlatParam::kExpAvgSq})
        flats.back()->SetOwned(state, at::arange(flats.back()->padded_numel(), at::kFloat)
                                          .mul_(0.37 + static_cast<int>(state)));
    }
    CheckpointWriter writer(*world, flats, parent_, 1, {}, -kChunkBytes);
    std::vector<std::string> contents;
    for (const auto way : {CheckpointWriter::kInPlace, CheckpointWriter::kBeside}) {
      const Allocations allocations;
      writer.Start(Meta(way + 1), way);
      if (!device_.is_cuda() && way == CheckpointWriter::kBeside && !options.int8_moments) {
        EXPECT_EQ(allocations.peak(), writer.CopyBytes() + 2 * kChunkBytes);
      }
      const CheckpointOutcome outcome = writer.Finish();
      EXPECT_TRUE(outcome.status.ok()) << outcome.status;
      contents.push_back(*ReadFile(outcome.path + "/" + RankFileName(0, 1)));
    }
    EXPECT_EQ(contents[0], contents[1]) << options.dtype;
  }
}

// Parts of a model: tensors cut into `slices` by rows or by columns, and each part sharded over
// `shards` ranks. Part p of shard s is rank p · shards + s.
struct Cut {
  int slices, dim, shards;
  int ranks() const { return slices * shards; }
};
FlatLayout LayoutOf(const Cut& cut, int rank) {
  const int part = rank / cut.shards;
  const auto slice = [&](int64_t extent) {
    return Slice{cut.dim, extent * part / cut.slices, extent * (part + 1) / cut.slices};
  };
  FlatLayout layout;
  if (cut.slices == 1) {
    layout.Add("a", {12, 20}, true);
    layout.Add("b", {7, 9}, true, /*joined=*/true);
  } else {
    layout.AddSlice("a", {12, 20}, slice(cut.dim == 0 ? 12 : 20), true);
    layout.AddSlice("b", {7, 9}, slice(cut.dim == 0 ? 7 : 9), true, /*joined=*/true);
  }
  return layout;
}
std::pair<int64_t, int64_t> ShareOf(const Cut& cut, int rank) {
  const int64_t shard = LayoutOf(cut, rank).PaddedNumel(cut.shards) / cut.shards;
  return {rank % cut.shards * shard, (rank % cut.shards + 1) * shard};
}
// What the rank has, by seed, name and the element of the whole parameter alone.
at::Tensor ValuesOf(const Cut& cut, int rank, int kind) {
  const FlatLayout layout = LayoutOf(cut, rank);
  const auto [begin, end] = ShareOf(cut, rank);
  const at::Tensor values = at::zeros({end - begin}, at::kFloat);
  for (const SegmentPiece& piece : PiecesIn(layout, begin, end)) {
    ForEachRun(layout, piece, [&](int64_t at, int64_t in_parameter, int64_t count) {
      FillNormal(static_cast<uint64_t>(kind), layout.segments()[piece.segment].name, 1,
                 in_parameter, count, values.data_ptr<float>() + at);
    });
  }
  return values;
}
void WriteCut(const Cut& cut, const CheckpointMeta& meta, const std::string& directory) {
  std::vector<WrittenFile> files;
  std::vector<FlatLayout> layouts;
  for (int rank = 0; rank < cut.ranks(); ++rank) {
    layouts.push_back(LayoutOf(cut, rank));
    std::vector<SafetensorsTensor> tensors;
    std::vector<at::Tensor> values;
    for (int kind = 0; kind < 3; ++kind) {
      values.push_back(ValuesOf(cut, rank, kind));
      tensors.push_back({FlatTensorName(0, kCheckpointKinds[kind]),
                         "F32",
                         {values.back().numel()},
                         {static_cast<const uint8_t*>(values.back().data_ptr()),
                          static_cast<size_t>(values.back().nbytes())}});
    }
    files.push_back(
        *WriteSafetensors(directory + "/" + RankFileName(rank, cut.ranks()), tensors, {}));
  }
  std::vector<RankLayouts> pointers;
  for (const FlatLayout& layout : layouts) pointers.push_back({&layout});
  const auto shares = [&](int, int rank) { return ShareOf(cut, rank); };
  ASSERT_TRUE(WriteFileDurably(directory + "/index.json",
                               IndexText(meta, files, TensorMap(pointers, shares)))
                  .ok());
}

TEST_F(Checkpoints, OfAnyCutOfAModelAreReadByAnyOther) {
  const Cut cuts[] = {{1, 0, 1}, {1, 0, 3}, {2, 0, 1}, {2, 1, 1}, {3, 1, 1}, {2, 0, 2},
                      {2, 1, 2}, {4, 0, 1}, {4, 1, 3}, {5, 0, 2}, {7, 1, 1}, {7, 0, 3}};
  for (size_t from = 0; from < std::size(cuts); ++from) {
    const std::string directory = parent_ + "/" + CheckpointName(static_cast<int64_t>(from));
    ASSERT_TRUE(MakeDirectories(directory).ok());
    WriteCut(cuts[from], Meta(1), directory);
    const std::string text = *ReadFile(directory + "/index.json");
    EXPECT_EQ(text.find(kSlicedFormat) != std::string::npos, cuts[from].slices > 1);
    const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Parse(directory, text);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    for (const Cut& to : cuts) {
      for (int rank = 0; rank < to.ranks(); ++rank) {
        const FlatLayout layout = LayoutOf(to, rank);
        const auto [begin, end] = ShareOf(to, rank);
        for (int kind = 0; kind < 3; ++kind) {
          const at::Tensor found = at::zeros({end - begin}, at::kFloat);
          for (const SegmentPiece& piece : PiecesIn(layout, begin, end)) {
            const absl::Status read =
                checkpoint->ReadRange(layout.segments()[piece.segment], kind, piece.segment_begin,
                                      piece.numel, found.data_ptr<float>() + piece.range_begin);
            ASSERT_TRUE(read.ok()) << read;
          }
          EXPECT_TRUE(at::equal(found, ValuesOf(to, rank, kind))) << from << " " << rank;
        }
      }
    }
  }
}

// By what VerifyFiles reads on its way, and by what it leaves to Read.
TEST_F(Checkpoints, OfSlicesAreReadIntoFlatsOfOthers) {
  const Cut from = {3, 1, 2}, to = {2, 0, 2};
  const std::string directory = parent_ + "/" + CheckpointName(1);
  ASSERT_TRUE(MakeDirectories(directory).ok());
  WriteCut(from, Meta(1), directory);
  for (const int part : {0, 1}) {
    OnRanks(2, [&](World& world) {
      Flats flats;
      flats.push_back(std::make_unique<FlatParam>(LayoutOf(to, part * to.shards), &world,
                                                  FlatOptions{.zero_stage = 1}));
      const LoadOutcome outcome = OpenNewest(world, {directory}, flats);
      ASSERT_NE(outcome.checkpoint, nullptr) << outcome.skipped.front().why;
      ASSERT_TRUE(outcome.checkpoint->Read(*flats[0]).ok());
      for (const FlatParam::State kind :
           {FlatParam::kMaster, FlatParam::kExpAvg, FlatParam::kExpAvgSq}) {
        EXPECT_TRUE(
            at::equal(flats[0]->Owned(kind), ValuesOf(to, part * to.shards + world.rank(), kind)));
      }
    });
  }
}

// Both checksums are right: only the header tells.
TEST_F(Checkpoints, AFileThatLacksWhatTheIndexSaysIsPassedOver) {
  struct Case {
    const char* name;
    std::vector<SafetensorsTensor> tensors;  // without their data
    bool optimizer = true;
    bool good = false;
  };
  static constexpr int64_t kNumel = 64;
  const auto has = [](int flat, int kind, const char* dtype, int64_t numel) {
    return SafetensorsTensor{FlatTensorName(flat, kCheckpointKinds[kind]), dtype, {numel}, {}};
  };
  const Case cases[] = {
      {"all is there",
       {has(0, 0, "F32", kNumel), has(0, 1, "F32", kNumel), has(0, 2, "F32", kNumel)},
       true,
       true},
      {"weights alone, as it says", {has(0, 0, "F32", 3 * kNumel)}, false, true},
      {"no moments", {has(0, 0, "F32", 3 * kNumel)}},
      {"another flat",
       {has(1, 0, "F32", kNumel), has(0, 1, "F32", kNumel), has(0, 2, "F32", kNumel)}},
      {"another type",
       {has(0, 0, "I32", kNumel), has(0, 1, "F32", kNumel), has(0, 2, "F32", kNumel)}},
      {"less of one",
       {has(0, 0, "F32", kNumel), has(0, 1, "F32", kNumel - 15), has(0, 2, "F32", kNumel + 15)}}};
  FlatLayout layout;
  layout.Add("w", {5, 10}, true);
  const RankLayouts layouts = {&layout};
  const Shares whole = [](int, int) { return std::pair<int64_t, int64_t>(0, kNumel); };
  const std::vector<uint8_t> zeros(3 * kNumel * 4);
  for (const Case& c : cases) {
    const std::string directory = parent_ + "/" + CheckpointName(1);
    ASSERT_TRUE(MakeDirectories(directory).ok());
    std::vector<SafetensorsTensor> tensors = c.tensors;
    for (SafetensorsTensor& tensor : tensors)
      tensor.data = std::span(zeros).first(static_cast<size_t>(tensor.shape[0]) * 4);
    const auto written = WriteSafetensors(directory + "/" + RankFileName(0, 1), tensors, {});
    ASSERT_TRUE(written.ok()) << written.status();
    CheckpointMeta meta = Meta(1);
    meta.optimizer = c.optimizer;
    ASSERT_TRUE(WriteFileDurably(directory + "/index.json",
                                 IndexText(meta, {*written}, TensorMap({layouts}, whole)))
                    .ok());
    OnRanks(1, [&](World& world) {
      for (const bool while_checking : {false, true}) {
        const Flats none;
        Flats flats;
        flats.push_back(std::make_unique<FlatParam>(layout, &world, FlatOptions{}));
        const LoadOutcome outcome = OpenNewest(world, {directory}, while_checking ? flats : none);
        EXPECT_EQ(outcome.checkpoint != nullptr, c.good) << c.name;
        if (c.good) continue;
        ASSERT_EQ(outcome.skipped.size(), 1u) << c.name;
        EXPECT_EQ(outcome.skipped[0].why, RankFileName(0, 1) + ": lacks a part of w") << c.name;
      }
      if (c.good) return;
      // As when the file was changed after its check.
      const auto unchecked = Checkpoint::Parse(directory, *ReadFile(directory + "/index.json"));
      ASSERT_TRUE(unchecked.ok()) << unchecked.status();
      FlatParam flat(layout, &world, FlatOptions{});
      EXPECT_EQ(unchecked->Read(flat).message(),
                RankFileName(0, 1) + " lacks a part of w; take another checkpoint of the run")
          << c.name;
    });
  }
}

TEST_F(Checkpoints, OldOnesStayUntilTheNewOneWasToldOf) {
  const auto steps = [&] {
    std::vector<int> found;
    for (const std::string& path : ListCheckpoints(parent_))
      found.push_back(std::stoi(path.substr(path.size() - 8)));
    return found;
  };
  for (const int keep : {1, 2}) {
    OnRanks(2, [&](World& world) {
      Flats flats = MakeFlats(world, 1, true);
      std::optional<CheckpointWriter> writer(std::in_place, world, flats, parent_, keep);
      const auto save = [&](int64_t step) {
        writer->Start(Meta(step));
        EXPECT_TRUE(writer->Finish().status.ok());
      };
      for (const int64_t step : {1, 2, 3, 4}) save(step);
      if (world.rank() == 0) {
        EXPECT_EQ(steps(), (std::vector<int>{4, 3, 2, 1}));
      }
      writer->Told(4);
      save(5);  // in a thread that has removed the old ones first
      if (world.rank() == 0) {
        EXPECT_EQ(steps(), keep == 1 ? (std::vector<int>{5, 4}) : (std::vector<int>{5, 4, 3}));
      }
      writer->Told(5);
      writer.reset();  // waits for the thread
      if (world.rank() == 0) {
        EXPECT_EQ(steps(), (std::vector<int>{5, 4})) << "the word of 5 may still be on its way";
      }
    });
    RemoveTree(parent_);
    ASSERT_TRUE(MakeDirectories(parent_).ok());
  }
}

TEST_F(Checkpoints, ARankThatCantWriteFailsTheCheckpointOnAllAndTheOneBeforeStays) {
  OnRanks(2, [&](World& world) {
    Flats flats = MakeFlats(world, 1, true);
    CheckpointWriter writer(world, flats, parent_, 1);
    writer.Start(Meta(1));
    EXPECT_TRUE(writer.Finish().status.ok());
    // A directory in the place of rank 1's file.
    const std::string in_the_way =
        parent_ + "/" + CheckpointName(2) + "/" + RankFileName(1, 2) + ".tmp/x";
    if (world.rank() == 0) std::filesystem::create_directories(in_the_way);
    world.GatherRows({0});
    writer.Start(Meta(2));
    const CheckpointOutcome failed = writer.Finish();
    EXPECT_NE(std::string(failed.status.message()).find("rank 1: cannot create " + parent_),
              std::string::npos)
        << failed.status;
    world.GatherRows({0});
    EXPECT_EQ(ListCheckpoints(parent_), (std::vector<std::string>{parent_ + "/step-00000001"}));
    EXPECT_FALSE(std::filesystem::exists(parent_ + "/step-00000002"));
    writer.Start(Meta(3));
    EXPECT_TRUE(writer.Finish().status.ok());
  });
}

TEST_F(Checkpoints, WithoutAnOptimizerTheMomentsAreZero) {
  OnRanks(1, [&](World& world) {
    Flats flats = MakeFlats(world, 1, true);
    CheckpointMeta meta = Meta(0);
    meta.optimizer = false;
    EXPECT_TRUE(Save(world, flats, meta).ok());
    LoadOutcome loaded = OpenNewest(world, {parent_ + "/step-00000000"});
    ASSERT_NE(loaded.checkpoint, nullptr);
    Flats found = MakeFlats(world, 1, true);
    for (size_t i = 0; i < found.size(); ++i) {
      found[i]->SetOwned(FlatParam::kMaster, at::zeros_like(found[i]->Owned(FlatParam::kMaster)));
      EXPECT_TRUE(loaded.checkpoint->Read(*found[i]).ok());
      EXPECT_TRUE(
          at::equal(found[i]->Owned(FlatParam::kMaster), flats[i]->Owned(FlatParam::kMaster)));
      EXPECT_EQ(found[i]->Owned(FlatParam::kExpAvg).abs().sum().item<float>() +
                    found[i]->Owned(FlatParam::kExpAvgSq).abs().sum().item<float>(),
                0);
    }
  });
}

}  // namespace
}  // namespace muster::trainer
