// The public gRPC services. Each handler gets an admitted Caller (guarded_service.h), and answers
// with what that caller may see (mask.h).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "muster/v1/access_service.pb.h"
#include "muster/v1/cluster_service.pb.h"
#include "muster/v1/job_service.pb.h"
#include "muster/v1/queue_service.pb.h"
#include "scheduler/api/context.h"
#include "scheduler/api/guarded_service.h"
#include "scheduler/api/watch.h"
#include "scheduler/ask/holders.h"

namespace muster {

inline constexpr size_t kMaxRequestBytes =
    1 << 20;                              // of one RPC's message; the agents' stream may send 4 MiB
inline constexpr int kWatchesMax = 1024;  // at once, of one user

// Streams that are open, by user. Thread-safe.
class StreamCounts {
 public:
  // False: the user has so many already.
  bool Take(const std::string& user, int most) {
    std::lock_guard lock(mutex_);
    int& open = open_[user];
    if (open >= most) return false;
    ++open;
    return true;
  }
  void Give(const std::string& user) {
    std::lock_guard lock(mutex_);
    if (const auto it = open_.find(user); it != open_.end() && --it->second <= 0) open_.erase(it);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> open_;
};

class JobServiceImpl : public GuardedService {
 public:
  JobServiceImpl(const ApiContext* context, WatchHub* hub, const Door* door);
  grpc::ServerUnaryReactor* Preview(const Caller& caller, grpc::CallbackServerContext* call,
                                    const pb::PreviewRequest* request,
                                    pb::PreviewResponse* response);
  grpc::ServerUnaryReactor* Submit(const Caller& caller, grpc::CallbackServerContext* call,
                                   const pb::SubmitRequest* request, pb::SubmitResponse* response);
  grpc::ServerUnaryReactor* Get(const Caller& caller, grpc::CallbackServerContext* call,
                                const pb::GetJobRequest* request, pb::Job* response);
  grpc::ServerUnaryReactor* List(const Caller& caller, grpc::CallbackServerContext* call,
                                 const pb::ListJobsRequest* request,
                                 pb::ListJobsResponse* response);
  grpc::ServerWriteReactor<pb::WatchJobResponse>* Watch(const Caller& caller,
                                                        grpc::CallbackServerContext* call,
                                                        const pb::WatchJobRequest* request);
  grpc::ServerUnaryReactor* Cancel(const Caller& caller, grpc::CallbackServerContext* call,
                                   const pb::CancelJobRequest* request, pb::Job* response);
  grpc::ServerWriteReactor<pb::LogsResponse>* Logs(const Caller& caller,
                                                   grpc::CallbackServerContext* call,
                                                   const pb::LogsRequest* request);
  grpc::ServerUnaryReactor* Explain(const Caller& caller, grpc::CallbackServerContext* call,
                                    const pb::ExplainRequest* request,
                                    pb::ExplainResponse* response);
  grpc::ServerUnaryReactor* Simulate(const Caller& caller, grpc::CallbackServerContext* call,
                                     const pb::SimulateRequest* request,
                                     pb::SimulateResponse* response);
  grpc::ServerBidiReactor<pb::TunnelInput, pb::TunnelOutput>* Exec(
      AdmitFirst<pb::TunnelInput> admit, grpc::CallbackServerContext* call);
  grpc::ServerBidiReactor<pb::TunnelInput, pb::TunnelOutput>* Forward(
      AdmitFirst<pb::TunnelInput> admit, grpc::CallbackServerContext* call);

 private:
  const ApiContext* const context_;
  WatchHub* const hub_;
  StreamCounts watches_;
  // Answers to submissions of one step describe one State. The engine's thread only; of a view that
  // nobody has any more: void.
  std::weak_ptr<const View> answered_;
  std::optional<PoolHolders> answered_holders_;
};

class QueueServiceImpl : public GuardedService {
 public:
  QueueServiceImpl(const ApiContext* context, const Door* door);
  grpc::ServerUnaryReactor* Apply(const Caller& caller, grpc::CallbackServerContext* call,
                                  const pb::ApplyQueuesRequest* request,
                                  pb::ApplyQueuesResponse* response);
  grpc::ServerUnaryReactor* Get(const Caller& caller, grpc::CallbackServerContext* call,
                                const pb::GetQueueRequest* request, pb::Queue* response);
  grpc::ServerUnaryReactor* List(const Caller& caller, grpc::CallbackServerContext* call,
                                 const pb::ListQueuesRequest* request,
                                 pb::ListQueuesResponse* response);

 private:
  const ApiContext* const context_;
};

class ClusterServiceImpl : public GuardedService {
 public:
  ClusterServiceImpl(const ApiContext* context, const Door* door);
  grpc::ServerUnaryReactor* GetCluster(const Caller& caller, grpc::CallbackServerContext* call,
                                       const pb::GetClusterRequest* request, pb::Cluster* response);
  grpc::ServerUnaryReactor* ListClusters(const Caller& caller, grpc::CallbackServerContext* call,
                                         const pb::ListClustersRequest* request,
                                         pb::ListClustersResponse* response);
  grpc::ServerUnaryReactor* GetHost(const Caller& caller, grpc::CallbackServerContext* call,
                                    const pb::GetHostRequest* request, pb::Host* response);
  grpc::ServerUnaryReactor* ListHosts(const Caller& caller, grpc::CallbackServerContext* call,
                                      const pb::ListHostsRequest* request,
                                      pb::ListHostsResponse* response);
  grpc::ServerUnaryReactor* Drain(const Caller& caller, grpc::CallbackServerContext* call,
                                  const pb::DrainRequest* request, pb::DrainResponse* response);
  grpc::ServerUnaryReactor* Resume(const Caller& caller, grpc::CallbackServerContext* call,
                                   const pb::ResumeRequest* request, pb::ResumeResponse* response);
  grpc::ServerUnaryReactor* ConfirmOff(const Caller& caller, grpc::CallbackServerContext* call,
                                       const pb::ConfirmOffRequest* request,
                                       pb::ConfirmOffResponse* response);
  grpc::ServerUnaryReactor* ReleaseQuarantine(const Caller& caller,
                                              grpc::CallbackServerContext* call,
                                              const pb::ReleaseQuarantineRequest* request,
                                              pb::ReleaseQuarantineResponse* response);
  grpc::ServerUnaryReactor* GetTrainerSchema(const Caller& caller,
                                             grpc::CallbackServerContext* call,
                                             const pb::GetTrainerSchemaRequest* request,
                                             pb::GetTrainerSchemaResponse* response);
  grpc::ServerUnaryReactor* GetLedger(const Caller& caller, grpc::CallbackServerContext* call,
                                      const pb::GetLedgerRequest* request,
                                      pb::LedgerResponse* response);
  grpc::ServerUnaryReactor* Top(const Caller& caller, grpc::CallbackServerContext* call,
                                const pb::TopRequest* request, pb::TopResponse* response);
  grpc::ServerUnaryReactor* Ping(const Caller& caller, grpc::CallbackServerContext* call,
                                 const pb::PingRequest* request, pb::PingResponse* response);

 private:
  pb::Host Describe(const Sight& sight, const View& view, HostId id) const;
  // *jobs, if any, gets those that are there now.
  grpc::ServerUnaryReactor* SetDrained(const Caller& caller, grpc::CallbackServerContext* call,
                                       const std::string& target, bool drained,
                                       const std::string& reason,
                                       google::protobuf::RepeatedField<uint64_t>* jobs);

  const ApiContext* const context_;
};

// Bindings and the audit.
class AccessServiceImpl : public GuardedService {
 public:
  AccessServiceImpl(const ApiContext* context, const Door* door);
  grpc::ServerUnaryReactor* List(const Caller& caller, grpc::CallbackServerContext* call,
                                 const pb::ListAccessRequest* request,
                                 pb::ListAccessResponse* response);
  grpc::ServerUnaryReactor* Grant(const Caller& caller, grpc::CallbackServerContext* call,
                                  const pb::GrantRequest* request, pb::GrantResponse* response);
  grpc::ServerUnaryReactor* Revoke(const Caller& caller, grpc::CallbackServerContext* call,
                                   const pb::RevokeRequest* request, pb::RevokeResponse* response);
  grpc::ServerUnaryReactor* Check(const Caller& caller, grpc::CallbackServerContext* call,
                                  const pb::CheckAccessRequest* request,
                                  pb::CheckAccessResponse* response);
  grpc::ServerUnaryReactor* ListAudit(const Caller& caller, grpc::CallbackServerContext* call,
                                      const pb::ListAuditRequest* request,
                                      pb::ListAuditResponse* response);
  grpc::ServerUnaryReactor* VerifyAudit(const Caller& caller, grpc::CallbackServerContext* call,
                                        const pb::VerifyAuditRequest* request,
                                        pb::VerifyAuditResponse* response);

 private:
  grpc::ServerUnaryReactor* Change(const Caller& caller, grpc::CallbackServerContext* call,
                                   const pb::Binding& binding, bool revoked,
                                   std::function<void(pb::Role before)> done);

  const ApiContext* const context_;
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

// A job with the newest progress, as it is told to the user of `sight`, which is of `view`.
pb::Job TellJob(const ApiContext& context, const Sight& sight, const View& view, const JobRow& job,
                PoolHolders* holders = nullptr);
// The array of this member 0 as a whole.
pb::Job TellArray(const ApiContext& context, const Sight& sight, const View& view,
                  const JobRow& first, PoolHolders* holders = nullptr);
// The caller, who names a job so, means the array of which it is member 0, not that member.
bool IsWholeArray(const JobRow& job, std::string_view id);

}  // namespace muster
