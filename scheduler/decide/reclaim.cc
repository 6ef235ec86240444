// Reclaim (SCHEDULING.md §2): starts an entitled unit by stopping units that are not entitled, victims and placement together.
#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "scheduler/decide/round.h"

namespace muster {
namespace {

struct Victim {
  int32_t base = 0;
  bool whole = false;            // false: its growth workers beyond `keeps`
  int32_t keeps = 0;             // workers it goes on with
  int64_t lost_milli_ns = 0;     // devices' time since its last checkpoint, in thousandths
  int64_t start_ns = 0;
};

}  // namespace

// True if stops were planned and the claimant's place is reserved; else nothing changed.
bool Round::Reclaim(int32_t b) {
  const Base& claimant = m_.bases[b];
  const int32_t cell = claimant.charge;
  const int64_t demand = claimant.worker_milli * claimant.min_workers;
  std::vector<Victim> victims;
  for (size_t v = 0; v < m_.bases.size(); ++v) {
    const Base& base = m_.bases[v];
    if (static_cast<int32_t>(v) == b || !base.running() || base.bound_cell != cell || stopped_.contains(static_cast<int32_t>(v))) continue;
    const bool mover = base.entitled && base.charge != cell;
    const bool out = !base.entitled;
    const int32_t keeps = base.entitled_workers();
    const bool shrinks = base.entitled && !mover && base.current->workers > keeps;
    if (!mover && !out && !shrinks) continue;
    if (!mover && base.leaf == claimant.leaf && base.job->spec->priority() >= claimant.job->spec->priority() && out) continue;
    const int64_t start_ns = base.current->start_ns != 0 ? base.current->start_ns : base.current->place_ns;
    const int64_t own_ns = base.leaf < 0 ? 0 : s_.queues().nodes[base.leaf].min_runtime_ns;
    const int64_t protected_until_ns = start_ns + (own_ns != 0 ? own_ns : options_.min_runtime_ns);
    if (!claimant.guaranteed && protected_until_ns > now_ns_) {
      LookAt(protected_until_ns);
      continue;
    }
    const int64_t since_ns = std::max(start_ns, base.current->last_checkpoint_ns);
    const int64_t lost = base.worker_milli * base.current->workers;
    victims.push_back({static_cast<int32_t>(v), !shrinks, keeps,
                       static_cast<int64_t>(std::min<__int128>(static_cast<__int128>(lost) * std::max<int64_t>(0, now_ns_ - since_ns), kUnbounded)),
                       start_ns});
  }
  std::sort(victims.begin(), victims.end(), [](const Victim& x, const Victim& y) {
    return std::make_tuple(x.whole, x.lost_milli_ns, -x.start_ns, x.base) < std::make_tuple(y.whole, y.lost_milli_ns, -y.start_ns, y.base);
  });

  // Add victims until limits and placement hold. A shrunk gang keeps its place: the claimant and it must both fit.
  std::vector<Victim> taken;
  const auto plan = [&](const std::vector<Victim>& chosen) -> std::optional<PlannedGang> {
    FreeMap map = future_;
    Use use = use_future_;
    for (const Victim& v : chosen) {
      const Base& base = m_.bases[v.base];
      map.Release(*base.job, base.ref.task, *base.current);
      AddUse(&use, base, cell, -base.current->workers);
      if (!v.whole) AddUse(&use, base, cell, v.keeps);
    }
    if (!WithinLimits(claimant, cell, claimant.min_workers, use)) return std::nullopt;
    std::optional<PlannedGang> gang = map.Place(*claimant.spec, claimant.min_workers, m_.cells[cell]);
    if (!gang.has_value()) return std::nullopt;
    map.Take(*claimant.spec, *gang);
    for (const Victim& v : chosen) {
      if (v.whole) continue;
      const Base& base = m_.bases[v.base];
      const std::optional<PlannedGang> back = map.Place(*base.spec, v.keeps, m_.cells[cell]);
      if (!back.has_value()) return std::nullopt;
      map.Take(*base.spec, *back);
    }
    return gang;
  };
  std::optional<PlannedGang> gang;
  const bool gpus = claimant.spec->resources().gpus_milli() > 0;
  int64_t could_be_free = future_.FreeMilli(m_.cells[cell], gpus);
  for (const Victim& victim : victims) {
    taken.push_back(victim);
    const Base& base = m_.bases[victim.base];
    could_be_free += base.worker_milli * (base.current->workers - (victim.whole ? 0 : victim.keeps));
    if (could_be_free < demand) continue;
    gang = plan(taken);
    if (gang.has_value()) break;
  }
  if (!gang.has_value()) return false;
  for (size_t i = taken.size(); i-- > 0;) {
    std::vector<Victim> fewer = taken;
    fewer.erase(fewer.begin() + static_cast<int64_t>(i));
    if (std::optional<PlannedGang> without = plan(fewer); without.has_value()) {
      taken = std::move(fewer);
      gang = std::move(without);
    }
  }
  int64_t evicted = 0;
  for (const Victim& v : taken) evicted += m_.bases[v.base].worker_milli * (m_.bases[v.base].current->workers - (v.whole ? 0 : v.keeps));
  if (evicted > 4 * demand) return false;

  const pb::AttemptKey key = KeyOf(*claimant.job, claimant.ref.task, claimant.row->next_attempt);
  for (const Victim& v : taken) {
    const Base& base = m_.bases[v.base];
    Stop(base, pb::PREEMPTION,
         v.whole ? absl::StrCat("job ", claimant.ref.job, " is entitled to its devices")
                 : absl::StrCat("job ", claimant.ref.job, " is entitled to ", base.current->workers - v.keeps, " of its ",
                                base.current->workers, " workers' devices"),
         Grace(*base.spec), v.whole ? 0 : v.keeps, &key);
  }
  future_.Take(*claimant.spec, *gang);
  now_.LimitTo(future_, *gang);
  AddUse(&use_future_, claimant, cell, claimant.min_workers);
  reserved_.insert(b);
  for (const Victim& v : taken) {
    if (!v.whole) Reserve(v.base, v.keeps);
  }
  return true;
}

}  // namespace muster
