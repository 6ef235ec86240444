#include "trainer/checkpoint/writer.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <future>

#include <c10/core/Event.h>
#include <c10/cuda/CUDAStream.h>

#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

// Between two checkpoints, whatever is asked for: the word of the newest may still be on its way.
constexpr int kLeastKept = 2;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::span<const uint8_t> BytesOf(const at::Tensor& tensor) {
  return {static_cast<const uint8_t*>(tensor.data_ptr()), static_cast<size_t>(tensor.nbytes())};
}

// State on its way from a GPU to the host's memory by two chunks of pinned memory: while one is
// filled, the other is emptied. A copy to memory that isn't pinned is slower, and to pin all of it
// takes long.
class TwoChunks {
 public:
  TwoChunks(at::Device device, int64_t numel) : device_(device), numel_(numel) {}

  // Brings the elements of the shard from `begin` on to `place`; there after the next call, or End.
  void Bring(const FlatParam& flat, FlatParam::State state, int64_t begin,
             const at::Tensor& place) {
    Chunk& chunk = chunks_[which_];
    if (!chunk.memory.defined())
      chunk.memory = at::empty(
          {numel_}, at::TensorOptions().dtype(at::kFloat).pinned_memory(device_.is_cuda()));
    flat.CopyShard(state, begin, chunk.memory.narrow(0, 0, place.numel()), /*wait=*/false);
    if (device_.is_cuda()) {
      chunk.filled.emplace(at::kCUDA);
      chunk.filled->record(c10::cuda::getCurrentCUDAStream(device_.index()).unwrap());
    }
    chunk.place = place;
    which_ = 1 - which_;
    Empty(chunks_[which_]);
  }
  void End() { Empty(chunks_[1 - which_]); }

 private:
  struct Chunk {
    at::Tensor memory, place;  // place: undefined when it is empty
    std::optional<c10::Event> filled;
  };
  static void Empty(Chunk& chunk) {
    if (!chunk.place.defined()) return;
    if (chunk.filled) chunk.filled->synchronize();
    chunk.place.copy_(chunk.memory.narrow(0, 0, chunk.place.numel()));
    chunk.place.reset();
  }

  const at::Device device_;
  const int64_t numel_;
  Chunk chunks_[2];
  int which_ = 0;
};

}  // namespace

CheckpointWriter::CheckpointWriter(World& world, const Flats& flats, std::string parent, int keep,
                                   std::vector<std::vector<FlatLayout>> model_parts,
                                   int64_t chunk_bytes)
    : world_(world),
      flats_(flats),
      parent_(std::move(parent)),
      keep_(keep),
      model_parts_(std::move(model_parts)),
      chunk_numel_(std::max<int64_t>(1, std::abs(chunk_bytes) / 4)),
      always_by_chunks_(chunk_bytes < 0) {}

CheckpointWriter::~CheckpointWriter() { Join(); }

void CheckpointWriter::Join() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::Run(std::function<void()> work) {
  thread_ = std::thread([before = std::move(thread_), work = std::move(work)]() mutable {
    if (before.joinable()) before.join();
    work();
  });
}

void CheckpointWriter::Told(int64_t step) {
  TORCH_CHECK(!busy_, "told of a checkpoint while the next is being written");
  told_step_ = step;
  if (world_.rank() == 0) Run([this, step] { Prune(std::max(keep_, kLeastKept), step); });
}

void CheckpointWriter::Prune(int keep, int64_t newest) {
  try {
    PruneCheckpoints(parent_, keep, newest);
  } catch (const std::exception&) {
    // What can't be removed only takes room.
  }
}

int64_t CheckpointWriter::CopyBytes(bool optimizer) const {
  int64_t numel = 0;
  for (const auto& flat : flats_) numel += flat->shard_numel();
  return numel * 4 * (optimizer ? 3 : 1);
}

void CheckpointWriter::Start(const CheckpointMeta& meta, Way way, Until until) {
  TORCH_CHECK(!busy_, "the checkpoint before is still being written");
  begin_s_ = Now();
  meta_ = meta;
  until_ = until;
  directory_ = parent_ + "/" + CheckpointName(meta.step);
  parts_.clear();
  for (int f = 0; f < static_cast<int>(flats_.size()); ++f) {
    for (int kind = 0; kind < (meta.optimizer ? 3 : 1); ++kind)
      parts_.push_back({FlatTensorName(f, kCheckpointKinds[kind]), f, kind, {}});
  }
  if (way == kBeside) CopyParts();
  copy_s_ = Now() - begin_s_;
  // A run that went back comes to a step that was saved already: what is about to be overwritten is
  // no checkpoint any more.
  if (world_.rank() == 0) RemoveFile(directory_ + "/index.json").IgnoreError();
  busy_ = true;
  publishing_ = false;
  phase_ = kBusy;
  const auto write = [this, way] {
    if (world_.rank() == 0 && told_step_ >= 0 && keep_ < kLeastKept) Prune(keep_, told_step_);
    Write([this, way](SafetensorsWriter& writer) {
      return way == kInPlace ? AppendInPlace(writer) : AppendCopies(writer);
    });
  };
  if (way == kBeside) return Run(write);
  Join();
  write();
  copy_s_ = Now() - begin_s_;
}

void CheckpointWriter::CopyParts() {
  TwoChunks chunks(world_.device(), chunk_numel_);
  for (Part& part : parts_) {
    const FlatParam& flat = *flats_[part.flat];
    const auto state = static_cast<FlatParam::State>(part.kind);
    const int64_t numel = flat.shard_numel();
    part.copy = at::empty({numel}, at::kFloat);
    for (int64_t at = 0; at < numel; at += chunk_numel_) {
      const at::Tensor place = part.copy.narrow(0, at, std::min(chunk_numel_, numel - at));
      if (always_by_chunks_ || !flat.KeptOnHost(state))
        chunks.Bring(flat, state, at, place);
      else
        flat.CopyShard(state, at, place);
    }
  }
  chunks.End();
}

// Writes this rank's file, whose content `append` gives.
void CheckpointWriter::Write(const std::function<absl::Status(SafetensorsWriter&)>& append) {
  try {
    status_ = MakeDirectories(directory_);
    std::vector<SafetensorsTensor> tensors;
    for (const Part& part : parts_)
      tensors.push_back({part.name, "F32", {flats_[part.flat]->shard_numel()}, {}});
    if (status_.ok()) {
      absl::StatusOr<SafetensorsWriter> writer =
          SafetensorsWriter::Create(directory_ + "/" + RankFileName(world_.rank(), world_.size()),
                                    tensors, {{"format", kCheckpointFormat}});
      status_ = writer.ok() ? append(*writer) : writer.status();
      if (status_.ok()) {
        const absl::StatusOr<WrittenFile> written = writer->Finish(until_);
        if (written.ok()) written_ = *written;
        status_ = written.status();
      }
    }
  } catch (const std::exception& e) {
    status_ = absl::InternalError(e.what());
  }
  parts_.clear();
  phase_ = status_.ok() ? kWritten : kFailed;
}

absl::Status CheckpointWriter::AppendCopies(SafetensorsWriter& writer) {
  for (Part& part : parts_) {
    if (absl::Status s = writer.Append(BytesOf(part.copy)); !s.ok()) return s;
    part.copy.reset();
  }
  return absl::OkStatus();
}

// State that is kept as the file has it is written from there; of other state one chunk is written
// while the next is copied.
absl::Status CheckpointWriter::AppendInPlace(SafetensorsWriter& writer) {
  at::NoGradGuard no_grad;
  at::Tensor chunks[2];
  std::future<absl::Status> appended;
  const auto wait = [&] { return appended.valid() ? appended.get() : absl::OkStatus(); };
  int which = 0;
  for (const Part& part : parts_) {
    const FlatParam& flat = *flats_[part.flat];
    const auto state = static_cast<FlatParam::State>(part.kind);
    if (const at::Tensor kept = flat.InPlace(state); kept.defined()) {
      if (absl::Status s = wait(); !s.ok()) return s;
      if (absl::Status s = writer.Append(BytesOf(flat.OfShard(kept))); !s.ok()) return s;
      continue;
    }
    for (int64_t at = 0; at < flat.shard_numel(); at += chunk_numel_) {
      if (!chunks[which].defined())
        chunks[which] = at::empty(
            {chunk_numel_},
            at::TensorOptions().dtype(at::kFloat).pinned_memory(world_.device().is_cuda()));
      const at::Tensor chunk =
          chunks[which].narrow(0, 0, std::min(chunk_numel_, flat.shard_numel() - at));
      flat.CopyShard(state, at, chunk);
      if (absl::Status s = wait(); !s.ok()) return s;
      appended = std::async(std::launch::async,
                            [&writer, chunk] { return writer.Append(BytesOf(chunk)); });
      which = 1 - which;
    }
  }
  return wait();
}

void CheckpointWriter::Publish(const std::vector<WrittenFile>& files) {
  try {
    std::vector<RankLayouts> layouts(world_.size());
    for (int rank = 0; rank < world_.size(); ++rank) {
      if (model_parts_.empty()) {
        for (const auto& flat : flats_) layouts[rank].push_back(&flat->layout());
        continue;
      }
      const Mesh& mesh = world_.mesh();
      for (const FlatLayout& layout : model_parts_[mesh.PartNumber(rank)])
        layouts[rank].push_back(&layout);
    }
    const Shares shares = [&](int flat, int rank) {
      const FlatLayout& layout = *layouts[rank][flat];
      const Holders& holders = world_.holders(layout.holding());
      return ShardRange(layout, IndexAmongHolders(world_.mesh(), rank, layout.holding()),
                        holders.whole.size, holders.shard.size);
    };
    status_ = WriteFileDurably(directory_ + "/index.json",
                               IndexText(meta_, files, TensorMap(layouts, shares)), until_);
    if (status_.ok() && until_ == Until::kOnDisk) status_ = SyncDirectory(parent_);
  } catch (const std::exception& e) {
    status_ = absl::InternalError(e.what());
  }
  phase_ = status_.ok() ? kPublished : kFailed;
}

CheckpointWriter::Report CheckpointWriter::Mine() const {
  const int phase = phase_;
  const bool written = phase == kWritten || phase == kPublished;
  return {static_cast<double>(phase), written ? static_cast<double>(written_.size_bytes) : 0,
          written ? static_cast<double>(written_.crc32c) : 0};
}

std::optional<CheckpointOutcome> CheckpointWriter::Take(const std::vector<Report>& all) {
  const auto some = [&](Phase phase) {
    return std::any_of(all.begin(), all.end(), [&](const Report& report) {
      return static_cast<int>(report[0]) == static_cast<int>(phase);
    });
  };
  if (!busy_ || some(kBusy)) return std::nullopt;
  Join();  // it is done, or nearly
  if (!some(kFailed) && !publishing_) {
    publishing_ = true;
    if (world_.rank() != 0) return std::nullopt;
    std::vector<WrittenFile> files;
    for (const Report& report : all)
      files.push_back({static_cast<uint64_t>(report[1]), static_cast<uint32_t>(report[2])});
    phase_ = kBusy;
    Run([this, files = std::move(files)] { Publish(files); });
    return std::nullopt;
  }
  CheckpointOutcome outcome{absl::OkStatus(), meta_.step, directory_, copy_s_, Now() - begin_s_};
  for (const Report& report : all) outcome.bytes += static_cast<int64_t>(report[1]);
  if (some(kFailed)) {
    const std::vector<std::string> errors =
        world_.GatherTexts(status_.ok() ? "" : std::string(status_.message()));
    for (size_t r = 0; r < errors.size() && outcome.status.ok(); ++r) {
      if (!errors[r].empty())
        outcome.status = absl::UnavailableError(absl::StrCat("rank ", r, ": ", errors[r]));
    }
    if (world_.rank() == 0) RemoveTree(directory_);  // half a checkpoint only takes room
  }
  busy_ = publishing_ = false;
  phase_ = kIdle;
  return outcome;
}

CheckpointOutcome CheckpointWriter::Finish() {
  TORCH_CHECK(busy_, "no checkpoint was started");
  while (true) {
    Join();
    const Report mine = Mine();
    std::vector<Report> all;
    for (const std::vector<double>& row : world_.GatherRows({mine.begin(), mine.end()}))
      all.push_back({row[0], row[1], row[2]});
    if (std::optional<CheckpointOutcome> outcome = Take(all)) return *std::move(outcome);
  }
}

}  // namespace muster::trainer
