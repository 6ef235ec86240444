#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "scheduler/api/errors.h"
#include "scheduler/api/mask.h"
#include "scheduler/api/outlook.h"
#include "scheduler/api/services.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/taken.h"

namespace muster {
namespace {

constexpr int64_t kDryRunBudgetNs = 5 * kSecond;  // to its turn; then it is one decision

struct Applied {
  QueueResolution resolution;
  uint64_t version = 0;
};

// What applying the request to `state` gives; an error, or problems, or the tree to store and its
// version. What `who` may not see stays as it is.
absl::Status Resolve(const State& state, const Principal& who,
                     const pb::ApplyQueuesRequest& request, Applied* applied) {
  if (request.if_version() != 0 && request.if_version() != state.queue_version()) {
    return absl::AbortedError(absl::StrCat("the queues changed meanwhile: version ",
                                           state.queue_version(), ", not ", request.if_version(),
                                           ". Look at them again: muster queue list"));
  }
  applied->resolution = ResolveQueues(state, WithUnseen(Sight(state, who), request.tree()));
  if (!applied->resolution.ok()) return absl::InvalidArgumentError("the queues were not changed");
  applied->version = state.queue_version() +
                     (applied->resolution.changes.empty() && state.queue_version() > 0 ? 0 : 1);
  return absl::OkStatus();
}

grpc::Status Answer(const absl::Status& status, const Applied& applied,
                    pb::ApplyQueuesResponse* response) {
  if (!applied.resolution.ok()) {
    return BadRequest(
        absl::StrCat("the tree has ", applied.resolution.problems.size(), " problem",
                     applied.resolution.problems.size() == 1 ? "" : "s", ", nothing was changed"),
        applied.resolution.problems);
  }
  if (!status.ok()) return ToGrpc(status);
  response->set_version(applied.version);
  for (const std::string& change : applied.resolution.changes) response->add_changes(change);
  return grpc::Status::OK;
}

}  // namespace

QueueServiceImpl::QueueServiceImpl(const ApiContext* context, const Door* door)
    : GuardedService(context->guard, door), context_(context) {
  Unary("QueueService/Apply", &QueueServiceImpl::Apply);
  Unary("QueueService/Get", &QueueServiceImpl::Get);
  Unary("QueueService/List", &QueueServiceImpl::List);
}

grpc::ServerUnaryReactor* QueueServiceImpl::Apply(const Caller& caller,
                                                  grpc::CallbackServerContext* call,
                                                  const pb::ApplyQueuesRequest* request,
                                                  pb::ApplyQueuesResponse* response) {
  if (grpc::Status status = CheckSize(*request); !status.ok()) return Reply(call, status);
  const auto applied = std::make_shared<Applied>();
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  if (request->dry_run()) {
    const Spent spent =
        SpentOf(context_->clock, kDryRunBudgetNs, [call] { return call->IsCancelled(); });
    const bool asked =
        context_->outlook->AskBriefly([this, caller, reactor, request, response, applied, spent] {
          if (spent(100)) {
            reactor->Finish(BusyForNow());
            return;
          }
          const std::shared_ptr<const View> view = context_->engine->Snapshot();
          const absl::Status status = Resolve(view->state, caller.who(), *request, applied.get());
          if (status.ok() && !applied->resolution.changes.empty()) {
            const int64_t now_ns = std::max(view->now_ns, context_->clock->WallNs());
            for (pb::PreviewResponse::Taken& taken : Evictions(
                     view->state, applied->resolution.resolved, now_ns, context_->scheduling)) {
              *response->add_evicted() = std::move(taken);
            }
            Mask(Sight(view->state, caller.who()), response);
          }
          reactor->Finish(Answer(status, *applied, response));
        });
    if (!asked) reactor->Finish(BusyForNow());
    return reactor;
  }
  caller.Change(
      [applied, caller, request](const State& state) -> absl::StatusOr<std::vector<pb::Event>> {
        if (absl::Status status = Resolve(state, caller.who(), *request, applied.get());
            !status.ok())
          return status;
        if (applied->version == state.queue_version()) return std::vector<pb::Event>();
        std::vector<pb::Event> events(1);
        *events[0].mutable_queues_applied()->mutable_tree() = applied->resolution.resolved;
        events[0].mutable_queues_applied()->set_version(applied->version);
        events[0].mutable_queues_applied()->set_by(caller.user());
        caller.Note(absl::StrJoin(applied->resolution.changes, "; "));
        return events;
      },
      [applied, reactor, response, by = caller.user()](absl::Status status) {
        if (status.ok()) LogInfo("queues applied", {{"version", applied->version}, {"by", by}});
        reactor->Finish(Answer(status, *applied, response));
      });
  return reactor;
}

grpc::ServerUnaryReactor* QueueServiceImpl::Get(const Caller& caller,
                                                grpc::CallbackServerContext* call,
                                                const pb::GetQueueRequest* request,
                                                pb::Queue* response) {
  const View& view = *caller.view();
  absl::StatusOr<pb::Queue> queue = DescribeQueue(view.state, *view.plan, request->path());
  if (!queue.ok()) return Reply(call, ToGrpc(queue.status()));
  *response = *std::move(queue);
  return Reply(call, grpc::Status::OK);
}

// Those above a queue that the caller sees are there by name only.
grpc::ServerUnaryReactor* QueueServiceImpl::List(const Caller& caller,
                                                 grpc::CallbackServerContext* call,
                                                 const pb::ListQueuesRequest*,
                                                 pb::ListQueuesResponse* response) {
  const View& view = *caller.view();
  const Sight sight(view.state, caller.who());
  for (pb::Queue& queue : DescribeQueues(view.state, *view.plan)) {
    if (sight.Sees(queue.path())) {
      *response->add_queues() = std::move(queue);
    } else if (sight.Knows(queue.path())) {
      pb::Queue* named = response->add_queues();
      named->set_path(queue.path());
      named->mutable_spec()->set_name(queue.spec().name());
    }
  }
  response->set_version(view.state.queue_version());
  return Reply(call, grpc::Status::OK);
}

}  // namespace muster
