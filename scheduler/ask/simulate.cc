#include "scheduler/ask/simulate.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/spec/when.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/capacity.h"
#include "scheduler/ask/check_on.h"
#include "scheduler/ask/taken.h"

namespace muster {
namespace {

using Response = pb::SimulateResponse;

bool KnownTarget(const State& state, const std::string& target) {
  const size_t slash = target.find('/');
  if (slash == std::string::npos) return state.FindCluster(target) >= 0;
  return state.FindHost(target.substr(0, slash), target.substr(slash + 1)) != kNoHost;
}

// What a future says of a task: its next start if it waits, its end, and its first stop that takes
// workers from it.
struct Fate {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int stop = -1;  // index in foreseen()
};

std::map<TaskRef, Fate> Fates(const Future& future) {
  std::map<TaskRef, Fate> fates;
  for (size_t i = 0; i < future.foreseen().size(); ++i) {
    const Foreseen& seen = future.foreseen()[i];
    Fate& fate = fates[seen.task];
    if (seen.kind == Foreseen::kPlaced && fate.start_ns == 0) fate.start_ns = seen.at_ns;
    if (seen.kind == Foreseen::kEnded) fate.end_ns = seen.at_ns;
    if (seen.kind == Foreseen::kStopping && seen.workers < seen.before && fate.stop < 0)
      fate.stop = static_cast<int>(i);
  }
  for (auto& [task, fate] : fates) {
    if (fate.end_ns == 0) fate.end_ns = future.EndOf(task);
  }
  return fates;
}

// A future and what it says of each task.
struct Told {
  explicit Told(const Future& told) : future(told), fates(Fates(told)) {}

  Fate Of(const TaskRef& task) const {
    const auto it = fates.find(task);
    return it != fates.end() ? it->second : Fate{0, future.EndOf(task), -1};
  }

  const Future& future;
  const std::map<TaskRef, Fate> fates;
};

// A future's queues: what they are entitled to at one time, and what they hold at a later one.
struct Moment {
  State state;
  std::map<std::pair<std::string, std::string>, int64_t> entitled_milli;
  bool entitled = false;

  // To be called after each step.
  void See(const Future& future, int64_t entitled_at_ns, int64_t state_at_ns) {
    if (future.now_ns() <= state_at_ns) state = future.state();
    if (entitled) return;
    entitled_milli = future.plan().entitled_milli;
    entitled = future.now_ns() >= entitled_at_ns && !entitled_milli.empty();
  }
};

// Times that differ by less are the same: futures are decided in grains.
bool Differs(int64_t a_ns, int64_t b_ns, int64_t now_ns) {
  if (a_ns == 0 || b_ns == 0) return a_ns != b_ns;
  return std::abs(a_ns - b_ns) > 5 * kSecond + (std::max(a_ns, b_ns) - now_ns) / 32;
}

// Whether `with` stops a task for what was changed: a stop that `without` doesn't have, has later,
// or that takes less there.
bool StoppedForIt(const Future& before, const Fate& without, const Future& after, const Fate& with,
                  int64_t now_ns) {
  if (with.stop < 0) return false;
  if (without.stop < 0) return true;
  const Foreseen &a = before.foreseen()[without.stop], &b = after.foreseen()[with.stop];
  if (Differs(a.at_ns, b.at_ns, now_ns)) return b.at_ns < a.at_ns;
  return b.workers < a.workers || (b.cause == pb::DRAIN && a.cause != pb::DRAIN);
}

int64_t Milli(const std::map<std::string, int64_t>& by_flavour, const std::string& flavour) {
  const auto it = by_flavour.find(flavour);
  return it == by_flavour.end() ? 0 : it->second;
}

// What one moment says of a queue, by flavour.
struct QueueFacts {
  std::map<std::string, int64_t> guarantee, entitled, used;
};

std::map<std::string, QueueFacts> FactsOf(const Moment& moment) {
  std::map<std::string, QueueFacts> facts;
  const auto use = UseByQueue(moment.state);
  for (size_t n = 1; n < moment.state.queues().nodes.size(); ++n) {
    const QueueNode& node = moment.state.queues().nodes[n];
    QueueFacts& queue = facts[node.path];
    for (const auto& [flavour, quota] : node.spec.quota())
      queue.guarantee[flavour] = quota.guarantee_milli();
    queue.used = use[n];
  }
  for (const auto& [key, milli] : moment.entitled_milli) {
    if (const auto queue = facts.find(key.first); queue != facts.end())
      queue->second.entitled[key.second] = milli;
  }
  return facts;
}

void FillQueues(const Moment& was, const Moment& is, Response* response) {
  std::map<std::string, QueueFacts> before = FactsOf(was), after = FactsOf(is);
  std::set<std::pair<std::string, std::string>> rows;
  for (const auto* facts : {&before, &after}) {
    for (const auto& [path, queue] : *facts) {
      for (const auto* by_flavour : {&queue.guarantee, &queue.entitled, &queue.used}) {
        for (const auto& [flavour, milli] : *by_flavour) rows.insert({path, flavour});
      }
    }
  }
  for (const auto& [path, flavour] : rows) {
    const QueueFacts &b = before[path], &a = after[path];
    Response::QueueEffect effect;
    effect.set_path(path);
    effect.set_flavour(flavour);
    effect.set_guarantee_before_milli(Milli(b.guarantee, flavour));
    effect.set_guarantee_after_milli(Milli(a.guarantee, flavour));
    effect.set_entitled_before_milli(Milli(b.entitled, flavour));
    effect.set_entitled_after_milli(Milli(a.entitled, flavour));
    effect.set_used_before_milli(Milli(b.used, flavour));
    effect.set_used_after_milli(Milli(a.used, flavour));
    const bool same = effect.guarantee_before_milli() == effect.guarantee_after_milli() &&
                      effect.entitled_before_milli() == effect.entitled_after_milli() &&
                      effect.used_before_milli() == effect.used_after_milli();
    if (!same) *response->add_queues() = std::move(effect);
  }
}

pb::Event SubmittedJob(const State& state, const pb::JobSpec& spec, size_t index, uint64_t number,
                       const std::string& owner, int64_t at_ns) {
  pb::Event event;
  pb::JobSubmitted* e = event.mutable_job_submitted();
  e->set_uid(absl::StrFormat("ffffffffffffffff%016x", index));
  e->set_number(number);
  e->set_owner(owner);
  *e->mutable_spec() = spec;
  SetPredecessors(state, e);
  e->set_not_before_ns(FirstTimeNs(spec, at_ns).value_or(0));
  return event;
}

// The first task that wants devices stands for its job; the first, if none does.
int Standing(const pb::JobSpec& spec) {
  for (int t = 0; t < spec.tasks_size(); ++t) {
    if (spec.tasks(t).resources().gpus_milli() != 0) return t;
  }
  return 0;
}

void DescribeSubmitted(const State& state, const pb::JobSpec& spec, uint64_t number,
                       const Told& told, Response::Submitted* s) {
  s->set_name(spec.name());
  s->set_queue(spec.queue());
  const TaskRef ref{number, Standing(spec)};
  s->set_gpus_milli_per_worker(spec.tasks(ref.task).resources().gpus_milli());
  s->set_workers(spec.tasks(ref.task).workers().min());
  for (pb::PreviewResponse::Taken& taken : TakenFor(told.future, number))
    *s->add_takes_from() = std::move(taken);
  const Foreseen* placed = told.future.PlacedAt(ref);
  if (placed == nullptr) return;
  s->set_start_ns(placed->at_ns);
  s->set_workers(placed->workers);
  s->set_cluster(placed->cluster);
  s->set_flavour(placed->flavour);
  s->set_place(PlaceText(state, placed->hosts));
  s->set_within(WithinText(state, placed->hosts));
  s->set_end_ns(told.fates.at(ref).end_ns);
}

void DescribeStop(const JobRow& job, const Future& future, size_t stop, Response::Effect* effect) {
  const Foreseen& seen = future.foreseen()[stop];
  effect->set_stopped_ns(seen.at_ns);
  effect->set_cause(seen.cause);
  effect->set_outcome(OutcomeOf(future, stop));
  effect->set_gpus_milli((seen.before - seen.workers) *
                         job.task_spec(seen.task.task).resources().gpus_milli());
  effect->set_lost_gpu_ms(seen.lost_gpu_ms);
}

// What the changes do to one task; nullopt if nothing that matters.
std::optional<Response::Effect> EffectOn(const JobRow& job, size_t t, const Told& before,
                                         const Told& after, int64_t now_ns) {
  const TaskRef ref{job.number, static_cast<int32_t>(t)};
  if (job.tasks[t].finished()) return std::nullopt;
  const Fate without = before.Of(ref), with = after.Of(ref);
  const bool waits = job.tasks[t].current() == nullptr;
  const bool stopped = StoppedForIt(before.future, without, after.future, with, now_ns);
  const bool starts_otherwise = waits && Differs(without.start_ns, with.start_ns, now_ns);
  if (!stopped && !starts_otherwise && !Differs(without.end_ns, with.end_ns, now_ns))
    return std::nullopt;
  Response::Effect effect;
  effect.set_job(job.number);
  effect.set_queue(job.spec->queue());
  if (waits) {
    effect.set_start_before_ns(without.start_ns);
    effect.set_start_after_ns(with.start_ns);
  }
  effect.set_end_before_ns(without.end_ns);
  effect.set_end_after_ns(with.end_ns);
  if (stopped) DescribeStop(job, after.future, static_cast<size_t>(with.stop), &effect);
  return effect;
}

// One line a job, those that are stopped first.
void FillEffects(const State& state, const Told& before, const Told& after, int64_t now_ns,
                 const std::function<bool(const JobRow&)>& sees, Response* response) {
  std::vector<Response::Effect> effects;
  for (const uint64_t number : state.active_jobs()) {
    const JobRow& job = *state.FindJob(number);
    for (size_t t = 0; t < job.tasks.size(); ++t) {
      std::optional<Response::Effect> effect = EffectOn(job, t, before, after, now_ns);
      if (!effect.has_value()) continue;
      if (sees(job)) effect->set_name(job.spec->name());
      effects.push_back(*std::move(effect));
      break;
    }
  }
  std::stable_sort(effects.begin(), effects.end(),
                   [](const Response::Effect& a, const Response::Effect& b) {
                     return (a.stopped_ns() != 0) > (b.stopped_ns() != 0);
                   });
  for (Response::Effect& effect : effects) *response->add_effects() = std::move(effect);
}

}  // namespace

Changes ResolveChanges(const State& state, const pb::SimulateRequest& request,
                       const SpecDefaults& defaults, const std::string& owner,
                       const FindNamed& named) {
  Changes changes;
  State after = state;
  if (request.change_queues()) {
    QueueResolution resolution = ResolveQueues(state, request.queues());
    for (FieldProblem& problem : resolution.problems)
      changes.problems.push_back({problem.path, problem.message});
    changes.lines = resolution.changes;
    if (resolution.ok()) {
      *changes.events.emplace_back().mutable_queues_applied()->mutable_tree() = resolution.resolved;
      Apply(&after, changes.events.back());
    }
  }
  const auto drains = [&](const google::protobuf::RepeatedPtrField<std::string>& targets,
                          const char* field, bool drained) {
    for (int i = 0; i < targets.size(); ++i) {
      if (!KnownTarget(state, targets[i])) {
        changes.problems.push_back(
            {absl::StrCat(field, "[", i, "]"),
             absl::StrCat("there is no cluster or host (cluster/host) \"", targets[i], "\"")});
        continue;
      }
      pb::DrainChanged* change = changes.events.emplace_back().mutable_drain_changed();
      change->set_target(targets[i]);
      change->set_drained(drained);
    }
  };
  drains(request.drain(), "drain", true);
  drains(request.resume(), "resume", false);
  for (int j = 0; j < request.jobs_size(); ++j) {
    Resolution resolution = ResolveSpec(after, request.jobs(j), defaults, false, owner);
    if (resolution.ok()) resolution.problems = CheckHolder(state, resolution.resolved, owner);
    if (resolution.ok()) resolution.problems = CheckAfter(state, resolution.resolved, named);
    for (FieldProblem& problem : resolution.problems) {
      changes.problems.push_back({absl::StrCat("jobs[", j, "].", problem.path), problem.message});
    }
    changes.jobs.push_back(std::move(resolution.resolved));
  }
  return changes;
}

Response Simulate(const State& state, const Changes& changes, const std::string& owner,
                  int64_t delay_ns, int64_t now_ns, const SchedulingOptions& scheduling,
                  const FutureOptions& options, const Spent& spent,
                  const std::function<bool(const JobRow&)>& sees) {
  Response response;
  FutureOptions before_options = options, after_options = options;
  before_options.expired = after_options.expired = [&] { return spent && spent(100); };
  Future before(state, now_ns, scheduling, before_options);
  Future after(state, now_ns, scheduling, after_options);
  const int64_t at_ns = after.now_ns() + delay_ns;
  for (const pb::Event& event : changes.events) after.At(at_ns, event);
  const uint64_t first = state.next_job_number();
  for (size_t j = 0; j < changes.jobs.size(); ++j)
    after.At(at_ns, SubmittedJob(state, changes.jobs[j], j, first + j, owner, at_ns));
  // Queues are compared once what is stopped for the changes has left.
  const int64_t settled_ns = at_ns + 2 * options.leave_ns;
  Moment was, is;
  do {
    was.See(before, at_ns, settled_ns);
    is.See(after, at_ns, settled_ns);
  } while (Future::StepBoth(&before, &after));
  response.set_now_ns(now_ns);
  response.set_complete(!before.cut() && !after.cut());
  response.set_until_ns(response.complete() ? now_ns + options.horizon_ns
                                            : std::min(before.now_ns(), after.now_ns()));
  for (const std::string& line : changes.lines) response.add_changes(line);

  const Told without(before), with(after);
  for (size_t j = 0; j < changes.jobs.size(); ++j)
    DescribeSubmitted(state, changes.jobs[j], first + j, with, response.add_submitted());
  FillEffects(state, without, with, now_ns, sees, &response);
  FillQueues(was, is, &response);
  return response;
}

}  // namespace muster
