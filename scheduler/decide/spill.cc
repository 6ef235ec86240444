// Spill (SCHEDULING.md §4): a waiting task's list of clusters is opened as far as the first that
// starts it sooner than those open to it by more than moving there costs.
//
// Where devices are free for it now, that cluster comes to the front of its list: the entitled set
// would charge it to the first with room by number, for which others may have to be stopped, or
// where its shape fits nowhere (decision 019). Both are outside events, and no more of them per
// attempt than its list is long. Expected starts further ahead are counted: what runs in a pool
// gives back its devices in the order of the expected ends, and what waits before a task takes
// them.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "scheduler/decide/round.h"

namespace muster {
namespace {

constexpr size_t kQueueCounted = 512;  // waiting tasks a decision counts as being before others,
                                       // and whose later starts it compares
constexpr size_t kPoolsForecast = 16;  // pools whose expected ends a decision sorts

// "10 Gbit/s".
std::string BandwidthText(int64_t bits_per_s) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T"};
  size_t power = 0;
  for (; power < 4 && bits_per_s >= 1000 && bits_per_s % 1000 == 0; ++power) bits_per_s /= 1000;
  return absl::StrCat(bits_per_s, " ", kPrefixes[power], "bit/s");
}

}  // namespace

Round::Outlook* Round::OutlookOf(int32_t pool, bool gpus) {
  int32_t& at = outlook_at_[gpus][pool];
  if (at >= 0) return &outlooks_[at];
  if (outlooks_.size() >= kPoolsForecast) return nullptr;
  at = static_cast<int32_t>(outlooks_.size());
  Outlook& outlook = outlooks_.emplace_back();
  outlook.freed.emplace_back(now_ns_,
                             std::max<int64_t>(0, future_.FreeMilli(m_.pools[pool], gpus)));
  for (const End& end : EndsIn(pool)) {
    if (end.end_ns == kUnbounded || stopped_[end.gang] || end.gpus != gpus) continue;
    outlook.freed.emplace_back(std::max(end.end_ns, now_ns_ + 1), end.milli);
  }
  for (size_t i = 1; i < outlook.freed.size(); ++i)
    outlook.freed[i].second += outlook.freed[i - 1].second;
  return &outlook;
}

// When the pool will have devices for it beside those that it needs for what waits before: by
// number. 0 = unknown.
int64_t Round::CountedStart(const Gang& gang, int32_t pool) {
  const Outlook* outlook = OutlookOf(pool, gang.gpus);
  if (outlook == nullptr) return 0;
  const int64_t needs = outlook->ahead_milli + gang.worker_milli * gang.min_workers;
  // What is free now and didn't start it has the wrong shape, or is kept for others: the next end
  // may help.
  const auto at =
      std::lower_bound(outlook->freed.begin() + 1, outlook->freed.end(), needs,
                       [](const auto& freed, int64_t wanted) { return freed.second < wanted; });
  return at == outlook->freed.end() ? 0 : at->first;
}

// A place in the pool that it could take now if the pool were open to it.
std::optional<HostSlices> Round::FreeNow(int32_t b, int32_t pool, Failed* failed) {
  const Gang& gang = m_.gangs[b];
  const int64_t demand = gang.worker_milli * gang.min_workers;
  if (now_.FreeMilli(m_.pools[pool], gang.gpus) < demand) return std::nullopt;
  // To start as one of S it has to be charged there.
  if (gang.entitled && m_.pools[pool].charged_milli + m_.pools[pool].beside_milli + demand >
                           m_.pools[pool].capacity_milli)
    return std::nullopt;
  if (!WithinLimits(gang, pool, gang.min_workers, use_now_)) return std::nullopt;
  const int64_t end_ns = EndIfStarted(gang);
  const std::array<int64_t, 4> key{kNow, pool, gang.shape, LentBits(gang, pool, end_ns)};
  if (failed->contains(key)) return std::nullopt;
  if (!SiblingsReach(gang, pool) || (!gang.entitled && HindersClaims(gang, pool, end_ns)))
    return std::nullopt;
  std::optional<HostSlices> slices = PlaceNow(b, pool, gang.min_workers, end_ns);
  if (!slices.has_value()) failed->insert(key);
  return slices;
}

// What starting there costs: the configured cost, and moving its newest checkpoint and its input
// from where they lie.
Round::Move Round::MoveTo(const Gang& gang, int32_t pool) const {
  Move move{options_.spill_cost_ns, true, ""};
  const ClusterRow& target = s_.clusters()[m_.pools[pool].cluster];
  int64_t moved_bytes = 0, slowest_bits = kUnbounded;
  __int128 moving_ns = 0;
  const auto add = [&](const std::string& storage, int64_t bytes) {
    const auto found = s_.cluster_file().storages().find(storage);
    if (bytes <= 0 || found == s_.cluster_file().storages().end()) return;
    const std::string& home = found->second.home();
    move.reaches = move.reaches && Reaches(s_.cluster_file(), storage, target.name);
    const int32_t from = home.empty() || home == target.name ? -1 : s_.FindCluster(home);
    if (from < 0) return;
    int64_t bits = kUnbounded;
    for (const int64_t each :
         {target.spec.bandwidth_bits_per_s(), s_.clusters()[from].spec.bandwidth_bits_per_s()}) {
      if (each > 0) bits = std::min(bits, each);
    }
    if (bits == kUnbounded) return;
    moved_bytes += bytes;
    slowest_bits = std::min(slowest_bits, bits);
    moving_ns += static_cast<__int128>(bytes) * 8 * kSecond / bits;
  };
  if (!gang.row->checkpoints.empty())
    add(gang.row->checkpoints.back().storage(), gang.row->checkpoints.back().size_bytes());
  if (gang.spec->has_input()) add(gang.spec->input().storage(), gang.spec->input().size_bytes());
  if (moved_bytes == 0) return move;
  const int64_t ns = static_cast<int64_t>(std::min<__int128>(moving_ns, 365 * kDay));
  move.cost_ns += ns;
  move.text = absl::StrCat("moving ", FormatSize(moved_bytes), " at ", BandwidthText(slowest_bits),
                           ": ", FormatDuration(ns < kSecond ? ns : ns / kSecond * kSecond));
  return move;
}

void Round::Spill() {
  const auto looks = [&](const Gang& gang) {
    if (!gang.wants_place() || gang.backoff_until_ns > now_ns_ || gang.guaranteed ||
        gang.leaf < 0 || InHeldQueue(gang))
      return false;
    const bool may_front = !gang.binds_others;
    const bool any = !gang.all_opened || (gang.entitled && may_front && gang.pools.size() > 1);
    if (!any || gang.spill_ns == 0) return any;
    // Once more when that long has passed, not with every event.
    const int64_t due_ns = gang.spill_ns + std::max(options_.spill_cost_ns, kSecond);
    if (due_ns > now_ns_) WakeAt(due_ns);
    return due_ns <= now_ns_;
  };
  std::vector<PoolView> pools(m_.pools.size());  // what is free when this begins: no more will be
  const auto may_start = [&](const Gang& gang) {
    const int64_t demand = gang.worker_milli * gang.min_workers;
    for (size_t i = 0; i < gang.pools.size(); ++i) {
      if (!gang.opened[i] && FreeMilli(gang, gang.pools[i], &pools) >= demand) return true;
    }
    return false;
  };
  struct Look {
    int32_t gang = 0;
    bool now = false;
  };
  std::vector<Look> order;
  std::vector<InLine> outside;
  size_t looking = 0;
  for (const std::vector<int32_t>* list : {&unserved_, &outside_}) {
    EachOf(m_.gangs, *list, [&](int32_t b) {
      const Gang& gang = m_.gangs[b];
      if (served_[b] || !gang.wants_place()) return;
      const bool looks_now = looks(gang);
      looking += looks_now;
      if (!looks_now && order.size() + outside.size() >= kQueueCounted) return;
      if (list == &unserved_) {
        order.push_back({b, looks_now});
      } else {
        outside.push_back(PlaceInLine(b));
        outside.back().looks = looks_now;
        outside.back().may_start = looks_now && may_start(gang);
      }
    });
  }
  if (looking == 0) return;
  // What waits in S first, in order of acceptance. Of the rest each queue's in Backfill's order,
  // and of the queues that whose next task has run the least: priority orders one queue, not all of
  // them. So a task's turn comes with the largest such figure of those of its queue up to it.
  // Behind those that count only who may start at once has anything to look for.
  std::sort(outside.begin(), outside.end());
  struct Turn {
    int64_t ran_ns = 0;
    int32_t gang = 0;
    size_t place = 0;  // in `outside`
    bool operator<(const Turn& other) const {
      return std::tie(ran_ns, gang, place) < std::tie(other.ran_ns, other.gang, other.place);
    }
  };
  std::vector<Turn> turns;
  turns.reserve(outside.size());
  for (size_t i = 0; i < outside.size(); ++i) {
    const Turn own{outside[i].ran_ns, outside[i].gang, i};
    const bool after = i > 0 && outside[i].leaf == outside[i - 1].leaf && !(turns.back() < own);
    turns.push_back(after ? Turn{turns.back().ran_ns, turns.back().gang, i} : own);
  }
  const size_t counted =
      order.size() < kQueueCounted ? std::min(kQueueCounted - order.size(), turns.size()) : 0;
  const auto behind = turns.begin() + static_cast<std::ptrdiff_t>(counted);
  if (behind != turns.end()) std::nth_element(turns.begin(), behind, turns.end());
  turns.erase(std::remove_if(behind, turns.end(),
                             [&](const Turn& turn) { return !outside[turn.place].may_start; }),
              turns.end());
  std::sort(turns.begin(), turns.end());
  for (const Turn& turn : turns)
    order.push_back({outside[turn.place].gang, outside[turn.place].looks});
  for (std::vector<int32_t>& at : outlook_at_) at.assign(m_.pools.size(), -1);

  CountClaims();
  const size_t mark = now_.Mark();
  Failed failed = failed_;
  for (size_t place = 0; place < order.size(); ++place) {
    const int32_t b = order[place].gang;
    const bool looks_now = order[place].now, counts = place < kQueueCounted;
    const Gang& gang = m_.gangs[b];
    const int64_t demand = gang.worker_milli * gang.min_workers;
    const bool fronts = !gang.binds_others;
    // Where it could go by number: started now, or later as one of the first of the line.
    const auto later = [&](size_t i) {
      return counts && !gang.entitled && !gang.opened[i] &&
             WithinLimits(gang, gang.pools[i], gang.min_workers, use_future_);
    };
    const auto may_go = [&](size_t i) {
      const int32_t pool = gang.pools[i];
      if (gang.entitled ? pool == gang.charge || (gang.opened[i] && !fronts) : gang.opened[i] != 0)
        return false;
      return m_.pools[pool].capacity_milli >= demand &&
             (now_.FreeMilli(m_.pools[pool], gang.gpus) >= demand || later(i));
    };
    bool any = false;
    for (size_t i = 0; i < gang.pools.size() && looks_now && !any; ++i) any = may_go(i);
    if (!any && !counts) continue;

    // The best of those open to it; of S only the charged one.
    int64_t here_ns = kUnbounded;
    int32_t here = gang.entitled ? gang.charge : -1;
    for (size_t i = 0; i < gang.pools.size(); ++i) {
      const int32_t pool = gang.pools[i];
      if (gang.entitled ? pool != gang.charge : !gang.opened[i]) continue;
      if (here < 0) here = pool;
      int64_t start_ns = CountedStart(gang, pool);
      for (const Kept& kept : reserved_[pool]) {
        if (kept.gang == b) start_ns = kept.start_ns;
      }
      // Moving there counts where it is open, too.
      if (start_ns != 0 && any) start_ns += MoveTo(gang, pool).cost_ns - options_.spill_cost_ns;
      if (start_ns == 0 || start_ns >= here_ns) continue;
      here = pool;
      here_ns = start_ns;
    }

    // The first of the others that pays.
    int32_t there = -1;
    int64_t there_ns = 0;
    Move move;
    std::optional<HostSlices> slices;
    for (size_t i = 0; i < gang.pools.size() && any && there < 0; ++i) {
      if (!may_go(i)) continue;
      const int32_t pool = gang.pools[i];
      const std::string& name = s_.clusters()[m_.pools[pool].cluster].name;
      const bool fronted = gang.spill_ns != 0 &&
                           std::find(gang.row->fronted.begin(), gang.row->fronted.end(), name) !=
                               gang.row->fronted.end();
      if (gang.opened[i] && fronted) continue;
      const Move cost = MoveTo(gang, pool);
      if (!cost.reaches) continue;
      if (here_ns != kUnbounded && now_ns_ + cost.cost_ns >= here_ns)
        continue;  // not even if it started at once
      slices = FreeNow(b, pool, &failed);
      if (slices.has_value()) {
        there_ns = now_ns_;
      } else {
        if (!later(i)) continue;
        there_ns = CountedStart(gang, pool);
        if (there_ns == 0 || (here_ns != kUnbounded && there_ns + cost.cost_ns >= here_ns))
          continue;
      }
      there = pool;
      move = cost;
    }
    if (counts) {
      const int32_t pool = there >= 0 ? there : here;
      const int32_t at = pool < 0 ? -1 : outlook_at_[gang.gpus][pool];
      if (at >= 0) outlooks_[at].ahead_milli += demand;
    }
    if (there < 0) continue;
    if (slices.has_value()) now_.Take(*gang.spec, *slices);  // gone for those behind it
    Open(gang, here, here_ns, there, there_ns, move, /*to_front=*/slices.has_value() && fronts);
  }
  now_.UndoTo(mark);
}

void Round::Open(const Gang& gang, int32_t here, int64_t here_ns, int32_t there, int64_t there_ns,
                 const Move& move, bool to_front) {
  WakeAt(now_ns_);  // the entitled set is another one then
  const std::string target = PoolName(there);
  const auto about = [&](int64_t at_ns) {
    return FormatDuration((at_ns - now_ns_) / kSecond * kSecond);
  };
  const std::string full =
      here < 0                ? "no cluster before it has such devices"
      : here_ns == kUnbounded ? absl::StrCat(PoolName(here), " is full, until when is unknown")
                              : absl::StrCat(PoolName(here), " is full for about ", about(here_ns));
  std::string reason = absl::StrCat(
      full, "; ", target, " has room ",
      there_ns <= now_ns_ ? std::string("now") : absl::StrCat("in about ", about(there_ns)));
  if (!move.text.empty()) absl::StrAppend(&reason, "; ", move.text);
  std::set<int32_t> clusters;
  for (size_t i = 0; i < gang.pools.size(); ++i) {
    const int32_t cluster = m_.pools[gang.pools[i]].cluster;
    const std::string& name = s_.clusters()[cluster].name;
    const bool last = cluster == m_.pools[there].cluster;
    if (!clusters.insert(cluster).second || (gang.opened[i] && !(last && to_front))) {
      if (last) break;
      continue;
    }
    pb::ClusterOpened* opened = opened_.emplace_back().mutable_cluster_opened();
    opened->set_job_uid(gang.job->uid);
    opened->set_task(gang.spec->name());
    opened->set_cluster(name);
    opened->set_reason(reason);
    opened->set_to_front(last && to_front);
    if (last) break;
  }
}

}  // namespace muster
