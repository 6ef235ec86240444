#include "cli/pack.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/ignore.h"
#include "common/base/descriptor.h"
#include "common/base/files.h"
#include "common/base/units.h"
#include "common/pack/format.h"
#include "common/pki/sha256.h"

namespace muster {
namespace {

constexpr char kNeverAlong[] = ".git\n.venv\n__pycache__\n";
constexpr int64_t kMostSeen = 10 * kPackMaxEntries;  // where a directory is far too large
constexpr int kMostDepth = 256;
constexpr size_t kNamedEntries = 5;
constexpr int64_t kMaxIgnoreBytes = 256 << 10;

struct Entry {
  char kind = kPackFile;
  std::string path;
  int64_t bytes = 0;
  std::string target;  // of a link
};

std::string Joined(const std::string& above, const std::string& name) {
  return above.empty() ? name : absl::StrCat(above, "/", name);
}

absl::Status CannotCome(const std::string& directory, const std::string& path,
                        const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(directory, " can't come along: ", path, " ", why,
                                                 "; or leave it out: a line /", path, " in ",
                                                 directory, "/", kIgnoreFile));
}

class Walk {
 public:
  explicit Walk(std::string directory) : directory_(std::move(directory)) {
    rules_.Add(kNeverAlong);
  }

  absl::Status Run() {
    const absl::StatusOr<std::string> ignored =
        ReadFile(absl::StrCat(directory_, "/", kIgnoreFile), kMaxIgnoreBytes);
    if (!ignored.ok() && !absl::IsNotFound(ignored.status()))
      return absl::InvalidArgumentError(ignored.status().message());
    if (ignored.ok()) rules_.Add(*ignored);
    if (absl::Status status = In("", 0); !status.ok()) return status;
    std::sort(entries_.begin(), entries_.end(),
              [](const Entry& a, const Entry& b) { return a.path < b.path; });
    if (bytes_ > kPackMaxBytes || Count() > kPackMaxEntries) return TooLarge();
    return absl::OkStatus();
  }
  const std::vector<Entry>& entries() const { return entries_; }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t Count() const { return static_cast<int64_t>(entries_.size()); }

  absl::Status In(const std::string& above, int depth) {
    const std::string path = above.empty() ? directory_ : Joined(directory_, above);
    if (depth > kMostDepth) return CannotCome(directory_, above, "lies too deep: move it up");
    DIR* open = ::opendir(path.c_str());
    if (open == nullptr) {
      const std::string why = absl::StrCat("can't be read: ", strerror(errno));
      if (above.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
      return CannotCome(directory_, above, why);
    }
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(open)) names.emplace_back(entry->d_name);
    const int error = errno;
    ::closedir(open);
    if (error != 0) return ErrnoStatus(error, path);
    for (const std::string& name : names) {
      if (name == "." || name == "..") continue;
      if (Count() > kMostSeen) return absl::OkStatus();  // it is too large, by far
      if (absl::Status status = Add(Joined(above, name), depth); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // What can't be looked at, by `error`. Of a directory that may be listed and not entered nothing
  // else would be told.
  absl::Status NotSeen(const std::string& path, int error) const {
    if (error == ENOENT || error == ENOTDIR) return absl::OkStatus();  // it has gone by now
    if (rules_.Ignores(path, /*directory=*/false)) return absl::OkStatus();
    const size_t slash = path.rfind('/');
    const std::string in =
        slash == std::string::npos ? directory_ : Joined(directory_, path.substr(0, slash));
    return CannotCome(directory_, path,
                      absl::StrCat("can't be looked at (", strerror(error),
                                   error == EACCES ? absl::StrCat("): chmod u+x ", in) : ")"));
  }

  absl::Status Add(const std::string& path, int depth) {
    struct stat info {};
    const std::string full = Joined(directory_, path);
    if (::lstat(full.c_str(), &info) != 0) return NotSeen(path, errno);
    if (rules_.Ignores(path, S_ISDIR(info.st_mode))) return absl::OkStatus();
    if (!IsPackPath(path)) return CannotCome(directory_, path, "has too long a name: shorten it");
    Entry entry;
    entry.path = path;
    if (S_ISDIR(info.st_mode)) {
      entry.kind = kPackDirectory;
    } else if (S_ISREG(info.st_mode)) {
      entry.kind = (info.st_mode & S_IXUSR) != 0 ? kPackProgram : kPackFile;
      entry.bytes = info.st_size;
    } else if (S_ISLNK(info.st_mode)) {
      char target[PATH_MAX];
      const ssize_t size = ::readlink(full.c_str(), target, sizeof target);
      if (size < 0) return NotSeen(path, errno);
      entry.kind = kPackLink;
      entry.target.assign(target, static_cast<size_t>(size));
      if (!IsPackLink(path, entry.target)) {
        return CannotCome(directory_, path,
                          absl::StrCat("is a link out of it, to ", entry.target,
                                       ", which a host may not have: put what it leads to here, or "
                                       "name that path itself where the hosts have it"));
      }
    } else {
      return absl::OkStatus();  // sockets and pipes are of this machine
    }
    bytes_ +=
        static_cast<int64_t>(kPackHeaderBytes + path.size() + entry.target.size()) + entry.bytes;
    const bool directory = entry.kind == kPackDirectory;
    entries_.push_back(std::move(entry));
    return directory ? In(path, depth + 1) : absl::OkStatus();
  }

  // What each directory and file has, all below it together.
  struct Sum {
    int64_t bytes = 0, entries = 0;
    bool operator<(const Sum& other) const {
      return std::pair(bytes, entries) > std::pair(other.bytes, other.entries);
    }
  };
  using Sums = std::vector<std::pair<Sum, std::string>>;
  // What lies right in `above`, the largest first.
  Sums LargestIn(const std::string& above) const {
    std::map<std::string, Sum> sums;
    const size_t skip = above.empty() ? 0 : above.size() + 1;
    for (const Entry& entry : entries_) {
      if (!above.empty() && !absl::StartsWith(entry.path, above + "/")) continue;
      Sum& sum = sums[entry.path.substr(0, entry.path.find('/', skip))];
      sum.bytes += entry.bytes;
      ++sum.entries;
    }
    Sums sorted;
    for (const auto& [path, sum] : sums) sorted.emplace_back(sum, path);
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }

  absl::Status TooLarge() const {
    std::string text = absl::StrCat(
        directory_, " can't come along: it has ", Count() > kMostSeen ? "more than " : "",
        FormatSize(bytes_), " in ", Count(), " files and directories; at most ",
        FormatSize(kPackMaxBytes), " in ", kPackMaxEntries, " may. The largest: ");
    Sums largest = LargestIn("");
    if (largest.size() > kNamedEntries) largest.resize(kNamedEntries);
    for (auto& [sum, path] : largest) {
      // Where nearly all of it is further down, that is named.
      for (Sums in = LargestIn(path);
           !in.empty() && in[0].first.bytes > sum.bytes * 4 / 5 && in[0].first.bytes > 0;
           in = LargestIn(path)) {
        sum = in[0].first;
        path = in[0].second;
      }
      absl::StrAppend(&text, path == largest[0].second ? "" : ", ", path, " (",
                      FormatSize(sum.bytes),
                      sum.entries > 1 ? absl::StrCat(", ", sum.entries, " entries") : "", ")");
    }
    return absl::InvalidArgumentError(
        absl::StrCat(text, ". Name what the job doesn't need in ", directory_, "/", kIgnoreFile,
                     ", one pattern a line, as in a .gitignore. Data that is on the hosts is named "
                     "by its path there; a whole directory that is there: --workdir /PATH"));
  }

  const std::string directory_;
  IgnoreRules rules_;
  std::vector<Entry> entries_;
  int64_t bytes_ = 0;
};

absl::StatusOr<std::string> Content(const std::string& directory, const Entry& entry) {
  const std::string full = Joined(directory, entry.path);
  const Descriptor file(::open(full.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) {
    return CannotCome(directory, entry.path,
                      absl::StrCat("can't be read (", strerror(errno), "): make it readable"));
  }
  std::string content;
  char buffer[65536];
  for (ssize_t got; (got = ::read(file.get(), buffer, sizeof buffer)) != 0;) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, full);
    content.append(buffer, static_cast<size_t>(got));
    if (static_cast<int64_t>(content.size()) > kPackMaxBytes)
      return CannotCome(directory, entry.path, "grows while it is packed: wait until it is whole");
  }
  return content;
}

}  // namespace

absl::StatusOr<Pack> PackDirectory(const std::string& directory) {
  Walk walk(directory);
  if (absl::Status status = walk.Run(); !status.ok()) return status;
  Pack pack;
  pack.bytes.reserve(static_cast<size_t>(walk.bytes()) + 64);
  pack.bytes = kPackMagic;
  for (const Entry& entry : walk.entries()) {
    std::string content = entry.target;
    if (entry.kind == kPackFile || entry.kind == kPackProgram) {
      absl::StatusOr<std::string> read = Content(directory, entry);
      if (!read.ok()) return read.status();
      content = *std::move(read);
    }
    pack.bytes += PackEntry(entry.kind, entry.path, content);
  }
  pack.entries = static_cast<int64_t>(walk.entries().size());
  pack.bytes += PackEntry(kPackEnd, "", "");
  if (static_cast<int64_t>(pack.bytes.size()) > kPackMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        directory, " can't come along: with all names it has more than ", FormatSize(kPackMaxBytes),
        ". Name what the job doesn't need in ", directory, "/", kIgnoreFile));
  }
  pack.digest = Sha256Hex(pack.bytes);
  return pack;
}

}  // namespace muster
