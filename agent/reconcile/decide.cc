#include "agent/reconcile/decide.h"

namespace muster::agent {
namespace {

Decision Refuse(v1::Cause cause, std::string detail) {
  return Decision{Action::kRefuse, false, cause, std::move(detail)};
}

Decision OnUnknown(const Situation& situation, Command command) {
  switch (command) {
    case Command::kForget:
      return {Action::kIgnore};
    case Command::kPrepare:
      if (!situation.forgotten) return {Action::kPrepare};
      break;
    case Command::kPrepareAndStart:
      // The one start of an attempt never seen (contract 4): its Starting was committed with the
      // placement.
      if (!situation.forgotten) return {Action::kSpawn, /*prepare_first=*/true};
      break;
    case Command::kStart:
    case Command::kStop:
    case Command::kQuery:
      break;
  }
  // A Query is answered Gone only behind a claim, or a Prepare still on its way could start what
  // was said to be gone.
  return Refuse(v1::CAUSE_UNSPECIFIED, situation.forgotten ? "forgotten here" : "not known here");
}

}  // namespace

Decision Decide(const Situation& situation, Command command) {
  if (situation.record == nullptr) return OnUnknown(situation, command);
  const AttemptRecord& record = *situation.record;
  if (command == Command::kForget) return {record.gone() ? Action::kForget : Action::kIgnore};
  if (record.gone()) return {Action::kReport};
  if (record.claim == Claim::kStarted)
    return {command == Command::kStop ? Action::kStop : Action::kReport};

  // Prepared (or half prepared: no marker), nobody has claimed it yet.
  if (!record.prepared) return Refuse(v1::LAUNCH_FAILED, "preparing was interrupted");
  if (record.boot_id != situation.boot_id)
    return Refuse(v1::HOST_LOST, "prepared in an earlier boot of the host");
  switch (command) {
    case Command::kStop:
      return Refuse(v1::CAUSE_UNSPECIFIED, "stopped before it started");
    case Command::kStart:
    case Command::kPrepareAndStart:
      return {situation.shim_lives ? Action::kReport : Action::kSpawn};
    default:
      return {Action::kReport};
  }
}

}  // namespace muster::agent
