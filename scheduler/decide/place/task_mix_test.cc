// What tasks come, by pool; and what is kept against what is built anew.
#include "scheduler/decide/place/task_mix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::JobBuilder;
using testing::SystemBuilder;

// "GPUs x count" of what may come, in order.
std::string Text(const std::vector<TypicalSlice>& typical) {
  std::string text;
  for (const TypicalSlice& task : typical) {
    text += std::to_string(task.wish.workers) + "*" + std::to_string(task.wish.worker.gpus_milli) +
            "x" + std::to_string(task.count) + " ";
  }
  return text;
}

TEST(TaskMix, CountsTheTasksThatMayComeToAPool) {
  SystemBuilder system;
  system.Cluster("c").Cluster("d").Hosts("c", 1, 8).Hosts("d", 1, 8).Queue("q");
  TaskMix mix;
  mix.Rebuild(system.state);
  EXPECT_EQ(Text(mix.Typical(mix.PoolOf("c", "gpu"))), "");
  std::vector<uint64_t> jobs;
  for (int i = 0; i < 5; ++i) jobs.push_back(JobBuilder("q").Gpus(1).SubmitTo(&system));
  jobs.push_back(JobBuilder("q").Gpus(8).In({"d"}).SubmitTo(&system));
  for (const uint64_t job : jobs) mix.Refresh(system.state, job);
  EXPECT_EQ(Text(mix.Typical(mix.PoolOf("c", "gpu"))), "1*1000x4 ")
      << "five, rounded down to a power of two";
  EXPECT_EQ(Text(mix.Typical(mix.PoolOf("d", "gpu"))), "1*1000x4 1*8000x1 ")
      << "a rare one counts, too";
  EXPECT_EQ(Text(mix.Typical(mix.PoolOf("d", "other"))), "") << "of no host that they may have";
}

TEST(TaskMix, CountsAreAPoolsScorersAtMost) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 8).Queue("q");
  for (int i = 0; i < 300; ++i) {
    for (int n = 0; n <= i % 3; ++n) JobBuilder("q").Gpus(1).Cpus(1 + i).SubmitTo(&system);
  }
  TaskMix mix;
  mix.Rebuild(system.state);
  const std::vector<TypicalSlice> typical = mix.Typical(mix.PoolOf("c", "gpu"));
  ASSERT_EQ(typical.size(), TaskMix::kMostTasks);
  EXPECT_EQ(typical.front().count, 2);
  EXPECT_EQ(typical.back().count, 1) << "the most frequent ones are kept";
}

// Jobs come, and are gone again in a State of another history.
TEST(TaskMix, KeptThroughRandomChangesItEqualsOneBuiltAnew) {
  std::mt19937 random(5);
  const auto upto = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  SystemBuilder system;
  system.Cluster("c").Cluster("d").Hosts("c", 1, 8).Hosts("d", 1, 8).Queue("q");
  TaskMix kept;
  kept.Rebuild(system.state);
  State before = system.state;
  for (int step = 0; step < 300; ++step) {
    const uint64_t next = system.state.next_job_number();
    if (upto(12) == 0) {
      std::swap(before, system.state);
    } else if (upto(12) == 0) {
      before = system.state;
    } else {
      JobBuilder job("q");
      job.Gpus(1 << upto(4));
      if (upto(3) == 0) job.In({upto(2) == 0 ? "c" : "d"});
      job.SubmitTo(&system);
    }
    const uint64_t bound = std::max(next, system.state.next_job_number());
    for (uint64_t number = 1; number < bound; ++number) kept.Refresh(system.state, number);
    TaskMix fresh;
    fresh.Rebuild(system.state);
    for (const char* cluster : {"c", "d"})
      ASSERT_EQ(Text(kept.Typical(kept.PoolOf(cluster, "gpu"))),
                Text(fresh.Typical(fresh.PoolOf(cluster, "gpu"))))
          << step;
  }
}

TEST(TaskMix, WhatPassesNoPowerOfTwoIsNoNews) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 8).Queue("q");
  for (int i = 0; i < 16; ++i) JobBuilder("q").Gpus(1).SubmitTo(&system);
  TaskMix mix;
  mix.Rebuild(system.state);
  const int32_t pool = mix.PoolOf("c", "gpu");
  const uint64_t version = mix.Version(pool);
  for (int i = 17; i < 32; ++i) {
    mix.Refresh(system.state, JobBuilder("q").Gpus(1).SubmitTo(&system));
    EXPECT_EQ(mix.Version(pool), version) << i;
  }
  mix.Refresh(system.state, JobBuilder("q").Gpus(1).SubmitTo(&system));
  EXPECT_NE(mix.Version(pool), version);
}

TEST(TaskMix, WhatNobodyAsksForAnyMoreIsGoneFromItsPools) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 8).Queue("q");
  const State before = system.state;
  TaskMix mix;
  mix.Rebuild(system.state);
  const uint64_t job = JobBuilder("q").Gpus(1).In({"c"}).SubmitTo(&system);
  mix.Refresh(system.state, job);
  ASSERT_EQ(Text(mix.Typical(mix.PoolOf("c", "gpu"))), "1*1000x1 ");
  mix.Refresh(before, job);
  EXPECT_EQ(Text(mix.Typical(mix.PoolOf("c", "gpu"))), "");
}

}  // namespace
}  // namespace muster
