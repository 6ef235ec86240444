#include "sim/peers/kueue.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/units.h"
#include "common/spec/yaml_tree.h"

namespace muster::sim {
namespace {

constexpr char kCluster[] = "kueue";
constexpr int64_t kHostCpusMilli = 120'000;  // of a generator without topology
constexpr int64_t kHostMemoryBytes = int64_t{256} << 30;

// Reads a tree whose form is known; the first thing that is otherwise is kept, and everything after
// it reads as zero.
class Reader {
 public:
  Reader(std::string_view text, std::string_view filename) : filename_(filename) {
    if (document_.Parse(text, filename)) return;
    std::vector<Problem> problems;
    document_.Deliver(&problems);
    status_ =
        absl::InvalidArgumentError(problems.empty() ? absl::StrCat(filename_, ": no YAML")
                                                    : absl::StrCat(filename_, ":", problems[0].line,
                                                                   ": ", problems[0].message));
  }
  const YamlNode& root() const { return document_.root(); }
  const absl::Status& status() const { return status_; }

  void Fail(const YamlNode& at, const std::string& what) {
    if (status_.ok())
      status_ = absl::InvalidArgumentError(absl::StrCat(filename_, ":", at.line, ": ", what));
  }
  const YamlNode& At(const YamlNode& map, const char* key) {
    const YamlNode* found = map.IsMap() ? map.Find(key) : nullptr;
    if (found != nullptr) return *found;
    Fail(map, absl::StrCat(key, " is missing"));
    return none_;
  }
  std::string Text(const YamlNode& map, const char* key) { return At(map, key).text; }
  std::string TextOr(const YamlNode& map, const char* key, const std::string& otherwise) {
    const YamlNode* found = map.IsMap() ? map.Find(key) : nullptr;
    return found == nullptr ? otherwise : found->text;
  }
  int64_t Int(const YamlNode& node) {
    int64_t value = 0;
    if (!absl::SimpleAtoi(node.text, &value) || value < 0)
      Fail(node, absl::StrCat("\"", node.text, "\" is no count"));
    return value;
  }
  int64_t Int(const YamlNode& map, const char* key) { return Int(At(map, key)); }
  // "20" or "500m", as Kubernetes writes CPUs; thousandths.
  int64_t CpusMilli(const YamlNode& map, const char* key) {
    const YamlNode& node = At(map, key);
    std::string text = node.text;
    const bool milli = absl::EndsWith(text, "m");
    if (milli) text.pop_back();
    int64_t value = 0;
    if (!absl::SimpleAtoi(text, &value) || value < 0)
      Fail(node, absl::StrCat("\"", node.text, "\" is no amount of CPUs"));
    return milli ? value : value * 1000;
  }

 private:
  const std::string filename_;
  Document document_;
  absl::Status status_;
  const YamlNode none_;
};

void AddHosts(Reader* reader, int64_t nominal_milli, pb::ClusterFile* file) {
  pb::Sku& sku = (*file->mutable_skus())["node"];
  sku.set_declared(true);
  sku.set_cpus_milli(kHostCpusMilli);
  sku.set_memory_bytes(kHostMemoryBytes);
  pb::ClusterSpec* cluster = file->add_clusters();
  cluster->set_name(kCluster);
  cluster->set_sku("node");
  const auto add = [&](const std::string& name, const std::string& block, const std::string& rack) {
    pb::HostSpec* host = cluster->add_hosts();
    host->set_name(name);
    host->set_block(block);
    host->set_rack(rack);
  };
  const YamlNode* topology = reader->root().IsMap() ? reader->root().Find("topology") : nullptr;
  if (topology == nullptr) {
    // Six times what quota lets run, so that no mixture of jobs lacks a host.
    for (int64_t h = 0; h * kHostCpusMilli < 6 * nominal_milli; ++h)
      add(absl::StrFormat("n%03d", h), "b0", absl::StrCat("r", h / 16));
    return;
  }
  int64_t counts[3] = {0, 0, 0};
  const YamlNode& levels = reader->At(*topology, "levels");
  const char* const names[] = {"block", "rack", "node"};
  if (levels.items.size() != 3)
    return reader->Fail(levels, "wants the levels block, rack and node");
  for (size_t l = 0; l < 3; ++l) {
    if (reader->Text(levels.items[l], "name") != names[l])
      return reader->Fail(levels.items[l], absl::StrCat("wants the level ", names[l]));
    counts[l] = reader->Int(levels.items[l], "count");
  }
  sku.set_cpus_milli(reader->CpusMilli(reader->At(levels.items[2], "capacity"), "cpu"));
  for (int64_t b = 0; b < counts[0]; ++b) {
    for (int64_t r = 0; r < counts[1]; ++r) {
      for (int64_t n = 0; n < counts[2]; ++n) {
        add(absl::StrFormat("b%d-r%02d-n%02d", b, r, n), absl::StrCat("b", b),
            absl::StrFormat("b%d-r%02d", b, r));
      }
    }
  }
}

void SetTopology(Reader* reader, const YamlNode& workload, pb::Topology* topology) {
  const std::string constraint = reader->TextOr(workload, "tasConstraint", "");
  if (constraint.empty()) return;
  if (!absl::EndsWith(reader->Text(workload, "tasLevel"), "/topology-rack"))
    reader->Fail(workload, "only racks are known as tasLevel");
  if (constraint == "required") {
    topology->set_required(pb::RACK);
  } else if (constraint == "preferred" || constraint == "balanced") {
    topology->set_preferred(pb::RACK);
  } else {
    reader->Fail(workload, absl::StrCat("\"", constraint, "\" is no tasConstraint"));
  }
}

void AddJobs(Reader* reader, const YamlNode& set, const std::string& queue, int32_t divide,
             std::vector<KueueJob>* jobs) {
  const int64_t count = (reader->Int(set, "count") + divide - 1) / divide;
  const int64_t interval_ns = reader->Int(set, "creationIntervalMs") * kMillisecond;
  for (int64_t i = 0; i < count && reader->status().ok(); ++i) {
    for (const YamlNode& workload : reader->At(set, "workloads").items) {
      KueueJob& job = jobs->emplace_back();
      job.submit_ns = i * interval_ns;
      job.runtime_ns = reader->Int(workload, "runtimeMs") * kMillisecond;
      job.class_name = reader->Text(workload, "className");
      job.spec.set_name(absl::StrCat(job.class_name, "-", i));
      job.spec.set_queue(queue);
      // Kueue's priorities are any integers, Muster's 0..100: halved, these keep their order.
      job.spec.set_priority(static_cast<int32_t>(reader->Int(workload, "priority") / 2));
      pb::TaskSpec* task = job.spec.add_tasks();
      task->set_name("main");
      const bool pods = workload.IsMap() && workload.Find("podCount") != nullptr;
      const auto workers = static_cast<int32_t>(pods ? reader->Int(workload, "podCount") : 1);
      task->mutable_workers()->set_min(workers);
      task->mutable_workers()->set_max(workers);
      task->mutable_resources()->set_cpus_milli(reader->CpusMilli(workload, "request"));
      task->mutable_run()->add_exec("simulated");
      SetTopology(reader, workload, task->mutable_topology());
    }
  }
}

}  // namespace

absl::StatusOr<KueueSetup> ParseKueueGenerator(std::string_view text, std::string_view filename,
                                               const KueueOptions& options) {
  Reader reader(text, filename);
  KueueSetup setup;
  const auto quota = [&](pb::QueueSpec* queue, int64_t guarantee_milli, int64_t limit_milli) {
    pb::Quota& row = (*queue->mutable_quota())["cpu"];
    if (options.guarantees) row.set_guarantee_milli(guarantee_milli);
    row.set_limit_milli(limit_milli);
  };
  for (const YamlNode& cohort : reader.At(reader.root(), "cohorts").items) {
    const int64_t cohorts = reader.Int(cohort, "count");
    for (int64_t c = 0; c < cohorts && reader.status().ok(); ++c) {
      pb::QueueSpec* parent = setup.queues.add_queues();
      parent->set_name(absl::StrCat(reader.Text(cohort, "className"), "-", c));
      int64_t sum_milli = 0;
      for (const YamlNode& set : reader.At(cohort, "queuesSets").items) {
        const int64_t queues = reader.Int(set, "count");
        const int64_t nominal_milli = reader.CpusMilli(set, "nominalQuota");
        setup.queue_class = reader.Text(set, "className");
        for (int64_t q = 0; q < queues && reader.status().ok(); ++q) {
          pb::QueueSpec* leaf = parent->add_queues();
          leaf->set_name(absl::StrCat(setup.queue_class, "-", q));
          quota(leaf, nominal_milli, nominal_milli + reader.CpusMilli(set, "borrowingLimit"));
          sum_milli += nominal_milli;
          const std::string path = absl::StrCat(parent->name(), "/", leaf->name());
          for (const YamlNode& workloads : reader.At(set, "workloadsSets").items)
            AddJobs(&reader, workloads, path, options.divide, &setup.jobs);
        }
      }
      quota(parent, sum_milli, sum_milli);
      setup.nominal_milli += sum_milli;
    }
  }
  if (reader.status().ok()) AddHosts(&reader, setup.nominal_milli, &setup.clusters);
  if (!reader.status().ok()) return reader.status();
  std::stable_sort(setup.jobs.begin(), setup.jobs.end(),
                   [](const KueueJob& a, const KueueJob& b) { return a.submit_ns < b.submit_ns; });
  return setup;
}

bool LooksLikeKueueGenerator(std::string_view text) {
  constexpr std::string_view kKey = "cohorts:";
  return text.substr(0, kKey.size()) == kKey || text.find("\ncohorts:") != std::string_view::npos;
}

Trace TraceOf(const KueueSetup& setup) {
  Trace trace;
  for (const KueueJob& job : setup.jobs) {
    const pb::TaskSpec& task = job.spec.tasks(0);
    TraceJob& made = trace.jobs.emplace_back();
    made.submit_ns = job.submit_ns;
    made.duration_ns = job.runtime_ns;
    made.queue = job.spec.queue();
    made.name = job.spec.name();
    made.priority = job.spec.priority();
    made.workers = made.max_workers = task.workers().min();
    made.gpus_milli = 0;
    made.cpus_milli = task.resources().cpus_milli();
    made.required = task.topology().required();
    made.preferred = task.topology().preferred();
    made.checkpoint_ns = 0;
  }
  return trace;
}

}  // namespace muster::sim
