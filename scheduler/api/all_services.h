// The services of a door, each method of muster.v1 once: a server registers all of them, and one
// for strangers those that need no certificate.
#pragma once

#include <grpcpp/server_builder.h>

#include "common/base/check.h"
#include "scheduler/api/agent_service.h"
#include "scheduler/api/join_service.h"
#include "scheduler/api/pack_service.h"
#include "scheduler/api/secret_service.h"
#include "scheduler/api/services.h"
#include "scheduler/api/trust_service.h"

namespace muster {

struct Services {
  Services(const ApiContext* context, WatchHub* hub, const Door* door)
      : jobs(context, hub, door),
        queues(context, door),
        clusters(context, door),
        access(context, door),
        agents(context, door),
        trust(context, door),
        packs(context, door),
        secrets(context, door) {}

  void Register(grpc::ServerBuilder* builder) {
    size_t served = JoinServiceImpl::kMethods;
    for (GuardedService* service : std::initializer_list<GuardedService*>{
             &jobs, &queues, &clusters, &access, &agents, &trust, &packs, &secrets}) {
      builder->RegisterService(service);
      served += service->served().size();
    }
    // A method that has a policy and no handler is a slip, too.
    MUSTER_CHECK(served == MethodPolicies().size());
  }

  JobServiceImpl jobs;
  QueueServiceImpl queues;
  ClusterServiceImpl clusters;
  AccessServiceImpl access;
  AgentServiceImpl agents;
  TrustServiceImpl trust;
  PackServiceImpl packs;
  SecretServiceImpl secrets;
};

}  // namespace muster
