#include "agent/shim/loop.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include <algorithm>

namespace muster::shim {
namespace {

constexpr int64_t kMillisecondNs = 1'000'000;
// The newest metrics are written at most so often.
constexpr int64_t kProgressInterval = 20 * kMillisecondNs;
constexpr int64_t kExecPatience = 20'000 * kMillisecondNs;  // from fork to exec
constexpr int64_t kTimesInterval = 2'000 * kMillisecondNs;  // of DIR/times
// What ends sooner says all in its exit records.
constexpr int64_t kEventsDelay = 250 * kMillisecondNs;
// How often strays are looked for while a stop waits for them.
constexpr int64_t kLeftoverInterval = 20 * kMillisecondNs;
// How often process groups whose first process has ended are.
constexpr int64_t kGroupsInterval = 1'000 * kMillisecondNs;
// Behind a fence and its grace: the keeper kills then. Who waits for the fence waits for longer.
constexpr int64_t kDeadlineMargin = 2'000 * kMillisecondNs;
constexpr int64_t kRetry = 1'000 * kMillisecondNs;  // of what a disk doesn't take
// Of an ended attempt's events; then its exits are told without.
constexpr int kEventsTries = 600;
// Kept for a disk that is full; what comes then is dropped.
constexpr size_t kPendingEventsBytes = 4 << 20;

std::vector<EnvironmentVariable> ListOf(const std::map<std::string, std::string>& variables) {
  std::vector<EnvironmentVariable> list;
  for (const auto& [name, value] : variables) list.push_back({name, value});
  return list;
}

// What all processes of a worker find in their environment: the job's, or what its setup exported.
// What Muster itself says can't be changed by setup.
std::map<std::string, std::string> CommonOf(const std::vector<EnvironmentVariable>& given,
                                            std::string_view exported) {
  std::map<std::string, std::string> common;
  for (const EnvironmentVariable& variable : given) common[variable.name] = variable.value;
  if (exported.empty()) return common;
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
  for (const EnvironmentVariable& variable : given) {
    if (variable.name.rfind("MUSTER_", 0) == 0) common[variable.name] = variable.value;
  }
  return common;
}

std::string KilledBy(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return "killed by SIG" + (name != nullptr ? std::string(name) : std::to_string(signal));
}

}  // namespace

Loop::Loop(Spec spec, Ports ports)
    : spec_(std::move(spec)),
      ports_(ports),
      rules_(spec_.failure_kill_ns),
      fence_(spec_.fence_after_ns, spec_.renewed_ns),
      metrics_limit_(kProgressLinesPerSecond),
      reports_limit_(kKeptReportsPerSecond) {}

// ---- the claim ----

bool Loop::ReadyToClaim(const std::string& boot_id) {
  Claim claim = Claim::kNone;
  if (ports_.files->ReadClaim(&claim) == 0 && MayStart(claim, spec_.boot_id, boot_id)) return true;
  ports_.voice->Say("claimed already, or prepared in an earlier boot");
  return false;
}

Loop::Claimed Loop::TryClaim() {
  SetDeadline();
  if (Late()) {
    ports_.voice->Say("came too late: its fence has passed");
    return Claimed::kLate;
  }
  Claim winner = Claim::kNone;
  if (const int error = ports_.files->MakeClaim(&winner); error != 0) {
    ports_.voice->Say(std::string("claim: ") + strerror(error));
    return Claimed::kFailed;
  }
  return winner == Claim::kStarted ? Claimed::kClaimed : Claimed::kNotClaimed;
}

void Loop::Begin() {
  // Its programs may fill the disk, and are to be stopped, and their end told, all the same.
  // Without a spare that waits for room.
  ports_.files->Reserve(kStopFile);
  ports_.files->Reserve(kExitsFile);
  if (spec_.fence_after_ns > 0) ports_.files->Reserve(kRenewedFile);
  start_ns_ = ports_.clock->WallNs();
  events_due_ns_ = ports_.clock->BootNs() + kEventsDelay;
  AppendEvent(Line{"started"}
                  .Add("at_ns", start_ns_)
                  .Add("pid_namespace", int64_t{ports_.processes->HasNamespace()}));
  begun_ns_ = ports_.clock->BootNs();
  if (ports_.processes->MeasureUse().has_value())
    next_measure_ns_ = begun_ns_ + NextMeasureNs(0, 0);
  ReadStop();
  // Once more: the claim may have taken its time.
  fenced_ = Late();
  if (fenced_) rules_.Stop(0, ports_.clock->BootNs());
  for (size_t i = 0; i < spec_.workers.size() && !fenced_; ++i) QueueWorker(i);
}

// ---- starting ----

void Loop::QueueWorker(size_t index) {
  const WorkerSpec& worker = spec_.workers[index];
  if (spec_.setup.empty()) return QueueProcesses(index);
  // The environment comes back on descriptor 9, so that whatever setup prints stays a log.
  // What fails says its line, in the first line so that setup's own are counted as written.
  const std::string script =
      "trap 'echo \"muster: setup, line $LINENO: $BASH_COMMAND\" >&2' ERR; " + spec_.setup +
      "\ntrap - ERR; env -0 >&9\n";
  std::vector<EnvironmentVariable> environment = spec_.env;
  for (const EnvironmentVariable& variable : worker.processes[0].env)
    environment.push_back(variable);
  to_start_.push_back({index,
                       worker.processes[0].rank,
                       /*setup=*/true,
                       {"bash", "-euo", "pipefail", "-c", script},
                       std::move(environment)});
}

void Loop::QueueProcesses(size_t index) {
  const std::string exported =
      spec_.setup.empty() ? std::string() : ports_.processes->SetupExports(index);
  const std::map<std::string, std::string> common = CommonOf(spec_.env, exported);
  for (const ProcessSpec& process : spec_.workers[index].processes) {
    std::map<std::string, std::string> all = common;
    for (const EnvironmentVariable& variable : process.env) all[variable.name] = variable.value;
    to_start_.push_back({index, process.rank, /*setup=*/false, spec_.argv, ListOf(all)});
  }
}

// One after the other, each once the one before has reached its exec; none after a stop.
void Loop::StartNext() {
  while (!starting_.has_value() && !to_start_.empty()) {
    if (rules_.stop_sent() || rules_.killed()) return to_start_.clear();
    const Launch launch = std::move(to_start_.front());
    to_start_.pop_front();
    std::string problem;
    const pid_t pid = ports_.processes->Start(launch, &problem);
    if (pid < 0) {
      RecordExit(launch.rank, 127, 0, problem);
      continue;
    }
    children_[pid] = Child{launch.worker, launch.rank, launch.setup};
    ++running_;
    // Once one hangs the others of this host would, too: they are given no time.
    starting_ =
        Starting{pid, launch.argv[0], ports_.clock->BootNs() + (exec_hangs_ ? 0 : kExecPatience)};
  }
}

void Loop::OnExec(pid_t pid, std::string problem) { execs_.emplace_back(pid, std::move(problem)); }

void Loop::LookAtExec() {
  for (auto& [pid, problem] : std::exchange(execs_, {})) {
    if (!starting_.has_value() || starting_->pid != pid) continue;
    const Starting starting = *std::exchange(starting_, std::nullopt);
    if (!problem.empty()) {
      NotBegun(starting, problem);
      continue;
    }
    Child& child = children_.at(pid);
    child.begun = true;
    if (!child.setup)
      AppendEvent(Line{"process"}
                      .Add("rank", child.rank)
                      .Add("pid", pid)
                      .Add("at_ns", ports_.clock->WallNs()));
    if (rules_.stop_sent() || rules_.killed())
      ports_.processes->SignalGroup(pid, rules_.killed() ? SIGKILL : SIGTERM);
  }
  if (!starting_.has_value() || ports_.clock->BootNs() < starting_->until_ns) return;
  exec_hangs_ = true;
  const Starting starting = *std::exchange(starting_, std::nullopt);
  NotBegun(starting, "launch: exec " + starting.program +
                         ": not begun in time; does its file system answer, and its workdir's?");
}

void Loop::NotBegun(const Starting& starting, const std::string& problem) {
  const int32_t rank = children_.at(starting.pid).rank;
  ports_.processes->Log(rank, "muster: " + problem.substr(problem.find(": ") + 2));
  RecordExit(rank, 127, 0, problem);
  // One that hangs on its way to exec may not even die of SIGKILL: it counts as running until it
  // is reaped.
  ports_.processes->Kill(starting.pid);
}

// ---- ends ----

void Loop::OnEnded(pid_t pid, int exit_code, int signal) {
  ends_.push_back({pid, exit_code, signal});
}

// The kernel has killed a process since this was asked last: of a process that ends badly now, that
// is why.
bool Loop::KilledForMemory() {
  const int64_t kills = ports_.processes->OomKills();
  const bool more = kills > oom_kills_;
  oom_kills_ = kills;
  return more;
}

void Loop::RecordExit(int32_t rank, int exit_code, int signal, std::string detail, bool at_once,
                      bool own) {
  const bool oom = own && (exit_code != 0 || signal != 0) && KilledForMemory();
  if (!rules_.Exited(rank, exit_code, signal, std::move(detail), ports_.clock->WallNs(),
                     ports_.clock->BootNs(), own, oom) ||
      !at_once)
    return;
  // Durable now: the scheduler stops the gang as soon as it hears of a failure.
  Line line = ExitLine(rules_.exits().at(rank));
  line.Add("stop_sent", int64_t{rules_.stop_sent()});
  AppendEvent(line);
  WriteEvents(/*durable=*/true);
}

void Loop::ChildEnded(const Ended& ended) {
  const auto found = children_.find(ended.pid);
  if (found == children_.end() || !found->second.running) return;  // an adopted orphan
  Child& child = found->second;
  child.running = false;
  child.group = ports_.processes->GroupLives(ended.pid);
  if (starting_.has_value() && starting_->pid == ended.pid) starting_.reset();
  --running_;
  std::string detail = ended.signal != 0 ? KilledBy(ended.signal) : "";
  if (rules_.killed() && !rules_.stop_sent())
    detail = "stopped: another process of the attempt had failed";
  if (child.setup) return SetupEnded(child, ended, detail);
  // After the last process nothing is waited for but the exit records themselves, which say the
  // same a moment later; unless it left others behind, which may take their time to die.
  const bool last = running_ == 0 && to_start_.empty() && !rules_.stop_sent() &&
                    std::none_of(children_.begin(), children_.end(),
                                 [](const auto& c) { return c.second.group; });
  RecordExit(child.rank, ended.exit_code, ended.signal, std::move(detail), !last,
             /*own=*/!rules_.stop_sent() && !rules_.killed());
}

void Loop::SetupEnded(const Child& child, const Ended& ended, const std::string& detail) {
  if (ended.exit_code == 0 && ended.signal == 0 && !rules_.stop_sent())
    return QueueProcesses(child.worker);
  const std::string text = ended.signal != 0      ? "setup: " + detail
                           : ended.exit_code != 0 ? "setup: exit " + std::to_string(ended.exit_code)
                                                  : "setup: stopped";
  for (const ProcessSpec& process : spec_.workers[child.worker].processes)
    RecordExit(process.rank, ended.exit_code, ended.signal, text);
}

// Whether a process that a stop gave time to is still there. A shell dies of SIGTERM at once; the
// program it ran may be saving its work.
bool Loop::AnyLeft() {
  if (running_ > 0 || !to_start_.empty()) return true;
  if (!rules_.stop_sent() || rules_.killed()) return false;
  bool any = false;
  for (auto& [pid, child] : children_) {
    if (child.group) child.group = ports_.processes->GroupLives(pid);
    any = any || child.group;
  }
  return any;
}

// A process group's number is its own as long as it has members; later it may become another
// attempt's, which a stop here would signal. Looked at so often that in between no number comes
// round again. Returns when to look again.
int64_t Loop::LookAtGroups(int64_t now_ns) {
  const bool due = now_ns >= groups_due_ns_;
  bool any = false;
  for (auto& [pid, child] : children_) {
    if (child.running || !child.group) continue;
    if (due) child.group = ports_.processes->GroupLives(pid);
    any = any || child.group;
  }
  if (due) groups_due_ns_ = now_ns + kGroupsInterval;
  return any ? groups_due_ns_ : kNever;
}

// ---- stops ----

void Loop::SignalAll(int signal) {
  for (auto& [pid, child] : children_) {
    if (!child.begun && child.running && signal != SIGKILL) continue;  // told once it has begun
    if (child.group) child.group = ports_.processes->SignalGroup(pid, signal) || child.running;
    // It may have left its group; unreaped, the number is its own.
    if (signal == SIGKILL && child.running) ports_.processes->Kill(pid);
  }
}

void Loop::Stop(int64_t grace_ns) {
  if (rules_.Stop(grace_ns, ports_.clock->BootNs())) SignalAll(SIGTERM);
}

void Loop::ReadStop() {
  std::string content, error;
  const int failed = ports_.files->Read(kStopFile, &content);
  if (failed == ENOENT) return;
  StopOrder stop;
  if (failed != 0 || !ParseStop(content, &stop, &error)) {
    ports_.voice->Say("stop: " + (failed != 0 ? std::string(strerror(failed)) : error));
    return;
  }
  Stop(stop.grace_ns);
}

void Loop::SetDeadline() {
  if (spec_.fence_after_ns == 0) return;
  // It had come, and the keeper kills or has killed, whatever else is to be read: this stood still
  // for too long.
  if (ports_.processes->SetDeadline(fence_.due_ns() + spec_.grace_ns + kDeadlineMargin))
    deadline_over_ = true;
}

// The agent puts the fence off in a file, which is read when it is due.
bool Loop::Fenced() {
  if (deadline_over_) return true;
  if (!fence_.Passed(ports_.clock->BootNs())) return false;
  std::string content, error;
  int64_t renewed_ns = 0;
  if (ports_.files->Read(kRenewedFile, &content) == 0 && ParseRenewal(content, &renewed_ns, &error))
    fence_.Renew(renewed_ns);
  SetDeadline();
  return deadline_over_ || fence_.Passed(ports_.clock->BootNs());
}

bool Loop::Late() {
  return Fenced() && (deadline_over_ || !InTime(fence_, ports_.clock->BootNs()));
}

// What its fence ends, and what has had its time.
void Loop::LookAtStops() {
  if (!fenced_ && Fenced()) {
    fenced_ = true;
    if (deadline_over_)
      rules_.Stop(0, ports_.clock->BootNs());
    else if (rules_.StopByFence(fence_, spec_.grace_ns))
      SignalAll(SIGTERM);
  }
  if (rules_.KillNow(ports_.clock->BootNs())) SignalAll(SIGKILL);
}

void Loop::OnBlind() {
  SignalAll(SIGKILL);
  ports_.processes->EndAll();
  phase_ = Phase::kTelling;
}

// ---- what is told ----

// False: they couldn't be made durable, or written, and wait.
bool Loop::WriteEvents(bool durable) {
  durable_pending_ = durable_pending_ || durable;
  if (const int error = ports_.files->WriteEvents(events_bytes_, pending_events_); error != 0)
    return EventsFailed(error);
  events_bytes_ += static_cast<int64_t>(pending_events_.size());
  unsynced_events_ += std::exchange(pending_events_, "");
  if (durable_pending_) {
    if (const int error = ports_.files->SyncEvents(); error != 0) {
      events_bytes_ -= static_cast<int64_t>(unsynced_events_.size());
      pending_events_ = std::exchange(unsynced_events_, "");
      return EventsFailed(error);
    }
    unsynced_events_.clear();
    durable_pending_ = lines_pending_ = false;
  }
  events_retry_ns_ = 0;
  return true;
}

bool Loop::EventsFailed(int error) {
  if (events_retry_ns_ == 0) ports_.voice->Say(std::string("events: ") + strerror(error));
  events_due_ns_ = events_retry_ns_ = ports_.clock->BootNs() + kRetry;
  return false;
}

void Loop::OnProgress(std::string_view line) {
  if (last_lines_taken_) return;
  std::optional<agent::ProgressLine> read;
  if (static_cast<int64_t>(line.size()) <= kProgressLineBytes)
    read = agent::ParseProgressLine(line);
  if (!read.has_value()) {
    ++lines_dropped_;
    return;
  }
  if (spec_.keep_reports) Keep(*read, line);
  const LineKind kind = KindOf(*read);
  if (kind == LineKind::kMetrics || kind == LineKind::kOther) {
    if (const std::optional<StepTime> time = StepTimeOf(*read))
      times_new_ = times_.Add(*time) || times_new_;
  }
  const auto as_event = [&] {
    return FormatLine(Line{"line"}.Add("at_ns", ports_.clock->WallNs()).Add("json", line));
  };
  switch (kind) {
    case LineKind::kOther:
      return;  // nothing is kept of it: it takes nothing from rank 0's either
    case LineKind::kMetrics:
      if (metrics_limit_.Allow(ports_.clock->BootNs()))
        newest_metrics_ = as_event();
      else
        ++lines_dropped_;
      return;
    case LineKind::kCheckpoint:
    case LineKind::kDurable: {
      if (pending_events_.size() > kPendingEventsBytes) {
        ++lines_dropped_;
        return;
      }
      DurableLines& lines = kind == LineKind::kCheckpoint ? checkpoint_lines_ : other_lines_;
      if (!lines.Put(as_event())) ++lines_dropped_;
      Take(&lines, /*last=*/false);
      return;
    }
  }
}

// All that rank 0 has reached, and where it went on from.
void Loop::Keep(const agent::ProgressLine& read, std::string_view line) {
  const bool wanted =
      read.metrics.has_value() ? KindOf(read) == LineKind::kMetrics : read.loaded.has_value();
  if (wanted && reports_limit_.Allow(ports_.clock->BootNs()))
    ports_.processes->Report(KeptReport(line, ports_.clock->WallNs()));
}

void Loop::Take(DurableLines* lines, bool last) {
  pending_events_ +=
      lines->Take(ports_.clock->BootNs(), last, /*seldom=*/events_bytes_ >= kManyEventsBytes);
  if (lines->waits()) return;
  durable_pending_ = lines_pending_ = true;
}

// `last`: with those that came too fast, of which nothing newer will come.
void Loop::WriteDurableLines(bool last) {
  for (DurableLines* lines : {&other_lines_, &checkpoint_lines_}) {
    if (lines->waits()) Take(lines, last);
  }
  if (durable_pending_ && (last || ports_.clock->BootNs() >= events_retry_ns_))
    WriteEvents(/*durable=*/true);
}

void Loop::WriteTimes() {
  ports_.files->Replace(kTimesFile, FormatTimes(times_.Rows()), /*sync=*/false);
  times_new_ = false;
  times_written_ns_ = ports_.clock->BootNs();
}

void Loop::WriteProgress() {
  if (newest_metrics_.empty()) return;
  if (ports_.files->Replace(kProgressFile, newest_metrics_, /*sync=*/false) == 0)
    newest_metrics_.clear();  // else once more: the disk is full
  metrics_written_ns_ = ports_.clock->BootNs();
}

// Returns when the next look is due. The agent takes in what is told then; what is lost of it the
// exit records say.
int64_t Loop::MeasureUsage(int64_t now_ns) {
  if (now_ns < next_measure_ns_) return next_measure_ns_;
  const std::optional<Measured> measured = ports_.processes->MeasureUse();
  const int64_t ran_ns = now_ns - begun_ns_;
  next_measure_ns_ = kNever;
  if (!measured.has_value()) return kNever;
  usage_.Add(*measured, ran_ns);
  ports_.files->Replace(kUsageFile, FormatUsage(usage_.used()), /*sync=*/false);
  const int64_t took_ns = ports_.clock->BootNs() - now_ns;
  next_measure_ns_ = now_ns + NextMeasureNs(ran_ns, took_ns);
  return next_measure_ns_;
}

// Returns when the next is due.
int64_t Loop::WriteWhatIsDue(int64_t now_ns) {
  int64_t wake_ns = kNever;
  if (!pending_events_.empty()) {
    if (now_ns >= events_due_ns_) WriteEvents(/*durable=*/false);
    if (!pending_events_.empty()) wake_ns = std::min(wake_ns, events_due_ns_);
  }
  if (!newest_metrics_.empty() && now_ns - metrics_written_ns_ >= kProgressInterval)
    WriteProgress();
  if (!newest_metrics_.empty())
    wake_ns = std::min(wake_ns, metrics_written_ns_ + kProgressInterval);
  if (times_new_ && now_ns - times_written_ns_ >= kTimesInterval) WriteTimes();
  if (times_new_) wake_ns = std::min(wake_ns, times_written_ns_ + kTimesInterval);
  for (const DurableLines* lines : {&other_lines_, &checkpoint_lines_}) {
    if (lines->waits()) wake_ns = std::min(wake_ns, lines->next_ns());
  }
  return wake_ns;
}

// ---- the turns ----

Wake Loop::Turn() {
  if (phase_ == Phase::kOver) return {};
  if (phase_ == Phase::kTelling) return Tell();
  WriteDurableLines(/*last=*/false);
  if (std::exchange(terminate_, false)) Stop(spec_.grace_ns);
  if (std::exchange(stop_file_, false)) ReadStop();
  LookAtStops();  // before ends: one that its keeper has killed for its fence is that
  LookAtExec();
  for (const Ended& ended : std::exchange(ends_, {})) ChildEnded(ended);
  StartNext();
  const int64_t now_ns = ports_.clock->BootNs();
  if (!AnyLeft()) {
    ports_.processes->EndAll();
    phase_ = Phase::kTelling;
    return {now_ns, kNever};  // after what the processes said last
  }
  LookAtStops();
  Wake wake;
  wake.at_ns = rules_.killed() ? now_ns + kLeftoverInterval : rules_.kill_at_ns();
  if (running_ == 0) wake.at_ns = std::min(wake.at_ns, now_ns + kLeftoverInterval);
  if (starting_.has_value()) wake.at_ns = std::min(wake.at_ns, starting_->until_ns);
  wake.at_ns =
      std::min({wake.at_ns, LookAtGroups(now_ns), WriteWhatIsDue(now_ns), MeasureUsage(now_ns)});
  wake.alarm_ns = rules_.killed() ? kNever
                  : fenced_       ? rules_.kill_at_ns()
                                  : std::min(fence_.due_ns(), rules_.kill_at_ns());
  return wake;
}

// Who hears of the end may go by what the programs said (an export), so it is told after them, but
// for a disk that stays full.
Wake Loop::Tell() {
  const int64_t now_ns = ports_.clock->BootNs();
  if (now_ns < tell_again_ns_) return {tell_again_ns_, kNever};
  if (!std::exchange(last_lines_taken_, true)) {
    WriteDurableLines(/*last=*/true);
    WriteProgress();
    if (const auto measured = ports_.processes->MeasureUse(); measured.has_value())
      usage_.Add(*measured, now_ns - begun_ns_, /*last=*/true);
    if (lines_dropped_ > 0) {
      AppendEvent(Line{"dropped"}.Add("lines", lines_dropped_));
      WriteEvents(/*durable=*/false);
    }
  }
  const Wake again{now_ns + kRetry, kNever};
  if (lines_pending_ && events_tries_ < kEventsTries && !ports_.files->Forgotten()) {
    ++events_tries_;
    if (!WriteEvents(/*durable=*/true)) {
      tell_again_ns_ = again.at_ns;
      return again;
    }
  }
  Exits exits = rules_.Final(start_ns_, ports_.clock->WallNs());
  exits.fenced = fenced_;
  exits.used = usage_.used();
  const int error = ports_.files->Replace(kExitsFile, FormatExits(exits), /*sync=*/true);
  // The agent may read the record, and forget the attempt, between its rename and the sync of its
  // directory. Else the outcome must not be lost, and nothing else is left to do.
  if (error != 0 && !(error == ENOENT && ports_.files->Forgotten())) {
    if (!std::exchange(exits_failed_, true))
      ports_.voice->Say(std::string("exits: ") + strerror(error));
    tell_again_ns_ = again.at_ns;
    return again;
  }
  phase_ = Phase::kOver;
  return {};
}

}  // namespace muster::shim
