#include "agent/shim/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "agent/shim/durable.h"
#include "agent/shim/format.h"
#include "agent/shim/host.h"
#include "agent/shim/identity.h"
#include "agent/shim/loop.h"
#include "agent/shim/progress.h"
#include "agent/shim/times.h"
#include "agent/shim/tunnels.h"

namespace muster::shim {
namespace {

constexpr int kLinesATurn = 1000;  // of progress, before others are looked at
// How often the fence is looked at where no alarm can be set.
constexpr int64_t kFenceInterval = 1'000 * kMillisecond;
constexpr int64_t kLongestPollMs = 3'600'000;

// All shims of a host share one log.
class Log final : public Voice {
 public:
  explicit Log(std::string directory) : directory_(std::move(directory)) {}
  void Say(const std::string& text) override {
    WriteAll(2, "muster-shim: " + directory_ + ": " + text + "\n");
  }

 private:
  const std::string directory_;
};

// Where programs say how far they are.
class ProgressSocket {
 public:
  // `owner`: who alone may write to it, beside root; none: whoever runs this.
  ProgressSocket(std::string path, const std::optional<User>& owner)
      : path_(std::move(path)), owner_(owner) {}
  ~ProgressSocket() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(path_.c_str());
  }
  ProgressSocket(const ProgressSocket&) = delete;
  ProgressSocket& operator=(const ProgressSocket&) = delete;

  int fd() const { return fd_; }  // -1: there is none
  // False: errno says why.
  bool Open() {
    if (path_.empty()) return true;
    const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path_.data(), path_.size());
    ::unlink(path_.c_str());
    const auto bound = [&] {
      return ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    };
    // The agent has made the directory; when one of this user ends it is removed if it is empty.
    const std::string directory = path_.substr(0, path_.rfind('/'));
    if (fd < 0 ||
        !(bound() || (errno == ENOENT && ::mkdir(directory.c_str(), 0700) == 0 && bound())))
      return false;
    fd_ = fd;
    return !owner_.has_value() || GiveToOwner(directory);
  }
  void ReadTo(Loop* loop) {
    char buffer[kProgressLineBytes + 1];
    for (int i = 0; fd_ >= 0 && i < kLinesATurn; ++i) {
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))];
      iovec into{buffer, sizeof buffer};
      msghdr message{};
      message.msg_iov = &into;
      message.msg_iovlen = 1;
      // Room for who sent it, and none for descriptors, which the kernel then closes.
      if (owner_.has_value()) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
      }
      const ssize_t got = ::recvmsg(fd_, &message, MSG_TRUNC | MSG_CMSG_CLOEXEC);
      if (got < 0) return;
      if (owner_.has_value() && SenderOf(message) != owner_->uid) continue;
      loop->OnProgress({buffer, std::min(static_cast<size_t>(got), sizeof buffer)});
    }
  }

 private:
  // The directory may be entered, not listed; the socket is the owner's.
  bool GiveToOwner(const std::string& directory) {
    const int on = 1;
    return ::chmod(directory.c_str(), 0711) == 0 && ::chmod(path_.c_str(), 0600) == 0 &&
           ::lchown(path_.c_str(), owner_->uid, owner_->gid) == 0 &&
           ::setsockopt(fd_, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0;
  }
  // uid -1: it is not told.
  static uid_t SenderOf(msghdr& message) {
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
         part = CMSG_NXTHDR(&message, part)) {
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_CREDENTIALS) continue;
      ucred who{};
      memcpy(&who, CMSG_DATA(part), sizeof who);
      return who.uid;
    }
    return static_cast<uid_t>(-1);
  }

  const std::string path_;
  const std::optional<User> owner_;
  int fd_ = -1;
};

// Tells whoever watches over the devices' holder, on this machine, that something runs on them: an
// abstract socket's name stands in /proc/net/unix (python/muster_dev/use.py), whatever namespaces
// of processes hide, and goes with the shim, however that ends.
class HolderMark {
 public:
  explicit HolderMark(const std::string& name) {
    if (name.empty()) return;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path + 1, name.data(), name.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    fd_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd_ < 0 || ::bind(fd_, reinterpret_cast<sockaddr*>(&address), size) == 0) return;
    ::close(fd_);  // who has taken the name already gives the mark as well
    fd_ = -1;
  }
  ~HolderMark() {
    if (fd_ >= 0) ::close(fd_);
  }
  HolderMark(const HolderMark&) = delete;
  HolderMark& operator=(const HolderMark&) = delete;

 private:
  int fd_ = -1;
};

// Feeds the loop from the kernel.
class Driver {
 public:
  Driver(const std::string& directory, const Spec& spec, Log* log)
      : log_(log),
        directory_(directory),
        files_(directory),
        processes_(spec, directory),
        tunnels_(&processes_, log),
        progress_(spec.progress_socket, spec.user),
        mark_(spec.holder_mark),
        fenced_(spec.fence_after_ns > 0),
        loop_(spec, {&clock_, &files_, &processes_, log}) {}
  ~Driver() {
    if (signals_ >= 0) ::close(signals_);
  }

  int Run(const std::string& boot_id) {
    if (!loop_.ReadyToClaim(boot_id)) return kShimNotClaimed;
    if (!ReadSignalsFromNowOn() || (fenced_ && !alarm_.Make()) || !progress_.Open()) {
      log_->Say(std::string("cannot start: ") + strerror(errno));
      return kShimFailed;
    }
    tunnels_.Listen(directory_);
    if (const std::string problem = processes_.Open(); !problem.empty()) {
      log_->Say("cannot start: " + problem);
      return kShimFailed;
    }
    if (const Loop::Claimed claimed = loop_.TryClaim(); claimed != Loop::Claimed::kClaimed) {
      processes_.EndAll();
      return claimed == Loop::Claimed::kFailed ? kShimFailed : kShimNotClaimed;
    }
    loop_.Begin();
    for (Wake wake = loop_.Turn(); !loop_.Over(); wake = loop_.Turn()) {
      if (loop_.ended()) tunnels_.EndAll();
      WaitAndTell(wake);
    }
    return kShimDone;
  }

 private:
  bool ReadSignalsFromNowOn() {
    sigset_t wanted;
    ::sigemptyset(&wanted);
    for (const int signal : {SIGCHLD, SIGTERM, SIGUSR1, SIGINT, SIGHUP})
      ::sigaddset(&wanted, signal);
    if (::sigprocmask(SIG_SETMASK, &wanted, nullptr) != 0) return false;
    ::signal(SIGPIPE, SIG_IGN);
    signals_ = ::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
    return signals_ >= 0;
  }

  // poll's clock stands still while the machine sleeps. A fence's doesn't, and who wakes after it
  // may not run on until poll returns. False: it can't be set.
  bool SetAlarm(int64_t at_ns) {
    if (!fenced_ || at_ns == alarm_ns_) return true;
    if (!alarm_.Set(at_ns)) return false;
    alarm_ns_ = at_ns;
    return true;
  }

  void WaitAndTell(Wake wake) {
    const int64_t now_ns = clock_.BootNs();
    wake.at_ns = std::min(wake.at_ns, tunnels_.Turn(now_ns));
    if (!SetAlarm(wake.alarm_ns)) wake.at_ns = std::min(wake.at_ns, now_ns + kFenceInterval);
    std::vector<pollfd> polled = {
        {signals_, POLLIN, 0}, {alarm_.fd(), POLLIN, 0}, {progress_.fd(), POLLIN, 0}};
    processes_.AddTo(&polled);
    tunnels_.AddTo(&polled);
    const int timeout_ms =
        wake.at_ns == kNever
            ? -1
            : static_cast<int>(std::clamp<int64_t>(
                  (wake.at_ns - now_ns + kMillisecond - 1) / kMillisecond, 0, kLongestPollMs));
    if (::poll(polled.data(), polled.size(), timeout_ms) < 0 && errno != EINTR) {
      log_->Say(std::string("poll: ") + strerror(errno));
      return loop_.OnBlind();
    }
    processes_.Read(polled);
    progress_.ReadTo(&loop_);
    signalfd_siginfo info;
    while (::read(signals_, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGUSR1) loop_.OnStopFile();
      if (info.ssi_signo == SIGTERM) loop_.OnTerminate();
    }
    // First who has ended, then who has begun: one that has done both was heard whole.
    const std::vector<HostProcesses::Ended> ended = processes_.Reap();
    if (auto launched = processes_.Launched(); launched.has_value())
      loop_.OnExec(launched->first, std::move(launched->second));
    size_t beside = 0, killed = 0;
    for (const HostProcesses::Ended& end : ended) {
      if (tunnels_.Ended(end.pid, end.exit_code, end.signal))
        ++beside, killed += end.signal == SIGKILL;
      else
        loop_.OnEnded(end.pid, end.exit_code, end.signal);
    }
    if (killed > 0 && beside == ended.size()) loop_.OnOthersEnded();
  }

  Log* const log_;
  const std::string directory_;
  HostClock clock_;
  HostFiles files_;
  HostProcesses processes_;
  Tunnels tunnels_;
  ProgressSocket progress_;
  const HolderMark mark_;
  const bool fenced_;
  Loop loop_;
  int signals_ = -1;
  BootTimer alarm_;
  int64_t alarm_ns_ = kNever;
};

// Held for the shim's life. A lock by fcntl: the agent asks with F_GETLK and learns the holder's
// pid; children don't inherit it. Of the agent's record, which nothing here opens again: to close
// it a second time would give the lock up. And of the file that still has the name: the agent may
// have forgotten the attempt, or replaced its record, meanwhile.
bool LockAttempt(const std::string& directory) {
  const std::string name = directory + "/" + kPreparedFile;
  const int fd = ::open(name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  struct stat held {
  }, named{};
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (fd < 0 || ::fcntl(fd, F_SETLK, &lock) != 0) return false;
  return ::fstat(fd, &held) == 0 && ::lstat(name.c_str(), &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

std::string BootId() {
  std::string id;
  ReadSmallFile("/proc/sys/kernel/random/boot_id", &id);
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

}  // namespace

int RunShim(const std::string& directory) {
  ::umask(077);
  ::setsid();  // fails only for a session leader, which is as good
  Log log(directory);
  if (!LockAttempt(directory)) {
    log.Say("another shim has it, or it was forgotten");
    return kShimNotClaimed;
  }
  std::string content, error;
  Spec spec;
  if (const int failed = ReadAll(0, &content); failed != 0) {
    log.Say(std::string("spec: ") + strerror(failed));
    return kShimFailed;
  }
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup3(null, 0, O_CLOEXEC);  // what it was told is read once
  ::close(null);
  if (!ParseSpec(content, &spec, &error)) {
    log.Say(error);
    return kShimFailed;
  }
  if (const std::string why = WhyNotRunAs(spec, ::geteuid()); !why.empty()) {
    log.Say(why);
    return kShimFailed;
  }
  return Driver(directory, spec, &log).Run(BootId());
}

}  // namespace muster::shim
