#include "scheduler/decide/testing/fuzz_outside.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"

namespace muster {
namespace {

std::string Name(const pb::AttemptKey& key) {
  return absl::StrCat(key.job_uid(), "/", key.task(), "/", key.attempt());
}

// The queue and those above it.
std::vector<int32_t> Path(const State& state, const std::string& queue) {
  std::vector<int32_t> path;
  for (int32_t n = state.queues().Find(queue); n >= 0; n = state.queues().nodes[n].parent)
    path.push_back(n);
  return path;
}

std::optional<int64_t> LimitOf(const State& state, int32_t node, const std::string& flavour) {
  const auto& quotas = state.queues().nodes[node].spec.quota();
  const auto quota = quotas.find(flavour);
  if (quota == quotas.end() || !quota->second.has_limit_milli()) return std::nullopt;
  return quota->second.limit_milli();
}

// What a worker counts by, in thousandths of a device, or of a CPU for a task without any.
int64_t WorkerMilli(const pb::TaskSpec& spec) {
  const pb::Resources& wants = spec.resources();
  return wants.gpus_milli() > 0 ? wants.gpus_milli() : std::max<int64_t>(1, wants.cpus_milli());
}

std::string FlavourOf(const pb::TaskSpec& spec, const std::string& flavour) {
  return spec.resources().gpus_milli() > 0 ? flavour : "cpu";
}

bool OnUnreachable(const State& state, const AttemptRow& attempt) {
  return std::any_of(attempt.parts.begin(), attempt.parts.end(), [&](const PartRow& part) {
    return state.host(part.host).state == pb::HOST_UNREACHABLE;
  });
}

// Calls f(job, task, row, spec) for each task of an unfinished job.
template <typename F>
void EachTask(const State& state, F f) {
  for (const uint64_t number : state.active_jobs()) {
    const JobRow& job = *state.FindJob(number);
    for (size_t t = 0; t < job.tasks.size(); ++t)
      f(job, static_cast<int32_t>(t), job.tasks[t], job.task_spec(static_cast<int32_t>(t)));
  }
}

// By queue node and flavour.
using UseByFlavour = std::map<std::pair<int32_t, std::string>, int64_t>;

// What can't be reached may be given to others, and counts nowhere.
// `stopping` says by how many workers what is being stopped counts.
template <typename F>
UseByFlavour UseOf(const State& state, F stopping) {
  UseByFlavour use;
  EachTask(state, [&](const JobRow& job, int32_t, const TaskRow& row, const pb::TaskSpec& spec) {
    const AttemptRow* current = row.current();
    if (current == nullptr || current->released() || OnUnreachable(state, *current)) return;
    const int64_t workers =
        current->state == pb::TASK_STOPPING ? stopping(*current) : current->workers;
    for (const int32_t n : Path(state, job.spec->queue()))
      use[{n, FlavourOf(spec, current->flavour)}] += workers * WorkerMilli(spec);
  });
  return use;
}

// What hosts have free, device by device, from their rows.
class Room {
 public:
  Room(const State& state, int32_t cluster) : state_(state) {
    for (const HostId id : state.hosts()) {
      const HostRow& host = state.host(id);
      if (host.cluster != cluster || !host.usable() || state.clusters()[cluster].drained) continue;
      Host& free = hosts_[id];
      for (int d = 0; d < host.inventory.devices_size(); ++d)
        free.milli.push_back(host.inventory.devices(d).healthy() ? 1000 - host.device_used_milli[d]
                                                                 : -1000);
      free.cpus_milli = host.inventory.cpus_milli() - host.cpus_used_milli;
      free.memory_bytes = host.inventory.memory_bytes() - host.memory_used_bytes;
      free.disk_bytes = host.inventory.disk_bytes() - host.disk_used_bytes;
    }
  }

  // Gives back what the attempt's workers hold.
  void Release(const pb::TaskSpec& spec, const AttemptRow& attempt) {
    for (const PartRow& part : attempt.parts) {
      if (part.over()) continue;
      Change(spec, part.host, part.workers, 1);
      for (size_t d = 0; d < part.devices.size(); ++d)
        ChangeDevice(part.host, part.devices[d],
                     d < part.device_milli.size() ? part.device_milli[d] : 1000);
    }
  }
  // What is held for it is no longer free.
  void Hold(const pb::TaskSpec& spec, const pb::ReservationChanged& held) {
    for (const pb::Placement& placement : held.placements()) {
      const HostId host = state_.FindHost(held.cluster(), placement.host());
      Change(spec, host, placement.workers(), -1);
      for (int d = 0; d < placement.devices_size(); ++d)
        ChangeDevice(host, placement.devices(d),
                     -(d < placement.device_milli_size() ? placement.device_milli(d) : 1000));
    }
  }

  bool Holds(const pb::TaskSpec& spec, const std::string& flavour, int32_t workers) const {
    const int64_t gpus_milli = spec.resources().gpus_milli();
    int64_t found = 0;
    for (const auto& [id, free] : hosts_) {
      const HostRow& host = state_.host(id);
      if (gpus_milli > 0 && host.inventory.flavour() != flavour) continue;
      if (!spec.image().empty() && !host.inventory.enters_images()) continue;
      const Demand demand = WorkerDemand(spec, host.inventory);
      int64_t here = workers;
      if (gpus_milli >= 1000) {
        here = std::count(free.milli.begin(), free.milli.end(), 1000) / (gpus_milli / 1000);
      } else if (gpus_milli > 0) {
        here = std::any_of(free.milli.begin(), free.milli.end(),
                           [&](int64_t milli) { return milli >= gpus_milli; });
      }
      const auto at_most = [&](int64_t has, int64_t wants) {
        if (wants > 0) here = std::min(here, std::max<int64_t>(0, has) / wants);
      };
      at_most(free.cpus_milli, demand.cpus_milli);
      at_most(free.memory_bytes, demand.memory_bytes);
      at_most(free.disk_bytes, demand.disk_bytes);
      found += here;
    }
    return found >= workers;
  }

 private:
  struct Host {
    std::vector<int64_t> milli;
    int64_t cpus_milli = 0, memory_bytes = 0, disk_bytes = 0;
  };
  void Change(const pb::TaskSpec& spec, HostId host, int64_t workers, int64_t sign) {
    const auto free = hosts_.find(host);
    if (free == hosts_.end()) return;
    const Demand demand = WorkerDemand(spec, state_.host(host).inventory);
    free->second.cpus_milli += sign * workers * demand.cpus_milli;
    free->second.memory_bytes += sign * workers * demand.memory_bytes;
    free->second.disk_bytes += sign * workers * demand.disk_bytes;
  }
  void ChangeDevice(HostId host, int32_t device, int64_t milli) {
    if (const auto free = hosts_.find(host); free != hosts_.end())
      free->second.milli[static_cast<size_t>(device)] += milli;
  }

  const State& state_;
  std::map<HostId, Host> hosts_;
};

// The one claim that a plan consists of.
struct OneClaim {
  const JobRow* job = nullptr;
  int32_t task = 0;
  const pb::ReservationChanged* place = nullptr;
  struct Kept {
    int32_t workers = 0;
    const pb::ReservationChanged* place = nullptr;  // what is held for them
  };
  std::map<TaskRef, Kept> keeps;  // victims, with what each comes back with
};

// Where `other` stays, so does this one: it is that, or they start together.
bool StopsWith(const State& state, const TaskRef& one, const TaskRef& other) {
  if (one.job != other.job) return false;
  const JobRow& job = *state.FindJob(one.job);
  const auto& with = job.task_spec(one.task).with();
  return one == other || std::count(with.begin(), with.end(), job.task_spec(other.task).name()) > 0;
}

// nullopt: the plan does something else as well, or what it does depends on more than is looked at
// here.
std::optional<OneClaim> ReadOneClaim(const State& before, const Plan& plan) {
  if (!before.reserved_tasks().empty()) return std::nullopt;
  OneClaim claim;
  std::string claimant;
  std::map<std::string, const pb::ReservationChanged*> held;
  std::map<TaskRef, std::string> comes_back;
  for (const pb::Event& event : plan.events) {
    if (event.has_reservation()) {
      if (!event.reservation().held()) return std::nullopt;
      held[Name(event.reservation().key())] = &event.reservation();
      continue;
    }
    if (!event.has_attempt_stopping() || event.attempt_stopping().cause() != pb::PREEMPTION)
      return std::nullopt;
    const pb::AttemptStopping& e = event.attempt_stopping();
    const std::string name = Name(e.claimant());
    if (!claimant.empty() && name != claimant) return std::nullopt;
    claimant = name;
    claim.job = before.FindJobByUid(e.claimant().job_uid());
    claim.task = TaskIndex(*claim.job->spec, e.claimant().task());
    const JobRow* job = nullptr;
    int32_t task = 0;
    const AttemptRow* attempt = before.FindAttempt(e.key(), &job, &task);
    if (e.next_workers() == attempt->workers) return std::nullopt;  // it only moves
    claim.keeps[{job->number, task}] = {e.next_workers()};
    pb::AttemptKey next = e.key();
    next.set_attempt(job->tasks[task].next_attempt);
    comes_back[{job->number, task}] = Name(next);
  }
  if (claimant.empty() || !held.contains(claimant)) return std::nullopt;
  claim.place = held.extract(claimant).mapped();
  for (auto& [ref, kept] : claim.keeps) {
    if (kept.workers == 0) continue;
    if (!held.contains(comes_back[ref])) return std::nullopt;
    kept.place = held.extract(comes_back[ref]).mapped();
  }
  if (!held.empty()) return std::nullopt;
  const pb::TopologyLevel level = claim.job->task_spec(claim.task).topology().required();
  const bool anywhere = level == pb::TOPOLOGY_LEVEL_UNSPECIFIED || level >= pb::CLUSTER;
  if (!anywhere || !claim.job->tasks[claim.task].waiting()) return std::nullopt;
  for (const int32_t n : Path(before, claim.job->spec->queue())) {
    if (before.queues().nodes[n].spec.quota().contains("cpu"))
      return std::nullopt;  // CPUs beside devices count, too
  }
  return claim;
}

}  // namespace

std::string CheckLimitsOutside(const State& after, const Plan& plan) {
  const bool acts = std::any_of(plan.events.begin(), plan.events.end(), [](const pb::Event& event) {
    return event.has_attempt_placed() || event.has_reservation();
  });
  if (!acts) return "";
  // Now; and when what is being stopped has gone and what devices are held for has started.
  const UseByFlavour now =
      UseOf(after, [](const AttemptRow& stopping) { return stopping.workers; });
  UseByFlavour later = UseOf(after, [](const AttemptRow&) { return 0; });
  EachTask(after, [&](const JobRow& job, int32_t, const TaskRow& row, const pb::TaskSpec& spec) {
    const Reservation* held = row.reservation.get();
    if (held == nullptr || !held->held || held->attempt != row.next_attempt) return;
    for (const int32_t n : Path(after, job.spec->queue()))
      later[{n, FlavourOf(spec, held->flavour)}] += held->workers * WorkerMilli(spec);
  });
  const auto check = [&](const pb::AttemptKey& key, const std::string& on, const UseByFlavour& use,
                         const char* how) -> std::string {
    const JobRow& job = *after.FindJobByUid(key.job_uid());
    const std::string flavour = FlavourOf(job.task_spec(TaskIndex(*job.spec, key.task())), on);
    for (const int32_t n : Path(after, job.spec->queue())) {
      const std::optional<int64_t> limit = LimitOf(after, n, flavour);
      const auto used = use.find({n, flavour});
      if (limit.has_value() && used != use.end() && used->second > *limit)
        return absl::StrCat("queue ", after.queues().nodes[n].path, how, used->second,
                            " of at most ", *limit, " ", flavour);
    }
    return "";
  };
  // Who shrinks may have held more than a limit that was lowered since. What is held for it is less
  // than it had, and is cut to its share of S before it starts.
  std::set<std::pair<std::string, std::string>> shrunk;
  for (const pb::Event& event : plan.events) {
    const pb::AttemptStopping& e = event.attempt_stopping();
    if (event.has_attempt_stopping() && e.next_workers() > 0 && e.cause() == pb::PREEMPTION)
      shrunk.emplace(e.key().job_uid(), e.key().task());
  }
  for (const pb::Event& event : plan.events) {
    std::string broken;
    if (event.has_attempt_placed()) {
      const pb::AttemptPlaced& e = event.attempt_placed();
      broken = check(e.key(), e.flavour(), now, " holds ");
      if (broken.empty()) broken = check(e.key(), e.flavour(), later, " will hold ");
    } else if (event.has_reservation() && event.reservation().held()) {
      const pb::ReservationChanged& e = event.reservation();
      if (shrunk.contains({e.key().job_uid(), e.key().task()})) continue;
      broken = check(e.key(), e.flavour(), later, " will hold ");
    }
    if (!broken.empty()) return broken;
  }
  return "";
}

std::string CheckSpared(const State& before, const Plan& plan, int64_t* spared) {
  const std::optional<OneClaim> claim = ReadOneClaim(before, plan);
  if (!claim.has_value()) return "";
  const pb::TaskSpec& wants = claim->job->task_spec(claim->task);
  const std::string flavour = FlavourOf(wants, claim->place->flavour());
  const std::vector<int32_t> path = Path(before, claim->job->spec->queue());
  // What is being stopped gives all of it back: nothing is kept for anybody to come back with.
  const auto use = UseOf(before, [](const AttemptRow&) { return 0; });
  bool unanswered = false;  // what is long in stopping is counted on no more
  EachTask(before, [&](const JobRow&, int32_t, const TaskRow& row, const pb::TaskSpec&) {
    const AttemptRow* current = row.current();
    unanswered = unanswered || (current != nullptr && current->state == pb::TASK_STOPPING &&
                                current->stop_ns + kMinute < before.now_ns());
  });
  if (unanswered) return "";
  // Who shares a queue below the root with the claimant may have to go for the levels' sake
  // (docs/scheduling.md §2).
  const auto top = [&](const std::string& queue) {
    const std::vector<int32_t> nodes = Path(before, queue);
    return nodes.size() < 2 ? -1 : nodes[nodes.size() - 2];
  };
  for (const auto& entry : claim->keeps) {
    const TaskRef ref = entry.first;
    const JobRow& victim = *before.FindJob(ref.job);
    if (top(victim.spec->queue()) == top(claim->job->spec->queue())) continue;
    Room room(before, before.FindCluster(claim->place->cluster()));
    EachTask(before,
             [&](const JobRow& job, int32_t t, const TaskRow& row, const pb::TaskSpec& spec) {
               const AttemptRow* current = row.current();
               if (current == nullptr || current->released()) return;
               const TaskRef here{job.number, t};
               const auto stopped = claim->keeps.find(here);
               if (current->state == pb::TASK_STOPPING) {
                 room.Release(spec, *current);
               } else if (stopped != claim->keeps.end() && !StopsWith(before, here, ref)) {
                 room.Release(spec, *current);
                 if (stopped->second.place != nullptr) room.Hold(spec, *stopped->second.place);
               }
             });
    ++*spared;
    if (!room.Holds(wants, claim->place->flavour(), claim->place->workers())) continue;
    // It has room; does one of its queues have any?
    bool within = true;
    for (const int32_t n : path) {
      const std::optional<int64_t> limit = LimitOf(before, n, flavour);
      if (!limit.has_value()) continue;
      const auto used = use.find({n, flavour});
      int64_t holds = used == use.end() ? 0 : used->second;
      for (const auto& [other, keeps] : claim->keeps) {
        const JobRow& job = *before.FindJob(other.job);
        const std::vector<int32_t> above = Path(before, job.spec->queue());
        const AttemptRow& current = *job.tasks[other.task].current();
        const pb::TaskSpec& spec = job.task_spec(other.task);
        if (StopsWith(before, other, ref) ||
            std::find(above.begin(), above.end(), n) == above.end() ||
            FlavourOf(spec, current.flavour) != flavour)
          continue;
        holds -= (current.workers - keeps.workers) * WorkerMilli(spec);
      }
      within = within && holds + claim->place->workers() * WorkerMilli(wants) <= *limit;
    }
    if (within)
      return absl::StrCat("job ", ref.job, " is stopped for job ", claim->job->number,
                          ", which would have a place without that");
  }
  return "";
}

}  // namespace muster
