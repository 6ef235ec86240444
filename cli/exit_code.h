// Exit codes, as docs/asking.md promises them to scripts; and how an error becomes text.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/spec/spec.h"
#include "muster/v1/job.pb.h"

namespace muster {

enum ExitCode {
  kExitOk = 0,
  kExitJobFailed = 1,
  kExitBadInput = 2,  // or it can never run
  kExitNotFound = 3,
  kExitDenied = 4,
  kExitChanged = 5,      // --if-version
  kExitUnreachable = 6,  // or the server could not answer
  kExitWouldEvict = 7,   // --detailed-exitcode
  kExitCancelled = 8,    // the job was
  kExitTimeout = 124,    // wait --timeout
  kExitCutOff = 125,     // exec: its command was
  kExitInterrupted = 130,
};

ExitCode ExitCodeFor(const absl::Status& status);
ExitCode ExitCodeFor(pb::JobState final_state);

// The BadRequest's violations and the PreconditionFailure's (path: its subject), each once. Empty:
// the status carries no details.
std::vector<FieldProblem> ProblemsOf(const absl::Status& status);

// The server refused a job that it would accept with wait_for_capacity.
bool MayWaitForCapacity(const absl::Status& status);

// For a terminal, with a newline at the end: the message, each violation on its own line, and a
// remedy where there is one. `server` is named when it can't be reached.
std::string RenderError(const absl::Status& status, const std::string& server);

}  // namespace muster
