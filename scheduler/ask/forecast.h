// When what waits would start if nothing else came (SCHEDULING.md §4): the answer for tasks outside the entitled set, too.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "muster/v1/job.pb.h"
#include "scheduler/ask/future.h"

namespace muster {

struct ForecastStart {
  int64_t start_ns = 0;                 // Unix time
  int32_t workers = 0;
  std::string cluster, flavour;
  std::string place;                    // for people: phx/r4
};

struct Forecast {
  int64_t now_ns = 0;                   // of what it looked at
  int64_t until_ns = 0;                 // how far it saw
  bool complete = false;                // false: time ran out; what isn't in `starts` is unknown rather than late
  std::map<TaskRef, ForecastStart> starts;   // of tasks that wait now, or wait for others of their job
};

// Pure but for options.expired. Ends early once every waiting task has started.
Forecast MakeForecast(const State& state, int64_t now_ns, const SchedulingOptions& scheduling, const FutureOptions& options);

// Gives the waiting tasks that have no expected start theirs, marked as forecast. `number` is the job's.
void AddForecast(const Forecast& forecast, uint64_t number, pb::Job* job);

}  // namespace muster
