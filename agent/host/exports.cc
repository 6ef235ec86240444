#include "agent/host/exports.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/shim/durable.h"
#include "common/base/files.h"
#include "common/base/log.h"

namespace muster::agent {
namespace {

constexpr char kExportMark[] =
    ".muster-export";           // in a published directory: what else was in it then
constexpr int kMostKept = 100;  // of what lay at one export's target

// Names, sizes and times of what lies in a directory, but for the mark; "": that can't be told.
std::string ContentsOf(const std::string& directory) {
  std::vector<std::string> entries;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    struct stat info {};
    if (::lstat(it->path().c_str(), &info) != 0) return "";
    std::string name = it->path().lexically_relative(directory).string();
    if (name == kExportMark) continue;
    if (S_ISDIR(info.st_mode))
      entries.push_back(absl::StrCat(name, "/\n"));
    else
      entries.push_back(absl::StrCat(name, " ", info.st_size, " ", info.st_mtim.tv_sec, ".",
                                     info.st_mtim.tv_nsec, "\n"));
  }
  if (error) return "";
  std::sort(entries.begin(), entries.end());
  return absl::StrCat("muster-export 1\n", absl::StrJoin(entries, ""));
}

// Without a mark, or with half of it, the next export keeps this one: no harm.
void MarkExport(const std::string& directory, mode_t mode) {
  const int fd = ::open(absl::StrCat(directory, "/", kExportMark).c_str(),
                        O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return;
  if (shim::WriteAll(fd, ContentsOf(directory)) == 0)
    ::fchmod(fd, mode & 0666);  // whoever may read the export copies it whole
  ::close(fd);
}

// Published before, and nothing was added or changed since.
bool IsExport(const std::string& directory) {
  std::string mark;
  return shim::ReadSmallFile(absl::StrCat(directory, "/", kExportMark), &mark) == 0 &&
         !mark.empty() && mark == ContentsOf(directory);
}

// Gives what lies at an export's target another name, which `*moved` is then; it stays empty if
// nothing lay there. What is an export of before goes to `previous`, to be removed; all else is
// somebody's, and stays beside the target.
absl::Status MoveAway(const std::string& target, const std::string& previous, std::string* moved) {
  std::error_code error;
  struct stat info {};
  if (::rmdir(target.c_str()) == 0 || ::lstat(target.c_str(), &info) != 0) return absl::OkStatus();
  std::string name = previous;
  if (IsExport(target)) {
    std::filesystem::remove_all(previous, error);
  } else {
    name = target + ".previous";
    for (int i = 2; ::lstat(name.c_str(), &info) == 0; ++i) {
      if (i > kMostKept)
        return absl::AlreadyExistsError(
            absl::StrCat(target, ": what lies there is no export of before, and ", name,
                         " and its like exist, too. Move them away"));
      name = absl::StrCat(target, ".previous-", i);
    }
    LogWarn("kept what lay at an export's target", {{"target", target}, {"now", name}});
  }
  if (::rename(target.c_str(), name.c_str()) != 0) return ErrnoStatus(errno, target);
  *moved = std::move(name);
  return absl::OkStatus();
}

}  // namespace

absl::Status PublishExport(const std::string& staged, const std::string& target) {
  const std::string previous = staged + ".previous";
  const std::string parent = target.substr(0, target.rfind('/'));
  std::error_code error;
  struct stat info {};
  const bool done_before = ::lstat(staged.c_str(), &info) != 0;  // and only the word of it was lost
  if (done_before && errno != ENOENT) return ErrnoStatus(errno, staged);
  if (done_before && ::lstat(target.c_str(), &info) != 0)
    return absl::NotFoundError(staged + ": the staged export is gone");
  if (!done_before) {
    if (absl::StartsWith(staged, target + "/"))
      return absl::FailedPreconditionError(absl::StrCat(
          target, ": the export itself was staged in it; name a directory of its own"));
    if (absl::Status status = MakeDirectories(parent.empty() ? "/" : parent, 0755); !status.ok())
      return status;
    if (S_ISDIR(info.st_mode)) MarkExport(staged, info.st_mode);
    std::string moved;
    if (absl::Status status = MoveAway(target, previous, &moved); !status.ok()) return status;
    if (::rename(staged.c_str(), target.c_str()) != 0) {
      const int failed = errno;
      ::rename((moved.empty() ? previous : moved).c_str(), target.c_str());
      if (failed == EXDEV)
        return absl::FailedPreconditionError(
            absl::StrCat(target, ": on another file system than ", staged,
                         "; give an export under the job's storage"));
      return ErrnoStatus(failed, target);
    }
  }
  if (const int failed = shim::SyncDirectory(parent.empty() ? "/" : parent); failed != 0)
    return ErrnoStatus(failed, parent);
  std::filesystem::remove_all(previous, error);
  return absl::OkStatus();
}

}  // namespace muster::agent
