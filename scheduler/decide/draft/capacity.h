// What hosts have free and what queues hold, at one time of a decision: now, or later, when what is
// being stopped has gone.
//
// Anybody may ask it. It changes by the verbs of the Draft that owns it and within a Try, nowhere
// else. Inside of scheduler/decide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/decide/model/queue_use.h"
#include "scheduler/decide/place/free_map.h"

namespace muster {

class Capacity {
 public:
  // `free` has what State says is free, and has that again when this ends.
  Capacity(const Model& model, FreeMap* free) : model_(model), free_(free), use_(model) {}
  ~Capacity() { UndoTo({}); }
  Capacity(const Capacity&) = delete;
  Capacity& operator=(const Capacity&) = delete;

  const QueueUse& use() const { return use_; }
  bool WithinLimits(const Gang& gang, int32_t pool, int32_t workers) const {
    return use_.WithinLimits(gang, pool, workers);
  }
  // Devices free in the pool, in thousandths; of work without GPUs CPUs.
  int64_t FreeMilli(int32_t pool, bool gpus) { return free_->FreeMilli(model_.pools[pool], gpus); }
  // No more of the gang's workers than this find a place in the pool.
  int64_t AtMost(const Gang& gang, int32_t pool) {
    return free_->AtMost(gang.wants, model_.pools[pool]);
  }
  // These devices are free for the gang. `silent_too`: also where a host doesn't speak just now.
  bool Fits(const Gang& gang, const HostSlices& slices, bool silent_too = false) const {
    return free_->Fits(*gang.spec, slices, silent_too, gang.needs);
  }
  HostFree Peek(HostId host) const { return free_->Peek(host); }
  // As FreeMap::Place. `avoid`: hosts, ascending, that are taken only if there is no place without.
  std::optional<HostSlices> Place(const Gang& gang, int32_t pool, int32_t workers,
                                  const std::vector<HostId>& avoid) {
    return free_->Place(*gang.spec, workers, model_.pools[pool], avoid, gang.needs);
  }

 private:
  friend class Draft;
  friend class Try;

  struct Mark {
    size_t free = 0, counts = 0;
  };
  struct Count {
    const Gang* gang = nullptr;
    int32_t pool = 0;
    int64_t workers = 0;
  };

  void Take(const Gang& gang, const HostSlices& slices) { free_->Take(*gang.spec, slices); }
  void GiveBack(const Gang& gang, const HostSlices& slices) { free_->GiveBack(*gang.spec, slices); }
  // All that the gang runs on.
  void Release(const Gang& gang) { free_->Release(gang.wants, *gang.current); }
  // Its queues hold so many more of its workers.
  void AddUse(const Gang& gang, int32_t pool, int64_t workers) {
    use_.Add(gang, pool, workers);
    counts_.push_back({&gang, pool, workers});
  }
  Mark Here() const { return {free_->Mark(), counts_.size()}; }
  void UndoTo(const Mark& mark) {
    free_->UndoTo(mark.free);
    for (; counts_.size() > mark.counts; counts_.pop_back())
      use_.Add(*counts_.back().gang, counts_.back().pool, -counts_.back().workers);
  }

  const Model& model_;
  FreeMap* free_;
  QueueUse use_;
  std::vector<Count> counts_;  // to be undone
};

}  // namespace muster
