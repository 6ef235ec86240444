#include "scheduler/api/tunnel_stream.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "scheduler/api/errors.h"
#include "scheduler/api/services.h"

namespace muster {
namespace {

constexpr size_t kMostBytes = 64 << 10;  // of a message's data
constexpr int64_t kFirstWaitNs = 10 * kSecond, kJoinWaitNs = 10 * kSecond;
constexpr int64_t kAskAgainNs = 100 * kMillisecond;
constexpr int kAsked = 20;  // times
constexpr char kNoTunnel[] = "NO_TUNNEL";
constexpr char kAgentLost[] =
    "the connection to its muster-agent was lost: it was started anew, or the network failed";

std::chrono::system_clock::time_point After(int64_t wait_ns) {
  return std::chrono::system_clock::now() + std::chrono::nanoseconds(wait_ns);
}

}  // namespace

// ---- the user's end ----

void UserTunnel::Begin() {
  KeepAlive(shared_from_this());
  EndAfter(&first_late_, kFirstWaitNs, "nothing was said of what to begin");
  ReadNext();
}

void UserTunnel::EndAfter(grpc::Alarm* alarm, int64_t wait_ns, const std::string& why) {
  alarm->Set(After(wait_ns), [self = weak_from_this(), why](bool passed) {
    if (const auto alive = self.lock(); passed && alive != nullptr)
      alive->End(NotNow(why, kNoTunnel));
  });
}

void UserTunnel::Close(const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return End(ToGrpc(status));
  End(NotNow(absl::StrCat("host ", place_->cluster, "/", place_->host, ": ", status.message()),
             kNoTunnel));
}

void UserTunnel::OnReadDone(bool ok) {
  if (!started_) {
    started_ = true;
    first_late_.Cancel();
    if (!ok) return End(grpc::Status::CANCELLED);
    first_.Swap(&incoming_);
    return Start();
  }
  pb::TunnelInput message;
  message.Swap(&incoming_);
  if (!ok) {
    input_over_ = true;
    message.set_end(true);
  }
  if (explain_ && ok) explain_(message.ByteSizeLong());
  if (message.has_exec() || message.has_forward() || message.data().size() > kMostBytes ||
      message.body_case() == pb::TunnelInput::BODY_NOT_SET) {
    return End(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                            "no message that goes on with a tunnel, or a longer one than 64 KiB"));
  }
  if (const auto to = host(); to != nullptr && !Over()) to->Pass(std::move(message));
}

void UserTunnel::Start() {
  absl::StatusOr<Caller> caller = admit_(first_);
  if (!caller.ok()) return End(RefusalOf(caller.status()));
  caller_ = *std::move(caller);
  who_ = caller_->principal();
  if (absl::Status status = CheckTunnelStart(first_, command_); !status.ok())
    return End(ToGrpc(status));
  // On the engine's thread: the right, the attempt, and the audit's record are of one State.
  caller_->Change(
      [self = shared_from_this(), this, number = caller_->job()->number](
          const State& state) -> absl::StatusOr<std::vector<pb::Event>> {
        caller_->Note(TunnelNote(first_));
        absl::Status status = CheckTunnelUser(state, number, *who_, context_->operators_exec);
        if (status.ok()) status = FindTunnelPlace(state, number, first_, place_.get());
        if (!status.ok()) return status;
        return std::vector<pb::Event>();
      },
      [self = shared_from_this(), this](absl::Status status) {
        Placed(status);
        caller_.reset();  // it holds a whole State
      });
}

// On the engine's thread.
void UserTunnel::Placed(const absl::Status& status) {
  if (status.ok()) return Open();
  std::string why(status.message());
  if (place_->waits) {
    const std::shared_ptr<const View> view = context_->engine->Snapshot();
    if (const JobRow* row = view->state.FindJob(place_->job); row != nullptr) {
      const pb::Job job = TellJob(*context_, Sight(view->state, caller_->who()), *view, *row);
      for (const pb::Task& task : job.tasks()) {
        if (!task.verdict().text().empty()) absl::StrAppend(&why, ": ", task.verdict().text());
      }
    }
    absl::StrAppend(&why, ". See: muster explain ", place_->id);
  }
  End(ToGrpc(absl::Status(status.code(), why)));
}

void UserTunnel::Open() {
  absl::StatusOr<std::string> name =
      context_->sessions->tunnels()->Add({place_->job, command_, place_->cluster, place_->host},
                                         std::weak_ptr<TunnelUserEnd>(shared_from_this()));
  if (!name.ok()) return End(ToGrpc(name.status()));
  bool gone = false;
  {
    std::lock_guard lock(mutex_);
    gone = gone_;
    name_ = *name;
  }
  if (gone) return Gone();
  const std::string where = absl::StrCat("host ", place_->cluster, "/", place_->host);
  EndAfter(&join_late_, kJoinWaitNs, where + " doesn't answer; try again in a moment");
  place_->open.set_tunnel(*name);
  AskHost(kAsked);
  const uint64_t watch =
      hub_->Add(caller_->job(), [self = weak_from_this()](const WatchHub::News& news) {
        if (const auto alive = self.lock(); alive != nullptr) alive->Look(news.view, news.job);
      });
  {
    std::lock_guard lock(mutex_);
    gone = gone_;
    if (!gone) watch_ = watch;
  }
  if (gone) hub_->Remove(watch);
}

// An agent that connects anew, as its inventory changed, is back in a moment.
void UserTunnel::AskHost(int times) {
  {
    std::lock_guard lock(mutex_);
    if (gone_) return;
  }
  if (context_->sessions->OpenTunnel(place_->cluster, place_->host, place_->open)) return;
  if (times == 1) {
    return End(NotNow(absl::StrCat("host ", place_->cluster, "/", place_->host,
                                   " is not connected now; try again once it is"),
                      kNoTunnel));
  }
  asks_.emplace_back().Set(After(kAskAgainNs), [self = weak_from_this(), times](bool passed) {
    if (const auto alive = self.lock(); passed && alive != nullptr) alive->AskHost(times - 1);
  });
}

// The hub's thread: the job, or who may do what, has changed.
void UserTunnel::Look(const View& view, const JobRow* job) {
  if (job == nullptr)
    return EndNow(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "the job has ended"));
  if (!Sight(view.state, *who_).May(pb::RIGHT_OPERATE, *job)) {
    return EndNow(grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                               "you may not do this with the job any more"));
  }
  const pb::AttemptKey& key = place_->open.key();
  const int32_t task = TaskIndex(*job->spec, key.task());
  if (task < 0) return;
  for (const AttemptRow& attempt : job->tasks[task].attempts) {
    if (attempt.number == key.attempt() && attempt.ended())
      EndNow(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "the attempt has ended"));
  }
}

// A user who reads nothing holds up what is to be written last, and with it the call's end.
void UserTunnel::EndNow(const grpc::Status& status) {
  End(status);
  Gone();
}

std::shared_ptr<TunnelHostEnd> UserTunnel::host() const {
  std::lock_guard lock(mutex_);
  return host_.lock();
}

void UserTunnel::Joined(std::shared_ptr<TunnelHostEnd> host) {
  join_late_.Cancel();
  bool gone = false;
  {
    std::lock_guard lock(mutex_);
    host_ = host;
    gone = gone_;
  }
  if (gone) return host->Close(absl::CancelledError("its user is gone"));
  ReadNext();
}

void UserTunnel::Written() {
  if (const auto from = host(); from != nullptr) from->ReadOn();
}

void UserTunnel::Gone() {
  MarkOver();
  std::shared_ptr<TunnelHostEnd> to;
  uint64_t watch = 0;
  std::string name;
  {
    std::lock_guard lock(mutex_);
    gone_ = true;
    to = host_.lock();
    std::swap(watch, watch_);
    std::swap(name, name_);
  }
  first_late_.Cancel();
  join_late_.Cancel();
  if (watch != 0) hub_->Remove(watch);
  if (!name.empty()) context_->sessions->tunnels()->Remove(name);
  if (to != nullptr) to->Close(absl::CancelledError("its user is gone"));
}

// ---- the host's end ----

void HostTunnel::Begin() {
  KeepAlive(shared_from_this());
  late_.Set(After(kFirstWaitNs), [self = weak_from_this()](bool passed) {
    if (const auto alive = self.lock(); passed && alive != nullptr)
      alive->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "no tunnel was joined"));
  });
  ReadNext();
}

std::shared_ptr<TunnelUserEnd> HostTunnel::user() const {
  std::lock_guard lock(mutex_);
  return user_.lock();
}

void HostTunnel::OnReadDone(bool ok) {
  const std::shared_ptr<TunnelUserEnd> to = user();
  if (!ok) {
    if (to != nullptr) {
      to->Close(absl::UnavailableError(kAgentLost));
    }
    return End(grpc::Status::OK);
  }
  if (explain_) explain_(incoming_.ByteSizeLong());
  if (!joined_) return Join();
  pb::TunnelOutput message;
  message.Swap(&incoming_);
  if (message.has_join() || message.body_case() == pb::TunnelOutput::BODY_NOT_SET ||
      message.out().size() > kMostBytes || message.err().size() > kMostBytes) {
    if (to != nullptr) to->Close(absl::InternalError("the host's muster-agent made no sense"));
    return End(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                            "no message that goes on with a tunnel, or a longer one than 64 KiB"));
  }
  if (to == nullptr) return End(grpc::Status(grpc::StatusCode::CANCELLED, "its user is gone"));
  const bool last = message.has_end();
  to->Pass(std::move(message));
  if (!last) return;
  to->Close(absl::OkStatus());
  End(grpc::Status::OK);
}

void HostTunnel::Join() {
  late_.Cancel();
  const std::shared_ptr<TunnelUserEnd> to =
      incoming_.has_join() ? tunnels_->Join(incoming_.join(), cluster_, host_) : nullptr;
  if (to == nullptr) {
    return End(
        grpc::Status(grpc::StatusCode::NOT_FOUND, "no tunnel of that name waits for this host"));
  }
  {
    std::lock_guard lock(mutex_);
    joined_ = true;
    user_ = to;
  }
  to->Joined(shared_from_this());
  ReadNext();
}

void HostTunnel::Written() {
  if (const auto from = user(); from != nullptr) from->ReadOn();
}

void HostTunnel::Gone() {
  MarkOver();
  late_.Cancel();
  if (const auto to = user(); to != nullptr) {
    to->Close(absl::UnavailableError(kAgentLost));
  }
}

}  // namespace muster
