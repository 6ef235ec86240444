#include "agent/host/unit.h"

#include <stddef.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/shim/durable.h"
#include "common/base/clock.h"
#include "common/base/run_program.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

constexpr int64_t kAnswerLimit = 5 * kSecond;
constexpr int64_t kStartLimit = 30 * kSecond;
constexpr int64_t kAskAgain = 200 * kMillisecond;
constexpr char kPackagedUnit[] = "muster-agent.service";

struct Unit {
  std::string name;      // empty: none
  bool of_user = false;  // a user's own systemd has it
};

// "0::/user.slice/user-7.slice/user@7.service/app.slice/x.service": x.service, of a user.
Unit FindUnit(const std::string& cgroups) {
  for (const absl::string_view line : absl::StrSplit(cgroups, '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || (parts[0] != "0" && parts[1] != "name=systemd")) continue;
    Unit unit;
    for (const absl::string_view group : absl::StrSplit(parts[2], '/')) {
      if (!absl::EndsWith(group, ".service")) continue;
      unit.of_user = absl::StartsWith(unit.name, "user@");
      unit.name = std::string(group);
    }
    if (!unit.name.empty()) return unit;
  }
  return Unit();
}

// By systemd's word. What somebody starts by hand, in a login or a container, has a unit above it,
// too, and isn't it.
bool IsMainProcess() {
  const char* main_process = ::getenv("SYSTEMD_EXEC_PID");
  return main_process != nullptr && main_process == std::to_string(::getpid());
}

// Its answer, without blanks around it.
absl::StatusOr<std::string> AskSystemctl(const UnitPlaces& places,
                                         const std::vector<std::string>& words, int64_t limit_ns) {
  ProgramOptions options;
  options.argv = {places.systemctl};
  options.argv.insert(options.argv.end(), words.begin(), words.end());
  options.time_limit_ns = limit_ns;
  const absl::StatusOr<ProgramEnd> end = RunProgram(options);
  if (!end.ok()) return end.status();
  if (!end->why.empty())
    return absl::FailedPreconditionError(
        absl::StrCat("systemctl ", absl::StrJoin(words, " "), ": ", end->why));
  return std::string(absl::StripAsciiWhitespace(end->output));
}

}  // namespace

std::string WhyUnitEndsShims(const UnitPlaces& places) {
  std::string cgroups;
  if (!IsMainProcess() || shim::ReadSmallFile(places.cgroups, &cgroups) != 0) return "";
  const Unit unit = FindUnit(cgroups);
  if (unit.name.empty()) return "";
  const char* whose = unit.of_user ? "--user" : "--system";
  const absl::StatusOr<std::string> mode = AskSystemctl(
      places, {whose, "show", "--property=KillMode", "--value", "--", unit.name}, kAnswerLimit);
  if (!mode.ok() || (*mode != "control-group" && *mode != "mixed")) return "";
  return absl::StrCat(
      unit.name, " has KillMode=", *mode,
      ": when it stops or starts again systemd kills every job of this host. `systemctl ", whose,
      " edit ", unit.name,
      "`, and below [Service] KillMode=process and Delegate=yes (see "
      "deploy/systemd/muster-agent.service)");
}

bool IsOfPackagedUnit(const std::string& state_directory, const UnitPlaces& places) {
  return absl::StripSuffix(state_directory, "/") == places.state_directory &&
         ::access(places.booted.c_str(), F_OK) == 0 && ::access(places.unit.c_str(), F_OK) == 0 &&
         !IsMainProcess();
}

absl::StatusOr<std::string> StartPackagedUnit(int64_t limit_ns, const UnitPlaces& places) {
  const int64_t until_ns = RealClock()->BootNs() + limit_ns;
  const absl::StatusOr<std::string> started =
      AskSystemctl(places, {"--system", "enable", "--now", "--", kPackagedUnit}, kStartLimit);
  if (!started.ok()) return started.status();
  std::string last = "it has told nothing yet";
  while (true) {
    const absl::StatusOr<std::string> told = AskSystemctl(
        places, {"--system", "show", "--property=StatusText", "--value", "--", kPackagedUnit},
        kAnswerLimit);
    if (told.ok() && absl::StartsWith(*told, kUpStatus)) return *told;
    // A busy systemd may give no answer for a while; an agent that starts again has told nothing.
    if (!told.ok()) last = std::string(told.status().message());
    if (told.ok() && !told->empty()) last = *told;
    if (RealClock()->BootNs() >= until_ns) return absl::DeadlineExceededError(last);
    std::this_thread::sleep_for(std::chrono::nanoseconds(kAskAgain));
  }
}

// As sd_notify does.
void SayInUnit(const std::string& status) {
  const char* where = ::getenv("NOTIFY_SOCKET");
  const std::string path = where == nullptr ? "" : where;
  sockaddr_un address{};
  if (path.empty() || path.size() > sizeof address.sun_path || !IsMainProcess()) return;
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';  // an abstract socket's name
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  const std::string text = absl::StrCat("STATUS=", absl::StrReplaceAll(status, {{"\n", " "}}));
  ::sendto(fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
           reinterpret_cast<const sockaddr*>(&address),
           static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size()));
  ::close(fd);
}

}  // namespace muster::agent
