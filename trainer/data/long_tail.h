// Lengths of documents for the programs that measure how rows are made and shared out.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "trainer/data/packing.h"

namespace muster::trainer {

// Log-normal around 2k tokens with a heavy tail; what is above the context is cut into parts, as
// the trainer does.
inline std::vector<int64_t> LongTail(int64_t context, int64_t documents) {
  SplitMix64 random{20250323};
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < documents; ++i) {
    const double u = (static_cast<double>(random.Below(1u << 30)) + 1) / (1u << 30),
                 v = static_cast<double>(random.Below(1u << 30)) / (1u << 30);
    const double normal = std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v);
    int64_t n = std::max<int64_t>(8, std::llround(2000 * std::exp(1.6 * normal)));
    for (; n > 0; n -= context) lengths.push_back(std::min(n, context));
  }
  return lengths;
}

}  // namespace muster::trainer
