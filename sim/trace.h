// Traces for muster-sim: jobs with arrival, demand and duration.
//
// A trace is CSV with a header line. Columns (any order; * = required):
//   submit_s*    seconds after the start of the simulation; fractions allowed
//   duration_s*  seconds of running at `workers` workers
//   queue        leaf queue; default `default`
//   workers      gang size; default 1          max_workers  elastic up to; default workers
//   multiple_of  it has multiples of so many workers only; default 1
//   blocks       of ranks, as topology.blocks requires them: `4:island;64:rack`; default none
//   gpus         GPUs a worker; default 1      gpu_type     flavour, or several joined by `;`;
//   default: the only one of the clusters cpus         cores a worker; default 0     clusters names
//   joined by `;`, in order of preference; default: all priority     0..100; default 0 name label;
//   default j<line> checkpoint_s seconds between checkpoints; default 600
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::sim {

struct TraceBlock {
  int32_t gpus = 0;
  int32_t required = 0;  // a pb::TopologyLevel
};

struct TraceJob {
  int64_t submit_ns = 0;
  int64_t duration_ns = 0;  // at `workers` workers; work is workers x duration
  std::string queue = "default";
  std::string name;
  int32_t workers = 1;
  int32_t max_workers = 1;
  int32_t multiple_of = 0;  // as a job's workers have it; 0: any number
  std::vector<TraceBlock> blocks;
  int64_t gpus_milli = 1000;  // a worker
  int64_t cpus_milli = 0;     // a worker
  int64_t memory_bytes = 0;   // a worker; 0 = its share of the host
  std::string gpu_type;       // or several joined by `;`
  std::vector<std::string> clusters;
  int32_t priority = 0;
  int64_t checkpoint_ns = 600'000'000'000;
  int32_t required = 0, preferred = 0;  // topology: a pb::TopologyLevel; 0 = none. Not in our CSV
};

struct Trace {
  std::vector<TraceJob> jobs;       // by submit time, ties in file order
  std::vector<std::string> broken;  // "file:line: what", lines left out
};

// INVALID_ARGUMENT when the header is unusable, or, with `strict`, for the first broken line.
absl::StatusOr<Trace> ParseTrace(std::string_view text, const std::string& filename, bool strict);

// `count` jobs drawn from `seed`: mixed gangs, fractions, elastic gangs, priorities, over the given
// queues and flavours. The same arguments give the same jobs on every machine.
Trace RandomTrace(int count, uint64_t seed, const std::vector<std::string>& queues,
                  const std::vector<std::string>& flavours, int max_gpus_per_host);

}  // namespace muster::sim
