#include "trainer/parallel/schedule.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace muster::trainer {
namespace {

// Uses between two of one flat that don't make it worth to unshard it again: from the last layer's
// forward to its backward.
constexpr int kKeepAcross = 3;

struct Use {
  int block, micro;
  bool backward;
};

class Builder {
 public:
  Builder(const BlockFlats& blocks, const ScheduleNeeds& needs, int micro_batches, bool training)
      : blocks_(blocks), needs_(needs), micro_batches_(micro_batches) {
    const int n = static_cast<int>(blocks.size());
    for (int micro = 0; micro < micro_batches; ++micro) {
      for (int block = 0; block < n; ++block) uses_.push_back({block, micro, false});
      for (int block = n - 1; training && block >= 0; --block)
        uses_.push_back({block, micro, true});
    }
    training_ = training;
  }

  std::vector<Action> Build() {
    for (int u = 0; u < static_cast<int>(uses_.size()); ++u) {
      const Use& use = uses_[u];
      if (u == 0) Unshard(0);
      Unshard(u + 1);
      std::vector<int> finishing;
      finishing.swap(reducing_);
      OpenGradients(use);
      if (use.backward && needs_.recompute)
        actions_.push_back({Action::kRecompute, use.block, use.micro});
      actions_.push_back(
          {use.backward ? Action::kBackward : Action::kForward, use.block, use.micro});
      Reshard(u);
      for (const int flat : finishing) actions_.push_back({Action::kWaitReduce, flat});
      if (use.backward) CloseGradients(use);
    }
    for (const int flat : reducing_) actions_.push_back({Action::kWaitReduce, flat});
    for (const int flat : at_end_) actions_.push_back({Action::kWaitReduce, flat});
    return std::move(actions_);
  }

 private:
  bool Reads(int u, int flat) const {
    const Use& use = uses_[u];
    if (use.backward && use.block == 0) return false;
    return std::find(blocks_[use.block].begin(), blocks_[use.block].end(), flat) !=
           blocks_[use.block].end();
  }

  void Unshard(int u) {
    if (u >= static_cast<int>(uses_.size())) return;
    for (const int flat : blocks_[uses_[u].block]) {
      if (Reads(u, flat) && there_.insert(flat).second)
        actions_.push_back({Action::kUnshard, flat});
    }
  }

  void Reshard(int u) {
    for (const int flat : blocks_[uses_[u].block]) {
      if (!needs_.flats[flat].weights_in_slot || !Reads(u, flat)) continue;
      bool soon = false;
      for (int next = u + 1; next <= u + kKeepAcross && next < static_cast<int>(uses_.size());
           ++next)
        soon |= Reads(next, flat);
      if (soon || there_.erase(flat) == 0) continue;
      actions_.push_back({Action::kReshard, flat});
    }
  }

  void OpenGradients(const Use& use) {
    if (!training_) return;
    if (!use.backward && use.block + 1 != static_cast<int>(blocks_.size())) return;
    for (const int flat : blocks_[use.block]) {
      const FlatNeeds& needs = needs_.flats[flat];
      if (needs.trained && needs.gradients_in_slot && open_.insert(flat).second)
        actions_.push_back({Action::kOpen, flat});
    }
  }

  void CloseGradients(const Use& use) {
    const bool last_micro = use.micro + 1 == micro_batches_;
    for (const int flat : blocks_[use.block]) {
      const bool used_below = std::any_of(
          blocks_.begin(), blocks_.begin() + use.block, [&](const std::vector<int>& flats) {
            return std::find(flats.begin(), flats.end(), flat) != flats.end();
          });
      const FlatNeeds& needs = needs_.flats[flat];
      if (used_below || !needs.trained) continue;
      open_.erase(flat);
      if (needs.gradients_in_slot && !needs.reduce_each_micro_batch)
        actions_.push_back({Action::kAccumulate, flat});
      if (!needs.reduce_each_micro_batch && !last_micro) continue;
      actions_.push_back({Action::kReduce, flat});
      (needs.reduce_each_micro_batch ? reducing_ : at_end_).push_back(flat);
    }
  }

  const BlockFlats& blocks_;
  const ScheduleNeeds& needs_;
  const int micro_batches_;
  bool training_ = true;
  std::vector<Use> uses_;
  std::vector<Action> actions_;
  std::set<int> there_, open_;
  std::vector<int> reducing_, at_end_;
};

}  // namespace

std::vector<Action> MakeSchedule(const BlockFlats& blocks, const ScheduleNeeds& needs,
                                 int micro_batches, bool training) {
  return Builder(blocks, needs, micro_batches, training).Build();
}

SlotMap AssignSlots(const std::vector<std::vector<Action>>& schedules, Action::Kind begin,
                    const std::vector<Action::Kind>& end, const std::vector<int64_t>& numel) {
  const int n = static_cast<int>(numel.size());
  std::vector<std::vector<bool>> together(n, std::vector<bool>(n, false));
  std::vector<bool> used(n, false);
  for (const std::vector<Action>& schedule : schedules) {
    std::set<int> open;
    for (const Action& action : schedule) {
      if (action.kind == begin) {
        for (const int other : open)
          together[action.index][other] = together[other][action.index] = true;
        open.insert(action.index);
        used[action.index] = true;
      } else if (std::find(end.begin(), end.end(), action.kind) != end.end()) {
        open.erase(action.index);
      }
    }
  }
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return numel[a] > numel[b]; });
  SlotMap map{std::vector<int>(n, -1), {}};
  std::vector<std::vector<int>> members;
  for (const int flat : order) {
    if (numel[flat] == 0 || !used[flat]) continue;
    const auto fits = std::find_if(members.begin(), members.end(), [&](const std::vector<int>& in) {
      return std::none_of(in.begin(), in.end(), [&](int other) { return together[flat][other]; });
    });
    map.slot_of[flat] = static_cast<int>(fits - members.begin());
    if (fits == members.end()) {
      members.emplace_back();
      map.slot_numel.push_back(numel[flat]);
    }
    members[map.slot_of[flat]].push_back(flat);
  }
  return map;
}

}  // namespace muster::trainer
