// Rows of the store: what TakeChanges says is what changed, and Load gives the same State back.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::JobBuilder;
using testing::Placed;
using testing::StartAll;
using testing::SystemBuilder;

TEST(Records, TheChangesOfEachStepAddUpToTheState) {
  SystemBuilder system;
  std::map<std::pair<std::string, std::string>, std::string> store;
  const auto save = [&] {
    for (const RowChange& change : system.state.RowsOf(system.state.TakeChanges())) {
      if (change.bytes.has_value()) {
        store[{change.kind, change.id}] = *change.bytes;
      } else {
        store.erase({change.kind, change.id});
      }
    }
    std::vector<RowChange> rows;
    for (const auto& [key, bytes] : store) rows.push_back({key.first, key.second, bytes});
    const absl::StatusOr<State> loaded = State::Load(rows);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(State::Difference(system.state, *loaded), "");
  };
  system.Cluster("c").Hosts("c", 2, 2).Queue("q");
  save();
  JobBuilder("q").SubmitTo(&system, "key");
  JobBuilder("q").Workers(2).SubmitTo(&system);
  save();
  EXPECT_EQ(system.state.FindByIdempotencyKey("ann", "key"), 1u);
  EXPECT_EQ(system.state.FindByIdempotencyKey("bob", "key"), 0u);
  system.Do(Placed(system.state, 2, "c", {{"h00", {1}}, {"h01", {0}}}));
  StartAll(&system, 2);
  system.Step(5);
  save();
  system.Cancel(1);
  system.Drain("c");
  save();
  EXPECT_TRUE(system.state.TakeChanges().empty());
  // A week later job 1 is forgotten.
  system.Step(8 * 86'400);
  EXPECT_EQ(system.state.FindJob(1), nullptr);
  save();
}

// The configuration stood in the row `meta` once, and was written with every step.
TEST(Records, AStoreWhoseConfigurationHasNoRowOfItsOwnGetsOne) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 1).Queue("q");
  system.Drain("c");
  JobBuilder("q").SubmitTo(&system);
  std::vector<RowChange> rows = system.state.AllRows();
  ASSERT_EQ(rows.front().kind, "configuration");
  pb::ConfigurationRecord configuration;
  ASSERT_TRUE(configuration.ParseFromString(*rows.front().bytes));
  rows.erase(rows.begin());
  for (RowChange& row : rows) {
    pb::MetaRecord meta;
    if (row.kind != "meta") continue;
    ASSERT_TRUE(meta.ParseFromString(*row.bytes));
    *meta.mutable_queues() = configuration.queues();
    *meta.mutable_clusters() = configuration.clusters();
    *meta.mutable_drained() = configuration.drained();
    row.bytes = meta.SerializeAsString();
  }
  absl::StatusOr<State> loaded = State::Load(rows);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(State::Difference(system.state, *loaded), "");
  const std::vector<RowChange> changes = loaded->RowsOf(loaded->TakeChanges());
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].kind, "configuration");
}

TEST(Records, TheConfigurationIsWrittenWhenItChangesOnly) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 1).Queue("q");
  system.state.TakeChanges();
  const auto written = [&] {
    const std::vector<RowChange> changes = system.state.RowsOf(system.state.TakeChanges());
    return std::any_of(changes.begin(), changes.end(),
                       [](const RowChange& row) { return row.kind == "configuration"; });
  };
  JobBuilder("q").SubmitTo(&system);
  system.Step(5);
  EXPECT_FALSE(written());
  system.Drain("c");
  EXPECT_TRUE(written());
  system.Queue("r");
  EXPECT_TRUE(written());
}

TEST(Records, DamagedRowsAreRefusedByName) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 1).Queue("q");
  JobBuilder("q").SubmitTo(&system);
  for (const char* kind : {"configuration", "meta", "host", "job"}) {
    std::vector<RowChange> rows = system.state.AllRows();
    for (RowChange& row : rows) {
      if (row.kind == kind) row.bytes = "\xff\xff\xff";
    }
    const absl::Status status = State::Load(rows).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << kind;
    EXPECT_NE(std::string(status.message()).find(kind), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace muster
