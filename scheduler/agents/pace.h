// How much a host may say. A bucket that fills with time: 200 messages a second that the engine
// hears of, and 4,000 at once after a rest. What the engine doesn't hear of costs a sixteenth: what
// was said before and is repeated (each report at each heartbeat, contract 4), progress, of which
// only the newest counts, and output that was asked for. Who is above it is not read on for a
// while. A long message costs as much as several. Hellos have a bucket of their own, as each is of
// a new stream, which nobody has read on yet. Not thread-safe; times are BootNs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace muster {

class Pace {
 public:
  static constexpr int64_t kMessageNs = 1'000'000'000 / 200;
  static constexpr int64_t kLightNs = kMessageNs / 16;
  static constexpr int64_t kAtOnceNs = 4000 * kMessageNs;
  static constexpr int64_t kLeastRestNs = 10 * kMessageNs;  // so that it isn't woken for each
  // Of one long message, such as a Hello: an agent that isn't heard for a lease comes anew.
  static constexpr int64_t kMostRestNs = 200 * kMessageNs;
  static constexpr size_t kBytesOfMessage = 4 << 10;  // of what comes into the journal
  // Four Hellos a second, 100 at once; a long one counts as several.
  static constexpr int64_t kHelloNs = 1'000'000'000 / 4, kHellosAtOnceNs = 100 * kHelloNs;
  static constexpr size_t kBytesOfHello = 64 << 10;

  // Of something new that is so long.
  static constexpr int64_t CostOf(size_t bytes) {
    return kMessageNs * static_cast<int64_t>(1 + bytes / kBytesOfMessage);
  }

  void Take(int64_t cost_ns, int64_t now_ns) {
    full_at_ns_ =
        std::min(std::max(full_at_ns_, now_ns) + cost_ns, now_ns + kAtOnceNs + kMostRestNs);
  }
  // How long not to read on; 0: it may be read on now.
  int64_t RestNs(int64_t now_ns) const {
    const int64_t above_ns = full_at_ns_ - now_ns - kAtOnceNs;
    return above_ns <= 0 ? 0 : above_ns + kLeastRestNs;
  }
  // False: it has said so many of late that this one is not listened to.
  bool TakeHello(size_t bytes, int64_t now_ns) {
    const int64_t full_at_ns = std::max(hellos_full_at_ns_, now_ns) +
                               kHelloNs * static_cast<int64_t>(1 + bytes / kBytesOfHello);
    if (full_at_ns - now_ns > kHellosAtOnceNs) return false;
    hellos_full_at_ns_ = full_at_ns;
    return true;
  }

 private:
  int64_t full_at_ns_ = 0, hellos_full_at_ns_ = 0;  // if nothing more were taken
};

}  // namespace muster
