// Debian's absl has a string_view of its own: what its functions take.
#pragma once

#include <string_view>

#include "absl/strings/string_view.h"

namespace muster {

inline absl::string_view View(std::string_view s) { return {s.data(), s.size()}; }

}  // namespace muster
