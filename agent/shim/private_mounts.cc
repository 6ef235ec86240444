#include "agent/shim/private_mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

namespace muster::shim {
namespace {

constexpr unsigned long kPlain = MS_NOSUID | MS_NODEV;
constexpr char kMemory[] = "/tmp", kShared[] = "/dev/shm", kVarTmp[] = "/var/tmp";
constexpr const char* kCommonDevices[] = {"/dev/null",   "/dev/zero",    "/dev/full",
                                          "/dev/random", "/dev/urandom", "/dev/tty"};

// Paths opened before something is mounted over them, to be shown elsewhere.
class Held {
 public:
  explicit Held(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_PATH | O_CLOEXEC | O_NOFOLLOW)) {}
  Held(Held&& other) noexcept : path_(other.path_), fd_(other.fd_) { other.fd_ = -1; }
  Held(const Held&) = delete;
  ~Held() {
    if (fd_ >= 0) ::close(fd_);
  }

  const std::string& path() const { return path_; }
  bool is_there() const { return fd_ >= 0; }
  bool IsDirectory() const {
    struct stat info {};
    return ::fstat(fd_, &info) == 0 && S_ISDIR(info.st_mode);
  }
  int ShowAt(const std::string& target) const {
    const std::string source = "/proc/self/fd/" + std::to_string(fd_);
    return ::mount(source.c_str(), target.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0 ? 0
                                                                                            : errno;
  }

 private:
  const std::string path_;
  int fd_;
};

int Mount(const char* type, const std::string& target, unsigned long flags, const char* options) {
  return ::mount(type, target.c_str(), type, flags, options) == 0 ? 0 : errno;
}

int MakePlace(const std::string& path, bool directory) {
  for (size_t i = path.find('/', 1); i != std::string::npos; i = path.find('/', i + 1)) {
    if (::mkdir(path.substr(0, i).c_str(), 0755) != 0 && errno != EEXIST) return errno;
  }
  if (directory) return ::mkdir(path.c_str(), 0755) == 0 || errno == EEXIST ? 0 : errno;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return errno;
  ::close(fd);
  return 0;
}

// An empty /dev, and in it what was held, each under its name.
int MakeDev(const std::vector<Held>& nodes, std::string* what) {
  *what = "/dev";
  if (const int error = Mount("tmpfs", "/dev", kPlain | MS_NOEXEC, "mode=0755,size=1m"); error != 0)
    return error;
  for (const Held& node : nodes) {
    *what = node.path();
    int error = MakePlace(node.path(), node.IsDirectory());
    if (error == 0) error = node.ShowAt(node.path());
    if (error != 0) return error;
  }
  *what = "/dev/pts";
  if (::mkdir("/dev/pts", 0755) != 0) return errno;
  if (const int error =
          Mount("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620");
      error != 0)
    return error;
  constexpr const char* kLinks[][2] = {{"pts/ptmx", "/dev/ptmx"},
                                       {"/proc/self/fd", "/dev/fd"},
                                       {"/proc/self/fd/0", "/dev/stdin"},
                                       {"/proc/self/fd/1", "/dev/stdout"},
                                       {"/proc/self/fd/2", "/dev/stderr"}};
  for (const auto& [to, name] : kLinks) {
    *what = name;
    if (::symlink(to, name) != 0) return errno;
  }
  *what = kShared;
  return ::mkdir(kShared, 0755) == 0 ? 0 : errno;
}

}  // namespace

std::vector<std::string> PrivateDirectories() { return {"/tmp", "/var/tmp", "/dev", "/run/user"}; }

bool IsPrivate(std::string_view path) { return !WhyPrivate(path).empty(); }

std::string WhyPrivate(std::string_view path) {
  for (const std::string& directory : PrivateDirectories()) {
    if (path.substr(0, directory.size()) == directory &&
        (path.size() == directory.size() || path[directory.size()] == '/'))
      return directory + " is private to each job: nothing of the host's is there";
  }
  return "";
}

int MakePrivateMounts(const std::vector<std::string>& devices, std::string* what) {
  std::vector<Held> nodes;
  for (const char* name : kCommonDevices) nodes.emplace_back(name);
  for (const std::string& name : devices) nodes.emplace_back(name);
  for (const Held& node : nodes) {
    *what = node.path();
    if (!node.is_there()) return ENOENT;
  }
  // One file system in memory for all three, so that one bound holds for them together.
  *what = kMemory;
  if (const int error = Mount("tmpfs", kMemory, kPlain, "mode=0755,size=50%"); error != 0)
    return error;
  std::vector<Held> places;
  for (const char* name : {"/tmp/tmp", "/tmp/var", "/tmp/shm"}) {
    if (::mkdir(name, 01777) != 0 || ::chmod(name, 01777) != 0) return errno;
    places.emplace_back(name);
  }
  if (const int error = MakeDev(nodes, what); error != 0) return error;
  constexpr const char* kOver[] = {kMemory, kVarTmp, kShared};
  for (size_t i = places.size(); i-- > 0;) {  // /tmp last: it covers the others' names
    *what = kOver[i];
    if (kOver[i] == kVarTmp && ::access(kVarTmp, F_OK) != 0) continue;
    if (const int error = places[i].ShowAt(kOver[i]); error != 0) return error;
  }
  // Where other daemons of this user listen that would start processes for it, out of our reach.
  *what = "/run/user";
  if (::access("/run/user", F_OK) != 0) return 0;
  return Hide("/run/user");
}

int Hide(const std::string& directory) {
  return Mount("tmpfs", directory, kPlain | MS_NOEXEC | MS_RDONLY, "mode=0755,size=4k,nr_inodes=2");
}

}  // namespace muster::shim
