// Apply: queues, clusters and drains, and the order of hosts.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/units.h"
#include "scheduler/state/applier.h"

namespace muster {

void Applier::SetQueues(const pb::QueueTree& tree) {
  s_.configuration_changed_ = true;
  s_.queue_tree_ = std::make_shared<const pb::QueueTree>(tree);
  s_.queues_ = std::make_shared<const QueueIndex>(BuildQueues(tree));
  // A queue that comes back under an old name is another queue: it gives nobody what they had.
  const auto gone = [&](const Bindings::value_type& row) {
    return s_.queues_->Node(row.first.queue) < 0;
  };
  if (std::none_of(s_.bindings_->begin(), s_.bindings_->end(), gone)) return;
  Bindings kept = *s_.bindings_;
  std::erase_if(kept, gone);
  s_.bindings_ = std::make_shared<const Bindings>(std::move(kept));
}

void Applier::SetBinding(const pb::Binding& binding, bool revoked) {
  const BindingKey key{binding.queue(), binding.user().empty(),
                       binding.user().empty() ? binding.group() : binding.user()};
  if (key.name.empty() || s_.queues_->Node(key.queue) < 0) return;
  if (!revoked && binding.role() == pb::ROLE_UNSPECIFIED) return;
  Bindings bindings = *s_.bindings_;
  if (revoked) {
    bindings.erase(key);
  } else {
    bindings[key] = binding.role();
  }
  s_.bindings_ = std::make_shared<const Bindings>(std::move(bindings));
  s_.configuration_changed_ = true;
}

// Clusters that left the file but still have hosts stay, at the end, closed.
void Applier::SetClusters(const pb::ClusterFile& file) {
  const std::vector<ClusterRow> old = *s_.clusters_;
  std::vector<ClusterRow> rows;
  std::map<std::string, int32_t> index;
  for (const pb::ClusterSpec& spec : file.clusters()) {
    if (!index.emplace(spec.name(), static_cast<int32_t>(rows.size())).second) continue;
    ClusterRow row;
    row.name = spec.name();
    row.spec = spec;
    rows.push_back(std::move(row));
  }
  std::vector<bool> has_hosts(old.size(), false);
  s_.hosts_.ForEach([&](size_t, const HostRow& host) { has_hosts[host.cluster] = true; });
  for (size_t c = 0; c < old.size(); ++c) {
    const auto it = index.find(old[c].name);
    if (it != index.end()) {
      rows[it->second].drained = old[c].drained;
      rows[it->second].drain_reason = old[c].drain_reason;
    } else if (has_hosts[c]) {
      index[old[c].name] = static_cast<int32_t>(rows.size());
      rows.push_back(old[c]);
      rows.back().spec.clear_hosts();
      rows.back().spec.set_open(false);
    }
  }
  for (HostId id = 0; id < s_.host_count_; ++id) {
    HostRow* host = s_.hosts_.Mutable(static_cast<size_t>(id));
    host->cluster = index.at(old[host->cluster].name);
    host->listed = false;
    host->block.clear();
    host->rack.clear();
  }
  for (const uint64_t number : s_.AllJobs()) {
    for (TaskRow& task : s_.jobs_.Mutable(number)->tasks) {
      for (AttemptRow& attempt : task.attempts)
        attempt.cluster = index.at(old[attempt.cluster].name);
      if (task.reservation == nullptr) continue;
      Reservation moved = *task.reservation;
      moved.cluster = index.at(old[moved.cluster].name);
      task.reservation = std::make_shared<const Reservation>(std::move(moved));
    }
  }
  // With the clusters that stay, so that hosts and attempts find them again when State is loaded.
  pb::ClusterFile kept = file;
  for (const ClusterRow& row : rows) {
    const auto in_file = [&](const pb::ClusterSpec& spec) { return spec.name() == row.name; };
    if (std::none_of(file.clusters().begin(), file.clusters().end(), in_file))
      *kept.add_clusters() = row.spec;
  }
  s_.cluster_file_ = std::make_shared<const pb::ClusterFile>(std::move(kept));
  s_.clusters_ = std::make_shared<const std::vector<ClusterRow>>(std::move(rows));
  for (const pb::ClusterSpec& spec : file.clusters()) {
    for (const pb::HostSpec& host_spec : spec.hosts()) {
      HostRow* host = Host(FindOrAddHost(spec.name(), host_spec.name()));
      host->listed = true;
      host->block = host_spec.block();
      host->rack = host_spec.rack();
    }
  }
  OrderHosts();
  for (const HostId id : *s_.host_order_) RefreshHost(id);
  s_.configuration_changed_ = true;
}

void Applier::SetClusterDrained(const std::string& name, bool drained, const std::string& reason) {
  const int32_t c = s_.FindCluster(name);
  if (c < 0) return;
  NewRound();
  std::vector<ClusterRow> rows = *s_.clusters_;
  rows[c].drained = drained;
  rows[c].drain_reason = drained ? reason : "";
  s_.clusters_ = std::make_shared<const std::vector<ClusterRow>>(std::move(rows));
  s_.configuration_changed_ = true;
  for (const HostId id : *s_.host_order_) {
    if (s_.host(id).cluster == c) RefreshHost(id);
  }
}

HostId Applier::FindOrAddHost(const std::string& cluster, const std::string& host) {
  const int32_t c = s_.FindCluster(cluster);
  if (c < 0) return kNoHost;
  const HostId known = s_.FindHost(cluster, host);
  if (known != kNoHost) return known;
  const HostId id = s_.host_count_++;
  HostRow* row = s_.hosts_.Mutable(static_cast<size_t>(id));
  row->id = id;
  row->cluster = c;
  row->name = host;
  s_.host_by_name_.Set(absl::StrCat(cluster, "/", host), static_cast<uint64_t>(id) + 1);
  s_.changed_hosts_.insert(id);
  return id;
}

void Applier::OrderHosts() {
  std::vector<HostId> order;
  std::vector<bool> listed(static_cast<size_t>(s_.host_count_), false);
  for (size_t c = 0; c < s_.clusters_->size(); ++c) {
    const ClusterRow& cluster = (*s_.clusters_)[c];
    for (const pb::HostSpec& spec : cluster.spec.hosts()) {
      const HostId id = s_.FindHost(cluster.name, spec.name());
      if (id == kNoHost || listed[id]) continue;
      listed[id] = true;
      order.push_back(id);
    }
    std::map<std::string, HostId> others;
    s_.hosts_.ForEach([&](size_t index, const HostRow& host) {
      if (!listed[index] && host.cluster == static_cast<int32_t>(c)) others[host.name] = host.id;
    });
    for (const auto& [name, id] : others) order.push_back(id);
  }
  s_.host_order_ = std::make_shared<const std::vector<HostId>>(std::move(order));
}

void Applier::OrderHost(HostId id) {
  const HostRow& row = s_.host(id);
  std::vector<HostId> order = *s_.host_order_;
  const auto at = std::partition_point(order.begin(), order.end(), [&](HostId other_id) {
    const HostRow& other = s_.host(other_id);
    return other.cluster != row.cluster ? other.cluster < row.cluster
                                        : other.listed || other.name < row.name;
  });
  order.insert(at, id);
  s_.host_order_ = std::make_shared<const std::vector<HostId>>(std::move(order));
}

void Applier::On(const pb::QueuesApplied& e) {
  SetQueues(e.tree());
  s_.queue_version_ = std::max(s_.queue_version_ + 1, e.version());
  NewRound();
  TickOrder();
}

void Applier::On(const pb::ClustersConfigured& e) {
  SetClusters(e.file());
  NewRound();
  for (int32_t c = 0; c < static_cast<int32_t>(s_.clusters_->size()); ++c) Reconsider(c);
}

void Applier::On(const pb::DrainChanged& e) {
  const size_t slash = e.target().find('/');
  if (slash == std::string::npos) return SetClusterDrained(e.target(), e.drained(), e.reason());
  const HostId id = s_.FindHost(e.target().substr(0, slash), e.target().substr(slash + 1));
  if (id == kNoHost) return;
  HostRow* host = Host(id);
  NewRound();
  host->drained = e.drained();
  host->drain_reason = e.drained() ? e.reason() : "";
  RefreshHost(id);
}

}  // namespace muster
