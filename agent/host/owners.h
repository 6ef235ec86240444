// Who the owners of jobs are on this host, for an agent that runs jobs as their owners, and what is
// done as them (docs/decisions/078-run-as-the-owner.md).
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/shim/act.h"
#include "agent/shim/format.h"

namespace muster::agent {

struct Owner {
  shim::User user;
  std::string name, home;
};

// By name or number. Asks the machine's name services, which may hang. INVALID_ARGUMENT: nobody
// here has that name, or somebody who runs no jobs. FAILED_PRECONDITION: the services fail.
absl::StatusOr<Owner> FindOwner(const std::string& name, uint32_t min_uid);

// Thread-safe.
class Owners {
 public:
  // `directory` keeps what was found: an attempt that was prepared is started without asking again.
  // `program`: muster-shim.
  Owners(std::string directory, std::string program, uint32_t min_uid);

  // FindOwner, and remembers it.
  absl::StatusOr<Owner> Ask(const std::string& name);
  // As it was found last, by this process or one before.
  absl::StatusOr<Owner> Known(const std::string& name);
  // Does it as this owner, by a process of its own, and waits for it: as long as the storage takes.
  absl::Status Act(const Owner& owner, shim::ActRequest request) const;

 private:
  const std::string directory_, program_;
  const uint32_t min_uid_;
  std::mutex mutex_;
  std::map<std::string, Owner> known_;  // guarded by mutex_
};

// INVALID_ARGUMENT for what the job names wrongly, OUT_OF_RANGE where an archive is wanted.
absl::Status ToStatus(const shim::ActResult& result);
// Whether nothing but an archive was wanting.
bool WantsArchive(const absl::Status& status);

// Why this process can't keep users' jobs apart, with the remedy; OK: it can. Tries it.
absl::Status CheckCanIsolate();

// The nodes below /dev that an attempt with these devices gets, by what the driver says below
// `proc` and what there is below `dev`. FAILED_PRECONDITION: a device has none.
absl::StatusOr<std::vector<std::string>> DeviceNodes(const std::vector<int32_t>& devices,
                                                     const std::string& proc = "/proc",
                                                     const std::string& dev = "/dev");

}  // namespace muster::agent
