// The virtual clock and what will happen: a heap of small items, in order of time, ties in order of
// scheduling.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/base/check.h"

namespace muster::sim {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// What happens, and to whom. The meaning of `host`, `a` and `b` depends on `kind`.
struct Item {
  enum Kind : int32_t {
    kSubmit,
    kPrepare,
    kStart,
    kStop,
    kPrepared,
    kBegin,
    kCheckpoint,
    kFinish,
    kEnd,
    kReport
  };
  int64_t at_ns = 0;
  uint64_t sequence = 0;  // set by Timeline
  Kind kind = kSubmit;
  int32_t job = 0;  // index in the trace
  int32_t attempt = 0;
  int32_t host = -1;  // index in the fleet
  int32_t a = 0, b = 0, c = 0;
  int64_t value = 0;
};

// Not thread-safe.
class Timeline {
 public:
  explicit Timeline(int64_t now_ns) : now_ns_(now_ns) {}

  int64_t now_ns() const { return now_ns_; }
  // at_ns must not lie in the past.
  void Add(int64_t at_ns, Item item) {
    MUSTER_CHECK(at_ns >= now_ns_);
    item.at_ns = at_ns;
    item.sequence = sequence_++;
    heap_.push_back(item);
    std::push_heap(heap_.begin(), heap_.end(), Later);
  }
  int64_t NextNs() const { return heap_.empty() ? kNever : heap_.front().at_ns; }
  void AdvanceTo(int64_t when_ns) {
    MUSTER_CHECK(when_ns >= now_ns_);
    now_ns_ = when_ns;
  }
  // True and the first item if one is due now.
  bool Pop(Item* item) {
    if (heap_.empty() || heap_.front().at_ns > now_ns_) return false;
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    *item = heap_.back();
    heap_.pop_back();
    return true;
  }

 private:
  static bool Later(const Item& x, const Item& y) {
    return x.at_ns != y.at_ns ? x.at_ns > y.at_ns : x.sequence > y.sequence;
  }

  int64_t now_ns_;
  uint64_t sequence_ = 0;
  std::vector<Item> heap_;
};

}  // namespace muster::sim
