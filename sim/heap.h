// Virtual time and what will happen: one heap for the whole simulated world. Ties are broken by a
// seed where one is given, else what was put in first happens first. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "common/base/check.h"
#include "sim/random.h"

namespace muster::sim {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

class Heap {
 public:
  using Action = std::function<void()>;

  explicit Heap(int64_t now_ns) : now_ns_(now_ns) {}
  Heap(int64_t now_ns, uint64_t seed) : now_ns_(now_ns), drawn_(seed) {}

  int64_t now_ns() const { return now_ns_; }
  bool empty() const { return items_.empty(); }
  int64_t next_ns() const { return items_.empty() ? kNever : items_.front().at_ns; }
  void At(int64_t at_ns, Action action) {
    const uint64_t tie = drawn_.has_value() ? drawn_->Next() : sequence_++;
    items_.push_back({std::max(at_ns, now_ns_), tie, std::move(action)});
    std::push_heap(items_.begin(), items_.end(), Later);
  }
  void After(int64_t delay_ns, Action action) { At(now_ns_ + delay_ns, std::move(action)); }
  void RunNext() {
    MUSTER_CHECK(!items_.empty());
    std::pop_heap(items_.begin(), items_.end(), Later);
    Item item = std::move(items_.back());
    items_.pop_back();
    now_ns_ = item.at_ns;
    item.action();
  }
  // All that is due until then, which is now afterwards.
  void RunUntil(int64_t when_ns) {
    while (next_ns() <= when_ns) RunNext();
    now_ns_ = std::max(now_ns_, when_ns);
  }

 private:
  struct Item {
    int64_t at_ns = 0;
    uint64_t tie = 0;
    Action action;
  };
  static bool Later(const Item& x, const Item& y) {
    return x.at_ns != y.at_ns ? x.at_ns > y.at_ns : x.tie > y.tie;
  }

  int64_t now_ns_;
  std::optional<Random> drawn_;
  uint64_t sequence_ = 0;
  std::vector<Item> items_;
};

}  // namespace muster::sim
