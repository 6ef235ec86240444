// The model of hosts, command by command: what is said, when, and what is not said.
#include "sim/hosts.h"

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr HostOptions kOptions = {.latency_ns = kSecond,
                                  .prepare_ns = 2 * kSecond,
                                  .launch_ns = 10 * kSecond,
                                  .stop_ns = 5 * kSecond,
                                  .progress_ns = 100 * kSecond};

// "7: h1 gone, ranks 4 5, signal 9" and the like: seconds, host, what it said.
std::string Describe(int64_t now_ns, int32_t host, const pb::AgentMessage& message) {
  std::string text = absl::StrCat(now_ns / kSecond, ": h", host, " ");
  if (message.has_progress()) {
    const pb::Progress& progress = message.progress().progress();
    return absl::StrCat(text, "step ", progress.step(), "/", progress.total_steps(), ", ends at ",
                        progress.expected_end_ns() / kSecond);
  }
  if (message.has_checkpoint()) {
    return absl::StrCat(text, "checkpoint ", message.checkpoint().checkpoint().path(),
                        ", went on from ", message.checkpoint().loaded_step());
  }
  const pb::AttemptReport& report = message.report();
  absl::StrAppend(&text, pb::AttemptPhase_Name(report.phase()));
  for (const pb::WorkerExit& exit : report.exits())
    absl::StrAppend(&text, " ", exit.rank(), ":", exit.signal());
  if (report.stop_sent()) absl::StrAppend(&text, " stopped");
  if (report.cause() == pb::CANCEL) absl::StrAppend(&text, " before its start");
  return text;
}

struct HostsModel : ::testing::Test {
  Heap heap{0};
  Work work{600 * kSecond, 0, "/w"};
  std::vector<std::string> said;
  Hosts hosts{kOptions, &heap, [this](const pb::Prepare&) { return work; },
              [this](int32_t host, const pb::AgentMessage& message) {
                said.push_back(Describe(heap.now_ns(), host, message));
              }};

  // Of a gang with a worker of two processes on each of two hosts.
  void Prepare(int32_t host, int attempt, const std::string& from = "") {
    pb::SchedulerMessage message;
    pb::Prepare* const prepare = message.mutable_prepare();
    prepare->mutable_key()->set_attempt(attempt);
    prepare->mutable_here()->set_first_group_rank(host);
    prepare->mutable_here()->set_workers(1);
    prepare->set_gang_workers(2);
    prepare->set_processes_per_worker(2);
    if (!from.empty()) prepare->add_resume_from(from);
    hosts.Send(host, message);
  }
  void Start(int32_t host, int attempt) {
    pb::SchedulerMessage message;
    message.mutable_start()->mutable_key()->set_attempt(attempt);
    hosts.Send(host, message);
  }
  void Stop(int32_t host, int attempt, int64_t grace_ns) {
    pb::SchedulerMessage message;
    message.mutable_stop()->mutable_key()->set_attempt(attempt);
    message.mutable_stop()->set_grace_ns(grace_ns);
    hosts.Send(host, message);
  }
  void Forget(int32_t host, int attempt) {
    pb::SchedulerMessage message;
    message.mutable_forget()->mutable_key()->set_attempt(attempt);
    hosts.Send(host, message);
  }
  // A gang that works since second 15.
  void Run(int attempt, const std::string& from = "") {
    for (int32_t host : {0, 1}) Prepare(host, attempt, from);
    heap.RunUntil(heap.now_ns() + 4 * kSecond);
    for (int32_t host : {0, 1}) Start(host, attempt);
    heap.RunUntil(heap.now_ns() + 11 * kSecond);
  }
};

TEST_F(HostsModel, AGangPreparesStartsWorksOnceAllOfItRunsTellsOfItAndEnds) {
  Run(1);
  EXPECT_THAT(said, ElementsAre("4: h0 PREPARED", "4: h1 PREPARED", "6: h0 STARTED",
                                "6: h1 STARTED", "15: h0 step 0/600, ends at 315"));
  said.clear();
  heap.RunUntil(1000 * kSecond);
  EXPECT_THAT(said,
              ElementsAre("100: h0 step 170/600, ends at 315", "200: h0 step 370/600, ends at 315",
                          "300: h0 step 570/600, ends at 315", "316: h0 GONE 0:0 1:0",
                          "316: h1 GONE 2:0 3:0"));
}

TEST_F(HostsModel, AStoppedGangWritesOneCheckpointFromWhichTheNextAttemptGoesOn) {
  Run(1);
  said.clear();
  heap.RunUntil(64 * kSecond);
  for (int32_t host : {0, 1}) Stop(host, 1, kSecond);
  heap.RunUntil(90 * kSecond);
  const std::string path = absl::StrCat("/w/1/", 100 * kSecond);
  EXPECT_THAT(said, ElementsAre("65: h0 checkpoint " + path + ", went on from -1",
                                "71: h0 GONE 0:0 1:0 stopped", "71: h1 GONE 2:0 3:0 stopped"));
  said.clear();
  work.checkpoint_ns = 100 * kSecond;
  Run(2, path);
  heap.RunUntil(250 * kSecond);
  EXPECT_EQ(said[4], "105: h0 step 100/600, ends at 355");
  EXPECT_EQ(said[6], absl::StrCat("205: h0 checkpoint /w/2/", 300 * kSecond, ", went on from 100"));
}

TEST_F(HostsModel, WhatIsKilledLeavesNoCheckpoint) {
  Run(1);
  said.clear();
  for (int32_t host : {0, 1}) Stop(host, 1, 0);
  heap.RunUntil(90 * kSecond);
  EXPECT_THAT(said, ElementsAre("17: h0 GONE 0:9 1:9 stopped", "17: h1 GONE 2:9 3:9 stopped"));
}

TEST_F(HostsModel, WhatIsStoppedBeforeItStartedIsGoneAndNeverStarts) {
  Prepare(0, 1);
  Stop(0, 1, kSecond);
  Stop(1, 1, kSecond);  // has never heard of it
  Start(0, 1);
  heap.RunUntil(90 * kSecond);
  EXPECT_THAT(said, ElementsAre("2: h0 GONE stopped before its start",
                                "2: h1 GONE stopped before its start"));
}

TEST_F(HostsModel, ARepeatedCommandChangesNothingAndIsAnsweredByNothing) {
  Run(1);
  said.clear();
  Prepare(0, 1);
  Start(1, 1);
  heap.RunUntil(20 * kSecond);
  EXPECT_THAT(said, IsEmpty());
  Stop(0, 1, 0);
  Stop(0, 1, 0);
  heap.RunUntil(30 * kSecond);
  Stop(0, 1, 0);
  heap.RunUntil(40 * kSecond);
  EXPECT_THAT(said, ElementsAre("22: h0 GONE 0:9 1:9 stopped"));
}

TEST_F(HostsModel, AnAttemptThatAllHostsForgotIsAsOneNeverHeardOf) {
  Run(1);
  for (int32_t host : {0, 1}) Stop(host, 1, 0);
  heap.RunUntil(20 * kSecond);
  said.clear();
  Forget(0, 1);
  Stop(1, 1, 0);
  heap.RunUntil(30 * kSecond);
  EXPECT_THAT(said, IsEmpty()) << "the other host has not forgotten it";
  Forget(1, 1);
  Stop(0, 1, 0);
  heap.RunUntil(40 * kSecond);
  EXPECT_THAT(said, ElementsAre("32: h0 GONE stopped before its start"));
}

}  // namespace
}  // namespace muster::sim
