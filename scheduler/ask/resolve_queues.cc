#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/units.h"
#include "common/spec/config_files.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/capacity.h"

namespace muster {
namespace {

using Pools = std::map<std::string, int64_t>;  // cluster -> thousandths

// Splits the plain guarantees of one flavour over clusters. A queue's pools must cover what its
// children name or need, so needs rise from the leaves first; then each queue, parents before
// children, takes the rest of its plain number from what its siblings' needs leave, in the
// clusters' file order. Queues aren't restricted to clusters, so this finds a split if there is
// one.
class GuaranteeSplitter {
 public:
  GuaranteeSplitter(const State& state, std::string flavour, std::vector<FieldProblem>* problems)
      : flavour_(std::move(flavour)), problems_(problems) {
    for (const ClusterRow& cluster : state.clusters()) order_.push_back(cluster.name);
    for (const auto& [cluster, milli] : PoolCapacity(state, flavour_)) {
      // What is one user's is nothing that a queue could be promised.
      if (!state.clusters()[cluster].spec.only_user().empty()) continue;
      capacity_[state.clusters()[cluster].name] = milli;
      total_milli_ += milli;
    }
  }

  void Split(google::protobuf::RepeatedPtrField<pb::QueueSpec>* roots) {
    for (const std::string& cluster : order_) capacity_[cluster] += 0;
    SplitLevel(roots, capacity_, "queues", "the clusters have");
  }

 private:
  std::string NoneAnywhere() const {
    return absl::StrCat("no cluster has any ", flavour_, ". What there is: muster cluster list");
  }

  const pb::Quota* QuotaOf(const pb::QueueSpec& queue) const {
    const auto found = queue.quota().find(flavour_);
    return found == queue.quota().end() ? nullptr : &found->second;
  }

  // What the queue needs in each pool whatever happens: its own numbers per cluster, else the sum
  // of its children's needs.
  Pools Need(const pb::QueueSpec& queue) const {
    Pools need;
    const pb::Quota* quota = QuotaOf(queue);
    if (quota != nullptr && !quota->guarantee_per_cluster().empty()) {
      for (const auto& [cluster, milli] : quota->guarantee_per_cluster()) need[cluster] += milli;
      return need;
    }
    for (const pb::QueueSpec& child : queue.queues()) {
      for (const auto& [cluster, milli] : Need(child)) need[cluster] += milli;
    }
    return need;
  }

  void SplitLevel(google::protobuf::RepeatedPtrField<pb::QueueSpec>* level, Pools available,
                  const std::string& path, const std::string& who_has) {
    std::vector<Pools> needs;
    for (const pb::QueueSpec& queue : *level) {
      needs.push_back(Need(queue));
      if (total_milli_ == 0) continue;  // said once, of each queue's own guarantee
      for (const auto& [cluster, milli] : needs.back()) {
        if (!capacity_.contains(cluster))
          continue;  // an unknown cluster is reported where it is named
        available[cluster] -= milli;
        if (available[cluster] < 0) {
          problems_->push_back(
              {absl::StrCat(path, "[", needs.size() - 1, "].quota.", flavour_, ".guarantee"),
               absl::StrCat("guarantees in ", cluster, " exceed what ", who_has, " there by ",
                            FormatMilli(-available[cluster]))});
          available[cluster] = 0;
        }
      }
    }
    for (int i = 0; i < level->size(); ++i) {
      pb::QueueSpec& queue = *level->Mutable(i);
      Pools pools = needs[i];
      const std::string here = absl::StrCat(path, "[", i, "]");
      if (auto found = queue.mutable_quota()->find(flavour_);
          found != queue.mutable_quota()->end() && found->second.guarantee_milli() > 0) {
        pb::Quota& quota = found->second;
        if (quota.guarantee_per_cluster().empty()) {
          int64_t rest = quota.guarantee_milli();
          for (const auto& [cluster, milli] : pools) rest -= milli;
          if (rest < 0) {
            problems_->push_back({absl::StrCat(here, ".quota.", flavour_, ".guarantee"),
                                  absl::StrCat("is ", FormatMilli(quota.guarantee_milli()),
                                               "; the queues below it are guaranteed ",
                                               FormatMilli(quota.guarantee_milli() - rest))});
          }
          for (const std::string& cluster : order_) {
            // Whole devices, so that no guarantee ends in a fraction that no gang can use.
            const int64_t take = std::min(rest, available[cluster] / 1000 * 1000);
            if (take <= 0) continue;
            pools[cluster] += take;
            available[cluster] -= take;
            rest -= take;
          }
          if (rest > 0) {
            problems_->push_back(
                {absl::StrCat(here, ".quota.", flavour_, ".guarantee"),
                 total_milli_ == 0
                     ? NoneAnywhere()
                     : absl::StrCat(FormatMilli(rest), " of ", FormatMilli(quota.guarantee_milli()),
                                    " ", flavour_, " are more than what ", who_has, " left")});
          }
          for (const auto& [cluster, milli] : pools) {
            if (milli > 0) (*quota.mutable_guarantee_per_cluster())[cluster] = milli;
          }
        } else {
          if (total_milli_ == 0)
            problems_->push_back(
                {absl::StrCat(here, ".quota.", flavour_, ".guarantee"), NoneAnywhere()});
          for (const auto& [cluster, milli] : quota.guarantee_per_cluster()) {
            if (!capacity_.contains(cluster)) {
              problems_->push_back({absl::StrCat(here, ".quota.", flavour_, ".guarantee.", cluster),
                                    "no such cluster"});
            }
          }
        }
      }
      SplitLevel(queue.mutable_queues(), pools, here + ".queues",
                 absl::StrCat("queue ", queue.name(), " has"));
    }
  }

  const std::string flavour_;
  std::vector<FieldProblem>* const problems_;
  std::vector<std::string> order_;
  Pools capacity_;
  int64_t total_milli_ = 0;
};

void CollectFlavours(const google::protobuf::RepeatedPtrField<pb::QueueSpec>& level,
                     std::set<std::string>* flavours) {
  for (const pb::QueueSpec& queue : level) {
    for (const auto& [flavour, quota] : queue.quota()) flavours->insert(flavour);
    CollectFlavours(queue.queues(), flavours);
  }
}

// Of the clusters file's SKUs, of hosts that were seen, and of the tree in force; CPUs are always
// there. None (all are accepted) as long as some cluster may bring any: it is open, names no SKU,
// and no host with devices has joined it. Queues are often applied before hosts come.
std::vector<std::string> KnownFlavours(const State& state) {
  std::set<std::string> known = {"cpu"};
  for (const auto& [name, sku] : state.cluster_file().skus()) known.insert(sku.flavour());
  CollectFlavours(state.queue_tree().queues(), &known);
  std::vector<bool> told(state.clusters().size(), false);
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    if (host.inventory.flavour().empty()) continue;
    known.insert(host.inventory.flavour());
    told[host.cluster] = true;
  }
  for (size_t c = 0; c < told.size(); ++c) {
    const pb::ClusterSpec& spec = state.clusters()[c].spec;
    if (spec.open() && !told[c] &&
        SkuOf(state.cluster_file(), spec, pb::HostSpec::default_instance()) == nullptr)
      return {};
  }
  known.erase("");
  return state.clusters().empty() ? std::vector<std::string>()
                                  : std::vector<std::string>(known.begin(), known.end());
}

// Path -> the queue without its children, serialized with sorted maps by way of text.
void Flatten(const google::protobuf::RepeatedPtrField<pb::QueueSpec>& level,
             const std::string& prefix, std::map<std::string, pb::QueueSpec>* out) {
  for (const pb::QueueSpec& queue : level) {
    pb::QueueSpec alone = queue;
    alone.clear_queues();
    (*out)[prefix + queue.name()] = alone;
    Flatten(queue.queues(), absl::StrCat(prefix, queue.name(), "/"), out);
  }
}

int64_t WeightOf(const pb::Quota& quota) { return quota.has_weight() ? quota.weight() : 1; }

// All of a quota that counts; a weight of 1 is what none means. `pools`: with the guarantee's split
// over clusters.
std::string QuotaText(const pb::QueueSpec& queue, bool pools) {
  std::string text;
  std::map<std::string, pb::Quota> sorted(queue.quota().begin(), queue.quota().end());
  for (const auto& [flavour, quota] : sorted) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", flavour, " guarantee ",
                    FormatMilli(quota.guarantee_milli()));
    if (quota.has_limit_milli())
      absl::StrAppend(&text, " limit ", FormatMilli(quota.limit_milli()));
    if (WeightOf(quota) != 1) absl::StrAppend(&text, " weight ", WeightOf(quota));
    const std::map<std::string, int64_t> split(quota.guarantee_per_cluster().begin(),
                                               quota.guarantee_per_cluster().end());
    if (pools && !split.empty()) {
      absl::StrAppend(&text, " (",
                      absl::StrJoin(split, ", ",
                                    [](std::string* out, const auto& pool) {
                                      absl::StrAppend(out, FormatMilli(pool.second), " in ",
                                                      pool.first);
                                    }),
                      ")");
    }
  }
  return text.empty() ? "no quota" : text;
}

std::string NamesText(const google::protobuf::RepeatedPtrField<std::string>& names) {
  return names.empty() ? "as the queue above it"
                       : absl::StrCat("[", absl::StrJoin(names, ", "), "]");
}

// Each setting beside the quota that differs, with both sides.
std::string SettingsText(const pb::QueueSpec& before, const pb::QueueSpec& after) {
  std::vector<std::string> said;
  const auto say = [&](const char* name, const std::string& from, const std::string& to) {
    if (from != to) said.push_back(absl::StrCat(name, " ", from, " -> ", to));
  };
  const auto duration = [](int64_t ns, const char* none) {
    return ns == 0 ? std::string(none) : FormatDuration(ns);
  };
  say("submit", NamesText(before.submit()), NamesText(after.submit()));
  say("admin", NamesText(before.admin()), NamesText(after.admin()));
  say("min_runtime", duration(before.min_runtime_ns(), "as musterd.yaml says"),
      duration(after.min_runtime_ns(), "as musterd.yaml says"));
  say("max_time_limit", duration(before.max_time_limit_ns(), "none"),
      duration(after.max_time_limit_ns(), "none"));
  const auto gpus = [](int64_t milli) {
    return milli == 0 ? std::string("without bound") : FormatMilli(milli);
  };
  say("max_gpus_per_job", gpus(before.max_gpus_per_job_milli()),
      gpus(after.max_gpus_per_job_milli()));
  const auto order = [](const pb::QueueSpec& queue) {
    return queue.order() == pb::QUEUE_ORDER_UNSPECIFIED ? "as the queue above it"
           : queue.order() == pb::SHORTEST              ? "shortest"
                                                        : "fifo";
  };
  say("order", order(before), order(after));
  say("max_wait", duration(before.max_wait_ns(), "as the queue above it"),
      duration(after.max_wait_ns(), "as the queue above it"));
  say("held", before.held() ? "yes" : "no", after.held() ? "yes" : "no");
  return absl::StrJoin(said, "; ");
}

std::vector<std::string> ChangesBetween(const pb::QueueTree& before, const pb::QueueTree& after) {
  std::map<std::string, pb::QueueSpec> old_queues, new_queues;
  Flatten(before.queues(), "", &old_queues);
  Flatten(after.queues(), "", &new_queues);
  std::vector<std::string> changes;
  for (const auto& [path, queue] : new_queues) {
    const auto old = old_queues.find(path);
    if (old == old_queues.end()) {
      changes.push_back(absl::StrCat("+ ", path, ": ", QuotaText(queue, false)));
    } else if (QuotaText(old->second, true) != QuotaText(queue, true)) {
      const bool pools = QuotaText(old->second, false) ==
                         QuotaText(queue, false);  // else the split is what follows
      changes.push_back(absl::StrCat("~ ", path, ": ", QuotaText(old->second, pools), " -> ",
                                     QuotaText(queue, pools)));
    }
    if (old == old_queues.end()) continue;
    const std::string settings = SettingsText(old->second, queue);
    if (!settings.empty()) changes.push_back(absl::StrCat("~ ", path, ": ", settings));
  }
  for (const auto& [path, queue] : old_queues) {
    if (!new_queues.contains(path)) changes.push_back(absl::StrCat("- ", path));
  }
  return changes;
}

}  // namespace

QueueResolution ResolveQueues(const State& state, const pb::QueueTree& tree) {
  QueueResolution resolution;
  resolution.resolved = tree;
  QueueContext context;
  for (const ClusterRow& cluster : state.clusters()) context.clusters.push_back(cluster.name);
  context.flavours = KnownFlavours(state);
  resolution.problems = CheckQueueTree(tree, context);
  if (!resolution.ok()) return resolution;
  std::set<std::string> flavours;
  CollectFlavours(tree.queues(), &flavours);
  for (const std::string& flavour : flavours)
    GuaranteeSplitter(state, flavour, &resolution.problems)
        .Split(resolution.resolved.mutable_queues());
  std::map<std::string, pb::QueueSpec> queues;
  Flatten(tree.queues(), "", &queues);
  std::map<std::string, std::vector<uint64_t>>
      homeless;  // unfinished jobs by a queue that would no longer hold any
  for (uint64_t number : state.active_jobs()) {
    const std::string& path = state.FindJob(number)->spec->queue();
    const bool kept = queues.contains(path);
    const auto below = queues.upper_bound(path + "/");
    const bool inner =
        below != queues.end() && below->first.compare(0, path.size() + 1, path + "/") == 0;
    if (tree.queues().empty() ? path != "default" : (!kept || inner))
      homeless[path].push_back(number);
  }
  for (const auto& [path, jobs] : homeless) {
    resolution.problems.push_back(
        {path, absl::StrCat("has ", jobs.size(),
                            jobs.size() == 1 ? " unfinished job (job " : " unfinished jobs (job ",
                            jobs.front(), jobs.size() == 1 ? "" : " among them",
                            "); it must stay a queue that holds jobs")});
  }
  if (resolution.ok()) resolution.changes = ChangesBetween(state.queue_tree(), resolution.resolved);
  return resolution;
}

}  // namespace muster
