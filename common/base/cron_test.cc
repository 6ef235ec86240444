#include "common/base/cron.h"

#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace muster {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

absl::TimeZone Zone(const std::string& name) {
  const std::optional<absl::TimeZone> zone = FindTimeZone(name);
  EXPECT_TRUE(zone.has_value()) << name << " (tzdata)";
  return zone.value_or(absl::UTCTimeZone());
}

int64_t NsOf(const std::string& rfc3339) {
  absl::Time time;
  std::string error;
  EXPECT_TRUE(absl::ParseTime(absl::RFC3339_full, rfc3339, &time, &error)) << rfc3339;
  return absl::ToUnixNanos(time);
}

std::string TextOf(std::optional<int64_t> at_ns) {
  if (!at_ns.has_value()) return "never";
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixNanos(*at_ns), absl::UTCTimeZone());
}

TEST(Cron, FindsTheNextTime) {
  const struct {
    const char *cron, *zone, *after, *next;
  } cases[] = {
      {"0 3 * * *", "", "2026-11-26T02:59:59Z", "2026-11-26T03:00:00Z"},
      {"0 3 * * *", "", "2026-11-26T03:00:00Z", "2026-11-27T03:00:00Z"},
      {"*/15 * * * *", "", "2026-11-26T03:01:30.5Z", "2026-11-26T03:15:00Z"},
      {"5-59/20 8-9 * * *", "", "2026-11-26T08:46:00Z", "2026-11-26T09:05:00Z"},
      {"0 0 1 1 *", "", "2026-11-26T00:00:00Z", "2027-01-01T00:00:00Z"},
      {"@weekly", "", "2026-11-26T00:00:00Z", "2026-11-29T00:00:00Z"},
      {"0 0 * * 7", "", "2026-11-26T00:00:00Z", "2026-11-29T00:00:00Z"},
      {"0 0 * * MON-fri", "", "2026-11-27T00:00:00Z", "2026-11-30T00:00:00Z"},
      {"0 0 29 feb *", "", "2097-01-01T00:00:00Z", "2104-02-29T00:00:00Z"},
      {"0 0 30 2 *", "", "2026-01-01T00:00:00Z", "never"},
      // Both day fields: one of them is enough; with a * both are asked.
      {"0 0 13 * 5", "", "2026-11-26T00:00:00Z", "2026-11-27T00:00:00Z"},
      {"0 0 */2 * 5", "", "2026-11-26T00:00:00Z", "2026-11-27T00:00:00Z"},
      {"0 0 */2 * 6", "", "2026-11-26T00:00:00Z", "2026-12-05T00:00:00Z"},
      {"0 3 * * *", "Europe/Berlin", "2026-11-26T00:00:00Z", "2026-11-26T02:00:00Z"},
      {"0 3 * * *", "Asia/Kolkata", "2026-11-26T00:00:00Z", "2026-11-26T21:30:00Z"},
      // Clocks go from 02:00 to 03:00 at 2026-03-29T01:00Z.
      {"30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z"},
      {"30 2 * * *", "Europe/Berlin", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"},
      {"30 * * * *", "Europe/Berlin", "2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z"},
      // And from 03:00 to 02:00 at 2026-10-25T01:00Z.
      {"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"},
      {"30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"},
      {"30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", "2026-10-26T01:30:00Z"},
      {"30 * * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"},
      {"0 * * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z"},
  };
  for (const auto& c : cases) {
    const absl::StatusOr<Cron> cron = Cron::Parse(c.cron);
    ASSERT_TRUE(cron.ok()) << c.cron << ": " << cron.status();
    EXPECT_EQ(TextOf(cron->NextNs(NsOf(c.after), Zone(c.zone))), c.next)
        << c.cron << " in " << c.zone << " after " << c.after;
  }
}

TEST(Cron, SaysWhichFieldIsWrong) {
  const struct {
    const char *cron, *says;
  } cases[] = {
      {"", "must be five fields"},
      {"0 3 * *", "must be five fields"},
      {"0 3 * * * *", "must be five fields"},
      {"@often", "must be five fields"},
      {"60 3 * * *", "the minute \"60\" must be *, or numbers from 0 to 59"},
      {"0 24 * * *", "the hour \"24\""},
      {"0 3 0 * *", "the day of the month \"0\""},
      {"0 3 * jan-may/0 *", "the month \"jan-may/0\""},
      {"0 3 * * 5-1", "the day of the week \"5-1\" must be *, or numbers from 0 to 7 or names"},
      {"0 3 * * sunday", "the day of the week \"sunday\""},
      {"-1 3 * * *", "the minute \"-1\""},
      {"1, 3 * * *", "the minute \"1,\""},
      {"5/10 3 * * *", "the minute \"5/10\""},
      {"*/99999999999 3 * * *", "the minute"},
  };
  for (const auto& c : cases) {
    const absl::StatusOr<Cron> cron = Cron::Parse(c.cron);
    ASSERT_FALSE(cron.ok()) << c.cron;
    EXPECT_NE(std::string(cron.status().message()).find(c.says), std::string::npos)
        << cron.status();
  }
  EXPECT_FALSE(Cron::Parse(std::string(1000, '*')).ok());
}

TEST(Cron, ZonesAreNamesNotPaths) {
  for (const char* bad : {"/etc/localtime", "../zoneinfo/UTC", "Nowhere/City", "file:/etc/passwd",
                          "localtime", "Europe"})
    EXPECT_FALSE(FindTimeZone(bad).has_value()) << bad;
  EXPECT_TRUE(FindTimeZone("").has_value());
}

// Minute by minute, by what each field says: another way to the same times.
class EachMinute {
 public:
  EachMinute(const std::string& cron, absl::TimeZone zone) : zone_(zone) {
    fields_ = absl::StrSplit(cron, ' ');
  }

  // In a zone whose clocks change there, as the crontab's hours begin with * or not.
  std::optional<int64_t> Next(int64_t after_ns) const {
    absl::Time at = absl::FromUnixSeconds(after_ns / kSecondNs / 60 * 60);
    for (int minutes = 0; minutes < 60 * 24 * 800; ++minutes) {
      at += absl::Minutes(1);
      const absl::CivilMinute civil(zone_.At(at).cs);
      const absl::TimeZone::TimeInfo info = zone_.At(absl::CivilSecond(civil));
      if (fields_[1][0] == '*') {
        if (Matches(civil)) return absl::ToUnixNanos(at);
        continue;
      }
      const bool second_of_two = info.kind == absl::TimeZone::TimeInfo::REPEATED && at != info.pre;
      if (Matches(civil) && !second_of_two) return absl::ToUnixNanos(at);
      // What the clocks left out just now.
      const absl::CivilMinute before(zone_.At(at - absl::Minutes(1)).cs);
      for (absl::CivilMinute skipped = before + 1; skipped < civil; ++skipped) {
        if (Matches(skipped)) return absl::ToUnixNanos(at);
      }
    }
    return std::nullopt;
  }

 private:
  static bool Has(const std::string& field, int value) {
    for (const std::string& part : std::vector<std::string>(absl::StrSplit(field, ','))) {
      const std::vector<std::string> by_step = absl::StrSplit(part, '/');
      const int step = by_step.size() > 1 ? std::stoi(by_step[1]) : 1;
      int first = 0, last = 100;
      if (by_step[0] != "*") {
        const std::vector<std::string> ends = absl::StrSplit(by_step[0], '-');
        first = std::stoi(ends[0]);
        last = std::stoi(ends.back());
      }
      if (value >= first && value <= last && (value - first) % step == 0) return true;
    }
    return false;
  }
  bool Matches(absl::CivilMinute at) const {
    const int weekday = (static_cast<int>(absl::GetWeekday(at)) + 1) % 7;
    const bool day = Has(fields_[2], at.day()), of_week = Has(fields_[4], weekday);
    const bool star = fields_[2][0] == '*' || fields_[4][0] == '*';
    return Has(fields_[0], at.minute()) && Has(fields_[1], at.hour()) &&
           Has(fields_[3], at.month()) && (star ? day && of_week : day || of_week);
  }

  absl::TimeZone zone_;
  std::vector<std::string> fields_;
};

TEST(Cron, AgreesWithLookingAtEachMinute) {
  std::mt19937 random(20261126);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto field = [&](int least, int most, bool steps) {
    switch (below(4)) {
      case 0:
        return std::string("*");
      case 1:
        return steps ? absl::StrCat("*/", 2 + below(most / 2)) : std::string("*");
      case 2: {
        const int first = least + below(most - least);
        return absl::StrCat(first, "-", first + below(most - first + 1));
      }
      default:
        return absl::StrCat(least + below(most - least + 1), ",", least + below(most - least + 1));
    }
  };
  const char* zones[] = {
      "UTC",          "Europe/Berlin",   "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe",
      "Africa/Cairo", "America/Santiago"};
  for (int i = 0; i < 300; ++i) {
    const std::string text =
        absl::StrJoin({field(0, 59, true), field(0, 23, true), field(1, 28, false),
                       std::string("*"), field(0, 6, false)},
                      " ");
    const absl::TimeZone zone = Zone(zones[below(7)]);
    // Near a change of the clocks, where there is one.
    absl::Time from = absl::FromUnixSeconds(1'700'000'000 + below(60'000'000));
    absl::TimeZone::CivilTransition change;
    if (below(2) == 0 && zone.NextTransition(from, &change))
      from = zone.At(change.from).pre - absl::Minutes(below(200));
    const absl::StatusOr<Cron> cron = Cron::Parse(text);
    ASSERT_TRUE(cron.ok()) << text;
    int64_t at_ns = absl::ToUnixNanos(from);
    for (int times = 0; times < 4; ++times) {
      const std::optional<int64_t> expected = EachMinute(text, zone).Next(at_ns);
      ASSERT_EQ(TextOf(cron->NextNs(at_ns, zone)), TextOf(expected))
          << text << " in " << zone.name() << " after " << TextOf(at_ns);
      at_ns = *expected;
    }
  }
}

}  // namespace
}  // namespace muster
