#include "scheduler/api/agent_service.h"

#include <algorithm>

#include "common/base/log.h"
#include "scheduler/api/errors.h"
#include "scheduler/api/queued_writer.h"
#include "scheduler/api/services.h"
#include "scheduler/store/packs.h"

namespace muster {
namespace {

constexpr size_t kMaxBacklog =
    100'000;  // messages an agent may leave unread before its stream is ended

using Bidi = grpc::ServerBidiReactor<pb::AgentMessage, pb::SchedulerMessage>;

class Stream;

// What Sessions holds: it outlives the call.
class StreamHandle : public AgentStream {
 public:
  explicit StreamHandle(std::weak_ptr<Stream> stream) : stream_(std::move(stream)) {}
  void Send(const pb::SchedulerMessage& message) override;
  void End(const absl::Status& status) override;

 private:
  const std::weak_ptr<Stream> stream_;
};

class Stream : public QueuedWriter<Bidi, pb::SchedulerMessage>,
               public std::enable_shared_from_this<Stream> {
 public:
  // `cluster` and `host` of its certificate; empty: it may speak for any.
  Stream(Sessions* sessions, std::string cluster, std::string host,
         std::function<void(size_t)> explain)
      : sessions_(sessions),
        cluster_(std::move(cluster)),
        host_(std::move(host)),
        explain_(std::move(explain)) {}

  void Begin() {
    KeepAlive(shared_from_this());
    handle_ = std::make_shared<StreamHandle>(weak_from_this());
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Gone();
      Finally(grpc::Status::OK);
      return;
    }
    if (explain_) explain_(incoming_.ByteSizeLong());
    if (const pb::Hello& hello = incoming_.hello();
        incoming_.has_hello() && !host_.empty() &&
        (hello.cluster() != cluster_ || hello.host() != host_)) {
      LogWarn("agent stream ended: another host's certificate",
              {{"certificate", cluster_ + "/" + host_},
               {"hello", hello.cluster() + "/" + hello.host()}});
      Gone();
      Finally(grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                           "the certificate is of host " + cluster_ + "/" + host_ +
                               ": its agent may speak for no other"));
      return;
    }
    if (absl::Status status = sessions_->Receive(handle_, incoming_); !status.ok()) {
      LogWarn("agent stream ended: malformed message", {{"error", std::string(status.message())}});
      Gone();
      Finally(ToGrpc(status));
      return;
    }
    incoming_.Clear();
    StartRead(&incoming_);
  }

 protected:
  void Gone() override { sessions_->Closed(handle_.get()); }

 private:
  Sessions* const sessions_;
  const std::string cluster_, host_;
  const std::function<void(size_t)> explain_;
  std::shared_ptr<StreamHandle> handle_;
  pb::AgentMessage incoming_;
};

void StreamHandle::Send(const pb::SchedulerMessage& message) {
  const std::shared_ptr<Stream> stream = stream_.lock();
  if (stream == nullptr) return;
  if (stream->backlog() > kMaxBacklog) {
    stream->Finally(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the agent does not read"));
    return;
  }
  stream->Push(message);
}

void StreamHandle::End(const absl::Status& status) {
  if (const std::shared_ptr<Stream> stream = stream_.lock(); stream != nullptr)
    stream->Finally(ToGrpc(status));
}

}  // namespace

AgentServiceImpl::AgentServiceImpl(const ApiContext* context, const Door* door)
    : GuardedService(context->guard, door), context_(context) {
  BidiStream("AgentService/Connect", &AgentServiceImpl::Connect);
  Unary("AgentService/ReadPack", &AgentServiceImpl::ReadPack);
}

Bidi* AgentServiceImpl::Connect(const Caller& caller, grpc::CallbackServerContext* call) {
  const auto stream = std::make_shared<Stream>(context_->sessions, caller.who().cluster,
                                               caller.who().host, door()->Explainer(*call));
  stream->Begin();
  return stream.get();
}

// A host's certificate reads what is placed on that host, and nothing else.
grpc::ServerUnaryReactor* AgentServiceImpl::ReadPack(const Caller& caller,
                                                     grpc::CallbackServerContext* call,
                                                     const pb::ReadPackRequest* request,
                                                     pb::ReadPackResponse* response) {
  const State& state = caller.view()->state;
  const Principal& who = caller.who();
  const JobRow* job = nullptr;
  int32_t task = 0;
  const AttemptRow* attempt = state.FindAttempt(request->key(), &job, &task);
  const HostId host = who.host.empty() ? kNoHost : state.FindHost(who.cluster, who.host);
  const bool here =
      attempt != nullptr &&
      (who.host.empty() || std::any_of(attempt->parts.begin(), attempt->parts.end(),
                                       [&](const PartRow& part) { return part.host == host; }));
  if (!here || context_->packs == nullptr) {
    return Reply(call, grpc::Status(grpc::StatusCode::NOT_FOUND,
                                    "no attempt of this host's has such a packed directory"));
  }
  absl::StatusOr<PackStore::Piece> piece =
      context_->packs->Read(job->owner, job->task_spec(task).workdir_digest(), request->offset());
  if (piece.ok()) {
    response->set_data(std::move(piece->data));
    response->set_size_bytes(piece->size);
  }
  return Reply(call, ToGrpc(piece.status()));
}

}  // namespace muster
