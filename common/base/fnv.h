// FNV-1a, 64 bits (Fowler, Noll, Vo): names, seeds and buckets that have to differ, sums that tell
// a torn file, digests of runs that have to be equal; the same on every machine. Not against
// anybody who wants them to be equal.
#pragma once

#include <cstdint>
#include <string_view>

namespace muster {

inline constexpr uint64_t kFnv1aBegin = 0xcbf29ce484222325u;

// `hash`: kFnv1aBegin, or that of what goes before `text`.
constexpr uint64_t Fnv1a(std::string_view text, uint64_t hash = kFnv1aBegin) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace muster
