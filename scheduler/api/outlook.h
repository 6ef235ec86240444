// Looks ahead beside the engine: the forecast of what waits, kept for a few seconds; and threads
// for questions. Nothing here runs on the engine's thread or on one of gRPC's, or changes anything.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "common/base/clock.h"
#include "scheduler/api/questions.h"
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
  // Questions whose budget is seconds (explain, simulate). Questions::Ask.
  bool Ask(std::function<void()> question) { return slow_.Ask(std::move(question)); }
  // Those that are soon answered, which a slow one must not hold up: previews, dry runs.
  bool AskBriefly(std::function<void()> question) { return brief_.Ask(std::move(question)); }
  // Ends the threads; questions that wait are asked first. Idempotent.
  void Stop();

 private:
  void Look();

  const Engine* const engine_;
  Clock* const clock_;
  const SchedulingOptions scheduling_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::shared_ptr<const Forecast> forecast_;
  uint64_t forecast_commit_ = 0;
  int64_t not_before_ns_ = 0;  // monotonic: no new forecast before this
  bool wanted_ = false, stopping_ = false;
  Questions slow_, brief_;
  std::thread looking_;
};

}  // namespace muster
