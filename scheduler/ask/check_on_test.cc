// Which jobs another one may run on, and what is said of those that it may not.
#include "scheduler/ask/check_on.h"

#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/simulate.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using ::muster::testing::JobBuilder;
using ::muster::testing::Placed;
using ::muster::testing::ReportAll;
using ::muster::testing::StartAll;
using ::muster::testing::SystemBuilder;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

pb::JobSpec On(uint64_t job) {
  JobBuilder builder("q");
  builder.task()->mutable_run()->set_shell("true");
  builder.spec.set_name("on-it");
  builder.spec.set_on(absl::StrCat(job));
  return builder.spec;
}

class CheckOnTest : public ::testing::Test {
 protected:
  CheckOnTest() { s_.Cluster("lab").Hosts("lab", 1, 4).Queue("q"); }

  uint64_t Submit(const pb::JobSpec& spec) {
    JobBuilder builder("q");
    builder.spec = spec;
    return builder.SubmitTo(&s_);
  }
  uint64_t Running() {
    const uint64_t job = JobBuilder("q").SubmitTo(&s_);
    s_.Do(Placed(s_.state, job, "lab", {{"h00", {0}}}));
    StartAll(&s_, job);
    return job;
  }
  uint64_t Ended() {
    const uint64_t job = Running();
    ReportAll(&s_, job, pb::GONE, 0);
    return job;
  }
  uint64_t BeingCancelled() {
    const uint64_t job = Running();
    s_.Cancel(job);
    return job;
  }
  uint64_t OfTwoTasks() {
    JobBuilder builder("q");
    builder.Task("first").Task("then", {"first"});
    return builder.SubmitTo(&s_);
  }
  // The array's first member, by whose number the array goes.
  uint64_t Array() {
    pb::Event event;
    pb::JobSubmitted* e = event.mutable_job_submitted();
    *e->mutable_spec() = JobBuilder("q").spec;
    e->mutable_spec()->set_array("1-2");
    e->set_members(2);
    e->set_owner("ann");
    e->set_number(s_.state.next_job_number());
    e->set_uid("array");
    s_.Do(event);
    return e->number();
  }

  SystemBuilder s_;
};

TEST_F(CheckOnTest, OnlyAJobOfOnesOwnThatGoesOnAndHasOneTask) {
  const uint64_t runs = Running(), waits = JobBuilder("q").SubmitTo(&s_), array = Array();
  const struct {
    const char* what;
    uint64_t job;
    std::string owner, says;  // empty: it may
  } kCases[] = {
      {"one that runs", runs, "ann", ""},
      {"one that waits", waits, "ann", ""},
      {"another's", runs, "bob", absl::StrCat("there is no job ", runs, " of yours")},
      {"nobody's", 99, "ann", "there is no job 99 of yours"},
      {"one that has ended", Ended(), "ann", "has ended: muster dev resume"},
      {"one that ends", BeingCancelled(), "ann", "has ended: muster dev resume"},
      {"of several tasks", OfTwoTasks(), "ann", "is an array or has several tasks"},
      {"an array", array, "ann", "is an array or has several tasks"},
      {"a member of one", array + 1, "ann", "is an array or has several tasks"},
      {"one that is on another itself", Submit(On(runs)), "ann",
       absl::StrCat("runs on devices of job ", runs, " itself; name that one")},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.what);
    const std::vector<FieldProblem> problems = CheckHolder(s_.state, On(c.job), c.owner);
    if (c.says.empty()) {
      EXPECT_THAT(problems, IsEmpty());
      continue;
    }
    ASSERT_EQ(problems.size(), 1u);
    EXPECT_EQ(problems[0].path, "on");
    EXPECT_THAT(problems[0].message, HasSubstr(c.says));
  }
}

TEST_F(CheckOnTest, RefusesWhatNoPartOfItsHolderEverHas) {
  JobBuilder large("q");
  large.Gpus(2).Cpus(4).task()->mutable_resources()->clear_memory_bytes();
  const uint64_t two = large.SubmitTo(&s_);
  JobBuilder cpus("q");
  cpus.task()->clear_resources();
  cpus.Cpus(4);
  const uint64_t without = cpus.SubmitTo(&s_);
  using Asks = std::function<void(pb::Resources*)>;
  const struct {
    const char* what;
    uint64_t on;
    Asks asks;
    std::string path, says;  // empty: it may
  } kCases[] = {
      {"all of it", two, [](pb::Resources* r) { r->set_gpus_milli(2000); }, "", ""},
      {"a device more", two, [](pb::Resources* r) { r->set_gpus_milli(3000); }, "resources.gpus",
       "3, and job 1 has 2"},
      {"another model", two, [](pb::Resources* r) { r->set_gpu_types(0, "h100"); },
       "resources.gpu_types", "h100, and job 1 has gpu"},
      {"CPUs", two, [](pb::Resources* r) { r->set_cpus_milli(5000); }, "resources.cpus",
       "5, and job 1 has 4"},
      {"a share of its hosts' memory", two, [](pb::Resources* r) { r->set_memory_bytes(1 << 30); },
       "", ""},
      {"memory that is stated nowhere", without,
       [](pb::Resources* r) { r->set_gpus_milli(0), r->set_memory_bytes(1 << 30); },
       "resources.memory", "1GiB, and job 2 has none of its own: leave it out"},
      {"disk", two, [](pb::Resources* r) { r->set_disk_bytes(1 << 30); }, "resources.disk",
       "1GiB, and job 1 has none of its own: leave it out, or submit that job with disk:"}};
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.what);
    pb::JobSpec spec = On(c.on);
    c.asks(spec.mutable_tasks(0)->mutable_resources());
    const std::vector<FieldProblem> problems = CheckHolder(s_.state, spec, "ann");
    ASSERT_EQ(problems.size(), c.path.empty() ? 0u : 1u);
    if (c.path.empty()) continue;
    EXPECT_EQ(problems[0].path, c.path);
    EXPECT_THAT(problems[0].message, HasSubstr(c.says));
  }
}

TEST_F(CheckOnTest, SaysWhatOfItsHolderItWaitsFor) {
  s_.Cluster("far").Hosts("far", 1, 4);
  const uint64_t waits = JobBuilder("q").SubmitTo(&s_), runs = Running();
  const auto text = [this](const pb::JobSpec& spec) {
    pb::Verdict verdict;
    verdict.set_code(pb::V_HOLDER);
    return VerdictText(s_.state, *s_.state.FindJob(Submit(spec)), 0, verdict);
  };
  EXPECT_EQ(text(On(waits)), absl::StrCat("waits until job ", waits, " runs"));
  EXPECT_EQ(text(On(runs)), absl::StrCat("waits until job ", runs, " has room for it"));
  pb::JobSpec elsewhere = On(runs);
  elsewhere.add_clusters("far");
  EXPECT_THAT(text(elsewhere), HasSubstr("runs in lab now, where this one may not start"));
  pb::JobSpec others = On(runs);
  others.mutable_tasks(0)->mutable_resources()->clear_gpu_types();
  others.mutable_tasks(0)->mutable_resources()->add_gpu_types("h100");
  EXPECT_THAT(text(others), HasSubstr("runs on gpu now, which gpu_types doesn't name"));
  s_.LowDisk("lab", "h00", "/data has 40MiB left");
  EXPECT_EQ(text(On(runs)), absl::StrCat("waits until job ", runs,
                                         " runs where it can start: lab/h00 takes nothing "
                                         "new: /data has 40MiB left"));
}

TEST_F(CheckOnTest, SimulateAsksTheSame) {
  pb::SimulateRequest request;
  *request.add_jobs() = On(Running());
  EXPECT_THAT(ResolveChanges(s_.state, request, SpecDefaults{}, "ann").problems, IsEmpty());
  const Changes changes = ResolveChanges(s_.state, request, SpecDefaults{}, "bob");
  ASSERT_EQ(changes.problems.size(), 1u);
  EXPECT_EQ(changes.problems[0].path, "jobs[0].on");
}

}  // namespace
}  // namespace muster
