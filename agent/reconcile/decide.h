// The agent's rules (contracts 1-7, 12-14 of docs/contracts.md) as a pure function: what is
// recorded of an attempt, and a command → what to do.
#pragma once

#include <string>

#include "agent/reconcile/record.h"

namespace muster::agent {

enum class Command { kPrepare, kPrepareAndStart, kStart, kStop, kForget, kQuery };

enum class Action {
  kIgnore,
  kReport,   // answer with what is known
  kPrepare,  // directories, port, then the durable marker; a failure becomes kRefuse
  kSpawn,  // the shim; its claim decides. With kPrepareAndStart of something unknown: prepare first
  kRefuse,  // claim "stopped", answer Gone. If the shim's claim was first: as kStop for a Stop,
            // else kReport
  kStop,    // record the cause, then signal the shim
  kForget,  // remove the record, remember the id for the session
};

struct Decision {
  Action action = Action::kIgnore;
  bool prepare_first = false;               // with kSpawn
  v1::Cause cause = v1::CAUSE_UNSPECIFIED;  // with kRefuse
  std::string detail;
};

struct Situation {
  const AttemptRecord* record = nullptr;  // null: unknown
  bool forgotten = false;                 // in this session
  bool shim_lives = false;
  std::string boot_id;  // now
};

Decision Decide(const Situation& situation, Command command);

}  // namespace muster::agent
