// Which files stay behind when a directory is packed: patterns as in a .gitignore. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muster {

class IgnoreRules {
 public:
  // One pattern a line: `*`, `?` and `[…]` stay within a name, `**` is any number of directories; a
  // slash in it (but at its end) ties it to the top, one at its end to directories; `!` takes back;
  // `#` begins a comment, `\` makes a character one of the name. Later lines count more.
  void Add(std::string_view lines);
  // `path` is relative, with slashes. What is in an ignored directory isn't to be asked about: it
  // stays behind with it.
  bool Ignores(std::string_view path, bool is_directory) const;

 private:
  struct Rule {
    std::vector<std::string> names;  // of the path; one of "**" is any number of them
    bool takes_back = false, directories = false;
  };
  std::vector<Rule> rules_;
};

}  // namespace muster
