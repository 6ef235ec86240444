#include "common/base/units.h"

#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(Units, DurationsAreReadExactlyOrRefusedWithARemedy) {
  const struct {
    const char* text;
    int64_t want_ns;  // -1: refused
  } kCases[] = {{"0", 0},
                {"10m", 10 * kMinute},
                {"1h30m", 90 * kMinute},
                {"250ms", 250 * kMillisecond},
                {"2.5s", 2500 * kMillisecond},
                {"7d", 7 * kDay},
                {"", -1},
                {"10", -1},
                {"m", -1},
                {"-1s", -1},
                {"1x", -1},
                {"1.s", -1},
                {"99999999999999999999s", -1},
                {"4000d", -1},
                {"5 minutes", -1},
                {"1h 30m", -1}};
  for (const auto& c : kCases) {
    const auto got = ParseDuration(c.text);
    if (c.want_ns < 0) {
      ASSERT_FALSE(got.ok()) << c.text;
      EXPECT_NE(got.status().message().find("10m"), absl::string_view::npos) << got.status();
      EXPECT_EQ(got.status().message().find("a blank is in it") != absl::string_view::npos,
                std::string_view(c.text).find(' ') != std::string_view::npos)
          << got.status();
    } else {
      ASSERT_TRUE(got.ok()) << c.text << got.status();
      EXPECT_EQ(*got, c.want_ns) << c.text;
    }
  }
}

TEST(Units, SizesAreReadExactlyOrRefused) {
  EXPECT_EQ(*ParseSize("64GiB"), int64_t{64} << 30);
  EXPECT_EQ(*ParseSize("2MB"), 2'000'000);
  EXPECT_EQ(*ParseSize("1.5TiB"), (int64_t{3} << 40) / 2);
  EXPECT_EQ(*ParseSize("512"), 512);
  for (const char* bad : {"", "GiB", "-1GiB", "1 GiB", "1gib", "99999999PiB", "nan"})
    EXPECT_FALSE(ParseSize(bad).ok()) << bad;
}

TEST(Units, MilliKeepsThreeDecimals) {
  EXPECT_EQ(*ParseMilli("0.5"), 500);
  EXPECT_EQ(*ParseMilli("8"), 8000);
  EXPECT_EQ(*ParseMilli("0.001"), 1);
  for (const char* bad : {"0.0005", "-1", "x", "", "1e3"})
    EXPECT_FALSE(ParseMilli(bad).ok()) << bad;
  EXPECT_EQ(FormatMilli(500), "0.5");
  EXPECT_EQ(FormatMilli(8000), "8");
  EXPECT_EQ(FormatMilli(-1250), "-1.25");
}

TEST(Units, ShownShortly) {
  EXPECT_EQ(FormatDuration(90 * kMinute), "1h30m");
  EXPECT_EQ(FormatDuration(3200 * kMillisecond), "3.2s");
  EXPECT_EQ(FormatDuration(0), "0s");
  EXPECT_EQ(FormatSize(int64_t{3} << 29), "1.5GiB");
}

}  // namespace
}  // namespace muster
