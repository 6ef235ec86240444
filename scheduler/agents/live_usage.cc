#include "scheduler/agents/live_usage.h"

#include <memory>

#include "common/base/units.h"
#include "scheduler/engine/engine.h"
#include "scheduler/state/usage.h"

namespace muster {
namespace {

constexpr int64_t kForgetInterval = kMinute;

bool RunsOn(const State& state, const pb::AttemptKey& key, HostId host) {
  const AttemptRow* attempt = state.FindAttempt(key);
  if (attempt == nullptr || attempt->ended()) return false;
  for (const PartRow& part : attempt->parts) {
    if (part.host == host) return !part.over();
  }
  return false;
}

}  // namespace

void LiveUsage::Told(const State& state, const std::string& cluster, const std::string& host,
                     const google::protobuf::RepeatedPtrField<pb::AttemptUsage>& usages) {
  if (usages.empty()) return;
  const HostId id = state.FindHost(cluster, host);
  if (id == kNoHost) return;
  std::lock_guard lock(mutex_);
  for (const pb::AttemptUsage& told : usages) {
    const std::shared_ptr<const pb::HostUsage> usage = PlausibleUsage(told.usage());
    if (usage == nullptr || !RunsOn(state, told.key(), id)) continue;
    Entry& entry = attempts_[AttemptText(told.key())];
    entry.key = told.key();
    entry.hosts[host] = *usage;
  }
}

std::map<std::string, pb::HostUsage> LiveUsage::Of(const pb::AttemptKey& key) const {
  std::lock_guard lock(mutex_);
  const auto it = attempts_.find(AttemptText(key));
  return it == attempts_.end() ? std::map<std::string, pb::HostUsage>() : it->second.hosts;
}

void LiveUsage::Forget(const State& state, int64_t now_ns) {
  std::lock_guard lock(mutex_);
  if (now_ns < next_forget_ns_) return;
  next_forget_ns_ = now_ns + kForgetInterval;
  std::erase_if(attempts_, [&](const auto& known) {
    const AttemptRow* attempt = state.FindAttempt(known.second.key);
    return attempt == nullptr || attempt->ended();
  });
}

size_t LiveUsage::size() const {
  std::lock_guard lock(mutex_);
  return attempts_.size();
}

}  // namespace muster
