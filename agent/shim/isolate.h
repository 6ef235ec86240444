// Keeps an attempt's processes together, so that none outlives the shim and none is left when it
// ends (contract 14 of docs/contracts.md).
//
// With the right to: a PID namespace of its own. Its first process does nothing but die with the
// shim, and the kernel then kills the rest. Without: PDEATHSIG for the workers, a subreaper for
// their orphans, and a guardian process that, when the shim dies, kills whatever is in the
// attempt's control groups, or carries its token in its environment. Either kills the attempt's
// processes, too, when the shim's deadline has passed: it does nothing with disks, which the shim
// may wait for.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agent/shim/cgroup.h"
#include "agent/shim/times.h"

namespace muster::shim {

inline constexpr char kTokenVariable[] = "MUSTER_SHIM_TOKEN";
inline constexpr int64_t kPatienceWithStuck = 200 * kMillisecond;

// Between looks for what was killed and may take its time to die, or can't be killed by us: each
// pause is twice the one before.
class Backoff {
 public:
  static constexpr int64_t kShortest = 2 * kMillisecond, kLongest = 250 * kMillisecond;

  void Pause();
  void Reset() { next_ns_ = kShortest; }
  int64_t next_ns() const { return next_ns_; }

 private:
  int64_t next_ns_ = kShortest;
};

// Sends SIGKILL to every process whose environment carries the token; how many it found. Our own
// process is spared. To read an environment may take as long as a dead file server, where its
// process waits for that in the kernel: such processes are passed over after a moment, the same for
// all of them, and counted in `unknown`. `proc_directory` and `patience_ns`: others for tests.
int KillByToken(std::string_view token, int* unknown = nullptr,
                const std::string& proc_directory = "/proc",
                int64_t patience_ns = kPatienceWithStuck);

// An environment, by its process' directory below /proc, with the same patience (ETIMEDOUT). 0, or
// an errno.
int ReadEnvironment(const std::string& process, std::string* content);

class Isolation {
 public:
  // Call once, before the first process. Never fails: falls back to the guardian. `deadline`: a
  // timer's descriptor, -1: none; when it has run out the attempt's processes are killed, whatever
  // the shim does.
  //
  // With `owned`, of a user's: without the namespaces, a /proc of its own and the mounts that keep
  // users apart (private_mounts.h; `devices` are granted) problem() says what is missing, and
  // nothing of the user's may be started.
  Isolation(std::string token, bool want_namespace, Cgroups cgroups = {}, int deadline = -1,
            bool owned = false, const std::vector<std::string>& devices = {});

  const std::string& problem() const { return problem_; }

  bool has_namespace() const { return has_namespace_; }
  pid_t keeper() const { return keeper_; }  // the namespace's first process, or the guardian

  // The keeper was reaped: by its deadline.
  void KeeperEnded() { keeper_ = -1; }

  // In a new child, before exec: dies with the shim from now on. False: the shim is dead already,
  // exit.
  bool EnterChild(pid_t shim) const;

  // Kills what is left and waits until nothing is. Call when every process that matters has been
  // reaped; reaps the rest.
  void KillAll();

 private:
  void MakeNamespaces(const std::vector<std::string>& devices);
  void StartKeeper();
  struct Pipes {
    int end[2];    // shim -> keeper, never written: its closing is the message
    int ready[2];  // keeper -> shim
  };
  int Keep(Pipes pipes) const;

  void KillStrays() const;

  const std::string token_;
  const Cgroups cgroups_;
  const int deadline_;
  const bool owned_;
  std::string problem_;
  bool has_namespace_ = false;
  pid_t keeper_ = -1;
  int keeper_pipe_ = -1;  // its other end is in the keeper: closed when the shim dies
};

}  // namespace muster::shim
