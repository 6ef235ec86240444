#include "agent/host/unit.h"

#include <stdlib.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/shim/durable.h"
#include "common/base/run_program.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

constexpr int64_t kAnswerLimit = 5 * kSecond;

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

}  // namespace

std::string WhyUnitEndsShims(const UnitPlaces& places) {
  // Only of its main process: what somebody starts by hand, in a login or a container, has a unit
  // above it, too.
  const char* main_process = ::getenv("SYSTEMD_EXEC_PID");
  std::string cgroups;
  if (main_process == nullptr || main_process != std::to_string(::getpid()) ||
      shim::ReadSmallFile(places.cgroups, &cgroups) != 0)
    return "";
  const Unit unit = FindUnit(cgroups);
  if (unit.name.empty()) return "";
  const char* whose = unit.of_user ? "--user" : "--system";
  ProgramOptions options;
  options.argv = {places.systemctl, whose, "show",   "--property=KillMode",
                  "--value",        "--",  unit.name};
  options.time_limit_ns = kAnswerLimit;
  const absl::StatusOr<ProgramEnd> end = RunProgram(options);
  if (!end.ok() || !end->why.empty()) return "";
  const absl::string_view mode = absl::StripAsciiWhitespace(end->output);
  if (mode != "control-group" && mode != "mixed") return "";
  return absl::StrCat(
      unit.name, " has KillMode=", mode,
      ": when it stops or starts again systemd kills every job of this host. `systemctl ", whose,
      " edit ", unit.name,
      "`, and below [Service] KillMode=process and Delegate=yes (see "
      "deploy/systemd/muster-agent.service)");
}

}  // namespace muster::agent
