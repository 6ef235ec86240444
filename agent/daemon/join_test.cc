#include "agent/daemon/join.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/units.h"

namespace muster::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kNow = 1'800'000'000 * kSecond;  // 2027-01-15T08:00:00Z

TEST(WhyClocksDiffer, FiveMinutesAreTakenAndNoMore) {
  const struct {
    const char* name;
    int64_t ahead_ns;
    const char* why;  // empty: it may join
  } cases[] = {
      {"the same", 0, ""},
      {"ahead by as much as is taken", 5 * kMinute, ""},
      {"behind by as much as is taken", -5 * kMinute, ""},
      {"ahead by a second more", 5 * kMinute + kSecond, ": it is 5m1s ahead"},
      {"behind by a second more", -5 * kMinute - kSecond, ": it is 5m1s behind"},
      {"a year behind", -365 * kDay, ": it is 365d behind"},
  };
  for (const auto& test : cases) {
    const std::string why = WhyClocksDiffer(kNow + test.ahead_ns, kNow);
    if (*test.why == '\0') {
      EXPECT_THAT(why, IsEmpty()) << test.name;
      continue;
    }
    EXPECT_THAT(why, HasSubstr(test.why)) << test.name;
    EXPECT_THAT(why, HasSubstr("the scheduler's 2027-01-15T08:00:00Z")) << test.name;
    EXPECT_THAT(why, HasSubstr("run the same line again")) << test.name;
  }
}

TEST(WhyNotAsMe, TheCertificateHasToSayWhoseJobsItIsFor) {
  Identity identity;
  identity.holder = {Holder::kHost, "t1", "anns", "ws", "", "ann"};
  EXPECT_THAT(WhyNotAsMe(identity), IsEmpty());
  identity.holder = {Holder::kHost, "t1", "lab", "h7"};
  EXPECT_THAT(WhyNotAsMe(identity), HasSubstr("lab/h7 is a host for everybody's jobs"));
}

}  // namespace
}  // namespace muster::agent
