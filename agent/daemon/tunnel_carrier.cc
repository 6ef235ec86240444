#include "agent/daemon/tunnel_carrier.h"

#include <grpcpp/grpcpp.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <system_error>
#include <thread>
#include <utility>

#include "agent/daemon/tunnel.h"
#include "common/base/log.h"
#include "muster/v1/agent_service.grpc.pb.h"

namespace muster::agent {
namespace {

// A command that reads no more is told by EPIPE.
void BlockPipeSignal() {
  sigset_t pipe;
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
}

}  // namespace

struct TunnelCarrier::Carried {
  grpc::ClientContext context;
  std::atomic<bool> done{false};
  std::thread thread;
};

TunnelCarrier::TunnelCarrier(Source source) : source_(std::move(source)) {}

TunnelCarrier::~TunnelCarrier() {
  for (const auto& carried : carried_) carried->context.TryCancel();
  for (const auto& carried : carried_) carried->thread.join();
}

void TunnelCarrier::Open(const v1::OpenTunnel& open, absl::StatusOr<std::string> directory) {
  for (auto it = carried_.begin(); it != carried_.end();) {
    if ((*it)->done) {
      (*it)->thread.join();
      it = carried_.erase(it);
    } else {
      ++it;
    }
  }
  if (carried_.size() >= 2 * kAtOnce) {
    LogWarn("too many tunnels at once: one is not joined", {{"open", carried_.size()}});
    return;
  }
  if (carried_.size() >= kAtOnce)
    directory = absl::ResourceExhaustedError("its host has too many tunnels open");
  Carried* carried = carried_.emplace_back(std::make_unique<Carried>()).get();
  try {
    carried->thread = std::thread([this, carried, open, directory = std::move(directory)] {
      BlockPipeSignal();
      Carry(carried, open, directory);
      carried->done = true;
    });
  } catch (const std::system_error& error) {  // threads are what its host has run out of
    carried_.pop_back();
    LogWarn("a tunnel is not joined", {{"why", error.what()}});
  }
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> TunnelCarrier::Channel() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<grpc::Channel> channel = channel_.lock();
  if (channel != nullptr && channel->GetState(false) != GRPC_CHANNEL_TRANSIENT_FAILURE &&
      channel->GetState(false) != GRPC_CHANNEL_SHUTDOWN)
    return channel;
  absl::StatusOr<std::shared_ptr<grpc::Channel>> dialled = Dial(source_);
  if (dialled.ok()) channel_ = *dialled;
  return dialled;
}

void TunnelCarrier::Carry(Carried* carried, const v1::OpenTunnel& open,
                          const absl::StatusOr<std::string>& directory) {
  const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = Channel();
  if (!channel.ok()) {
    LogWarn("a tunnel is not joined", {{"why", std::string(channel.status().message())}});
    return;
  }
  const auto stub = v1::AgentService::NewStub(*channel);
  const auto stream = stub->Carry(&carried->context);
  v1::TunnelOutput join;
  join.set_join(open.tunnel());
  bool joined = stream->Write(join);
  Tunnel tunnel([&stream](const v1::TunnelOutput& output) { return stream->Write(output); });
  std::thread reader;
  try {
    reader = std::thread([&] {
      v1::TunnelInput input;
      while (stream->Read(&input)) tunnel.OnInput(std::move(input));
      tunnel.OnOver();
    });
  } catch (const std::system_error& error) {
    LogWarn("a tunnel is ended", {{"why", error.what()}});
    carried->context.TryCancel();
    stream->Finish();
    return;
  }
  if (joined && directory.ok()) {
    tunnel.Run(open, *directory);
  } else if (joined) {
    v1::TunnelOutput refused;
    refused.mutable_end()->set_error(std::string(directory.status().message()));
    stream->Write(refused);
  }
  // The scheduler ends the stream once it has the last word; else it has ended it already.
  stream->WritesDone();
  reader.join();
  stream->Finish();
}

}  // namespace muster::agent
