// Who calls, as the way that the call came by says.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "scheduler/access/users.h"

namespace muster {

class Door {
 public:
  virtual ~Door() = default;
  // UNAUTHENTICATED: nobody who may ask anything. Thread-safe.
  virtual absl::StatusOr<std::shared_ptr<const Principal>> WhoCalls(
      const grpc::CallbackServerContext& call) const = 0;
  // The call was admitted with this request, whose bytes are explained by it (allowance.h).
  virtual void Explain(const grpc::CallbackServerContext&, const google::protobuf::Message&) const {
  }
  // For further messages of a call that streams, by their bytes; empty where nobody counts.
  virtual std::function<void(size_t)> Explainer(const grpc::CallbackServerContext&) const {
    return {};
  }
};

// A Unix socket's, of one uid.
class UidDoor : public Door {
 public:
  UidDoor(Users* users, uint32_t uid) : users_(users), uid_(uid) {}
  absl::StatusOr<std::shared_ptr<const Principal>> WhoCalls(
      const grpc::CallbackServerContext&) const override {
    return users_->Of(uid_);
  }

 private:
  Users* const users_;
  const uint32_t uid_;
};

}  // namespace muster
