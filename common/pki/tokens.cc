#include "common/pki/tokens.h"

#include <openssl/sha.h>

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/pki/seal.h"

namespace muster {
namespace {

constexpr std::string_view kPrefix = "mst_";
constexpr size_t kIdBytes = 8, kSecretBytes = 32;
constexpr size_t kIdLength = 2 * kIdBytes, kSecretLength = 43;

bool OfHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
  });
}

}  // namespace

std::string Token::Text() const { return absl::StrCat("mst_", id, "_", secret); }

Token NewToken() {
  return {absl::BytesToHexString(RandomBytes(kIdBytes)),
          absl::WebSafeBase64Escape(RandomBytes(kSecretBytes))};
}

std::optional<Token> ParseToken(std::string_view text) {
  if (text.substr(0, kPrefix.size()) != kPrefix ||
      text.size() != kPrefix.size() + kIdLength + 1 + kSecretLength)
    return std::nullopt;
  Token token{std::string(text.substr(kPrefix.size(), kIdLength)),
              std::string(text.substr(kPrefix.size() + kIdLength + 1))};
  std::string bytes;
  if (text[kPrefix.size() + kIdLength] != '_' || !OfHex(token.id) ||
      !absl::WebSafeBase64Unescape(token.secret, &bytes) || bytes.size() != kSecretBytes)
    return std::nullopt;
  return token;
}

std::string SecretHash(const Token& token) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(token.secret.data()), token.secret.size(),
         digest.data());
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

bool HasSecret(const Token& token, std::string_view hash) {
  return EqualInConstantTime(SecretHash(token), hash);
}

}  // namespace muster
