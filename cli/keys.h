// Keys typed while a command draws over and over: read one at a time and not shown. Ctrl+C stays
// the signal that it is.
#pragma once

#include <termios.h>

#include "cli/interrupt.h"

namespace muster {

class Keys {
 public:
  explicit Keys(bool wanted);  // and standard input is this terminal's, in the foreground
  ~Keys();
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;

  enum Woken { kTime, kQuit, kInterrupt };
  // Until the time is over, q was typed, or the signal came.
  Woken WaitFor(const Interrupt& interrupt, int timeout_ms);

 private:
  bool changed_ = false;  // the terminal, which is put back
  bool reads_ = false;
  struct termios before_ = {};
};

}  // namespace muster
