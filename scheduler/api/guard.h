// The one choke point: every call of every service passes Guard::Admit before its handler runs, and
// every change passes it again on the engine's thread, against the State that it changes.
//
// Who calls is known -> they call no oftener than they may -> they have the right on the object
// that the request names, in the present snapshot. What each method asks is in the protos
// (proto/muster/v1/access.proto). What a caller may not see is NOT_FOUND, as what isn't there; a
// verb that they lack the role for is PERMISSION_DENIED, with the place and the remedy.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <google/protobuf/message.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "scheduler/access/audit.h"
#include "scheduler/access/policy.h"
#include "scheduler/access/rates.h"
#include "scheduler/access/roles.h"
#include "scheduler/access/users.h"
#include "scheduler/engine/engine.h"
#include "scheduler/engine/history.h"

namespace muster {

class Guard;

// An admitted call. Only Guard makes one, handlers ask for one, and only through one can State be
// changed: a handler that nobody guards has nothing to work with. A value.
class Caller {
 public:
  const Principal& who() const { return *who_; }
  const std::string& user() const { return who_->user; }
  // For what outlives the call's admission: without the snapshot.
  const std::shared_ptr<const Principal>& principal() const { return who_; }
  // The snapshot that it was admitted on.
  const std::shared_ptr<const View>& view() const { return view_; }
  // The job that the request names, if the method is about one. Never null then.
  const std::shared_ptr<const JobRow>& job() const { return job_; }

  // Engine::Call with the right looked at again before `operation`, and a record in the audit
  // before `done`: queued, or on disk (then UNAVAILABLE if it can't be). The request has to be
  // there until then.
  enum AuditedWhen { kOnceQueued, kOnceOnDisk };
  void Change(Engine::Operation operation, Engine::Done done,
              AuditedWhen audited = kOnceQueued) const;
  // What the audit says of the change besides; inside `operation`.
  void Note(std::string detail) const { *detail_ = std::move(detail); }

 private:
  friend class Guard;
  Caller() = default;

  Guard* guard_ = nullptr;
  const MethodPolicy* method_ = nullptr;
  const google::protobuf::Message* request_ = nullptr;
  std::shared_ptr<const Principal> who_;
  std::shared_ptr<const View> view_;
  std::shared_ptr<const JobRow> job_;
  std::shared_ptr<std::string> detail_;
};

struct GuardParts {
  Engine* engine = nullptr;
  History* history = nullptr;  // null: what State forgets is gone
  Users* users = nullptr;
  Audit* audit = nullptr;  // null: nothing is recorded
  Clock* clock = nullptr;
};

// Thread-safe. Its parts must outlive it.
class Guard {
 public:
  explicit Guard(GuardParts parts) : parts_(parts) {}

  // `uid`: of the other end of the connection, by the kernel's word. UNAUTHENTICATED: nobody here.
  // UNAVAILABLE: too often. INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED: the right. `request`
  // has to live as long as the Caller changes anything.
  absl::StatusOr<Caller> Admit(const MethodPolicy& method, uint32_t uid,
                               const google::protobuf::Message& request);
  // Of whoever the door says calls.
  absl::StatusOr<Caller> Admit(const MethodPolicy& method, std::shared_ptr<const Principal> calling,
                               const google::protobuf::Message& request);
  Users* users() const { return parts_.users; }
  Audit* audit() const { return parts_.audit; }

 private:
  friend class Caller;
  void Record(const MethodPolicy& method, const Principal& who,
              const google::protobuf::Message& request, const absl::Status& outcome,
              const std::string& detail, Audit::Written written = nullptr);

  const GuardParts parts_;
  Rates rates_;
};

// Whether `who` has what the method asks on what `request` names, in this State. *job (if the
// method is about one) gets it: from State, else from the history, which may be null. *hidden: what
// is refused as NOT_FOUND is there.
absl::Status Authorize(
    const State& state, const Principal& who, const MethodPolicy& method,
    const google::protobuf::Message& request,
    const std::function<absl::StatusOr<std::shared_ptr<const JobRow>>(const std::string& id)>&
        find_job,
    std::shared_ptr<const JobRow>* job = nullptr, bool* hidden = nullptr);

}  // namespace muster
