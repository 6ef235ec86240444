// What a decision costs at scale, in a steady state: a federation full of running gangs with a long
// line before it, a hundred events a step through Apply, Decider and Validate. Used by
// bench/scale_500k.py; prints one line of key=value figures.
//
//   bench-scale [--tenth] [--steps N] [--model]
//
// --tenth: a tenth of everything but the events. --model: the model and its entitled set only,
// placed by the bench itself.
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/units.h"
#include "common/spec/config_files.h"
#include "scheduler/decide/decider.h"
#include "scheduler/decide/model/model_upkeep.h"
#include "scheduler/state/state.h"
#include "scheduler/state/validate.h"

namespace muster {
namespace {

constexpr int kGpusPerHost = 8;
constexpr int kEventsPerStep = 100;
constexpr int64_t kStartNs = int64_t{1'700'000'000} * kSecond;
const char* const kTypes[] = {"a100-80g", "h100-80g"};

struct Size {
  int clusters = 100, hosts_per_cluster = 625, departments = 31, leaves = 1'000, waiting = 20'000;
};

// The same numbers everywhere (SplitMix64).
struct Dice {
  uint64_t state = 42;
  int64_t Of(int64_t n) {
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return static_cast<int64_t>((z ^ (z >> 31)) % static_cast<uint64_t>(n));
  }
  bool Chance(int64_t percent) { return Of(100) < percent; }
};

double NowMs(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

// CPU time of this thread and wall time, a pair a call.
struct Stopwatch {
  std::vector<double> cpu_ms, wall_ms;
  template <typename F>
  auto Time(F f) {
    const double wall = NowMs(CLOCK_MONOTONIC), cpu = NowMs(CLOCK_THREAD_CPUTIME_ID);
    auto result = f();
    cpu_ms.push_back(NowMs(CLOCK_THREAD_CPUTIME_ID) - cpu);
    wall_ms.push_back(NowMs(CLOCK_MONOTONIC) - wall);
    return result;
  }
};

double Quantile(std::vector<double> values, double share) {
  MUSTER_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<size_t>(static_cast<double>(values.size()) * share))];
}
double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

std::string ClusterName(int64_t c) { return absl::StrCat("c", 100 + c); }
std::string LeafName(int64_t leaf, const Size& size) {
  return absl::StrCat("d", leaf % size.departments, "/q", leaf);
}

class Fleet {
 public:
  explicit Fleet(const Size& size) : size_(size) {
    Step();
    Clusters();
    Hosts();
    Queues();
  }

  State state;

  void Do(const pb::Event& event) {
    Apply(&state, event);
    ++events_;
  }
  void Step() {
    now_ns_ += 10 * kSecond;
    pb::Event event;
    event.mutable_step()->set_now_ns(now_ns_);
    event.mutable_step()->set_epoch(1);
    Apply(&state, event);
  }
  int64_t now_ns() const { return now_ns_; }

  // Sizes from one GPU to 256; a tenth is elastic; most name a few clusters that share a storage,
  // and one type or two.
  void Submit() {
    pb::Event event;
    pb::JobSubmitted* e = event.mutable_job_submitted();
    e->set_number(state.next_job_number());
    e->set_uid(absl::StrCat("uid", e->number()));
    e->set_owner(absl::StrCat("user", dice_.Of(500)));
    pb::JobSpec* spec = e->mutable_spec();
    const int64_t leaf = dice_.Of(size_.leaves);
    spec->set_queue(LeafName(leaf, size_));
    spec->set_name("train");
    spec->set_priority(dice_.Chance(80) ? 0 : static_cast<int32_t>(dice_.Of(3)));
    const int64_t home = Home(leaf);
    if (!dice_.Chance(5)) {
      spec->add_clusters(ClusterName(home));
      for (int64_t more = dice_.Of(4); more > 0; --more)
        spec->add_clusters(ClusterName(home / 10 * 10 + dice_.Of(std::min(10, size_.clusters))));
    }
    static constexpr int kShares[] = {30, 40, 55, 85, 92,
                                      96, 98, 99, 100};  // of 1, 2, 4, … 256 GPUs
    const int64_t at = dice_.Of(100);
    int gpus = 1;
    for (const int share : kShares) {
      if (at < share) break;
      gpus *= 2;
    }
    pb::TaskSpec* task = spec->add_tasks();
    task->set_name("main");
    const int workers = std::max(1, gpus / kGpusPerHost);
    task->mutable_workers()->set_min(workers);
    task->mutable_workers()->set_max(dice_.Chance(10) ? 2 * workers : workers);
    pb::Resources* wants = task->mutable_resources();
    wants->set_gpus_milli(1000 * std::min(gpus, kGpusPerHost));
    const int64_t type = dice_.Of(2);
    wants->add_gpu_types(kTypes[type]);
    if (dice_.Chance(30)) wants->add_gpu_types(kTypes[1 - type]);
    wants->set_cpus_milli(8'000 * std::min(gpus, kGpusPerHost));
    wants->set_memory_bytes((int64_t{64} << 30) * std::min(gpus, kGpusPerHost));
    task->set_max_restarts(3);
    task->set_time_limit_ns((1 + dice_.Of(72)) * kHour);
    Do(event);
  }

  // Submits until as many gangs wait as should.
  void FillLine() {
    for (int64_t missing = size_.waiting - Count(false); missing > 0; --missing) Submit();
  }

  // Every host of the attempt says this.
  void AllReport(const JobRow& job, pb::AttemptPhase phase, bool exit_0) {
    const AttemptRow attempt = job.tasks[0].attempts.back();
    const pb::AttemptKey key = KeyOf(job, 0, attempt.number);
    for (const PartRow& part : attempt.parts) {
      pb::Event event;
      pb::AttemptReported* e = event.mutable_attempt_reported();
      e->set_cluster(state.clusters()[state.host(part.host).cluster].name);
      e->set_host(state.host(part.host).name);
      e->set_state_id("s");
      *e->mutable_report()->mutable_key() = key;
      e->mutable_report()->set_phase(phase);
      e->mutable_report()->set_stop_sent(phase == pb::GONE && !exit_0);
      if (phase == pb::PREPARED) e->mutable_report()->set_rendezvous_port(20'000);
      for (int w = 0; exit_0 && w < part.workers; ++w) {
        pb::WorkerExit* exit = e->mutable_report()->add_exits();
        exit->set_rank(part.first_group_rank + w);
      }
      Do(event);
    }
  }

  // Hosts do at once what they are told: what was placed starts, what is stopped ends.
  void Follow(const std::vector<pb::Event>& plan) {
    for (const pb::Event& event : plan) {
      const pb::AttemptKey& key = event.has_attempt_placed() ? event.attempt_placed().key()
                                                             : event.attempt_stopping().key();
      if (!event.has_attempt_placed() && !event.has_attempt_stopping()) continue;
      const JobRow* job = state.FindJobByUid(key.job_uid());
      if (job == nullptr || job->tasks[0].current() == nullptr ||
          job->tasks[0].current()->number != key.attempt())
        continue;
      if (event.has_attempt_stopping()) {
        AllReport(*job, pb::GONE, false);
        continue;
      }
      if (!event.attempt_placed().at_once()) {
        AllReport(*job, pb::PREPARED, false);
        pb::Event prepared;
        *prepared.mutable_gang_prepared()->mutable_key() = key;
        prepared.mutable_gang_prepared()->set_master_address("10.0.0.1");
        prepared.mutable_gang_prepared()->set_master_port(20'000);
        Do(prepared);
      }
      AllReport(*state.FindJob(job->number), pb::STARTED, false);
    }
  }

  // A hundred events: what the last plan caused, gangs that arrive so that the line keeps its
  // length, gangs that end, and reports of progress.
  void Events(const std::vector<pb::Event>& plan) {
    events_ = 0;
    Follow(plan);
    FillLine();
    while (events_ < kEventsPerStep * 6 / 10) AllReport(*AnyRunning(), pb::GONE, true);
    while (events_ < kEventsPerStep) {
      const JobRow* job = AnyRunning();
      pb::Event event;
      *event.mutable_progress_seen()->mutable_key() =
          KeyOf(*job, 0, job->tasks[0].attempts.back().number);
      event.mutable_progress_seen()->mutable_progress()->set_step(1'000 + dice_.Of(1'000));
      event.mutable_progress_seen()->mutable_progress()->set_total_steps(2'000 + dice_.Of(100'000));
      event.mutable_progress_seen()->mutable_progress()->set_at_ns(now_ns_);
      Do(event);
    }
  }

  int64_t Count(bool running) const {
    int64_t count = 0;
    for (const uint64_t number : state.active_jobs())
      count += (state.FindJob(number)->tasks[0].current() != nullptr) == running;
    return count;
  }
  int64_t Gpus() const { return int64_t{size_.clusters} * size_.hosts_per_cluster * kGpusPerHost; }
  int64_t GpusHeld() const {
    int64_t milli = 0;
    for (const HostId id : state.hosts()) {
      for (const int64_t used : state.host(id).device_used_milli) milli += used;
    }
    return milli / 1000;
  }

  // Places waiting units of S in their charged pools, first fit: to fill the fleet, and for
  // --model.
  std::vector<pb::Event> Place(const Model& model, int64_t most) {
    std::vector<std::pair<int32_t, int32_t>> order;
    for (size_t b = 0; b < model.gangs.size(); ++b) {
      if (model.gangs[b].entitled && model.gangs[b].wants_place())
        order.emplace_back(model.order[b], static_cast<int32_t>(b));
    }
    std::sort(order.begin(), order.end());
    if (order.size() > static_cast<size_t>(most)) order.resize(static_cast<size_t>(most));
    std::stable_sort(
        order.begin(), order.end(), [&](const auto& x, const auto& y) {  // large ones first
          return model.gangs[x.second].worker_milli > model.gangs[y.second].worker_milli;
        });
    std::map<HostId, int> taken;     // devices of hosts that this call used
    std::map<int32_t, size_t> from;  // by pool: hosts before are full
    std::vector<pb::Event> events;
    for (const auto& [accepted, b] : order) {
      const Gang& gang = model.gangs[b];
      const Pool& pool = model.pools[gang.charge];
      const int gpus = static_cast<int>(gang.worker_milli / 1000);
      pb::Event event;
      pb::AttemptPlaced* e = event.mutable_attempt_placed();
      *e->mutable_key() = KeyOf(*gang.job, 0, gang.row->next_attempt);
      e->set_cluster(state.clusters()[pool.cluster].name);
      e->set_flavour(model.flavours[pool.flavour]);
      int rank = 0;
      bool full_so_far = true;
      for (size_t h = from[gang.charge]; h < pool.hosts.size() && rank < gang.min_workers; ++h) {
        const HostRow& host = state.host(pool.hosts[h]);
        std::vector<int> free;
        const auto it = taken.find(pool.hosts[h]);
        const int mine = it == taken.end() ? 0 : it->second;
        for (int d = 0; d < kGpusPerHost; ++d) {
          if (host.device_used_milli[d] == 0 && (mine >> d & 1) == 0) free.push_back(d);
        }
        if (full_so_far && free.empty()) from[gang.charge] = h + 1;
        full_so_far = full_so_far && free.empty();
        if (static_cast<int>(free.size()) < gpus) continue;
        pb::Placement* placement = e->add_placements();
        placement->set_host(host.name);
        placement->set_first_group_rank(rank++);
        placement->set_workers(1);
        for (int g = 0; g < gpus; ++g) placement->add_devices(free[g]);
      }
      if (rank < gang.min_workers) continue;
      for (const pb::Placement& placement : e->placements()) {
        for (const int32_t device : placement.devices())
          taken[state.FindHost(e->cluster(), placement.host())] |= 1 << device;
      }
      e->set_workers(rank);
      e->set_at_once(rank == 1);
      events.push_back(std::move(event));
    }
    return events;
  }

 private:
  int64_t Home(int64_t leaf) const { return leaf % size_.clusters; }

  const JobRow* AnyRunning() {
    for (;;) {
      const JobRow* job = state.FindJob(
          state.active_jobs()[dice_.Of(static_cast<int64_t>(state.active_jobs().size()))]);
      const AttemptRow* attempt = job->tasks[0].current();
      if (attempt != nullptr && attempt->state == pb::TASK_RUNNING) return job;
    }
  }

  void Clusters() {
    pb::Event event;
    pb::ClusterFile* file = event.mutable_clusters_configured()->mutable_file();
    for (int64_t c = 0; c < size_.clusters; ++c) {
      const std::string storage = absl::StrCat("s", c / 10);
      (*file->mutable_storages())[storage].add_clusters(ClusterName(c));
      pb::ClusterSpec* cluster = file->add_clusters();
      cluster->set_name(ClusterName(c));
      cluster->set_job_storage(storage);
      for (int64_t h = 0; h < size_.hosts_per_cluster; ++h) {
        pb::HostSpec* host = cluster->add_hosts();
        host->set_name(absl::StrCat("h", 10'000 + h));
        host->set_rack(absl::StrCat("r", 100 + h / 16));
        host->set_block(absl::StrCat("b", h / 128));
      }
    }
    Do(event);
  }
  void Hosts() {
    for (int64_t c = 0; c < size_.clusters; ++c) {
      for (int64_t h = 0; h < size_.hosts_per_cluster; ++h) {
        pb::Event event;
        pb::HostHello* hello = event.mutable_host_hello();
        hello->set_cluster(ClusterName(c));
        hello->set_host(absl::StrCat("h", 10'000 + h));
        hello->set_state_id("s");
        hello->set_boot_id("b");
        pb::Inventory* inventory = hello->mutable_inventory();
        inventory->set_flavour(kTypes[h / 16 % 2]);
        for (int d = 0; d < kGpusPerHost; ++d) {
          inventory->add_devices()->set_index(d);
          inventory->mutable_devices(d)->set_healthy(true);
        }
        inventory->set_cpus_milli(128'000);
        inventory->set_memory_bytes(int64_t{1} << 40);
        inventory->set_disk_bytes(int64_t{4} << 40);
        AnnounceAll(inventory);
        Do(event);
      }
    }
  }
  // Leaves are guaranteed nine tenths of their home clusters' devices together, a department the
  // sum of its leaves.
  void Queues() {
    pb::Event event;
    pb::QueueTree* tree = event.mutable_queues_applied()->mutable_tree();
    std::vector<int64_t> hosts_of(2, 0);
    for (int64_t h = 0; h < size_.hosts_per_cluster; ++h) ++hosts_of[h / 16 % 2];
    for (int64_t d = 0; d < size_.departments; ++d) {
      pb::QueueSpec* department = tree->add_queues();
      department->set_name(absl::StrCat("d", d));
      for (int64_t leaf = d; leaf < size_.leaves; leaf += size_.departments) {
        pb::QueueSpec* queue = department->add_queues();
        queue->set_name(absl::StrCat("q", leaf));
        const int64_t sharing = size_.leaves / size_.clusters;
        for (int t = 0; t < 2; ++t) {
          const int64_t milli = hosts_of[t] * kGpusPerHost * 1000 * 9 / 10 / sharing / 1000 * 1000;
          pb::Quota& quota = (*queue->mutable_quota())[kTypes[t]];
          quota.set_guarantee_milli(milli);
          (*quota.mutable_guarantee_per_cluster())[ClusterName(Home(leaf))] = milli;
          quota.set_weight(1 + leaf % 4);
          if (leaf % 10 == 0) quota.set_limit_milli(3 * milli);
          pb::Quota& sum = (*department->mutable_quota())[kTypes[t]];
          sum.set_guarantee_milli(sum.guarantee_milli() + milli);
          (*sum.mutable_guarantee_per_cluster())[ClusterName(Home(leaf))] += milli;
          sum.set_weight(1 + d % 3);
        }
      }
    }
    Do(event);
  }

  const Size size_;
  Dice dice_;
  int64_t now_ns_ = kStartNs;
  int64_t events_ = 0;
};

int64_t PeakRssBytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

int Main(bool tenth, int steps, bool model_only) {
  Size size;
  if (tenth) size = {10, 625, 3, 100, 2'000};
  Fleet fleet(size);
  SchedulingOptions options;
  ModelUpkeep upkeep;
  // Enough gangs to fill the fleet, started where the entitled set has them; what is left, topped
  // up, is the line.
  const int64_t enough = fleet.Gpus() / 6;
  for (int64_t j = 0; j < enough; ++j) fleet.Submit();
  for (int pass = 0; pass < 4; ++pass) {
    fleet.Step();
    const std::vector<pb::Event> placed =
        fleet.Place(upkeep.Update(fleet.state, fleet.now_ns(), options), enough);
    for (const pb::Event& event : placed) fleet.Do(event);
    fleet.Follow(placed);
    fleet.FillLine();
    fleet.state.TakeChanges();
  }
  std::fprintf(stderr, "%lld GPUs, %lld of them held by %lld gangs, %lld wait\n",
               static_cast<long long>(fleet.Gpus()), static_cast<long long>(fleet.GpusHeld()),
               static_cast<long long>(fleet.Count(true)),
               static_cast<long long>(fleet.Count(false)));

  Decider decider;
  Stopwatch decide, validate, apply;
  std::vector<pb::Event> last;
  int64_t planned = 0;
  constexpr int kWarmUp = 100;  // the first steps start thousands in gaps that Place left; after
                                // the 60th what borrows may be stopped
  for (int step = 0; step < steps + kWarmUp; ++step) {
    Stopwatch unused;
    const bool counts = step >= kWarmUp;
    fleet.Step();
    (counts ? apply : unused).Time([&] {
      fleet.Events(last);
      return 0;
    });
    if (model_only) {
      const Model& model = *(counts ? decide : unused).Time([&] {
        return &upkeep.Update(fleet.state, fleet.now_ns(), options);
      });
      last = fleet.Place(model, 30);
    } else {
      const Plan plan = (counts ? decide : unused).Time([&] {
        return decider.Decide(fleet.state, fleet.now_ns(), options);
      });
      const absl::Status valid =
          (counts ? validate : unused).Time([&] { return Validate(fleet.state, plan); });
      MUSTER_CHECK_MSG(valid.ok(), std::string(valid.message()).c_str());
      last = plan.events;
    }
    for (const pb::Event& event : last) Apply(&fleet.state, event);
    planned += counts ? static_cast<int64_t>(last.size()) : 0;
    fleet.state.TakeChanges();
    if (step % 20 == 0) {
      std::fprintf(stderr, "step %d: %zu events planned, %lld wait\n", step, last.size(),
                   static_cast<long long>(fleet.Count(false)));
    }
  }
  std::printf(
      "decide_p50_ms=%.2f decide_p99_ms=%.2f decide_mean_ms=%.2f decide_wall_p99_ms=%.2f "
      "validate_p99_ms=%.2f apply_p99_ms=%.2f "
      "planned_per_step=%.1f running=%lld waiting=%lld held=%.3f rss_mib=%lld\n",
      Quantile(decide.cpu_ms, 0.5), Quantile(decide.cpu_ms, 0.99), Mean(decide.cpu_ms),
      Quantile(decide.wall_ms, 0.99), validate.cpu_ms.empty() ? 0 : Quantile(validate.cpu_ms, 0.99),
      Quantile(apply.cpu_ms, 0.99), static_cast<double>(planned) / steps,
      static_cast<long long>(fleet.Count(true)), static_cast<long long>(fleet.Count(false)),
      static_cast<double>(fleet.GpusHeld()) / static_cast<double>(fleet.Gpus()),
      static_cast<long long>(PeakRssBytes() >> 20));
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  bool tenth = false, model = false;
  int steps = 300;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--tenth") == 0) {
      tenth = true;
    } else if (std::strcmp(argv[i], "--model") == 0) {
      model = true;
    } else if (std::strcmp(argv[i], "--steps") == 0 && i + 1 < argc &&
               absl::SimpleAtoi(argv[i + 1], &steps) && steps > 0) {
      ++i;
    } else {
      std::fprintf(stderr, "usage: bench-scale [--tenth] [--steps N] [--model]\n");
      return 2;
    }
  }
  return muster::Main(tenth, steps, model);
}
