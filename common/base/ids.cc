#include "common/base/ids.h"

#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/base/check.h"

namespace muster {
namespace {

// Random bytes for sixteen ids at once. A child has its parent's bytes and must not use them:
// getpid is the cheaper call of the kernel.
void TakeRandom(unsigned char* bytes, size_t size) {
  static thread_local struct {
    unsigned char bytes[256];  // so many getrandom gives whole
    size_t left = 0;
    pid_t process = 0;
  } pool;
  if (pool.left < size || pool.process != getpid()) {
    MUSTER_CHECK(getrandom(pool.bytes, sizeof pool.bytes, 0) == sizeof pool.bytes);
    pool.left = sizeof pool.bytes;
    pool.process = getpid();
  }
  pool.left -= size;
  memcpy(bytes, pool.bytes + pool.left, size);
  explicit_bzero(pool.bytes + pool.left, size);
}

}  // namespace

std::string RandomId() {
  unsigned char bytes[16];
  TakeRandom(bytes, sizeof bytes);
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
    const bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '.' || c == '_' || c == '-';
    if (!ok) return false;
  }
  return true;
}

}  // namespace muster
