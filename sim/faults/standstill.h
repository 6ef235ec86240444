// What stands still for a time (SIGSTOP) and does later, in its order, what came meanwhile. Not
// thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "sim/heap.h"

namespace muster::sim::faults {

class Standstill {
 public:
  explicit Standstill(Heap* heap) : heap_(heap) {}

  bool now() const { return heap_->now_ns() < kept_->until_ns; }
  bool ever() const { return kept_->until_ns != 0; }
  // Until then at least.
  void Until(int64_t until_ns) {
    kept_->until_ns = std::max(kept_->until_ns, until_ns);
    heap_->At(until_ns, [heap = heap_, kept = kept_, life = kept_->life] {
      if (kept->life != life || heap->now_ns() < kept->until_ns) return;
      for (const Heap::Action& act : std::exchange(kept->deferred, {})) {
        if (kept->life == life) act();
      }
    });
  }
  void Defer(Heap::Action act) { kept_->deferred.push_back(std::move(act)); }
  // At once, or once it goes on.
  void Act(Heap::Action act) { now() ? Defer(std::move(act)) : act(); }
  // It is dead: what was deferred is never done. Its successor runs.
  void Die() {
    ++kept_->life;
    kept_->until_ns = 0;
    kept_->deferred.clear();
  }

 private:
  struct Kept {
    int64_t until_ns = 0;
    uint64_t life = 0;
    std::vector<Heap::Action> deferred;
  };

  Heap* const heap_;
  std::shared_ptr<Kept> kept_ = std::make_shared<Kept>();
};

}  // namespace muster::sim::faults
