// The real muster-shim with real processes, in both ways of keeping them together.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <string_view>
#include <thread>

#include "agent/shim/act.h"
#include "agent/shim/durable.h"
#include "agent/shim/exec_status.h"
#include "agent/shim/format.h"
#include "agent/shim/image.h"
#include "agent/shim/isolate.h"
#include "agent/shim/log_writer.h"
#include "agent/shim/progress.h"
#include "agent/shim/rules.h"
#include "agent/shim/shim.h"
#include "common/base/testing/eventually.h"

namespace muster::shim {
namespace {

using std::chrono::steady_clock;

class ShimTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-shim-test-XXXXXX";
    directory_ = ::mkdtemp(name);
    std::string boot;
    ReadSmallFile("/proc/sys/kernel/random/boot_id", &boot);
    while (!boot.empty() && boot.back() == '\n') boot.pop_back();
    spec_.job_uid = std::string(32, 'a');
    spec_.task = "main";
    spec_.attempt = 1;
    spec_.boot_id = boot;
    spec_.token = "token-" + directory_;
    spec_.as_itself = true;
    spec_.workdir = directory_;
    spec_.grace_ns = 1'000'000'000;
    spec_.pid_namespace = GetParam();
    spec_.env = {{"PATH", "/usr/local/bin:/usr/bin:/bin"}, {"D", directory_}};
  }
  void TearDown() override {
    if (shim_ > 0) {
      ::kill(shim_, SIGKILL);
      ::waitpid(shim_, nullptr, 0);
    }
    EXPECT_TRUE(Eventually([&] { return KillByToken(spec_.token) == 0; }));
    if (mounted_) ::umount2(directory_.c_str(), MNT_DETACH);
    std::filesystem::remove_all(directory_);
  }

  void Workers(int workers, int processes) {
    int32_t rank = 0;
    for (int w = 0; w < workers; ++w) {
      WorkerSpec& worker = spec_.workers.emplace_back();
      worker.group_rank = w;
      for (int p = 0; p < processes; ++p, ++rank)
        worker.processes.push_back({rank, {{"RANK", std::to_string(rank)}}});
    }
  }
  void Script(const std::string& text) { spec_.argv = {"bash", "-euo", "pipefail", "-c", text}; }
  pid_t Spawn() {
    EXPECT_EQ(ReplaceFile(directory_, "told", FormatSpec(spec_)), 0);
    if (!Exists(kPreparedFile)) EXPECT_EQ(ReplaceFile(directory_, kPreparedFile, ""), 0);
    const std::string program = std::string(MUSTER_TEST_BIN) + "/muster-shim";
    char* const argv[] = {const_cast<char*>("muster-shim"), directory_.data(), nullptr};
    char* const environment[] = {nullptr};
    pid_t pid = -1;
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 0, (directory_ + "/told").c_str(), O_RDONLY, 0);
    EXPECT_EQ(::posix_spawn(&pid, program.c_str(), &actions, nullptr, argv, environment), 0);
    ::posix_spawn_file_actions_destroy(&actions);
    return pid;
  }
  void Start() {
    if (spec_.workers.empty()) Workers(1, 1);
    shim_ = Spawn();
  }
  int Wait() {
    int status = 0;
    ::waitpid(shim_, &status, 0);
    shim_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  bool Ended() {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(shim_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == shim_;
  }
  Exits Result() {
    std::string text, error;
    Exits exits;
    EXPECT_EQ(ReadSmallFile(directory_ + "/" + kExitsFile, &text), 0);
    EXPECT_TRUE(ParseExits(text, &exits, &error)) << error;
    return exits;
  }
  void Stop(int64_t grace_ns) {
    EXPECT_EQ(ReplaceFile(directory_, kStopFile, FormatStop({7, grace_ns})), 0);
    ASSERT_GT(shim_, 0);
    ::kill(shim_, SIGUSR1);
  }
  std::string Text(const std::string& name) {
    std::string text;
    ReadSmallFile(directory_ + "/" + name, &text);
    return text;
  }
  std::string Log(int rank) {
    std::string all;
    for (const int64_t offset : LogFileOffsets(directory_ + "/logs", rank))
      all += Text("logs/" + LogFileName(rank, offset));
    return all;
  }
  // The attempt's directory is a small disk of its own from now on. False: errno says why not.
  bool MountDisk() {
    return mounted_ =
               ::mount("muster-test", directory_.c_str(), "tmpfs", 0, "size=1m,mode=0700") == 0;
  }
  // A process of the attempt.
  bool AnyLives() {
    const std::string wanted = std::string(kTokenVariable) + "=" + spec_.token;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::string environment;
      if (ReadSmallFile(entry.path().string() + "/environ", &environment) == 0 &&
          environment.find(wanted) != std::string::npos)
        return true;
    }
    return false;
  }
  bool Exists(const std::string& name) { return std::filesystem::exists(directory_ + "/" + name); }

  std::string directory_;
  Spec spec_;
  pid_t shim_ = -1;
  bool mounted_ = false;
};

TEST_P(ShimTest, TellsEachRanksExitCode) {
  Workers(2, 2);
  // Rank 2 fails once the others are through, so that its failure stops nobody.
  Script(
      "if [ $RANK = 2 ]; then while [ $(ls $D/done.* 2>/dev/null | wc -l) -lt 3 ]; do sleep 0.01; "
      "done; sleep 0.2; exit 42; fi; touch $D/done.$RANK");
  Start();
  EXPECT_EQ(Wait(), 0);
  const Exits exits = Result();
  ASSERT_EQ(exits.exits.size(), 4u);
  for (const Exit& exit : exits.exits)
    EXPECT_EQ(exit.exit_code, exit.rank == 2 ? 42 : 0) << exit.rank;
  EXPECT_FALSE(exits.stop_sent);
}

TEST_P(ShimTest, TellsTheSignalThatKilledAProcess) {
  Script("kill -SEGV $$");
  Start();
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Result().exits[0].signal, SIGSEGV);
  EXPECT_EQ(Result().exits[0].detail, "killed by SIGSEGV");
}

TEST_P(ShimTest, AMissingProgramIsTheJobsMistakeAndItsNameIsTold) {
  spec_.argv = {"no-such-program"};
  Start();
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Result().exits[0].exit_code, 127);
  EXPECT_EQ(Result().exits[0].detail, "program: exec no-such-program: No such file or directory");
  EXPECT_NE(Log(0).find("no-such-program"), std::string::npos);
}

TEST_P(ShimTest, AWorkdirThatIsNotThereIsTheJobsMistakeAndItsPathIsTold) {
  spec_.workdir = directory_ + "/nowhere";
  Script("true");
  Start();
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Result().exits[0].detail,
            "program: workdir " + directory_ + "/nowhere: No such file or directory");
}

TEST_P(ShimTest, AControlGroupThatIsNotThereIsTheHostsFault) {
  spec_.cgroup = directory_ + "/nowhere";
  Script("true");
  Start();
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Result().exits[0].detail, "launch: its control group: No such file or directory");
}

TEST(ReadLaunch, TellsTheExecOrTheChildsWordsOrNothingYet) {
  const struct {
    const char* what;  // nullptr: nothing is told
    int error;
    bool of_host;
    const char* read;
  } cases[] = {
      {nullptr, 0, false, ""},
      {"exec prog", EACCES, false, "program: exec prog: Permission denied"},
      {"exec prog", ENOMEM, false, "launch: exec prog: Cannot allocate memory"},
      {"its output", EACCES, true, "launch: its output: Permission denied"},
  };
  for (const auto& c : cases) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_NONBLOCK), 0);
    std::string said;
    // A child that is on its way, or hangs there, holds the pipe open.
    EXPECT_EQ(ReadLaunch(ends[0], &said), std::nullopt);
    if (c.what != nullptr && c.of_host) TellHostFailure(ends[1], c.what, c.error);
    if (c.what != nullptr && !c.of_host) TellLaunchFailure(ends[1], c.what, c.error);
    EXPECT_EQ(ReadLaunch(ends[0], &said), std::nullopt);
    ::close(ends[1]);
    EXPECT_EQ(ReadLaunch(ends[0], &said), c.read);
    ::close(ends[0]);
  }
}

TEST_P(ShimTest, StopGivesTimeAndThenKills) {
  Script("trap '' TERM; touch $D/ready; while :; do sleep 0.02; done");
  Start();
  ASSERT_TRUE(Eventually([&] { return Exists("ready"); }));
  const auto begin = steady_clock::now();
  Stop(300'000'000);
  EXPECT_EQ(Wait(), 0);
  EXPECT_GE(steady_clock::now() - begin, std::chrono::milliseconds(290));
  EXPECT_EQ(Result().exits[0].signal, SIGKILL);
  EXPECT_TRUE(Result().stop_sent);
}

TEST_P(ShimTest, AProgramBehindAShellGetsItsGraceToo) {
  Script(
      "python3 -c 'import signal,time,os\ndef f(*a):\n time.sleep(0.3); "
      "open(os.environ[\"D\"]+\"/saved\",\"w\").close(); os._exit(0)\n"
      "signal.signal(signal.SIGTERM,f)\nopen(os.environ[\"D\"]+\"/"
      "ready\",\"w\").close()\ntime.sleep(60)'; echo not reached");
  Start();
  ASSERT_TRUE(Eventually([&] { return Exists("ready"); }));
  Stop(10'000'000'000);
  EXPECT_EQ(Wait(), 0);
  EXPECT_TRUE(Exists("saved"));
}

TEST_P(ShimTest, WhoFillsTheDiskIsStoppedAndItsEndIsTold) {
  if (!MountDisk()) GTEST_SKIP() << "no file system of its own: " << strerror(errno);
  Script(
      "trap '' TERM; while true; do dd if=/dev/zero bs=4k >> $D/big 2> /dev/null || true; sleep "
      "0.02; done");
  Start();
  ASSERT_TRUE(Eventually(
      [&] { return ReplaceFile(directory_, "probe", std::string(4096, 'x'), false) == ENOSPC; }));
  Stop(0);
  ASSERT_TRUE(Eventually([&] { return Ended(); }));
  EXPECT_EQ(Wait(), 0);
  EXPECT_TRUE(Result().stop_sent);
  EXPECT_EQ(Result().exits[0].signal, SIGKILL);
}

TEST_P(ShimTest, TheMachineKnowsTheMarkOfItsHolderAsLongAsItIsThere) {
  spec_.holder_mark = "muster-on." + std::string(32, 'f') + ".4." + std::to_string(::getpid());
  const auto known = [&] {
    std::string sockets;
    ReadSmallFile("/proc/net/unix", &sockets);
    return sockets.find("@" + spec_.holder_mark + "\n") != std::string::npos;
  };
  Script("touch $D/up; while [ ! -e $D/go ]; do sleep 0.02; done");
  ASSERT_FALSE(known());
  Start();
  ASSERT_TRUE(Eventually([&] { return Exists("up"); }));
  EXPECT_TRUE(known());
  std::ofstream(directory_ + "/go");
  EXPECT_EQ(Wait(), 0);
  EXPECT_FALSE(known());
}

TEST_P(ShimTest, WhatTheProgramSaidWaitsForRoomAndIsToldBeforeItsEnd) {
  if (!MountDisk()) GTEST_SKIP() << "no file system of its own: " << strerror(errno);
  spec_.progress_socket = directory_ + "/s";
  Script(
      "touch $D/up; while [ -e $D/wait ]; do sleep 0.02; done\n"
      "python3 -c 'import "
      "socket,os\nsocket.socket(socket.AF_UNIX,socket.SOCK_DGRAM).sendto(b\"{\\\"export\\\":{"
      "\\\"staged\\\":\\\"\"+b\"e\"*4000+b\"\\\",\\\"target\\\":\\\"\"+b\"e\"*4000+b\"\\\"}}\", "
      "os.environ[\"D\"]+\"/s\")'");
  std::ofstream(directory_ + "/wait");
  Start();
  ASSERT_TRUE(Eventually([&] { return Exists("up"); }));
  std::ofstream fill(directory_ + "/big");
  while (fill << std::string(4096, 'x') << std::flush) {
  }
  fill.close();
  std::filesystem::remove(directory_ + "/wait");
  // The program has ended: its shim alone is left, and says nothing yet.
  const auto left = [&] {
    std::string mine;
    ReadSmallFile("/proc/" + std::to_string(shim_) + "/task/" + std::to_string(shim_) + "/children",
                  &mine);
    return mine;
  };
  ASSERT_TRUE(Eventually([&] { return left().empty(); }));
  EXPECT_FALSE(Exists(kExitsFile));
  std::filesystem::remove(directory_ + "/big");
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Result().exits[0].exit_code, 0) << Log(0);
  EXPECT_NE(Text(kEventsFile).find("export"), std::string::npos)
      << Text(kEventsFile);  // longer than what its last block may have left
}

TEST_P(ShimTest, AfterAStopNothingIsStarted) {
  Workers(1, 4);
  Script("touch $D/up$RANK; sleep 600");
  ASSERT_EQ(ReplaceFile(directory_, kStopFile, FormatStop({7, 600'000'000'000})), 0);
  Start();
  EXPECT_EQ(Wait(), 0);
  for (const char* name : {"up0", "up1", "up2", "up3"}) EXPECT_FALSE(Exists(name)) << name;
  EXPECT_TRUE(Result().stop_sent);
  EXPECT_TRUE(Result().exits.empty());
}

TEST_P(ShimTest, AShorterSecondStopWins) {
  Script("trap '' TERM; touch $D/ready; while :; do sleep 0.02; done");
  Start();
  ASSERT_TRUE(Eventually([&] { return Exists("ready"); }));
  Stop(600'000'000'000);
  Stop(0);
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Result().exits[0].signal, SIGKILL);
}

TEST_P(ShimTest, AFailureKillsTheOthersWithoutAnyAgent) {
  Workers(1, 2);
  spec_.failure_kill_ns = 100'000'000;
  Script("if [ $RANK = 1 ]; then exit 9; fi; sleep 600");
  Start();
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Result().exits[0].signal, SIGKILL);
  EXPECT_EQ(Result().exits[1].exit_code, 9);
  EXPECT_FALSE(Result().stop_sent);
}

TEST_P(ShimTest, TheShimsDeathKillsItsProcessesWithinASecond) {
  // A grandchild in a session of its own, too.
  Script("setsid sleep 600 & touch $D/ready; sleep 600");
  Start();
  ASSERT_TRUE(Eventually([&] { return Exists("ready"); }));
  ASSERT_GT(shim_, 0);
  ::kill(shim_, SIGKILL);
  Wait();
  EXPECT_TRUE(Eventually([&] { return !AnyLives(); }, std::chrono::seconds(1)));
  EXPECT_FALSE(Exists(kExitsFile));
}

TEST_P(ShimTest, BackgroundProcessesEndWithTheAttempt) {
  Script("setsid sleep 600 & echo started");
  Start();
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(KillByToken(spec_.token), 0);
  EXPECT_EQ(Log(0), "started\n");
}

// As by a descriptor that was passed through a socket, or `yes > /proc/PID/fd/1` in somebody's
// shell.
TEST_P(ShimTest, EndsThoughSomebodyElseHoldsItsOutputAndGoesOnWriting) {
  Script("echo first; until [ -e $D/go ]; do sleep 0.01; done");
  Start();
  const auto pid = [&] {
    const std::string events = Text(kEventsFile);
    const size_t at = events.find(" pid=");
    return at == std::string::npos
               ? std::string()
               : events.substr(at + 5, events.find_first_of(" \n", at + 5) - at - 5);
  };
  ASSERT_TRUE(Eventually([&] { return !pid().empty(); }));
  const int held = ::open(("/proc/" + pid() + "/fd/1").c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(held, 0);
  ASSERT_TRUE(Eventually([&] { return !Log(0).empty(); }));
  ASSERT_EQ(::write(held, "outside\n", 8), 8);
  const auto piped = ::signal(SIGPIPE, SIG_IGN);
  std::thread writer([&] {
    const std::string block(4096, '\n');
    bool told = false;
    while (::write(held, block.data(), block.size()) > 0) {
      if (!told) std::ofstream(directory_ + "/go");
      told = true;
    }
  });
  const bool ended = Eventually([&] { return Ended(); });
  EXPECT_TRUE(ended);
  if (ended) EXPECT_EQ(Wait(), 0);
  if (!ended && shim_ > 0) ::kill(shim_, SIGKILL);  // the writer ends with its reader
  writer.join();
  ::signal(SIGPIPE, piped);
  ::close(held);
  EXPECT_EQ(Log(0).substr(0, 14), "first\noutside\n");
}

TEST(Backoff, IsPatientWithWhatIsNotDeadSoonAndBeginsAnew) {
  Backoff backoff;
  std::vector<int64_t> pauses_ms;
  for (int i = 0; i < 9; ++i) {
    pauses_ms.push_back(backoff.next_ns() / kMillisecond);
    backoff.Pause();
  }
  EXPECT_EQ(pauses_ms, (std::vector<int64_t>{2, 4, 8, 16, 32, 64, 128, 250, 250}));
  backoff.Reset();
  EXPECT_EQ(backoff.next_ns(), Backoff::kShortest);
}

TEST_P(ShimTest, ExportsOfSetupReachTheProcesses) {
  Workers(2, 1);
  spec_.setup = "export GREETING=\"hello\nworker $RANK\"; export RANK=77; echo from setup";
  Script("printf '%s\\n' \"$GREETING\" \"$RANK\"");
  Start();
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Log(0), "from setup\nhello\nworker 0\n0\n");
  EXPECT_EQ(Log(1), "from setup\nhello\nworker 1\n1\n");
}

TEST_P(ShimTest, AFailedSetupStartsNothing) {
  spec_.setup = "# a comment\ntrue\ngrep -q nothing /dev/null";
  Script("touch $D/ran");
  Start();
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Result().exits[0].detail, "setup: exit 1");
  EXPECT_TRUE(Log(0).ends_with("muster: setup, line 3: grep -q nothing /dev/null\n")) << Log(0);
  EXPECT_FALSE(Exists("ran"));
}

TEST_P(ShimTest, WhatEndsAtOnceAndInSilenceLeavesAClaimAndItsExitsAndNothingElse) {
  spec_.argv = {"true"};
  Start();
  EXPECT_EQ(Wait(), 0);
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory_))
    names.insert(entry.path().filename());
  EXPECT_EQ(names,
            (std::set<std::string>{".stop.spare", kClaimFile, kExitsFile, kPreparedFile, "told"}));
}

TEST_P(ShimTest, WhatStaysIsToldWhileItRuns) {
  Script("until grep -q '^started ' $D/events 2>/dev/null; do sleep 0.01; done");
  Start();
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Result().exits[0].exit_code, 0);
}

TEST_P(ShimTest, AClaimThatSaysStoppedStartsNothing) {
  Claim winner = Claim::kNone;
  ASSERT_EQ(MakeClaim(directory_, Claim::kStopped, &winner), 0);
  Script("touch $D/ran");
  Start();
  EXPECT_EQ(Wait(), 71);
  EXPECT_FALSE(Exists("ran"));
}

TEST_P(ShimTest, OfManyShimsExactlyOneRuns) {
  Workers(1, 1);
  Script("echo run >> $D/runs; sleep 0.3");
  std::vector<pid_t> shims;
  for (int i = 0; i < 8; ++i) shims.push_back(Spawn());
  int done = 0;
  for (const pid_t pid : shims) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    done += WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 1 : 0;
  }
  EXPECT_EQ(done, 1);
  EXPECT_EQ(Text("runs"), "run\n");
}

TEST_P(ShimTest, AnotherBootStartsNothing) {
  spec_.boot_id = "another";
  Script("touch $D/ran");
  Start();
  EXPECT_EQ(Wait(), 71);
  EXPECT_FALSE(Exists("ran"));
  EXPECT_FALSE(Exists(kClaimFile));
}

TEST_P(ShimTest, EndsWhenItsDirectoryIsForgotten) {
  spec_.workdir = "/";
  Script("rm -rf $D");
  Start();
  EXPECT_TRUE(Eventually([&] { return Ended(); }));
}

TEST_P(ShimTest, LogsRotateAndKeepTheNewest) {
  spec_.log_file_bytes = 64 << 10;
  spec_.log_files = 3;
  Script("for i in $(seq 1 100000); do echo line $i; done");
  Start();
  EXPECT_EQ(Wait(), 0);
  const std::vector<int64_t> offsets = LogFileOffsets(directory_ + "/logs", 0);
  ASSERT_LE(offsets.size(), 3u);
  EXPECT_GT(offsets.front(), 0);
  const std::string log = Log(0);
  EXPECT_EQ(log.substr(log.size() - 12), "line 100000\n");
  EXPECT_EQ(log.rfind("line ", 0), 0u);  // cut between lines
}

TEST_P(ShimTest, DrainsAFloodOfProgressAndKeepsEveryCheckpoint) {
  spec_.progress_socket = directory_ + "/s";
  Script(
      "python3 -c 'import socket,os\ns=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM)\n"
      "for i in range(20000): s.sendto(b\"{\\\"step\\\":%d}\" % i, os.environ[\"D\"]+\"/s\")\n"
      "s.sendto(b\"x\"*9000, os.environ[\"D\"]+\"/s\")\n"
      "for i in range(20): "
      "s.sendto(b\"{\\\"checkpoint\\\":{\\\"step\\\":%d,\\\"path\\\":\\\"p\\\"}}\" % i, "
      "os.environ[\"D\"]+\"/s\")'");
  Start();
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Result().exits[0].exit_code, 0) << Log(0);
  const std::string events = Text(kEventsFile);
  int checkpoints = 0;
  for (size_t at = 0; at < events.size(); at = events.find('\n', at) + 1)
    checkpoints += events.compare(at, 5, "line ") == 0 ? 1 : 0;
  EXPECT_EQ(checkpoints, 20);
}

// A checkpoint a step, of steps that take no time: a few are kept, the newest for certain, and what
// matters more isn't behind them.
TEST_P(ShimTest, AFloodOfCheckpointsLeavesAFewAndTheNewestAndTheExport) {
  spec_.progress_socket = directory_ + "/s";
  Script(
      "python3 -c 'import socket,os,time\ns=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM)\n"
      "say=lambda text: s.sendto(text.encode(), os.environ[\"D\"]+\"/s\")\n"
      "for i in range(200): say(\"{\\\"checkpoint\\\":{\\\"step\\\":%d,\\\"path\\\":\\\"p\\\"}}\" "
      "% i)\n"
      "for i in range(200): say(\"{\\\"step\\\":1,\\\"checkpoint\\\":\\\"no checkpoint\\\"}\")\n"
      "say(\"{\\\"export\\\":{\\\"staged\\\":\\\"e\\\"}}\")\n"
      "open(os.environ[\"D\"]+\"/said\",\"w\").close()\n"
      "while not os.path.exists(os.environ[\"D\"]+\"/go\"): time.sleep(0.01)\n'");
  Start();
  ASSERT_TRUE(Eventually([&] { return Exists("said"); }));
  const auto lines = [&] {
    std::vector<std::string> kept;
    const std::string events = Text(kEventsFile);
    for (size_t at = 0; at < events.size(); at = events.find('\n', at) + 1) {
      const std::optional<Line> line =
          ParseLine(std::string_view(events).substr(at, events.find('\n', at) - at));
      if (line.has_value() && line->kind == "line") kept.push_back(line->Get("json"));
    }
    return kept;
  };
  const std::string newest = R"({"checkpoint":{"step":199,"path":"p"}})";
  // While it runs, too: once the rate allows it.
  if (GetParam())
    EXPECT_TRUE(Eventually([&] { return !lines().empty() && lines().back() == newest; }));
  std::ofstream(directory_ + "/go");
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Result().exits[0].exit_code, 0) << Log(0);
  const std::vector<std::string> kept = lines();
  ASSERT_EQ(kept.size(), 22u);
  EXPECT_EQ(kept[0], R"({"checkpoint":{"step":0,"path":"p"}})");
  EXPECT_EQ(kept[20], R"({"export":{"staged":"e"}})");
  EXPECT_EQ(kept[21], newest);
  EXPECT_NE(Text(kEventsFile).find("\ndropped lines="), std::string::npos);
}

TEST(Progress, OfDurableLinesThatComeTooFastTheNewestWaits) {
  DurableLines lines;
  EXPECT_EQ(lines.Take(0), "");
  for (int i = 0; i < kDurableLines; ++i) {
    EXPECT_TRUE(lines.Put(std::to_string(i)));
    EXPECT_EQ(lines.Take(5), std::to_string(i));
  }
  EXPECT_TRUE(lines.Put("a"));
  EXPECT_EQ(lines.Take(6), "");
  EXPECT_FALSE(lines.Put("b")) << "a is dropped";
  EXPECT_TRUE(lines.waits());
  EXPECT_EQ(lines.Take(lines.next_ns() - 1), "");
  EXPECT_EQ(lines.Take(lines.next_ns()), "b");
  EXPECT_FALSE(lines.waits());
  for (int i = 1; i < kDurableLines; ++i) {
    EXPECT_TRUE(lines.Put("c"));
    EXPECT_EQ(lines.Take(lines.next_ns() - 1), "c");
  }
  EXPECT_TRUE(lines.Put("d"));
  EXPECT_EQ(lines.Take(lines.next_ns() - 1), "");
  EXPECT_EQ(lines.Take(lines.next_ns() - 1, /*last=*/true), "d");
}

int64_t BootNs() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

TEST(Fence, IsDueSoLongAfterTheNewestRenewal) {
  EXPECT_EQ(Fence().due_ns(), kNever);
  Fence fence(10, 100);
  EXPECT_FALSE(fence.Passed(109));
  EXPECT_TRUE(fence.Passed(110));
  fence.Renew(105);
  fence.Renew(50);  // an older one takes nothing back
  EXPECT_EQ(fence.due_ns(), 115);
}

TEST_P(ShimTest, ItsFenceStopsItUnlessTheAgentPutsItOff) {
  Script(
      "trap 'echo saved >> $D/saved; exit 0' TERM; touch $D/up; while true; do sleep 0.05; done");
  spec_.fence_after_ns = 1'500'000'000;
  spec_.renewed_ns = BootNs();
  Start();
  ASSERT_TRUE(Eventually([&] { return Exists("up"); }));
  const int64_t put_off_ns = spec_.renewed_ns + 1'000'000'000;
  ASSERT_EQ(ReplaceFile(directory_, kRenewedFile, FormatRenewal(put_off_ns), false), 0);
  EXPECT_EQ(Wait(), 0);
  EXPECT_GE(BootNs(), put_off_ns + spec_.fence_after_ns);
  EXPECT_TRUE(Exists("saved")) << "SIGTERM first";
  const Exits exits = Result();
  EXPECT_TRUE(exits.fenced);
  EXPECT_TRUE(exits.stop_sent);
  ASSERT_EQ(exits.exits.size(), 1u);
}

// As after a machine's sleep: whoever waits for the fence knows nothing of that.
TEST_P(ShimTest, TheGraceOfAFenceRunsWhileTheShimStandsStill) {
  Script("trap '' TERM; touch $D/up; while true; do sleep 0.05; done");
  spec_.fence_after_ns = 2'000'000'000;
  spec_.grace_ns = 2'000'000'000;
  spec_.renewed_ns = BootNs();
  Start();
  ASSERT_TRUE(Eventually([&] { return Exists("up"); }));
  ASSERT_EQ(::kill(shim_, SIGSTOP), 0);
  const int64_t over_ns = spec_.renewed_ns + spec_.fence_after_ns + spec_.grace_ns;
  ASSERT_TRUE(Eventually([&] { return BootNs() > over_ns; }));
  EXPECT_FALSE(Ended());
  const int64_t woken_ns = BootNs();
  ASSERT_EQ(::kill(shim_, SIGCONT), 0);
  EXPECT_EQ(Wait(), 0);
  EXPECT_LT(BootNs() - woken_ns, spec_.grace_ns);
  const Exits exits = Result();
  EXPECT_TRUE(exits.fenced);
  ASSERT_EQ(exits.exits.size(), 1u);
  EXPECT_EQ(exits.exits[0].signal, SIGKILL);
}

// As one that waits for its disk, and reads no renewal and sends no signal.
TEST_P(ShimTest, ItsKeeperKillsWhatItsFenceEndsWhereTheShimCannot) {
  Script("setsid sleep 600 & trap '' TERM; touch $D/up; while true; do sleep 0.05; done");
  spec_.fence_after_ns = 3'000'000'000;
  spec_.grace_ns = 200'000'000;
  spec_.renewed_ns = BootNs();
  Start();
  ASSERT_TRUE(Eventually([&] { return Exists("up"); }));
  ASSERT_EQ(::kill(shim_, SIGSTOP), 0);
  EXPECT_TRUE(AnyLives());
  EXPECT_TRUE(Eventually([&] { return !AnyLives(); }));
  EXPECT_LT(BootNs(), spec_.renewed_ns + spec_.fence_after_ns + spec_.grace_ns + 5'000'000'000)
      << "what the scheduler waits beyond them";
  ASSERT_EQ(::kill(shim_, SIGCONT), 0);
  EXPECT_EQ(Wait(), 0);
  EXPECT_TRUE(Result().fenced);
  EXPECT_EQ(Result().exits[0].signal, SIGKILL);
}

TEST_P(ShimTest, OneThatComesAfterItsFenceClaimsNothing) {
  Script("touch $D/up");
  spec_.fence_after_ns = 1'000'000'000;
  spec_.renewed_ns = BootNs() - spec_.fence_after_ns;
  Start();
  EXPECT_EQ(Wait(), kShimNotClaimed);
  EXPECT_FALSE(Exists("up"));
  EXPECT_FALSE(Exists(kClaimFile));
  EXPECT_FALSE(Exists(kExitsFile));
}

INSTANTIATE_TEST_SUITE_P(Isolation, ShimTest, ::testing::Values(true, false), [](const auto& info) {
  return info.param ? "PidNamespace" : "ProcessGroup";
});

TEST(Format, AnyByteSurvives) {
  Spec spec;
  spec.token = "t";
  spec.workdir = "/a b%c=d\n";
  spec.setup = std::string("x\0y\xff\n", 5);
  spec.argv = {"", "two words", "end"};
  spec.env = {{"A", "1=2\n%"}};
  spec.holder_mark = "m 1";
  spec.workers = {{0, {{0, {{"RANK", "0"}}}}}};
  Spec read;
  std::string error;
  ASSERT_TRUE(ParseSpec(FormatSpec(spec), &read, &error)) << error;
  EXPECT_EQ(FormatSpec(read), FormatSpec(spec));
  EXPECT_EQ(read.setup, spec.setup);
  EXPECT_EQ(read.argv, spec.argv);
}

// After power loss any part of a file may be what is left of it. Each parser takes it whole or not
// at all.
TEST(Format, EveryParserRefusesEveryPrefix) {
  Spec spec;
  spec.token = "t";
  spec.argv = {"true"};
  spec.workers = {{0, {{0, {}}}}};
  Exits exits;
  exits.start_ns = 1;
  exits.end_ns = 2;
  for (int32_t rank = 0; rank < 3; ++rank) exits.exits.push_back({rank, 0, 0, 2, "", true, false});
  ActRequest request;
  request.user = User{1000, 1000, {1000, 20}};
  request.job_directory = "/storage/j", request.directories = {"logs"};
  std::string error;
  const struct {
    const char* name;
    std::string content;
    std::function<bool(const std::string&)> parses;
  } files[] = {
      {"spec", FormatSpec(spec),
       [&](const std::string& text) {
         Spec read;
         return ParseSpec(text, &read, &error);
       }},
      {"stop", FormatStop({3, 5}),
       [&](const std::string& text) {
         StopOrder read;
         return ParseStop(text, &read, &error);
       }},
      {"renewed", FormatRenewal(7),
       [&](const std::string& text) {
         int64_t read = 0;
         return ParseRenewal(text, &read, &error);
       }},
      {"exits", FormatExits(exits),
       [&](const std::string& text) {
         Exits read;
         return ParseExits(text, &read, &error);
       }},
      {"times", FormatTimes({{0, 1, 2, 3}, {1, 1, 2, 3}}),
       [&](const std::string& text) {
         std::vector<StepTimes::Row> rows;
         return ParseTimes(text, &rows, &error);
       }},
      {"usage", FormatUsage({5, 6, 7, 8}),
       [&](const std::string& text) {
         Used read;
         return ParseUsage(text, &read, &error);
       }},
      {"image", FormatImage({"/image", {"/data"}, {"/lib/libcuda.so.1"}, "/work"}),
       [&](const std::string& text) {
         Image read;
         return ParseImage(text, &read, &error);
       }},
      {"request to act", FormatActRequest(request),
       [&](const std::string& text) {
         ActRequest read;
         return ParseActRequest(text, &read, &error);
       }},
      {"result of acting", FormatActResult({ActResult::Kind::kJobs, "no directory", "note"}),
       [&](const std::string& text) {
         ActResult read;
         return ParseActResult(text, &read, &error);
       }},
      {"lines", FormatFile("some", {Line{"a"}.Add("b", 1), Line{"c"}}),
       [&](const std::string& text) {
         std::vector<Line> lines;
         return ParseFile(text, "some", &lines, &error);
       }},
  };
  for (const auto& file : files) {
    ASSERT_TRUE(file.parses(file.content)) << file.name << ": " << error;
    for (size_t length = 0; length < file.content.size(); ++length) {
      error.clear();
      EXPECT_FALSE(file.parses(file.content.substr(0, length))) << file.name << " of " << length;
      EXPECT_FALSE(error.empty()) << file.name << " of " << length;
    }
    // What was never written is zeros, in a file that has its size already.
    std::string holes = file.content;
    std::fill(holes.begin() + static_cast<int64_t>(holes.size() / 2), holes.end(), '\0');
    EXPECT_FALSE(file.parses(holes)) << file.name;
  }
}

TEST(Format, RefusesWhatIsUnknown) {
  Spec spec;
  spec.token = "t";
  spec.argv = {"true"};
  spec.workers = {{0, {{0, {}}}}};
  const std::string good = FormatSpec(spec);
  Spec read;
  std::string error;
  const std::string bad[] = {"muster-shim-spec version=2\nend\n",
                             "muster-shim-exits version=1\nend\n",
                             good + "more\n",
                             "muster-shim-spec version=1\nnonsense a=b\nend\n",
                             "muster-shim-spec version=1\numask value=%\nend\n",
                             "muster-shim-spec version=1\numask value=99999999999999999999\nend\n"};
  for (const std::string& text : bad) {
    EXPECT_FALSE(ParseSpec(text, &read, &error)) << text;
    EXPECT_FALSE(error.empty());
  }
}

TEST(Progress, OwnTimesOfStepsByRankAndTheirMedian) {
  const struct {
    const char* line;
    bool told;
    int32_t rank;
    int64_t step, own_us;
  } cases[] = {
      {R"({"rank": 3, "step": 12, "own_time_s": 0.25})", true, 3, 12, 250'000},
      {R"({"step": 1, "loss": 2.5, "own_time_s": 1e-3, "step_time_s": 9})", true, 0, 1, 1000},
      {R"({"rank": 3, "step": 12, "step_time_s": 0.25})", false, 0, 0, 0},
      {R"({"rank": 3, "own_time_s": 0.25})", false, 0, 0, 0},
      {R"({"rank": -1, "step": 1, "own_time_s": 0.25})", false, 0, 0, 0},
      {R"({"rank": 1, "step": 1, "own_time_s": "nan"})", false, 0, 0, 0},
      {R"({"rank": 1, "step": 1, "own_time_s": -4})", false, 0, 0, 0},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.line);
    const std::optional<StepTime> time = StepTimeOf(*agent::ParseProgressLine(c.line));
    ASSERT_EQ(time.has_value(), c.told);
    if (!c.told) continue;
    EXPECT_EQ(time->rank, c.rank);
    EXPECT_EQ(time->step, c.step);
    EXPECT_EQ(time->own_us, c.own_us);
  }
  StepTimes times;
  for (int64_t step = 1; step <= 40; ++step) {
    EXPECT_TRUE(times.Add({5, step, step == 30 ? 60'000'000 : 1000 + step}));
    EXPECT_FALSE(times.Add({5, step, 1})) << "told again";
  }
  times.Add({7, 1, 99});
  std::vector<StepTimes::Row> rows;
  std::string error;
  ASSERT_TRUE(ParseTimes(FormatTimes(times.Rows()), &rows, &error)) << error;
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].rank, 5);
  EXPECT_EQ(rows[0].step, 40);
  EXPECT_EQ(rows[0].steps, 32);
  EXPECT_NEAR(static_cast<double>(rows[0].own_us), 1025, 2) << "one slow step changes nothing";
  EXPECT_EQ(rows[1].own_us, 99);
}

TEST(Progress, KindsOfLines) {
  const struct {
    const char* text;
    LineKind kind;
  } cases[] = {
      {R"({"step":1})", LineKind::kMetrics},
      {R"( { "step" : 1 , "rank" : 0 } )", LineKind::kMetrics},
      {R"({"step":1,"rank":3})", LineKind::kOther},
      {R"({"rank":0,"step":1,"own_time_s":0.5})", LineKind::kOther},
      {R"({"step":1,"own_time_s":0.5})", LineKind::kOther},
      {R"({"rank":0,"step":1,"own_time_s":0.5,"loss":1})", LineKind::kMetrics},
      {R"({"checkpoint":{"step":1,"path":"a\"}b"}})", LineKind::kCheckpoint},
      {R"({"rank":2,"checkpoint":{"path":"/c"}})", LineKind::kCheckpoint},
      {R"({"rank":2,"checkpoint":{}})", LineKind::kOther},  // the agent would tell nothing of it
      {R"({"checkpoint":{"path":"/c"}, "export": {"staged":"/s"}})", LineKind::kDurable},
      {R"({"export": {"staged":"/s"}, "checkpoint":{"path":"/c"}})", LineKind::kDurable},
      {R"({"step":1,"checkpoint":"long","export":[{}],"loaded":true})", LineKind::kMetrics},
      {R"({"rank":2,"checkpoint":7})", LineKind::kOther},
      {R"({"loaded":{"skipped":[{"path":"x"}]}})", LineKind::kDurable},
      {R"({"text":"checkpoint"})", LineKind::kMetrics},
  };
  for (const auto& c : cases)
    EXPECT_EQ(KindOf(*agent::ParseProgressLine(c.text)), c.kind) << c.text;
}

}  // namespace
}  // namespace muster::shim
