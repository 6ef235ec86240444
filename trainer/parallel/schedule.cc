#include "trainer/parallel/schedule.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

namespace muster::trainer {
namespace {

// Uses between two of one flat that don't make it worth to unshard it again: from the last layer's
// forward to its backward.
constexpr int kKeepAcross = 3;

struct Use {
  enum Kind { kForward, kBackward, kWeights };
  Kind kind;
  int block, micro;
  // Messages that it begins and ends with.
  bool receives = false, sends = false;
};

class Builder {
 public:
  Builder(const BlockFlats& blocks, const ScheduleNeeds& needs, int micro_batches, bool training)
      : blocks_(blocks), needs_(needs), micro_batches_(micro_batches), training_(training) {
    const PipelinePart& part = needs.pipeline;
    std::vector<int> stretches = part.stretches;
    if (stretches.empty()) stretches = {0, count()};
    const int chunks = static_cast<int>(stretches.size()) - 1;
    for (const PipelineStep& step :
         PipelineOrder(part.kind, part.stage, part.stages, chunks, micro_batches)) {
      if (training || step.kind == PipelineStep::kForward)
        AddStep(step, stretches[step.chunk], stretches[step.chunk + 1]);
    }
  }

  std::vector<Action> Build() {
    for (int u = 0; u < static_cast<int>(uses_.size()); ++u) {
      const Use& use = uses_[u];
      if (u == 0) Prepare(0);
      Prepare(u + 1);
      std::vector<int> finishing;
      finishing.swap(reducing_);
      // A stretch of one block may come to the next micro-batch at once: its slot must be free.
      std::erase_if(finishing, [&](int flat) {
        if (!Uses(use.block, flat)) return false;
        actions_.push_back({Action::kWaitReduce, flat});
        return true;
      });
      OpenGradients(use);
      if (use.kind == Use::kBackward && needs_.recompute)
        actions_.push_back({Action::kRecompute, use.block, use.micro});
      actions_.push_back({KindOf(use), use.block, use.micro});
      if (use.sends)
        actions_.push_back({use.kind == Use::kForward ? Action::kSendOutput : Action::kSendGradient,
                            use.block, use.micro});
      Reshard(u);
      for (const int flat : finishing) actions_.push_back({Action::kWaitReduce, flat});
      if (use.kind == (splits_ ? Use::kWeights : Use::kBackward)) CloseGradients(use);
    }
    for (const int flat : reducing_) actions_.push_back({Action::kWaitReduce, flat});
    for (const int flat : last_) actions_.push_back({Action::kReduce, flat});
    for (const int flat : at_end_) actions_.push_back({Action::kWaitReduce, flat});
    for (const int flat : last_) actions_.push_back({Action::kWaitReduce, flat});
    return std::move(actions_);
  }

 private:
  int count() const { return static_cast<int>(blocks_.size()); }
  bool Uses(int block, int flat) const {
    return std::find(blocks_[block].begin(), blocks_[block].end(), flat) != blocks_[block].end();
  }
  // Of the whole model.
  bool IsFirst(int block) const { return block == 0 && needs_.pipeline.stage == 0; }
  bool IsLast(int block) const {
    return block + 1 == count() && needs_.pipeline.stage + 1 == needs_.pipeline.stages;
  }

  void AddStep(const PipelineStep& step, int begin, int end) {
    const int micro = step.micro;
    if (step.kind == PipelineStep::kForward) {
      const bool to_head = IsLast(end - 1);
      for (int block = begin; block < end; ++block) {
        if (training_ && IsLast(block)) continue;
        uses_.push_back({Use::kForward, block, micro, block == begin && !IsFirst(block),
                         block + 1 == end && !to_head});
      }
      return;
    }
    const bool backward = step.kind == PipelineStep::kBackward;
    splits_ |= !backward;
    if (backward && IsLast(end - 1)) uses_.push_back({Use::kForward, end - 1, micro});
    for (int block = end - 1; block >= begin; --block) {
      uses_.push_back({backward ? Use::kBackward : Use::kWeights, block, micro,
                       backward && block + 1 == end && !IsLast(block),
                       backward && block == begin && !IsFirst(block)});
    }
  }

  Action::Kind KindOf(const Use& use) const {
    return use.kind == Use::kForward   ? Action::kForward
           : use.kind == Use::kWeights ? Action::kWeights
           : splits_                   ? Action::kBackwardInput
                                       : Action::kBackward;
  }

  bool Reads(int u, int flat) const {
    const Use& use = uses_[u];
    if (use.kind == Use::kWeights || (use.kind == Use::kBackward && IsFirst(use.block)))
      return false;
    return Uses(use.block, flat);
  }

  // For use u: what it reads and what it is sent.
  void Prepare(int u) {
    if (u >= static_cast<int>(uses_.size())) return;
    const Use& use = uses_[u];
    for (const int flat : blocks_[use.block]) {
      if (Reads(u, flat) && there_.insert(flat).second)
        actions_.push_back({Action::kUnshard, flat});
    }
    if (use.receives)
      actions_.push_back(
          {use.kind == Use::kForward ? Action::kReceiveInput : Action::kReceiveGradient, use.block,
           use.micro});
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
    if (!training_ || (use.kind == Use::kForward && !IsLast(use.block))) return;
    for (const int flat : blocks_[use.block]) {
      const FlatNeeds& needs = needs_.flats[flat];
      if (!needs.trained || !needs.gradients_in_slot) continue;
      if (splits_) throw std::invalid_argument("gradients in slots wait for no weights' gradients");
      if (open_.insert(flat).second) actions_.push_back({Action::kOpen, flat});
    }
  }

  void CloseGradients(const Use& use) {
    const bool last_micro = use.micro + 1 == micro_batches_;
    for (const int flat : blocks_[use.block]) {
      bool used_below = false;
      for (int block = 0; block < use.block; ++block) used_below |= Uses(block, flat);
      const FlatNeeds& needs = needs_.flats[flat];
      if (used_below || !needs.trained) continue;
      open_.erase(flat);
      if (needs.gradients_in_slot && !needs.reduce_each_micro_batch)
        actions_.push_back({Action::kAccumulate, flat});
      if (!needs.reduce_each_micro_batch && !last_micro) continue;
      if (needs.reduce_last && !needs.reduce_each_micro_batch) {
        last_.push_back(flat);
        continue;
      }
      actions_.push_back({Action::kReduce, flat});
      (needs.reduce_each_micro_batch ? reducing_ : at_end_).push_back(flat);
    }
  }

  const BlockFlats& blocks_;
  const ScheduleNeeds& needs_;
  const int micro_batches_;
  const bool training_;
  bool splits_ = false;  // weights' gradients are steps of their own
  std::vector<Use> uses_;
  std::vector<Action> actions_;
  std::set<int> there_, open_;
  std::vector<int> reducing_, at_end_, last_;
};

}  // namespace

std::vector<Action> MakeSchedule(const BlockFlats& blocks, const ScheduleNeeds& needs,
                                 int micro_batches, bool training) {
  return Builder(blocks, needs, micro_batches, training).Build();
}

std::vector<std::vector<Action>> TypicalSchedules(const BlockFlats& blocks,
                                                  const ScheduleNeeds& needs) {
  // What more micro-batches do, these do already: without a pipeline two, else some groups.
  constexpr int kGroups = 3;
  const int stages = needs.pipeline.stages, most = stages == 1 ? 2 : kGroups * stages;
  std::vector<std::vector<Action>> schedules;
  for (int micros = stages == 1 ? most : 1; micros <= most; ++micros) {
    for (const bool training : {true, false})
      schedules.push_back(MakeSchedule(blocks, needs, micros, training));
  }
  return schedules;
}

bool SlotsHold(const std::vector<Action>& schedule, Action::Kind begin,
               const std::vector<Action::Kind>& end, const std::vector<int>& slot_of) {
  std::map<int, int> holders;  // by slot
  for (const Action& action : schedule) {
    const bool begins = action.kind == begin;
    if (!begins && std::find(end.begin(), end.end(), action.kind) == end.end()) continue;
    const int slot = slot_of[action.index];
    if (slot < 0) continue;
    if (begins && !holders.emplace(slot, action.index).second) return false;
    if (!begins) holders.erase(slot);
  }
  return true;
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
