// Validate refuses each wrong plan that is planted, and accepts the right one.
#include <gtest/gtest.h>

#include <functional>

#include "scheduler/state/builders.h"

namespace muster {
namespace {

using testing::JobBuilder;
using testing::Placed;
using testing::Stopping;
using testing::SystemBuilder;

struct Case {
  const char* name;
  const char* message;   // part of it; "" = valid
  std::function<void(SystemBuilder*, Plan*)> plant;
};

pb::Event Reserved(const State& state, uint64_t job, const std::string& cluster, const std::string& host, const std::vector<int32_t>& devices) {
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
    for (const uint64_t number : {3, 4}) plan.verdicts.Set({.task = {number, 0}, .code = pb::V_CAPACITY});
    c.plant(&system, &plan);
    const absl::Status status = Validate(system.state, plan);
    EXPECT_EQ(status.ok(), *c.message == '\0') << c.name << ": " << status.message();
    EXPECT_NE(std::string(status.message()).find(c.message), std::string::npos) << c.name << ": " << status.message();
  }
}

}  // namespace
}  // namespace muster
