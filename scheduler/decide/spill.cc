// Spill (SCHEDULING.md §4): a waiting task's list of clusters is opened as far as the first that
// starts it sooner than those open to it by more than moving there costs.
//
// Where devices are free for it now, that cluster comes to the front of its list: the entitled set
// would charge it to the first with room by number, for which others may have to be stopped, or
// where its shape fits nowhere (decision 019). Both are outside events, and no more of them per
// attempt than its list is long. Expected starts further ahead are counted: what runs in a cell
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
constexpr size_t kCellsForecast = 16;  // cells whose expected ends a decision sorts

// "10 Gbit/s".
std::string BandwidthText(int64_t bits_per_s) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T"};
  size_t power = 0;
  for (; power < 4 && bits_per_s >= 1000 && bits_per_s % 1000 == 0; ++power) bits_per_s /= 1000;
  return absl::StrCat(bits_per_s, " ", kPrefixes[power], "bit/s");
}

}  // namespace

Round::Outlook* Round::OutlookOf(int32_t cell, bool gpus) {
  int32_t& at = outlook_at_[gpus][cell];
  if (at >= 0) return &outlooks_[at];
  if (outlooks_.size() >= kCellsForecast) return nullptr;
  at = static_cast<int32_t>(outlooks_.size());
  Outlook& outlook = outlooks_.emplace_back();
  outlook.freed.emplace_back(now_ns_,
                             std::max<int64_t>(0, future_.FreeMilli(m_.cells[cell], gpus)));
  for (const End& end : EndsIn(cell)) {
    if (end.end_ns == kUnbounded || stopped_[end.base] || end.gpus != gpus) continue;
    outlook.freed.emplace_back(std::max(end.end_ns, now_ns_ + 1), end.milli);
  }
  for (size_t i = 1; i < outlook.freed.size(); ++i)
    outlook.freed[i].second += outlook.freed[i - 1].second;
  return &outlook;
}

// When the cell will have devices for it beside those that it needs for what waits before: by
// number. 0 = unknown.
int64_t Round::CountedStart(const Base& base, int32_t cell) {
  const Outlook* outlook = OutlookOf(cell, base.gpus);
  if (outlook == nullptr) return 0;
  const int64_t needs = outlook->ahead_milli + base.worker_milli * base.min_workers;
  // What is free now and didn't start it has the wrong shape, or is kept for others: the next end
  // may help.
  const auto at =
      std::lower_bound(outlook->freed.begin() + 1, outlook->freed.end(), needs,
                       [](const auto& freed, int64_t wanted) { return freed.second < wanted; });
  return at == outlook->freed.end() ? 0 : at->first;
}

// A place in the cell that it could take now if the cell were open to it.
std::optional<PlannedGang> Round::FreeNow(int32_t b, int32_t cell, Failed* failed) {
  const Base& base = m_.bases[b];
  const int64_t demand = base.worker_milli * base.min_workers;
  if (now_.FreeMilli(m_.cells[cell], base.gpus) < demand) return std::nullopt;
  // To start as one of S it has to be charged there.
  if (base.entitled && m_.cells[cell].charged_milli + m_.cells[cell].beside_milli + demand >
                           m_.cells[cell].capacity_milli)
    return std::nullopt;
  if (!WithinLimits(base, cell, base.min_workers, use_now_)) return std::nullopt;
  const int64_t end_ns = EndIfStarted(base);
  const std::array<int64_t, 4> key{kNow, cell, base.shape, LentBits(base, cell, end_ns)};
  if (failed->contains(key)) return std::nullopt;
  if (!SiblingsReach(base, cell) || (!base.entitled && HindersClaims(base, cell, end_ns)))
    return std::nullopt;
  std::optional<PlannedGang> gang = PlaceNow(b, cell, base.min_workers, end_ns);
  if (!gang.has_value()) failed->insert(key);
  return gang;
}

// What starting there costs: the configured cost, and moving its newest checkpoint and its input
// from where they lie.
Round::Move Round::MoveTo(const Base& base, int32_t cell) const {
  Move move{options_.spill_cost_ns, true, ""};
  const ClusterRow& target = s_.clusters()[m_.cells[cell].cluster];
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
  if (!base.row->checkpoints.empty())
    add(base.row->checkpoints.back().storage(), base.row->checkpoints.back().size_bytes());
  if (base.spec->has_input()) add(base.spec->input().storage(), base.spec->input().size_bytes());
  if (moved_bytes == 0) return move;
  const int64_t ns = static_cast<int64_t>(std::min<__int128>(moving_ns, 365 * kDay));
  move.cost_ns += ns;
  move.text = absl::StrCat("moving ", FormatSize(moved_bytes), " at ", BandwidthText(slowest_bits),
                           ": ", FormatDuration(ns < kSecond ? ns : ns / kSecond * kSecond));
  return move;
}

void Round::Spill() {
  const auto looks = [&](const Base& base) {
    if (!base.wants_place() || base.backoff_until_ns > now_ns_ || base.guaranteed ||
        base.leaf < 0 || InHeldQueue(base))
      return false;
    const bool may_front = !base.binds_others;
    const bool any = !base.all_opened || (base.entitled && may_front && base.cells.size() > 1);
    if (!any || base.spill_ns == 0) return any;
    // Once more when that long has passed, not with every event.
    const int64_t due_ns = base.spill_ns + std::max(options_.spill_cost_ns, kSecond);
    if (due_ns > now_ns_) LookAt(due_ns);
    return due_ns <= now_ns_;
  };
  std::vector<CellView> cells(m_.cells.size());  // what is free when this begins: no more will be
  const auto may_start = [&](const Base& base) {
    const int64_t demand = base.worker_milli * base.min_workers;
    for (size_t i = 0; i < base.cells.size(); ++i) {
      if (!base.opened[i] && FreeMilli(base, base.cells[i], &cells) >= demand) return true;
    }
    return false;
  };
  struct Look {
    int32_t base = 0;
    bool now = false;
  };
  std::vector<Look> order;
  std::vector<InLine> outside;
  size_t looking = 0;
  for (const std::vector<int32_t>* list : {&unserved_, &outside_}) {
    EachOf(m_.bases, *list, [&](int32_t b) {
      const Base& base = m_.bases[b];
      if (served_[b] || !base.wants_place()) return;
      const bool looks_now = looks(base);
      looking += looks_now;
      if (!looks_now && order.size() + outside.size() >= kQueueCounted) return;
      if (list == &unserved_) {
        order.push_back({b, looks_now});
      } else {
        outside.push_back(PlaceInLine(b));
        outside.back().looks = looks_now;
        outside.back().may_start = looks_now && may_start(base);
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
    int32_t base = 0;
    size_t place = 0;  // in `outside`
    bool operator<(const Turn& other) const {
      return std::tie(ran_ns, base, place) < std::tie(other.ran_ns, other.base, other.place);
    }
  };
  std::vector<Turn> turns;
  turns.reserve(outside.size());
  for (size_t i = 0; i < outside.size(); ++i) {
    const Turn own{outside[i].ran_ns, outside[i].base, i};
    const bool after = i > 0 && outside[i].leaf == outside[i - 1].leaf && !(turns.back() < own);
    turns.push_back(after ? Turn{turns.back().ran_ns, turns.back().base, i} : own);
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
    order.push_back({outside[turn.place].base, outside[turn.place].looks});
  for (std::vector<int32_t>& at : outlook_at_) at.assign(m_.cells.size(), -1);

  CountClaims();
  const size_t mark = now_.Mark();
  Failed failed = failed_;
  for (size_t place = 0; place < order.size(); ++place) {
    const int32_t b = order[place].base;
    const bool looks_now = order[place].now, counts = place < kQueueCounted;
    const Base& base = m_.bases[b];
    const int64_t demand = base.worker_milli * base.min_workers;
    const bool fronts = !base.binds_others;
    // Where it could go by number: started now, or later as one of the first of the line.
    const auto later = [&](size_t i) {
      return counts && !base.entitled && !base.opened[i] &&
             WithinLimits(base, base.cells[i], base.min_workers, use_future_);
    };
    const auto may_go = [&](size_t i) {
      const int32_t cell = base.cells[i];
      if (base.entitled ? cell == base.charge || (base.opened[i] && !fronts) : base.opened[i] != 0)
        return false;
      return m_.cells[cell].capacity_milli >= demand &&
             (now_.FreeMilli(m_.cells[cell], base.gpus) >= demand || later(i));
    };
    bool any = false;
    for (size_t i = 0; i < base.cells.size() && looks_now && !any; ++i) any = may_go(i);
    if (!any && !counts) continue;

    // The best of those open to it; of S only the charged one.
    int64_t here_ns = kUnbounded;
    int32_t here = base.entitled ? base.charge : -1;
    for (size_t i = 0; i < base.cells.size(); ++i) {
      const int32_t cell = base.cells[i];
      if (base.entitled ? cell != base.charge : !base.opened[i]) continue;
      if (here < 0) here = cell;
      int64_t start_ns = CountedStart(base, cell);
      for (const Kept& kept : reserved_[cell]) {
        if (kept.base == b) start_ns = kept.start_ns;
      }
      // Moving there counts where it is open, too.
      if (start_ns != 0 && any) start_ns += MoveTo(base, cell).cost_ns - options_.spill_cost_ns;
      if (start_ns == 0 || start_ns >= here_ns) continue;
      here = cell;
      here_ns = start_ns;
    }

    // The first of the others that pays.
    int32_t there = -1;
    int64_t there_ns = 0;
    Move move;
    std::optional<PlannedGang> gang;
    for (size_t i = 0; i < base.cells.size() && any && there < 0; ++i) {
      if (!may_go(i)) continue;
      const int32_t cell = base.cells[i];
      const std::string& name = s_.clusters()[m_.cells[cell].cluster].name;
      const bool fronted = base.spill_ns != 0 &&
                           std::find(base.row->fronted.begin(), base.row->fronted.end(), name) !=
                               base.row->fronted.end();
      if (base.opened[i] && fronted) continue;
      const Move cost = MoveTo(base, cell);
      if (!cost.reaches) continue;
      if (here_ns != kUnbounded && now_ns_ + cost.cost_ns >= here_ns)
        continue;  // not even if it started at once
      gang = FreeNow(b, cell, &failed);
      if (gang.has_value()) {
        there_ns = now_ns_;
      } else {
        if (!later(i)) continue;
        there_ns = CountedStart(base, cell);
        if (there_ns == 0 || (here_ns != kUnbounded && there_ns + cost.cost_ns >= here_ns))
          continue;
      }
      there = cell;
      move = cost;
    }
    if (counts) {
      const int32_t cell = there >= 0 ? there : here;
      const int32_t at = cell < 0 ? -1 : outlook_at_[base.gpus][cell];
      if (at >= 0) outlooks_[at].ahead_milli += demand;
    }
    if (there < 0) continue;
    if (gang.has_value()) now_.Take(*base.spec, *gang);  // gone for those behind it
    Open(base, here, here_ns, there, there_ns, move, /*to_front=*/gang.has_value() && fronts);
  }
  now_.UndoTo(mark);
}

void Round::Open(const Base& base, int32_t here, int64_t here_ns, int32_t there, int64_t there_ns,
                 const Move& move, bool to_front) {
  LookAt(now_ns_);  // the entitled set is another one then
  const std::string target = CellName(there);
  const auto about = [&](int64_t at_ns) {
    return FormatDuration((at_ns - now_ns_) / kSecond * kSecond);
  };
  const std::string full =
      here < 0                ? "no cluster before it has such devices"
      : here_ns == kUnbounded ? absl::StrCat(CellName(here), " is full, until when is unknown")
                              : absl::StrCat(CellName(here), " is full for about ", about(here_ns));
  std::string reason = absl::StrCat(
      full, "; ", target, " has room ",
      there_ns <= now_ns_ ? std::string("now") : absl::StrCat("in about ", about(there_ns)));
  if (!move.text.empty()) absl::StrAppend(&reason, "; ", move.text);
  std::set<int32_t> clusters;
  for (size_t i = 0; i < base.cells.size(); ++i) {
    const int32_t cluster = m_.cells[base.cells[i]].cluster;
    const std::string& name = s_.clusters()[cluster].name;
    const bool last = cluster == m_.cells[there].cluster;
    if (!clusters.insert(cluster).second || (base.opened[i] && !(last && to_front))) {
      if (last) break;
      continue;
    }
    pb::ClusterOpened* opened = opened_.emplace_back().mutable_cluster_opened();
    opened->set_job_uid(base.job->uid);
    opened->set_task(base.spec->name());
    opened->set_cluster(name);
    opened->set_reason(reason);
    opened->set_to_front(last && to_front);
    if (last) break;
  }
}

}  // namespace muster
