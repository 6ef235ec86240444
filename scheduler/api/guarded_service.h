// A gRPC service whose handlers can't be reached but through Guard::Admit: each is registered here,
// by the name of its method, with the policy that the proto gives it, and gets a Caller. The
// generated services, whose handlers anybody may override, are not served at all.
//
// Who calls is said by the door that it is served at.
#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <set>
#include <string>

#include "common/base/check.h"
#include "scheduler/api/door.h"
#include "scheduler/api/errors.h"
#include "scheduler/api/guard.h"

namespace muster {

// Of a stream that isn't admitted.
template <typename Reactor>
class RefusedStream : public Reactor {
 public:
  explicit RefusedStream(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};

inline grpc::Status RefusalOf(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable
             ? NotNow(std::string(status.message()), "BUSY")
             : ToGrpc(status);
}

// Guard::Admit by a stream's first message, which has to live as long as the Caller changes
// anything.
template <typename Request>
using AdmitFirst = std::function<absl::StatusOr<Caller>(const Request& first)>;

class GuardedService : public grpc::Service {
 public:
  // Names of the methods that are served, such as JobService/Get.
  const std::set<std::string>& served() const { return served_; }

 protected:
  // Both must outlive the service.
  GuardedService(Guard* guard, const Door* door) : guard_(guard), door_(door) {}

  template <typename Self, typename Request, typename Response>
  void Unary(const char* name,
             grpc::ServerUnaryReactor* (Self::*handler)(const Caller&, grpc::CallbackServerContext*,
                                                        const Request*, Response*)) {
    const MethodPolicy& method = MethodOf<Request, Response>(name, false, false);
    Serve(method, grpc::internal::RpcMethod::NORMAL_RPC,
          new grpc::internal::CallbackUnaryHandler<Request, Response>(
              [this, &method, handler](grpc::CallbackServerContext* call, const Request* request,
                                       Response* response) {
                const absl::StatusOr<Caller> caller = Admit(method, *call, *request);
                if (caller.ok())
                  return (static_cast<Self*>(this)->*handler)(*caller, call, request, response);
                grpc::ServerUnaryReactor* refused = call->DefaultReactor();
                refused->Finish(RefusalOf(caller.status()));
                return refused;
              }));
  }
  template <typename Self, typename Request, typename Response>
  void ServerStream(const char* name,
                    grpc::ServerWriteReactor<Response>* (Self::*handler)(
                        const Caller&, grpc::CallbackServerContext*, const Request*)) {
    const MethodPolicy& method = MethodOf<Request, Response>(name, false, true);
    Serve(method, grpc::internal::RpcMethod::SERVER_STREAMING,
          new grpc::internal::CallbackServerStreamingHandler<Request, Response>(
              [this, &method, handler](grpc::CallbackServerContext* call, const Request* request)
                  -> grpc::ServerWriteReactor<Response>* {
                const absl::StatusOr<Caller> caller = Admit(method, *call, *request);
                if (caller.ok())
                  return (static_cast<Self*>(this)->*handler)(*caller, call, request);
                return new RefusedStream<grpc::ServerWriteReactor<Response>>(
                    RefusalOf(caller.status()));
              }));
  }
  template <typename Self, typename Request, typename Response>
  void BidiStream(const char* name, grpc::ServerBidiReactor<Request, Response>* (Self::*handler)(
                                        const Caller&, grpc::CallbackServerContext*)) {
    const MethodPolicy& method = MethodOf<Request, Response>(name, true, true);
    Serve(
        method, grpc::internal::RpcMethod::BIDI_STREAMING,
        new grpc::internal::CallbackBidiHandler<Request, Response>(
            [this, &method, handler](
                grpc::CallbackServerContext* call) -> grpc::ServerBidiReactor<Request, Response>* {
              // Nothing was read yet: the policy can only be about who calls.
              const absl::StatusOr<Caller> caller =
                  Admit(method, *call, Request::default_instance());
              if (caller.ok()) return (static_cast<Self*>(this)->*handler)(*caller, call);
              return new RefusedStream<grpc::ServerBidiReactor<Request, Response>>(
                  RefusalOf(caller.status()));
            }));
  }

  // A stream whose policy is about its first message. The handler gets no Caller before it has read
  // that and shown it to AdmitFirst, on this same call.
  template <typename Self, typename Request, typename Response>
  void BidiStreamByFirst(const char* name,
                         grpc::ServerBidiReactor<Request, Response>* (Self::*handler)(
                             AdmitFirst<Request>, grpc::CallbackServerContext*)) {
    const MethodPolicy& method = MethodOf<Request, Response>(name, true, true);
    Serve(
        method, grpc::internal::RpcMethod::BIDI_STREAMING,
        new grpc::internal::CallbackBidiHandler<Request, Response>(
            [this, &method, handler](
                grpc::CallbackServerContext* call) -> grpc::ServerBidiReactor<Request, Response>* {
              // Who is nobody here is told so at once.
              if (const auto who = door_->WhoCalls(*call); !who.ok())
                return new RefusedStream<grpc::ServerBidiReactor<Request, Response>>(
                    RefusalOf(who.status()));
              return (static_cast<Self*>(this)->*handler)(
                  [this, &method, call](const Request& first) {
                    return Admit(method, *call, first);
                  },
                  call);
            }));
  }

  const Door* door() const { return door_; }

 private:
  absl::StatusOr<Caller> Admit(const MethodPolicy& method, const grpc::CallbackServerContext& call,
                               const google::protobuf::Message& request) {
    absl::StatusOr<std::shared_ptr<const Principal>> who = door_->WhoCalls(call);
    if (!who.ok()) return who.status();
    absl::StatusOr<Caller> caller = guard_->Admit(method, *std::move(who), request);
    // Refused for want of a right, too: that is an answer. Who asks too often gets none.
    if (!absl::IsUnavailable(caller.status())) door_->Explain(call, request);
    return caller;
  }
  template <typename Request, typename Response>
  static const MethodPolicy& MethodOf(const char* name, bool client_streams, bool server_streams) {
    const MethodPolicy& method = PolicyOf(name);
    MUSTER_CHECK_MSG(method.method->input_type() == Request::descriptor() &&
                         method.method->output_type() == Response::descriptor() &&
                         method.method->client_streaming() == client_streams &&
                         method.method->server_streaming() == server_streams,
                     name);
    return method;
  }
  void Serve(const MethodPolicy& method, grpc::internal::RpcMethod::RpcType type,
             grpc::internal::MethodHandler* handler) {
    MUSTER_CHECK_MSG(served_.insert(method.name).second, method.name.c_str());
    AddMethod(new grpc::internal::RpcServiceMethod(method.path.c_str(), type, nullptr));
    MarkMethodCallback(static_cast<int>(served_.size()) - 1, handler);
  }

  Guard* const guard_;
  const Door* const door_;
  std::set<std::string> served_;
};

}  // namespace muster
