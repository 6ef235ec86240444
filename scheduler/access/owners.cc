#include "scheduler/access/owners.h"

#include <algorithm>
#include <utility>

#include "scheduler/access/roles.h"
#include "scheduler/access/users.h"

namespace muster {
namespace {

constexpr size_t kOwnersKept = 4'096;

bool May(const State& state, const Principal& who, const std::string& queue) {
  // Of a queue that is gone: whoever may submit anywhere.
  const int32_t node = std::max(0, state.queues().Find(queue));
  return HeldAt(state, who, node).role >= MinRole(pb::RIGHT_SUBMIT);
}

bool MayByNetwork(const State& state, const std::string& owner, const std::string& queue) {
  const std::optional<Principal> who = ByNetwork(state, owner);
  return who.has_value() && May(state, *who, queue);
}

}  // namespace

std::optional<Principal> ByNetwork(const State& state, const std::string& name) {
  const auto user = state.trust().users.find(name);
  if (user == state.trust().users.end() || user->second.revoked()) return std::nullopt;
  Principal who;
  who.user = name;
  who.groups.assign(user->second.groups().begin(), user->second.groups().end());
  return who;
}

Owners::Owners(Ask ask, Clock* clock)
    : ask_(std::move(ask)), clock_(clock), thread_([this] { AskForThem(); }) {}

Owners::~Owners() {
  {
    std::lock_guard lock(mutex_);
    stops_ = true;
  }
  wakes_.notify_one();
  thread_.join();
}

std::optional<bool> Owners::MaySubmit(const State& state, const std::string& owner,
                                      const std::string& queue) {
  if (MayByNetwork(state, owner, queue)) return true;
  std::shared_ptr<const Principal> who;
  {
    std::lock_guard lock(mutex_);
    const auto known = known_.find(owner);
    if (known == known_.end() || clock_->MonotonicNs() - known->second.at_ns >= kUserKeptNs) {
      if (wanted_.insert(owner).second) wakes_.notify_one();
      return std::nullopt;
    }
    who = known->second.who;
  }
  return who != nullptr && May(state, *who, queue);
}

void Owners::AskForThem() {
  std::unique_lock lock(mutex_);
  while (true) {
    wakes_.wait(lock, [this] { return stops_ || !wanted_.empty(); });
    if (stops_) return;
    const std::string name = *wanted_.begin();
    lock.unlock();
    std::shared_ptr<const Principal> who = ask_(name);
    lock.lock();
    wanted_.erase(name);
    if (known_.size() >= kOwnersKept) known_.clear();
    known_[name] = {std::move(who), clock_->MonotonicNs()};
  }
}

}  // namespace muster
