// Random events for tests of State: mostly what a scheduler would apply next, often something late,
// repeated or senseless.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "common/spec/config_files.h"
#include "common/spec/members.h"
#include "scheduler/state/state.h"

namespace muster::testing {

// Reproducible from its seed on every machine: mt19937_64 is specified, the distributions are our
// own.
class RandomEvents {
 public:
  explicit RandomEvents(uint64_t seed) : random_(seed) {}

  // The first events configure clusters, queues and hosts. Jobs' uids are "uid" + number; numbers
  // count from 1.
  pb::Event Next(const State& state) {
    if (count_++ == 0) return Step(state);
    if (count_ == 2) return Clusters(/*all=*/true);
    if (count_ == 3) return Queues();
    if (count_ < 15) return Hello(count_ % 12);
    struct Kind {
      int weight;
      pb::Event (RandomEvents::*make)(const State&);
    };
    static constexpr Kind kKinds[] = {
        {120, &RandomEvents::Step},
        {60, &RandomEvents::Submit},
        {20, &RandomEvents::Cancel},
        {15, &RandomEvents::Drain},
        {25, &RandomEvents::AnyHello},
        {30, &RandomEvents::HostState},
        {360, &RandomEvents::Report},
        {60, &RandomEvents::GangPrepared},
        {50, &RandomEvents::CheckpointSeen},
        {20, &RandomEvents::Progress},
        {20, &RandomEvents::Staged},
        {30, &RandomEvents::Published},
        {20, &RandomEvents::Loaded},
        {120, &RandomEvents::Placed},
        {40, &RandomEvents::Stopping},
        {40, &RandomEvents::Lost},
        {10, &RandomEvents::Opened},
        {6, &RandomEvents::Failed},
        {4, &RandomEvents::AnyClusters},
        {4, &RandomEvents::AnyQueues},
        {6, &RandomEvents::Binding},
        {24, &RandomEvents::Trusting},
        {10, &RandomEvents::Due},
        {4, &RandomEvents::Nothing},
    };
    int total = 0;
    for (const Kind& kind : kKinds) total += kind.weight;
    int64_t at = Below(total);
    for (const Kind& kind : kKinds) {
      if ((at -= kind.weight) < 0) return (this->*kind.make)(state);
    }
    return pb::Event();
  }

  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

 private:
  struct Target {
    const JobRow* job = nullptr;
    int32_t task = 0;
    const AttemptRow* attempt = nullptr;
    pb::AttemptKey key;
  };

  bool Chance(int percent) { return Below(100) < percent; }
  static std::string ClusterName(int64_t host) { return host % 3 == 2 ? "cloud" : "lab"; }
  static std::string HostName(int64_t host) { return absl::StrCat("h", host); }

  // An attempt, mostly an unfinished one; its key is sometimes that of another, or of none.
  Target Pick(const State& state) {
    Target target;
    const std::vector<uint64_t> jobs = Chance(90) ? state.active_jobs() : state.AllJobs();
    if (!jobs.empty()) target.job = state.FindJob(jobs[Below(static_cast<int64_t>(jobs.size()))]);
    if (target.job != nullptr && !target.job->tasks.empty()) {
      target.task = static_cast<int32_t>(Below(static_cast<int64_t>(target.job->tasks.size())));
      const TaskRow& task = target.job->tasks[target.task];
      if (!task.attempts.empty()) {
        target.attempt = Chance(90)
                             ? &task.attempts.back()
                             : &task.attempts[Below(static_cast<int64_t>(task.attempts.size()))];
      }
      target.key =
          KeyOf(*target.job, target.task, target.attempt == nullptr ? 1 : target.attempt->number);
    }
    if (Chance(3)) target.key.set_attempt(static_cast<int32_t>(Below(8)) - 2);
    if (Chance(2)) target.key.set_job_uid(absl::StrCat("uid", Below(60)));
    if (Chance(1)) target.key.set_task("nobody");
    return target;
  }

  pb::Event Step(const State& state) {
    pb::Event event;
    pb::StepStarted* step = event.mutable_step();
    int64_t ahead_ns = Below(4 * kSecond);
    if (Chance(20)) ahead_ns = Below(kMillisecond);
    if (Chance(5)) ahead_ns = -Below(kMinute);
    if (Chance(1)) ahead_ns = 3 * kDay;
    step->set_now_ns((state.now_ns() == 0 ? 1'700'000'000 * kSecond : state.now_ns()) + ahead_ns);
    step->set_epoch(state.epoch() + (Chance(2) ? 1 : 0));
    if (Chance(2)) step->set_restart_backoff_ns(Below(5) * kSecond);
    if (Chance(8)) step->set_listens_again(true);
    return event;
  }

  pb::Event AnyClusters(const State&) { return Clusters(false); }
  pb::Event Clusters(bool all) {
    pb::Event event;
    pb::ClusterFile* file = event.mutable_clusters_configured()->mutable_file();
    (*file->mutable_storages())["disk"].set_path("/disk");
    (*file->mutable_storages())["disk"].add_clusters("lab");
    for (const char* name : {"lab", "cloud", "attic"}) {
      if (!all && Chance(20)) continue;
      pb::ClusterSpec* cluster = file->add_clusters();
      cluster->set_name(name);
      cluster->set_job_storage(Chance(80) ? "disk" : "");
      cluster->set_open(Chance(50));
      for (int64_t host = 0; host < 12; ++host) {
        if (ClusterName(host) != name || Chance(30)) continue;
        cluster->add_hosts()->set_name(HostName(host));
        cluster->mutable_hosts(cluster->hosts_size() - 1)->set_rack(absl::StrCat("r", host / 4));
      }
      if (Chance(5)) *file->add_clusters() = *cluster;
    }
    return event;
  }

  pb::Event AnyQueues(const State&) { return Queues(); }
  pb::Event Queues() {
    pb::Event event;
    for (const char* name : {"research", "product"}) {
      if (Chance(10)) continue;
      pb::QueueSpec* queue = event.mutable_queues_applied()->mutable_tree()->add_queues();
      queue->set_name(name);
      queue->set_held(Chance(10));
      queue->set_order(static_cast<pb::QueueOrder>(Below(3)));
      queue->set_max_wait_ns(Below(3) * kMinute);
      (*queue->mutable_quota())["gpu"].set_guarantee_milli(Below(8) * 1000);
      if (Chance(30)) queue->add_queues()->set_name("nlp");
    }
    event.mutable_queues_applied()->set_version(static_cast<uint64_t>(Below(10)));
    return event;
  }

  pb::Event Binding(const State&) {
    static constexpr const char* kPaths[] = {"", "research", "research/nlp", "product", "gone"};
    pb::Event event;
    pb::BindingChanged* changed = event.mutable_binding_changed();
    pb::Binding* binding = changed->mutable_binding();
    (Chance(50) ? binding->mutable_user() : binding->mutable_group())
        ->assign(absl::StrCat("u", Below(3)));
    binding->set_queue(kPaths[Below(5)]);
    binding->set_role(static_cast<pb::Role>(Below(5)));
    changed->set_revoked(Chance(30));
    return event;
  }

  // Authorities, tokens, users and certificates.
  pb::Event Trusting(const State& state) {
    const auto uri = [this] { return absl::StrCat("muster://t1/host/lab/", HostName(Below(3))); };
    pb::Event event;
    switch (Below(6)) {
      case 0: {
        pb::AuthorityChanged* changed = event.mutable_authority_changed();
        const bool first = state.trust().trust_id.empty();
        changed->set_step(static_cast<pb::AuthorityChanged::Step>(first ? 1 : Below(5)));
        changed->set_trust_id(absl::StrCat("t", Below(2)));
        changed->mutable_authority()->set_version(static_cast<uint64_t>(Below(20)));
        break;
      }
      case 1: {
        pb::JoinToken* token = event.mutable_join_token()->mutable_token();
        token->set_id(absl::StrCat("k", Below(4)));
        token->set_uri(uri());
        token->set_expires_ns(state.now_ns() + Below(kHour));
        token->set_reusable(Chance(20));
        event.mutable_join_token()->set_revoked(Chance(20));
        break;
      }
      case 2: {
        pb::NetworkUser* user = event.mutable_network_user()->mutable_user();
        user->set_name(absl::StrCat("u", Below(3)));
        user->add_groups(absl::StrCat("g", Below(3)));
        event.mutable_network_user()->set_removed(Chance(30));
        break;
      }
      case 3:
        event.mutable_certificates_revoked()->set_uri(uri());
        break;
      default: {
        pb::IssuedCertificate* issued = event.mutable_certificate_issued()->mutable_certificate();
        issued->set_serial(absl::StrCat(Below(1000)));
        issued->set_uri(uri());
        issued->set_end_s(state.now_ns() / kSecond + Below(3600));
        issued->set_key_hash(absl::StrCat("key", Below(3)));
        if (Chance(50)) event.mutable_certificate_issued()->set_token(absl::StrCat("k", Below(4)));
      }
    }
    return event;
  }

  pb::Event AnyHello(const State&) { return Hello(Below(14)); }
  pb::Event Hello(int64_t host) {
    pb::Event event;
    pb::HostHello* hello = event.mutable_host_hello();
    hello->set_cluster(Chance(2) ? "nowhere" : ClusterName(host));
    hello->set_host(HostName(host));
    hello->set_state_id(Chance(80) ? "s1" : absl::StrCat("s", Below(3)));
    hello->set_boot_id(absl::StrCat("b", Below(3)));
    pb::Inventory* inventory = hello->mutable_inventory();
    const int64_t devices = Chance(85) ? 4 : Below(6);
    for (int64_t d = 0; d < devices; ++d) {
      inventory->add_devices()->set_index(static_cast<int32_t>(d));
      inventory->mutable_devices(static_cast<int>(d))->set_healthy(Chance(95));
    }
    inventory->set_flavour("gpu");
    inventory->set_cpus_milli(32'000);
    inventory->set_memory_bytes(int64_t{64} << 30);
    AnnounceAll(inventory);
    return event;
  }

  pb::Event HostState(const State&) {
    pb::Event event;
    const int64_t host = Below(14);
    event.mutable_host_state()->set_cluster(ClusterName(host));
    event.mutable_host_state()->set_host(HostName(host));
    event.mutable_host_state()->set_state(static_cast<pb::HostState>(Below(5)));
    return event;
  }

  pb::Event Drain(const State&) {
    pb::Event event;
    const int64_t host = Below(14);
    event.mutable_drain_changed()->set_target(
        Chance(30) ? ClusterName(host) : absl::StrCat(ClusterName(host), "/", HostName(host)));
    event.mutable_drain_changed()->set_drained(Chance(40));
    event.mutable_drain_changed()->set_reason("why");
    return event;
  }

  pb::Event Submit(const State& state) {
    pb::Event event;
    if (state.active_jobs().size() > 40) return event;
    pb::JobSubmitted* e = event.mutable_job_submitted();
    const uint64_t number = Chance(95) ? state.next_job_number() : static_cast<uint64_t>(Below(50));
    e->set_number(number);
    e->set_uid(absl::StrCat("uid", Chance(97) ? number : static_cast<uint64_t>(Below(50))));
    e->set_owner(Chance(50) ? "ann" : "bob");
    if (Chance(40)) e->set_idempotency_key(absl::StrCat("k", number));
    e->set_request_hash(std::string("\x00\xff\x80", 3));
    e->mutable_spec()->set_queue(Chance(50) ? "research" : Chance(50) ? "product" : "gone");
    (*e->mutable_spec()->mutable_labels())["b"] = "1";
    (*e->mutable_spec()->mutable_labels())["a"] = "2";
    const int64_t tasks = 1 + Below(3);
    for (int64_t t = 0; t < tasks; ++t) {
      pb::TaskSpec* task = e->mutable_spec()->add_tasks();
      task->set_name(absl::StrCat("t", t));
      if (t > 0 && Chance(60)) task->add_after(absl::StrCat("t", Below(t)));
      task->mutable_resources()->set_gpus_milli(
          std::array<int64_t, 4>{0, 500, 1000, 2000}[Below(4)]);
      if (Chance(50)) task->mutable_resources()->set_memory_bytes(1 << 20);
      if (Chance(50)) task->set_max_restarts(static_cast<int32_t>(Below(3)));
    }
    if (Chance(15)) {
      e->mutable_spec()->set_array(absl::StrCat("3-", 3 + Below(6), "%", 1 + Below(4)));
      e->set_members(MembersOf(e->spec()));
    } else if (tasks == 1 && Chance(30)) {
      e->mutable_spec()->mutable_independent_workers()->set_min(1);
      e->mutable_spec()->mutable_independent_workers()->set_max(static_cast<int32_t>(1 + Below(5)));
      e->set_members(MembersOf(e->spec()));
    }
    if (Chance(10)) e->set_not_before_ns(state.now_ns() + (Below(60) - 5) * kSecond);
    if (Chance(10)) e->set_previous(static_cast<uint64_t>(Below(static_cast<int64_t>(number) + 3)));
    while (Chance(20)) {  // of what there is, was, or isn't yet
      pb::Predecessor* before = e->add_predecessors();
      before->set_number(static_cast<uint64_t>(Below(static_cast<int64_t>(number) + 3)));
      before->set_array(Chance(20));
      before->set_any(Chance(30));
    }
    return event;
  }

  // Early or late, and of whom nothing is due.
  pb::Event Due(const State& state) {
    pb::Event event;
    pb::JobDue* e = event.mutable_job_due();
    e->set_number(state.due().empty() || Chance(10) ? static_cast<uint64_t>(Below(50))
                                                    : state.due().begin()->second);
    if (Chance(30)) e->set_skip_to_ns(state.now_ns() + (Below(60) - 5) * kSecond);
    e->set_no_right(e->skip_to_ns() / kSecond % 2 == 1);
    if (Chance(10)) e->set_end_reason("why");
    return event;
  }

  pb::Event Cancel(const State& state) {
    pb::Event event;
    const Target target = Pick(state);
    event.mutable_job_cancel()->set_number(target.job == nullptr ? 7 : target.job->number);
    event.mutable_job_cancel()->set_by(Chance(50) ? "ann" : "");
    if (target.job != nullptr && target.job->array != 0 && Chance(30)) {
      event.mutable_job_cancel()->set_number(target.job->array);
      event.mutable_job_cancel()->set_array(true);
    }
    return event;
  }

  // Mostly of a host of the attempt; phases and exits in any order.
  pb::Event Report(const State& state) {
    pb::Event event;
    const Target target = Pick(state);
    pb::AttemptReported* e = event.mutable_attempt_reported();
    pb::AttemptReport* report = e->mutable_report();
    *report->mutable_key() = target.key;
    int32_t first_rank = 0, workers = 1;
    int64_t any = Below(12);
    e->set_cluster(ClusterName(any));
    e->set_host(HostName(any));
    e->set_state_id("s1");
    report->set_phase(static_cast<pb::AttemptPhase>(Below(5)));
    if (target.attempt != nullptr && Chance(92)) {
      const PartRow& part =
          target.attempt->parts[Below(static_cast<int64_t>(target.attempt->parts.size()))];
      e->set_cluster(state.clusters()[state.host(part.host).cluster].name);
      e->set_host(state.host(part.host).name);
      e->set_state_id(Chance(90) ? part.state_id : state.host(part.host).state_id);
      first_rank = part.first_group_rank;
      workers = part.workers;
      if (Chance(70))
        report->set_phase(static_cast<pb::AttemptPhase>(std::min<int>(part.phase + 1, pb::GONE)));
    } else if (Chance(50)) {
      // GONE for what was lost there.
      const HostId id = state.FindHost(e->cluster(), e->host());
      if (id != kNoHost && !state.host(id).lost.empty()) {
        *report->mutable_key() = state.host(id).lost.front().key;
        report->set_phase(pb::GONE);
      }
    }
    if (report->phase() == pb::PREPARED)
      report->set_rendezvous_port(20'000 + static_cast<int32_t>(Below(9)));
    if (report->phase() >= pb::EXITED && Chance(85)) {
      for (int32_t w = 0; w < workers; ++w) {
        if (Chance(5)) continue;
        pb::WorkerExit* exit = report->add_exits();
        exit->set_rank(first_rank + w);
        exit->set_exit_code(Chance(85) ? 0 : 1);
        exit->set_signal(Chance(95) ? 0 : 9);
        exit->set_oom(Chance(2));
        exit->set_at_ns(Below(100));
        if (Chance(30)) exit->set_cause(static_cast<pb::Cause>(Below(20)));
      }
    }
    if (Chance(10)) report->set_cause(static_cast<pb::Cause>(Below(15)));
    if (Chance(15)) report->set_stop_sent(true);
    return event;
  }

  pb::Event GangPrepared(const State& state) {
    pb::Event event;
    *event.mutable_gang_prepared()->mutable_key() = Pick(state).key;
    event.mutable_gang_prepared()->set_master_address("10.0.0.1");
    event.mutable_gang_prepared()->set_master_port(Chance(50) ? 20'001 : 0);
    return event;
  }

  pb::Event CheckpointSeen(const State& state) {
    pb::Event event;
    pb::CheckpointSeen* e = event.mutable_checkpoint_seen();
    *e->mutable_key() = Pick(state).key;
    e->mutable_checkpoint()->set_step(Below(20) * 10);
    e->mutable_checkpoint()->set_path(
        absl::StrCat("/disk/", e->key().attempt(), "/", e->checkpoint().step()));
    e->mutable_checkpoint()->set_storage(Chance(50) ? "disk" : "");
    e->set_loaded_step(Below(20) * 10 - 10);
    return event;
  }

  pb::Event Progress(const State& state) {
    pb::Event event;
    *event.mutable_progress_seen()->mutable_key() = Pick(state).key;
    event.mutable_progress_seen()->mutable_progress()->set_step(Below(200));
    event.mutable_progress_seen()->mutable_progress()->set_loss(0.5);
    return event;
  }

  pb::Event Staged(const State& state) {
    pb::Event event;
    *event.mutable_export_staged()->mutable_key() = Pick(state).key;
    event.mutable_export_staged()->set_staged("/disk/staged");
    event.mutable_export_staged()->set_target("/disk/model");
    return event;
  }

  pb::Event Published(const State& state) {
    pb::Event event;
    *event.mutable_export_published()->mutable_key() = Pick(state).key;
    if (Chance(30)) event.mutable_export_published()->set_detail("disk full");
    return event;
  }

  pb::Event Loaded(const State& state) {
    pb::Event event;
    *event.mutable_loaded_seen()->mutable_key() = Pick(state).key;
    event.mutable_loaded_seen()->set_step(Below(20) * 10 - 10);
    if (Chance(30)) event.mutable_loaded_seen()->add_refused("/disk/1/10: damaged");
    return event;
  }

  // Mostly a waiting task's next attempt, on hosts of one cluster; devices may be taken or missing.
  pb::Event Placed(const State& state) {
    pb::Event event;
    pb::AttemptPlaced* e = event.mutable_attempt_placed();
    Target target = Pick(state);
    for (int tries = 0;
         tries < 8 && (target.job == nullptr || !target.job->tasks[target.task].waiting()); ++tries)
      target = Pick(state);
    *e->mutable_key() = target.key;
    if (target.job != nullptr && Chance(95))
      e->mutable_key()->set_attempt(target.job->tasks[target.task].next_attempt);
    const int64_t first = Below(12);
    e->set_cluster(ClusterName(first));
    e->set_flavour("gpu");
    const int64_t hosts = 1 + Below(3);
    int32_t rank = 0;
    for (int64_t h = 0; h < hosts; ++h) {
      pb::Placement* placement = e->add_placements();
      placement->set_host(HostName(Chance(1) ? 99 : Chance(2) ? first : (first + 3 * h) % 12));
      placement->set_first_group_rank(rank);
      placement->set_workers(1 + static_cast<int32_t>(Below(2)));
      rank += placement->workers();
      for (int32_t w = 0; w < placement->workers(); ++w)
        placement->add_devices(static_cast<int32_t>(Below(5)));
      if (Chance(20)) {
        for (int32_t w = 0; w < placement->workers(); ++w) placement->add_device_milli(500);
      }
    }
    e->set_workers(rank);
    e->set_at_once(hosts == 1);
    if (target.job != nullptr) {
      for (const std::string& path :
           ResumeFrom(state, target.job->tasks[target.task], e->cluster()))
        e->add_resume_from(path);
    }
    return event;
  }

  pb::Event Stopping(const State& state) {
    pb::Event event;
    pb::AttemptStopping* e = event.mutable_attempt_stopping();
    const Target target = Pick(state);
    *e->mutable_key() = target.key;
    const bool cancelled = target.job != nullptr && target.job->cancel_requested && Chance(90);
    e->set_cause(cancelled ? pb::CANCEL
                 : Chance(50)
                     ? std::array<pb::Cause, 3>{pb::PREEMPTION, pb::RESIZE, pb::DRAIN}[Below(3)]
                     : static_cast<pb::Cause>(Below(15)));
    e->set_next_workers(static_cast<int32_t>(Below(4)));
    e->set_grace_ns(Below(60) * kSecond);
    if (e->cause() == pb::PREEMPTION) {
      const Target claimant = Pick(state);
      if (claimant.job != nullptr) {
        *e->mutable_claimant() =
            KeyOf(*claimant.job, claimant.task, claimant.job->tasks[claimant.task].next_attempt);
      }
    }
    return event;
  }

  pb::Event Lost(const State& state) {
    pb::Event event;
    pb::AttemptLost* e = event.mutable_attempt_lost();
    const Target target = Pick(state);
    *e->mutable_key() = target.key;
    const int64_t any = Below(12);
    e->set_cluster(ClusterName(any));
    e->set_host(HostName(any));
    if (target.attempt != nullptr && Chance(95)) {
      const PartRow& part =
          target.attempt->parts[Below(static_cast<int64_t>(target.attempt->parts.size()))];
      e->set_cluster(state.clusters()[state.host(part.host).cluster].name);
      e->set_host(state.host(part.host).name);
    }
    e->set_detail("silent for 45 s");
    return event;
  }

  pb::Event Opened(const State& state) {
    pb::Event event;
    const Target target = Pick(state);
    event.mutable_cluster_opened()->set_job_uid(target.key.job_uid());
    event.mutable_cluster_opened()->set_task(target.key.task());
    event.mutable_cluster_opened()->set_cluster(ClusterName(Below(12)));
    event.mutable_cluster_opened()->set_reason("sooner");
    return event;
  }

  pb::Event Failed(const State& state) {
    pb::Event event;
    const Target target = Pick(state);
    event.mutable_task_failed()->set_job_uid(target.key.job_uid());
    event.mutable_task_failed()->set_task(target.key.task());
    event.mutable_task_failed()->set_cause(pb::TIME_LIMIT);
    event.mutable_task_failed()->set_detail("too long");
    return event;
  }

  pb::Event Nothing(const State&) {
    pb::Event event;
    if (Chance(50)) event.mutable_timer();
    return event;
  }

  std::mt19937_64 random_;
  uint64_t count_ = 0;
};

}  // namespace muster::testing
