#include "scheduler/decide/model/next_stop.h"

#include <gtest/gtest.h>

#include <functional>

#include "common/base/job_defaults.h"
#include "scheduler/decide/testing/fixture.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::JobBuilder;
using testing::Report;
using testing::StartAll;
using testing::SystemBuilder;

// A gang on two hosts: a time limit of 1000 s, and it is hung after 300 s without a word.
struct TwoHosts {
  SystemBuilder system;
  uint64_t job = 0;
  TwoHosts() {
    system.Cluster("c").Hosts("c", 2, 1).Queue("q");
    JobBuilder builder("q");
    builder.Workers(2).Gpus(1).TimeLimit(1000).task()->set_hang_timeout_ns(300 * kSecond);
    job = builder.SubmitTo(&system);
    testing::DecideQuickly(&system);
  }
  void Start() {
    StartAll(&system, job);
    Speak();
  }
  void Speak() {
    pb::Event event;
    pb::ProgressSeen* seen = event.mutable_progress_seen();
    *seen->mutable_key() = KeyOf(*system.state.FindJob(job), 0, 1);
    seen->mutable_progress()->set_at_ns(system.now_ns);
    system.Do(event);
  }
  NextStop Next() const {
    const JobRow& row = *system.state.FindJob(job);
    return NextStopOf(system.state, row, 0, row.tasks[0].attempts.back(), system.now_ns);
  }
};

int64_t At(int64_t seconds) { return SystemBuilder::kStart + seconds * kSecond; }

TEST(NextStop, TellsTheFirstCauseThatIsDue) {
  const auto exits = [](TwoHosts* at, int code) {
    at->system.Do(Report(at->system.state, at->job, 0, 1, 1, pb::GONE, code));
  };
  const struct {
    const char* why;
    std::function<void(TwoHosts*)> happens;
    pb::Cause cause;
    bool grace;
  } kCases[] = {
      {"it is cancelled", [](TwoHosts* at) { at->system.Cancel(at->job); }, pb::CANCEL, true},
      {"a member fails", [&](TwoHosts* at) { exits(at, 1); }, pb::PROGRAM_ERROR, false},
      {"a member is gone and nobody knows how", [&](TwoHosts* at) { exits(at, -1); }, pb::HOST_LOST,
       true},
      {"a host has another state directory",
       [](TwoHosts* at) { at->system.Hello("c", "h01", 1, "gpu", 64, "s2"); }, pb::HOST_LOST,
       false},
      {"it fills a disk",
       [](TwoHosts* at) {
         pb::Event event = Report(at->system.state, at->job, 0, 1, 1, pb::STARTED);
         event.mutable_attempt_reported()->mutable_report()->set_fills_disk("it wrote 2GiB");
         at->system.Do(event);
       },
       pb::OUT_OF_DISK, false},
      {"a host is drained", [](TwoHosts* at) { at->system.Drain("c/h01"); }, pb::DRAIN, true},
      {"its cluster is drained", [](TwoHosts* at) { at->system.Drain("c"); }, pb::DRAIN, true},
      {"its time is over",
       [](TwoHosts* at) {
         at->system.Step(1000);
         at->Speak();
       },
       pb::TIME_LIMIT, true},
      {"it hangs", [](TwoHosts* at) { at->system.Step(300); }, pb::HANG, false},
      {"cancelled, and a host is drained",
       [](TwoHosts* at) {
         at->system.Drain("c/h01");
         at->system.Cancel(at->job);
       },
       pb::CANCEL, true},
      {"its time is over, it hangs, and a host is drained",
       [](TwoHosts* at) {
         at->system.Drain("c/h01");
         at->system.Step(1000);
       },
       pb::TIME_LIMIT, true},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.why);
    TwoHosts at;
    at.Start();
    EXPECT_GT(at.Next().at_ns, at.system.now_ns);
    c.happens(&at);
    const NextStop next = at.Next();
    EXPECT_LE(next.at_ns, at.system.now_ns);
    EXPECT_EQ(pb::Cause_Name(next.cause), pb::Cause_Name(c.cause));
    EXPECT_EQ(next.grace_ns, c.grace ? 10 * kSecond : 0);
    EXPECT_EQ(next.detail.empty(), c.cause == pb::CANCEL) << "it was cancelled without a word";
    EXPECT_EQ(testing::StopsIn(testing::DecideQuickly(&at.system)), 1) << "and it is stopped";
  }
}

TEST(NextStop, ElseTellsWhenTheFirstMayCome) {
  TwoHosts at;
  EXPECT_EQ(at.Next().at_ns, At(0) + kLaunchTimeoutNs) << "it hasn't started yet";
  at.Start();
  EXPECT_EQ(at.Next().at_ns, At(300)) << "it hangs";
  at.system.Step(800);
  at.Speak();
  EXPECT_EQ(at.Next().at_ns, At(1000)) << "its time is over before it could hang";
  EXPECT_EQ(at.Next().cause, pb::CAUSE_UNSPECIFIED);
}

TEST(NextStop, AnAgentThatCanNoLongerStartWhatItWasGivenIsOne) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 1).Queue("q");
  JobBuilder builder("q");
  builder.spec.add_secrets("TOKEN");
  const uint64_t job = builder.SubmitTo(&system);
  testing::DecideQuickly(&system);
  const auto host = [&] {
    return system.state.host(testing::TaskOf(system.state, job).attempts.back().parts[0].host).name;
  };
  ASSERT_EQ(host(), "h00");
  system.Hello("c", "h00", 1, "gpu", 64, "s1", 0);
  const JobRow& row = *system.state.FindJob(job);
  const NextStop next = NextStopOf(system.state, row, 0, row.tasks[0].attempts[0], system.now_ns);
  EXPECT_EQ(next.cause, pb::LAUNCH_FAILED);
  EXPECT_EQ(next.detail,
            "c/h00 now has a muster-agent that doesn't know secrets: upgrade muster-agent there");
  EXPECT_EQ(testing::StopsIn(testing::DecideQuickly(&system)), 1) << "and it is stopped";
  system.Do(Report(system.state, job, 0, 1, 0, pb::GONE));
  system.Step(60);
  testing::DecideQuickly(&system);
  EXPECT_EQ(host(), "h01");
}

TEST(NextStop, ALaunchThatTakesTooLongIsOne) {
  TwoHosts at;
  at.system.Step(kLaunchTimeoutNs / kSecond);
  EXPECT_EQ(at.Next().cause, pb::LAUNCH_FAILED);
}

}  // namespace
}  // namespace muster
