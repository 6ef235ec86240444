// Which user a uid of this machine is, and which groups they are in. Thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "scheduler/access/principal.h"

namespace muster {

// As musterd.yaml lists them.
struct ListedUser {
  std::string name;
  uint32_t uid = 0;
  std::vector<std::string> groups;
};

inline constexpr uint32_t kOverflowUid = 65'534;  // "nobody": what the kernel maps nothing to
inline constexpr uint32_t kFirstOrdinaryUid = 1'000;
inline constexpr int64_t kUserKeptNs = 30'000'000'000;  // then its groups are asked again

// How the machine knows a name that somebody comes by from elsewhere.
enum class KnownAs {
  kNobody,
  kSomebody,  // listed, or an ordinary account
  kReserved,  // root, the user who runs this, an account of the system, or it can't be known now
};

class Users {
 public:
  // `own_uid`: of this process. `single_user`: nobody else is known.
  Users(std::vector<ListedUser> listed, uint32_t own_uid, bool single_user, Clock* clock);

  // Listed ones first, then those of the machine's own database from uid 1000 on; a name that is
  // listed is nobody else's. Not known: a principal without a name. May ask a directory service,
  // and take as long as that does.
  std::shared_ptr<const Principal> Of(uint32_t uid);
  // Groups of a user by name, for questions about others; null if nobody has it.
  std::shared_ptr<const Principal> Named(const std::string& name);
  // May take as long as a directory service does.
  KnownAs HowKnown(const std::string& name) const;

 private:
  struct Kept {
    std::shared_ptr<const Principal> who;
    int64_t at_ns = 0;
  };
  // *error: why the machine could not say it; 0 otherwise.
  Principal LookUp(uint32_t uid, int* error) const;

  const std::vector<ListedUser> listed_;
  const uint32_t own_uid_;
  const bool single_user_;
  Clock* const clock_;
  std::mutex mutex_;
  std::map<uint32_t, Kept> kept_;
};

}  // namespace muster
