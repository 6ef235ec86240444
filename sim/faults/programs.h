// What the jobs' programs do, as a model: ranks meet, work, checkpoint, and end as the seed says.
// The hosts' shims start and signal them. One object for the world: ranks of a gang on several
// hosts wait for each other. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "muster/v1/agent.pb.h"
#include "sim/faults/config.h"
#include "sim/heap.h"

namespace muster::sim::faults {

namespace pb = ::muster::v1;

inline constexpr int32_t kFinalExitCode = 3;  // of those that name one in final_exit_codes

class Programs {
 public:
  // How a rank acts on its shim.
  struct Rank {
    std::function<void(int exit_code)> exit;           // it ends by itself
    std::function<void(const std::string& json)> say;  // a line to the progress socket that is kept
    std::function<void(const std::string& json)> report;  // one of which only the newest counts
  };

  Programs(const Config& config, uint64_t seed, Heap* heap)
      : config_(config), seed_(seed), heap_(heap) {}

  // Until then nobody's reads and writes of /shared are answered.
  int64_t storage_hangs_until_ns = 0;
  bool StorageHangs() const { return heap_->now_ns() < storage_hangs_until_ns; }
  // Something of a program waits for that.
  std::function<void(bool is_export)> waits;
  // A program has written its export there, whole, and will say so.
  std::function<void(const std::string& staged, const pb::AttemptKey& by)> stage;

  void Start(const pb::Prepare& prepare, int32_t rank, Rank acts);
  void Terminate(const pb::AttemptKey& key,
                 int32_t rank);  // SIGTERM: a checkpoint, then exit 0; some ignore it
  void Dead(const pb::AttemptKey& key, int32_t rank);  // however it ended
  // The checkpoint that it resumed from; empty: none.
  std::string LoadedBy(const pb::AttemptKey& key) const;
  // Once it has begun nothing more is heard of it. One in four of those that have a hang_timeout.
  bool Hangs(const pb::AttemptKey& key, const pb::TaskSpec& task) const {
    return task.hang_timeout_ns() > 0 && RandomOf(key, -2).OneIn(4);
  }

 private:
  struct Gang {
    pb::Prepare prepare;
    int32_t size = 0;
    std::map<int32_t, Rank> ranks;  // alive
    bool met = false;               // all were there at once: it works
    bool over = false;              // somebody has ended
    int64_t began_ns = 0;
    int64_t from_step = 0;  // resumed
    std::string from_path;
    int64_t steps = 0;  // in all
    bool exports = false;
  };

  Random RandomOf(const pb::AttemptKey& key, int64_t what) const;
  void Meet(const std::string& name);
  void Checkpoint(Gang* gang);
  // True: once the storage answers, and the gang is still there.
  bool Later(const Gang& gang, void (Programs::*what)(Gang*), bool is_export);
  // A rank ends by itself, once the storage answers.
  void Leave(const std::string& name, int32_t rank);
  void Report(Gang* gang);
  void Export(Gang* gang);  // one in four tasks does
  int64_t StepNow(const Gang& gang) const;

  const Config config_;
  const uint64_t seed_;
  Heap* const heap_;
  std::map<std::string, Gang> gangs_;
  std::map<std::string, int64_t> checkpoints_;  // step by path
  std::map<std::string, std::string> loaded_;   // path by attempt
};

}  // namespace muster::sim::faults
