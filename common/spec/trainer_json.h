// Members of a trainer's map, which may be of any kind.
#pragma once

#include <cstdint>
#include <optional>

#include <nlohmann/json.hpp>

namespace muster::trainer_json {

// The whole number `key` of `map`; nothing where it is none from 1 on.
inline std::optional<int64_t> Number(const nlohmann::json& map, const char* key) {
  constexpr int64_t kMostNumber = int64_t{1} << 40;
  if (!map.is_object()) return std::nullopt;
  const auto found = map.find(key);
  if (found == map.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  if (!(value >= 1) || value > static_cast<double>(kMostNumber)) return std::nullopt;
  const auto whole = static_cast<int64_t>(value);
  return static_cast<double>(whole) == value ? std::optional(whole) : std::nullopt;
}

// What `key` has; null where there is no such key.
inline const nlohmann::json& Inner(const nlohmann::json& map, const char* key) {
  static const nlohmann::json none;
  const auto found = map.find(key);
  return found == map.end() ? none : *found;
}

}  // namespace muster::trainer_json
