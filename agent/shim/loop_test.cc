// The shim's loop over ports that are values: what it does when the world misbehaves.
#include "agent/shim/loop.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <set>
#include <utility>

namespace muster::shim {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// One attempt's world, with a clock that only the test moves.
class World final : public Clock, public Files, public Processes, public Voice {
 public:
  int64_t WallNs() override { return 1'800'000'000 * kSecond + now_ns; }
  int64_t BootNs() override { return now_ns; }

  int ReadClaim(Claim* claim) override { return *claim = claimed, 0; }
  int MakeClaim(Claim* winner) override {
    if (claimed == Claim::kNone) claimed = Claim::kStarted;
    now_ns += claim_takes_ns;
    return *winner = claimed, 0;
  }
  int Read(const char* name, std::string* content) override {
    if (files.count(name) == 0) return ENOENT;
    *content = files[name];
    return 0;
  }
  int Replace(const char* name, std::string_view content, bool) override {
    if (full) return ENOSPC;
    files[name] = content;
    return 0;
  }
  void Reserve(const char*) override {}
  int WriteEvents(int64_t at, std::string_view text) override {
    if (full) return ENOSPC;
    EXPECT_LE(at, static_cast<int64_t>(events.size())) << "a hole";
    events.resize(static_cast<size_t>(at));
    durable.resize(std::min(durable.size(), events.size()));
    events += text;
    return 0;
  }
  int SyncEvents() override {
    ++syncs;
    if (sync_fails == 0) return durable = events, 0;
    --sync_fails;
    return EIO;  // and the kernel drops what it could not write: a later sync says nothing of it
  }
  bool Forgotten() override { return false; }

  pid_t Start(const Launch& launch, std::string* problem) override {
    if (no_processes) return *problem = "launch: fork: Resource temporarily unavailable", -1;
    const pid_t pid = next_pid++;
    groups.insert(pid);
    started.emplace_back(pid, launch);
    return pid;
  }
  bool SignalGroup(pid_t pid, int signal) override {
    if (groups.count(pid) == 0) return false;
    signals.emplace_back(pid, signal);
    return true;
  }
  bool GroupLives(pid_t pid) override { return groups.count(pid) > 0; }
  void Kill(pid_t pid) override { signals.emplace_back(pid, SIGKILL); }
  std::string SetupExports(size_t) override { return exports; }
  void Log(int32_t, const std::string& text) override { log += text; }
  void Report(const std::string& line) override { reports.push_back(line); }
  int64_t OomKills() override { return oom_kills; }
  std::optional<Measured> MeasureUse() override { return used; }
  bool HasNamespace() override { return false; }
  void EndAll() override { groups.clear(), ended_all = true; }
  bool SetDeadline(int64_t at_ns) override { return deadline_ns = at_ns, deadline_over; }
  void Say(const std::string& text) override { said += text + "\n"; }

  int64_t now_ns = 1000 * kSecond, claim_takes_ns = 0;
  std::optional<Measured> used;  // nullopt: it can't be told
  Claim claimed = Claim::kNone;
  std::map<std::string, std::string> files;
  std::string events, durable;  // DIR/events: as read, and what a loss of power would leave
  bool full = false;
  int sync_fails = 0, syncs = 0;
  bool no_processes = false, ended_all = false, deadline_over = false;
  pid_t next_pid = 100;
  std::set<pid_t> groups;
  std::vector<std::pair<pid_t, Launch>> started;
  std::vector<std::pair<pid_t, int>> signals;
  std::string exports, log, said;
  std::vector<std::string> reports;
  int64_t oom_kills = 0, deadline_ns = 0;
};

class LoopTest : public ::testing::Test {
 protected:
  LoopTest() {
    spec_.boot_id = "boot";
    spec_.argv = {"program"};
    spec_.grace_ns = 5 * kSecond;
    Ranks(1);
  }
  void Ranks(int ranks) {
    spec_.workers = {WorkerSpec{}};
    for (int32_t rank = 0; rank < ranks; ++rank) spec_.workers[0].processes.push_back({rank, {}});
  }
  // Claims, and starts what it may.
  void Begin() {
    loop_.emplace(spec_, Ports{&world_, &world_, &world_, &world_});
    ASSERT_TRUE(loop_->ReadyToClaim("boot"));
    ASSERT_EQ(loop_->TryClaim(), Loop::Claimed::kClaimed);
    loop_->Begin();
    wake_ = loop_->Turn();
  }
  // With all of its ranks past their exec.
  void Run() {
    Begin();
    // NOLINTNEXTLINE(modernize-loop-convert): it starts others
    for (size_t i = 0; i < world_.started.size(); ++i) {
      loop_->OnExec(world_.started[i].first, "");
      wake_ = loop_->Turn();
    }
    ASSERT_EQ(world_.started.size(), spec_.workers[0].processes.size());
  }
  pid_t Pid(size_t started) { return world_.started.at(started).first; }
  void End(size_t started, int code, int signal = 0) {
    world_.groups.erase(Pid(started));
    loop_->OnEnded(Pid(started), code, signal);
    wake_ = loop_->Turn();
  }
  void Pass(int64_t ns) {
    world_.now_ns += ns;
    wake_ = loop_->Turn();
  }
  Exits Result() {
    std::string error;
    Exits exits;
    EXPECT_TRUE(loop_->Over());
    EXPECT_TRUE(ParseExits(world_.files[kExitsFile], &exits, &error)) << error;
    return exits;
  }

  World world_;
  Spec spec_;
  std::optional<Loop> loop_;
  Wake wake_;
};

constexpr char kCheckpoint[] = R"({"checkpoint":{"step":1,"path":"p"}})";

// An error of the disk must not make a checkpoint count as durable.
TEST_F(LoopTest, WhatCouldNotBeSyncedIsWrittenAndSyncedOnceMore) {
  Run();
  world_.sync_fails = 2;
  loop_->OnProgress(kCheckpoint);
  wake_ = loop_->Turn();
  EXPECT_EQ(world_.durable.find("checkpoint"), std::string::npos);
  EXPECT_EQ(wake_.at_ns, world_.now_ns + kSecond) << "tried again in a second";
  Pass(kSecond);
  EXPECT_EQ(world_.durable.find("checkpoint"), std::string::npos);
  Pass(kSecond);
  EXPECT_NE(world_.durable.find("checkpoint"), std::string::npos);
  EXPECT_EQ(world_.durable, world_.events);
  EXPECT_EQ(world_.events.find("checkpoint"), world_.events.rfind("checkpoint")) << "twice";
  EXPECT_EQ(world_.said, "events: Input/output error\n") << "told once";
}

// The agent reads all of it when it starts.
TEST_F(LoopTest, WhoHasToldVeryMuchIsWrittenDownMoreSeldom) {
  Run();
  const std::string pad(8000, 'x');
  int step = 0;
  const auto say = [&] {
    loop_->OnProgress(R"({"checkpoint":{"step":)" + std::to_string(++step) +
                      R"(,"path":"p"},"pad":")" + pad + "\"}");
  };
  for (int i = 0; i < 110; ++i) {
    for (int line = 0; line < kDurableLines; ++line) say();
    Pass(kDurableWindowNs);
  }
  const size_t many = world_.events.size();
  ASSERT_GE(many, static_cast<size_t>(kManyEventsBytes));
  for (int i = 0; i < 300; ++i) {
    say();
    Pass(kSecond);
  }
  EXPECT_LE(world_.events.size(), many + 12 * (pad.size() + 100)) << "one in half a minute";
  EXPECT_GE(world_.events.size(), many + 8 * pad.size());
  End(0, 0);
  Pass(0);
  EXPECT_EQ(Result().exits[0].exit_code, 0);
  EXPECT_NE(world_.durable.find("\"step\":" + std::to_string(step)), std::string::npos)
      << "the newest is written, whatever the rate";
}

TEST_F(LoopTest, KeepsAllThatRank0ReportsWhereThatIsAskedFor) {
  const std::vector<std::string> lines = {
      R"({"step":1,"loss":0.5,"lr":NaN})",
      R"({"rank":0,"step":2,
 "loss":0.25})",
      R"({"rank":1,"step":2,"loss":9})",
      R"({"step":2,"own_time_s":0.1})",
      R"({"loaded":{"step":2,"path":"p"}})",
      R"({"checkpoint":{"step":2,"path":"p"}})",
      "no JSON",
  };
  Run();
  for (const std::string& line : lines) loop_->OnProgress(line);
  EXPECT_TRUE(world_.reports.empty()) << "nobody asked";
  World world;
  world_ = world;
  spec_.keep_reports = true;
  Run();
  for (const std::string& line : lines) loop_->OnProgress(line);
  const std::string at = "{\"at_ns\":" + std::to_string(world_.WallNs()) + ",";
  const std::vector<std::string> kept = {at + R"("step":1,"loss":0.5,"lr":NaN})",
                                         at + R"("rank":0,"step":2,  "loss":0.25})",
                                         at + R"("loaded":{"step":2,"path":"p"}})"};
  EXPECT_EQ(world_.reports, kept);
  for (int i = 0; i < 2 * kKeptReportsPerSecond; ++i) loop_->OnProgress(R"({"step":3})");
  EXPECT_EQ(world_.reports.size(), static_cast<size_t>(kKeptReportsPerSecond)) << "of a second";
}

TEST_F(LoopTest, TheEndIsToldAfterWhatCouldNotBeSyncedBeforeIt) {
  Run();
  world_.sync_fails = 3;
  loop_->OnProgress(kCheckpoint);
  End(0, 0);
  wake_ = loop_->Turn();
  EXPECT_FALSE(loop_->Over());
  EXPECT_EQ(world_.files.count(kExitsFile), 0u);
  Pass(kSecond);
  EXPECT_TRUE(loop_->Over());
  EXPECT_NE(world_.durable.find("checkpoint"), std::string::npos);
  EXPECT_EQ(Result().exits[0].exit_code, 0);
}

TEST_F(LoopTest, OnADiskThatStaysFullTheEndIsToldWithoutTheEventsAndOnceThereIsRoom) {
  Run();
  world_.full = true;
  loop_->OnProgress(kCheckpoint);
  End(0, 3);
  for (int i = 0; i < 700; ++i) Pass(kSecond);
  EXPECT_FALSE(loop_->Over());
  world_.full = false;
  Pass(kSecond);
  EXPECT_EQ(Result().exits[0].exit_code, 3);
}

TEST_F(LoopTest, RanksAreStartedOneAfterTheOtherAndNoneAfterAStop) {
  Ranks(3);
  Begin();
  EXPECT_EQ(world_.started.size(), 1u);
  loop_->OnExec(Pid(0), "");
  loop_->Turn();
  EXPECT_EQ(world_.started.size(), 2u);
  world_.files[kStopFile] = FormatStop({7, kSecond});
  loop_->OnStopFile();
  loop_->Turn();
  loop_->OnExec(Pid(1), "");
  loop_->Turn();
  EXPECT_EQ(world_.started.size(), 2u);
  EXPECT_EQ(world_.signals,
            (std::vector<std::pair<pid_t, int>>{{Pid(0), SIGTERM}, {Pid(1), SIGTERM}}))
      << "the one that was on its way to its exec is told once it is there";
  End(0, 0);
  End(1, 0);
  loop_->Turn();
  EXPECT_TRUE(Result().stop_sent);
  EXPECT_EQ(Result().exits.size(), 2u);
}

TEST_F(LoopTest, OneThatHangsOnItsWayToItsExecIsGivenUpAndTheNextAreGivenNoTime) {
  Ranks(2);
  Begin();
  EXPECT_EQ(wake_.at_ns, world_.now_ns + kSecond / 4) << "its first events";
  Pass(19 * kSecond);
  EXPECT_EQ(world_.started.size(), 1u);
  Pass(kSecond);
  EXPECT_NE(world_.log.find("exec program: not begun in time"), std::string::npos);
  ASSERT_EQ(world_.started.size(), 2u);
  EXPECT_EQ(wake_.at_ns, world_.now_ns);
  loop_->Turn();
  EXPECT_EQ(world_.signals,
            (std::vector<std::pair<pid_t, int>>{{Pid(0), SIGKILL}, {Pid(1), SIGKILL}}));
  EXPECT_FALSE(loop_->Over()) << "SIGKILL may not end it either";
  End(0, 0, SIGKILL);
  End(1, 0, SIGKILL);
  loop_->Turn();
  EXPECT_EQ(Result().exits[0].exit_code, 127) << "the first outcome stays";
}

TEST_F(LoopTest, AClaimThatTakesLongerThanItsFenceStartsNothing) {
  spec_.fence_after_ns = 10 * kSecond;
  spec_.renewed_ns = world_.now_ns;
  world_.claim_takes_ns = 11 * kSecond;
  Begin();
  loop_->Turn();
  EXPECT_TRUE(world_.started.empty());
  EXPECT_TRUE(Result().fenced);
  EXPECT_TRUE(Result().stop_sent);
}

TEST_F(LoopTest, AFenceIsWaitedForByTheClockOfAMachineThatSleepsAndPutOffByTheAgentsFile) {
  spec_.fence_after_ns = 10 * kSecond;
  spec_.renewed_ns = world_.now_ns;
  Run();
  EXPECT_EQ(wake_.alarm_ns, spec_.renewed_ns + 10 * kSecond);
  const int64_t deadline_ns = world_.deadline_ns;
  EXPECT_GT(deadline_ns, wake_.alarm_ns + spec_.grace_ns);
  world_.files[kRenewedFile] = FormatRenewal(world_.now_ns + 4 * kSecond);
  Pass(10 * kSecond);
  EXPECT_FALSE(loop_->fenced());
  EXPECT_EQ(wake_.alarm_ns, spec_.renewed_ns + 14 * kSecond);
  EXPECT_EQ(world_.deadline_ns, deadline_ns + 4 * kSecond) << "the keeper's, too";
  Pass(60 * kSecond);  // it slept
  EXPECT_TRUE(loop_->fenced());
  ASSERT_FALSE(world_.signals.empty());
  EXPECT_EQ(world_.signals.back().second, SIGKILL) << "its grace ran meanwhile";
}

TEST_F(LoopTest, TheProcessesOfAWorkerFindWhatItsSetupExportedButForMustersOwn) {
  spec_.setup = "export A=1";
  spec_.env = {{"MUSTER_JOB", "7"}, {"B", "2"}};
  world_.exports = std::string("A=1\0MUSTER_JOB=8\0PWD=/\0", 23);
  Begin();
  ASSERT_EQ(world_.started.size(), 1u);
  EXPECT_TRUE(world_.started[0].second.setup);
  loop_->OnExec(Pid(0), "");
  End(0, 0);
  ASSERT_EQ(world_.started.size(), 2u);
  std::string found;
  for (const EnvironmentVariable& variable : world_.started[1].second.env)
    found += variable.name + "=" + variable.value + " ";
  EXPECT_EQ(found, "A=1 MUSTER_JOB=7 ");
}

TEST_F(LoopTest, WhoCannotForkTellsItAsALaunchThatFailed) {
  world_.no_processes = true;
  Begin();
  loop_->Turn();
  EXPECT_EQ(Result().exits[0].exit_code, 127);
  EXPECT_EQ(Result().exits[0].detail, "launch: fork: Resource temporarily unavailable");
}

TEST_F(LoopTest, OneThatTheKernelKilledForMemoryIsToldAsSuch) {
  Run();
  world_.oom_kills = 1;
  End(0, 0, SIGKILL);
  loop_->Turn();
  EXPECT_TRUE(Result().exits[0].oom);
}

TEST_F(LoopTest, OneThatCannotWaitAnyMoreKillsWhatRunsAndEnds) {
  Run();
  loop_->OnBlind();
  EXPECT_TRUE(world_.ended_all);
  loop_->Turn();
  EXPECT_TRUE(Result().exits.empty());
}

TEST_F(LoopTest, WhatIsUsedIsSaidWhileItRunsAndWithTheEnd) {
  world_.used = Measured();
  Run();
  EXPECT_EQ(world_.files.count(kUsageFile), 0u);
  world_.used->memory_bytes = 500;
  world_.used->cpu_us = 1'000'000;
  Pass(kSecond);
  Used used;
  std::string error;
  ASSERT_TRUE(ParseUsage(world_.files[kUsageFile], &used, &error)) << error;
  EXPECT_EQ(used.memory_peak_bytes, 500);
  EXPECT_EQ(used.ran_ns, kSecond);
  EXPECT_EQ(wake_.at_ns, world_.now_ns + kSecond) << "and looks again";
  world_.full = true;
  world_.used->memory_bytes = 700;
  Pass(kSecond);
  world_.full = false;
  world_.used->memory_bytes = -1;
  world_.used->cpu_us = 1'500'000;
  End(0, 0);
  Pass(0);
  EXPECT_EQ(Result().used.memory_peak_bytes, 700) << "whatever the disk took of it";
  EXPECT_EQ(Result().used.cpu_us, 1'500'000);
}

TEST_F(LoopTest, WhereNothingCanBeToldOfUseNothingIsSaidAndNobodyWakesForIt) {
  Run();
  while (wake_.at_ns != kNever && world_.now_ns < 2000 * kSecond) Pass(wake_.at_ns - world_.now_ns);
  EXPECT_EQ(wake_.at_ns, kNever);
  EXPECT_EQ(world_.files.count(kUsageFile), 0u);
  End(0, 0);
  Pass(0);
  EXPECT_EQ(Result().used.ran_ns, 0);
}

}  // namespace
}  // namespace muster::shim
