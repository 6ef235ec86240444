// What found no place in this decision, so that the thousandth gang of the same kind needn't look
// for one, too.
//
// Inside of scheduler/decide.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/btree_set.h"

namespace muster {

// A search for a place, told by all that its outcome depends on beside the capacity.
struct Search {
  enum Kind : uint8_t {
    kNow,               // among what is free now
    kLater,             // among what is free later
    kStart,             // at some time, by expected ends
    kStartAtKnownTime,  // the same, at a time that is known
    kGuaranteedClaim,   // by stopping others, within a guarantee
    kOtherClaim,        // by stopping others, else
    kMoves,             // by moving others
  };
  Kind kind = kNow;
  bool guaranteed = false, drains = false;
  bool overdue = false;  // regards nobody's min_runtime, and takes what is beside what drains
  int32_t pool = 0;
  int32_t shape = 0;  // Gang::shape
  int32_t leaf = -1;
  int32_t priority = 0;
  int32_t band = 0;
  int32_t workers = 0;
  int32_t grows = -1;  // the gang that wants more; else -1
  uint64_t lent = 0;   // which reservations lend to it (Draft::WhichLend)

  auto operator<=>(const Search&) const = default;
};

class Memo {
 public:
  bool Failed(const Search& search) const { return failed_.contains(search); }
  void Remember(const Search& search) {
    if (failed_.insert(search).second) order_.push_back(search);
  }
  void Clear() {
    failed_.clear();
    order_.clear();
  }
  size_t size() const { return order_.size(); }
  // Forgets what was remembered since there were so many.
  void ShrinkTo(size_t size) {
    for (; order_.size() > size; order_.pop_back()) failed_.erase(order_.back());
  }

 private:
  absl::btree_set<Search> failed_;
  std::vector<Search> order_;  // the same, as they came
};

}  // namespace muster
