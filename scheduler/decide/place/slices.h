// The hosts that one-host slices are put on, kept as classes of hosts that are alike in all they
// have free: a slice's cost is worked out once a class, not once a host, and remembered until the
// class is gone.
//
// Inside of scheduler/decide. Used by FreeMap for each pool of GPU hosts, and by bench/openb as it
// is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "scheduler/decide/place/score.h"

namespace muster {

class SliceIndex {
 public:
  // `scorer` outlives the index (or the next SetScorer) and knows all kinds of its hosts. Of the
  // classes that hold a wish at most `most_scored` are scored, those with the least free first:
  // that bounds a decision where hardly two hosts are alike.
  explicit SliceIndex(HostScorer* scorer, int most_scored = kMostScored)
      : scorer_(scorer), most_scored_(most_scored), present_(Tighter{this}) {}
  SliceIndex(const SliceIndex&) = delete;
  static constexpr int kMostScored = 128;
  // Other typical tasks: what was remembered is dropped.
  void SetScorer(HostScorer* scorer);

  // The host at this slot (a number from 0) has this free now.
  void Set(int32_t slot, const HostRoom& free);
  void Remove(int32_t slot);

  struct Choice {
    int32_t slot = -1;
    int16_t share_of = 0;  // a share goes to a device that has this much free
    HostScorer::Price price = {};
  };
  // The cheapest scored host that holds the wish and isn't in `avoid` (ascending slots); equal
  // ones: the lowest slot.
  std::optional<Choice> Pick(const SliceWish& wish, const std::vector<int32_t>& avoid = {});

  const HostRoom& at(int32_t slot) const { return classes_[class_of_slot_[slot]]->free; }
  size_t classes() const { return present_.size(); }

 private:
  enum class Known : int8_t { kNo, kDoesNot, kHolds, kScored };
  struct Remembered {
    HostScorer::Price price = {};
    int16_t share_of = 0;
    Known known = Known::kNo;
  };
  struct Class {
    HostRoom free;
    absl::btree_set<int32_t> slots;
    std::vector<Remembered> costs;  // by wish
    int64_t whole = 0, milli = 0;   // devices free
  };
  // By what is free, and nothing that depends on the order in which hosts came.
  struct Tighter {
    const SliceIndex* index;
    bool operator()(int32_t a, int32_t b) const;
  };
  struct Wish {
    SliceWish wish;
    std::vector<std::optional<Demand>> on;  // by kind, as far as known
  };

  int32_t WishIndex(const SliceWish& wish);
  void Leave(int32_t slot);

  HostScorer* scorer_;
  int most_scored_;
  absl::btree_map<HostRoom, int32_t> class_of_;
  std::vector<std::unique_ptr<Class>> classes_;
  std::vector<int32_t> spare_;                 // classes_ without hosts
  absl::btree_set<int32_t, Tighter> present_;  // classes_ with hosts
  std::vector<int32_t> class_of_slot_;         // -1: none
  absl::btree_map<SliceWish, int32_t> wish_of_;
  std::vector<Wish> wishes_;
};

}  // namespace muster
