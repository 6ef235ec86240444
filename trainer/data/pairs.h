// Rows of preferences: a row is a pair, its chosen document and behind it its rejected one, which
// don't attend to each other. So what puts rows into micro-batches and on ranks never parts a pair.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "trainer/data/packing.h"

namespace muster::trainer {

// Pair p of `shards` is its documents 2p (chosen) and 2p + 1 (rejected). A document longer than
// max_length tokens loses its end; a pair with a side that then has no token that counts is left
// out (TRL: truncation_mode keep_start). Each epoch is shuffled by (seed, epoch). Reads the
// documents that are longer, for that.
// With `scored` a row has all of both documents' tokens, and what counts is where a document's
// score is read off: its last token that isn't pad_token, as transformers finds it. A pair with a
// side longer than max_length is left out (TRL's RewardTrainer filters it). Fails where nothing is
// left. `shards` must outlive it.
absl::StatusOr<std::unique_ptr<Packer>> MakePairPacker(const TokenShards* shards,
                                                       const PackingOptions& options);

}  // namespace muster::trainer
