#include "trainer/loop/parallel_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kMost = 1024;
constexpr int64_t kMostChunks = 64;
constexpr const char* kKeys[] = {"tp", "pp", "cp", "ep", "pipeline", "chunks", "cp_sharding"};
constexpr const char* kShardings[] = {"auto", "sequence", "document"};  // as ContextSharding

// Names that users of other tools try.
const std::vector<std::pair<std::string, std::string>>& ParallelHints() {
  static const std::vector<std::pair<std::string, std::string>> hints = {
      {"tensor", "use tp"},
      {"tensor_parallel", "use tp"},
      {"tensor_parallel_size", "use tp"},
      {"tensor_model_parallel_size", "use tp"},
      {"dp", "dp is what tp, cp and pp leave of the ranks; leave it out"},
      {"data_parallel_size", "dp is what tp, cp and pp leave of the ranks; leave it out"},
      {"shard", "use trainer.shard_size"},
      {"sequence_parallel", "it comes with tp; leave it out"},
      {"pipeline_parallel", "use pp"},
      {"pipeline_parallel_size", "use pp"},
      {"pipeline_model_parallel_size", "use pp"},
      {"schedule", "use pipeline: gpipe, 1f1b, interleaved or zero_bubble"},
      {"pipeline_schedule", "use pipeline: gpipe, 1f1b, interleaved or zero_bubble"},
      {"virtual_stages", "use chunks, with pipeline: interleaved"},
      {"virtual_pipeline_model_parallel_size", "use chunks, with pipeline: interleaved"},
      {"context_parallel", "use cp"},
      {"context_parallel_size", "use cp"},
      {"expert_parallel", "use ep"},
      {"expert_parallel_size", "use ep"},
      {"expert_model_parallel_size", "use ep"},
      {"enable_expert_parallel", "use ep, with the number of ranks"},
      {"dispatch", "tokens go to experts of other ranks by all-to-all; leave it out"}};
  return hints;
}

// A whole number from `least` to `most`, or a problem.
void ParseNumber(const json& given, const std::string& path, int64_t least, int64_t most,
                 int64_t& number, Problems& problems) {
  if (!given.is_number() || given.get<double>() != std::floor(given.get<double>()) ||
      given.get<double>() < static_cast<double>(least) ||
      given.get<double>() > static_cast<double>(most)) {
    problems.push_back({path, absl::StrCat("must be a whole number from ", least, " to ", most,
                                           "; got ", given.dump())});
  } else {
    number = given.get<int64_t>();
  }
}

// The key `name`; whether there is such a one.
bool ParseKey(const std::string& name, const json& given, const std::string& path,
              ParallelConfig& config, Problems& problems) {
  if (name == "tp" || name == "pp" || name == "cp" || name == "ep") {
    int64_t& number = name == "tp"   ? config.tp
                      : name == "pp" ? config.pp
                      : name == "cp" ? config.cp
                                     : config.ep;
    ParseNumber(given, path, 1, kMost, number, problems);
  } else if (name == "cp_sharding") {
    const auto found = std::find(std::begin(kShardings), std::end(kShardings),
                                 given.is_string() ? given.get<std::string>() : "");
    if (found != std::end(kShardings))
      config.cp_sharding = static_cast<ContextSharding>(found - std::begin(kShardings));
    else
      problems.push_back(
          {path, absl::StrCat("must be one of auto, sequence, document; got ", given.dump())});
  } else if (name == "chunks") {
    ParseNumber(given, path, 2, kMostChunks, config.chunks, problems);
  } else if (name == "pipeline") {
    const auto kind = given.is_string() ? PipelineNamed(given.get_ref<const std::string&>())
                                        : std::optional<PipelineKind>();
    if (kind)
      config.pipeline = *kind;
    else
      problems.push_back(
          {path, absl::StrCat("must be one of gpipe, 1f1b, interleaved, zero_bubble; got ",
                              given.dump())});
  } else {
    return false;
  }
  return true;
}

std::string Counted(int64_t count, const std::string& what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

// Of 1 to `most`, those that can be, nearest to `wanted` on both sides: "use 2 (4 such groups) or 4
// (2)", where `others` says how many there are.
template <class CanBe, class Others>
std::string Nearest(int64_t wanted, int64_t most, const std::string& group, const CanBe& can_be,
                    const Others& others) {
  int64_t below = 1, above = 0;
  for (int64_t n = 1; n <= most; ++n) {
    if (!can_be(n)) continue;
    if (n < wanted) below = n;
    if (n > wanted && above == 0) above = n;
  }
  std::string text =
      absl::StrCat("; use ", below, " (", Counted(others(below), "such " + group), ")");
  if (above > 0) absl::StrAppend(&text, " or ", above, " (", others(above), ")");
  return text;
}

// ", or take 6 or 12 ranks": the nearest multiples of `unit`.
std::string OrTake(int64_t ranks, int64_t unit) {
  const int64_t fewer = ranks / unit * unit;
  return absl::StrCat(", or take ", fewer > 0 ? absl::StrCat(fewer, " or ") : "", fewer + unit,
                      " ranks");
}

void CheckSlices(const ParallelConfig& config, const ModelConfig& model, int ranks,
                 const std::string& path, Problems& problems) {
  if (config.tp == 1) return;
  const int64_t heads = model.num_kv_heads;  // which divide the heads
  const bool known = heads > 0;              // what is wrong with the model is said elsewhere
  const auto fits_heads = [&](int64_t tp) { return !known || heads % tp == 0; };
  if (fits_heads(config.tp) && ranks % config.tp == 0) return;
  std::string text = absl::StrCat(config.tp, " must divide ");
  if (known) absl::StrAppend(&text, "the model's ", heads, " key-value heads and ");
  absl::StrAppend(&text, "the ", Counted(ranks, "rank"));
  absl::StrAppend(&text, Nearest(
                             config.tp, ranks, "group",
                             [&](int64_t tp) { return ranks % tp == 0 && fits_heads(tp); },
                             [&](int64_t tp) { return ranks / tp; }));
  if (fits_heads(config.tp)) absl::StrAppend(&text, OrTake(ranks, config.tp));
  problems.push_back({path + ".tp", text});
}

// Of a tp that can be: cp divides what that leaves.
void CheckContext(const ParallelConfig& config, int ranks, const std::string& path,
                  Problems& problems) {
  const int64_t groups = ranks / config.tp;
  if (config.cp == 1 || groups % config.cp == 0) return;
  std::string text =
      absl::StrCat(config.cp, " parts",
                   config.tp > 1 ? absl::StrCat(" of ", Counted(config.tp, "rank"), " (tp)") : "",
                   " must divide the ", Counted(ranks, "rank"));
  absl::StrAppend(&text,
                  Nearest(
                      config.cp, groups, "group", [&](int64_t cp) { return groups % cp == 0; },
                      [&](int64_t cp) { return groups / cp; }));
  absl::StrAppend(&text, OrTake(ranks, config.cp * config.tp));
  problems.push_back({path + ".cp", text});
}

// Of a tp and a cp that can be.
void CheckStages(const ParallelConfig& config, const ModelConfig& model, int ranks,
                 const std::string& path, Problems& problems) {
  if (config.pp == 1) return;
  const int64_t layers = model.num_layers, chunks = config.Chunks(), unit = config.tp * config.cp,
                groups = ranks / unit;
  const auto fits_layers = [&](int64_t pp) {
    return pp == 1 || layers == 0 || pp * chunks <= layers;
  };
  if (fits_layers(config.pp) && groups % config.pp == 0) return;
  const std::string kinds = config.cp == 1 ? " (tp)" : config.tp == 1 ? " (cp)" : " (tp times cp)";
  const std::string of_unit = unit > 1 ? absl::StrCat(" of ", Counted(unit, "rank"), kinds) : "";
  std::string text;
  if (groups % config.pp != 0)
    text = absl::StrCat(config.pp, " stages", of_unit, " must divide the ", Counted(ranks, "rank"));
  else if (chunks > 1)
    text = absl::StrCat(config.pp, " stages of ", chunks, " chunks need ", config.pp * chunks,
                        " layers, and the model has ", layers);
  else
    text = absl::StrCat(config.pp, " stages need as many layers, and the model has ", layers);
  absl::StrAppend(&text, Nearest(
                             config.pp, groups, "pipeline",
                             [&](int64_t pp) { return groups % pp == 0 && fits_layers(pp); },
                             [&](int64_t pp) { return groups / pp; }));
  if (fits_layers(config.pp)) absl::StrAppend(&text, OrTake(ranks, config.pp * unit));
  if (chunks > 1 && config.pp <= layers && groups % config.pp == 0)
    absl::StrAppend(&text, layers / config.pp > 1
                               ? absl::StrCat(", or chunks: ", layers / config.pp)
                               : ", or pipeline: 1f1b");
  problems.push_back({path + ".pp", text});
}

// Of a tp, a cp and a pp that can be.
void CheckExpertGroups(const ParallelConfig& config, const ModelConfig& model, int ranks,
                       int64_t shard_size, const std::string& path, Problems& problems) {
  if (config.ep == 1 || model.num_layers == 0) return;
  const int64_t experts = model.experts.count;
  if (experts == 0) {
    problems.push_back(
        {path + ".ep",
         absl::StrCat("is for models with experts (mixtral, qwen3_moe, dots1), and this "
                      "one is of model_type ",
                      model.family, "; leave it out")});
    return;
  }
  const int64_t in_stage = ranks / config.pp, group = shard_size > 0 ? shard_size : in_stage;
  const auto can_be = [&](int64_t ep) { return experts % ep == 0 && group % ep == 0; };
  if (can_be(config.ep)) return;
  std::string text = absl::StrCat(config.ep, " must divide the model's ", experts, " experts and ");
  absl::StrAppend(&text, "the ", Counted(group, "rank"),
                  shard_size > 0  ? " that share one copy (shard_size)"
                  : config.pp > 1 ? " of a stage"
                                  : "");
  absl::StrAppend(
      &text, Nearest(config.ep, group, "group", can_be, [&](int64_t ep) { return ranks / ep; }));
  if (experts % config.ep == 0 && shard_size == 0)
    absl::StrAppend(&text, OrTake(ranks, std::lcm(config.ep, config.tp * config.cp) * config.pp));
  problems.push_back({path + ".ep", text});
}

}  // namespace

ParallelConfig ParseParallel(const json& value, const std::string& path, Problems& problems) {
  ParallelConfig config;
  if (value == "auto") {
    config.automatic = true;
    return config;
  }
  if (!value.is_object()) {
    problems.push_back({path, absl::StrCat("must be a map, or auto; got ", value.dump())});
    return config;
  }
  for (const auto& [name, given] : value.items()) {
    const std::string at = absl::StrCat(path, ".", name);
    if (ParseKey(name, given, at, config, problems)) continue;
    const auto hint = std::find_if(ParallelHints().begin(), ParallelHints().end(),
                                   [&](const auto& h) { return h.first == name; });
    problems.push_back(
        {at, hint != ParallelHints().end()
                 ? hint->second
                 : "no such field." + DidYouMean(name, {std::begin(kKeys), std::end(kKeys)})});
  }
  if (value.contains("chunks") && config.pipeline != PipelineKind::kInterleaved)
    problems.push_back({path + ".chunks", "goes with pipeline: interleaved alone; leave it out"});
  return config;
}

ordered_json ParallelSchema() {
  const ParallelConfig defaults;
  ordered_json schema;
  schema["type"] = {"object", "string"};
  schema["pattern"] = "^auto$";  // of the string
  schema["additionalProperties"] = false;
  ordered_json& properties = schema["properties"];
  properties["tp"] = {
      {"type", "integer"},
      {"default", defaults.tp},
      {"minimum", 1},
      {"maximum", kMost},
      {"description",
       "Tensor parallelism: the number of neighbouring ranks, such as those of a host, that take "
       "the same rows and share out each layer's weights and activations. It must divide the "
       "model's num_key_value_heads and the number of ranks."}};
  properties["pp"] = {
      {"type", "integer"},
      {"default", defaults.pp},
      {"minimum", 1},
      {"maximum", kMost},
      {"description",
       "Pipeline parallelism: the number of stages, each of which has some of the layers and hands "
       "on what it made of a micro-batch. At most the layers; tp times pp must divide the number "
       "of ranks."}};
  properties["cp"] = {
      {"type", "integer"},
      {"default", defaults.cp},
      {"minimum", 1},
      {"maximum", kMost},
      {"description",
       "Context parallelism: the number of neighbouring ranks that take the same rows and have a "
       "part of each row's tokens, for rows that are too long for one. tp times cp (times pp) "
       "must divide the number of ranks."}};
  properties["cp_sharding"] = {
      {"type", "string"},
      {"default", kShardings[static_cast<int>(defaults.cp_sharding)]},
      {"enum", kShardings},
      {"description",
       "With cp, how rows are shared out: sequence cuts each row, document each document of it, so "
       "that ranks have the same attention to compute where documents are of very different "
       "lengths; auto takes for each micro-batch what should be faster."}};
  properties["ep"] = {
      {"type", "integer"},
      {"default", defaults.ep},
      {"minimum", 1},
      {"maximum", kMost},
      {"description",
       "Expert parallelism: the number of neighbouring ranks, with different tokens, that share "
       "out each layer's experts; tokens go to the ranks that have theirs, and come back. It must "
       "divide the model's experts and the ranks of a stage (or shard_size)."}};
  properties["pipeline"] = {
      {"type", "string"},
      {"default", PipelineName(defaults.pipeline)},
      {"enum", {"gpipe", "1f1b", "interleaved", "zero_bubble"}},
      {"description",
       "The order in which stages take micro-batches: gpipe all forwards first; 1f1b a backward as "
       "soon as there is one; interleaved the same with several stretches of layers a stage, which "
       "wait less and send more; zero_bubble 1f1b with the gradients of weights put off to where a "
       "stage would wait (ZB-H1)."}};
  properties["chunks"] = {
      {"type", "integer"},
      {"default", defaults.chunks},
      {"minimum", 2},
      {"maximum", kMostChunks},
      {"description",
       "For pipeline: interleaved: stretches of layers a stage. pp times chunks is at most the "
       "number of layers."}};
  for (const auto& [name, hint] : ParallelHints()) schema["x-muster-hints"][name] = hint;
  return schema;
}

void CheckParallel(const ParallelConfig& config, const ModelConfig& model, int ranks,
                   int64_t shard_size, const std::string& path, Problems& problems) {
  const size_t before = problems.size();
  CheckSlices(config, model, ranks, path, problems);
  if (problems.size() == before) CheckContext(config, ranks, path, problems);
  if (problems.size() == before) CheckStages(config, model, ranks, path, problems);
  if (problems.size() == before)
    CheckExpertGroups(config, model, ranks, shard_size, path, problems);
}

}  // namespace muster::trainer
