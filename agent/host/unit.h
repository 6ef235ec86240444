// The systemd unit that the agent may be the main process of, which decides whether its shims
// outlive it; and the unit of the agent's package, which `muster-agent join` starts.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace muster::agent {

// What asking needs of the machine, and where the agent's package has its unit.
struct UnitPlaces {
  std::string cgroups = "/proc/self/cgroup";
  std::string systemctl = "/usr/bin/systemctl";
  std::string booted = "/run/systemd/system";  // it is there where systemd runs the machine
  std::string unit = "/lib/systemd/system/muster-agent.service";
  std::string state_directory = "/var/lib/muster-agent";  // the unit's
};

// Why the end of this process will be its shims' too, with the remedy; empty: it won't, or nobody
// says. systemd kills what is in a unit's control group when the unit stops, unless its KillMode is
// `process` or `none`. May block for seconds. Thread-safe.
std::string WhyUnitEndsShims(const UnitPlaces& places = UnitPlaces());

// An agent of this state directory is the package's unit's to run: the unit is here, systemd is,
// and this process is no unit's main process itself.
bool IsOfPackagedUnit(const std::string& state_directory, const UnitPlaces& places = UnitPlaces());

// Enables and starts the package's unit, and waits until its agent tells that it is up: what it
// told (SayInUnit). DEADLINE_EXCEEDED: it didn't in time, with what it told last, or why systemctl
// gave no answer. Wants root.
absl::StatusOr<std::string> StartPackagedUnit(int64_t limit_ns,
                                              const UnitPlaces& places = UnitPlaces());

// What the status of an agent whose host is up begins with.
inline constexpr char kUpStatus[] = "up as ";

// What `systemctl status` shows of the agent from now on, if this is a unit's main process. Never
// blocks. Thread-safe.
void SayInUnit(const std::string& status);

}  // namespace muster::agent
