// Errors as google.rpc.Status: the code, a sentence, and details that a caller can act on.
#pragma once

#include <grpcpp/support/status.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/spec/spec.h"

namespace muster {

grpc::Status ToGrpc(const absl::Status& status);
// INVALID_ARGUMENT with a BadRequest of all problems.
grpc::Status BadRequest(const std::string& message, const std::vector<FieldProblem>& problems);
// FAILED_PRECONDITION, type NEVER_FITS: the same problems as violations, and as a BadRequest for
// the fields' places. `may_wait`: an ErrorInfo says that it would be accepted with
// wait_for_capacity.
grpc::Status NeverFits(const std::string& message, const std::vector<FieldProblem>& problems,
                       bool may_wait);

// UNAVAILABLE by the server's own word: an ErrorInfo with this reason tells it from a server that
// isn't there.
grpc::Status NotNow(const std::string& message, const std::string& reason);
// The same of a question that found too many before it: clients ask again by themselves.
grpc::Status BusyForNow();

}  // namespace muster
