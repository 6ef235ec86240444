// Row `llama3-failures`: one gang on 2,048 hosts of 8 GPUs for 54 days, interrupted as Llama 3
// 405B's pre-training was, under the real engine: how much of the time it makes progress that is
// kept.
//
//   bench_llama3 [--quick]
//
// The mix: "The Llama 3 Herd of Models" (arXiv 2407.21783), table 5: 419 unexpected interruptions
// in 54 days. Their times are drawn evenly.
//
// What a host does is a model of a few latencies; what the scheduler does is real: it hears of an
// end or of silence, stops the others, places the gang on healthy hosts, spares included, prepares,
// starts, names the checkpoint. Healthy hosts' heartbeats are not simulated.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/quiet_log.h"
#include "common/base/units.h"
#include "common/spec/config_files.h"
#include "scheduler/engine/engine.h"

namespace muster::bench {
namespace {

constexpr int64_t kEpochNs = 1'700'000'000'000'000'000;
constexpr int kHosts = 2048, kGpus = 8;
constexpr int64_t kLatencyNs = 5 * kMillisecond;  // of a message
constexpr int64_t kPrepareNs = kSecond;           // directories, a port
constexpr int64_t kKillNs = 200 * kMillisecond;   // SIGKILL to a record of the end
constexpr int64_t kExitNs = kSecond;              // from a device's error to the end of its process
constexpr int64_t kLeaseNs = 45 * kSecond;  // Muster's default: a host that is gone is known to be
constexpr int64_t kCheckpointNs = 3 * kMinute;

enum class Fault { kSoftware, kDevice, kHang, kHostGone };
struct Kind {
  const char* name;
  int count;  // in 54 days
  Fault fault;
};
const Kind kKinds[] = {
    {"faulty GPU", 148, Fault::kDevice},
    {"GPU HBM3 memory", 72, Fault::kDevice},
    {"software bug", 54, Fault::kSoftware},
    {"network switch or cable", 35, Fault::kHang},
    {"host maintenance", 32, Fault::kHostGone},
    {"GPU SRAM", 19, Fault::kDevice},
    {"GPU system processor", 17, Fault::kDevice},
    {"NIC", 7, Fault::kDevice},
    {"NCCL watchdog timeout", 7, Fault::kHang},
    {"silent data corruption", 6, Fault::kDevice},
    {"GPU thermal, sensor", 6, Fault::kDevice},
    {"SSD", 3, Fault::kDevice},
    {"power supply", 3, Fault::kHostGone},
    {"server chassis", 2, Fault::kHostGone},
    {"IO expansion board", 2, Fault::kHostGone},
    {"dependency", 2, Fault::kSoftware},
    {"CPU", 2, Fault::kHostGone},
    {"system memory", 2, Fault::kHostGone},
};

struct Parameters {
  int64_t days = 54;
  int spares = 32;
  int64_t restart_ns = kMinute;  // from Start to the first step: processes, NCCL, loading
  int64_t hang_ns =
      10 * kMinute;  // until the peers of a dead link give up: torch's default for NCCL
  int64_t repair_ns = 24 * kHour;        // of a host, until it takes work again
  int64_t stall_ns = 50 * kMillisecond;  // of a checkpoint, which is written while training goes on
};

struct Outcome {
  double effective = 0;  // share of the time that made progress which was kept
  int interruptions = 0, attempts = 0;
  double slowest_step_ms = 0, real_s = 0;
};

class NoStore : public Store {
 public:
  absl::Status Commit(const Transaction&) override { return absl::OkStatus(); }
  bool WantsRows() const override { return false; }
};

class Run : public Clock, public AgentLink {
 public:
  explicit Run(const Parameters& parameters)
      : parameters_(parameters),
        hosts_(kHosts + parameters.spares),
        engine_(Options(), this, &store_, this, State()) {}

  Outcome Go() {
    const auto began = std::chrono::steady_clock::now();
    Configure();
    std::mt19937_64 random(405);
    for (const Kind& kind : kKinds) {
      for (int i = 0; i < kind.count; ++i) {
        const int64_t at_ns = static_cast<int64_t>(random() % static_cast<uint64_t>(54 * kDay));
        if (at_ns < parameters_.days * kDay)
          At(at_ns, [this, &kind, host = random()] { Break(kind.fault, host); });
      }
    }
    const int64_t end_ns = parameters_.days * kDay;
    while (true) {
      const int64_t wake_ns = std::max(engine_.NextWakeNs() - kEpochNs, now_ns_);
      const int64_t heap_ns = heap_.empty() ? end_ns : heap_.top().at_ns;
      const int64_t next_ns =
          std::min({end_ns, heap_ns, engine_.NextWakeNs() == INT64_MAX ? end_ns : wake_ns});
      if (next_ns >= end_ns) break;
      now_ns_ = next_ns;
      while (!heap_.empty() && heap_.top().at_ns <= now_ns_) {
        const std::function<void()> what = heap_.top().what;
        heap_.pop();
        what();
      }
      Settle();
    }
    now_ns_ = end_ns;
    outcome_.effective = static_cast<double>(Kept()) / static_cast<double>(end_ns) *
                         (1 - static_cast<double>(parameters_.stall_ns) / kCheckpointNs);
    outcome_.attempts = attempt_;
    outcome_.real_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    return outcome_;
  }

  int64_t WallNs() override { return kEpochNs + now_ns_; }
  int64_t MonotonicNs() override { return now_ns_; }
  int64_t BootNs() override { return now_ns_; }

  // A command to a host: carried out after its latencies, unless the host is gone.
  void Send(const std::string&, const std::string& name,
            const pb::SchedulerMessage& message) override {
    int host = 0;
    MUSTER_CHECK(absl::SimpleAtoi(name.substr(1), &host));
    if (message.has_prepare()) {
      const int attempt = message.prepare().key().attempt();
      if (attempt > attempt_) NewAttempt(message.prepare());
      After(kLatencyNs + kPrepareNs,
            [this, host, attempt, first = message.prepare().here().first_group_rank()] {
              if (attempt != attempt_ || !hosts_[host].up || hosts_[host].phase == pb::GONE) return;
              hosts_[host].rank = first;
              Report(host, pb::PREPARED, 0, false);
            });
    } else if (message.has_start()) {
      After(kLatencyNs, [this, host, attempt = message.start().key().attempt()] {
        if (attempt != attempt_ || !hosts_[host].up || hosts_[host].phase != pb::PREPARED) return;
        Report(host, pb::STARTED, 0, false);
        if (++started_ == kHosts) {
          After(parameters_.restart_ns, [this, attempt] {
            if (attempt == attempt_ && !over_) Work();
          });
        }
      });
    } else if (message.has_stop()) {
      After(kLatencyNs + kKillNs, [this, host, attempt = message.stop().key().attempt()] {
        if (attempt != attempt_ || !hosts_[host].up || hosts_[host].phase == pb::GONE) return;
        Stall();
        Report(host, pb::GONE, 9, true);
      });
    }
  }

 private:
  struct Host {
    bool up = true;
    pb::AttemptPhase phase = pb::ATTEMPT_PHASE_UNSPECIFIED;  // of the newest attempt
    int rank = 0;
    int lost_attempt = 0;  // that ran here when it went
  };
  struct Item {
    int64_t at_ns;
    uint64_t sequence;
    std::function<void()> what;
    bool operator<(const Item& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : sequence > other.sequence;
    }
  };

  static EngineOptions Options() {
    EngineOptions options;
    options.scheduling.lease_ns = kLeaseNs;
    return options;
  }
  static std::string Name(int host) { return absl::StrFormat("h%04d", host); }
  static std::string Uid() { return std::string(31, '0') + "1"; }

  void At(int64_t at_ns, std::function<void()> what) {
    heap_.push({at_ns, sequence_++, std::move(what)});
  }
  void After(int64_t delay_ns, std::function<void()> what) {
    At(now_ns_ + delay_ns, std::move(what));
  }

  void Settle() {
    while (true) {
      const auto began = std::chrono::steady_clock::now();
      if (!engine_.Step()) return;
      outcome_.slowest_step_ms = std::max(
          outcome_.slowest_step_ms,
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began)
              .count());
    }
  }

  void Configure() {
    pb::Event event;
    pb::ClusterFile* file = event.mutable_clusters_configured()->mutable_file();
    pb::Sku& sku = (*file->mutable_skus())["h100"];
    sku.set_flavour("h100-80g");
    sku.set_gpus(kGpus);
    pb::ClusterSpec* cluster = file->add_clusters();
    cluster->set_name("lab");
    cluster->set_sku("h100");
    for (size_t h = 0; h < hosts_.size(); ++h) {
      pb::HostSpec* host = cluster->add_hosts();
      host->set_name(Name(static_cast<int>(h)));
      host->set_block(absl::StrCat("b", h / 384));  // a pod of 3,072 GPUs
      host->set_rack(absl::StrCat("r", h / 2));     // two servers a rack
    }
    engine_.Post(event);
    for (size_t h = 0; h < hosts_.size(); ++h) Hello(static_cast<int>(h));
    event.Clear();
    event.mutable_queues_applied()->mutable_tree()->add_queues()->set_name("pretraining");
    event.mutable_queues_applied()->set_version(1);
    engine_.Post(event);
    event.Clear();
    pb::JobSubmitted* job = event.mutable_job_submitted();
    job->set_uid(Uid());
    job->set_number(1);
    job->set_owner("meta");
    job->mutable_spec()->set_name("llama3");
    job->mutable_spec()->set_queue("pretraining");
    pb::TaskSpec* task = job->mutable_spec()->add_tasks();
    task->set_name("main");
    task->mutable_workers()->set_min(kHosts);
    task->mutable_workers()->set_max(kHosts);
    task->mutable_resources()->set_gpus_milli(kGpus * 1000);
    task->mutable_resources()->add_gpu_types("h100-80g");
    task->set_processes_per_worker(1);  // of eight; the reports of ends are shorter
    task->set_trainer_json("{}");
    task->set_when_unreachable(pb::REPLACE);
    task->set_max_restarts(1000);
    task->set_hang_timeout_ns(0);
    engine_.Post(event);
  }

  void Hello(int host) {
    pb::Event event;
    pb::HostHello* hello = event.mutable_host_hello();
    hello->set_cluster("lab");
    hello->set_host(Name(host));
    hello->set_state_id(absl::StrCat("state-", host));
    hello->set_boot_id("boot");
    for (int i = 0; i < kGpus; ++i) {
      pb::Device* device = hello->mutable_inventory()->add_devices();
      device->set_index(i);
      device->set_uuid(absl::StrCat("gpu-", i));
      device->set_healthy(true);
    }
    hello->mutable_inventory()->set_flavour("h100-80g");
    hello->mutable_inventory()->set_cpus_milli(96'000);
    hello->mutable_inventory()->set_memory_bytes(int64_t{1} << 40);
    hello->mutable_inventory()->set_address("127.0.0.1");
    AnnounceAll(hello->mutable_inventory());
    engine_.Post(std::move(event));
  }

  void NewAttempt(const pb::Prepare& prepare) {
    attempt_ = prepare.key().attempt();
    started_ = 0;
    over_ = false;
    for (Host& host : hosts_) host.phase = pb::ATTEMPT_PHASE_UNSPECIFIED;
    loaded_ns_ = 0;
    if (prepare.resume_from_size() > 0) {
      const std::string& path = prepare.resume_from(0);
      MUSTER_CHECK(absl::SimpleAtoi(path.substr(path.rfind('/') + 1), &loaded_ns_));
    }
  }

  void Report(int host, pb::AttemptPhase phase, int signal, bool stopped, int exit_code = 0) {
    Tell(host, attempt_, phase, signal, stopped, exit_code, pb::CAUSE_UNSPECIFIED);
  }

  void Tell(int host, int attempt, pb::AttemptPhase phase, int signal, bool stopped, int exit_code,
            pb::Cause cause) {
    pb::Event event;
    pb::AttemptReported* reported = event.mutable_attempt_reported();
    reported->set_cluster("lab");
    reported->set_host(Name(host));
    reported->set_state_id(absl::StrCat("state-", host));
    pb::AttemptReport* report = reported->mutable_report();
    report->mutable_key()->set_job_uid(Uid());
    report->mutable_key()->set_task("main");
    report->mutable_key()->set_attempt(attempt);
    report->set_phase(phase);
    report->set_cause(cause);
    if (phase == pb::PREPARED) report->set_rendezvous_port(20'000);
    if (phase == pb::STARTED) report->set_start_ns(WallNs());
    if (phase == pb::GONE) {
      report->set_end_ns(WallNs());
      report->set_stop_sent(stopped);
      if (cause == pb::CAUSE_UNSPECIFIED && (signal != 0 || exit_code != 0) &&
          hosts_[host].phase == pb::STARTED) {
        pb::WorkerExit* exit = report->add_exits();
        exit->set_rank(hosts_[host].rank);
        exit->set_signal(signal);
        exit->set_exit_code(exit_code);
      }
    }
    if (attempt == attempt_) hosts_[host].phase = phase;
    After(kLatencyNs, [this, event] { engine_.Post(event); });
  }

  // ---- the gang's progress ----

  int64_t Now() const { return working_ ? loaded_ns_ + now_ns_ - since_ns_ : loaded_ns_; }
  int64_t Kept() const { return working_ ? Now() : newest_ns_; }

  void Work() {
    working_ = true;
    since_ns_ = now_ns_;
    Checkpoint(attempt_);
  }
  void Checkpoint(int attempt) {
    After(kCheckpointNs, [this, attempt] {
      if (attempt != attempt_ || !working_) return;
      newest_ns_ = Now();
      pb::Event event;
      pb::CheckpointSeen* seen = event.mutable_checkpoint_seen();
      seen->mutable_key()->set_job_uid(Uid());
      seen->mutable_key()->set_task("main");
      seen->mutable_key()->set_attempt(attempt);
      seen->mutable_checkpoint()->set_step(newest_ns_ / kSecond);
      seen->mutable_checkpoint()->set_path(absl::StrCat("/checkpoints/", attempt, "/", newest_ns_));
      seen->mutable_checkpoint()->set_attempt(attempt);
      seen->mutable_checkpoint()->set_at_ns(WallNs());
      seen->set_loaded_step(loaded_ns_ == 0 ? -1 : loaded_ns_ / kSecond);
      engine_.Post(std::move(event));
      Checkpoint(attempt);
    });
  }
  // No step is finished any more.
  void Stall() {
    working_ = false;
    over_ = true;
  }

  // ---- faults ----

  void Break(Fault fault, uint64_t random) {
    if (!working_) {  // it interrupts what runs: as soon as that does
      After(kSecond, [this, fault, random] { Break(fault, random); });
      return;
    }
    ++outcome_.interruptions;
    int host = static_cast<int>(random % hosts_.size());
    while (hosts_[host].phase != pb::STARTED) host = (host + 1) % static_cast<int>(hosts_.size());
    const int attempt = attempt_;
    Stall();
    if (fault == Fault::kHostGone) {
      hosts_[host].up = false;
      hosts_[host].lost_attempt = attempt;
      After(kLeaseNs / 2, [this, host] { SetState(host, pb::HOST_SILENT); });
      After(kLeaseNs, [this, host] { SetState(host, pb::HOST_UNREACHABLE); });
      After(parameters_.hang_ns, [this, attempt] { PeerGivesUp(attempt); });
      After(parameters_.repair_ns, [this, host] {
        hosts_[host].up = true;
        Hello(host);
        Tell(host, hosts_[host].lost_attempt, pb::GONE, 0, false, 0, pb::HOST_LOST);
      });
      return;
    }
    After(fault == Fault::kHang ? parameters_.hang_ns : kExitNs, [this, host, fault, attempt] {
      if (attempt != attempt_ || hosts_[host].phase != pb::STARTED) return;
      if (fault == Fault::kSoftware)
        return Tell(host, attempt, pb::GONE, 0, false, 1, pb::CAUSE_UNSPECIFIED);
      Tell(host, attempt, pb::GONE, 0, false, 0,
           pb::HOST_LOST);  // its health check names the device
      Drain(host, true);
      After(parameters_.repair_ns, [this, host] { Drain(host, false); });
    });
  }

  // Of a gang that lost a host and was not started elsewhere meanwhile, a rank's timeout passes.
  void PeerGivesUp(int attempt) {
    for (size_t host = 0; host < hosts_.size() && attempt == attempt_; ++host) {
      if (hosts_[host].up && hosts_[host].phase == pb::STARTED)
        return Tell(static_cast<int>(host), attempt, pb::GONE, 0, false, 1, pb::CAUSE_UNSPECIFIED);
    }
  }

  void SetState(int host, pb::HostState state) {
    pb::Event event;
    event.mutable_host_state()->set_cluster("lab");
    event.mutable_host_state()->set_host(Name(host));
    event.mutable_host_state()->set_state(state);
    engine_.Post(std::move(event));
  }

  void Drain(int host, bool drained) {
    pb::Event event;
    event.mutable_drain_changed()->set_target(absl::StrCat("lab/", Name(host)));
    event.mutable_drain_changed()->set_drained(drained);
    event.mutable_drain_changed()->set_reason("a device of it failed");
    After(kLatencyNs, [this, event] { engine_.Post(event); });
  }

  const Parameters parameters_;
  int64_t now_ns_ = 0;
  uint64_t sequence_ = 0;
  std::priority_queue<Item> heap_;
  std::vector<Host> hosts_;
  NoStore store_;
  Engine engine_;
  Outcome outcome_;
  int attempt_ = 0, started_ = 0;
  bool working_ = false, over_ = false;
  int64_t since_ns_ = 0, loaded_ns_ = 0,
          newest_ns_ = 0;  // the work at which the attempt began; of the newest checkpoint
};

bool Figure(const std::string& name, double value, const char* unit, const char* bar, bool holds) {
  std::printf(
      "{\"figure\": \"%s\", \"value\": %.2f, \"unit\": \"%s\", \"peer\": null, \"bar\": \"%s\", "
      "\"holds\": %s}\n",
      name.c_str(), value, unit, bar, holds ? "true" : "false");
  std::fflush(stdout);
  return holds;
}

// What the figure rests on, and where each number is from.
constexpr char kAssumptions[] = R"(Assumptions:
  mix, rate       The Llama 3 Herd of Models (arXiv 2407.21783), section 3.3.4 and table 5: 419 unexpected interruptions in 54 days, up to
                  16,384 GPUs; drawn evenly over the time, each on a host of its own. Planned interruptions are left out.
  checkpoints     every 3 min (the bar's); written while training goes on. Stall 50 ms: 405e9 parameters at 14 bytes on 16,384 GPUs are
                  0.35 GB a GPU, at 25 GB/s of PCIe 14 ms, and a barrier. Sweep: 1 s.
  restart, load   60 s from Start to the first step. MegaScale (arXiv 2402.15627), section 3.5, forms NCCL's groups of more than 10,000
                  GPUs in less than 30 s; 5.7 TB at the 2 TB/s of Llama 3's storage (its section 3.3.1) load in 3 s; the rest is Python
                  and CUDA. Sweep: 30, 120, 180 s.
  detection       a process that ends: 1 s. A host that is gone: Muster's lease, 45 s. A dead link: 10 min, torch's default timeout of
                  NCCL. Sweep: 1 min.
  spares          32 hosts (1.6 %), a broken one back after 24 h. Sweep: 8 hosts.
  scheduler       real: its decisions, commands and reports, 5 ms a message, 1 s to prepare. Its store is left out; healthy hosts' heartbeats, too.
)";

struct Variant {
  const char* what;
  Parameters parameters;
};

std::vector<Variant> Variants(bool quick) {
  Parameters base;
  if (quick) base.days = 3;
  std::vector<Variant> variants = {{"as assumed", base}};
  const auto add = [&](const char* what, auto change) {
    variants.push_back({what, base});
    change(&variants.back().parameters);
  };
  if (quick) return variants;
  add("restart and load 30 s", [](Parameters* p) { p->restart_ns = 30 * kSecond; });
  add("restart and load 120 s", [](Parameters* p) { p->restart_ns = 120 * kSecond; });
  add("restart and load 180 s", [](Parameters* p) { p->restart_ns = 180 * kSecond; });
  add("dead links known after 1 min", [](Parameters* p) { p->hang_ns = kMinute; });
  add("a checkpoint stalls 1 s", [](Parameters* p) { p->stall_ns = kSecond; });
  add("8 spares", [](Parameters* p) { p->spares = 8; });
  return variants;
}

int Main(bool quick) {
  SilenceLog();
  std::fputs(kAssumptions, stdout);
  bool ok = true, first = true;
  for (const Variant& variant : Variants(quick)) {
    const Outcome outcome = Run(variant.parameters).Go();
    std::printf(
        "%s: %d interruptions in %lld days, %d attempts, slowest step of the engine %.0f ms, "
        "simulated in %.0f s\n",
        variant.what, outcome.interruptions, static_cast<long long>(variant.parameters.days),
        outcome.attempts, outcome.slowest_step_ms, outcome.real_s);
    const bool holds =
        Figure(absl::StrCat("effective training time, ", variant.what), 100 * outcome.effective,
               "%", first ? "≥ 97.5" : "-", !first || outcome.effective >= 0.975);
    ok = ok && holds;
    if (first)
      ok = Figure("interruptions that cost one attempt each", outcome.interruptions, "", "-",
                  outcome.attempts == outcome.interruptions + 1) &&
           ok;
    first = false;
  }
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  return muster::bench::Main(argc > 1 && std::strcmp(argv[1], "--quick") == 0);
}
