#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/decide/testing/fixture.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::ActsOf;
using testing::DecideQuickly;
using testing::JobBuilder;
using testing::Report;
using testing::ReportAll;
using testing::StartAll;
using testing::SystemBuilder;
using testing::TaskOf;

// A trainer's gang of three workers with two GPUs each, running.
uint64_t StartTrainer(SystemBuilder* system) {
  JobBuilder builder("q");
  builder.Workers(3).Gpus(2);
  builder.task()->set_trainer_json("{}");
  const uint64_t job = builder.SubmitTo(system);
  DecideQuickly(system);
  StartAll(system, job);
  return job;
}

void LoseItsSecondHost(SystemBuilder* system, uint64_t job) {
  system->Step(60);
  system->HostState(
      "c", system->state.host(TaskOf(system->state, job).attempts.back().parts[1].host).name,
      pb::HOST_UNREACHABLE);
}

// A gang over three of four hosts, of which one can't be reached any more, beside a job that waits
// for two of them.
TEST(Decide, AGangKeepsItsOtherHostsAndTakesASpareForTheOneThatIsLost) {
  for (const bool fails : {false, true}) {
    SCOPED_TRACE(fails ? "its members fail for it" : "its members notice nothing");
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 4, 2).Queue("q");
    const uint64_t job = StartTrainer(&system);
    const auto hosts = [&] {
      std::vector<HostId> found;
      for (const PartRow& part : TaskOf(system.state, job).attempts.back().parts)
        found.push_back(part.host);
      return found;
    };
    const std::vector<HostId> first = hosts();
    ASSERT_EQ(first.size(), 3u);
    JobBuilder other("q");
    const uint64_t waits = other.Workers(2).Gpus(2).SubmitTo(&system);
    DecideQuickly(&system);
    LoseItsSecondHost(&system, job);
    if (fails) {
      for (const size_t part : {0, 2})
        system.Do(Report(system.state, job, 0, 1, part, pb::EXITED, 1));
      DecideQuickly(&system);
    }
    DecideQuickly(&system);
    EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_STOPPING);
    ASSERT_NE(TaskOf(system.state, job).reservation, nullptr)
        << "what its next attempt gets is nobody else's";
    for (const size_t part : {0, 2}) {
      EXPECT_EQ(TaskOf(system.state, job).attempts.size(), 1u);
      EXPECT_EQ(TaskOf(system.state, waits).state, pb::TASK_WAITING);
      system.Do(Report(system.state, job, 0, 1, part, pb::GONE, 1, true));
      DecideQuickly(&system);
    }
    ASSERT_EQ(TaskOf(system.state, job).attempts.size(), 2u);
    EXPECT_EQ(TaskOf(system.state, job).attempts[0].cause, pb::HOST_LOST);
    const std::vector<HostId> second = hosts();
    ASSERT_EQ(second.size(), 3u);
    EXPECT_EQ(second[0], first[0]);
    EXPECT_EQ(second[2], first[2]);
    EXPECT_EQ(std::count(first.begin(), first.end(), second[1]), 0);
    EXPECT_EQ(TaskOf(system.state, job).restarts_used, 0);
    EXPECT_EQ(TaskOf(system.state, waits).state, pb::TASK_WAITING);
  }
}

// Two hosts with half a GPU block each are free: by number they would do for the lost host.
TEST(Decide, AGangOfBlocksTakesNoSparesThatWouldTearThem) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 5, 2).Queue("q");
  JobBuilder builder("q");
  builder.Workers(6).Gpus(1);
  builder.task()->set_trainer_json("{}");
  pb::RankBlock* block = builder.task()->mutable_topology()->add_blocks();
  block->set_gpus(2);
  block->set_required(pb::HOST);
  const uint64_t job = builder.SubmitTo(&system);
  for (const char* host : {"h03", "h04"}) {
    const uint64_t other = JobBuilder("q").SubmitTo(&system);
    system.Do(testing::Placed(system.state, other, "c", {{host, {0}}}));
  }
  DecideQuickly(&system);
  StartAll(&system, job);
  ASSERT_EQ(TaskOf(system.state, job).current()->parts.size(), 3u);
  LoseItsSecondHost(&system, job);
  DecideQuickly(&system);
  EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_RUNNING);
  EXPECT_EQ(TaskOf(system.state, job).reservation, nullptr);
}

// Blocks of two hosts in a rack each, on two of three racks: with one host its block is lost, and
// the other stays where it is.
TEST(Decide, AGangOfBlocksTakesAWholeBlockForTheOneThatIsTorn) {
  SystemBuilder system;
  system.Cluster("c").Queue("q");
  for (const char* rack : {"r0", "r1", "r2"}) system.Hosts("c", 2, 2, "gpu", rack);
  JobBuilder builder("q");
  builder.Workers(8).Gpus(1).MultipleOf(4);
  builder.task()->set_trainer_json("{}");
  pb::RankBlock* block = builder.task()->mutable_topology()->add_blocks();
  block->set_gpus(4);
  block->set_required(pb::RACK);
  const uint64_t job = builder.SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, job);
  std::vector<HostId> before;
  for (const PartRow& part : TaskOf(system.state, job).current()->parts)
    before.push_back(part.host);
  ASSERT_EQ(before.size(), 4u);
  LoseItsSecondHost(&system, job);
  DecideQuickly(&system);
  EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_STOPPING);
  ASSERT_NE(TaskOf(system.state, job).reservation, nullptr);
  const std::vector<HostSlice>& kept = TaskOf(system.state, job).reservation->parts;
  ASSERT_EQ(kept.size(), 4u);
  for (const size_t spare : {0, 1})
    EXPECT_EQ(std::count(before.begin(), before.end(), kept[spare].host), 0) << spare;
  EXPECT_EQ(kept[2].host, before[2]);
  EXPECT_EQ(kept[3].host, before[3]);
}

// The same on two of four racks, and the last host of its other block has been put into a rack of
// its own: with that block it could not be started again, so both get another place.
TEST(Decide, AGangOfBlocksKeepsNoBlockThatChangedRacksHaveTorn) {
  SystemBuilder system;
  system.Cluster("c").Queue("q");
  for (const char* rack : {"r0", "r1", "r2", "r3"}) system.Hosts("c", 2, 2, "gpu", rack);
  JobBuilder builder("q");
  builder.Workers(8).Gpus(1).MultipleOf(4);
  builder.task()->set_trainer_json("{}");
  pb::RankBlock* block = builder.task()->mutable_topology()->add_blocks();
  block->set_gpus(4);
  block->set_required(pb::RACK);
  const uint64_t job = builder.SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, job);
  std::vector<HostId> before;
  for (const PartRow& part : TaskOf(system.state, job).current()->parts)
    before.push_back(part.host);
  ASSERT_EQ(before.size(), 4u);
  pb::Event changed;
  pb::ClusterSpec* cluster = changed.mutable_clusters_configured()->mutable_file()->add_clusters();
  cluster->set_name("c");
  for (const HostId id : system.state.hosts()) {
    pb::HostSpec* host = cluster->add_hosts();
    host->set_name(system.state.host(id).name);
    host->set_rack(id == before[3] ? "r4" : system.state.host(id).rack);
  }
  system.Do(changed);
  LoseItsSecondHost(&system, job);
  DecideQuickly(&system);
  EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_STOPPING);
  ASSERT_NE(TaskOf(system.state, job).reservation, nullptr);
  const std::vector<HostSlice>& kept = TaskOf(system.state, job).reservation->parts;
  ASSERT_EQ(kept.size(), 4u);
  for (const HostSlice& part : kept)
    EXPECT_EQ(std::count(before.begin(), before.end(), part.host), 0)
        << system.state.host(part.host).name;
}

// The only spare is still another job's, which is being stopped: until it has left the gang runs
// on.
TEST(Decide, AGangIsNotStoppedForASpareThatIsStillToBeGivenBack) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 4, 2).Queue("q");
  const uint64_t job = StartTrainer(&system);
  const uint64_t leaves = JobBuilder("q").Gpus(2).SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, leaves);
  ASSERT_EQ(TaskOf(system.state, leaves).state, pb::TASK_RUNNING);
  system.Cancel(leaves);
  DecideQuickly(&system);
  ASSERT_EQ(TaskOf(system.state, leaves).state, pb::TASK_STOPPING);
  LoseItsSecondHost(&system, job);
  for (int round = 0; round < 3; ++round) {
    DecideQuickly(&system);
    EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_RUNNING) << "round " << round;
  }
  EXPECT_NE(TaskOf(system.state, job).reservation, nullptr) << "it is the next to have that host";
  ReportAll(&system, leaves, pb::GONE, 0, true);
  DecideQuickly(&system);
  EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_STOPPING);
  for (const size_t part : {0, 2})
    system.Do(Report(system.state, job, 0, 1, part, pb::GONE, 1, true));
  DecideQuickly(&system);
  EXPECT_EQ(TaskOf(system.state, job).attempts.size(), 2u);
}

// Without a spare it keeps running where it is: its devices are not given up for a place that
// doesn't exist.
TEST(Decide, AGangWithALostHostAndNoSpareIsNotStopped) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 3, 2).Queue("q");
  const uint64_t job = StartTrainer(&system);
  LoseItsSecondHost(&system, job);
  EXPECT_EQ(ActsOf(DecideQuickly(&system)), 0);
  EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_RUNNING);
}

// What runs on one of its devices goes on there while the gang is stopped: its next attempt has to
// wait for that device, though the attempt before had it.
TEST(Decide, AGangThatOthersRunOnDoesNotComeBackToWhatTheyStillHave) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 4, 2).Queue("q");
  const uint64_t job = StartTrainer(&system);
  JobBuilder builder("q");
  builder.Gpus(1).spec.set_on(absl::StrCat(job));
  const uint64_t hosted = builder.SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, hosted);
  const PartRow has = TaskOf(system.state, hosted).current()->parts[0];
  LoseItsSecondHost(&system, job);
  ASSERT_NE(TaskOf(system.state, job).current()->parts[1].host, has.host);
  DecideQuickly(&system);
  for (const size_t part : {0, 2}) {
    if (TaskOf(system.state, job).attempts.back().number == 1)
      system.Do(Report(system.state, job, 0, 1, part, pb::GONE, 1, true));
    DecideQuickly(&system);
  }
  const AttemptRow* still = TaskOf(system.state, hosted).current();
  ASSERT_NE(still, nullptr) << "it has not gone";
  for (const AttemptRow& attempt : TaskOf(system.state, job).attempts) {
    if (attempt.number == 1) continue;
    for (const PartRow& part : attempt.parts) {
      EXPECT_FALSE(part.host == has.host &&
                   std::count(part.devices.begin(), part.devices.end(), has.devices[0]) > 0)
          << "attempt " << attempt.number;
    }
  }
}

}  // namespace
}  // namespace muster
