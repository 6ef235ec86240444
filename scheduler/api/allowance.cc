#include "scheduler/api/allowance.h"

#include <algorithm>

#include "common/base/units.h"

namespace muster {
namespace {

constexpr int64_t kSweepNs = 60 * kSecond;

// What `per_s` gives in this time; more than a minute counts as one.
int64_t Gain(int64_t per_s, int64_t passed_ns) {
  constexpr int64_t kStepNs = 1000;
  return per_s * (std::clamp<int64_t>(passed_ns, 0, kMinute) / kStepNs) / (kSecond / kStepNs);
}

}  // namespace

Allowance::Bucket& Allowance::Filled(const std::string& address, int64_t now_ns) {
  if (now_ns - swept_ns_ > kSweepNs) {
    swept_ns_ = now_ns;
    std::erase_if(buckets_,
                  [&](const auto& entry) { return entry.second.at_ns + kSweepNs < now_ns; });
  }
  const auto [it, fresh] = buckets_.try_emplace(address);
  Bucket& bucket = it->second;
  if (fresh) {
    bucket = {limits_.bytes_at_once, limits_.connections_at_once * kShares, now_ns};
    return bucket;
  }
  const int64_t passed_ns = now_ns - bucket.at_ns;
  if (passed_ns < kMillisecond) return bucket;  // less would be rounded away
  bucket.at_ns = now_ns;
  bucket.bytes =
      std::min(limits_.bytes_at_once, bucket.bytes + Gain(limits_.bytes_per_s, passed_ns));
  bucket.connections =
      std::min(limits_.connections_at_once * kShares,
               bucket.connections + Gain(limits_.connections_per_s * kShares, passed_ns));
  return bucket;
}

bool Allowance::Connect(const std::string& address, int64_t now_ns) {
  Bucket& bucket = Filled(address, now_ns);
  if (bucket.bytes <= 0 || bucket.connections < kShares) return false;
  bucket.connections -= kShares;
  return true;
}

bool Allowance::Take(const std::string& address, int64_t bytes, int64_t now_ns) {
  Bucket& bucket = Filled(address, now_ns);
  const int64_t most_owed = -limits_.wait_s * limits_.bytes_per_s;
  const int64_t left = std::clamp(bucket.bytes - bytes, most_owed, limits_.bytes_at_once);
  bucket.bytes = bucket.bytes > 0 && left <= 0 ? most_owed : left;
  return bucket.bytes > 0;
}

}  // namespace muster
