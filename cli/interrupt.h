// Ctrl+C and SIGTERM as a condition that waits and streams can end on. While an Interrupt lives,
// the first signal is only noted; a second one ends the process as usual. One at a time; the
// handler is process-wide.
//
// SIGHUP, if it is heard, is only noted each time: a shell and the kernel each send one when a
// terminal goes away.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace muster {

class Interrupt {
 public:
  enum Hears { kInterrupts, kHangUpsToo };

  explicit Interrupt(Hears hears = kInterrupts);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool pending() const;
  int fd() const;  // becomes readable with the signal and stays so; never read from it
  bool WaitFor(int timeout_ms) const;  // true: interrupted; false: the time is over
  // read(2) that the signal ends whenever it comes and whichever thread takes it: -1 with EINTR.
  ssize_t Read(int from, void* buffer, size_t size) const;

 private:
  bool hears_hangups_ = false;
};

}  // namespace muster
