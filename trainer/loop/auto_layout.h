// `parallel: auto`: an attempt's ranks take the fastest layout, by SearchLayouts, that fits what
// they have. A later attempt with other ranks takes another one; checkpoints are read in any.
//
// What it follows from is the configuration, the number of ranks and how many of them a host has,
// and a rank's device: the same of these give the same layout, on any machine.
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

// What a rank has.
struct RankDevice {
  std::string gpu;         // its name; empty: a CPU
  int64_t bytes = 0;       // that it may fill
  int ranks_per_host = 1;  // neighbours, of any host as many
  bool gpu_kernels = true;
};

// Keys of a layout that the `trainer:` map names stay as they are. INVALID_ARGUMENT: none fits; the
// message says what would.
absl::StatusOr<Layout> ChooseLayout(const nlohmann::json& trainer, const TrainConfig& config,
                                    const ModelConfig& model, int ranks, const RankDevice& device);

// How many neighbours of every host's are together, by each rank's host in order: ranks 0 to n-1,
// n to 2n-1 and so on share one.
int NeighboursOnHosts(const std::vector<std::string>& hosts);

// Rank 0 chooses and says so, and all ranks' `setup` has it. Adds why there is none. Collective;
// before the groups of a mesh are made.
void SettleLayout(World& world, Setup& setup, Problems& problems);

}  // namespace muster::trainer
