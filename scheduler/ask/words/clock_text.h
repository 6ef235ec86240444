// Times in sentences.
#pragma once

#include <cstdint>
#include <string>

namespace muster {

// UTC clock time; with the date when it is more than 18 hours away.
std::string ClockTime(int64_t at_ns, int64_t now_ns);

}  // namespace muster
