#include "cli/render/escapes.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr char kEscape = '\x1b';
constexpr size_t kSequenceBytesMax = 64;

// Line feed, tab, carriage return, backspace: none leaves the line but forward.
bool IsLayout(unsigned char c) { return c == '\n' || c == '\t' || c == '\r' || c == '\b'; }

std::string Caret(unsigned char c) { return {'^', static_cast<char>(c ^ 0x40)}; }

}  // namespace

std::string TerminalText::Next(std::string_view piece) {
  std::string out;
  for (const char c : piece) Take(static_cast<unsigned char>(c), &out);
  return out;
}

std::string TerminalText::End() {
  std::string out;
  Show(&out);
  if (std::exchange(colored_, false)) out += "\x1b[0m";
  return out;
}

void TerminalText::Show(std::string* out) {
  for (const char c : std::exchange(begun_, ""))
    *out += c == kEscape ? Caret(static_cast<unsigned char>(c)) : std::string(1, c);
}

void TerminalText::Take(unsigned char c, std::string* out) {
  if (begun_ == "\xc2") {
    begun_.clear();
    if (c >= 0x80 && c < 0xa0) {  // a control of the upper half, ESC [ in one character among them
      *out += '?';
      return;
    }
    *out += '\xc2';
  } else if (begun_.size() == 1 && c == '[') {
    begun_ += '[';
    return;
  } else if (begun_.size() > 1 && c >= 0x20 && c < 0x40 && begun_.size() < kSequenceBytesMax) {
    begun_ += static_cast<char>(c);
    return;
  } else if (begun_.size() > 1 && (c == 'm' || c == 'K') &&
             begun_.find_first_not_of("0123456789;:", 2) == std::string::npos) {
    if (c == 'm') colored_ = begun_ != "\x1b[" && begun_ != "\x1b[0";
    absl::StrAppend(out, begun_, std::string(1, static_cast<char>(c)));
    begun_.clear();
    return;
  } else if (!begun_.empty()) {
    Show(out);
  }
  if (c == kEscape || c == 0xc2) {
    begun_ = static_cast<char>(c);
  } else if ((c < 0x20 && !IsLayout(c)) || c == 0x7f) {
    *out += Caret(c);
  } else {
    *out += static_cast<char>(c);
  }
}

}  // namespace muster
