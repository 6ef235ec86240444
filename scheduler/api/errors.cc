#include "scheduler/api/errors.h"

#include <google/protobuf/any.pb.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace muster {
namespace {

google::rpc::BadRequest Violations(const std::vector<FieldProblem>& problems) {
  google::rpc::BadRequest bad;
  for (const FieldProblem& problem : problems) {
    google::rpc::BadRequest::FieldViolation* violation = bad.add_field_violations();
    violation->set_field(problem.path);
    violation->set_description(problem.message);
  }
  return bad;
}

google::rpc::ErrorInfo Info(const std::string& reason) {
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("muster");
  return info;
}

grpc::Status WithDetails(google::rpc::Status status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), status.message(),
                      status.SerializeAsString());
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

grpc::Status BadRequest(const std::string& message, const std::vector<FieldProblem>& problems) {
  google::rpc::Status status;
  status.set_code(grpc::StatusCode::INVALID_ARGUMENT);
  status.set_message(message);
  status.add_details()->PackFrom(Violations(problems));
  return WithDetails(std::move(status));
}

grpc::Status NeverFits(const std::string& message, const std::vector<FieldProblem>& problems,
                       bool may_wait) {
  google::rpc::PreconditionFailure failure;
  for (const FieldProblem& problem : problems) {
    google::rpc::PreconditionFailure::Violation* violation = failure.add_violations();
    violation->set_type("NEVER_FITS");
    violation->set_subject(problem.path);
    violation->set_description(problem.message);
  }
  google::rpc::Status status;
  status.set_code(grpc::StatusCode::FAILED_PRECONDITION);
  status.set_message(message);
  status.add_details()->PackFrom(failure);
  status.add_details()->PackFrom(Violations(problems));
  if (may_wait) status.add_details()->PackFrom(Info("WAIT_FOR_CAPACITY"));
  return WithDetails(std::move(status));
}

grpc::Status NotNow(const std::string& message, const std::string& reason) {
  google::rpc::Status status;
  status.set_code(grpc::StatusCode::UNAVAILABLE);
  status.set_message(message);
  status.add_details()->PackFrom(Info(reason));
  return WithDetails(std::move(status));
}

grpc::Status BusyForNow() {
  return NotNow("too many questions at once; ask again in a moment", "BUSY");
}

}  // namespace muster
