// Following a job to its end: event lines, a live bar on a terminal or a plain line every few
// seconds, and what Ctrl+C means: following stops, the job does not.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "cli/client.h"
#include "cli/interrupt.h"
#include "cli/session.h"

namespace muster {

inline constexpr int64_t kGiveUpAfterNs = 600'000'000'000;  // without a server

struct FollowOptions {
  bool quiet = false;             // neither events nor bars: `wait`
  bool events_to_stderr = false;  // stdout belongs to the job's own output: `run`
  int64_t timeout_ns = 0;         // 0: none; when it is over: kExitTimeout, as timeout(1) has it
  int64_t since_ns = 0;           // when it began, by the monotonic clock; 0: now
  std::function<void(const pb::Job&)> on_job;  // each state seen
};

// Until the job has ended: its exit code. Reconnects when the server goes away and says so; the job
// doesn't notice either. Interrupted: 130, after saying how to attach and how to cancel.
int Follow(Session& session, Client& client, const std::string& id, const Interrupt& interrupt,
           const FollowOptions& options = {});

// Watches a job until `on` returns false, while its server is away, too. That is said, with what it
// means: `meanwhile`. OK: `on` returned false, or the interrupt is pending.
absl::Status WatchThrough(Session& session, Client& client, const std::string& id,
                          const Interrupt& interrupt, const std::string& meanwhile,
                          const std::function<bool(const pb::WatchJobResponse&)>& on);

}  // namespace muster
