// GET /metrics over HTTP, by CivetWeb (docs/decisions/042-metrics.md). Knows nothing of the
// scheduler.
//
// A client can cost no more than its share: two threads, requests of 8 KiB that have to be there
// within five seconds, no bodies, one request a connection; whoever comes while both threads are
// busy waits in a queue of bounded length.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"

struct mg_connection;
struct mg_context;

namespace muster {

class MetricsServer {
 public:
  static constexpr char kPath[] = "/metrics";

  // `address` is one that WhyNotMetricsListen accepts. `render` gives the text; it is called on the
  // server's threads, by one at a time and at most once a second. UNAVAILABLE says why it can't be
  // served there.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& address,
                                                              std::function<std::string()> render,
                                                              Clock* clock);
  // Takes up to two seconds. `render` isn't called any more.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const { return port_; }

 private:
  MetricsServer(std::function<std::string()> render, Clock* clock)
      : render_(std::move(render)), clock_(clock) {}
  absl::Status Listen(const std::string& address);
  static int Answer(mg_connection* connection);
  static int TakeMessage(const mg_connection* connection, const char* message);
  std::shared_ptr<const std::string> Text();

  const std::function<std::string()> render_;
  Clock* const clock_;
  mg_context* context_ = nullptr;
  int port_ = 0;

  std::mutex mutex_;
  std::string complaint_;                    // the library's first: why it doesn't start
  std::shared_ptr<const std::string> text_;  // null: none yet
  int64_t rendered_ns_ = 0;                  // MonotonicNs
};

}  // namespace muster
