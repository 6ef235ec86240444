// JSON that comes from outside: bounded, and without a name twice in one object, of which readers
// may take either.
#pragma once

#include <string_view>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"

namespace muster {

inline constexpr int kMaxJsonDepth = 16;

// An object. INVALID_ARGUMENT: it is none, or none of these.
absl::StatusOr<nlohmann::json> ReadJsonObject(std::string_view text);

// The text of this name; empty: there is none, or it is no text.
std::string TextIn(const nlohmann::json& object, const char* name);

}  // namespace muster
