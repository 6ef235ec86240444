// The agent's stream to the scheduler: connects, comes back, hands messages over. No decisions.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "agent/daemon/outbox.h"
#include "agent/daemon/served.h"
#include "muster/v1/agent.pb.h"
#include "muster/v1/agent_service.grpc.pb.h"
#include "network/identity.h"

namespace muster::agent {

// Something happened on the stream; `generation` tells one stream's events from the next one's.
struct Incoming {
  enum class Kind { kOpened, kMessage, kClosed } kind = Kind::kOpened;
  uint64_t generation = 0;
  v1::SchedulerMessage message;
  std::string reason;  // kClosed
  bool ours = false;   // kClosed: by Restart, for that reason
};

// Thread-safe. `post` is called from its own thread and must not block for long.
class Connection {
 public:
  // Whom this host is to the scheduler; the newest, each time it connects.
  using Identify = std::function<std::shared_ptr<const Identity>()>;

  // `server` is unix:///absolute/path. With `identify` the scheduler is reached over the network
  // instead.
  Connection(std::string server, Trust trust, Identify identify,
             std::function<void(Incoming)> post);
  ~Connection();  // ends the stream

  // Queued for the stream of this generation (outbox.h); dropped if that is over.
  void Send(uint64_t generation, v1::AgentMessage message);
  // Ends the present stream; a new one follows. `why`: for the log.
  void Restart(const std::string& why);
  size_t queued_bytes() const { return queued_bytes_; }

 private:
  void Run();
  std::string WhyNotServed() const;
  std::shared_ptr<grpc::Channel> Dial() const;
  void RunStream();
  grpc::Status Finish(grpc::ClientReaderWriter<v1::AgentMessage, v1::SchedulerMessage>* stream,
                      std::thread* writer, grpc::ClientContext* context);
  std::string InWords(const grpc::Status& status) const;
  void Write(grpc::ClientReaderWriter<v1::AgentMessage, v1::SchedulerMessage>* stream);

  const std::string server_;
  const Trust trust_;
  const Identify identify_;
  const std::function<void(Incoming)> post_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  bool open_ = false;
  uint64_t generation_ = 0;
  Outbox outbox_;
  std::atomic<size_t> queued_bytes_{0};
  grpc::ClientContext* context_ = nullptr;  // of the present stream
  std::string restarted_because_;           // the present stream; empty: it was not
  bool spoke_ = false;    // the present stream brought a message other than a refusal
  bool refused_ = false;  // it brought that
  std::thread thread_;
};

}  // namespace muster::agent
