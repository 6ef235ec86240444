// What the services share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/spec/spec.h"
#include "scheduler/agents/sessions.h"
#include "scheduler/api/network_counts.h"
#include "scheduler/engine/engine.h"
#include "scheduler/engine/history.h"
#include "scheduler/state/options.h"

namespace muster {

class Guard;
class JobsOfUsers;
class Office;
class Outlook;
class PackStore;
class Providers;
class SecretStore;

// Lives as long as the servers do; read-only but for what is thread-safe itself.
struct ApiContext {
  const Engine* engine = nullptr;  // to read; what changes State goes through Caller::Change
  Guard* guard = nullptr;
  Sessions* sessions = nullptr;
  History* history = nullptr;  // null: what State forgets is gone
  Outlook* outlook = nullptr;
  PackStore* packs = nullptr;  // null: directories that come along are not kept, as nothing runs
  SecretStore* secrets = nullptr;        // null: none are kept
  JobsOfUsers* jobs_of_users = nullptr;  // null: they may have any number
  Clock* clock = nullptr;
  SchedulingOptions scheduling;
  SpecDefaults defaults;
  std::string store_id;
  uint64_t epoch = 0;
  std::string version;
  bool single_user = false;
  bool operators_exec = true;  // false: owners alone begin tunnels to their jobs
  // Null: nobody comes over a network.
  const Office* office = nullptr;
  Providers* providers = nullptr;      // null: nobody logs in by an identity provider
  std::vector<std::string> addresses;  // where certificates are asked for, HOST:PORT
  std::string join_address;            // where there is none yet
  // Whether the certificate with this serial was used since the start.
  std::function<bool(const std::string& serial)> in_use;
  std::function<NetworkCounts()> network_counts;  // null: no network is served
  // Empty while jobs are taken, else why not; asked by each submission, from any thread. Null:
  // always taken.
  std::function<std::string()> why_no_submissions;
};

inline std::string WhyNoSubmissions(const ApiContext& context) {
  return context.why_no_submissions ? context.why_no_submissions() : "";
}

}  // namespace muster
