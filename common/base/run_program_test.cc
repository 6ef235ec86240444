#include "common/base/run_program.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/units.h"

namespace muster {
namespace {

ProgramEnd End(std::vector<std::string> argv, int64_t limit_ns = 20 * kSecond) {
  ProgramOptions options;
  options.argv = std::move(argv);
  options.time_limit_ns = limit_ns;
  const absl::StatusOr<ProgramEnd> end = RunProgram(options);
  EXPECT_TRUE(end.ok()) << end.status();
  return end.value_or(ProgramEnd());
}

TEST(RunProgram, SaysHowItEndedAndWhatItSaid) {
  const struct {
    const char* script;
    int exit_code;
    const char* output;
    const char* why;
  } cases[] = {
      {"echo done", 0, "done\n", ""},
      {"echo no chassis >&2; exit 3", 3, "", "exit 3: no chassis"},
      {"kill -9 $$", -1, "", "killed by signal 9"},
      {"printf 'Ger\\344t fehlt' >&2; exit 1", 1, "", "exit 1: Ger?t fehlt"},
      {"sleep 60 & echo left", 0, "left\n", ""},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.script);
    const ProgramEnd end = End({"/bin/sh", "-c", c.script});
    EXPECT_EQ(end.exit_code, c.exit_code);
    EXPECT_EQ(end.output, c.output);
    EXPECT_EQ(end.why, c.why);
  }
}

TEST(RunProgram, GivesItsWordsAsTheyAre) {
  EXPECT_EQ(End({"/bin/echo", "$(id); 'a b'", "*"}).output, "$(id); 'a b' *\n");
}

TEST(RunProgram, GivesItsInputAsAFileThatMayBeOpenedAgain) {
  ProgramOptions options{.argv = {"/bin/sh", "-c", "cat /dev/stdin; cat"},
                         .input = std::string(100'000, 'x') + "\n"};
  options.most_bytes = 1 << 20;
  EXPECT_EQ(RunProgram(options)->output, options.input + options.input);
  EXPECT_EQ(End({"/bin/cat"}).output, "");
}

TEST(RunProgram, KillsWhatTakesTooLongWithWhatItStarted) {
  const int64_t began_ns = RealClock()->MonotonicNs();
  const ProgramEnd end =
      End({"/bin/sh", "-c", "echo waits >&2; sleep 60; true"}, 200 * kMillisecond);
  EXPECT_EQ(end.exit_code, -1);
  EXPECT_EQ(end.why, "no end within 200ms: waits");
  EXPECT_LT(RealClock()->MonotonicNs() - began_ns, 20 * kSecond);
}

TEST(RunProgram, KeepsNoMoreThanItWasTold) {
  ProgramOptions options;
  options.argv = {"/bin/sh", "-c", "yes | head -c 1000000; echo over >&2"};
  options.most_bytes = 10;
  const absl::StatusOr<ProgramEnd> end = RunProgram(options);
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(end->output.size(), 10u);
  EXPECT_EQ(end->exit_code, 0);
}

TEST(RunProgram, SaysWhatCannotBeStarted) {
  ProgramOptions options;
  options.argv = {"/nonexistent/ipmi"};
  EXPECT_FALSE(RunProgram(options).ok());
  options.dies_with_us = true;
  EXPECT_EQ(RunProgram(options)->why, "exit 127: /nonexistent/ipmi: No such file or directory");
}

TEST(RunProgram, WhatIsBoundToUsEndsWithUsAndElseAsAnyOther) {
  ProgramOptions options;
  options.argv = {"/bin/sh", "-c", "cat; echo no chassis >&2; exit 3"};
  options.input = "told\n";
  options.dies_with_us = true;
  const absl::StatusOr<ProgramEnd> end = RunProgram(options);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->output, "told\n");
  EXPECT_EQ(end->why, "exit 3: no chassis");

  int told[2];
  ASSERT_EQ(::pipe(told), 0);
  const pid_t us = ::fork();
  if (us == 0) {
    ::dup2(told[1], 5);  // the program's, too: the pipe ends with the last of them
    options.argv = {"/bin/sh", "-c", "echo runs >&5; exec sleep 600"};
    (void)RunProgram(options);
    ::_exit(0);
  }
  ::close(told[1]);
  char word[5];
  ASSERT_EQ(::read(told[0], word, sizeof word), 5);
  ::kill(us, SIGKILL);
  ::waitpid(us, nullptr, 0);
  pollfd end_of_it{told[0], POLLIN, 0};
  EXPECT_EQ(::poll(&end_of_it, 1, 20'000), 1);
  EXPECT_EQ(::read(told[0], word, sizeof word), 0);
  ::close(told[0]);
}

}  // namespace
}  // namespace muster
