// `parallel: auto`: an attempt's ranks take the fastest layout, by SearchLayouts, that fits what
// they have. A later attempt with other ranks takes another one; checkpoints are read in any.
//
// What it follows from is the configuration, the number of ranks and how many of them a host has,
// and the least device of a rank: the same of these give the same layout, on any machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "trainer/loop/config.h"
#include "trainer/loop/layout_search.h"
#include "trainer/loop/setup.h"
#include "trainer/parallel/groups.h"

namespace muster::trainer {

// One rank, as it tells the others.
struct RankHas {
  std::string host;   // one name for all ranks of a host
  std::string gpu;    // its name; empty: a CPU
  int64_t bytes = 0;  // that it may fill; 0: nobody knows
};

// What every rank has.
struct RankDevice {
  std::string gpu;         // its name; empty: a CPU
  int64_t bytes = 0;       // that it may fill
  int ranks_per_host = 1;  // NeighboursOnHosts
  bool gpu_kernels = true;
};

// How many neighbours to count with, by each rank's host in order: ranks 0 to n-1, n to 2n-1 and so
// on share one. It is the largest number that divides each run of ranks on one host.
int NeighboursOnHosts(const std::vector<std::string>& hosts);

// Of ranks that differ: the least memory, and the slowest GPU, for products in bf16 or not.
RankDevice LeastOf(const std::vector<RankHas>& ranks, bool bf16);

// What a rank may fill of a device with so many bytes (0: not known): all, but no more than
// memory_per_rank, where that is given. 0: nobody knows.
int64_t BytesToFill(const TrainConfig& config, int64_t device_bytes);

// The keys of a layout that the `trainer:` map names.
FixedKeys KeysThatStay(const nlohmann::json& trainer, const TrainConfig& config);

// Of KeysThatStay none changes. INVALID_ARGUMENT: none fits; the message says what would.
absl::StatusOr<Layout> ChooseLayout(const nlohmann::json& trainer, const TrainConfig& config,
                                    const ModelConfig& model, int ranks, const RankDevice& device);

// Rank 0 chooses and says so, and all ranks' `setup` has it. Adds why there is none, on all ranks,
// whatever fails on rank 0. Collective; before the groups of a mesh are made.
void SettleLayout(World& world, Setup& setup, Problems& problems);

}  // namespace muster::trainer
