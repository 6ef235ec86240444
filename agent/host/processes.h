// The real Processes port: directories, ports, shims. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/host/cgroups.h"
#include "agent/host/environment.h"
#include "agent/host/mounts.h"
#include "agent/host/owners.h"
#include "agent/host/state_dir.h"
#include "agent/host/storage_threads.h"
#include "agent/reconcile/ports.h"
#include "common/base/units.h"

namespace muster::agent {

struct PortRange {
  int first = 20000;
  int last = 29999;
};
// "20000-29999". INVALID_ARGUMENT says what would be right.
absl::StatusOr<PortRange> ParsePortRange(std::string_view text);
// Why the range is a bad one; empty: it isn't, or the kernel doesn't say. In one that overlaps with
// the ephemeral ports a port that was found free may be a client's by the time a program listens on
// it (contract 15). `ephemeral`: the file with the kernel's range.
std::string WhyPortsCollide(const PortRange& range, const std::string& ephemeral =
                                                        "/proc/sys/net/ipv4/ip_local_port_range");
// A port of the range on which nobody listens and that is not in `taken`. Where the search begins
// depends on `seed`, so that several agents on one machine rarely meet. RESOURCE_EXHAUSTED if all
// are in use.
absl::StatusOr<int32_t> FindPort(const PortRange& range, std::string_view seed,
                                 const std::vector<int32_t>& taken);

// Where progress sockets may lie, the best first: the next is taken where somebody else has made
// one before us. All leave room for a socket's name. `of_unit` and `of_login` (systemd's
// RUNTIME_DIRECTORY, XDG_RUNTIME_DIR): empty: none. `in_memory`: /dev/shm is, and can be written.
std::vector<std::string> SocketDirectories(uid_t user, bool in_memory, const std::string& of_unit,
                                           const std::string& of_login);
std::vector<std::string> SocketDirectories();  // of this process

// Ends what shims of a lost state directory at this path still run, for whom no record speaks any
// more (contract 8), and waits until nothing of it is left, at most 10 s. How many shims there
// were.
int EndForgottenShims(const std::string& state_path);

// Starts `program`, a muster-shim, for the attempt in `directory`: a child of this process in a
// session of its own, which reads its spec from the descriptor `spec`, inherits nothing else, and
// appends what it has to say to the file `log`.
absl::StatusOr<pid_t> StartShim(const std::string& program, const std::string& directory, int spec,
                                const std::string& log);

// For how long an attempt's packed directory and secrets are waited for. The scheduler waits ten
// minutes for a launch (kLaunchTimeoutNs), and blames the host that is late: this says why before.
inline constexpr int64_t kFetchPatienceNs = 9 * kMinute;

// Brings the packed directory that an attempt starts in, whole and as its digest says, as a
// descriptor that is the caller's. Errors as of Processes::Prepare. Blocks; by any thread, and may
// outlive whoever gave it.
using FetchPack =
    std::function<absl::StatusOr<int>(const v1::AttemptKey& key, const std::string& digest)>;

// Brings the values of an attempt's secrets, by variable. As FetchPack.
using FetchSecrets =
    std::function<absl::StatusOr<std::vector<shim::EnvironmentVariable>>(const v1::AttemptKey&)>;

class HostProcesses final : public Processes {
 public:
  // Warns in the log if the ports are badly chosen. `threads` do what needs storage that others
  // serve; nullptr: the caller does. They outlive this object.
  HostProcesses(StateDirectory* state, LaunchHost host, PortRange ports,
                HostCgroups cgroups = HostCgroups(), StorageThreads* threads = nullptr);
  ~HostProcesses() override;

  absl::StatusOr<int32_t> Prepare(const v1::Prepare& prepare) override;
  absl::Status SpawnShim(const AttemptRecord& record) override;
  void SignalShim(const AttemptId& id) override;
  bool ShimLives(const AttemptId& id) override { return ShimPid(id) != 0; }

  void FetchBy(FetchPack pack, FetchSecrets secrets) {
    fetch_ = std::move(pack);
    fetch_secrets_ = std::move(secrets);
  }
  // Who publishes exports, too; nullptr: whoever runs the agent.
  std::shared_ptr<Owners> owners() const { return owners_; }
  // The process that holds the attempt's lock, or was just spawned to; 0 if none.
  pid_t ShimPid(const AttemptId& id);
  // Reaps a shim of ours that ended.
  void Reap(pid_t pid);
  // All of ours that ended: an attempt may be forgotten while its shim is still on its way out.
  void ReapEnded();
  // Kills what a dead shim may have left behind; true if there still was something, so look again.
  // `ended`: it said that nothing is left, and only its control group is asked.
  bool KillStrays(const AttemptId& id, bool ended);
  // Of an attempt that is gone.
  void RemoveCgroup(const AttemptId& id);
  // An ended attempt's port is free again.
  void ReleasePort(const AttemptId& id) { ports_taken_.erase(id); }
  void TakePort(const AttemptId& id, int32_t port) { ports_taken_[id] = port; }

 private:
  absl::Status CheckOwner(const v1::Prepare& prepare) const;
  absl::Status PrepareStorage(const v1::Prepare& prepare);
  absl::Status MakeOnStorage(const v1::Prepare& prepare);
  std::string ServedByOthers(const v1::Prepare& prepare);
  StorageWork Work(const v1::Prepare& prepare, const std::string& spread);
  StorageWork WorkAsOwner(const v1::Prepare& prepare, const std::string& spread) const;
  absl::Status Fetch(const v1::Prepare& prepare, bool archive);
  std::function<absl::Status()> UnpackWork(const v1::Prepare& prepare) const;
  absl::Status HoldSecrets(const v1::Prepare& prepare);
  void AddSecrets(const AttemptId& id, shim::Spec* spec) const;
  absl::Status Grant(const AttemptRecord& record, const Owner& owner, shim::Spec* spec) const;
  absl::Status FindSockets();
  std::string Token(const AttemptId& id) const;
  absl::StatusOr<std::string> MakeToken(const AttemptId& id);
  absl::Status WhyInVain(const AttemptId& id) const;
  bool Reaped(const AttemptId& id, pid_t pid);
  StateDirectory* const state_;
  LaunchHost host_;
  const PortRange range_;
  const HostCgroups cgroups_;
  StorageThreads* const threads_;
  FetchPack fetch_;
  FetchSecrets fetch_secrets_;
  // Values of secrets from when an attempt prepares, or starts after this process did, until it is
  // gone: in memory alone.
  std::map<AttemptId, std::vector<shim::EnvironmentVariable>> secrets_;
  std::shared_ptr<Owners> owners_;  // of LaunchHost::as_owners; else none
  Mounts mounts_;
  std::string sockets_;           // of host_.sockets, the one that was found to be ours
  std::set<std::string> spread_;  // directories of jobs that were looked at
  std::map<AttemptId, int32_t> ports_taken_;
  std::map<AttemptId, pid_t> spawned_;  // children of ours, until reaped
  struct InVain {
    int times = 0, code = 0;  // how often a shim said that it started nothing; its last exit code
  };
  std::map<AttemptId, InVain> in_vain_;  // of attempts that aren't gone
};

}  // namespace muster::agent
