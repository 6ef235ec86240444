// Keeps a host's certificate good: renews it at half its life, when the scheduler asks for that
// because of a new authority, and after it has slept through its end.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "network/identity.h"

namespace muster::agent {

// Thread-safe.
class IdentityKeeper {
 public:
  // `path`: of the identity's file, which follows. `renewed` is called on a thread of its own, once
  // newest() gives another one.
  IdentityKeeper(std::string path, Identity identity, std::function<void()> renewed);
  ~IdentityKeeper();

  std::shared_ptr<const Identity> newest() const;

 private:
  void Run();
  void Take(Identity identity);

  const std::string path_;
  const std::function<void()> renewed_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<const Identity> identity_;  // under mutex_
  bool stopping_ = false;                     // under mutex_
  std::thread thread_;
};

}  // namespace muster::agent
