#include "agent/shim/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "agent/shim/cgroup.h"
#include "agent/shim/durable.h"
#include "agent/shim/exec_status.h"
#include "agent/shim/format.h"
#include "agent/shim/isolate.h"
#include "agent/shim/log_writer.h"
#include "agent/shim/progress.h"
#include "agent/shim/rules.h"
#include "agent/shim/times.h"

namespace muster::shim {
namespace {

constexpr int64_t kProgressInterval =
    20 * kMillisecond;  // the newest metrics are written at most so often
constexpr int64_t kExecPatience = 20'000 * kMillisecond;  // from fork to exec
constexpr int64_t kTimesInterval = 2'000 * kMillisecond;  // of DIR/times
constexpr int64_t kEventsDelay =
    250 * kMillisecond;                  // what ends sooner says all in its exit records
constexpr size_t kReservedBytes = 4096;  // for a stop order, and for exit records: one block
constexpr int64_t kFenceInterval =
    1'000 * kMillisecond;            // how often the fence is looked at where no alarm can be set
constexpr int kTurnBytes = 1 << 20;  // read of a stream before others are looked at
constexpr int64_t kLeftoverInterval =
    20 * kMillisecond;  // how often strays are looked for while a stop waits for them
constexpr int64_t kGroupsInterval =
    1'000 * kMillisecond;  // how often process groups whose first process has ended are
constexpr int64_t kDeadlineMargin =
    2'000 * kMillisecond;  // behind a fence and its grace: the keeper kills then. Who waits for the
                           // fence waits for longer
constexpr int64_t kEventsRetry = 1'000 * kMillisecond;  // on a full disk
constexpr int kEventsTries = 600;  // of an ended attempt's; then its exits are told without
constexpr size_t kPendingEventsBytes = 4 << 20;  // kept for a full disk; what comes then is dropped

// All shims of a host share one log.
std::string g_directory;
void Say(const std::string& text) {
  WriteAll(2, "muster-shim: " + g_directory + ": " + text + "\n");
}

// One running program: a worker's setup, or one of its processes. Its output goes to the log of
// `rank`.
struct Child {
  size_t worker = 0;
  int32_t rank = 0;
  bool setup = false;
  bool running = true;
  bool group =
      true;  // its process group may have members; false: its number may be anybody's by now
};

struct Stream {
  int fd = -1;
  int32_t rank = 0;
  bool environment = false;  // setup's `env -0` instead of a log
  size_t worker = 0;
  std::unique_ptr<LineBuffer> lines;
};

struct Worker {
  std::string environment;  // what setup printed
};

class Shim {
 public:
  Shim(std::string directory, Spec spec)
      : directory_(std::move(directory)),
        spec_(std::move(spec)),
        rules_(spec_.failure_kill_ns),
        fence_(spec_.fence_after_ns, spec_.renewed_ns),
        metrics_limit_(kProgressLinesPerSecond) {}

  int Run();

 private:
  bool Open();
  bool OpenProgressSocket();
  void StartWorker(size_t index);
  void StartProcesses(size_t index);
  void Start(size_t worker, int32_t rank, bool setup, const std::vector<std::string>& argv,
             const std::vector<EnvironmentVariable>& environment);
  void AppendEvent(const Line& line) { pending_events_ += FormatLine(line); }
  bool WriteEvents(bool durable);
  void ReadSignals();
  void ReadProgress();
  void Take(DurableLines* lines, bool last);
  void WriteDurableLines(bool last);
  void WriteProgress();
  void WriteTimes();
  void LookAtStops();
  void ReadStream(Stream* stream);
  void CloseStream(Stream* stream);
  void Reap();
  void ChildEnded(pid_t pid, int status);
  void RecordExit(int32_t rank, int exit_code, int signal, std::string detail, bool at_once = true,
                  bool own = false);
  bool KilledForMemory();
  void ReadStop();
  bool Fenced();
  bool Late() { return Fenced() && (deadline_over_ || !InTime(fence_, SteadyNs())); }
  void Stop(int64_t grace_ns);
  bool SetAlarm(int64_t at_ns);
  void SetDeadline();
  int64_t LookAtGroups(int64_t now_ns);
  void SignalAll(int signal);
  bool AnyLeft();
  void Loop();
  void Finish();
  LogWriter* Log(int32_t rank);

  const std::string directory_;
  const Spec spec_;
  const pid_t self_ = ::getpid();
  std::unique_ptr<Isolation> isolation_;
  int signals_ = -1;
  int alarm_ = -1;  // CLOCK_BOOTTIME; with a fence
  int64_t alarm_ns_ = kNever;
  int deadline_ = -1;  // likewise; the keeper's, who does without disks
  bool deadline_set_ = false, deadline_over_ = false;
  int64_t groups_due_ns_ = 0;
  int events_ = -1;
  off_t events_bytes_ = -1;       // that are whole lines; -1: not asked yet
  bool events_named_ = false;     // the file's name survives power loss
  std::string pending_events_;    // not yet written
  bool durable_pending_ = false;  // what is to be synced is among them
  bool lines_pending_ = false;    // durable lines are
  int64_t events_retry_ns_ = 0;   // 0: the last ones could be written
  int progress_ = -1;
  std::vector<Worker> workers_;
  std::map<pid_t, Child> children_;  // by pid; stays after the end, for the process group
  size_t running_ = 0;
  std::vector<Stream> streams_;
  std::map<int32_t, std::unique_ptr<LogWriter>> logs_;
  Rules rules_;
  Fence fence_;
  bool fenced_ = false;
  int64_t start_ns_ = 0;
  int64_t events_due_ns_ = 0;  // when what is pending is written
  bool exec_hangs_ = false;    // a child did not get as far as its exec in time
  const Cgroups cgroups_{spec_.cgroup, spec_.memory_cgroup};
  int64_t oom_kills_ = 0;
  RateLimit metrics_limit_;
  DurableLines checkpoint_lines_, other_lines_;
  std::string newest_metrics_;
  int64_t metrics_written_ns_ = 0;
  StepTimes times_;
  bool times_new_ = false;  // since they were written
  int64_t times_written_ns_ = 0;
  int64_t lines_dropped_ = 0;
};

bool Shim::Open() {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (const int signal : {SIGCHLD, SIGTERM, SIGUSR1, SIGINT, SIGHUP}) ::sigaddset(&wanted, signal);
  if (::sigprocmask(SIG_SETMASK, &wanted, nullptr) != 0) return false;
  ::signal(SIGPIPE, SIG_IGN);
  signals_ = ::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
  for (int* timer : {&alarm_, &deadline_}) {
    if (spec_.fence_after_ns > 0 &&
        (*timer = ::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK)) < 0)
      return false;
  }
  return signals_ >= 0 && (spec_.progress_socket.empty() || OpenProgressSocket());
}

bool Shim::OpenProgressSocket() {
  progress_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, spec_.progress_socket.data(), spec_.progress_socket.size());
  ::unlink(spec_.progress_socket.c_str());
  const auto bound = [&] {
    return ::bind(progress_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  };
  // The agent has made the directory; when one of this user ends it is removed if it is empty.
  const std::string directory = spec_.progress_socket.substr(0, spec_.progress_socket.rfind('/'));
  if (progress_ < 0 ||
      !(bound() || (errno == ENOENT && ::mkdir(directory.c_str(), 0700) == 0 && bound()))) {
    Say(spec_.progress_socket + ": " + strerror(errno));
    return false;
  }
  return true;
}

LogWriter* Shim::Log(int32_t rank) {
  std::unique_ptr<LogWriter>& log = logs_[rank];
  if (log == nullptr) {
    log = std::make_unique<LogWriter>(directory_ + "/" + kLogsDirectory, rank, spec_.log_file_bytes,
                                      spec_.log_files);
  }
  return log.get();
}

// False: they couldn't be written, and wait.
bool Shim::WriteEvents(bool durable) {
  if (events_ < 0)
    events_ = ::open((directory_ + "/" + kEventsFile).c_str(),
                     O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  int error = events_ < 0 ? errno : 0;
  struct stat info {};
  if (error == 0 && events_bytes_ < 0)
    events_bytes_ = ::fstat(events_, &info) == 0 ? info.st_size : 0;
  if (error == 0) error = WriteAll(events_, pending_events_);
  durable_pending_ = durable_pending_ || durable;
  if (error != 0) {
    if (events_ >= 0 && ::ftruncate(events_, events_bytes_) != 0)
      error = errno;  // no half of a line
    if (events_retry_ns_ == 0) Say(std::string("events: ") + strerror(error));
    events_due_ns_ = events_retry_ns_ = SteadyNs() + kEventsRetry;
    return false;
  }
  events_bytes_ += static_cast<off_t>(pending_events_.size());
  pending_events_.clear();
  events_retry_ns_ = 0;
  lines_pending_ = false;
  if (!durable_pending_) return true;
  durable_pending_ = false;
  ::fdatasync(events_);
  if (!events_named_) events_named_ = SyncDirectory(directory_) == 0;
  return true;
}

void Shim::StartWorker(size_t index) {
  const WorkerSpec& worker = spec_.workers[index];
  if (spec_.setup.empty()) {
    StartProcesses(index);
    return;
  }
  // The environment comes back on descriptor 9, so that whatever setup prints stays a log.
  const std::string script = spec_.setup + "\nenv -0 >&9\n";
  std::vector<EnvironmentVariable> environment = spec_.env;
  for (const EnvironmentVariable& variable : worker.processes[0].env)
    environment.push_back(variable);
  Start(index, worker.processes[0].rank, true, {"bash", "-euo", "pipefail", "-c", script},
        environment);
}

void Shim::StartProcesses(size_t index) {
  std::map<std::string, std::string> common;
  for (const EnvironmentVariable& variable : spec_.env) common[variable.name] = variable.value;
  std::string_view exported = workers_[index].environment;
  if (!exported.empty()) {
    common.clear();
    while (!exported.empty()) {
      const size_t end = std::min(exported.find('\0'), exported.size());
      const std::string_view entry = exported.substr(0, end);
      exported.remove_prefix(std::min(end + 1, exported.size()));
      const size_t equals = entry.find('=');
      if (equals == std::string_view::npos || equals == 0) continue;
      const std::string_view name = entry.substr(0, equals);
      if (name != "_" && name != "SHLVL" && name != "OLDPWD" && name != "PWD")
        common[std::string(name)] = entry.substr(equals + 1);
    }
    // What Muster itself says can't be changed by setup.
    for (const EnvironmentVariable& variable : spec_.env) {
      if (variable.name.rfind("MUSTER_", 0) == 0) common[variable.name] = variable.value;
    }
  }
  for (const ProcessSpec& process : spec_.workers[index].processes) {
    std::map<std::string, std::string> all = common;
    for (const EnvironmentVariable& variable : process.env) all[variable.name] = variable.value;
    std::vector<EnvironmentVariable> environment;
    for (const auto& [name, value] : all) environment.push_back({name, value});
    Start(index, process.rank, false, spec_.argv, environment);
  }
}

void Shim::Start(size_t worker, int32_t rank, bool setup, const std::vector<std::string>& argv,
                 const std::vector<EnvironmentVariable>& environment) {
  if (rules_.stop_sent() || rules_.killed()) return;  // while the ones before it started
  int out[2], err[2], status[2], back[2] = {-1, -1};
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0 ||
      ::pipe2(status, O_CLOEXEC) != 0 || (setup && ::pipe2(back, O_CLOEXEC) != 0)) {
    RecordExit(rank, 127, 0, std::string("launch: ") + strerror(errno));
    return;
  }
  std::vector<std::string> variables;
  for (const EnvironmentVariable& variable : environment)
    variables.push_back(variable.name + "=" + variable.value);
  variables.push_back(std::string(kTokenVariable) + "=" + spec_.token);
  std::vector<char*> words, entries;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  for (const std::string& variable : variables)
    entries.push_back(const_cast<char*>(variable.c_str()));
  entries.push_back(nullptr);

  Cgroups left;
  const pid_t pid = ForkInto(cgroups_, &left);
  if (pid == 0) {
    const auto fail = [&](const std::string& what) {
      TellLaunchFailure(status[1], what, errno);
      ::_exit(127);
    };
    if (!isolation_->EnterChild(self_)) ::_exit(127);
    if (errno = EnterCgroups(left); errno != 0) fail("launch: its control group");
    ::setpgid(0, 0);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::signal(SIGPIPE, SIG_DFL);
    ::umask(spec_.umask);
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, 0);
    if (null > 2) ::close(null);
    ::dup2(out[1], 1);
    ::dup2(err[1], 2);
    if (setup && ::dup2(back[1], 9) != 9) fail("setup");
    if (!spec_.workdir.empty() && ::chdir(spec_.workdir.c_str()) != 0)
      fail("workdir " + spec_.workdir);
    environ = entries.data();  // execvp looks along the job's PATH, not ours
    ::execvp(words[0], words.data());
    fail(std::string("exec ") + words[0]);
  }
  const int fork_error = errno;
  ::close(out[1]);
  ::close(err[1]);
  ::close(status[1]);
  if (setup) ::close(back[1]);
  std::string problem;
  if (pid < 0) {
    problem = std::string("launch: fork: ") + strerror(fork_error);
  } else {
    ::setpgid(pid, pid);
    // Once one hangs the others of this host would, too: they are given no time.
    // Meanwhile those that run are stopped in time: what makes one hang (a network that is gone)
    // may have passed their fence.
    problem = AwaitExec(status[0], argv[0], exec_hangs_ ? 0 : kExecPatience, &exec_hangs_,
                        [this] { ReadSignals(), LookAtStops(); });
  }
  ::close(status[0]);
  if (!problem.empty()) {
    ::close(out[0]);
    ::close(err[0]);
    if (setup) ::close(back[0]);
    Log(rank)->Append(
        MarkedLine("muster: " + problem.substr(problem.find(": ") + 2), /*is_error=*/true) + "\n");
    RecordExit(rank, 127, 0, problem);
    if (pid < 0) return;
    // One that hangs on its way to exec may not even die of SIGKILL: it counts as running until it
    // is reaped.
    ::kill(pid, SIGKILL);
    children_[pid] = Child{worker, rank, setup, true};
    ++running_;
    return;
  }
  for (const int fd : {out[0], err[0], back[0]}) {
    if (fd < 0) continue;
    ::fcntl(fd, F_SETFL, O_NONBLOCK);
    Stream stream{fd, rank, fd == back[0], worker,
                  std::make_unique<LineBuffer>(spec_.log_line_bytes, fd == err[0])};
    streams_.push_back(std::move(stream));
  }
  children_[pid] = Child{worker, rank, setup, true};
  ++running_;
  if (!setup) AppendEvent(Line{"process"}.Add("rank", rank).Add("pid", pid).Add("at_ns", WallNs()));
  if (rules_.stop_sent() || rules_.killed()) ::kill(-pid, rules_.killed() ? SIGKILL : SIGTERM);
}

// The kernel has killed a process since this was asked last: of a process that ends badly now, that
// is why.
bool Shim::KilledForMemory() {
  const int64_t kills = OomKills(cgroups_);
  const bool more = kills > oom_kills_;
  oom_kills_ = kills;
  return more;
}

void Shim::RecordExit(int32_t rank, int exit_code, int signal, std::string detail, bool at_once,
                      bool own) {
  const bool oom = own && (exit_code != 0 || signal != 0) && KilledForMemory();
  if (!rules_.Exited(rank, exit_code, signal, std::move(detail), WallNs(), SteadyNs(), own, oom) ||
      !at_once)
    return;
  // Durable now: the scheduler stops the gang as soon as it hears of a failure.
  Line line = ExitLine(rules_.exits().at(rank));
  line.Add("stop_sent", int64_t{rules_.stop_sent()});
  AppendEvent(line);
  WriteEvents(/*durable=*/true);
}

void Shim::ChildEnded(pid_t pid, int status) {
  const auto found = children_.find(pid);
  if (found == children_.end() || !found->second.running) return;  // an adopted orphan
  Child& child = found->second;
  child.running = false;
  child.group = ::kill(-pid, 0) == 0;
  --running_;
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  std::string detail;
  if (signal != 0) {
    const char* name = ::sigabbrev_np(signal);
    detail = "killed by SIG" + (name != nullptr ? std::string(name) : std::to_string(signal));
  }
  if (rules_.killed() && !rules_.stop_sent())
    detail = "stopped: another process of the attempt had failed";
  if (!child.setup) {
    // After the last process nothing is waited for but the exit records themselves, which say the
    // same a moment later; unless it left others behind, which may take their time to die.
    const bool last = running_ == 0 && !rules_.stop_sent() &&
                      std::none_of(children_.begin(), children_.end(),
                                   [](const auto& c) { return c.second.group; });
    RecordExit(child.rank, code, signal, std::move(detail), !last,
               /*own=*/!rules_.stop_sent() && !rules_.killed());
    return;
  }
  const size_t index = child.worker;
  for (Stream& stream : streams_) {
    if (stream.environment && stream.worker == index && stream.fd >= 0) ReadStream(&stream);
  }
  if (code == 0 && signal == 0 && !rules_.stop_sent()) {
    StartProcesses(index);
    return;
  }
  const std::string text = signal != 0 ? "setup: " + detail
                           : code != 0 ? "setup: exit " + std::to_string(code)
                                       : "setup: stopped";
  for (const ProcessSpec& process : spec_.workers[index].processes)
    RecordExit(process.rank, code, signal, text);
}

void Shim::Reap() {
  int status = 0;
  while (true) {
    const pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid > 0) {
      if (pid == isolation_->keeper()) isolation_->KeeperEnded();
      ChildEnded(pid, status);
    } else if (pid == 0 || errno != EINTR) {
      return;
    }
  }
}

void Shim::SignalAll(int signal) {
  for (auto& [pid, child] : children_) {
    if (child.group) child.group = ::kill(-pid, signal) == 0 || child.running;
    if (signal == SIGKILL && child.running)
      ::kill(pid, SIGKILL);  // it may have left its group; unreaped, the number is its own
  }
}

void Shim::Stop(int64_t grace_ns) {
  if (rules_.Stop(grace_ns, SteadyNs())) SignalAll(SIGTERM);
}

// poll's clock stands still while the machine sleeps. A fence's doesn't, and who wakes after it may
// not run on until poll returns. False: it can't be set.
bool Shim::SetAlarm(int64_t at_ns) {
  if (alarm_ < 0 || at_ns == alarm_ns_) return true;
  itimerspec when{};  // never
  if (at_ns != kNever) when.it_value = {at_ns / 1'000'000'000, at_ns % 1'000'000'000};
  if (::timerfd_settime(alarm_, TFD_TIMER_ABSTIME, &when, nullptr) != 0) return false;
  alarm_ns_ = at_ns;
  return true;
}

void Shim::ReadStop() {
  std::string content, error;
  const int failed = ReadSmallFile(directory_ + "/" + kStopFile, &content);
  if (failed == ENOENT) return;
  StopOrder stop;
  if (failed != 0 || !ParseStop(content, &stop, &error)) {
    Say("stop: " + (failed != 0 ? std::string(strerror(failed)) : error));
    return;
  }
  Stop(stop.grace_ns);
}

void Shim::SetDeadline() {
  if (deadline_ < 0) return;
  const int64_t at_ns = fence_.due_ns() + spec_.grace_ns + kDeadlineMargin;
  itimerspec when{}, before{};
  when.it_value = {at_ns / 1'000'000'000, at_ns % 1'000'000'000};
  ::timerfd_settime(deadline_, TFD_TIMER_ABSTIME, &when, &before);
  // It had run out, and the keeper kills or has killed, whatever else is to be read: this stood
  // still for too long.
  deadline_over_ = deadline_over_ ||
                   (deadline_set_ && before.it_value.tv_sec == 0 && before.it_value.tv_nsec == 0);
  deadline_set_ = true;
}

// The agent puts the fence off in a file, which is read when it is due.
bool Shim::Fenced() {
  if (deadline_over_) return true;
  if (!fence_.Passed(SteadyNs())) return false;
  std::string content, error;
  int64_t renewed_ns = 0;
  if (ReadSmallFile(directory_ + "/" + kRenewedFile, &content) == 0 &&
      ParseRenewal(content, &renewed_ns, &error))
    fence_.Renew(renewed_ns);
  SetDeadline();
  return deadline_over_ || fence_.Passed(SteadyNs());
}

void Shim::ReadSignals() {
  signalfd_siginfo info;
  bool look = false;
  while (::read(signals_, &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGUSR1) look = true;
    if (info.ssi_signo == SIGTERM) Stop(spec_.grace_ns);
  }
  if (look) ReadStop();
}

void Shim::ReadProgress() {
  char buffer[kProgressLineBytes + 1];
  for (int i = 0; i < 1000; ++i) {
    const ssize_t got = ::recv(progress_, buffer, sizeof buffer, MSG_TRUNC);
    if (got < 0) break;
    const std::string_view line(buffer, std::min(static_cast<size_t>(got), sizeof buffer));
    const LineKind kind = got > kProgressLineBytes ? LineKind::kBad : ClassifyProgress(line);
    StepTime time;
    if ((kind == LineKind::kMetrics || kind == LineKind::kOther) && ReadStepTime(line, &time))
      times_new_ = times_.Add(time) || times_new_;
    switch (kind) {
      case LineKind::kOther:
        break;  // nothing is kept of it: it takes nothing from rank 0's either
      case LineKind::kBad:
        ++lines_dropped_;
        break;
      case LineKind::kMetrics:
        if (metrics_limit_.Allow(SteadyNs()))
          newest_metrics_ = FormatLine(Line{"line"}.Add("at_ns", WallNs()).Add("json", line));
        else
          ++lines_dropped_;
        break;
      case LineKind::kCheckpoint:
      case LineKind::kDurable: {
        if (pending_events_.size() > kPendingEventsBytes) {
          ++lines_dropped_;
          break;
        }
        DurableLines& lines = kind == LineKind::kCheckpoint ? checkpoint_lines_ : other_lines_;
        if (!lines.Put(FormatLine(Line{"line"}.Add("at_ns", WallNs()).Add("json", line))))
          ++lines_dropped_;
        Take(&lines, /*last=*/false);
        break;
      }
    }
  }
}

void Shim::Take(DurableLines* lines, bool last) {
  pending_events_ += lines->Take(SteadyNs(), last);
  if (lines->waits()) return;
  durable_pending_ = lines_pending_ = true;
}

// `last`: with those that came too fast, of which nothing newer will come.
void Shim::WriteDurableLines(bool last) {
  for (DurableLines* lines : {&other_lines_, &checkpoint_lines_}) {
    if (!lines->waits()) continue;
    Take(lines, last);
  }
  if (durable_pending_ && (last || SteadyNs() >= events_retry_ns_)) WriteEvents(/*durable=*/true);
}

void Shim::WriteTimes() {
  ReplaceFile(directory_, kTimesFile, FormatTimes(times_.Rows()), /*sync=*/false);
  times_new_ = false;
  times_written_ns_ = SteadyNs();
}

void Shim::WriteProgress() {
  if (newest_metrics_.empty()) return;
  if (ReplaceFile(directory_, kProgressFile, newest_metrics_, /*sync=*/false) == 0)
    newest_metrics_.clear();  // else once more: the disk is full
  metrics_written_ns_ = SteadyNs();
}

void Shim::CloseStream(Stream* stream) {
  ::close(stream->fd);
  stream->fd = -1;
  if (!stream->environment) stream->lines->Finish(Log(stream->rank));
}

void Shim::ReadStream(Stream* stream) {
  char buffer[kTurnBytes / 16];
  // So much a turn, so that one talkative process can't starve the others.
  for (int i = 0; i < 16; ++i) {
    const ssize_t got = ::read(stream->fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return CloseStream(stream);
    const std::string_view bytes(buffer, static_cast<size_t>(got));
    if (stream->environment) {
      std::string& environment = workers_[stream->worker].environment;
      if (environment.size() < (size_t{4} << 20)) environment.append(bytes);
    } else {
      stream->lines->Add(bytes, Log(stream->rank));
    }
  }
}

// Whether a process that a stop gave time to is still there. A shell dies of SIGTERM at once; the
// program it ran may be saving its work.
bool Shim::AnyLeft() {
  if (running_ > 0) return true;
  if (!rules_.stop_sent() || rules_.killed()) return false;
  bool any = false;
  for (auto& [pid, child] : children_) {
    if (child.group) child.group = ::kill(-pid, 0) == 0;
    any = any || child.group;
  }
  return any;
}

// A process group's number is its own as long as it has members; later it may become another
// attempt's, which a stop here would signal. Looked at so often that in between no number comes
// round again. Returns when to look again.
int64_t Shim::LookAtGroups(int64_t now_ns) {
  const bool due = now_ns >= groups_due_ns_;
  bool any = false;
  for (auto& [pid, child] : children_) {
    if (child.running || !child.group) continue;
    if (due) child.group = ::kill(-pid, 0) == 0;
    any = any || child.group;
  }
  if (due) groups_due_ns_ = now_ns + kGroupsInterval;
  return any ? groups_due_ns_ : kNever;
}

// What its fence ends, and what has had its time.
void Shim::LookAtStops() {
  if (!fenced_ && Fenced()) {
    fenced_ = true;
    if (deadline_over_)
      rules_.Stop(0, SteadyNs());
    else if (rules_.StopByFence(fence_, spec_.grace_ns))
      SignalAll(SIGTERM);
  }
  if (rules_.KillNow(SteadyNs())) SignalAll(SIGKILL);
}

void Shim::Loop() {
  while (AnyLeft()) {
    LookAtStops();
    const int64_t now = SteadyNs();
    int64_t wake = rules_.killed() ? now + kLeftoverInterval : rules_.kill_at_ns();
    if (running_ == 0) wake = std::min(wake, now + kLeftoverInterval);
    wake = std::min(wake, LookAtGroups(now));
    const int64_t alarm_ns = rules_.killed() ? kNever
                             : fenced_       ? rules_.kill_at_ns()
                                             : std::min(fence_.due_ns(), rules_.kill_at_ns());
    if (!SetAlarm(alarm_ns)) wake = std::min(wake, now + kFenceInterval);
    if (!pending_events_.empty()) {
      if (now >= events_due_ns_) WriteEvents(/*durable=*/false);
      if (!pending_events_.empty()) wake = std::min(wake, events_due_ns_);
    }
    if (!newest_metrics_.empty()) {
      if (now - metrics_written_ns_ >= kProgressInterval) {
        WriteProgress();
      } else {
        wake = std::min(wake, metrics_written_ns_ + kProgressInterval);
      }
    }
    if (times_new_) {
      if (now - times_written_ns_ >= kTimesInterval) {
        WriteTimes();
      } else {
        wake = std::min(wake, times_written_ns_ + kTimesInterval);
      }
    }
    for (const DurableLines* lines : {&other_lines_, &checkpoint_lines_}) {
      if (lines->waits()) wake = std::min(wake, lines->next_ns());
    }
    std::vector<pollfd> ready;
    ready.push_back({signals_, POLLIN, 0});
    if (alarm_ >= 0) ready.push_back({alarm_, POLLIN, 0});
    if (progress_ >= 0) ready.push_back({progress_, POLLIN, 0});
    const size_t first_stream = ready.size();
    for (const Stream& stream : streams_) ready.push_back({stream.fd, POLLIN, 0});
    const int timeout_ms =
        wake == kNever
            ? -1
            : static_cast<int>(std::clamp<int64_t>((wake - now) / kMillisecond + 1, 0, 3'600'000));
    if (::poll(ready.data(), ready.size(), timeout_ms) < 0 && errno != EINTR) {
      Say(std::string("poll: ") + strerror(errno));
      SignalAll(SIGKILL);
      return;
    }
    // Streams before children: a child's end may start processes, which adds streams.
    for (size_t i = first_stream; i < ready.size(); ++i) {
      if (ready[i].revents != 0) ReadStream(&streams_[i - first_stream]);
    }
    if (progress_ >= 0) ReadProgress();
    WriteDurableLines(/*last=*/false);
    ReadSignals();
    LookAtStops();  // before ends: one that its keeper has killed for its fence is that
    Reap();
    streams_.erase(std::remove_if(streams_.begin(), streams_.end(),
                                  [](const Stream& stream) { return stream.fd < 0; }),
                   streams_.end());
  }
}

void Shim::Finish() {
  isolation_->KillAll();
  // What got away from that is still of its control group; its devices are not free before it is
  // empty.
  for (Backoff backoff; CgroupPopulated(cgroups_); backoff.Pause()) KillCgroup(cgroups_);
  RemoveCgroups(cgroups_);
  if (progress_ >= 0) ReadProgress();
  WriteDurableLines(/*last=*/true);
  WriteProgress();
  for (Stream& stream : streams_) {
    // The attempt's processes are dead. Somebody else may have a write end (passed through a
    // socket, opened in /proc), and may go on writing: what is in the pipe is read, and nothing is
    // waited for.
    int left = 0;
    for (::ioctl(stream.fd, FIONREAD, &left); left > 0 && stream.fd >= 0; left -= kTurnBytes)
      ReadStream(&stream);
    if (stream.fd >= 0) CloseStream(&stream);
  }
  if (lines_dropped_ > 0) {
    AppendEvent(Line{"dropped"}.Add("lines", lines_dropped_));
    WriteEvents(/*durable=*/false);
  }
  // On a full disk: who hears of the end may go by what they say (an export), so it is told after
  // them, but for a disk that stays full.
  for (int i = 0; lines_pending_ && i < kEventsTries && ::access(directory_.c_str(), F_OK) == 0 &&
                  !WriteEvents(/*durable=*/true);
       ++i)
    ::sleep(1);
  Exits exits = rules_.Final(start_ns_, WallNs());
  exits.fenced = fenced_;
  for (int attempt = 0;; ++attempt) {
    const int error = ReplaceFile(directory_, kExitsFile, FormatExits(exits));
    if (error == 0) break;
    // The agent may read the record, and forget the attempt, between its rename and the sync of its
    // directory.
    if (::access(directory_.c_str(), F_OK) != 0 && errno == ENOENT) break;
    if (attempt == 0) Say(std::string("exits: ") + strerror(error));
    ::sleep(1);  // a full disk: the outcome must not be lost, and nothing else is left to do
  }
  if (progress_ >= 0) ::unlink(spec_.progress_socket.c_str());
}

int Shim::Run() {
  if (!Open()) {
    Say(std::string("cannot start: ") + strerror(errno));
    return kShimFailed;
  }
  SetDeadline();
  isolation_ = std::make_unique<Isolation>(spec_.token, spec_.pid_namespace, cgroups_, deadline_);
  workers_.resize(spec_.workers.size());
  if (Late()) {
    Say("came too late: its fence has passed");
    isolation_->KillAll();
    if (progress_ >= 0) ::unlink(spec_.progress_socket.c_str());
    return kShimNotClaimed;
  }
  Claim winner = Claim::kNone;
  if (const int error = MakeClaim(directory_, Claim::kStarted, &winner);
      error != 0 || winner != Claim::kStarted) {
    if (error != 0) Say(std::string("claim: ") + strerror(error));
    isolation_->KillAll();
    if (progress_ >= 0) ::unlink(spec_.progress_socket.c_str());
    return error != 0 ? kShimFailed : kShimNotClaimed;
  }
  // Its programs may fill the disk, and are to be stopped, and their end told, all the same.
  // Without a spare that waits for room.
  ReserveFile(directory_, kStopFile, kReservedBytes);
  ReserveFile(directory_, kExitsFile, kReservedBytes);
  if (spec_.fence_after_ns > 0) ReserveFile(directory_, kRenewedFile, kReservedBytes);
  start_ns_ = WallNs();
  events_due_ns_ = SteadyNs() + kEventsDelay;
  AppendEvent(Line{"started"}
                  .Add("at_ns", start_ns_)
                  .Add("pid_namespace", int64_t{isolation_->has_namespace()}));
  ReadStop();
  // Once more: the claim may have taken its time.
  fenced_ = Late();
  if (fenced_) rules_.Stop(0, SteadyNs());
  for (size_t i = 0; i < spec_.workers.size() && !fenced_; ++i) StartWorker(i);
  Loop();
  Finish();
  return kShimDone;
}

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
  g_directory = directory;
  if (!LockAttempt(directory)) {
    Say("another shim has it, or it was forgotten");
    return kShimNotClaimed;
  }
  std::string content, error;
  Spec spec;
  if (const int failed = ReadAll(0, &content); failed != 0) {
    Say(std::string("spec: ") + strerror(failed));
    return kShimFailed;
  }
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup3(null, 0, O_CLOEXEC);  // what it was told is read once
  ::close(null);
  if (!ParseSpec(content, &spec, &error)) {
    Say(error);
    return kShimFailed;
  }
  Claim claim = Claim::kNone;
  if (ReadClaim(directory, &claim) != 0 || !MayStart(claim, spec.boot_id, BootId())) {
    Say("claimed already, or prepared in an earlier boot");
    return kShimNotClaimed;
  }
  return Shim(directory, std::move(spec)).Run();
}

}  // namespace muster::shim
