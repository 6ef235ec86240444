#include "agent/shim/host.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/shim/durable.h"
#include "agent/shim/exec_status.h"
#include "agent/shim/identity.h"
#include "agent/shim/private_mounts.h"
#include "agent/shim/rules.h"
#include "agent/shim/times.h"

namespace muster::shim {
namespace {

constexpr size_t kReservedBytes = 4096;  // for a stop order, and for exit records: one block
constexpr int kExportsFd = 9;            // of a setup: where it tells the variables that it leaves

// STATE of STATE/attempts/ATTEMPT.
std::string StateDirectoryOf(const std::string& attempt) {
  const size_t last = attempt.rfind('/');
  const size_t attempts =
      last == std::string::npos || last == 0 ? std::string::npos : attempt.rfind('/', last - 1);
  return attempts == std::string::npos ? "" : attempt.substr(0, attempts);
}

// Nothing of the shim's goes along, whatever a later change opens without O_CLOEXEC: from this
// descriptor on each closes with the exec.
int CloseOnExecFrom(unsigned first) {
  return ::close_range(first, ~0U, CLOSE_RANGE_CLOEXEC) == 0 ? 0 : errno;
}

// "pid (any name) state ppid pgrp session ...". 0: it can't be read, or the process has ended.
pid_t SessionOf(const std::string& process) {
  std::string stat;
  if (ReadSmallFile(process + "/stat", &stat) != 0) return 0;
  const size_t name_end = stat.rfind(") ");
  if (name_end == std::string::npos) return 0;
  char state = 'Z';
  int session = 0;
  const int got = ::sscanf(stat.c_str() + name_end + 2, "%c %*d %*d %d", &state, &session);
  return got == 2 && state != 'Z' && state != 'X' ? session : 0;
}

// By /proc, if that numbers processes as this namespace does; else only the first process group.
int SignalMembers(pid_t number, int signal) {
  char own[32] = "";
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr || ::readlink("/proc/self", own, sizeof own - 1) <= 0 ||
      std::to_string(::getpid()) != own) {
    if (proc != nullptr) ::closedir(proc);
    return ::kill(-number, signal) == 0 ? 1 : 0;
  }
  int found = 0;
  while (const dirent* entry = ::readdir(proc)) {
    char* end = nullptr;
    const long pid = ::strtol(entry->d_name, &end, 10);
    if (end == entry->d_name || *end != '\0' || pid <= 1) continue;
    if (SessionOf(std::string("/proc/") + entry->d_name) != number) continue;
    ::kill(static_cast<pid_t>(pid), signal);
    ++found;
  }
  ::closedir(proc);
  return found;
}

}  // namespace

int64_t HostClock::WallNs() { return shim::WallNs(); }
int64_t HostClock::BootNs() { return SteadyNs(); }

// ---- files ----

HostFiles::~HostFiles() {
  if (events_ >= 0) ::close(events_);
}

int HostFiles::ReadClaim(Claim* claim) { return shim::ReadClaim(directory_, claim); }

int HostFiles::MakeClaim(Claim* winner) {
  return shim::MakeClaim(directory_, Claim::kStarted, winner);
}

int HostFiles::Read(const char* name, std::string* content) {
  return ReadSmallFile(directory_ + "/" + name, content);
}

int HostFiles::Replace(const char* name, std::string_view content, bool sync) {
  return ReplaceFile(directory_, name, content, sync);
}

void HostFiles::Reserve(const char* name) { ReserveFile(directory_, name, kReservedBytes); }

int HostFiles::WriteEvents(int64_t at, std::string_view text) {
  if (events_ < 0)
    events_ = ::open((directory_ + "/" + kEventsFile).c_str(),
                     O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (events_ < 0) return errno;
  if (::lseek(events_, at, SEEK_SET) != at) return errno;
  int error = WriteAll(events_, text);
  if (error != 0 && ::ftruncate(events_, at) != 0) error = errno;  // no half of a line
  return error;
}

int HostFiles::SyncEvents() {
  if (events_ < 0) return EBADF;
  if (::fdatasync(events_) != 0) return errno;
  if (events_named_) return 0;
  const int error = SyncDirectory(directory_);
  events_named_ = error == 0;
  return error;
}

bool HostFiles::Forgotten() { return ::access(directory_.c_str(), F_OK) != 0; }

// ---- timers ----

BootTimer::~BootTimer() {
  if (fd_ >= 0) ::close(fd_);
}

bool BootTimer::Make() {
  fd_ = ::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
  return fd_ >= 0;
}

bool BootTimer::Set(int64_t at_ns, bool* over) {
  itimerspec when{}, before{};  // never
  if (at_ns != kNever) when.it_value = {at_ns / 1'000'000'000, at_ns % 1'000'000'000};
  if (fd_ < 0 || ::timerfd_settime(fd_, TFD_TIMER_ABSTIME, &when, &before) != 0) return false;
  if (over != nullptr) *over = set_ && before.it_value.tv_sec == 0 && before.it_value.tv_nsec == 0;
  set_ = at_ns != kNever;
  return true;
}

// ---- processes ----

struct HostProcesses::Pipes {
  int out[2] = {-1, -1}, err[2] = {-1, -1}, status[2] = {-1, -1}, exports[2] = {-1, -1};

  bool Make(bool setup) {
    return ::pipe2(out, O_CLOEXEC) == 0 && ::pipe2(err, O_CLOEXEC) == 0 &&
           ::pipe2(status, O_CLOEXEC) == 0 && (!setup || ::pipe2(exports, O_CLOEXEC) == 0);
  }
  void Close(int end) {
    for (int* pipe : {out, err, status, exports}) {
      if (pipe[end] >= 0) ::close(pipe[end]);
      pipe[end] = -1;
    }
  }
};

// What a program gets of descriptors, and where it says how far it is.
struct HostProcesses::Ends {
  int in = -1, out = -1, err = -1, status = -1, exports = -1;  // in -1: /dev/null
  bool terminal = false;
  bool beside = false;  // a session of its own
  volatile pid_t* number = nullptr;
};

HostProcesses::HostProcesses(const Spec& spec, const std::string& directory)
    : spec_(spec),
      state_directory_(StateDirectoryOf(directory)),
      self_(::getpid()),
      cgroups_{spec.cgroup, spec.memory_cgroup, spec.pids_cgroup},
      outputs_(directory + "/" + kLogsDirectory, spec.log_file_bytes, spec.log_files,
               spec.log_line_bytes) {}

std::string HostProcesses::Open() {
  if (spec_.fence_after_ns > 0 && !deadline_.Make()) return strerror(errno);
  if (spec_.user.has_value()) {
    void* page =
        ::mmap(nullptr, sizeof(pid_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return strerror(errno);
    number_ = static_cast<volatile pid_t*>(page);
  }
  if (!spec_.image.path.empty()) {
    const int opened = ::open("/proc/self/exe", O_PATH | O_CLOEXEC);
    // Not 9, which a setup's exports take in the child that enters the image.
    own_program_ = ::fcntl(opened, F_DUPFD_CLOEXEC, kExportsFd + 1);
    if (own_program_ < 0) return std::string("its own program: ") + strerror(errno);
    ::close(opened);
  }
  isolation_ = std::make_unique<Isolation>(spec_.token, spec_.pid_namespace, cgroups_,
                                           deadline_.fd(), spec_.user.has_value(), spec_.devices);
  return isolation_->problem();
}

void HostProcesses::AddTo(std::vector<pollfd>* polled) const {
  polled->push_back({launch_status_, POLLIN, 0});
  outputs_.AddTo(polled);
}

std::vector<HostProcesses::Ended> HostProcesses::Reap() {
  std::vector<Ended> ended;
  int status = 0;
  while (true) {
    const pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid > 0) {
      if (pid == isolation_->keeper()) isolation_->KeeperEnded();
      ended.push_back({pid, WIFEXITED(status) ? WEXITSTATUS(status) : 0,
                       WIFSIGNALED(status) ? WTERMSIG(status) : 0});
    } else if (pid == 0 || errno != EINTR) {
      return ended;
    }
  }
}

std::optional<std::pair<pid_t, std::string>> HostProcesses::Launched() {
  if (launch_status_ < 0) return std::nullopt;
  const std::optional<std::string> said = ReadLaunch(launch_status_, &launch_said_);
  if (!said.has_value()) return std::nullopt;
  ::close(launch_status_);
  launch_status_ = -1;
  launch_said_.clear();
  return std::pair(launched_, *said);
}

pid_t HostProcesses::Start(const Launch& launch, std::string* problem) {
  Pipes pipes;
  if (!pipes.Make(launch.setup)) {
    *problem = std::string("launch: ") + strerror(errno);
    pipes.Close(0);
    pipes.Close(1);
    return -1;
  }
  RememberNumber();
  if (number_ != nullptr) *number_ = 0;
  Ends ends;
  ends.out = pipes.out[1];
  ends.err = pipes.err[1];
  ends.status = pipes.status[1];
  ends.exports = launch.setup ? pipes.exports[1] : -1;
  ends.number = number_;
  const pid_t pid = ForkProgram(launch.argv, launch.env, ends);
  if (pid < 0) *problem = std::string("launch: fork: ") + strerror(errno);
  pipes.Close(1);
  if (pid < 0) {
    pipes.Close(0);
    return -1;
  }
  ::setpgid(pid, pid);
  if (!launch.setup) environments_[launch.rank] = launch.env;
  outputs_.AddLog(pipes.out[0], launch.rank, /*is_error=*/false);
  outputs_.AddLog(pipes.err[0], launch.rank, /*is_error=*/true);
  if (launch.setup) outputs_.AddExports(pipes.exports[0], launch.worker);
  // One that was given up on its way to its exec may still say something: nobody asks any more.
  if (launch_status_ >= 0) ::close(launch_status_);
  launched_ = pid;
  launch_status_ = pipes.status[0];
  launch_said_.clear();
  ::fcntl(launch_status_, F_SETFL, O_NONBLOCK);
  return pid;
}

// In the child, with the pipes in their places. 0, or an errno with the step that failed.
int HostProcesses::BecomeOwner(std::string* step) const {
  GiveUpPrecedence();
  *step = "state directory";
  if (::unshare(CLONE_NEWNS) != 0) return errno;
  if (const int error = Hide(state_directory_); error != 0) return error;
  *step = "processes";
  if (const auto most = static_cast<rlim_t>(spec_.most_processes); most > 0) {
    const rlimit limit{most, most};
    if (::setrlimit(RLIMIT_NPROC, &limit) != 0) return errno;
  }
  if (const int error = BecomeUser(*spec_.user, step); error != 0) return error;
  // The kernel has cleared what EnterChild asked for.
  *step = "its shim is dead";
  if (!isolation_->EnterChild(self_)) return ESRCH;
  return GiveUpTheRest(step);
}

pid_t HostProcesses::ForkProgram(const std::vector<std::string>& argv,
                                 const std::vector<EnvironmentVariable>& environment,
                                 const Ends& ends) {
  std::vector<std::string> variables;
  for (const EnvironmentVariable& variable : environment)
    variables.push_back(variable.name + "=" + variable.value);
  variables.push_back(std::string(kTokenVariable) + "=" + spec_.token);
  std::vector<char*> words, entries;
  Image image = spec_.image;
  image.workdir = spec_.workdir;
  const std::string entered[] = {"muster-shim", "--enter", std::to_string(ends.status),
                                 FormatImage(image)};
  if (own_program_ >= 0) {
    for (const std::string& word : entered) words.push_back(const_cast<char*>(word.c_str()));
  }
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  for (const std::string& variable : variables)
    entries.push_back(const_cast<char*>(variable.c_str()));
  entries.push_back(nullptr);
  Cgroups left;
  const pid_t pid = ForkInto(cgroups_, &left);
  if (pid == 0) BecomeProgram(ends, left, words, entries);
  return pid;
}

pid_t HostProcesses::StartBeside(const Beside& beside, int* status, std::string* problem) {
  const auto found = environments_.find(beside.rank);
  if (found == environments_.end()) {
    *problem = "rank " + std::to_string(beside.rank) + " has not started yet";
    return -1;
  }
  std::vector<EnvironmentVariable> environment = found->second;
  if (beside.terminal && !beside.term.empty()) {
    std::erase_if(environment, [](const auto& variable) { return variable.name == "TERM"; });
    environment.push_back({"TERM", beside.term});
  }
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) {
    *problem = std::string("launch: ") + strerror(errno);
    return -1;
  }
  Ends ends;
  ends.in = beside.in;
  ends.out = beside.out;
  ends.err = beside.err;
  ends.status = pipe[1];
  ends.terminal = beside.terminal;
  ends.beside = true;
  ends.number = beside.number;
  const pid_t pid = ForkProgram(beside.argv, environment, ends);
  if (pid < 0) *problem = std::string("launch: fork: ") + strerror(errno);
  ::close(pipe[1]);
  if (pid < 0) {
    ::close(pipe[0]);
    return -1;
  }
  *status = pipe[0];
  ::fcntl(pipe[0], F_SETFL, O_NONBLOCK);
  return pid;
}

pid_t HostProcesses::ForkWithin(const std::function<void()>& work) const {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  if (isolation_->EnterChild(self_)) work();
  ::_exit(0);
}

int HostProcesses::SignalSession(pid_t number, int signal) const {
  int count[2];
  if (number <= 1 || ::pipe2(count, O_CLOEXEC) != 0) return 0;
  const pid_t pid = ForkWithin([&] {
    const int found = SignalMembers(number, signal);
    if (::write(count[1], &found, sizeof found) != sizeof found) ::_exit(1);
  });
  ::close(count[1]);
  int found = 0;
  if (pid > 0) {
    while (::read(count[0], &found, sizeof found) < 0 && errno == EINTR) {
    }
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  ::close(count[0]);
  return found;
}

// In the child. 0, or an errno.
int HostProcesses::TakeDescriptors(const Ends& ends) const {
  const int in = ends.in >= 0 ? ends.in : ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (::dup2(in, 0) < 0 || ::dup2(ends.out, 1) < 0 || ::dup2(ends.err, 2) < 0) return errno;
  if (ends.terminal && ::ioctl(0, TIOCSCTTY, 0) != 0) return errno;
  if (ends.exports >= 0 && ::dup2(ends.exports, kExportsFd) != kExportsFd) return errno;
  if (!spec_.user.has_value()) return 0;
  // The owner's, or nobody could open /dev/stderr.
  for (int fd = ends.in >= 0 ? 0 : 1; fd <= 2; ++fd) {
    if (::fchown(fd, spec_.user->uid, spec_.user->gid) != 0) return errno;
  }
  return CloseOnExecFrom(ends.exports >= 0 ? kExportsFd + 1 : 3);
}

// In the child.
void HostProcesses::BecomeProgram(const Ends& ends, const Cgroups& left,
                                  const std::vector<char*>& words,
                                  const std::vector<char*>& entries) const {
  const auto fail = [&](const std::string& what) {
    TellLaunchFailure(ends.status, what, errno);
    ::_exit(127);
  };
  const auto fail_here = [&](const std::string& what) {
    TellHostFailure(ends.status, what, errno);
    ::_exit(127);
  };
  if (!isolation_->EnterChild(self_)) ::_exit(127);
  if (ends.number != nullptr) *ends.number = ::getpid();
  if (errno = EnterCgroups(left); errno != 0) fail_here("its control group");
  if (ends.beside)
    ::setsid();
  else
    ::setpgid(0, 0);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  if (errno = TakeDescriptors(ends); errno != 0) fail_here("its input and output");
  if (spec_.user.has_value()) {
    std::string step;
    if (errno = BecomeOwner(&step); errno != 0)
      fail_here("to become uid " + std::to_string(spec_.user->uid) + ": " + step);
  }
  ::umask(spec_.umask);
  if (own_program_ >= 0) BecomeEntrant(ends.status, words, entries);
  if (!spec_.workdir.empty() && ::chdir(spec_.workdir.c_str()) != 0)
    fail("workdir " + spec_.workdir);
  environ = const_cast<char**>(entries.data());  // execvp looks along the job's PATH, not ours
  ::execvp(words[0], words.data());
  const int error = errno;
  std::string what = std::string("exec ") + words[0];
  if (error == ENOENT && spec_.user.has_value() && IsPrivate(words[0]))
    what += " (" + WhyPrivate(words[0]) + ")";
  errno = error;
  fail(what);
  ::_exit(127);
}

// In the child. By an exec: the process that enters the image has nothing of the shim's in its
// memory, and may be looked at by its user, as the kernel wants for the maps of a user namespace.
void HostProcesses::BecomeEntrant(int status, const std::vector<char*>& words,
                                  const std::vector<char*>& entries) const {
  if (::fcntl(status, F_SETFD, 0) == 0)
    ::syscall(SYS_execveat, own_program_, "", words.data(), entries.data(), AT_EMPTY_PATH);
  if (errno == E2BIG) {
    TellLaunchFailure(status, "exec with its words and environment", errno);
  } else {
    TellHostFailure(status, "muster-shim", errno);
  }
  ::_exit(127);
}

// From within the namespace: out there a group's number that is free again may be anybody's, whom
// root would hit.
bool HostProcesses::SignalInNamespace(pid_t group, int signal) const {
  const pid_t pid = ::fork();
  if (pid < 0) return true;  // it can't be told
  if (pid == 0) ::_exit(::kill(-group, signal) == 0 ? 0 : 1);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool HostProcesses::SignalGroup(pid_t pid, int signal) {
  if (!spec_.user.has_value()) return ::kill(-pid, signal) == 0;
  if (::kill(-pid, 0) != 0) return false;
  RememberNumber();
  const auto inside = numbers_.find(pid);
  if (inside != numbers_.end()) return SignalInNamespace(inside->second, signal);
  // It has yet to say its number: it is our child still, and alone.
  return pid == launched_ && ::kill(pid, signal) == 0;
}

// The number that the process which was started last has in the namespace, once it has said so.
void HostProcesses::RememberNumber() {
  if (number_ == nullptr || launched_ < 0) return;
  const pid_t number = *number_;
  if (number > 1) numbers_[launched_] = number;
}

bool HostProcesses::GroupLives(pid_t pid) { return SignalGroup(pid, 0); }

void HostProcesses::Kill(pid_t pid) { ::kill(pid, SIGKILL); }

void HostProcesses::Report(const std::string& line) { outputs_.Report(line); }

void HostProcesses::Log(int32_t rank, const std::string& text) {
  outputs_.Log(rank, text, /*is_error=*/true);
}

int64_t HostProcesses::OomKills() { return shim::OomKills(cgroups_); }

std::optional<Measured> HostProcesses::MeasureUse() {
  if (used_.has_value()) return used_;
  if (launched_ < 0) return Measured();  // nothing runs yet
  return Measure({cgroups_, self_, isolation_->keeper()}, /*live=*/true);
}

void HostProcesses::EndAll() {
  isolation_->KillAll();
  // What got away from that is still of its control group; its devices are not free before it is
  // empty.
  for (Backoff backoff; CgroupPopulated(cgroups_); backoff.Pause()) KillCgroup(cgroups_);
  used_ = Measure({cgroups_, self_}, /*live=*/false);
  RemoveCgroups(cgroups_);
  outputs_.Drain();
}

bool HostProcesses::SetDeadline(int64_t boot_ns) {
  bool over = false;
  deadline_.Set(boot_ns, &over);
  return over;
}

}  // namespace muster::shim
