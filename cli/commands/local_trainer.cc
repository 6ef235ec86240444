#include "cli/commands/local_trainer.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "common/base/files.h"

extern char** environ;

namespace muster {
namespace {

constexpr auto kTimeLimit = std::chrono::seconds(10);
constexpr int kConfigFd = 3;

}  // namespace

std::string LocalTrainer() {
  const std::string trainer = ExecutableDirectory() + "/muster-trainer";
  return ::access(trainer.c_str(), X_OK) == 0 ? trainer : "";
}

const char* TrainerConfigFile() {
  static_assert(kConfigFd == 3);
  return "/dev/fd/3";
}

std::optional<std::string> AskLocalTrainer(const std::vector<std::string>& arguments, const std::string& config, const std::vector<int>& good) {
  const std::string trainer = LocalTrainer();
  if (trainer.empty()) return std::nullopt;
  const int file = ::memfd_create("trainer.json", MFD_CLOEXEC);
  int out[2];
  if (file < 0 || ::pipe2(out, O_CLOEXEC) != 0) {
    if (file >= 0) ::close(file);
    return std::nullopt;
  }
  const bool written = ::write(file, config.data(), config.size()) == static_cast<ssize_t>(config.size()) && ::lseek(file, 0, SEEK_SET) == 0;
  std::vector<const char*> argv = {trainer.c_str()};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  ::posix_spawn_file_actions_adddup2(&actions, file, kConfigFd);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  pid_t pid = -1;
  const bool started = written && ::posix_spawn(&pid, trainer.c_str(), &actions, nullptr, const_cast<char* const*>(argv.data()), environ) == 0;
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(out[1]);
  ::close(file);
  std::string text;
  const auto deadline = std::chrono::steady_clock::now() + kTimeLimit;
  while (started) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd ready{out[0], POLLIN, 0};
    char buffer[4096];
    ssize_t got = -1;
    if (left.count() > 0 && ::poll(&ready, 1, static_cast<int>(left.count())) > 0) got = ::read(out[0], buffer, sizeof buffer);
    if (got > 0) {
      text.append(buffer, static_cast<size_t>(got));
      continue;
    }
    if (got < 0) ::kill(pid, SIGKILL);  // too slow, or Ctrl+C
    break;
  }
  ::close(out[0]);
  int status = -1;
  while (started && ::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!started || !WIFEXITED(status) || std::find(good.begin(), good.end(), WEXITSTATUS(status)) == good.end()) return std::nullopt;
  return text;
}

std::string LocalTrainerSchema() { return AskLocalTrainer({"--schema"}, "").value_or(""); }

}  // namespace muster
