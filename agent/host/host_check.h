// Is this host fit for work again? Runs what the scheduler asks for before a quarantine ends
// (CheckHost), beside everything else the agent does.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "agent/host/nvml.h"
#include "muster/v1/agent.pb.h"

namespace muster::agent {

// One check at a time, on a thread of its own, bounded by its timeout also where a program can't be
// killed or the driver hangs. Begin from one thread.
class HostCheck {
 public:
  // `nvml` (nullptr: none) is asked whether the devices answer. `done` is called from the check's
  // thread; it must not block.
  HostCheck(std::shared_ptr<Nvml> nvml, std::function<void(v1::HostChecked)> done);
  ~HostCheck();  // ends a check that is under way, within a second

  // `inventory`: what this host says of its devices now. False, and without effect: a check is
  // under way; who asked asks again.
  bool Begin(const v1::CheckHost& check, v1::Inventory inventory);

 private:
  const std::shared_ptr<Nvml> nvml_;
  const std::function<void(v1::HostChecked)> done_;
  std::atomic<bool> busy_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace muster::agent
