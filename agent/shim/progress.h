// What the shim does with a progress line: which kind it is, and whether it comes too fast.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/progress/line.h"

namespace muster::shim {

inline constexpr int64_t kProgressLineBytes = 8 << 10;
inline constexpr int64_t kSecondNs = 1'000'000'000;
inline constexpr int kProgressLinesPerSecond = 100;
inline constexpr int kKeptReportsPerSecond = 1000;
inline constexpr int kDurableLines = 20;  // of each kind, in
inline constexpr int64_t kDurableWindowNs = 10 * kSecondNs;
// Once DIR/events is so large: the agent reads all of it when it starts, and it goes only with the
// attempt. Then there is one line of each kind in so long.
inline constexpr int64_t kManyEventsBytes = 16 << 20;
inline constexpr int64_t kSeldomWindowNs = 30 * kSecondNs;

enum class LineKind {
  kMetrics,     // only the newest matters
  kOther,       // metrics of a rank other than 0, or a rank's own time alone
  kCheckpoint,  // durable
  kDurable,     // export or loaded, as well or alone: the same, and not kept back by a flood of
                // checkpoints
};

LineKind KindOf(const agent::ProgressLine& line);

// How long a rank's own part of a step took, if the line says so: "own_time_s", its time before it
// waits for other ranks. The time of a whole step says nothing, as in a gang all take the slowest
// one's. nullopt: it doesn't.
struct StepTime {
  int32_t rank = 0;
  int64_t step = 0;
  int64_t own_us = 0;
};
std::optional<StepTime> StepTimeOf(const agent::ProgressLine& line);

// The newest steps of each rank, and their median: one slow step changes nothing. Not thread-safe.
class StepTimes {
 public:
  struct Row {
    int32_t rank = 0;
    int64_t step = 0;    // the newest
    int32_t steps = 0;   // that the median is of
    int64_t own_us = 0;  // the median
  };
  static constexpr size_t kSteps = 32;
  static constexpr size_t kRanks = 1024;

  // A step counts once; false: nothing is new.
  bool Add(const StepTime& time);
  std::vector<Row> Rows() const;  // by rank

 private:
  struct Rank {
    int64_t step = -1;
    std::vector<int64_t> own_us;  // of the newest kSteps, in a ring
    size_t next = 0;
  };
  std::map<int32_t, Rank> ranks_;
};

// DIR/times.
std::string FormatTimes(const std::vector<StepTimes::Row>& rows);
bool ParseTimes(std::string_view content, std::vector<StepTimes::Row>* rows, std::string* error);

// A report as it is kept: on one line, with the time it came.
std::string KeptReport(std::string_view json, int64_t at_ns);

// At most `limit` in so long, in fixed windows. Not thread-safe.
class RateLimit {
 public:
  explicit RateLimit(int limit, int64_t window_ns = kSecondNs)
      : limit_(limit), window_ns_(window_ns) {}
  bool Allow(int64_t now_ns);
  int64_t next_window_ns() const { return window_start_ns_ + window_ns_; }

 private:
  const int limit_;
  const int64_t window_ns_;
  int64_t window_start_ns_ = -1;
  int used_ = 0;
};

// Lines of one kind on their way to DIR/events. What comes too fast waits, and the newest takes the
// place of one that does.
class DurableLines {
 public:
  // False: one that waited is dropped for it.
  bool Put(std::string line);
  bool waits() const { return !line_.empty(); }
  // When to ask again.
  int64_t next_ns() const { return next_ns_; }
  // What may be written now; empty: nothing. `last`: at the end, whatever the rate. `seldom`: there
  // is much already.
  std::string Take(int64_t now_ns, bool last = false, bool seldom = false);

 private:
  RateLimit limit_{kDurableLines, kDurableWindowNs}, seldom_limit_{1, kSeldomWindowNs};
  int64_t next_ns_ = 0;
  std::string line_;
};

}  // namespace muster::shim
