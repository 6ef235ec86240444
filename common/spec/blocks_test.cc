#include "common/spec/blocks.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster {

namespace pb = ::muster::v1;

namespace {

struct Block {
  int gpus;
  pb::TopologyLevel preferred, required;
};

// "host 8, island 4": what is together, as far as more than one worker, or GPU, is.
std::string UnitsText(const RankUnits& units) {
  std::vector<std::string> parts;
  const auto add = [&](const char* level, int64_t size) {
    if (size > 1) parts.push_back(absl::StrCat(level, " ", size));
  };
  add("block", units.block);
  add("rack", units.rack);
  add("host", units.host);
  add("island", units.island_gpus);
  return parts.empty() ? "apart" : absl::StrJoin(parts, ", ");
}

constexpr pb::TopologyLevel kNone = pb::TOPOLOGY_LEVEL_UNSPECIFIED;

TEST(RankUnits, WishesAreGivenUpOneAfterTheOther) {
  const std::string two = "block 2, rack 2, host 2", four = "block 4, rack 4, host 4",
                    eight = "block 8, rack 8, host 8";
  const struct {
    const char* name;
    std::vector<Block> blocks;
    std::vector<std::string> on_islands, on_hosts;  // in turn; where hosts have several or not
  } cases[] = {
      {"no blocks", {}, {"apart"}, {"apart"}},
      {"a host, else none", {{2, pb::HOST, kNone}}, {two, "apart"}, {two, "apart"}},
      {"an island, else a host, else none",
       {{2, pb::ISLAND, kNone}},
       {two + ", island 2", two, "apart"},
       {two, "apart"}},
      {"as a trainer's layout wishes",
       {{2, pb::ISLAND, kNone}, {8, pb::HOST, kNone}},
       {eight + ", island 2", eight, two + ", island 2", two, "apart"},
       {eight, two, "apart"}},
      {"two islands: the larger becomes a host first",
       {{2, pb::ISLAND, kNone}, {4, pb::ISLAND, kNone}},
       {four + ", island 4", four + ", island 2", four, two + ", island 2", two, "apart"},
       {four, two, "apart"}},
      {"what is required stays",
       {{2, pb::ISLAND, pb::HOST}, {8, pb::HOST, pb::BLOCK}},
       {eight + ", island 2", eight, "block 8, rack 2, host 2, island 2",
        "block 8, rack 2, host 2"},
       {eight, "block 8, rack 2, host 2"}},
      {"a required island is no wish",
       {{2, kNone, pb::ISLAND}, {8, pb::HOST, kNone}},
       {eight + ", island 2", two + ", island 2"},
       {eight + ", island 2", two + ", island 2"}},
      {"a rack is given up at once",
       {{2, pb::HOST, kNone}, {8, pb::RACK, kNone}},
       {"block 8, rack 8, host 2", two, "apart"},
       {"block 8, rack 8, host 2", two, "apart"}},
  };
  for (const auto& c : cases) {
    pb::TaskSpec task;
    task.mutable_resources()->set_gpus_milli(1'000);
    for (const Block& block : c.blocks) {
      pb::RankBlock* out = task.mutable_topology()->add_blocks();
      out->set_gpus(block.gpus);
      out->set_preferred(block.preferred);
      out->set_required(block.required);
    }
    for (const bool islands : {true, false}) {
      std::vector<std::string> turns;
      for (const RankUnits& units : RankUnitsInTurn(task, islands))
        turns.push_back(UnitsText(units));
      EXPECT_EQ(turns, islands ? c.on_islands : c.on_hosts) << c.name << ", islands " << islands;
    }
    EXPECT_EQ(RankUnitsInTurn(task, true).back(), RankUnitsOf(task, 0)) << c.name;
  }
}

}  // namespace
}  // namespace muster
