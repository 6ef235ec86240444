// What users and operators ask for.
#include "sim/faults/world.h"

#include <algorithm>
#include <iterator>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/spec/members.h"
#include "scheduler/api/submit.h"
#include "scheduler/ask/ask.h"
#include "sim/faults/records.h"

namespace muster::sim::faults {
namespace {

// As users are told to choose it (docs/runbook.md): longer than two leases, which a clock that is
// set forward may add to a silence, with the time between two lines and that of a slow message.
int64_t LeastHangTimeoutNs(const Config& config) { return std::max(kMinute, 4 * config.lease_ns); }

}  // namespace

pb::JobSpec World::DrawSpec() {
  pb::JobSpec spec;
  spec.set_name("job");
  spec.set_queue(random_.OneIn(2) ? "b" : random_.OneIn(2) ? "a/x" : "a/y");
  const int tasks = random_.OneIn(8) ? 2 : 1;
  for (int t = 0; t < tasks; ++t) {
    pb::TaskSpec* task = spec.add_tasks();
    task->set_name(t == 0 ? "main" : "then");
    if (t > 0) task->add_after("main");
    const uint64_t shape = random_.Below(10);
    int32_t workers = 1, most = 1;
    int64_t gpus =
        1 + static_cast<int64_t>(random_.Below(static_cast<uint64_t>(shared_.config.gpus)));
    if (shape >= 5) {
      workers = most = 2 + static_cast<int32_t>(random_.Below(3));
      gpus = shape == 9 ? 1 : shared_.config.gpus;
    }
    if (shape == 8) workers = 1;
    most = std::min(most, std::max(1, shared_.config.hosts * 2 / 5 - 1));
    workers = std::min(workers, most);
    task->mutable_workers()->set_min(workers);
    task->mutable_workers()->set_max(most);
    const bool on_cpus = random_.OneIn(8);  // beside devices, which may want their CPUs back
    if (on_cpus) {
      task->mutable_resources()->set_cpus_milli(1000 * random_.Between(1, 48));
    } else {
      task->mutable_resources()->set_gpus_milli(gpus * 1000);
      task->mutable_resources()->add_gpu_types(kFlavour);
    }
    task->set_processes_per_worker(random_.OneIn(4) ? 2 : 1);
    if (shape == 0 && !on_cpus) {  // a part of a GPU: one worker, one process
      task->mutable_resources()->set_gpus_milli(random_.Between(1, 9) * 100);
      task->set_processes_per_worker(1);
    }
    task->mutable_run()->set_shell("train");
    const int64_t hang_ns = LeastHangTimeoutNs(shared_.config);
    task->set_hang_timeout_ns(random_.OneIn(3) ? random_.Between(hang_ns, hang_ns + kMinute) : 0);
    task->set_grace_ns(random_.Between(0, 10 * kSecond));
    if (random_.OneIn(4)) task->set_time_limit_ns(random_.Between(30 * kSecond, 10 * kMinute));
    constexpr pb::WhenUnreachable kRules[] = {
        pb::WHEN_UNREACHABLE_UNSPECIFIED, pb::REPLACE, pb::REPLACE, pb::WAIT, pb::FENCE, pb::FENCE};
    task->set_when_unreachable(kRules[random_.Below(std::size(kRules))]);
    if (task->when_unreachable() == pb::FENCE)
      task->set_fence_after_ns(
          random_.Between(shared_.config.lease_ns, 2 * shared_.config.lease_ns));
  }
  return spec;
}

// Independent workers, or a few indices by turns.
void World::MakeArray(pb::JobSpec* spec) {
  if (spec->tasks_size() > 1 || random_.OneIn(2)) {
    spec->set_array(absl::StrCat("1-", random_.Between(2, 6), "%", random_.Between(1, 4)));
    return;
  }
  spec->mutable_tasks(0)->clear_workers();
  spec->mutable_independent_workers()->set_min(1);
  spec->mutable_independent_workers()->set_max(static_cast<int32_t>(random_.Between(2, 6)));
}

// One or two more tasks that start with the first, some of them for as long as it runs.
void World::PutTogether(pb::JobSpec* spec) {
  const int more = static_cast<int>(random_.Between(1, 2));
  for (int i = 0; i < more; ++i) {
    pb::TaskSpec* task = spec->add_tasks();
    *task = spec->tasks(0);
    task->set_name(absl::StrCat("beside", i));
    task->add_with("main");
    task->mutable_workers()->set_min(1);
    if (random_.OneIn(3)) {
      task->clear_resources();
      task->mutable_resources()->set_cpus_milli(1000 * random_.Between(1, 8));
    } else if (spec->tasks(0).resources().gpus_milli() >= 1000) {
      task->mutable_resources()->set_gpus_milli(1000 * random_.Between(1, shared_.config.gpus));
    }
    if (random_.OneIn(2)) task->add_until("main");
  }
  for (pb::TaskSpec& task : *spec->mutable_tasks())
    task.mutable_workers()->set_max(task.workers().min());
}

// Gangs that grow by steps. Small ones: what holds their least number is there, however few hosts.
void World::MakeMultiples(pb::JobSpec* spec) {
  const int32_t room = shared_.config.gpus * std::max(1, shared_.config.hosts * 2 / 5);
  for (const pb::TaskSpec& task : spec->tasks()) {
    if (!task.with().empty()) return;  // what starts together has one size
  }
  for (pb::TaskSpec& task : *spec->mutable_tasks()) {
    const int32_t step = static_cast<int32_t>(random_.Between(2, 3));
    const int32_t least = step * static_cast<int32_t>(random_.Between(1, 2));
    const int32_t more = step * static_cast<int32_t>(random_.Between(1, 3));
    if (task.resources().gpus_milli() == 0 || least > room) continue;
    task.mutable_resources()->set_gpus_milli(1000);
    task.mutable_workers()->set_min(least);
    task.mutable_workers()->set_max(std::min(least + more, room / step * step));
    task.mutable_workers()->set_multiple_of(step);
  }
}

// Each minute, or each second or third one.
void World::MakeSchedule(pb::JobSpec* spec) {
  pb::Schedule* schedule = spec->mutable_schedule();
  schedule->set_cron(absl::StrCat("*/", random_.Between(1, 3), " * * * *"));
  if (random_.OneIn(3)) schedule->set_overlap(pb::ALLOW);
}

// Cancels what waits for a time of a schedule, until none comes any more.
void World::EndSchedules() {
  if (Scheduler* const scheduler = current(); scheduler != nullptr) {
    const std::shared_ptr<const View> view = scheduler->engine()->Snapshot();
    for (const auto& [time_ns, number] : view->state.due()) {
      if (!view->state.FindJob(number)->spec->has_schedule()) continue;
      pb::Event event;
      event.mutable_job_cancel()->set_number(number);
      scheduler->engine()->Post(std::move(event));
    }
    scheduler->Wake();
  }
  shared_.heap.After(kClientPatienceNs, [this] { EndSchedules(); });
}

// In half of the seeds all come at once: while many wait, what is free is taken at once.
void World::MakeUsers() {
  const int64_t until_ns =
      random_.OneIn(2) ? shared_.config.duration_ns * 3 / 4 : shared_.config.duration_ns / 8;
  for (int32_t i = 0; i < shared_.config.jobs; ++i) {
    User user;
    user.spec = DrawSpec();
    if (shared_.config.together > 0 && random_.OneIn(3)) PutTogether(&user.spec);
    if (shared_.config.multiples > 0 && random_.OneIn(2)) MakeMultiples(&user.spec);
    if (shared_.config.arrays > 0 && random_.OneIn(4)) MakeArray(&user.spec);
    if (shared_.config.schedules > 0 && MembersOf(user.spec) == 0 && random_.OneIn(4))
      MakeSchedule(&user.spec);
    for (pb::TaskSpec& task : *user.spec.mutable_tasks()) {
      if (shared_.config.final_exits > 0 && !random_.OneIn(4))
        task.add_final_exit_codes(kFinalExitCode);
    }
    user.name = kUserNames[static_cast<size_t>(i) % std::size(kUserNames)];
    user.key = absl::StrCat("key-", static_cast<size_t>(i) / std::size(kUserNames));
    user.wants_cancel = random_.OneIn(8);
    users_.push_back(std::move(user));
    const int64_t at_ns = random_.Between(0, until_ns);
    shared_.heap.After(at_ns, [this, i] { Submit(static_cast<size_t>(i)); });
    if (random_.OneIn(8))
      shared_.heap.After(at_ns + random_.Between(0, kMinute),
                         [this, i] { Submit(static_cast<size_t>(i)); });
    if (users_.back().wants_cancel)
      shared_.heap.After(at_ns + random_.Between(kSecond, shared_.config.work_ns),
                         [this, i] { Cancel(static_cast<size_t>(i)); });
  }
}

// Behind an earlier user's job, if its number is known; of an array behind a member or all of it.
void World::PlaceBehind(size_t i) {
  users_[i].placed_behind = true;
  if (i == 0 || i % 3 == 0 || users_[i].spec.has_schedule()) return;
  const User& before = users_[i - 1 - random_.Below(std::min<size_t>(i, 4))];
  if (before.number == 0) return;
  const std::string id = MembersOf(before.spec) > 0 && random_.OneIn(2)
                             ? MemberId(before.spec, before.number, 0)
                             : absl::StrCat(before.number);
  (random_.OneIn(3) ? users_[i].spec.add_after_any() : users_[i].spec.add_after())->assign(id);
}

// On the devices of an earlier job of the same user's, if its number is known.
void World::PutOnHolder(size_t i) {
  users_[i].put_on_holder = true;
  pb::JobSpec* spec = &users_[i].spec;
  if (i % 2 == 0 || MembersOf(*spec) > 0 || spec->has_schedule()) return;
  for (size_t before = i; before-- > 0;) {
    const User& other = users_[before];
    if (other.name != users_[i].name || other.number == 0 || other.spec.tasks_size() != 1 ||
        MembersOf(other.spec) > 0 || !other.spec.on().empty() || random_.OneIn(3))
      continue;
    while (spec->tasks_size() > 1) spec->mutable_tasks()->RemoveLast();
    pb::TaskSpec* task = spec->mutable_tasks(0);
    task->mutable_workers()->set_min(1);
    task->mutable_workers()->set_max(1);
    task->mutable_workers()->clear_multiple_of();
    task->clear_after();
    task->clear_with();
    task->clear_until();
    task->clear_topology();
    task->clear_processes_per_worker();
    *task->mutable_resources() = other.spec.tasks(0).resources();
    pb::Resources* wants = task->mutable_resources();
    if (wants->gpus_milli() >= 1000 && random_.OneIn(2)) wants->set_gpus_milli(1000);
    if (wants->gpus_milli() >= 1000 && random_.OneIn(3)) wants->set_gpus_milli(500);
    wants->set_cpus_milli(1000);
    spec->set_on(absl::StrCat(other.number));
    return;
  }
}

void World::Submit(size_t i) {
  Scheduler* const scheduler = current();
  const auto again = [this, i](int64_t after_ns) {
    shared_.heap.After(after_ns, [this, i] { Submit(i); });
  };
  if (scheduler == nullptr) return again(random_.Between(kSecond, 3 * kSecond));
  if (shared_.config.successors > 0 && !users_[i].placed_behind) PlaceBehind(i);
  if (shared_.config.hosted > 0 && !users_[i].put_on_holder) PutOnHolder(i);
  if (shared_.config.timed > 0 && users_[i].spec.not_before().empty() && i % 3 == 0) {
    const int64_t at_ns = shared_.heap.now_ns() + random_.Between(0, 5 * kMinute);
    users_[i].spec.set_not_before(
        absl::FormatTime(absl::RFC3339_full, absl::FromUnixNanos(at_ns), absl::UTCTimeZone()));
  }
  auto request = std::make_shared<pb::SubmitRequest>();
  *request->mutable_spec() = users_[i].spec;
  request->set_idempotency_key(users_[i].key);
  muster::Submit(
      scheduler->engine(), SpecDefaults{}, users_[i].name, request,
      // The key that was sent: of those that a scheduler hears late an earlier answer may have
      // changed the user's.
      [this, i, scheduler, key = users_[i].key](const SubmitOutcome& outcome) {
        pb::JobSpec& spec = users_[i].spec;
        if (!outcome.resolution.problems.empty() &&  // whom it names has failed, or is forgotten
            (spec.after_size() + spec.after_any_size() > 0 || !spec.on().empty())) {
          spec.clear_after();
          spec.clear_after_any();
          spec.clear_on();
          users_[i].key += "-changed";  // another job: the first may be there, its answer lost
        }
        if (!outcome.status.ok() || scheduler->alone()) return;
        shared_.checker.OnAcknowledgedSubmission(shared_.heap.now_ns(),
                                                 KeyOfUser(users_[i].name, key), outcome.number);
        if (!random_.OneIn(10))
          users_[i].number = outcome.number;  // else the reply is lost, and the user tries again
      },
      [this] { return absl::StrFormat("%016x%016x", random_.Next(), random_.Next()); });
  scheduler->Wake();
  shared_.heap.After(kClientPatienceNs, [this, i] {
    if (users_[i].number == 0) Submit(i);
  });
}

void World::Cancel(size_t i) {
  Scheduler* const scheduler = current();
  const auto again = [this, i] {
    shared_.heap.After(kClientPatienceNs, [this, i] {
      if (!users_[i].cancelled) Cancel(i);
    });
  };
  if (scheduler != nullptr && users_[i].number != 0) {
    const pb::JobSpec& spec = users_[i].spec;  // of an array the whole, or a member
    const bool whole = MembersOf(spec) > 0 && i % 2 == 0;
    const uint64_t number =
        users_[i].number +
        (whole ? 0 : i / 2 % static_cast<uint64_t>(std::max(1, MembersOf(spec))));
    scheduler->engine()->Call(
        [number, whole](const State& state) -> absl::StatusOr<std::vector<pb::Event>> {
          if (state.FindJob(number) == nullptr) return absl::NotFoundError("no such job");
          std::vector<pb::Event> events(1);
          events[0].mutable_job_cancel()->set_number(number);
          events[0].mutable_job_cancel()->set_array(whole);
          return events;
        },
        [this, i, number, scheduler](absl::Status status) {
          if (!status.ok() || scheduler->alone()) return;
          users_[i].cancelled = true;
          ++shared_.counters["cancels"];
          shared_.checker.OnAcknowledgedCancel(shared_.heap.now_ns(), number);
        });
    scheduler->Wake();
  }
  again();
}

void World::Drain(const std::string& target, bool drained) {
  Scheduler* const scheduler = current();
  if (scheduler == nullptr) {
    shared_.heap.After(kSecond, [this, target, drained] { Drain(target, drained); });
    return;
  }
  pb::Event event;
  event.mutable_drain_changed()->set_target(target);
  event.mutable_drain_changed()->set_drained(drained);
  scheduler->engine()->Post(std::move(event), [this, target, drained](absl::Status status) {
    if (!status.ok())
      shared_.heap.After(kSecond, [this, target, drained] { Drain(target, drained); });
  });
  scheduler->Wake();
  // A death before the commit answers nobody: what has to hold in the end is said again.
  if (!drained && !healed_)
    shared_.heap.After(kClientPatienceNs, [this, target] { Drain(target, false); });
}

// The same queues, with guarantees of at most half of what there is, and limits on all levels.
pb::QueueTree World::DrawQueues(uint64_t seed) const {
  Random random(seed);
  pb::QueueTree tree = setup_.queues;
  const int64_t all_milli = int64_t{shared_.config.hosts} * shared_.config.gpus * 1000;
  const auto draw = [&](const auto& self, pb::QueueSpec* queue) -> int64_t {
    int64_t below_milli = 0;
    for (pb::QueueSpec& child : *queue->mutable_queues()) below_milli += self(self, &child);
    pb::Quota& quota = (*queue->mutable_quota())[kFlavour];
    const bool inner = queue->queues_size() > 0;
    const int64_t most_milli = inner ? all_milli / 8000 : all_milli / 4000;
    quota.set_guarantee_milli(below_milli);
    if (!random.OneIn(3))
      quota.set_guarantee_milli(below_milli +
                                random.Between(0, most_milli / (inner ? 1 : 2)) * 1000);
    if (random.OneIn(inner ? 2 : 3))
      quota.set_limit_milli(quota.guarantee_milli() + random.Between(1, all_milli / 2000) * 1000);
    quota.set_weight(random.Between(0, 3));
    if (random.OneIn(2)) queue->set_min_runtime_ns(random.Between(kSecond, kMinute));
    return quota.guarantee_milli();
  };
  for (pb::QueueSpec& queue : *tree.mutable_queues()) draw(draw, &queue);
  return tree;
}

void World::ApplyQueues(const pb::QueueTree& tree) {
  Scheduler* const scheduler = current();
  const auto again = [this, tree, last = healed_] {  // an edit before that is given up: it may not
                                                     // come after what has to hold in the end
    if (last) shared_.heap.After(kSecond, [this, tree] { ApplyQueues(tree); });
  };
  if (scheduler == nullptr) return again();
  const auto answered = std::make_shared<bool>(false);
  scheduler->engine()->Call(
      [this, tree](const State& state) -> absl::StatusOr<std::vector<pb::Event>> {
        const QueueResolution resolution = ResolveQueues(state, tree);
        if (!resolution.ok()) return absl::FailedPreconditionError(resolution.problems[0].message);
        std::vector<pb::Event> events(1);
        *events[0].mutable_queues_applied()->mutable_tree() = resolution.resolved;
        events[0].mutable_queues_applied()->set_version(state.queue_version() + 1);
        return events;
      },
      [this, answered, again](absl::Status status) {
        *answered = true;
        if (status.ok() && !healed_) ++shared_.counters["queues edited"];
        if (!status.ok()) again();
      });
  scheduler->Wake();
  shared_.heap.After(kClientPatienceNs, [answered, again] {
    if (!*answered) again();  // it died first, and answers nobody
  });
}

}  // namespace muster::sim::faults
