// Typed reading of a Document: each field is taken once, what is left over is unknown. Problems go
// to the document.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/spec/yaml_tree.h"

namespace muster {

// The fields of one map. Take or read each known field, then Finish.
class Fields {
 public:
  Fields(Document& document, const YamlNode& map, std::string path)
      : document_(document), map_(map), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string PathOf(std::string_view name) const { return JoinPath(path_, name); }
  Document& document() { return document_; }

  // The field's value, its place noted; null if absent or without a value (which is a problem).
  const YamlNode* Take(std::string_view name);
  bool Has(std::string_view name) const { return map_.Find(name) != nullptr; }

  // Each reads a field if it is there: true if it was and is good. What a value must be is in the
  // message otherwise.
  bool Text(std::string_view name, std::string* out);
  bool Int(std::string_view name, int64_t least, int64_t most, int64_t* out);
  bool Int(std::string_view name, int32_t least, int32_t most, int32_t* out);
  bool Bool(std::string_view name, bool* out);
  bool Milli(std::string_view name, int64_t* out);     // 0.5 -> 500
  bool Duration(std::string_view name, int64_t* out);  // nanoseconds
  bool Size(std::string_view name, int64_t* out);      // bytes; the unit is not optional
  // One of `choices`, of which the last `unnamed` are not suggested.
  bool Choice(std::string_view name, const std::vector<std::string>& choices, size_t unnamed,
              std::string* out);
  void TextList(std::string_view name, const std::function<void(std::string)>& add);
  void TextMap(std::string_view name, const std::function<void(std::string, std::string)>& add);
  std::optional<Fields> Map(std::string_view name);
  void ForEach(
      std::string_view name,
      const std::function<void(const YamlNode&, const std::string& path)>& each);  // of a list
  // Of a map with free keys.
  void ForEachEntry(std::string_view name,
                    const std::function<void(const YamlNode& key, const YamlNode& value,
                                             const std::string&)>& each);

  // A field that is known, but refused: "not yet: WHY".
  void NotYet(std::string_view name, std::string_view why);

  // Whatever was not taken is an unknown field.
  void Finish();

  // A problem with the value of `name`; rules that compare fields of this map are off afterwards.
  void Bad(std::string_view name, const YamlNode& at, std::string message);

 private:
  Document& document_;
  const YamlNode& map_;
  std::string path_;
  std::vector<std::string> known_;
};

// A scalar's value as text, whatever it looks like. False: not a scalar; the problem is added.
bool ReadText(Document& document, const YamlNode& node, const std::string& path, std::string* out);
std::optional<int64_t> WholeNumber(
    const YamlNode& node);                // decimal digits with a sign; none if it is anything else
std::string Shown(const YamlNode& node);  // for messages: "abc" in quotes, shortened; a list; a map

}  // namespace muster
