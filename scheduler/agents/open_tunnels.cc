#include "scheduler/agents/open_tunnels.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"

namespace muster {

absl::StatusOr<std::string> OpenTunnels::Add(const Place& place,
                                             std::weak_ptr<TunnelUserEnd> user) {
  std::lock_guard lock(mutex_);
  int of_job = 0, of_host = 0;
  for (const auto& [name, open] : open_) {
    of_job += open.place.job == place.job && open.place.command == place.command ? 1 : 0;
    of_host += open.place.cluster == place.cluster && open.place.host == place.host ? 1 : 0;
  }
  const auto too_many = [](int most, const std::string& where) {
    return absl::ResourceExhaustedError(absl::StrCat(
        most, " ", where, " are open, and no more at once; end one, or try again later"));
  };
  if (of_job >= (place.command ? kCommandsOfJob : kConnectionsOfJob)) {
    return place.command ? too_many(kCommandsOfJob, "commands beside this job's workers")
                         : too_many(kConnectionsOfJob, "connections to this job's ports");
  }
  if (of_host >= kOfHost)
    return too_many(kOfHost, absl::StrCat("tunnels to ", place.cluster, "/", place.host));
  if (open_.size() >= kOfAll) return too_many(kOfAll, "tunnels of this musterd");
  std::string name = RandomId();
  open_[name] = {place, std::move(user), false};
  return name;
}

std::shared_ptr<TunnelUserEnd> OpenTunnels::Join(const std::string& name,
                                                 const std::string& cluster,
                                                 const std::string& host) {
  std::lock_guard lock(mutex_);
  const auto found = open_.find(name);
  if (found == open_.end() || found->second.joined) return nullptr;
  const Place& place = found->second.place;
  if (!host.empty() && (place.cluster != cluster || place.host != host)) return nullptr;
  found->second.joined = true;
  return found->second.user.lock();
}

void OpenTunnels::Remove(const std::string& name) {
  std::lock_guard lock(mutex_);
  open_.erase(name);
}

size_t OpenTunnels::size() const {
  std::lock_guard lock(mutex_);
  return open_.size();
}

}  // namespace muster
