// How many unfinished jobs each user has, as far as it takes to bound them: they are in memory, and
// in the store. Counted only where what a user had and has submitted since might be too many, and
// once a second at most. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "scheduler/state/state.h"

namespace muster {

class JobsOfUsers {
 public:
  static constexpr int64_t kMostBytes = int64_t{512} << 20;  // of their files, as they are kept

  explicit JobsOfUsers(int64_t most) : most_(most) {}

  // Empty: so many jobs of `owner`'s, of so many bytes together, may come, and count from now on.
  // Else why they may not.
  std::string WhyNoMore(const State& state, const std::string& owner, int64_t jobs, int64_t bytes,
                        int64_t now_ns);

 private:
  // At most: what ended since it was counted is in it still.
  struct Has {
    int64_t jobs = 0, bytes = 0;
    int64_t counted_ns = 0;  // 0: never
  };
  static void Count(const State& state, const std::string& owner, Has* has);
  bool Fits(const Has& has, int64_t jobs, int64_t bytes) const;

  const int64_t most_;
  std::mutex mutex_;
  std::map<std::string, Has> users_;
};

}  // namespace muster
