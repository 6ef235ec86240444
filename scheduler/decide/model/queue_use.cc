#include "scheduler/decide/model/queue_use.h"

namespace muster {

void QueueUse::Add(const Gang& gang, int32_t pool, int64_t workers) {
  const size_t flavours = model_->flavours.size();
  const int32_t flavour = model_->pools[pool].flavour;
  for (int32_t n = gang.leaf; n >= 0; n = model_->parent[n]) {
    milli_[n * flavours + flavour] += workers * gang.worker_milli;
    milli_[n * flavours + model_->cpu] += workers * gang.worker_cpus_milli;
  }
}

bool QueueUse::WithinLimits(const Gang& gang, int32_t pool, int32_t workers) const {
  const auto exceeds = [&](int32_t n, int32_t flavour, int64_t worker_milli) {
    return At(n, flavour) + workers * worker_milli > model_->QuotaOf(n, flavour).limit_milli;
  };
  for (int32_t n = gang.leaf; n >= 0; n = model_->parent[n]) {
    if (exceeds(n, model_->pools[pool].flavour, gang.worker_milli)) return false;
    if (gang.worker_cpus_milli > 0 && exceeds(n, model_->cpu, gang.worker_cpus_milli)) return false;
  }
  return true;
}

}  // namespace muster
