// How often each user may call: buckets that fill with time. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "muster/v1/access.pb.h"

namespace muster {

namespace pb = ::muster::v1;

struct RateLimit {
  int64_t per_s = 0;  // 0: no limit
  int64_t burst = 0;  // calls at once, after a rest
};
RateLimit LimitOf(pb::Rate rate);

class Rates {
 public:
  // Takes calls of `user` out of the bucket; false if there are fewer. `now_ns` is monotonic.
  bool Take(const std::string& user, pb::Rate rate, int64_t now_ns, int64_t calls = 1);
  size_t users() const;

 private:
  struct Bucket {
    int64_t full_at_ns = 0;  // when it would be full again if nothing more were taken
  };
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, Bucket> buckets_;
  int64_t swept_ns_ = 0;
};

}  // namespace muster
