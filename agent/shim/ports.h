// What the shim's loop (loop.h) acts through. muster-shim has the kernel behind it (host.h), the
// simulator of faults a model of one. Errors are errnos, 0 is none. Nothing here calls back into
// the loop.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/shim/durable.h"
#include "agent/shim/format.h"
#include "agent/shim/usage.h"

namespace muster::shim {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t WallNs() = 0;  // Unix time
  virtual int64_t BootNs() = 0;  // CLOCK_BOOTTIME, which goes on while the machine sleeps
};

// The attempt's directory.
class Files {
 public:
  virtual ~Files() = default;
  virtual int ReadClaim(Claim* claim) = 0;
  virtual int MakeClaim(Claim* winner) = 0;  // "started"; see shim::MakeClaim
  virtual int Read(const char* name, std::string* content) = 0;
  virtual int Replace(const char* name, std::string_view content, bool sync) = 0;
  // Room for a later Replace of that name, for when the disk is full by then.
  virtual void Reserve(const char* name) = 0;
  // DIR/events, from its byte `at` on, where it ends then. After an error nothing of `text` is
  // there.
  virtual int WriteEvents(int64_t at, std::string_view text) = 0;
  // With its name. After an error nothing of what was written since the sync before may be relied
  // on, and no later sync makes it durable: the kernel drops it as if it were written.
  virtual int SyncEvents() = 0;
  virtual bool Forgotten() = 0;  // the agent has removed the directory
};

// A program to be started: a worker's setup, or one of its processes.
struct Launch {
  size_t worker = 0;
  int32_t rank = 0;  // whose log takes its output
  bool setup = false;
  std::vector<std::string> argv;
  std::vector<EnvironmentVariable> env;
};

class Processes {
 public:
  virtual ~Processes() = default;
  // Makes the process, the first of its group; -1: it can't, and `*problem` says why. What comes of
  // its exec is told by Loop::OnExec.
  virtual pid_t Start(const Launch& launch, std::string* problem) = 0;
  // To the group whose first process is or was `pid`. False: it has no member.
  virtual bool SignalGroup(pid_t pid, int signal) = 0;
  virtual bool GroupLives(pid_t pid) = 0;
  virtual void Kill(pid_t pid) = 0;  // SIGKILL, to the process alone
  // What a worker's setup, which has ended, has exported: NAME=VALUE, each with a NUL behind it.
  virtual std::string SetupExports(size_t worker) = 0;
  // A word of Muster's own in a rank's log.
  virtual void Log(int32_t rank, const std::string& text) = 0;
  virtual void Report(const std::string& line) = 0;  // keeps one of rank 0's, beside its log
  // How many processes of the attempt the kernel has killed for memory.
  virtual int64_t OomKills() = 0;
  // What the processes use; after EndAll, what they used. nullopt: it can't be told until EndAll,
  // or never.
  virtual std::optional<Measured> MeasureUse() = 0;
  virtual bool HasNamespace() = 0;  // of PIDs
  // Kills what is left and waits until nothing is.
  virtual void EndAll() = 0;
  // When the attempt's keeper kills what is left, whatever the loop does (decision 049). True: the
  // time that was set before had come.
  virtual bool SetDeadline(int64_t boot_ns) = 0;
};

// What the shim has to say of itself, for shim.log.
class Voice {
 public:
  virtual ~Voice() = default;
  virtual void Say(const std::string& text) = 0;
};

struct Ports {
  Clock* clock = nullptr;
  Files* files = nullptr;
  Processes* processes = nullptr;
  Voice* voice = nullptr;
};

}  // namespace muster::shim
