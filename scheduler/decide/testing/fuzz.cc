#include "scheduler/decide/testing/fuzz.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/fnv.h"
#include "common/base/units.h"
#include "common/spec/config_files.h"
#include "scheduler/decide/decide.h"
#include "scheduler/decide/decider.h"
#include "scheduler/decide/draft/draft.h"
#include "scheduler/decide/model/inputs.h"
#include "scheduler/decide/model/model_upkeep.h"
#include "scheduler/decide/place/free_map.h"
#include "scheduler/decide/testing/dice.h"
#include "scheduler/decide/testing/fuzz_after.h"
#include "scheduler/decide/testing/fuzz_arrays.h"
#include "scheduler/decide/testing/fuzz_blocks.h"
#include "scheduler/decide/testing/fuzz_due.h"
#include "scheduler/decide/testing/fuzz_hosted.h"
#include "scheduler/decide/testing/fuzz_multiples.h"
#include "scheduler/decide/testing/fuzz_outside.h"
#include "scheduler/decide/testing/fuzz_rules.h"
#include "scheduler/decide/testing/fuzz_spared.h"
#include "scheduler/decide/testing/fuzz_successors.h"
#include "scheduler/decide/testing/fuzz_together.h"
#include "scheduler/state/queue_order.h"
#include "scheduler/state/validate.h"

namespace muster {
namespace {

constexpr int kBandsInQuiet = 24;   // that a job is in, one after the other, in one quiet time
constexpr int kSettlesWithin = 60;  // decisions with an effect in one quiet time
constexpr const char* kFlavours[] = {"a100", "h100"};

class Case {
 public:
  Case(uint64_t seed, FuzzTotals* totals, bool trace, bool arrays)
      : dice_(seed),
        order_dice_(~seed),
        array_dice_(seed ^ 0x5bd1e995),
        unequal_agents_(seed % 8 == 2),
        successor_dice_(seed ^ 0x7feb352d),
        due_dice_(seed ^ 0x1b873593),
        together_dice_(seed ^ 0x846ca68b),
        crowd_dice_(seed ^ 0x165667b1),
        crowds_(seed % 16 == 10 || seed % 16 == 13),
        multiple_dice_(seed ^ 0x27d4eb2f),
        multiples_(seed % 11 == 3 || seed % 11 == 8),
        block_dice_(seed ^ 0x3c6ef372),
        rank_blocks_(seed % 13 == 4 || seed % 13 == 9),
        levels_(seed % 13 == 9),
        hosted_dice_(seed ^ 0x2c1b3c6d),
        hosted_(arrays && (seed % 8 == 5 || seed % 16 == 1)),
        together_(arrays && (seed % 8 == 0 || seed % 8 == 7)),
        arrays_(arrays && seed % 8 == 6),
        successors_(arrays && (seed % 8 == 4 || seed % 16 == 14)),
        timed_(arrays && (seed % 16 == 12 || seed % 16 == 6)),
        cpu_heavy_(seed % 8 == 3),
        by_length_(seed % 4 == 1),
        one_way_(seed % 16 == 11),
        totals_(*totals),
        trace_(trace) {}

  std::string Run() {
    ++totals_.trees;
    Configure();
    const int bursts = 2 + dice_.Of(4);
    for (int burst = 0; burst < bursts && error_.empty(); ++burst) {
      const int steps = 1 + dice_.Of(8);
      for (int i = 0; i < steps && error_.empty(); ++i) {
        Advance(dice_.Of(4) * kSecond);
        if (by_length_ && order_dice_.Percent(40))
          Advance(order_dice_.Of(2 * kOrderTickNs / kSecond) * kSecond);
        const int events = dice_.Of(4) + (burst == 0 && i == 0 ? 3 : 0);
        for (int e = 0; e < events; ++e) Outside();
        if (crowds_ && crowd_dice_.Percent(30)) {
          for (int more = 4 + crowd_dice_.Of(6); more > 0; --more) Submit();
        }
        if (by_length_) ExpectEnds();
        Agents(/*quiet=*/false);
        Step();
      }
      if (error_.empty()) Settle();
    }
    if (error_.empty() && dice_.Of(16) == 0) {
      const std::string difference = State::Difference(s_, s_.Rebuilt());
      if (!difference.empty()) Fail(absl::StrCat("derived data: ", difference));
    }
    return error_;
  }

 private:
  void Fail(const std::string& what) {
    if (error_.empty()) error_ = absl::StrCat("step ", step_, ": ", what);
  }

  void Expect(const std::vector<std::string>& checks) {
    for (const std::string& broken : checks) {
      if (!broken.empty()) Fail(broken);
    }
  }
  void Do(const pb::Event& event) {
    if (trace_)
      std::fprintf(stderr, "%d  %s\n", step_, event.ShortDebugString().substr(0, 4000).c_str());
    const State before = arrays_ || successors_ || timed_ ? s_ : State();
    Apply(&s_, event);
    ++totals_.events;
    if (successors_) Expect({CheckPlacedAfter(before, event), CheckSuccessors(s_)});
    if (timed_) Expect({dues_.CheckPlaced(before, event)});
    if (hosted_ && hosted_dice_.Percent(10)) Expect({CheckDerived()});
    if (arrays_) Expect({CheckOthersUntouched(before, s_, event), CheckArrays(s_)});
  }

  void Advance(int64_t ns) {
    now_ns_ += ns;
    pb::Event event;
    event.mutable_step()->set_now_ns(now_ns_);
    event.mutable_step()->set_epoch(1);
    Apply(&s_, event);
    if (!timed_) return;
    for (const pb::Event& due : dues_.Come(&due_dice_, now_ns_)) {
      Do(due);
      came_due_ = true;
    }
    Expect({dues_.Check(s_)});
  }

  // ---- the system ----

  void Configure() {
    now_ns_ = int64_t{1'700'000'000} * kSecond;
    Advance(0);
    options_.min_runtime_ns = dice_.Of(3) * 5 * kSecond;
    options_.grow_interval_ns = (1 + dice_.Of(3)) * 10 * kSecond;
    options_.starve_after_ns = (1 + dice_.Of(4)) * 10 * kSecond;
    options_.spill_cost_ns = dice_.Of(3) * 10 * kSecond;
    options_.restart_cost_ns = kSecond;
    const int clusters = 1 + dice_.Of(3);
    const bool one_storage = dice_.Percent(60) && !one_way_;
    pb::Event configured;
    pb::ClusterFile* file = configured.mutable_clusters_configured()->mutable_file();
    for (int c = 0; c < clusters; ++c) {
      pb::ClusterSpec* cluster = file->add_clusters();
      cluster->set_name(absl::StrCat("c", c));
      cluster->set_open(true);
      const std::string storage = one_storage ? "s" : absl::StrCat("s", c);
      cluster->set_job_storage(storage);
      (*file->mutable_storages())[storage].add_clusters(cluster->name());
      if (one_way_ && c > 0)
        (*file->mutable_storages())[absl::StrCat("s", c - 1)].add_clusters(cluster->name());
      const int hosts = 1 + dice_.Of(4) + (levels_ ? block_dice_.Of(5) : 0);
      const Racks racks = levels_ ? DrawRacks(&block_dice_) : Racks{};
      const int flavour = dice_.Of(2);
      const int devices = 1 << dice_.Of(4);
      for (int h = 0; h < hosts; ++h) {
        pb::HostSpec* host = cluster->add_hosts();
        host->set_name(absl::StrCat("h", h));
        racks.Put(h, host);
        hosts_.push_back({cluster->name(), host->name(),
                          kFlavours[dice_.Percent(20) ? 1 - flavour : flavour],
                          dice_.Percent(20) ? 1 << dice_.Of(4) : devices, 8 + dice_.Of(3) * 8,
                          levels_ ? 2 << block_dice_.Of(2) : 4});
      }
    }
    Do(configured);
    for (const HostKind& host : hosts_) Hello(host, -1);
    Queues();
  }

  struct HostKind {
    std::string cluster, name, flavour;
    int devices = 0;
    int cpus = 0;
    int island = 4;  // devices of one
  };

  // `broken`: that device isn't healthy.
  void Hello(const HostKind& host, int broken) {
    pb::Event event;
    pb::HostHello* hello = event.mutable_host_hello();
    hello->set_cluster(host.cluster);
    hello->set_host(host.name);
    hello->set_state_id("s");
    hello->set_boot_id("b");
    pb::Inventory* inventory = hello->mutable_inventory();
    inventory->set_flavour(host.flavour);
    for (int d = 0; d < host.devices; ++d) {
      pb::Device* device = inventory->add_devices();
      device->set_index(d);
      device->set_healthy(d != broken);
      device->set_island(d / host.island);
    }
    inventory->set_cpus_milli(host.cpus * 1000);
    inventory->set_memory_bytes(int64_t{256} << 30);
    inventory->set_disk_bytes(int64_t{1} << 40);
    AnnounceAll(inventory);
    if (unequal_agents_) inventory->set_enters_images(array_dice_.Percent(60));
    Do(event);
  }

  // A tree of depth 1 to 3 whose guarantees nest in every pool.
  void Queues() {
    std::map<std::string, std::map<std::string, int64_t>> room;  // milli, not guaranteed yet
    for (const HostKind& host : hosts_) room[host.flavour][host.cluster] += host.devices * 1000;
    leaves_.clear();
    pb::Event event;
    const int tops = 1 + dice_.Of(3);
    for (int t = 0; t < tops; ++t)
      Queue(event.mutable_queues_applied()->mutable_tree()->add_queues(), absl::StrCat("q", t), "",
            0, &room);
    event.mutable_queues_applied()->set_version(++tree_version_);
    Do(event);
  }

  void Queue(pb::QueueSpec* queue, const std::string& name, const std::string& above, int depth,
             std::map<std::string, std::map<std::string, int64_t>>* room) {
    queue->set_name(name);
    const std::string path = above.empty() ? name : absl::StrCat(above, "/", name);
    if (dice_.Percent(20)) queue->set_min_runtime_ns((1 + dice_.Of(3)) * 5 * kSecond);
    if (by_length_ && order_dice_.Percent(60)) {
      queue->set_order(order_dice_.Percent(80) ? pb::SHORTEST : pb::FIFO);
      queue->set_max_wait_ns((1 + order_dice_.Of(40)) * kMinute);
    }
    const bool inner = depth < 2 && dice_.Percent(30);
    std::map<std::string, std::map<std::string, int64_t>> guaranteed;
    if (inner) {
      const int children = 1 + dice_.Of(3);
      for (int c = 0; c < children; ++c)
        Queue(queue->add_queues(), absl::StrCat("k", c), path, depth + 1, room);
      for (const pb::QueueSpec& child : queue->queues()) {
        for (const auto& [flavour, quota] : child.quota()) {
          for (const auto& [cluster, milli] : quota.guarantee_per_cluster())
            guaranteed[flavour][cluster] += milli;
        }
      }
    } else {
      leaves_.push_back(path);
      queue->set_held(tree_version_ > 0 &&
                      (tree_version_ + leaves_.size()) % 4 == 0);  // later: something runs by then
    }
    for (const char* flavour : kFlavours) {
      bool listed = inner && guaranteed.contains(flavour);
      for (auto& [cluster, milli] : (*room)[flavour]) {
        if (milli == 0 || !dice_.Percent(inner ? 20 : 50)) continue;
        const int64_t more = 1000 * (1 + dice_.Of(static_cast<int>(milli / 1000)));
        guaranteed[flavour][cluster] += more;
        milli -= more;
        listed = true;
      }
      // A queue above one with a guarantee lists the flavour, else guarantees would not nest.
      if (!listed && !dice_.Percent(50)) continue;
      pb::Quota& quota = (*queue->mutable_quota())[flavour];
      int64_t sum = 0;
      for (const auto& [cluster, milli] : guaranteed[flavour]) {
        (*quota.mutable_guarantee_per_cluster())[cluster] = milli;
        sum += milli;
      }
      quota.set_guarantee_milli(sum);
      quota.set_weight(dice_.Of(4));
      if (dice_.Percent(30)) quota.set_limit_milli(sum + 1000 * dice_.Of(6));
    }
    if (dice_.Percent(10))
      (*queue->mutable_quota())["cpu"].set_limit_milli(1000 * (4 + dice_.Of(20)));
    if (cpu_heavy_ && depth == 0 && dice_.Percent(50)) {  // less than a third of what there is
      pb::Quota& quota = (*queue->mutable_quota())["cpu"];
      int64_t sum = 0;
      for (const ClusterRow& cluster : s_.clusters())
        sum += (*quota.mutable_guarantee_per_cluster())[cluster.name] = 1000 * (1 + dice_.Of(2));
      quota.set_guarantee_milli(sum);
      if (quota.has_limit_milli()) quota.set_limit_milli(std::max(sum, quota.limit_milli()));
      quota.set_weight(1);
    }
  }

  // ---- outside events ----

  void Outside() {
    const int kind = dice_.Of(100);
    if (kind < 45) return Submit();
    if (kind < 65) return EndOne();
    if (kind < 70) return Cancel();
    if (kind < 80) return ChangeHost();
    if (kind < 85) return Drain();
    if (kind < 87 && dice_.Percent(30)) return Queues();
    Report();
  }

  void Submit() {
    pb::Event event;
    pb::JobSubmitted* e = event.mutable_job_submitted();
    e->set_number(s_.next_job_number());
    e->set_uid(absl::StrCat("u", e->number()));
    e->set_owner(absl::StrCat("o", dice_.Of(2)));
    pb::JobSpec* spec = e->mutable_spec();
    spec->set_name(absl::StrCat("n", dice_.Of(4)));
    spec->set_queue(leaves_[dice_.Of(static_cast<int>(leaves_.size()))]);
    spec->set_priority(dice_.Percent(30) ? dice_.Of(3) : 0);
    if (dice_.Percent(35)) {
      for (const ClusterRow& cluster : s_.clusters()) {
        if (dice_.Percent(60)) spec->add_clusters(cluster.name);
      }
      if (dice_.Percent(30) && spec->clusters_size() > 1)
        spec->mutable_clusters()->SwapElements(0, 1);
    }
    const int tasks = dice_.Percent(20) ? 2 : 1;
    for (int t = 0; t < tasks; ++t) {
      pb::TaskSpec* task = spec->add_tasks();
      task->set_name(absl::StrCat("t", t));
      if (t == 1 && dice_.Percent(50)) task->add_after("t0");
      pb::Resources* wants = task->mutable_resources();
      const int shape = dice_.Of(10);
      int min = 1;
      if (cpu_heavy_ && shape >= 4) {
        wants->set_cpus_milli(1000 * (1 + dice_.Of(10)));
        min = 1 + dice_.Of(4);
      } else if (shape < 5) {
        wants->set_gpus_milli(1000 * (1 << dice_.Of(3)));
        min = 1 + (dice_.Percent(50) ? dice_.Of(4) : 0);
      } else if (shape < 7) {
        wants->set_gpus_milli(1000);
        min = 1 + dice_.Of(8);
      } else if (shape < 9) {
        wants->set_gpus_milli(250 * (1 + dice_.Of(3)));
      } else {
        wants->set_cpus_milli(1000 * (1 + dice_.Of(6)));
        min = 1 + dice_.Of(2);
      }
      if (wants->gpus_milli() > 0) {
        const int first = dice_.Of(2);
        wants->add_gpu_types(kFlavours[first]);
        if (dice_.Percent(50)) wants->add_gpu_types(kFlavours[1 - first]);
        if (dice_.Percent(30)) wants->set_cpus_milli(1000 * (1 + dice_.Of(4)));
      }
      if (dice_.Percent(20)) {
        wants->set_memory_bytes(int64_t{16} << (30 + dice_.Of(4)));  // 16 to 128 of 256 GiB
        wants->set_disk_bytes(int64_t{64} << (30 + dice_.Of(4)));    // 64 to 512 of 1,024
      }
      task->mutable_workers()->set_min(min);
      const bool elastic = wants->gpus_milli() % 1000 == 0 && dice_.Percent(40);
      task->mutable_workers()->set_max(min + (elastic ? dice_.Of(5) : 0));
      if (dice_.Percent(15))
        task->mutable_topology()->set_required(static_cast<pb::TopologyLevel>(1 + dice_.Of(5)));
      if (dice_.Percent(40)) task->set_time_limit_ns((5 + dice_.Of(200)) * kSecond);
      task->set_grace_ns((1 + dice_.Of(5)) * kSecond);
      task->set_max_restarts(dice_.Of(3));
      task->mutable_checkpoint()->set_interval_ns((1 + order_dice_.Of(6)) * 5 * kSecond);
      if (dice_.Percent(50)) task->set_when_unreachable(dice_.Percent(50) ? pb::REPLACE : pb::WAIT);
      if (dice_.Percent(50)) task->set_trainer_json("{}");
      if (unequal_agents_ && array_dice_.Percent(30)) task->set_image("/image");
    }
    if (one_way_) {  // several tasks: S may change by what starts first (docs/scheduling.md §1)
      while (spec->tasks_size() > 1) spec->mutable_tasks()->RemoveLast();
    }
    if (together_ && together_dice_.Percent(50)) {
      PutTogether(&together_dice_, spec);
      ++totals_.together;
    }
    if (arrays_ && array_dice_.Percent(40)) totals_.members += MakeArray(&array_dice_, e);
    if (successors_ && successor_dice_.Percent(40)) {
      PlaceBehind(s_, &successor_dice_, e);
      totals_.successors += e->predecessors_size() > 0;
    }
    if (timed_ && due_dice_.Percent(40)) {
      dues_.Draw(&due_dice_, now_ns_, e);
      ++totals_.timed;
    }
    if (hosted_ && hosted_dice_.Percent(40))
      totals_.hosted += PutOnHolder(s_, &hosted_dice_, e) ? 1 : 0;
    if (multiples_) totals_.multiples.tasks += DrawMultiples(&multiple_dice_, spec);
    if (rank_blocks_) totals_.blocks.tasks += DrawBlocks(&block_dice_, levels_, spec);
    Do(event);
  }

  std::string CheckDerived() const {
    const std::string difference = State::Difference(s_, s_.Rebuilt());
    return difference.empty() ? "" : absl::StrCat("derived data: ", difference);
  }

  struct Target {
    const JobRow* job = nullptr;
    int32_t task = 0;
    const AttemptRow* attempt = nullptr;
  };

  // A random unfinished attempt in the state; nullptr if there is none.
  Target PickAttempt(pb::TaskState state) {
    std::vector<Target> found;
    for (const uint64_t number : s_.active_jobs()) {
      const JobRow* job = s_.FindJob(number);
      for (size_t t = 0; t < job->tasks.size(); ++t) {
        const AttemptRow* current = job->tasks[t].current();
        if (current != nullptr && current->state == state)
          found.push_back({job, static_cast<int32_t>(t), current});
      }
    }
    return found.empty() ? Target() : found[dice_.Of(static_cast<int>(found.size()))];
  }

  pb::Event ReportOf(const Target& target, size_t part, pb::AttemptPhase phase, int exit_code,
                     bool stop_sent) {
    const PartRow& row = target.attempt->parts[part];
    const HostRow& host = s_.host(row.host);
    pb::Event event;
    pb::AttemptReported* e = event.mutable_attempt_reported();
    e->set_cluster(s_.clusters()[host.cluster].name);
    e->set_host(host.name);
    e->set_state_id(host.state_id);
    *e->mutable_report()->mutable_key() = KeyOf(*target.job, target.task, target.attempt->number);
    e->mutable_report()->set_phase(phase);
    e->mutable_report()->set_stop_sent(stop_sent);
    for (int w = 0; exit_code >= 0 && w < row.workers; ++w) {
      pb::WorkerExit* exit = e->mutable_report()->add_exits();
      exit->set_rank(row.first_group_rank + w);
      exit->set_exit_code(exit_code);
    }
    return event;
  }

  bool Reachable(const PartRow& part) { return s_.host(part.host).state == pb::HOST_UP; }

  void EndOne() {
    const Target target = PickAttempt(pb::TASK_RUNNING);
    if (target.attempt == nullptr) return;
    if (!std::all_of(target.attempt->parts.begin(), target.attempt->parts.end(),
                     [&](const PartRow& p) { return Reachable(p); }))
      return;
    if (dice_.Percent(25))
      return Do(ReportOf(target, dice_.Of(static_cast<int>(target.attempt->parts.size())),
                         pb::EXITED, 1, false));
    const size_t parts = target.attempt->parts.size();
    const AttemptRef ref{target.job->number, target.task, target.attempt->number};
    for (size_t p = 0; p < parts; ++p) {
      const Target now{s_.FindJob(ref.job), ref.task, s_.FindAttempt(ref)};
      Do(ReportOf(now, p, pb::GONE, 0, false));
    }
  }

  void Cancel() {
    if (s_.active_jobs().empty()) return;
    pb::Event event;
    event.mutable_job_cancel()->set_number(
        s_.active_jobs()[dice_.Of(static_cast<int>(s_.active_jobs().size()))]);
    const JobRow& job = *s_.FindJob(event.job_cancel().number());
    if (job.array != 0 && array_dice_.Percent(40)) {
      event.mutable_job_cancel()->set_number(job.array);
      event.mutable_job_cancel()->set_array(true);
    }
    Do(event);
  }

  void ChangeHost() {
    const HostKind& kind = hosts_[dice_.Of(static_cast<int>(hosts_.size()))];
    const HostRow& host = s_.host(s_.FindHost(kind.cluster, kind.name));
    pb::Event event;
    event.mutable_host_state()->set_cluster(kind.cluster);
    event.mutable_host_state()->set_host(kind.name);
    switch (host.state) {
      case pb::HOST_UP:
        if (dice_.Percent(40)) return Hello(kind, dice_.Of(kind.devices + 2));
        event.mutable_host_state()->set_state(pb::HOST_SILENT);
        return Do(event);
      case pb::HOST_SILENT:
        event.mutable_host_state()->set_state(dice_.Percent(50) ? pb::HOST_UP
                                                                : pb::HOST_UNREACHABLE);
        return Do(event);
      default:
        return Hello(kind, -1);
    }
  }

  void Drain() {
    const HostKind& kind = hosts_[dice_.Of(static_cast<int>(hosts_.size()))];
    pb::Event event;
    const bool whole = dice_.Percent(20);
    event.mutable_drain_changed()->set_target(whole ? kind.cluster
                                                    : absl::StrCat(kind.cluster, "/", kind.name));
    const bool drained = whole ? s_.clusters()[s_.FindCluster(kind.cluster)].drained
                               : s_.host(s_.FindHost(kind.cluster, kind.name)).drained;
    event.mutable_drain_changed()->set_drained(!drained);
    Do(event);
  }

  void Report() {
    const Target target = PickAttempt(pb::TASK_RUNNING);
    if (target.attempt == nullptr) return;
    pb::Event event;
    if (dice_.Percent(50)) {
      pb::CheckpointSeen* e = event.mutable_checkpoint_seen();
      *e->mutable_key() = KeyOf(*target.job, target.task, target.attempt->number);
      e->mutable_checkpoint()->set_step(step_);
      e->mutable_checkpoint()->set_path(absl::StrCat("p", step_));
      e->set_loaded_step(-1);
    } else {
      pb::ProgressSeen* e = event.mutable_progress_seen();
      *e->mutable_key() = KeyOf(*target.job, target.task, target.attempt->number);
      e->mutable_progress()->set_step(1 + dice_.Of(20));
      e->mutable_progress()->set_total_steps(30);
      e->mutable_progress()->set_at_ns(now_ns_);
    }
    Do(event);
  }

  // Programs say when they will end, some of them in hours.
  void ExpectEnds() {
    for (const uint64_t number : std::vector<uint64_t>(s_.active_jobs())) {
      const JobRow& job = *s_.FindJob(number);
      for (size_t t = 0; t < job.tasks.size(); ++t) {
        const AttemptRow* current = job.tasks[t].current();
        if (current == nullptr || current->start_ns == 0 || order_dice_.Percent(70)) continue;
        pb::Event event;
        pb::ProgressSeen* e = event.mutable_progress_seen();
        *e->mutable_key() = KeyOf(job, static_cast<int32_t>(t), current->number);
        e->mutable_progress()->set_at_ns(now_ns_);
        e->mutable_progress()->set_expected_end_ns(now_ns_ + (kMinute << order_dice_.Of(12)));
        Do(event);
        break;
      }
    }
  }

  // ---- hosts do as they are told ----

  // True if something is on its way still.
  bool Agents(bool quiet) {
    bool moving = false;
    const std::vector<uint64_t> jobs = s_.active_jobs();
    for (const uint64_t number : jobs) {
      for (size_t t = 0; s_.FindJob(number) != nullptr && t < s_.FindJob(number)->tasks.size();
           ++t) {
        const AttemptRow* current = s_.FindJob(number)->tasks[t].current();
        if (current == nullptr || current->released()) continue;
        const AttemptRef ref{number, static_cast<int32_t>(t), current->number};
        moving = OneAttempt(ref) || moving;
      }
    }
    // A host that is back says of what was lost there that it is gone.
    for (const HostId id : s_.hosts()) {
      const HostRow& host = s_.host(id);
      if (host.state != pb::HOST_UP || host.lost.empty() || dice_.Percent(50)) continue;
      pb::Event event;
      pb::AttemptReported* e = event.mutable_attempt_reported();
      e->set_cluster(s_.clusters()[host.cluster].name);
      e->set_host(host.name);
      e->set_state_id(host.state_id);
      *e->mutable_report()->mutable_key() = host.lost.front().key;
      e->mutable_report()->set_phase(pb::GONE);
      Do(event);
      moving = true;
    }
    return moving;
  }

  bool OneAttempt(const AttemptRef& ref) {
    const Target target{s_.FindJob(ref.job), ref.task, s_.FindAttempt(ref)};
    const pb::TaskState state = target.attempt->state;
    if (state == pb::TASK_RUNNING) return false;
    bool moving = false;
    if (state == pb::TASK_STOPPING) {
      const auto [left, first] = stops_.emplace(ref, 1 + dice_.Of(5));
      if (--left->second > 0) return true;
    } else if (dice_.Percent(40)) {
      return true;
    }
    const size_t parts = target.attempt->parts.size();
    for (size_t p = 0; p < parts; ++p) {
      const Target now{s_.FindJob(ref.job), ref.task, s_.FindAttempt(ref)};
      const PartRow& part = now.attempt->parts[p];
      if (part.over() || !Reachable(part)) continue;
      if (state == pb::TASK_STOPPING) {
        Do(ReportOf(now, p, pb::GONE, 0, true));
      } else if (state == pb::TASK_PREPARING && part.phase < pb::PREPARED) {
        Do(ReportOf(now, p, pb::PREPARED, -1, false));
      } else if (state == pb::TASK_STARTING && part.phase < pb::STARTED) {
        Do(ReportOf(now, p, pb::STARTED, -1, false));
      } else {
        continue;
      }
      moving = true;
    }
    const pb::AttemptKey key = KeyOf(*s_.FindJob(ref.job), ref.task, ref.number);
    if (const std::optional<pb::Event> prepared = PreparedGang(s_, key)) Do(*prepared);
    return moving;
  }

  // ---- decisions and their rules ----

  Model Entitled() { return upkeep_.Update(s_, now_ns_, options_); }

  // What was planned when a rule was broken, as not all of it is applied then.
  void Print(const Plan& plan) const {
    if (!trace_) return;
    for (const pb::Event& event : plan.events)
      std::fprintf(stderr, "%d  plan: %s\n", step_, event.ShortDebugString().c_str());
  }

  // Acts of the plan: starts, stops, lost, opened; not reservations.
  int Step() {
    ++step_;
    ++totals_.steps;
    const Plan plan = decider_.Decide(s_, now_ns_, options_);
    if (dice_.Of(32) == 0) CheckFresh(plan);
    const absl::Status valid = Validate(s_, plan);
    if (!valid.ok()) {
      Fail(absl::StrCat("refused: ", std::string(valid.message())));
      Print(plan);
      return 0;
    }
    int acts = 0;
    const Model before = Entitled();
    const State was = together_ ? s_ : State();
    const Plan others = hosted_ ? WithoutHosted(s_, plan) : plan;
    for (const std::string& broken :
         {CheckReserved(s_, now_ns_, options_, before, plan, &totals_.lent),
          CheckClaims(s_, now_ns_, options_, before, others, &totals_.judged),
          CheckSpared(s_, others, &totals_.spared), Charged(before),
          multiples_ || rank_blocks_ ? CheckMultiples(s_, plan, &totals_.multiples) : "",
          rank_blocks_ ? CheckRankBlocks(s_, plan, &totals_.blocks) : ""}) {
      if (!broken.empty()) Fail(broken);
    }
    if (!error_.empty()) Print(plan);
    round_ = s_.round();
    bool opened = false;
    for (const pb::Event& event : plan.events) {
      totals_.digest = Fnv1a(event.SerializeAsString(), totals_.digest);
      if (event.has_cluster_opened() && !opened)
        CheckAfter(before, plan);  // these stand last, and make the set another one
      opened = opened || event.has_cluster_opened();
      if (opened && !event.has_cluster_opened()) Fail("acts after it has opened a cluster");
      totals_.spills += event.has_cluster_opened();
      if (!event.has_reservation()) ++acts;
      Check(before, event);
      Do(event);
      if (!error_.empty()) return acts;
    }
    if (!opened) CheckAfter(before, plan);
    if (together_) Expect({CheckTogether(was, s_, plan)});
    if (hosted_) Expect({CheckHosted(s_)});
    if (const std::string broken = CheckLimitsOutside(s_, others); !broken.empty()) Fail(broken);
    next_wake_ns_ = plan.next_wake_ns;
    if (timed_) Expect({dues_.CheckWakes(s_, next_wake_ns_)});
    return acts;
  }

  // What decisions charge queues is what they hold.
  std::string Charged(const Model& model) {
    const Inputs in(s_, now_ns_, options_, model);
    FreeMap now(s_), later(s_);
    Draft draft(in, &now, &later);
    Charges charges{model.flavours, {}, {}};
    charges.now = [&](int32_t node, const std::string& flavour) {
      return draft.now()->use().At(node, model.FlavourIndex(flavour));
    };
    charges.later = [&](int32_t node, const std::string& flavour) {
      return draft.later()->use().At(node, model.FlavourIndex(flavour));
    };
    return CheckCharges(s_, now_ns_, charges, &totals_.stopping);
  }

  // What is kept between decisions changes none of them.
  void CheckFresh(const Plan& plan) {
    const Plan fresh = Decide(s_, now_ns_, options_);
    bool same =
        fresh.events.size() == plan.events.size() && fresh.next_wake_ns == plan.next_wake_ns;
    for (size_t i = 0; same && i < fresh.events.size(); ++i)
      same = fresh.events[i].SerializeAsString() == plan.events[i].SerializeAsString();
    if (!same) Fail("a fresh decision is another one");
  }

  // The event, before it is applied, against the entitled set.
  void Check(const Model& m, const pb::Event& event) {
    if (event.has_attempt_placed()) {
      const pb::AttemptPlaced& e = event.attempt_placed();
      const Gang* gang = GangOf(m, s_, e.key());
      ++totals_.starts;
      if (gang == nullptr) return Fail("starts what is no unit");
      const std::string& left = s_.FindJob(gang->ref.job)->cluster;
      totals_.one_way += one_way_ && !left.empty() && left != e.cluster();
      if (gang->hosted) return;
      const Pool& pool = m.pools[gang->entitled ? gang->charge : 0];
      if (gang->entitled && (s_.clusters()[pool.cluster].name != e.cluster() ||
                             (!e.flavour().empty() && m.flavours[pool.flavour] != e.flavour()))) {
        Fail(absl::StrCat("job ", gang->ref.job, " starts outside its charged pool"));
      }
      if (gang->entitled && e.workers() > gang->entitled_workers())
        Fail("starts with more workers than S grants");
      if (!gang->entitled) {
        ++totals_.backfills;
        const TaskRow& row = s_.FindJob(gang->ref.job)->tasks[gang->ref.task];
        if (row.evicted_round == s_.round())
          Fail(absl::StrCat("job ", gang->ref.job,
                            " is backfilled in the round in which it was evicted"));
      }
      claims_.erase(gang->ref);
    }
    if (event.has_attempt_lost()) ++totals_.lost;
    if (event.has_reservation()) ++totals_.reservations;
    if (!event.has_attempt_stopping()) return;
    const pb::AttemptStopping& e = event.attempt_stopping();
    const Gang* victim = GangOf(m, s_, e.key());
    if (e.cause() == pb::RESIZE) ++totals_.growths;
    const bool held =
        victim != nullptr && victim->leaf >= 0 && s_.queues().nodes[victim->leaf].held;
    if (held && e.cause() == pb::RESIZE)
      Fail(absl::StrCat("job ", victim->ref.job, " of a held queue grows"));
    if (e.cause() != pb::PREEMPTION) return;
    const Gang* claimant = GangOf(m, s_, e.claimant());
    if (victim == nullptr || claimant == nullptr) return Fail("a claim by or on what is no unit");
    const AttemptRow& attempt =
        *s_.FindAttempt(AttemptRef{victim->ref.job, victim->ref.task, e.key().attempt()});
    const bool moves =
        e.next_workers() == attempt.workers;  // to other devices of its pool (decision 024)
    ++(moves ? totals_.moves : e.next_workers() > 0 ? totals_.shrinks : totals_.evictions);
    const bool beside = victim->gpus != claimant->gpus;  // it stands on their hosts without devices
    if (victim->gpus && !claimant->gpus)
      Fail(absl::StrCat("job ", victim->ref.job, " has devices and is stopped for CPUs"));
    totals_.beside += beside;
    if (!beside)
      totals_.evicted_milli +=
          victim->worker_milli * (attempt.workers - (moves ? 0 : e.next_workers()));
    if (moves) {
      if (held) Fail(absl::StrCat("job ", victim->ref.job, " of a held queue moves"));
      if (!claimant->guaranteed ||
          claimant->row->waiting_since_ns + options_.min_runtime_ns > now_ns_)
        Fail("moves others for a claim that isn't overdue");
      if (!victim->entitled || victim->charge != victim->bound_pool || attempt.parts.size() != 1)
        Fail("moves what has no place in S on one host");
      claims_.insert(victim->ref);
    }
    const bool grows = !claimant->wants_place() && !claimant->may_be_lost;
    claims_.insert(claimant->ref);
    if (!beside && (requested_.insert(claimant->ref).second || grows)) {
      totals_.requested_milli += claimant->worker_milli *
                                 (grows ? claimant->entitled_workers() - claimant->current->workers
                                        : claimant->min_workers);
    }
    if (!claimant->entitled) Fail("a claim for what is not entitled");
    const bool mover = victim->entitled && victim->charge != victim->bound_pool;
    if (victim->entitled && !mover && e.next_workers() < victim->entitled_workers())
      Fail("stops units of S");
    if (attempt.place_round == s_.round())
      Fail(absl::StrCat("job ", victim->ref.job,
                        " is stopped in the round in which it was started"));
    const int32_t leaf = s_.queues().Find(victim->job->spec->queue());
    const int64_t own_ns = leaf < 0 ? 0 : s_.queues().nodes[leaf].min_runtime_ns;
    const int64_t start_ns = attempt.start_ns != 0 ? attempt.start_ns : attempt.place_ns;
    const bool ahead = victim->leaf == claimant->leaf &&
                       UrgencyOf(*victim->job) == UrgencyOf(*claimant->job) &&
                       claimant->job->band < victim->job->band;
    totals_.overtaken += ahead && !mover && !victim->entitled;
    const bool early = now_ns_ < start_ns + (own_ns != 0 ? own_ns : options_.min_runtime_ns);
    // Who is in S is no victim of an order; it moves for a guarantee.
    if (early && (!claimant->guaranteed || grows || (ahead && !victim->entitled))) {
      Fail(absl::StrCat("job ", victim->ref.job,
                        " is stopped within its min_runtime by a claim outside the guarantees"));
    }
    const int64_t worked_ns =
        victim->row->ran_ns + (attempt.start_ns != 0 ? now_ns_ - attempt.start_ns : 0);
    const bool saves =
        worked_ns >= victim->spec->checkpoint().interval_ns() && !victim->entitled && !moves;
    const bool overdue = claimant->guaranteed && claimant->wants_place() &&
                         claimant->row->waiting_since_ns + options_.min_runtime_ns <= now_ns_;
    if (early && saves && e.next_workers() == 0 && !overdue)
      Fail(absl::StrCat("job ", victim->ref.job,
                        " has worked for an interval and is stopped within its min_runtime"));
    if (!mover && !victim->entitled && victim->leaf == claimant->leaf && !ahead &&
        UrgencyOf(*victim->job) >= UrgencyOf(*claimant->job) +
                                       (beside && !grows && victim->ref.job != claimant->ref.job)) {
      Fail(absl::StrCat("job ", victim->ref.job, " is stopped for an equal of its own queue"));
    }
  }

  static std::string Text(const Model& model) {
    std::string text;
    for (const Gang& gang : model.gangs) {
      if (gang.entitled)
        absl::StrAppend(&text, gang.ref.job, "/", gang.ref.task, ":", gang.entitled_workers(), "@",
                        gang.charge, " ");
    }
    return text;
  }

  void CheckAfter(const Model& before, const Plan& plan) {
    // Where the round is another one the plan carried an outside event: a time limit ran out, a
    // directory bound its job.
    if (!plan.events.empty() && s_.round() == round_) {
      const std::string was = Text(before), is = Text(Entitled());
      if (was != is) Fail(absl::StrCat("S was ", was, "and the plan's own acts made it ", is));
    }
    Expect({CheckClaimantsPlaces(s_, plan), CheckSums(s_), CheckWholeGangs(s_)});
  }

  // Nothing happens from outside: decisions must come to an end, and then what can start has
  // started.
  void Settle() {
    int effects = 0;
    std::map<uint64_t, std::pair<int32_t, int>>
        bands;  // by job: its band, and how often it changed
    int64_t tick = now_ns_ / kOrderTickNs;
    for (int jumps = 0; error_.empty();) {
      Advance(kSecond);
      // A tick is an outside event: from there on it has to settle anew.
      if (by_length_ && now_ns_ / kOrderTickNs != tick) {
        tick = now_ns_ / kOrderTickNs;
        effects = 0;
        SeeBands(&bands);
      }
      if (std::exchange(came_due_, false)) effects = 0;  // likewise
      const bool moving = Agents(/*quiet=*/true);
      const int acts = Step();
      if (!error_.empty()) return;
      if (acts > 0) ++effects;
      if (effects > kSettlesWithin) return Fail("doesn't settle");
      if (moving || acts > 0) continue;
      if (InTransit()) continue;
      if (next_wake_ns_ >= now_ns_ + kHour || ++jumps > 60) break;
      Advance(std::max<int64_t>(0, next_wake_ns_ - now_ns_));
    }
    if (!error_.empty()) return;
    totals_.steps_to_settle_max = std::max<int64_t>(totals_.steps_to_settle_max, effects);
    ++totals_.settled;
    Plan again = Decide(s_, now_ns_, options_);
    if (!again.events.empty()) {
      // The step before may have told of a reservation; the same State again has nothing to say.
      for (const pb::Event& event : again.events) Do(event);
      again = Decide(s_, now_ns_, options_);
      if (!again.events.empty())
        return Fail(absl::StrCat("the same time again, and: ", again.events[0].ShortDebugString()));
    }
    CheckSettled();
    if (hosted_) Expect({CheckHostedSettled(s_)});
  }

  // What was expected comes true while nothing else happens: bands rise or fall by and by, and do
  // not follow from who runs with how many workers.
  void SeeBands(std::map<uint64_t, std::pair<int32_t, int>>* bands) {
    for (const uint64_t number : s_.active_jobs()) {
      const int32_t band = s_.FindJob(number)->band;
      const auto [at, fresh] = bands->try_emplace(number, band, 0);
      if (at->second.first == band) continue;
      at->second.first = band;
      if (++at->second.second > kBandsInQuiet)
        Fail(absl::StrCat("the band of job ", number, " changes again and again"));
    }
  }

  // An attempt that reachable hosts will still say something of.
  bool InTransit() {
    for (const uint64_t number : s_.active_jobs()) {
      for (const TaskRow& task : s_.FindJob(number)->tasks) {
        const AttemptRow* current = task.current();
        if (current == nullptr || current->released() || current->state == pb::TASK_RUNNING)
          continue;
        for (const PartRow& part : current->parts) {
          const bool said = current->state == pb::TASK_PREPARING
                                ? part.phase >= pb::PREPARED
                                : current->state == pb::TASK_STARTING && part.phase >= pb::STARTED;
          if (!part.over() && Reachable(part) && !said) return true;
        }
      }
    }
    for (const HostId id : s_.hosts()) {
      if (s_.host(id).state == pb::HOST_UP && !s_.host(id).lost.empty()) return true;
    }
    return false;
  }

  void CheckSettled() {
    const Model m = Entitled();
    FreeMap map(s_);
    std::vector<int> waits(
        s_.clusters().size(),
        0);  // units of S without a place, and what is kept for others, by cluster
    for (const Gang& gang : m.gangs) {
      if (!gang.entitled) continue;
      ++totals_.entitled;
      // What may be lost and found no other place is a claimant like what waits (docs/scheduling.md
      // §2): a limit's rest may be its own.
      if (!gang.wants_place() && !(gang.may_be_lost && !gang.ComesBack())) continue;
      if (gang.follows() && LeaderIn(m, gang).wants_place()) continue;
      totals_.entitled_waiting += gang.wants_place();
      if (gang.row->reservation == nullptr) ++waits[m.pools[gang.charge].cluster];
    }
    for (const TaskRef& ref : s_.reserved_tasks())
      ++waits[s_.FindJob(ref.job)->tasks[ref.task].reservation->cluster];
    for (const Gang& gang : m.gangs) {
      if (!gang.wants_place() || gang.pools.empty() || gang.row->backoff_until_ns > now_ns_)
        continue;
      if (gang.leader >= 0) {
        Expect({CheckGroupSettled(s_, m, gang, waits)});
        continue;
      }
      if (gang.entitled) {
        if (claims_.contains(gang.ref) && claim_round_ == s_.round()) {
          Fail(absl::StrCat("job ", gang.ref.job, " had others stopped for it and doesn't run"));
        }
        if (waits[m.pools[gang.charge].cluster] != 1) continue;
        if (Fits(m, gang, gang.charge, &map))
          Fail(absl::StrCat("job ", gang.ref.job, " is entitled, has room and waits"));
        if (gang.guaranteed && gang.gpus && !HoldsOnSilentHosts(gang) &&
            gang.row->waiting_since_ns + options_.min_runtime_ns <= now_ns_ &&
            FitsWithoutOthers(m, gang)) {
          Fail(absl::StrCat("job ", gang.ref.job,
                            " is guaranteed its place, and waits for what is outside S"));
        }
        continue;
      }
      if (gang.row->evicted_round == s_.round()) continue;
      for (size_t i = 0; i < gang.pools.size(); ++i) {
        if (!gang.opened[i] || std::any_of(waits.begin(), waits.end(), [](int n) { return n > 0; }))
          continue;
        if (Fits(m, gang, gang.pools[i], &map))
          Fail(absl::StrCat("job ", gang.ref.job,
                            " is outside S, has room that nobody waits for, and waits"));
      }
    }
    claims_.clear();
    requested_.clear();
    claim_round_ = s_.round();
    CheckPromise(m);
  }

  // Of the flavour, or of CPUs beside devices, what starting `gang` would leave within every limit
  // above it.
  bool WithinLimits(const Model& m, const Gang& gang, int32_t flavour, int64_t worker_milli,
                    int64_t Gang::*counted) {
    for (int32_t n = gang.leaf; n >= 0; n = s_.queues().nodes[n].parent) {
      const auto quota = s_.queues().nodes[n].spec.quota().find(m.flavours[flavour]);
      if (quota == s_.queues().nodes[n].spec.quota().end() || !quota->second.has_limit_milli())
        continue;
      int64_t used = 0;
      for (const Gang& other : m.gangs) {
        int32_t up = other.leaf;
        while (up > n) up = s_.queues().nodes[up].parent;
        if (up != n) continue;
        // What is held for another is as good as taken.
        if (const Reservation* held = other.row->reservation.get();
            held != nullptr && held->held && !(other.ref == gang.ref)) {
          if (held->flavour.empty() ? flavour == m.cpu : held->flavour == m.flavours[flavour])
            used += other.worker_milli * held->workers;
          if (counted != nullptr) used += other.*counted * held->workers;
        }
        if (other.current == nullptr || other.bound_pool < 0) continue;
        if (m.pools[other.bound_pool].flavour == flavour)
          used += other.worker_milli * other.current->workers;
        if (counted != nullptr) used += other.*counted * other.current->workers;
      }
      if (used + worker_milli * gang.min_workers > quota->second.limit_milli()) return false;
    }
    return true;
  }

  bool Fits(const Model& m, const Gang& gang, int32_t pool, FreeMap* map) {
    const int32_t flavour = m.pools[pool].flavour;
    if (!WithinLimits(m, gang, flavour, gang.worker_milli,
                      flavour == m.cpu ? &Gang::worker_cpus_milli : nullptr))
      return false;
    if (gang.worker_cpus_milli > 0 &&
        !WithinLimits(m, gang, m.cpu, gang.worker_cpus_milli, &Gang::worker_cpus_milli))
      return false;
    return map->Place(*gang.spec, gang.min_workers, m.pools[pool], {}, gang.needs).has_value();
  }

  // Where nothing ran that is outside S and may be stopped for it.
  bool FitsWithoutOthers(const Model& m, const Gang& gang) {
    FreeMap map(s_);
    const auto may_go = [&](const Gang& other) {
      if (other.entitled || !other.hosts_up || other.bound_pool < 0 ||
          other.place_round == s_.round())
        return false;
      return other.leaf != gang.leaf ||
             other.priority < gang.priority + (other.gpus || other.ref.job == gang.ref.job ? 0 : 1);
    };
    for (const Gang& other : m.gangs) {
      if (other.running() && AllOfGroup(m, other, may_go)) map.Release(other.wants, *other.current);
    }
    return Fits(m, gang, gang.charge, &map);
  }

  // What others were to give back they have given back by now, or it is theirs again; a host of it
  // that is silent may be back.
  bool HoldsOnSilentHosts(const Gang& gang) {
    const Reservation* held = gang.row->reservation.get();
    return held != nullptr && held->held &&
           std::any_of(held->parts.begin(), held->parts.end(), [&](const HostSlice& part) {
             return s_.host(part.host).state == pb::HOST_SILENT;
           });
  }

  // With all capacity healthy, a gang that in leaf order fits what its leaf's share in one of its
  // pools still leaves is in S.
  void CheckPromise(const Model& m) {
    for (const HostId id : s_.hosts()) {
      const HostRow& host = s_.host(id);
      if (!host.usable() || !host.lost.empty() || s_.clusters()[host.cluster].drained) return;
      for (const pb::Device& device : host.inventory.devices()) {
        if (!device.healthy()) return;
      }
    }
    std::map<int32_t, std::vector<const Gang*>> leaves;
    for (const Gang& gang : m.gangs) {
      if (!gang.pools.empty()) leaves[gang.leaf].push_back(&gang);
    }
    for (auto& [leaf, gangs] : leaves) {
      if (!s_.queues().leaf(leaf)) continue;  // an edit made it one
      std::sort(gangs.begin(), gangs.end(), [](const Gang* x, const Gang* y) {
        return std::make_tuple(-UrgencyOf(*x->job), x->job->band, x->job->submit_ns, x->ref) <
               std::make_tuple(-UrgencyOf(*y->job), y->job->band, y->job->submit_ns, y->ref);
      });
      std::map<int32_t, int64_t> used;
      for (const Gang* gang : gangs) {
        const int64_t demand = gang->worker_milli * gang->min_workers;
        if (gang->entitled) {
          used[gang->charge] += demand;
          continue;
        }
        if (gang->job->tasks.size() > 1)
          continue;  // a sibling may have bound it to another cluster
        if (gang->worker_cpus_milli > 0) continue;  // a limit on CPUs may keep it out
        for (const int32_t c : gang->pools) {
          const auto& quotas = s_.queues().nodes[leaf].spec.quota();
          const auto quota = quotas.find(m.flavours[m.pools[c].flavour]);
          if (quota == quotas.end()) continue;
          const auto beside = [](const Gang* other) {
            return other->entitled && other->worker_cpus_milli > 0;
          };
          if (m.pools[c].flavour == m.cpu && std::any_of(gangs.begin(), gangs.end(), beside))
            continue;  // their CPUs count against it
          const auto share =
              quota->second.guarantee_per_cluster().find(s_.clusters()[m.pools[c].cluster].name);
          if (share != quota->second.guarantee_per_cluster().end() &&
              demand <= share->second - used[c]) {
            Fail(absl::StrCat("job ", gang->ref.job, " fits its queue's guarantee and isn't in S"));
          }
        }
      }
    }
  }

  Dice dice_;
  Dice order_dice_;            // of its own: trees by submission are drawn as without it
  Dice array_dice_;            // of its own, likewise; also for unequal agents
  const bool unequal_agents_;  // some enter no images, which some jobs want
  Dice successor_dice_;        // of its own, likewise
  Dice due_dice_;              // of its own, likewise
  Dice together_dice_;         // of its own, likewise
  Dice crowd_dice_;            // of its own, likewise
  const bool crowds_;          // many are submitted at once, so that a decision has several claims
  Dice multiple_dice_;         // of its own, likewise
  const bool multiples_;       // some gangs run in multiples of some workers only
  Dice block_dice_;            // of its own, likewise
  const bool rank_blocks_;     // some gangs' ranks stay together by blocks
  const bool levels_;          // and hosts are in racks, blocks and islands of several sizes
  Dice hosted_dice_;           // of its own, likewise
  const bool hosted_;          // some jobs run on others' devices
  const bool together_;        // tasks of some jobs start together
  const bool arrays_;          // some jobs are arrays
  const bool successors_;      // some jobs come after others
  const bool timed_;           // some jobs wait for a time
  const bool cpu_heavy_;       // much of the work wants no devices
  const bool by_length_;       // some queues take the shortest first
  const bool one_way_;         // each cluster reads the storage of the one before it
  FuzzTotals& totals_;
  const bool trace_;
  State s_;
  SchedulingOptions options_;
  Decider decider_;
  ModelUpkeep upkeep_;
  uint64_t round_ = 0;  // before the plan's own events
  int64_t now_ns_ = 0, next_wake_ns_ = 0;
  Dues dues_;
  bool came_due_ = false;  // some job's time, since it was asked last
  int step_ = 0;
  uint64_t tree_version_ = 0;
  std::string error_;
  std::vector<HostKind> hosts_;
  std::vector<std::string> leaves_;
  std::map<AttemptRef, int> stops_;  // steps until the hosts answer
  std::set<TaskRef> claims_;         // for whom others were stopped since it settled last
  std::set<TaskRef> requested_;      // of them those that are counted in totals_.requested_milli
  uint64_t claim_round_ = 0;
};

}  // namespace

std::string RunFuzzCase(uint64_t seed, FuzzTotals* totals, bool trace, bool arrays) {
  FuzzTotals one;
  std::string error = Case(seed, &one, trace, arrays).Run();
  totals->Add(one);
  return error;
}

}  // namespace muster
