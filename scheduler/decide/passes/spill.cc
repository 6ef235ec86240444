// A waiting task's list of clusters is opened as far as the first that starts it sooner than those
// open to it by more than moving there costs (docs/scheduling.md, spill).
//
// Where devices are free for it now, that cluster comes to the front of its list: the entitled set
// would charge it to the first with room by number, for which others may have to be stopped, or
// where its shape fits nowhere (docs/decisions/019). Both are outside events, and no more of them
// per attempt than its list is long. Expected starts further ahead are counted: what runs in a pool
// gives back its devices in the order of the expected ends, and what waits before a task takes
// them.
#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "scheduler/decide/passes/outside.h"
#include "scheduler/decide/passes/passes.h"

namespace muster {
namespace {

// Waiting tasks that count as being before others, and whose later starts are compared.
constexpr size_t kCounted = 512;
constexpr size_t kPoolsForecast = 16;

// When pools will have devices, by number: by the expected ends of what runs there, and what waits
// for them.
class PoolForecasts {
 public:
  PoolForecasts(const Inputs& in, Draft* draft)
      : in_(in), draft_(draft), at_(in.model.pools.size(), {-1, -1}) {}

  // When the pool will have devices for the gang beside those for what waits before it; 0: unknown.
  int64_t StartOf(const Gang& gang, int32_t pool) {
    const Forecast* forecast = Of(pool, gang.gpus);
    if (forecast == nullptr) return 0;
    const int64_t wanted = forecast->waiting_milli + gang.worker_milli * gang.min_workers;
    // What is free now and didn't start it has the wrong shape, or is kept for others: the next end
    // may help.
    const auto found =
        std::lower_bound(forecast->freed.begin() + 1, forecast->freed.end(), wanted,
                         [](const auto& freed, int64_t milli) { return freed.second < milli; });
    return found == forecast->freed.end() ? 0 : found->first;
  }
  // The gang waits for the pool, before those that are asked about next.
  void AddWaiting(const Gang& gang, int32_t pool) {
    if (const int32_t at = at_[pool][gang.gpus]; at >= 0)
      forecasts_[at].waiting_milli += gang.worker_milli * gang.min_workers;
  }

 private:
  struct Forecast {
    // From when on how many thousandths in all; the first entry is now.
    std::vector<std::pair<int64_t, int64_t>> freed;
    int64_t waiting_milli = 0;
  };

  // nullptr: that is beyond what a decision works out.
  const Forecast* Of(int32_t pool, bool gpus) {
    int32_t& at = at_[pool][gpus];
    if (at >= 0) return &forecasts_[at];
    if (forecasts_.size() >= kPoolsForecast) return nullptr;
    at = static_cast<int32_t>(forecasts_.size());
    Forecast& forecast = forecasts_.emplace_back();
    int64_t milli = std::max<int64_t>(0, draft_->later()->FreeMilli(pool, gpus));
    forecast.freed.emplace_back(in_.now_ns, milli);
    for (const RunEnd& end : in_.EndsIn(pool)) {
      if (end.end_ns == kUnbounded || draft_->Stops(end.gang) || end.gpus != gpus) continue;
      milli += end.milli;
      forecast.freed.emplace_back(std::max(end.end_ns, in_.now_ns + 1), milli);
    }
    return &forecast;
  }

  const Inputs& in_;
  Draft* const draft_;
  std::vector<Forecast> forecasts_;
  std::vector<std::array<int32_t, 2>> at_;  // by pool, of CPUs and of devices; -1: none yet
};

// "10 Gbit/s".
std::string BandwidthText(int64_t bits_per_s) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T"};
  size_t power = 0;
  for (; power < 4 && bits_per_s >= 1000 && bits_per_s % 1000 == 0; ++power) bits_per_s /= 1000;
  return absl::StrCat(bits_per_s, " ", kPrefixes[power], "bit/s");
}

// What starting in another cluster costs: the configured cost, and moving the newest checkpoint and
// the input from where they lie.
struct Move {
  int64_t cost_ns = 0;
  bool reaches = true;  // the cluster reaches what the task reads
  std::string text;     // of what is moved; empty: nothing
};
Move MoveTo(const Inputs& in, const Gang& gang, int32_t pool) {
  const pb::ClusterFile& file = in.state.cluster_file();
  const ClusterRow& target = in.state.clusters()[in.model.pools[pool].cluster];
  Move move{in.options.spill_cost_ns, true, ""};
  int64_t moved_bytes = 0, slowest_bits = kUnbounded;
  __int128 moving_ns = 0;
  const auto add = [&](const std::string& storage, int64_t bytes) {
    const auto found = file.storages().find(storage);
    if (bytes <= 0 || found == file.storages().end()) return;
    const std::string& home = found->second.home();
    move.reaches = move.reaches && Reaches(file, storage, target.name);
    const int32_t from = home.empty() || home == target.name ? -1 : in.state.FindCluster(home);
    if (from < 0) return;
    int64_t bits = kUnbounded;
    for (const int64_t each : {target.spec.bandwidth_bits_per_s(),
                               in.state.clusters()[from].spec.bandwidth_bits_per_s()}) {
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

// It may be opened another cluster now, or that one come to the front.
bool MayLook(const Inputs& in, const Gang& gang, Draft* draft) {
  if (gang.leader >= 0) return false;  // the whole list of a group is open
  if (!gang.wants_place() || gang.backoff_until_ns > in.now_ns || gang.guaranteed ||
      gang.leaf < 0 || in.HeldBack(gang))
    return false;
  const bool may_front = !gang.binds_others;
  const bool any = !gang.all_opened || (gang.entitled && may_front && gang.pools.size() > 1);
  if (!any || gang.spill_ns == 0) return any;
  // Once more when as long as a spill costs has passed, not with every event.
  const int64_t due_ns = gang.spill_ns + std::max(in.options.spill_cost_ns, kSecond);
  if (due_ns > in.now_ns) draft->WakeAt(due_ns);
  return due_ns <= in.now_ns;
}

struct Candidate {
  int32_t gang = 0;
  bool looks = false;
};

struct OutsideCandidate {
  InLine place;
  bool looks = false;
  bool may_start = false;  // it looks, and a cluster that isn't open to it has devices by number
  bool operator<(const OutsideCandidate& other) const { return place < other.place; }
};

// Appends what waits outside S: each queue's in its line's order, and of the queues first that
// whose next task has run the least: priority orders one queue, not all of them. So a task is
// sorted by the largest such figure of those of its queue up to it. Behind those that count only
// who may start at once has anything to look for.
void AppendOutside(std::vector<OutsideCandidate> outside, std::vector<Candidate>* line) {
  struct Key {
    int64_t ran_ns = 0;
    int32_t gang = 0;
    size_t index = 0;  // in `outside`
    bool operator<(const Key& other) const {
      return std::tie(ran_ns, gang, index) < std::tie(other.ran_ns, other.gang, other.index);
    }
  };
  std::sort(outside.begin(), outside.end());
  std::vector<Key> keys;
  keys.reserve(outside.size());
  for (size_t i = 0; i < outside.size(); ++i) {
    Key own{outside[i].place.ran_ns, outside[i].place.gang, i};
    const bool same_queue = i > 0 && outside[i].place.leaf == outside[i - 1].place.leaf;
    if (same_queue && !(keys.back() < own)) own = {keys.back().ran_ns, keys.back().gang, i};
    keys.push_back(own);
  }
  const size_t counted =
      line->size() < kCounted ? std::min(kCounted - line->size(), keys.size()) : 0;
  const auto behind = keys.begin() + static_cast<std::ptrdiff_t>(counted);
  if (behind != keys.end()) std::nth_element(keys.begin(), behind, keys.end());
  const auto nothing_to_do = [&](const Key& key) { return !outside[key.index].may_start; };
  keys.erase(std::remove_if(behind, keys.end(), nothing_to_do), keys.end());
  std::sort(keys.begin(), keys.end());
  for (const Key& key : keys)
    line->push_back({outside[key.index].place.gang, outside[key.index].looks});
}

// Who waits, in order: in S by acceptance, then the others. Empty: nobody looks for other clusters.
std::vector<Candidate> LineUp(const Inputs& in, Draft* draft) {
  FreeByPool free(in, draft->now());
  const auto may_start = [&](const Gang& gang) {
    for (size_t i = 0; i < gang.pools.size(); ++i) {
      if (!gang.opened[i] &&
          free.Milli(gang.pools[i], gang.gpus) >= gang.worker_milli * gang.min_workers)
        return true;
    }
    return false;
  };
  std::vector<Candidate> line;
  std::vector<OutsideCandidate> outside;
  bool anybody = false;
  const auto skip = [&](int32_t g, bool looks) {
    return !looks && line.size() + outside.size() >= kCounted;
  };
  for (const int32_t g : draft->unserved()) {
    const Gang& gang = in.gang(g);
    if (draft->Serves(g) || !gang.wants_place()) continue;
    const bool looks = MayLook(in, gang, draft);
    anybody = anybody || looks;
    if (!skip(g, looks)) line.push_back({g, looks});
  }
  EachOf(in.model.gangs, in.others, [&](int32_t g) {
    const Gang& gang = in.gang(g);
    if (draft->Serves(g) || !gang.wants_place() || draft->Ends(gang)) return;
    const bool looks = MayLook(in, gang, draft);
    anybody = anybody || looks;
    if (!skip(g, looks))
      outside.push_back({PlaceInLine(in, gang), looks, looks && may_start(gang)});
  });
  if (!anybody) return {};
  AppendOutside(std::move(outside), &line);
  return line;
}

class Spiller {
 public:
  Spiller(const Inputs& in, Draft* draft)
      : in_(in), draft_(draft), claims_(in, *draft), forecasts_(in, draft) {}

  std::vector<pb::ClusterOpened> Run(const std::vector<Candidate>& line) {
    Try trial(draft_, draft_->now());
    for (size_t i = 0; i < line.size(); ++i) Consider(line[i], /*counts=*/i < kCounted, &trial);
    return std::move(opened_);
  }

 private:
  struct Option {
    int32_t pool = -1;              // -1: none
    int64_t start_ns = kUnbounded;  // kUnbounded: unknown
    Move move;
    std::optional<HostSlices> slices;  // free now
  };

  void Consider(const Candidate& candidate, bool counts, Try* trial);
  bool MayStartLater(const Gang& gang, size_t i, bool counts) const;
  bool MayGo(const Gang& gang, size_t i, bool counts) const;
  Option BestOpen(const Gang& gang, bool looks);
  Option FirstThatPays(const Gang& gang, int64_t here_ns, bool counts);
  std::optional<HostSlices> FreeNow(const Gang& gang, int32_t pool);
  std::string ReasonFor(const Option& here, const Option& there) const;
  void Open(const Gang& gang, const Option& here, const Option& there);

  const Inputs& in_;
  Draft* const draft_;
  WaitingClaims claims_;
  PoolForecasts forecasts_;
  std::vector<pb::ClusterOpened> opened_;
};

// As one of the first of the line, by number.
bool Spiller::MayStartLater(const Gang& gang, size_t i, bool counts) const {
  return counts && !gang.entitled && !gang.opened[i] &&
         draft_->later()->WithinLimits(gang, gang.pools[i], gang.min_workers);
}

// It could start in the pool, now or later, by number.
bool Spiller::MayGo(const Gang& gang, size_t i, bool counts) const {
  const int32_t pool = gang.pools[i];
  if (gang.entitled) {
    if (pool == gang.charge || (gang.opened[i] && gang.binds_others)) return false;
  } else if (gang.opened[i]) {
    return false;
  }
  const int64_t demand = gang.worker_milli * gang.min_workers;
  return in_.model.pools[pool].capacity_milli >= demand &&
         (draft_->now()->FreeMilli(pool, gang.gpus) >= demand || MayStartLater(gang, i, counts));
}

// The best of those open to it; of S only the charged one.
Spiller::Option Spiller::BestOpen(const Gang& gang, bool looks) {
  Option best;
  if (gang.entitled) best.pool = gang.charge;
  for (size_t i = 0; i < gang.pools.size(); ++i) {
    const int32_t pool = gang.pools[i];
    if (gang.entitled ? pool != gang.charge : !gang.opened[i]) continue;
    if (best.pool < 0) best.pool = pool;
    int64_t start_ns = forecasts_.StartOf(gang, pool);
    if (const auto* reservation = draft_->reservations().Of(in_.IndexOf(gang), pool))
      start_ns = reservation->start_ns;
    // Moving there counts where it is open, too.
    if (start_ns != 0 && looks)
      start_ns += MoveTo(in_, gang, pool).cost_ns - in_.options.spill_cost_ns;
    if (start_ns == 0 || start_ns >= best.start_ns) continue;
    best.pool = pool;
    best.start_ns = start_ns;
  }
  return best;
}

// The first of the others whose start lies before here_ns by more than it costs.
Spiller::Option Spiller::FirstThatPays(const Gang& gang, int64_t here_ns, bool counts) {
  const std::vector<std::string>& fronted = gang.row->fronted;
  for (size_t i = 0; i < gang.pools.size(); ++i) {
    if (!MayGo(gang, i, counts)) continue;
    Option there;
    there.pool = gang.pools[i];
    const bool was_fronted =
        gang.spill_ns != 0 &&
        std::find(fronted.begin(), fronted.end(), in_.ClusterOf(there.pool)) != fronted.end();
    if (gang.opened[i] && was_fronted) continue;
    there.move = MoveTo(in_, gang, there.pool);
    if (!there.move.reaches) continue;
    const auto pays = [&](int64_t start_ns) {
      return here_ns == kUnbounded || start_ns + there.move.cost_ns < here_ns;
    };
    if (!pays(in_.now_ns)) continue;
    there.slices = FreeNow(gang, there.pool);
    if (there.slices.has_value()) {
      there.start_ns = in_.now_ns;
      return there;
    }
    if (!MayStartLater(gang, i, counts)) continue;
    there.start_ns = forecasts_.StartOf(gang, there.pool);
    if (there.start_ns != 0 && pays(there.start_ns)) return there;
  }
  return {};
}

// A place in the pool that it could take now if the pool were open to it.
std::optional<HostSlices> Spiller::FreeNow(const Gang& gang, int32_t pool) {
  const int64_t demand = gang.worker_milli * gang.min_workers;
  const Pool& there = in_.model.pools[pool];
  Capacity* now = draft_->now();
  if (now->FreeMilli(pool, gang.gpus) < demand) return std::nullopt;
  // To start as one of S it has to be charged there.
  if (gang.entitled && there.charged_milli + there.host_cpus_milli + demand > there.capacity_milli)
    return std::nullopt;
  if (!draft_->WithinLimits(gang, pool, gang.min_workers)) return std::nullopt;
  const int64_t end_ns = in_.EndIfStarted(gang);
  const Search search{.kind = Search::kNow,
                      .pool = pool,
                      .shape = gang.shape,
                      .lent = draft_->WhichLend(gang, pool, end_ns)};
  if (draft_->Failed(search)) return std::nullopt;
  if (!SiblingsReach(in_, gang, pool)) return std::nullopt;
  if (!gang.entitled && claims_.HinderedBy(gang, pool, end_ns)) return std::nullopt;
  std::optional<HostSlices> slices = draft_->FindPlace(now, gang, pool, gang.min_workers, end_ns);
  if (!slices.has_value()) draft_->Remember(search);
  return slices;
}

void Spiller::Consider(const Candidate& candidate, bool counts, Try* trial) {
  const Gang& gang = in_.gang(candidate.gang);
  bool looks = false;  // and could go somewhere
  for (size_t i = 0; i < gang.pools.size() && candidate.looks && !looks; ++i)
    looks = MayGo(gang, i, counts);
  if (!looks && !counts) return;
  const Option here = BestOpen(gang, looks);
  const Option there = looks ? FirstThatPays(gang, here.start_ns, counts) : Option();
  const int32_t waits_for = there.pool >= 0 ? there.pool : here.pool;
  if (counts && waits_for >= 0) forecasts_.AddWaiting(gang, waits_for);
  if (there.pool < 0) return;
  if (there.slices.has_value()) trial->Take(gang, *there.slices);  // gone for those behind it
  Open(gang, here, there);
}

std::string Spiller::ReasonFor(const Option& here, const Option& there) const {
  const auto about = [&](int64_t at_ns) {
    return FormatDuration((at_ns - in_.now_ns) / kSecond * kSecond);
  };
  std::string reason = "no cluster before it has such devices";
  if (here.pool >= 0) {
    reason = absl::StrCat(in_.ClusterOf(here.pool), " is full",
                          here.start_ns == kUnbounded
                              ? ", until when is unknown"
                              : absl::StrCat(" for about ", about(here.start_ns)));
  }
  absl::StrAppend(
      &reason, "; ", in_.ClusterOf(there.pool), " has room ",
      there.start_ns <= in_.now_ns ? "now" : absl::StrCat("in about ", about(there.start_ns)));
  if (!there.move.text.empty()) absl::StrAppend(&reason, "; ", there.move.text);
  return reason;
}

// Opens its list as far as `there`; to the front of the list where it could start now.
void Spiller::Open(const Gang& gang, const Option& here, const Option& there) {
  const bool to_front = there.slices.has_value() && !gang.binds_others;
  std::set<int32_t> clusters;
  for (size_t i = 0; i < gang.pools.size(); ++i) {
    const int32_t cluster = in_.model.pools[gang.pools[i]].cluster;
    const bool last = cluster == in_.model.pools[there.pool].cluster;
    const bool first_seen = clusters.insert(cluster).second;
    if (first_seen && (!gang.opened[i] || (last && to_front))) {
      pb::ClusterOpened& opened = opened_.emplace_back();
      opened.set_job_uid(gang.job->uid);
      opened.set_task(gang.spec->name());
      opened.set_cluster(in_.state.clusters()[cluster].name);
      opened.set_reason(ReasonFor(here, there));
      opened.set_to_front(last && to_front);
    }
    if (last) return;
  }
}

}  // namespace

void Spill(const Inputs& in, Draft* draft) {
  const std::vector<Candidate> line = LineUp(in, draft);
  if (line.empty()) return;
  for (pb::ClusterOpened& opened : Spiller(in, draft).Run(line)) draft->Open(std::move(opened));
}

}  // namespace muster
