#include "scheduler/decide/decide.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "scheduler/decide/round.h"

namespace muster {

Round::Round(const State& state, int64_t now_ns, const SchedulingOptions& options, const Model& model)
    : s_(state), now_ns_(now_ns), options_(options), m_(model), now_(state), future_(state) {
  use_now_.assign(state.queues().nodes.size(), std::vector<int64_t>(m_.flavours.size(), 0));
  for (const Base& base : m_.bases) {
    if (base.current != nullptr && base.bound_cell >= 0 && !base.may_be_lost) AddUse(&use_now_, base, base.bound_cell, base.current->workers);
  }
  use_future_ = use_now_;
  for (const Base& base : m_.bases) {
    if (base.current == nullptr || base.current->state != pb::TASK_STOPPING) continue;
    if (base.may_be_lost) continue;
    future_.Release(*base.job, base.ref.task, *base.current);
    if (base.bound_cell >= 0) AddUse(&use_future_, base, base.bound_cell, -base.current->workers);
  }
}

void Round::AddUse(Use* use, const Base& base, int32_t cell, int64_t workers) {
  for (int32_t n = base.leaf; n >= 0; n = s_.queues().nodes[n].parent) {
    (*use)[n][m_.cells[cell].flavour] += workers * base.worker_milli;
  }
}

bool Round::WithinLimits(const Base& base, int32_t cell, int32_t workers, const Use& use) const {
  const int32_t f = m_.cells[cell].flavour;
  for (int32_t n = base.leaf; n >= 0; n = s_.queues().nodes[n].parent) {
    const auto it = s_.queues().nodes[n].spec.quota().find(m_.flavours[f]);
    if (it == s_.queues().nodes[n].spec.quota().end() || !it->second.has_limit_milli()) continue;
    if (use[n][f] + workers * base.worker_milli > it->second.limit_milli()) return false;
  }
  return true;
}

std::string Round::CellName(int32_t cell) const { return s_.clusters()[m_.cells[cell].cluster].name; }

// Devices that stopping attempts will give back are kept for it.
bool Round::Reserve(int32_t b, int32_t workers) {
  const Base& base = m_.bases[b];
  const std::optional<PlannedGang> gang = future_.Place(*base.spec, workers, m_.cells[base.charge]);
  if (!gang.has_value() || !WithinLimits(base, base.charge, workers, use_future_)) return false;
  future_.Take(*base.spec, *gang);
  now_.LimitTo(future_, *gang);
  AddUse(&use_future_, base, base.charge, workers);
  reserved_.insert(b);
  return true;
}

// Waiting units of S, those for whom others were stopped and those that were shrunk first, then in order of acceptance.
void Round::PlaceEntitled() {
  std::vector<std::tuple<bool, int32_t, int32_t>> order;
  for (size_t b = 0; b < m_.bases.size(); ++b) {
    const Base& base = m_.bases[b];
    if (!base.entitled) continue;
    const bool comes_back = base.current != nullptr && base.current->state == pb::TASK_STOPPING && base.current->next_workers > 0;
    if (!base.wants_place() && !comes_back && !base.may_be_lost) continue;
    const bool first = comes_back || base.row->claimed_attempt == base.row->next_attempt || base.row->wanted_workers > 0;
    order.emplace_back(!first, base.order, static_cast<int32_t>(b));
  }
  std::sort(order.begin(), order.end());
  for (const auto& [late, accepted, b] : order) {
    const Base& base = m_.bases[b];
    if (base.may_be_lost && !base.wants_place()) {
      if (base.leaf >= 0 && s_.queues().nodes[base.leaf].held) continue;   // nothing of a held queue starts, not even elsewhere
      if (stopped_.contains(b)) {                                          // by this plan, for another cause: it moves once that stands
        LookAt(now_ns_);
        continue;
      }
    }
    PlaceOne(b);
  }
}

void Round::PlaceOne(int32_t b) {
  const Base& base = m_.bases[b];
  const Cell& cell = m_.cells[base.charge];
  if (!base.wants_place() && !base.may_be_lost) {          // comes back smaller or larger once it has stopped
    Reserve(b, std::clamp(base.current->next_workers, base.min_workers, base.entitled_workers()));
    return;
  }
  if (base.wants_place() && base.row->backoff_until_ns > now_ns_) {
    LookAt(base.row->backoff_until_ns);
    Reserve(b, base.min_workers);
    return;
  }
  const pb::Resources& wants = base.spec->resources();
  const std::string shape = absl::StrCat(base.min_workers, "/", wants.gpus_milli(), "/", wants.cpus_milli(), "/", wants.memory_bytes(), "/",
                                         wants.disk_bytes(), "/", base.spec->topology().required());
  std::set<std::string>& failed = failed_[base.charge];
  if (!failed.contains("now " + shape)) {
    std::optional<PlannedGang> gang = now_.Place(*base.spec, base.min_workers, cell);
    if (!gang.has_value()) {
      failed.insert("now " + shape);
    } else if (WithinLimits(base, base.charge, base.min_workers, use_now_)) {
      // Of a gang with unreachable members the reachable ones stop first, now that the next attempt has a place.
      if (base.may_be_lost) {
        const bool all_over = std::all_of(base.current->parts.begin(), base.current->parts.end(), [&](const PartRow& part) {
          return part.over() || s_.host(part.host).state == pb::HOST_UNREACHABLE;
        });
        if (!all_over) {
          if (base.running()) Stop(base, pb::HOST_LOST, "a host of the gang can't be reached; it starts elsewhere", 0);
          future_.Take(*base.spec, *gang);
          now_.LimitTo(future_, *gang);
          reserved_.insert(b);
          return;
        }
      }
      now_.Take(*base.spec, *gang);
      future_.Take(*base.spec, *gang);
      AddUse(&use_now_, base, base.charge, base.min_workers);
      AddUse(&use_future_, base, base.charge, base.min_workers);
      placed_.push_back({b, base.charge, base.min_workers, std::move(*gang)});
      return;
    }
  }
  if (base.may_be_lost) return;                            // it keeps running there, or waits
  if (!failed.contains("future " + shape)) {
    if (Reserve(b, base.min_workers)) return;
    if (Reclaim(b)) return;
    if (!future_.Place(*base.spec, base.min_workers, cell).has_value()) failed.insert("future " + shape);
  } else {
    Reclaim(b);
  }
}

// Elastic gangs start at what fits: once every base has its place, the new ones take what S grants them and is free.
void Round::ExtendPlaced() {
  for (Placed& placed : placed_) {
    const Base& base = m_.bases[placed.base];
    int32_t most = base.entitled_workers();
    if (base.row->wanted_workers > 0) most = std::min(most, std::max(base.min_workers, base.row->wanted_workers));
    if (most <= placed.workers) continue;
    now_.GiveBack(*base.spec, placed.gang);
    future_.GiveBack(*base.spec, placed.gang);
    for (int32_t workers = most; workers > placed.workers; --workers) {
      if (!WithinLimits(base, placed.cell, workers - placed.workers, use_now_)) continue;
      std::optional<PlannedGang> gang = now_.Place(*base.spec, workers, m_.cells[placed.cell]);
      if (!gang.has_value()) continue;
      AddUse(&use_now_, base, placed.cell, workers - placed.workers);
      AddUse(&use_future_, base, placed.cell, workers - placed.workers);
      placed.workers = workers;
      placed.gang = std::move(*gang);
      break;
    }
    now_.Take(*base.spec, placed.gang);
    future_.Take(*base.spec, placed.gang);
  }
}

// Running elastic gangs restart larger: at most once per grow_interval, where what they gain exceeds what the restart costs.
void Round::Grow() {
  for (size_t b = 0; b < m_.bases.size(); ++b) {
    const Base& base = m_.bases[b];
    if (!base.running() || base.current->state != pb::TASK_RUNNING || stopped_.contains(static_cast<int32_t>(b)) || base.may_be_lost) continue;
    if (!base.entitled || base.charge != base.bound_cell) continue;
    const int32_t has = base.current->workers;
    const int32_t most = base.entitled_workers();
    if (most <= has) continue;
    const bool reachable = std::all_of(base.current->parts.begin(), base.current->parts.end(),
                                       [&](const PartRow& part) { return part.phase == pb::STARTED && s_.host(part.host).usable(); });
    if (!reachable) continue;
    const int64_t due_ns = std::max(base.row->last_resize_ns, base.current->start_ns) + options_.grow_interval_ns;
    FreeMap map = now_;
    map.Release(*base.job, base.ref.task, *base.current);
    for (int32_t workers = most; workers > has; --workers) {
      if (!WithinLimits(base, base.charge, workers - has, use_now_)) continue;
      const std::optional<PlannedGang> gang = map.Place(*base.spec, workers, m_.cells[base.charge]);
      if (!gang.has_value()) continue;
      if (due_ns > now_ns_) {
        LookAt(due_ns);
        break;
      }
      const int64_t end_ns = ExpectedEnd(base, now_ns_);
      const bool known = base.row->progress.attempt() == base.current->number && base.row->progress.total_steps() > 0;
      if (known && end_ns != 0 && static_cast<__int128>(end_ns - now_ns_) * (workers - has) / workers <= options_.restart_cost_ns) break;
      Stop(base, pb::RESIZE, absl::StrCat("grows from ", has, " to ", workers, " workers"), Grace(*base.spec), workers);
      future_.Take(*base.spec, *gang);
      now_.LimitTo(future_, *gang);
      AddUse(&use_future_, base, base.charge, workers);
      AddUse(&use_now_, base, base.charge, workers - has);
      break;
    }
  }
}

void Round::Lose(const Base& base, const std::string& outcome) {
  for (const PartRow& part : base.current->parts) {
    if (part.over()) continue;
    pb::AttemptLost* lost = lost_.emplace_back().mutable_attempt_lost();
    *lost->mutable_key() = KeyOf(*base.job, base.ref.task, base.current->number);
    lost->set_cluster(s_.clusters()[base.current->cluster].name);
    lost->set_host(s_.host(part.host).name);
    lost->set_detail(absl::StrCat(s_.HostName(part.host), " can't be reached; ", outcome));
  }
}

void Round::Emit(const Placed& placed) {
  const Base& base = m_.bases[placed.base];
  if (base.may_be_lost) Lose(base, "the task starts elsewhere");
  const std::string cluster = CellName(placed.cell);
  pb::Event event;
  pb::AttemptPlaced* e = event.mutable_attempt_placed();
  *e->mutable_key() = KeyOf(*base.job, base.ref.task, base.row->next_attempt);
  e->set_cluster(cluster);
  const std::string& flavour = m_.flavours[m_.cells[placed.cell].flavour];
  if (base.spec->resources().gpus_milli() > 0) e->set_flavour(flavour);
  int32_t rank = 0;
  for (const PlannedPart& part : placed.gang) {
    pb::Placement* placement = e->add_placements();
    placement->set_host(s_.host(part.host).name);
    placement->set_first_group_rank(rank);
    placement->set_workers(part.workers);
    for (const int32_t device : part.devices) placement->add_devices(device);
    for (const int64_t milli : part.device_milli) placement->add_device_milli(milli);
    rank += part.workers;
  }
  MUSTER_CHECK(rank == placed.workers);
  e->set_workers(placed.workers);
  e->set_at_once(placed.gang.size() == 1);
  for (const std::string& path : ResumeFrom(s_, *base.row, cluster)) e->add_resume_from(path);
  plan_.events.push_back(std::move(event));
}

Plan Round::Run() {
  StopWhatMust();
  PlaceEntitled();
  ExtendPlaced();
  Grow();
  Spill();
  // A cancelled or failed task's unreachable members are declared lost, where its rule allows that, so that it can end.
  for (const Base& base : m_.bases) {
    if (!base.ends || base.current == nullptr || base.current->state != pb::TASK_STOPPING || !base.may_be_lost) continue;
    const bool all_over = std::all_of(base.current->parts.begin(), base.current->parts.end(), [&](const PartRow& part) {
      return part.over() || s_.host(part.host).state == pb::HOST_UNREACHABLE;
    });
    if (!all_over) continue;
    Lose(base, "the job ends without it");
    std::erase_if(placed_, [&](const Placed& placed) { return m_.bases[placed.base].job == base.job; });
  }
  // The first task that is placed binds its job to a cluster: the others look again from there.
  std::map<const JobRow*, int32_t> bound;
  std::erase_if(placed_, [&](const Placed& placed) {
    const JobRow* job = m_.bases[placed.base].job;
    const int32_t cluster = m_.cells[placed.cell].cluster;
    const bool elsewhere = job->cluster.empty() && bound.emplace(job, cluster).first->second != cluster;
    if (elsewhere) LookAt(now_ns_);
    return elsewhere;
  });
  for (const Placed& placed : placed_) Emit(placed);
  std::vector<pb::Event> events = std::move(stops_);
  for (std::vector<pb::Event>* more : {&opened_, &lost_, &plan_.events}) {
    for (pb::Event& event : *more) events.push_back(std::move(event));
  }
  plan_.events = std::move(events);
  GiveVerdicts();
  for (size_t n = 1; n < m_.entitled.size(); ++n) {
    for (size_t f = 0; f < m_.flavours.size(); ++f) {
      if (m_.entitled[n][f] > 0) plan_.entitled_milli[{s_.queues().nodes[n].path, m_.flavours[f]}] = m_.entitled[n][f];
    }
  }
  return std::move(plan_);
}

}  // namespace muster
