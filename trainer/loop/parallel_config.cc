#include "trainer/loop/parallel_config.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kTpMax = 1024;
constexpr char kKey[] = "tp";

// Names that users of other tools try.
const std::vector<std::pair<std::string, std::string>>& ParallelHints() {
  static const std::vector<std::pair<std::string, std::string>> hints = {
      {"tensor", "use tp"},
      {"tensor_parallel", "use tp"},
      {"tensor_parallel_size", "use tp"},
      {"tensor_model_parallel_size", "use tp"},
      {"dp", "dp is what tp leaves of the ranks; leave it out"},
      {"data_parallel_size", "dp is what tp leaves of the ranks; leave it out"},
      {"shard", "use trainer.shard_size"},
      {"sequence_parallel", "it comes with tp; leave it out"},
      {"pp", "pipelines are not supported yet"},
      {"cp", "context parallelism is not supported yet"},
      {"ep", "expert parallelism is not supported yet"}};
  return hints;
}

}  // namespace

ParallelConfig ParseParallel(const json& value, const std::string& path, Problems& problems) {
  ParallelConfig config;
  if (!value.is_object()) {
    problems.push_back({path, absl::StrCat("must be a map; got ", value.dump())});
    return config;
  }
  for (const auto& [name, given] : value.items()) {
    if (name != kKey) {
      const auto hint = std::find_if(ParallelHints().begin(), ParallelHints().end(),
                                     [&](const auto& h) { return h.first == name; });
      problems.push_back(
          {absl::StrCat(path, ".", name), hint != ParallelHints().end()
                                              ? hint->second
                                              : "no such field." + DidYouMean(name, {kKey})});
    } else if (!given.is_number() || given.get<double>() != std::floor(given.get<double>()) ||
               given.get<double>() < 1 || given.get<double>() > kTpMax) {
      problems.push_back(
          {absl::StrCat(path, ".", name),
           absl::StrCat("must be a whole number from 1 to ", kTpMax, "; got ", given.dump())});
    } else {
      config.tp = given.get<int64_t>();
    }
  }
  return config;
}

ordered_json ParallelSchema() {
  ordered_json schema;
  schema["type"] = "object";
  schema["additionalProperties"] = false;
  schema["properties"][kKey] = {
      {"type", "integer"},
      {"default", 1},
      {"minimum", 1},
      {"maximum", kTpMax},
      {"description",
       "Tensor parallelism: the number of neighbouring ranks, such as those of a host, that take "
       "the same rows and share out each layer's weights and activations. It must divide the "
       "model's num_key_value_heads and the number of ranks."}};
  for (const auto& [name, hint] : ParallelHints()) schema["x-muster-hints"][name] = hint;
  return schema;
}

void CheckSlices(const ParallelConfig& config, const ModelConfig& model, int ranks,
                 const std::string& path, Problems& problems) {
  if (config.tp == 1) return;
  const int64_t heads = model.num_kv_heads;  // which divide the heads
  const bool known = heads > 0;              // what is wrong with the model is said elsewhere
  if ((!known || heads % config.tp == 0) && ranks % config.tp == 0) return;
  // Of those that can be, the nearest on both sides.
  int64_t below = 1, above = 0;
  for (int64_t tp = 1; tp <= ranks; ++tp) {
    if (ranks % tp != 0 || (known && heads % tp != 0)) continue;
    if (tp < config.tp) below = tp;
    if (tp > config.tp && above == 0) above = tp;
  }
  std::string text = absl::StrCat(config.tp, " must divide ");
  if (known) absl::StrAppend(&text, "the model's ", heads, " key-value heads and ");
  absl::StrAppend(&text, "the ", ranks, ranks == 1 ? " rank" : " ranks");
  absl::StrAppend(&text, "; use ", below, " (", ranks / below, " such groups)");
  if (above > 0) absl::StrAppend(&text, " or ", above, " (", ranks / above, ")");
  if (ranks % config.tp != 0 && (!known || heads % config.tp == 0)) {
    const int64_t fewer = ranks / config.tp * config.tp;
    absl::StrAppend(&text, ", or take ", fewer > 0 ? absl::StrCat(fewer, " or ") : "",
                    fewer + config.tp, " ranks");
  }
  problems.push_back({path + "." + kKey, text});
}

}  // namespace muster::trainer
