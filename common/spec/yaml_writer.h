// Writes YAML that our strict reader reads back to the same values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

// A map in block style, with nested maps and lists of maps.
class YamlWriter {
 public:
  void Text(std::string_view name,
            std::string_view value);  // a block scalar when it has several lines
  void Plain(std::string_view name,
             std::string_view value);  // written as it is: numbers, durations, flow collections
  void List(std::string_view name,
            const std::vector<std::string>& values);  // of text, in flow style
  void Open(std::string_view name);                   // a nested map, or a list when Item follows
  void Item();                                        // a map as the next entry of a list
  void Close();                                       // of Open and Item
  std::string Take() { return std::move(out_); }

 private:
  std::string Indent();

  std::string out_;
  int depth_ = 0;
  bool item_ = false;  // the next line begins a list entry
};

std::string YamlScalar(
    std::string_view text);  // plain where it is safe and stays text, else in double quotes
std::string ExactDuration(int64_t duration_ns);  // "1d1h1m": nothing lost
std::string ExactSize(int64_t bytes);            // "600GiB", "1000B"

}  // namespace muster
