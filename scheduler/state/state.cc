#include "scheduler/state/state.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/spec/members.h"
#include "scheduler/state/applier.h"
#include "scheduler/state/bytes.h"
#include "scheduler/state/hosted.h"

namespace muster {

std::string IdempotencyIndexKey(std::string_view owner, std::string_view key) {
  std::string index_key(owner);
  index_key.push_back('\0');
  return index_key.append(key);
}

void JobRow::SetSpec(const pb::JobSpec& resolved) {
  spec = std::make_shared<const pb::JobSpec>(resolved);
  spec_bytes = std::make_shared<const std::string>(DeterministicBytes(resolved));
  holder = HolderNumber(resolved);
}

State::State()
    : active_(std::make_shared<std::vector<uint64_t>>()),
      finished_(std::make_shared<std::vector<uint64_t>>()),
      arrays_(std::make_shared<std::map<uint64_t, ArrayTally>>()),
      awaited_(std::make_shared<std::map<AwaitedKey, std::vector<uint64_t>>>()),
      due_(std::make_shared<std::set<std::pair<int64_t, uint64_t>>>()),
      hosted_(std::make_shared<std::map<uint64_t, std::vector<uint64_t>>>()),
      staged_exports_(std::make_shared<std::set<AttemptRef>>()),
      reserved_(std::make_shared<std::vector<TaskRef>>()),
      waiting_(std::make_shared<std::vector<TaskRef>>()),
      queue_use_(std::make_shared<std::map<std::pair<std::string, std::string>, int64_t>>()),
      host_order_(std::make_shared<std::vector<HostId>>()),
      clusters_(std::make_shared<std::vector<ClusterRow>>()),
      cluster_file_(std::make_shared<pb::ClusterFile>()),
      queue_tree_(std::make_shared<pb::QueueTree>()),
      queues_(std::make_shared<QueueIndex>(BuildQueues(pb::QueueTree()))),
      bindings_(std::make_shared<Bindings>()),
      trust_(std::make_shared<Trust>()),
      ledger_(std::make_shared<std::map<std::pair<std::string, int>, int64_t>>()),
      ledger_rate_(std::make_shared<std::map<std::pair<std::string, int>, int64_t>>()),
      history_(std::make_shared<std::map<std::string, QueueHistory>>()),
      idle_(std::make_shared<std::map<std::pair<std::string, std::string>, int64_t>>()),
      configuration_changed_(true) {}  // it has no row yet

const JobRow* State::FindJob(uint64_t number) const { return jobs_.Find(number); }

const JobRow* State::FindJobByUid(std::string_view uid) const {
  const uint64_t number = job_by_uid_.Find(uid);
  return number == 0 ? nullptr : FindJob(number);
}

uint64_t State::FindByIdempotencyKey(std::string_view owner, std::string_view key) const {
  return key.empty() ? 0 : job_by_key_.Find(IdempotencyIndexKey(owner, key));
}

const JobRow* State::FindJobByText(std::string_view text) const {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return FindJob(number);
  const size_t bar = text.rfind('_');
  if (bar == std::string_view::npos) return FindJobByUid(text);
  if (text.find('_') != bar) return nullptr;
  // 17_3, or the array's uid in place of 17: of an array by its index.
  const std::string_view whole = text.substr(0, bar), tail = text.substr(bar + 1);
  int64_t index = 0;
  const auto [to, wrong] = std::from_chars(tail.data(), tail.data() + tail.size(), index);
  const JobRow* first = FindJobByText(whole);
  if (wrong != std::errc() || to != tail.data() + tail.size() || first == nullptr ||
      first->array != first->number)
    return nullptr;
  const int32_t member = MemberOfIndex(*first->spec, index);
  return member < 0 ? nullptr : FindJob(first->number + static_cast<uint64_t>(member));
}

std::vector<uint64_t> State::AllJobs() const {
  std::vector<uint64_t> all;
  all.reserve(active_->size() + finished_->size());
  jobs_.ForEach([&](size_t number, const JobRow&) { all.push_back(number); });
  return all;
}

const AttemptRow* State::FindAttempt(const pb::AttemptKey& key, const JobRow** job,
                                     int32_t* task) const {
  const JobRow* row = FindJobByUid(key.job_uid());
  if (row == nullptr) return nullptr;
  const int32_t index = TaskIndex(*row->spec, key.task());
  if (index < 0) return nullptr;
  for (const AttemptRow& attempt : row->tasks[index].attempts) {
    if (attempt.number != key.attempt()) continue;
    if (job != nullptr) *job = row;
    if (task != nullptr) *task = index;
    return &attempt;
  }
  return nullptr;
}

const AttemptRow* State::FindAttempt(const AttemptRef& ref) const {
  const JobRow* job = FindJob(ref.job);
  if (job == nullptr || ref.task < 0 || ref.task >= static_cast<int32_t>(job->tasks.size()))
    return nullptr;
  for (const AttemptRow& attempt : job->tasks[ref.task].attempts) {
    if (attempt.number == ref.number) return &attempt;
  }
  return nullptr;
}

const HostRow& State::host(HostId id) const {
  const HostRow* row = id < 0 ? nullptr : hosts_.Find(static_cast<size_t>(id));
  MUSTER_CHECK(row != nullptr);
  return *row;
}

HostId State::FindHost(std::string_view cluster, std::string_view host) const {
  std::string name(cluster);
  name.append("/").append(host);
  return static_cast<HostId>(host_by_name_.Find(name)) - 1;
}

int32_t State::FindCluster(std::string_view name) const {
  for (size_t c = 0; c < clusters_->size(); ++c) {
    if ((*clusters_)[c].name == name) return static_cast<int32_t>(c);
  }
  return -1;
}

std::string State::HostName(HostId id) const {
  const HostRow& row = host(id);
  return absl::StrCat((*clusters_)[row.cluster].name, "/", row.name);
}

Touched State::Since(const State& before) const {
  Touched touched;
  touched.clusters = clusters_ != before.clusters_ || cluster_file_ != before.cluster_file_;
  touched.history = history_ != before.history_;
  touched.queues = queues_ != before.queues_;
  touched.host_order = host_order_ != before.host_order_;
  jobs_.ForEachDifferent(before.jobs_, [&](size_t number) { touched.jobs.push_back(number); });
  hosts_.ForEachDifferent(before.hosts_,
                          [&](size_t id) { touched.hosts.push_back(static_cast<HostId>(id)); });
  return touched;
}

namespace {

void AddQueue(const pb::QueueSpec& spec, int32_t parent, QueueIndex* index) {
  const int32_t id = static_cast<int32_t>(index->nodes.size());
  const QueueNode& above = index->nodes[parent];
  QueueNode node;
  node.path = above.path.empty() ? spec.name() : absl::StrCat(above.path, "/", spec.name());
  node.parent = parent;
  node.spec = spec;
  node.spec.clear_queues();
  node.held = above.held || spec.held();
  node.min_runtime_ns = spec.min_runtime_ns() != 0 ? spec.min_runtime_ns() : above.min_runtime_ns;
  node.shortest_first = spec.order() == pb::QUEUE_ORDER_UNSPECIFIED ? above.shortest_first
                                                                    : spec.order() == pb::SHORTEST;
  node.max_wait_ns = spec.max_wait_ns() != 0 ? spec.max_wait_ns() : above.max_wait_ns;
  index->by_path[node.path] = id;
  index->nodes[parent].children.push_back(id);
  index->nodes.push_back(std::move(node));
  for (const pb::QueueSpec& child : spec.queues()) AddQueue(child, id, index);
}

}  // namespace

QueueIndex BuildQueues(const pb::QueueTree& tree) {
  QueueIndex index;
  index.nodes.emplace_back();
  index.nodes.back().max_wait_ns = kMaxWaitNs;
  for (const pb::QueueSpec& queue : tree.queues()) AddQueue(queue, 0, &index);
  if (tree.queues().empty()) {
    pb::QueueSpec only;
    only.set_name("default");
    AddQueue(only, 0, &index);
  }
  return index;
}

}  // namespace muster
