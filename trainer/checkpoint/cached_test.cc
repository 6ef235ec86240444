// Checkpoints that are published while only the file cache has them (Until::kCached).
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/parallel/testing/test_ranks.h"

namespace {

std::atomic<int> syncs = 0;

}  // namespace

// In the place of libc's.
extern "C" int fsync(int fd) {
  ++syncs;
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;

// Masters and moments are `times` what the element's place in the flat says.
Flats FlatsOf(World& world, float times) {
  FlatLayout layout;
  layout.Add("a", {7, 50}, true);
  layout.Add("b", {3}, false);
  Flats flats;
  flats.push_back(
      std::make_unique<FlatParam>(std::move(layout), &world, FlatOptions{.zero_stage = 1}));
  FlatParam& flat = *flats[0];
  for (int kind = 0; kind < 3; ++kind) {
    at::Tensor values = at::zeros({flat.owned_end() - flat.owned_begin()}, at::kFloat);
    for (const SegmentPiece& piece :
         PiecesIn(flat.layout(), flat.owned_begin(), flat.owned_end())) {
      const int64_t first = flat.owned_begin() + piece.range_begin;
      values.narrow(0, piece.range_begin, piece.numel)
          .copy_(at::arange(first, first + piece.numel, at::kFloat).add_(kind).mul_(times));
    }
    flat.SetOwned(static_cast<FlatParam::State>(kind), values);
  }
  return flats;
}

// What a machine that stopped hard can leave of a checkpoint that was in its file cache alone, and
// what else may lie in such a place.
TEST(CachedCheckpoint, IsReadByAnyNumberOfRanksOrPassedOverAsWhatACrashLeft) {
  const std::string parent =
      fs::temp_directory_path() / ("cached_test." + std::to_string(::getpid()));
  const std::string newer = parent + "/step-00000002", older = parent + "/step-00000001";
  const std::string file = newer + "/" + RankFileName(1, 4), index = newer + "/index.json";
  const auto zero = [&](int64_t begin) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    const auto size = static_cast<int64_t>(fs::file_size(file));
    stream.seekp(begin < 0 ? size + begin : begin) << std::string(16, '\0');
  };
  struct Case {
    const char* name;
    std::function<void()> damage;
    int64_t wanted = 1;  // the step that is loaded
  };
  const Case cases[] = {
      {"nothing is wrong", [] {}, 2},
      {"files of older steps lie in the directory",
       [&] { fs::copy_file(older + "/" + RankFileName(1, 4), newer + "/rank-old.safetensors"); },
       2},
      {"the end of a file is missing", [&] { fs::resize_file(file, fs::file_size(file) / 2); }},
      {"a file is empty", [&] { fs::resize_file(file, 0); }},
      {"blocks are zero", [&] { zero(-16); }},
      {"the first block is zero", [&] { zero(0); }},
      {"a file is missing", [&] { fs::remove(file); }},
      {"a file has its first name", [&] { fs::rename(file, file + ".tmp"); }},
      {"a file is of another step",
       [&] {
         fs::copy_file(older + "/" + RankFileName(1, 4), file,
                       fs::copy_options::overwrite_existing);
       }},
      {"the index is missing", [&] { fs::remove(index); }},
      {"the index is empty", [&] { fs::resize_file(index, 0); }},
      {"half of the index", [&] { fs::resize_file(index, fs::file_size(index) / 2); }},
      {"the index is of another step",
       [&] { fs::copy_file(older + "/index.json", index, fs::copy_options::overwrite_existing); }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    ASSERT_TRUE(MakeDirectories(parent).ok());
    OnRanks(4, [&](World& world) {
      for (const auto& [step, until] :
           {std::pair(int64_t{1}, Until::kOnDisk), {int64_t{2}, Until::kCached}}) {
        Flats flats = FlatsOf(world, static_cast<float>(step));
        CheckpointWriter writer(world, flats, parent, 100);
        CheckpointMeta meta;
        meta.step = step, meta.dtype = "fp32", meta.model = nlohmann::json::object();
        writer.Start(meta, CheckpointWriter::kInPlace, until);
        EXPECT_TRUE(writer.Finish().status.ok());
      }
    });
    one.damage();
    for (const int ranks : {2, 3, 4}) {
      OnRanks(ranks, [&](World& world) {
        Flats found = FlatsOf(world, 0);
        const LoadOutcome outcome = OpenNewest(world, {newer, older}, found);
        ASSERT_NE(outcome.checkpoint, nullptr) << one.name;
        EXPECT_EQ(outcome.checkpoint->meta().step, one.wanted) << one.name;
        const Flats wanted = FlatsOf(world, static_cast<float>(one.wanted));
        for (size_t i = 0; i < found.size(); ++i) {
          ASSERT_TRUE(outcome.checkpoint->Read(*found[i]).ok());
          for (const auto kind : {FlatParam::kMaster, FlatParam::kExpAvg, FlatParam::kExpAvgSq})
            EXPECT_TRUE(at::equal(found[i]->Owned(kind), wanted[i]->Owned(kind))) << one.name;
        }
      });
    }
    RemoveTree(parent);
  }
}

TEST(CachedCheckpoint, OnlyOneThatIsToBeCachedDoesWithoutTheDisk) {
  const std::string parent =
      fs::temp_directory_path() / ("cached_test." + std::to_string(::getpid()));
  ASSERT_TRUE(MakeDirectories(parent).ok());
  struct Case {
    const char* name;
    CheckpointWriter::Way way;
    Until until;
    int syncs;  // of a file and of its directory, of the index and of its, and of the checkpoint's
  };
  const Case cases[] = {
      {"in the course of a run", CheckpointWriter::kBeside, Until::kOnDisk, 5},
      {"the last of a run", CheckpointWriter::kInPlace, Until::kOnDisk, 5},
      {"of a stop", CheckpointWriter::kInPlace, Until::kCached, 0},
  };
  int64_t step = 0;
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    ++step;
    OnRanks(1, [&](World& world) {
      Flats flats = FlatsOf(world, 1);
      CheckpointWriter writer(world, flats, parent, 100);
      CheckpointMeta meta;
      meta.step = step, meta.dtype = "fp32", meta.model = nlohmann::json::object();
      syncs = 0;
      writer.Start(meta, one.way, one.until);
      EXPECT_TRUE(writer.Finish().status.ok());
      EXPECT_EQ(syncs.load(), one.syncs);
    });
  }
  RemoveTree(parent);
}

}  // namespace
}  // namespace muster::trainer
