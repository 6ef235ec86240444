#include "common/spec/fields.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/view.h"
#include "common/spec/problem.h"
#include "common/spec/reference.h"
#include "common/spec/trainer_schema.h"

namespace muster {
namespace {

constexpr size_t kTextWidth = 100;

// `text` in lines of at most kTextWidth, after `indent` spaces.
void AppendWrapped(std::string_view text, size_t indent, std::string* out) {
  std::string line;
  const auto flush = [&] {
    if (!line.empty()) absl::StrAppend(out, std::string(indent, ' '), line, "\n");
    line.clear();
  };
  for (absl::string_view word : absl::StrSplit(View(text), ' ', absl::SkipEmpty())) {
    if (!line.empty() && line.size() + word.size() + 1 + indent > kTextWidth) flush();
    absl::StrAppend(&line, line.empty() ? "" : " ", word);
  }
  flush();
}

void AppendField(std::string_view path, std::string_view type, std::string_view doc,
                 std::string* out) {
  absl::StrAppend(out, View(path), "  (", View(type), ")\n");
  AppendWrapped(doc, 4, out);
}

// A property of the trainer's schema, as a field.
void AppendTrainerField(const std::string& path, const nlohmann::json& property, std::string* out) {
  const auto text = [&](const char* key) {
    const auto found = property.find(key);
    return found != property.end() && found->is_string() ? found->get<std::string>()
                                                         : std::string();
  };
  std::string type = text("type");
  if (const auto types = property.find("type");
      types != property.end() && types->is_array() && !types->empty() && types->front().is_string())
    type = types->front().get<std::string>();
  type = type == "integer"   ? "whole number"
         : type == "string"  ? "text"
         : type == "object"  ? "map"
         : type == "array"   ? "list"
         : type == "boolean" ? "true or false"
         : type.empty()      ? "any"
                             : type;
  const bool takes_word = type == "map" || type == "true or false";
  if (const std::string word = WordInPlace(property); takes_word && !word.empty())
    absl::StrAppend(&type, ", or ", word);
  if (const auto choices = property.find("enum");
      choices != property.end() && choices->is_array()) {
    std::string words;
    for (const auto& choice : *choices) {
      if (!choice.is_null())
        absl::StrAppend(&words, words.empty() ? "" : ", ",
                        choice.is_string() ? choice.get<std::string>() : choice.dump());
    }
    type = words.empty() ? "not taken" : words;
  }
  std::string doc = text("description");
  if (const auto fallback = property.find("default"); fallback != property.end()) {
    absl::StrAppend(&doc, " Default ",
                    fallback->is_string() ? fallback->get<std::string>() : fallback->dump(), ".");
  }
  AppendField(path, type, doc, out);
}

const nlohmann::json* Properties(const nlohmann::json& of) {
  const auto found = of.is_object() ? of.find("properties") : of.end();
  return found != of.end() && found->is_object() ? &*found : nullptr;
}

// What the schema says at "trainer" or "trainer.max_steps"; nullptr: nothing.
const nlohmann::json* At(const nlohmann::json& schema, std::string_view path) {
  const std::vector<std::string> names = absl::StrSplit(View(path), '.');
  const nlohmann::json* at = &schema;
  for (size_t i = 1; i < names.size(); ++i) {
    const nlohmann::json* keys = Properties(*at);
    if (keys == nullptr || !keys->contains(names[i])) return nullptr;
    at = &(*keys)[names[i]];
  }
  return at;
}

bool OfTrainer(std::string_view path) {
  return path == "trainer" || path.substr(0, 8) == "trainer.";
}

constexpr size_t kSchemaBytes = size_t{1} << 20;

// What stands below `path` of the trainer's schema: trainer itself has all its keys, a key that is
// a map has its own.
std::string TrainerText(std::string_view path, std::string_view schema_json) {
  const nlohmann::json schema = ParseBoundedJson(schema_json, kSchemaBytes);
  const nlohmann::json* at = At(schema, path);
  if (at == nullptr) return "";
  std::string out;
  if (absl::StrContains(View(path), ".") && at->is_object())
    AppendTrainerField(std::string(path), *at, &out);
  if (const nlohmann::json* keys = Properties(*at); keys != nullptr) {
    for (const auto& [key, property] : keys->items()) {
      if (property.is_object())
        AppendTrainerField(absl::StrCat(View(path), ".", key), property, &out);
    }
  }
  return out;
}

std::string_view BelowTask(std::string_view path) {
  if (path.substr(0, 6) == "tasks." || path.substr(0, 8) == "tasks[].")
    path.remove_prefix(path.find('.') + 1);
  return path;
}

bool IsAtOrBelow(std::string_view name, std::string_view path) {
  return name == path || (name.size() > path.size() && name.substr(0, path.size()) == path &&
                          name[path.size()] == '.');
}

}  // namespace

const std::vector<FieldDoc>& JobFields() {
  static const std::vector<FieldDoc> fields = {
#include "common/spec/field_docs.inc"
  };
  return fields;
}

std::string FieldsText(std::string_view path, std::string_view trainer_schema_json) {
  std::string out;
  if (path.empty()) {
    absl::StrAppend(&out, "A job's fields; more of each: muster fields FIELD\n");
    for (const bool task : {false, true}) {
      absl::StrAppend(
          &out, task ? "\nA task's; at the top of the file when the job has one task:\n" : "\n");
      for (const FieldDoc& field : JobFields()) {
        if (field.task != task || absl::StrContains(field.path, ".")) continue;
        const std::string_view doc = field.doc;
        const size_t end = doc.find(". ");
        absl::StrAppend(
            &out, absl::StrFormat("  %-22s%s\n", field.path,
                                  std::string(doc.substr(
                                      0, end == std::string_view::npos ? doc.size() : end + 1))));
      }
    }
    return out;
  }
  path = BelowTask(path);
  for (const FieldDoc& field : JobFields()) {
    if (IsAtOrBelow(field.path, path)) AppendField(field.path, field.type, field.doc, &out);
  }
  if (OfTrainer(path)) absl::StrAppend(&out, TrainerText(path, trainer_schema_json));
  return out;
}

std::string FieldsJson(std::string_view path, std::string_view trainer_schema_json) {
  path = BelowTask(path);
  nlohmann::ordered_json fields = nlohmann::ordered_json::array();
  for (const FieldDoc& field : JobFields()) {
    if (path.empty() || IsAtOrBelow(field.path, path))
      fields.push_back(
          {{"path", field.path}, {"type", field.type}, {"doc", field.doc}, {"task", field.task}});
  }
  if (OfTrainer(path)) {
    const nlohmann::json schema = ParseBoundedJson(trainer_schema_json, kSchemaBytes);
    if (const nlohmann::json* at = At(schema, path); at != nullptr && at->is_object()) {
      fields.push_back({{"path", std::string(path)}, {"schema", nlohmann::ordered_json(*at)}});
    }
  }
  return fields.empty() ? "" : fields.dump(2) + "\n";
}

bool IsTrainersField(std::string_view path) { return OfTrainer(BelowTask(path)); }

std::string FieldSuggestion(std::string_view path, std::string_view trainer_schema_json) {
  std::vector<std::string> names;
  if (IsTrainersField(path) &&
      path.find('.') != std::string_view::npos) {  // below the map that it would be in
    const std::string parent(BelowTask(path).substr(0, BelowTask(path).rfind('.')));
    const nlohmann::json schema = ParseBoundedJson(trainer_schema_json, kSchemaBytes);
    const nlohmann::json* at = At(schema, parent);
    if (const nlohmann::json* keys = at == nullptr ? nullptr : Properties(*at); keys != nullptr) {
      for (const auto& [key, property] : keys->items())
        names.push_back(absl::StrCat(parent, ".", key));
    }
    return DidYouMean(BelowTask(path), names);
  }
  for (const FieldDoc& field : JobFields()) names.emplace_back(field.path);
  for (const std::string& name : names) {
    if (absl::EndsWith(name, absl::StrCat(".", View(path))))
      return absl::StrCat(" Did you mean ", name, "?");
  }
  return DidYouMean(path, names);
}

std::string JobReferenceMarkdown() { return RenderJobReference(JobFields()); }

}  // namespace muster
