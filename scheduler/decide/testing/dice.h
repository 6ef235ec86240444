// Random numbers that are the same with every compiler and library.
#pragma once

#include <cstdint>

namespace muster {

// SplitMix64 (Steele, Lea, Flood 2014).
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 1) {}
  int Of(int n) {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return static_cast<int>((z ^ (z >> 31)) % static_cast<uint64_t>(n));
  }
  bool Percent(int p) { return Of(100) < p; }

 private:
  uint64_t state_;
};

}  // namespace muster
