// HMAC-SHA256 (RFC 2104): whoever has the key knows by it that a text is one of their own.
#pragma once

#include <string>
#include <string_view>

namespace muster {

std::string HmacSha256(std::string_view key, std::string_view text);  // 32 bytes

}  // namespace muster
