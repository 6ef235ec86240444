#include "scheduler/store/packs.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/descriptor.h"
#include "common/base/files.h"
#include "common/base/log.h"

namespace muster {
namespace {

constexpr char kComing[] = ".part";  // after the name of one that isn't whole
// One that was sent or used since then may belong to a job that is being submitted.
constexpr int64_t kMayBeSubmittedNs = kHour;

// -1: it isn't there.
int64_t SizeOf(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) ? info.st_size : -1;
}

// Of all that can be read there; nothing: not now.
std::optional<std::string> DigestOf(int fd) {
  Sha256Stream hash;
  std::string buffer(size_t{1} << 20, '\0');
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) return hash.Hex();
    hash.Add(std::string_view(buffer).substr(0, static_cast<size_t>(got)));
  }
}

// Whether `path` names what is open.
bool IsNamed(const std::string& path, int fd) {
  struct stat named {
  }, opened{};
  return ::stat(path.c_str(), &named) == 0 && ::fstat(fd, &opened) == 0 &&
         named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

absl::Status NotNowReadable(int error) {
  return absl::UnavailableError(
      ErrnoStatus(error, "the packed directory can't be read now").message());
}

absl::Status NoPack() {
  return absl::NotFoundError("there is no such packed directory of this user");
}

}  // namespace

std::set<PackName> PacksOf(const State& state) {
  std::set<PackName> packs;
  for (const uint64_t number : state.AllJobs()) {
    const JobRow* job = state.FindJob(number);
    if (job == nullptr || job->finished()) continue;
    for (const pb::TaskSpec& task : job->spec->tasks()) {
      if (!task.workdir_digest().empty()) packs.emplace(job->owner, task.workdir_digest());
    }
  }
  return packs;
}

absl::StatusOr<std::unique_ptr<PackStore>> PackStore::Open(std::string directory, PackLimits limits,
                                                           Clock* clock) {
  if (absl::Status made = MakeDirectories(directory); !made.ok()) return made;
  for (const std::string& owner : NamesIn(directory)) {
    const std::string folder = absl::StrCat(directory, "/", owner);
    for (const std::string& name : NamesIn(folder)) {
      if (absl::EndsWith(name, kComing)) ::unlink(absl::StrCat(folder, "/", name).c_str());
    }
  }
  return std::unique_ptr<PackStore>(new PackStore(std::move(directory), limits, clock));
}

// A user may be called anything; a folder may not.
std::string PackStore::FolderOf(const std::string& owner) const {
  return absl::StrCat(directory_, "/", Sha256Hex(owner));
}

std::string PackStore::PathOf(const PackName& name) const {
  return absl::StrCat(FolderOf(name.first), "/", name.second);
}

bool PackStore::Touch(const std::string& path) {
  const int64_t now_ns = clock_->WallNs();
  const timespec at{now_ns / kSecond, now_ns % kSecond};
  const timespec times[2] = {at, at};
  return ::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0;
}

// Compared once in the life of this process. One that isn't is taken away, so that it can be sent
// again.
bool PackStore::IsWhole(const PackName& name) {
  const std::string path = PathOf(name);
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (checked_.count(path) != 0) return true;
    }
    // As long as it is open, no other file has its number.
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.get() < 0) return errno != ENOENT;  // not known now
    const std::optional<std::string> digest = DigestOf(file.get());
    if (!digest.has_value()) return true;
    std::lock_guard lock(mutex_);
    if (!IsNamed(path, file.get())) continue;  // another was sent while this one was read
    if (*digest == name.second) {
      checked_.insert(path);
      return true;
    }
    LogError("a packed directory is damaged, and removed", {{"path", path}});
    ::unlink(path.c_str());
    return false;
  }
}

absl::Status PackStore::MakeRoom(const std::string& owner, int64_t size) {
  struct Kept {
    int64_t used_ns;
    int64_t bytes;
    std::string path;
  };
  std::vector<Kept> kept;
  int64_t taken = 0;
  for (const std::string& name : NamesIn(FolderOf(owner))) {
    const std::string path = absl::StrCat(FolderOf(owner), "/", name);
    struct stat info {};
    if (!IsSha256Hex(name) || ::stat(path.c_str(), &info) != 0) continue;
    kept.push_back({info.st_mtim.tv_sec * kSecond + info.st_mtim.tv_nsec,
                    limits_.TakenBy(info.st_size), path});
    taken += kept.back().bytes;
  }
  size_t coming = 0;
  for (const auto& [name, upload] : uploads_) {
    if (name.first != owner) continue;
    taken += limits_.TakenBy(upload->size);
    ++coming;
  }
  std::sort(kept.begin(), kept.end(),
            [](const Kept& a, const Kept& b) { return a.used_ns < b.used_ns; });
  size_t count = kept.size() + coming;
  const auto full = [&] {
    return taken + limits_.TakenBy(size) > limits_.owner_bytes || count >= limits_.owner_packs;
  };
  const int64_t new_ns = clock_->WallNs() - kMayBeSubmittedNs;
  for (const Kept& pack : kept) {
    if (!full() || !collected_) break;
    if (needed_.count(pack.path) != 0 || pack.used_ns > new_ns) continue;
    if (::unlink(pack.path.c_str()) != 0) continue;
    checked_.erase(pack.path);
    taken -= pack.bytes;
    --count;
  }
  if (full()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the packed directories that your jobs need take ", FormatSize(taken), " here (", count,
        "), and this one would be ", FormatSize(size), " more; a user may have ",
        FormatSize(limits_.owner_bytes), " in ", limits_.owner_packs,
        ". Leave out what the job doesn't need (.musterignore), name a directory that is on the "
        "hosts (--workdir /PATH), wait until some of your jobs have ended, or have packed_per_user "
        "raised in musterd.yaml"));
  }
  if (coming < limits_.owner_uploads) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(coming, " of your packed directories are coming now; try again in a moment"));
}

absl::StatusOr<PackStore::Upload*> PackStore::Begin(const PackName& name, int64_t size) {
  if (absl::Status made = MakeDirectories(FolderOf(name.first)); !made.ok()) return made;
  auto upload = std::make_unique<Upload>();
  upload->path = PathOf(name) + kComing;
  upload->size = size;
  upload->fd = ::open(upload->path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (upload->fd < 0) return ErrnoStatus(errno, upload->path);
  return (uploads_[name] = std::move(upload)).get();
}

void PackStore::Drop(Uploads::iterator upload) {
  ::close(upload->second->fd);
  ::unlink(upload->second->path.c_str());
  uploads_.erase(upload);
}

void PackStore::DropIdle() {
  const int64_t before_ns = clock_->MonotonicNs() - limits_.upload_ns;
  for (auto it = uploads_.begin(); it != uploads_.end();) {
    const auto at = it++;
    if (!at->second->finishing && at->second->at_ns < before_ns) Drop(at);
  }
}

absl::Status PackStore::Finish(const PackName& name, Upload* upload) {
  if (upload->hash.Hex() != name.second) {
    return absl::InvalidArgumentError(
        "what came isn't what the digest names: the directory changed while it was sent? Try "
        "again");
  }
  const std::string path = PathOf(name);
  if (::fsync(upload->fd) != 0 || ::rename(upload->path.c_str(), path.c_str()) != 0)
    return ErrnoStatus(errno, path);
  Touch(path);
  return SyncDirectory(FolderOf(name.first));
}

absl::StatusOr<int64_t> PackStore::Put(const std::string& owner, const std::string& digest,
                                       int64_t size, int64_t offset, std::string_view data) {
  if (!IsSha256Hex(digest))
    return absl::InvalidArgumentError("a digest is 64 hexadecimal digits, of SHA-256");
  if (size <= 0 || size > limits_.bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a packed directory has at most ", FormatSize(limits_.bytes), ", not ", FormatSize(size)));
  }
  if (offset < 0 || offset > size || static_cast<int64_t>(data.size()) > size - offset)
    return absl::InvalidArgumentError("the piece doesn't lie within the whole");
  const PackName name(owner, digest);
  if (SizeOf(PathOf(name)) == size && IsWhole(name) && Touch(PathOf(name))) return size;
  std::unique_lock lock(mutex_);
  auto found = uploads_.find(name);
  if (found == uploads_.end()) {
    DropIdle();
    if (absl::Status room = MakeRoom(owner, size); !room.ok()) return room;
    if (data.empty() || offset != 0) return 0;
    const absl::StatusOr<Upload*> begun = Begin(name, size);
    if (!begun.ok()) return begun.status();
    found = uploads_.find(name);
  }
  Upload* const upload = found->second.get();
  if (upload->finishing) return absl::UnavailableError("it is being stored; try again in a moment");
  if (upload->size != size) return absl::InvalidArgumentError("it has another size than before");
  if (upload->offset != offset || data.empty()) return upload->offset;
  const ssize_t written = ::pwrite(upload->fd, data.data(), data.size(), offset);
  if (written != static_cast<ssize_t>(data.size())) {
    const int error = written < 0 ? errno : ENOSPC;
    Drop(found);
    return ErrnoStatus(error, "musterd can't store the packed directory");
  }
  upload->hash.Add(data);
  upload->offset += written;
  upload->at_ns = clock_->MonotonicNs();
  if (upload->offset < size) return upload->offset;
  upload->finishing = true;
  lock.unlock();  // nobody waits for its disk
  absl::Status finished = Finish(name, upload);
  lock.lock();
  if (finished.ok()) checked_.insert(PathOf(name));
  Drop(uploads_.find(name));
  if (!finished.ok()) return finished;
  return size;
}

bool PackStore::Use(const std::string& owner, const std::string& digest) {
  if (!IsSha256Hex(digest)) return false;
  const std::string path = PathOf({owner, digest});
  return IsWhole({owner, digest}) && Touch(path);
}

absl::StatusOr<PackStore::Piece> PackStore::Read(const std::string& owner,
                                                 const std::string& digest, int64_t offset) {
  if (!IsSha256Hex(digest) || offset < 0) return NoPack();
  if (offset == 0 && !IsWhole({owner, digest})) return NoPack();
  const Descriptor file(::open(PathOf({owner, digest}).c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0)
    return errno == ENOENT ? NoPack() : NotNowReadable(errno);
  Piece piece;
  piece.size = info.st_size;
  piece.data.resize(
      static_cast<size_t>(std::clamp<int64_t>(piece.size - offset, 0, kMaxReadBytes)));
  const ssize_t got = ::pread(file.get(), piece.data.data(), piece.data.size(), offset);
  if (got < 0) return NotNowReadable(errno);
  piece.data.resize(static_cast<size_t>(got));
  return piece;
}

int PackStore::Collect(const std::set<PackName>& used, int64_t keep_ns) {
  std::set<std::string> paths;
  for (const PackName& name : used) paths.insert(PathOf(name));
  {
    std::lock_guard lock(mutex_);
    needed_ = paths;
    collected_ = true;
  }
  int removed = 0;
  for (const std::string& owner : NamesIn(directory_)) {
    const std::string folder = absl::StrCat(directory_, "/", owner);
    for (const std::string& name : NamesIn(folder)) {
      const std::string path = absl::StrCat(folder, "/", name);
      struct stat info {};
      std::lock_guard lock(mutex_);
      if (!IsSha256Hex(name) || ::stat(path.c_str(), &info) != 0) continue;
      const int64_t used_ns = info.st_mtim.tv_sec * kSecond + info.st_mtim.tv_nsec;
      if (paths.count(path) != 0) {
        Touch(path);
      } else if (used_ns < clock_->WallNs() - keep_ns && ::unlink(path.c_str()) == 0) {
        checked_.erase(path);
        ++removed;
      }
    }
    std::lock_guard lock(mutex_);
    ::rmdir(folder.c_str());  // where nothing is left
  }
  if (removed > 0) LogInfo("packed directories removed", {{"count", removed}});
  return removed;
}

}  // namespace muster
