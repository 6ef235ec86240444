// What is told of tasks that start together, and which of them are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/together.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/explain.h"
#include "scheduler/decide/testing/fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using namespace testing;

JobBuilder TrainerAndServer(int trainer_gpus, int server_gpus) {
  JobBuilder builder("q");
  builder.Task("trainer").Gpus(trainer_gpus);
  builder.Task("server").Gpus(server_gpus).task()->add_with("trainer");
  for (pb::TaskSpec& task : *builder.spec.mutable_tasks()) {
    task.mutable_run()->set_shell("run");
    task.mutable_resources()->clear_gpu_types();
    if (task.resources().gpus_milli() > 0) task.mutable_resources()->add_gpu_types("gpu");
  }
  return builder;
}

TEST(TogetherAsk, AGroupThatCanNeverStartIsRefusedWithItsSize) {
  SystemBuilder system;
  system.Cluster("lab").Hosts("lab", 2, 4).Queue("q", 8).Close("lab");
  struct Case {
    int trainer, server;
    const char* refused;
  };
  for (const Case& c :
       {Case{4, 4, nullptr}, Case{3, 3, nullptr}, Case{4, 5, "lab"}, Case{4, 0, nullptr}}) {
    const Resolution resolution =
        ResolveSpec(system.state, TrainerAndServer(c.trainer, c.server).spec, {}, false);
    EXPECT_EQ(resolution.ok(), c.refused == nullptr) << c.trainer << " and " << c.server;
  }
  // By number three of them would fit.
  pb::JobSpec spec = TrainerAndServer(3, 3).spec;
  pb::TaskSpec* third = spec.add_tasks();
  *third = spec.tasks(1);
  third->set_name("eval");
  third->mutable_resources()->set_gpus_milli(2000);
  const Resolution resolution = ResolveSpec(system.state, spec, {}, false);
  ASSERT_FALSE(resolution.ok());
  EXPECT_EQ(resolution.problems[0].path, "tasks[0].with");
  EXPECT_THAT(resolution.problems[0].message,
              HasSubstr("trainer, server, eval start together: 8 GPUs at once, and no cluster"));
  EXPECT_THAT(resolution.problems[0].message, HasSubstr("let them start apart"));
  EXPECT_TRUE(resolution.never_fits);
}

TEST(TogetherAsk, APreviewCountsAllThatStartsTogether) {
  SystemBuilder system;
  system.Cluster("lab").Hosts("lab", 2, 4).Queue("q", 8);
  const Resolution resolution = ResolveSpec(system.state, TrainerAndServer(4, 3).spec, {});
  ASSERT_TRUE(resolution.ok());
  const pb::PreviewResponse preview =
      Preview(system.state, resolution.resolved, "ann", system.now_ns, SchedulingOptions());
  EXPECT_EQ(preview.queue_line(), "Queue q: 0 of 8 guaranteed gpu in use, 7 with this job.");
}

TEST(TogetherAsk, AGroupAboveALimitIsRefused) {
  SystemBuilder system;
  system.Cluster("lab").Hosts("lab", 2, 8).Queue("q", 0, 6);
  const Resolution resolution = ResolveSpec(system.state, TrainerAndServer(4, 3).spec, {}, false);
  ASSERT_FALSE(resolution.ok());
  EXPECT_THAT(resolution.problems[0].message, HasSubstr("queue q is limited to 6 gpu"));
}

TEST(TogetherAsk, WhatItLacksIsToldOfAllOfThem) {
  SystemBuilder system;
  system.Cluster("lab").Hosts("lab", 2, 4).Queue("q", 8);
  const uint64_t first = JobBuilder("q").Gpus(3).SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, first);
  JobBuilder builder = TrainerAndServer(4, 3);
  JoinTasks(&builder.spec);
  const uint64_t job = builder.SubmitTo(&system);
  const Plan plan = DecideQuickly(&system);
  const pb::Verdict told =
      DescribeVerdict(system.state, plan, *system.state.FindJob(job), 0, nullptr);
  EXPECT_EQ(told.missing_milli(), 2000);
  EXPECT_THAT(told.text(), HasSubstr("starts together with server: "));
  EXPECT_THAT(told.text(), HasSubstr("2 more gpu in lab"));
  const pb::ExplainResponse why = Explain(system.state, plan, job, system.now_ns, QuickOptions());
  ASSERT_EQ(why.why_size(), 2);
  EXPECT_THAT(why.why(1).text(), HasSubstr("starts together with trainer: "));
}

TEST(TogetherAsk, APreviewIsOfAllOfThem) {
  SystemBuilder system;
  system.Cluster("lab").Hosts("lab", 2, 4).Queue("q", 8);
  const uint64_t first = JobBuilder("q").Gpus(3).TimeLimit(100).SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, first);
  const Resolution resolution = ResolveSpec(system.state, TrainerAndServer(4, 3).spec, {}, false);
  ASSERT_TRUE(resolution.ok());
  const pb::PreviewResponse preview =
      Preview(system.state, resolution.resolved, "ann", system.now_ns, QuickOptions());
  ASSERT_EQ(preview.candidates_size(), 1);
  EXPECT_GE(preview.candidates(0).start_ns(), SystemBuilder::kStart + 100 * kSecond)
      << "the trainer alone would find a host now";
}

}  // namespace
}  // namespace muster
