// Each pass alone, on a draft of its own. What passes do to each other is in decide_test.cc and in
// the tests beside this one.
#include "scheduler/decide/passes/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "scheduler/decide/testing/drafting.h"
#include "scheduler/decide/testing/fixture.h"

namespace muster {
namespace {

using testing::DecideQuickly;
using testing::Drafting;
using ::testing::ElementsAreArray;
using testing::JobBuilder;
using testing::QuickOptions;
using testing::ReportAll;
using testing::StartAll;
using testing::SystemBuilder;

using Pass = void (*)(const Inputs&, Draft*);

// A queue with a guarantee of two devices, and one that borrows; a host with two devices.
void TwoDevices(SystemBuilder* system) {
  system->Cluster("c").Hosts("c", 1, 2).Queue("q", 2).Queue("other");
}
void RunOne(SystemBuilder* system, JobBuilder job) {
  const uint64_t number = job.SubmitTo(system);
  DecideQuickly(system);
  StartAll(system, number);
}

TEST(Passes, EachDoesItsPart) {
  const struct {
    const char* why;
    std::function<void(SystemBuilder*)> build;
    std::vector<Pass> passes;
    std::vector<std::string> events;
  } kCases[] = {
      {"stop_due stops what was cancelled",
       [](SystemBuilder* system) {
         TwoDevices(system);
         RunOne(system, JobBuilder("q"));
         system->Cancel(1);
       },
       {StopDue},
       {"job 1 stops: CANCEL"}},
      {"place_entitled starts what is free for it",
       [](SystemBuilder* system) {
         TwoDevices(system);
         JobBuilder("q").SubmitTo(system);
       },
       {PlaceEntitled},
       {"job 1 starts on h00"}},
      {"place_entitled stops a borrower, and holds its devices for the claimant",
       [](SystemBuilder* system) {
         TwoDevices(system);
         RunOne(system, JobBuilder("other").Gpus(2));
         JobBuilder("q").Gpus(2).SubmitTo(system);
       },
       {PlaceEntitled},
       {"job 1 stops: PREEMPTION for job 2", "job 2 holds h00"}},
      {"place_entitled reserves what ends in time, and stops nobody of its own queue",
       [](SystemBuilder* system) {
         TwoDevices(system);
         RunOne(system, JobBuilder("q").GpusMilli(400).TimeLimit(100));
         RunOne(system, JobBuilder("q").GpusMilli(700));
         JobBuilder("q").GpusMilli(900).SubmitTo(system);
       },
       {PlaceEntitled},
       {"job 3 may have h00 at 100s"}},
      {"keep_held starts what its devices were freed for",
       [](SystemBuilder* system) {
         TwoDevices(system);
         RunOne(system, JobBuilder("other").Gpus(2));
         JobBuilder("q").Gpus(2).SubmitTo(system);
         DecideQuickly(system);
         ReportAll(system, 1, pb::GONE, 0, true);
       },
       {KeepHeld},
       {"job 2 starts on h00"}},
      {"and until then it is kept, and nothing new is said",
       [](SystemBuilder* system) {
         TwoDevices(system);
         RunOne(system, JobBuilder("other").Gpus(2));
         JobBuilder("q").Gpus(2).SubmitTo(system);
         DecideQuickly(system);
       },
       {KeepHeld},
       {}},
      {"without keep_held it would be nobody's",
       [](SystemBuilder* system) {
         TwoDevices(system);
         RunOne(system, JobBuilder("other").Gpus(2));
         JobBuilder("q").Gpus(2).SubmitTo(system);
         DecideQuickly(system);
       },
       {},
       {"job 2 has nothing kept"}},
      {"grow restarts an elastic gang on what is free",
       [](SystemBuilder* system) {
         TwoDevices(system);
         RunOne(system, JobBuilder("other"));
         RunOne(system, JobBuilder("q").Workers(1, 2).Gpus(1));
         ReportAll(system, 1, pb::GONE, 0);
         system->Step(60);
       },
       {Grow},
       {"job 2 stops: RESIZE, goes on with 2", "job 2 holds h00"}},
      {"backfill starts what ends before reserved devices are needed",
       [](SystemBuilder* system) {
         TwoDevices(system);
         RunOne(system, JobBuilder("q").GpusMilli(400).TimeLimit(100));
         RunOne(system, JobBuilder("q").GpusMilli(700));
         JobBuilder("q").GpusMilli(900).SubmitTo(system);
         DecideQuickly(system);
         JobBuilder("q").GpusMilli(300).TimeLimit(50).SubmitTo(system);
       },
       {PlaceEntitled, Backfill},
       {"job 4 starts on h00"}},
      {"backfill starts nothing of S",
       [](SystemBuilder* system) {
         TwoDevices(system);
         JobBuilder("q").SubmitTo(system);
       },
       {Backfill},
       {}},
      {"spill opens the next cluster where that starts the task sooner",
       [](SystemBuilder* system) {
         system->Cluster("a", "shared").Cluster("b", "shared").Queue("q");
         system->Hosts("a", 1, 1).Hosts("b", 1, 1);
         RunOne(system, JobBuilder("q").In({"a"}).TimeLimit(1000));
         JobBuilder("q").In({"a", "b"}).SubmitTo(system);
       },
       {PlaceEntitled, Spill},
       {"opens b"}},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.why);
    SystemBuilder system;
    c.build(&system);
    Drafting drafting(system, QuickOptions());
    for (const Pass pass : c.passes) pass(drafting.in, &drafting.draft);
    EXPECT_THAT(drafting.Events(), ElementsAreArray(c.events));
  }
}

TEST(Passes, ExtendStartsGivesAStartWhatSGrantsAndIsFree) {
  SystemBuilder system;
  TwoDevices(&system);
  JobBuilder("q").Workers(1, 2).Gpus(1).SubmitTo(&system);
  Drafting drafting(system, QuickOptions());
  PlaceEntitled(drafting.in, &drafting.draft);
  ASSERT_EQ(drafting.draft.starts().size(), 1U);
  EXPECT_EQ(drafting.draft.starts()[0].workers, 1);
  ExtendStarts(drafting.in, &drafting.draft);
  EXPECT_EQ(drafting.draft.starts()[0].workers, 2);
  EXPECT_EQ(drafting.draft.now()->FreeMilli(/*pool=*/1, true), 0);
}

TEST(Passes, VerdictsTellEachWaitingTaskWhy) {
  SystemBuilder system;
  TwoDevices(&system);
  const uint64_t first = JobBuilder("q").Gpus(2).SubmitTo(&system);
  const uint64_t second = JobBuilder("other").SubmitTo(&system);
  Drafting drafting(system, QuickOptions());
  PlaceEntitled(drafting.in, &drafting.draft);
  drafting.draft.Finish();
  const Verdicts verdicts = GiveVerdicts(drafting.in, &drafting.draft);
  EXPECT_EQ(verdicts.Find({first, 0})->code, pb::V_STARTING_NOW);
  EXPECT_EQ(verdicts.Find({second, 0})->code, pb::V_SHARE);
}

}  // namespace
}  // namespace muster
