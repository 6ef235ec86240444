// The agent's state directory (mode 0700): what survives its death and the machine's.
//
//   lock  state_id  shim.log (of all shims)  seen  trainer-schema  claim-started  claim-stopped
//   (texts that claims are links to) attempts/.seen-<epoch>-<commit>[-<mac>]   an empty file: a
//   commit number as a name, so that whatever syncs the names of attempts syncs it. Two: the
//                                last that is known to be synced, which stays until a younger one
//                                is, and the newest
//   attempts/<uid>.<task>.<n>/   prepared (the marker, written last; its shim holds a lock of it)
//   outcome  claim  stop  events  progress  times  usage  gpus  exits  logs/
//                                .exits.spare .stop.spare .renewed.spare (reserved by the shim, to
//                                be written over on a full disk)
//   reserve/<n>/                 empty directories, for attempts while the disk is full
//   logs/<uid>.<task>.<n>/       logs of forgotten attempts, under retention; an empty file: it
//   wrote nothing
//
// Not thread-safe, but for LogDirectory.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/host/owners.h"
#include "agent/host/storage_threads.h"
#include "agent/reconcile/ports.h"

namespace muster::agent {

struct Retention {
  int64_t attempts = 100;  // logs of so many forgotten attempts are kept, newest first
  int64_t age_ns = int64_t{7} * 24 * 3600 * 1'000'000'000;
  int64_t bytes = int64_t{20} << 30;  // of all of them
};

class StateDirectory final : public Files {
 public:
  // What making a new one takes. Nobody knows any more of what ran with one that is gone: it is
  // ended before the new one has its id, so that who dies meanwhile does it again (contract 8).
  struct Making {
    std::function<std::string()> new_id;
    std::function<void(const std::string& path)> end_forgotten;
  };
  // Makes it if missing, refuses one that isn't ours alone, locks it for life. FAILED_PRECONDITION:
  // another agent has it. `making`: this machine's, if left out.
  static absl::StatusOr<std::unique_ptr<StateDirectory>> Open(
      const std::string& path, const Making& making = OfThisMachine());
  ~StateDirectory() override;

  const std::string& path() const { return path_; }
  const std::string& state_id() const { return state_id_; }
  const Seen& seen() const { return seen_; }
  // Every recorded attempt. One whose marker is missing or damaged comes as not prepared; one whose
  // claim can't be read is told in the log and comes as claimed "started". An error: it can't be
  // told which there are.
  absl::StatusOr<std::vector<AttemptRecord>> Load();

  std::string AttemptDirectory(const AttemptId& id) const;
  std::string LogDirectory(const AttemptId& id) const;  // wherever its logs are now; may not exist
  // Removes what `retention` doesn't keep, the oldest first, at most about so many files: whoever
  // calls it has other things to do. True: there is more.
  bool PruneLogs(const Retention& retention, int64_t now_ns, int most_files = kFilesAtOnce);
  static constexpr int kFilesAtOnce = 16;
  // It is time for that, whenever it was done last.
  bool LogsOverflow(const Retention& retention) const;
  // From now on exports are published there; before, or without, by the caller. With `owners` as
  // their jobs' owners.
  void PublishBy(StorageThreads* threads, std::shared_ptr<Owners> owners = nullptr) {
    threads_ = threads;
    owners_ = std::move(owners);
  }

  absl::Status PersistPrepared(const AttemptRecord& record, bool durable) override;
  absl::StatusOr<Claim> ClaimStopped(const AttemptRecord& record) override;
  absl::Status PersistStop(const AttemptRecord& record) override;
  absl::Status Renew(const AttemptRecord& record) override;
  absl::Status PersistOutcome(const AttemptRecord& record) override;
  absl::Status KeepGpus(const AttemptRecord& record) override;
  absl::Status PersistSeen(const Seen& seen, bool synced) override;
  // Its files go with the next CollectForgotten.
  absl::Status Forget(const AttemptId& id) override;
  // Removes what was forgotten since the last call, behind one sync for all of it: a crash leaves
  // an attempt whole or nothing.
  void CollectForgotten();
  absl::Status Publish(const AttemptRecord& record, const std::string& staged,
                       const std::string& target) override;

 private:
  static Making OfThisMachine();
  explicit StateDirectory(std::string path) : path_(std::move(path)) {}
  absl::Status MakeAttemptDirectory(const AttemptId& id);
  void FillReserve();
  void LoadKeptLogs();
  void LoadSeen();
  void NamesSynced();
  void LoadOutcome(AttemptRecord* record) const;
  void LoadGpus(AttemptRecord* record) const;

  const std::string path_;
  int lock_ = -1;
  StorageThreads* threads_ = nullptr;
  std::shared_ptr<Owners> owners_;
  std::string state_id_;
  Seen seen_;
  std::string synced_seen_, new_seen_;  // attempts/.seen-…; empty: none
  std::vector<std::string> forgotten_;  // directories to remove
  // Of a forgotten attempt, below logs/.
  struct KeptLogs {
    std::string name;
    int64_t at_ns = 0;  // Unix time; 0: since the last PruneLogs
    int64_t bytes = 0;
  };
  std::deque<KeptLogs> kept_logs_;  // the oldest first
  int64_t kept_log_bytes_ = 0;      // of all of them
};

std::string DirectoryName(const AttemptId& id);  // <uid>.<task>.<attempt>
// Of a .seen-<epoch>-<commit> with or without -<mac>; it names no store.
bool ParseSeenName(const std::string& name, Seen* seen);
bool ParseDirectoryName(const std::string& name, AttemptId* id);

}  // namespace muster::agent
