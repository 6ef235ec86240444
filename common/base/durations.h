// How long something took, many times: counts by length, in buckets an eighth of their length wide
// (as in an HDR histogram). A value: 2 KiB, no allocation. Thread-compatible.
#pragma once

#include <array>
#include <cstdint>

namespace muster {

class Durations {
 public:
  void Add(int64_t ns);
  uint64_t count() const { return count_; }
  int64_t longest_ns() const { return longest_ns_; }
  uint64_t sum_ns() const { return sum_ns_; }
  // The length that so many thousandths of them did not exceed, too long by an eighth at most; 0 =
  // there are none.
  int64_t PerMilleNs(int per_mille) const;
  // So many did not exceed `ns`; those within the last eighth below it may be missing. Rises with
  // `ns`.
  uint64_t CountUpTo(int64_t ns) const;

 private:
  std::array<uint32_t, 64 * 8> buckets_{};
  uint64_t count_ = 0;
  uint64_t sum_ns_ = 0;
  int64_t longest_ns_ = 0;
};

}  // namespace muster
