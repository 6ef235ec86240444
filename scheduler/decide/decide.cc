#include "scheduler/decide/decide.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "scheduler/decide/round.h"

namespace muster {
namespace {

constexpr int32_t kReservationsPerRound = 64;
constexpr int32_t kSlotsPerRound = 256;
constexpr int kStartsElsewherePerRound = 32;

}  // namespace

Round::Round(const State& state, int64_t now_ns, const SchedulingOptions& options,
             const Model& model, FreeMap* now, FreeMap* future)
    : s_(state),
      now_ns_(now_ns),
      options_(options),
      m_(model),
      now_(*now),
      future_(*future),
      now_trial_(now),
      future_trial_(future),
      use_now_(model.use),
      use_future_(model.use),
      estimates_left_(options.estimates),
      reservations_left_(kReservationsPerRound),
      slots_left_(kSlotsPerRound) {
  reserved_.resize(m_.pools.size());
  stopped_.assign(m_.gangs.size(), false);
  served_.assign(m_.gangs.size(), false);
  ends_.resize(m_.pools.size());
  EachOf(m_.gangs, m_.needs_verdict, [&](int32_t b) {
    const Gang& gang = m_.gangs[b];
    if (gang.wants_place()) (gang.entitled ? entitled_ : outside_).push_back(b);
    if (gang.entitled && gang.may_be_lost && !gang.ComesBack()) entitled_.push_back(b);
  });
  const auto insert = [](std::vector<int32_t>* gangs, int32_t b) {
    gangs->insert(std::lower_bound(gangs->begin(), gangs->end(), b), b);
  };
  for (const int32_t b : m_.stopping) {
    const Gang& gang = m_.gangs[b];
    if (gang.ComesBack()) insert(gang.entitled ? &entitled_ : &outside_, b);
    if (gang.bound_pool < 0 || gang.may_be_lost || Unanswered(gang)) continue;
    WakeAt(AnswerDueNs(gang));
    future_.Release(gang.wants, *gang.current);
    AddUse(&use_future_, gang, gang.bound_pool, -gang.workers);
  }
}

void Round::AddUse(Use* use, const Gang& gang, int32_t pool, int64_t workers) const {
  for (int32_t n = gang.leaf; n >= 0; n = m_.parent[n]) {
    UseAt(use, n, m_.pools[pool].flavour) += workers * gang.worker_milli;
    if (gang.worker_cpus_milli > 0) UseAt(use, n, m_.cpu) += workers * gang.worker_cpus_milli;
  }
}

bool Round::WithinLimits(const Gang& gang, int32_t pool, int32_t workers, const Use& use) const {
  const int32_t f = m_.pools[pool].flavour;
  for (int32_t n = gang.leaf; n >= 0; n = m_.parent[n]) {
    if (UseAt(use, n, f) + workers * gang.worker_milli > QuotaOf(n, f).limit_milli) return false;
    if (gang.worker_cpus_milli > 0 &&
        UseAt(use, n, m_.cpu) + workers * gang.worker_cpus_milli > QuotaOf(n, m_.cpu).limit_milli)
      return false;
  }
  return true;
}

std::string Round::PoolName(int32_t pool) const {
  return s_.clusters()[m_.pools[pool].cluster].name;
}

int64_t Round::LentBits(const Gang& gang, int32_t pool, int64_t end_ns) {
  uint64_t bits = 1;
  EachReservation(pool,
                  [&](const Kept& kept) { bits = 3 * bits + (Lends(kept, gang, end_ns) ? 1 : 0); });
  return static_cast<int64_t>(bits);
}

std::optional<HostSlices> Round::PlaceNow(int32_t b, int32_t pool, int32_t workers,
                                          int64_t end_ns) {
  const size_t mark = now_.Mark();
  BlockUnlent(&now_, pool, m_.gangs[b], end_ns);
  std::optional<HostSlices> slices =
      now_.Place(*m_.gangs[b].spec, workers, m_.pools[pool], HostsToAvoid(*m_.gangs[b].job));
  now_.UndoTo(mark);
  return slices;
}

// Of a gang with unreachable members the reachable ones stop first, now that the next attempt has a
// place.
void Round::Start(int32_t b, int32_t pool, int32_t workers, HostSlices slices) {
  const Gang& gang = m_.gangs[b];
  if (gang.may_be_lost && !gang.wants_place()) {
    if (!AllOver(*gang.current)) {
      if (gang.running())
        Stop(gang, pb::HOST_LOST, "a host of the gang can't be reached; it starts elsewhere", 0);
      return Hold(b, pool, workers, std::move(slices));
    }
  }
  now_.Take(*gang.spec, slices);
  future_.Take(*gang.spec, slices);
  ChangeRests(gang, pool, slices, EndIfStarted(gang), 1);
  AddUse(&use_now_, gang, pool, workers);
  AddUse(&use_future_, gang, pool, workers);
  served_[b] = true;
  placed_.push_back({b, pool, workers, std::move(slices)});
}

// Keeps devices that are free or will be given back for it alone.
void Round::Hold(int32_t b, int32_t pool, int32_t workers, HostSlices slices) {
  const Gang& gang = m_.gangs[b];
  future_.Take(*gang.spec, slices);
  now_.LimitTo(future_, slices);
  ChangeRests(gang, pool, slices, 0, 1);
  AddUse(&use_future_, gang, pool, workers);
  served_[b] = true;
  Kept& kept = kept_.emplace_back();
  kept.gang = b;
  kept.pool = pool;
  kept.workers = workers;
  kept.slices = std::move(slices);
  kept.held = true;
}

// What was held for a unit of S stays its own, by attempt, until it starts or leaves S
// (SCHEDULING.md §2), or one of its hosts can't be reached (one that is silent is back soon, or
// unreachable), or doesn't answer a stop in time: then the unit claims anew. Each attempt that is
// stopped is late only once, so claims still come to an end.
void Round::KeepHeld() {
  std::vector<std::pair<int32_t, int32_t>> order;
  for (const int32_t b : entitled_) {
    const Gang& gang = m_.gangs[b];
    if (!gang.reserved || !gang.row->reservation->held) continue;
    order.emplace_back(m_.order[b], b);
  }
  std::sort(order.begin(), order.end());
  std::vector<std::pair<int32_t, HostSlices>> waiting;  // for devices that aren't free yet
  for (const auto& [accepted, b] : order) {
    const Gang& gang = m_.gangs[b];
    const Reservation& held = *gang.row->reservation;
    const Pool& pool = m_.pools[gang.charge];
    if (held.attempt != gang.row->next_attempt || held.cluster != pool.cluster || stopped_[b])
      continue;
    if (!held.flavour.empty() && held.flavour != m_.flavours[pool.flavour]) continue;
    if (!gang.wants_place() && !gang.may_be_lost && !gang.ComesBack()) continue;
    if (!gang.wants_place() && gang.may_be_lost && InHeldQueue(gang)) continue;
    if (Unanswered(gang)) continue;  // it would keep others from its next place for nothing
    const int32_t workers = std::min(held.workers, gang.entitled_workers());
    if (workers < gang.min_workers) continue;
    HostSlices slices =
        workers == held.workers ? held.parts : Shortened(*gang.spec, held.parts, workers);
    // What a gang with lost members still has it gives up only for its next attempt: nobody else's
    // meanwhile.
    const size_t future_mark = future_.Mark(), mark = now_.Mark();
    const bool own = !gang.wants_place() && gang.may_be_lost;
    if (own) {
      future_.Release(gang.wants, *gang.current);
      now_.Release(gang.wants, *gang.current);
    }
    if (!future_.Fits(*gang.spec, slices, /*silent_too=*/true) ||
        !WithinLimits(gang, gang.charge, workers, use_future_)) {
      future_.UndoTo(future_mark);
      now_.UndoTo(mark);
      continue;
    }
    const bool starts =
        (gang.wants_place() ? gang.backoff_until_ns <= now_ns_ : gang.may_be_lost) &&
        now_.Fits(*gang.spec, slices) && WithinLimits(gang, gang.charge, workers, use_now_);
    if (!starts || (own && !AllOver(*gang.current))) now_.UndoTo(mark);
    if (starts) {
      if (own && !AllOver(*gang.current) && gang.running())
        future_.UndoTo(future_mark);  // Stop releases it
      Start(b, gang.charge, workers, std::move(slices));
    } else {
      future_.Take(*gang.spec, slices);
      if (own) CloseBeside(gang, slices);
      AddUse(&use_future_, gang, gang.charge, workers);
      waiting.emplace_back(b, std::move(slices));
    }
  }
  StartElsewhere(&waiting);
}

// What waits for devices of its own starts on others as soon as there are any that are nobody's;
// else it goes on waiting.
void Round::StartElsewhere(std::vector<std::pair<int32_t, HostSlices>>* held) {
  const auto workers_of = [](const HostSlices& slices) {
    int32_t workers = 0;
    for (const HostSlice& part : slices) workers += part.workers;
    return workers;
  };
  std::vector<bool> elsewhere(held->size(), false);
  int tries = kStartsElsewherePerRound;
  for (size_t i = 0; i < held->size(); ++i) {
    const auto& [b, slices] = (*held)[i];
    const Gang& gang = m_.gangs[b];
    const int32_t pool = gang.charge;
    if (!gang.wants_place() || gang.backoff_until_ns > now_ns_ ||
        !WithinLimits(gang, pool, gang.min_workers, use_now_))
      continue;
    if (tries-- == 0) break;
    const size_t mark = now_.Mark();
    for (size_t other = 0; other < held->size(); ++other) {
      if (other != i && !elsewhere[other]) now_.LimitTo(future_, (*held)[other].second);
    }
    std::optional<HostSlices> found =
        now_.Place(*gang.spec, gang.min_workers, m_.pools[pool], HostsToAvoid(*gang.job));
    now_.UndoTo(mark);
    if (!found.has_value()) continue;
    elsewhere[i] = true;
    future_.GiveBack(*gang.spec, slices);
    AddUse(&use_future_, gang, pool, -workers_of(slices));
    Start(b, pool, gang.min_workers, *std::move(found));
  }
  for (size_t i = 0; i < held->size(); ++i) {
    if (elsewhere[i]) continue;
    auto& [b, slices] = (*held)[i];
    const Gang& gang = m_.gangs[b];
    const int32_t workers = workers_of(slices);
    future_.GiveBack(*gang.spec, slices);
    AddUse(&use_future_, gang, gang.charge, -workers);
    Hold(b, gang.charge, workers, std::move(slices));
  }
}

// Waiting units of S in order of acceptance.
void Round::PlaceEntitled() {
  std::vector<std::pair<int32_t, int32_t>> order;
  for (const int32_t b : entitled_) {
    if (!served_[b]) order.emplace_back(m_.order[b], b);
  }
  std::sort(order.begin(), order.end());
  const auto ask = [&](const Gang& gang, int64_t workers) {
    if (!gang.wants_place()) return;
    Asked& asked = asked_[{gang.charge, gang.leaf, gang.guaranteed}];
    asked.milli += gang.worker_milli * workers;
    asked.cpus_milli += gang.host_cpus_milli * workers;
  };
  for (const auto& [accepted, b] : order) ask(m_.gangs[b], m_.gangs[b].min_workers);
  for (const auto& [accepted, b] : order) {
    const Gang& gang = m_.gangs[b];
    if (gang.may_be_lost && !gang.wants_place()) {
      if (InHeldQueue(gang)) continue;  // nothing of a held queue starts, not even elsewhere
      if (stopped_[b]) {  // by this plan, for another cause: it moves once that stands
        WakeAt(now_ns_);
        continue;
      }
    }
    PlaceOne(b);
    ask(gang, -gang.min_workers);
    if (!served_[b]) unserved_.push_back(b);
  }
}

void Round::PlaceOne(int32_t b) {
  const Gang& gang = m_.gangs[b];
  const int32_t pool = gang.charge;
  const auto from_future = [&](int32_t workers) {  // from what others are giving back already
    if (!WithinLimits(gang, pool, workers, use_future_)) return false;
    const int64_t end_ns = EndIfStarted(gang);
    const std::array<int64_t, 4> key{kFuture + kKinds * int64_t{workers}, pool, gang.shape,
                                     LentBits(gang, pool, end_ns)};
    if (failed_.contains(key)) return false;
    const size_t mark = future_.Mark();
    BlockUnlent(&future_, pool, gang, end_ns);
    std::optional<HostSlices> slices =
        future_.Place(*gang.spec, workers, m_.pools[pool], HostsToAvoid(*gang.job));
    future_.UndoTo(mark);
    if (!slices.has_value()) {
      failed_.insert(key);
      return false;
    }
    Hold(b, pool, workers, *std::move(slices));
    return true;
  };
  if (gang.ComesBack() && !gang.may_be_lost) {  // smaller or larger, once it has stopped
    if (Unanswered(gang)) return;
    from_future(std::clamp(gang.current->next_workers, gang.min_workers, gang.entitled_workers()));
    return;
  }
  if (gang.may_be_lost && !gang.wants_place() && StartWithSpares(b)) return;
  if (gang.backoff_until_ns > now_ns_) {
    WakeAt(gang.backoff_until_ns);
    ReserveFrom(b, gang.backoff_until_ns, /*drain=*/false);
    return;
  }
  if (WithinLimits(gang, pool, gang.min_workers, use_now_)) {
    const int64_t end_ns = EndIfStarted(gang);
    const std::array<int64_t, 4> key{kNow, pool, gang.shape, LentBits(gang, pool, end_ns)};
    std::optional<HostSlices> slices;
    if (!failed_.contains(key)) slices = PlaceNow(b, pool, gang.min_workers, end_ns);
    if (slices.has_value()) return Start(b, pool, gang.min_workers, *std::move(slices));
    failed_.insert(key);
  }
  if (from_future(gang.min_workers)) return;
  const Claim claim = Reclaim(b, pool, gang.min_workers, /*grows=*/false);
  if (claim == Claim::kStopsOthers || gang.may_be_lost)
    return;  // what may be lost keeps running there, or waits
  if (Overdue(gang)) {
    if (Consolidate(b, pool)) return;
    if (claim == Claim::kTooMany && Reclaim(b, pool, gang.min_workers, /*grows=*/false,
                                            /*takes_all=*/true) == Claim::kStopsOthers)
      return;
  } else if (gang.guaranteed) {
    WakeAt(gang.row->waiting_since_ns + options_.min_runtime_ns);
  }
  ReserveFrom(b, now_ns_, claim == Claim::kTooMany);
}

bool Round::AllOver(const AttemptRow& attempt) const {
  return std::all_of(attempt.parts.begin(), attempt.parts.end(), [&](const PartRow& part) {
    return part.over() || s_.host(part.host).state == pb::HOST_UNREACHABLE;
  });
}

bool Round::StartWithSpares(int32_t b) {
  const Gang& gang = m_.gangs[b];
  const int32_t workers = std::min(gang.workers, gang.entitled_workers());
  if (gang.current->parts.size() < 2 || gang.charge != gang.bound_pool ||
      workers < gang.min_workers)
    return false;
  if (!WithinLimits(gang, gang.charge, workers, use_future_)) return false;
  std::optional<HostSlices> slices = PlaceWithSpares(gang, workers);
  if (!slices.has_value()) return false;
  // Its reachable members stop only for a place that is there: its own devices apart, nothing is
  // still to be given back (CONTRACTS 9).
  const size_t mark = now_.Mark();
  now_.Release(gang.wants, *gang.current);
  const bool there =
      now_.Fits(*gang.spec, *slices) && WithinLimits(gang, gang.charge, workers, use_now_);
  const bool over = AllOver(*gang.current);
  if (!there || !over) now_.UndoTo(mark);
  if (there && !over && gang.running()) {
    Start(b, gang.charge, workers, *std::move(slices));  // Stop releases it in future_
    return true;
  }
  future_.Release(gang.wants, *gang.current);
  if (there && over) {
    Start(b, gang.charge, workers, *std::move(slices));
    return true;
  }
  const HostSlices held = *slices;
  Hold(b, gang.charge, workers, *std::move(slices));
  CloseBeside(gang, held);
  return true;
}

// What it still has and will not need is free only once it has left: nothing of those hosts is
// anybody's until then.
void Round::CloseBeside(const Gang& gang, const HostSlices& slices) {
  for (const PartRow& part : gang.current->parts) {
    const HostSlice own{part.host, part.workers, part.devices, part.device_milli};
    if (std::find(slices.begin(), slices.end(), own) == slices.end()) future_.Close(part.host);
  }
}

// The other members stay where they are: what their hosts have cached is of use, and nobody else
// can take their devices meanwhile. Where the task has to be together and no spare is near, the
// gang's whole place is looked for anew, its own devices among what is free.
std::optional<HostSlices> Round::PlaceWithSpares(const Gang& gang, int32_t workers) {
  const Pool& pool = m_.pools[gang.charge];
  const size_t mark = future_.Mark();
  BlockUnlent(&future_, gang.charge, gang, EndIfStarted(gang));
  future_.Release(gang.wants, *gang.current);
  HostSlices stays;
  int32_t missing = 0;
  size_t at = 0;  // where the first missing part was
  for (const PartRow& part : gang.current->parts) {
    HostSlice slice{part.host, part.workers, part.devices, part.device_milli};
    if (future_.Fits(*gang.spec, {slice})) {
      future_.Take(*gang.spec, {slice});
      stays.push_back(std::move(slice));
    } else {
      if (missing == 0) at = stays.size();
      missing += part.workers;
    }
  }
  std::optional<HostSlices> slices;
  if (!stays.empty()) {
    const std::vector<HostId> avoid = HostsToAvoid(*gang.job);
    const pb::TopologyLevel required = gang.spec->topology().required();
    const bool anywhere = required == pb::TOPOLOGY_LEVEL_UNSPECIFIED || required >= pb::CLUSTER;
    if (missing > 0 && anywhere && workers == gang.workers) {
      std::vector<HostId> others = avoid;
      for (const HostSlice& part : stays) others.push_back(part.host);
      std::sort(others.begin(), others.end());
      others.erase(std::unique(others.begin(), others.end()), others.end());
      std::optional<HostSlices> spares = future_.Place(*gang.spec, missing, pool, others);
      const auto apart = [&](const HostSlice& spare) {
        return std::none_of(stays.begin(), stays.end(),
                            [&](const HostSlice& part) { return part.host == spare.host; });
      };
      if (spares.has_value() && std::all_of(spares->begin(), spares->end(), apart)) {
        slices = stays;
        slices->insert(slices->begin() + static_cast<ptrdiff_t>(at), spares->begin(),
                       spares->end());
      }
    }
    if (!slices.has_value()) {
      future_.GiveBack(*gang.spec, stays);
      slices = future_.Place(*gang.spec, workers, pool, avoid);
    }
  }
  future_.UndoTo(mark);
  return slices;
}

// Elastic gangs start at what fits: once every gang has its place, the new ones take what S grants
// them and is free.
void Round::ExtendPlaced() {
  for (Placed& placed : placed_) {
    const Gang& gang = m_.gangs[placed.gang];
    int32_t most = gang.entitled_workers();
    if (gang.row->wanted_workers > 0)
      most = std::min(most, std::max(gang.min_workers, gang.row->wanted_workers));
    if (most <= placed.workers) continue;
    const int64_t end_ns = EndIfStarted(gang);
    now_.GiveBack(*gang.spec, placed.slices);
    future_.GiveBack(*gang.spec, placed.slices);
    ChangeRests(gang, placed.pool, placed.slices, end_ns, -1);
    for (int32_t workers = most; workers > placed.workers; --workers) {
      if (!WithinLimits(gang, placed.pool, workers - placed.workers, use_now_)) continue;
      std::optional<HostSlices> slices = PlaceNow(placed.gang, placed.pool, workers, end_ns);
      if (!slices.has_value()) continue;
      AddUse(&use_now_, gang, placed.pool, workers - placed.workers);
      AddUse(&use_future_, gang, placed.pool, workers - placed.workers);
      placed.workers = workers;
      placed.slices = std::move(*slices);
      failed_.clear();  // it may have left where it was to be
      break;
    }
    now_.Take(*gang.spec, placed.slices);
    future_.Take(*gang.spec, placed.slices);
    ChangeRests(gang, placed.pool, placed.slices, end_ns, 1);
  }
}

// Running elastic gangs restart larger: at most once per grow_interval, where what they gain
// exceeds what the restart costs.
void Round::Grow() {
  for (const int32_t b : m_.growing) {
    const Gang& gang = m_.gangs[b];
    if (gang.bound_pool < 0 || gang.workers >= gang.entitled_workers()) continue;
    if (gang.charge != gang.bound_pool || !gang.may_resize || stopped_[b] || gang.may_be_lost ||
        ending_.contains(gang.job))
      continue;
    if (InHeldQueue(gang)) continue;
    const int32_t has = gang.workers;
    const int32_t most = gang.entitled_workers();
    const int64_t due_ns = gang.resize_ns + options_.grow_interval_ns;
    const int64_t end_ns = ExpectedEnd(gang, now_ns_);
    const auto pays = [&](int32_t workers) {  // the gain is linear in workers
      return !gang.knows_steps || end_ns == 0 ||
             static_cast<__int128>(end_ns - now_ns_) * (workers - has) / workers >
                 options_.restart_cost_ns;
    };
    if (!pays(most)) continue;
    if (due_ns > now_ns_) {
      WakeAt(due_ns);
      continue;
    }
    bool grows = false;
    for (int32_t workers = most; workers > has && !grows && pays(workers); --workers) {
      if (!WithinLimits(gang, gang.charge, workers - has, use_now_)) continue;
      if (now_.FreeMilli(m_.pools[gang.charge], gang.gpus) < gang.worker_milli * (workers - has))
        continue;
      const size_t mark = now_.Mark();
      BlockUnlent(&now_, gang.charge, gang, end_ns);
      now_.Release(gang.wants, *gang.current);
      std::optional<HostSlices> slices =
          now_.Place(*gang.spec, workers, m_.pools[gang.charge], HostsToAvoid(*gang.job));
      now_.UndoTo(mark);
      if (!slices.has_value()) continue;
      grows = true;
      Stop(gang, pb::RESIZE, absl::StrCat("grows from ", has, " to ", workers, " workers"),
           Grace(*gang.spec), workers);
      Hold(b, gang.charge, workers, *std::move(slices));
      AddUse(&use_now_, gang, gang.charge, workers - has);
    }
    if (!grows) Reclaim(b, gang.charge, most, /*grows=*/true);
  }
}

// Says what is kept for whom now where that differs from what State knows. An expected start that
// moves a little is no news. Jobs that this plan brings to their end lose what was kept for their
// tasks with it.
void Round::EmitReservations() {
  std::map<int32_t, const Kept*> kept_of;
  for (const Kept& kept : kept_) kept_of[kept.gang] = &kept;
  for (const std::vector<Kept>& pool : reserved_) {
    for (const Kept& kept : pool) kept_of[kept.gang] = &kept;
  }
  for (const Placed& placed : placed_) kept_of.erase(placed.gang);
  for (const TaskRef& ref : s_.reserved_tasks()) {
    const auto found = m_.gang_of.find(ref);
    if (found != m_.gang_of.end() && (kept_of.contains(found->second) || served_[found->second]))
      continue;
    const JobRow& job = *s_.FindJob(ref.job);
    if (ending_.contains(&job)) continue;
    *plan_.events.emplace_back().mutable_reservation()->mutable_key() =
        KeyOf(job, ref.task, job.tasks[ref.task].next_attempt);
  }
  for (const auto& [b, kept] : kept_of) {
    const Gang& gang = m_.gangs[b];
    if (ending_.contains(gang.job)) continue;
    const Reservation* known = gang.row->reservation.get();
    if (known != nullptr) {
      const int64_t moved_ns = std::abs(kept->start_ns - known->start_ns);
      const bool same_start =
          kept->start_ns == known->start_ns ||
          (kept->start_ns != 0 && known->start_ns > now_ns_ &&
           moved_ns <= std::max<int64_t>(10 * kSecond, (known->start_ns - now_ns_) / 16));
      if (known->held == kept->held && known->draining == kept->draining &&
          known->workers == kept->workers && same_start &&
          known->attempt == gang.row->next_attempt &&
          known->cluster == m_.pools[kept->pool].cluster && known->parts == kept->slices) {
        continue;
      }
    }
    pb::ReservationChanged* e = plan_.events.emplace_back().mutable_reservation();
    *e->mutable_key() = KeyOf(*gang.job, gang.ref.task, gang.row->next_attempt);
    const Pool& pool = m_.pools[kept->pool];
    e->set_cluster(PoolName(kept->pool));
    if (gang.gpus) e->set_flavour(m_.flavours[pool.flavour]);
    int32_t rank = 0;
    for (const HostSlice& part : kept->slices) {
      pb::Placement* placement = e->add_placements();
      placement->set_host(s_.host(part.host).name);
      placement->set_first_group_rank(rank);
      placement->set_workers(part.workers);
      placement->mutable_devices()->Assign(part.devices.begin(), part.devices.end());
      placement->mutable_device_milli()->Assign(part.device_milli.begin(), part.device_milli.end());
      rank += part.workers;
    }
    e->set_workers(kept->workers);
    e->set_held(kept->held);
    e->set_start_ns(kept->start_ns == 0 ? 0 : std::max(kept->start_ns, now_ns_));
    e->set_draining(kept->draining);
  }
}

void Round::Lose(const Gang& gang, const std::string& outcome) {
  for (const PartRow& part : gang.current->parts) {
    if (part.over()) continue;
    pb::AttemptLost* lost = lost_.emplace_back().mutable_attempt_lost();
    *lost->mutable_key() = KeyOf(*gang.job, gang.ref.task, gang.current->number);
    lost->set_cluster(s_.clusters()[gang.current->cluster].name);
    lost->set_host(s_.host(part.host).name);
    lost->set_detail(absl::StrCat(s_.HostName(part.host), " can't be reached; ", outcome));
  }
}

void Round::Emit(const Placed& placed) {
  const Gang& gang = m_.gangs[placed.gang];
  if (gang.may_be_lost) Lose(gang, "the task starts elsewhere");
  const std::string cluster = PoolName(placed.pool);
  pb::Event event;
  pb::AttemptPlaced* e = event.mutable_attempt_placed();
  *e->mutable_key() = KeyOf(*gang.job, gang.ref.task, gang.row->next_attempt);
  e->set_cluster(cluster);
  const std::string& flavour = m_.flavours[m_.pools[placed.pool].flavour];
  if (gang.gpus) e->set_flavour(flavour);
  int32_t rank = 0;
  for (const HostSlice& part : placed.slices) {
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
  e->set_at_once(placed.slices.size() == 1);
  for (const std::string& path : ResumeFrom(s_, *gang.row, cluster)) e->add_resume_from(path);
  plan_.events.push_back(std::move(event));
}

Plan Round::Run() {
  StopWhatMust();
  EndWhatIsOver();
  KeepHeld();
  PlaceEntitled();
  ExtendPlaced();
  Grow();
  Backfill();
  Spill();
  // The first task that is placed binds its job to a cluster: the others look again from there.
  std::map<const JobRow*, int32_t> bound;
  std::erase_if(placed_, [&](const Placed& placed) {
    const JobRow* job = m_.gangs[placed.gang].job;
    const int32_t cluster = m_.pools[placed.pool].cluster;
    const bool elsewhere =
        job->cluster.empty() && bound.emplace(job, cluster).first->second != cluster;
    if (elsewhere) WakeAt(now_ns_);
    return elsewhere;
  });
  // What was opened for them may be out of its reach.
  std::erase_if(opened_, [&](const pb::Event& event) {
    return std::any_of(bound.begin(), bound.end(), [&](const auto& one) {
      return one.first->uid == event.cluster_opened().job_uid();
    });
  });
  for (const Placed& placed : placed_) Emit(placed);
  EmitReservations();
  std::vector<pb::Event> events = std::move(stops_);
  for (std::vector<pb::Event>* more : {&lost_, &plan_.events, &opened_}) {
    for (pb::Event& event : *more) events.push_back(std::move(event));
  }
  plan_.events = std::move(events);
  GiveVerdicts();
  for (size_t n = 1; n < m_.entitled.size(); ++n) {
    for (size_t f = 0; f < m_.flavours.size(); ++f) {
      if (m_.entitled[n][f] > 0)
        plan_.entitled_milli[{s_.queues().nodes[n].path, m_.flavours[f]}] = m_.entitled[n][f];
    }
  }
  return std::move(plan_);
}

}  // namespace muster
