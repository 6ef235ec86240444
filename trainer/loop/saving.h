// When a run saves a checkpoint, and what it tells of it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trainer/checkpoint/writer.h"
#include "trainer/loop/progress.h"
#include "trainer/loop/requests.h"
#include "trainer/loop/resume.h"
#include "trainer/loop/setup.h"

namespace muster::trainer {

// Every rank has one and calls the same methods in the same steps. Without a place for checkpoints
// nothing is saved. Not thread-safe.
class Saving {
 public:
  // All of them must outlive it.
  Saving(const Setup& setup, World& world, const Flats& flats, Progress& progress,
         Requests& requests);
  // Waits until the disk has what it is to take.
  ~Saving();

  bool on() const { return writer_.has_value(); }
  // The run goes on from there.
  void Loaded(int64_t step, const std::string& path);
  // Training begins: the interval counts from here.
  void Begin();
  // With warm_restart, once the first step is done: has the disk take what the run was loaded from,
  // beside training.
  void SyncLoaded();
  // Whether rank 0 wants the state after step `step` saved.
  bool IsDue(int64_t step) const;
  // Whether this rank, of any number, wants it saved: its disk didn't take what was loaded.
  bool WantsAnew() const;

  // What this rank tells the others in each step, and what all have told.
  CheckpointWriter::Report Mine() const;
  bool unsynced() const { return unsynced_; }
  void Take(const std::vector<CheckpointWriter::Report>& all, bool unsynced);

  // Copies the state and has it written beside the next steps; ends what is still being written
  // first. Collective.
  void Start(const RunState& state);
  // Returns once a checkpoint of `state` is published; false if that failed. `stopped`: the run
  // ends to be gone on with, for which warm_restart doesn't wait for the disk if that has one
  // before. Collective.
  bool SaveNow(const RunState& state, bool stopped = false);

 private:
  CheckpointMeta Prepare(const RunState& state);
  void WriteInPlace(const CheckpointMeta& meta, Until until);
  bool CopyFits();
  CheckpointOutcome Finish();
  void Tell(const CheckpointOutcome& outcome);
  void PruneIfTold();

  const Setup& setup_;
  World& world_;
  Progress& progress_;
  Requests& requests_;
  std::optional<CheckpointWriter> writer_;
  int64_t loaded_step_ = -1, last_step_ = -1;
  std::string loaded_path_;
  bool noted_ = false;   // that copies don't fit
  bool untold_ = false;  // of rank 0: the line of the newest checkpoint waits in progress_
  std::chrono::steady_clock::time_point last_time_;
  std::thread sync_;
  // The disk may have neither what the run was loaded from nor a newer one; it didn't take that.
  std::atomic<bool> unsynced_ = false, save_anew_ = false;
  bool any_unsynced_ = false;  // the former, of any rank
  bool tried_anew_ = false;
  bool durable_ = false;          // a checkpoint of this run's is on the disk
  Until until_ = Until::kOnDisk;  // of the newest
};

}  // namespace muster::trainer
