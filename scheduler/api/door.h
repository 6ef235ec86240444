// Who calls, as the way that the call came by says.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "scheduler/access/users.h"

namespace muster {

class Door {
 public:
  virtual ~Door() = default;
  // UNAUTHENTICATED: nobody who may ask anything. Thread-safe.
  virtual absl::StatusOr<std::shared_ptr<const Principal>> WhoCalls(
      const grpc::CallbackServerContext& call) const = 0;
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
