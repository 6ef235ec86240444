// SHA-256 (FIPS 180-4).
#pragma once

#include <string>
#include <string_view>

namespace muster {

std::string Sha256(std::string_view data);  // 32 bytes

}  // namespace muster
