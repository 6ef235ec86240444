// What this host has: declared in a file, or found: GPUs through NVML if there is one, else CPU
// slots.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "agent/host/nvml.h"
#include "muster/v1/cluster.pb.h"

namespace muster::agent {

// Fills in the machine's CPU, memory and disk (of `directory`) where `inventory_file` leaves them
// out. `inventory_file` empty: probes; `nvml` (nullptr: none) says which GPUs there are.
// INVALID_ARGUMENT lists every problem of the file with its place.
absl::StatusOr<v1::Inventory> FindInventory(const std::string& inventory_file,
                                            const std::string& directory, Nvml* nvml);

// What there is, in a line: "8 h100-80g, 192 CPUs, 2TiB of memory, 14TiB of disk".
std::string Summary(const v1::Inventory& inventory);

// Runs `muster-trainer --schema` (with a time limit) unless `cache_directory` has its answer for
// this very binary. Fills trainer_schema_hash and trainer_schema_json; leaves them empty if there
// is no trainer beside us. May block for seconds.
void FindTrainerSchema(const std::string& bin_directory, const std::string& cache_directory,
                       v1::Inventory* inventory);

// What this agent does for jobs that ask for it. Whether images can be entered here is tried by the
// shim beside us, as an ordinary user if jobs run `as_owners`.
void FindAbilities(const std::string& bin_directory, bool as_owners, v1::Inventory* inventory);

}  // namespace muster::agent
