// Units as users write them: durations (`10m`, `1h30m`, `250ms`) and sizes (`64GiB`, `2MB`); and
// how they are shown.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace muster {

inline constexpr int64_t kMillisecond = 1'000'000;  // nanoseconds
inline constexpr int64_t kSecond = 1'000'000'000;
inline constexpr int64_t kMinute = 60 * kSecond;
inline constexpr int64_t kHour = 60 * kMinute;
inline constexpr int64_t kDay = 24 * kHour;

// "1h30m", "2.5s", "250ms", "7d", "0". INVALID_ARGUMENT says what would be right. Never negative,
// at most 10 years.
absl::StatusOr<int64_t> ParseDuration(std::string_view text);
// "64GiB", "2MB", "512", "1.5TiB": bytes. Binary (KiB … PiB) and decimal (kB, KB … PB) units. At
// most 2^60.
absl::StatusOr<int64_t> ParseSize(std::string_view text);
// "0.5" -> 500, "8" -> 8000. At most three decimals; never negative.
absl::StatusOr<int64_t> ParseMilli(std::string_view text);

std::string FormatDuration(
    int64_t duration_ns);  // shortest exact form in two units: "1h30m", "250ms", "3.2s"
std::string FormatSize(int64_t bytes);   // "64GiB", "1.5GiB", "512B"
std::string FormatMilli(int64_t milli);  // "8", "0.5"

}  // namespace muster
