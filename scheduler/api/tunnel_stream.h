// The two calls of a tunnel, the user's (Exec, Forward) and its host's (Carry), and what is handed
// from one to the other (docs/decisions/140-tunnels.md).
//
// Each end reads its next message once the other has written the one before: musterd holds one
// message in each direction, 64 KiB of data at most, beside what gRPC's windows let through.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "muster/v1/agent.pb.h"
#include "scheduler/api/context.h"
#include "scheduler/api/guarded_service.h"
#include "scheduler/api/queued_writer.h"
#include "scheduler/api/watch.h"

namespace muster {

// What both ends share: a stream that reads only when it is told to, and is over once.
template <typename Request, typename Response>
class TunnelStream : public QueuedWriter<grpc::ServerBidiReactor<Request, Response>, Response> {
  using Base = QueuedWriter<grpc::ServerBidiReactor<Request, Response>, Response>;

 public:
  void OnWriteDone(bool ok) override {
    if (!ok) MarkOver();
    Base::OnWriteDone(ok);
    if (!ok) this->Gone();
  }
  void OnCancel() override {
    MarkOver();
    Base::OnCancel();
  }

 protected:
  void ReadNext() {
    std::lock_guard lock(over_mutex_);
    if (!over_) this->StartRead(&incoming_);
  }
  void End(const grpc::Status& status) {
    MarkOver();
    this->Finally(status);
  }
  void MarkOver() {
    std::lock_guard lock(over_mutex_);
    over_ = true;
  }
  bool Over() {
    std::lock_guard lock(over_mutex_);
    return over_;
  }

  Request incoming_;

 private:
  std::mutex over_mutex_;  // no read begins once the call is being finished
  bool over_ = false;
};

// Where a tunnel leads, as State says it.
struct TunnelPlace {
  uint64_t job = 0;
  std::string id;  // of the job, for commands
  int32_t attempt = 0;
  std::string cluster, host;
  pb::OpenTunnel open;
  bool waits = false;  // nothing runs: its verdict says why
};
// FAILED_PRECONDITION, NOT_FOUND, INVALID_ARGUMENT: it leads nowhere, and why.
absl::Status FindTunnelPlace(const State& state, uint64_t number, const pb::TunnelInput& start,
                             TunnelPlace* place);
// PERMISSION_DENIED: the job is another's, and `operators` may not either (operators_exec of
// musterd.yaml).
absl::Status CheckTunnelUser(const State& state, uint64_t number, const Principal& who,
                             bool operators);
// Of the first message of an Exec (`command`) or a Forward: what is wrong with it.
absl::Status CheckTunnelStart(const pb::TunnelInput& start, bool command);
// What the audit says of it: never what the words behind the first are.
std::string TunnelNote(const pb::TunnelInput& start);

class UserTunnel : public TunnelStream<pb::TunnelInput, pb::TunnelOutput>,
                   public TunnelUserEnd,
                   public std::enable_shared_from_this<UserTunnel> {
 public:
  UserTunnel(const ApiContext* context, WatchHub* hub, AdmitFirst<pb::TunnelInput> admit,
             std::function<void(size_t)> explain, bool command)
      : context_(context),
        hub_(hub),
        admit_(std::move(admit)),
        explain_(std::move(explain)),
        command_(command) {}
  void Begin();

  void OnReadDone(bool ok) override;
  void Joined(std::shared_ptr<TunnelHostEnd> host) override;
  void Pass(pb::TunnelOutput message) override { Push(std::move(message)); }
  void ReadOn() override {
    if (!input_over_) ReadNext();
  }
  void Close(const absl::Status& status) override;

 protected:
  void Gone() override;
  void Written() override;

 private:
  void Start();
  void Placed(const absl::Status& status);
  void Open();
  void AskHost(int times);
  void Look(const View& view, const JobRow* job);
  void EndNow(const grpc::Status& status);
  void EndAfter(grpc::Alarm* alarm, int64_t wait_ns, const std::string& why);
  std::shared_ptr<TunnelHostEnd> host() const;

  const ApiContext* const context_;
  WatchHub* const hub_;
  AdmitFirst<pb::TunnelInput> admit_;
  const std::function<void(size_t)> explain_;
  const bool command_;
  pb::TunnelInput first_;  // the Caller's until Placed
  bool started_ = false;
  std::optional<Caller> caller_;  // until Placed
  std::shared_ptr<const Principal> who_;
  std::shared_ptr<TunnelPlace> place_ = std::make_shared<TunnelPlace>();
  std::atomic<bool> input_over_{false};
  grpc::Alarm first_late_, join_late_;
  std::deque<grpc::Alarm> asks_;  // of AskHost: an alarm isn't set again from within

  mutable std::mutex mutex_;
  bool gone_ = false;
  std::weak_ptr<TunnelHostEnd> host_;
  uint64_t watch_ = 0;
  std::string name_;  // among the open tunnels
};

class HostTunnel : public TunnelStream<pb::TunnelOutput, pb::TunnelInput>,
                   public TunnelHostEnd,
                   public std::enable_shared_from_this<HostTunnel> {
 public:
  HostTunnel(OpenTunnels* tunnels, std::string cluster, std::string host,
             std::function<void(size_t)> explain)
      : tunnels_(tunnels),
        cluster_(std::move(cluster)),
        host_(std::move(host)),
        explain_(std::move(explain)) {}
  void Begin();

  void OnReadDone(bool ok) override;
  void Pass(pb::TunnelInput message) override { Push(std::move(message)); }
  void ReadOn() override { ReadNext(); }
  void Close(const absl::Status& status) override { End(ToGrpc(status)); }

 protected:
  void Gone() override;
  void Written() override;

 private:
  void Join();
  std::shared_ptr<TunnelUserEnd> user() const;

  OpenTunnels* const tunnels_;
  const std::string cluster_, host_;  // of its certificate; empty: any
  const std::function<void(size_t)> explain_;
  grpc::Alarm late_;
  mutable std::mutex mutex_;
  bool joined_ = false;
  std::weak_ptr<TunnelUserEnd> user_;
};

}  // namespace muster
