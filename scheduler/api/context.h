// What the services share, and who asks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/base/clock.h"
#include "common/spec/spec.h"
#include "scheduler/agents/sessions.h"
#include "scheduler/engine/engine.h"
#include "scheduler/engine/history.h"
#include "scheduler/state/options.h"

namespace muster {

// The caller, as the kernel named it when the connection was accepted (SO_PEERCRED). Never taken
// from a request.
struct Identity {
  uint32_t uid = 0;
  std::string user;  // name of the uid, or its number
  bool operator_ =
      false;  // root, or the user who runs musterd: may do everything, and speak as an agent
};

class Outlook;

// Lives as long as the servers do; read-only but for what is thread-safe itself.
struct ApiContext {
  Engine* engine = nullptr;
  Sessions* sessions = nullptr;
  History* history = nullptr;  // null: what State forgets is gone
  Outlook* outlook = nullptr;
  Clock* clock = nullptr;
  SchedulingOptions scheduling;
  SpecDefaults defaults;
  std::string store_id;
  uint64_t epoch = 0;
  std::string version;
  bool single_user = false;
  // Empty while jobs are taken, else why not; asked by each submission, from any thread. Null:
  // always taken.
  std::function<std::string()> why_no_submissions;
};

inline std::string WhyNoSubmissions(const ApiContext& context) {
  return context.why_no_submissions ? context.why_no_submissions() : "";
}

inline bool MaySee(const Identity& who, const JobRow& job) {
  return who.operator_ || job.owner == who.user;
}

}  // namespace muster
