#include "trainer/loop/stop.h"

#include <csignal>

namespace muster::trainer {
namespace {

volatile std::sig_atomic_t stop_requested = 0;
void RequestStop(int) { stop_requested = 1; }

}  // namespace

void StopOnSignals() {
  std::signal(SIGTERM, RequestStop);
  std::signal(SIGINT, RequestStop);
}

bool StopRequested() { return stop_requested != 0; }

}  // namespace muster::trainer
