// AgentService over gRPC: each stream is handed to Sessions, which knows the rules.
#pragma once

#include "muster/v1/agent_service.grpc.pb.h"
#include "scheduler/api/context.h"

namespace muster {

class AgentServiceImpl : public pb::AgentService::CallbackService {
 public:
  AgentServiceImpl(const ApiContext* context, Identity who)
      : context_(context), who_(std::move(who)) {}
  grpc::ServerBidiReactor<pb::AgentMessage, pb::SchedulerMessage>* Connect(
      grpc::CallbackServerContext* call) override;

 private:
  const ApiContext* const context_;
  const Identity who_;
};

}  // namespace muster
