// JSON from outside: its depth is bounded, as what is parsed is walked by recursion later, and no
// key stands twice in an object, of which the parser would keep the last.
#pragma once

#include <string_view>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"

namespace muster::trainer {

// The object that `text` is. deepest: how far lists and objects may nest. The error tells what
// `text` does wrong, without naming it: "nests too deeply". Thread-safe.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, int deepest);

}  // namespace muster::trainer
