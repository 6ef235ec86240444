// The control groups of this host that belong to Muster: one an attempt, below the agent's own or a
// directory that the operator names.
//
// Version 2 says which processes there are and kills them; memory is limited, where the task states
// its memory, by version 2 or, where the machine has that controller in version 1 only, by that
// one. Where the agent may not make groups there are none, and PID namespaces or PDEATHSIG do
// without (agent/shim/isolate.h). Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/shim/cgroup.h"

namespace muster::agent {

class HostCgroups {
 public:
  // No groups.
  HostCgroups() = default;
  // `directory`: of version 2, below which groups are made; empty: the agent's own group; "none":
  // no groups. `owner` (the state directory's path) tells this agent's groups from others' on the
  // same machine. Where groups were made before, as the agent may be started below another one each
  // time, stands in the state directory.
  HostCgroups(const std::string& directory, const std::string& owner);

  // Makes them. 0: no limit. What can't be made is left out, and said in the log. `*counted`: the
  // limit of processes holds.
  shim::Cgroups Make(const std::string& attempt, int64_t memory_bytes, int64_t most_processes = 0,
                     bool* counted = nullptr) const;
  // Kills what is in the attempt's groups, wherever they were made; true: something was, so look
  // again.
  bool Kill(const std::string& attempt) const;
  // Removes them, if they are empty.
  void Remove(const std::string& attempt) const;
  // Kills and removes this agent's groups but those of `attempts`, at most for 10 s. How many had
  // processes.
  int EndAllBut(const std::vector<std::string>& attempts) const;

  // "control groups (version 2), memory by version 1"; or why there are none.
  const std::string& described() const { return described_; }

 private:
  shim::Cgroups Below(const shim::Cgroups& base, const std::string& attempt) const;
  void Find(const std::string& directory);
  void RememberBases(const std::string& owner);

  std::string unified_, memory_, pids_;  // directories below which groups are made; empty: none
  std::vector<shim::Cgroups> bases_;     // where they were made, now and before
  // Version 2 has the controller there.
  bool unified_memory_ = false, unified_pids_ = false;
  std::string prefix_;  // of their names
  std::string described_ = "no control groups";
};

}  // namespace muster::agent
