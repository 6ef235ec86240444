#include "cli/interrupt.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>

#include "common/base/check.h"

namespace muster {
namespace {

std::atomic<int> g_fd{-1};
std::atomic<int> g_signals{0};
struct sigaction g_old_int, g_old_term, g_old_hangup;

void OnSignal(int signal_number) {
  int saved = errno;
  if (g_signals.fetch_add(1) > 0 && signal_number != SIGHUP) {
    signal(signal_number, SIG_DFL);
    raise(signal_number);
  }
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(g_fd.load(), &one, sizeof one);
  errno = saved;
}

}  // namespace

Interrupt::Interrupt(Hears hears) {
  MUSTER_CHECK(g_fd.load() == -1);
  g_signals = 0;
  g_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  MUSTER_CHECK(g_fd.load() >= 0);
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  sigaction(SIGINT, &action, &g_old_int);
  sigaction(SIGTERM, &action, &g_old_term);
  if (hears != kHangUpsToo) return;
  sigaction(SIGHUP, nullptr, &g_old_hangup);
  hears_hangups_ = g_old_hangup.sa_handler != SIG_IGN;  // nohup's
  if (hears_hangups_) sigaction(SIGHUP, &action, nullptr);
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &g_old_int, nullptr);
  sigaction(SIGTERM, &g_old_term, nullptr);
  if (hears_hangups_) sigaction(SIGHUP, &g_old_hangup, nullptr);
  close(g_fd.exchange(-1));
}

bool Interrupt::pending() const { return g_signals.load() > 0; }
int Interrupt::fd() const { return g_fd.load(); }

bool Interrupt::WaitFor(int timeout_ms) const {
  auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!pending()) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                    end - std::chrono::steady_clock::now())
                    .count();
    if (left <= 0) return false;
    struct pollfd p = {fd(), POLLIN, 0};
    poll(&p, 1, static_cast<int>(left));
  }
  return true;
}

ssize_t Interrupt::Read(int from, void* buffer, size_t size) const {
  struct pollfd polls[2] = {{from, POLLIN, 0}, {fd(), POLLIN, 0}};
  while (!pending()) {
    if (poll(polls, 2, -1) < 0 && errno != EINTR) return -1;
    if (polls[0].revents != 0 && !pending()) return read(from, buffer, size);
  }
  errno = EINTR;
  return -1;
}

}  // namespace muster
