#include "agent/shim/usage.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "agent/shim/durable.h"

namespace muster::shim {
namespace {

constexpr int64_t kMicrosecondNs = 1000;
constexpr int64_t kOneSecond = 1'000'000'000;
constexpr int64_t kCpuWindowNs = 10 * kOneSecond;
// A stretch that is shorter says nothing of the cores that were wanted.
constexpr int64_t kShortestWindowNs = kOneSecond;

// The number behind `name` in a file of lines "name 12", or its only number without a name. -1: it
// isn't there.
int64_t NumberIn(const std::string& path, std::string_view name) {
  std::string text;
  if (ReadSmallFile(path, &text) != 0) return -1;
  size_t at = 0;
  if (!name.empty()) {
    const std::string wanted = std::string(name) + " ";
    while (text.compare(at, wanted.size(), wanted) != 0) {
      at = text.find('\n', at);
      if (at == std::string::npos) return -1;
      ++at;
    }
    at += wanted.size();
  }
  char* end = nullptr;
  const int64_t number = ::strtoll(text.c_str() + at, &end, 10);
  return end == text.c_str() + at || number < 0 ? -1 : number;
}

// What is used of a group's memory without files that are cached, which the kernel gives to others.
int64_t MemoryNow(const Cgroups& cgroups) {
  if (!cgroups.memory.empty()) {
    const std::string stat = cgroups.memory + "/memory.stat";
    const int64_t rss = NumberIn(stat, "total_rss"), shared = NumberIn(stat, "total_shmem");
    return rss < 0 ? -1 : rss + std::max<int64_t>(shared, 0);
  }
  const std::string stat = cgroups.unified + "/memory.stat";
  const int64_t all = NumberIn(cgroups.unified + "/memory.current", "");
  const int64_t files = NumberIn(stat, "file"), shared = NumberIn(stat, "shmem");
  if (all < 0 || files < 0 || shared < 0) return -1;
  const int64_t reclaimable = std::max<int64_t>(NumberIn(stat, "slab_reclaimable"), 0);
  return std::max<int64_t>(all - (files - shared) - reclaimable, 0);
}

int64_t MemoryBound(const Cgroups& cgroups) {
  return !cgroups.memory.empty()   ? NumberIn(cgroups.memory + "/memory.max_usage_in_bytes", "")
         : cgroups.unified.empty() ? -1
                                   : NumberIn(cgroups.unified + "/memory.peak", "");
}

int64_t MicrosecondsOf(const timeval& time) {
  return int64_t{time.tv_sec} * 1'000'000 + int64_t{time.tv_usec};
}

// ---- without groups: by /proc ----

struct Process {
  pid_t parent = 0;
  int64_t ticks = 0;  // of CPU time, with that of its children which have ended
};

// "pid (any name) state ppid ...", from the state on numbered 3.
bool ParseStat(const std::string& stat, Process* process) {
  const size_t name_end = stat.rfind(") ");
  if (name_end == std::string::npos || name_end + 4 > stat.size()) return false;
  const char* at = stat.c_str() + name_end + 3;  // behind the state
  for (int field = 4; field <= 17; ++field) {
    char* end = nullptr;
    const int64_t number = ::strtoll(at, &end, 10);
    if (end == at) return false;
    at = end;
    if (field == 4) process->parent = static_cast<pid_t>(number);
    if (field >= 14) process->ticks += std::max<int64_t>(number, 0);
  }
  return true;
}

// "RssAnon:    123 kB" and "RssShmem: ..." of a process, in bytes.
int64_t MemoryOf(const std::string& directory) {
  std::string text;
  if (ReadSmallFile(directory + "/status", &text) != 0) return 0;
  int64_t bytes = 0;
  for (const char* name : {"\nRssAnon:", "\nRssShmem:"}) {
    const size_t at = text.find(name);
    if (at != std::string::npos)
      bytes +=
          std::max<int64_t>(::strtoll(text.c_str() + at + strlen(name), nullptr, 10), 0) * 1024;
  }
  return bytes;
}

std::map<pid_t, Process> AllProcesses() {
  std::map<pid_t, Process> all;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return all;
  while (const dirent* entry = ::readdir(proc)) {
    char* end = nullptr;
    const long pid = ::strtol(entry->d_name, &end, 10);
    std::string stat;
    Process process;
    if (end != entry->d_name && *end == '\0' && pid > 0 &&
        ReadSmallFile(std::string("/proc/") + entry->d_name + "/stat", &stat) == 0 &&
        ParseStat(stat, &process))
      all[static_cast<pid_t>(pid)] = process;
  }
  ::closedir(proc);
  return all;
}

bool RunsBelow(const std::map<pid_t, Process>& all, pid_t pid, pid_t shim) {
  for (size_t steps = 0; steps < all.size(); ++steps) {
    const auto found = all.find(pid);
    if (found == all.end() || found->second.parent <= 0) return false;
    if (found->second.parent == shim) return true;
    pid = found->second.parent;
  }
  return false;
}

// A /proc of the attempt's own namespace shows its processes alone, and its keeper as the first. It
// doesn't show who asks.
void MeasureByProc(const Measurable& what, Measured* measured) {
  char self[32];
  const bool own = ::readlink("/proc/self", self, sizeof self) < 0;
  if (!own && !what.cgroups.unified.empty()) {  // which counts the CPU time itself
    measured->memory_bytes = 0;
    for (const pid_t pid : CgroupMembers(what.cgroups.unified))
      measured->memory_bytes += MemoryOf("/proc/" + std::to_string(pid));
    return;
  }
  const std::map<pid_t, Process> all = AllProcesses();
  const int64_t tick_us = 1'000'000 / std::max<int64_t>(::sysconf(_SC_CLK_TCK), 1);
  int64_t memory_bytes = 0;
  for (const auto& [pid, process] : all) {
    const bool its = own ? pid != 1 : pid != what.keeper && RunsBelow(all, pid, what.shim);
    if (!its) continue;
    measured->cpu_us += process.ticks * tick_us;
    memory_bytes += MemoryOf("/proc/" + std::to_string(pid));
  }
  measured->memory_bytes = memory_bytes;
}

}  // namespace

Measured Measure(const Measurable& what, bool live) {
  Measured measured;
  const Cgroups& cgroups = what.cgroups;
  const bool grouped = !cgroups.memory.empty() || !cgroups.unified.empty();
  rusage ended{};
  if (::getrusage(RUSAGE_CHILDREN, &ended) == 0)
    measured.process_peak_bytes = int64_t{ended.ru_maxrss} * 1024;
  measured.memory_bound_bytes = MemoryBound(cgroups);
  // Each group of version 2 counts its CPU time, whatever controllers there are.
  if (!cgroups.unified.empty())
    measured.cpu_us = NumberIn(cgroups.unified + "/cpu.stat", "usage_usec");
  if (live && grouped) measured.memory_bytes = MemoryNow(cgroups);
  if (measured.cpu_us >= 0 && (measured.memory_bytes >= 0 || !live)) return measured;
  Measured by_proc;
  by_proc.cpu_us = MicrosecondsOf(ended.ru_utime) + MicrosecondsOf(ended.ru_stime);
  if (live) MeasureByProc(what, &by_proc);
  if (measured.cpu_us < 0) measured.cpu_us = by_proc.cpu_us;
  if (measured.memory_bytes < 0) measured.memory_bytes = by_proc.memory_bytes;
  return measured;
}

void UsageMeter::Add(const Measured& measured, int64_t ran_ns, bool last) {
  used_.ran_ns = std::max(used_.ran_ns, ran_ns);
  // Between two looks it may have used more; a process that has ended tells its own peak.
  int64_t& peak_bytes = used_.memory_peak_bytes;
  peak_bytes = std::max({peak_bytes, measured.memory_bytes, measured.process_peak_bytes});
  if (measured.memory_bound_bytes >= 0 && peak_bytes > measured.memory_bound_bytes)
    peak_bytes = measured.memory_bound_bytes;
  if (measured.cpu_us < 0) return;
  used_.cpu_us = std::max(used_.cpu_us, measured.cpu_us);
  const int64_t stretch_ns = used_.ran_ns - window_ns_;
  if (stretch_ns < (last ? kShortestWindowNs : kCpuWindowNs)) return;
  const int64_t cores_milli =
      (used_.cpu_us - window_cpu_us_) * 1000 / (stretch_ns / kMicrosecondNs);
  // The last stretch is shorter: it may say more than the others, but not by a moment's chance.
  if (!last || stretch_ns >= kCpuWindowNs / 2 || used_.cpus_most_milli < 0)
    used_.cpus_most_milli = std::max(used_.cpus_most_milli, cores_milli);
  window_ns_ = used_.ran_ns;
  window_cpu_us_ = used_.cpu_us;
}

int64_t NextMeasureNs(int64_t ran_ns, int64_t took_ns) {
  const int64_t often_ns = ran_ns < 10 * kOneSecond ? kOneSecond : 5 * kOneSecond;
  return std::max(often_ns, 100 * took_ns);
}

}  // namespace muster::shim
