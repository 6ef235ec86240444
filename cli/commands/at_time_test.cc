#include "cli/commands/at_time.h"

#include <gtest/gtest.h>

#include "common/base/cron.h"
#include "common/spec/when.h"

namespace muster {
namespace {

TEST(AtTime, IsReadAsPeopleTypeIt) {
  const int64_t now_ns = *ParseInstantNs("2026-11-26T12:00:00Z");
  const absl::TimeZone berlin = FindTimeZone("Europe/Berlin").value_or(absl::UTCTimeZone());
  ASSERT_EQ(berlin.name(), "Europe/Berlin") << "(tzdata)";
  const struct {
    const char *text, *instant;  // nullptr: it is none
  } cases[] = {
      {"2026-12-24T03:00:00Z", "2026-12-24T03:00:00Z"},
      {"2026-12-24T03:00:00-05:00", "2026-12-24T03:00:00-05:00"},
      {"2026-12-24 03:00", "2026-12-24T03:00:00+01:00"},
      {"2026-07-24T03:00", "2026-07-24T03:00:00+02:00"},
      {"2026-12-24 03:00:30", "2026-12-24T03:00:30+01:00"},
      {"13:30", "2026-11-26T13:30:00+01:00"},
      {"13:00", "2026-11-27T13:00:00+01:00"},
      {"3:00", "2026-11-27T03:00:00+01:00"},
      {"+2h", "2026-11-26T15:00:00+01:00"},
      {"+1500ms", "2026-11-26T13:00:02+01:00"},
      {"", nullptr},
      {"+", nullptr},
      {"+2", nullptr},
      {"25:00", nullptr},
      {"tomorrow", nullptr},
      {"2026-13-01 00:00", nullptr},
  };
  for (const auto& c : cases) {
    const absl::StatusOr<std::string> instant = InstantOf(c.text, now_ns, berlin);
    ASSERT_EQ(instant.ok(), c.instant != nullptr) << c.text << ": " << instant.status();
    if (c.instant != nullptr) EXPECT_EQ(*instant, c.instant) << c.text;
  }
}

}  // namespace
}  // namespace muster
