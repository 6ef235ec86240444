#include "scheduler/decide/model.h"

#include <algorithm>
#include <set>

#include "common/base/units.h"

namespace muster {
namespace {

// A task in backoff for less than this keeps its place in the entitled set.
constexpr int64_t kShortBackoffNs = kMinute;

bool Unreachable(const HostRow& host) { return host.state == pb::HOST_UNREACHABLE; }

}  // namespace

int32_t Model::FlavourIndex(const std::string& flavour) const {
  const auto it = std::lower_bound(flavours.begin(), flavours.end(), flavour);
  return it == flavours.end() || *it != flavour ? -1 : static_cast<int32_t>(it - flavours.begin());
}

int32_t Model::CellOf(int32_t cluster, int32_t flavour) const {
  for (size_t c = 0; c < cells.size(); ++c) {
    if (cells[c].cluster == cluster && cells[c].flavour == flavour) return static_cast<int32_t>(c);
  }
  return -1;
}

bool MassLoss(const State& state, int32_t cluster, int64_t now_ns, const SchedulingOptions& options) {
  int64_t newest_ns = 0;
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    if (host.cluster == cluster && host.silent_since_ns != 0) newest_ns = std::max(newest_ns, host.silent_since_ns);
  }
  int64_t silent = 0, all = 0;
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    if (host.cluster != cluster || host.state == pb::HOST_NEVER_SEEN) continue;
    // Long gone when the others fell silent: counts in neither number.
    if (Unreachable(host) && host.state_since_ns + 2 * options.lease_ns < newest_ns) continue;
    ++all;
    if (host.state != pb::HOST_UP || (host.spoke_ns != 0 && host.spoke_ns + options.lease_ns > now_ns)) ++silent;
  }
  return silent >= 3 && 2 * silent > all;
}

bool MayBeLost(const State& state, const pb::TaskSpec& spec, const AttemptRow& attempt, int64_t now_ns,
               const SchedulingOptions& options) {
  bool unreachable = false, member_failed = false;
  for (const PartRow& part : attempt.parts) {
    if (!part.over() && Unreachable(state.host(part.host))) unreachable = true;
    const bool exit_0 = !part.exits.empty() && std::all_of(part.exits.begin(), part.exits.end(), [](const pb::WorkerExit& e) {
      return e.exit_code() == 0 && e.signal() == 0;
    });
    if (part.phase == pb::GONE && !exit_0) member_failed = true;
  }
  if (!unreachable || UnreachableRule(spec, attempt) != pb::REPLACE) return false;
  if (attempt.parts.size() > 1 && spec.trainer_json().empty() && !member_failed) return false;
  return !MassLoss(state, attempt.cluster, now_ns, options);
}

int64_t ExpectedEnd(const Base& base, int64_t now_ns) {
  const AttemptRow* attempt = base.current;
  if (attempt == nullptr) return 0;
  const pb::Progress& progress = base.row->progress;
  if (progress.attempt() == attempt->number && attempt->start_ns != 0) {
    if (progress.expected_end_ns() > now_ns) return progress.expected_end_ns();
    const int64_t steps = progress.step() - std::max<int64_t>(0, attempt->resumed_step);
    const int64_t left = progress.total_steps() - progress.step();
    if (steps > 0 && left >= 0 && progress.total_steps() > 0) {
      const __int128 rest = static_cast<__int128>(std::max<int64_t>(0, now_ns - attempt->start_ns)) * left / steps;
      if (rest < 10 * 365 * static_cast<__int128>(kDay)) return now_ns + static_cast<int64_t>(rest);
    }
  }
  if (base.spec->time_limit_ns() == 0) return 0;
  const int64_t start_ns = attempt->start_ns != 0 ? attempt->start_ns : now_ns;
  return std::max(now_ns, start_ns + base.spec->time_limit_ns() - base.row->ran_ns);
}

Model BuildModel(const State& state, int64_t now_ns, const SchedulingOptions& options) {
  Model model;
  std::set<std::string> names = {kCpuFlavour};
  for (const HostId id : state.hosts()) {
    if (!state.host(id).inventory.flavour().empty()) names.insert(state.host(id).inventory.flavour());
  }
  model.flavours.assign(names.begin(), names.end());
  model.flavour_milli.assign(model.flavours.size(), 0);
  const int32_t cpu = model.FlavourIndex(kCpuFlavour);

  // Cells: healthy devices of hosts that may get work; and what attempts that may not be lost yet hold on unreachable ones.
  std::map<std::pair<int32_t, int32_t>, int32_t> cell_of;
  const auto cell = [&](int32_t cluster, int32_t flavour) -> Cell& {
    const auto [it, added] = cell_of.emplace(std::make_pair(cluster, flavour), static_cast<int32_t>(model.cells.size()));
    if (added) {
      model.cells.emplace_back();
      model.cells.back().cluster = cluster;
      model.cells.back().flavour = flavour;
    }
    return model.cells[it->second];
  };
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    if (host.state == pb::HOST_NEVER_SEEN) continue;
    const int32_t flavour = model.FlavourIndex(host.inventory.flavour());
    const bool counts = (host.state == pb::HOST_UP || host.state == pb::HOST_SILENT) && !host.drained &&
                        !state.clusters()[host.cluster].drained;
    Cell& cpus = cell(host.cluster, cpu);
    cpus.hosts.push_back(id);
    cpus.known_milli += host.inventory.cpus_milli();
    if (counts) cpus.capacity_milli += host.inventory.cpus_milli();
    Cell* gpus = nullptr;
    if (flavour >= 0) {
      gpus = &cell(host.cluster, flavour);
      gpus->hosts.push_back(id);
      for (int d = 0; d < host.inventory.devices_size(); ++d) {
        gpus->known_milli += 1000;
        if (!counts || !host.inventory.devices(d).healthy()) continue;
        gpus->capacity_milli += 1000;
        for (const LostRow& lost : host.lost) {
          const auto& devices = lost.placement.devices();
          if (std::find(devices.begin(), devices.end(), d) != devices.end()) {
            gpus->capacity_milli -= 1000;
            break;
          }
        }
      }
    }
    if (!Unreachable(host)) continue;
    for (const AttemptRef& ref : host.attempts) {
      const AttemptRow* attempt = state.FindAttempt(ref);
      const pb::TaskSpec& spec = state.FindJob(ref.job)->task_spec(ref.task);
      if (MayBeLost(state, spec, *attempt, now_ns, options)) continue;
      for (const PartRow& part : attempt->parts) {
        if (part.host != id) continue;
        if (spec.resources().gpus_milli() == 0) {
          cell(host.cluster, cpu).capacity_milli += part.workers * WorkerDemand(spec, host.inventory).cpus_milli;
        } else if (flavour >= 0) {
          cell(host.cluster, flavour).capacity_milli += part.workers * spec.resources().gpus_milli();
        }
      }
    }
  }
  for (const Cell& c : model.cells) model.flavour_milli[c.flavour] += c.capacity_milli;
  model.entitled.assign(state.queues().nodes.size(), std::vector<int64_t>(model.flavours.size(), 0));

  for (const uint64_t number : state.active_jobs()) {
    const JobRow& job = *state.FindJob(number);
    const bool ends = job.cancel_requested || std::any_of(job.tasks.begin(), job.tasks.end(), [](const TaskRow& t) {
                        return t.state == pb::TASK_FAILED;
                      });
    const int32_t leaf = state.queues().Find(job.spec->queue());
    std::vector<int32_t> clusters;      // of the job; found once it has a task that wants them
    for (size_t t = 0; t < job.tasks.size(); ++t) {
      const TaskRow& row = job.tasks[t];
      const AttemptRow* current = row.current();
      if (current != nullptr && current->released()) continue;   // it waits for its export only
      if (row.finished() || row.state == pb::TASK_BLOCKED) continue;
      if (current == nullptr && (ends || leaf < 0 || !state.queues().leaf(leaf) || state.queues().nodes[leaf].held)) continue;
      if (current == nullptr && row.backoff_until_ns > now_ns + kShortBackoffNs) continue;
      if (clusters.empty()) clusters = AllowedClusters(state, job);
      Base base;
      base.ref = {number, static_cast<int32_t>(t)};
      base.job = &job;
      base.row = &row;
      base.spec = &job.task_spec(static_cast<int32_t>(t));
      base.current = current;
      base.leaf = leaf;
      base.min_workers = std::max(1, base.spec->workers().min());
      base.max_workers = std::max(base.min_workers, base.spec->workers().max());
      const pb::Resources& wants = base.spec->resources();
      base.worker_milli = wants.gpus_milli() > 0 ? wants.gpus_milli() : WorkerDemand(*base.spec, pb::Inventory()).cpus_milli;
      std::vector<int32_t> flavours;
      if (wants.gpus_milli() == 0) flavours.push_back(cpu);
      for (const std::string& type : wants.gpu_types()) {
        if (wants.gpus_milli() > 0 && model.FlavourIndex(type) >= 0) flavours.push_back(model.FlavourIndex(type));
      }
      bool first = true;                // the first cluster that could ever hold it is open
      for (const int32_t cluster : clusters) {
        const std::string& name = state.clusters()[cluster].name;
        const bool spilled = std::find(row.opened.begin(), row.opened.end(), name) != row.opened.end();
        const bool here = current != nullptr && current->cluster == cluster;
        bool could = false;
        for (const int32_t flavour : flavours) {
          const auto it = cell_of.find({cluster, flavour});
          if (it == cell_of.end()) continue;
          const bool holds = model.cells[it->second].known_milli >= base.min_workers * base.worker_milli;
          could = could || holds;
          base.cells.push_back(it->second);
          base.opened.push_back(spilled || here || (first && holds));
        }
        first = first && !could;
      }
      if (current != nullptr) {
        const auto it = cell_of.find({current->cluster, current->flavour.empty() ? cpu : model.FlavourIndex(current->flavour)});
        base.bound_cell = it == cell_of.end() ? -1 : it->second;
        base.may_be_lost = MayBeLost(state, *base.spec, *current, now_ns, options);
      }
      base.ends = ends || (current != nullptr && current->state == pb::TASK_STOPPING &&
                           (current->cause == pb::CANCEL || current->cause == pb::TIME_LIMIT));
      if (base.ends || leaf < 0) {      // holds devices, but claims none
        base.cells.clear();
        base.opened.clear();
      }
      model.base_of[base.ref] = static_cast<int32_t>(model.bases.size());
      model.bases.push_back(std::move(base));
    }
  }
  return model;
}

}  // namespace muster
