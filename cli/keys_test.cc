#include "cli/keys.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace muster {
namespace {

// In a process of its own, whose terminal this is: how often it shows what is typed, before, while
// and after keys are read, a bit each. Below 0: it got no terminal.
int ShownBeforeWhileAndAfter(int terminal, int empty) {
  const auto shows = [terminal] {
    termios now{};
    return tcgetattr(terminal, &now) == 0 && (now.c_lflag & ECHO) != 0;
  };
  if (setsid() < 0 || ioctl(terminal, TIOCSCTTY, 0) != 0 || dup2(terminal, STDIN_FILENO) < 0)
    return -1;
  int shown = shows() ? 1 : 0;
  {
    Interrupt interrupt;
    Keys keys(true);
    shown |= shows() ? 2 : 0;
    dup2(empty, STDIN_FILENO);  // from here on nothing can be read
    if (keys.WaitFor(interrupt, 10) != Keys::kTime) return -1;
    dup2(terminal, STDIN_FILENO);
  }
  return shown | (shows() ? 4 : 0);
}

TEST(Keys, TheTerminalIsAsItWasAfterAReadThatFailed) {
  int ends[2];
  ASSERT_EQ(openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr), 0);
  const int empty = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(ShownBeforeWhileAndAfter(ends[1], empty));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1 | 4);
  for (const int fd : {ends[0], ends[1], empty}) close(fd);
}

}  // namespace
}  // namespace muster
