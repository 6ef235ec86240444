// The entitled set: the paper's examples, and that carrying it out in part changes neither the set
// nor its charges.
#include <gtest/gtest.h>

#include "scheduler/decide/decide.h"
#include "scheduler/decide/model/model_upkeep.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::JobBuilder;
using testing::ReportAll;
using testing::StartAll;
using testing::SystemBuilder;
using testing::TaskOf;

Model EntitledOf(const SystemBuilder& system) {
  return ModelUpkeep().Update(system.state, system.now_ns, SchedulingOptions());
}

int32_t Entitled(const SystemBuilder& system, uint64_t job) {
  const Model model = EntitledOf(system);
  return model.gangs[model.gang_of.at({job, 0})].entitled_workers();
}

TEST(Entitle, OfTwoGangsOf60On100TheOlderOneAndItStays) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 25, 4).Queue("a").Queue("b");
  const uint64_t older = JobBuilder("b").Workers(15).Gpus(4).SubmitTo(&system);
  system.Step(1);
  const uint64_t newer = JobBuilder("a").Workers(15).Gpus(4).SubmitTo(&system);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(Entitled(system, older), 15);
    EXPECT_EQ(Entitled(system, newer), 0);
    const Plan plan = Decide(system.state, system.now_ns, SchedulingOptions());
    for (const pb::Event& event : plan.events) system.Do(event);
    system.Step(2 + round);
  }
}

struct ShareCase {
  const char* name;
  int64_t guarantee_a, guarantee_b;
  int64_t weight_a, weight_b;
  int64_t limit_a;           // -1: none
  int jobs_a, jobs_b;        // of one GPU
  int64_t units_a, units_b;  // entitled of 8
};

TEST(Entitle, SharesByGuaranteeThenWeightWithinLimits) {
  const ShareCase cases[] = {
      {"guarantees first", 6, 2, 1, 1, -1, 8, 8, 6, 2},
      {"what one leaves the other borrows", 4, 4, 1, 1, -1, 2, 8, 2, 6},
      {"and gives back", 4, 4, 1, 1, -1, 8, 8, 4, 4},
      {"by weight beyond", 0, 0, 3, 1, -1, 8, 8, 6, 2},
      {"weight 0 borrows last", 0, 0, 1, 0, -1, 8, 8, 8, 0},
      {"a limit holds", 0, 0, 1, 1, 2, 8, 8, 2, 6},
      {"pro rata when guarantees are short", 12, 4, 1, 1, -1, 8, 8, 6, 2},
  };
  for (const ShareCase& c : cases) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 2, 4);
    system.Queue("a", c.guarantee_a, c.limit_a, c.weight_a)
        .Queue("b", c.guarantee_b, -1, c.weight_b);
    for (int j = 0; j < c.jobs_a; ++j) JobBuilder("a").SubmitTo(&system);
    for (int j = 0; j < c.jobs_b; ++j) JobBuilder("b").SubmitTo(&system);
    const Model model = EntitledOf(system);
    const int32_t gpu = model.FlavourIndex("gpu");
    EXPECT_EQ(model.entitled[system.state.queues().Find("a")][gpu], c.units_a * 1000) << c.name;
    EXPECT_EQ(model.entitled[system.state.queues().Find("b")][gpu], c.units_b * 1000) << c.name;
  }
}

TEST(Entitle, BasesComeBeforeGrowthAndPriorityBeforeAge) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 4).Queue("q");
  const uint64_t elastic = JobBuilder("q").Workers(1, 4).SubmitTo(&system);
  const uint64_t later = JobBuilder("q").SubmitTo(&system);
  const uint64_t urgent = JobBuilder("q").Workers(2).Priority(5).SubmitTo(&system);
  EXPECT_EQ(Entitled(system, urgent), 2);
  EXPECT_EQ(Entitled(system, later), 1);
  EXPECT_EQ(Entitled(system, elastic), 1);
}

TEST(Entitle, CountsTheCpusOfGpuTasksAgainstAQueueThatListsThem) {
  for (const int64_t cpu_limit : {-1, 8, 3}) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 2, 4).Queue("a", 8);
    pb::QueueTree tree = system.state.queue_tree();
    if (cpu_limit >= 0)
      (*tree.mutable_queues(0)->mutable_quota())["cpu"].set_limit_milli(cpu_limit * 1000);
    pb::Event event;
    *event.mutable_queues_applied()->mutable_tree() = tree;
    system.Do(event);
    for (int j = 0; j < 4; ++j) JobBuilder("a").Gpus(1).Cpus(4).SubmitTo(&system);
    const Model model = EntitledOf(system);
    const int64_t units = cpu_limit < 0 ? 4 : cpu_limit / 4;
    EXPECT_EQ(model.entitled[1][model.FlavourIndex("gpu")], units * 1000) << cpu_limit;
    EXPECT_EQ(model.entitled[1][model.cpu], cpu_limit < 0 ? 0 : units * 4000) << cpu_limit;
    for (const Gang& gang : model.gangs) {
      EXPECT_EQ(gang.guaranteed, gang.entitled)
          << "a limit on cpu takes nothing from the guarantee of GPUs";
    }
  }
}

TEST(Entitle, OfEqualSharesTheQueueThatUsedLessComesFirst) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 1).Queue("a").Queue("b");
  const uint64_t used = JobBuilder("a").SubmitTo(&system);
  system.Step(1);
  for (const pb::Event& event : Decide(system.state, system.now_ns, SchedulingOptions()).events)
    system.Do(event);
  StartAll(&system, used);
  system.Step(1'500);
  ReportAll(&system, used, pb::GONE, 0);
  const uint64_t older = JobBuilder("a").SubmitTo(&system);
  system.Step(1'501);
  const uint64_t newer = JobBuilder("b").SubmitTo(&system);
  EXPECT_EQ(Entitled(system, older), 0);
  EXPECT_EQ(Entitled(system, newer), 1);
}

// A small generator with the same numbers everywhere (SplitMix64).
struct Dice {
  uint64_t state;
  int Of(int n) {
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return static_cast<int>((z ^ (z >> 31)) % static_cast<uint64_t>(n));
  }
};

SystemBuilder RandomSystem(Dice* dice) {
  SystemBuilder system;
  const int clusters = 1 + dice->Of(3);
  for (int c = 0; c < clusters; ++c) {
    system.Cluster(absl::StrCat("c", c), "everywhere");
    system.Hosts(absl::StrCat("c", c), 1 + dice->Of(3), 1 + dice->Of(4),
                 dice->Of(2) ? "gpu" : "other");
  }
  const int queues = 1 + dice->Of(3);
  for (int q = 0; q < queues; ++q) {
    const int64_t guarantee = dice->Of(3);
    system.Queue(absl::StrCat("q", q), guarantee, dice->Of(3) == 0 ? guarantee + dice->Of(4) : -1,
                 dice->Of(3));
    if (guarantee > 0)
      system.GuaranteeIn(absl::StrCat("q", q), absl::StrCat("c", dice->Of(clusters)), guarantee);
  }
  const int jobs = 1 + dice->Of(8);
  for (int j = 0; j < jobs; ++j) {
    JobBuilder builder(absl::StrCat("q", dice->Of(queues)));
    const int min = 1 + dice->Of(3);
    builder.Workers(min, min + (dice->Of(2) ? dice->Of(3) : 0))
        .Priority(dice->Of(2))
        .Gpus(1 + dice->Of(2));
    if (dice->Of(2)) builder.Flavours({"gpu", "other"});
    if (dice->Of(3) == 0) builder.In({absl::StrCat("c", dice->Of(clusters))});
    builder.SubmitTo(&system);
    if (dice->Of(3) == 0) system.Step(1 + j);
  }
  return system;
}

std::string Text(const Model& model) {
  std::string text;
  for (const Gang& gang : model.gangs)
    absl::StrAppend(&text, gang.ref.job, ":", gang.entitled_workers(), "@", gang.charge, " ");
  return text;
}

TEST(Entitle, CarryingItOutInPartChangesNeitherTheSetNorItsCharges) {
  int placed = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    Dice dice{seed};
    SystemBuilder system = RandomSystem(&dice);
    // Opened clusters are outside events: let the plan open what it wants first.
    for (const pb::Event& event : Decide(system.state, system.now_ns, SchedulingOptions()).events) {
      if (event.has_cluster_opened()) system.Do(event);
    }
    const std::string before = Text(EntitledOf(system));
    const Plan plan = Decide(system.state, system.now_ns, SchedulingOptions());
    for (const pb::Event& event : plan.events) {
      if (!event.has_attempt_placed() || dice.Of(2) == 0) continue;
      system.Do(event);
      ++placed;
      ASSERT_EQ(Text(EntitledOf(system)), before) << "seed " << seed;
    }
  }
  EXPECT_GT(placed, 1000);
}

// Arrivals find the system full; it must settle in a few steps, with valid plans all the way.
TEST(Entitle, ReclaimEndsInEveryRandomSystem) {
  SchedulingOptions options;
  options.min_runtime_ns = 0;
  options.grow_interval_ns = 3600 * kSecond;
  int evictions = 0;
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    Dice dice{seed * 77};
    SystemBuilder system = RandomSystem(&dice);
    for (int wave = 0; wave < 2; ++wave) {
      int steps = 0;
      for (;; ++steps) {
        ASSERT_LT(steps, 60) << "seed " << seed << " doesn't settle";
        system.Step(100 * (wave + 1) + steps);
        const Plan plan = Decide(system.state, system.now_ns, options);
        const absl::Status valid = Validate(system.state, plan);
        ASSERT_TRUE(valid.ok()) << "seed " << seed << ": " << valid.message();
        for (const pb::Event& event : plan.events) {
          system.Do(event);
          evictions += event.has_attempt_stopping();
        }
        bool moving = !plan.events.empty();
        for (const uint64_t job : system.state.active_jobs()) {
          const pb::TaskState state = TaskOf(system.state, job).state;
          if (state == pb::TASK_PREPARING || state == pb::TASK_STARTING)
            StartAll(&system, job), moving = true;
          if (state == pb::TASK_STOPPING && dice.Of(2)) ReportAll(&system, job, pb::GONE, 0, true);
          moving = moving || state == pb::TASK_STOPPING;
        }
        if (!moving) break;
      }
      for (int j = 0; j < 3; ++j) {
        JobBuilder(system.state.queues().nodes.back().path)
            .Workers(1 + dice.Of(3))
            .Priority(dice.Of(3))
            .SubmitTo(&system);
      }
    }
  }
  EXPECT_GT(evictions, 50);
}

}  // namespace
}  // namespace muster
