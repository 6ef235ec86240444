// FNV-1a, 64 bits: names and seeds that have to differ, and sums that tell a torn file. Not against anybody.
#pragma once

#include <cstdint>
#include <string_view>

namespace muster::agent {

constexpr uint64_t Fnv1a(std::string_view text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

}  // namespace muster::agent
