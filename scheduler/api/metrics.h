// What GET /metrics tells, in Prometheus' text format (0.0.4): gauges from a snapshot, counts and
// durations from the engine's own. docs/configure.md lists them for operators. Labels are what
// operators configure (queues, clusters, flavours), never a job or a user.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "scheduler/api/network_counts.h"
#include "scheduler/engine/engine.h"
#include "scheduler/trust/providers.h"

namespace muster {

struct MetricsInput {
  const View* view = nullptr;
  EngineStats stats;
  int64_t now_ns = 0;  // Unix time
  int64_t uptime_ns = 0;
  std::string version;
  bool takes_submissions = true;
  int64_t agent_sessions = 0;
  uint64_t unproved_hellos = 0;  // Sessions::Unproved
  uint64_t agent_rests = 0;
  int64_t audit_bytes = 0;
  int64_t database_bytes = 0;
  int64_t wal_bytes = 0;
  std::optional<ProviderCounts> logins;  // none: nobody logs in by an identity provider
  std::optional<NetworkCounts> network;  // none: no network is served
};

std::string RenderMetrics(const MetricsInput& input);

}  // namespace muster
