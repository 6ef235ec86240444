// Times as a crontab writes them.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"
#include "absl/time/time.h"

namespace muster {

// Minute, hour, day of the month, month, day of the week, each a list of numbers, names and ranges,
// or *, with steps. As in Vixie's cron, the day is one that either day field names if both are
// given, and one that both name if one of them begins with *. A value; thread-safe.
class Cron {
 public:
  // "0 3 * * 1-5", "*/15 8-18 * * mon-fri", "@daily". INVALID_ARGUMENT: the field that is wrong and
  // what it may be.
  static absl::StatusOr<Cron> Parse(std::string_view text);

  // The first of its minutes after that Unix time, by the zone's clocks. nullopt: none in twelve
  // years. Where clocks are set forward, a time that they leave out is the moment at which they
  // are set. Where they are set back, a time that comes twice is the first of both, but if the hour
  // field begins with *: then it is both.
  std::optional<int64_t> NextNs(int64_t after_ns, const absl::TimeZone& zone) const;

 private:
  bool Includes(absl::CivilDay day) const;
  // The first of its minutes that isn't before `from`.
  std::optional<absl::CivilMinute> From(absl::CivilMinute from) const;
  std::optional<int64_t> NextOfAnyHour(absl::Time after, const absl::TimeZone& zone) const;
  std::optional<int64_t> NextOfFixedHours(absl::Time after, const absl::TimeZone& zone) const;

  // By the numbers of the fields.
  std::bitset<64> minutes_, hours_, days_, months_;
  std::bitset<64> weekdays_;  // Sunday is 0
  bool any_hour_ = false;     // the field begins with *
  bool any_day_ = false;
  bool any_weekday_ = false;
};

// The time zone of that name, such as Europe/Berlin, from this machine's files; empty: UTC.
// nullopt: there is none.
std::optional<absl::TimeZone> FindTimeZone(const std::string& name);

}  // namespace muster
