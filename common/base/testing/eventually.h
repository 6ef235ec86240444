// For tests of real processes and threads: waits for a condition instead of sleeping for a guess.
#pragma once

#include <chrono>
#include <thread>

namespace muster {

// True as soon as the condition holds, which is asked every 2 ms; false after `patience`.
template <typename Condition>
bool Eventually(Condition condition,
                std::chrono::milliseconds patience = std::chrono::seconds(20)) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return condition();
}

}  // namespace muster
