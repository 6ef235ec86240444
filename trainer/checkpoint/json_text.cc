#include "trainer/checkpoint/json_text.h"

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace muster::trainer {

using nlohmann::json;

absl::StatusOr<json> ParseJsonObject(std::string_view text, int deepest) {
  std::string duplicate;
  bool too_deep = false, has_duplicate = false;
  std::vector<std::set<std::string>> keys;
  const json::parser_callback_t watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > deepest) too_deep = true;
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      duplicate = parsed.get<std::string>(), has_duplicate = true;
    return !too_deep;
  };
  json object = json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (too_deep) return absl::InvalidArgumentError("nests too deeply");
  if (!object.is_object()) return absl::InvalidArgumentError("is not a JSON object");
  if (has_duplicate)
    return absl::InvalidArgumentError(absl::StrCat("has \"", duplicate, "\" twice"));
  return object;
}

}  // namespace muster::trainer
