#include "agent/shim/progress.h"

namespace muster::shim {
namespace {

// A reader of JSON that checks nesting and strings, and leaves numbers and words to the agent's real parser.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  void SkipBlanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) ++at_;
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
    while (!value->empty() && (value->back() == ' ' || value->back() == '\t' || value->back() == '\n' || value->back() == '\r')) {
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
  bool first = true;
  while (!scanner.Take('}')) {
    std::string_view key;
    std::string_view value;
    if ((!first && !scanner.Take(',')) || !scanner.String(&key) || !scanner.Take(':') || !scanner.Value(&value)) return LineKind::kBad;
    first = false;
    if (key == "checkpoint" || key == "export" || key == "loaded") kind = LineKind::kDurable;
    if (key == "rank" && value != "0" && kind == LineKind::kMetrics) kind = LineKind::kOther;
  }
  return scanner.AtEnd() ? kind : LineKind::kBad;
}

bool RateLimit::Allow(int64_t now_ns) {
  if (window_start_ns_ < 0 || now_ns - window_start_ns_ >= 1'000'000'000 || now_ns < window_start_ns_) {
    window_start_ns_ = now_ns;
    used_ = 0;
  }
  return used_++ < limit_;
}

}  // namespace muster::shim
