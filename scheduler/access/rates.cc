#include "scheduler/access/rates.h"

#include <algorithm>

#include "common/base/units.h"

namespace muster {
namespace {

constexpr int64_t kSweepNs = kMinute;

}  // namespace

RateLimit LimitOf(pb::Rate rate) {
  switch (rate) {
    case pb::RATE_READ:
      return {50, 200};
    case pb::RATE_SUBMIT:
      return {200, 1000};
    case pb::RATE_CHANGE:
      return {20, 100};
    case pb::RATE_JOIN:
      return {1, 60};
    default:
      return {};
  }
}

bool Rates::Take(const std::string& user, pb::Rate rate, int64_t now_ns, int64_t calls) {
  const RateLimit limit = LimitOf(rate);
  if (limit.per_s == 0) return true;
  const int64_t each_ns = kSecond / limit.per_s;
  std::lock_guard lock(mutex_);
  if (now_ns - swept_ns_ >= kSweepNs) {  // a full bucket is as good as none
    swept_ns_ = now_ns;
    std::erase_if(buckets_, [&](const auto& row) { return row.second.full_at_ns <= now_ns; });
  }
  Bucket& bucket = buckets_[{user, rate}];
  const int64_t full_at_ns = std::max(bucket.full_at_ns, now_ns) + calls * each_ns;
  if (full_at_ns - now_ns > limit.burst * each_ns) return false;
  bucket.full_at_ns = full_at_ns;
  return true;
}

size_t Rates::users() const {
  std::lock_guard lock(mutex_);
  return buckets_.size();
}

}  // namespace muster
