#include "common/base/units.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/view.h"

namespace muster {
namespace {

// A decimal number at the start of *text, scaled by `scale` exactly (rounded down); consumes it.
// False: none, or too large.
bool TakeScaled(std::string_view* text, int64_t scale, size_t* consumed, __int128* value) {
  size_t i = 0;
  __int128 whole = 0, fraction = 0, divisor = 1;
  bool digits = false;
  for (; i < text->size() && (*text)[i] >= '0' && (*text)[i] <= '9'; ++i) {
    digits = true;
    whole = whole * 10 + ((*text)[i] - '0');
    if (whole > (static_cast<__int128>(1) << 62)) return false;
  }
  if (i < text->size() && (*text)[i] == '.') {
    ++i;
    bool fraction_digits = false;
    for (; i < text->size() && (*text)[i] >= '0' && (*text)[i] <= '9'; ++i) {
      fraction_digits = true;
      if (divisor < 1'000'000'000'000'000) {
        fraction = fraction * 10 + ((*text)[i] - '0');
        divisor *= 10;
      }
    }
    if (!fraction_digits) return false;
  }
  if (!digits) return false;
  *consumed = i;
  *value = whole * scale + fraction * scale / divisor;
  return true;
}

struct Unit {
  std::string_view name;
  int64_t scale;
};

}  // namespace

absl::StatusOr<int64_t> ParseDuration(std::string_view text) {
  static constexpr std::array<Unit, 7> kUnits = {{{"ns", 1},
                                                  {"us", 1'000},
                                                  {"ms", kMillisecond},
                                                  {"s", kSecond},
                                                  {"m", kMinute},
                                                  {"h", kHour},
                                                  {"d", kDay}}};
  const auto wrong = [&](std::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", View(text), "\" is no duration", View(why),
                     "; write a number with a unit, such as 90s, 10m, 1h30m or 7d"));
  };
  if (text == "0") return 0;
  std::string_view rest = text;
  __int128 total = 0;
  if (rest.empty()) return wrong("");
  if (text.find(' ') != std::string_view::npos) return wrong(" (a blank is in it)");
  while (!rest.empty()) {
    size_t number_size = 0;
    __int128 ignored = 0;
    if (!TakeScaled(&rest, 1, &number_size, &ignored)) return wrong("");
    size_t unit_end = number_size;
    while (unit_end < rest.size() && rest[unit_end] >= 'a' && rest[unit_end] <= 'z') ++unit_end;
    const std::string_view unit = rest.substr(number_size, unit_end - number_size);
    int64_t scale = 0;
    for (const Unit& candidate : kUnits) {
      if (candidate.name == unit) scale = candidate.scale;
    }
    if (scale == 0) return unit.empty() ? wrong(": the unit is missing") : wrong("");
    __int128 value = 0;
    if (!TakeScaled(&rest, scale, &number_size, &value)) return wrong("");
    total += value;
    if (total > static_cast<__int128>(3650) * kDay) return wrong(" below 10 years");
    rest.remove_prefix(unit_end);
  }
  return static_cast<int64_t>(total);
}

absl::StatusOr<int64_t> ParseSize(std::string_view text) {
  static constexpr std::array<Unit, 13> kUnits = {{{"", 1},
                                                   {"B", 1},
                                                   {"kB", 1'000},
                                                   {"KB", 1'000},
                                                   {"MB", 1'000'000},
                                                   {"GB", 1'000'000'000},
                                                   {"TB", 1'000'000'000'000},
                                                   {"PB", 1'000'000'000'000'000},
                                                   {"KiB", int64_t{1} << 10},
                                                   {"MiB", int64_t{1} << 20},
                                                   {"GiB", int64_t{1} << 30},
                                                   {"TiB", int64_t{1} << 40},
                                                   {"PiB", int64_t{1} << 50}}};
  const auto wrong = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", View(text),
                     "\" is no size; write a number with a unit, such as 512MiB, 64GiB or 2TB"));
  };
  std::string_view rest = text;
  size_t number_size = 0;
  __int128 value = 0;
  if (!TakeScaled(&rest, 1, &number_size, &value)) return wrong();
  const std::string_view unit = rest.substr(number_size);
  for (const Unit& candidate : kUnits) {
    if (candidate.name != unit) continue;
    if (!TakeScaled(&rest, candidate.scale, &number_size, &value)) return wrong();
    if (value > (static_cast<__int128>(1) << 60)) return wrong();
    return static_cast<int64_t>(value);
  }
  return wrong();
}

absl::StatusOr<int64_t> ParseMilli(std::string_view text) {
  std::string_view rest = text;
  size_t number_size = 0;
  __int128 micro = 0;
  if (!TakeScaled(&rest, 1'000'000, &number_size, &micro) || number_size != text.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", View(text), "\" is no number; write 8 or 0.5"));
  }
  if (micro % 1000 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", View(text), "\" has more than three decimals"));
  }
  if (micro / 1000 > (static_cast<__int128>(1) << 42)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", View(text), "\" is too large; at most ", FormatMilli(int64_t{1} << 42)));
  }
  return static_cast<int64_t>(micro / 1000);
}

std::string FormatDuration(int64_t duration_ns) {
  if (duration_ns < 0) return absl::StrCat("-", FormatDuration(-duration_ns));
  if (duration_ns == 0) return "0s";
  if (duration_ns < kMillisecond) return absl::StrCat(duration_ns / 1000, "us");
  if (duration_ns < kSecond) return absl::StrCat(duration_ns / kMillisecond, "ms");
  if (duration_ns < kMinute) {
    const int64_t tenths = duration_ns / (kSecond / 10);
    return tenths % 10 == 0 ? absl::StrCat(tenths / 10, "s")
                            : absl::StrCat(tenths / 10, ".", tenths % 10, "s");
  }
  const auto two = [&](int64_t big, std::string_view big_name, int64_t small,
                       std::string_view small_name) {
    const int64_t rest = duration_ns % big / small;
    std::string out = absl::StrCat(duration_ns / big, View(big_name));
    if (rest != 0) absl::StrAppend(&out, rest, View(small_name));
    return out;
  };
  if (duration_ns < kHour) return two(kMinute, "m", kSecond, "s");
  if (duration_ns < kDay) return two(kHour, "h", kMinute, "m");
  return two(kDay, "d", kHour, "h");
}

std::string FormatSize(int64_t bytes) {
  static constexpr std::array<Unit, 5> kUnits = {{{"PiB", int64_t{1} << 50},
                                                  {"TiB", int64_t{1} << 40},
                                                  {"GiB", int64_t{1} << 30},
                                                  {"MiB", int64_t{1} << 20},
                                                  {"KiB", int64_t{1} << 10}}};
  for (const Unit& unit : kUnits) {
    if (bytes < unit.scale) continue;
    const int64_t tenths = static_cast<int64_t>(static_cast<__int128>(bytes) * 10 / unit.scale);
    return tenths % 10 == 0 ? absl::StrCat(tenths / 10, View(unit.name))
                            : absl::StrCat(tenths / 10, ".", tenths % 10, View(unit.name));
  }
  return absl::StrCat(bytes, "B");
}

std::string FormatMilli(int64_t milli) {
  const std::string sign = milli < 0 ? "-" : "";
  const int64_t magnitude = milli < 0 ? -milli : milli;
  if (magnitude % 1000 == 0) return absl::StrCat(sign, magnitude / 1000);
  std::string fraction = absl::StrFormat("%03d", magnitude % 1000);
  while (fraction.back() == '0') fraction.pop_back();
  return absl::StrCat(sign, magnitude / 1000, ".", fraction);
}

}  // namespace muster
