#include "agent/shim/progress.h"

#include <stdlib.h>

#include <algorithm>
#include <utility>

#include "agent/shim/format.h"

namespace muster::shim {
namespace {

// A reader of JSON that checks nesting and strings, and leaves numbers and words to the agent's
// real parser.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  void SkipBlanks() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }
  bool Take(char c) {
    SkipBlanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool AtEnd() {
    SkipBlanks();
    return at_ == text_.size();
  }
  bool String(std::string_view* value) {
    if (!Take('"')) return false;
    const size_t start = at_;
    for (; at_ < text_.size(); ++at_) {
      if (text_[at_] == '\\') {
        ++at_;
      } else if (text_[at_] == '"') {
        *value = text_.substr(start, at_ - start);
        ++at_;
        return true;
      }
    }
    return false;
  }
  // Any value, up to the comma or bracket that ends it.
  bool Value(std::string_view* value) {
    SkipBlanks();
    const size_t start = at_;
    int depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        std::string_view ignored;
        if (!String(&ignored)) return false;
        continue;
      }
      if (depth == 0 && (c == ',' || c == '}')) break;
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
      if (depth < 0 || depth > 32) return false;
      ++at_;
    }
    *value = text_.substr(start, at_ - start);
    while (!value->empty() && (value->back() == ' ' || value->back() == '\t' ||
                               value->back() == '\n' || value->back() == '\r')) {
      value->remove_suffix(1);
    }
    return depth == 0 && !value->empty();
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

LineKind ClassifyProgress(std::string_view text) {
  if (text.size() > static_cast<size_t>(kProgressLineBytes)) return LineKind::kBad;
  Scanner scanner(text);
  if (!scanner.Take('{')) return LineKind::kBad;
  LineKind kind = LineKind::kMetrics;
  bool first = true, own_time = false, more = false;
  while (!scanner.Take('}')) {
    std::string_view key;
    std::string_view value;
    if ((!first && !scanner.Take(',')) || !scanner.String(&key) || !scanner.Take(':') ||
        !scanner.Value(&value))
      return LineKind::kBad;
    first = false;
    if (!value.empty() &&
        value[0] == '{') {  // all else is none of these to the agent, and would be kept for nothing
      if (key == "export" || key == "loaded") kind = LineKind::kDurable;
      if (key == "checkpoint" && kind != LineKind::kDurable) kind = LineKind::kCheckpoint;
    }
    if (key == "rank" && value != "0" && kind == LineKind::kMetrics) kind = LineKind::kOther;
    if (key == "own_time_s")
      own_time = true;
    else if (key != "rank" && key != "step")
      more = true;
  }
  if (kind == LineKind::kMetrics && own_time && !more)
    kind = LineKind::kOther;  // it would take the place of rank 0's metrics
  return scanner.AtEnd() ? kind : LineKind::kBad;
}

bool ReadStepTime(std::string_view text, StepTime* time) {
  Scanner scanner(text);
  if (!scanner.Take('{')) return false;
  *time = StepTime();
  double own_s = -1;
  bool stepped = false, first = true;
  while (!scanner.Take('}')) {
    std::string_view key, value;
    if ((!first && !scanner.Take(',')) || !scanner.String(&key) || !scanner.Take(':') ||
        !scanner.Value(&value))
      return false;
    first = false;
    if (value.size() > 40) continue;
    const std::string number(value);
    if (key == "rank") time->rank = static_cast<int32_t>(::strtol(number.c_str(), nullptr, 10));
    if (key == "step") {
      time->step = ::strtoll(number.c_str(), nullptr, 10);
      stepped = true;
    }
    if (key == "own_time_s") own_s = ::strtod(number.c_str(), nullptr);
  }
  if (!stepped || time->rank < 0 || time->step < 0 || !(own_s > 0 && own_s < 1e6)) return false;
  time->own_us = static_cast<int64_t>(own_s * 1e6);
  return true;
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

std::string DurableLines::Take(int64_t now_ns, bool last) {
  return line_.empty() || !(last || limit_.Allow(now_ns)) ? std::string()
                                                          : std::exchange(line_, {});
}

}  // namespace muster::shim
