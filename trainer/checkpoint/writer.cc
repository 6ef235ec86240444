#include "trainer/checkpoint/writer.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>

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

}  // namespace

CheckpointWriter::CheckpointWriter(World& world, const Flats& flats, std::string parent, int keep,
                                   std::vector<std::vector<FlatLayout>> model_parts,
                                   int64_t chunk_bytes)
    : world_(world),
      flats_(flats),
      parent_(std::move(parent)),
      keep_(keep),
      model_parts_(std::move(model_parts)),
      chunk_numel_(std::max<int64_t>(1, chunk_bytes / 4)) {}

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
    for (int kind = 0; kind < (meta.optimizer ? 3 : 1); ++kind) {
      Part& part =
          parts_.emplace_back(Part{FlatTensorName(f, kCheckpointKinds[kind]), f, kind, {}});
      if (way == kInPlace) continue;
      const int64_t numel = flats_[f]->shard_numel();
      part.copy = at::empty({numel}, at::kFloat);
      for (int64_t at = 0; at < numel; at += chunk_numel_)
        flats_[f]->CopyShard(static_cast<FlatParam::State>(kind), at,
                             part.copy.narrow(0, at, std::min(chunk_numel_, numel - at)));
    }
  }
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
