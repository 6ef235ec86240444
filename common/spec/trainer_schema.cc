#include "common/spec/trainer_schema.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/spec/problem.h"
#include "common/spec/reader.h"
#include "common/spec/spec.h"

namespace muster {
namespace {

using nlohmann::json;

// The member `key` of a schema object, or null.
const json* Member(const json* schema, const std::string& key) {
  if (schema == nullptr || !schema->is_object()) return nullptr;
  const auto found = schema->find(key);
  return found == schema->end() ? nullptr : &*found;
}

std::string TextMember(const json* schema, const std::string& key) {
  const json* member = Member(schema, key);
  return member != nullptr && member->is_string() ? member->get<std::string>() : "";
}

// A decimal number, with or without fraction and exponent; finite.
std::optional<json> Number(const std::string& text) {
  if (text.empty() || text.size() > 64 ||
      text.find_first_not_of("+-.0123456789eE") != std::string::npos)
    return std::nullopt;
  if (text.find_first_of("0123456789") == std::string::npos || text[0] == 'e' || text[0] == 'E')
    return std::nullopt;
  if (text.find_first_not_of("+-0123456789") == std::string::npos) {
    int64_t whole = 0;
    if (absl::SimpleAtoi(text, &whole)) return json(whole);
  }
  double real = 0;
  if (!absl::SimpleAtod(text, &real) || !std::isfinite(real)) return std::nullopt;
  return json(real);
}

std::string Dump(const json& value) {
  if (value.is_object()) return "a map";
  if (value.is_array()) return "a list";
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

std::string NumberText(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return absl::StrCat(static_cast<int64_t>(value));
  return Dump(value);
}

// "integer" of type: integer and of type: [integer, "null"].
std::string TypeOf(const json* schema) {
  const json* type = Member(schema, "type");
  if (type == nullptr || !type->is_array()) return TextMember(schema, "type");
  for (const json& one : *type) {
    if (one.is_string() && one != "null") return one.get<std::string>();
  }
  return "null";
}

bool Takes(const json& schema, const char* kind) {
  const json* type = Member(&schema, "type");
  if (type == nullptr || !type->is_array()) return type == nullptr || *type == kind;
  return std::find(type->begin(), type->end(), kind) != type->end();
}

std::optional<double> Bound(const json& schema, const char* key) {
  const json* bound = Member(&schema, key);
  return bound != nullptr && bound->is_number() ? std::optional(bound->get<double>())
                                                : std::nullopt;
}

std::string RangeText(const json& schema) {
  const auto least = Bound(schema, "minimum"), above = Bound(schema, "exclusiveMinimum");
  const auto most = Bound(schema, "maximum"), below = Bound(schema, "exclusiveMaximum");
  if (least && most) return absl::StrCat(" from ", NumberText(*least), " to ", NumberText(*most));
  std::string out;
  if (least) out = absl::StrCat(" of at least ", NumberText(*least));
  if (above) out = absl::StrCat(" above ", NumberText(*above));
  if (most) absl::StrAppend(&out, out.empty() ? "" : " and", " at most ", NumberText(*most));
  if (below) absl::StrAppend(&out, out.empty() ? "" : " and", " below ", NumberText(*below));
  return out;
}

bool InRange(const json& schema, double value) {
  const auto least = Bound(schema, "minimum"), above = Bound(schema, "exclusiveMinimum");
  const auto most = Bound(schema, "maximum"), below = Bound(schema, "exclusiveMaximum");
  return std::isfinite(value) && (!least || value >= *least) && (!above || value > *above) &&
         (!most || value <= *most) && (!below || value < *below);
}

std::vector<std::string> Names(const json* list) {
  std::vector<std::string> out;
  if (list == nullptr || !list->is_array()) return out;
  for (const json& name : *list) {
    if (name.is_string()) out.push_back(name.get<std::string>());
  }
  return out;
}

// oneOf of required: exactly one of the names it lists.
void CheckOneOf(const json& value, const json& schema, const std::string& path,
                const EmitProblem& emit) {
  const json* one_of = Member(&schema, "oneOf");
  if (one_of == nullptr || !one_of->is_array()) return;
  std::vector<std::string> given, all;
  for (const json& branch : *one_of) {
    const std::vector<std::string> names = Names(Member(&branch, "required"));
    if (names.size() != 1) return;
    all.push_back(names[0]);
    if (value.contains(names[0])) given.push_back(names[0]);
  }
  if (given.size() > 1)
    emit(JoinPath(path, given[1]),
         absl::StrCat(given[0], " and ", given[1], " exclude each other; keep one"),
         Document::Where::kName);
  if (given.empty() && !all.empty()) {
    std::string wanted = all[0];
    for (size_t i = 1; i < all.size(); ++i) absl::StrAppend(&wanted, " or ", all[i]);
    emit(path, absl::StrCat("give ", wanted), Document::Where::kValue);
  }
}

void CheckObject(const json& value, const json& schema, const std::string& path,
                 const EmitProblem& emit) {
  const json* properties = Member(&schema, "properties");
  const json* hints = Member(&schema, "x-muster-hints");
  const json* additional = Member(&schema, "additionalProperties");
  const bool closed = additional != nullptr && additional->is_boolean() && !additional->get<bool>();
  std::vector<std::string> known;
  if (properties != nullptr && properties->is_object()) {
    for (const auto& [name, unused] : properties->items()) known.push_back(name);
  }
  bool unknown = false;
  for (const auto& [name, member] : value.items()) {
    const std::string at = JoinPath(path, name);
    if (const json* property = Member(properties, name)) {
      CheckAgainstSchema(member, *property, at, emit);
    } else if (const std::string hint = TextMember(hints, name); !hint.empty()) {
      emit(at, hint, Document::Where::kName);
      unknown = true;
    } else if (closed) {
      emit(at, absl::StrCat("no such field.", DidYouMean(name, known)), Document::Where::kName);
      unknown = true;
    }
  }
  if (unknown) return;  // what is missing may be what was misspelt
  for (const std::string& name : Names(Member(&schema, "required"))) {
    if (value.contains(name)) continue;
    const std::string description = TextMember(Member(properties, name), "description");
    emit(JoinPath(path, name),
         absl::StrCat("is missing.", description.empty() ? "" : " ", description),
         Document::Where::kValue);
  }
  CheckOneOf(value, schema, path, emit);
  if (const json* all_of = Member(&schema, "allOf"); all_of != nullptr && all_of->is_array()) {
    for (const json& branch : *all_of) CheckOneOf(value, branch, path, emit);
  }
}

}  // namespace

std::string WordInPlace(const json& schema) {
  const std::string pattern = TextMember(&schema, "pattern");
  const bool one = pattern.size() > 2 && pattern.front() == '^' && pattern.back() == '$';
  return one && Takes(schema, "string") ? pattern.substr(1, pattern.size() - 2) : "";
}

json ParseBoundedJson(std::string_view text, size_t max_bytes) {
  json bad(json::value_t::discarded);
  if (text.size() > max_bytes) return bad;
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text) {
      if (c == '\\') ++i;
      if (c == '"') in_text = false;
    } else if (c == '"') {
      in_text = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxYamlDepth) return bad;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

json TrainerJson(const YamlNode& node, const json* schema, const std::string& path,
                 Document& document) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return json();
    case YamlNode::Kind::kMap: {
      json out = json::object();
      for (size_t i = 0; i < node.items.size(); ++i) {
        const std::string& name = node.keys[i].text;
        const std::string at = JoinPath(path, name);
        document.Note(at, node.items[i], &node.keys[i]);
        if (!out.contains(name))
          out[name] =
              TrainerJson(node.items[i], Member(Member(schema, "properties"), name), at, document);
      }
      return out;
    }
    case YamlNode::Kind::kList: {
      json out = json::array();
      for (size_t i = 0; i < node.items.size(); ++i) {
        const std::string at = IndexPath(path, i);
        document.Note(at, node.items[i], nullptr);
        out.push_back(TrainerJson(node.items[i], Member(schema, "items"), at, document));
      }
      return out;
    }
    case YamlNode::Kind::kScalar:
      break;
  }
  const std::string type = TypeOf(schema);
  if (node.quoted || type == "string") return node.text;
  if (node.text == "true" || node.text == "false") return node.text == "true";
  if (const std::optional<json> number = Number(node.text)) {
    // 600.0 and 6e2 are whole numbers too.
    if (type == "integer" && number->is_number_float()) {
      const double real = number->get<double>();
      if (real == std::floor(real) && std::abs(real) < 9e15) return static_cast<int64_t>(real);
    }
    return *number;
  }
  return node.text;
}

void CheckAgainstSchema(const json& value, const json& schema, const std::string& path,
                        const EmitProblem& emit) {
  if (!schema.is_object()) return;
  const std::string type = TypeOf(&schema);
  const auto bad = [&](const std::string& wanted) {
    emit(path, absl::StrCat("must be ", wanted, "; got ", Dump(value)), Document::Where::kValue);
  };
  if (value.is_null()) {
    if (!Takes(schema, "null"))
      emit(path, "has no value; give one or leave the field out", Document::Where::kValue);
    return;
  }
  if (const json* choices = Member(&schema, "enum"); choices != nullptr && choices->is_array()) {
    if (std::find(choices->begin(), choices->end(), value) != choices->end()) return;
    std::vector<std::string> words;
    for (const json& choice : *choices) {
      if (!choice.is_null())
        words.push_back(choice.is_string() ? choice.get<std::string>() : Dump(choice));
    }
    if (!words.empty())
      return bad((words.size() == 1 ? "" : "one of ") + absl::StrJoin(words, ", "));
    const std::string description = TextMember(&schema, "description");  // nothing may stand here
    return emit(path, description.empty() ? "can't be given; leave it out" : description,
                Document::Where::kName);
  }
  if (type == "integer") {
    const bool whole = value.is_number() && value.get<double>() == std::floor(value.get<double>());
    if (!whole || !InRange(schema, value.get<double>())) bad("a whole number" + RangeText(schema));
  } else if (type == "number") {
    if (!value.is_number() || !InRange(schema, value.get<double>()))
      bad("a number" + RangeText(schema));
  } else if (type == "boolean") {
    const std::string word = WordInPlace(schema);
    if (!word.empty() && value == word) return;
    if (!value.is_boolean())
      bad(word.empty() ? "true or false" : absl::StrCat("true, false or ", word));
  } else if (type == "string") {
    if (!value.is_string()) return bad("text");
    const std::optional<double> least = Bound(schema, "minLength");
    if (least && static_cast<double>(value.get_ref<const std::string&>().size()) < *least)
      bad("text that isn't empty");
  } else if (type == "array") {
    if (!value.is_array()) return bad("a list");
    const json* items = Member(&schema, "items");
    for (size_t i = 0; items != nullptr && i < value.size(); ++i)
      CheckAgainstSchema(value[i], *items, IndexPath(path, i), emit);
  } else if (type == "object" || Member(&schema, "properties") != nullptr) {
    const std::string word = WordInPlace(schema);
    if (!word.empty() && value == word) return;
    if (!value.is_object()) return bad(word.empty() ? "a map" : absl::StrCat("a map, or ", word));
    CheckObject(value, schema, path, emit);
  }
}

}  // namespace muster
