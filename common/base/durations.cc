#include "common/base/durations.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace muster {
namespace {

// 0..7 as they are, then eight buckets for each power of two.
size_t BucketOf(uint64_t ns) {
  if (ns < 8) return ns;
  const int power = std::bit_width(ns) - 1;
  return static_cast<size_t>(power - 2) * 8 + ((ns >> (power - 3)) & 7);
}
int64_t LastOf(size_t bucket) {
  if (bucket < 8) return static_cast<int64_t>(bucket);
  const int power = static_cast<int>(bucket / 8) + 2;
  if (power > 62)
    return std::numeric_limits<int64_t>::max();  // no int64_t is as long as these buckets' ends
  return static_cast<int64_t>((uint64_t{1} << power) - 1 +
                              (bucket % 8 + 1) * (uint64_t{1} << (power - 3)));
}

}  // namespace

void Durations::Add(int64_t ns) {
  ns = std::max<int64_t>(0, ns);
  ++buckets_[BucketOf(static_cast<uint64_t>(ns))];
  ++count_;
  sum_ns_ += static_cast<uint64_t>(ns);
  longest_ns_ = std::max(longest_ns_, ns);
}

int64_t Durations::PerMilleNs(int per_mille) const {
  const uint64_t wanted = (count_ * static_cast<uint64_t>(per_mille) + 999) / 1000;
  uint64_t seen = 0;
  for (size_t b = 0; b < buckets_.size() && count_ > 0; ++b) {
    seen += buckets_[b];
    if (seen >= wanted && buckets_[b] > 0) return std::min(LastOf(b), longest_ns_);
  }
  return 0;
}

uint64_t Durations::CountUpTo(int64_t ns) const {
  uint64_t seen = 0;
  for (size_t b = 0; b < buckets_.size() && LastOf(b) <= ns; ++b) seen += buckets_[b];
  return seen;
}

}  // namespace muster
