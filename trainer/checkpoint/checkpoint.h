// Checkpoints, and how they are read: a directory step-NNNNNNNN with one safetensors file per rank
// (its shards of fp32 masters, exp_avg and exp_avg_sq of every flat) and index.json, published last
// by an atomic rename (writer.h). The index maps each global tensor, or slices of it, to flat
// ranges of the files, so any number of ranks, any ZeRO stage and any other slices read it. Every
// file's CRC-32C, and the index's own, are checked before anything is used.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/checkpoint/index.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/parallel/flat_param.h"

namespace muster::trainer {

using Flats = std::vector<std::unique_ptr<FlatParam>>;

// Removes all but the `keep` newest of `parent`'s published checkpoints up to step `newest`, and
// unpublished leftovers older than those. Later ones stay and don't count: a run that went back to
// an older one may have found them bad.
void PruneCheckpoints(const std::string& parent, int keep, int64_t newest);

// Published checkpoints in `parent`, newest first. `status`: why it couldn't be listed. There are
// none where there is no such directory.
std::vector<std::string> ListCheckpoints(const std::string& parent, absl::Status* status = nullptr);

// An opened checkpoint. Movable; not thread-safe.
class Checkpoint {
 public:
  // Reads the index given as text (ReadIndex), of the checkpoint at `path`. Touches no other file.
  static absl::StatusOr<Checkpoint> Parse(const std::string& path, const std::string& index_text);

  const std::string& path() const { return path_; }
  const CheckpointMeta& meta() const { return index_.meta; }
  // Checks size, checksum and header of the files number rank, rank + size, …
  // What those have for `flats` is read on the way into the memory where it is kept, if it is kept
  // as it is in the files: each byte once. A checkpoint that is refused may leave there what it
  // has.
  absl::Status VerifyFiles(int rank, int size, const Flats& flats = {});
  // Fills the owned ranges of a flat; its tensors must be in the checkpoint with the same shapes.
  absl::Status Read(FlatParam& flat) const;
  // Copies elements [begin, begin + n) of a parameter's masters or moments (kCheckpointKinds) to
  // `out`.
  absl::Status ReadRange(const Segment& segment, int kind, int64_t begin, int64_t n,
                         float* out) const;

 private:
  using Piece = CheckpointIndex::Piece;
  // Bytes of a file that belong into memory.
  struct Want {
    uint64_t begin = 0, bytes = 0;
    uint8_t* to = nullptr;
  };
  absl::StatusOr<const SafetensorsFile*> OpenFile(int file) const;
  // What file `file`, whose header is `header`, has for `flats`, in its order.
  std::vector<Want> WantsIn(int file, const SafetensorsHeader& header, const Flats& flats) const;
  // Copies elements [begin, begin + n) of what `have` is a part of, all of them in it.
  absl::Status CopyPiece(const Segment& segment, int kind, const Piece& have, int64_t begin,
                         int64_t n, float* out) const;
  // ReadRange, but for what VerifyFiles has read into `flat` already.
  absl::Status ReadRange(const Segment& segment, int kind, int64_t begin, int64_t n, float* out,
                         const FlatParam* flat) const;

  std::string path_;
  CheckpointIndex index_;
  std::vector<std::set<std::pair<const FlatParam*, int>>>
      read_;  // of each file, the flats and kinds that VerifyFiles has read it into
  mutable std::vector<std::unique_ptr<SafetensorsFile>> open_;
};

// Has the kernel begin to read the files that VerifyFiles(rank, size) of the checkpoint at `path`
// will, at most `most_bytes` of them; whether it is a good one shows then. It takes a while, but
// waits for no disk. Throws nothing.
void ReadAheadOf(const std::string& path, int rank, int size, size_t most_bytes) noexcept;

struct SkippedCheckpoint {
  std::string path, why;
};
struct LoadOutcome {
  std::unique_ptr<Checkpoint> checkpoint;  // null: there was none to load
  std::vector<SkippedCheckpoint> skipped;
};

// Opens the first good one of rank 0's `candidates` (newest first; each rank may have found
// others); collective, with the same outcome on every rank. `flats`: those that Read will be called
// for, as VerifyFiles takes them.
LoadOutcome OpenNewest(World& world, const std::vector<std::string>& candidates,
                       const Flats& flats = {});

}  // namespace muster::trainer
