// Which ways to share a run out among GPUs fit them, and which of those take the least time, by
// MakeEstimate and a plain model of time. Nothing is measured: the order of layouts that lie within
// a few percent of each other means little.
//
// The time of a step is the longer of its products (at a usual share of the peak; what recompute
// does again counts, and so do a pipeline's waits) and of what ranks that take different rows send
// each other (weights, gradients), which runs beside them; and what is sent inside layers (tp, cp,
// ep) and between stages, which doesn't. Groups of neighbours that fit into a host use its links,
// others the network: as Narayanan et al., arXiv 2104.04473, section 3 reasons about tp and pp.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trainer/loop/config.h"
#include "trainer/loop/estimate.h"
#include "trainer/model/config.h"

namespace muster::trainer {

// What a rank runs on.
struct GpuHosts {
  double peak_flops = 0;     // of a GPU, for the run's dtype
  int64_t device_bytes = 0;  // of a GPU
  int ranks_per_host = 8;
  // That a GPU sends others of its host, and of other hosts, one way.
  double within_bytes_per_s = 0, between_bytes_per_s = 0;
  bool gpu_kernels = true;  // the trainer has our own
  // On CPUs: what a process takes before it trains. 0: ranks have GPUs.
  int64_t runtime_bytes = 0;
};

// Keys of a layout that stay as they are configured.
struct FixedKeys {
  bool shard_size = false, zero_stage = false, recompute = false, micro_batch_size = false;
};

// What ends a search before all layouts were looked at.
struct SearchEnd {
  bool at_first = false;  // that fits
  std::optional<std::chrono::steady_clock::time_point> at = {};
};

// Bytes a second, one way, of the links of a GPU by its name, from the makers' data sheets of it
// and of hosts with eight of them; 0: unknown.
double LinkWithinHost(const std::string& device);
double LinkBetweenHosts(const std::string& device);

// What a layout may fill of a device: all but a twentieth, for what its allocator can't use.
int64_t BytesButSpare(int64_t device_bytes);

struct Layout {
  TrainConfig config;
  Estimate estimate;
  double step_s = 0;
  nlohmann::ordered_json fields;   // of `trainer:`, as in a job file
  std::string FieldsText() const;  // "parallel: {tp: 2}, recompute: full": YAML, without braces
};

struct FoundLayouts {
  std::vector<Layout> best;  // the fastest first
  int64_t tried = 0;         // estimates that were made; what could not be among the best has none
  int64_t least_bytes = 0;   // that one of them needs
  bool out_of_time = false;  // it ended at SearchEnd::at
};

// What a rank sends a step over one kind of link.
struct LinkUse {
  int64_t bytes = 0;
  double seconds = 0;    // that this takes
  double exposed_s = 0;  // of these, those that no products run beside
};

// Of a run on `ranks` GPUs. What a group of ranks sends goes over the links that its farthest ranks
// have to each other.
struct StepTime {
  double products_s = 0;    // with what recompute does again and what a pipeline waits
  LinkUse within, between;  // inside a host; between hosts
  double step_s = 0;        // products, and what is exposed
};
StepTime TimeOfStep(const Estimate& estimate, const TrainConfig& config, const ModelConfig& model,
                    int ranks, const GpuHosts& hosts);
// Its step_s.
double StepSeconds(const Estimate& estimate, const TrainConfig& config, const ModelConfig& model,
                   int ranks, const GpuHosts& hosts);

// The `most` fastest of those that fit with a twentieth of the memory to spare. Of layouts that
// differ by zero_stage alone, and by less than a thousandth of their time and memory, the first is
// told: there is next to nothing to share out. Tries tp, pp with its kinds, cp, ep, shard_size,
// zero_stage, recompute and micro_batch_size; all else stays as configured, and so do the `fixed`
// of these, and a micro_batch_size that router_aux_loss: batch or deterministic: elastic counts in.
// tp stays within a host, unless nothing fits so.
FoundLayouts SearchLayouts(const TrainConfig& config, const ModelConfig& model, int ranks,
                           const GpuHosts& hosts, size_t most = 5, const FixedKeys& fixed = {},
                           const SearchEnd& end = {});

}  // namespace muster::trainer
