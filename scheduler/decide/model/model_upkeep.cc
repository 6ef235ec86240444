#include "scheduler/decide/model/model_upkeep.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "scheduler/state/hosted.h"
#include "scheduler/state/mass_loss.h"
#include "scheduler/state/strays.h"

namespace muster {
namespace {

constexpr size_t kOverGangsKept = 256;  // and a fifth of all: then the gangs move together

// Everything that the entitled set follows from but the binding.
bool SameUnits(const Gang& a, const Gang& b) {
  return a.leaf == b.leaf && a.priority == b.priority && a.band == b.band &&
         a.submit_ns == b.submit_ns && a.min_workers == b.min_workers &&
         a.max_workers == b.max_workers && a.step_workers == b.step_workers &&
         a.worker_milli == b.worker_milli && a.host_cpus_milli == b.host_cpus_milli &&
         a.worker_cpus_milli == b.worker_cpus_milli && a.binds_others == b.binds_others &&
         a.pools == b.pools && a.opened == b.opened && a.leader == b.leader &&
         a.unit_milli() == b.unit_milli() && a.unit_cpus_milli() == b.unit_cpus_milli() &&
         a.unit_host_cpus_milli() == b.unit_host_cpus_milli();
}

// Puts the gang into an ascending list, or takes it out of it.
void ListIn(std::vector<int32_t>* gangs, int32_t b, bool there) {
  const auto at = std::lower_bound(gangs->begin(), gangs->end(), b);
  if (there) {
    gangs->insert(at, b);
  } else {
    gangs->erase(at);
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
  FollowLeaders();
  OrderClaims();
  return model_;
}

// Only what Round places of S is asked for its turn.
void ModelUpkeep::OrderClaims() {
  std::vector<int32_t> claims;
  for (const std::vector<int32_t>* list : {&model_.needs_verdict, &model_.stopping}) {
    for (const int32_t b : *list) {
      if (model_.gangs[b].entitled) claims.push_back(model_.LeaderOf(b));
    }
  }
  std::sort(claims.begin(), claims.end());
  claims.erase(std::unique(claims.begin(), claims.end()), claims.end());
  entitlement_.Sort(model_, &claims);
  model_.order.resize(model_.gangs.size());
  for (size_t i = 0; i < claims.size(); ++i) model_.order[claims[i]] = static_cast<int32_t>(i);
  for (const int32_t b : model_.followers) model_.order[b] = model_.order[model_.LeaderOf(b)];
}

void ModelUpkeep::Rebuild(const State& state, int64_t now_ns, const SchedulingOptions& options) {
  model_ = Model();
  stale_ = true;
  built_ = false;
  unreachable_.clear();
  strays_.clear();
  mass_loss_.clear();
  over_.clear();
  over_gangs_ = 0;
  shapes_.clear();
  std::set<std::string> names = {kCpuFlavour};
  std::set<uint64_t> all_are_read;
  HostId bound = 0;
  for (const HostId id : state.hosts()) {
    bound = std::max(bound, id + 1);
    FollowStrays(state, id, &all_are_read);
    if (const std::string& flavour = state.host(id).inventory.flavour(); !flavour.empty())
      names.insert(flavour);
  }
  model_.flavours.assign(names.begin(), names.end());
  model_.flavour_milli.assign(model_.flavours.size(), 0);
  flavour_hosts_.assign(model_.flavours.size(), 0);
  model_.cpu = model_.FlavourIndex(kCpuFlavour);
  ReadRanks(state);
  hosts_.assign(static_cast<size_t>(bound), {});

  std::set<std::pair<int32_t, int32_t>> pools;
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    if (host.state == pb::HOST_NEVER_SEEN) continue;
    pools.insert({host.cluster, model_.cpu});
    if (!host.inventory.flavour().empty())
      pools.insert({host.cluster, model_.FlavourIndex(host.inventory.flavour())});
  }
  for (const auto& [cluster, flavour] : pools) {
    model_.pools.emplace_back();
    model_.pools.back().cluster = cluster;
    model_.pools.back().flavour = flavour;
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
  model_.holding.resize(model_.pools.size());
  model_.takeable.resize(model_.pools.size());
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
    const size_t first = model_.gangs.size();
    model_.gangs.resize(first + state.FindJob(number)->tasks.size());
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
  shares_.assign(model_.pools.size(), {});
  for (size_t c = 0; c < shares_.size(); ++c) {
    if (model_.pools[c].flavour == model_.cpu) continue;
    for (const HostId host : model_.pools[c].hosts) {
      const CpuShare share = ShareOf(state, host);
      if (shares_[c] < share) shares_[c] = share;
    }
  }
}

bool ModelUpkeep::SharesStand(const State& state, HostId host, int32_t was_in) const {
  const CpuShare share = ShareOf(state, host);
  const int32_t is_in = hosts_[host].gpu_pool;
  if (is_in >= 0 && model_.pools[is_in].flavour != model_.cpu && shares_[is_in] < share)
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
  share.abilities = AbilitiesOf(host.inventory);
  share.flavour =
      host.inventory.flavour().empty() ? -1 : model_.FlavourIndex(host.inventory.flavour());
  if (host.state == pb::HOST_NEVER_SEEN) return share;
  share.known = true;
  share.silent_since_ns = host.silent_since_ns;
  share.spoke_ns = host.spoke_ns;
  share.cpu_pool = model_.PoolOf(host.cluster, model_.cpu);
  if (share.flavour >= 0) share.gpu_pool = model_.PoolOf(host.cluster, share.flavour);
  const bool counts = (host.state == pb::HOST_UP || host.state == pb::HOST_SILENT) &&
                      !host.drained && !host.quarantined() &&
                      !state.clusters()[host.cluster].drained;
  const bool removed = IsRemoved(state, host);
  if (!removed) share.cpus_known_milli = host.inventory.cpus_milli();
  if (counts) share.cpus_milli = host.inventory.cpus_milli();
  for (int d = 0; share.flavour >= 0 && d < host.inventory.devices_size(); ++d) {
    if (!removed) share.gpus_known_milli += 1000;
    if (!counts || !host.inventory.devices(d).healthy()) continue;
    const bool held = std::any_of(host.lost.begin(), host.lost.end(), [&](const LostRow& lost) {
      const auto& devices = lost.placement.devices();
      if (std::find(devices.begin(), devices.end(), d) == devices.end()) return false;
      const AttemptRow* attempt = state.FindAttempt(lost.key);
      return attempt == nullptr ||  // else it may be its holder's, which counts
             !IsOnHolder(state, host, *state.FindJobByUid(lost.key.job_uid()), *attempt);
    });
    if (!held) share.gpus_milli += 1000;
  }
  if (host.state != pb::HOST_UNREACHABLE) return share;
  for (const AttemptRef& ref : host.attempts) {
    if (state.FindJob(ref.job)->holder != 0) continue;  // its holder counts
    const AttemptRow* attempt = state.FindAttempt(ref);
    const JobRow& job = *state.FindJob(ref.job);
    const pb::TaskSpec& spec = job.task_spec(ref.task);
    if (MayBeLost(state, job, spec, *attempt)) continue;
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
  if (now.known && (now.cpu_pool < 0 || (has_flavour && now.gpu_pool < 0))) return false;
  if (old.flavour != now.flavour) {
    if (now.flavour >= 0) ++flavour_hosts_[now.flavour];
    if (old.flavour >= 0 && --flavour_hosts_[old.flavour] == 0 &&
        model_.flavours[old.flavour] != kCpuFlavour)
      return false;
  }
  const auto leave = [&](int32_t pool) {
    std::vector<HostId>& hosts = model_.pools[pool].hosts;
    hosts.erase(std::find(hosts.begin(), hosts.end(), id));
    return !hosts.empty();
  };
  const auto join = [&](int32_t pool) {
    std::vector<HostId>& hosts = model_.pools[pool].hosts;
    hosts.insert(std::lower_bound(hosts.begin(), hosts.end(), id,
                                  [&](HostId a, HostId b) { return rank_[a] < rank_[b]; }),
                 id);
  };
  const auto add = [&](int32_t pool, int64_t known_milli, int64_t capacity_milli) {
    if (pool < 0 || (known_milli == 0 && capacity_milli == 0)) return;
    model_.pools[pool].known_milli += known_milli;
    model_.pools[pool].capacity_milli += capacity_milli;
    model_.flavour_milli[model_.pools[pool].flavour] += capacity_milli;
    stale_ = true;
  };
  if (old.cpu_pool != now.cpu_pool) {
    if (old.cpu_pool >= 0 && !leave(old.cpu_pool)) return false;
    if (now.cpu_pool >= 0) join(now.cpu_pool);
  }
  const int32_t old_gpus = old.gpu_pool == old.cpu_pool ? -1 : old.gpu_pool;
  const int32_t now_gpus = now.gpu_pool == now.cpu_pool ? -1 : now.gpu_pool;
  if (old_gpus != now_gpus) {
    if (old_gpus >= 0 && !leave(old_gpus)) return false;
    if (now_gpus >= 0) join(now_gpus);
  }
  if (old.cpu_pool == now.cpu_pool && old.gpu_pool == now.gpu_pool) {
    add(now.cpu_pool, now.cpus_known_milli - old.cpus_known_milli, now.cpus_milli - old.cpus_milli);
    add(now.gpu_pool, now.gpus_known_milli - old.gpus_known_milli, now.gpus_milli - old.gpus_milli);
  } else {
    add(old.cpu_pool, -old.cpus_known_milli, -old.cpus_milli);
    add(old.gpu_pool, -old.gpus_known_milli, -old.gpus_milli);
    add(now.cpu_pool, now.cpus_known_milli, now.cpus_milli);
    add(now.gpu_pool, now.gpus_known_milli, now.gpus_milli);
  }
  hosts_[id] = now;
  return true;
}

bool ModelUpkeep::MassLoss(int32_t cluster, int64_t now_ns,
                           const SchedulingOptions& options) const {
  const int32_t pool = model_.PoolOf(cluster, model_.cpu);
  if (pool < 0) return false;
  return MostAreSilent(now_ns, options.lease_ns, [&](const auto& look) {
    for (const HostId id : model_.pools[pool].hosts) look(hosts_[id]);
  });
}

bool ModelUpkeep::MayBeLost(const State& state, const JobRow& job, const pb::TaskSpec& spec,
                            const AttemptRow& attempt) const {
  if (unreachable_.empty() || !MayBeLostAlone(state, spec, attempt)) return false;
  if (IsAstray(state, job) && !Ends(job)) return false;  // nothing may take its place yet
  const auto lost = mass_loss_.find(attempt.cluster);
  if (lost == mass_loss_.end() || !lost->second) return true;
  // While most of a cluster is silent, only what somebody said of a host counts.
  return std::all_of(attempt.parts.begin(), attempt.parts.end(), [&](const PartRow& part) {
    const HostRow& host = state.host(part.host);
    return part.over() || host.state != pb::HOST_UNREACHABLE || !host.confirmed_off_by.empty();
  });
}

void ModelUpkeep::FollowStrays(const State& state, HostId id, std::set<uint64_t>* jobs) {
  std::set<std::string> uids;
  for (const LostRow& lost : state.host(id).lost) {
    if (lost.stray()) uids.insert(lost.key.job_uid());
  }
  if (const auto before = strays_.find(id); before != strays_.end()) {
    before->second.swap(uids);
    uids.insert(before->second.begin(), before->second.end());
    if (before->second.empty()) strays_.erase(before);
  } else if (!uids.empty()) {
    strays_[id] = uids;
  }
  for (const std::string& uid : uids) {
    if (const JobRow* job = state.FindJobByUid(uid); job != nullptr) jobs->insert(job->number);
  }
}

bool ModelUpkeep::IsAstray(const State& state, const JobRow& job) const {
  return std::any_of(strays_.begin(), strays_.end(), [&](const auto& host) {
    return host.second.contains(job.uid) && HasStrayOf(state, state.host(host.first), job);
  });
}

// ---- jobs ----

// Its gangs stand from `first` on.
void ModelUpkeep::ReadJob(const State& state, uint64_t number, size_t first) {
  const JobRow& job = *state.FindJob(number);
  const int32_t leaf = state.queues().Find(job.spec->queue());
  const std::vector<int32_t> clusters = AllowedClusters(state, job);
  const bool together = std::any_of(job.spec->tasks().begin(), job.spec->tasks().end(),
                                    [](const pb::TaskSpec& task) { return task.with_size() > 0; });
  if (together) return ReadTogether(state, job, first, clusters, leaf);
  for (size_t t = 0; t < job.tasks.size(); ++t) {
    Replace(first + t, ReadGang(state, job, static_cast<int32_t>(t), clusters, leaf));
  }
}

void ModelUpkeep::Replace(size_t b, Gang fresh) {
  Gang& gang = model_.gangs[b];
  const int32_t index = static_cast<int32_t>(b);
  if (gang.unit && !fresh.unit) model_.gang_of.erase(gang.ref);
  if (!gang.unit && fresh.unit) model_.gang_of[fresh.ref] = index;
  List(index, false);
  if (!built_) {
    gang = std::move(fresh);
    return List(index, true);
  }
  if (!SameUnits(gang, fresh)) {
    entitlement_.Remove(model_, index);
    gang = std::move(fresh);
    entitlement_.Add(model_, index);
    stale_ = true;
    return List(index, true);
  }
  const bool rebound = !fresh.follows() && gang.unit_bound_pool() != fresh.unit_bound_pool();
  if (rebound) {
    // Where it starts in its charged pool, or leaves what isn't, the set and its charges stay as
    // they are.
    const bool follows = !gang.charged_as_bound &&
                         (fresh.unit_bound_pool() < 0 || fresh.unit_bound_pool() == gang.charge);
    stale_ = stale_ || (gang.entitled && !follows);
  }
  fresh.entitled = gang.entitled;
  fresh.guaranteed = gang.guaranteed;
  fresh.charged_as_bound = gang.charged_as_bound;
  fresh.charge = gang.charge;
  fresh.growth = gang.growth;
  gang = std::move(fresh);
  if (rebound) entitlement_.Rebind(model_, index);
  List(index, true);
}

// Whether claims may stop it follows from what it runs as and from S.
void ModelUpkeep::ListTakeable(int32_t b) {
  Gang& gang = model_.gangs[b];
  const bool takeable = gang.runs_beside_s();
  if (takeable == gang.takeable) return;
  gang.takeable = takeable;
  ListIn(&model_.takeable[gang.bound_pool], b, takeable);
}

void ModelUpkeep::List(int32_t b, bool there) {
  Gang& gang = model_.gangs[b];
  const auto list = [&](std::vector<int32_t>* gangs) { ListIn(gangs, b, there); };
  if (there) ListTakeable(b);
  if (!there && gang.takeable) {
    list(&model_.takeable[gang.bound_pool]);
    gang.takeable = false;
  }
  if (gang.wants_place() || gang.blocked || gang.held || gang.unreachable)
    list(&model_.needs_verdict);
  if (gang.follows()) list(&model_.followers);
  if (gang.current == nullptr) return;
  if (gang.stopping) list(&model_.stopping);
  if (gang.running() && gang.workers < gang.max_workers) list(&model_.growing);
  if (gang.running() && gang.wake_ns != kUnbounded) {
    if (there) {
      model_.wakes.emplace(gang.wake_ns, gang.ref);
    } else {
      model_.wakes.erase({gang.wake_ns, gang.ref});
    }
  }
  if (gang.bound_pool < 0) return;
  list(&model_.holding[gang.bound_pool]);
  if (gang.may_be_lost) return;
  const int64_t workers = there ? gang.workers : -gang.workers;
  for (int32_t n = gang.leaf; n >= 0; n = model_.parent[n]) {
    model_.use[n * model_.flavours.size() + model_.pools[gang.bound_pool].flavour] +=
        workers * gang.worker_milli;
    if (gang.worker_cpus_milli > 0)
      model_.use[n * model_.flavours.size() + model_.cpu] += workers * gang.worker_cpus_milli;
  }
}

bool ModelUpkeep::FollowJob(const State& state, uint64_t number) {
  const JobRow* job = state.FindJob(number);
  const auto at = std::lower_bound(model_.gangs.begin(), model_.gangs.end(), number,
                                   [](const Gang& gang, uint64_t n) { return gang.ref.job < n; });
  const size_t first = static_cast<size_t>(at - model_.gangs.begin());
  const bool known = at != model_.gangs.end() && at->ref.job == number;
  if (job == nullptr || job->finished()) {
    if (!known || !over_.insert(number).second) return true;
    for (size_t b = first; b < model_.gangs.size() && model_.gangs[b].ref.job == number; ++b) {
      Gang none;
      none.ref = model_.gangs[b].ref;
      Replace(b, std::move(none));
      ++over_gangs_;
    }
    return true;
  }
  if (over_.contains(number)) return false;  // of another history
  if (known && (first + job->tasks.size() > model_.gangs.size() ||
                model_.gangs[first + job->tasks.size() - 1].ref.job != number ||
                (first + job->tasks.size() < model_.gangs.size() &&
                 model_.gangs[first + job->tasks.size()].ref.job == number))) {
    return false;  // another job of this number
  }
  if (!known) {
    if (first != model_.gangs.size()) return false;  // numbers rise
    model_.gangs.resize(first + job->tasks.size());
    for (size_t t = 0; t < job->tasks.size(); ++t)
      model_.gangs[first + t].ref = {number, static_cast<int32_t>(t)};
  }
  ReadJob(state, number, first);
  return true;
}

// Takes the gangs of finished jobs out.
void ModelUpkeep::Compact() {
  std::vector<int32_t> to(model_.gangs.size(), -1);
  size_t kept = 0;
  auto over = over_.begin();
  for (size_t b = 0; b < model_.gangs.size(); ++b) {
    while (over != over_.end() && *over < model_.gangs[b].ref.job) ++over;
    if (over != over_.end() && *over == model_.gangs[b].ref.job) continue;
    to[b] = static_cast<int32_t>(kept);
    if (kept != b) model_.gangs[kept] = std::move(model_.gangs[b]);
    ++kept;
  }
  model_.gangs.resize(kept);
  for (auto& [ref, b] : model_.gang_of) b = to[b];
  const auto renumber = [&](std::vector<int32_t>* gangs) {
    for (int32_t& b : *gangs) b = to[b];
  };
  for (std::vector<int32_t>* gangs :
       {&model_.stopping, &model_.needs_verdict, &model_.growing, &model_.followers})
    renumber(gangs);
  for (std::vector<std::vector<int32_t>>* pools : {&model_.holding, &model_.takeable}) {
    for (std::vector<int32_t>& gangs : *pools) renumber(&gangs);
  }
  entitlement_.Renumber(to);
  over_.clear();
  over_gangs_ = 0;
}

std::vector<HostId> ModelUpkeep::FollowMassLoss(const State& state, int64_t now_ns,
                                                const SchedulingOptions& options) {
  std::vector<HostId> others;
  std::map<int32_t, bool> mass_loss;
  for (const HostId id : unreachable_) mass_loss[state.host(id).cluster] = false;
  for (auto& [cluster, lost] : mass_loss) lost = MassLoss(cluster, now_ns, options);
  if (mass_loss != mass_loss_) {
    for (const HostId id : unreachable_) {
      const int32_t cluster = state.host(id).cluster;
      const auto before = mass_loss_.find(cluster);
      if (before == mass_loss_.end() || before->second != mass_loss[cluster]) others.push_back(id);
    }
    mass_loss_ = std::move(mass_loss);
  }
  return others;
}

bool ModelUpkeep::Follow(const State& state, const Touched& touched, int64_t now_ns,
                         const SchedulingOptions& options) {
  if (over_gangs_ > kOverGangsKept && over_gangs_ * 5 > model_.gangs.size()) Compact();
  if (touched.host_order) ReadRanks(state);
  if (touched.history) ReadHistory(state);
  std::set<uint64_t> jobs(touched.jobs.begin(), touched.jobs.end());
  std::set<HostId> hosts(touched.hosts.begin(), touched.hosts.end());
  if (seen_->listens_since_ns() != state.listens_since_ns()) {
    for (const auto& [wake_ns, ref] : model_.wakes)
      jobs.insert(ref.job);  // what it took for silence was none
  }
  const auto again =
      [&](HostId id) {  // what may be lost or has to be stopped there may have changed
        hosts.insert(id);
        for (const AttemptRef& ref : state.host(id).attempts) jobs.insert(ref.job);
      };
  std::vector<int64_t> known_milli;
  for (const Pool& pool : model_.pools) known_milli.push_back(pool.known_milli);

  for (const HostId id : touched.hosts) {
    if (rank_.size() <= static_cast<size_t>(id) || rank_[id] < 0)
      return false;  // of another history
    FollowStrays(state, id, &jobs);
    const bool was = unreachable_.erase(id) > 0;
    const bool is = state.host(id).state == pb::HOST_UNREACHABLE;
    if (is) unreachable_.insert(id);
    const bool other =
        hosts_.size() > static_cast<size_t>(id) &&
        (hosts_[id].drained != state.host(id).drained || hosts_[id].state != state.host(id).state ||
         hosts_[id].state_since_ns != state.host(id).state_since_ns ||
         hosts_[id].usable != state.host(id).usable() ||
         hosts_[id].state_id != state.host(id).state_id ||
         hosts_[id].abilities != AbilitiesOf(state.host(id).inventory));
    if (was || is || other) again(id);
    const int32_t was_in = hosts_.size() > static_cast<size_t>(id) ? hosts_[id].gpu_pool : -1;
    if (!FollowHost(state, id) || !SharesStand(state, id, was_in)) return false;
  }
  for (const HostId id : FollowMassLoss(state, now_ns, options)) again(id);
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
  for (size_t c = 0; c < model_.pools.size(); ++c) {
    const int64_t before = known_milli[c], now = model_.pools[c].known_milli;
    if (before == now) continue;
    for (const Gang& gang : model_.gangs) {
      const int64_t needs = gang.min_workers * gang.worker_milli;
      if ((before >= needs) == (now >= needs)) continue;
      if (std::find(gang.pools.begin(), gang.pools.end(), static_cast<int32_t>(c)) !=
          gang.pools.end())
        jobs.insert(gang.ref.job);
    }
  }
  // Who runs on a job's devices goes on as long as that job does.
  for (const auto& [holder, hosted] : state.hosted()) {
    if (jobs.contains(holder)) jobs.insert(hosted.begin(), hosted.end());
  }
  for (const uint64_t number : jobs) {
    if (!FollowJob(state, number)) return false;
  }
  return true;
}

}  // namespace muster
