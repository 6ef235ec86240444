// The public gRPC services. One object a caller's identity: the listener keeps a server for each
// uid, so what a call is allowed to is known before its first byte is read.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "muster/v1/cluster_service.grpc.pb.h"
#include "muster/v1/job_service.grpc.pb.h"
#include "muster/v1/queue_service.grpc.pb.h"
#include "scheduler/api/context.h"
#include "scheduler/api/watch.h"
#include "scheduler/ask/holders.h"

namespace muster {

inline constexpr size_t kMaxRequestBytes =
    1 << 20;                              // of one RPC's message; the agents' stream may send 4 MiB
inline constexpr int kWatchesMax = 1024;  // at once, of one user

class JobServiceImpl : public pb::JobService::CallbackService {
 public:
  JobServiceImpl(const ApiContext* context, WatchHub* hub, Identity who)
      : context_(context), hub_(hub), who_(std::move(who)) {}
  grpc::ServerUnaryReactor* Preview(grpc::CallbackServerContext* call,
                                    const pb::PreviewRequest* request,
                                    pb::PreviewResponse* response) override;
  grpc::ServerUnaryReactor* Submit(grpc::CallbackServerContext* call,
                                   const pb::SubmitRequest* request,
                                   pb::SubmitResponse* response) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* call, const pb::GetJobRequest* request,
                                pb::Job* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* call,
                                 const pb::ListJobsRequest* request,
                                 pb::ListJobsResponse* response) override;
  grpc::ServerWriteReactor<pb::WatchJobResponse>* Watch(
      grpc::CallbackServerContext* call, const pb::WatchJobRequest* request) override;
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* call,
                                   const pb::CancelJobRequest* request, pb::Job* response) override;
  grpc::ServerWriteReactor<pb::LogsResponse>* Logs(grpc::CallbackServerContext* call,
                                                   const pb::LogsRequest* request) override;
  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* call,
                                    const pb::ExplainRequest* request,
                                    pb::ExplainResponse* response) override;
  grpc::ServerUnaryReactor* Simulate(grpc::CallbackServerContext* call,
                                     const pb::SimulateRequest* request,
                                     pb::SimulateResponse* response) override;

 private:
  const ApiContext* const context_;
  WatchHub* const hub_;
  const Identity who_;
  std::atomic<int> watches_ = 0;
  // Answers to submissions of one step describe one State. The engine's thread only; of a view that
  // nobody has any more: void.
  std::weak_ptr<const View> answered_;
  std::optional<PoolHolders> answered_holders_;
};

class QueueServiceImpl : public pb::QueueService::CallbackService {
 public:
  QueueServiceImpl(const ApiContext* context, Identity who)
      : context_(context), who_(std::move(who)) {}
  grpc::ServerUnaryReactor* Apply(grpc::CallbackServerContext* call,
                                  const pb::ApplyQueuesRequest* request,
                                  pb::ApplyQueuesResponse* response) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* call,
                                const pb::GetQueueRequest* request, pb::Queue* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* call,
                                 const pb::ListQueuesRequest* request,
                                 pb::ListQueuesResponse* response) override;

 private:
  const ApiContext* const context_;
  const Identity who_;
};

class ClusterServiceImpl : public pb::ClusterService::CallbackService {
 public:
  ClusterServiceImpl(const ApiContext* context, Identity who)
      : context_(context), who_(std::move(who)) {}
  grpc::ServerUnaryReactor* GetCluster(grpc::CallbackServerContext* call,
                                       const pb::GetClusterRequest* request,
                                       pb::Cluster* response) override;
  grpc::ServerUnaryReactor* ListClusters(grpc::CallbackServerContext* call,
                                         const pb::ListClustersRequest* request,
                                         pb::ListClustersResponse* response) override;
  grpc::ServerUnaryReactor* GetHost(grpc::CallbackServerContext* call,
                                    const pb::GetHostRequest* request, pb::Host* response) override;
  grpc::ServerUnaryReactor* ListHosts(grpc::CallbackServerContext* call,
                                      const pb::ListHostsRequest* request,
                                      pb::ListHostsResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* call,
                                  const pb::DrainRequest* request,
                                  pb::DrainResponse* response) override;
  grpc::ServerUnaryReactor* Resume(grpc::CallbackServerContext* call,
                                   const pb::ResumeRequest* request,
                                   pb::ResumeResponse* response) override;
  grpc::ServerUnaryReactor* ConfirmOff(grpc::CallbackServerContext* call,
                                       const pb::ConfirmOffRequest* request,
                                       pb::ConfirmOffResponse* response) override;
  grpc::ServerUnaryReactor* ReleaseQuarantine(grpc::CallbackServerContext* call,
                                              const pb::ReleaseQuarantineRequest* request,
                                              pb::ReleaseQuarantineResponse* response) override;
  grpc::ServerUnaryReactor* GetTrainerSchema(grpc::CallbackServerContext* call,
                                             const pb::GetTrainerSchemaRequest* request,
                                             pb::GetTrainerSchemaResponse* response) override;
  grpc::ServerUnaryReactor* GetLedger(grpc::CallbackServerContext* call,
                                      const pb::GetLedgerRequest* request,
                                      pb::LedgerResponse* response) override;
  grpc::ServerUnaryReactor* Top(grpc::CallbackServerContext* call, const pb::TopRequest* request,
                                pb::TopResponse* response) override;
  grpc::ServerUnaryReactor* Ping(grpc::CallbackServerContext* call, const pb::PingRequest* request,
                                 pb::PingResponse* response) override;

 private:
  pb::Host Describe(const View& view, HostId id) const;
  // *jobs, if any, gets those that are there now.
  grpc::ServerUnaryReactor* SetDrained(grpc::CallbackServerContext* call, const std::string& target,
                                       bool drained, const std::string& reason,
                                       google::protobuf::RepeatedField<uint64_t>* jobs);

  const ApiContext* const context_;
  const Identity who_;
};

// ---- shared by the services ----

inline grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* call,
                                       const grpc::Status& status) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}
// OK, or what a caller with this request gets at once.
grpc::Status CheckSize(const google::protobuf::Message& request);
grpc::Status OperatorOnly(const Identity& who, const char* what);

// A job with the newest progress, as it is told to users.
pb::Job TellJob(const ApiContext& context, const View& view, const JobRow& job,
                PoolHolders* holders = nullptr);

}  // namespace muster
