// The systemd unit that the agent may be the main process of, which decides whether its shims
// outlive it.
#pragma once

#include <string>

namespace muster::agent {

// What asking needs of the machine.
struct UnitPlaces {
  std::string cgroups = "/proc/self/cgroup";
  std::string systemctl = "/usr/bin/systemctl";
};

// Why the end of this process will be its shims' too, with the remedy; empty: it won't, or nobody
// says. systemd kills what is in a unit's control group when the unit stops, unless its KillMode is
// `process` or `none`. May block for seconds. Thread-safe.
std::string WhyUnitEndsShims(const UnitPlaces& places = UnitPlaces());

}  // namespace muster::agent
