#include "agent/progress/line.h"

#include <stdlib.h>

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "common/base/utf8.h"

namespace muster::agent {
namespace {

using Json = nlohmann::json;

// Beyond these the scheduler ends the stream, and would again each time it is repeated.
constexpr size_t kMaxPath = 4096;
constexpr size_t kMaxRefused = 1000;

double Number(const Json& object, const char* key, double missing = 0) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return missing;
  const auto value = found->get<double>();
  return std::isfinite(value) ? value : missing;
}

int64_t Whole(const Json& object, const char* key, int64_t missing) {
  const double value = Number(object, key, static_cast<double>(missing));
  return value >= -1 && value <= 9e15 ? static_cast<int64_t>(value) : missing;
}

int64_t Count(const Json& object, const char* key) {
  return std::max<int64_t>(0, Whole(object, key, 0));
}

std::string Text(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::string Path(const Json& object, const char* key) {
  return std::string(CutUtf8(Text(object, key), kMaxPath));
}

// nullptr: there is none of that name.
const Json* Object(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_object() ? &*found : nullptr;
}

ProgressLine::Metrics ReadMetrics(const Json& root) {
  ProgressLine::Metrics metrics;
  metrics.step = Count(root, "step");
  metrics.total_steps = Count(root, "total_steps");
  metrics.loss = Number(root, "loss");
  metrics.tokens_per_s = Number(root, "tokens_per_s");
  metrics.mfu_causal = Number(root, "mfu_causal", Number(root, "mfu"));
  metrics.mfu_full = Number(root, "mfu_full");
  metrics.grad_norm = Number(root, "grad_norm");
  metrics.rows_per_s = Number(root, "rows_per_s");
  metrics.bad_rows = Count(root, "bad_rows");
  return metrics;
}

std::optional<ProgressLine::Checkpoint> ReadCheckpoint(const Json& object) {
  ProgressLine::Checkpoint checkpoint;
  checkpoint.path = Text(object, "path");
  if (checkpoint.path.empty() || checkpoint.path.size() > kMaxPath) return std::nullopt;
  checkpoint.step = Count(object, "step");
  checkpoint.size_bytes = Count(object, "bytes");
  checkpoint.loaded_step = Whole(object, "loaded_step", -1);
  checkpoint.loaded_path = Path(object, "loaded_path");
  return checkpoint;
}

ProgressLine::Loaded ReadLoaded(const Json& object) {
  ProgressLine::Loaded loaded;
  loaded.step = Whole(object, "step", -1);
  loaded.path = Path(object, "path");
  const auto skipped = object.find("skipped");
  if (skipped == object.end() || !skipped->is_array()) return loaded;
  for (const Json& entry : *skipped) {
    if (loaded.refused.size() == kMaxRefused) break;
    loaded.refused.push_back(Text(entry, "path") + ": " + Text(entry, "why"));
  }
  return loaded;
}

std::optional<ProgressLine::Export> ReadExport(const Json& object) {
  ProgressLine::Export exported{Text(object, "staged"), Text(object, "target")};
  if (exported.staged.empty() || exported.staged.size() > kMaxPath ||
      exported.target.size() > kMaxPath)
    return std::nullopt;
  return exported;
}

// A word outside of strings: NaN and Infinity, as Python and C++ write a loss that diverged, and
// numbers that no double holds.
bool IsNoFiniteNumber(const std::string& word) {
  char* end = nullptr;
  const double value = ::strtod(word.c_str(), &end);
  return end == word.c_str() + word.size() && !std::isfinite(value);
}

// The same line with null for numbers that JSON has none of: one of them says nothing against what
// else the line has.
std::string WithoutInfinities(std::string_view json) {
  std::string text;
  for (size_t at = 0; at < json.size();) {
    const size_t begin = at;
    if (json[at] == '"') {
      for (++at; at < json.size() && json[at] != '"'; ++at) at += json[at] == '\\' ? 1 : 0;
      at = std::min(at + 1, json.size());
      text += json.substr(begin, at - begin);
      continue;
    }
    at = std::min(json.find_first_of("\"{}[]:, \t\r\n", at), json.size());
    const std::string word(json.substr(begin, at - begin));
    text += !word.empty() && IsNoFiniteNumber(word) ? "null" : word;
    if (at < json.size() && json[at] != '"') text += json[at++];
  }
  return text;
}

Json Parsed(std::string_view json) {
  return Json::parse(json, nullptr, /*allow_exceptions=*/false);
}

}  // namespace

std::optional<ProgressLine> ParseProgressLine(std::string_view json) {
  Json root = Parsed(json);
  if (root.is_discarded()) root = Parsed(WithoutInfinities(json));
  if (!root.is_object()) return std::nullopt;
  ProgressLine line;
  if (root.contains("step")) line.metrics = ReadMetrics(root);
  if (const Json* object = Object(root, "checkpoint")) line.checkpoint = ReadCheckpoint(*object);
  if (const Json* object = Object(root, "loaded")) line.loaded = ReadLoaded(*object);
  if (const Json* object = Object(root, "export")) line.exported = ReadExport(*object);
  if (root.contains("rank")) {
    const double rank = Number(root, "rank", -1);
    line.rank = rank >= 0 && rank <= INT32_MAX ? static_cast<int32_t>(rank) : -1;
  }
  line.own_time_s = Number(root, "own_time_s");
  line.own_time_alone =
      root.contains("own_time_s") && root.size() == 1 + root.count("rank") + root.count("step");
  return line;
}

}  // namespace muster::agent
