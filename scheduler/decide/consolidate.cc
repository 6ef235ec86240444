// Consolidation: room that a guaranteed claim has by number, but not in its shape (decision 024).
//
// All that runs in its pool may be in S and yet leave no host whole. Then tasks on few hosts stop
// to start again on other devices of the same pool, which are held for them from then on; the
// claimant gets theirs. What stands on its hosts without devices may be in the way as well, and
// moves within its own pool. What is moved keeps its pool, its size and its place in S, so neither
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
  int32_t gang = 0;
  bool moves = false;  // to other devices; else the claimant may stop it
  HostSlices slices;
  Loss lost;
};

// A host's.
struct Candidate {
  Loss lost;  // of its guests
  std::vector<Guest> guests;
};

}  // namespace

bool Round::Overdue(const Gang& claimant) const {
  return claimant.guaranteed && claimant.wants_place() &&
         claimant.row->waiting_since_ns + options_.min_runtime_ns <= now_ns_;
}

bool Round::Consolidate(int32_t b, int32_t pool) {
  const Gang& claimant = m_.gangs[b];
  if (!Overdue(claimant) || !WithinLimits(claimant, pool, claimant.min_workers, use_future_))
    return false;
  const int64_t end_ns = EndIfStarted(claimant);
  const std::array<int64_t, 4> key{kMoves + kKinds * int64_t{claimant.priority}, pool,
                                   int64_t{claimant.leaf} << 32 | claimant.shape,
                                   LentBits(claimant, pool, end_ns)};
  if (failed_.contains(key)) return false;

  const auto held = [&](int32_t v) { return m_.gangs[v].worker_milli * m_.gangs[v].workers; };
  std::map<HostId, Candidate> by_host;
  std::vector<int32_t> there = m_.holding[pool];
  const int32_t cpus = m_.CpusBeside(pool);
  if (cpus >= 0) there.insert(there.end(), m_.holding[cpus].begin(), m_.holding[cpus].end());
  for (const int32_t v : there) {
    const Gang& gang = m_.gangs[v];
    if (v == b || !gang.running() || stopped_[v] || gang.may_be_lost) continue;
    const bool in_place = gang.entitled && gang.charge == gang.bound_pool;
    const bool stops = !in_place && MayTake(claimant, gang);
    // What is charged to where it runs only because it runs there would be charged elsewhere while
    // it waits.
    const bool moves = in_place && gang.current->parts.size() == 1 && gang.hosts_up &&
                       !gang.charged_as_bound && !gang.binds_others &&
                       gang.workers == gang.entitled_workers() && gang.place_round != s_.round() &&
                       !InHeldQueue(gang);
    if (!stops && !moves) continue;
    Candidate& candidate = by_host[gang.current->parts[0].host];
    const __int128 lost =
        static_cast<__int128>(held(v)) *
        std::max<int64_t>(0, now_ns_ - std::max(gang.since_ns(), gang.last_checkpoint_ns));
    candidate.guests.push_back({v, !stops, SliceOf(*gang.spec, *gang.current, 0, gang.workers),
                                gang.gpus ? Loss(lost, 0) : Loss(0, lost)});
    (gang.gpus ? candidate.lost.first : candidate.lost.second) += lost;
  }
  std::vector<Candidate> candidates;
  for (auto& [host, candidate] : by_host) candidates.push_back(std::move(candidate));
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& x, const Candidate& y) { return x.lost < y.lost; });

  const int64_t demand = claimant.worker_milli * claimant.min_workers,
                demand_beside = claimant.host_cpus_milli * claimant.min_workers;
  for (int tries = 0; tries < kTries && !candidates.empty(); ++tries) {
    const size_t mark = future_.Mark();
    std::optional<HostSlices> place;
    const auto holds = [&] {
      const size_t before = future_.Mark();
      BlockUnlent(&future_, pool, claimant, end_ns, /*claims=*/true);
      std::optional<HostSlices> found = future_.Place(*claimant.spec, claimant.min_workers,
                                                      m_.pools[pool], HostsToAvoid(*claimant.job));
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
        future_.GiveBack(*m_.gangs[guest.gang].spec, guest.slices);
        gone.push_back(guest);
      }
      ++hosts;
      found = holds();
    }
    for (size_t i = gone.size(); found && i-- > 0;) {
      future_.Take(*m_.gangs[gone[i].gang].spec, gone[i].slices);
      if (holds()) {
        gone.erase(gone.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        future_.GiveBack(*m_.gangs[gone[i].gang].spec, gone[i].slices);
      }
    }
    // What moves starts again in the pool, the largest first; for it, too, the claimant may stop
    // what it may stop.
    int64_t moved = 0, moved_beside = 0;  // the latter of work without devices, by one with
    bool whole = found && holds();
    if (whole) {
      future_.Take(*claimant.spec, *place);
      std::stable_sort(gone.begin(), gone.end(),
                       [&](const Guest& x, const Guest& y) { return held(x.gang) > held(y.gang); });
      std::vector<Guest> others;  // that stand elsewhere and may be stopped, the least loss last
      for (const Candidate& candidate : candidates) {
        for (const Guest& guest : candidate.guests) {
          const auto same = [&](const Guest& other) { return other.gang == guest.gang; };
          if (!guest.moves && std::none_of(gone.begin(), gone.end(), same)) others.push_back(guest);
        }
      }
      std::stable_sort(others.begin(), others.end(),
                       [](const Guest& x, const Guest& y) { return x.lost > y.lost; });
      for (size_t i = 0; whole && i < gone.size(); ++i) {
        if (!gone[i].moves) continue;
        const Gang& gang = m_.gangs[gone[i].gang];
        (gang.gpus == claimant.gpus ? moved : moved_beside) += held(gone[i].gang);
        std::vector<Guest> stopped;
        std::optional<HostSlices> to;
        while (true) {
          const size_t before = future_.Mark();
          BlockUnlent(&future_, gang.bound_pool, gang, ExpectedEnd(gang, now_ns_), /*claims=*/true);
          to = future_.Place(*gang.spec, gang.workers, m_.pools[gang.bound_pool],
                             HostsToAvoid(*gang.job));
          future_.UndoTo(before);
          if (to.has_value() || others.empty()) break;
          future_.GiveBack(*m_.gangs[others.back().gang].spec, others.back().slices);
          stopped.push_back(std::move(others.back()));
          others.pop_back();
        }
        whole = to.has_value();
        if (!whole) break;
        future_.Take(*gang.spec, *to);
        gone[i].slices = *std::move(to);
        // Those whose devices it didn't take stay.
        for (Guest& other : stopped) {
          if (future_.Fits(*m_.gangs[other.gang].spec, other.slices)) {
            future_.Take(*m_.gangs[other.gang].spec, other.slices);
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
      const Gang& gang = m_.gangs[guest.gang];
      const std::string detail =
          !guest.moves
              ? EntitledTo(claimant, gang)
              : absl::StrCat("moves within ", PoolName(pool), ": job ", claimant.ref.job,
                             gang.gpus == claimant.gpus ? " needs its devices together with others"
                                                        : " needs its CPUs beside devices");
      Stop(gang, pb::PREEMPTION, detail, Grace(*gang.spec), guest.moves ? gang.workers : 0, &claim);
    }
    Hold(b, pool, claimant.min_workers, *std::move(place));
    for (Guest& guest : gone) {
      if (guest.moves)
        Hold(guest.gang, m_.gangs[guest.gang].bound_pool, m_.gangs[guest.gang].workers,
             std::move(guest.slices));
    }
    return true;
  }
  failed_.insert(key);
  return false;
}

}  // namespace muster
