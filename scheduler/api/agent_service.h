// AgentService over gRPC: each stream is handed to Sessions, which knows the rules.
#pragma once

#include "muster/v1/agent.pb.h"
#include "muster/v1/agent_service.pb.h"
#include "scheduler/api/context.h"
#include "scheduler/api/guarded_service.h"

namespace muster {

class AgentServiceImpl : public GuardedService {
 public:
  AgentServiceImpl(const ApiContext* context, const Door* door);
  grpc::ServerBidiReactor<pb::AgentMessage, pb::SchedulerMessage>* Connect(
      const Caller& caller, grpc::CallbackServerContext* call);
  grpc::ServerBidiReactor<pb::TunnelOutput, pb::TunnelInput>* Carry(
      const Caller& caller, grpc::CallbackServerContext* call);
  grpc::ServerUnaryReactor* ReadSecrets(const Caller& caller, grpc::CallbackServerContext* call,
                                        const pb::ReadSecretsRequest* request,
                                        pb::ReadSecretsResponse* response);
  grpc::ServerUnaryReactor* ReadPack(const Caller& caller, grpc::CallbackServerContext* call,
                                     const pb::ReadPackRequest* request,
                                     pb::ReadPackResponse* response);

 private:
  const ApiContext* const context_;
};

}  // namespace muster
