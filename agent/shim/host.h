// The shim's ports with the kernel behind them. Not thread-safe.
#pragma once

#include <poll.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/shim/cgroup.h"
#include "agent/shim/isolate.h"
#include "agent/shim/outputs.h"
#include "agent/shim/ports.h"

namespace muster::shim {

class HostClock final : public Clock {
 public:
  int64_t WallNs() override;
  int64_t BootNs() override;
};

class HostFiles final : public Files {
 public:
  explicit HostFiles(std::string directory) : directory_(std::move(directory)) {}
  ~HostFiles() override;

  int ReadClaim(Claim* claim) override;
  int MakeClaim(Claim* winner) override;
  int Read(const char* name, std::string* content) override;
  int Replace(const char* name, std::string_view content, bool sync) override;
  void Reserve(const char* name) override;
  int WriteEvents(int64_t at, std::string_view text) override;
  int SyncEvents() override;
  bool Forgotten() override;

 private:
  const std::string directory_;
  int events_ = -1;
  bool events_named_ = false;  // the file's name survives power loss
};

// A timer of CLOCK_BOOTTIME, as a descriptor that becomes ready.
class BootTimer {
 public:
  BootTimer() = default;
  ~BootTimer();
  BootTimer(const BootTimer&) = delete;
  BootTimer& operator=(const BootTimer&) = delete;

  bool Make();  // false: errno says why
  int fd() const { return fd_; }
  // kNever: not at all. False: it can't be set. `over`: the time that was set before had come.
  bool Set(int64_t at_ns, bool* over = nullptr);

 private:
  int fd_ = -1;
  bool set_ = false;
};

// A command beside the attempt's workers, of a tunnel (tunnels.h): as a process of that rank, but
// with these descriptors, which stay the caller's, and in a session of its own.
struct Beside {
  int32_t rank = 0;
  std::vector<std::string> argv;
  int in = -1, out = -1, err = -1;
  bool terminal = false;  // they are one, and become its session's
  std::string term;       // TERM, with a terminal
  // Gets its number in its namespace before its exec; in memory that it shares.
  volatile pid_t* number = nullptr;
};

class HostProcesses final : public Processes {
 public:
  HostProcesses(const Spec& spec, const std::string& directory);

  // Before the first process. The keeper is there from then on. What it can't do; empty: nothing.
  std::string Open();
  // What the loop is to be told next.
  struct Ended {
    pid_t pid = 0;
    int exit_code = 0;
    int signal = 0;
  };
  std::vector<Ended> Reap();
  // Of the process that was started last, if its exec has been reached, or can't be.
  std::optional<std::pair<pid_t, std::string>> Launched();
  // Everything that is to be waited for: AddTo before poll, Read after it.
  void AddTo(std::vector<pollfd>* polled) const;
  void Read(const std::vector<pollfd>& polled) { outputs_.Read(polled); }

  pid_t Start(const Launch& launch, std::string* problem) override;
  bool SignalGroup(pid_t pid, int signal) override;
  bool GroupLives(pid_t pid) override;
  void Kill(pid_t pid) override;
  std::string SetupExports(size_t worker) override { return outputs_.Exports(worker); }
  void Log(int32_t rank, const std::string& text) override;
  void Report(const std::string& line) override;
  int64_t OomKills() override;
  std::optional<Measured> MeasureUse() override;
  bool HasNamespace() override { return isolation_->has_namespace(); }
  void EndAll() override;
  bool SetDeadline(int64_t boot_ns) override;

  // -1: it can't be, and `*problem` says why. `*status`: for ReadLaunch; the caller closes it.
  pid_t StartBeside(const Beside& beside, int* status, std::string* problem);
  // A child of the shim's in the attempt's namespaces, and still root's where the shim is, that
  // does this and ends. -1: errno says why.
  pid_t ForkWithin(const std::function<void()>& work) const;
  // To all processes of the session that began with this number, as the namespace numbers them.
  // How many there were.
  int SignalSession(pid_t number, int signal) const;
  const std::optional<User>& user() const { return spec_.user; }

 private:
  struct Pipes;
  struct Ends;
  int BecomeOwner(std::string* step) const;
  bool SignalInNamespace(pid_t group, int signal) const;
  void RememberNumber();
  pid_t ForkProgram(const std::vector<std::string>& argv,
                    const std::vector<EnvironmentVariable>& environment, const Ends& ends);
  int TakeDescriptors(const Ends& ends) const;
  [[noreturn]] void BecomeProgram(const Ends& ends, const Cgroups& left,
                                  const std::vector<char*>& words,
                                  const std::vector<char*>& entries) const;
  [[noreturn]] void BecomeEntrant(int status, const std::vector<char*>& words,
                                  const std::vector<char*>& entries) const;

  const Spec& spec_;
  int own_program_ = -1;               // this one, to enter an image by
  const std::string state_directory_;  // of the agent: no program of another user's sees into it
  const pid_t self_;
  const Cgroups cgroups_;
  Outputs outputs_;
  BootTimer deadline_;  // the keeper's, who does without disks
  std::unique_ptr<Isolation> isolation_;
  std::optional<Measured> used_;  // in all, once EndAll has ended them
  std::map<int32_t, std::vector<EnvironmentVariable>> environments_;  // by rank, of those started
  pid_t launched_ = -1;  // the process that launch_status_ is of
  int launch_status_ = -1;
  std::string launch_said_;
  // Of another user's processes: by their numbers here, those in their namespace. The newest says
  // its own in memory that it shares with us until its exec.
  std::map<pid_t, pid_t> numbers_;
  volatile pid_t* number_ = nullptr;
};

}  // namespace muster::shim
