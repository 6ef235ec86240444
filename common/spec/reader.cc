#include "common/spec/reader.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/units.h"
#include "common/base/view.h"

namespace muster {
std::string Shown(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kList:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a map";
    case YamlNode::Kind::kScalar:
      break;
  }
  if (node.text.size() <= 60) return absl::StrCat("\"", node.text, "\"");
  size_t end = 57;
  while (end > 0 && (node.text[end] & 0xc0) == 0x80) --end;
  return absl::StrCat("\"", node.text.substr(0, end), "...\"");
}

bool ReadText(Document& document, const YamlNode& node, const std::string& path, std::string* out) {
  if (!node.IsScalar()) {
    document.Add(node, path, absl::StrCat("must be text; got ", Shown(node)));
    return false;
  }
  if (node.text.find('\0') != std::string::npos) {
    document.Add(node, path, "may not hold a NUL character");
    return false;
  }
  *out = node.text;
  return true;
}

std::optional<int64_t> WholeNumber(const YamlNode& node) {
  int64_t value = 0;
  if (!node.IsScalar() || node.quoted || node.text.empty()) return std::nullopt;
  if (node.text.find_first_not_of("+-0123456789") != std::string::npos ||
      !absl::SimpleAtoi(node.text, &value))
    return std::nullopt;
  return value;
}

const YamlNode* Fields::Take(std::string_view name) {
  known_.emplace_back(name);
  for (size_t i = 0; i < map_.keys.size(); ++i) {
    if (map_.keys[i].text != name) continue;
    document_.Note(PathOf(name), map_.items[i], &map_.keys[i]);
    if (map_.items[i].kind != YamlNode::Kind::kNull) return &map_.items[i];
    Bad(name, map_.keys[i], "has no value; give one or leave the field out");
    return nullptr;
  }
  return nullptr;
}

void Fields::Bad(std::string_view name, const YamlNode& at, std::string message) {
  document_.MarkUnsound(path_);
  // A list or map has no width of its own to underline: its key shows the place better.
  const YamlNode* place = &at;
  for (size_t i = 0; i < map_.keys.size(); ++i) {
    if (&map_.items[i] == &at && !at.IsScalar()) place = &map_.keys[i];
  }
  document_.Add(*place, PathOf(name), std::move(message));
}

bool Fields::Text(std::string_view name, std::string* out) {
  const YamlNode* node = Take(name);
  if (node == nullptr) return false;
  if (node->IsScalar()) return ReadText(document_, *node, PathOf(name), out);
  Bad(name, *node, absl::StrCat("must be text; got ", Shown(*node)));
  return false;
}

bool Fields::Int(std::string_view name, int64_t least, int64_t most, int64_t* out) {
  const YamlNode* node = Take(name);
  if (node == nullptr) return false;
  const std::optional<int64_t> value = WholeNumber(*node);
  if (!value.has_value() || *value < least || *value > most) {
    Bad(name, *node,
        absl::StrCat("must be a whole number from ", least, " to ", most, "; got ",
                     value ? absl::StrCat(*value) : Shown(*node)));
    return false;
  }
  *out = *value;
  return true;
}

bool Fields::Int(std::string_view name, int32_t least, int32_t most, int32_t* out) {
  int64_t value = 0;
  if (!Int(name, int64_t{least}, int64_t{most}, &value)) return false;
  *out = static_cast<int32_t>(value);
  return true;
}

bool Fields::Bool(std::string_view name, bool* out) {
  const YamlNode* node = Take(name);
  if (node == nullptr) return false;
  if (!node->IsScalar() || node->quoted || (node->text != "true" && node->text != "false")) {
    Bad(name, *node, absl::StrCat("must be true or false; got ", Shown(*node)));
    return false;
  }
  *out = node->text == "true";
  return true;
}

bool Fields::Milli(std::string_view name, int64_t* out) {
  const YamlNode* node = Take(name);
  if (node == nullptr) return false;
  if (!node->IsScalar() || node->quoted) {
    Bad(name, *node, absl::StrCat("must be a number; got ", Shown(*node)));
    return false;
  }
  if (node->text[0] == '-') {
    Bad(name, *node, absl::StrCat("must be 0 or more; got ", Shown(*node)));
    return false;
  }
  const absl::StatusOr<int64_t> value = ParseMilli(node->text);
  if (!value.ok()) Bad(name, *node, std::string(value.status().message()));
  if (value.ok()) *out = *value;
  return value.ok();
}

bool Fields::Duration(std::string_view name, int64_t* out) {
  const YamlNode* node = Take(name);
  if (node == nullptr) return false;
  if (!node->IsScalar()) {
    Bad(name, *node, absl::StrCat("must be a duration such as 10m; got ", Shown(*node)));
    return false;
  }
  const absl::StatusOr<int64_t> value = ParseDuration(node->text);
  if (!value.ok()) Bad(name, *node, std::string(value.status().message()));
  if (value.ok()) *out = *value;
  return value.ok();
}

bool Fields::Size(std::string_view name, int64_t* out) {
  const YamlNode* node = Take(name);
  if (node == nullptr) return false;
  if (!node->IsScalar()) {
    Bad(name, *node, absl::StrCat("must be a size such as 64GiB; got ", Shown(*node)));
    return false;
  }
  const absl::StatusOr<int64_t> value = ParseSize(node->text);
  if (!value.ok()) {
    Bad(name, *node, std::string(value.status().message()));
    return false;
  }
  if (*value != 0 && node->text.find_first_not_of("0123456789.") == std::string::npos) {
    Bad(name, *node,
        absl::StrCat("\"", node->text, "\" has no unit; write ", node->text, "GiB, or ", node->text,
                     "B for bytes"));
    return false;
  }
  *out = *value;
  return true;
}

bool Fields::Choice(std::string_view name, const std::vector<std::string>& choices, size_t unnamed,
                    std::string* out) {
  const YamlNode* node = Take(name);
  if (node == nullptr) return false;
  if (!node->IsScalar() || std::find(choices.begin(), choices.end(), node->text) == choices.end()) {
    Bad(name, *node,
        absl::StrCat("must be one of ",
                     absl::StrJoin(choices.begin(),
                                   choices.end() - static_cast<std::ptrdiff_t>(unnamed), ", "),
                     "; got ", Shown(*node)));
    return false;
  }
  *out = node->text;
  return true;
}

void Fields::ForEach(std::string_view name,
                     const std::function<void(const YamlNode&, const std::string&)>& each) {
  const YamlNode* node = Take(name);
  if (node == nullptr) return;
  if (!node->IsList()) {
    return Bad(name, *node,
               absl::StrCat("must be a list, such as [",
                            node->IsScalar() ? node->text.substr(0, 60) : "a, b", "]; got ",
                            Shown(*node)));
  }
  const std::string path = PathOf(name);
  for (size_t i = 0; i < node->items.size(); ++i) {
    document_.Note(IndexPath(path, i), node->items[i], nullptr);
    each(node->items[i], IndexPath(path, i));
  }
}

void Fields::TextList(std::string_view name, const std::function<void(std::string)>& add) {
  ForEach(name, [&](const YamlNode& node, const std::string& path) {
    std::string text;
    if (ReadText(document_, node, path, &text)) {
      add(std::move(text));
    } else {
      document_.MarkUnsound(path_);
    }
  });
}

void Fields::ForEachEntry(
    std::string_view name,
    const std::function<void(const YamlNode&, const YamlNode&, const std::string&)>& each) {
  const YamlNode* node = Take(name);
  if (node == nullptr) return;
  if (!node->IsMap())
    return Bad(name, *node,
               absl::StrCat("must be a map, such as {name: value}; got ", Shown(*node)));
  for (size_t i = 0; i < node->items.size(); ++i) {
    const std::string path = JoinPath(PathOf(name), node->keys[i].text);
    document_.Note(path, node->items[i], &node->keys[i]);
    each(node->keys[i], node->items[i], path);
  }
}

void Fields::TextMap(std::string_view name,
                     const std::function<void(std::string, std::string)>& add) {
  ForEachEntry(name, [&](const YamlNode& key, const YamlNode& value, const std::string& path) {
    std::string text;
    if (value.kind == YamlNode::Kind::kNull) {
      document_.Add(key, path, "has no value; write \"\" for an empty one");
    } else if (!value.IsScalar()) {
      document_.Add(key, path, absl::StrCat("must be text; got ", Shown(value)));
    } else if (key.text.find('\0') != std::string::npos) {
      document_.Add(key, path, "may not hold a NUL character");
    } else if (ReadText(document_, value, path, &text)) {
      add(key.text, std::move(text));
    }
  });
}

std::optional<Fields> Fields::Map(std::string_view name) {
  const YamlNode* node = Take(name);
  if (node == nullptr) return std::nullopt;
  if (!node->IsMap()) {
    Bad(name, *node, absl::StrCat("must be a map of fields; got ", Shown(*node)));
    return std::nullopt;
  }
  return Fields(document_, *node, PathOf(name));
}

void Fields::NotYet(std::string_view name, std::string_view why) {
  known_.emplace_back(name);
  for (const YamlNode& key : map_.keys) {
    if (key.text == name) document_.Add(key, PathOf(name), absl::StrCat("not yet: ", View(why)));
  }
}

void Fields::Finish() {
  for (const YamlNode& key : map_.keys) {
    if (std::find(known_.begin(), known_.end(), key.text) != known_.end()) continue;
    document_.MarkUnsound(path_);
    const std::string path = PathOf(key.text);
    if (!document_.HasProblemAt(path))
      document_.Add(key, path, absl::StrCat("no such field.", DidYouMean(key.text, known_)));
  }
}

}  // namespace muster
