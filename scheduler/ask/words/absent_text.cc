#include "scheduler/ask/words/absent_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster {
namespace {

std::string Because(const std::string& reason) {
  return reason.empty() ? "" : absl::StrCat(": ", reason);
}

}  // namespace

std::string Drains(const State& state, const std::vector<int32_t>& clusters) {
  std::vector<std::string> said;
  size_t more = 0;
  const auto say = [&](const std::string& name, const std::string& reason) {
    if (said.size() < 4) {
      said.push_back(absl::StrCat(name, " is drained", Because(reason)));
    } else {
      ++more;
    }
  };
  for (const int32_t cluster : clusters) {
    const ClusterRow& row = state.clusters()[cluster];
    if (row.drained) say(row.name, row.drain_reason);
  }
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    const bool here = std::find(clusters.begin(), clusters.end(), host.cluster) != clusters.end();
    if (here && host.drained && !state.clusters()[host.cluster].drained)
      say(state.HostName(id), host.drain_reason);
  }
  if (more > 0)
    said.push_back(
        absl::StrCat(more, more == 1 ? " more host is drained" : " more hosts are drained"));
  return absl::StrJoin(said, "; ");
}

std::string Away(const State& state, const std::vector<int32_t>& clusters) {
  constexpr size_t kHostsTold = 4;
  const auto named = [&](pb::HostState wanted, const char* what) {
    std::vector<std::string> hosts;
    for (const HostId id : state.hosts()) {
      const HostRow& host = state.host(id);
      if (host.state == wanted && std::count(clusters.begin(), clusters.end(), host.cluster) > 0)
        hosts.push_back(state.HostName(id));
    }
    if (hosts.empty()) return std::string();
    const size_t more = hosts.size() > kHostsTold ? hosts.size() - kHostsTold : 0;
    hosts.resize(hosts.size() - more);
    return absl::StrCat("; ", what, " ", absl::StrJoin(hosts, ", "),
                        more > 0 ? absl::StrCat(" and ", more, " more") : "");
  };
  return named(pb::HOST_UNREACHABLE, "not reached:") +
         named(pb::HOST_NEVER_SEEN, "listed, but no agent came yet:");
}

std::string LowDisks(const State& state, int32_t cluster) {
  constexpr size_t kHostsTold = 4;
  std::vector<std::string> said;
  size_t more = 0;
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    if (host.cluster != cluster || host.inventory.low_disk().empty()) continue;
    if (said.size() == kHostsTold) {
      ++more;
      continue;
    }
    said.push_back(
        absl::StrCat(state.HostName(id), " takes nothing new: ", host.inventory.low_disk()));
  }
  if (more > 0) said.push_back(absl::StrCat("so do ", more, " more"));
  return absl::StrJoin(said, "; ");
}

}  // namespace muster
