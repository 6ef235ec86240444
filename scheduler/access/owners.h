// Whether the owner of a job may still submit to its queue, for the engine, which waits for nobody:
// the machine's accounts and groups are asked by a thread of its own. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "scheduler/access/principal.h"
#include "scheduler/state/state.h"

namespace muster {

// Who has this name on the network, with the groups that its provider or its invitation gave.
std::optional<Principal> ByNetwork(const State& state, const std::string& name);

class Owners {
 public:
  // Of a name on this machine; null if nobody has it. May take as long as a directory service does.
  using Ask = std::function<std::shared_ptr<const Principal>(const std::string& name)>;

  // The clock must outlive it, and so must what `ask` uses.
  Owners(Ask ask, Clock* clock);
  ~Owners();
  Owners(const Owners&) = delete;
  Owners& operator=(const Owners&) = delete;

  // By the roles of this State, of whoever has the name here or on the network. nullopt: the
  // machine is being asked, so ask again.
  std::optional<bool> MaySubmit(const State& state, const std::string& owner,
                                const std::string& queue);

 private:
  struct Known {
    std::shared_ptr<const Principal> who;
    int64_t at_ns = 0;
  };
  void AskForThem();

  const Ask ask_;
  Clock* const clock_;
  std::mutex mutex_;
  std::condition_variable wakes_;
  bool stops_ = false;
  std::set<std::string> wanted_;
  std::map<std::string, Known> known_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace muster
