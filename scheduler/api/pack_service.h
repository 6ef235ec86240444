// Packed directories that come along with jobs.
#pragma once

#include "muster/v1/job_service.pb.h"
#include "muster/v1/pack_service.pb.h"
#include "scheduler/api/context.h"
#include "scheduler/api/guarded_service.h"

namespace muster {

class PackServiceImpl : public GuardedService {
 public:
  PackServiceImpl(const ApiContext* context, const Door* door);
  grpc::ServerUnaryReactor* Put(const Caller& caller, grpc::CallbackServerContext* call,
                                const pb::PutPackRequest* request, pb::PutPackResponse* response);

 private:
  const ApiContext* const context_;
};

// What is wrong with the packed directories that a submission of this user's names: they have to be
// the user's own, and here. They count as used now.
std::vector<FieldProblem> CheckPacks(const ApiContext& context, const std::string& owner,
                                     const pb::JobSpec& spec);

}  // namespace muster
