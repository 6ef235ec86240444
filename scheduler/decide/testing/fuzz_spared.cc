#include "scheduler/decide/testing/fuzz_spared.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "common/spec/workers.h"
#include "scheduler/decide/testing/fuzz_rows.h"

namespace muster {
namespace {

// Devices that an attempt will have.
struct Taken {
  int32_t cluster = -1;
  std::string flavour;
  std::vector<HostSlice> parts;
  int64_t workers = 0;
};

// What hosts of a cluster have free, device by device, from their rows.
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
      if (!part.over()) Change(spec, part, 1);
    }
  }
  void Take(const pb::TaskSpec& spec, const Taken& taken) {
    for (const HostSlice& part : taken.parts) Change(spec, part, -1);
  }

  bool Holds(const pb::TaskSpec& spec, const std::string& flavour, int64_t workers) const {
    const int64_t gpus_milli = spec.resources().gpus_milli();
    int64_t run = 1;  // GPUs that are together in an island
    for (const pb::RankBlock& block : spec.topology().blocks()) {
      if (block.required() == pb::ISLAND) run = std::max<int64_t>(run, block.gpus());
    }
    std::map<std::string, std::map<std::string, int64_t>> found;  // by block, by rack
    const auto whole = [&](int64_t count, pb::TopologyLevel level) {
      for (const pb::RankBlock& block : spec.topology().blocks()) {
        const int64_t together = block.gpus() * 1000 / std::max<int64_t>(1, gpus_milli);
        const bool within = block.required() != 0 && block.required() <= level;
        if (within && together > 1) count -= count % together;
      }
      return count;
    };
    for (const auto& [id, free] : hosts_) {
      const HostRow& host = state_.host(id);
      if (gpus_milli > 0 && host.inventory.flavour() != flavour) continue;
      if (!spec.image().empty() && !host.inventory.enters_images()) continue;
      const Demand demand = WorkerDemand(spec, host.inventory);
      int64_t here = workers;
      if (gpus_milli >= 1000) {
        here = WholeInRuns(host, free, run) / (gpus_milli / 1000);
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
      found[host.block][host.rack] += whole(here, pb::HOST);
    }
    int64_t all = 0;
    for (const auto& [block, racks] : found) {
      int64_t in_block = 0;
      for (const auto& [rack, in_rack] : racks) in_block += whole(in_rack, pb::RACK);
      all += whole(in_block, pb::BLOCK);
    }
    return all >= workers;
  }

 private:
  struct Host {
    std::vector<int64_t> milli;
    int64_t cpus_milli = 0, memory_bytes = 0, disk_bytes = 0;
  };

  static int64_t WholeInRuns(const HostRow& host, const Host& free, int64_t run) {
    std::map<int32_t, int64_t> by_island;
    for (size_t d = 0; d < free.milli.size(); ++d) {
      if (free.milli[d] == 1000) ++by_island[host.inventory.devices(static_cast<int>(d)).island()];
    }
    int64_t whole = 0;
    for (const auto& [island, devices] : by_island) whole += devices - devices % run;
    return whole;
  }

  template <typename Part>
  void Change(const pb::TaskSpec& spec, const Part& part, int64_t sign) {
    const auto found = hosts_.find(part.host);
    if (found == hosts_.end()) return;
    Host& free = found->second;
    const Demand demand = WorkerDemand(spec, state_.host(part.host).inventory);
    free.cpus_milli += sign * part.workers * demand.cpus_milli;
    free.memory_bytes += sign * part.workers * demand.memory_bytes;
    free.disk_bytes += sign * part.workers * demand.disk_bytes;
    for (size_t d = 0; d < part.devices.size(); ++d)
      free.milli[static_cast<size_t>(part.devices[d])] +=
          sign * (d < part.device_milli.size() ? part.device_milli[d] : 1000);
  }

  const State& state_;
  std::map<HostId, Host> hosts_;
};

// A plan as far as it matters here.
struct Acts {
  struct Victim {
    size_t claim = 0;
    int32_t keeps = 0;  // workers that it comes back with
    bool moves = false;
  };
  std::vector<TaskRef> claimants;  // in the order in which they were served
  std::map<TaskRef, Victim> victims;
  std::set<TaskRef> ended;         // stopped for a cause of their own, before all claims
  std::map<TaskRef, Taken> taken;  // by what starts, or has devices kept for it
};

TaskRef RefOf(const State& state, const pb::AttemptKey& key) {
  const JobRow& job = *state.FindJobByUid(key.job_uid());
  return {job.number, TaskIndex(*job.spec, key.task())};
}

template <typename Event>
Taken TakenBy(const State& state, const Event& event) {
  Taken taken{state.FindCluster(event.cluster()), event.flavour(), {}, event.workers()};
  for (const pb::Placement& placement : event.placements()) {
    taken.parts.push_back({state.FindHost(event.cluster(), placement.host()),
                           placement.workers(),
                           {placement.devices().begin(), placement.devices().end()},
                           {placement.device_milli().begin(), placement.device_milli().end()}});
  }
  return taken;
}

// Nothing else needed the place of these: they are stopped whoever waits.
bool StopsByItself(pb::Cause cause) {
  return cause != pb::PREEMPTION && cause != pb::RESIZE && cause != pb::HOST_LOST;
}

void ReadStop(const State& before, const pb::AttemptStopping& e, Acts* acts) {
  const TaskRef ref = RefOf(before, e.key());
  if (StopsByItself(e.cause())) acts->ended.insert(ref);
  if (e.cause() != pb::PREEMPTION) return;
  const TaskRef claimant = RefOf(before, e.claimant());
  auto claim = std::find(acts->claimants.begin(), acts->claimants.end(), claimant);
  if (claim == acts->claimants.end()) claim = acts->claimants.insert(claim, claimant);
  acts->victims[ref] = {static_cast<size_t>(claim - acts->claimants.begin()), e.next_workers(),
                        e.next_workers() == before.FindAttempt(e.key())->workers};
}

Acts Read(const State& before, const Plan& plan) {
  Acts acts;
  const auto keep = [&](const TaskRef& ref, Taken taken) {
    acts.taken.erase(ref);
    if (!taken.parts.empty()) acts.taken[ref] = std::move(taken);
  };
  for (const TaskRef& ref : before.reserved_tasks()) {
    const Reservation& known = *before.FindJob(ref.job)->tasks[ref.task].reservation;
    keep(ref, {known.cluster, known.flavour, known.parts, known.workers});
  }
  for (const pb::Event& event : plan.events) {
    if (event.has_reservation()) {
      const pb::ReservationChanged& e = event.reservation();
      keep(RefOf(before, e.key()), TakenBy(before, e));
    } else if (event.has_attempt_placed()) {
      const pb::AttemptPlaced& e = event.attempt_placed();
      keep(RefOf(before, e.key()), TakenBy(before, e));
    } else if (event.has_attempt_stopping()) {
      ReadStop(before, event.attempt_stopping(), &acts);
    }
  }
  return acts;
}

// Where `other` stays, so does this one: it is that, or they start together.
bool StopsWith(const State& state, const TaskRef& one, const TaskRef& other) {
  if (one.job != other.job) return false;
  const JobRow& job = *state.FindJob(one.job);
  const auto& with = job.task_spec(one.task).with();
  return one == other || std::count(with.begin(), with.end(), job.task_spec(other.task).name()) > 0;
}

// What the first of its workers hold.
Taken FirstOf(const pb::TaskSpec& spec, const AttemptRow& attempt, int32_t workers) {
  const int64_t milli = spec.resources().gpus_milli();
  const auto a_worker = static_cast<std::ptrdiff_t>(milli >= 1000 ? milli / 1000 : milli > 0);
  Taken taken;
  taken.workers = workers;
  for (const PartRow& part : attempt.parts) {
    const int32_t here = std::min(part.workers, workers);
    if (here == 0) break;
    workers -= here;
    const auto end = part.devices.begin() + here * a_worker;
    taken.parts.push_back({part.host, here, {part.devices.begin(), end}, part.device_milli});
  }
  return taken;
}

// On hosts and devices that are all there; of others those may have gone first that are not.
bool IsSound(const State& state, const AttemptRow& attempt) {
  return std::all_of(attempt.parts.begin(), attempt.parts.end(), [&](const PartRow& part) {
    const HostRow& host = state.host(part.host);
    return !part.over() && host.usable() &&
           std::all_of(part.devices.begin(), part.devices.end(), [&](int32_t device) {
             return device < host.inventory.devices_size() &&
                    host.inventory.devices(device).healthy();
           });
  });
}

// What is long in stopping is counted on no more (docs/scheduling.md, keep_held).
bool GivesBack(const State& state, const AttemptRow& stopping) {
  return stopping.stop_ns + kMinute >= state.now_ns() && !OnUnreachable(state, stopping);
}

class Judge {
 public:
  Judge(const State& before, const Acts& acts) : before_(before), acts_(acts) {}

  // What is looked at here decides where the claimant finds a place.
  bool Knows(const TaskRef& claimant) const {
    const JobRow& job = *before_.FindJob(claimant.job);
    const pb::TaskSpec& spec = job.task_spec(claimant.task);
    const auto place = acts_.taken.find(claimant);
    if (place == acts_.taken.end() || !job.tasks[claimant.task].waiting() || !spec.with().empty())
      return false;
    const pb::TopologyLevel level = spec.topology().required();
    if (level != pb::TOPOLOGY_LEVEL_UNSPECIFIED && level < pb::CLUSTER) return false;
    const std::vector<int32_t> path = PathOf(before_, job.spec->queue());
    return std::none_of(path.begin(), path.end(), [&](int32_t n) {
      return before_.queues().nodes[n].spec.quota().contains("cpu");  // CPUs beside devices count
    });
  }

  // Nothing of its job has run: it avoids no hosts.
  bool IsFresh(const TaskRef& claimant) const {
    const std::vector<TaskRow>& tasks = before_.FindJob(claimant.job)->tasks;
    return std::all_of(tasks.begin(), tasks.end(),
                       [](const TaskRow& task) { return task.attempts.empty(); });
  }

  // Workers of the victim that one step less would have left; 0: not known, or all.
  int32_t WithAStepLess(const TaskRef& victim) const {
    const AttemptRow* attempt = before_.FindJob(victim.job)->tasks[victim.task].current();
    const int32_t keeps = acts_.victims.at(victim).keeps;
    const int32_t more = keeps + StepOf(SpecOf(victim).workers());
    return keeps > 0 && attempt != nullptr && more < attempt->workers && IsSound(before_, *attempt)
               ? more
               : 0;
  }

  // The claimant finds a place although the victim stays, with `workers` (0: all) of its own; of
  // all that is stopped for claims before `claims`.
  bool CouldStay(const TaskRef& claimant, const TaskRef& victim, size_t claims,
                 int32_t workers = 0) const {
    const Taken& place = acts_.taken.at(claimant);
    const pb::TaskSpec& wants = SpecOf(claimant);
    const auto goes = [&](const TaskRef& ref, const AttemptRow& attempt) {
      if (attempt.state == pb::TASK_STOPPING) return GivesBack(before_, attempt);
      if (acts_.ended.contains(ref)) return true;
      const auto found = acts_.victims.find(ref);
      return found != acts_.victims.end() && found->second.claim < claims &&
             !StopsWith(before_, ref, victim);
    };
    Room room(before_, place.cluster);
    UseByFlavour use;
    const auto count = [&](const JobRow& job, const pb::TaskSpec& spec, const std::string& flavour,
                           int64_t workers) {
      for (const int32_t n : PathOf(before_, job.spec->queue()))
        use[{n, FlavourOf(spec, flavour)}] += workers * WorkerMilli(spec);
    };
    EachTask(before_,
             [&](const JobRow& job, int32_t t, const TaskRow& row, const pb::TaskSpec& spec) {
               const TaskRef ref{job.number, t};
               const AttemptRow* current = row.current();
               bool stays = current != nullptr && !current->released();
               if (stays && goes(ref, *current)) {
                 room.Release(spec, *current);
                 stays = false;
               }
               if (stays && workers > 0 && ref == victim) {
                 room.Release(spec, *current);
                 room.Take(spec, FirstOf(spec, *current, workers));
                 return count(job, spec, current->flavour, workers);
               }
               if (stays) count(job, spec, current->flavour, current->workers);
               const auto taken = acts_.taken.find(ref);
               const bool victim_stays = stays && acts_.victims.contains(ref);
               if (taken == acts_.taken.end() || ref == claimant || victim_stays) return;
               room.Take(spec, taken->second);
               count(job, spec, taken->second.flavour, taken->second.workers);
             });
    if (!room.Holds(wants, place.flavour, place.workers)) return false;
    const std::string flavour = FlavourOf(wants, place.flavour);
    const std::vector<int32_t> path = PathOf(before_, before_.FindJob(claimant.job)->spec->queue());
    return std::all_of(path.begin(), path.end(), [&](int32_t n) {
      const std::optional<int64_t> limit = LimitOf(before_, n, flavour);
      return !limit.has_value() || use[{n, flavour}] + place.workers * WorkerMilli(wants) <= *limit;
    });
  }

 private:
  const pb::TaskSpec& SpecOf(const TaskRef& ref) const {
    return before_.FindJob(ref.job)->task_spec(ref.task);
  }

  const State& before_;
  const Acts& acts_;
};

}  // namespace

std::string CheckSpared(const State& before, const Plan& plan, Spared* spared) {
  const Acts acts = Read(before, plan);
  const Judge judge(before, acts);
  // Who shares a queue below the root with the claimant may have to go for the levels' sake
  // (docs/scheduling.md §2).
  const auto top = [&](const TaskRef& ref) {
    const std::vector<int32_t> nodes = PathOf(before, before.FindJob(ref.job)->spec->queue());
    return nodes.size() < 2 ? -1 : nodes[nodes.size() - 2];
  };
  std::set<size_t> moves;  // claims that move others
  for (const auto& [ref, victim] : acts.victims) {
    if (victim.moves) moves.insert(victim.claim);
  }
  for (const auto& [ref, victim] : acts.victims) {
    const TaskRef& claimant = acts.claimants[victim.claim];
    if (moves.contains(victim.claim) || !judge.Knows(claimant) || top(ref) == top(claimant))
      continue;
    ++spared->victims;
    spared->of_several += acts.claimants.size() > 1;
    if (judge.CouldStay(claimant, ref, victim.claim + 1))
      return absl::StrCat("job ", ref.job, " is stopped for job ", claimant.job,
                          ", which would have a place without that");
    if (const int32_t more = judge.WithAStepLess(ref); more > 0 && judge.IsFresh(claimant)) {
      ++spared->steps;
      if (judge.CouldStay(claimant, ref, victim.claim + 1, more))
        return absl::StrCat("job ", ref.job, " is made smaller by more than job ", claimant.job,
                            " needs: it could keep ", more, " workers");
    }
    spared->by_later_ones += judge.CouldStay(claimant, ref, acts.claimants.size());
  }
  return "";
}

}  // namespace muster
