// The first message of a TLS handshake, changed in every way that chance finds, each on a
// connection of its own.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace muster::bench {

struct HelloCounts {
  uint64_t said = 0;
  uint64_t alerts = 0;    // the server said why not, and ended
  uint64_t answered = 0;  // it went on with the handshake: what was changed doesn't matter
  uint64_t silent = 0;    // it ended without a word
  uint64_t strange = 0;   // it answered what is no TLS
  uint64_t unended = 0;   // it did not end
  uint64_t no_connection = 0;
};

std::string Mutate(std::string hello, std::mt19937_64* random);

// From these addresses of this machine in turn; none: from any.
HelloCounts SayHellos(const std::string& address, const std::vector<std::string>& sources,
                      uint64_t count, uint64_t seed, int64_t until_ms);

}  // namespace muster::bench
