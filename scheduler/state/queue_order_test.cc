#include "scheduler/state/queue_order.h"

#include <gtest/gtest.h>

#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::JobBuilder;
using testing::Placed;
using testing::ReportAll;
using testing::StartAll;
using testing::Stopping;
using testing::SystemBuilder;
using testing::TaskOf;
using testing::TellEnd;

constexpr int64_t kTick = kOrderTickNs / kSecond;  // from kStart on a tick lies in each of these

// Eight devices and a queue that takes the shortest first.
struct OneQueue {
  SystemBuilder system;
  explicit OneQueue(int64_t max_wait_s = 0) {
    system.Cluster("c").Hosts("c", 1, 8).Queue("q").ShortestFirst("q", max_wait_s);
    system.Step(0);
  }
  uint64_t Submit(int workers = 1, int64_t limit_s = 0) {
    JobBuilder job("q");
    if (limit_s > 0) job.TimeLimit(limit_s);
    return job.Workers(workers).SubmitTo(&system);
  }
  void Start(uint64_t job, const std::vector<int32_t>& devices) {
    const std::string& host = system.state.host(system.state.hosts()[0]).name;
    system.Do(Placed(system.state, job, "c", {{host, devices, static_cast<int>(devices.size())}}));
    StartAll(&system, job);
  }
  void Preempt(uint64_t job) {
    system.Do(Stopping(system.state, job, pb::PREEMPTION));
    ReportAll(&system, job, pb::GONE, 0, true);
  }
  int32_t BandOf(uint64_t job) const { return system.state.FindJob(job)->band; }
  WorkLeft LeftOf(uint64_t job) const {
    return WorkLeftOf(*system.state.FindJob(job), system.now_ns);
  }
};

TEST(QueueOrder, ABandHoldsTwiceTheOneBefore) {
  const struct {
    int64_t minutes;
    int32_t before, band;
  } kCases[] = {
      {0, kFrontBand, 1},  {10, kFrontBand, 1}, {11, kFrontBand, 2}, {20, kFrontBand, 2},
      {40, kFrontBand, 3}, {80, kFrontBand, 4}, {11, 1, 1},  // near its band it stays there
      {13, 1, 2},          {9, 2, 2},           {7, 2, 1},
  };
  for (const auto& c : kCases) {
    const __int128 milli_ns = static_cast<__int128>(1000) * c.minutes * kMinute;
    EXPECT_EQ(BandOf(milli_ns, c.before), c.band) << c.minutes << " minutes, before " << c.before;
  }
}

TEST(QueueOrder, WhatIsLeftIsToldByTheProgramItsStepsOrHistoryElseItIsWhatItHad) {
  const struct {
    const char* what;
    int64_t told_s;  // said 100 s after its start; 0: nothing
    int64_t step, steps;
    int64_t history_s, limit_s;
    int64_t left_s;  // 200 s after its start
    bool expected;
  } kCases[] = {
      {"its program's word", 500, 0, 0, 0, 0, 400, true},
      {"its steps: half of them in 200 s", 0, 50, 100, 0, 0, 200, true},
      {"its program before its steps", 500, 50, 100, 0, 0, 400, true},
      {"history: of one worker, two take half as long", 0, 0, 0, 1400, 0, 500, true},
      {"history that is used up: what it had", 0, 0, 0, 300, 0, 200, false},
      {"nothing: what it had", 0, 0, 0, 0, 0, 200, false},
      {"no more than its time limit", 500, 0, 0, 0, 300, 100, true},
  };
  for (const auto& c : kCases) {
    OneQueue at;
    if (c.history_s > 0) {
      const uint64_t before = at.Submit();
      at.Start(before, {0});
      at.system.Step(c.history_s);
      ReportAll(&at.system, before, pb::GONE, 0);
    }
    const uint64_t job = at.Submit(2, c.limit_s);
    at.Start(job, {0, 1});
    at.system.Step(c.history_s + 100);
    pb::Event event;
    pb::ProgressSeen* e = event.mutable_progress_seen();
    *e->mutable_key() = KeyOf(*at.system.state.FindJob(job), 0, 1);
    e->mutable_progress()->set_at_ns(at.system.now_ns);
    e->mutable_progress()->set_step(c.step);
    e->mutable_progress()->set_total_steps(c.steps);
    if (c.told_s > 0)
      e->mutable_progress()->set_expected_end_ns(at.system.now_ns + c.told_s * kSecond);
    at.system.Do(event);
    at.system.Step(c.history_s + 200);
    EXPECT_EQ(static_cast<int64_t>(at.LeftOf(job).milli_ns / kSecond), 2000 * c.left_s) << c.what;
    EXPECT_EQ(at.LeftOf(job).longest_ns, c.expected ? c.left_s * kSecond : 0) << c.what;
  }
}

TEST(QueueOrder, WhatStoppedKeepsWhatItsProgramSaid) {
  OneQueue at;
  const uint64_t job = at.Submit();
  at.Start(job, {0});
  TellEnd(&at.system, job, 1000);
  at.system.Step(400);
  at.Preempt(job);
  at.system.Step(5000);
  EXPECT_EQ(static_cast<int64_t>(at.LeftOf(job).milli_ns / kSecond), 1000 * 600);
}

// Who is before whom decides who grows: a band that followed from that would change it again.
TEST(QueueOrder, TheWorkersThatItHasNowDoNotChangeWhatIsLeft) {
  for (const bool told : {true, false}) {
    OneQueue at;
    JobBuilder elastic("q");
    const uint64_t job = elastic.Workers(1, 4).SubmitTo(&at.system);
    at.Start(job, {0});
    if (told) TellEnd(&at.system, job, 1000);
    at.system.Step(100);
    at.Preempt(job);
    at.Start(job, {0, 1, 2, 3});
    EXPECT_EQ(static_cast<int64_t>(at.LeftOf(job).milli_ns / kSecond), 1000 * (told ? 900 : 100));
  }
}

// It has two workers, with which it takes half as long; with one, which it would have if others
// were before it, it is the longest.
TEST(QueueOrder, TheWorkersThatItHasNowDoNotDecideWhetherItIsTheLongest) {
  OneQueue at;
  const uint64_t before = at.Submit();
  at.Start(before, {0});
  at.system.Step(1000);
  ReportAll(&at.system, before, pb::GONE, 0);
  JobBuilder elastic("q");
  const uint64_t job = elastic.Workers(1, 2).SubmitTo(&at.system);
  for (const std::vector<int32_t>& devices : {std::vector<int32_t>{0}, {0, 1}}) {
    at.Start(job, devices);
    EXPECT_EQ(at.LeftOf(job).longest_ns, 1000 * kSecond) << devices.size();
    at.Preempt(job);
  }
}

TEST(QueueOrder, BandsChangeAtTicksOnly) {
  OneQueue at;
  const uint64_t job = at.Submit(), longest = at.Submit(4);
  EXPECT_EQ(at.BandOf(job), kFirstBand);
  at.Start(job, {0});
  at.Start(longest, {1, 2, 3, 4});
  TellEnd(&at.system, job, 7'000);
  TellEnd(&at.system, longest, 10'000);
  const uint64_t round = at.system.state.round();
  at.system.Step(1);
  EXPECT_EQ(at.BandOf(job), kFirstBand);
  EXPECT_EQ(at.system.state.round(), round);
  at.system.Step(kTick);
  EXPECT_EQ(at.BandOf(job), 5) << "6,700 device seconds: up to 16 times 600";
  EXPECT_GT(at.system.state.round(), round) << "an outside event";
  EXPECT_EQ(State::Difference(at.system.state, at.system.state.Rebuilt()), "");
}

TEST(QueueOrder, TheLongestGoesFirstUntilItWouldNotBeTheLast) {
  OneQueue at;
  const uint64_t longest = at.Submit(), other = at.Submit();
  at.Start(longest, {0});
  at.Start(other, {1});
  TellEnd(&at.system, longest, 12'000);
  TellEnd(&at.system, other, 3'400);
  at.system.Step(kTick);
  EXPECT_EQ(at.BandOf(longest), kFrontBand) << "all that is left takes two devices less time";
  EXPECT_NE(at.BandOf(other), kFrontBand);
  TellEnd(&at.system, other, 20'000);
  at.system.Step(2 * kTick);
  EXPECT_NE(at.BandOf(longest), kFrontBand);
  EXPECT_EQ(at.BandOf(other), kFrontBand);
}

TEST(QueueOrder, WhoWaitedForMaxWaitInAllGoesFirst) {
  OneQueue at(/*max_wait_s=*/1000);
  const uint64_t job = at.Submit(), longest = at.Submit();
  at.Start(longest, {1});
  TellEnd(&at.system, longest, 100'000);
  at.system.Step(500);
  at.Start(job, {0});
  TellEnd(&at.system, job, 2'000);
  at.system.Step(600);
  at.Preempt(job);
  at.system.Step(1000);
  EXPECT_EQ(WaitedNs(*at.system.state.FindJob(job), at.system.now_ns), 900 * kSecond);
  EXPECT_NE(at.BandOf(job), kFrontBand);
  at.system.Step(1000 + kTick);
  EXPECT_EQ(at.BandOf(job), kFrontBand);
  at.Start(job, {0});
  at.system.Step(1000 + 2 * kTick);
  EXPECT_EQ(at.BandOf(job), kFrontBand) << "and stays there";
}

TEST(QueueOrder, AQueueIsOrderedAsTheOneAboveItAndOthersHaveNoBands) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 8).Queue("q").Queue("q/below").Queue("fifo");
  system.Step(0);
  const uint64_t below = JobBuilder("q/below").SubmitTo(&system);
  const uint64_t fifo = JobBuilder("fifo").SubmitTo(&system);
  EXPECT_EQ(system.state.FindJob(below)->band, 0);
  system.ShortestFirst("q");
  EXPECT_EQ(system.state.FindJob(below)->band, kFirstBand);
  EXPECT_EQ(system.state.FindJob(fifo)->band, 0);
  const int32_t node = system.state.queues().Find("q/below");
  EXPECT_EQ(system.state.queues().nodes[node].max_wait_ns, kMaxWaitNs);
}

TEST(QueueOrder, WhatOnlyWaitsForItsExportHoldsNothing) {
  OneQueue at;
  const uint64_t exports = at.Submit(6), longest = at.Submit(), other = at.Submit();
  at.Start(exports, {2, 3, 4, 5, 6, 7});
  pb::Event staged;
  *staged.mutable_export_staged()->mutable_key() = KeyOf(*at.system.state.FindJob(exports), 0, 1);
  staged.mutable_export_staged()->set_staged("/disk/staged");
  staged.mutable_export_staged()->set_target("/disk/model");
  at.system.Do(staged);
  ReportAll(&at.system, exports, pb::GONE, 0);
  ASSERT_TRUE(TaskOf(at.system.state, exports).current()->released());
  for (const uint64_t job : {longest, other}) {
    at.Start(job, {job == longest ? 0 : 1});
    TellEnd(&at.system, job, job == longest ? 12'000 : 11'000);
  }
  at.system.Step(kTick);
  EXPECT_NE(at.BandOf(longest), kFrontBand) << "on the two devices that are held it is in time";
}

}  // namespace
}  // namespace muster
