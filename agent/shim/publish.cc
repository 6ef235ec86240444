// Puts an export that was staged whole in its place
// (docs/decisions/006-the-agent-publishes-the-export.md).
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "agent/shim/act.h"
#include "agent/shim/durable.h"

namespace muster::shim {
namespace {

using Kind = ActResult::Kind;

constexpr char kExportMark[] =
    ".muster-export";                     // in a published directory: what else was in it then
constexpr int kMostKept = 100;            // of what lay at one export's target
constexpr size_t kMostEntries = 200'000;  // of an export that is compared with what it was

ActResult Failed(const std::string& what, int error) {
  return {Kind::kHosts, what + ": " + strerror(error), ""};
}

// Of the way to a name.
ActResult NotReached(const std::string& what, const std::string& path, int error) {
  if (error == EXDEV && path[0] != '/')
    return {Kind::kHosts,
            what + ": leads out of the job's directory; give an absolute path if it is meant", ""};
  return Failed(what, error);
}

// A name in a directory that is held, whatever is renamed on the way to it.
class Place {
 public:
  Place(int parent, std::string name, std::string shown)
      : parent_(parent),
        error_(parent < 0 ? errno : 0),
        name_(std::move(name)),
        shown_(std::move(shown)) {}
  ~Place() {
    if (parent_ >= 0) ::close(parent_);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  int error() const { return error_; }
  const std::string& shown() const { return shown_; }  // as it was given
  std::string with(const char* suffix) const { return name_ + suffix; }
  std::string parent() const { return "/proc/self/fd/" + std::to_string(parent_); }
  std::string path(const std::string& suffix = "") const { return parent() + "/" + name_ + suffix; }
  bool IsThere(struct stat* info, const std::string& suffix = "") const {
    return ::fstatat(parent_, (name_ + suffix).c_str(), info, AT_SYMLINK_NOFOLLOW) == 0;
  }
  bool RemoveIfEmpty() const { return ::unlinkat(parent_, name_.c_str(), AT_REMOVEDIR) == 0; }
  int RenameTo(const std::string& suffix, const Place& to, const std::string& to_suffix) const {
    return ::renameat(parent_, (name_ + suffix).c_str(), to.parent_,
                      (to.name_ + to_suffix).c_str()) == 0
               ? 0
               : errno;
  }

 private:
  const int parent_;
  const int error_;
  const std::string name_;
  const std::string shown_;
};

// Names, sizes and times of what lies in a directory, but for the mark; "": that can't be told.
std::string ContentsOf(const std::string& directory) {
  std::vector<std::string> entries;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    struct stat info {};
    if (::lstat(it->path().c_str(), &info) != 0 || entries.size() >= kMostEntries) return "";
    std::string name = it->path().lexically_relative(directory).string();
    if (name == kExportMark) continue;
    if (S_ISDIR(info.st_mode))
      entries.push_back(name + "/\n");
    else
      entries.push_back(name + " " + std::to_string(info.st_size) + " " +
                        std::to_string(info.st_mtim.tv_sec) + "." +
                        std::to_string(info.st_mtim.tv_nsec) + "\n");
  }
  if (error) return "";
  std::sort(entries.begin(), entries.end());
  std::string contents = "muster-export 1\n";
  for (const std::string& entry : entries) contents += entry;
  return contents;
}

// Without a mark, or with half of it, the next export keeps this one: no harm.
void MarkExport(const std::string& directory, mode_t mode) {
  const int fd = ::open((directory + "/" + kExportMark).c_str(),
                        O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (fd < 0) return;
  if (WriteAll(fd, ContentsOf(directory)) == 0)
    ::fchmod(fd, mode & 0666);  // whoever may read the export copies it whole
  ::close(fd);
}

// Published before, and nothing was added or changed since.
bool IsExport(const std::string& directory) {
  std::string mark;
  return ReadSmallFile(directory + "/" + kExportMark, &mark) == 0 && !mark.empty() &&
         mark == ContentsOf(directory);
}

// Gives what lies at an export's target another name. What is an export of before goes to
// `previous`, beside what was staged, to be removed; all else is somebody's, and stays beside the
// target, under its name with `*kept` behind it. `*moved` says which.
enum class Moved { kNothing, kToPrevious, kKept };
ActResult MoveAway(const Place& target, const Place& staged, Moved* moved, std::string* kept) {
  std::error_code error;
  struct stat info {};
  *moved = Moved::kNothing;
  if (target.RemoveIfEmpty() || !target.IsThere(&info)) return {};
  if (IsExport(target.path())) {
    std::filesystem::remove_all(staged.path(".previous"), error);
    if (const int failed = target.RenameTo("", staged, ".previous"); failed != 0)
      return Failed(target.shown(), failed);
    *moved = Moved::kToPrevious;
    return {};
  }
  *kept = ".previous";
  for (int i = 2; target.IsThere(&info, *kept); ++i) {
    if (i > kMostKept)
      return {Kind::kHosts,
              target.shown() + ": what lies there is no export of before, and " + target.shown() +
                  *kept + " and its like exist, too. Move them away",
              ""};
    *kept = ".previous-" + std::to_string(i);
  }
  if (const int failed = target.RenameTo("", target, *kept); failed != 0)
    return Failed(target.shown(), failed);
  *moved = Moved::kKept;
  return {Kind::kDone, "", "kept what lay at an export's target: " + target.shown() + *kept};
}

// Absolute, or below the job's directory, which then no name of it leaves.
struct Split {
  int parent = -1;
  std::string name;
};
Split Open(const std::string& path, const std::string& below, bool make) {
  const size_t slash = path.rfind('/');
  std::string parent = slash == std::string::npos ? "." : path.substr(0, slash);
  Split split;
  split.name = slash == std::string::npos ? path : path.substr(slash + 1);
  if (split.name.empty() || split.name == "." || split.name == "..") {
    errno = EINVAL;
    return split;
  }
  if (path[0] == '/') {
    if (parent.empty()) parent = "/";
    split.parent = make ? MakeDirectories(-1, parent, 0755) : OpenDirectory(-1, parent);
    return split;
  }
  const int job = OpenDirectory(-1, below);
  if (job < 0) return split;
  split.parent = make ? MakeDirectories(job, parent, 0755) : OpenDirectory(job, parent);
  const int error = errno;
  ::close(job);
  errno = error;
  return split;
}

// What lies beside a directory is named after it, and programs may tell of it with slashes.
std::string WithoutSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

ActResult Exchange(const Place& staged, const Place& target) {
  Moved moved = Moved::kNothing;
  std::string kept;
  ActResult result = MoveAway(target, staged, &moved, &kept);
  if (!result.done()) return result;
  const int failed = staged.RenameTo("", target, "");
  if (failed == 0) return result;
  if (moved == Moved::kKept) target.RenameTo(kept, target, "");
  if (moved != Moved::kKept) staged.RenameTo(".previous", target, "");
  if (failed == EXDEV)
    return {Kind::kHosts,
            target.shown() + ": on another file system than " + staged.shown() +
                "; give an export under the job's storage",
            ""};
  return Failed(target.shown(), failed);
}

}  // namespace

ActResult PublishExport(const std::string& staged_path, const std::string& job_directory,
                        const std::string& given_target) {
  const std::string target_path = WithoutSlashes(given_target);
  const std::string shown = target_path[0] == '/' ? target_path : job_directory + "/" + target_path;
  if (staged_path.compare(0, shown.size() + 1, shown + "/") == 0)
    return {Kind::kHosts,
            shown + ": the export itself was staged in it; name a directory of its own", ""};
  Split split = Open(staged_path, job_directory, false);
  const Place staged(split.parent, split.name, staged_path);
  struct stat info {};
  const bool is_staged = staged.error() == 0 && staged.IsThere(&info);
  const int missing = staged.error() != 0 ? staged.error() : is_staged ? 0 : errno;
  if (!is_staged && missing != ENOENT) return NotReached(staged_path, staged_path, missing);
  split = Open(target_path, job_directory, is_staged);
  const Place target(split.parent, split.name, shown);
  if (is_staged && target.error() != 0) return NotReached(shown, target_path, target.error());
  ActResult result;
  if (!is_staged) {  // done before, and only the word of it was lost; or gone
    struct stat there {};
    if (target.error() != 0 || !target.IsThere(&there))
      return {Kind::kHosts, staged_path + ": the staged export is gone", ""};
  } else {
    if (S_ISDIR(info.st_mode)) MarkExport(staged.path(), info.st_mode);
    result = Exchange(staged, target);
    if (!result.done()) return result;
  }
  if (const int failed = SyncDirectory(target.parent()); failed != 0) return Failed(shown, failed);
  std::error_code error;
  if (staged.error() == 0) std::filesystem::remove_all(staged.path(".previous"), error);
  return result;
}

}  // namespace muster::shim
