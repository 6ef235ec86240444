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
  reserved_.resize(m_.cells.size());
  stopped_.assign(m_.bases.size(), false);
  served_.assign(m_.bases.size(), false);
  ends_.resize(m_.cells.size());
  EachOf(m_.bases, m_.told, [&](int32_t b) {
    const Base& base = m_.bases[b];
    if (base.wants_place()) (base.entitled ? entitled_ : outside_).push_back(b);
    if (base.entitled && base.may_be_lost && !base.ComesBack()) entitled_.push_back(b);
  });
  const auto insert = [](std::vector<int32_t>* bases, int32_t b) {
    bases->insert(std::lower_bound(bases->begin(), bases->end(), b), b);
  };
  for (const int32_t b : m_.stopping) {
    const Base& base = m_.bases[b];
    if (base.ComesBack()) insert(base.entitled ? &entitled_ : &outside_, b);
    if (base.bound_cell < 0 || base.may_be_lost || Unanswered(base)) continue;
    LookAt(AnswerDueNs(base));
    future_.Release(base.wants, *base.current);
    AddUse(&use_future_, base, base.bound_cell, -base.workers);
  }
}

void Round::AddUse(Use* use, const Base& base, int32_t cell, int64_t workers) const {
  for (int32_t n = base.leaf; n >= 0; n = m_.parent[n]) {
    UseAt(use, n, m_.cells[cell].flavour) += workers * base.worker_milli;
    if (base.worker_cpus_milli > 0) UseAt(use, n, m_.cpu) += workers * base.worker_cpus_milli;
  }
}

bool Round::WithinLimits(const Base& base, int32_t cell, int32_t workers, const Use& use) const {
  const int32_t f = m_.cells[cell].flavour;
  for (int32_t n = base.leaf; n >= 0; n = m_.parent[n]) {
    if (UseAt(use, n, f) + workers * base.worker_milli > QuotaOf(n, f).limit_milli) return false;
    if (base.worker_cpus_milli > 0 &&
        UseAt(use, n, m_.cpu) + workers * base.worker_cpus_milli > QuotaOf(n, m_.cpu).limit_milli)
      return false;
  }
  return true;
}

std::string Round::CellName(int32_t cell) const {
  return s_.clusters()[m_.cells[cell].cluster].name;
}

int64_t Round::LentBits(const Base& base, int32_t cell, int64_t end_ns) {
  uint64_t bits = 1;
  EachReservation(cell,
                  [&](const Kept& kept) { bits = 3 * bits + (Lends(kept, base, end_ns) ? 1 : 0); });
  return static_cast<int64_t>(bits);
}

std::optional<PlannedGang> Round::PlaceNow(int32_t b, int32_t cell, int32_t workers,
                                           int64_t end_ns) {
  const size_t mark = now_.Mark();
  BlockUnlent(&now_, cell, m_.bases[b], end_ns);
  std::optional<PlannedGang> gang =
      now_.Place(*m_.bases[b].spec, workers, m_.cells[cell], HostsToAvoid(*m_.bases[b].job));
  now_.UndoTo(mark);
  return gang;
}

// Of a gang with unreachable members the reachable ones stop first, now that the next attempt has a
// place.
void Round::Start(int32_t b, int32_t cell, int32_t workers, PlannedGang gang) {
  const Base& base = m_.bases[b];
  if (base.may_be_lost && !base.wants_place()) {
    if (!AllOver(*base.current)) {
      if (base.running())
        Stop(base, pb::HOST_LOST, "a host of the gang can't be reached; it starts elsewhere", 0);
      return Hold(b, cell, workers, std::move(gang));
    }
  }
  now_.Take(*base.spec, gang);
  future_.Take(*base.spec, gang);
  ChangeRests(base, cell, gang, EndIfStarted(base), 1);
  AddUse(&use_now_, base, cell, workers);
  AddUse(&use_future_, base, cell, workers);
  served_[b] = true;
  placed_.push_back({b, cell, workers, std::move(gang)});
}

// Keeps devices that are free or will be given back for it alone.
void Round::Hold(int32_t b, int32_t cell, int32_t workers, PlannedGang gang) {
  const Base& base = m_.bases[b];
  future_.Take(*base.spec, gang);
  now_.LimitTo(future_, gang);
  ChangeRests(base, cell, gang, 0, 1);
  AddUse(&use_future_, base, cell, workers);
  served_[b] = true;
  Kept& kept = kept_.emplace_back();
  kept.base = b;
  kept.cell = cell;
  kept.workers = workers;
  kept.gang = std::move(gang);
  kept.held = true;
}

// What was held for a unit of S stays its own, by attempt, until it starts or leaves S
// (SCHEDULING.md §2), or one of its hosts can't be reached (one that is silent is back soon, or
// unreachable), or doesn't answer a stop in time: then the unit claims anew. Each attempt that is
// stopped is late only once, so claims still come to an end.
void Round::KeepHeld() {
  std::vector<std::pair<int32_t, int32_t>> order;
  for (const int32_t b : entitled_) {
    const Base& base = m_.bases[b];
    if (!base.reserved || !base.row->reservation->held) continue;
    order.emplace_back(m_.order[b], b);
  }
  std::sort(order.begin(), order.end());
  std::vector<std::pair<int32_t, PlannedGang>> waiting;  // for devices that aren't free yet
  for (const auto& [accepted, b] : order) {
    const Base& base = m_.bases[b];
    const Reservation& held = *base.row->reservation;
    const Cell& cell = m_.cells[base.charge];
    if (held.attempt != base.row->next_attempt || held.cluster != cell.cluster || stopped_[b])
      continue;
    if (!held.flavour.empty() && held.flavour != m_.flavours[cell.flavour]) continue;
    if (!base.wants_place() && !base.may_be_lost && !base.ComesBack()) continue;
    if (!base.wants_place() && base.may_be_lost && InHeldQueue(base)) continue;
    if (Unanswered(base)) continue;  // it would keep others from its next place for nothing
    const int32_t workers = std::min(held.workers, base.entitled_workers());
    if (workers < base.min_workers) continue;
    PlannedGang gang =
        workers == held.workers ? held.parts : Shortened(*base.spec, held.parts, workers);
    // What a gang with lost members still has it gives up only for its next attempt: nobody else's
    // meanwhile.
    const size_t future_mark = future_.Mark(), mark = now_.Mark();
    const bool own = !base.wants_place() && base.may_be_lost;
    if (own) {
      future_.Release(base.wants, *base.current);
      now_.Release(base.wants, *base.current);
    }
    if (!future_.Fits(*base.spec, gang, /*silent_too=*/true) ||
        !WithinLimits(base, base.charge, workers, use_future_)) {
      future_.UndoTo(future_mark);
      now_.UndoTo(mark);
      continue;
    }
    const bool starts =
        (base.wants_place() ? base.backoff_until_ns <= now_ns_ : base.may_be_lost) &&
        now_.Fits(*base.spec, gang) && WithinLimits(base, base.charge, workers, use_now_);
    if (!starts || (own && !AllOver(*base.current))) now_.UndoTo(mark);
    if (starts) {
      if (own && !AllOver(*base.current) && base.running())
        future_.UndoTo(future_mark);  // Stop releases it
      Start(b, base.charge, workers, std::move(gang));
    } else {
      future_.Take(*base.spec, gang);
      if (own) CloseBeside(base, gang);
      AddUse(&use_future_, base, base.charge, workers);
      waiting.emplace_back(b, std::move(gang));
    }
  }
  StartElsewhere(&waiting);
}

// What waits for devices of its own starts on others as soon as there are any that are nobody's;
// else it goes on waiting.
void Round::StartElsewhere(std::vector<std::pair<int32_t, PlannedGang>>* held) {
  const auto workers_of = [](const PlannedGang& gang) {
    int32_t workers = 0;
    for (const HostSlice& part : gang) workers += part.workers;
    return workers;
  };
  std::vector<bool> elsewhere(held->size(), false);
  int tries = kStartsElsewherePerRound;
  for (size_t i = 0; i < held->size(); ++i) {
    const auto& [b, gang] = (*held)[i];
    const Base& base = m_.bases[b];
    const int32_t cell = base.charge;
    if (!base.wants_place() || base.backoff_until_ns > now_ns_ ||
        !WithinLimits(base, cell, base.min_workers, use_now_))
      continue;
    if (tries-- == 0) break;
    const size_t mark = now_.Mark();
    for (size_t other = 0; other < held->size(); ++other) {
      if (other != i && !elsewhere[other]) now_.LimitTo(future_, (*held)[other].second);
    }
    std::optional<PlannedGang> found =
        now_.Place(*base.spec, base.min_workers, m_.cells[cell], HostsToAvoid(*base.job));
    now_.UndoTo(mark);
    if (!found.has_value()) continue;
    elsewhere[i] = true;
    future_.GiveBack(*base.spec, gang);
    AddUse(&use_future_, base, cell, -workers_of(gang));
    Start(b, cell, base.min_workers, *std::move(found));
  }
  for (size_t i = 0; i < held->size(); ++i) {
    if (elsewhere[i]) continue;
    auto& [b, gang] = (*held)[i];
    const Base& base = m_.bases[b];
    const int32_t workers = workers_of(gang);
    future_.GiveBack(*base.spec, gang);
    AddUse(&use_future_, base, base.charge, -workers);
    Hold(b, base.charge, workers, std::move(gang));
  }
}

// Waiting units of S in order of acceptance.
void Round::PlaceEntitled() {
  std::vector<std::pair<int32_t, int32_t>> order;
  for (const int32_t b : entitled_) {
    if (!served_[b]) order.emplace_back(m_.order[b], b);
  }
  std::sort(order.begin(), order.end());
  const auto ask = [&](const Base& base, int64_t workers) {
    if (!base.wants_place()) return;
    Asked& asked = asked_[{base.charge, base.leaf, base.guaranteed}];
    asked.milli += base.worker_milli * workers;
    asked.cpus_milli += base.host_cpus_milli * workers;
  };
  for (const auto& [accepted, b] : order) ask(m_.bases[b], m_.bases[b].min_workers);
  for (const auto& [accepted, b] : order) {
    const Base& base = m_.bases[b];
    if (base.may_be_lost && !base.wants_place()) {
      if (InHeldQueue(base)) continue;  // nothing of a held queue starts, not even elsewhere
      if (stopped_[b]) {  // by this plan, for another cause: it moves once that stands
        LookAt(now_ns_);
        continue;
      }
    }
    PlaceOne(b);
    ask(base, -base.min_workers);
    if (!served_[b]) unserved_.push_back(b);
  }
}

void Round::PlaceOne(int32_t b) {
  const Base& base = m_.bases[b];
  const int32_t cell = base.charge;
  const auto from_future = [&](int32_t workers) {  // from what others are giving back already
    if (!WithinLimits(base, cell, workers, use_future_)) return false;
    const int64_t end_ns = EndIfStarted(base);
    const std::array<int64_t, 4> key{kFuture + kKinds * int64_t{workers}, cell, base.shape,
                                     LentBits(base, cell, end_ns)};
    if (failed_.contains(key)) return false;
    const size_t mark = future_.Mark();
    BlockUnlent(&future_, cell, base, end_ns);
    std::optional<PlannedGang> gang =
        future_.Place(*base.spec, workers, m_.cells[cell], HostsToAvoid(*base.job));
    future_.UndoTo(mark);
    if (!gang.has_value()) {
      failed_.insert(key);
      return false;
    }
    Hold(b, cell, workers, *std::move(gang));
    return true;
  };
  if (base.ComesBack() && !base.may_be_lost) {  // smaller or larger, once it has stopped
    if (Unanswered(base)) return;
    from_future(std::clamp(base.current->next_workers, base.min_workers, base.entitled_workers()));
    return;
  }
  if (base.may_be_lost && !base.wants_place() && StartWithSpares(b)) return;
  if (base.backoff_until_ns > now_ns_) {
    LookAt(base.backoff_until_ns);
    ReserveFrom(b, base.backoff_until_ns, /*drain=*/false);
    return;
  }
  if (WithinLimits(base, cell, base.min_workers, use_now_)) {
    const int64_t end_ns = EndIfStarted(base);
    const std::array<int64_t, 4> key{kNow, cell, base.shape, LentBits(base, cell, end_ns)};
    std::optional<PlannedGang> gang;
    if (!failed_.contains(key)) gang = PlaceNow(b, cell, base.min_workers, end_ns);
    if (gang.has_value()) return Start(b, cell, base.min_workers, *std::move(gang));
    failed_.insert(key);
  }
  if (from_future(base.min_workers)) return;
  const Claim claim = Reclaim(b, cell, base.min_workers, /*grows=*/false);
  if (claim == Claim::kStopsOthers || base.may_be_lost)
    return;  // what may be lost keeps running there, or waits
  if (Overdue(base)) {
    if (Consolidate(b, cell)) return;
    if (claim == Claim::kTooMany && Reclaim(b, cell, base.min_workers, /*grows=*/false,
                                            /*takes_all=*/true) == Claim::kStopsOthers)
      return;
  } else if (base.guaranteed) {
    LookAt(base.row->waiting_since_ns + options_.min_runtime_ns);
  }
  ReserveFrom(b, now_ns_, claim == Claim::kTooMany);
}

bool Round::AllOver(const AttemptRow& attempt) const {
  return std::all_of(attempt.parts.begin(), attempt.parts.end(), [&](const PartRow& part) {
    return part.over() || s_.host(part.host).state == pb::HOST_UNREACHABLE;
  });
}

bool Round::StartWithSpares(int32_t b) {
  const Base& base = m_.bases[b];
  const int32_t workers = std::min(base.workers, base.entitled_workers());
  if (base.current->parts.size() < 2 || base.charge != base.bound_cell ||
      workers < base.min_workers)
    return false;
  if (!WithinLimits(base, base.charge, workers, use_future_)) return false;
  std::optional<PlannedGang> gang = PlaceWithSpares(base, workers);
  if (!gang.has_value()) return false;
  // Its reachable members stop only for a place that is there: its own devices apart, nothing is
  // still to be given back (CONTRACTS 9).
  const size_t mark = now_.Mark();
  now_.Release(base.wants, *base.current);
  const bool there =
      now_.Fits(*base.spec, *gang) && WithinLimits(base, base.charge, workers, use_now_);
  const bool over = AllOver(*base.current);
  if (!there || !over) now_.UndoTo(mark);
  if (there && !over && base.running()) {
    Start(b, base.charge, workers, *std::move(gang));  // Stop releases it in future_
    return true;
  }
  future_.Release(base.wants, *base.current);
  if (there && over) {
    Start(b, base.charge, workers, *std::move(gang));
    return true;
  }
  const PlannedGang held = *gang;
  Hold(b, base.charge, workers, *std::move(gang));
  CloseBeside(base, held);
  return true;
}

// What it still has and will not need is free only once it has left: nothing of those hosts is
// anybody's until then.
void Round::CloseBeside(const Base& base, const PlannedGang& gang) {
  for (const PartRow& part : base.current->parts) {
    const HostSlice own{part.host, part.workers, part.devices, part.device_milli};
    if (std::find(gang.begin(), gang.end(), own) == gang.end()) future_.Close(part.host);
  }
}

// The other members stay where they are: what their hosts have cached is of use, and nobody else
// can take their devices meanwhile. Where the task has to be together and no spare is near, the
// gang's whole place is looked for anew, its own devices among what is free.
std::optional<PlannedGang> Round::PlaceWithSpares(const Base& base, int32_t workers) {
  const Cell& cell = m_.cells[base.charge];
  const size_t mark = future_.Mark();
  BlockUnlent(&future_, base.charge, base, EndIfStarted(base));
  future_.Release(base.wants, *base.current);
  PlannedGang stays;
  int32_t missing = 0;
  size_t at = 0;  // where the first missing part was
  for (const PartRow& part : base.current->parts) {
    HostSlice slice{part.host, part.workers, part.devices, part.device_milli};
    if (future_.Fits(*base.spec, {slice})) {
      future_.Take(*base.spec, {slice});
      stays.push_back(std::move(slice));
    } else {
      if (missing == 0) at = stays.size();
      missing += part.workers;
    }
  }
  std::optional<PlannedGang> gang;
  if (!stays.empty()) {
    const std::vector<HostId> avoid = HostsToAvoid(*base.job);
    const pb::TopologyLevel required = base.spec->topology().required();
    const bool anywhere = required == pb::TOPOLOGY_LEVEL_UNSPECIFIED || required >= pb::CLUSTER;
    if (missing > 0 && anywhere && workers == base.workers) {
      std::vector<HostId> others = avoid;
      for (const HostSlice& part : stays) others.push_back(part.host);
      std::sort(others.begin(), others.end());
      others.erase(std::unique(others.begin(), others.end()), others.end());
      std::optional<PlannedGang> spares = future_.Place(*base.spec, missing, cell, others);
      const auto apart = [&](const HostSlice& spare) {
        return std::none_of(stays.begin(), stays.end(),
                            [&](const HostSlice& part) { return part.host == spare.host; });
      };
      if (spares.has_value() && std::all_of(spares->begin(), spares->end(), apart)) {
        gang = stays;
        gang->insert(gang->begin() + static_cast<ptrdiff_t>(at), spares->begin(), spares->end());
      }
    }
    if (!gang.has_value()) {
      future_.GiveBack(*base.spec, stays);
      gang = future_.Place(*base.spec, workers, cell, avoid);
    }
  }
  future_.UndoTo(mark);
  return gang;
}

// Elastic gangs start at what fits: once every base has its place, the new ones take what S grants
// them and is free.
void Round::ExtendPlaced() {
  for (Placed& placed : placed_) {
    const Base& base = m_.bases[placed.base];
    int32_t most = base.entitled_workers();
    if (base.row->wanted_workers > 0)
      most = std::min(most, std::max(base.min_workers, base.row->wanted_workers));
    if (most <= placed.workers) continue;
    const int64_t end_ns = EndIfStarted(base);
    now_.GiveBack(*base.spec, placed.gang);
    future_.GiveBack(*base.spec, placed.gang);
    ChangeRests(base, placed.cell, placed.gang, end_ns, -1);
    for (int32_t workers = most; workers > placed.workers; --workers) {
      if (!WithinLimits(base, placed.cell, workers - placed.workers, use_now_)) continue;
      std::optional<PlannedGang> gang = PlaceNow(placed.base, placed.cell, workers, end_ns);
      if (!gang.has_value()) continue;
      AddUse(&use_now_, base, placed.cell, workers - placed.workers);
      AddUse(&use_future_, base, placed.cell, workers - placed.workers);
      placed.workers = workers;
      placed.gang = std::move(*gang);
      failed_.clear();  // it may have left where it was to be
      break;
    }
    now_.Take(*base.spec, placed.gang);
    future_.Take(*base.spec, placed.gang);
    ChangeRests(base, placed.cell, placed.gang, end_ns, 1);
  }
}

// Running elastic gangs restart larger: at most once per grow_interval, where what they gain
// exceeds what the restart costs.
void Round::Grow() {
  for (const int32_t b : m_.growing) {
    const Base& base = m_.bases[b];
    if (base.bound_cell < 0 || base.workers >= base.entitled_workers()) continue;
    if (base.charge != base.bound_cell || !base.may_resize || stopped_[b] || base.may_be_lost ||
        ending_.contains(base.job))
      continue;
    if (InHeldQueue(base)) continue;
    const int32_t has = base.workers;
    const int32_t most = base.entitled_workers();
    const int64_t due_ns = base.resize_ns + options_.grow_interval_ns;
    const int64_t end_ns = ExpectedEnd(base, now_ns_);
    const auto pays = [&](int32_t workers) {  // the gain is linear in workers
      return !base.knows_steps || end_ns == 0 ||
             static_cast<__int128>(end_ns - now_ns_) * (workers - has) / workers >
                 options_.restart_cost_ns;
    };
    if (!pays(most)) continue;
    if (due_ns > now_ns_) {
      LookAt(due_ns);
      continue;
    }
    bool grows = false;
    for (int32_t workers = most; workers > has && !grows && pays(workers); --workers) {
      if (!WithinLimits(base, base.charge, workers - has, use_now_)) continue;
      if (now_.FreeMilli(m_.cells[base.charge], base.gpus) < base.worker_milli * (workers - has))
        continue;
      const size_t mark = now_.Mark();
      BlockUnlent(&now_, base.charge, base, end_ns);
      now_.Release(base.wants, *base.current);
      std::optional<PlannedGang> gang =
          now_.Place(*base.spec, workers, m_.cells[base.charge], HostsToAvoid(*base.job));
      now_.UndoTo(mark);
      if (!gang.has_value()) continue;
      grows = true;
      Stop(base, pb::RESIZE, absl::StrCat("grows from ", has, " to ", workers, " workers"),
           Grace(*base.spec), workers);
      Hold(b, base.charge, workers, *std::move(gang));
      AddUse(&use_now_, base, base.charge, workers - has);
    }
    if (!grows) Reclaim(b, base.charge, most, /*grows=*/true);
  }
}

// Says what is kept for whom now where that differs from what State knows. An expected start that
// moves a little is no news. Jobs that this plan brings to their end lose what was kept for their
// tasks with it.
void Round::EmitReservations() {
  std::map<int32_t, const Kept*> kept_of;
  for (const Kept& kept : kept_) kept_of[kept.base] = &kept;
  for (const std::vector<Kept>& cell : reserved_) {
    for (const Kept& kept : cell) kept_of[kept.base] = &kept;
  }
  for (const Placed& placed : placed_) kept_of.erase(placed.base);
  for (const TaskRef& ref : s_.reserved_tasks()) {
    const auto found = m_.base_of.find(ref);
    if (found != m_.base_of.end() && (kept_of.contains(found->second) || served_[found->second]))
      continue;
    const JobRow& job = *s_.FindJob(ref.job);
    if (ending_.contains(&job)) continue;
    *plan_.events.emplace_back().mutable_reservation()->mutable_key() =
        KeyOf(job, ref.task, job.tasks[ref.task].next_attempt);
  }
  for (const auto& [b, kept] : kept_of) {
    const Base& base = m_.bases[b];
    if (ending_.contains(base.job)) continue;
    const Reservation* known = base.row->reservation.get();
    if (known != nullptr) {
      const int64_t moved_ns = std::abs(kept->start_ns - known->start_ns);
      const bool same_start =
          kept->start_ns == known->start_ns ||
          (kept->start_ns != 0 && known->start_ns > now_ns_ &&
           moved_ns <= std::max<int64_t>(10 * kSecond, (known->start_ns - now_ns_) / 16));
      if (known->held == kept->held && known->draining == kept->draining &&
          known->workers == kept->workers && same_start &&
          known->attempt == base.row->next_attempt &&
          known->cluster == m_.cells[kept->cell].cluster && known->parts == kept->gang) {
        continue;
      }
    }
    pb::ReservationChanged* e = plan_.events.emplace_back().mutable_reservation();
    *e->mutable_key() = KeyOf(*base.job, base.ref.task, base.row->next_attempt);
    const Cell& cell = m_.cells[kept->cell];
    e->set_cluster(CellName(kept->cell));
    if (base.gpus) e->set_flavour(m_.flavours[cell.flavour]);
    int32_t rank = 0;
    for (const HostSlice& part : kept->gang) {
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
  if (base.gpus) e->set_flavour(flavour);
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
    const JobRow* job = m_.bases[placed.base].job;
    const int32_t cluster = m_.cells[placed.cell].cluster;
    const bool elsewhere =
        job->cluster.empty() && bound.emplace(job, cluster).first->second != cluster;
    if (elsewhere) LookAt(now_ns_);
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
