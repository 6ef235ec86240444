#include "cli/commands/at_time.h"

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "common/spec/when.h"

namespace muster {
namespace {

std::string Rfc3339(absl::Time at, const absl::TimeZone& zone) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%S%Ez", at, zone);
}

}  // namespace

absl::StatusOr<std::string> InstantOf(const std::string& text, int64_t now_ns,
                                      const absl::TimeZone& zone) {
  if (ParseInstantNs(text).has_value()) return text;
  const absl::Time now = absl::FromUnixNanos(now_ns);
  if (!text.empty() && text[0] == '+') {
    const absl::StatusOr<int64_t> ahead_ns = ParseDuration(text.substr(1));
    if (ahead_ns.ok()) {
      // In whole seconds, and no earlier than asked for.
      const absl::Duration at = absl::Nanoseconds(now_ns) + absl::Nanoseconds(*ahead_ns);
      return Rfc3339(absl::UnixEpoch() + absl::Ceil(at, absl::Seconds(1)), zone);
    }
  }
  absl::Time at;
  std::string error;
  for (const char* format :
       {"%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S"}) {
    if (absl::ParseTime(format, text, zone, &at, &error)) return Rfc3339(at, zone);
  }
  const std::string today = absl::FormatTime("%Y-%m-%d ", now, zone);
  if (absl::ParseTime("%Y-%m-%d %H:%M", absl::StrCat(today, text), zone, &at, &error)) {
    if (at <= now) at = absl::FromCivil(zone.At(at).cs + 86'400, zone);
    return Rfc3339(at, zone);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text,
                   "\" is no time; write 03:00, \"2026-12-24 03:00\" (by this machine's clock), "
                   "+2h, or 2026-12-24T03:00:00Z"));
}

}  // namespace muster
