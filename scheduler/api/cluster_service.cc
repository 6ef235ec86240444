#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "scheduler/api/errors.h"
#include "scheduler/api/mask.h"
#include "scheduler/api/outlook.h"
#include "scheduler/api/services.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/top.h"

namespace muster {
namespace {

// kNoHost if `name` isn't cluster/host of a known host.
HostId FindHostByName(const State& state, const std::string& name) {
  const size_t slash = name.find('/');
  return slash == std::string::npos ? kNoHost
                                    : state.FindHost(name.substr(0, slash), name.substr(slash + 1));
}

grpc::Status NotFound(const std::string& what, const std::string& name) {
  return grpc::Status(grpc::StatusCode::NOT_FOUND,
                      absl::StrCat("there is no ", what, " \"", name, "\""));
}

}  // namespace

ClusterServiceImpl::ClusterServiceImpl(const ApiContext* context, const Door* door)
    : GuardedService(context->guard, door), context_(context) {
  Unary("ClusterService/GetCluster", &ClusterServiceImpl::GetCluster);
  Unary("ClusterService/ListClusters", &ClusterServiceImpl::ListClusters);
  Unary("ClusterService/GetHost", &ClusterServiceImpl::GetHost);
  Unary("ClusterService/ListHosts", &ClusterServiceImpl::ListHosts);
  Unary("ClusterService/Drain", &ClusterServiceImpl::Drain);
  Unary("ClusterService/Resume", &ClusterServiceImpl::Resume);
  Unary("ClusterService/ConfirmOff", &ClusterServiceImpl::ConfirmOff);
  Unary("ClusterService/ReleaseQuarantine", &ClusterServiceImpl::ReleaseQuarantine);
  Unary("ClusterService/GetTrainerSchema", &ClusterServiceImpl::GetTrainerSchema);
  Unary("ClusterService/GetLedger", &ClusterServiceImpl::GetLedger);
  Unary("ClusterService/Top", &ClusterServiceImpl::Top);
  Unary("ClusterService/Ping", &ClusterServiceImpl::Ping);
}

pb::Host ClusterServiceImpl::Describe(const Sight& sight, const View& view, HostId id) const {
  pb::Host host = DescribeHost(view.state, id);
  const HostRow& row = view.state.host(id);
  if (const int64_t heard_ns =
          context_->sessions->LastHeardNs(view.state.clusters()[row.cluster].name, row.name);
      heard_ns != 0) {
    host.set_last_heard_ns(heard_ns);
  }
  host.set_differs(row.inventory.differs());
  host.mutable_inventory()->clear_differs();
  host.mutable_inventory()->clear_trainer_schema_json();
  Mask(sight, &host);
  return host;
}

grpc::ServerUnaryReactor* ClusterServiceImpl::GetCluster(const Caller& caller,
                                                         grpc::CallbackServerContext* call,
                                                         const pb::GetClusterRequest* request,
                                                         pb::Cluster* response) {
  const std::shared_ptr<const View>& view = caller.view();
  const int32_t cluster = view->state.FindCluster(request->name());
  if (cluster < 0) return Reply(call, NotFound("cluster", request->name()));
  *response = DescribeCluster(view->state, cluster);
  return Reply(call, grpc::Status::OK);
}

grpc::ServerUnaryReactor* ClusterServiceImpl::ListClusters(const Caller& caller,
                                                           grpc::CallbackServerContext* call,
                                                           const pb::ListClustersRequest*,
                                                           pb::ListClustersResponse* response) {
  const std::shared_ptr<const View>& view = caller.view();
  for (size_t i = 0; i < view->state.clusters().size(); ++i)
    *response->add_clusters() = DescribeCluster(view->state, i);
  return Reply(call, grpc::Status::OK);
}

grpc::ServerUnaryReactor* ClusterServiceImpl::GetHost(const Caller& caller,
                                                      grpc::CallbackServerContext* call,
                                                      const pb::GetHostRequest* request,
                                                      pb::Host* response) {
  const std::shared_ptr<const View>& view = caller.view();
  const HostId id = FindHostByName(view->state, request->name());
  if (id == kNoHost) return Reply(call, NotFound("host (cluster/host)", request->name()));
  *response = Describe(Sight(view->state, caller.who()), *view, id);
  return Reply(call, grpc::Status::OK);
}

grpc::ServerUnaryReactor* ClusterServiceImpl::ListHosts(const Caller& caller,
                                                        grpc::CallbackServerContext* call,
                                                        const pb::ListHostsRequest* request,
                                                        pb::ListHostsResponse* response) {
  const std::shared_ptr<const View>& view = caller.view();
  const int32_t cluster = view->state.FindCluster(request->cluster());
  if (!request->cluster().empty() && cluster < 0)
    return Reply(call, NotFound("cluster", request->cluster()));
  const Sight sight(view->state, caller.who());
  for (const HostId id : view->state.hosts()) {
    if (request->cluster().empty() || view->state.host(id).cluster == cluster)
      *response->add_hosts() = Describe(sight, *view, id);
  }
  return Reply(call, grpc::Status::OK);
}

grpc::ServerUnaryReactor* ClusterServiceImpl::SetDrained(
    const Caller& caller, grpc::CallbackServerContext* call, const std::string& target,
    bool drained, const std::string& reason, google::protobuf::RepeatedField<uint64_t>* jobs) {
  if (reason.size() > 1000)
    return Reply(call,
                 BadRequest("the request is wrong", {{"reason", "longer than 1000 characters"}}));
  const std::shared_ptr<const View>& view = caller.view();
  if (view->state.FindCluster(target) < 0 && FindHostByName(view->state, target) == kNoHost) {
    return Reply(call, NotFound("cluster or host (cluster/host)", target));
  }
  if (jobs != nullptr) {
    for (const uint64_t job : JobsOn(view->state, target)) jobs->Add(job);
  }
  LogInfo(drained ? "drained" : "resumed",
          {{"target", target}, {"by", caller.user()}, {"reason", reason}});
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  caller.Change(
      [target, drained, reason](const State&) -> absl::StatusOr<std::vector<pb::Event>> {
        std::vector<pb::Event> events(1);
        events[0].mutable_drain_changed()->set_target(target);
        events[0].mutable_drain_changed()->set_drained(drained);
        events[0].mutable_drain_changed()->set_reason(reason);
        return events;
      },
      [reactor](absl::Status status) { reactor->Finish(ToGrpc(status)); });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterServiceImpl::Drain(const Caller& caller,
                                                    grpc::CallbackServerContext* call,
                                                    const pb::DrainRequest* request,
                                                    pb::DrainResponse* response) {
  return SetDrained(caller, call, request->target(), true, request->reason(),
                    response->mutable_jobs());
}

grpc::ServerUnaryReactor* ClusterServiceImpl::Resume(const Caller& caller,
                                                     grpc::CallbackServerContext* call,
                                                     const pb::ResumeRequest* request,
                                                     pb::ResumeResponse*) {
  return SetDrained(caller, call, request->target(), false, "", nullptr);
}

grpc::ServerUnaryReactor* ClusterServiceImpl::ConfirmOff(const Caller& caller,
                                                         grpc::CallbackServerContext* call,
                                                         const pb::ConfirmOffRequest* request,
                                                         pb::ConfirmOffResponse* response) {
  const std::string& name = request->host();
  const std::shared_ptr<const View>& view = caller.view();
  if (FindHostByName(view->state, name) == kNoHost)
    return Reply(call, NotFound("host (cluster/host)", name));
  for (const uint64_t job : JobsOn(view->state, name)) response->add_jobs(job);
  LogWarn("an operator says that a host is off", {{"host", name}, {"by", caller.user()}});
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  caller.Change(
      [name, by = caller.user()](const State& state) -> absl::StatusOr<std::vector<pb::Event>> {
        const HostId id = FindHostByName(state, name);
        if (id == kNoHost || state.host(id).state != pb::HOST_UNREACHABLE) {
          return absl::FailedPreconditionError(
              absl::StrCat(name, " can be reached, or could a lease ago: muster host drain ", name,
                           " empties it"));
        }
        std::vector<pb::Event> events(1);
        events[0].mutable_host_confirmed_off()->set_cluster(name.substr(0, name.find('/')));
        events[0].mutable_host_confirmed_off()->set_host(name.substr(name.find('/') + 1));
        events[0].mutable_host_confirmed_off()->set_by(by);
        return events;
      },
      [reactor](absl::Status status) { reactor->Finish(ToGrpc(status)); });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterServiceImpl::ReleaseQuarantine(
    const Caller& caller, grpc::CallbackServerContext* call,
    const pb::ReleaseQuarantineRequest* request, pb::ReleaseQuarantineResponse* response) {
  const std::string& name = request->host();
  const int32_t device = request->has_device() ? request->device() : -1;
  if (request->has_device() && device < 0)
    return Reply(call, BadRequest("the request is wrong", {{"device", "must not be negative"}}));
  const std::shared_ptr<const View>& view = caller.view();
  if (FindHostByName(view->state, name) == kNoHost)
    return Reply(call, NotFound("host (cluster/host)", name));
  LogWarn("an operator releases from quarantine",
          {{"host", name}, {"device", device}, {"by", caller.user()}});
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  caller.Change(
      [name, device, by = caller.user(),
       response](const State& state) -> absl::StatusOr<std::vector<pb::Event>> {
        const HostId id = FindHostByName(state, name);
        for (size_t i = 0; id != kNoHost && i < state.host(id).quarantines.size(); ++i) {
          const pb::Quarantine& row = state.host(id).quarantines[i];
          if (device < 0 || row.device() == device) *response->add_released() = row;
        }
        if (response->released_size() == 0) {
          const std::string what =
              device < 0 ? name : absl::StrCat("device ", device, " of ", name);
          return absl::FailedPreconditionError(
              absl::StrCat(what, " is not in quarantine: muster host show ", name));
        }
        std::vector<pb::Event> events(1);
        pb::QuarantineReleased& released = *events[0].mutable_quarantine_released();
        released.set_cluster(name.substr(0, name.find('/')));
        released.set_host(name.substr(name.find('/') + 1));
        released.set_device(device);
        released.set_by(by);
        return events;
      },
      [reactor](absl::Status status) { reactor->Finish(ToGrpc(status)); });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterServiceImpl::GetTrainerSchema(
    const Caller& caller, grpc::CallbackServerContext* call, const pb::GetTrainerSchemaRequest*,
    pb::GetTrainerSchemaResponse* response) {
  const std::shared_ptr<const View>& view = caller.view();
  for (const HostId id : view->state.hosts()) {
    const HostRow& host = view->state.host(id);
    if (host.inventory.trainer_schema_json().empty()) continue;
    response->set_json(host.inventory.trainer_schema_json());
    response->set_hash(host.inventory.trainer_schema_hash());
    if (host.state == pb::HOST_UP) break;  // rather one that is there now
  }
  return Reply(call, grpc::Status::OK);
}

grpc::ServerUnaryReactor* ClusterServiceImpl::GetLedger(const Caller& caller,
                                                        grpc::CallbackServerContext* call,
                                                        const pb::GetLedgerRequest* request,
                                                        pb::LedgerResponse* response) {
  const std::shared_ptr<const View>& view = caller.view();
  *response = DescribeLedger(view->state);
  const Sight sight(view->state, caller.who());
  const Sees sees = [&](const JobRow& job) { return sight.Sees(job); };
  for (pb::LedgerResponse::Row& row : LedgerRows(view->state, request->by(), sees))
    *response->add_rows() = std::move(row);
  Mask(sight, request->by(), response);
  const Stranded stranded = StrandedNow(view->state, *view->plan);
  response->mutable_fragmentation()->set_now_milli(stranded.milli);
  response->mutable_fragmentation()->set_now_tasks(stranded.tasks);
  return Reply(call, grpc::Status::OK);
}

grpc::ServerUnaryReactor* ClusterServiceImpl::Top(const Caller& caller,
                                                  grpc::CallbackServerContext* call,
                                                  const pb::TopRequest* request,
                                                  pb::TopResponse* response) {
  if (request->limit() < 0 || request->limit() > 1000)
    return Reply(call, BadRequest("the request is wrong", {{"limit", "must be 0..1000"}}));
  const std::shared_ptr<const View>& view = caller.view();
  const Sight sight(view->state, caller.who());
  *response = DescribeTop(view->state, *view->plan, *request,
                          std::max(view->now_ns, context_->clock->WallNs()),
                          [&](const JobRow& job) { return sight.Sees(job); });
  Mask(sight, request->by(), response);
  return Reply(call, grpc::Status::OK);
}

grpc::ServerUnaryReactor* ClusterServiceImpl::Ping(const Caller& caller,
                                                   grpc::CallbackServerContext* call,
                                                   const pb::PingRequest*,
                                                   pb::PingResponse* response) {
  response->set_version(context_->version);
  response->set_epoch(context_->epoch);
  response->set_store_id(context_->store_id);
  response->set_single_user(context_->single_user);
  response->set_user(caller.user());
  response->set_why_not(WhyNoSubmissions(*context_));
  response->set_accepts_submissions(response->why_not().empty());
  const EngineStats stats = context_->engine->Stats();
  pb::StepStats* steps = response->mutable_steps();
  steps->set_steps(stats.step.count());
  steps->set_events(stats.events);
  steps->set_step_ns_p50(stats.step.PerMilleNs(500));
  steps->set_step_ns_p99(stats.step.PerMilleNs(990));
  steps->set_decide_ns_p50(stats.decide.PerMilleNs(500));
  steps->set_decide_ns_p99(stats.decide.PerMilleNs(990));
  steps->set_commit_ns_p50(stats.commit.PerMilleNs(500));
  steps->set_commit_ns_p99(stats.commit.PerMilleNs(990));
  steps->set_commit_ns_longest(stats.commit.longest_ns());
  steps->set_most_queued(stats.most_queued);
  steps->set_refused_plans(stats.refused_plans);
  return Reply(call, grpc::Status::OK);
}

}  // namespace muster
