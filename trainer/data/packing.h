// Which tokens a sequence holds: a pure function of the shards, the seed and the sequence's number, so of nothing that
// depends on the number of ranks.
//
// Each epoch's documents stand in an order shuffled by (seed, epoch), each followed by eos, and the stream is cut into
// windows of max_length tokens; a window's targets are its tokens shifted by one, so neighbours share one token. Every
// epoch has the same number of windows; what is left over at its end is dropped. Sequence k of step s is number
// s * global_batch_size + k.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/data/shards.h"

namespace muster::trainer {

inline constexpr int kPackingVersion = 1;  // changes when the same seed gives other sequences

struct Sequence {
  std::vector<int64_t> tokens;   // [max_length + 1]
  std::vector<uint8_t> counts;   // [max_length + 1]; counts[i]: token i is a target that counts
};

// Not thread-safe: it keeps the last epoch's order.
class Packer {
 public:
  // Fails if the data is shorter than one window.
  static absl::StatusOr<Packer> Make(const TokenShards* shards, int64_t max_length, uint64_t seed);

  int64_t windows_per_epoch() const { return windows_per_epoch_; }
  // Fills `out`. Fails on a token id that isn't below vocab_size.
  absl::Status Get(int64_t sequence_number, Sequence& out);

 private:
  Packer() = default;
  void LoadEpoch(int64_t epoch);

  const TokenShards* shards_ = nullptr;
  int64_t max_length_ = 0, windows_per_epoch_ = 0;
  uint64_t seed_ = 0;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;  // documents in this epoch's order
  std::vector<int64_t> start_;  // where each stands in the stream, plus the stream's length
};

}  // namespace muster::trainer
