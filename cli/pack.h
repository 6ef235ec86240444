// Packs a directory that comes along with a job (common/pack/format.h).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace muster {

inline constexpr char kIgnoreFile[] = ".musterignore";

struct Pack {
  std::string bytes;
  std::string digest;   // of them, SHA-256
  int64_t entries = 0;  // files, directories and links
};

// All files, directories and links of the directory but .git, .venv, __pycache__ and what its
// .musterignore names. The same content gives the same bytes. INVALID_ARGUMENT, with the remedy: it
// is too large (the largest entries are named), or something in it can't come along.
absl::StatusOr<Pack> PackDirectory(const std::string& directory);

}  // namespace muster
