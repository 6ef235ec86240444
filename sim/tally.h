// Adds up what happened to each job, from the committed events. The work of a step is that of its
// events.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "scheduler/engine/engine.h"
#include "sim/world.h"

namespace muster::sim {

class Tally {
 public:
  // Times of the result are counted from `epoch_ns`.
  Tally(const Trace& trace, int64_t epoch_ns, int64_t patience_ns, WorldResult* result);

  // The queues are known: guarantees are watched from now on.
  void Begin(const State& state);
  void OnAccepted(size_t index, uint64_t number);
  void OnRefused(size_t index, std::string why);
  void OnStep(const StepRecord& step);
  // Settles what lasts until the end, and the sums.
  void Finish(int64_t now_ns);

  // Every job was refused or has ended.
  bool AllOver() const { return over_ == result_->jobs.size(); }

 private:
  // Somebody who waits although, in its queue's order, the guarantee covers it.
  struct Covered {
    int64_t unused_since_ns =
        -1;  // what it is promised has been there, or could be had back, since then; -1: it isn't
    int64_t out_since_ns = -1;  // not in the entitled set since then; -1: in it
    int64_t overtaken_since_ns =
        -1;  // its own queue has held what it is promised since then; -1: it doesn't
    int64_t overtaken_ns = 0;    // all of that before
    int32_t unused_in = -1;      // the promise that is there; of its leaf
    int64_t room_since_ns = -1;  // hosts could hold it since then, beside what isn't stopped for it
    int64_t behind_since_ns = -1;  // or on what is kept for older ones of its queue
  };
  // Of a job in its leaf: -priority, and its band where the shortest goes first.
  using Rank = std::pair<int32_t, int32_t>;
  // What a leaf is guaranteed in one pool.
  struct Promise {
    int32_t cluster = 0;
    std::string flavour;
    int64_t milli = 0;
    // What jobs of the leaf hold there, at their least size. More than that can be taken back for
    // others of the leaf.
    std::map<Rank, int64_t> kept_milli;
  };
  // A leaf of the tree: who of it is unfinished, in leaf order, and whom of those that wait its
  // guarantee covers.
  struct Leaf {
    std::vector<Promise> promises;
    std::set<std::tuple<Rank, int64_t, size_t>> unfinished;  // with submit and index
    std::map<size_t, Covered> covered;                       // by index
    std::vector<size_t> kept;  // of those that run, whom its guarantee covers where they do
    bool changed = false;
    bool shortest_first = false;
  };

  void Submit(size_t index);
  // The leaf, if it is guaranteed anything, will be looked at; else nullptr.
  Leaf* Changed(size_t index);
  void Start(size_t index, int32_t cluster, const std::string& flavour, int64_t gpus_milli);
  void Release(size_t index);
  void End(size_t index);
  void SeeGuarantees();
  void SeeEntitled(const Plan& plan);
  void Keep(size_t index, int64_t sign);
  Rank RankOf(size_t index) const { return {-trace_.jobs[index].priority, bands_[index]}; }
  void SeeBands(const State& state);
  void SeeCovered(size_t index, int32_t unused_in, Covered* covered);
  // Of who is late: whether that is for want of hosts.
  void SeeRoom(const State& state);
  enum class Room { kNone, kKeptForOlder, kFree };
  Room RoomFor(const State& state, size_t index, const Leaf& leaf, const Promise& promise,
               std::vector<size_t>* served) const;
  void SeeRoomOf(size_t index, Room room, Covered* covered);
  void EndWait(size_t index, Covered covered);

  const Trace& trace_;
  const int64_t epoch_ns_;
  const int64_t patience_ns_;
  WorldResult* const result_;
  std::map<std::string, Leaf> leaves_;
  std::vector<Leaf*> leaf_of_;  // by index
  std::vector<Leaf*> changed_;
  std::vector<std::vector<int32_t>>
      promises_of_;  // by index: those of its leaf that it may use, the preferred first
  std::vector<int32_t> runs_in_;         // by index: the promise whose pool it runs in; -1: none's
  std::vector<int64_t> held_milli_;      // by index
  std::vector<int32_t> bands_;           // by index
  std::vector<bool> kept_;               // by index: see Leaf::kept
  std::map<uint64_t, size_t> index_of_;  // by the job's number
  int64_t looked_for_room_ns_ = -1;
  size_t over_ = 0;
  int64_t used_milli_ = 0;
  int64_t now_ns_ = 0;     // since the epoch
  int64_t summed_ns_ = 0;  // used_device_us is summed until here
};

}  // namespace muster::sim
