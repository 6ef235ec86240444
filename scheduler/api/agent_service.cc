#include "scheduler/api/agent_service.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/base/secret_use.h"
#include "scheduler/api/errors.h"
#include "scheduler/api/queued_writer.h"
#include "scheduler/api/services.h"
#include "scheduler/api/tunnel_stream.h"
#include "scheduler/store/packs.h"
#include "scheduler/store/secrets.h"

namespace muster {
namespace {

constexpr size_t kMaxBacklog =
    100'000;  // messages an agent may leave unread before its stream is ended

using Bidi = grpc::ServerBidiReactor<pb::AgentMessage, pb::SchedulerMessage>;

class Stream;

// What Sessions holds: it outlives the call.
class StreamHandle : public AgentStream {
 public:
  StreamHandle(std::weak_ptr<Stream> stream, Principal who)
      : stream_(std::move(stream)), who_(std::move(who)) {}
  void Send(const pb::SchedulerMessage& message) override;
  void End(const absl::Status& status) override;
  bool trusted() const override { return who_.trusted; }
  std::string only_user() const override { return who_.only_user; }
  bool bounded() const override { return !who_.host.empty(); }

 private:
  const std::weak_ptr<Stream> stream_;
  const Principal who_;
};

class Stream : public QueuedWriter<Bidi, pb::SchedulerMessage>,
               public std::enable_shared_from_this<Stream> {
 public:
  // `who`: by its certificate's host; none: it may speak for any.
  Stream(Sessions* sessions, Principal who, std::function<void(size_t)> explain)
      : sessions_(sessions), who_(std::move(who)), explain_(std::move(explain)) {}

  void Begin() {
    KeepAlive(shared_from_this());
    handle_ = std::make_shared<StreamHandle>(weak_from_this(), who_);
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
        incoming_.has_hello() && !who_.host.empty() &&
        (hello.cluster() != who_.cluster || hello.host() != who_.host)) {
      LogWarn("agent stream ended: another host's certificate",
              {{"certificate", who_.cluster + "/" + who_.host},
               {"hello", hello.cluster() + "/" + hello.host()}});
      Gone();
      Finally(grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                           "the certificate is of host " + who_.cluster + "/" + who_.host +
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
    ReadOn();
  }

 protected:
  void Gone() override { sessions_->Closed(handle_.get()); }

 private:
  // Later, if its host has said too much. What it says meanwhile stays on its side, by gRPC's flow
  // control; nobody else waits.
  void ReadOn() {
    const int64_t rest_ns = handle_->bounded() ? sessions_->RestNs(handle_.get()) : 0;
    if (rest_ns == 0) {
      StartRead(&incoming_);
      return;
    }
    if (!Hold()) return;
    // A new one each time: the one before may be calling this.
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(std::chrono::system_clock::now() + std::chrono::nanoseconds(rest_ns),
                [stream = weak_from_this()](bool) {
                  const std::shared_ptr<Stream> alive = stream.lock();
                  if (alive == nullptr) return;
                  alive->StartRead(&alive->incoming_);
                  alive->Release();
                });
  }

  Sessions* const sessions_;
  const Principal who_;
  const std::function<void(size_t)> explain_;
  std::shared_ptr<StreamHandle> handle_;
  pb::AgentMessage incoming_;
  std::unique_ptr<grpc::Alarm> alarm_;  // of a rest
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
  BidiStream("AgentService/Carry", &AgentServiceImpl::Carry);
  Unary("AgentService/ReadPack", &AgentServiceImpl::ReadPack);
  Unary("AgentService/ReadSecrets", &AgentServiceImpl::ReadSecrets);
}

Bidi* AgentServiceImpl::Connect(const Caller& caller, grpc::CallbackServerContext* call) {
  const auto stream =
      std::make_shared<Stream>(context_->sessions, caller.who(), door()->Explainer(*call));
  stream->Begin();
  return stream.get();
}

grpc::ServerBidiReactor<pb::TunnelOutput, pb::TunnelInput>* AgentServiceImpl::Carry(
    const Caller& caller, grpc::CallbackServerContext* call) {
  const auto stream =
      std::make_shared<HostTunnel>(context_->sessions->tunnels(), caller.who().cluster,
                                   caller.who().host, door()->Explainer(*call));
  stream->Begin();
  return stream.get();
}

namespace {

// The attempt, if it is placed on the caller's host; null: it isn't. A host's certificate asks for
// its own host, others for all. One that is for a user's jobs alone asks for those, also where the
// host's cluster is another user's by now, whose agent has the same name.
const AttemptRow* AttemptHere(const State& state, const Principal& who, const pb::AttemptKey& key,
                              const JobRow** job, int32_t* task) {
  const AttemptRow* attempt = state.FindAttempt(key, job, task);
  if (attempt == nullptr || who.host.empty()) return attempt;
  if (!who.only_user.empty() && (*job)->owner != who.only_user) return nullptr;
  const HostId host = state.FindHost(who.cluster, who.host);
  const bool here = std::any_of(attempt->parts.begin(), attempt->parts.end(),
                                [&](const PartRow& part) { return part.host == host; });
  return here ? attempt : nullptr;
}

// What may still start.
bool AboutToStart(const AttemptRow& attempt) {
  return attempt.state == pb::TASK_PREPARING || attempt.state == pb::TASK_STARTING;
}

}  // namespace

namespace {

// INVALID_ARGUMENT ends the task: only its owner can mend it. UNAVAILABLE: the agent asks again.
absl::Status WhyNoSecret(const std::string& name, const std::string& owner,
                         const absl::Status& read) {
  if (absl::IsNotFound(read)) {
    return absl::InvalidArgumentError(
        absl::StrCat("secret ", name, ": ", owner,
                     " has none of that name any more; set it again, and submit the job anew"));
  }
  LogError("a secret can't be read",
           {{"owner", owner}, {"name", name}, {"why", std::string(read.message())}});
  if (absl::IsDataLoss(read)) {
    return absl::InvalidArgumentError(
        absl::StrCat("secret ", name, " of ", owner,
                     " is damaged where musterd keeps it; set it again, and submit the job anew"));
  }
  return absl::UnavailableError(absl::StrCat("secret ", name, " can't be read now"));
}

}  // namespace

grpc::ServerUnaryReactor* AgentServiceImpl::ReadPack(const Caller& caller,
                                                     grpc::CallbackServerContext* call,
                                                     const pb::ReadPackRequest* request,
                                                     pb::ReadPackResponse* response) {
  const JobRow* job = nullptr;
  int32_t task = 0;
  if (AttemptHere(caller.view()->state, caller.who(), request->key(), &job, &task) == nullptr ||
      context_->packs == nullptr) {
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

grpc::ServerUnaryReactor* AgentServiceImpl::ReadSecrets(const Caller& caller,
                                                        grpc::CallbackServerContext* call,
                                                        const pb::ReadSecretsRequest* request,
                                                        pb::ReadSecretsResponse* response) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  // On the engine's thread: against the State as it is. Answered once the audit's record of it is
  // on disk.
  caller.Change(
      [this, caller, request,
       response](const State& state) -> absl::StatusOr<std::vector<pb::Event>> {
        const JobRow* job = nullptr;
        int32_t task = 0;
        const AttemptRow* attempt = AttemptHere(state, caller.who(), request->key(), &job, &task);
        if (attempt == nullptr || !AboutToStart(*attempt) || context_->secrets == nullptr)
          return absl::NotFoundError("no attempt that starts on this host is of that name");
        caller.Note(absl::StrCat("for job ", job->number, " of ", job->owner, ": ",
                                 absl::StrJoin(job->spec->secrets(), ", ")));
        for (const std::string& text : job->spec->secrets()) {
          const SecretUse use = ReadSecretUse(text);
          absl::StatusOr<std::string> value = context_->secrets->Read(job->owner, use.name);
          if (!value.ok()) return WhyNoSecret(use.name, job->owner, value.status());
          pb::ReadSecretsResponse::Secret* secret = response->add_secrets();
          secret->set_variable(use.variable);
          secret->set_value(*std::move(value));
        }
        return std::vector<pb::Event>();
      },
      [reactor, response](absl::Status status) {
        if (!status.ok()) response->Clear();
        reactor->Finish(ToGrpc(status));
      },
      Caller::kOnceOnDisk);
  return reactor;
}

}  // namespace muster
