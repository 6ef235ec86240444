#include "scheduler/decide/model_upkeep.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "scheduler/state/mass_loss.h"

namespace muster {
namespace {

constexpr size_t kOverBasesKept = 256;  // and a fifth of all: then the bases move together

bool Ends(const JobRow& job) {
  return job.cancel_requested ||
         std::any_of(job.tasks.begin(), job.tasks.end(),
                     [](const TaskRow& t) { return t.state == pb::TASK_FAILED; });
}

// Everything that the entitled set follows from but the binding.
bool SameUnits(const Base& a, const Base& b) {
  return a.leaf == b.leaf && a.priority == b.priority && a.submit_ns == b.submit_ns &&
         a.min_workers == b.min_workers && a.max_workers == b.max_workers &&
         a.worker_milli == b.worker_milli && a.host_cpus_milli == b.host_cpus_milli &&
         a.worker_cpus_milli == b.worker_cpus_milli && a.binds_others == b.binds_others &&
         a.cells == b.cells && a.opened == b.opened;
}

// Puts the base into an ascending list, or takes it out of it.
void ListIn(std::vector<int32_t>* bases, int32_t b, bool there) {
  const auto at = std::lower_bound(bases->begin(), bases->end(), b);
  if (there) {
    bases->insert(at, b);
  } else {
    bases->erase(at);
  }
}

// reaches[a][b]: b reaches the job_storage of a.
std::vector<std::vector<bool>> ReadReaches(const State& state) {
  const size_t clusters = state.clusters().size();
  std::map<std::string, int32_t> index;
  for (size_t c = 0; c < clusters; ++c) index[state.clusters()[c].name] = static_cast<int32_t>(c);
  std::vector<std::vector<bool>> reaches(clusters, std::vector<bool>(clusters, false));
  for (size_t c = 0; c < clusters; ++c) {
    const auto storage =
        state.cluster_file().storages().find(state.clusters()[c].spec.job_storage());
    if (storage == state.cluster_file().storages().end()) continue;
    for (const std::string& name : storage->second.clusters()) {
      if (const auto it = index.find(name); it != index.end()) reaches[c][it->second] = true;
    }
  }
  return reaches;
}

}  // namespace

const Model& ModelUpkeep::Update(const State& state, int64_t now_ns,
                                 const SchedulingOptions& options) {
  bool follows = seen_.has_value();
  if (follows) {
    const Touched touched = state.Since(*seen_);
    follows = !touched.clusters && !touched.queues && Follow(state, touched, now_ns, options);
  }
  if (!follows) Rebuild(state, now_ns, options);
  seen_ = state;
  if (stale_) {
    for (const int32_t b : entitlement_.Run(&model_)) ListTakeable(b);
  }
  stale_ = false;
  OrderClaims();
  return model_;
}

// Only what Round places of S is asked for its turn.
void ModelUpkeep::OrderClaims() {
  std::vector<int32_t> claims;
  for (const std::vector<int32_t>* list : {&model_.told, &model_.stopping}) {
    for (const int32_t b : *list) {
      if (model_.bases[b].entitled) claims.push_back(b);
    }
  }
  std::sort(claims.begin(), claims.end());
  claims.erase(std::unique(claims.begin(), claims.end()), claims.end());
  entitlement_.Sort(model_, &claims);
  model_.order.resize(model_.bases.size());
  for (size_t i = 0; i < claims.size(); ++i) model_.order[claims[i]] = static_cast<int32_t>(i);
}

void ModelUpkeep::Rebuild(const State& state, int64_t now_ns, const SchedulingOptions& options) {
  model_ = Model();
  stale_ = true;
  built_ = false;
  unreachable_.clear();
  mass_loss_.clear();
  over_.clear();
  over_bases_ = 0;
  shapes_.clear();
  std::set<std::string> names = {kCpuFlavour};
  HostId bound = 0;
  for (const HostId id : state.hosts()) {
    bound = std::max(bound, id + 1);
    if (const std::string& flavour = state.host(id).inventory.flavour(); !flavour.empty())
      names.insert(flavour);
  }
  model_.flavours.assign(names.begin(), names.end());
  model_.flavour_milli.assign(model_.flavours.size(), 0);
  flavour_hosts_.assign(model_.flavours.size(), 0);
  model_.cpu = model_.FlavourIndex(kCpuFlavour);
  ReadRanks(state);
  hosts_.assign(static_cast<size_t>(bound), {});

  std::set<std::pair<int32_t, int32_t>> cells;
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    if (host.state == pb::HOST_NEVER_SEEN) continue;
    cells.insert({host.cluster, model_.cpu});
    if (!host.inventory.flavour().empty())
      cells.insert({host.cluster, model_.FlavourIndex(host.inventory.flavour())});
  }
  for (const auto& [cluster, flavour] : cells) {
    model_.cells.emplace_back();
    model_.cells.back().cluster = cluster;
    model_.cells.back().flavour = flavour;
  }
  // What unreachable hosts add needs their cluster's mass loss, and that all the others of it.
  for (const HostId id : state.hosts()) {
    if (state.host(id).state == pb::HOST_UNREACHABLE) {
      unreachable_.insert(id);
    } else {
      MUSTER_CHECK(FollowHost(state, id));
    }
  }
  for (const HostId id : unreachable_) {
    mass_loss_[state.host(id).cluster] = true;
    MUSTER_CHECK(FollowHost(state, id));
  }
  for (auto& [cluster, lost] : mass_loss_) lost = MassLoss(cluster, now_ns, options);
  for (const HostId id : unreachable_) MUSTER_CHECK(FollowHost(state, id));

  const std::vector<QueueNode>& nodes = state.queues().nodes;
  model_.holding.resize(model_.cells.size());
  model_.takeable.resize(model_.cells.size());
  model_.use.assign(nodes.size() * model_.flavours.size(), 0);
  model_.depth.assign(nodes.size(), 0);
  for (size_t n = 0; n < nodes.size(); ++n) {
    model_.parent.push_back(nodes[n].parent);
    if (nodes[n].parent >= 0) model_.depth[n] = model_.depth[nodes[n].parent] + 1;
  }
  model_.reaches = ReadReaches(state);
  ReadHistory(state);
  counts_cpus_.assign(nodes.size(), false);
  ReadShares(state);
  for (size_t n = 0; n < counts_cpus_.size(); ++n) {
    const QueueNode& node = nodes[n];
    counts_cpus_[n] =
        node.spec.quota().contains(kCpuFlavour) || (node.parent >= 0 && counts_cpus_[node.parent]);
  }
  for (const uint64_t number : state.active_jobs()) {
    const size_t first = model_.bases.size();
    model_.bases.resize(first + state.FindJob(number)->tasks.size());
    ReadJob(state, number, first);
  }
  QuotaTree quotas = ReadQuotas(state, model_);
  for (const QuotaNode& node : quotas)
    model_.quota.insert(model_.quota.end(), node.flavours.begin(), node.flavours.end());
  entitlement_.Reset(std::move(quotas), model_);
  built_ = true;
}

void ModelUpkeep::ReadRanks(const State& state) {
  rank_.clear();
  for (size_t i = 0; i < state.hosts().size(); ++i) {
    const size_t id = static_cast<size_t>(state.hosts()[i]);
    if (rank_.size() <= id) rank_.resize(id + 1, -1);
    rank_[id] = static_cast<int32_t>(i);
  }
}

ModelUpkeep::CpuShare ModelUpkeep::ShareOf(const State& state, HostId host) {
  const pb::Inventory& inventory = state.host(host).inventory;
  if (inventory.devices_size() == 0) return {};
  return {host, inventory.cpus_milli(), inventory.devices_size()};
}

void ModelUpkeep::ReadShares(const State& state) {
  shares_.assign(model_.cells.size(), {});
  for (size_t c = 0; c < shares_.size(); ++c) {
    if (model_.cells[c].flavour == model_.cpu) continue;
    for (const HostId host : model_.cells[c].hosts) {
      const CpuShare share = ShareOf(state, host);
      if (shares_[c] < share) shares_[c] = share;
    }
  }
}

bool ModelUpkeep::SharesStand(const State& state, HostId host, int32_t was_in) const {
  const CpuShare share = ShareOf(state, host);
  const int32_t is_in = hosts_[host].gpu_cell;
  if (is_in >= 0 && model_.cells[is_in].flavour != model_.cpu && shares_[is_in] < share)
    return false;
  if (was_in < 0 || shares_[was_in].host != host) return true;
  return is_in == was_in && share.cpus_milli == shares_[was_in].cpus_milli &&
         share.devices == shares_[was_in].devices;
}

void ModelUpkeep::ReadHistory(const State& state) {
  std::vector<int64_t> history(state.queues().nodes.size(), 0);
  for (const auto& [queue, row] : state.history()) {
    for (int32_t n = state.queues().Find(queue); n >= 0; n = state.queues().nodes[n].parent)
      history[n] += row.decayed_device_us;
  }
  stale_ = stale_ || history != model_.history;
  model_.history = std::move(history);
}

// ---- hosts ----

// Healthy devices of a host that may get work; of an unreachable one what attempts hold there that
// may not be lost yet.
ModelUpkeep::HostShare ModelUpkeep::ReadHost(const State& state, HostId id) const {
  const HostRow& host = state.host(id);
  HostShare share;
  share.state = host.state;
  share.state_since_ns = host.state_since_ns;
  share.cluster = host.cluster;
  share.drained = host.drained;
  share.usable = host.usable();
  share.state_id = host.state_id;
  share.flavour =
      host.inventory.flavour().empty() ? -1 : model_.FlavourIndex(host.inventory.flavour());
  if (host.state == pb::HOST_NEVER_SEEN) return share;
  share.known = true;
  share.silent_since_ns = host.silent_since_ns;
  share.spoke_ns = host.spoke_ns;
  share.cpu_cell = model_.CellOf(host.cluster, model_.cpu);
  if (share.flavour >= 0) share.gpu_cell = model_.CellOf(host.cluster, share.flavour);
  const bool counts = (host.state == pb::HOST_UP || host.state == pb::HOST_SILENT) &&
                      !host.drained && !host.quarantined() &&
                      !state.clusters()[host.cluster].drained;
  share.cpus_known_milli = host.inventory.cpus_milli();
  if (counts) share.cpus_milli = host.inventory.cpus_milli();
  for (int d = 0; share.flavour >= 0 && d < host.inventory.devices_size(); ++d) {
    share.gpus_known_milli += 1000;
    if (!counts || !host.inventory.devices(d).healthy()) continue;
    const bool held = std::any_of(host.lost.begin(), host.lost.end(), [&](const LostRow& lost) {
      const auto& devices = lost.placement.devices();
      return std::find(devices.begin(), devices.end(), d) != devices.end();
    });
    if (!held) share.gpus_milli += 1000;
  }
  if (host.state != pb::HOST_UNREACHABLE) return share;
  for (const AttemptRef& ref : host.attempts) {
    const AttemptRow* attempt = state.FindAttempt(ref);
    const pb::TaskSpec& spec = state.FindJob(ref.job)->task_spec(ref.task);
    if (MayBeLost(state, spec, *attempt)) continue;
    for (const PartRow& part : attempt->parts) {
      if (part.host != id) continue;
      share.cpus_milli +=
          part.workers * WorkerDemand(spec, host.inventory)
                             .cpus_milli;  // beside devices, too: S counts them there
      if (share.flavour >= 0) share.gpus_milli += part.workers * spec.resources().gpus_milli();
    }
  }
  return share;
}

bool ModelUpkeep::FollowHost(const State& state, HostId id) {
  if (hosts_.size() <= static_cast<size_t>(id)) hosts_.resize(static_cast<size_t>(id) + 1);
  const HostShare old = std::move(hosts_[id]);
  const HostShare now = ReadHost(state, id);
  const bool has_flavour = !state.host(id).inventory.flavour().empty();
  if (has_flavour && now.flavour < 0) return false;
  if (now.known && (now.cpu_cell < 0 || (has_flavour && now.gpu_cell < 0))) return false;
  if (old.flavour != now.flavour) {
    if (now.flavour >= 0) ++flavour_hosts_[now.flavour];
    if (old.flavour >= 0 && --flavour_hosts_[old.flavour] == 0 &&
        model_.flavours[old.flavour] != kCpuFlavour)
      return false;
  }
  const auto leave = [&](int32_t cell) {
    std::vector<HostId>& hosts = model_.cells[cell].hosts;
    hosts.erase(std::find(hosts.begin(), hosts.end(), id));
    return !hosts.empty();
  };
  const auto join = [&](int32_t cell) {
    std::vector<HostId>& hosts = model_.cells[cell].hosts;
    hosts.insert(std::lower_bound(hosts.begin(), hosts.end(), id,
                                  [&](HostId a, HostId b) { return rank_[a] < rank_[b]; }),
                 id);
  };
  const auto add = [&](int32_t cell, int64_t known_milli, int64_t capacity_milli) {
    if (cell < 0 || (known_milli == 0 && capacity_milli == 0)) return;
    model_.cells[cell].known_milli += known_milli;
    model_.cells[cell].capacity_milli += capacity_milli;
    model_.flavour_milli[model_.cells[cell].flavour] += capacity_milli;
    stale_ = stale_ || capacity_milli != 0;
  };
  if (old.cpu_cell != now.cpu_cell) {
    if (old.cpu_cell >= 0 && !leave(old.cpu_cell)) return false;
    if (now.cpu_cell >= 0) join(now.cpu_cell);
  }
  const int32_t old_gpus = old.gpu_cell == old.cpu_cell ? -1 : old.gpu_cell;
  const int32_t now_gpus = now.gpu_cell == now.cpu_cell ? -1 : now.gpu_cell;
  if (old_gpus != now_gpus) {
    if (old_gpus >= 0 && !leave(old_gpus)) return false;
    if (now_gpus >= 0) join(now_gpus);
  }
  if (old.cpu_cell == now.cpu_cell && old.gpu_cell == now.gpu_cell) {
    add(now.cpu_cell, now.cpus_known_milli - old.cpus_known_milli, now.cpus_milli - old.cpus_milli);
    add(now.gpu_cell, now.gpus_known_milli - old.gpus_known_milli, now.gpus_milli - old.gpus_milli);
  } else {
    add(old.cpu_cell, -old.cpus_known_milli, -old.cpus_milli);
    add(old.gpu_cell, -old.gpus_known_milli, -old.gpus_milli);
    add(now.cpu_cell, now.cpus_known_milli, now.cpus_milli);
    add(now.gpu_cell, now.gpus_known_milli, now.gpus_milli);
  }
  hosts_[id] = now;
  return true;
}

bool ModelUpkeep::MassLoss(int32_t cluster, int64_t now_ns,
                           const SchedulingOptions& options) const {
  const int32_t cell = model_.CellOf(cluster, model_.cpu);
  if (cell < 0) return false;
  return MostAreSilent(now_ns, options.lease_ns, [&](const auto& look) {
    for (const HostId id : model_.cells[cell].hosts) look(hosts_[id]);
  });
}

bool ModelUpkeep::MayBeLost(const State& state, const pb::TaskSpec& spec,
                            const AttemptRow& attempt) const {
  if (unreachable_.empty() || !MayBeLostAlone(state, spec, attempt)) return false;
  const auto lost = mass_loss_.find(attempt.cluster);
  if (lost == mass_loss_.end() || !lost->second) return true;
  // While most of a cluster is silent, only what somebody said of a host counts.
  return std::all_of(attempt.parts.begin(), attempt.parts.end(), [&](const PartRow& part) {
    const HostRow& host = state.host(part.host);
    return part.over() || host.state != pb::HOST_UNREACHABLE || !host.confirmed_off_by.empty();
  });
}

// ---- jobs ----

Base ModelUpkeep::ReadBase(const State& state, const JobRow& job, int32_t task,
                           const std::vector<int32_t>& clusters, int32_t leaf) {
  Base base;
  base.ref = {job.number, task};
  const TaskRow& row = job.tasks[task];
  const AttemptRow* current = row.current();
  const bool ends = Ends(job);
  if (current != nullptr && current->released()) return base;  // it waits for its export only
  base.backoff_until_ns = row.waiting() ? row.backoff_until_ns : 0;
  base.blocked = row.state == pb::TASK_BLOCKED;
  if (row.finished() || base.blocked) return base;
  base.held = row.waiting() && (ends || leaf < 0 || !state.queues().leaf(leaf) ||
                                (state.queues().nodes[leaf].held && !row.comes_back()));
  if (base.held) return base;
  if (current == nullptr && !row.waiting()) return base;
  base.unit = true;
  base.job = &job;
  base.row = &row;
  base.spec = &job.task_spec(task);
  base.current = current;
  base.waiting = row.waiting();
  base.stopping = current != nullptr && current->state == pb::TASK_STOPPING;
  if (base.running()) base.look_ns = LookNs(state, job, task, *current);
  base.leaf = leaf;
  base.min_workers = std::max(1, base.spec->workers().min());
  base.max_workers = std::max(base.min_workers, base.spec->workers().max());
  base.priority = job.spec->priority();
  base.submit_ns = job.submit_ns;
  base.ran_ns = row.ran_ns;
  base.waiting_since_ns = row.waiting_since_ns;
  base.binds_others = job.cluster.empty() && job.tasks.size() > 1;
  const pb::Resources& wants = base.spec->resources();
  base.gpus = wants.gpus_milli() > 0;
  base.wants = WantsOf(*base.spec);
  base.shape =
      shapes_
          .try_emplace({base.min_workers, wants.gpus_milli(), wants.cpus_milli(),
                        wants.memory_bytes(), wants.disk_bytes(), base.spec->topology().preferred(),
                        base.spec->topology().required()},
                       static_cast<int32_t>(shapes_.size()))
          .first->second;
  base.worker_milli = std::max<int64_t>(
      1, wants.gpus_milli() > 0 ? wants.gpus_milli()
                                : WorkerDemand(*base.spec, pb::Inventory()).cpus_milli);
  base.evicted_round = row.evicted_round;
  base.reserved = row.reservation != nullptr;
  if (row.opened_attempt == row.next_attempt) base.spill_ns = row.opened_ns;
  ReadRun(state, current, &base);
  if (current != nullptr) {
    base.bound_cell = model_.CellOf(
        current->cluster,
        model_.FlavourIndex(current->flavour.empty() ? kCpuFlavour : current->flavour));
    base.may_be_lost = MayBeLost(state, *base.spec, *current);
  }
  base.ends = ends || (current != nullptr && current->state == pb::TASK_STOPPING &&
                       (current->cause == pb::CANCEL || current->cause == pb::TIME_LIMIT));
  if (base.ends || leaf < 0) return base;  // holds devices, but claims none
  std::vector<int32_t> flavours;
  if (wants.gpus_milli() == 0) {
    flavours.push_back(model_.cpu);
  } else {
    for (const std::string& type : wants.gpu_types()) {
      if (const int32_t flavour = model_.FlavourIndex(type); flavour >= 0)
        flavours.push_back(flavour);
    }
  }
  bool first = true;  // the first cluster that could ever hold it is open
  for (const int32_t cluster : clusters) {
    const std::string& name = state.clusters()[cluster].name;
    const bool spilled = std::find(row.opened.begin(), row.opened.end(), name) != row.opened.end();
    bool could = false;
    for (const int32_t flavour : flavours) {
      const int32_t cell = model_.CellOf(cluster, flavour);
      if (cell < 0) continue;
      const bool holds = model_.cells[cell].known_milli >= base.min_workers * base.worker_milli;
      could = could || holds;
      base.cells.push_back(cell);
      base.opened.push_back(spilled || (first && holds));
    }
    first = first && !could;
  }
  if (!row.fronted.empty()) {  // spill found free devices there
    decltype(base.cells) cells;
    decltype(base.opened) opened;
    for (const bool front : {true, false}) {
      for (size_t i = 0; i < base.cells.size(); ++i) {
        if ((state.clusters()[model_.cells[base.cells[i]].cluster].name == row.fronted.back()) !=
            front)
          continue;
        cells.push_back(base.cells[i]);
        opened.push_back(base.opened[i]);
      }
    }
    base.cells = std::move(cells);
    base.opened = std::move(opened);
  }
  base.all_opened = std::find(base.opened.begin(), base.opened.end(), 0) == base.opened.end();
  for (const int32_t cell : base.cells) {
    if (wants.gpus_milli() == 0 || shares_[cell].host < 0) continue;
    const pb::Inventory& inventory = state.host(shares_[cell].host).inventory;
    base.host_cpus_milli =
        std::max(base.host_cpus_milli, WorkerDemand(*base.spec, inventory).cpus_milli);
  }
  if (counts_cpus_[leaf]) base.worker_cpus_milli = base.host_cpus_milli;
  return base;
}

// Its bases stand from `first` on.
void ModelUpkeep::ReadJob(const State& state, uint64_t number, size_t first) {
  const JobRow& job = *state.FindJob(number);
  const int32_t leaf = state.queues().Find(job.spec->queue());
  const std::vector<int32_t> clusters = AllowedClusters(state, job);
  for (size_t t = 0; t < job.tasks.size(); ++t) {
    Replace(first + t, ReadBase(state, job, static_cast<int32_t>(t), clusters, leaf));
  }
}

void ModelUpkeep::Replace(size_t b, Base fresh) {
  Base& base = model_.bases[b];
  const int32_t index = static_cast<int32_t>(b);
  if (base.unit && !fresh.unit) model_.base_of.erase(base.ref);
  if (!base.unit && fresh.unit) model_.base_of[fresh.ref] = index;
  List(index, false);
  if (!built_) {
    base = std::move(fresh);
    return List(index, true);
  }
  if (!SameUnits(base, fresh)) {
    entitlement_.Remove(model_, index);
    base = std::move(fresh);
    entitlement_.Add(model_, index);
    stale_ = true;
    return List(index, true);
  }
  const bool rebound = base.bound_cell != fresh.bound_cell;
  if (rebound) {
    // Where it starts in its charged cell, or leaves what isn't, the set and its charges stay as
    // they are.
    const bool follows =
        !base.charged_as_bound && (fresh.bound_cell < 0 || fresh.bound_cell == base.charge);
    stale_ = stale_ || (base.entitled && !follows);
  }
  fresh.entitled = base.entitled;
  fresh.guaranteed = base.guaranteed;
  fresh.charged_as_bound = base.charged_as_bound;
  fresh.charge = base.charge;
  fresh.growth = base.growth;
  base = std::move(fresh);
  if (rebound) entitlement_.Rebind(model_, index);
  List(index, true);
}

// Whether claims may stop it follows from what it runs as and from S.
void ModelUpkeep::ListTakeable(int32_t b) {
  Base& base = model_.bases[b];
  const bool takeable = base.runs_beside_s();
  if (takeable == base.takeable) return;
  base.takeable = takeable;
  ListIn(&model_.takeable[base.bound_cell], b, takeable);
}

void ModelUpkeep::List(int32_t b, bool there) {
  Base& base = model_.bases[b];
  const auto list = [&](std::vector<int32_t>* bases) { ListIn(bases, b, there); };
  if (there) ListTakeable(b);
  if (!there && base.takeable) {
    list(&model_.takeable[base.bound_cell]);
    base.takeable = false;
  }
  if (base.wants_place() || base.blocked || base.held || base.unreachable) list(&model_.told);
  if (base.current == nullptr) return;
  if (base.stopping) list(&model_.stopping);
  if (base.running() && base.workers < base.max_workers) list(&model_.growing);
  if (base.running() && base.look_ns != kUnbounded) {
    if (there) {
      model_.looks.emplace(base.look_ns, base.ref);
    } else {
      model_.looks.erase({base.look_ns, base.ref});
    }
  }
  if (base.bound_cell < 0) return;
  list(&model_.holding[base.bound_cell]);
  if (base.may_be_lost) return;
  const int64_t workers = there ? base.workers : -base.workers;
  for (int32_t n = base.leaf; n >= 0; n = model_.parent[n]) {
    model_.use[n * model_.flavours.size() + model_.cells[base.bound_cell].flavour] +=
        workers * base.worker_milli;
    if (base.worker_cpus_milli > 0)
      model_.use[n * model_.flavours.size() + model_.cpu] += workers * base.worker_cpus_milli;
  }
}

bool ModelUpkeep::FollowJob(const State& state, uint64_t number) {
  const JobRow* job = state.FindJob(number);
  const auto at = std::lower_bound(model_.bases.begin(), model_.bases.end(), number,
                                   [](const Base& base, uint64_t n) { return base.ref.job < n; });
  const size_t first = static_cast<size_t>(at - model_.bases.begin());
  const bool known = at != model_.bases.end() && at->ref.job == number;
  if (job == nullptr || job->finished()) {
    if (!known || !over_.insert(number).second) return true;
    for (size_t b = first; b < model_.bases.size() && model_.bases[b].ref.job == number; ++b) {
      Base none;
      none.ref = model_.bases[b].ref;
      Replace(b, std::move(none));
      ++over_bases_;
    }
    return true;
  }
  if (over_.contains(number)) return false;  // of another history
  if (known && (first + job->tasks.size() > model_.bases.size() ||
                model_.bases[first + job->tasks.size() - 1].ref.job != number ||
                (first + job->tasks.size() < model_.bases.size() &&
                 model_.bases[first + job->tasks.size()].ref.job == number))) {
    return false;  // another job of this number
  }
  if (!known) {
    if (first != model_.bases.size()) return false;  // numbers rise
    model_.bases.resize(first + job->tasks.size());
    for (size_t t = 0; t < job->tasks.size(); ++t)
      model_.bases[first + t].ref = {number, static_cast<int32_t>(t)};
  }
  ReadJob(state, number, first);
  return true;
}

// Takes the bases of finished jobs out.
void ModelUpkeep::Compact() {
  std::vector<int32_t> to(model_.bases.size(), -1);
  size_t kept = 0;
  auto over = over_.begin();
  for (size_t b = 0; b < model_.bases.size(); ++b) {
    while (over != over_.end() && *over < model_.bases[b].ref.job) ++over;
    if (over != over_.end() && *over == model_.bases[b].ref.job) continue;
    to[b] = static_cast<int32_t>(kept);
    if (kept != b) model_.bases[kept] = std::move(model_.bases[b]);
    ++kept;
  }
  model_.bases.resize(kept);
  for (auto& [ref, b] : model_.base_of) b = to[b];
  const auto renumber = [&](std::vector<int32_t>* bases) {
    for (int32_t& b : *bases) b = to[b];
  };
  for (std::vector<int32_t>* bases : {&model_.stopping, &model_.told, &model_.growing})
    renumber(bases);
  for (std::vector<std::vector<int32_t>>* cells : {&model_.holding, &model_.takeable}) {
    for (std::vector<int32_t>& bases : *cells) renumber(&bases);
  }
  entitlement_.Renumber(to);
  over_.clear();
  over_bases_ = 0;
}

bool ModelUpkeep::Follow(const State& state, const Touched& touched, int64_t now_ns,
                         const SchedulingOptions& options) {
  if (over_bases_ > kOverBasesKept && over_bases_ * 5 > model_.bases.size()) Compact();
  if (touched.host_order) ReadRanks(state);
  if (touched.history) ReadHistory(state);
  std::set<uint64_t> jobs(touched.jobs.begin(), touched.jobs.end());
  std::set<HostId> hosts(touched.hosts.begin(), touched.hosts.end());
  if (seen_->listens_since_ns() != state.listens_since_ns()) {
    for (const auto& [look_ns, ref] : model_.looks)
      jobs.insert(ref.job);  // what it took for silence was none
  }
  const auto again =
      [&](HostId id) {  // what may be lost or has to be stopped there may have changed
        hosts.insert(id);
        for (const AttemptRef& ref : state.host(id).attempts) jobs.insert(ref.job);
      };
  std::vector<int64_t> known_milli;
  for (const Cell& cell : model_.cells) known_milli.push_back(cell.known_milli);

  for (const HostId id : touched.hosts) {
    if (rank_.size() <= static_cast<size_t>(id) || rank_[id] < 0)
      return false;  // of another history
    const bool was = unreachable_.erase(id) > 0;
    const bool is = state.host(id).state == pb::HOST_UNREACHABLE;
    if (is) unreachable_.insert(id);
    const bool other =
        hosts_.size() > static_cast<size_t>(id) &&
        (hosts_[id].drained != state.host(id).drained || hosts_[id].state != state.host(id).state ||
         hosts_[id].state_since_ns != state.host(id).state_since_ns ||
         hosts_[id].usable != state.host(id).usable() ||
         hosts_[id].state_id != state.host(id).state_id);
    if (was || is || other) again(id);
    const int32_t was_in = hosts_.size() > static_cast<size_t>(id) ? hosts_[id].gpu_cell : -1;
    if (!FollowHost(state, id) || !SharesStand(state, id, was_in)) return false;
  }
  std::map<int32_t, bool> mass_loss;
  for (const HostId id : unreachable_) mass_loss[state.host(id).cluster] = false;
  for (auto& [cluster, lost] : mass_loss) lost = MassLoss(cluster, now_ns, options);
  if (mass_loss != mass_loss_) {
    for (const HostId id : unreachable_) {
      const int32_t cluster = state.host(id).cluster;
      const auto before = mass_loss_.find(cluster);
      if (before == mass_loss_.end() || before->second != mass_loss[cluster]) again(id);
    }
    mass_loss_ = std::move(mass_loss);
  }
  // An attempt whose hosts were written may be lost since: its parts on unreachable hosts count
  // otherwise now.
  if (!unreachable_.empty()) {
    for (const uint64_t number : jobs) {
      const JobRow* job = state.FindJob(number);
      for (size_t t = 0; job != nullptr && t < job->tasks.size(); ++t) {
        const AttemptRow* current = job->tasks[t].current();
        if (current == nullptr) continue;
        for (const PartRow& part : current->parts) {
          if (unreachable_.contains(part.host)) hosts.insert(part.host);
        }
      }
    }
    for (const HostId id : hosts) {
      if (unreachable_.contains(id) && !FollowHost(state, id)) return false;
    }
  }
  // The first cluster that could hold a task is open to it.
  for (size_t c = 0; c < model_.cells.size(); ++c) {
    const int64_t before = known_milli[c], now = model_.cells[c].known_milli;
    if (before == now) continue;
    for (const Base& base : model_.bases) {
      const int64_t needs = base.min_workers * base.worker_milli;
      if ((before >= needs) == (now >= needs)) continue;
      if (std::find(base.cells.begin(), base.cells.end(), static_cast<int32_t>(c)) !=
          base.cells.end())
        jobs.insert(base.ref.job);
    }
  }
  for (const uint64_t number : jobs) {
    if (!FollowJob(state, number)) return false;
  }
  return true;
}

}  // namespace muster
