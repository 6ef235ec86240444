// Looks ahead beside the engine: the forecast of what waits, kept for a few seconds; and a thread
// for questions that take a while. Nothing here runs on the engine's thread or changes anything.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "common/base/clock.h"
#include "scheduler/ask/forecast.h"
#include "scheduler/engine/engine.h"

namespace muster {

// `budget_ns` counts from now; `given_up` (optional) ends it earlier.
Spent SpentOf(Clock* clock, int64_t budget_ns, std::function<bool()> given_up = {});

// Thread-safe. Engine and clock must outlive it; stop what asks it before.
class Outlook {
 public:
  Outlook(const Engine* engine, Clock* clock, const SchedulingOptions& scheduling);
  ~Outlook();

  // The newest forecast, or null if there is none yet. Never waits; asks for a new one when this
  // one is old. So nothing is computed while nobody looks.
  std::shared_ptr<const Forecast> Newest();
  // Runs the question on a thread of its own, in turn. False: too many wait already.
  bool Ask(std::function<void()> question);
  // Ends the threads; questions that wait are asked first. Idempotent.
  void Stop();

 private:
  void Look();
  void Answer();

  const Engine* const engine_;
  Clock* const clock_;
  const SchedulingOptions scheduling_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, asked_;
  std::shared_ptr<const Forecast> forecast_;
  uint64_t forecast_commit_ = 0;
  int64_t not_before_ns_ = 0;  // monotonic: no new forecast before this
  bool wanted_ = false, stopping_ = false;
  std::deque<std::function<void()>> questions_;
  std::thread looking_, answering_;
};

}  // namespace muster
