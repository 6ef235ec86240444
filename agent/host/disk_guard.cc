#include "agent/host/disk_guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

constexpr int64_t kMostFloorBytes = int64_t{1} << 30;
constexpr std::chrono::milliseconds kInterval{250}, kNearInterval{25}, kGrowthInterval{20};
constexpr std::chrono::milliseconds kIdleInterval{2'000};  // nobody runs: it may have room again
constexpr int64_t kRecentNs = kMinute;
constexpr int64_t kNextAfterNs = 5 * kSecond;  // whoever was named is being stopped
constexpr int64_t kNearFloors = 8;
constexpr int kMostNames = 50'000, kMostDepth = 40;

int64_t ModifiedNs(const struct stat& info) {
  return info.st_mtim.tv_sec * kSecond + info.st_mtim.tv_nsec;
}

// Takes over `fd`.
int64_t WrittenBelow(int fd, dev_t device, int64_t since_ns, int depth, int* names_left) {
  DIR* directory = ::fdopendir(fd);
  if (directory == nullptr) {
    ::close(fd);
    return 0;
  }
  int64_t bytes = 0;
  while (const dirent* entry = *names_left > 0 ? ::readdir(directory) : nullptr) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    --*names_left;
    struct stat info {};
    if (::fstatat(::dirfd(directory), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
        info.st_dev != device)
      continue;
    if (S_ISREG(info.st_mode) && ModifiedNs(info) >= since_ns) bytes += info.st_blocks * 512;
    if (!S_ISDIR(info.st_mode) || depth >= kMostDepth) continue;
    const int below = ::openat(::dirfd(directory), entry->d_name,
                               O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (below >= 0) bytes += WrittenBelow(below, device, since_ns, depth + 1, names_left);
  }
  ::closedir(directory);
  return bytes;
}

std::string RoomText(int64_t free_bytes, int64_t total_bytes) {
  return absl::StrCat(FormatSize(free_bytes >> 20 << 20), " left of ",
                      FormatSize(total_bytes >> 20 << 20));
}

int64_t WallNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

int64_t DiskFloor(int64_t total_bytes) { return std::min(kMostFloorBytes, total_bytes / 20); }

int64_t WrittenSince(const std::string& directory, int64_t since_ns) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat info {};
  if (fd < 0) return 0;
  if (::fstat(fd, &info) != 0) {
    ::close(fd);
    return 0;
  }
  int names_left = kMostNames;
  return WrittenBelow(fd, info.st_dev, since_ns, 0, &names_left);
}

DiskLook::Disks DiskLook::Find(const std::vector<DiskUser>& users) {
  Disks disks;
  const auto add = [&](const std::string& path) -> Disk* {
    if (path.empty() || !mounts_.ServedByOthers(path).empty()) return nullptr;
    struct stat info {};
    struct statvfs room {};
    if (::stat(path.c_str(), &info) != 0) return nullptr;
    const auto [it, added] = disks.try_emplace(info.st_dev);
    Disk* disk = &it->second;
    if (added && ::statvfs(path.c_str(), &room) == 0) {
      disk->path = path;
      disk->free_bytes = static_cast<int64_t>(room.f_bavail) * static_cast<int64_t>(room.f_frsize);
      disk->total_bytes = static_cast<int64_t>(room.f_blocks) * static_cast<int64_t>(room.f_frsize);
    }
    return disk;
  };
  add(state_directory_);
  for (const DiskUser& user : users) {
    if (Disk* disk = add(user.directory)) disk->users.push_back(&user);
  }
  return disks;
}

// Whose directory grows most. On a disk that is full nothing grows: who wrote most of late, and
// would take what becomes free.
const DiskUser* DiskLook::WritesMost(const Disk& disk, int64_t now_ns,
                                     const std::function<void()>& pause, int64_t* bytes) const {
  const int64_t floor = DiskFloor(disk.total_bytes);
  const bool full = disk.free_bytes < floor / 8;
  std::vector<int64_t> before;
  for (const DiskUser* user : disk.users)
    before.push_back(WrittenSince(user->directory, now_ns - kRecentNs));
  pause();
  const DiskUser* most = nullptr;
  std::pair<int64_t, int64_t> best;
  for (size_t i = 0; i < disk.users.size(); ++i) {
    const int64_t recent = WrittenSince(disk.users[i]->directory, now_ns - kRecentNs);
    const std::pair<int64_t, int64_t> wrote = {std::max<int64_t>(0, recent - before[i]), recent};
    if (recent < floor / 4 || (wrote.first == 0 && !full)) continue;
    if (most != nullptr && wrote <= best) continue;
    most = disk.users[i];
    best = wrote;
    *bytes = recent;
  }
  return most;
}

DiskNews DiskLook::At(const std::vector<DiskUser>& users, int64_t now_ns,
                      const std::function<void()>& pause) {
  DiskNews news;
  std::erase_if(named_, [&](const auto& named) {
    return std::none_of(users.begin(), users.end(),
                        [&](const DiskUser& user) { return user.id == named.first; });
  });
  const Disks disks = Find(users);
  std::erase_if(low_, [&](const auto& low) {
    const auto disk = disks.find(low.first);
    return disk == disks.end() ||
           disk->second.free_bytes >= DiskFloor(disk->second.total_bytes) / 4 * 5;
  });
  for (const auto& [device, disk] : disks) {
    const int64_t floor = DiskFloor(disk.total_bytes);
    news.near = news.near || disk.free_bytes < kNearFloors * floor;
    if (disk.free_bytes >= floor && low_.count(device) == 0) continue;
    const std::string room = RoomText(disk.free_bytes, disk.total_bytes);
    low_.try_emplace(device, absl::StrCat(disk.path, " has ", room, ", and wants ",
                                          FormatSize(floor >> 20 << 20)));
    const bool pending = std::any_of(named_.begin(), named_.end(), [&](const auto& named) {
      return now_ns - named.second < kNextAfterNs;
    });
    if (disk.free_bytes >= floor || pending) continue;
    int64_t bytes = 0;
    const DiskUser* writer = WritesMost(disk, now_ns, pause, &bytes);
    if (writer == nullptr) continue;
    // All that runs here of the job: they write to one directory.
    for (const DiskUser* user : disk.users) {
      if (user->directory != writer->directory || !named_.emplace(user->id, now_ns).second)
        continue;
      news.fills.emplace_back(
          user->id, absl::StrCat("it wrote ", FormatSize(bytes >> 20 << 20), " to ",
                                 writer->directory, " within a minute, and the disk has ", room));
    }
  }
  for (const auto& [device, text] : low_)
    absl::StrAppend(&news.low, news.low.empty() ? "" : "; ", text);
  return news;
}

DiskGuard::DiskGuard(std::string state_directory, std::function<void(DiskNews)> told)
    : told_(std::move(told)), look_(std::move(state_directory)), thread_([this] { Run(); }) {}

DiskGuard::~DiskGuard() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DiskGuard::Watch(std::vector<DiskUser> users) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (users == users_) return;
  users_ = std::move(users);
  changed_.notify_all();
}

void DiskGuard::Run() {
  std::string low;
  const auto pause = [this] {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kGrowthInterval, [this] { return stopping_; });
  };
  while (true) {
    std::vector<DiskUser> users;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
      users = users_;
    }
    DiskNews news = look_.At(users, WallNs(), pause);
    const bool near = news.near, changed = news.low != low || !news.fills.empty();
    if (news.low != low && !news.low.empty())
      LogWarn("too little disk: nothing new starts here", {{"why", news.low}});
    if (news.low != low && news.low.empty()) LogInfo("enough disk again");
    low = news.low;
    if (changed) told_(std::move(news));
    std::unique_lock<std::mutex> lock(mutex_);
    const auto interval = users_.empty() ? kIdleInterval : near ? kNearInterval : kInterval;
    changed_.wait_for(lock, interval,
                      [this, &users] { return stopping_ || users_.empty() != users.empty(); });
  }
}

}  // namespace muster::agent
