#include "scheduler/decide/place/slices.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "common/base/check.h"

namespace muster {
namespace {

constexpr size_t kMostWishes = 4096;  // remembered at a time

}  // namespace

bool SliceIndex::Tighter::operator()(int32_t a, int32_t b) const {
  const Class& x = *index->classes_[a];
  const Class& y = *index->classes_[b];
  if (x.whole != y.whole) return x.whole < y.whole;
  if (x.milli != y.milli) return x.milli < y.milli;
  const auto rest = [](const HostRoom& r) {
    return std::tie(r.cpus_milli, r.memory_bytes, r.disk_bytes, r.device_milli);
  };
  if (rest(x.free) != rest(y.free)) return rest(x.free) < rest(y.free);
  return index->scorer_->kinds()[x.free.kind] < index->scorer_->kinds()[y.free.kind];
}

void SliceIndex::SetScorer(HostScorer* scorer) {
  scorer_ = scorer;
  for (const int32_t c : present_) classes_[c]->costs.clear();
}

void SliceIndex::Leave(int32_t slot) {
  const int32_t from = class_of_slot_[slot];
  class_of_slot_[slot] = -1;
  Class& old = *classes_[from];
  old.slots.erase(slot);
  if (!old.slots.empty()) return;
  present_.erase(from);
  class_of_.erase(old.free);
  old.costs.clear();
  spare_.push_back(from);
}

void SliceIndex::Set(int32_t slot, const HostRoom& free) {
  if (slot >= static_cast<int32_t>(class_of_slot_.size())) class_of_slot_.resize(slot + 1, -1);
  if (const int32_t from = class_of_slot_[slot]; from >= 0) {
    if (classes_[from]->free == free) return;
    Leave(slot);
  }
  const auto [it, added] = class_of_.try_emplace(free, -1);
  if (added) {
    if (spare_.empty()) {
      it->second = static_cast<int32_t>(classes_.size());
      classes_.push_back(std::make_unique<Class>());
    } else {
      it->second = spare_.back();
      spare_.pop_back();
    }
    Class& fresh = *classes_[it->second];
    fresh.free = free;
    fresh.whole = std::count(free.device_milli.begin(), free.device_milli.end(), 1000);
    fresh.milli = std::accumulate(free.device_milli.begin(), free.device_milli.end(), int64_t{0});
    present_.insert(it->second);
  }
  class_of_slot_[slot] = it->second;
  classes_[it->second]->slots.insert(slot);
}

void SliceIndex::Remove(int32_t slot) {
  if (slot < static_cast<int32_t>(class_of_slot_.size()) && class_of_slot_[slot] >= 0) Leave(slot);
}

int32_t SliceIndex::WishIndex(const SliceWish& wish) {
  if (const auto found = wish_of_.find(wish); found != wish_of_.end()) return found->second;
  if (wishes_.size() >= kMostWishes) {
    wish_of_.clear();
    wishes_.clear();
    for (const int32_t c : present_) classes_[c]->costs.clear();
  }
  wish_of_.emplace(wish, static_cast<int32_t>(wishes_.size()));
  wishes_.push_back({wish, {}});
  return static_cast<int32_t>(wishes_.size()) - 1;
}

std::optional<SliceIndex::Choice> SliceIndex::Pick(const SliceWish& wish,
                                                   const std::vector<int32_t>& avoid) {
  const int32_t index = WishIndex(wish);
  Wish& wanted = wishes_[index];
  for (size_t k = wanted.on.size(); k < scorer_->kinds().size(); ++k)
    wanted.on.push_back(DemandOn(wish, scorer_->kinds()[k]));
  std::optional<Choice> best;
  int scored = 0;
  for (const int32_t c : present_) {
    Class& here = *classes_[c];
    if (static_cast<int32_t>(here.costs.size()) <= index) here.costs.resize(wishes_.size());
    Remembered& cost = here.costs[index];
    if (cost.known == Known::kNo) {
      const std::optional<Demand>& demand = wanted.on[here.free.kind];
      const bool holds =
          demand.has_value() && Holds(here.free, scorer_->kinds()[here.free.kind], *demand, wish);
      cost.known = holds ? Known::kHolds : Known::kDoesNot;
    }
    if (cost.known == Known::kDoesNot) continue;
    if (++scored > most_scored_ && best.has_value()) break;
    if (cost.known == Known::kHolds) {
      const HostScorer::Cost of = scorer_->Of(here.free, *wanted.on[here.free.kind]);
      cost = {of.price, of.device < 0 ? int16_t{0} : here.free.device_milli[of.device],
              Known::kScored};
    }
    if (best.has_value() && cost.price > best->price) continue;
    auto slot = here.slots.begin();
    while (slot != here.slots.end() && !avoid.empty() &&
           std::binary_search(avoid.begin(), avoid.end(), *slot))
      ++slot;
    if (slot == here.slots.end()) continue;
    if (best.has_value() && std::tie(cost.price, *slot) > std::tie(best->price, best->slot))
      continue;
    best = Choice{*slot, cost.share_of, cost.price};
  }
  return best;
}

}  // namespace muster
