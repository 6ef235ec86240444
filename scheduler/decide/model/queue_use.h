// What each queue holds of each flavour: a value, so that changes can be tried on a copy.
//
// Inside of scheduler/decide.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/decide/model/model.h"

namespace muster {

class QueueUse {
 public:
  // What runs, but for what may be lost. The model outlives this.
  explicit QueueUse(const Model& model) : model_(&model), milli_(model.use) {}

  // Of the queue and all below it, in thousandths of devices or CPUs.
  int64_t At(int32_t node, int32_t flavour) const {
    return milli_[node * model_->flavours.size() + flavour];
  }
  // The gang's queues hold so many more of its workers in the pool.
  void Add(const Gang& gang, int32_t pool, int64_t workers);
  // So many more of them break no queue's limit.
  bool WithinLimits(const Gang& gang, int32_t pool, int32_t workers) const;

 private:
  const Model* model_;
  std::vector<int64_t> milli_;  // [queue node * flavours + flavour]
};

}  // namespace muster
