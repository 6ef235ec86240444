// How many unfinished jobs each user has, as far as it takes to bound them: they are in memory, and
// in the store. Counted only where what a user had and has submitted since might be too many: those
// of all users at once, and once a second at most, whoever asks how often. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "scheduler/state/state.h"

namespace muster {

class JobsOfUsers {
 public:
  static constexpr int64_t kMostBytes = int64_t{512} << 20;  // of their files, as they are kept

  explicit JobsOfUsers(int64_t most) : most_(most) {}

  // OK: so many jobs of `owner`'s, of so many bytes together, may come, and count from now on. Else
  // why they may not. RESOURCE_EXHAUSTED: too many are there. UNAVAILABLE: there would be too many
  // if all came that was asked for since they were counted, which is not a second ago: ask again.
  absl::Status Take(const State& state, const std::string& owner, int64_t jobs, int64_t bytes,
                    int64_t now_ns);

 private:
  // What ended since it was counted is in it still, and what was refused in the end, too.
  struct Has {
    int64_t jobs = 0, bytes = 0;
    bool since = false;  // some came since it was counted
  };
  void Count(const State& state);
  bool Fits(const Has& has, int64_t jobs, int64_t bytes) const;
  absl::Status TooMany(const Has& has, int64_t jobs) const;

  const int64_t most_;
  std::mutex mutex_;
  std::map<std::string, Has> users_;
  int64_t counted_ns_ = 0;  // 0: never
};

}  // namespace muster
