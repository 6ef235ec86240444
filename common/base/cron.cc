#include "common/base/cron.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/view.h"

namespace muster {
namespace {

constexpr int kYearsAhead = 12;  // 29 February may be eight years away
constexpr size_t kMaxTextBytes = 256;
constexpr size_t kMaxZoneBytes = 64;

struct Field {
  const char* name;
  int least;
  int most;
  const char* words;  // names of its values from `first_word` on, three letters each; empty: none
  int first_word;
};

constexpr std::array<Field, 5> kFields = {
    Field{"minute", 0, 59, "", 0}, Field{"hour", 0, 23, "", 0},
    Field{"day of the month", 1, 31, "", 0},
    Field{"month", 1, 12, "janfebmaraprmayjunjulaugsepoctnovdec", 1},
    Field{"day of the week", 0, 7, "sunmontuewedthufrisat", 0}};

absl::Status Wrong(const Field& field, std::string_view part) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the ", field.name, " \"", View(part), "\" must be *, or numbers from ", field.least, " to ",
      field.most, field.words[0] == '\0' ? "" : " or names",
      ", with ranges (a-b, which don't wrap), steps (/n behind * or a range) and commas"));
}

// A number or a name; -1: neither, or out of range.
int ValueOf(const Field& field, std::string_view text) {
  constexpr size_t kLetters = 3;
  int value = -1;
  if (!text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
      absl::SimpleAtoi(View(text), &value))
    return value >= field.least && value <= field.most ? value : -1;
  if (text.size() != kLetters) return -1;
  const std::string word = absl::AsciiStrToLower(View(text));
  const std::string_view words = field.words;
  for (size_t at = 0; at < words.size(); at += kLetters) {
    if (words.substr(at, kLetters) == word)
      return field.first_word + static_cast<int>(at / kLetters);
  }
  return -1;
}

// One part of a field's list: *, 7, 1-5, and with /2 behind * or a range every second of these.
// False: it is none.
bool AddPart(const Field& field, std::string_view part, std::bitset<64>* values) {
  const size_t slash = part.find('/');
  const std::string_view range = part.substr(0, slash);
  int step = 1, first = field.least, last = field.most;
  if (range != "*") {
    const size_t dash = range.find('-');
    first = ValueOf(field, range.substr(0, dash));
    last = dash == std::string_view::npos ? first : ValueOf(field, range.substr(dash + 1));
    if (dash == std::string_view::npos && slash != std::string_view::npos) return false;
  }
  if (slash != std::string_view::npos) {
    const std::string_view text = part.substr(slash + 1);
    if (text.empty() || !std::all_of(text.begin(), text.end(), absl::ascii_isdigit) ||
        !absl::SimpleAtoi(View(text), &step) || step < 1)
      return false;
  }
  if (first < 0 || last < first) return false;
  for (int value = first; value <= last; value += std::min(step, field.most + 1))
    values->set(static_cast<size_t>(value));
  return true;
}

std::string_view Spelled(std::string_view text) {
  if (text == "@yearly" || text == "@annually") return "0 0 1 1 *";
  if (text == "@monthly") return "0 0 1 * *";
  if (text == "@weekly") return "0 0 * * 0";
  if (text == "@daily" || text == "@midnight") return "0 0 * * *";
  if (text == "@hourly") return "0 * * * *";
  return text;
}

}  // namespace

absl::StatusOr<Cron> Cron::Parse(std::string_view text) {
  if (text.size() > kMaxTextBytes)
    return absl::InvalidArgumentError(absl::StrCat("is longer than ", kMaxTextBytes, " bytes"));
  const std::vector<std::string> parts =
      absl::StrSplit(View(Spelled(text)), absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (parts.size() != kFields.size())
    return absl::InvalidArgumentError(absl::StrCat(
        "must be five fields: minute, hour, day of the month, month, day of the week, such as \"0 "
        "3 * * 1-5\"; or @hourly, @daily, @weekly, @monthly, @yearly; got \"",
        View(text), "\""));
  Cron cron;
  const std::array<std::bitset<64>*, kFields.size()> values = {
      &cron.minutes_, &cron.hours_, &cron.days_, &cron.months_, &cron.weekdays_};
  for (size_t f = 0; f < kFields.size(); ++f) {
    for (const absl::string_view part : absl::StrSplit(parts[f], ',')) {
      if (!AddPart(kFields[f], {part.data(), part.size()}, values[f]))
        return Wrong(kFields[f], parts[f]);
    }
  }
  if (cron.weekdays_[7]) cron.weekdays_.set(0);
  cron.any_hour_ = parts[1][0] == '*';
  cron.any_day_ = parts[2][0] == '*';
  cron.any_weekday_ = parts[4][0] == '*';
  return cron;
}

bool Cron::Includes(absl::CivilDay day) const {
  const bool by_day = days_[static_cast<size_t>(day.day())];
  // absl's Monday is 0.
  const bool by_weekday = weekdays_[(static_cast<size_t>(absl::GetWeekday(day)) + 1) % 7];
  return any_day_ || any_weekday_ ? by_day && by_weekday : by_day || by_weekday;
}

std::optional<absl::CivilMinute> Cron::From(absl::CivilMinute from) const {
  const absl::CivilYear end = absl::CivilYear(from) + kYearsAhead;
  for (absl::CivilDay day(from); absl::CivilYear(day) <= end;) {
    if (!months_[static_cast<size_t>(day.month())]) {
      day = absl::CivilDay(absl::CivilMonth(day) + 1);
      continue;
    }
    if (Includes(day)) {
      const bool first_day = day == absl::CivilDay(from);
      for (int hour = first_day ? from.hour() : 0; hour < 24; ++hour) {
        if (!hours_[static_cast<size_t>(hour)]) continue;
        const bool first_hour = first_day && hour == from.hour();
        for (int minute = first_hour ? from.minute() : 0; minute < 60; ++minute) {
          if (minutes_[static_cast<size_t>(minute)])
            return absl::CivilMinute(day.year(), day.month(), day.day(), hour, minute);
        }
      }
    }
    ++day;
  }
  return std::nullopt;
}

// From one change of the zone's offset to the next, as each piece is like a zone without changes.
std::optional<int64_t> Cron::NextOfAnyHour(absl::Time after, const absl::TimeZone& zone) const {
  const absl::Time end = after + absl::Hours(24 * 366 * kYearsAhead);
  absl::Time from = absl::FromUnixSeconds(absl::ToUnixSeconds(after));
  bool at_change = false;  // `from` itself counts: it is after `after`
  while (from < end) {
    const absl::CivilSecond civil = zone.At(from).cs;
    absl::CivilMinute minute(civil);
    if (!at_change || absl::CivilSecond(minute) < civil) ++minute;
    const std::optional<absl::CivilMinute> next = From(minute);
    if (!next.has_value()) return std::nullopt;
    const absl::Time at = from + absl::Seconds(absl::CivilSecond(*next) - civil);
    absl::TimeZone::CivilTransition change;
    const bool changes = zone.NextTransition(from, &change);
    const absl::Time change_at =
        changes ? from + absl::Seconds(change.from - civil) : absl::InfiniteFuture();
    if (at < change_at) return absl::ToUnixNanos(at);
    from = change_at;
    at_change = true;
  }
  return std::nullopt;
}

std::optional<int64_t> Cron::NextOfFixedHours(absl::Time after, const absl::TimeZone& zone) const {
  absl::CivilMinute from = absl::CivilMinute(zone.At(after).cs) + 1;
  while (const std::optional<absl::CivilMinute> next = From(from)) {
    const absl::TimeZone::TimeInfo info = zone.At(absl::CivilSecond(*next));
    const absl::Time at = info.kind == absl::TimeZone::TimeInfo::SKIPPED ? info.trans : info.pre;
    if (at > after) return absl::ToUnixNanos(at);
    from = *next + 1;  // it came before `after`, which is in the second of two equal hours
  }
  return std::nullopt;
}

std::optional<int64_t> Cron::NextNs(int64_t after_ns, const absl::TimeZone& zone) const {
  const absl::Time after = absl::FromUnixNanos(after_ns);
  return any_hour_ ? NextOfAnyHour(after, zone) : NextOfFixedHours(after, zone);
}

std::optional<absl::TimeZone> FindTimeZone(const std::string& name) {
  if (name.empty() || name == "UTC") return absl::UTCTimeZone();
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '+' ||
           c == '/';
  });
  // A path would be read as a zone's file, and what is this machine's zone is another one
  // elsewhere.
  if (!plain || name.size() > kMaxZoneBytes || name[0] == '/' || name == "localtime" ||
      name == "posixrules" || name == "Factory")
    return std::nullopt;
  // absl remembers for ever that it did not find a name.
  const char* files = std::getenv("TZDIR");  // NOLINT(concurrency-mt-unsafe): nobody sets it
  std::error_code error;
  if (!std::filesystem::is_regular_file(
          absl::StrCat(files == nullptr ? "/usr/share/zoneinfo" : files, "/", name), error))
    return std::nullopt;
  absl::TimeZone zone;
  if (!absl::LoadTimeZone(name, &zone)) return std::nullopt;
  return zone;
}

}  // namespace muster
