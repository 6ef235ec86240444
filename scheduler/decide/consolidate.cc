// Consolidation: room that a guaranteed claim has by number, but not in its shape (decision 024).
//
// All that runs in its cell may be in S and yet leave no host whole. Then tasks on few hosts stop
// to start again on other devices of the same cell, which are held for them from then on; the
// claimant gets theirs. What stands on its hosts without devices may be in the way as well, and
// moves within its own cell. What is moved keeps its cell, its size and its place in S, so neither
// S nor its charges change, and a claim lowers the number of waiting units of S as any other does.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/decide/round.h"

namespace muster {
namespace {

constexpr int kTries = 4;  // sets of hosts that a claim looks at

// Devices' and CPUs' time since the last checkpoint, in thousandths: of work with devices, and of
// work without, which costs less.
using Loss = std::pair<__int128, __int128>;

// A task that may go from its host.
struct Guest {
  int32_t base = 0;
  bool moves = false;  // to other devices; else the claimant may stop it
  PlannedGang gang;
  Loss lost;
};

// A host's.
struct Candidate {
  Loss lost;  // of its guests
  std::vector<Guest> guests;
};

}  // namespace

bool Round::Overdue(const Base& claimant) const {
  return claimant.guaranteed && claimant.wants_place() &&
         claimant.row->waiting_since_ns + options_.min_runtime_ns <= now_ns_;
}

bool Round::Consolidate(int32_t b, int32_t cell) {
  const Base& claimant = m_.bases[b];
  if (!Overdue(claimant) || !WithinLimits(claimant, cell, claimant.min_workers, use_future_))
    return false;
  const int64_t end_ns = EndIfStarted(claimant);
  const std::array<int64_t, 4> key{kMoves + kKinds * int64_t{claimant.priority}, cell,
                                   int64_t{claimant.leaf} << 32 | claimant.shape,
                                   LentBits(claimant, cell, end_ns)};
  if (failed_.contains(key)) return false;

  const auto held = [&](int32_t v) { return m_.bases[v].worker_milli * m_.bases[v].workers; };
  std::map<HostId, Candidate> by_host;
  std::vector<int32_t> there = m_.holding[cell];
  const int32_t cpus = m_.CpusBeside(cell);
  if (cpus >= 0) there.insert(there.end(), m_.holding[cpus].begin(), m_.holding[cpus].end());
  for (const int32_t v : there) {
    const Base& base = m_.bases[v];
    if (v == b || !base.running() || stopped_[v] || base.may_be_lost) continue;
    const bool in_place = base.entitled && base.charge == base.bound_cell;
    const bool stops = !in_place && MayTake(claimant, base);
    // What is charged to where it runs only because it runs there would be charged elsewhere while
    // it waits.
    const bool moves = in_place && base.current->parts.size() == 1 && base.hosts_up &&
                       !base.charged_as_bound && !base.binds_others &&
                       base.workers == base.entitled_workers() && base.place_round != s_.round() &&
                       !InHeldQueue(base);
    if (!stops && !moves) continue;
    Candidate& candidate = by_host[base.current->parts[0].host];
    const __int128 lost =
        static_cast<__int128>(held(v)) *
        std::max<int64_t>(0, now_ns_ - std::max(base.since_ns(), base.last_checkpoint_ns));
    candidate.guests.push_back({v, !stops, SliceOf(*base.spec, *base.current, 0, base.workers),
                                base.gpus ? Loss(lost, 0) : Loss(0, lost)});
    (base.gpus ? candidate.lost.first : candidate.lost.second) += lost;
  }
  std::vector<Candidate> candidates;
  for (auto& [host, candidate] : by_host) candidates.push_back(std::move(candidate));
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& x, const Candidate& y) { return x.lost < y.lost; });

  const int64_t demand = claimant.worker_milli * claimant.min_workers,
                demand_beside = claimant.host_cpus_milli * claimant.min_workers;
  for (int tries = 0; tries < kTries && !candidates.empty(); ++tries) {
    const size_t mark = future_.Mark();
    std::optional<PlannedGang> place;
    const auto holds = [&] {
      const size_t before = future_.Mark();
      BlockUnlent(&future_, cell, claimant, end_ns, /*claims=*/true);
      std::optional<PlannedGang> found = future_.Place(*claimant.spec, claimant.min_workers,
                                                       m_.cells[cell], HostsToAvoid(*claimant.job));
      future_.UndoTo(before);
      if (!found.has_value()) return false;
      place = std::move(found);
      return true;
    };
    // As many hosts as it takes; of their guests those that it doesn't take stay.
    std::vector<Guest> gone;
    size_t hosts = 0;
    bool found = false;
    while (!found && hosts < candidates.size()) {
      for (const Guest& guest : candidates[hosts].guests) {
        future_.GiveBack(*m_.bases[guest.base].spec, guest.gang);
        gone.push_back(guest);
      }
      ++hosts;
      found = holds();
    }
    for (size_t i = gone.size(); found && i-- > 0;) {
      future_.Take(*m_.bases[gone[i].base].spec, gone[i].gang);
      if (holds()) {
        gone.erase(gone.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        future_.GiveBack(*m_.bases[gone[i].base].spec, gone[i].gang);
      }
    }
    // What moves starts again in the cell, the largest first; for it, too, the claimant may stop
    // what it may stop.
    int64_t moved = 0, moved_beside = 0;  // the latter of work without devices, by one with
    bool whole = found && holds();
    if (whole) {
      future_.Take(*claimant.spec, *place);
      std::stable_sort(gone.begin(), gone.end(),
                       [&](const Guest& x, const Guest& y) { return held(x.base) > held(y.base); });
      std::vector<Guest> others;  // that stand elsewhere and may be stopped, the least loss last
      for (const Candidate& candidate : candidates) {
        for (const Guest& guest : candidate.guests) {
          const auto same = [&](const Guest& other) { return other.base == guest.base; };
          if (!guest.moves && std::none_of(gone.begin(), gone.end(), same)) others.push_back(guest);
        }
      }
      std::stable_sort(others.begin(), others.end(),
                       [](const Guest& x, const Guest& y) { return x.lost > y.lost; });
      for (size_t i = 0; whole && i < gone.size(); ++i) {
        if (!gone[i].moves) continue;
        const Base& base = m_.bases[gone[i].base];
        (base.gpus == claimant.gpus ? moved : moved_beside) += held(gone[i].base);
        std::vector<Guest> stopped;
        std::optional<PlannedGang> to;
        while (true) {
          const size_t before = future_.Mark();
          BlockUnlent(&future_, base.bound_cell, base, ExpectedEnd(base, now_ns_), /*claims=*/true);
          to = future_.Place(*base.spec, base.workers, m_.cells[base.bound_cell],
                             HostsToAvoid(*base.job));
          future_.UndoTo(before);
          if (to.has_value() || others.empty()) break;
          future_.GiveBack(*m_.bases[others.back().base].spec, others.back().gang);
          stopped.push_back(std::move(others.back()));
          others.pop_back();
        }
        whole = to.has_value();
        if (!whole) break;
        future_.Take(*base.spec, *to);
        gone[i].gang = *std::move(to);
        // Those whose devices it didn't take stay.
        for (Guest& other : stopped) {
          if (future_.Fits(*m_.bases[other.base].spec, other.gang)) {
            future_.Take(*m_.bases[other.base].spec, other.gang);
            others.push_back(std::move(other));
          } else {
            gone.push_back(std::move(other));
          }
        }
        std::stable_sort(others.begin(), others.end(),
                         [](const Guest& x, const Guest& y) { return x.lost > y.lost; });
      }
    }
    future_.UndoTo(mark);
    // All of it together doesn't make the room; or nobody has to go, and a draining reservation is
    // in the way (reclaim.cc).
    if (!found || gone.empty()) break;
    if (!whole || moved > 4 * demand || moved_beside > 4 * demand_beside) {
      candidates.erase(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(hosts));
      continue;
    }
    const pb::AttemptKey claim =
        KeyOf(*claimant.job, claimant.ref.task, claimant.row->next_attempt);
    for (const Guest& guest : gone) {
      const Base& base = m_.bases[guest.base];
      const std::string detail =
          !guest.moves
              ? EntitledTo(claimant, base)
              : absl::StrCat("moves within ", CellName(cell), ": job ", claimant.ref.job,
                             base.gpus == claimant.gpus ? " needs its devices together with others"
                                                        : " needs its CPUs beside devices");
      Stop(base, pb::PREEMPTION, detail, Grace(*base.spec), guest.moves ? base.workers : 0, &claim);
    }
    Hold(b, cell, claimant.min_workers, *std::move(place));
    for (Guest& guest : gone) {
      if (guest.moves)
        Hold(guest.base, m_.bases[guest.base].bound_cell, m_.bases[guest.base].workers,
             std::move(guest.gang));
    }
    return true;
  }
  failed_.insert(key);
  return false;
}

}  // namespace muster
