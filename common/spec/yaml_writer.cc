#include "common/spec/yaml_writer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/units.h"
#include "common/base/view.h"

namespace muster {
namespace {

// Whether every reader of YAML takes it for text without quotes. YAML 1.1 has more booleans than
// ours reads, in any case.
bool StaysPlain(std::string_view text) {
  static constexpr std::array<std::string_view, 9> kNotText = {"true", "false", "null", "yes", "no",
                                                               "on",   "off",   "y",    "n"};
  if (text.empty() || std::any_of(kNotText.begin(), kNotText.end(), [&](std::string_view word) {
        return absl::EqualsIgnoreCase(View(text), View(word));
      }))
    return false;
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '/';
  };
  if (!letter(text[0])) return false;
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return letter(c) || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '+' || c == '=';
  });
}

// A block scalar keeps the text as it is: printable lines, the first not indented, no carriage
// returns.
bool FitsBlock(std::string_view text) {
  if (text.find('\n') == std::string_view::npos || text[0] == ' ' || text[0] == '\n' ||
      text[0] == '\t')
    return false;
  for (char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n') return false;
    if (c == 0x7f) return false;
  }
  return text.find("\n\n", text.size() - std::min<size_t>(2, text.size())) ==
         std::string_view::npos;
}

}  // namespace

std::string YamlScalar(std::string_view text) {
  if (StaysPlain(text)) return std::string(text);
  std::string out = "\"";
  for (char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          absl::StrAppendFormat(&out, "\\x%02x",
                                static_cast<unsigned>(static_cast<unsigned char>(c)));
        } else {
          out.push_back(c);
        }
    }
  }
  return out + "\"";
}

std::string ExactDuration(int64_t duration_ns) {
  static constexpr std::pair<const char*, int64_t> kUnits[] = {
      {"d", kDay},          {"h", kHour},  {"m", kMinute}, {"s", kSecond},
      {"ms", kMillisecond}, {"us", 1'000}, {"ns", 1}};
  std::string out;
  for (const auto& [unit, scale] : kUnits) {
    if (duration_ns / scale > 0) absl::StrAppend(&out, duration_ns / scale, unit);
    duration_ns %= scale;
  }
  return out.empty() ? "0s" : out;
}

std::string ExactSize(int64_t bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return absl::StrCat(bytes, kUnits[unit]);
}

std::string YamlWriter::Indent() {
  std::string indent(static_cast<size_t>(depth_) * 2, ' ');
  if (std::exchange(item_, false)) indent[indent.size() - 2] = '-';
  return indent;
}

void YamlWriter::Plain(std::string_view name, std::string_view value) {
  const std::string indent = Indent();
  absl::StrAppend(&out_, indent, YamlScalar(name), ": ", View(value), "\n");
}

void YamlWriter::Text(std::string_view name, std::string_view value) {
  if (!FitsBlock(value)) return Plain(name, YamlScalar(value));
  const bool ends = value.back() == '\n';
  Plain(name, ends ? "|" : "|-");
  if (ends) value.remove_suffix(1);
  for (absl::string_view line : absl::StrSplit(View(value), '\n')) {
    absl::StrAppend(&out_,
                    line.empty() ? "" : std::string(static_cast<size_t>(depth_) * 2 + 2, ' '), line,
                    "\n");
  }
}

void YamlWriter::List(std::string_view name, const std::vector<std::string>& values) {
  std::string text = "[";
  for (const std::string& value : values)
    absl::StrAppend(&text, text.size() == 1 ? "" : ", ", YamlScalar(value));
  Plain(name, text + "]");
}

void YamlWriter::Open(std::string_view name) {
  const std::string indent = Indent();
  absl::StrAppend(&out_, indent, YamlScalar(name), ":\n");
  ++depth_;
}

void YamlWriter::Item() {
  ++depth_;
  item_ = true;
}

void YamlWriter::Close() { --depth_; }

}  // namespace muster
