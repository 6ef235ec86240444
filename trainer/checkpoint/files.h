// Files as the trainer writes and reads them: written under a temporary name, fsynced, renamed into
// place; read by mmap. Errors are absl::Status with the path and errno's text; free functions are
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/checkpoint/objects.h"

namespace muster::trainer {

// A whole file mapped read-only. Movable; the bytes live as long as the object. An empty file maps
// to an empty span.
class MappedFile {
 public:
  // `for_copies`: keeps the file open, as Copy needs it; otherwise it takes no descriptor, so that
  // a corpus may have any number of files.
  static absl::StatusOr<MappedFile> Open(const std::string& path, bool for_copies = false);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~MappedFile();

  std::span<const uint8_t> bytes() const { return {data_, size_bytes_}; }
  // Gives back the memory that reading `part` of bytes() took; it may be read again. For reading
  // big files in little memory.
  void Release(std::span<const uint8_t> part) const;
  // Copies `part` of bytes() to `out`, by a read: of much at once that is faster than touching
  // mapped pages, and maps none; and a disk's error is a status, where it would end a process that
  // touches the page.
  absl::Status Copy(std::span<const uint8_t> part, uint8_t* out) const;

 private:
  const uint8_t* data_ = nullptr;
  size_t size_bytes_ = 0;
  int fd_ = -1;
};

// Has the kernel begin to read the file into its cache, at most `most_bytes` of it, and waits for
// nothing. Returns how many bytes it asked for. A hint: of an object, or where it can't be done,
// nothing happens.
size_t ReadAhead(const std::string& path, size_t most_bytes);

// Reads a text file of at most `limit_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path,
                                     size_t limit_bytes = size_t{64} << 20);

// When what is written counts: once the disk has it, or once the kernel's file cache has it, which
// outlives this process but not the machine; the kernel writes it to the disk in its own time
// (Linux: about 30 s). An object store always has it for good.
enum class Until { kOnDisk, kCached };

// A file on its way: written as `path` + ".tmp", renamed when it is whole. What isn't committed is
// removed. Movable.
class DurableFile {
 public:
  static absl::StatusOr<DurableFile> Create(const std::string& path);
  DurableFile(DurableFile&& other) noexcept
      : path_(std::move(other.path_)),
        fd_(std::exchange(other.fd_, -1)),
        upload_(std::move(other.upload_)) {}
  ~DurableFile();

  absl::Status Write(std::span<const uint8_t> bytes);
  // Renames to `path`; kOnDisk fsyncs the file before and the directory behind it. The last call.
  absl::Status Commit(Until until = Until::kOnDisk);

 private:
  DurableFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_ = -1;
  std::unique_ptr<ObjectUpload> upload_;  // of an object, instead
};

// Writes the pieces to `path` + ".tmp", and commits. After OK the content is durable (kOnDisk) and
// readers see either nothing or all of it.
absl::Status WriteFileDurably(const std::string& path,
                              const std::vector<std::span<const uint8_t>>& pieces,
                              Until until = Until::kOnDisk);
absl::Status WriteFileDurably(const std::string& path, std::string_view content,
                              Until until = Until::kOnDisk);

absl::Status MakeDirectories(const std::string& path);
absl::Status SyncDirectory(const std::string& path);
// fsyncs every regular file below `path` and the directories themselves.
absl::Status SyncTree(const std::string& path);
// Removes a file; there being none is no error.
absl::Status RemoveFile(const std::string& path);
// Paths of an object store's objects below `path`, at any depth; there may be none.
absl::StatusOr<std::vector<std::string>> ObjectsBelow(const std::string& path);
// Removes a directory with all below it, as far as it can; nothing there is fine.
void RemoveTree(const std::string& path);
// Whether `outer` is `inner` or a directory above it, by whatever links. Of what isn't there its
// name counts; what can't be looked at is apart from all.
bool IsAtOrAbove(const std::string& outer, const std::string& inner);
// Whether two directories are one, or one of them lies in the other.
bool DirectoriesOverlap(const std::string& one, const std::string& other);
// Puts the directory `from` in `to`'s place; what was there goes away. One step, but where two
// names can't be exchanged (NFS): there via `to`.replaced.
absl::Status ReplaceDirectory(const std::string& from, const std::string& to);

}  // namespace muster::trainer
