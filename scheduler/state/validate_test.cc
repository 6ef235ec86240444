// Validate refuses each wrong plan that is planted, and accepts the right one.
#include <gtest/gtest.h>

#include <functional>

#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::HelloAgain;
using testing::JobBuilder;
using testing::Placed;
using testing::ReportAll;
using testing::StartAll;
using testing::Stopping;
using testing::SystemBuilder;

struct Case {
  const char* name;
  const char* message;  // part of it; "" = valid
  std::function<void(SystemBuilder*, Plan*)> plant;
};

pb::Event Reserved(const State& state, uint64_t job, const std::string& cluster,
                   const std::string& host, const std::vector<int32_t>& devices) {
  pb::Event event;
  pb::ReservationChanged* e = event.mutable_reservation();
  *e->mutable_key() = KeyOf(*state.FindJob(job), 0, testing::TaskOf(state, job).next_attempt);
  e->set_cluster(cluster);
  e->set_flavour("gpu");
  pb::Placement* placement = e->add_placements();
  placement->set_host(host);
  placement->set_workers(static_cast<int32_t>(devices.size()));
  placement->mutable_devices()->Assign(devices.begin(), devices.end());
  e->set_workers(placement->workers());
  return event;
}

pb::Event Opened(const State& state, uint64_t job, const std::string& cluster,
                 bool to_front = false) {
  pb::Event event;
  event.mutable_cluster_opened()->set_job_uid(state.FindJob(job)->uid);
  event.mutable_cluster_opened()->set_task(state.FindJob(job)->task_spec(0).name());
  event.mutable_cluster_opened()->set_cluster(cluster);
  event.mutable_cluster_opened()->set_to_front(to_front);
  return event;
}

pb::Event Failed(const State& state, uint64_t job) {
  pb::Event event;
  event.mutable_task_failed()->set_job_uid(state.FindJob(job)->uid);
  event.mutable_task_failed()->set_task(state.FindJob(job)->task_spec(0).name());
  return event;
}

pb::Event Lost(const State& state, uint64_t job, const std::string& host, int32_t attempt = 1) {
  pb::Event event;
  *event.mutable_attempt_lost()->mutable_key() = KeyOf(*state.FindJob(job), 0, attempt);
  event.mutable_attempt_lost()->set_cluster("c");
  event.mutable_attempt_lost()->set_host(host);
  return event;
}

// The shares of the first part of a placement.
pb::Event WithShares(pb::Event event, const std::vector<int64_t>& milli) {
  event.mutable_attempt_placed()->mutable_placements(0)->mutable_device_milli()->Assign(
      milli.begin(), milli.end());
  return event;
}

pb::Event WithQueues(const State& state, const std::function<void(pb::QueueTree*)>& change) {
  pb::Event event;
  *event.mutable_queues_applied()->mutable_tree() = state.queue_tree();
  change(event.mutable_queues_applied()->mutable_tree());
  return event;
}

// Another job, which the plan says waits.
uint64_t Waits(SystemBuilder* s, Plan* p, JobBuilder job) {
  const uint64_t number = job.SubmitTo(s);
  for (int32_t t = 0; t < job.spec.tasks_size(); ++t)
    p->verdicts.Set({.task = {number, t}, .code = pb::V_CAPACITY});
  return number;
}

// Job 5 runs on h02 device 0, and that host can't be reached.
void Unreachable(SystemBuilder* s, Plan* p, pb::WhenUnreachable rule) {
  JobBuilder job("q");
  job.task()->set_when_unreachable(rule);
  s->Do(Placed(s->state, Waits(s, p, job), "c", {{"h02", {0}}}));
  StartAll(s, 5);
  s->HostState("c", "h02", pb::HOST_UNREACHABLE);
}

// Job 1: a gang of two that is placed by the plan; job 2 runs on h00 device 1; job 3 waits.
TEST(Validate, CatchesPlantedWrongPlans) {
  const auto place = [](Plan* plan) { return plan->events[0].mutable_attempt_placed(); };
  const Case cases[] = {
      {"as it should be", "", [](SystemBuilder*, Plan*) {}},
      {"device in use", "isn't free", [=](SystemBuilder*, Plan* p) { place(p)->mutable_placements(0)->set_devices(0, 1); }},
      {"no such device", "no device 9", [=](SystemBuilder*, Plan* p) { place(p)->mutable_placements(0)->set_devices(0, 9); }},
      {"half a gang", "not 2..2", [=](SystemBuilder*, Plan* p) {
         place(p)->mutable_placements()->RemoveLast();
         place(p)->set_workers(1);
       }},
      {"workers that nobody has", "isn't whole", [=](SystemBuilder*, Plan* p) { place(p)->mutable_placements()->RemoveLast(); }},
      {"one host twice", "named twice", [=](SystemBuilder*, Plan* p) {
         place(p)->mutable_placements(1)->set_host("h00");
       }},
      {"ranks with a gap", "contiguous", [=](SystemBuilder*, Plan* p) { place(p)->mutable_placements(1)->set_first_group_rank(3); }},
      {"unknown host", "no such host", [=](SystemBuilder*, Plan* p) { place(p)->mutable_placements(1)->set_host("h77"); }},
      {"another attempt number", "isn't the task's next", [=](SystemBuilder*, Plan* p) { place(p)->mutable_key()->set_attempt(2); }},
      {"wrong flavour", "gpu_types", [=](SystemBuilder*, Plan* p) { place(p)->set_flavour("other"); }},
      {"unknown cluster", "unknown cluster", [=](SystemBuilder*, Plan* p) { place(p)->set_cluster("d"); }},
      {"too few devices", "devices, not", [=](SystemBuilder*, Plan* p) { place(p)->mutable_placements(0)->clear_devices(); }},
      {"gang in one phase", "two phases", [=](SystemBuilder*, Plan* p) { place(p)->set_at_once(true); }},
      {"host silent", "isn't up", [](SystemBuilder* s, Plan*) { s->HostState("c", "h01", pb::HOST_SILENT); }},
      {"host whose agent knows no secrets", "doesn't know secrets", [](SystemBuilder* s, Plan* p) {
         JobBuilder job("q");
         job.spec.add_secrets("TOKEN");
         s->Hello("c", "h01", 2, "gpu", 64, "s1", kUnpacks | kEntersImages);
         p->events.push_back(Placed(s->state, Waits(s, p, job), "c", {{"h01", {1}}}));
       }},
      {"host short of disk", "too little disk", [](SystemBuilder* s, Plan*) { s->LowDisk("c", "h01", "/data has 1MiB left of 1GiB"); }},
      {"host drained", "is drained", [](SystemBuilder* s, Plan*) { s->Drain("c/h01"); }},
      {"cluster drained", "drained cluster", [](SystemBuilder* s, Plan*) { s->Drain("c"); }},
      {"job cancelled", "no unfinished job", [](SystemBuilder* s, Plan*) { s->Cancel(1); }},
      {"placed twice", "doesn't wait", [](SystemBuilder*, Plan* p) { p->events.push_back(p->events[0]); }},
      {"a user's event", "isn't an event of a plan", [](SystemBuilder*, Plan* p) {
         p->events.emplace_back().mutable_job_cancel()->set_number(1);
       }},
      {"stop of what doesn't run", "doesn't run", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Stopping(s->state, 2, pb::DRAIN));
         p->events.back().mutable_attempt_stopping()->mutable_key()->set_attempt(4);
       }},
      {"stopped twice", "being stopped", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Stopping(s->state, 2, pb::DRAIN));
         p->events.push_back(Stopping(s->state, 2, pb::DRAIN));
       }},
      {"preemption for nobody", "go together", [](SystemBuilder* s, Plan* p) { p->events.push_back(Stopping(s->state, 2, pb::PREEMPTION)); }},
      {"preemption for what starts already", "doesn't wait", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Stopping(s->state, 2, pb::PREEMPTION));
         *p->events.back().mutable_attempt_stopping()->mutable_claimant() = KeyOf(*s->state.FindJob(1), 0, 1);
       }},
      {"lost on a host that is up", "can be reached", [](SystemBuilder* s, Plan* p) {
         pb::AttemptLost* lost = p->events.emplace_back().mutable_attempt_lost();
         *lost->mutable_key() = KeyOf(*s->state.FindJob(2), 0, 1);
         lost->set_cluster("c");
         lost->set_host("h00");
       }},
      {"no verdict", "without a verdict", [](SystemBuilder*, Plan* p) { p->verdicts = Verdicts(); }},
      {"a reservation beside it", "", [](SystemBuilder* s, Plan* p) { p->events.push_back(Reserved(s->state, 3, "c", "h01", {1})); }},
      {"a reservation for less than a gang", "less than a gang", [](SystemBuilder* s, Plan* p) {
         p->events.insert(p->events.begin(), Reserved(s->state, 1, "c", "h01", {1}));
       }},
      {"a reservation for what runs", "task that runs", [](SystemBuilder* s, Plan* p) { p->events.push_back(Reserved(s->state, 2, "c", "h01", {1})); }},
      {"a reservation for another attempt", "isn't the task's next", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Reserved(s->state, 3, "c", "h01", {1}));
         p->events.back().mutable_reservation()->mutable_key()->set_attempt(7);
       }},
      {"a reservation of no device", "no device 5", [](SystemBuilder* s, Plan* p) { p->events.push_back(Reserved(s->state, 3, "c", "h01", {5})); }},
      {"a reservation on no host", "no such host", [](SystemBuilder* s, Plan* p) { p->events.push_back(Reserved(s->state, 3, "c", "h77", {0})); }},
      {"the end of no reservation", "isn't there", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Reserved(s->state, 3, "c", "h01", {1}));
         p->events.back().mutable_reservation()->clear_placements();
       }},
      {"preemption for what runs", "doesn't wait", [](SystemBuilder* s, Plan* p) {
         s->Do(Placed(s->state, 3, "c", {{"h02", {0}}}));
         p->events.push_back(Stopping(s->state, 2, pb::PREEMPTION));
         *p->events.back().mutable_attempt_stopping()->mutable_claimant() = KeyOf(*s->state.FindJob(3), 0, 2);
       }},
      {"over a limit", "at most", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Placed(s->state, 3, "c", {{"h01", {1}}}));
         p->events.push_back(Placed(s->state, 4, "c", {{"h02", {0}}}));
       }},
      {"over a limit with what a queue below holds", "queue tight would hold 2000 of at most 1000 gpu", [](SystemBuilder* s, Plan* p) {
         s->Do(Placed(s->state, 3, "c", {{"h01", {1}}}));
         pb::Event queues;
         *queues.mutable_queues_applied()->mutable_tree() = s->state.queue_tree();
         pb::QueueSpec* tight = queues.mutable_queues_applied()->mutable_tree()->mutable_queues(1);
         tight->add_queues()->set_name("below");
         s->Do(queues);
         JobBuilder("tight/below").SubmitTo(s);
         JobBuilder("tight/below").SubmitTo(s);
         for (const uint64_t number : {5, 6}) p->verdicts.Set({.task = {number, 0}, .code = pb::V_CAPACITY});
         p->events.push_back(Placed(s->state, 5, "c", {{"h02", {0}}}));
       }},
      {"what a queue holds that was removed counts nowhere", "", [](SystemBuilder* s, Plan* p) {
         pb::Event queues;
         *queues.mutable_queues_applied()->mutable_tree() = s->state.queue_tree();
         pb::QueueSpec* tight = queues.mutable_queues_applied()->mutable_tree()->mutable_queues(1);
         tight->add_queues()->set_name("below");
         s->Do(queues);
         const uint64_t below = JobBuilder("tight/below").SubmitTo(s);
         s->Do(Placed(s->state, below, "c", {{"h02", {0}}}));
         tight->clear_queues();
         s->Do(queues);
         p->events.push_back(Placed(s->state, 3, "c", {{"h01", {1}}}));
       }},
      {"a verdict without a code", "job 4 task main waits without a verdict", [](SystemBuilder*, Plan* p) { p->verdicts.Set({.task = {4, 0}}); }},
      {"verdicts of what doesn't wait", "", [](SystemBuilder*, Plan* p) {
         for (const uint64_t number : {1, 2, 7}) p->verdicts.Set({.task = {number, 0}, .code = pb::V_CAPACITY});
       }},

      // Which task is placed.
      {"an unknown task", "unknown task", [=](SystemBuilder*, Plan* p) { place(p)->mutable_key()->set_task("other"); }},
      {"of a job that is being cancelled", "being cancelled", [](SystemBuilder* s, Plan* p) {
         const uint64_t job = Waits(s, p, JobBuilder("q").Task("a").Task("b"));
         s->Do(Placed(s->state, job, "c", {{"h02", {0}}}));
         s->Cancel(job);
         p->events.push_back(Placed(s->state, job, "c", {{"h02", {1}}}, 1));
       }},
      {"of a job of which another task failed", "has failed", [](SystemBuilder* s, Plan* p) {
         const uint64_t job = Waits(s, p, JobBuilder("q").Task("a").Task("b").Task("c"));
         s->Do(Placed(s->state, job, "c", {{"h02", {0}}}));
         s->Do(Placed(s->state, job, "c", {{"h02", {1}}}, 1));
         pb::Event failed = Failed(s->state, job);
         p->events.push_back(Placed(s->state, job, "c", {{"h01", {1}}}, 2));
         failed.mutable_task_failed()->set_task("c");
         p->events.insert(p->events.begin(), failed);
       }},
      {"before its backoff is over", "backoff", [](SystemBuilder* s, Plan* p) {
         StartAll(s, 2);
         ReportAll(s, 2, pb::GONE, 1);
         p->verdicts.Set({.task = {2, 0}, .code = pb::V_BACKOFF});
         p->events.push_back(Placed(s->state, 2, "c", {{"h02", {0}}}));
       }},
      {"once it is over", "", [](SystemBuilder* s, Plan* p) {
         StartAll(s, 2);
         ReportAll(s, 2, pb::GONE, 1);
         s->Step(60);
         p->events.push_back(Placed(s->state, 2, "c", {{"h02", {0}}}));
       }},
      {"before what it comes after", "before a has succeeded", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Placed(s->state, Waits(s, p, JobBuilder("q").Task("a").Task("b", {"a"})), "c", {{"h02", {0}}}, 1));
       }},
      {"of a queue that got queues of its own", "no leaf queue", [](SystemBuilder* s, Plan*) {
         s->Do(WithQueues(s->state, [](pb::QueueTree* tree) { tree->mutable_queues(0)->add_queues()->set_name("below"); }));
       }},
      {"of a queue that is gone", "no leaf queue", [](SystemBuilder* s, Plan*) {
         s->Do(WithQueues(s->state, [](pb::QueueTree* tree) { tree->mutable_queues(0)->set_name("other"); }));
       }},
      {"of a held queue", "held queue", [](SystemBuilder* s, Plan*) {
         s->Do(WithQueues(s->state, [](pb::QueueTree* tree) { tree->mutable_queues(0)->set_held(true); }));
       }},
      {"more workers than the task allows", "places 3 workers, not 2..2", [](SystemBuilder* s, Plan* p) {
         p->events[0] = Placed(s->state, 1, "c", {{"h00", {0}}, {"h01", {0}}, {"h02", {0}}});
       }},

      {"a number of workers that is no multiple", "places 3 workers, not 2..4 in multiples of 2", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Placed(s->state, Waits(s, p, JobBuilder("q").Workers(2, 4).MultipleOf(2)), "c", {{"h02", {0, 1, 2}, 3}}));
       }},

      // Where.
      {"a cluster that isn't in its list", "may not use", [](SystemBuilder* s, Plan* p) {
         s->Cluster("d").Hosts("d", 1, 2);
         p->events.push_back(Placed(s->state, Waits(s, p, JobBuilder("q").In({"c"})), "d", {{"h03", {0}}}));
       }},
      {"a cluster that is for another user's jobs alone", "may not use", [](SystemBuilder* s, Plan* p) {
         s->Cluster("d").Hosts("d", 1, 2).OnlyFor("d", "bob");
         p->events.push_back(Placed(s->state, Waits(s, p, JobBuilder("q")), "d", {{"h03", {0}}}));
       }},
      {"a cluster that is for its owner's jobs alone", "", [](SystemBuilder* s, Plan* p) {
         s->Cluster("d").Hosts("d", 1, 2).OnlyFor("d", "ann");
         p->events.push_back(Placed(s->state, Waits(s, p, JobBuilder("q")), "d", {{"h03", {0}}}));
       }},
      {"a cluster that its directory doesn't reach", "may not use", [](SystemBuilder* s, Plan* p) {
         s->Cluster("d", "disk").Hosts("d", 1, 2);
         const uint64_t job = Waits(s, p, JobBuilder("q").Task("a").Task("b"));
         s->Do(Placed(s->state, job, "c", {{"h02", {0}}}));
         p->events.push_back(Placed(s->state, job, "d", {{"h03", {0}}}, 1));
       }},
      {"a flavour without GPUs", "gives a flavour", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Placed(s->state, Waits(s, p, JobBuilder("q").GpusMilli(0)), "c", {{"h02", {}}}));
       }},
      {"a host of another flavour", "h03: has another flavour", [=](SystemBuilder* s, Plan* p) {
         s->Hosts("c", 1, 2, "other");
         place(p)->mutable_placements(1)->set_host("h03");
       }},
      {"a host in quarantine", "h01: is in quarantine", [](SystemBuilder* s, Plan*) {
         pb::QuarantineRule rule;
         rule.set_host_blames(1);
         rule.set_device_blames(1);
         rule.set_max_percent(100);
         s->Rule("c", rule);
         pb::Event fault;
         fault.mutable_host_fault()->set_cluster("c");
         fault.mutable_host_fault()->set_host("h01");
         fault.mutable_host_fault()->mutable_fault()->set_device(-1);
         fault.mutable_host_fault()->mutable_fault()->set_at_ns(s->now_ns);
         s->Do(fault);
       }},
      {"a host beside what nobody knows", "h01: still runs what nobody knows", [](SystemBuilder* s, Plan*) {
         pb::Event stray;
         pb::AttemptReported* e = stray.mutable_attempt_reported();
         e->set_cluster("c");
         e->set_host("h01");
         e->set_state_id(s->state.host(s->state.FindHost("c", "h01")).state_id);
         e->mutable_report()->mutable_key()->set_job_uid(std::string(32, '9'));
         e->mutable_report()->mutable_key()->set_task("main");
         e->mutable_report()->mutable_key()->set_attempt(4);
         e->mutable_report()->set_phase(pb::STARTED);
         s->Do(stray);
       }},
      {"while a restored store waits for its hosts", "restored", [](SystemBuilder* s, Plan*) {
         pb::Event adopted;
         adopted.mutable_store_adopted()->set_epoch(static_cast<uint64_t>(kAttemptsSinceS + 5000) * 1000);
         s->Do(adopted);
       }},
      {"beside one of its job that nobody knows", "job 1 while c/h02 may run one of it", [](SystemBuilder* s, Plan* p) {
         pb::Event event;
         event.mutable_store_adopted()->set_epoch(static_cast<uint64_t>(kAttemptsSinceS + 5000) * 1000);
         s->Do(event);
         event.mutable_store_adopted()->set_settled(true);
         s->Do(event);
         pb::Event stray;
         pb::AttemptReported* e = stray.mutable_attempt_reported();
         e->set_cluster("c");
         e->set_host("h02");
         e->set_state_id(s->state.host(s->state.FindHost("c", "h02")).state_id);
         *e->mutable_report()->mutable_key() = KeyOf(*s->state.FindJob(1), 0, 40);
         e->mutable_report()->set_phase(pb::STARTED);
         s->Do(stray);
         p->events[0] = Placed(s->state, 1, "c", {{"h00", {0}}, {"h01", {0}}});
       }},
      {"one device for two workers", "device 0 twice", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Placed(s->state, Waits(s, p, JobBuilder("q").Workers(2)), "c", {{"h02", {0, 0}, 2}}));
       }},
      {"a device that isn't healthy", "device 0 isn't healthy", [](SystemBuilder* s, Plan*) {
         pb::Event hello = HelloAgain(s->state, "c", "h01");
         hello.mutable_host_hello()->mutable_inventory()->mutable_devices(0)->set_healthy(false);
         s->Do(hello);
       }},
      {"half a device without its share", "shares of devices", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Placed(s->state, Waits(s, p, JobBuilder("q").GpusMilli(500)), "c", {{"h02", {0}}}));
       }},
      {"another share than was asked for", "shares of devices", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(WithShares(Placed(s->state, Waits(s, p, JobBuilder("q").GpusMilli(500)), "c", {{"h02", {0}}}), {400}));
       }},
      {"shares of whole devices", "shares of devices", [](SystemBuilder*, Plan* p) { p->events[0] = WithShares(p->events[0], {1000}); }},
      {"two shares that fit beside each other", "", [](SystemBuilder* s, Plan* p) {
         for (const int64_t milli : {400, 600}) {
           p->events.push_back(WithShares(Placed(s->state, Waits(s, p, JobBuilder("q").GpusMilli(milli)), "c", {{"h02", {0}}}), {milli}));
         }
       }},
      {"two shares that don't", "device 0 isn't free", [](SystemBuilder* s, Plan* p) {
         for (const int64_t milli : {500, 600}) {
           p->events.push_back(WithShares(Placed(s->state, Waits(s, p, JobBuilder("q").GpusMilli(milli)), "c", {{"h02", {0}}}), {milli}));
         }
       }},
      {"all CPUs that are left", "", [](SystemBuilder* s, Plan* p) {         // job 1 takes one of the 64 on h01
         p->events.push_back(Placed(s->state, Waits(s, p, JobBuilder("q").Cpus(63)), "c", {{"h01", {1}}}));
       }},
      {"more CPUs than are left", "h01: not enough CPUs", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Placed(s->state, Waits(s, p, JobBuilder("q").Cpus(64)), "c", {{"h01", {1}}}));
       }},
      {"CPUs for one of two workers", "h02: not enough CPUs", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Placed(s->state, Waits(s, p, JobBuilder("q").Workers(2).Cpus(33)), "c", {{"h02", {0, 1}, 2}}));
       }},
      {"memory that is there but for what is used", "h01: not enough memory", [](SystemBuilder* s, Plan* p) {
         JobBuilder job("q");
         job.task()->mutable_resources()->set_memory_bytes(int64_t{256} << 30);
         p->events.push_back(Placed(s->state, Waits(s, p, job), "c", {{"h01", {1}}}));
       }},
      {"a host's whole memory", "", [](SystemBuilder* s, Plan* p) {
         JobBuilder job("q");
         job.task()->mutable_resources()->set_memory_bytes(int64_t{256} << 30);
         p->events.push_back(Placed(s->state, Waits(s, p, job), "c", {{"h02", {1}}}));
       }},
      {"a host's whole disk", "", [](SystemBuilder* s, Plan* p) {
         JobBuilder job("q");
         job.Workers(2).task()->mutable_resources()->set_disk_bytes(int64_t{512} << 30);
         p->events.push_back(Placed(s->state, Waits(s, p, job), "c", {{"h02", {0, 1}, 2}}));
       }},
      {"disk for one of two workers", "h02: not enough disk", [](SystemBuilder* s, Plan* p) {
         JobBuilder job("q");
         job.Workers(2).task()->mutable_resources()->set_disk_bytes(int64_t{600} << 30);
         p->events.push_back(Placed(s->state, Waits(s, p, job), "c", {{"h02", {0, 1}, 2}}));
       }},

      // Stops.
      {"a stop without a cause", "without a cause", [](SystemBuilder* s, Plan* p) { p->events.push_back(Stopping(s->state, 2, pb::CAUSE_UNSPECIFIED)); }},
      {"a stop because it is done", "without a cause", [](SystemBuilder* s, Plan* p) { p->events.push_back(Stopping(s->state, 2, pb::DONE)); }},
      {"a stop with a negative grace", "negative grace", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Stopping(s->state, 2, pb::DRAIN));
         p->events.back().mutable_attempt_stopping()->set_grace_ns(-1);
       }},
      {"a drain that changes the size", "resizes for another cause", [](SystemBuilder* s, Plan* p) { p->events.push_back(Stopping(s->state, 2, pb::DRAIN, 1)); }},
      {"a resize above what the task allows", "resizes beyond", [](SystemBuilder* s, Plan* p) { p->events.push_back(Stopping(s->state, 2, pb::RESIZE, 2)); }},
      {"a resize below it", "resizes beyond", [](SystemBuilder* s, Plan* p) {
         s->Do(Placed(s->state, Waits(s, p, JobBuilder("q").Workers(2, 4)), "c", {{"h02", {0, 1}, 2}}));
         p->events.push_back(Stopping(s->state, 5, pb::RESIZE, 1));
       }},
      {"a resize to no multiple", "resizes beyond what the task allows: to 3 workers, not 2..4 in multiples of 2", [](SystemBuilder* s, Plan* p) {
         s->Do(Placed(s->state, Waits(s, p, JobBuilder("q").Workers(2, 4).MultipleOf(2)), "c", {{"h02", {0, 1}, 2}}));
         p->events.push_back(Stopping(s->state, 5, pb::RESIZE, 3));
       }},
      {"a resize within it", "", [](SystemBuilder* s, Plan* p) {
         s->Do(Placed(s->state, Waits(s, p, JobBuilder("q").Workers(2, 4)), "c", {{"h02", {0, 1}, 2}}));
         p->events.push_back(Stopping(s->state, 5, pb::RESIZE, 4));
       }},
      {"preemption for an unknown job", "doesn't wait", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Stopping(s->state, 2, pb::PREEMPTION));
         p->events.back().mutable_attempt_stopping()->mutable_claimant()->set_job_uid("nobody");
       }},
      {"preemption for another attempt than the next", "doesn't wait", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Stopping(s->state, 2, pb::PREEMPTION));
         *p->events.back().mutable_attempt_stopping()->mutable_claimant() = KeyOf(*s->state.FindJob(3), 0, 2);
       }},
      {"preemption for what waits", "", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Stopping(s->state, 2, pb::PREEMPTION));
         *p->events.back().mutable_attempt_stopping()->mutable_claimant() = KeyOf(*s->state.FindJob(3), 0, 1);
       }},
      {"a reservation for nobody", "no unfinished task", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Reserved(s->state, 3, "c", "h01", {1}));
         p->events.back().mutable_reservation()->mutable_key()->set_job_uid("nobody");
       }},

      // Lost hosts.
      {"lost of an attempt that isn't", "doesn't run", [](SystemBuilder* s, Plan* p) {
         Unreachable(s, p, pb::REPLACE);
         p->events.push_back(Lost(s->state, 5, "h02", 7));
       }},
      {"lost on a host where it has no part", "isn't there", [](SystemBuilder* s, Plan* p) {
         Unreachable(s, p, pb::REPLACE);
         p->events.push_back(Lost(s->state, 5, "h01"));
       }},
      {"lost although it waits for its host", "waits for its host", [](SystemBuilder* s, Plan* p) {
         Unreachable(s, p, pb::WAIT);
         p->events.push_back(Lost(s->state, 5, "h02"));
       }},
      {"lost without a next attempt", "without placing the next", [](SystemBuilder* s, Plan* p) {
         Unreachable(s, p, pb::REPLACE);
         p->events.push_back(Lost(s->state, 5, "h02"));
       }},
      {"lost with one", "", [](SystemBuilder* s, Plan* p) {
         Unreachable(s, p, pb::REPLACE);
         p->events.push_back(Lost(s->state, 5, "h02"));
         p->events.push_back(Placed(s->state, 5, "c", {{"h01", {1}}}));
       }},
      {"lost with its job's end", "", [](SystemBuilder* s, Plan* p) {
         Unreachable(s, p, pb::REPLACE);
         s->Cancel(5);
         p->events.push_back(Lost(s->state, 5, "h02"));
       }},

      // Opened clusters, failed tasks, the next look.
      {"a cluster opened for what runs", "doesn't wait", [](SystemBuilder* s, Plan* p) { p->events.push_back(Opened(s->state, 2, "c")); }},
      {"a cluster opened", "", [](SystemBuilder* s, Plan* p) { p->events.push_back(Opened(s->state, 3, "c")); }},
      {"a cluster opened twice", "is open to the attempt", [](SystemBuilder* s, Plan* p) {
         for (int i = 0; i < 2; ++i) p->events.push_back(Opened(s->state, 3, "c"));
       }},
      {"and then brought to the front", "", [](SystemBuilder* s, Plan* p) {
         for (const bool to_front : {false, true}) p->events.push_back(Opened(s->state, 3, "c", to_front));
       }},
      {"brought to the front twice", "is open to the attempt", [](SystemBuilder* s, Plan* p) {
         for (int i = 0; i < 2; ++i) p->events.push_back(Opened(s->state, 3, "c", true));
       }},
      {"a task moved away from the others of its job", "from the others", [](SystemBuilder* s, Plan* p) {
         p->events.push_back(Opened(s->state, Waits(s, p, JobBuilder("q").Task("a").Task("b")), "c", true));
       }},
      {"a cluster opened that the job may not use", "may not use", [](SystemBuilder* s, Plan* p) {
         s->Cluster("d");
         p->events.push_back(Opened(s->state, Waits(s, p, JobBuilder("q").In({"c"})), "d"));
       }},
      {"a task failed that runs", "fails a task", [](SystemBuilder* s, Plan* p) { p->events.push_back(Failed(s->state, 2)); }},
      {"a task failed that waits", "", [](SystemBuilder* s, Plan* p) { p->events.push_back(Failed(s->state, 3)); }},
      {"a next look in the past", "next look", [](SystemBuilder* s, Plan* p) { p->next_wake_ns = s->now_ns - 1; }},
  };
  for (const Case& c : cases) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 3, 2).Queue("q").Queue("tight", 0, 1);
    JobBuilder("q").Workers(2).SubmitTo(&system);
    JobBuilder("q").SubmitTo(&system);
    JobBuilder("tight").SubmitTo(&system);
    JobBuilder("tight").SubmitTo(&system);
    system.Do(Placed(system.state, 2, "c", {{"h00", {1}}}));
    Plan plan;
    plan.events.push_back(Placed(system.state, 1, "c", {{"h00", {0}}, {"h01", {0}}}));
    for (const uint64_t number : {3, 4})
      plan.verdicts.Set({.task = {number, 0}, .code = pb::V_CAPACITY});
    c.plant(&system, &plan);
    const absl::Status status = Validate(system.state, plan);
    EXPECT_EQ(status.ok(), *c.message == '\0') << c.name << ": " << status.message();
    EXPECT_NE(std::string(status.message()).find(c.message), std::string::npos)
        << c.name << ": " << status.message();
  }
}

// Hosts of four devices in two islands: h00 and h01 in rack r1 of block a, h02 in its rack r2, h03
// in block b, whose rack is called r1, too.
TEST(Validate, AGangIsInOneDomainOfTheLevelThatItRequires) {
  SystemBuilder system;
  pb::Event configured;
  pb::ClusterSpec* cluster =
      configured.mutable_clusters_configured()->mutable_file()->add_clusters();
  cluster->set_name("c");
  const std::string places[][3] = {
      {"h00", "a", "r1"}, {"h01", "a", "r1"}, {"h02", "a", "r2"}, {"h03", "b", "r1"}};
  for (const auto& [host, block, rack] : places) {
    pb::HostSpec* spec = cluster->add_hosts();
    spec->set_name(host);
    spec->set_block(block);
    spec->set_rack(rack);
  }
  system.Do(configured);
  for (const auto& [host, block, rack] : places) {
    pb::Event hello;
    hello.mutable_host_hello()->set_cluster("c");
    hello.mutable_host_hello()->set_host(host);
    hello.mutable_host_hello()->set_state_id("s");
    pb::Inventory* inventory = hello.mutable_host_hello()->mutable_inventory();
    inventory->set_flavour("gpu");
    for (int d = 0; d < 4; ++d) {
      pb::Device* device = inventory->add_devices();
      device->set_index(d);
      device->set_island(d / 2);
      device->set_healthy(true);
    }
    inventory->set_cpus_milli(8000);
    inventory->set_memory_bytes(1 << 30);
    system.Do(hello);
  }
  system.Queue("q");
  const struct {
    const char* why;
    pb::TopologyLevel required;
    std::vector<testing::On> parts;
    const char* message;  // part of it; "" = valid
  } cases[] = {
      {"one island", pb::ISLAND, {{"h00", {2, 3}, 2}}, ""},
      {"two islands of one host",
       pb::ISLAND,
       {{"h00", {1, 2}, 2}},
       "one island, not in h00 island 0 and h00 island 1"},
      {"the same island of two hosts", pb::ISLAND, {{"h00", {0}}, {"h01", {0}}}, "one island"},
      {"one host", pb::HOST, {{"h00", {1, 2}, 2}}, ""},
      {"two hosts", pb::HOST, {{"h00", {0}}, {"h01", {0}}}, "one host, not in h00 and h01"},
      {"one rack", pb::RACK, {{"h00", {0}}, {"h01", {0}}}, ""},
      {"two racks", pb::RACK, {{"h00", {0}}, {"h02", {0}}}, "one rack, not in a/r1 and a/r2"},
      {"racks of one name in two blocks",
       pb::RACK,
       {{"h00", {0}}, {"h03", {0}}},
       "one rack, not in a/r1 and b/r1"},
      {"one block", pb::BLOCK, {{"h01", {0}}, {"h02", {0}}}, ""},
      {"two blocks", pb::BLOCK, {{"h01", {0}}, {"h03", {0}}}, "one block, not in a and b"},
      {"one cluster", pb::CLUSTER, {{"h01", {0}}, {"h03", {0}}}, ""},
      {"nothing required", pb::TOPOLOGY_LEVEL_UNSPECIFIED, {{"h01", {0}}, {"h03", {0}}}, ""},
  };
  for (const auto& c : cases) {
    SystemBuilder with = system;
    JobBuilder job("q");
    job.Workers(2).task()->mutable_topology()->set_required(c.required);
    Plan plan;
    plan.events.push_back(Placed(with.state, job.SubmitTo(&with), "c", c.parts));
    const absl::Status status = Validate(with.state, plan);
    EXPECT_EQ(status.ok(), *c.message == '\0') << c.why << ": " << status.message();
    EXPECT_NE(std::string(status.message()).find(c.message), std::string::npos)
        << c.why << ": " << status.message();
  }
  // Without devices an island is a host.
  JobBuilder job("q");
  job.GpusMilli(0).Workers(2).task()->mutable_topology()->set_required(pb::ISLAND);
  Plan plan;
  plan.events.push_back(
      Placed(system.state, job.SubmitTo(&system), "c", {{"h00", {}}, {"h01", {}}}, 0, ""));
  EXPECT_NE(
      std::string(Validate(system.state, plan).message()).find("one island, not in h00 and h01"),
      std::string::npos);
}

// The hosts of the test above: h00 with two islands of two, h01 beside it in rack a/r1, h02 in
// a/r2, h03 in b/r1.
TEST(Validate, BlocksOfRanksAreTogether) {
  SystemBuilder system;
  const struct {
    const char *host, *block, *rack;
  } hosts[] = {{"h00", "a", "r1"}, {"h01", "a", "r1"}, {"h02", "a", "r2"}, {"h03", "b", "r1"}};
  pb::Event event;
  pb::ClusterSpec* cluster = event.mutable_clusters_configured()->mutable_file()->add_clusters();
  cluster->set_name("c");
  for (const auto& h : hosts) {
    pb::HostSpec* host = cluster->add_hosts();
    host->set_name(h.host);
    host->set_block(h.block);
    host->set_rack(h.rack);
  }
  system.Do(event);
  for (const auto& h : hosts) {
    system.Hello("c", h.host, 4);
    pb::Event again;  // with islands of two
    pb::HostHello* hello = again.mutable_host_hello();
    hello->set_cluster("c");
    hello->set_host(h.host);
    hello->set_state_id("s1");
    hello->set_boot_id("b1");
    *hello->mutable_inventory() = system.state.host(system.state.FindHost("c", h.host)).inventory;
    for (const int device : {2, 3})
      hello->mutable_inventory()->mutable_devices(device)->set_island(1);
    system.Do(again);
  }
  system.Queue("q");
  const struct {
    const char* why;
    int gpus;
    pb::TopologyLevel required, preferred;
    std::vector<testing::On> parts;
    const char* message;  // part of it; "" = valid
  } cases[] = {
      {"whole blocks on each host",
       2,
       pb::HOST,
       {},
       {{"h00", {0, 1, 2, 3}, 4}, {"h02", {0, 1}, 2}},
       ""},
      {"a block over two hosts",
       2,
       pb::HOST,
       {},
       {{"h00", {0, 1, 2}, 3}, {"h02", {0}}},
       "each block of 2 GPUs is to be in one host, not in h00 and h02"},
      {"as many on each, but not from the first on",
       2,
       pb::HOST,
       {},
       {{"h00", {0}}, {"h01", {0, 1}, 2}, {"h02", {0}}},
       "not in h00 and h01"},
      {"a block in a rack", 4, pb::RACK, {}, {{"h00", {0, 1, 2}, 3}, {"h01", {0}}}, ""},
      {"a block over two racks",
       4,
       pb::RACK,
       {},
       {{"h00", {0, 1}, 2}, {"h02", {0, 1}, 2}},
       "each block of 4 GPUs is to be in one rack, not in a/r1 and a/r2"},
      {"racks of one name in two blocks",
       4,
       pb::RACK,
       {},
       {{"h00", {0, 1}, 2}, {"h03", {0, 1}, 2}},
       "not in a/r1 and b/r1"},
      {"a block of ranks in one of hosts",
       4,
       pb::BLOCK,
       {},
       {{"h00", {0, 1}, 2}, {"h02", {0, 1}, 2}},
       ""},
      {"a block of ranks in two of hosts",
       4,
       pb::BLOCK,
       {},
       {{"h02", {0, 1}, 2}, {"h03", {0, 1}, 2}},
       "in one block, not in a and b"},
      {"blocks in islands", 2, pb::ISLAND, {}, {{"h00", {0, 1, 2, 3}, 4}, {"h02", {2, 3}, 2}}, ""},
      {"a block over two islands",
       2,
       pb::ISLAND,
       {},
       {{"h00", {1, 2}, 2}},
       "each block of 2 GPUs is to be in one island, not in h00 island 0 and h00 island 1"},
      {"islands of one number on two hosts",
       2,
       pb::ISLAND,
       {},
       {{"h00", {0}}, {"h01", {0}}},
       "not in h00 island 0 and h01 island 0"},
      {"a wish binds nobody", 2, {}, pb::HOST, {{"h00", {0}}, {"h02", {0}}}, ""},
  };
  for (const auto& c : cases) {
    SystemBuilder with = system;
    JobBuilder job("q");
    int workers = 0;
    for (const testing::On& part : c.parts) workers += part.workers;
    pb::RankBlock* block = job.Workers(workers).task()->mutable_topology()->add_blocks();
    block->set_gpus(c.gpus);
    block->set_required(c.required);
    block->set_preferred(c.preferred);
    Plan plan;
    plan.events.push_back(Placed(with.state, job.SubmitTo(&with), "c", c.parts));
    const absl::Status status = Validate(with.state, plan);
    EXPECT_EQ(status.ok(), *c.message == '\0') << c.why << ": " << status.message();
    EXPECT_NE(std::string(status.message()).find(c.message), std::string::npos)
        << c.why << ": " << status.message();
  }
}

}  // namespace
}  // namespace muster
