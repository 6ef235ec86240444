#include "common/pki/seal.h"

#include <sodium.h>

#include "common/base/check.h"

namespace muster {
namespace {

static_assert(kSealKeyBytes == crypto_aead_xchacha20poly1305_ietf_KEYBYTES);
constexpr size_t kNonceBytes = crypto_aead_xchacha20poly1305_ietf_NPUBBYTES;
constexpr size_t kTagBytes = crypto_aead_xchacha20poly1305_ietf_ABYTES;

const unsigned char* Bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}
unsigned char* Bytes(std::string* text) { return reinterpret_cast<unsigned char*>(text->data()); }

void Initialize() {
  static const int initialized = sodium_init();
  MUSTER_CHECK(initialized >= 0);
}

}  // namespace

std::string RandomBytes(size_t count) {
  Initialize();
  std::string bytes(count, '\0');
  randombytes_buf(bytes.data(), bytes.size());
  return bytes;
}

std::string NewSealKey() { return RandomBytes(kSealKeyBytes); }

std::string Seal(std::string_view key, std::string_view context, std::string_view text) {
  MUSTER_CHECK(key.size() == kSealKeyBytes);
  std::string sealed = RandomBytes(kNonceBytes);
  sealed.resize(kNonceBytes + text.size() + kTagBytes);
  MUSTER_CHECK(crypto_aead_xchacha20poly1305_ietf_encrypt(
                   Bytes(&sealed) + kNonceBytes, nullptr, Bytes(text), text.size(), Bytes(context),
                   context.size(), nullptr, Bytes(&sealed), Bytes(key)) == 0);
  return sealed;
}

absl::StatusOr<std::string> Unseal(std::string_view key, std::string_view context,
                                   std::string_view sealed) {
  Initialize();
  MUSTER_CHECK(key.size() == kSealKeyBytes);
  if (sealed.size() < kNonceBytes + kTagBytes)
    return absl::InvalidArgumentError("too short for a sealed text");
  std::string text(sealed.size() - kNonceBytes - kTagBytes, '\0');
  if (crypto_aead_xchacha20poly1305_ietf_decrypt(
          Bytes(&text), nullptr, nullptr, Bytes(sealed) + kNonceBytes, sealed.size() - kNonceBytes,
          Bytes(context), context.size(), Bytes(sealed), Bytes(key)) != 0) {
    return absl::InvalidArgumentError(
        "can't be opened: another key sealed it, it belongs elsewhere, or it was changed");
  }
  return text;
}

bool EqualInConstantTime(std::string_view a, std::string_view b) {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace muster
