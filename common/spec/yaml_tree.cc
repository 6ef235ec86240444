#include "common/spec/yaml_tree.h"

#include <algorithm>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/utf8.h"
#include "common/base/view.h"
#include "common/spec/spec.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/exceptions.h"
#include "yaml-cpp/mark.h"
#include "yaml-cpp/parser.h"

namespace muster {
namespace {

// Ends the parse: what was met can't be part of any file of ours.
struct Refusal {
  int line, column;
  std::string message;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(YamlNode* root) : root_(root) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) Refuse(mark, "a second document starts here; write one to a file");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Place(mark, anchor, "", YamlNode::Kind::kNull);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Refuse(mark, "aliases (*name) are not used here; write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlNode* node = Place(mark, anchor, tag, YamlNode::Kind::kScalar);
    node->text = value;
    node->quoted = tag == "!";
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(mark, Place(mark, anchor, tag, YamlNode::Kind::kList));
  }
  void OnSequenceEnd() override { open_.pop_back(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(mark, Place(mark, anchor, tag, YamlNode::Kind::kMap));
  }
  void OnMapEnd() override { open_.pop_back(); }

 private:
  [[noreturn]] void Refuse(const YAML::Mark& mark, std::string message) {
    throw Refusal{mark.line + 1, mark.column + 1, std::move(message)};
  }

  // A node of `kind` at its place in the innermost open list or map. Nodes that are open don't
  // move: only the innermost grows.
  YamlNode* Place(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string& tag,
                  YamlNode::Kind kind) {
    if (anchor != 0)
      Refuse(mark, "anchors (&name) are not used here; write the value out where it is needed");
    if (!tag.empty() && tag != "?" && tag != "!")
      Refuse(mark, "tags (!name) are not used here; leave it out");
    if (++nodes_ > kMaxYamlNodes)
      Refuse(mark, absl::StrCat("more than ", kMaxYamlNodes, " values; a file may have no more"));
    YamlNode* node = root_;
    if (!open_.empty()) {
      YamlNode* parent = open_.back();
      const bool is_key = parent->IsMap() && parent->keys.size() == parent->items.size();
      if (is_key && kind != YamlNode::Kind::kScalar)
        Refuse(mark, "the name of a field must be a word");
      std::vector<YamlNode>& nodes = is_key ? parent->keys : parent->items;
      node = &nodes.emplace_back();
    }
    node->kind = kind;
    node->line = mark.line + 1;
    node->column = mark.column + 1;
    return node;
  }

  void Open(const YAML::Mark& mark, YamlNode* node) {
    if (open_.size() >= static_cast<size_t>(kMaxYamlDepth)) {
      Refuse(mark, absl::StrCat("nested deeper than ", kMaxYamlDepth,
                                " levels; a file may have no more"));
    }
    open_.push_back(node);
  }

  YamlNode* root_;
  std::vector<YamlNode*> open_;
  int nodes_ = 0;
  int documents_ = 0;
};

int CountCharacters(std::string_view bytes) {
  return static_cast<int>(
      std::count_if(bytes.begin(), bytes.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

// A plain word with braces, such as /data/{user}: within {…} or […] YAML takes them for its own.
// Empty: there is none.
std::string WordWithBraces(absl::string_view text) {
  constexpr char kBefore[] = " \t\n,[{";
  for (size_t at = text.find('{'); at != absl::string_view::npos; at = text.find('{', at + 1)) {
    const size_t before = at == 0 ? 0 : text.find_last_of(kBefore, at - 1);
    const size_t begin = before == absl::string_view::npos || at == 0 ? 0 : before + 1;
    const size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", at + 1);
    if (begin == at || text[begin] == '"' || text[begin] == '\'' || text[begin] == '#' ||
        text[at - 1] == ':' || end == absl::string_view::npos || end == at + 1 || text[end] != '}')
      continue;
    return std::string(
        text.substr(begin, std::min(text.find_first_of(" \t\n,]}", end + 1), text.size()) - begin));
  }
  return "";
}

}  // namespace

std::string JoinPath(std::string_view parent, std::string_view field) {
  return parent.empty() ? std::string(field) : absl::StrCat(View(parent), ".", View(field));
}

std::string IndexPath(std::string_view parent, size_t index) {
  return absl::StrCat(View(parent), "[", index, "]");
}

std::string ParentPath(std::string_view path) {
  const size_t end = path.find_last_of(".[");
  return end == std::string_view::npos ? "" : std::string(path.substr(0, end));
}

const YamlNode* YamlNode::Find(std::string_view key) const {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].text == key) return &items[i];
  }
  return nullptr;
}

bool Document::Parse(std::string_view text, std::string_view filename) {
  filename_ = std::string(filename);
  if (text.size() > kMaxYamlBytes) {
    AddAt({}, "",
          absl::StrCat("larger than ", kMaxYamlBytes / 1024, " KiB; a file may have no more"));
    return false;
  }
  if (absl::StartsWith(View(text), "\xef\xbb\xbf")) text.remove_prefix(3);
  text_ = std::string(text);
  line_starts_ = {0};
  for (size_t i = 0; i < text_.size(); ++i) {
    if (text_[i] == '\n') line_starts_.push_back(i + 1);
  }
  if (!CheckText(text_)) return false;

  std::istringstream stream(text_);
  TreeBuilder builder(&root_);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Refusal& refusal) {
    AddAt({refusal.line, refusal.column, 1}, "", refusal.message);
    return false;
  } catch (const YAML::Exception& error) {
    const bool placed = !error.mark.is_null();
    const int line = placed ? error.mark.line + 1 : 0;
    std::string message = absl::StrCat("not valid YAML: ", error.msg);
    const absl::string_view source = View(Line(line));
    const absl::string_view indent = source.substr(0, source.find_first_not_of(" \t"));
    if (absl::StrContains(indent, "\t"))
      absl::StrAppend(&message, ". The line is indented with a tab; use spaces");
    if (const std::string word = WordWithBraces(View(text_));
        !word.empty() && absl::StrContains(error.msg, "flow"))
      absl::StrAppend(&message, ". Within {…} or […] a value with braces needs quotes: \"", word,
                      "\"");
    if (absl::StrContains(error.msg, "anchor"))
      absl::StrAppend(&message,
                      ". A value that begins with * or & needs quotes: schedule: \"*/5 * * * *\"");
    AddAt({line, placed ? error.mark.column + 1 : 0, 1}, "", message);
    return false;
  }
  if (root_.kind == YamlNode::Kind::kNull)
    root_.kind = YamlNode::Kind::kMap;  // an empty file; what it lacks is told by name
  if (!root_.IsMap()) {
    Add(root_, "", "must be a map of fields, such as name: hello");
    return false;
  }
  if (!CheckQuotes(root_)) return false;
  CheckDuplicates(root_, "");
  return true;
}

namespace {

// "tasks[1].env.X" as its steps: fields, and indexes with their '['. False: not a path.
bool SplitPath(std::string_view path, std::vector<std::string>* steps) {
  for (size_t at = 0; at < path.size();) {
    if (path[at] == '[') {
      const size_t end = path.find(']', at);
      if (end == std::string_view::npos || end == at + 1 || steps->empty()) return false;
      steps->emplace_back(path.substr(at, end - at));
      at = end + 1;
    } else {
      if (path[at] == '.' && (at == 0 || ++at == path.size())) return false;
      const size_t end = std::min(path.find_first_of(".[", at), path.size());
      if (end == at) return false;
      steps->emplace_back(path.substr(at, end - at));
      at = end;
    }
  }
  return !steps->empty();
}

void ForgetPlaces(YamlNode* node) {
  node->line = node->column = 0;
  for (YamlNode& key : node->keys) ForgetPlaces(&key);
  for (YamlNode& item : node->items) ForgetPlaces(&item);
}

}  // namespace

void Document::Set(std::string_view setting) {
  const size_t equals = setting.find('=');
  const std::string path(setting.substr(0, equals));
  std::vector<std::string> steps;
  if (equals == std::string_view::npos || !SplitPath(path, &steps)) {
    return AddAt({}, absl::StrCat("--set ", View(setting)),
                 "write FIELD=VALUE, such as trainer.max_steps=100 or tasks[train].workers=4");
  }
  Document value;
  if (!value.Parse(absl::StrCat("value: ", View(setting.substr(equals + 1)), "\n"), filename_) ||
      !value.ok() || value.root_.items.size() != 1) {
    return AddAt(
        {}, absl::StrCat("--set ", path),
        value.problems_.empty() ? "must be one YAML value" : value.problems_.front().message);
  }
  YamlNode fresh = std::move(value.root_.items[0]);
  ForgetPlaces(&fresh);
  YamlNode* at = &root_;
  for (const std::string& step : steps) {
    if (step[0] == '[') {
      const std::string wanted = step.substr(1);
      YamlNode* found = nullptr;
      std::vector<std::string> names;
      for (size_t i = 0; at->IsList() && i < at->items.size(); ++i) {
        const YamlNode* name = at->items[i].IsMap() ? at->items[i].Find("name") : nullptr;
        if (name != nullptr && name->IsScalar()) names.push_back(name->text);
        if (wanted == std::to_string(i) || (name != nullptr && name->text == wanted))
          found = &at->items[i];
      }
      if (found == nullptr)
        return AddAt({}, absl::StrCat("--set ", path),
                     absl::StrCat("the file has no element ", step, "].", DidYouMean(wanted, names),
                                  names.empty() ? "" : " There are: ", absl::StrJoin(names, ", ")));
      at = found;
      continue;
    }
    if (at->kind == YamlNode::Kind::kNull) at->kind = YamlNode::Kind::kMap;
    if (!at->IsMap())
      return AddAt({}, absl::StrCat("--set ", path),
                   absl::StrCat("what stands before ", step, " has no fields in the file"));
    size_t i = 0;
    while (i < at->keys.size() && at->keys[i].text != step) ++i;
    if (i == at->keys.size()) {
      YamlNode key;
      key.kind = YamlNode::Kind::kScalar;
      key.text = step;
      at->keys.push_back(key);
      at->items.emplace_back();
    }
    at = &at->items[i];
  }
  *at = std::move(fresh);
}

bool Document::CheckText(std::string_view text) {
  int line = 1;
  for (size_t i = 0; i < text.size();) {
    const size_t size = CharacterSize(text, i);
    const unsigned char c = static_cast<unsigned char>(text[i]);
    const int column = static_cast<int>(i - line_starts_[static_cast<size_t>(line) - 1]) + 1;
    if (size == 0) {
      AddAt({line, column, 1}, "", "not UTF-8 text");
      return false;
    }
    if ((c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7f) {
      AddAt({line, column, 1}, "",
            absl::StrCat("a control character (code ", static_cast<int>(c), ") has no place here"));
      return false;
    }
    if (c == '\n') ++line;
    i += size;
  }
  return true;
}

// yaml-cpp 0.7 takes a quoted text that the end of the file cuts off after a line break for a whole
// one.
bool Document::CheckQuotes(const YamlNode& node) {
  for (const std::vector<YamlNode>* nodes : {&node.keys, &node.items}) {
    for (const YamlNode& child : *nodes) {
      if (!CheckQuotes(child)) return false;
    }
  }
  if (!node.IsScalar() || !node.quoted) return true;
  const size_t start =
      line_starts_[static_cast<size_t>(node.line) - 1] + static_cast<size_t>(node.column) - 1;
  if (start >= text_.size() || (text_[start] != '"' && text_[start] != '\''))
    return true;  // a block scalar
  const char quote = text_[start];
  for (size_t i = start + 1; i < text_.size(); ++i) {
    if (quote == '"' && text_[i] == '\\') {
      ++i;
    } else if (text_[i] == quote) {
      if (quote == '"' || i + 1 >= text_.size() || text_[i + 1] != quote) return true;
      ++i;
    }
  }
  AddAt({node.line, node.column, 1}, "", "not valid YAML: this quote is never closed");
  return false;
}

void Document::CheckDuplicates(const YamlNode& node, const std::string& path) {
  std::unordered_map<std::string_view, int> first_line;
  for (size_t i = 0; i < node.items.size(); ++i) {
    if (!node.IsMap()) {
      CheckDuplicates(node.items[i], IndexPath(path, i));
      continue;
    }
    const std::string field = JoinPath(path, node.keys[i].text);
    const auto [seen, fresh] = first_line.emplace(node.keys[i].text, node.keys[i].line);
    if (!fresh)
      Add(node.keys[i], field,
          absl::StrCat("given twice, first in line ", seen->second, "; keep one"));
    CheckDuplicates(node.items[i], field);
  }
}

std::string_view Document::Line(int line) const {
  if (line < 1 || static_cast<size_t>(line) > line_starts_.size()) return {};
  const size_t start = line_starts_[static_cast<size_t>(line) - 1];
  size_t end = static_cast<size_t>(line) < line_starts_.size()
                   ? line_starts_[static_cast<size_t>(line)] - 1
                   : text_.size();
  if (end > start && text_[end - 1] == '\r') --end;
  return std::string_view(text_).substr(start, end - start);
}

Document::Place Document::PlaceOf(const YamlNode& node) const {
  Place place{node.line, node.column, 1};
  const std::string_view line = Line(node.line);
  const size_t start = static_cast<size_t>(std::max(node.column, 1)) - 1;
  if (!node.IsScalar() || start >= line.size()) return place;
  const std::string_view rest = line.substr(start);
  size_t width = 1;
  if (rest[0] == '"' || rest[0] == '\'') {
    for (size_t i = 1; i < rest.size(); ++i) {
      if (rest[0] == '"' && rest[i] == '\\') {
        ++i;
      } else if (rest[i] == rest[0]) {
        width = i + 1;
        break;
      }
    }
  } else if (absl::StartsWith(View(rest), View(node.text))) {
    width = std::max<size_t>(1, node.text.size());
  }
  place.width = std::max(1, CountCharacters(rest.substr(0, width)));
  return place;
}

void Document::AddAt(Place place, std::string_view path, std::string message) {
  Problem& problem = problems_.emplace_back();
  problem.file = filename_;
  problem.line = place.line;
  problem.source_line = std::string(Line(place.line));
  const size_t before =
      std::min(problem.source_line.size(), static_cast<size_t>(std::max(place.column, 1)) - 1);
  problem.column =
      place.line == 0
          ? 0
          : CountCharacters(std::string_view(problem.source_line).substr(0, before)) + 1;
  problem.caret_width = place.width;
  problem.path = std::string(path);
  problem.message = std::move(message);
}

void Document::Add(const YamlNode& at, std::string_view path, std::string message) {
  AddAt(PlaceOf(at), path, std::move(message));
}

void Document::AddAtPath(std::string_view path, std::string message, Where where) {
  std::string place = std::string(path);
  while (true) {
    const auto found = places_.find(place);
    if (found != places_.end())
      return AddAt(where == Where::kName ? found->second.name : found->second.value, path,
                   std::move(message));
    if (place.empty()) break;
    place = ParentPath(place);
  }
  AddAt(PlaceOf(root_), path, std::move(message));
}

void Document::Note(const std::string& path, const YamlNode& value, const YamlNode* key) {
  places_.emplace(path, FieldPlaces{PlaceOf(key == nullptr ? value : *key),
                                    PlaceOf(value.IsScalar() || key == nullptr ? value : *key)});
}

bool Document::Sound(std::string_view map_path) const {
  return std::find(unsound_.begin(), unsound_.end(), map_path) == unsound_.end();
}

bool Document::HasProblemAt(std::string_view path) const {
  return std::any_of(problems_.begin(), problems_.end(),
                     [&](const Problem& problem) { return problem.path == path; });
}

std::vector<Problem> Document::TakeSorted() {
  std::stable_sort(problems_.begin(), problems_.end(), [](const Problem& a, const Problem& b) {
    return std::tie(a.line, a.column) < std::tie(b.line, b.column);
  });
  return std::move(problems_);
}

bool Document::Deliver(std::vector<Problem>* problems) {
  const bool good = ok();
  for (Problem& problem : TakeSorted()) problems->push_back(std::move(problem));
  return good;
}

}  // namespace muster
