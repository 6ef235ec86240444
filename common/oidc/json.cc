#include "common/oidc/json.h"

#include <set>
#include <string>
#include <vector>

namespace muster {
namespace {

// What the parser meets on its way.
class Bounds {
 public:
  bool Meets(int depth, nlohmann::json::parse_event_t event, const nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) names_.emplace_back();
    if (event == Event::object_end) names_.pop_back();
    if (event == Event::key) kept_ &= names_.back().insert(value.get<std::string>()).second;
    kept_ &= depth <= kMaxJsonDepth;
    return true;
  }
  bool kept() const { return kept_; }

 private:
  std::vector<std::set<std::string>> names_;  // of each object that is open
  bool kept_ = true;
};

}  // namespace

absl::StatusOr<nlohmann::json> ReadJsonObject(std::string_view text) {
  Bounds bounds;
  nlohmann::json read = nlohmann::json::parse(
      text.begin(), text.end(),
      [&bounds](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
        return bounds.Meets(depth, event, value);
      },
      /*allow_exceptions=*/false);
  if (read.is_discarded() || !read.is_object() || !bounds.kept())
    return absl::InvalidArgumentError("is no JSON object, too deep, or has a name twice");
  return read;
}

std::string TextIn(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace muster
