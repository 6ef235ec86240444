// Secrets of users: set, listed by name, deleted. No answer holds a value.
#pragma once

#include "muster/v1/job_service.pb.h"
#include "muster/v1/secret_service.pb.h"
#include "scheduler/api/context.h"
#include "scheduler/api/guarded_service.h"

namespace muster {

class SecretServiceImpl : public GuardedService {
 public:
  SecretServiceImpl(const ApiContext* context, const Door* door);
  grpc::ServerUnaryReactor* Set(const Caller& caller, grpc::CallbackServerContext* call,
                                const pb::SetSecretRequest* request,
                                pb::SetSecretResponse* response);
  grpc::ServerUnaryReactor* List(const Caller& caller, grpc::CallbackServerContext* call,
                                 const pb::ListSecretsRequest* request,
                                 pb::ListSecretsResponse* response);
  grpc::ServerUnaryReactor* Delete(const Caller& caller, grpc::CallbackServerContext* call,
                                   const pb::DeleteSecretRequest* request,
                                   pb::DeleteSecretResponse* response);

 private:
  const ApiContext* const context_;
};

// What is wrong with the secrets that a submission of this user's names: they have to be there, and
// to fit into a process's variables.
std::vector<FieldProblem> CheckSecrets(const ApiContext& context, const std::string& owner,
                                       const pb::JobSpec& spec);

}  // namespace muster
