#include "cli/ignore.h"

#include <ranges>

#include <fnmatch.h>

#include "absl/strings/str_split.h"

namespace muster {
namespace {

using Names = std::vector<std::string>;

bool Matches(const Names& pattern, size_t p, const Names& path, size_t at) {
  if (p == pattern.size()) return at == path.size();
  if (pattern[p] != "**") {
    return at < path.size() && fnmatch(pattern[p].c_str(), path[at].c_str(), 0) == 0 &&
           Matches(pattern, p + 1, path, at + 1);
  }
  if (p + 1 == pattern.size()) return at < path.size();  // what is in it, not itself
  for (size_t next = at; next <= path.size(); ++next) {
    if (Matches(pattern, p + 1, path, next)) return true;
  }
  return false;
}

}  // namespace

void IgnoreRules::Add(std::string_view lines) {
  for (absl::string_view line :
       absl::StrSplit(absl::string_view(lines.data(), lines.size()), '\n')) {
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    while (!line.empty() && line.back() == ' ' &&
           (line.size() < 2 || line[line.size() - 2] != '\\'))
      line.remove_suffix(1);
    if (line.empty() || line[0] == '#') continue;
    Rule rule;
    rule.takes_back = line[0] == '!';
    if (rule.takes_back) line.remove_prefix(1);
    rule.directories = !line.empty() && line.back() == '/';
    if (rule.directories) line.remove_suffix(1);
    const bool tied = line.find('/') != line.npos;
    if (!line.empty() && line[0] == '/') line.remove_prefix(1);
    if (line.empty()) continue;
    if (!tied) rule.names.emplace_back("**");
    for (absl::string_view name : absl::StrSplit(line, '/')) {
      if (name != "**" || rule.names.empty() || rule.names.back() != "**")
        rule.names.emplace_back(name);
    }
    rules_.push_back(std::move(rule));
  }
}

bool IgnoreRules::Ignores(std::string_view path, bool is_directory) const {
  const Names names = absl::StrSplit(absl::string_view(path.data(), path.size()), '/');
  for (const Rule& rule : std::views::reverse(rules_)) {
    if (rule.directories && !is_directory) continue;
    if (Matches(rule.names, 0, names, 0)) return !rule.takes_back;
  }
  return false;
}

}  // namespace muster
