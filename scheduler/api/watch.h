// Follows jobs for Watch and for log streams: reads the engine's steps on a thread of its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "muster/v1/job_service.pb.h"
#include "scheduler/ask/holders.h"
#include "scheduler/engine/engine.h"

namespace muster {

// Thread-safe. Register with the engine (Observe) before it runs; stop the engine before this is
// destroyed.
class WatchHub {
 public:
  struct News {
    const View& view;
    const JobRow* job;  // as of `view`; one that State has forgotten: as it ended
    const std::vector<std::string>&
        events;            // what happened since the last call; first call: nothing
    PoolHolders& holders;  // of `view`, for all who are told of it
  };
  // Called on the hub's thread: when the watcher is new, when the job changed, when its verdict
  // did. The job is null where its end wasn't seen, as that and that it was forgotten came at once;
  // then the watcher is called no more.
  using Watcher = std::function<void(const News& news)>;

  explicit WatchHub(const Engine* engine);
  ~WatchHub();

  Engine::Observer observer();
  // The job as FindJob gave it: of one that has not ended only the number is kept.
  // `members`: the watcher is called for each change of an array that has so many, of which this is
  // the first.
  uint64_t Add(const std::shared_ptr<const JobRow>& job, Watcher watcher, int32_t members = 1);
  // Calls the watcher once more, whatever changes.
  void Poke(uint64_t id);
  // Once it returns, the watcher isn't called any more, unless this is called by the watcher
  // itself.
  void Remove(uint64_t id);
  void Stop();
  size_t watchers() const;

 private:
  struct Entry {
    uint64_t job = 0;
    int32_t members = 1;
    std::shared_ptr<const JobRow>
        ended;  // a row of its own, which keeps no view alive; nullptr: not ended, or State has it
    std::shared_ptr<Watcher> watcher;
    uint64_t not_before = 0;  // commit the first message must include
    bool started = false;
    bool poked = false;

    const JobRow* RowIn(const View& view) const;
    bool Due(const View& view) const { return (poked || !started) && not_before <= view.commit; }
  };

  void Run();
  void Process(const StepRecord& step);
  void Start();
  void Tell(const std::vector<Entry>& entries,
            const std::map<uint64_t, std::vector<std::string>>& events);

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<StepRecord> steps_;
  std::map<uint64_t, Entry> watchers_;
  uint64_t next_id_ = 1;
  bool stopping_ = false;
  std::mutex calling_;  // held while watchers are called
  const Engine* const engine_;
  // The hub's thread only.
  std::shared_ptr<const View> view_;    // newest processed
  std::optional<PoolHolders> holders_;  // of view_
  std::thread thread_;
};

}  // namespace muster
