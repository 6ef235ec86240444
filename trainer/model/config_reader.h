// A map of a config.json that is read key by key, for the files that read parts of one.
#pragma once

#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "trainer/model/config.h"
#include "trainer/model/families.h"

namespace muster::trainer {

// The most of a size. Layers and experts are listed one by one wherever a model is looked at; what
// the others are multiplied to is bounded by kMostParameters.
inline int64_t SizeMax(std::string_view key) {
  if (key == "num_hidden_layers" || key == "num_local_experts" || key == "num_experts" ||
      key == "n_routed_experts" || key == "n_shared_experts")
    return 10'000;
  if (key == "num_attention_heads" || key == "num_key_value_heads" || key == "head_dim")
    return 100'000;
  if (key == "hidden_size") return 1'000'000;
  if (key == "intermediate_size" || key == "moe_intermediate_size") return 10'000'000;
  if (key == "vocab_size") return 100'000'000;
  return kSizeMax;
}
// In all layers together.
inline constexpr int64_t kMostExperts = 200'000;
inline constexpr double kMostParameters = 1e15;

class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& value, std::string path, Problems& problems)
      : value_(value), path_(std::move(path)), problems_(problems) {}

  void Bad(const std::string& key, const std::string& text) {
    problems_.push_back({path_ + "." + key, text});
  }

  // The value at `key`, or null when it's missing or null.
  const nlohmann::json& At(const std::string& key) {
    used_.insert(key);
    static const nlohmann::json kNull;
    const auto it = value_.find(key);
    return it == value_.end() ? kNull : *it;
  }
  bool Has(const std::string& key) { return !At(key).is_null(); }

  int64_t Size(const std::string& key, int64_t fallback, bool required = false) {
    const nlohmann::json& v = At(key);
    if (v.is_null()) {
      if (required) Bad(key, "is missing; the model's shape needs it");
      return fallback;
    }
    const int64_t most = SizeMax(key);
    if (!v.is_number_integer() || v.get<double>() < 1 ||
        v.get<double>() > static_cast<double>(most)) {
      Bad(key, absl::StrCat("must be a whole number from 1 to ", most, "; got ", v.dump()));
      return fallback;
    }
    return v.get<int64_t>();
  }

  double Positive(const std::string& key, double fallback) {
    const nlohmann::json& v = At(key);
    if (v.is_null()) return fallback;
    if (!v.is_number() || !(v.get<double>() > 0) || !std::isfinite(v.get<double>())) {
      Bad(key, absl::StrCat("must be a number above 0; got ", v.dump()));
      return fallback;
    }
    return v.get<double>();
  }

  bool Bool(const std::string& key, bool fallback) {
    const nlohmann::json& v = At(key);
    if (v.is_null()) return fallback;
    if (!v.is_boolean()) {
      Bad(key, absl::StrCat("must be true or false; got ", v.dump()));
      return fallback;
    }
    return v.get<bool>();
  }

  const std::set<std::string>& used() const { return used_; }

 private:
  const nlohmann::json& value_;
  const std::string path_;
  Problems& problems_;
  std::set<std::string> used_;
};

}  // namespace muster::trainer
