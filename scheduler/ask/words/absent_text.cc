#include "scheduler/ask/words/absent_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/ask/capacity.h"

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

std::string Away(const State& state, const std::vector<int32_t>& clusters,
                 const pb::Resources& wants) {
  struct Kind {
    const char* what;
    std::vector<HostId> named;
    size_t more = 0;
  } kinds[] = {
      {"not reached", {}, 0}, {"in quarantine", {}, 0}, {"listed, but no agent came yet", {}, 0}};
  constexpr size_t kHostsTold = 4;
  pb::Inventory made;
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    const int kind = host.state == pb::HOST_UNREACHABLE  ? 0
                     : host.quarantined()                ? 1
                     : host.state == pb::HOST_NEVER_SEEN ? 2
                                                         : -1;
    if (kind < 0 || IsRemoved(state, host) ||
        std::count(clusters.begin(), clusters.end(), host.cluster) == 0)
      continue;
    const std::string& flavour = ShapeOf(state, host, &made).flavour();
    const auto& types = wants.gpu_types();
    if (wants.gpus_milli() > 0 && std::count(types.begin(), types.end(), flavour) == 0) continue;
    if (kinds[kind].named.size() < kHostsTold)
      kinds[kind].named.push_back(id);
    else
      ++kinds[kind].more;
  }
  std::string text;
  for (const Kind& kind : kinds) {
    if (kind.named.empty()) continue;
    absl::StrAppend(&text, "; ", kind.what, ": ",
                    absl::StrJoin(kind.named, ", ", [&](std::string* out, HostId id) {
                      out->append(state.HostName(id));
                    }));
    if (kind.more > 0) absl::StrAppend(&text, " and ", kind.more, " more");
  }
  return text;
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
