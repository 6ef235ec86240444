// Jobs on another one's devices: what they hold and cost, what becomes of them, and what no plan
// may do with them.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "scheduler/state/hosted.h"
#include "scheduler/state/testing/builders.h"
#include "scheduler/state/validate.h"

namespace muster {
namespace {

using namespace testing;

// A holder of devices 0 and 1 of a host of 4, with 4 cores, which runs.
struct Held {
  SystemBuilder system;
  uint64_t holder = 0;
  Held() {
    system.Cluster("c").Hosts("c", 2, 4).Queue("q", 4);
    JobBuilder builder("q");
    builder.Gpus(2).Cpus(4).task()->mutable_resources()->set_memory_bytes(8 << 20);
    holder = builder.SubmitTo(&system);
    system.Do(Placed(system.state, holder, "c", {{"h00", {0, 1}}}));
    StartAll(&system, holder);
  }
  uint64_t Submit(int64_t gpus_milli = 1000) {
    JobBuilder builder("q");
    builder.GpusMilli(gpus_milli).spec.set_on(absl::StrCat(holder));
    return builder.SubmitTo(&system);
  }
  pb::Event PlacedOn(uint64_t job, std::vector<int32_t> devices, const std::string& host = "h00") {
    pb::Event event = Placed(system.state, job, "c", {{host, std::move(devices)}});
    event.mutable_attempt_placed()->set_holder_attempt(1);
    return event;
  }
  const HostRow& host() { return system.state.host(system.state.FindHost("c", "h00")); }
  void Consistent() { EXPECT_EQ(State::Difference(system.state, system.state.Rebuilt()), ""); }
};

TEST(Hosted, HoldsNothingBesideItsHolderAndIsChargedToNobody) {
  Held held;
  const auto use = held.system.state.queue_use();
  const std::vector<LedgerShare> shares = held.host().shares;
  const int64_t cpus_milli = held.host().cpus_used_milli;
  const uint64_t job = held.Submit();
  held.system.Do(held.PlacedOn(job, {0}));
  StartAll(&held.system, job);
  EXPECT_EQ(held.system.state.queue_use(), use);
  EXPECT_EQ(held.host().shares, shares);
  EXPECT_EQ(held.host().cpus_used_milli, cpus_milli);
  EXPECT_EQ(held.host().device_used_milli, (std::vector<int64_t>{1000, 1000, 0, 0}));
  held.Consistent();
  ReportAll(&held.system, job, pb::GONE, 0);
  EXPECT_EQ(held.host().device_used_milli, (std::vector<int64_t>{1000, 1000, 0, 0}));
  held.Consistent();
}

TEST(Hosted, WhatOutlivesItsHolderKeepsItsDevicesUntilItHasGone) {
  Held held;
  const uint64_t job = held.Submit();
  held.system.Do(held.PlacedOn(job, {1}));
  StartAll(&held.system, job);
  held.system.Do(Stopping(held.system.state, held.holder, pb::DRAIN));
  ReportAll(&held.system, held.holder, pb::GONE, 143, true);
  EXPECT_EQ(held.host().device_used_milli, (std::vector<int64_t>{0, 1000, 0, 0}));
  EXPECT_EQ(held.system.state.queue_use().count({"q", "gpu"}), 0u) << "and nobody is charged";
  held.Consistent();
  // Its holder is back there, and it is none of that attempt's.
  held.system.Do(Placed(held.system.state, held.holder, "c", {{"h00", {2, 3}}}));
  EXPECT_EQ(held.host().device_used_milli, (std::vector<int64_t>{0, 1000, 1000, 1000}));
  held.system.Do(Stopping(held.system.state, job, pb::HOLDER));
  ReportAll(&held.system, job, pb::GONE, 143, true);
  EXPECT_EQ(held.host().device_used_milli, (std::vector<int64_t>{0, 0, 1000, 1000}));
  EXPECT_EQ(TaskOf(held.system.state, job).state, pb::TASK_WAITING) << "for its holder";
  EXPECT_EQ(TaskOf(held.system.state, job).restarts_used, 0);
  held.Consistent();
}

TEST(Hosted, EndsWithItsHolder) {
  Held held;
  const uint64_t runs = held.Submit(), waits = held.Submit();
  held.system.Do(held.PlacedOn(runs, {0}));
  StartAll(&held.system, runs);
  ReportAll(&held.system, held.holder, pb::GONE, 0);
  ASSERT_TRUE(held.system.state.FindJob(held.holder)->finished());
  for (const uint64_t job : {runs, waits}) {
    const JobRow& row = *held.system.state.FindJob(job);
    EXPECT_TRUE(row.cancel_requested);
    EXPECT_EQ(row.detail, "cancelled: job 1, on whose devices it was to run, has ended");
    EXPECT_EQ(row.finished(), job == waits) << "the other one's processes first";
  }
  held.system.Do(Stopping(held.system.state, runs, pb::CANCEL));
  ReportAll(&held.system, runs, pb::GONE, 143, true);
  EXPECT_EQ(held.system.state.FindJob(runs)->state, pb::CANCELLED);
  EXPECT_TRUE(held.system.state.hosted().empty());
  held.Consistent();
  EXPECT_EQ(held.system.state.FindJob(held.Submit())->state, pb::CANCELLED) << "too late";
}

TEST(Hosted, AHolderThatWaitsForItsExportHasNothingAnyMore) {
  Held held;
  const uint64_t runs = held.Submit();
  held.system.Do(held.PlacedOn(runs, {0}));
  StartAll(&held.system, runs);
  pb::Event staged;
  *staged.mutable_export_staged()->mutable_key() =
      KeyOf(*held.system.state.FindJob(held.holder), 0, 1);
  staged.mutable_export_staged()->set_staged("/s");
  staged.mutable_export_staged()->set_target("/t");
  held.system.Do(staged);
  ReportAll(&held.system, held.holder, pb::GONE, 0);
  ASSERT_FALSE(held.system.state.FindJob(held.holder)->finished());
  const JobRow& row = *held.system.state.FindJob(runs);
  EXPECT_EQ(HolderRuns(held.system.state, row), nullptr);
  EXPECT_FALSE(HolderGoesOn(held.system.state, row, *row.tasks[0].current()));
  EXPECT_EQ(held.host().device_used_milli, (std::vector<int64_t>{1000, 0, 0, 0})) << "its own";
}

TEST(Hosted, TheRoomIsLessWhatWasLostThereAndMayLive) {
  Held held;
  const uint64_t lost = held.Submit();
  held.system.Do(held.PlacedOn(lost, {0}));
  StartAll(&held.system, lost);
  const AttemptRow& holder = *TaskOf(held.system.state, held.holder).current();
  const auto room = [&] {
    return RoomOf(held.system.state, held.holder, holder, holder.parts[0]).device_milli;
  };
  EXPECT_EQ(room(), (std::vector<int64_t>{0, 1000, 0, 0}));
  held.system.HostState("c", "h00", pb::HOST_UNREACHABLE);
  pb::Event event;
  *event.mutable_attempt_lost()->mutable_key() = KeyOf(*held.system.state.FindJob(lost), 0, 1);
  event.mutable_attempt_lost()->set_cluster("c");
  event.mutable_attempt_lost()->set_host("h00");
  held.system.Do(event);
  ASSERT_EQ(held.host().lost.size(), 1u);
  EXPECT_EQ(room(), (std::vector<int64_t>{0, 1000, 0, 0}));
}

TEST(Hosted, NoPlanPlacesItElsewhereOrOnWhatIsTaken) {
  struct Case {
    const char* what;
    std::function<pb::Event(Held*, uint64_t)> placed;
    std::string refused;  // empty: it isn't
  };
  const auto on = [](const std::vector<int32_t>& devices, const std::string& host = "h00") {
    return [=](Held* held, uint64_t job) { return held->PlacedOn(job, devices, host); };
  };
  const auto of_attempt = [](int32_t attempt) {
    return [=](Held* held, uint64_t job) {
      pb::Event event = held->PlacedOn(job, {1});
      event.mutable_attempt_placed()->set_holder_attempt(attempt);
      return event;
    };
  };
  for (const Case& c : std::vector<Case>{
           {"beside another", on({1}), ""},
           {"on a device that another has", on({0}), "no room on device 0"},
           {"on a device of nobody's", on({2}), "no room on device 2"},
           {"on another host", on({1}, "h01"), "a host that its holder doesn't have"},
           {"of an earlier attempt", of_attempt(7), "another attempt than the one that runs"},
           {"as if on its own", of_attempt(0), "another attempt than the one that runs"}}) {
    Held held;
    const uint64_t first = held.Submit(), job = held.Submit();
    held.system.Do(held.PlacedOn(first, {0}));
    Plan plan;
    plan.next_wake_ns = held.system.now_ns + kSecond;
    plan.events.push_back(c.placed(&held, job));
    const absl::Status status = Validate(held.system.state, plan);
    EXPECT_EQ(std::string(status.message()).find(c.refused) != std::string::npos || status.ok(),
              true)
        << c.what << ": " << status.message();
    EXPECT_EQ(status.ok(), c.refused.empty()) << c.what;
  }
}

TEST(Hosted, NoPlanStopsItForAHolderThatGoesOnOrForAClaim) {
  Held held;
  const uint64_t job = held.Submit();
  held.system.Do(held.PlacedOn(job, {0}));
  StartAll(&held.system, job);
  Plan plan;
  plan.next_wake_ns = held.system.now_ns + kSecond;
  plan.events = {Stopping(held.system.state, job, pb::HOLDER)};
  EXPECT_FALSE(Validate(held.system.state, plan).ok());
  const uint64_t claimant = JobBuilder("q").SubmitTo(&held.system);
  plan.events = {Stopping(held.system.state, job, pb::PREEMPTION)};
  *plan.events[0].mutable_attempt_stopping()->mutable_claimant() =
      KeyOf(*held.system.state.FindJob(claimant), 0, 1);
  EXPECT_FALSE(Validate(held.system.state, plan).ok());
}

}  // namespace
}  // namespace muster
