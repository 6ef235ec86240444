// A program's output on a terminal: colours and line breaks reach it, and nothing that could move
// the cursor elsewhere, change the title or the keyboard, or make the terminal answer. What is held
// back is shown: ESC as "^[".
#pragma once

#include <string>
#include <string_view>

namespace muster {

class TerminalText {
 public:
  // Output comes in pieces, which may end anywhere.
  std::string Next(std::string_view piece);
  std::string End();  // what was begun and not ended; and colours off

 private:
  void Take(unsigned char c, std::string* out);
  void Show(std::string* out);  // what was begun, harmless

  std::string begun_;  // of a sequence: ESC, ESC [ …, or the first byte of a two-byte character
  bool colored_ = false;
};

}  // namespace muster
