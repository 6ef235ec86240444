// Certificates, as calls get them.
#pragma once

#include <functional>

#include "muster/v1/trust_service.pb.h"
#include "scheduler/api/context.h"
#include "scheduler/api/errors.h"
#include "scheduler/api/guard.h"
#include "scheduler/trust/office.h"

namespace muster {

// For a musterd that serves no network.
grpc::Status NoNetwork();

using IssueOperation =
    std::function<absl::StatusOr<Office::Issued>(const State& state, int64_t now_ns)>;

// Issues within the step that makes it durable, fills the response, and calls `done` once it is;
// the response has to be there until then. *detail: what `issue` tells the audit besides; may be
// null.
void Issue(const ApiContext& context, const Caller& caller, pb::CertificateResponse* response,
           IssueOperation issue, Engine::Done done,
           std::shared_ptr<const std::string> detail = nullptr);

}  // namespace muster
