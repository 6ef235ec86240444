// Runs of neighbours against the mesh, which alone says who is who.
#include "trainer/loop/placement.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trainer/parallel/mesh.h"

namespace muster::trainer {
namespace {

struct Case {
  ParallelConfig parallel;
  int shard_size, ranks;
  const char* want;
  int64_t multiple;
};

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {{}, 0, 1, "", 1},
      {{}, 0, 8, "", 1},
      {{}, 4, 8, "shard 4 rack", 4},
      {{.tp = 4}, 0, 8, "tp 4 island", 4},
      {{.cp = 4}, 0, 8, "cp 4 host", 4},
      {{.pp = 4}, 0, 8, "pp 8 cluster", 4},
      {{.tp = 4, .pp = 2, .cp = 2}, 0, 32, "tp 4 island, tp·cp 8 host, pp 32 cluster", 16},
      {{.tp = 2, .cp = 2}, 4, 8, "tp 2 island, tp·cp 4 host", 4},
      {{.tp = 2, .cp = 2}, 8, 16, "tp 2 island, tp·cp 4 host, shard 8 rack", 8},
      {{.ep = 8}, 0, 16, "ep 8 host", 8},
      {{.tp = 4, .ep = 2}, 0, 8, "tp 4 island", 4},
      {{.tp = 2, .ep = 2, .cp = 2}, 0, 8, "tp 2 island, tp·cp 4 host", 4},
      {{.tp = 2, .pp = 2, .ep = 8}, 0, 32, "tp 2 island, ep 8 host, pp 32 cluster", 16},
      {{.tp = 2, .ep = 3}, 0, 12, "tp 2 island, ep 6 host", 6},
      {{.tp = 2, .pp = 2, .ep = 4},
       8,
       32,
       "tp 2 island, ep 4 host, shard 8 rack, pp 32 cluster",
       16},
  };
  return cases;
}

std::string TextOf(const std::vector<RankGroup>& groups) {
  std::string text;
  for (const RankGroup& group : groups)
    text += (text.empty() ? "" : ", ") + group.name + " " + std::to_string(group.ranks) + " " +
            group.level;
  return text;
}

Mesh MeshOf(const Case& c, int ranks) {
  const ParallelConfig& p = c.parallel;
  return Mesh(ranks, static_cast<int>(p.tp), c.shard_size, static_cast<int>(p.pp),
              static_cast<int>(p.ep), static_cast<int>(p.cp));
}

// The group of that name that `rank` is in.
std::vector<int> Members(const Mesh& mesh, int rank, const std::string& name) {
  if (name == "tp") return mesh.Along(rank, {MeshDim::kTp});
  if (name == "cp" || name == "tp·cp") return mesh.Along(rank, {MeshDim::kTp, MeshDim::kCp});
  if (name == "ep") return mesh.ExpertRanks(rank);
  if (name == "shard") return mesh.Along(rank, {MeshDim::kTp, MeshDim::kCp, MeshDim::kDpShard});
  return mesh.Along(rank, {MeshDim::kPp});
}

TEST(Placement, RunsOfNeighboursHaveWholeGroups) {
  for (const Case& c : Cases()) {
    const std::vector<RankGroup> groups = PlacementOf(c.parallel, c.shard_size, c.ranks);
    EXPECT_EQ(TextOf(groups), c.want);
    SCOPED_TRACE(c.want);
    const Mesh mesh = MeshOf(c, c.ranks);
    int64_t before = 1;
    for (const RankGroup& group : groups) {
      EXPECT_EQ(group.ranks % before, 0) << group.name;
      EXPECT_EQ(c.ranks % group.ranks, 0) << group.name;
      before = group.ranks;
      for (int rank = 0; rank < c.ranks; ++rank) {
        for (const int other : Members(mesh, rank, group.name))
          EXPECT_EQ(other / group.ranks, rank / group.ranks) << group.name << " of " << rank;
      }
    }
  }
}

TEST(Placement, AMeshCanBeOfMultiplesAlone) {
  for (const Case& c : Cases()) {
    EXPECT_EQ(RanksMultiple(c.parallel, c.shard_size), c.multiple) << c.want;
    for (int ranks = 1; ranks <= 64; ++ranks) {
      if (ranks % c.multiple == 0) {
        EXPECT_EQ(MeshOf(c, ranks).size(), ranks) << c.want;
      } else {
        EXPECT_THROW(MeshOf(c, ranks), std::invalid_argument) << c.want << " of " << ranks;
      }
    }
  }
}

}  // namespace
}  // namespace muster::trainer
