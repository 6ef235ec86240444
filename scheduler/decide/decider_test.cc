// A Decider that is kept plans what a fresh one plans, bit for bit, whatever happened in between.
#include "scheduler/decide/decider.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/decide/decide.h"
#include "scheduler/state/testing/builders.h"
#include "scheduler/state/testing/random_events.h"

namespace muster {
namespace {

using testing::JobBuilder;
using testing::RandomEvents;
using testing::SystemBuilder;

std::string Text(const Plan& plan) {
  std::string text = absl::StrCat("look at ", plan.next_wake_ns, "\n");
  for (const pb::Event& event : plan.events) text += event.DebugString();
  for (const Verdict& verdict : plan.verdicts) {
    absl::StrAppend(&text, verdict.task.job, ".", verdict.task.task, " ",
                    static_cast<int>(verdict.code), " ", verdict.cluster, " ",
                    plan.verdicts.FlavourOf(verdict), " ", verdict.missing_milli, " ",
                    verdict.expected_start_ns, "\n");
  }
  for (const auto& [where, milli] : plan.entitled_milli)
    absl::StrAppend(&text, where.first, " ", where.second, " ", milli, "\n");
  return text;
}

// RandomEvents' jobs name no flavours and its queues have no children with quota: here they
// compete.
class Events {
 public:
  explicit Events(uint64_t seed) : events_(seed) {}

  pb::Event Next(const State& state) {
    pb::Event event = events_.Next(state);
    if (event.has_job_submitted()) {
      pb::JobSpec* spec = event.mutable_job_submitted()->mutable_spec();
      spec->set_priority(static_cast<int32_t>(Below(3)));
      spec->set_queue(std::array<const char*, 4>{"research/nlp", "research/vision", "product",
                                                 "gone"}[Below(20) == 0 ? 3 : Below(3)]);
      if (Below(3) == 0) spec->add_clusters(Below(2) ? "lab" : "cloud");
      for (pb::TaskSpec& task : *spec->mutable_tasks()) {
        if (task.resources().gpus_milli() > 0) task.mutable_resources()->add_gpu_types("gpu");
        if (task.resources().gpus_milli() > 0 && Below(2))
          task.mutable_resources()->add_gpu_types("big");
        const int32_t min =
            task.resources().gpus_milli() % 1000 == 0 ? 1 + static_cast<int32_t>(Below(4)) : 1;
        task.mutable_workers()->set_min(min);
        task.mutable_workers()->set_max(
            min + static_cast<int32_t>(task.resources().gpus_milli() % 1000 == 0 ? Below(3) : 0));
        if (Below(3) == 0) task.set_time_limit_ns((1 + Below(20)) * kSecond);
        if (Below(4) == 0) task.set_when_unreachable(Below(2) ? pb::REPLACE : pb::WAIT);
      }
    } else if (event.has_queues_applied()) {
      pb::QueueTree* tree = event.mutable_queues_applied()->mutable_tree();
      for (pb::QueueSpec& queue : *tree->mutable_queues()) {
        queue.clear_queues();
        pb::Quota& quota = (*queue.mutable_quota())["gpu"];
        if (Below(2)) (*quota.mutable_guarantee_per_cluster())["lab"] = Below(8) * 1000;
        if (Below(3) == 0) quota.set_limit_milli(Below(20) * 1000);
        if (queue.name() != "research") continue;
        for (const char* name : {"nlp", "vision"}) {
          pb::QueueSpec* child = queue.add_queues();
          child->set_name(name);
          (*child->mutable_quota())["gpu"].set_guarantee_milli(Below(5) * 1000);
          (*child->mutable_quota())["cpu"].set_weight(Below(3));
          child->set_held(Below(8) == 0);
        }
      }
    } else if (event.has_host_hello() && Below(4) == 0) {
      event.mutable_host_hello()->mutable_inventory()->set_flavour("big");
    }
    return event;
  }
  int64_t Below(int64_t n) { return events_.Below(n); }

 private:
  RandomEvents events_;
};

SchedulingOptions Quick() {
  SchedulingOptions options;
  options.grow_interval_ns = 5 * kSecond;
  options.min_runtime_ns = 5 * kSecond;
  options.spill_cost_ns = kSecond;
  options.restart_cost_ns = kSecond;
  options.lease_ns = 5 * kSecond;
  return options;
}

TEST(Decider, KeptPlansAsAFreshOneDoesAfterRandomEvents) {
  int64_t steps = 0, events_planned = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Events events(seed);
    State state;
    Decider kept;
    for (int step = 0; step < 250; ++step, ++steps) {
      for (int64_t n = step == 0 ? 16 : events.Below(6); n >= 0; --n)
        Apply(&state, events.Next(state));
      const Plan plan = kept.Decide(state, state.now_ns(), Quick());
      ASSERT_EQ(Text(plan), Text(Decide(state, state.now_ns(), Quick())))
          << "seed " << seed << " step " << step;
      if (step % 8 == 0) {
        ASSERT_EQ(kept.Difference(state), "") << "seed " << seed << " step " << step;
      }
      if (events.Below(4) == 0) continue;  // a plan that is refused
      for (const pb::Event& event : plan.events) Apply(&state, event);
      events_planned += static_cast<int64_t>(plan.events.size());
    }
  }
  EXPECT_GT(events_planned, 1'500);
}

// Another history, an older State, a State loaded from rows, another system: it notices, and is
// right.
TEST(Decider, IsRightAboutAnyStateThatItIsGiven) {
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    Events events(seed * 31);
    std::vector<State> states(1);
    for (int i = 0; i < 60; ++i) Apply(&states[0], events.Next(states[0]));
    Decider kept;
    for (int step = 0; step < 60; ++step) {
      const size_t s = static_cast<size_t>(events.Below(static_cast<int64_t>(states.size())));
      const int64_t what = events.Below(10);
      if (what == 0) states.push_back(states[s]);
      if (what == 1) states.push_back(states[s].Rebuilt());
      if (what == 2) {  // begins with a step, as each of the engine's transactions does
        pb::Event began;
        began.mutable_step()->set_now_ns(1);
        Apply(&states.emplace_back(), began);
      }
      if (states.size() > 4) states.erase(states.begin());
      State& state = states[static_cast<size_t>(events.Below(static_cast<int64_t>(states.size())))];
      for (int64_t n = events.Below(12); n >= 0; --n) Apply(&state, events.Next(state));
      const Plan plan = kept.Decide(state, state.now_ns(), Quick());
      ASSERT_EQ(Text(plan), Text(Decide(state, state.now_ns(), Quick())))
          << "seed " << seed << " step " << step;
      for (const pb::Event& event : plan.events) Apply(&state, event);
    }
  }
}

// What hosts have free is read again where an event touched it, and all of it where one may have
// moved hosts between pools.
TEST(Decider, KeepsWhatHostsHaveFree) {
  SystemBuilder system;
  system.Cluster("c").Cluster("d").Hosts("c", 3, 2).Hosts("d", 2, 2).Queue("q");
  const uint64_t slices = JobBuilder("q").Workers(3).Gpus(1).SubmitTo(&system);
  Decider kept;
  int step = 0;
  const auto go = [&](const char* after) {
    system.Step(++step);
    EXPECT_EQ(kept.Difference(system.state), "") << after;
    const Plan plan = kept.Decide(system.state, system.now_ns, Quick());
    EXPECT_EQ(Text(plan), Text(Decide(system.state, system.now_ns, Quick()))) << after;
    EXPECT_EQ(kept.Difference(system.state), "")
        << "a decision after " << after << " leaves the maps as they were";
    for (const pb::Event& event : plan.events) system.Do(event);
    EXPECT_EQ(kept.Difference(system.state), "") << "the plan after " << after;
  };
  const auto drain = [&](const char* target, bool drained) {
    pb::Event event;
    event.mutable_drain_changed()->set_target(target);
    event.mutable_drain_changed()->set_drained(drained);
    system.Do(event);
  };
  go("submission");
  testing::StartAll(&system, slices);
  JobBuilder("q").Workers(2).Gpus(2).SubmitTo(&system);
  go("a second gang");
  drain("d", true);
  go("drain of a cluster");
  drain("d", false);
  go("its end");
  drain("c/h01", true);
  go("drain of a host");
  drain("c/h01", false);
  go("its end");
  testing::ReportAll(&system, slices, pb::GONE);
  go("its stop");
  system.HostState("d", "h03", pb::HOST_SILENT);
  go("silence");
  system.HostState("d", "h03", pb::HOST_UNREACHABLE);
  go("an unreachable host");
  system.HostState("d", "h03", pb::HOST_UP);
  go("its return");
  system.Hosts("d", 1, 4);
  system.Hello("d", "h03", 4);
  go("a new host, and more devices on another");
  pb::Event configured;
  *configured.mutable_clusters_configured()->mutable_file() = system.state.cluster_file();
  configured.mutable_clusters_configured()->mutable_file()->mutable_clusters()->SwapElements(0, 1);
  pb::HostSpec* listed =
      configured.mutable_clusters_configured()->mutable_file()->mutable_clusters(0)->add_hosts();
  listed->set_name("h03");
  listed->set_rack("r7");
  system.Do(configured);
  go("a configuration with the clusters the other way round and a rack");
  SchedulingOptions options = Quick();
  options.placement = PlacementPolicy::kBestFit;
  system.Step(++step);
  EXPECT_EQ(Text(kept.Decide(system.state, system.now_ns, options)),
            Text(Decide(system.state, system.now_ns, options)));
  EXPECT_EQ(kept.Difference(system.state), "");
}

// While most of a cluster is silent nothing of it may be lost; that ends by time alone.
TEST(Decider, SeesWhatOnlyTimeChanges) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 4, 2).Queue("q");
  std::vector<uint64_t> jobs;
  for (int j = 0; j < 3; ++j) jobs.push_back(JobBuilder("q").Workers(2).Gpus(1).SubmitTo(&system));
  Decider kept;
  const auto go = [&] {
    const Plan plan = kept.Decide(system.state, system.now_ns, Quick());
    EXPECT_EQ(Text(plan), Text(Decide(system.state, system.now_ns, Quick())));
    for (const pb::Event& event : plan.events) system.Do(event);
    return plan;
  };
  system.Step(1);
  go();
  for (const uint64_t job : jobs) testing::StartAll(&system, job);
  system.Step(2);
  go();
  for (const char* host : {"h00", "h01", "h02"}) {
    system.HostState("c", host, pb::HOST_SILENT);
    system.HostState("c", host, pb::HOST_UNREACHABLE);
  }
  system.Step(3);
  go();
  for (const char* host : {"h01", "h02"}) system.HostState("c", host, pb::HOST_UP);
  for (int second = 4; second < 20; ++second) {
    system.Step(second);
    go();
  }
}

}  // namespace
}  // namespace muster
