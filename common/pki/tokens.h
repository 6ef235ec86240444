// Tokens that buy a certificate: "mst_ID_SECRET". The id finds the token's row, the secret proves
// that the caller was given it. Only the secret's hash is kept.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace muster {

struct Token {
  std::string id;      // 16 characters
  std::string secret;  // 256 bits, 43 characters of base64url

  std::string Text() const;
};

Token NewToken();
// Exactly what Text() writes, or nothing.
std::optional<Token> ParseToken(std::string_view text);
// What is kept of a token: SHA-256 of its secret, hexadecimal. The secret has 256 random bits, so
// a slow hash would protect nothing.
std::string SecretHash(const Token& token);
bool HasSecret(const Token& token, std::string_view hash);  // in constant time

}  // namespace muster
