#include "trainer/loop/saving.h"

#include <cstdio>
#include <exception>
#include <utility>

#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/objects.h"
#include "trainer/data/packing.h"
#include "trainer/loop/exchange.h"
#include "trainer/loop/memory.h"
#include "trainer/model/family.h"
#include "trainer/model/lora.h"

namespace muster::trainer {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

// This part of a host's free memory is left to others.
constexpr int64_t kHeadroomShare = 8;
// Before a checkpoint in the place of one that the disk didn't take is tried once more.
constexpr std::chrono::seconds kTryAgain{30};

namespace {

// Of what is trained, of a rank with this part.
std::vector<FlatLayout> LayoutsOf(const Setup& setup, const ModelPart& part) {
  const LoraConfig& lora = setup.config.lora;
  return (lora.on() ? MakeLoraLayout(setup.model, lora, part) : MakeLayout(setup.model, part))
      .flats;
}

// By Mesh::PartNumber; empty where all ranks have all.
std::vector<std::vector<FlatLayout>> AllParts(const Setup& setup, const Mesh& mesh) {
  std::vector<std::vector<FlatLayout>> parts;
  if (mesh.Parts() == 1) return parts;
  parts.resize(mesh.Parts());
  for (int rank = 0; rank < mesh.size(); ++rank) {
    std::vector<FlatLayout>& part = parts[mesh.PartNumber(rank)];
    if (part.empty())
      part = LayoutsOf(setup, PartOf(mesh, rank, static_cast<int>(setup.config.parallel.Chunks())));
  }
  return parts;
}

}  // namespace

Saving::Saving(const Setup& setup, World& world, const Flats& flats, Progress& progress,
               Requests& requests)
    : setup_(setup), world_(world), progress_(progress), requests_(requests) {
  const Surroundings& s = setup.surroundings;
  if (!s.checkpoint_directory.empty())
    writer_.emplace(world, flats, s.checkpoint_directory, s.checkpoint_keep,
                    AllParts(setup, world.mesh()));
  if (setup.config.warm_restart && IsObject(s.checkpoint_directory) && world.rank() == 0)
    std::fprintf(stderr,
                 "note: warm_restart changes nothing here: what %s has was stored by its servers\n",
                 s.checkpoint_directory.c_str());
}

Saving::~Saving() {
  if (sync_.joinable()) sync_.join();
}

void Saving::Loaded(int64_t step, const std::string& path) {
  last_step_ = loaded_step_ = step;
  loaded_path_ = path;
}

void Saving::Begin() { last_time_ = Clock::now(); }

void Saving::SyncLoaded() {
  if (!setup_.config.warm_restart || loaded_path_.empty() || IsObject(loaded_path_)) return;
  any_unsynced_ = true;
  if (world_.info().local_rank != 0) return;
  unsynced_ = true;
  sync_ = std::thread([this, path = loaded_path_] {
    std::string why;
    try {
      absl::Status status = SyncTree(path);
      if (status.ok()) status = SyncDirectory(path + "/..");  // which has its name
      if (!status.ok()) why = std::string(status.message());
    } catch (const std::exception& e) {
      why = e.what();
    }
    if (why.empty()) {
      unsynced_ = false;
      return;
    }
    std::fprintf(stderr, "note: the disk may not have %s, a new checkpoint is made: %s\n",
                 path.c_str(), why.c_str());
    save_anew_ = true;
  });
}

bool Saving::IsDue(int64_t step) const {
  if (!writer_) return false;
  if (setup_.config.save_steps > 0 && step % setup_.config.save_steps == 0) return true;
  if (writer_->busy()) return false;
  if (requests_.save()) return true;
  const double interval_s = setup_.surroundings.checkpoint_interval_s;
  return interval_s > 0 &&
         std::chrono::duration<double>(Clock::now() - last_time_).count() >= interval_s;
}

bool Saving::WantsAnew() const {
  return writer_ && !writer_->busy() && save_anew_ &&
         (!tried_anew_ || Clock::now() - last_time_ >= kTryAgain);
}

CheckpointWriter::Report Saving::Mine() const {
  return writer_ ? writer_->Mine() : CheckpointWriter::Report{};
}

void Saving::Take(const std::vector<CheckpointWriter::Report>& all, bool unsynced) {
  if (!writer_) return;
  any_unsynced_ = unsynced;
  if (const auto outcome = writer_->Take(all)) Tell(*outcome);
}

// Ends what is under way.
CheckpointMeta Saving::Prepare(const RunState& state) {
  requests_.SaveBegins();
  if (writer_->busy()) Tell(Finish());
  tried_anew_ = save_anew_;
  if (untold_) PruneIfTold();
  CheckpointMeta meta;
  meta.step = state.step;
  meta.next_sequence = state.next_sequence;
  meta.seed = setup_.config.seed;
  meta.recent_losses = state.recent_losses;
  meta.packing_version = kPackingVersion;
  meta.data_fingerprint = setup_.DataFingerprint();
  meta.zero_stage = static_cast<int>(setup_.config.zero_stage);
  meta.dtype = setup_.config.dtype;
  meta.model = ToHuggingFace(setup_.model, setup_.config.dtype == "bf16" ? "bfloat16" : "float32");
  meta.trainer = setup_.trainer;
  meta.source = setup_.init_directory;
  meta.tokenizer = setup_.TokenizerDirectory();
  last_time_ = Clock::now();
  return meta;
}

void Saving::Start(const RunState& state) {
  const CheckpointMeta meta = Prepare(state);
  until_ = Until::kOnDisk;
  if (setup_.config.save_in_background && CopyFits()) return writer_->Start(meta);
  WriteInPlace(meta, Until::kOnDisk);
}

void Saving::WriteInPlace(const CheckpointMeta& meta, Until until) {
  world_.SetTimeout(kStartTimeout);  // the others' part may take longer than any step
  until_ = until;
  writer_->Start(meta, CheckpointWriter::kInPlace, until);
  Tell(Finish());
}

// Whether every host has room for a copy of what its ranks write. Collective.
bool Saving::CopyFits() {
  const int64_t room = AvailableHostBytes(), local = world_.info().local_size;
  const bool fits = room == 0 || writer_->CopyBytes() * local <= room - room / kHeadroomShare;
  if (!OnAny(world_, !fits)) return true;
  if (world_.rank() == 0 && !std::exchange(noted_, true))
    std::fprintf(stderr,
                 "note: training waits while a checkpoint is written: a copy of what the ranks "
                 "write does not fit into a host's free memory (%lld MiB a rank)\n",
                 static_cast<long long>(writer_->CopyBytes() >> 20));
  return false;
}

bool Saving::SaveNow(const RunState& state, bool stopped) {
  if (writer_->busy()) Tell(Finish());
  if (last_step_ != state.step) {
    const CheckpointMeta meta = Prepare(state);
    Until until = Until::kOnDisk;
    if (stopped && setup_.config.warm_restart) {
      // What a crash of the host would be gone back to.
      any_unsynced_ = OnAny(world_, unsynced_);
      if (durable_ || (loaded_step_ >= 0 && !any_unsynced_)) until = Until::kCached;
    }
    WriteInPlace(meta, until);
  }
  return last_step_ == state.step;
}

CheckpointOutcome Saving::Finish() {
  world_.SetTimeout(kStartTimeout);  // storage may be slower than any step
  CheckpointOutcome outcome = writer_->Finish();
  world_.SetTimeout(setup_.config.StepTimeout());
  return outcome;
}

// Says that a checkpoint was published, or why not.
void Saving::Tell(const CheckpointOutcome& outcome) {
  const bool leads = world_.rank() == 0;
  if (!outcome.status.ok()) {
    if (leads)
      std::fprintf(stderr, "checkpoint of step %lld failed: %s\n",
                   static_cast<long long>(outcome.step),
                   std::string(outcome.status.message()).c_str());
    return;
  }
  last_step_ = outcome.step;
  if (until_ == Until::kOnDisk) {
    durable_ = true;
    unsynced_ = any_unsynced_ = save_anew_ = tried_anew_ = false;
  }
  if (!leads) return;
  std::printf("checkpoint step=%lld path=%s seconds=%.3f copy_s=%.3f\n",
              static_cast<long long>(outcome.step), outcome.path.c_str(), outcome.total_s,
              outcome.copy_s);
  std::fflush(stdout);
  ordered_json told = {{"step", outcome.step}, {"path", outcome.path}, {"bytes", outcome.bytes}};
  if (loaded_step_ >= 0) told["loaded_step"] = loaded_step_, told["loaded_path"] = loaded_path_;
  progress_.Send({{"checkpoint", told}}, Progress::kDurable);
  PruneIfTold();
}

// Old checkpoints may go once the word of the newest is out: until then the scheduler knows no
// other than those. And once all hosts' disks have what the run was loaded from, or a newer one.
void Saving::PruneIfTold() {
  untold_ = !progress_.Delivered() || any_unsynced_ || unsynced_;
  if (!untold_) writer_->Told(last_step_);
}

}  // namespace muster::trainer
