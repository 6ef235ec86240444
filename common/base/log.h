// Logs: one event a line, with fields: `2026-11-21T04:00:00.123Z info attempt placed job=42
// task=train attempt=3`. Thread-safe. Everything goes to stderr; stdout belongs to data.
#pragma once

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace muster {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

void SetLogLevel(LogLevel level);
bool ParseLogLevel(std::string_view text, LogLevel* level);  // debug, info, warn, error

// A field `key=value`; values with blanks, quotes or control characters are quoted and escaped.
class LogField {
 public:
  LogField(std::string_view key, std::string_view value);
  LogField(std::string_view key, const char* value) : LogField(key, std::string_view(value)) {}
  LogField(std::string_view key, const std::string& value)
      : LogField(key, std::string_view(value)) {}
  LogField(std::string_view key, bool value)
      : LogField(key, std::string_view(value ? "true" : "false")) {}
  template <typename Number, typename = std::enable_if_t<std::is_arithmetic_v<Number>>>
  LogField(std::string_view key, Number value)
      : LogField(key, std::string_view(absl::StrCat(value))) {}

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void LogEvent(LogLevel level, std::string_view event, std::initializer_list<LogField> fields);

inline void LogInfo(std::string_view event, std::initializer_list<LogField> fields = {}) {
  LogEvent(LogLevel::kInfo, event, fields);
}
inline void LogWarn(std::string_view event, std::initializer_list<LogField> fields = {}) {
  LogEvent(LogLevel::kWarn, event, fields);
}
inline void LogError(std::string_view event, std::initializer_list<LogField> fields = {}) {
  LogEvent(LogLevel::kError, event, fields);
}

}  // namespace muster
