#include "common/spec/members.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/job_defaults.h"
#include "common/base/view.h"
#include "common/spec/ray.h"
#include "common/spec/spec.h"
#include "common/spec/trainer_schema.h"

namespace muster {
namespace {

constexpr std::string_view kTrainerPrefix = "trainer.";

bool ReadIndex(std::string_view text, int64_t* value) {
  return !text.empty() && text.size() <= 10 &&
         text.find_first_not_of("0123456789") == std::string_view::npos &&
         absl::SimpleAtoi(View(text), value) && *value <= kMaxArrayIndex;
}

// "8", "1-9" or "1-9:2".
bool ReadRange(std::string_view text, ArrayIndices::Range* range) {
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) {
    if (!ReadIndex(text, &range->first)) return false;
    range->last = range->first;
    return true;
  }
  const size_t colon = text.find(':', dash);
  if (colon != std::string_view::npos &&
      (!ReadIndex(text.substr(colon + 1), &range->step) || range->step == 0))
    return false;
  const std::string_view last = text.substr(
      dash + 1, colon == std::string_view::npos ? std::string_view::npos : colon - dash - 1);
  return ReadIndex(text.substr(0, dash), &range->first) && ReadIndex(last, &range->last);
}

// But that no index is there twice.
std::optional<ArrayIndices> ReadArray(std::string_view text, std::string* why) {
  ArrayIndices indices;
  if (text.size() > kMaxArrayBytes) {
    *why = absl::StrCat("longer than ", kMaxArrayBytes,
                        " characters; write ranges such as 0-99 or 1-9:2, or submit it in parts");
    return std::nullopt;
  }
  const size_t percent = text.find('%');
  if (percent != std::string_view::npos) {
    int64_t at_a_time = 0;
    if (!ReadIndex(text.substr(percent + 1), &at_a_time) || at_a_time < 1 ||
        at_a_time > kMaxMembers) {
      *why = absl::StrCat("behind % stands how many run at a time, 1 to ", kMaxMembers);
      return std::nullopt;
    }
    indices.at_a_time = static_cast<int32_t>(at_a_time);
    text = text.substr(0, percent);
  }
  int64_t size = 0;
  for (const absl::string_view part : absl::StrSplit(View(text), ',')) {
    ArrayIndices::Range range;
    if (!ReadRange({part.data(), part.size()}, &range)) {
      *why = absl::StrCat("\"", part.substr(0, 60),
                          "\" is no index; write 0-99, 1-9:2 or 3,5,8-10, and %8 behind it for "
                          "eight at a time");
      return std::nullopt;
    }
    if (range.last < range.first) {
      *why = absl::StrCat(range.first, "-", range.last, " ends before it begins");
      return std::nullopt;
    }
    size += range.size();
    if (size > kMaxMembers) {
      *why = absl::StrCat("more than ", kMaxMembers, " members; submit it in parts");
      return std::nullopt;
    }
    indices.ranges.push_back(range);
  }
  return indices;
}

// Of an array that was checked: cheap, as it is asked at each start of a member.
ArrayIndices IndicesOf(const pb::JobSpec& spec) {
  std::string why;
  return ReadArray(spec.array(), &why).value_or(ArrayIndices());
}

int64_t SizeOf(const ArrayIndices& indices) {
  int64_t size = 0;
  for (const ArrayIndices::Range& range : indices.ranges) size += range.size();
  return size;
}

using Replacements = std::vector<std::pair<std::string, std::string>>;

Replacements ReplacementsFor(const pb::JobSpec& spec, int32_t member) {
  Replacements replacements = {{"{{index}}", absl::StrCat(IndexOfMember(spec, member))}};
  for (const auto& [name, value] : ValuesOfMember(spec, member))
    replacements.emplace_back(absl::StrCat("{{", name, "}}"), value);
  return replacements;
}

std::string Replaced(const std::string& text, const Replacements& replacements) {
  return absl::StrContains(text, "{{") ? absl::StrReplaceAll(text, replacements) : text;
}

// What the text is in a file that has it below trainer:, where it is no JSON. .5, 5. and +5 are
// numbers there; 007 may be a name.
nlohmann::json ScalarOf(const std::string& text) {
  const size_t first = std::min(text.find_first_not_of("+-"), text.size());
  if (first + 1 < text.size() && text[first] == '0' && absl::ascii_isdigit(text[first + 1]))
    return text;
  YamlNode scalar;
  scalar.kind = YamlNode::Kind::kScalar;
  scalar.text = text;
  Document nowhere;
  return TrainerJson(scalar, nullptr, "", nowhere);
}

}  // namespace

std::string ExportOf(const pb::TaskSpec& task) {
  if (task.trainer_json().empty()) return "";
  const nlohmann::json trainer = ParseBoundedJson(task.trainer_json(), kMaxYamlBytes);
  const auto found = trainer.is_object() ? trainer.find("export") : trainer.end();
  return found != trainer.end() && found->is_string() ? found->get<std::string>() : "";
}

std::optional<ArrayIndices> ParseArray(std::string_view text, std::string* why) {
  std::optional<ArrayIndices> indices = ReadArray(text, why);
  if (!indices.has_value()) return std::nullopt;
  std::vector<int64_t> all;
  for (const ArrayIndices::Range& range : indices->ranges) {
    for (int64_t i = 0; i < range.size(); ++i) all.push_back(range.first + i * range.step);
  }
  std::sort(all.begin(), all.end());
  if (const auto twice = std::adjacent_find(all.begin(), all.end()); twice != all.end()) {
    *why = absl::StrCat("index ", *twice, " is there twice");
    return std::nullopt;
  }
  return indices;
}

int32_t MembersOf(const pb::JobSpec& spec) {
  if (spec.has_independent_workers()) return spec.independent_workers().max();
  if (!spec.array().empty()) return static_cast<int32_t>(SizeOf(IndicesOf(spec)));
  if (spec.sweep().empty()) return 0;
  int64_t size = 1;
  for (const pb::SweepValues& values : spec.sweep())
    size = std::min<int64_t>(int64_t{kMaxMembers} + 1, size * values.values_size());
  return static_cast<int32_t>(size);
}

int32_t MembersAtATime(const pb::JobSpec& spec) {
  const int32_t at_a_time = spec.array().empty() ? 0 : IndicesOf(spec).at_a_time;
  return at_a_time == 0 ? MembersOf(spec) : at_a_time;
}

bool StandsBehind(const pb::JobSpec& spec, int32_t member) {
  return spec.has_independent_workers() && member >= spec.independent_workers().min();
}

int64_t IndexOfMember(const pb::JobSpec& spec, int32_t member) {
  if (spec.array().empty()) return member;
  int64_t before = member;
  for (const ArrayIndices::Range& range : IndicesOf(spec).ranges) {
    if (before < range.size()) return range.first + before * range.step;
    before -= range.size();
  }
  return -1;
}

int32_t MemberOfIndex(const pb::JobSpec& spec, int64_t index) {
  if (spec.array().empty())
    return index >= 0 && index < MembersOf(spec) ? static_cast<int32_t>(index) : -1;
  int64_t before = 0;
  for (const ArrayIndices::Range& range : IndicesOf(spec).ranges) {
    if (index >= range.first && index <= range.last && (index - range.first) % range.step == 0)
      return static_cast<int32_t>(before + (index - range.first) / range.step);
    before += range.size();
  }
  return -1;
}

SweptValues ValuesOfMember(const pb::JobSpec& spec, int32_t member) {
  SweptValues values;
  int64_t left = member;
  for (int i = spec.sweep_size() - 1; i >= 0; --i) {
    const pb::SweepValues& of = spec.sweep(i);
    if (of.values().empty()) continue;
    values.emplace_back(of.name(), of.values(static_cast<int>(left % of.values_size())));
    left /= of.values_size();
  }
  std::reverse(values.begin(), values.end());
  return values;
}

bool SetsTrainer(std::string_view name) {
  return name.size() > kTrainerPrefix.size() &&
         name.substr(0, kTrainerPrefix.size()) == kTrainerPrefix;
}

bool SetTrainerKey(std::string_view name, const std::string& value, std::string* trainer_json) {
  nlohmann::json trainer = ParseBoundedJson(*trainer_json, kMaxYamlBytes);
  nlohmann::json* at = &trainer;
  for (const absl::string_view key :
       absl::StrSplit(View(name.substr(kTrainerPrefix.size())), '.')) {
    if (at->is_null()) *at = nlohmann::json::object();
    if (!at->is_object()) return false;
    at = &(*at)[std::string(key)];
  }
  nlohmann::json parsed = nlohmann::json::parse(value, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) parsed = ScalarOf(value);
  *at = parsed.is_object() ? nlohmann::json(value) : std::move(parsed);
  *trainer_json = trainer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return true;
}

pb::TaskSpec TaskOfMember(const pb::JobSpec& spec, int32_t task, int32_t member) {
  pb::TaskSpec own = spec.tasks(task);
  const Replacements replacements = ReplacementsFor(spec, member);
  if (own.has_run()) {
    pb::Run* run = own.mutable_run();
    run->set_shell(Replaced(run->shell(), replacements));
    for (std::string& word : *run->mutable_exec()) word = Replaced(word, replacements);
  }
  own.set_setup(Replaced(own.setup(), replacements));
  for (auto& [name, value] : *own.mutable_env()) value = Replaced(value, replacements);
  if (own.has_ray()) {
    *own.mutable_run() = RayLauncher(own);
    own.set_max_restarts(MaxRestartsOf(spec, task, member));
    own.clear_ray();
  }
  if (own.trainer_json().empty()) return own;
  for (const auto& [name, value] : ValuesOfMember(spec, member)) {
    if (SetsTrainer(name)) SetTrainerKey(name, value, own.mutable_trainer_json());
  }
  if (const std::string target = ExportOf(own); absl::StrContains(target, "{{"))
    SetTrainerKey("trainer.export", nlohmann::json(Replaced(target, replacements)).dump(),
                  own.mutable_trainer_json());
  return own;
}

std::map<std::string, std::string> JobEnvOfMember(const pb::JobSpec& spec, int32_t member) {
  std::map<std::string, std::string> env(spec.env().begin(), spec.env().end());
  const Replacements replacements = ReplacementsFor(spec, member);
  for (auto& [name, value] : env) value = Replaced(value, replacements);
  return env;
}

int32_t MaxRestartsOf(const pb::JobSpec& spec, int32_t task, int32_t member) {
  const pb::TaskSpec& of = spec.tasks(task);
  if (of.has_ray() && member == 0) return 0;  // its cluster ends with it
  return of.has_max_restarts() ? of.max_restarts() : kDefaultMaxRestarts;
}

std::string SweepVariable(std::string_view name) {
  return absl::StrCat("MUSTER_SWEEP_", absl::StrReplaceAll(View(name), {{".", "_"}}));
}

std::map<std::string, std::string> MemberVariables(const pb::JobSpec& spec, uint64_t array,
                                                   int32_t member) {
  std::map<std::string, std::string> variables;
  variables["MUSTER_JOB"] = MemberId(spec, array, member);
  variables["MUSTER_ARRAY_JOB"] = absl::StrCat(array);
  variables["MUSTER_ARRAY_INDEX"] = absl::StrCat(IndexOfMember(spec, member));
  variables["MUSTER_ARRAY_SIZE"] = absl::StrCat(MembersOf(spec));
  for (const auto& [name, value] : ValuesOfMember(spec, member))
    variables[SweepVariable(name)] = value;
  return variables;
}

std::string MemberId(const pb::JobSpec& spec, uint64_t array, int32_t member) {
  return absl::StrCat(array, "_", IndexOfMember(spec, member));
}

}  // namespace muster
