#include "trainer/model/reward_config.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kCenter[] = "center_rewards_coefficient";
constexpr double kCenterMax = 1e6;

// Names that users of TRL try.
const std::vector<std::pair<std::string, std::string>>& RewardHints() {
  static const std::vector<std::pair<std::string, std::string>> hints = {
      {"max_length", "use trainer.max_length"},
      {"num_labels", "a reward is one number; leave it out"},
      {"margin", "pairs have no margins here; leave it out"},
      {"disable_dropout", "nothing is dropped; leave it out"},
      {"pad_token", "is the model's: pad_token_id in its config.json"},
      {"eos_token", "`muster-trainer prepare` puts the tokenizer's behind each answer"}};
  return hints;
}

}  // namespace

RewardConfig ParseReward(const json& value, const std::string& path, Problems& problems) {
  RewardConfig config;
  config.given = true;
  if (!value.is_object()) {
    problems.push_back({path, absl::StrCat("must be a map, such as {}; got ", value.dump())});
    return config;
  }
  for (const auto& [name, given] : value.items()) {
    const double its = given.is_number() ? given.get<double>() : std::nan("");
    if (name == kCenter && its >= 0 && its <= kCenterMax) {
      config.center_rewards_coefficient = its;
    } else if (name == kCenter) {
      problems.push_back({absl::StrCat(path, ".", name),
                          absl::StrCat("must be a number from 0; got ", given.dump())});
    } else {
      const auto hint = std::find_if(RewardHints().begin(), RewardHints().end(),
                                     [&](const auto& h) { return h.first == name; });
      problems.push_back(
          {absl::StrCat(path, ".", name), hint != RewardHints().end()
                                              ? hint->second
                                              : "no such field." + DidYouMean(name, {kCenter})});
    }
  }
  return config;
}

ordered_json RewardSchema() {
  ordered_json schema;
  schema["type"] = "object";
  schema["additionalProperties"] = false;
  schema["properties"][kCenter] = {
      {"type", "number"},
      {"minimum", 0},
      {"maximum", kCenterMax},
      {"default", 0},
      {"description",
       "Keeps rewards near zero: times the mean square of a pair's two rewards' sum, it is added "
       "to the loss; TRL's documents suggest 0.01."}};
  for (const auto& [name, hint] : RewardHints()) schema["x-muster-hints"][name] = hint;
  return schema;
}

}  // namespace muster::trainer
