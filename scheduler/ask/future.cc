#include "scheduler/ask/future.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/spec/when.h"
#include "scheduler/decide/decider.h"
#include "scheduler/decide/model/model.h"
#include "scheduler/decide/model/next_stop.h"

namespace muster {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
// Moments closer together than this share of the time since the beginning are decided at once: what
// lies far ahead need not be told to the second.
constexpr int64_t kGrain = 64;

int64_t WorkEnd(int64_t now_ns, int64_t left, int32_t workers) {
  return left < 0 ? 0 : now_ns + left / std::max(1, workers);
}

}  // namespace

Future::Future(State state, int64_t now_ns, const SchedulingOptions& scheduling,
               FutureOptions options)
    : state_(std::move(state)),
      begin_ns_(std::max(now_ns, state_.now_ns())),
      scheduling_(scheduling),
      options_(std::move(options)),
      own_decider_(options_.decider == nullptr ? std::make_shared<Decider>() : nullptr),
      now_ns_(begin_ns_) {
  for (const uint64_t number : state_.active_jobs()) {
    const JobRow& job = *state_.FindJob(number);
    for (size_t t = 0; t < job.tasks.size(); ++t) {
      if (const AttemptRow* attempt = job.tasks[t].current())
        Adopt(job, static_cast<int32_t>(t), *attempt);
    }
  }
}

void Future::Adopt(const JobRow& job, int32_t task, const AttemptRow& attempt) {
  if (attempt.released()) return;  // it waits for its export: nobody's devices
  const bool lost_sight =
      std::any_of(attempt.parts.begin(), attempt.parts.end(), [&](const PartRow& part) {
        return !part.over() && state_.host(part.host).state == pb::HOST_UNREACHABLE;
      });
  if (lost_sight) return;  // nobody knows what it does
  const AttemptRef ref{job.number, task, attempt.number};
  if (attempt.state == pb::TASK_STOPPING) {
    const int64_t leave_ns = attempt.stop_ns + std::min(attempt.grace_ns, options_.leave_ns);
    pending_.emplace(std::max(begin_ns_, leave_ns), Pending{Pending::kLeave, {}, ref});
    return;
  }
  Gang gang;
  gang.ref = {job.number, task};
  gang.job = &job;
  gang.row = &job.tasks[task];
  gang.spec = &job.task_spec(task);
  gang.current = &attempt;
  ReadRun(state_, &attempt, &gang);
  if (attempt.state != pb::TASK_RUNNING) {
    pending_.emplace(begin_ns_, Pending{Pending::kLaunch, {}, ref});
    return;
  }
  if (const int64_t hang_ns = HangNs(state_, *gang.spec, *gang.row, attempt);
      hang_ns != kUnbounded && hang_ns > begin_ns_) {
    hang_ns_ = std::min(hang_ns_, hang_ns);
    hang_timeout_ns_ = std::min(hang_timeout_ns_, gang.spec->hang_timeout_ns());
  }
  Work work;
  work.since_ns = begin_ns_;
  work.end_ns = ExpectedEnd(gang, begin_ns_);
  const bool by_limit =
      gang.spec->time_limit_ns() > 0 && attempt.start_ns != 0 &&
      work.end_ns == attempt.start_ns + gang.spec->time_limit_ns() - gang.row->ran_ns;
  if (work.end_ns != 0 && !by_limit) {
    work.left = static_cast<int64_t>(std::min<__int128>(
        static_cast<__int128>(work.end_ns - begin_ns_) * attempt.workers, kNever / 2));
  }
  work_[gang.ref] = work;
  if (work.end_ns != 0)
    pending_.emplace(std::max(begin_ns_, work.end_ns), Pending{Pending::kEnd, {}, ref});
}

void Future::At(int64_t when_ns, pb::Event event) {
  pending_.emplace(std::max(when_ns, now_ns_), Pending{Pending::kEvent, std::move(event), {}});
}

bool Future::Step() {
  const int64_t next_ns = NextNs();
  return StepAt(next_ns == kNever ? kNever : GrainEnd(next_ns));
}

bool Future::StepBoth(Future* one, Future* other) {
  const int64_t next_ns = std::min(one->NextNs(), other->NextNs());
  const int64_t at_ns =
      next_ns == kNever ? kNever : std::max(one->GrainEnd(next_ns), other->GrainEnd(next_ns));
  const bool first = one->StepAt(at_ns);
  return other->StepAt(at_ns) && first;
}

int64_t Future::NextNs() const {
  if (!started_) return begin_ns_;
  const int64_t next_ns = std::min(wake_ns_, pending_.empty() ? kNever : pending_.begin()->first);
  return next_ns == kNever || next_ns > begin_ns_ + options_.horizon_ns ? kNever : next_ns;
}

int64_t Future::GrainEnd(int64_t next_ns) const {
  const int64_t until_ns = next_ns + (next_ns - begin_ns_) / kGrain;
  int64_t at_ns = std::max(now_ns_, next_ns);
  for (auto it = pending_.begin(); it != pending_.end() && it->first <= until_ns; ++it)
    at_ns = std::max(at_ns, it->first);
  return at_ns;
}

// kNever: there is nothing to do.
bool Future::StepAt(int64_t at_ns) {
  if (cut_) return false;
  if (++steps_ > options_.steps_max || (options_.expired && options_.expired())) {
    cut_ = true;
    return false;
  }
  if (at_ns == kNever) return false;
  now_ns_ = std::max(now_ns_, at_ns);
  started_ = true;

  pb::Event step;
  step.mutable_step()->set_now_ns(now_ns_);
  step.mutable_step()->set_epoch(state_.epoch());
  if (now_ns_ >= hang_ns_) {  // nobody tells progress here: that it is silent says nothing
    step.mutable_step()->set_listens_again(true);
    hang_ns_ = now_ns_ + hang_timeout_ns_;
  }
  Apply(&state_, step);
  while (!pending_.empty() && pending_.begin()->first <= now_ns_) {
    const Pending due = std::move(pending_.begin()->second);
    pending_.erase(pending_.begin());
    switch (due.kind) {
      case Pending::kEvent:
        Apply(&state_, due.event);
        break;
      case Pending::kLaunch:
        Launch(due.attempt);
        break;
      case Pending::kEnd:
        End(due.attempt);
        break;
      case Pending::kLeave:
        Leave(due.attempt);
        break;
    }
  }
  ApplyDue();
  bool opened = true;  // a cluster: what that allows is decided at the same time
  while (opened) {
    plan_ = (options_.decider != nullptr ? options_.decider : own_decider_.get())
                ->Decide(state_, now_ns_, scheduling_);
    wake_ns_ = plan_.next_wake_ns == kNever ? kNever
                                            : std::max(plan_.next_wake_ns, now_ns_ + kMillisecond);
    ApplyPlan();
    opened = std::any_of(plan_.events.begin(), plan_.events.end(),
                         [](const pb::Event& event) { return event.has_cluster_opened(); });
  }
  return true;
}

// Of a schedule the job that is known is looked at; those of later times are not.
void Future::ApplyDue() {
  while (const JobRow* first = FirstDue(state_)) {
    pb::Event due;
    due.mutable_job_due()->set_number(first->number);
    if (first->spec->has_schedule() && (first->no_right || SkipsItsTime(state_, *first))) {
      int64_t next_ns = NextTimeNs(first->spec->schedule(), now_ns_).value_or(now_ns_ + kHour);
      if (next_ns == 0) due.mutable_job_due()->set_end_reason("its schedule has no next time");
      // Whose owner might not submit at its newest time may not at those that are foreseen either.
      if (next_ns != 0 && first->no_right)
        next_ns = std::max(next_ns, begin_ns_ + options_.horizon_ns + 1);
      due.mutable_job_due()->set_skip_to_ns(next_ns);
      due.mutable_job_due()->set_no_right(first->no_right);
    }
    Apply(&state_, due);
  }
}

void Future::ApplyPlan() {
  std::vector<AttemptRef> placed;
  for (const pb::Event& event : plan_.events) {
    if (event.has_attempt_stopping()) NoteStopping(event.attempt_stopping());
    Apply(&state_, event);
    if (!event.has_attempt_placed()) continue;
    NotePlaced(event.attempt_placed());
    placed.push_back({foreseen_.back().task.job, foreseen_.back().task.task,
                      event.attempt_placed().key().attempt()});
  }
  for (const AttemptRef& ref : placed) Launch(ref);
}

void Future::Report(const AttemptRef& ref, size_t part, pb::AttemptPhase phase, bool stopped) {
  const AttemptRow* attempt = state_.FindAttempt(ref);
  if (attempt == nullptr || attempt->ended() || part >= attempt->parts.size() ||
      attempt->parts[part].over())
    return;
  const PartRow& row = attempt->parts[part];
  pb::Event event;
  pb::AttemptReported* reported = event.mutable_attempt_reported();
  reported->set_cluster(state_.clusters()[attempt->cluster].name);
  reported->set_host(state_.host(row.host).name);
  reported->set_state_id(row.state_id);
  pb::AttemptReport* report = reported->mutable_report();
  *report->mutable_key() = KeyOf(*state_.FindJob(ref.job), ref.task, ref.number);
  report->set_phase(phase);
  report->set_stop_sent(stopped);
  if (phase == pb::GONE && !stopped) report->add_exits()->set_rank(row.first_group_rank);
  Apply(&state_, event);
}

void Future::Launch(const AttemptRef& ref) {
  const AttemptRow* attempt = state_.FindAttempt(ref);
  if (attempt == nullptr || attempt->ended() || attempt->state == pb::TASK_STOPPING) return;
  const size_t parts = attempt->parts.size();
  if (attempt->state == pb::TASK_PREPARING) {
    for (size_t p = 0; p < parts; ++p) Report(ref, p, pb::PREPARED, false);
    const pb::AttemptKey key = KeyOf(*state_.FindJob(ref.job), ref.task, ref.number);
    if (const std::optional<pb::Event> prepared = PreparedGang(state_, key))
      Apply(&state_, *prepared);
  }
  for (size_t p = 0; p < parts; ++p) Report(ref, p, pb::STARTED, false);

  const TaskRef task{ref.job, ref.task};
  const JobRow* job = state_.FindJob(ref.job);  // read again: applying moves rows
  attempt = state_.FindAttempt(ref);
  Work& work = work_.try_emplace(task, WorkOf(*job, ref.task)).first->second;
  work.since_ns = now_ns_;
  work.end_ns = WorkEnd(now_ns_, work.left, attempt->workers);
  const int64_t limit_ns = job->task_spec(ref.task).time_limit_ns();
  if (limit_ns > 0) {
    const int64_t at_ns = now_ns_ + std::max<int64_t>(0, limit_ns - job->tasks[ref.task].ran_ns);
    work.end_ns = work.end_ns == 0 ? at_ns : std::min(work.end_ns, at_ns);
  }
  if (work.end_ns != 0) pending_.emplace(work.end_ns, Pending{Pending::kEnd, {}, ref});
}

// What is left of a task that is placed: from the steps that it has made in the time that it ran,
// else from history.
Future::Work Future::WorkOf(const JobRow& job, int32_t task) const {
  Work work;
  const TaskRow& row = job.tasks[task];
  const pb::Progress& progress = row.progress;
  if (row.attempts.empty() || row.ran_ns <= 0 || progress.step() <= 0 ||
      progress.total_steps() <= progress.step()) {
    const __int128 left = static_cast<__int128>(row.expected_run_ns - row.ran_ns) *
                          (row.attempts.empty() ? 1 : row.attempts.back().workers);
    if (left > 0 && left < kNever / 2) work.left = static_cast<int64_t>(left);
    return work;
  }
  const int32_t workers = row.attempts.size() > 1 && !row.attempts.back().ended()
                              ? row.attempts[row.attempts.size() - 2].workers
                              : row.attempts.back().workers;
  const __int128 left = static_cast<__int128>(row.ran_ns) *
                        (progress.total_steps() - progress.step()) / progress.step() * workers;
  if (left < kNever / 2) work.left = static_cast<int64_t>(left);
  return work;
}

void Future::End(const AttemptRef& ref) {
  const AttemptRow* attempt = state_.FindAttempt(ref);
  if (attempt == nullptr || attempt->ended() || attempt->state != pb::TASK_RUNNING)
    return;  // stopped before
  const size_t parts = attempt->parts.size();
  NoteEnded(ref);
  for (size_t p = 0; p < parts; ++p) Report(ref, p, pb::GONE, false);
  work_.erase({ref.job, ref.task});
}

void Future::Leave(const AttemptRef& ref) {
  const AttemptRow* attempt = state_.FindAttempt(ref);
  if (attempt == nullptr || attempt->ended()) return;
  const size_t parts = attempt->parts.size();
  for (size_t p = 0; p < parts; ++p) Report(ref, p, pb::GONE, true);
}

void Future::NotePlaced(const pb::AttemptPlaced& placed) {
  const JobRow* job = nullptr;
  Foreseen seen;
  seen.at_ns = now_ns_;
  const AttemptRow* attempt = state_.FindAttempt(placed.key(), &job, &seen.task.task);
  if (attempt != nullptr) seen.task.job = job->number;
  seen.workers = placed.workers();
  seen.cluster = placed.cluster();
  seen.flavour = placed.flavour();
  for (const pb::Placement& part : placed.placements())
    seen.hosts.push_back(state_.FindHost(placed.cluster(), part.host()));
  placed_.try_emplace(seen.task, foreseen_.size());
  foreseen_.push_back(std::move(seen));
}

void Future::NoteStopping(const pb::AttemptStopping& stopping) {
  const JobRow* job = nullptr;
  Foreseen seen;
  seen.kind = Foreseen::kStopping;
  const AttemptRow* attempt = state_.FindAttempt(stopping.key(), &job, &seen.task.task);
  if (attempt == nullptr || attempt->ended() || attempt->state == pb::TASK_STOPPING) return;
  seen.at_ns = now_ns_;
  seen.task.job = job->number;
  seen.workers = stopping.next_workers();
  seen.before = attempt->workers;
  seen.cause = stopping.cause();
  seen.cluster = state_.clusters()[attempt->cluster].name;
  seen.flavour = attempt->flavour;
  if (const JobRow* claimant = state_.FindJobByUid(stopping.claimant().job_uid());
      claimant != nullptr)
    seen.claimant = claimant->number;
  const int64_t since_ns = std::max(attempt->last_checkpoint_ns, attempt->start_ns);
  if (since_ns > 0) {
    seen.lost_gpu_ms = (now_ns_ - since_ns) / kMillisecond * attempt->workers *
                       job->task_spec(seen.task.task).resources().gpus_milli() / 1000;
  }
  seen.starts_over = attempt->start_ns != 0 &&
                     StartsOver(job->tasks[seen.task.task], job->task_spec(seen.task.task));
  if (const auto work = work_.find(seen.task); work != work_.end() && work->second.left >= 0) {
    // To do is what is left, less what it did since; or all that the attempt has begun with.
    const int64_t kept_ns = seen.starts_over
                                ? std::min<int64_t>(0, attempt->start_ns - work->second.since_ns)
                                : now_ns_ - work->second.since_ns;
    const __int128 left = work->second.left - static_cast<__int128>(kept_ns) * attempt->workers;
    work->second.left = static_cast<int64_t>(std::clamp<__int128>(left, 0, kNever / 2));
    work->second.end_ns = 0;
  }
  pending_.emplace(
      now_ns_ + std::min(stopping.grace_ns(), options_.leave_ns),
      Pending{Pending::kLeave, {}, AttemptRef{seen.task.job, seen.task.task, attempt->number}});
  foreseen_.push_back(std::move(seen));
}

void Future::NoteEnded(const AttemptRef& ref) {
  const AttemptRow& attempt = *state_.FindAttempt(ref);
  Foreseen seen;
  seen.kind = Foreseen::kEnded;
  seen.at_ns = now_ns_;
  seen.task = {ref.job, ref.task};
  seen.workers = attempt.workers;
  seen.cluster = state_.clusters()[attempt.cluster].name;
  seen.flavour = attempt.flavour;
  foreseen_.push_back(std::move(seen));
}

const Foreseen* Future::PlacedAt(const TaskRef& task) const {
  const auto it = placed_.find(task);
  return it == placed_.end() ? nullptr : &foreseen_[it->second];
}

const Foreseen* Future::RunUntilPlaced(const TaskRef& task) {
  while (PlacedAt(task) == nullptr && Step()) {
  }
  return PlacedAt(task);
}

int64_t Future::EndOf(const TaskRef& task) const {
  const auto it = work_.find(task);
  return it == work_.end() ? 0 : it->second.end_ns;
}

bool StartsOver(const TaskRow& task, const pb::TaskSpec& spec) {
  return task.checkpoints.empty() && spec.trainer_json().empty();
}

void EndNow(State* state, uint64_t number) {
  pb::Event cancel;
  cancel.mutable_job_cancel()->set_number(number);
  Apply(state, cancel);
  const JobRow* job = state->FindJob(number);
  if (job == nullptr) return;
  std::vector<pb::Event> gone;
  for (size_t t = 0; t < job->tasks.size(); ++t) {
    const AttemptRow* attempt = job->tasks[t].current();
    if (attempt == nullptr) continue;
    for (const PartRow& part : attempt->parts) {
      if (part.over()) continue;
      pb::AttemptReported* reported = gone.emplace_back().mutable_attempt_reported();
      reported->set_cluster(state->clusters()[attempt->cluster].name);
      reported->set_host(state->host(part.host).name);
      reported->set_state_id(part.state_id);
      *reported->mutable_report()->mutable_key() =
          KeyOf(*job, static_cast<int32_t>(t), attempt->number);
      reported->mutable_report()->set_phase(pb::GONE);
      reported->mutable_report()->add_exits()->set_rank(part.first_group_rank);
    }
  }
  for (const pb::Event& event : gone) Apply(state, event);
}

std::string PlaceText(const State& state, const std::vector<HostId>& hosts) {
  if (hosts.empty() || hosts[0] == kNoHost) return "";
  const std::string& cluster = state.clusters()[state.host(hosts[0]).cluster].name;
  std::set<std::pair<std::string, std::string>> racks;
  std::vector<std::string> names;
  for (const HostId id : hosts) {
    const HostRow& host = state.host(id);
    racks.insert({host.block, host.rack});
    names.push_back(host.name);
  }
  std::sort(names.begin(), names.end());
  const bool known = std::none_of(racks.begin(), racks.end(),
                                  [](const auto& rack) { return rack.second.empty(); });
  if (known && racks.size() == 1 && names.size() > 4)
    return absl::StrCat(cluster, "/", racks.begin()->second);
  const std::string prefix = known && racks.size() == 1
                                 ? absl::StrCat(cluster, "/", racks.begin()->second, "/")
                                 : absl::StrCat(cluster, "/");
  if (names.size() <= 4) return absl::StrCat(prefix, absl::StrJoin(names, ","));
  if (!known) return absl::StrCat(cluster, ", ", names.size(), " hosts");
  if (racks.size() > 4) return absl::StrCat(cluster, ", ", racks.size(), " racks");
  return absl::StrCat(cluster, "/",
                      absl::StrJoin(racks, ",", [](std::string* out, const auto& rack) {
                        out->append(rack.second);
                      }));
}

std::string WithinText(const State& state, const std::vector<HostId>& hosts) {
  std::set<std::string> blocks;
  std::set<std::pair<std::string, std::string>> racks;
  bool rack_known = true, block_known = true;
  for (const HostId id : hosts) {
    if (id == kNoHost) continue;
    const HostRow& host = state.host(id);
    blocks.insert(host.block);
    racks.insert({host.block, host.rack});
    rack_known = rack_known && !host.rack.empty();
    block_known = block_known && !host.block.empty();
  }
  if (hosts.size() <= 1) return hosts.empty() ? "" : "1 host";
  if (rack_known && racks.size() == 1) return "1 rack";
  if (block_known && blocks.size() == 1) return "1 block";
  if (block_known) return absl::StrCat(blocks.size(), " blocks");
  return absl::StrCat(hosts.size(), " hosts");
}

}  // namespace muster
