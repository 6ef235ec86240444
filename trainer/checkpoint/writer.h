// Checkpoints written beside training. Between two steps each rank copies its share; a thread then
// writes, checksums and fsyncs it. The ranks learn that all are done from the exchange of doubles
// that they have each step anyway, so the thread uses no collective; then rank 0's thread publishes
// the index. Until then the one before stays the newest. Old ones are removed only for one that
// whoever starts runs again was told of: it looks for no other.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/index.h"
#include "trainer/parallel/groups.h"

namespace muster::trainer {

// How the writing of a checkpoint ended; the same on every rank.
struct CheckpointOutcome {
  absl::Status status;  // OK: published, and durable if that was asked for
  int64_t step = 0;
  std::string path;
  double copy_s = 0;   // this rank's training stood still that long
  double total_s = 0;  // from the start of the copy to here
  int64_t bytes = 0;   // of all ranks' files
};

// Every rank has one and calls the same methods in the same steps; not thread-safe.
class CheckpointWriter {
 public:
  // Checkpoints go to `parent`/step-NNNNNNNN; the `keep` newest that were told of stay. `world` and
  // `flats` must outlive it.
  // `model_parts`: where ranks have parts of the model, the layouts of `flats` by Mesh::PartNumber;
  // empty: all ranks have the same. `chunk_bytes`: what is copied at once; below 0, for tests: so
  // many, and what is on the host goes the way of what comes from a GPU.
  CheckpointWriter(World& world, const Flats& flats, std::string parent, int keep,
                   std::vector<std::vector<FlatLayout>> model_parts = {},
                   int64_t chunk_bytes = kChunkBytes);
  // Waits for the thread; what isn't published by then stays unpublished.
  ~CheckpointWriter();

  // The one before must have ended (!busy()). kBeside copies all that this rank writes, CopyBytes()
  // on the host (from a GPU by way of two chunks of pinned memory), and a thread writes it.
  // kInPlace returns when it is written, and needs room for two chunks, or for none where the state
  // is kept as the file has it. With Until::kCached a machine that stops hard may leave a published
  // checkpoint whose files don't match.
  enum Way { kBeside, kInPlace };
  void Start(const CheckpointMeta& meta, Way way = kBeside, Until until = Until::kOnDisk);
  int64_t CopyBytes(bool optimizer = true) const;
  static constexpr int64_t kChunkBytes = int64_t{64} << 20;
  // The published checkpoint of `step` was told of: old ones are removed, in the thread. With keep
  // 1 the one before it stays until the next is begun, as the word may still be on its way. While
  // nothing is being written (!busy()).
  void Told(int64_t step);
  // Started and not ended.
  bool busy() const { return busy_; }

  // What the other ranks must know of this one.
  using Report = std::array<double, 3>;  // phase, size_bytes, crc32c
  Report Mine() const;
  // Takes all ranks' reports of one moment. The outcome once there is one; collective when
  // something failed.
  std::optional<CheckpointOutcome> Take(const std::vector<Report>& all);
  // Waits for the end of what was started. Collective.
  CheckpointOutcome Finish();

 private:
  enum Phase { kIdle, kBusy, kWritten, kPublished, kFailed };
  // Has the thread do `work` when it has done what it does.
  void Run(std::function<void()> work);
  void Prune(int keep, int64_t newest);
  void CopyParts();
  void Write(const std::function<absl::Status(SafetensorsWriter&)>& append);
  absl::Status AppendCopies(SafetensorsWriter& writer);
  absl::Status AppendInPlace(SafetensorsWriter& writer);
  void Publish(const std::vector<WrittenFile>& files);
  void Join();

  World& world_;
  const Flats& flats_;
  const std::string parent_;
  const int keep_;
  const std::vector<std::vector<FlatLayout>> model_parts_;
  const int64_t chunk_numel_;
  const bool always_by_chunks_;
  bool busy_ = false, publishing_ = false;
  int64_t told_step_ = -1;
  CheckpointMeta meta_;
  std::string directory_;
  Until until_ = Until::kOnDisk;
  double begin_s_ = 0, copy_s_ = 0;

  // Of the thread while phase_ is kBusy, otherwise of the caller.
  // What this rank's file has, one behind the other.
  struct Part {
    std::string name;
    int flat = 0, kind = 0;
    at::Tensor copy;  // fp32, on the host; kInPlace: undefined
  };
  std::vector<Part> parts_;
  WrittenFile written_;
  absl::Status status_;
  std::atomic<int> phase_{kIdle};
  std::thread thread_;
};

}  // namespace muster::trainer
