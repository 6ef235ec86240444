// What the peers of an address may send that nothing explains: handshakes, headers, pings, messages
// that are not whole yet, calls that were refused. HTTP/2 has many ways to keep a server busy with
// frames that come to no call; they all show as bytes that no call and no message explains. An
// address has a bucket of them that fills with time; who empties it is ended, and its address waits
// until it has filled again. Another bucket is of new connections. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace muster {

struct AllowanceLimits {
  int64_t bytes_at_once = 448 << 10;  // more than the longest message of a call
  int64_t bytes_per_s = 128 << 10;
  int64_t wait_s = 10;  // of who has emptied it
  int64_t connections_at_once = 300;
  int64_t connections_per_s = 50;
};

class Allowance {
 public:
  explicit Allowance(AllowanceLimits limits) : limits_(limits) {}

  // Whether the address may open another connection; counts it. Times are monotonic.
  bool Connect(const std::string& address, int64_t now_ns);
  // So many bytes more came unexplained; below 0: as many were explained since. False: the bucket
  // is empty.
  bool Take(const std::string& address, int64_t bytes, int64_t now_ns);
  size_t addresses() const { return buckets_.size(); }

 private:
  static constexpr int64_t kShares = 1000;
  struct Bucket {
    int64_t bytes = 0;        // what is left; below 0: what is owed
    int64_t connections = 0;  // of which kShares are one
    int64_t at_ns = 0;
  };
  Bucket& Filled(const std::string& address, int64_t now_ns);

  const AllowanceLimits limits_;
  std::map<std::string, Bucket> buckets_;
  int64_t swept_ns_ = 0;
};

}  // namespace muster
