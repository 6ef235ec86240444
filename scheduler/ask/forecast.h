// When what waits would start if nothing else came (docs/scheduling.md §4): the answer for tasks
// outside the entitled set, too.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "muster/v1/job.pb.h"
#include "scheduler/ask/future.h"

namespace muster {

struct ForecastStart {
  int64_t start_ns = 0;  // Unix time
  int32_t workers = 0;
  std::string cluster, flavour;
  std::string place;  // for people: phx/r4
};

struct Forecast {
  int64_t now_ns = 0;     // of what it looked at
  int64_t until_ns = 0;   // how far it saw
  bool complete = false;  // false: time ran out; what isn't in `starts` is unknown rather than late
  std::map<TaskRef, ForecastStart>
      starts;               // of tasks that wait now, or wait for others of their job
  std::set<TaskRef> later;  // the others of them: not before until_ns
};

// Pure but for options.expired. Ends early once every waiting task has started.
Forecast MakeForecast(const State& state, int64_t now_ns, const SchedulingOptions& scheduling,
                      const FutureOptions& options);

// Gives the waiting tasks their starts as the forecast has them, in place of what the newest
// decision counted on; marked as such. What a forecast made before doesn't know or puts into the
// past keeps what it has, as does what waits for a known time (a backoff) or for an operator (held,
// drained). A start by which the forecast has seen nothing of it start is taken away. `number` is
// the job's.
void AddForecast(const Forecast& forecast, uint64_t number, int64_t now_ns, pb::Job* job);

}  // namespace muster
