#include "cli/commands/fit.h"

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
#include <map>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/files.h"

extern char** environ;

namespace muster {
namespace {

constexpr auto kTimeLimit = std::chrono::seconds(10);
constexpr size_t kMostFlavours = 4;
constexpr int kConfigFd = 3;
constexpr double kGiB = 1 << 30;

// What `muster-trainer estimate` answers; not an object if it doesn't.
nlohmann::json Ask(const std::string& trainer, const std::string& config, int64_t ranks, const std::string& flavour, int64_t memory_bytes) {
  const int file = ::memfd_create("trainer.json", MFD_CLOEXEC);
  int out[2];
  if (file < 0 || ::pipe2(out, O_CLOEXEC) != 0) {
    if (file >= 0) ::close(file);
    return {};
  }
  const bool written = ::write(file, config.data(), config.size()) == static_cast<ssize_t>(config.size()) && ::lseek(file, 0, SEEK_SET) == 0;
  const std::string path = absl::StrCat("/dev/fd/", kConfigFd), count = absl::StrCat(ranks), memory = absl::StrCat(memory_bytes);
  const std::vector<const char*> argv = {trainer.c_str(), "estimate", "--config", path.c_str(), "--ranks", count.c_str(), "--device", flavour.c_str(),
                                         "--device-memory", memory.c_str(), "--json", "true", nullptr};
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
  return started && status == 0 ? nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false) : nlohmann::json();
}

std::string Line(const std::string& flavour, int64_t memory_bytes, const nlohmann::json& told) {
  const auto number = [&](const char* key) { return told.contains(key) && told[key].is_number() ? told[key].get<double>() : 0.0; };
  const double needed = number("memory_bytes"), has = static_cast<double>(memory_bytes);
  if (needed <= 0) return "";
  if (needed <= has) return absl::StrFormat("%s: a rank needs about %.1f of a GPU's %.0f GiB.\n", flavour, needed / kGiB, has / kGiB);
  std::string line = absl::StrFormat("%s: does not fit: a rank needs about %.1f GiB, a GPU has %.0f.", flavour, needed / kGiB, has / kGiB);
  const bool remedy = told.contains("fits_with") && told["fits_with"].is_string();
  if (remedy) absl::StrAppendFormat(&line, " With %s it needs about %.1f.", told["fits_with"].get<std::string>(), number("fits_with_bytes") / kGiB);
  else line += " Take more workers, or GPUs with more memory.";
  return line + "\n";
}

}  // namespace

int64_t FlavourMemoryBytes(const std::string& flavour) {
  const size_t dash = flavour.rfind('-');
  int64_t gib = 0;
  if (dash == std::string::npos || !flavour.ends_with('g') || !absl::SimpleAtoi(flavour.substr(dash + 1, flavour.size() - dash - 2), &gib)) return 0;
  return gib > 0 && gib <= 1 << 20 ? gib << 30 : 0;
}

std::string FitText(const pb::PreviewResponse& preview) {
  const auto task = std::find_if(preview.resolved().tasks().begin(), preview.resolved().tasks().end(), [&](const pb::TaskSpec& t) { return t.name() == preview.task(); });
  if (task == preview.resolved().tasks().end() || task->trainer_json().empty() || task->resources().gpus_milli() < 1000) return "";
  const std::string trainer = ExecutableDirectory() + "/muster-trainer";
  if (::access(trainer.c_str(), X_OK) != 0) return "";
  std::map<std::string, int64_t> workers;  // of each flavour, the fewest that it would start with: they hold the most
  for (const pb::PreviewResponse::Candidate& candidate : preview.candidates()) {
    if (candidate.start_ns() < 0 || candidate.declared() || FlavourMemoryBytes(candidate.flavour()) == 0) continue;
    const auto [at, added] = workers.try_emplace(candidate.flavour(), candidate.workers());
    if (!added) at->second = std::min<int64_t>(at->second, candidate.workers());
  }
  std::string text;
  size_t asked = 0;
  for (const auto& [flavour, count] : workers) {
    if (++asked > kMostFlavours) break;
    const int64_t ranks = std::max<int64_t>(1, count) * std::max(1, task->processes_per_worker());
    const int64_t memory_bytes = FlavourMemoryBytes(flavour);
    const nlohmann::json told = Ask(trainer, task->trainer_json(), ranks, flavour, memory_bytes);
    if (told.is_object()) text += Line(flavour, memory_bytes, told);
  }
  return text;
}

}  // namespace muster
