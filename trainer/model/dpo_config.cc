#include "trainer/model/dpo_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kLosses[] = {"sigmoid", "hinge", "ipo", "robust"};  // as PairLoss
constexpr double kBetaMax = 1e6;

// Names that users of TRL try.
const std::vector<std::pair<std::string, std::string>>& DpoHints() {
  static const std::vector<std::pair<std::string, std::string>> hints = {
      {"ref_model", "the reference is the model of init; leave it out"},
      {"precompute_ref_log_probs",
       "follows from lora (with it the reference is the model without its adapters, otherwise its "
       "log-probabilities are computed before training); leave it out"},
      {"max_length", "use trainer.max_length"},
      {"max_prompt_length", "use trainer.max_length: what is longer loses its end"},
      {"truncation_mode", "what is longer than trainer.max_length loses its end; leave it out"},
      {"loss_weights", "one loss is computed; leave it out"}};
  return hints;
}

}  // namespace

DpoConfig ParseDpo(const json& value, const std::string& path, Problems& problems) {
  DpoConfig config;
  config.given = true;
  if (!value.is_object()) {
    problems.push_back(
        {path, absl::StrCat("must be a map, such as {beta: 0.1}; got ", value.dump())});
    return config;
  }
  const auto number = [&](const std::string& name, bool fits, const std::string& wanted,
                          double& member) {
    if (fits)
      member = value[name].get<double>();
    else
      problems.push_back({absl::StrCat(path, ".", name),
                          absl::StrCat("must be ", wanted, "; got ", value[name].dump())});
  };
  for (const auto& [name, given] : value.items()) {
    const double its = given.is_number() ? given.get<double>() : std::nan("");
    if (name == "beta") {
      number(name, its > 0 && its <= kBetaMax, "a number above 0", config.beta);
    } else if (name == "label_smoothing") {
      number(name, its >= 0 && its < 0.5, "a number from 0 to below 0.5", config.label_smoothing);
    } else if (name == "loss_type") {
      const auto* found =
          std::find(std::begin(kLosses), std::end(kLosses),
                    given.is_string() ? given.get_ref<const std::string&>() : std::string());
      if (found != std::end(kLosses))
        config.loss_type = static_cast<PairLoss>(found - std::begin(kLosses));
      else
        problems.push_back(
            {path + ".loss_type",
             absl::StrCat("must be one of sigmoid, hinge, ipo, robust; got ", given.dump())});
    } else {
      const auto hint = std::find_if(DpoHints().begin(), DpoHints().end(),
                                     [&](const auto& h) { return h.first == name; });
      problems.push_back(
          {absl::StrCat(path, ".", name),
           hint != DpoHints().end()
               ? hint->second
               : "no such field." + DidYouMean(name, {"loss_type", "beta", "label_smoothing"})});
    }
  }
  if (config.label_smoothing > 0 && config.loss_type != PairLoss::kRobust)
    problems.push_back({path + ".label_smoothing",
                        "is for loss_type: robust, as in TRL; use that, or leave it out"});
  return config;
}

ordered_json DpoSchema() {
  ordered_json schema;
  schema["type"] = "object";
  schema["additionalProperties"] = false;
  schema["properties"]["loss_type"] = {
      {"type", "string"},
      {"enum", kLosses},
      {"default", kLosses[0]},
      {"description",
       "What a pair costs. sigmoid: DPO's own; hinge: SLiC's; ipo: IPO's, of the mean a token; "
       "robust: sigmoid for labels some of which are wrong."}};
  schema["properties"]["beta"] = {
      {"type", "number"},
      {"exclusiveMinimum", 0},
      {"maximum", kBetaMax},
      {"default", DpoConfig().beta},
      {"description", "How strongly the model is held to the reference; with ipo its tau."}};
  schema["properties"]["label_smoothing"] = {
      {"type", "number"},
      {"minimum", 0},
      {"exclusiveMaximum", 0.5},
      {"default", 0},
      {"description", "With loss_type: robust, the share of pairs whose label is wrong."}};
  for (const auto& [name, hint] : DpoHints()) schema["x-muster-hints"][name] = hint;
  return schema;
}

}  // namespace muster::trainer
