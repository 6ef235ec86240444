#include "agent/shim/progress.h"

#include <algorithm>
#include <utility>

#include "agent/shim/format.h"

namespace muster::shim {
LineKind KindOf(const agent::ProgressLine& line) {
  if (line.exported.has_value() || line.loaded.has_value()) return LineKind::kDurable;
  if (line.checkpoint.has_value()) return LineKind::kCheckpoint;
  // An own time alone would take the place of rank 0's metrics.
  return line.rank != 0 || line.own_time_alone ? LineKind::kOther : LineKind::kMetrics;
}

std::optional<StepTime> StepTimeOf(const agent::ProgressLine& line) {
  if (!line.metrics.has_value() || line.rank < 0 || !(line.own_time_s > 0 && line.own_time_s < 1e6))
    return std::nullopt;
  return StepTime{line.rank, line.metrics->step, static_cast<int64_t>(line.own_time_s * 1e6)};
}

bool StepTimes::Add(const StepTime& time) {
  if (ranks_.size() >= kRanks && !ranks_.contains(time.rank)) return false;
  Rank& rank = ranks_[time.rank];
  if (time.step <= rank.step) return false;
  rank.step = time.step;
  if (rank.own_us.size() < kSteps) {
    rank.own_us.push_back(time.own_us);
  } else {
    rank.own_us[rank.next] = time.own_us;
    rank.next = (rank.next + 1) % kSteps;
  }
  return true;
}

std::vector<StepTimes::Row> StepTimes::Rows() const {
  std::vector<Row> rows;
  for (const auto& [number, rank] : ranks_) {
    std::vector<int64_t> sorted = rank.own_us;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2),
                     sorted.end());
    rows.push_back(
        {number, rank.step, static_cast<int32_t>(sorted.size()), sorted[sorted.size() / 2]});
  }
  return rows;
}

std::string FormatTimes(const std::vector<StepTimes::Row>& rows) {
  std::vector<Line> lines;
  for (const StepTimes::Row& row : rows)
    lines.push_back(Line{"time"}
                        .Add("rank", row.rank)
                        .Add("step", row.step)
                        .Add("steps", row.steps)
                        .Add("own_us", row.own_us));
  return FormatFile("muster-shim-times", lines);
}

bool ParseTimes(std::string_view content, std::vector<StepTimes::Row>* rows, std::string* error) {
  std::vector<Line> lines;
  if (!ParseFile(content, "muster-shim-times", &lines, error)) return false;
  rows->clear();
  for (const Line& line : lines) {
    int64_t rank = 0, steps = 0;
    StepTimes::Row row;
    if (line.kind != "time" || !line.GetInt("rank", &rank) || !line.GetInt("step", &row.step) ||
        !line.GetInt("steps", &steps) || !line.GetInt("own_us", &row.own_us) || rank < 0 ||
        rank > INT32_MAX || row.step < 0 || steps < 0 || steps > INT32_MAX || row.own_us < 0) {
      *error = "muster-shim-times: bad line " + line.kind;
      return false;
    }
    row.rank = static_cast<int32_t>(rank);
    row.steps = static_cast<int32_t>(steps);
    rows->push_back(row);
  }
  return true;
}

std::string KeptReport(std::string_view json, int64_t at_ns) {
  const size_t begin = std::min(json.find('{'), json.size() - 1) + 1;
  std::string line = "{\"at_ns\":" + std::to_string(at_ns) + "," + std::string(json.substr(begin));
  std::replace_if(line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return line;
}

bool RateLimit::Allow(int64_t now_ns) {
  if (window_start_ns_ < 0 || now_ns - window_start_ns_ >= window_ns_ ||
      now_ns < window_start_ns_) {
    window_start_ns_ = now_ns;
    used_ = 0;
  }
  if (used_ >= limit_) return false;
  ++used_;
  return true;
}

bool DurableLines::Put(std::string line) {
  const bool alone = line_.empty();
  line_ = std::move(line);
  return alone;
}

std::string DurableLines::Take(int64_t now_ns, bool last, bool seldom) {
  if (line_.empty()) return {};
  RateLimit& limit = seldom ? seldom_limit_ : limit_;
  const bool may = last || limit.Allow(now_ns);
  next_ns_ = limit.next_window_ns();
  return may ? std::exchange(line_, {}) : std::string();
}

}  // namespace muster::shim
