#include "common/base/ids.h"

#include <sys/random.h>

#include "common/base/check.h"

namespace muster {

std::string RandomId() {
  unsigned char bytes[16];
  MUSTER_CHECK(getrandom(bytes, sizeof bytes, 0) == sizeof bytes);
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (unsigned char b : bytes) {
    out += kHex[b >> 4];
    out += kHex[b & 15];
  }
  return out;
}

bool IsId(std::string_view text) {
  if (text.size() != 32) return false;
  for (char c : text) {
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
  }
  return true;
}

bool IsLabel(std::string_view text) {
  if (text.empty() || text.size() > 63 || text[0] == '-' || text[0] == '.') return false;
  for (char c : text) {
    const bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    if (!ok) return false;
  }
  return true;
}

}  // namespace muster
