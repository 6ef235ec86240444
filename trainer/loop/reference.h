// The reference of preferences where the model itself is trained: what every pair's log-probability
// was by the weights that training starts from. Computed once, by the weights of init, and kept in
// a file of the job's directory, so that a run that goes on has the same numbers bit for bit. With
// LoRA there is none of this: the frozen model is the reference.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/data/batches.h"
#include "trainer/loop/setup.h"
#include "trainer/parallel/engine.h"

namespace muster::trainer {

// By a pair's number in its directory: chosen, rejected; NaN: not trained on.
using Logps = std::vector<std::pair<double, double>>;

// What the numbers follow from, but for rounding: the data, where it is cut, the type and the
// weights' files (by name, size and time). Read on one rank alone.
std::string ReferenceKey(const Setup& setup, const TokenShards& shards);

// The file of a key, "reference-logps/….safetensors" in the job's directory.
std::string ReferencePath(const Setup& setup, const std::string& key);
// NotFound where there is none; other errors name the file: of another key or number of pairs, or
// damaged.
absl::StatusOr<Logps> ReadReference(const std::string& path, const std::string& key, int64_t pairs);
// Durably, its directory as well.
absl::Status WriteReference(const std::string& path, const std::string& key, const Logps& logps);

// All pairs of a directory, the same on all ranks: from rank 0's file, or computed by the engine,
// whose weights are then those of init. `reader` has the directory's `rows` pairs, each once.
// Nothing if a stop was requested meanwhile. Collective.
std::optional<Logps> MakeReference(const Setup& setup, World& world, Engine& engine,
                                   const TokenShards& shards, BatchReader& reader, int64_t rows);

// Tells each pair of `batches` its reference.
void GiveReference(const Logps& logps, const std::vector<BatchMeta>& batches);

}  // namespace muster::trainer
