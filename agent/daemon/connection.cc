#include "agent/daemon/connection.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "agent/daemon/join.h"
#include "agent/reconcile/retry.h"
#include "common/base/clock.h"
#include "network/client.h"

namespace muster::agent {
namespace {

constexpr size_t kScheme = 7;  // "unix://"
constexpr std::chrono::seconds kFinishTime(1);

}  // namespace

Connection::Connection(std::string server, Trust trust, Identify identify,
                       std::function<void(Incoming)> post)
    : server_(std::move(server)),
      trust_(trust),
      identify_(std::move(identify)),
      post_(std::move(post)),
      thread_([this] { Run(); }) {}

Connection::~Connection() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
    changed_.notify_all();
  }
  thread_.join();
}

void Connection::Send(uint64_t generation, v1::AgentMessage message) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!open_ || generation != generation_) return;
  queued_bytes_ += static_cast<size_t>(outbox_.Put(std::move(message)));  // it may shrink
  changed_.notify_all();
}

void Connection::Restart(const std::string& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (context_ == nullptr) return;
  restarted_because_ = why;
  context_->TryCancel();
}

std::string Connection::WhyNotServed() const {
  return identify_ != nullptr ? muster::WhyNotServed(*identify_())
                              : WhyNotServedLocally(server_.substr(kScheme), trust_);
}

void Connection::Run() {
  Retry retry(RealClock()->MonotonicNs());
  while (true) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
      spoke_ = refused_ = false;
    }
    const std::string problem = WhyNotServed();
    if (problem.empty()) {
      RunStream();
    } else {
      Incoming closed;
      closed.kind = Incoming::Kind::kClosed;
      closed.reason = problem;
      post_(std::move(closed));
    }
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(
        lock, std::chrono::nanoseconds(retry.After(RealClock()->MonotonicNs(), spoke_, refused_)),
        [this] { return stopping_; });
  }
}

std::shared_ptr<grpc::Channel> Connection::Dial() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL,
                   1);  // a fresh one each time, without the old one's back-off
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(4 << 20);
  if (identify_ != nullptr) return DialWith(*identify_(), arguments);
  return grpc::CreateCustomChannel(absl::StrCat("unix:", server_.substr(kScheme)),
                                   grpc::InsecureChannelCredentials(), arguments);
}

void Connection::RunStream() {
  const auto channel = Dial();
  const auto stub = v1::AgentService::NewStub(channel);
  grpc::ClientContext context;
  const auto stream = stub->Connect(&context);
  uint64_t generation = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    generation = ++generation_;
    open_ = true;
    context_ = &context;
    restarted_because_.clear();
    outbox_.Clear();
    queued_bytes_ = 0;
    if (stopping_) context.TryCancel();
  }
  Incoming opened;
  opened.generation = generation;
  post_(std::move(opened));
  std::thread writer([&] { Write(stream.get()); });
  Incoming incoming;
  while (stream->Read(&incoming.message)) {
    incoming.kind = Incoming::Kind::kMessage;
    incoming.generation = generation;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      (incoming.message.has_refused() ? refused_ : spoke_) = true;
    }
    post_(std::move(incoming));
    incoming = Incoming();
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = false;
    changed_.notify_all();
  }
  const grpc::Status status = Finish(stream.get(), &writer, &context);
  Incoming closed;
  closed.kind = Incoming::Kind::kClosed;
  closed.generation = generation;
  closed.reason = InWords(status);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    context_ = nullptr;
    if (!restarted_because_.empty()) {
      closed.reason = restarted_because_;
      closed.ours = true;
    }
  }
  post_(std::move(closed));
}

// How the other end ended the stream. Cancelled at once, it would say nothing but that; yet a
// writer may wait for room, or the status not come.
grpc::Status Connection::Finish(
    grpc::ClientReaderWriter<v1::AgentMessage, v1::SchedulerMessage>* stream, std::thread* writer,
    grpc::ClientContext* context) {
  bool finished = false;  // guarded by mutex_
  std::thread patience([&] {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(lock, kFinishTime, [&] { return finished || stopping_; }) || stopping_)
      context->TryCancel();
  });
  writer->join();
  const grpc::Status status = stream->Finish();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    finished = true;
    changed_.notify_all();
  }
  patience.join();
  return status;
}

std::string Connection::InWords(const grpc::Status& status) const {
  if (status.ok()) return "the scheduler ended the stream";
  if (identify_ == nullptr) return status.error_message();
  const std::shared_ptr<const Identity> identity = identify_();
  const std::string said = WhyNotTaken(*identity, status.error_message());
  const bool refused = status.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
                       EndedBeforeAnyCall(status.error_message());
  return refused ? WithRemedy(*identity, said) : said;
}

void Connection::Write(grpc::ClientReaderWriter<v1::AgentMessage, v1::SchedulerMessage>* stream) {
  while (true) {
    v1::AgentMessage message;
    grpc::WriteOptions options;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !open_ || stopping_ || !outbox_.empty(); });
      if (!open_ || stopping_) return;
      message = outbox_.Take();
      if (!outbox_.empty()) options.set_buffer_hint();  // what follows takes it along
    }
    const size_t bytes = message.ByteSizeLong();
    const bool written = stream->Write(message, options);
    queued_bytes_ -= std::min<size_t>(bytes, queued_bytes_);
    if (!written) return;
  }
}

}  // namespace muster::agent
