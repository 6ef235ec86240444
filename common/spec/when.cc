#include "common/spec/when.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/time/time.h"
#include "common/base/cron.h"

namespace muster {

std::optional<int64_t> ParseInstantNs(const std::string& text) {
  constexpr size_t kMaxBytes = 64;
  absl::Time time;
  std::string error;
  // By the first digit: absl reads "infinite-future", too.
  const bool starts_well =
      !text.empty() && absl::ascii_isdigit(static_cast<unsigned char>(text[0]));
  if (!starts_well || text.size() > kMaxBytes ||
      !absl::ParseTime(absl::RFC3339_full, text, &time, &error))
    return std::nullopt;
  const bool in_range = time >= absl::UnixEpoch() &&
                        time < absl::FromCivil(absl::CivilYear(2262), absl::UTCTimeZone());
  if (!in_range) return std::nullopt;
  return absl::ToUnixNanos(time);
}

void ClearTimes(pb::JobSpec* spec) {
  spec->clear_not_before();
  spec->clear_schedule();
}

std::optional<int64_t> NextTimeNs(const pb::Schedule& schedule, int64_t after_ns) {
  const absl::StatusOr<Cron> cron = Cron::Parse(schedule.cron());
  const std::optional<absl::TimeZone> zone = FindTimeZone(schedule.zone());
  if (!cron.ok() || !zone.has_value()) return std::nullopt;
  return cron->NextNs(after_ns, *zone).value_or(0);
}

std::optional<int64_t> FirstTimeNs(const pb::JobSpec& spec, int64_t now_ns) {
  const int64_t not_before_ns = ParseInstantNs(spec.not_before()).value_or(0);
  if (!spec.has_schedule()) return not_before_ns > now_ns ? not_before_ns : 0;
  // A time that is `not_before` itself counts.
  const std::optional<int64_t> first_ns =
      NextTimeNs(spec.schedule(), std::max(now_ns, not_before_ns - 1));
  return first_ns == 0 ? std::nullopt : first_ns;
}

}  // namespace muster
