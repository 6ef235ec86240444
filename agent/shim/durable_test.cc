// Small files that are replaced, and environments that are read, where something is in the way.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "agent/shim/durable.h"
#include "agent/shim/isolate.h"
#include "agent/shim/times.h"
#include "common/base/testing/eventually.h"

namespace muster::shim {
namespace {

// vfork leaves its caller in the kernel until the child is done, in the state of one that waits for
// a dead file server.
TEST(Token, IsFoundInAProcessThatWaitsInTheKernel) {
  const std::string token = "stuck-" + std::to_string(::getpid());
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t stuck = ::fork();
  if (stuck == 0) {
    const std::string variable = std::string(kTokenVariable) + "=" + token;
    char* const environment[] = {const_cast<char*>(variable.c_str()), nullptr};
    ::dup2(ready[1], 5);
    ::execle(
        "/usr/bin/python3", "python3", "-c",
        "import ctypes,os\nc=ctypes.CDLL(None)\nos.write(5,b'x')\nif c.vfork()==0:\n c.pause()\n",
        nullptr, environment);
    ::_exit(127);
  }
  ::close(ready[1]);
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const std::string process = "/proc/" + std::to_string(stuck);
  std::string stat;
  ASSERT_TRUE(Eventually([&] {
    return ReadSmallFile(process + "/stat", &stat) == 0 && stat.find(") D ") != std::string::npos;
  })) << stat;
  std::string environment;
  EXPECT_TRUE(Eventually([&] { return ReadEnvironment(process, &environment) == 0; }));
  EXPECT_NE(environment.find(token), std::string::npos);
  EXPECT_TRUE(Eventually([&] { return KillByToken(token) == 0; }));
  ::waitpid(stuck, nullptr, 0);
  ::close(ready[0]);
}

TEST(Token, IsNotWaitedForWhereItCannotBeRead) {
  char name[] = "/tmp/muster-token-test-XXXXXX";
  const std::string process = ::mkdtemp(name);  // as of one that hangs with its memory's lock
  std::filesystem::create_directories(process + "/task/1");
  std::ofstream(process + "/task/1/stat") << "1 (any) name) D 0 1";
  ASSERT_EQ(::mkfifo((process + "/environ").c_str(), 0600), 0);
  const int writer = ::open((process + "/environ").c_str(), O_RDWR | O_CLOEXEC);
  std::string environment;
  EXPECT_EQ(ReadEnvironment(process, &environment), ETIMEDOUT);
  ::close(writer);
  std::filesystem::remove_all(process);
}

// On a dead file server there may be hundreds, and who asks has heartbeats to send.
TEST(Token, ManyThatCannotBeReadAreWaitedForAtOnce) {
  char name[] = "/tmp/muster-token-test-XXXXXX";
  const std::string proc = ::mkdtemp(name);
  const auto add = [&](int pid, const char* state) {
    const std::string process = proc + "/" + std::to_string(pid);
    std::filesystem::create_directories(process + "/task/1");
    std::ofstream(process + "/task/1/stat") << "1 (any) name) " << state << " 0 1";
    return process + "/environ";
  };
  constexpr int kStuck = 100;
  std::vector<int> writers;
  for (int i = 0; i < kStuck; ++i) {
    const std::string environment = add(2'000'000'000 + i, "D");  // no process has such a number
    ASSERT_EQ(::mkfifo(environment.c_str(), 0600), 0);
    writers.push_back(::open(environment.c_str(), O_RDWR | O_CLOEXEC));
  }
  // What can be read is killed by the whole of its token.
  const auto entries = [](const std::string& token) {
    const std::string zero(1, '\0');
    return "A=1" + zero + kTokenVariable + "=" + token + zero + zero + "B=2" + zero;
  };
  struct Case {
    const char* state;
    std::string environment;
    bool killed;
    pid_t pid = 0;
  } cases[] = {{"D", entries("token"), true},
               {"S", entries("token"), true},
               {"S", entries("token").substr(4, sizeof kTokenVariable + 5), true},
               {"D", entries("token2"), false},
               {"S", entries("toke"), false},
               {"S", "X" + entries("token").substr(4), false},
               {"S", "", false}};
  int killed = 0;
  for (Case& c : cases) {
    killed += c.killed ? 1 : 0;
    c.pid = ::fork();
    if (c.pid == 0) {
      ::pause();
      ::_exit(0);
    }
    std::ofstream(add(c.pid, c.state)) << c.environment;
  }
  int unknown = 0;
  const int64_t begun_ns = SteadyNs();
  constexpr int64_t kPatience = 3'000 * kMillisecond;  // also where the machine is busy
  EXPECT_EQ(KillByToken("token", &unknown, proc, kPatience), killed);
  EXPECT_LT(SteadyNs() - begun_ns, 5 * kPatience) << "one after the other: a hundred times that";
  EXPECT_EQ(unknown, kStuck);
  for (const Case& c : cases) {
    ::kill(c.pid, SIGTERM);  // of two signals the kernel takes SIGKILL, which was first
    int status = 0;
    ASSERT_EQ(::waitpid(c.pid, &status, 0), c.pid);
    EXPECT_EQ(WTERMSIG(status), c.killed ? SIGKILL : SIGTERM) << c.environment;
  }
  for (const int writer : writers) ::close(writer);
  std::filesystem::remove_all(proc);
}

TEST(Durable, WhatIsNoPlainFileIsNotWaitedFor) {
  char name[] = "/tmp/muster-durable-test-XXXXXX";
  const std::string directory = ::mkdtemp(name);
  for (const std::string& path :
       {SpareName(directory, "f"), directory + "/.f." + std::to_string(::getpid()) + ".tmp",
        directory + "/g"}) {
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0) << path;
  }
  EXPECT_EQ(ReplaceFile(directory, "f", "content"), 0);
  std::string text;
  EXPECT_EQ(ReadSmallFile(directory + "/f", &text), 0);
  EXPECT_EQ(text, "content");
  EXPECT_EQ(ReadSmallFile(directory + "/g", &text), 0);
  EXPECT_EQ(text, "");
  EXPECT_EQ(LockHolder(directory + "/g"), 0);
  EXPECT_EQ(SyncFile(directory + "/g"), EINVAL);
  std::filesystem::remove_all(directory);
}

TEST(Durable, ASpareServesAgainAndAgain) {
  char name[] = "/tmp/muster-durable-test-XXXXXX";
  const std::string directory = ::mkdtemp(name);
  ASSERT_EQ(ReplaceFile(directory, "f", "the first"), 0);
  ASSERT_EQ(ReserveFile(directory, "f", 4096), 0);
  struct stat spare {
  }, file{};
  ASSERT_EQ(::stat(SpareName(directory, "f").c_str(), &spare), 0);
  for (const char* content : {"one", "a longer one", "2"}) {
    ASSERT_EQ(ReplaceFile(directory, "f", content), 0);
    std::string text;
    EXPECT_EQ(ReadSmallFile(directory + "/f", &text), 0);
    EXPECT_EQ(text, content);
    ASSERT_EQ(::stat((directory + "/f").c_str(), &file), 0);
    EXPECT_EQ(file.st_ino, spare.st_ino) << "no file was made";
    ASSERT_EQ(::stat(SpareName(directory, "f").c_str(), &spare), 0);
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace muster::shim
