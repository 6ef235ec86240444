// The sandbox's parts: its scenario is one that musterd accepts, and its agents speak the protocol
// from Hello to Forget.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sandbox/programs.h"
#include "sandbox/scenario.h"
#include "scheduler/agents/sessions.h"
#include "scheduler/ask/ask.h"
#include "scheduler/engine/testing/fixture.h"

namespace muster::sandbox {
namespace {

TEST(Scenario, HasFourClustersWith4096GpusAndQueuesThatNest) {
  State state;
  pb::Event event;
  *event.mutable_clusters_configured()->mutable_file() = Clusters();
  Apply(&state, event);
  EXPECT_EQ(state.clusters().size(), 4u);
  int64_t gpus = 0;
  for (const HostId id : state.hosts()) gpus += DescribeHost(state, id).inventory().devices_size();
  EXPECT_EQ(gpus, 4096);
  const QueueResolution queues = ResolveQueues(state, Queues());
  EXPECT_TRUE(queues.ok()) << queues.problems[0].path << ": " << queues.problems[0].message;
  pb::Event applied;
  *applied.mutable_queues_applied()->mutable_tree() = queues.resolved;
  Apply(&state, applied);

  sim::Random one(7), other(7);
  for (int i = 0; i < 300; ++i) {
    const char* flavour = i % 3 == 0 ? "h100-80g" : i % 3 == 1 ? "a100-80g" : "l40s-48g";
    const PopulationJob job = DrawJob(flavour, &one);
    EXPECT_EQ(job.spec.SerializeAsString(), DrawJob(flavour, &other).spec.SerializeAsString());
    const Resolution resolution = ResolveSpec(state, job.spec, SpecDefaults{});
    ASSERT_TRUE(resolution.ok()) << job.spec.DebugString() << resolution.problems[0].path << ": "
                                 << resolution.problems[0].message;
    EXPECT_GT(job.duration_ns, 0);
  }
}

TEST(Programs, CarryAJobFromItsPlacementToItsEndWithOutput) {
  ManualClock clock;
  RecordingStore store(nullptr);
  SessionOptions options;
  options.store_id = std::string(32, 'd');
  options.epoch = 1;
  Sessions sessions(options, &clock);
  EngineOptions engine_options;
  Engine engine(engine_options, &clock, &store, &sessions, State());
  sessions.Attach(&engine);
  pb::ClusterFile clusters;
  pb::Sku& sku = (*clusters.mutable_skus())["two"];
  sku.set_flavour("cpu-slot");
  sku.set_gpus(2);
  sku.set_cpus_milli(4000);
  sku.set_memory_bytes(int64_t{8} << 30);
  pb::ClusterSpec* lab = clusters.add_clusters();
  lab->set_name("lab");
  lab->set_sku("two");
  for (const char* name : {"h1", "h2"}) lab->add_hosts()->set_name(name);
  pb::Event configured;
  *configured.mutable_clusters_configured()->mutable_file() = clusters;
  engine.Post(configured);
  engine.Step();

  sim::HostOptions quick = kHosts;
  quick.launch_ns = kSecond;
  quick.progress_ns = 2 * kSecond;
  Programs programs;
  sim::Agents agents(&sessions, sim::HostsOf(clusters, "simulated-").value(), quick, &programs,
                     clock.now_ns);
  programs.Attach(&agents);
  agents.Join();
  const auto live = [&](int64_t seconds) {
    for (int64_t tenths = 0; tenths < seconds * 10; ++tenths) {
      while (engine.Step()) {
      }
      agents.TakeMail();
      clock.now_ns += kSecond / 10;
      agents.AdvanceTo(clock.now_ns);
    }
  };
  live(1);
  EXPECT_EQ(engine.Snapshot()->state.host(0).state, pb::HOST_UP);

  pb::JobSpec spec = OneSlotSpec();
  spec.mutable_tasks(0)->mutable_workers()->set_min(4);  // over both hosts: in two phases
  spec.mutable_tasks(0)->mutable_workers()->set_max(4);
  spec.mutable_tasks(0)->set_processes_per_worker(1);
  spec.mutable_tasks(0)->mutable_run()->set_shell("echo hello; sleep 30");
  pb::Event submitted;
  submitted.mutable_job_submitted()->set_number(1);
  submitted.mutable_job_submitted()->set_uid(std::string(32, 'a'));
  *submitted.mutable_job_submitted()->mutable_spec() = spec;
  engine.Post(submitted);
  live(15);
  const auto view = engine.Snapshot();
  ASSERT_EQ(view->state.FindJob(1)->tasks[0].state, pb::TASK_RUNNING);
  EXPECT_GT(view->state.FindJob(1)->tasks[0].progress.total_steps(), 0);

  std::string output;
  bool ended = false;
  const auto sink = [&](const pb::LogChunk& chunk) {
    output += chunk.data();
    ended = ended || chunk.end();
  };
  pb::LogRequest request;
  *request.mutable_key() = KeyOf(*view->state.FindJob(1), 0, 1);
  request.set_rank(-1);
  request.set_follow(true);
  const HostRow& first =
      view->state.host(view->state.FindJob(1)->tasks[0].attempts[0].parts[0].host);
  sessions.RequestLogs("lab", first.name, request, sink, kSecond);
  live(60);
  EXPECT_EQ(engine.Snapshot()->state.FindJob(1)->state, pb::SUCCEEDED);
  EXPECT_THAT(output, ::testing::HasSubstr(
                          "nothing runs here; a real host would start 4 x: echo hello; sleep 30"));
  EXPECT_THAT(output, ::testing::HasSubstr("loss"));
  EXPECT_TRUE(ended) << "a follower is told when the job's output is over";
}

}  // namespace
}  // namespace muster::sandbox
