// Queues that take the shortest first.
#include <gtest/gtest.h>

#include <vector>

#include "scheduler/decide/testing/fixture.h"
#include "scheduler/state/queue_order.h"

namespace muster {
namespace {

using testing::DecideQuickly;
using testing::IsRunning;
using testing::JobBuilder;
using testing::QuickOptions;
using testing::ReportAll;
using testing::StartAll;
using testing::StopsIn;
using testing::SystemBuilder;
using testing::TaskOf;
using testing::TellEnd;

constexpr int64_t kTick = kOrderTickNs / kSecond;
constexpr int64_t kFirstTick =
    (SystemBuilder::kStart / kOrderTickNs + 1) * kTick - SystemBuilder::kStart / kSecond;

// Beside it something longer, so that the job under test isn't the longest of its queue.
uint64_t StartLonger(SystemBuilder* system) {
  const uint64_t longer = JobBuilder("q").Gpus(1).SubmitTo(system);
  DecideQuickly(system);
  StartAll(system, longer);
  TellEnd(system, longer, 1'000'000);
  return longer;
}

TEST(QueueOrder, AShorterOneStopsALongerOneOfItsQueueAfterMinRuntime) {
  for (const bool shortest : {true, false}) {
    for (const int64_t guarantee : {0, 5}) {  // guaranteed claims regard min_runtime here, too
      SystemBuilder system;
      system.Cluster("c").Hosts("c", 1, 5).Queue("q", guarantee).Queue("other");
      if (shortest) system.ShortestFirst("q");
      system.Step(0);
      StartLonger(&system);
      const uint64_t runs = JobBuilder("q").Gpus(4).SubmitTo(&system);
      system.Step(kFirstTick - 5);
      DecideQuickly(&system);
      StartAll(&system, runs);
      TellEnd(&system, runs, 3'000);
      system.Step(kFirstTick);
      const uint64_t shorter = JobBuilder("q").Gpus(4).SubmitTo(&system);
      const Plan early = DecideQuickly(&system);
      EXPECT_EQ(StopsIn(early), 0) << "5 s of the 10 s of min_runtime";
      if (shortest) {
        EXPECT_LE(early.next_wake_ns, SystemBuilder::kStart + (kFirstTick + 5) * kSecond);
      }
      system.Step(kFirstTick + 5);
      EXPECT_EQ(StopsIn(DecideQuickly(&system)), shortest ? 1 : 0);
      EXPECT_EQ(TaskOf(system.state, runs).state, shortest ? pb::TASK_STOPPING : pb::TASK_RUNNING);
      if (!shortest) continue;
      ReportAll(&system, runs, pb::GONE, 0, true);
      DecideQuickly(&system);
      EXPECT_TRUE(IsRunning(system, shorter));
      EXPECT_FALSE(IsRunning(system, runs));
    }
  }
}

TEST(QueueOrder, EqualBandsGoBySubmissionAndStopNobody) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 1).Queue("q").ShortestFirst("q");
  system.Step(0);
  const uint64_t runs = JobBuilder("q").SubmitTo(&system);
  const uint64_t first = JobBuilder("q").SubmitTo(&system);
  const uint64_t second = JobBuilder("q").SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, runs);
  system.Step(250);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 0);
  ReportAll(&system, runs, pb::GONE, 0);
  DecideQuickly(&system);
  EXPECT_TRUE(IsRunning(system, first));
  EXPECT_FALSE(IsRunning(system, second));
}

TEST(QueueOrder, PriorityGoesBeforeLength) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 4).Queue("q").ShortestFirst("q");
  system.Step(0);
  StartLonger(&system);
  const uint64_t runs = JobBuilder("q").Gpus(3).Priority(1).SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, runs);
  TellEnd(&system, runs, 3'000);
  system.Step(2 * kTick);
  JobBuilder("q").Gpus(3).SubmitTo(&system);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 0);
}

TEST(QueueOrder, BandsAreLookedAtAgainAtTheNextTick) {
  for (const bool shortest : {true, false}) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 1, 1).Queue("q");
    if (shortest) system.ShortestFirst("q");
    system.Step(100);
    JobBuilder("q").SubmitTo(&system);
    const uint64_t waits = JobBuilder("q").SubmitTo(&system);
    const Plan plan = DecideQuickly(&system);
    EXPECT_FALSE(IsRunning(system, waits));
    const int64_t tick_ns = (system.now_ns / kOrderTickNs + 1) * kOrderTickNs;
    EXPECT_EQ(plan.next_wake_ns <= tick_ns, shortest);
  }
}

// Nothing tells how long they take, and one device is there: each runs until it has had twice as
// much as a band holds. So they take turns, each twice as long as the one before.
TEST(QueueOrder, WhoTakesTurnsIsStoppedMoreAndMoreSeldom) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 1).Queue("q").ShortestFirst("q", /*max_wait_s=*/1'000'000);
  system.Step(0);
  std::vector<uint64_t> jobs;
  for (int i = 0; i < 3; ++i) jobs.push_back(JobBuilder("q").SubmitTo(&system));
  std::vector<int64_t> stops_s;
  for (int64_t at_s = 0; at_s < 200'000; at_s += 100) {
    system.Step(at_s);
    if (StopsIn(DecideQuickly(&system)) > 0) stops_s.push_back(at_s);
    for (const uint64_t job : jobs) {
      const AttemptRow* current = TaskOf(system.state, job).current();
      if (current == nullptr) continue;
      if (current->state == pb::TASK_STOPPING) ReportAll(&system, job, pb::GONE, 0, true);
      if (current->state == pb::TASK_STARTING) StartAll(&system, job);
    }
    DecideQuickly(&system);
    for (const uint64_t job : jobs) {
      const AttemptRow* current = TaskOf(system.state, job).current();
      if (current != nullptr && current->state == pb::TASK_STARTING) StartAll(&system, job);
    }
  }
  EXPECT_GE(stops_s.size(), 6u);
  EXPECT_LE(stops_s.size(), 3u * 8) << "200,000 s are nine bands: each is left once";
  for (const uint64_t job : jobs)
    EXPECT_GT(TaskOf(system.state, job).ran_ns, 20'000 * kSecond) << "nobody starves";
}

TEST(QueueOrder, WhoWaitedForMaxWaitIsStoppedForNobodyOfItsQueue) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 2).Queue("q").ShortestFirst("q", /*max_wait_s=*/kTick);
  system.Step(0);
  StartLonger(&system);
  const uint64_t first = JobBuilder("q").SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, first);
  const uint64_t waits = JobBuilder("q").SubmitTo(&system);
  TellEnd(&system, first, 3'000);
  system.Step(2 * kTick);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 1) << "it has waited long enough";
  ReportAll(&system, first, pb::GONE, 0, true);
  DecideQuickly(&system);
  ASSERT_TRUE(IsRunning(system, waits));
  StartAll(&system, waits);
  TellEnd(&system, waits, 50'000);
  for (int64_t tick = 3; tick < 20; ++tick) {
    system.Step(tick * kTick);
    JobBuilder("q").SubmitTo(&system);
    EXPECT_EQ(StopsIn(DecideQuickly(&system)), 0);
  }
  EXPECT_TRUE(IsRunning(system, waits));
}

}  // namespace
}  // namespace muster
