// Who is who in a mesh, as tables.
#include "trainer/parallel/mesh.h"

#include <set>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

namespace muster::trainer {
namespace {

using Ranks = std::vector<int>;

struct Who {
  int rank, tp_index, dp_index;
  Ranks tensor;               // along tp
  HolderRanks sliced, alike;  // of flats
};
struct Case {
  const char* name;
  int ranks, tp, shard_size;
  std::vector<Who> who;
  int pp = 1, cp = 1;
};

const Ranks kFour = {0, 1, 2, 3};
const Ranks kLastFour = {4, 5, 6, 7};
const Ranks kEight = {0, 1, 2, 3, 4, 5, 6, 7};

const Case kCases[] = {
    {"one rank", 1, 1, 0, {{0, 0, 0, {0}, {{0}, {0}, {0}}, {{0}, {0}, {0}}}}},
    {"data alone",
     4,
     1,
     0,
     {{0, 0, 0, {0}, {kFour, kFour, {0}}, {kFour, kFour, {0}}},
      {3, 0, 3, {3}, {kFour, kFour, {3}}, {kFour, kFour, {3}}}}},
    {"two copies",
     4,
     1,
     2,
     {{0, 0, 0, {0}, {kFour, {0, 1}, {0, 2}}, {kFour, {0, 1}, {0, 2}}},
      {3, 0, 3, {3}, {kFour, {2, 3}, {1, 3}}, {kFour, {2, 3}, {1, 3}}}}},
    {"slices alone",
     4,
     4,
     0,
     {{0, 0, 0, kFour, {{0}, {0}, {0}}, {kFour, kFour, {0}}},
      {3, 3, 0, kFour, {{3}, {3}, {3}}, {kFour, kFour, {3}}}}},
    {"both: tp is the fastest",
     4,
     2,
     0,
     {{0, 0, 0, {0, 1}, {{0, 2}, {0, 2}, {0}}, {kFour, kFour, {0}}},
      {1, 1, 0, {0, 1}, {{1, 3}, {1, 3}, {1}}, {kFour, kFour, {1}}},
      {2, 0, 1, {2, 3}, {{0, 2}, {0, 2}, {2}}, {kFour, kFour, {2}}}}},
    {"both, in two copies",
     8,
     2,
     4,
     {{0, 0, 0, {0, 1}, {{0, 2, 4, 6}, {0, 2}, {0, 4}}, {kEight, kFour, {0, 4}}},
      {5, 1, 2, {4, 5}, {{1, 3, 5, 7}, {5, 7}, {1, 5}}, {kEight, {4, 5, 6, 7}, {1, 5}}},
      {7, 1, 3, {6, 7}, {{1, 3, 5, 7}, {5, 7}, {3, 7}}, {kEight, {4, 5, 6, 7}, {3, 7}}}}},
    {"copies of slices alone",
     4,
     2,
     2,
     {{3, 1, 1, {2, 3}, {{1, 3}, {3}, {1, 3}}, {kFour, {2, 3}, {1, 3}}}}},
    {"stages: pp is the slowest",
     8,
     2,
     0,
     {{1, 1, 0, {0, 1}, {{1, 3}, {1, 3}, {1}}, {kFour, kFour, {1}}},
      {6, 0, 1, {6, 7}, {{4, 6}, {4, 6}, {6}}, {{4, 5, 6, 7}, {4, 5, 6, 7}, {6}}}},
     2},
    {"parts of rows: neighbours that are data ranks to flats",
     8,
     1,
     4,
     {{1, 0, 0, {1}, {kEight, kFour, {1, 5}}, {kEight, kFour, {1, 5}}},
      {6, 0, 3, {6}, {kEight, {4, 5, 6, 7}, {2, 6}}, {kEight, {4, 5, 6, 7}, {2, 6}}}},
     1,
     2},
    {"parts of rows in slices: tp is the faster",
     8,
     2,
     0,
     {{3, 1, 0, {2, 3}, {{1, 3, 5, 7}, {1, 3, 5, 7}, {3}}, {kEight, kEight, {3}}},
      {4, 0, 1, {4, 5}, {{0, 2, 4, 6}, {0, 2, 4, 6}, {4}}, {kEight, kEight, {4}}}},
     1,
     2},
};

TEST(Mesh, SaysWhoIsWho) {
  for (const Case& c : kCases) {
    const Mesh mesh(c.ranks, c.tp, c.shard_size, c.pp, /*ep=*/1, c.cp);
    EXPECT_EQ(mesh.size(), c.ranks);
    EXPECT_EQ(mesh.dp() * mesh.cp() * mesh.tp() * mesh.pp(), c.ranks);
    for (const Who& who : c.who) {
      SCOPED_TRACE(std::string(c.name) + ", rank " + std::to_string(who.rank));
      EXPECT_EQ(mesh.TpIndex(who.rank), who.tp_index);
      EXPECT_EQ(mesh.DpIndex(who.rank), who.dp_index);
      EXPECT_EQ(mesh.Along(who.rank, {MeshDim::kTp}), who.tensor);
      EXPECT_EQ(HoldersOf(mesh, who.rank, {.sliced = true}), who.sliced);
      EXPECT_EQ(HoldersOf(mesh, who.rank, {}), who.alike);
    }
  }
}

TEST(Mesh, PartsOfARowAreNeighboursAndTakeTheSameRows) {
  const Mesh mesh(16, 2, 0, 2, 4, 2);  // two stages of dp 2, cp 2, tp 2
  EXPECT_EQ(mesh.dp(), 2);
  EXPECT_EQ(mesh.CpIndex(5), 0);
  EXPECT_EQ(mesh.CpIndex(7), 1);
  EXPECT_EQ(mesh.Along(7, {MeshDim::kCp}), (Ranks{5, 7}));
  EXPECT_EQ(mesh.DpIndex(5), mesh.DpIndex(7));
  EXPECT_EQ(mesh.ExpertRanks(7), kLastFour);
  EXPECT_EQ(mesh.PartNumber(5), mesh.PartNumber(5 - 4)) << "cp changes no part of the model";
}

TEST(Mesh, BothEndsOfAPipelineAreCopiesOfEachOther) {
  const Mesh mesh(12, 1, 2, 3);  // three stages of two copies of two
  EXPECT_EQ(HoldersOf(mesh, 3, {.both_ends = true}),
            (HolderRanks{{0, 1, 2, 3, 8, 9, 10, 11}, {2, 3}, {1, 3, 9, 11}}));
  EXPECT_EQ(mesh.PpIndex(3), 0);
  EXPECT_EQ(mesh.PpIndex(4), 1);
}

TEST(Mesh, ExpertsAreSharedOutAmongNeighboursOfAShardGroup) {
  struct Of {
    Mesh mesh;
    int rank, index, part;
    Ranks others;         // that share experts out with it
    HolderRanks holders;  // of its own
  };
  const Of cases[] = {
      {Mesh(4, 1, 0, 1, 1), 2, 0, 0, {2}, {kFour, kFour, {2}}},
      {Mesh(4, 1, 0, 1, 4), 2, 2, 2, kFour, {{2}, {2}, {2}}},
      {Mesh(8, 1, 0, 1, 2), 5, 1, 1, {4, 5}, {{1, 3, 5, 7}, {1, 3, 5, 7}, {5}}},
      {Mesh(8, 1, 4, 1, 2), 5, 1, 1, {4, 5}, {{1, 3, 5, 7}, {5, 7}, {1, 5}}},
      {Mesh(8, 2, 0, 1, 4), 6, 2, 2, kLastFour, {{2, 6}, {2, 6}, {6}}},
      {Mesh(8, 4, 0, 1, 2), 6, 0, 4, {6, 7}, {{0, 2, 4, 6}, {0, 2, 4, 6}, {6}}},
      {Mesh(8, 1, 0, 2, 4), 6, 2, 6, kLastFour, {{6}, {6}, {6}}},
  };
  for (const Of& c : cases) {
    SCOPED_TRACE(std::to_string(c.mesh.ep()) + " of " + std::to_string(c.mesh.size()));
    EXPECT_EQ(c.mesh.EpIndex(c.rank), c.index);
    EXPECT_EQ(c.mesh.ExpertRanks(c.rank), c.others);
    EXPECT_EQ(c.mesh.PartNumber(c.rank), c.part);
    EXPECT_EQ(HoldersOf(c.mesh, c.rank, {.experts = true}), c.holders);
  }
}

TEST(Mesh, UnitsHaveEachFlatsHoldersBehindEachOther) {
  struct Of {
    Mesh mesh;
    int units;
  };
  const Of cases[] = {
      {Mesh(1, 1, 0), 1},           {Mesh(8, 1, 2), 8},           {Mesh(8, 2, 0), 4},
      {Mesh(8, 2, 0, 2), 2},        {Mesh(12, 1, 0, 1, 1, 3), 4}, {Mesh(8, 1, 0, 1, 2), 4},
      {Mesh(8, 2, 0, 1, 2), 4},     {Mesh(8, 2, 0, 1, 4), 2},     {Mesh(8, 4, 0, 1, 2), 2},
      {Mesh(24, 2, 12, 2, 3), 2},  // ep 3 and tp 2 meet again after six
      {Mesh(16, 2, 0, 1, 4, 2), 4}, {Mesh(16, 2, 0, 1, 8, 2), 2},
  };
  for (const Of& c : cases) {
    SCOPED_TRACE(std::to_string(c.mesh.size()) + " ranks, ep " + std::to_string(c.mesh.ep()));
    EXPECT_EQ(c.mesh.units(), c.units);
    const int in_unit = c.mesh.size() / c.mesh.pp() / c.units;
    for (int rank = 0; rank < c.mesh.size(); ++rank) {
      const int first = rank / in_unit * in_unit;
      for (const int other : c.mesh.ExpertRanks(rank)) EXPECT_EQ(other / in_unit * in_unit, first);
      for (const Holding& holding : {Holding{}, {.sliced = true}, {.experts = true}}) {
        const std::vector<int> whole = HoldersOf(c.mesh, rank, holding).whole;
        const size_t each = whole.size() / static_cast<size_t>(c.units);
        EXPECT_EQ(each * static_cast<size_t>(c.units), whole.size());
        for (size_t i = 0; i < whole.size(); ++i)
          EXPECT_EQ(whole[i] / in_unit, whole[0] / in_unit + static_cast<int>(i / each));
      }
    }
  }
}

TEST(Mesh, EveryRankHasOnePlaceAndGroupsAgree) {
  for (const auto& [ranks, tp, shard_size, pp, ep, cp] : {std::tuple{12, 1, 0, 1, 1, 1},
                                                          {12, 2, 0, 1, 3, 1},
                                                          {12, 3, 6, 1, 6, 1},
                                                          {16, 4, 8, 1, 2, 1},
                                                          {8, 8, 8, 1, 4, 1},
                                                          {6, 2, 2, 1, 1, 1},
                                                          {12, 2, 0, 2, 2, 1},
                                                          {12, 1, 2, 3, 2, 1},
                                                          {16, 2, 4, 2, 4, 1},
                                                          {16, 2, 8, 1, 8, 1},
                                                          {8, 1, 4, 1, 1, 2},
                                                          {16, 2, 0, 2, 4, 2},
                                                          {12, 1, 6, 2, 2, 3},
                                                          {16, 2, 8, 1, 8, 4}}) {
    const Mesh mesh(ranks, tp, shard_size, pp, ep, cp);
    std::set<std::tuple<int, int, int, int>> places;
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(mesh.RankAt(mesh.PlaceOf(rank)), rank);
      places.insert(
          {mesh.PpIndex(rank), mesh.DpIndex(rank), mesh.CpIndex(rank), mesh.TpIndex(rank)});
      const bool at_an_end = mesh.PpIndex(rank) == 0 || mesh.PpIndex(rank) + 1 == pp;
      for (const Holding& holding :
           {Holding{false, false}, {true, false}, {false, true}, {true, true}, {.experts = true}}) {
        if (holding.both_ends && (!at_an_end || pp == 1)) continue;
        const HolderRanks own = HoldersOf(mesh, rank, holding);
        EXPECT_EQ(own.whole.size(), own.shard.size() * own.replicate.size());
        EXPECT_EQ(own.whole[IndexAmongHolders(mesh, rank, holding)], rank);
        for (const int other : own.shard) {
          const HolderRanks its = HoldersOf(mesh, other, holding);
          EXPECT_EQ(its.shard, own.shard);
          EXPECT_EQ(its.whole, own.whole);
        }
        // Places in `whole` run through the shard group first: flats count on it.
        for (size_t i = 0; i < own.whole.size(); ++i) {
          const HolderRanks its = HoldersOf(mesh, own.whole[i], holding);
          EXPECT_EQ(its.shard[i % own.shard.size()], own.whole[i]);
          EXPECT_EQ(its.replicate[i / own.shard.size()], own.whole[i]);
        }
      }
    }
    EXPECT_EQ(places.size(), static_cast<size_t>(ranks));
  }
}

TEST(Mesh, RefusesWhatDoesNotDivide) {
  for (const auto& [ranks, tp, shard_size, pp, ep, cp] : {std::tuple{4, 3, 0, 1, 1, 1},
                                                          {4, 0, 0, 1, 1, 1},
                                                          {8, 4, 2, 1, 1, 1},
                                                          {8, 2, 3, 1, 1, 1},
                                                          {6, 2, 4, 1, 1, 1},
                                                          {8, 1, 0, 3, 1, 1},
                                                          {8, 1, 0, 0, 1, 1},
                                                          {8, 1, 8, 2, 1, 1},
                                                          {8, 8, 0, 2, 1, 1},
                                                          {8, 1, 0, 1, 3, 1},
                                                          {8, 1, 2, 1, 4, 1},
                                                          {8, 1, 0, 2, 8, 1},
                                                          {8, 1, 0, 1, 0, 1},
                                                          {8, 1, 0, 1, 1, 3},
                                                          {8, 2, 2, 1, 1, 2},
                                                          {8, 1, 0, 1, 1, 0}})
    EXPECT_THROW(Mesh(ranks, tp, shard_size, pp, ep, cp), std::invalid_argument)
        << ranks << " " << tp << " " << shard_size << " " << pp << " " << ep << " " << cp;
}

TEST(Mesh, PartsMakeUpTheWholeAndTheLastIsNoneOfTheSmaller) {
  for (const int64_t count : {1, 7, 8, 259, 152064}) {
    for (const int parts : {1, 2, 3, 4, 8}) {
      int64_t end = 0, largest = 0, last = 0;
      for (int part = 0; part < parts; ++part) {
        const auto [begin, next] = PartOf(count, part, parts);
        EXPECT_EQ(begin, end);
        end = next, last = next - begin, largest = std::max(largest, last);
        EXPECT_GE(last, count / parts);
      }
      EXPECT_EQ(end, count);
      EXPECT_EQ(last, largest);
    }
  }
}

}  // namespace
}  // namespace muster::trainer
