// What the shim must know of a progress line: which kind it is, and whether it comes too fast. Parsing the rest is the agent's.
#pragma once

#include <cstdint>
#include <string_view>

namespace muster::shim {

inline constexpr int64_t kProgressLineBytes = 8 << 10;
inline constexpr int kProgressLinesPerSecond = 100;

enum class LineKind {
  kBad,      // not one JSON object, or too long
  kMetrics,  // only the newest matters
  kOther,    // metrics of a rank other than 0
  kDurable,  // checkpoint, export or loaded: never lost
};

// Looks at the top-level keys alone.
LineKind ClassifyProgress(std::string_view text);

// At most `limit` a second, in fixed windows. Not thread-safe.
class RateLimit {
 public:
  explicit RateLimit(int limit) : limit_(limit) {}
  bool Allow(int64_t now_ns);

 private:
  const int limit_;
  int64_t window_start_ns_ = -1;
  int used_ = 0;
};

}  // namespace muster::shim
