// An attempt's own control groups, where the agent could make them: they name its processes for
// certain, whatever those forked, and say when the kernel killed one for memory (contract 14 of
// docs/contracts.md). Part of the shim: no dependencies beyond the standard library.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster::shim {

// Directories; empty: there is none.
struct Cgroups {
  std::string unified;  // version 2: membership, cgroup.kill, populated, memory where it has that
                        // controller
  std::string memory;   // version 1, of the memory controller
  std::string pids;     // version 1, of the pids controller

  bool any() const { return !unified.empty() || !memory.empty() || !pids.empty(); }
};

// Sanitizers follow fork and nothing else.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kPlainForks = true;
#elif defined(__has_feature)
inline constexpr bool kPlainForks =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kPlainForks = false;
#endif

// Writes to a file that exists already, such as cgroup.procs; 0, or an errno.
int WriteControl(const std::string& file, std::string_view text);
// As fork, but where the kernel can (5.7) the child begins in the group of version 2: to move it
// there afterwards would stop every fork of the machine for a moment. It still has to call
// EnterCgroups with what `left` says.
pid_t ForkInto(const Cgroups& cgroups, Cgroups* left);
// Moves the calling process there; 0, or an errno.
int EnterCgroups(const Cgroups& cgroups);
// How many processes the kernel has killed there because a limit of its memory was reached.
int64_t OomKills(const Cgroups& cgroups);
// A process is there, in it or in a group below it, zombies apart; or that can't be told.
bool CgroupPopulated(const Cgroups& cgroups);
// The processes in a group and those below it, as this process numbers them.
std::vector<pid_t> CgroupMembers(const std::string& directory);
// Kills every process there once; they may take a moment to go.
void KillCgroup(const Cgroups& cgroups);
// Removes the groups if they are empty. True: they are gone.
bool RemoveCgroups(const Cgroups& cgroups);

}  // namespace muster::shim
