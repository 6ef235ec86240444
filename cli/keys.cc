#include "cli/keys.h"

#include <poll.h>
#include <unistd.h>

#include <chrono>

namespace muster {

Keys::Keys(bool wanted) {
  if (!wanted || tcgetattr(STDIN_FILENO, &before_) != 0 || tcgetpgrp(STDIN_FILENO) != getpgrp())
    return;
  struct termios now = before_;
  now.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  now.c_cc[VMIN] = 1;
  now.c_cc[VTIME] = 0;
  changed_ = reads_ = tcsetattr(STDIN_FILENO, TCSANOW, &now) == 0;
}

Keys::~Keys() {
  if (changed_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

Keys::Woken Keys::WaitFor(const Interrupt& interrupt, int timeout_ms) {
  using std::chrono::steady_clock;
  const auto end = steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!interrupt.pending()) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - steady_clock::now()).count();
    if (left <= 0) return kTime;
    struct pollfd polls[2] = {{interrupt.fd(), POLLIN, 0}, {reads_ ? STDIN_FILENO : -1, POLLIN, 0}};
    poll(polls, 2, static_cast<int>(left));
    if (polls[1].revents == 0) continue;
    char key = 0;
    if (read(STDIN_FILENO, &key, 1) != 1) reads_ = false;
    if (key == 'q' || key == 'Q') return kQuit;
  }
  return kInterrupt;
}

}  // namespace muster
