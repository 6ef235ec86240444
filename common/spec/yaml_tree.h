// YAML text as a tree of nodes with places. Built from yaml-cpp's events, so that the caps
// (kMaxYaml…) hold before its recursion or memory can run away. Refuses anchors, aliases, tags,
// several documents, keys that aren't words, duplicate keys.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/problem.h"

namespace muster {

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string text;             // of a scalar
  bool quoted = false;          // the scalar is text, whatever it looks like
  int line = 0, column = 0;     // from 1; the column in bytes
  std::vector<YamlNode> keys;   // of a map, parallel to items; always scalars
  std::vector<YamlNode> items;  // of a list or map

  bool IsMap() const { return kind == Kind::kMap; }
  bool IsList() const { return kind == Kind::kList; }
  bool IsScalar() const { return kind == Kind::kScalar; }
  const YamlNode* Find(std::string_view key) const;  // value, or null; of a map
};

// A parsed file, the problems found in it so far, and the places of its fields.
class Document {
 public:
  // False: not usable at all; problems() says why. Duplicate keys are problems, but leave the tree
  // usable.
  bool Parse(std::string_view text, std::string_view filename);

  // Puts a value over what the file says: "trainer.max_steps=100", "tasks[1].workers={min: 1, max:
  // 2}", "tasks[train].grace=1m" (an element by its name:). The value is YAML; maps on the way are
  // made. Its problems have no line.
  void Set(std::string_view setting);

  const YamlNode& root() const { return root_; }
  const std::string& filename() const { return filename_; }

  void Add(const YamlNode& at, std::string_view path, std::string message);
  // At the noted place of the field's value (or its name), else its nearest noted parent's.
  enum class Where { kValue, kName };
  void AddAtPath(std::string_view path, std::string message, Where where = Where::kValue);

  // A field's places: its name, the key (null for elements of lists), and its value if that is a
  // scalar.
  void Note(const std::string& path, const YamlNode& value, const YamlNode* key);

  // A field of the map at `map_path` could not be read: rules that compare fields of that map would
  // only mislead.
  void MarkUnsound(const std::string& map_path) { unsound_.push_back(map_path); }
  bool Sound(std::string_view map_path) const;

  bool ok() const { return problems_.empty(); }
  bool HasProblemAt(std::string_view path) const;
  std::vector<Problem> TakeSorted();
  bool Deliver(
      std::vector<Problem>* problems);  // adds them, sorted by place; true if there were none

 private:
  struct Place {
    int line = 0, column = 0, width = 1;
  };
  Place PlaceOf(const YamlNode& node) const;
  std::string_view Line(int line) const;
  void AddAt(Place place, std::string_view path, std::string message);
  bool CheckText(std::string_view text);
  void CheckDuplicates(const YamlNode& node, const std::string& path);
  bool CheckQuotes(const YamlNode& node);

  std::string filename_, text_;
  std::vector<size_t> line_starts_;
  YamlNode root_;
  std::vector<Problem> problems_;
  struct FieldPlaces {
    Place name, value;
  };
  std::map<std::string, FieldPlaces, std::less<>> places_;
  std::vector<std::string> unsound_;
};

std::string JoinPath(std::string_view parent, std::string_view field);  // "a.b"; "b" below the root
std::string IndexPath(std::string_view parent, size_t index);           // "a[3]"
std::string ParentPath(std::string_view path);  // of "a.b[3]" "a.b"; of "a" ""

}  // namespace muster
