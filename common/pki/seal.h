// Encrypts what is kept (XChaCha20-Poly1305, libsodium): keys of the authority, secrets. Each
// sealed text is bound to a context, for example the row that it is kept in: it opens nowhere else.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace muster {

inline constexpr size_t kSealKeyBytes = 32;

std::string NewSealKey();  // of kSealKeyBytes, random
// A random nonce, then what the key makes of the text. The key must have kSealKeyBytes.
std::string Seal(std::string_view key, std::string_view context, std::string_view text);
// INVALID_ARGUMENT: sealed with another key, for another context, or changed since.
absl::StatusOr<std::string> Unseal(std::string_view key, std::string_view context,
                                   std::string_view sealed);
// So many random bytes, for what nobody may guess.
std::string RandomBytes(size_t count);
// Whether the texts are equal; the time it takes doesn't tell where they differ.
bool EqualInConstantTime(std::string_view a, std::string_view b);

}  // namespace muster
