// Ctrl+C and SIGTERM as a condition that waits and streams can end on. While an Interrupt lives, the first signal is only
// noted; a second one ends the process as usual. One at a time; the handler is process-wide.
#pragma once

namespace muster {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool pending() const;
  int fd() const;                     // becomes readable with the signal and stays so; never read from it
  bool WaitFor(int timeout_ms) const; // true: interrupted; false: the time is over
};

}  // namespace muster
