// UTF-8, character by character.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace muster {

// Bytes of the UTF-8 character at `text[i]`; 0: malformed (overlong and surrogates included).
inline size_t CharacterSize(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) {
    return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0u;
  };
  const auto follows = [&](size_t k) { return (byte(k) & 0xc0u) == 0x80u; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first < 0xe0) return follows(1) ? 2 : 0;
  if (first >= 0xe0 && first < 0xf0) {
    if (!follows(1) || !follows(2)) return 0;
    if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) >= 0xa0)) return 0;
    return 3;
  }
  if (first >= 0xf0 && first < 0xf5) {
    if (!follows(1) || !follows(2) || !follows(3)) return 0;
    if ((first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) >= 0x90)) return 0;
    return 4;
  }
  return 0;
}

// The beginning of `text` in at most so many bytes, between two characters. Malformed text stays
// malformed.
inline std::string_view CutUtf8(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return text;
  size_t end = bytes;
  while (end > 0 && bytes - end < 3 && (static_cast<unsigned char>(text[end]) & 0xc0u) == 0x80u)
    --end;
  return text.substr(0, end);
}

// Each byte that belongs to no character as '?'. What protobuf has as a `string` must be UTF-8: it
// writes any bytes and refuses to read them again.
inline std::string ValidUtf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t bytes = CharacterSize(text, i);
    valid += bytes == 0 ? "?" : text.substr(i, bytes);
    i += std::max<size_t>(bytes, 1);
  }
  return valid;
}

}  // namespace muster
