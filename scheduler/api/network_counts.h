// What became of connections that came over a network, since musterd's start.
#pragma once

#include <cstdint>

namespace muster {

struct NetworkCounts {
  int64_t open = 0;  // now
  uint64_t accepted = 0;
  uint64_t refused = 0;  // at once: their address has too many, or waits; or all have
  // They ended before a call, mostly in the handshake.
  uint64_t without_call = 0;
  // That were ended here, each for one of these.
  uint64_t silent = 0, unexplained = 0, holders = 0, untrusted = 0;
};

}  // namespace muster
