#include "scheduler/state/topology.h"

#include "absl/strings/str_cat.h"

namespace muster {

bool Binds(pb::TopologyLevel level) {
  return level != pb::TOPOLOGY_LEVEL_UNSPECIFIED && level < pb::CLUSTER;
}

std::string DomainOf(pb::TopologyLevel level, const HostRow& host) {
  if (!Binds(level)) return "";
  if (level <= pb::HOST) return host.name;
  return level == pb::RACK ? absl::StrCat(host.block, "/", host.rack) : host.block;
}

bool InOneDomain(pb::TopologyLevel level, const HostRow& one, const HostRow& other) {
  if (!Binds(level)) return true;
  if (level <= pb::HOST) return one.id == other.id;
  return one.block == other.block && (level == pb::BLOCK || one.rack == other.rack);
}

}  // namespace muster
