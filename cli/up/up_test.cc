// `muster up` with stand-ins for the daemon and the agent: starting, saying what was found,
// restarting, ending.
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class UpTest : public ::testing::Test {
 protected:
  UpTest() {
    char name[] = "/tmp/muster-up-test-XXXXXX";
    home_ = mkdtemp(name);
    EXPECT_EQ(system(absl::StrCat("mkdir ", home_, "/bin").c_str()), 0);
    for (const char* program : {"musterd", "muster-agent", "muster-shim"})
      EXPECT_EQ(symlink(FAKE_PROGRAMS, absl::StrCat(home_, "/bin/", program).c_str()), 0);
  }
  ~UpTest() override {
    Run("down");
    EXPECT_EQ(system(("rm -rf " + home_).c_str()), 0);
  }
  // Exit code; both streams in out_.
  int Run(const std::string& arguments) {
    std::string command =
        absl::StrCat("env -i HOME=", home_, with_runtime_ ? " XDG_RUNTIME_DIR=" + home_ : "",
                     " PATH=/usr/bin:/bin MUSTER_BIN_DIR=", home_, "/bin ", MUSTER_BINARY, " ",
                     arguments, " 2>&1 </dev/null");
    FILE* pipe = popen(command.c_str(), "r");
    out_.clear();
    for (int c; (c = fgetc(pipe)) != EOF;) out_ += static_cast<char>(c);
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  pid_t DaemonPid() {
    EXPECT_EQ(Run("ping -o name"), 0) << out_;
    return atoi(out_.c_str());
  }

  bool with_runtime_ = true;
  std::string home_, out_;
};

TEST_F(UpTest, StartsSaysWhatItFoundAndEndsLeavingJobs) {
  ASSERT_EQ(Run("up --detach"), 0) << out_;
  EXPECT_THAT(out_, HasSubstr("2 cpu-slot (declared stand-ins: no GPU found here)"));
  EXPECT_THAT(out_, HasSubstr("muster run -- echo hello"));
  EXPECT_EQ(Run("ping"), 0) << out_;
  EXPECT_EQ(Run("up"), 0);
  EXPECT_THAT(out_, HasSubstr("Muster is up already"));
  EXPECT_EQ(Run("up --slots 8"), 2);
  EXPECT_THAT(out_, HasSubstr("Muster is up already"));
  EXPECT_THAT(out_, HasSubstr("--slots was not applied: end it first"));
  EXPECT_EQ(Run("up --data-dir " + home_ + "/other"), 2);
  EXPECT_THAT(out_, HasSubstr("something else serves"));
  EXPECT_EQ(Run("down"), 0);
  EXPECT_THAT(out_, HasSubstr("Job 3 goes on"));
  EXPECT_NE(access((home_ + "/muster").c_str(), F_OK), 0) << "the socket's directory is left";
  EXPECT_EQ(Run("ping"), 6);
  EXPECT_EQ(Run("down"), 0);
  EXPECT_THAT(out_, HasSubstr("Muster is not up"));
}

// Whether another process has this file open and sleeps, as one does that tries for its lock.
bool IsTriedFor(const std::string& path) {
  bool tried = false;
  glob_t open_files{};
  glob("/proc/[0-9]*/fd/*", GLOB_NOSORT, nullptr, &open_files);
  for (size_t i = 0; i < open_files.gl_pathc && !tried; ++i) {
    const char* link = open_files.gl_pathv[i];
    char file[4096] = "";
    pid_t pid = 0;
    if (readlink(link, file, sizeof file - 1) < 0 || file != path ||
        sscanf(link, "/proc/%d/", &pid) != 1 || pid == getpid())
      continue;
    // "PID (NAME) STATE …"
    const std::string line = ReadFile(absl::StrCat("/proc/", pid, "/stat")).value_or("");
    tried = absl::StartsWith(line.substr(std::min(line.rfind(')'), line.size())), ") S");
  }
  globfree(&open_files);
  return tried;
}

TEST_F(UpTest, ACommandThatOnlyLooksIsNotTakenForAnother) {
  ASSERT_EQ(Run("up --detach"), 0) << out_;
  ASSERT_EQ(Run("down"), 0) << out_;
  FILE* found = popen(absl::StrCat("find ", home_, " -name up.lock").c_str(), "r");
  char path[4096] = "";
  ASSERT_NE(fgets(path, sizeof path, found), nullptr);
  pclose(found);
  const std::string lock =
      std::filesystem::canonical(std::string(absl::StripSuffix(path, "\n"))).string();
  const int looks = open(lock.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(looks, 0);
  ASSERT_EQ(flock(looks, LOCK_SH | LOCK_NB), 0);
  std::atomic<bool> over = false, met = false;
  std::thread passes([&] {
    while (!over && !met) {
      met = IsTriedFor(lock);
      usleep(1'000);
    }
    close(looks);
  });
  EXPECT_EQ(Run("up --detach"), 0) << out_;
  over = true;
  passes.join();
  EXPECT_TRUE(met.load()) << "it was held until somebody tried for it";
  EXPECT_THAT(out_, Not(HasSubstr("Muster is up already")));
  EXPECT_EQ(Run("ping"), 0) << out_;
}

TEST_F(UpTest, AKilledDaemonIsStartedAgain) {
  ASSERT_EQ(Run("up --detach --adopt-restored"), 0) << out_;
  const auto adopts = [](pid_t pid) {
    return ReadFile(absl::StrCat("/proc/", pid, "/cmdline"))
               .value_or("")
               .find("--adopt-restored") != std::string::npos;
  };
  pid_t first = DaemonPid();
  ASSERT_GT(first, 1);
  EXPECT_TRUE(adopts(first));
  ASSERT_EQ(kill(first, SIGKILL), 0);
  pid_t second = first;
  for (int i = 0; i < 1500 && (second == first || second == 0); ++i)
    second = Run("ping -o name") == 0 ? atoi(out_.c_str()) : 0;
  EXPECT_GT(second, 1);
  EXPECT_NE(second, first);
  EXPECT_FALSE(adopts(second)) << "once";
}

TEST_F(UpTest, WithoutTheRuntimeDirectoryItIsFoundToo) {
  ASSERT_EQ(Run("up --detach"), 0) << out_;
  with_runtime_ = false;  // as under cron
  EXPECT_EQ(Run("ping"), 0) << out_;
  EXPECT_EQ(Run("up"), 0) << out_;
  EXPECT_THAT(out_, HasSubstr("Muster is up already"));
  EXPECT_THAT(out_, HasSubstr("Look around: muster jobs     End it: muster down\n"));
  EXPECT_EQ(Run("down"), 0) << out_;
  EXPECT_THAT(out_, HasSubstr("Muster is down"));
}

TEST_F(UpTest, AnotherDirectoryIsNamedWhereverItIsNeeded) {
  const std::string other = home_ + "/other", down = "muster down --data-dir " + other;
  ASSERT_EQ(Run("up --detach --data-dir " + other), 0) << out_;
  EXPECT_THAT(out_, HasSubstr("End it:  " + down));
  EXPECT_EQ(Run("up --data-dir " + other), 0);
  EXPECT_THAT(out_, HasSubstr("End it: " + down));
  EXPECT_EQ(Run("up"), 2);
  EXPECT_THAT(out_, HasSubstr("Or end the other: " + down));
  EXPECT_EQ(Run("down"), 0);
  EXPECT_THAT(out_, HasSubstr("Another is, from " + other + ". End that: " + down));
  EXPECT_EQ(Run("down --data-dir " + other), 0);
  EXPECT_THAT(out_, HasSubstr("Muster is down"));
  EXPECT_NE(access((home_ + "/muster").c_str(), F_OK), 0) << "the socket's directory is left";
}

TEST_F(UpTest, ASocketThatWasRemovedComesBack) {
  ASSERT_EQ(Run("up --detach"), 0) << out_;
  const pid_t first = DaemonPid();
  ASSERT_EQ(system(absl::StrCat("rm -r ", home_, "/muster").c_str()), 0);
  pid_t second = 0;
  for (int i = 0; i < 1500 && second == 0; ++i)
    second = Run("ping -o name") == 0 ? atoi(out_.c_str()) : 0;
  EXPECT_GT(second, 1) << out_;
  EXPECT_NE(second, first);
}

TEST_F(UpTest, WhatKeepsEndingIsStartedAgainAndJobsSaysSo) {
  ASSERT_EQ(Run("up --detach"), 0) << out_;
  const std::string bin = home_ + "/bin";
  ASSERT_EQ(system(absl::StrCat("cd ", bin,
                                " && rm musterd && printf '#!/bin/sh\necho the disk is full >&2; "
                                "exit 3\n' > musterd && chmod +x musterd && kill -9 ",
                                DaemonPid())
                       .c_str()),
            0);
  std::string said;
  for (int i = 0; i < 1500 && !absl::StrContains(said, "3 times in a row"); ++i) {
    EXPECT_EQ(Run("jobs"), 6);
    said = out_;
  }
  EXPECT_THAT(said, HasSubstr("musterd ended 3 times in a row (exit 3); it is started again at "));
  EXPECT_THAT(said, HasSubstr("the disk is full"));
  EXPECT_THAT(said, HasSubstr("starts it again by itself"));
  EXPECT_THAT(said, Not(HasSubstr("Start one"))) << "that would say that it is up already";
  EXPECT_EQ(Run("up"), 0);
  EXPECT_THAT(out_, HasSubstr("3 times in a row"));
  ASSERT_EQ(
      system(
          absl::StrCat("cd ", bin, " && rm musterd && ln -s ", FAKE_PROGRAMS, " musterd").c_str()),
      0);
  int code = 6;
  for (int i = 0; i < 1500 && code != 0; ++i) code = Run("ping");
  EXPECT_EQ(code, 0) << out_;

  // The agent, while the daemon answers.
  ASSERT_EQ(
      system(absl::StrCat("cd ", bin,
                          " && rm muster-agent && printf '#!/bin/sh\nexit 1\n' > muster-agent "
                          "&& chmod +x muster-agent")
                 .c_str()),
      0);
  ASSERT_EQ(system(absl::StrCat("kill -9 $(pgrep -f '^", bin, "/muster-agent')").c_str()), 0);
  for (int i = 0; i < 1500 && !absl::StrContains(said, "muster-agent ended 2 times"); ++i) {
    EXPECT_EQ(Run("jobs"), 0) << out_;
    said = out_;
  }
  EXPECT_THAT(said, HasSubstr("muster up: muster-agent ended 2 times in a row (exit 1)"));
}

TEST_F(UpTest, ItOutlivesACallerThatDiesBeforeItIsReady) {
  ASSERT_EQ(
      system(absl::StrCat("cd ", home_, "/bin && rm musterd && printf '#!/bin/bash\nwhile [ ! -e ",
                          home_, "/go ]; do sleep 0.02; done\nexec -a musterd ", FAKE_PROGRAMS,
                          " \"$@\"\n' > musterd && chmod +x musterd")
                 .c_str()),
      0);
  ASSERT_EQ(system(absl::StrCat(
                       "env -i HOME=", home_, " XDG_RUNTIME_DIR=", home_,
                       " PATH=/usr/bin:/bin MUSTER_BIN_DIR=", home_, "/bin ", MUSTER_BINARY,
                       " up --detach > /dev/null 2>&1 < /dev/null & for i in $(seq 1500); do [ -e ",
                       home_,
                       "/.local/share/muster/up/logs/musterd.log ] && break; sleep 0.02; done; "
                       "kill -9 $!; touch ",
                       home_, "/go")
                       .c_str()),
            0);
  std::string said;
  for (int i = 0; i < 1500 && !absl::StrContains(said, "the caller is gone; going on"); ++i) {
    usleep(20'000);
    said = ReadFile(home_ + "/.local/share/muster/up/logs/up.log").value_or("");
  }
  EXPECT_THAT(said, HasSubstr("the caller is gone; going on"));
  EXPECT_EQ(Run("up --detach"), 0);
  EXPECT_THAT(out_, HasSubstr("Muster is up already"));
}

TEST_F(UpTest, LogsThatGrewLongBeginAnewWithOnePredecessor) {
  const std::string logs = home_ + "/.local/share/muster/up/logs";
  const auto grow = [&](const std::string& name) {
    return system(absl::StrCat("mkdir -p ", logs, " && truncate -s 65M ", logs, "/", name).c_str());
  };
  const auto size = [&](const std::string& name) {
    struct stat info {};
    return stat(absl::StrCat(logs, "/", name).c_str(), &info) == 0 ? int64_t{info.st_size} : -1;
  };
  for (const char* name : {"musterd.log", "up.log"}) ASSERT_EQ(grow(name), 0);
  ASSERT_EQ(Run("up --detach"), 0) << out_;
  for (const std::string name : {"musterd.log", "up.log"}) {
    EXPECT_EQ(size(name + ".1"), 65 << 20);
    EXPECT_LT(size(name), 1 << 20);
  }
  EXPECT_EQ(size("agent.log.1"), -1);
  ASSERT_EQ(grow("agent.log"), 0);  // while it runs
  for (int i = 0; i < 1500 && size("agent.log") > 1 << 20; ++i) usleep(20'000);
  EXPECT_LT(size("agent.log"), 1 << 20);
  EXPECT_EQ(size("agent.log.1"), 65 << 20);
}

TEST_F(UpTest, AMissingProgramAndAFailingDaemonAreTold) {
  ASSERT_EQ(unlink((home_ + "/bin/muster-shim").c_str()), 0);
  EXPECT_EQ(Run("up"), 6);
  EXPECT_THAT(out_, HasSubstr("muster-shim: not there"));
  ASSERT_EQ(
      system(absl::StrCat("cd ", home_,
                          "/bin && touch muster-shim && rm musterd && printf '#!/bin/sh\\necho the "
                          "disk is full >&2; exit 3\\n' > musterd && chmod +x *")
                 .c_str()),
      0);
  EXPECT_EQ(Run("up --detach"), 6);
  EXPECT_THAT(out_, HasSubstr("musterd ended (exit 3). Its last words:\nthe disk is full"));
  ASSERT_EQ(system(absl::StrCat("cd ", home_,
                                "/bin && printf '#!/bin/sh\\necho \"$@\" >&2; exit 3\\n' > musterd")
                       .c_str()),
            0);
  EXPECT_EQ(Run("up --detach --adopt-restored"), 6);
  EXPECT_THAT(out_, HasSubstr("--single-user --adopt-restored\n"));
}

}  // namespace
}  // namespace muster
