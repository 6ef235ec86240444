// What torch allocates in this thread while one of these is there: torch's own profiler tells.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace muster::trainer {

class Allocations {
 public:
  Allocations()
      : hook_(std::make_shared<Hook>()), guard_(c10::DebugInfoKind::PROFILER_STATE, hook_) {}
  // Bytes of the largest that was made, and the most that was there at once beyond what was before.
  int64_t largest() const { return hook_->largest; }
  int64_t peak() const { return hook_->peak; }

 private:
  struct Hook : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      largest = std::max(largest, bytes);
      now += bytes;
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t largest = 0, now = 0, peak = 0;
  };
  const std::shared_ptr<Hook> hook_;
  const c10::DebugInfoGuard guard_;
};

}  // namespace muster::trainer
