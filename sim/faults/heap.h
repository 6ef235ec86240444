// Virtual time and what will happen: one heap for the whole simulated world. Ties are broken by the
// seed. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/check.h"
#include "sim/random.h"

namespace muster::sim::faults {

class Heap {
 public:
  using Action = std::function<void()>;

  Heap(int64_t now_ns, uint64_t seed) : now_ns_(now_ns), ties_(seed) {}

  int64_t now_ns() const { return now_ns_; }
  bool empty() const { return items_.empty(); }
  int64_t next_ns() const { return items_.front().at_ns; }
  void At(int64_t at_ns, Action action) {
    items_.push_back({std::max(at_ns, now_ns_), ties_.Next(), std::move(action)});
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
  Random ties_;
  std::vector<Item> items_;
};

}  // namespace muster::sim::faults
