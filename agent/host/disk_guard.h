// Sees to it that no job fills a disk that others need: the store of a scheduler on this machine,
// the agent's own state, the directories of other jobs. Looks at the local file systems of the
// state directory and of jobs' directories four times a second, and forty times where little room
// is left. What is served by others is left out: it would keep whoever asks (mounts.h).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/host/mounts.h"
#include "agent/reconcile/record.h"

namespace muster::agent {

// A file system has too little room below this, and enough again above a quarter more.
int64_t DiskFloor(int64_t total_bytes);

// A live attempt, and where its job writes.
struct DiskUser {
  AttemptId id;
  std::string directory;
  bool operator==(const DiskUser&) const = default;
};

struct DiskNews {
  bool near = false;  // some disk has no more left than eight times the floor
  std::string low;    // Inventory.low_disk
  // Attempts that fill it, and what is said of each (AttemptReport.fills_disk).
  std::vector<std::pair<AttemptId, std::string>> fills;
};

// What is known between two looks. Not thread-safe.
class DiskLook {
 public:
  explicit DiskLook(std::string state_directory) : state_directory_(std::move(state_directory)) {}

  // `pause` waits between two measurements of what is written. Each attempt is named once.
  DiskNews At(const std::vector<DiskUser>& users, int64_t now_ns,
              const std::function<void()>& pause);

 private:
  struct Disk {
    std::string path;  // one on it
    int64_t free_bytes = 0, total_bytes = 0;
    std::vector<const DiskUser*> users;
  };
  using Disks = std::map<uint64_t, Disk>;  // by device

  Disks Find(const std::vector<DiskUser>& users);
  const DiskUser* WritesMost(const Disk& disk, int64_t now_ns, const std::function<void()>& pause,
                             int64_t* bytes) const;

  const std::string state_directory_;
  Mounts mounts_;
  std::map<uint64_t, std::string> low_;  // by device: as it was said first
  std::map<AttemptId, int64_t> named_;   // and when
};

// Bytes below `directory` on its file system, in files that were written since (Unix time). Follows
// no link, and stops after some ten thousand names.
int64_t WrittenSince(const std::string& directory, int64_t since_ns);

// Looks in a thread of its own.
class DiskGuard {
 public:
  // `told` is called there, when what is low has changed or somebody fills it.
  DiskGuard(std::string state_directory, std::function<void(DiskNews)> told);
  ~DiskGuard();
  void Watch(std::vector<DiskUser> users);  // in place of those before; cheap

 private:
  void Run();

  const std::function<void(DiskNews)> told_;
  DiskLook look_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<DiskUser> users_;  // guarded by mutex_
  bool stopping_ = false;        // guarded by mutex_
  std::thread thread_;
};

}  // namespace muster::agent
