// What takes a device or host out of placement, and what doesn't.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_format.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/testing/builders.h"
#include "scheduler/state/validate.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using testing::HelloAgain;
using testing::JobBuilder;
using testing::Placed;
using testing::Report;
using testing::StartAll;
using testing::SystemBuilder;

constexpr char kXid[] = "Xid 79: GPU has fallen off the bus";

// Cluster c: twenty hosts of four devices, h00 … h19; a tenth are eight devices.
class Quarantine : public ::testing::Test {
 protected:
  Quarantine() { system.Cluster("c").Hosts("c", 20, 4).Queue("q"); }

  const HostRow& Host(const std::string& name) {
    return system.state.host(system.state.FindHost("c", name));
  }
  bool Out(const std::string& host, int32_t device) {
    return !Host(host).inventory.devices(device).healthy();
  }

  uint64_t Submit() {
    JobBuilder job("q");
    job.task()->set_processes_per_worker(1);
    job.task()->set_max_restarts(100);
    return job.SubmitTo(&system);
  }
  // An attempt of the job on one device that ends so.
  void Ends(uint64_t job, const std::string& host, int32_t device,
            pb::Cause cause = pb::DEVICE_FAILURE) {
    system.Step(++second_);
    system.Do(Placed(system.state, job, "c", {{host, {device}}}));
    StartAll(&system, job);
    pb::Event event =
        Report(system.state, job, 0, system.state.FindJob(job)->tasks[0].attempts.back().number, 0,
               pb::GONE, 1);
    for (pb::WorkerExit& exit :
         *event.mutable_attempt_reported()->mutable_report()->mutable_exits())
      exit.set_cause(cause);
    if (cause == pb::LAUNCH_FAILED || cause == pb::IMAGE_FAILED)
      event.mutable_attempt_reported()->mutable_report()->set_cause(cause);  // as a host tells it
    system.Do(event);
    EXPECT_EQ(State::Difference(system.state, system.state.Rebuilt()), "");
  }
  void Fault(const std::string& host, int32_t device, int64_t at_ns) {
    system.Step(++second_);
    pb::Event event;
    pb::HostFaultSeen& seen = *event.mutable_host_fault();
    seen.set_cluster("c");
    seen.set_host(host);
    seen.mutable_fault()->set_device(device);
    seen.mutable_fault()->set_code(79);
    seen.mutable_fault()->set_detail(kXid);
    seen.mutable_fault()->set_at_ns(at_ns);
    system.Do(event);
    EXPECT_EQ(State::Difference(system.state, system.state.Rebuilt()), "");
  }
  void Slow(uint64_t job, int32_t rank, int32_t permille) {
    system.Step(++second_);
    pb::Event event;
    *event.mutable_straggler()->mutable_key() = KeyOf(*system.state.FindJob(job), 0, 1);
    event.mutable_straggler()->set_rank(rank);
    event.mutable_straggler()->set_permille(permille);
    system.Do(event);
  }
  void Release(const std::string& host, int32_t device, const std::string& by = "ann") {
    pb::Event event;
    event.mutable_quarantine_released()->set_cluster("c");
    event.mutable_quarantine_released()->set_host(host);
    event.mutable_quarantine_released()->set_device(device);
    event.mutable_quarantine_released()->set_by(by);
    system.Do(event);
    EXPECT_EQ(State::Difference(system.state, system.state.Rebuilt()), "");
  }

  SystemBuilder system;
  int64_t second_ = 10;
};

TEST_F(Quarantine, OfADeviceThatTwoJobsBlame) {
  const uint64_t runs = Submit();
  system.Do(Placed(system.state, runs, "c", {{"h00", {3}}}));
  StartAll(&system, runs);
  Ends(Submit(), "h00", 1);
  EXPECT_FALSE(Out("h00", 1));
  ASSERT_EQ(Host("h00").blames.size(), 1u);
  Ends(Submit(), "h00", 1);
  EXPECT_TRUE(Out("h00", 1));
  EXPECT_FALSE(Out("h00", 0));
  EXPECT_TRUE(Host("h00").usable());
  EXPECT_TRUE(Host("h00").blames.empty());
  ASSERT_EQ(Host("h00").quarantines.size(), 1u);
  const pb::Quarantine& row = Host("h00").quarantines[0];
  EXPECT_EQ(row.evidence_size(), 2);
  EXPECT_EQ(row.evidence(1).job(), 3u);
  EXPECT_EQ(row.since_ns(), system.now_ns);
  EXPECT_THAT(row.reason(), HasSubstr("2 times"));
  EXPECT_EQ(system.state.FindJob(runs)->tasks[0].state, pb::TASK_RUNNING)
      << "what runs beside it goes on";
  Plan plan;
  plan.events.push_back(Placed(system.state, Submit(), "c", {{"h00", {1}}}));
  EXPECT_THAT(std::string(Validate(system.state, plan).message()), HasSubstr("isn't healthy"));
}

TEST_F(Quarantine, OneJobCountsOnceHoweverOftenItFailsThere) {
  const uint64_t job = Submit();
  for (int i = 0; i < 10; ++i) Ends(job, "h00", 1);
  EXPECT_FALSE(Out("h00", 1));
  EXPECT_EQ(Host("h00").blames.size(), 1u);
}

TEST_F(Quarantine, ATaskThatBlamesSeveralHostsBlamesItself) {
  const uint64_t broken = Submit();
  Ends(broken, "h00", 0);
  Ends(broken, "h01", 0);
  Ends(broken, "h02", 0);
  EXPECT_TRUE(system.state.FindJob(broken)->tasks[0].blames_itself);
  for (const char* host : {"h00", "h01", "h02"}) EXPECT_TRUE(Host(host).blames.empty()) << host;
  // What others say of a host counts all the same.
  Ends(Submit(), "h00", 0);
  EXPECT_FALSE(Out("h00", 0));
  Ends(Submit(), "h00", 0);
  EXPECT_TRUE(Out("h00", 0));
}

TEST_F(Quarantine, WhatTheDriverSaysCountsForEachAttemptWhereverElseItFailed) {
  const uint64_t job = Submit();
  Ends(job, "h01", 0);
  system.Do(Placed(system.state, job, "c", {{"h00", {2}}}));
  StartAll(&system, job);
  Fault("h00", 2, 1000);
  Fault("h00", 2, 1000);
  EXPECT_EQ(Host("h00").blames.size(), 1u) << "told again";
  Fault("h00", 2, 2000);
  EXPECT_FALSE(Out("h00", 2)) << "twice in one attempt is one blame";
  system.Do(Report(system.state, job, 0, 2, 0, pb::GONE, 1));
  Ends(job, "h01", 1);
  system.Do(Placed(system.state, job, "c", {{"h00", {2}}}));
  Fault("h00", 2, 3000);
  EXPECT_TRUE(Out("h00", 2));
  EXPECT_EQ(Host("h00").quarantines[0].evidence(0).kind(), pb::BLAME_CERTAIN);
}

TEST_F(Quarantine, AFaultAndTheEndThatItCausedAreOneIncident) {
  const uint64_t job = Submit();
  Ends(job, "h00", 2);
  Fault("h00", 2, 1000);  // the end was told first
  EXPECT_FALSE(Out("h00", 2));
  ASSERT_EQ(Host("h00").blames.size(), 1u);
  EXPECT_EQ(Host("h00").blames[0].kind(), pb::BLAME_CERTAIN);
  EXPECT_EQ(Host("h00").blames[0].job(), job);
}

TEST_F(Quarantine, OfAHostThatThreeAttemptsBlameWhateverTheDevice) {
  Ends(Submit(), "h00", 0, pb::HOST_FAILURE);
  Ends(Submit(), "h00", 1, pb::DEVICE_FAILURE);
  EXPECT_TRUE(Host("h00").usable());
  Ends(Submit(), "h00", 2, pb::LAUNCH_FAILED);
  EXPECT_TRUE(Host("h00").quarantined());
  EXPECT_FALSE(Host("h00").usable());
  for (int d = 0; d < 4; ++d) EXPECT_TRUE(Out("h00", d));
  Release("h00", -1);
  EXPECT_TRUE(Host("h00").usable());
  for (int d = 0; d < 4; ++d) EXPECT_FALSE(Out("h00", d));
  Ends(Submit(), "h00", 0, pb::HOST_FAILURE);
  EXPECT_FALSE(Host("h00").quarantined()) << "what spoke against it before counts no more";
}

// Protobuf writes a `string` that is no UTF-8 and doesn't read it again: musterd would not start.
TEST_F(Quarantine, ABlameThatIsCutCanBeReadAgain) {
  int hosts = 0;
  for (const char* letter : {"ä", "日", "😀"}) {
    std::string why = "workdir /";
    while (why.size() < 400) why += letter;
    for (int i = 0; i < 4; ++i) {  // wherever in a character the cut falls
      why.insert(0, "x");
      const std::string host = absl::StrFormat("h%02d", hosts++);
      system.Step(++second_);
      pb::Event event;
      pb::HostFaultSeen& seen = *event.mutable_host_fault();
      seen.set_cluster("c");
      seen.set_host(host);
      seen.mutable_fault()->set_at_ns(system.now_ns);
      seen.mutable_fault()->set_detail(why);
      system.Do(event);
      ASSERT_EQ(Host(host).blames.size(), 1u);
      EXPECT_GT(Host(host).blames[0].detail().size(), 290u);
      const absl::StatusOr<State> loaded = State::Load(system.state.AllRows());
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      EXPECT_EQ(State::Difference(system.state, *loaded), "");
    }
  }
}

TEST_F(Quarantine, NothingElseBlamesAHost) {
  for (const pb::Cause cause : {pb::PROGRAM_ERROR, pb::OUT_OF_MEMORY, pb::NETWORK_FAILURE,
                                pb::STORAGE_FAILURE, pb::KILLED, pb::HANG, pb::IMAGE_FAILED})
    Ends(Submit(), "h00", 0, cause);
  EXPECT_TRUE(Host("h00").blames.empty());
}

TEST_F(Quarantine, AnImageThatCanNotBeEnteredIsTriedElsewhereAndCostsNoRestart) {
  const uint64_t job = Submit();
  Ends(job, "h00", 0, pb::IMAGE_FAILED);
  const TaskRow& task = system.state.FindJob(job)->tasks[0];
  EXPECT_EQ(task.state, pb::TASK_WAITING);
  EXPECT_EQ(task.restarts_used, 0);
  EXPECT_EQ(task.attempts.back().cause, pb::IMAGE_FAILED);
  EXPECT_EQ(task.attempts.back().failed_host, task.attempts.back().parts[0].host);
}

TEST_F(Quarantine, BlamesAreForgottenAfterTheWindow) {
  Ends(Submit(), "h00", 1);
  second_ += 90'000;
  Ends(Submit(), "h00", 1);
  EXPECT_FALSE(Out("h00", 1));
  EXPECT_EQ(Host("h00").blames.size(), 1u);
}

TEST_F(Quarantine, NeverTakesMoreThanItsPartOfTheClusterAndMoreOnceSomeIsReleased) {
  for (const char* host : {"h00", "h01"}) {
    for (int i = 0; i < 3; ++i) Ends(Submit(), host, 0, pb::HOST_FAILURE);
    EXPECT_TRUE(Host(host).quarantined());
  }
  for (int i = 0; i < 3; ++i) Ends(Submit(), "h02", 0, pb::HOST_FAILURE);
  EXPECT_FALSE(Host("h02").quarantined()) << "eight of eighty are out already";
  EXPECT_TRUE(Host("h02").usable());
  ASSERT_EQ(Host("h02").quarantines.size(), 1u);
  EXPECT_TRUE(Host("h02").quarantines[0].withheld());
  Release("h00", -1);
  EXPECT_TRUE(Host("h02").quarantined());
}

TEST_F(Quarantine, IsReleasedByTimeOnlyOnceItIsOver) {
  pb::QuarantineRule rule;
  rule.set_release_after_ns(kHour);
  system.Rule("c", rule);
  Ends(Submit(), "h00", 1);
  Ends(Submit(), "h00", 1);
  EXPECT_EQ(Host("h00").quarantines[0].release_ns(), system.now_ns + kHour);
  Release("h00", 1, "time");
  EXPECT_TRUE(Out("h00", 1));
  system.Step(second_ + 3600);
  Release("h00", 1, "time");
  EXPECT_FALSE(Out("h00", 1));
}

TEST_F(Quarantine, LastsOnWhereTheHostFailsItsCheck) {
  pb::QuarantineRule rule;
  rule.set_release_after_ns(kHour);
  system.Rule("c", rule);
  const auto fails = [&](int32_t device) {
    pb::Event event;
    event.mutable_host_check_failed()->set_cluster("c");
    event.mutable_host_check_failed()->set_host("h00");
    event.mutable_host_check_failed()->set_device(device);
    event.mutable_host_check_failed()->set_detail("exit 3: GPU 1: memory test failed");
    system.Do(event);
    EXPECT_EQ(State::Difference(system.state, system.state.Rebuilt()), "");
  };
  Ends(Submit(), "h00", 1);
  Ends(Submit(), "h00", 1);
  const int64_t release_ns = Host("h00").quarantines[0].release_ns();
  fails(1);
  EXPECT_EQ(Host("h00").quarantines[0].release_ns(), release_ns) << "it wasn't due";
  system.Step(second_ += 3600);
  fails(2);
  EXPECT_EQ(Host("h00").quarantines[0].check_detail(), "") << "of another device";
  fails(1);
  EXPECT_EQ(Host("h00").quarantines[0].check_detail(), "exit 3: GPU 1: memory test failed");
  EXPECT_EQ(Host("h00").quarantines[0].release_ns(), system.now_ns + 10 * kMinute);
  Release("h00", 1, "time");
  EXPECT_TRUE(Out("h00", 1));
  system.Step(second_ += 600);
  Release("h00", 1, "time");
  EXPECT_FALSE(Out("h00", 1));
}

TEST_F(Quarantine, AProgramWithoutDevicesOrWithStandInsForThemSaysNothingOfDevices) {
  for (const bool declared : {false, true}) {
    SCOPED_TRACE(declared);
    pb::Event hello = HelloAgain(system.state, "c", "h00");
    hello.mutable_host_hello()->mutable_inventory()->set_declared(declared);
    system.Do(hello);
    for (int i = 0; i < 4; ++i) {
      if (declared) {
        Ends(Submit(), "h00", 1);
        continue;
      }
      JobBuilder builder("q");
      builder.GpusMilli(0);
      const uint64_t job = builder.SubmitTo(&system);
      system.Do(Placed(system.state, job, "c", {{"h00", {}, 1}}));
      StartAll(&system, job);
      pb::Event event = Report(system.state, job, 0, 1, 0, pb::GONE, 1);
      for (pb::WorkerExit& exit :
           *event.mutable_attempt_reported()->mutable_report()->mutable_exits())
        exit.set_cause(pb::DEVICE_FAILURE);
      system.Do(event);
      EXPECT_EQ(testing::TaskOf(system.state, job).attempts[0].cause, pb::DEVICE_FAILURE);
    }
    EXPECT_TRUE(Host("h00").blames.empty());
    EXPECT_FALSE(Host("h00").quarantined());
  }
}

TEST_F(Quarantine, IsOffWhereTheFileSaysSo) {
  pb::QuarantineRule rule;
  rule.set_off(true);
  system.Rule("c", rule);
  for (int i = 0; i < 5; ++i) Ends(Submit(), "h00", 1);
  EXPECT_FALSE(Out("h00", 1));
  EXPECT_EQ(Host("h00").blames.size(), 5u) << "shown all the same";
}

TEST_F(Quarantine, ASlowRankCountsHalfAndOnceAJob) {
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(Out("h00", 1));
    const uint64_t job = Submit();
    system.Do(Placed(system.state, job, "c", {{"h00", {1}}}));
    StartAll(&system, job);
    Slow(job, 0, 1400);
    Slow(job, 0, 1500);
    ASSERT_EQ(system.state.FindJob(job)->tasks[0].attempts[0].stragglers.size(), 1u);
    const pb::Straggler row = system.state.FindJob(job)->tasks[0].attempts[0].stragglers[0];
    EXPECT_EQ(row.permille(), 1500);
    EXPECT_EQ(row.device(), 1);
    Slow(job, 0, 0);
    EXPECT_TRUE(system.state.FindJob(job)->tasks[0].attempts[0].stragglers.empty());
    system.Do(Report(system.state, job, 0, 1, 0, pb::GONE, 0));
  }
  EXPECT_TRUE(Out("h00", 1)) << "four jobs";
}

TEST_F(Quarantine, ADeviceThatFallsIllAgainAndAgainIsTakenOutAlthoughItRecovers) {
  const auto hello = [&](bool healthy) {
    system.Step(second_ += 7200);
    pb::Event event = HelloAgain(system.state, "c", "h00");
    pb::Inventory& inventory = *event.mutable_host_hello()->mutable_inventory();
    inventory = Host("h05").inventory;
    inventory.mutable_devices(2)->set_healthy(healthy);
    system.Do(event);
    EXPECT_EQ(State::Difference(system.state, system.state.Rebuilt()), "");
  };
  hello(false);
  EXPECT_TRUE(Out("h00", 2));
  hello(true);
  EXPECT_FALSE(Out("h00", 2)) << "once is no more than its own word";
  hello(false);
  hello(true);
  EXPECT_TRUE(Out("h00", 2));
  Release("h00", 2);
  EXPECT_FALSE(Out("h00", 2));
}

TEST_F(Quarantine, FollowsTheRuleOfTheClustersFile) {
  for (int h = 0; h < 3; ++h) {
    for (int i = 0; i < 3; ++i) Ends(Submit(), absl::StrCat("h0", h), 0, pb::HOST_FAILURE);
  }
  EXPECT_FALSE(Host("h02").quarantined());
  pb::QuarantineRule rule;
  rule.set_max_percent(50);
  system.Rule("c", rule);
  EXPECT_TRUE(Host("h02").quarantined()) << "more may be taken out now";
  rule.set_off(true);
  system.Rule("c", rule);
  for (int h = 0; h < 3; ++h) EXPECT_TRUE(Host(absl::StrCat("h0", h)).usable());
  EXPECT_FALSE(Out("h00", 0));
  EXPECT_EQ(State::Difference(system.state, system.state.Rebuilt()), "");
}

TEST_F(Quarantine, AFaultCountsAlthoughTheHostsClockWasSetBack) {
  const int64_t ahead_ns = 400 * kDay;
  Fault("h00", 2, ahead_ns);
  Fault("h00", 2, ahead_ns - 1);
  ASSERT_EQ(Host("h00").blames.size(), 1u);
  second_ += 7200;  // another incident, and the clock is right by now
  Fault("h00", 2, kDay);
  EXPECT_TRUE(Out("h00", 2));
}

// A host's clock may come out of a boot behind the time of the last fault before.
TEST_F(Quarantine, AfterARebootNoFaultIsTakenForARepetition) {
  for (const bool rebooted : {false, true}) {
    const std::string host = rebooted ? "h00" : "h01";
    Fault(host, 2, 10 * kDay);
    pb::Event hello = HelloAgain(system.state, "c", host);
    if (rebooted) hello.mutable_host_hello()->set_boot_id("b2");
    system.Do(hello);
    second_ += 7200;  // another incident
    Fault(host, 2, 10 * kDay - kHour);
    EXPECT_EQ(Out(host, 2), rebooted);
  }
}

TEST_F(Quarantine, OfADeviceEndsWithTheDevice) {
  const auto hello = [&](const std::string& uuid) {
    pb::Event event;
    pb::HostHello& e = *event.mutable_host_hello();
    e.set_cluster("c");
    e.set_host("h00");
    e.set_state_id("s1");
    *e.mutable_inventory() = Host("h05").inventory;
    e.mutable_inventory()->mutable_devices(1)->set_uuid(uuid);
    system.Do(event);
  };
  hello("GPU-old");
  Ends(Submit(), "h00", 1);
  Ends(Submit(), "h00", 1);
  hello("GPU-old");
  EXPECT_TRUE(Out("h00", 1)) << "its host came back";
  hello("");
  EXPECT_TRUE(Out("h00", 1)) << "it doesn't even say its name";
  EXPECT_EQ(Host("h00").inventory.devices(1).uuid(), "GPU-old");
  hello("GPU-new");
  EXPECT_FALSE(Out("h00", 1));
}

}  // namespace
}  // namespace muster
