#include "agent/shim/act.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "agent/shim/durable.h"
#include "agent/shim/identity.h"
#include "agent/shim/unpack.h"

namespace muster::shim {
namespace {

constexpr char kRequestName[] = "muster-shim-act", kResultName[] = "muster-shim-acted";
constexpr rlim_t kMostMemory = rlim_t{2} << 30;  // of one act: a directory may have many names
constexpr uint64_t kNoMagic = RESOLVE_NO_MAGICLINKS;

ActResult Failed(const std::string& what, int error) {
  return {NamesNothing(error) ? ActResult::Kind::kJobs : ActResult::Kind::kHosts,
          what + ": " + strerror(error), ""};
}

ActResult HostFailed(const std::string& what, int error) {
  return {ActResult::Kind::kHosts, what + ": " + strerror(error), ""};
}

// Of the way to a job's directories. A user who has them may have planted what is in the way, or
// filled the disk: no host is to blame, else three such jobs would take it from everybody.
ActResult StorageFailed(const ActRequest& request, const std::string& path, int error) {
  constexpr int kOwners[] = {EPERM, EXDEV, EEXIST, ENOSPC, EDQUOT};
  if (!request.user.has_value() ||
      !(NamesNothing(error) ||
        std::find(std::begin(kOwners), std::end(kOwners), error) != std::end(kOwners)))
    return HostFailed(path, error);
  return {ActResult::Kind::kJobs,
          path + ": " + strerror(error) + " (as uid " + std::to_string(request.user->uid) +
              ", the job's owner)",
          ""};
}

int Resolve(int below, const char* path, uint64_t flags, uint64_t resolve) {
  open_how how{};
  how.flags = flags;
  how.resolve = resolve;
  int fd = static_cast<int>(::syscall(SYS_openat2, below, path, &how, sizeof how));
  // A kernel before 5.6, or a sandbox that doesn't know it: no link at all at the end.
  if (fd < 0 && (errno == ENOSYS || errno == EPERM))
    fd = ::openat(below, path, static_cast<int>(flags | O_NOFOLLOW));
  return fd;
}

// The first component of `*path`, which loses it.
std::string TakeName(std::string_view* path) {
  while (!path->empty() && path->front() == '/') path->remove_prefix(1);
  const size_t end = std::min(path->find('/'), path->size());
  std::string name(path->substr(0, end));
  path->remove_prefix(end);
  return name;
}

bool IsBelow(const std::string& path, const std::string& directory) {
  return !directory.empty() && path.size() > directory.size() + 1 &&
         path.compare(0, directory.size(), directory) == 0 && path[directory.size()] == '/';
}

// Jobs have nothing to do with each other: their directories shall be spread over the disk as
// users' are (ext2 to ext4; others ignore it). Where all lie together each new one is looked for
// among those that were deleted lately (decision 040).
void SpreadBelow(const std::string& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int flags = 0;
  if (fd >= 0 && ::ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && (flags & FS_TOPDIR_FL) == 0) {
    flags |= FS_TOPDIR_FL;
    ::ioctl(fd, FS_IOC_SETFLAGS, &flags);
  }
  if (fd >= 0) ::close(fd);
}

// A directory, by a descriptor that is closed with this object.
class Directory {
 public:
  explicit Directory(int fd) : fd_(fd), error_(fd < 0 ? errno : 0) {}
  ~Directory() {
    if (fd_ >= 0) ::close(fd_);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  int fd() const { return fd_; }
  int error() const { return error_; }
  // A path to it that stays with it, whatever is renamed.
  std::string pinned() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  const int fd_;
  const int error_;
};

ActResult WriteTrainerConfig(const ActRequest& request, const Directory& job) {
  const std::string& path = request.trainer_directory;
  const bool below = IsBelow(path, request.job_directory);
  const Directory directory(OpenDirectory(
      below ? job.fd() : -1, below ? path.substr(request.job_directory.size() + 1) : path));
  int error = directory.error();
  if (error == 0) error = ReplaceFile(directory.pinned(), "trainer.json", request.trainer_json);
  return error == 0 ? ActResult() : StorageFailed(request, path + "/trainer.json", error);
}

ActResult CheckWorkdir(const std::string& workdir) {
  struct stat info {};
  if (::stat(workdir.c_str(), &info) != 0) return Failed("workdir " + workdir, errno);
  if (!S_ISDIR(info.st_mode)) return Failed("workdir " + workdir, ENOTDIR);
  if (::access(workdir.c_str(), X_OK) != 0) return Failed("workdir " + workdir, errno);
  return {};
}

ActResult CheckImage(const std::string& image) {
  struct stat info {};
  if (::stat(image.c_str(), &info) != 0) return Failed("image " + image, errno);
  if (!S_ISDIR(info.st_mode)) {
    return {ActResult::Kind::kJobs,
            "image " + image + ": is no directory; unpack it into one (docs/programs.md)", ""};
  }
  return ::access(image.c_str(), X_OK) != 0 ? Failed("image " + image, errno) : ActResult();
}

ActResult UnpackInJob(const ActRequest& request, const Directory& job) {
  const Unpacked unpacked = Unpack(job.fd(), request.unpacked, request.archive, request.umask);
  const std::string path = request.job_directory + "/" + request.unpacked;
  switch (unpacked.kind) {
    case Unpacked::Kind::kDone:
      return {};
    case Unpacked::Kind::kWanted:
      return {ActResult::Kind::kWanted, "", ""};
    case Unpacked::Kind::kBadArchive:
      return {ActResult::Kind::kJobs,
              "the directory that came along can't be unpacked: " + unpacked.what, ""};
    case Unpacked::Kind::kStorage:
      break;
  }
  return StorageFailed(request, path + ": " + unpacked.what, unpacked.error);
}

ActResult MakeOnStorage(const ActRequest& request) {
  const mode_t mode = 0777 & ~request.umask;
  if (!request.spread.empty()) {
    if (const Directory jobs(MakeDirectories(-1, request.spread, mode)); jobs.fd() >= 0)
      SpreadBelow(jobs.pinned());
  }
  const Directory job(
      request.job_directory.empty() ? -1 : MakeDirectories(-1, request.job_directory, mode));
  if (!request.job_directory.empty() && job.fd() < 0)
    return StorageFailed(request, request.job_directory, job.error());
  for (const std::string& path : request.directories) {
    const bool below = IsBelow(path, request.job_directory);
    const Directory made(MakeDirectories(
        below ? job.fd() : -1, below ? path.substr(request.job_directory.size() + 1) : path, mode));
    if (made.fd() < 0) return StorageFailed(request, path, made.error());
  }
  if (!request.workdir.empty()) {
    if (ActResult result = CheckWorkdir(request.workdir); !result.done()) return result;
  }
  if (!request.image.empty()) {
    if (ActResult result = CheckImage(request.image); !result.done()) return result;
  }
  if (!request.trainer_json.empty()) {
    if (ActResult result = WriteTrainerConfig(request, job); !result.done()) return result;
  }
  return request.unpacked.empty() ? ActResult() : UnpackInJob(request, job);
}

// From now on, so that nothing of it goes on beside what the agent's successor begins: of two at a
// time one could remove the other's export. False: it has ended already, nobody reads the result.
bool DieWithTheAgent() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  pollfd result{1, 0, 0};
  return ::poll(&result, 1, 0) <= 0 || (result.revents & POLLERR) == 0;
}

void AddText(const char* kind, const std::string& text, std::vector<Line>* lines) {
  if (!text.empty()) lines->push_back(Line{kind}.Add("text", text));
}

}  // namespace

int OpenDirectory(int below, const std::string& path) {
  return Resolve(below < 0 ? AT_FDCWD : below, path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC,
                 below < 0 ? kNoMagic : kNoMagic | RESOLVE_BENEATH);
}

int MakeDirectories(int below, const std::string& path, mode_t mode) {
  if (below < 0 && (path.empty() || path[0] != '/')) {
    errno = EINVAL;
    return -1;
  }
  // Most often it is there, or all of its parents are.
  const int at = below < 0 ? AT_FDCWD : below;
  if (below < 0 && ::mkdirat(at, path.c_str(), mode) != 0 && errno != EEXIST && errno != ENOENT)
    return -1;
  int there = OpenDirectory(below, path);
  if (there >= 0 || errno != ENOENT) return there;
  // Name by name, each below the one before it: a link on the way up leads nowhere.
  there = below < 0 ? ::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC) : ::dup(below);
  std::string_view rest = path;
  std::string so_far;
  while (there >= 0) {
    const std::string name = TakeName(&rest);
    if (name.empty()) return there;
    so_far += "/" + name;
    const bool made = ::mkdirat(there, name.c_str(), mode) == 0 || errno == EEXIST;
    const int next = !made       ? -1
                     : below < 0 ? OpenDirectory(-1, so_far)
                                 : OpenDirectory(there, name);
    const int error = errno;
    ::close(there);
    errno = error;
    there = next;
  }
  return -1;
}

std::string FormatActRequest(const ActRequest& request) {
  std::vector<Line> lines;
  if (request.user.has_value()) lines.push_back(UserLine(*request.user));
  lines.push_back(Line{"umask"}.Add("value", int64_t{request.umask}));
  AddText("job", request.job_directory, &lines);
  for (const std::string& directory : request.directories) AddText("make", directory, &lines);
  AddText("spread", request.spread, &lines);
  AddText("workdir", request.workdir, &lines);
  AddText("image", request.image, &lines);
  AddText("unpacked", request.unpacked, &lines);
  if (request.archive >= 0) lines.push_back(Line{"archive"}.Add("fd", int64_t{kArchiveFd}));
  AddText("trainer_directory", request.trainer_directory, &lines);
  AddText("trainer_json", request.trainer_json, &lines);
  AddText("staged", request.staged, &lines);
  AddText("target", request.target, &lines);
  return FormatFile(kRequestName, lines);
}

bool ParseActRequest(std::string_view content, ActRequest* request, std::string* error) {
  std::vector<Line> lines;
  if (!ParseFile(content, kRequestName, &lines, error)) return false;
  *request = ActRequest();
  const std::pair<const char*, std::string*> texts[] = {
      {"job", &request->job_directory},
      {"spread", &request->spread},
      {"workdir", &request->workdir},
      {"image", &request->image},
      {"unpacked", &request->unpacked},
      {"trainer_directory", &request->trainer_directory},
      {"trainer_json", &request->trainer_json},
      {"staged", &request->staged},
      {"target", &request->target}};
  for (const Line& line : lines) {
    bool known = false;
    for (const auto& [kind, text] : texts) {
      if (line.kind != kind) continue;
      *text = line.Get("text");
      known = true;
    }
    if (line.kind == "make") {
      request->directories.push_back(line.Get("text"));
      known = true;
    }
    int64_t umask = 0;
    if (line.kind == "umask" && line.GetInt("value", &umask) && umask >= 0 && umask <= 0777) {
      request->umask = static_cast<uint32_t>(umask);
      known = true;
    }
    int64_t archive = 0;
    if (line.kind == "archive" && line.GetInt("fd", &archive) && archive == kArchiveFd) {
      request->archive = kArchiveFd;
      known = true;
    }
    if (line.kind == "user") known = ReadUser(line, &request->user.emplace());
    if (known) continue;
    *error = std::string(kRequestName) + ": bad line " + line.kind;
    return false;
  }
  return true;
}

std::string FormatActResult(const ActResult& result) {
  return FormatFile(kResultName, {Line{"result"}
                                      .Add("kind", static_cast<int64_t>(result.kind))
                                      .Add("text", result.text)
                                      .Add("note", result.note)});
}

bool ParseActResult(std::string_view content, ActResult* result, std::string* error) {
  std::vector<Line> lines;
  int64_t kind = 0;
  if (!ParseFile(content, kResultName, &lines, error)) return false;
  if (lines.size() != 1 || lines[0].kind != "result" || !lines[0].GetInt("kind", &kind) ||
      kind < 0 || kind > static_cast<int64_t>(ActResult::Kind::kWanted)) {
    *error = std::string(kResultName) + ": wants one result line";
    return false;
  }
  *result = {static_cast<ActResult::Kind>(kind), lines[0].Get("text"), lines[0].Get("note")};
  return true;
}

ActResult Act(const ActRequest& request) {
  if (ActResult result = MakeOnStorage(request); !result.done() || request.staged.empty())
    return result;
  return PublishExport(request.staged, request.job_directory, request.target);
}

int RunAct() {
  std::string content, error, step;
  ActRequest request;
  const auto tell = [](const ActResult& result) {
    return WriteAll(1, FormatActResult(result)) == 0 ? 0 : 70;
  };
  if (!DieWithTheAgent()) return 70;
  if (const int failed = ReadAll(0, &content); failed != 0)
    return tell(HostFailed("request", failed));
  if (!ParseActRequest(content, &request, &error))
    return tell({ActResult::Kind::kHosts, error, ""});
  if (!request.user.has_value())
    return tell({ActResult::Kind::kHosts, "muster-shim --act: the request names no user", ""});
  if (const std::string why = WhyNotRunAs(*request.user); !why.empty())
    return tell({ActResult::Kind::kHosts, why, ""});
  if (::chdir("/") != 0) return tell(HostFailed("/", errno));
  int failed = BecomeUser(*request.user, &step);
  if (failed == 0) failed = GiveUpTheRest(&step);
  if (failed != 0)
    return tell(
        HostFailed("to become uid " + std::to_string(request.user->uid) + ": " + step, failed));
  if (!DieWithTheAgent()) return 70;  // once more: BecomeUser has cleared it
  const rlimit memory{kMostMemory, kMostMemory};
  ::setrlimit(RLIMIT_AS, &memory);
  ::umask(request.umask);
  return tell(Act(request));
}

}  // namespace muster::shim
