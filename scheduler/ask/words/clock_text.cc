#include "scheduler/ask/words/clock_text.h"

#include <cstdlib>
#include <ctime>

#include "common/base/units.h"

namespace muster {

std::string ClockTime(int64_t at_ns, int64_t now_ns) {
  const time_t seconds = static_cast<time_t>(at_ns / kSecond);
  tm parts;
  gmtime_r(&seconds, &parts);
  char text[32];
  strftime(text, sizeof text,
           std::abs(at_ns - now_ns) > 18 * kHour ? "%Y-%m-%d %H:%M UTC" : "%H:%M:%S UTC", &parts);
  return text;
}

}  // namespace muster
