// What becomes of tasks that start together, and what no plan may do with them.
#include <gtest/gtest.h>

#include <algorithm>

#include "common/spec/together.h"
#include "scheduler/state/testing/builders.h"
#include "scheduler/state/validate.h"

namespace muster {
namespace {

using namespace testing;

// trainer and server, which is there until the trainer has succeeded; on two hosts of 4 devices.
struct Pair {
  SystemBuilder system;
  uint64_t job = 0;
  explicit Pair(int max_restarts = 3) {
    system.Cluster("c").Hosts("c", 2, 4).Queue("q", 8);
    JobBuilder builder("q");
    builder.Task("trainer").Gpus(2);
    pb::TaskSpec* server = builder.Task("server").Gpus(2).task();
    server->add_with("trainer");
    server->add_until("trainer");
    server->set_max_restarts(max_restarts);
    JoinTasks(&builder.spec);
    job = builder.SubmitTo(&system);
  }
  void Start() {
    Place(&system, job, "h00", 0);
    Place(&system, job, "h01", 1);
    for (const int task : {0, 1}) ReportAll(&system, job, pb::STARTED, -1, false, task);
  }
  void End(int task, int exit_code, bool stop_sent = false) {
    ReportAll(&system, job, pb::GONE, exit_code, stop_sent, task);
  }
  const TaskRow& Row(int task) { return TaskOf(system.state, job, task); }
  void Stop(int task, pb::Cause cause) {
    pb::Event event;
    pb::AttemptStopping* e = event.mutable_attempt_stopping();
    *e->mutable_key() = KeyOf(*system.state.FindJob(job), task, Row(task).attempts.back().number);
    e->set_cause(cause);
    system.Do(event);
  }

 private:
  static void Place(SystemBuilder* system, uint64_t job, const std::string& host, int task) {
    pb::Event event;
    *event.mutable_attempt_placed() = PlacedOn(system->state, job, host, task);
    system->Do(event);
  }

 public:
  static pb::AttemptPlaced PlacedOn(const State& state, uint64_t job, const std::string& host,
                                    int task) {
    pb::AttemptPlaced e;
    *e.mutable_key() = KeyOf(*state.FindJob(job), task, TaskOf(state, job, task).next_attempt);
    e.set_cluster("c");
    e.set_flavour("gpu");
    pb::Placement* placement = e.add_placements();
    placement->set_host(host);
    placement->set_workers(1);
    placement->add_devices(0);
    placement->add_devices(1);
    e.set_workers(1);
    e.set_at_once(true);
    return e;
  }
};

TEST(Together, WhatNobodyNeedsHasSucceededHoweverItEnds) {
  struct Case {
    const char* what;
    bool stopped;
    int exit_code;
  };
  for (const Case& c : {Case{"stopped as not needed", true, 143}, Case{"crashed", false, 1},
                        Case{"ended by itself", false, 0}}) {
    Pair pair(/*max_restarts=*/0);
    pair.Start();
    pair.End(0, 0);
    EXPECT_TRUE(NotNeeded(*pair.system.state.FindJob(pair.job), 1)) << c.what;
    EXPECT_EQ(pair.Row(1).state, pb::TASK_RUNNING) << c.what;
    if (c.stopped) pair.Stop(1, pb::NOT_NEEDED);
    pair.End(1, c.exit_code, c.stopped);
    EXPECT_EQ(pair.Row(1).state, pb::TASK_SUCCEEDED) << c.what;
    EXPECT_EQ(pair.system.state.FindJob(pair.job)->state, pb::SUCCEEDED) << c.what;
  }
}

TEST(Together, WhatWaitsIsNotStartedAgainForNobody) {
  Pair pair;
  pair.Start();
  pair.End(1, 1);
  EXPECT_EQ(pair.Row(1).state, pb::TASK_WAITING);
  EXPECT_EQ(pair.Row(0).state, pb::TASK_RUNNING) << "the others go on";
  pair.End(0, 0);
  EXPECT_EQ(pair.Row(1).state, pb::TASK_SUCCEEDED);
  EXPECT_EQ(pair.system.state.FindJob(pair.job)->state, pb::SUCCEEDED);
  EXPECT_EQ(State::Difference(pair.system.state, pair.system.state.Rebuilt()), "");
}

TEST(Together, AFailedTrainerMakesNobodyUnneeded) {
  Pair pair;
  pair.system.Step(1);
  pair.Start();
  for (int i = 0; i < 4; ++i) {
    pair.End(0, 1);
    if (pair.Row(0).state != pb::TASK_WAITING) break;
    EXPECT_FALSE(NotNeeded(*pair.system.state.FindJob(pair.job), 1));
    pb::Event event;
    *event.mutable_attempt_placed() = Pair::PlacedOn(pair.system.state, pair.job, "h00", 0);
    pair.system.Do(event);
    ReportAll(&pair.system, pair.job, pb::STARTED);
  }
  EXPECT_EQ(pair.Row(0).state, pb::TASK_FAILED);
  pair.Stop(1, pb::CANCEL);
  pair.End(1, 143, true);
  EXPECT_EQ(pair.Row(1).state, pb::TASK_CANCELLED);
  EXPECT_EQ(pair.system.state.FindJob(pair.job)->state, pb::FAILED);
}

TEST(Together, APlanStartsAllOrBesideWhatRuns) {
  Pair pair;
  const auto plan_of = [&](std::vector<int> tasks) {
    Plan plan;
    std::vector<Verdict> verdicts;
    for (const int t : {0, 1}) {
      verdicts.push_back({{pair.job, t}, pb::V_CAPACITY});
      if (std::count(tasks.begin(), tasks.end(), t) == 0) continue;
      *plan.events.emplace_back().mutable_attempt_placed() =
          Pair::PlacedOn(pair.system.state, pair.job, t == 0 ? "h00" : "h01", t);
    }
    plan.verdicts = Verdicts(std::move(verdicts), {});
    return plan;
  };
  const auto why = [&](const Plan& plan) {
    return std::string(Validate(pair.system.state, plan).message());
  };
  EXPECT_NE(why(plan_of({0})).find("without server"), std::string::npos) << why(plan_of({0}));
  EXPECT_NE(why(plan_of({1})).find("without trainer"), std::string::npos);
  EXPECT_EQ(why(plan_of({0, 1})), "");
  pair.Start();
  pair.End(1, 1);
  pair.system.Step(600);
  EXPECT_EQ(why(plan_of({1})), "") << "beside the trainer, which goes on";
  pair.Stop(0, pb::DRAIN);
  EXPECT_NE(why(plan_of({1})), "") << "nothing runs that it could join";
}

TEST(Together, AClaimStopsAllThatRuns) {
  Pair pair;
  pair.Start();
  const uint64_t other = JobBuilder("q").Gpus(4).SubmitTo(&pair.system);
  const auto stops = [&](const std::vector<int>& tasks) {
    Plan plan;
    for (const int t : tasks) {
      pb::AttemptStopping* e = plan.events.emplace_back().mutable_attempt_stopping();
      *e->mutable_key() = KeyOf(*pair.system.state.FindJob(pair.job), t, 1);
      e->set_cause(pb::PREEMPTION);
      *e->mutable_claimant() = KeyOf(*pair.system.state.FindJob(other), 0, 1);
    }
    plan.verdicts = Verdicts({{{other, 0}, pb::V_RECLAIMING}}, {});
    return std::string(Validate(pair.system.state, plan).message());
  };
  EXPECT_NE(stops({0}).find("and not server"), std::string::npos) << stops({0});
  EXPECT_EQ(stops({0, 1}), "");
}

}  // namespace
}  // namespace muster
