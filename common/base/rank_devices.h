// Which devices a rank's process may use, of those that its host gave the gang's part there.
#pragma once

#include <cstdint>
#include <utility>

namespace muster {

// [first, last) in the part's devices, which are in worker order: one device, where a worker runs
// as many processes as it has devices; else its worker's. Empty: the rank is none of the part's, or
// it has no devices.
inline std::pair<int32_t, int32_t> RankDevices(int32_t rank, int32_t processes_per_worker,
                                               int32_t first_group_rank, int32_t workers,
                                               int32_t devices) {
  const int32_t processes = processes_per_worker > 0 ? processes_per_worker : 1;
  const int32_t worker = rank / processes - first_group_rank;
  if (rank < 0 || worker < 0 || worker >= workers || devices == 0) return {0, 0};
  const int32_t each = devices / workers, first = worker * each;
  if (each == processes) return {first + rank % processes, first + rank % processes + 1};
  return {first, first + each};
}

}  // namespace muster
