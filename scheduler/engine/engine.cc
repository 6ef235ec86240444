#include "scheduler/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "scheduler/engine/commands.h"
#include "scheduler/engine/due.h"
#include "scheduler/engine/offender.h"
#include "scheduler/engine/reproducer.h"
#include "scheduler/state/bytes.h"
#include "scheduler/state/strays.h"

namespace muster {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int64_t kRetryAfterRefusalNs = 10 * kSecond;
constexpr int kReproducersKept = 20;
constexpr int kJobsDroppedFromAPlan = 20;  // a plan that is wrong for more is dropped whole
constexpr int64_t kGatherNs =
    2 *
    kMillisecond;  // from one step's beginning to the next one's, but for the first after a rest
constexpr size_t kGatherAtMost = 512;  // a step that is worth it begins at once
constexpr int64_t kIdleAfterNs = kSecond;
constexpr int64_t kIdleAtLeastEveryNs = kMinute;
constexpr size_t kDueInAStep = 1000;  // jobs whose time has come, and those of the next time
// Whether somebody may still submit: soon at first, then twice as late each time, as each look is a
// commit.
constexpr int64_t kAskAgainNs = 50 * kMillisecond, kAskAgainAtMostNs = kSecond;
constexpr int64_t kTellStatsEveryNs = 10 * kMinute;

void Count(const std::vector<pb::Event>& events, EngineStats* stats) {
  stats->events += events.size();
  for (const pb::Event& event : events) {
    stats->submissions += event.has_job_submitted();
    stats->starts += event.has_attempt_placed();
    stats->evictions +=
        event.has_attempt_stopping() && event.attempt_stopping().cause() == pb::PREEMPTION;
  }
}

// Hosts that are waited for no longer, and not used either: operators have to know of those that
// stay so.
void TellStrays(const State& state) {
  for (const HostId id : HostsWithStrays(state)) {
    const std::vector<LostRow>& lost = state.host(id).lost;
    const auto first =
        std::find_if(lost.begin(), lost.end(), [](const LostRow& row) { return row.stray(); });
    LogWarn(
        "a host runs what the restored store doesn't know, and is told to end it: until then "
        "nothing starts on this host, and nothing of those jobs elsewhere. If it can't be ended, "
        "reboot the host (docs/runbook.md, backup and restore)",
        {{"host", state.HostName(id)},
         {"attempts",
          std::count_if(lost.begin(), lost.end(), [](const LostRow& row) { return row.stray(); })},
         {"first", AttemptText(first->key)}});
  }
}

}  // namespace

std::string AttemptText(const pb::AttemptKey& key) {
  return absl::StrCat(key.job_uid(), "/", key.task(), "/", key.attempt());
}

Engine::Engine(EngineOptions options, Clock* clock, Store* store, AgentLink* link, State state)
    : options_(std::move(options)),
      clock_(clock),
      store_(store),
      link_(link),
      state_(std::move(state)),
      commit_(options_.last_commit),
      now_ns_(state_.now_ns()),
      now_at_ns_(clock_->MonotonicNs()) {
  view_ = std::make_shared<View>(View{state_, plan_, commit_, now_ns_});
}

Engine::~Engine() {
  Stop();
  std::vector<Queued> left;
  {
    std::lock_guard lock(mutex_);
    left.swap(queue_);
  }
  Refuse(left);
}

void Engine::Refuse(const std::vector<Queued>& queue) {
  for (const Queued& queued : queue) {
    if (queued.done)
      queued.done(absl::UnavailableError("musterd is stopping; try again when it is back"));
  }
}

void Engine::StopServing(const std::string& why) {
  std::lock_guard lock(mutex_);
  why_not_ = why;
  work_.notify_all();
}

std::string Engine::WhyNotServing() const {
  std::lock_guard lock(mutex_);
  return why_not_;
}

void Engine::Post(pb::Event event, Done done) {
  std::lock_guard lock(mutex_);
  queue_.push_back({std::move(event), nullptr, std::move(done)});
  Wake();
}

void Engine::Call(Operation operation, Done done) {
  std::lock_guard lock(mutex_);
  queue_.push_back({pb::Event(), std::move(operation), std::move(done)});
  Wake();
}

void Engine::Wake() {
  if (!gathering_ || queue_.size() >= kGatherAtMost) work_.notify_one();
}

bool Engine::Full() const {
  std::lock_guard lock(mutex_);
  return queue_.size() >= options_.most_queued;
}

EngineStats Engine::Stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void Engine::PostProgress(const pb::ProgressSeen& progress) {
  std::lock_guard lock(mutex_);
  // What comes after the end, which may have been committed while the report was under way, would
  // stay for ever.
  const AttemptRow* attempt = view_->state.FindAttempt(progress.key());
  if (attempt == nullptr || attempt->ended()) return;
  std::string key = AttemptText(progress.key());
  PendingProgress& pending = progress_[key];
  pending.newest = progress;
  if (pending.waiting) return;
  pending.waiting = true;
  progress_due_.emplace(pending.journalled_ns + options_.progress_interval_ns, std::move(key));
  Wake();
}

std::optional<pb::Progress> Engine::LiveProgress(const pb::AttemptKey& key) const {
  std::lock_guard lock(mutex_);
  const auto it = progress_.find(AttemptText(key));
  if (it == progress_.end()) return std::nullopt;
  return it->second.newest.progress();
}

void Engine::Observe(Observer observer) { observers_.push_back(std::move(observer)); }

std::vector<pb::Event> Engine::TakeDueProgress(int64_t now_ns) {
  std::vector<pb::Event> events;
  while (!progress_due_.empty() && progress_due_.begin()->first <= now_ns) {
    PendingProgress& pending = progress_.at(progress_due_.begin()->second);
    progress_due_.erase(progress_due_.begin());
    pending.waiting = false;
    pending.journalled_ns = now_ns;
    *events.emplace_back().mutable_progress_seen() = pending.newest;
  }
  return events;
}

// The last lines of attempts that a host reports gone, due or not.
std::vector<pb::Event> Engine::TakeLastProgress(int64_t now_ns) {
  std::vector<pb::Event> events;
  for (const Queued& queued : queue_) {
    if (queued.operation || !queued.event.has_attempt_reported() ||
        queued.event.attempt_reported().report().phase() != pb::GONE)
      continue;
    const auto it = progress_.find(AttemptText(queued.event.attempt_reported().report().key()));
    if (it == progress_.end() || !it->second.waiting) continue;
    progress_due_.erase({it->second.journalled_ns + options_.progress_interval_ns, it->first});
    it->second.waiting = false;
    it->second.journalled_ns = now_ns;
    *events.emplace_back().mutable_progress_seen() = it->second.newest;
  }
  return events;
}

int64_t Engine::ProgressDueNs() const {
  return progress_due_.empty() ? kNever : progress_due_.begin()->first;
}

void Engine::ForgetProgress(const pb::AttemptKey& key) {
  const auto it = progress_.find(AttemptText(key));
  if (it == progress_.end()) return;
  if (it->second.waiting)
    progress_due_.erase({it->second.journalled_ns + options_.progress_interval_ns, it->first});
  progress_.erase(it);
}

void Engine::ForgetEndedProgress() {
  for (const pb::Event& event : step_events_) {
    // A cancel ends what waited for its export only.
    if (const JobRow* job =
            event.has_job_cancel() ? view_->state.FindJob(event.job_cancel().number()) : nullptr;
        job != nullptr) {
      for (size_t t = 0; t < job->tasks.size(); ++t) {
        const std::vector<AttemptRow>& attempts = job->tasks[t].attempts;
        if (!attempts.empty() && attempts.back().ended())
          ForgetProgress(KeyOf(*job, static_cast<int32_t>(t), attempts.back().number));
      }
    }
    // Each of these may be the one that ends an attempt.
    const pb::AttemptKey* key = event.has_attempt_reported()
                                    ? &event.attempt_reported().report().key()
                                : event.has_attempt_lost()     ? &event.attempt_lost().key()
                                : event.has_export_published() ? &event.export_published().key()
                                                               : nullptr;
    if (key == nullptr) continue;
    const AttemptRow* attempt = view_->state.FindAttempt(*key);
    if (attempt == nullptr || attempt->ended()) ForgetProgress(*key);
  }
}

int64_t Engine::NowNs() const {
  return std::max(clock_->WallNs(), now_ns_ + (clock_->MonotonicNs() - now_at_ns_) / 2);
}

int64_t Engine::NextWakeNs() const {
  std::lock_guard lock(mutex_);
  return why_not_.empty() ? std::min(next_wake_ns_, ProgressDueNs()) : kNever;
}

// Whether it has stopped serving; what is queued is told why.
bool Engine::RefusesAll() {
  std::vector<Queued> queue;
  std::string why_not;
  {
    std::lock_guard lock(mutex_);
    if (why_not_.empty()) return false;
    why_not = why_not_;
    queue.swap(queue_);
  }
  for (Queued& queued : queue) {
    if (queued.done) queued.done(absl::FailedPreconditionError(why_not));
  }
  return true;
}

// False: nothing is queued or due.
bool Engine::Take(Work* work) {
  std::lock_guard lock(mutex_);
  const int64_t now_ns = NowNs();
  work->last_progress = TakeLastProgress(now_ns);
  work->progress = TakeDueProgress(now_ns);
  if (queue_.empty() && work->progress.empty() && now_ns < next_wake_ns_) return false;
  work->queue.swap(queue_);
  // Where there are agents, there is a step a lease at least (Sessions::ProveOwnership).
  work->listens_again =
      !std::exchange(stepped_, true) || now_ns - now_ns_ > 2 * options_.scheduling.lease_ns;
  now_ns_ = now_ns;
  now_at_ns_ = clock_->MonotonicNs();
  return true;
}

// What each of the queue's callers is to be told once it is durable.
std::vector<absl::Status> Engine::ApplyWork(Work* work) {
  step_events_.clear();
  pb::Event start;
  start.mutable_step()->set_now_ns(now_ns_);
  start.mutable_step()->set_epoch(options_.epoch);
  start.mutable_step()->set_restart_backoff_ns(options_.scheduling.restart_backoff_ns);
  if (work->listens_again) start.mutable_step()->set_listens_again(true);
  ApplyEvent(std::move(start));
  for (pb::Event& event : work->last_progress) ApplyEvent(std::move(event));
  std::vector<absl::Status> answers(work->queue.size());
  for (size_t i = 0; i < work->queue.size(); ++i) {
    Queued& queued = work->queue[i];
    if (!queued.operation) {
      ApplyEvent(std::move(queued.event));
      continue;
    }
    absl::StatusOr<std::vector<pb::Event>> events = queued.operation(state_);
    answers[i] = events.status();
    if (!events.ok()) continue;
    for (pb::Event& event : *events) ApplyEvent(std::move(event));
  }
  for (pb::Event& event : work->progress) ApplyEvent(std::move(event));
  AppendGangPrepared();
  AppendDue();
  return answers;
}

ChangedRows Engine::Commit() {
  ChangedRows changed = state_.TakeChanges();
  Transaction transaction;
  transaction.commit = commit_ + 1;
  transaction.now_ns = now_ns_;
  for (const pb::Event& event : step_events_)
    transaction.events.push_back(DeterministicBytes(event));
  if (store_->WantsRows()) transaction.rows = state_.RowsOf(changed);
  const int64_t began_ns = clock_->MonotonicNs();
  if (absl::Status status = store_->Commit(transaction); !status.ok()) {
    // Whether it is durable is unknown, so nobody gets an answer: the next start reads what is
    // (contracts 17, 18).
    LogError("commit failed, musterd ends and has to be started again",
             {{"commit", transaction.commit}, {"error", std::string(status.message())}});
    if (options_.end_process) options_.end_process();
    std::_Exit(EXIT_FAILURE);
  }
  commit_ = transaction.commit;
  committed_in_ns_ = clock_->MonotonicNs() - began_ns;
  return changed;
}

bool Engine::Step() {
  Work work;
  if (RefusesAll() || !Take(&work)) return false;
  const int64_t began_ns = clock_->MonotonicNs();
  const std::vector<absl::Status> answers = ApplyWork(&work);
  const int64_t decide_ns = clock_->MonotonicNs();
  DecideAndApply();
  const int64_t decided_ns = clock_->MonotonicNs();
  const ChangedRows changed = Commit();
  const auto view = std::make_shared<const View>(View{state_, plan_, commit_, now_ns_});
  std::shared_ptr<const View> before;
  {
    std::lock_guard lock(mutex_);
    before = std::exchange(view_, view);
    ForgetEndedProgress();
  }
  Dispatch(changed, before->state);
  for (size_t i = 0; i < answers.size(); ++i) {
    if (work.queue[i].done) work.queue[i].done(answers[i]);
  }
  ForgetWhatEnded();  // after the answers: a host whose Hello told an end is welcomed by one
  {
    std::lock_guard lock(mutex_);
    Count(step_events_, &stats_);
    stats_.most_queued = std::max(stats_.most_queued, work.queue.size());
    stats_.decide.Add(decided_ns - decide_ns);
    stats_.commit.Add(committed_in_ns_);
    stats_.step.Add(clock_->MonotonicNs() - began_ns);
  }
  const StepRecord record{view, std::move(step_events_)};
  for (const Observer& observer : observers_) observer(record);
  return true;
}

void Engine::ApplyEvent(pb::Event event) {
  Apply(&state_, event);
  step_events_.push_back(std::move(event));
}

// With the report of a gang's last host it is committed that the gang starts (decision 143).
void Engine::AppendGangPrepared() {
  const size_t reported = step_events_.size();
  for (size_t i = 0; i < reported; ++i) {
    if (!step_events_[i].has_attempt_reported()) continue;
    const pb::AttemptKey key = step_events_[i].attempt_reported().report().key();
    if (std::optional<pb::Event> prepared = PreparedGang(state_, key))
      ApplyEvent(*std::move(prepared));
  }
}

// Of all whose time has come, so that no owner's answer is waited for after another's.
void Engine::AskWhoMaySubmit() const {
  size_t jobs = 0;
  for (const auto& [at_ns, number] : state_.due()) {
    if (at_ns > state_.now_ns() || ++jobs > kDueInAStep) return;
    const JobRow& job = *state_.FindJob(number);
    if (job.spec->has_schedule()) (void)options_.may_submit(state_, job.owner, job.spec->queue());
  }
}

// Jobs whose time has come: so many in one step, the others in the next ones.
void Engine::AppendDue() {
  due_waits_ns_ = 0;
  size_t jobs = 0;
  while (const JobRow* first = FirstDue(state_)) {
    if (jobs >= kDueInAStep) return;
    if (options_.takes_submissions != nullptr && !options_.takes_submissions()) {
      due_waits_ns_ = kSecond;
      return;
    }
    const std::optional<bool> may_submit =
        options_.may_submit == nullptr || !first->spec->has_schedule()
            ? true
            : options_.may_submit(state_, first->owner, first->spec->queue());
    if (!may_submit.has_value()) {
      AskWhoMaySubmit();
      asks_again_ns_ = std::clamp(2 * asks_again_ns_, kAskAgainNs, kAskAgainAtMostNs);
      due_waits_ns_ = asks_again_ns_;
      return;
    }
    asks_again_ns_ = 0;
    for (pb::Event& event : NextDue(state_, *may_submit)) {
      const pb::JobSubmitted& next = event.job_submitted();
      jobs += 1 + static_cast<size_t>(next.members());
      if (event.has_job_submitted())
        LogInfo("job submitted by a schedule", {{"job", next.number()},
                                                {"owner", next.owner()},
                                                {"queue", next.spec().queue()},
                                                {"after", next.previous()}});
      ApplyEvent(std::move(event));
    }
  }
}

// While a restored store's hosts are waited for, each waiting task is told so, and nothing is
// decided.
bool Engine::AwaitsHosts() {
  if (!state_.restoring()) return false;
  if (options_.awaits_hosts == nullptr || !options_.awaits_hosts(state_)) {
    pb::Event settled;
    settled.mutable_store_adopted()->set_epoch(state_.adopted_epoch());
    settled.mutable_store_adopted()->set_settled(true);
    ApplyEvent(std::move(settled));
    TellStrays(state_);
    return false;
  }
  auto plan = std::make_shared<Plan>();
  for (const uint64_t number : state_.active_jobs()) {
    const JobRow& job = *state_.FindJob(number);
    for (size_t t = 0; t < job.tasks.size(); ++t) {
      const TaskRow& task = job.tasks[t];
      if (task.finished() || task.current() != nullptr) continue;
      Verdict verdict;
      verdict.task = {number, static_cast<int32_t>(t)};
      verdict.code = task.state == pb::TASK_BLOCKED ? BlockedCode(job, static_cast<int32_t>(t))
                                                    : pb::V_RESTORING;
      plan->verdicts.Set(verdict);
    }
  }
  plan_ = std::move(plan);
  std::lock_guard lock(mutex_);
  next_wake_ns_ = now_ns_ + kSecond;
  return true;
}

void Engine::DecideAndApply() {
  if (AwaitsHosts()) return;
  Plan plan = options_.decide ? options_.decide(state_, now_ns_, options_.scheduling)
                              : decider_.Decide(state_, now_ns_, options_.scheduling);
  int64_t wake_ns = plan.next_wake_ns;
  bool refused = false;
  bool accepted = false;
  for (int times = 0; !accepted && times <= kJobsDroppedFromAPlan; ++times) {
    PlanFault fault;
    const absl::Status status =
        options_.check_plans ? Validate(state_, plan, &fault) : absl::OkStatus();
    accepted = status.ok();
    if (accepted) break;
    if (!refused) SaveRefused(plan, status);
    refused = true;
    const bool confined = DropOffender(state_, fault, &plan);
    LogError(confined
                 ? "a plan was refused: its part for one job is dropped; please report this"
                 : "a plan was refused: nothing is started or stopped by it; please report this",
             {{"why", std::string(status.message())},
              {"commit", commit_ + 1},
              {"saved", options_.refused_plans_directory}});
    if (!confined) break;
  }
  if (accepted) {
    for (pb::Event& event : plan.events) ApplyEvent(std::move(event));
    plan.events.clear();
    plan_ = std::make_shared<const Plan>(std::move(plan));
  }
  if (refused)
    wake_ns = accepted ? std::min(wake_ns, now_ns_ + kRetryAfterRefusalNs)
                       : now_ns_ + kRetryAfterRefusalNs;
  std::lock_guard lock(mutex_);
  stats_.plans += accepted;
  stats_.refused_plans += refused;
  next_wake_ns_ = std::max(wake_ns, now_ns_ + std::max(due_waits_ns_, kMillisecond));
}

void Engine::SaveRefused(const Plan& plan, const absl::Status& why) {
  if (options_.refused_plans_directory.empty() || refused_plans_++ >= kReproducersKept) return;
  const std::string directory =
      absl::StrCat(options_.refused_plans_directory, "/", options_.epoch, "-", commit_ + 1);
  const absl::Status status = SaveRefusedPlan(directory, state_, plan, now_ns_, why);
  if (!status.ok())
    LogWarn("the refused plan could not be saved", {{"error", std::string(status.message())}});
}

// What has come to hold since the step before; what holds still was sent then, and is repeated by
// the link.
void Engine::Dispatch(const ChangedRows& changed, const State& before) {
  const auto send = [this](HostId id, const pb::SchedulerMessage& command) {
    const HostRow& host = state_.host(id);
    link_->Send(state_.clusters()[host.cluster].name, host.name, command);
  };
  for (const HostId id : changed.hosts) {
    const HostRow& host = state_.host(id);
    for (const pb::SchedulerMessage& command :
         CommandsFor(state_, state_.clusters()[host.cluster].name, host.name))
      send(id, command);
  }
  for (const uint64_t number : changed.jobs) {
    const JobRow* job = state_.FindJob(number);
    if (job == nullptr) continue;
    for (const HostCommand& command : CommandsOf(state_, *job, before.FindJob(number)))
      send(command.host, command.message);
  }
}

// A host may forget an attempt once its end is durable here; its export, if any, published or given
// up.
void Engine::ForgetWhatEnded() {
  const auto forget = [this](const std::string& cluster, const std::string& host,
                             const pb::AttemptKey& key) {
    pb::SchedulerMessage message;
    *message.mutable_forget()->mutable_key() = key;
    link_->Send(cluster, host, message);
  };
  for (const pb::Event& event : step_events_) {
    if (event.has_attempt_reported() && event.attempt_reported().report().phase() == pb::GONE) {
      const pb::AttemptReported& reported = event.attempt_reported();
      if (!AwaitsExport(state_, reported.report().key()))
        forget(reported.cluster(), reported.host(), reported.report().key());
    } else if (event.has_export_published()) {
      const AttemptRow* attempt = state_.FindAttempt(event.export_published().key());
      if (attempt == nullptr || AwaitsExport(state_, event.export_published().key()))
        continue;  // it is tried again
      for (const PartRow& part : attempt->parts) {
        const HostRow& host = state_.host(part.host);
        if (part.phase == pb::GONE)
          forget(state_.clusters()[host.cluster].name, host.name, event.export_published().key());
      }
    }
  }
}

// A step costs as much for one event as for some, most of all its commit; what comes in quick
// succession shares it.
void Engine::Gather(int64_t began_ns) {
  if (began_ns == 0) return;
  const int64_t left_ns = std::min(began_ns + kGatherNs - clock_->MonotonicNs(),
                                   kGatherNs);  // a clock that was set back holds nobody up
  std::unique_lock lock(mutex_);
  if (left_ns <= 0) return;
  gathering_ = true;
  work_.wait_for(lock, std::chrono::nanoseconds(left_ns),
                 [this] { return stopping_ || queue_.size() >= kGatherAtMost; });
  gathering_ = false;
}

void Engine::Run() {
  bool dirty = true;  // commits since the last housekeeping
  int64_t idled_ns = clock_->MonotonicNs();
  int64_t began_ns = 0;
  while (true) {
    Gather(began_ns);
    began_ns = clock_->MonotonicNs();
    const bool stepped = Step();
    if (!stepped) began_ns = 0;
    dirty = dirty || stepped;
    bool quiet = false;
    {
      std::unique_lock lock(mutex_);
      if (stopping_) break;
      if (!stepped) {
        const int64_t progress_ns = ProgressDueNs();
        const int64_t wake_ns = std::min(next_wake_ns_, progress_ns);
        int64_t wait_ns = dirty ? kIdleAfterNs : kMinute;
        if (wake_ns != kNever && why_not_.empty())
          wait_ns = std::min(wait_ns, std::max<int64_t>(0, wake_ns - NowNs()));
        quiet = !work_.wait_for(lock, std::chrono::nanoseconds(wait_ns), [this, progress_ns] {
          return stopping_ || !queue_.empty() || ProgressDueNs() < progress_ns;
        }) && wait_ns >= kIdleAfterNs;
      }
      quiet = quiet || (queue_.empty() && clock_->MonotonicNs() - idled_ns >= kIdleAtLeastEveryNs);
    }
    TellStats(clock_->MonotonicNs());
    if (!dirty || !quiet) continue;
    store_->Idle();
    idled_ns = clock_->MonotonicNs();
    dirty = false;
  }
  std::vector<Queued> left;
  {
    std::lock_guard lock(mutex_);
    left.swap(queue_);
  }
  Refuse(left);
}

// The engine's thread alone writes stats_, so it may read them without the lock.
void Engine::TellStats(int64_t now_ns) {
  if (told_stats_ns_ == 0) told_stats_ns_ = now_ns;
  if (now_ns - told_stats_ns_ < kTellStatsEveryNs) return;
  told_stats_ns_ = now_ns;
  if (stats_.step.count() == told_steps_) return;
  told_steps_ = stats_.step.count();
  const auto micros = [](const Durations& durations, int per_mille) {
    return durations.PerMilleNs(per_mille) / 1000;
  };
  LogInfo("steps", {{"steps", stats_.step.count()},
                    {"events", stats_.events},
                    {"step_us_p50", micros(stats_.step, 500)},
                    {"step_us_p99", micros(stats_.step, 990)},
                    {"decide_us_p99", micros(stats_.decide, 990)},
                    {"commit_us_p50", micros(stats_.commit, 500)},
                    {"commit_us_p99", micros(stats_.commit, 990)},
                    {"commit_us_longest", stats_.commit.longest_ns() / 1000},
                    {"most_queued", stats_.most_queued}});
}

void Engine::Stop() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  work_.notify_all();
}

std::shared_ptr<const View> Engine::Snapshot() const {
  std::lock_guard lock(mutex_);
  return view_;
}

}  // namespace muster
