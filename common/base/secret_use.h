// How a job names a secret: NAME, or NAME=VARIABLE; its processes get it as that variable.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace muster {

// As a variable's: letters, digits and '_', no digit first.
inline bool IsSecretName(std::string_view name) {
  return !name.empty() && name.size() <= 64 && !(name[0] >= '0' && name[0] <= '9') &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return c == '_' || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                  (c >= '0' && c <= '9');
         });
}

struct SecretUse {
  std::string name, variable;
};

inline SecretUse ReadSecretUse(std::string_view text) {
  const size_t equals = text.find('=');
  const std::string name(text.substr(0, equals));
  return {name, equals == std::string_view::npos ? name : std::string(text.substr(equals + 1))};
}

}  // namespace muster
