// What users are told of a job that waits, word for word.
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/explain.h"
#include "scheduler/ask/forecast.h"
#include "scheduler/ask/words/order_text.h"
#include "scheduler/decide/decide.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

pb::QueueTree TreeOf(const std::string& text) {
  pb::QueueTree tree;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &tree)) << text;
  return tree;
}

class Sentences : public ::testing::Test {
 protected:
  Sentences() { s_.Cluster("lab", "disk").Hosts("lab", 2, 2, "gpu", "", 8).Queue("research", 4); }
  std::string Of(uint64_t job) {
    return DescribeJob(s_.state, Decide(s_.state, s_.now_ns, SchedulingOptions{}),
                       *s_.state.FindJob(job))
        .tasks(0)
        .verdict()
        .text();
  }
  std::string Text(uint64_t job, pb::VerdictCode code) {
    pb::Verdict verdict;
    verdict.set_code(code);
    verdict.set_cluster("lab");
    verdict.set_flavour("gpu");
    return VerdictText(s_.state, *s_.state.FindJob(job), 0, verdict);
  }
  void Drain(const std::string& target, const std::string& reason) {
    pb::Event event;
    event.mutable_drain_changed()->set_target(target);
    event.mutable_drain_changed()->set_drained(true);
    event.mutable_drain_changed()->set_reason(reason);
    s_.Do(event);
  }
  testing::SystemBuilder s_;
};

TEST_F(Sentences, NameTheResourceThatLacksBesideFreeDevices) {
  const uint64_t greedy = testing::JobBuilder("research").Cpus(7).SubmitTo(&s_);
  const uint64_t other = testing::JobBuilder("research").Cpus(7).SubmitTo(&s_);
  s_.Do(testing::Placed(s_.state, greedy, "lab", {{"h00", {0}}}));
  s_.Do(testing::Placed(s_.state, other, "lab", {{"h01", {0}}}));
  const uint64_t cores = testing::JobBuilder("research").Cpus(3).SubmitTo(&s_);
  EXPECT_EQ(Text(cores, pb::V_PLACEMENT),
            "waits for cores in lab beside free gpu: each of its workers takes 3 cores; the most "
            "free on one host is 1 core (lab/h00)");
  testing::JobBuilder hungry("research");
  hungry.task()->mutable_resources()->set_memory_bytes(int64_t{300} << 30);
  EXPECT_THAT(Text(hungry.SubmitTo(&s_), pb::V_PLACEMENT),
              HasSubstr("waits for memory in lab beside free gpu: each of its workers takes "
                        "300GiB; the most free on one host is "));
  const uint64_t pair = testing::JobBuilder("research").Gpus(2).SubmitTo(&s_);
  EXPECT_EQ(Text(pair, pb::V_PLACEMENT),
            "enough gpu in lab is free by number, but each of its workers takes 2 gpu of one host; "
            "the most free on one host is 1 gpu (lab/h00)");
  s_.Hosts("lab", 1, 2);
  const uint64_t two = testing::JobBuilder("research").Workers(2).Gpus(2).SubmitTo(&s_);
  EXPECT_EQ(Text(two, pb::V_PLACEMENT),
            "enough gpu in lab is free by number, but each of its 2 workers takes 2 gpu of one "
            "host; 1 of the 2 would fit now");
  const uint64_t fits = testing::JobBuilder("research").SubmitTo(&s_);
  EXPECT_EQ(Text(fits, pb::V_PLACEMENT),
            "enough gpu in lab is free, but kept for others, whose turn comes first");
}

// One GPU is free on each host.
TEST_F(Sentences, NameTheBlocksOfRanksThatFindNoRoom) {
  for (const char* host : {"h00", "h01"}) {
    const uint64_t other = testing::JobBuilder("research").SubmitTo(&s_);
    s_.Do(testing::Placed(s_.state, other, "lab", {{host, {0}}}));
  }
  const auto blocks = [&](int gpus, pb::TopologyLevel required) {
    testing::JobBuilder job("research");
    job.Workers(2);
    pb::RankBlock* block = job.task()->mutable_topology()->add_blocks();
    block->set_gpus(gpus);
    block->set_required(required);
    return Text(job.SubmitTo(&s_), pb::V_PLACEMENT);
  };
  EXPECT_EQ(blocks(2, pb::HOST),
            "enough gpu in lab is free, but not in blocks of 2 GPUs within one host each, as "
            "topology.blocks says");
  EXPECT_THAT(blocks(2, pb::BLOCK), HasSubstr("kept for others"));
  s_.Hosts("lab", 1, 2);
  EXPECT_THAT(blocks(2, pb::HOST), HasSubstr("kept for others"));
  EXPECT_THAT(blocks(2, pb::ISLAND), HasSubstr("kept for others"));
  const std::vector<HostId> hosts = s_.state.hosts();
  for (const HostId id : hosts) {  // each device is an island of its own now
    const HostRow& host = s_.state.host(id);
    pb::Event event;
    pb::HostHello* hello = event.mutable_host_hello();
    hello->set_cluster(s_.state.clusters()[host.cluster].name);
    hello->set_host(host.name);
    hello->set_state_id("s1");
    hello->set_boot_id("b1");
    *hello->mutable_inventory() = host.inventory;
    for (int d = 0; d < host.inventory.devices_size(); ++d)
      hello->mutable_inventory()->mutable_devices(d)->set_island(d);
    s_.Do(event);
  }
  EXPECT_THAT(blocks(2, pb::HOST), HasSubstr("kept for others"));
  EXPECT_EQ(blocks(2, pb::ISLAND),
            "enough gpu in lab is free, but not in blocks of 2 GPUs within one island each, as "
            "topology.blocks says");
}

TEST_F(Sentences, NameTheHostsWhoseAgentsAreTooOldAndWhatToDo) {
  testing::JobBuilder secret("research");
  secret.spec.add_secrets("TOKEN");
  const uint64_t job = secret.SubmitTo(&s_);
  const std::vector<HostId> hosts = s_.state.hosts();
  for (const HostId id : hosts) {
    const HostRow host = s_.state.host(id);
    s_.Hello(s_.state.clusters()[host.cluster].name, host.name, host.inventory.devices_size(),
             "gpu", 64, "s1", 0);
  }
  const char kNobody[] = "no host can take it: lab/h00, lab/h01";
  for (const pb::VerdictCode code : {pb::V_PLACEMENT, pb::V_CAPACITY, pb::V_SHARE})
    EXPECT_THAT(Text(job, code), HasSubstr(kNobody));
  EXPECT_THAT(
      Text(job, pb::V_CAPACITY),
      HasSubstr("has a muster-agent that doesn't know secrets: upgrade muster-agent there"));
  const uint64_t plain = testing::JobBuilder("research").SubmitTo(&s_);
  EXPECT_THAT(Text(plain, pb::V_CAPACITY), Not(HasSubstr("muster-agent")));
  s_.Hello("lab", "h01", 1);
  testing::JobBuilder wide("research");
  wide.spec.add_secrets("TOKEN");
  EXPECT_THAT(Text(wide.Workers(9).SubmitTo(&s_), pb::V_PLACEMENT),
              HasSubstr("; not every host can take it: lab/h00"));
}

TEST_F(Sentences, NameTheHostsThatAreShortOfDisk) {
  const uint64_t job = testing::JobBuilder("research").SubmitTo(&s_);
  s_.LowDisk("lab", "h01", "/data has 40MiB left of 1GiB");
  EXPECT_THAT(Text(job, pb::V_CAPACITY),
              HasSubstr("; lab/h01 takes nothing new: /data has 40MiB left of 1GiB"));
}

TEST_F(Sentences, CoresAreHeldByWorkOnGpusToo) {
  const uint64_t trains = testing::JobBuilder("research").Cpus(7).SubmitTo(&s_);
  const uint64_t flat = testing::JobBuilder("research").GpusMilli(0).Cpus(1).SubmitTo(&s_);
  s_.Do(testing::Placed(s_.state, trains, "lab", {{"h00", {0}}}));
  s_.Do(testing::Placed(s_.state, flat, "lab", {{"h00", {}}}, 0, ""));
  EXPECT_THAT(PoolHolders(s_.state).Of(s_.state.FindCluster("lab"), "cpu"),
              ElementsAre(trains, flat));
  EXPECT_THAT(PoolHolders(s_.state).Of(s_.state.FindCluster("lab"), "gpu"), ElementsAre(trains));
  EXPECT_THAT(PoolHolders(s_.state).OfCoresBeside(s_.state.FindCluster("lab"), "gpu"),
              ElementsAre(trains, flat));
}

TEST_F(Sentences, WhatWaitsForCoresIsToldOfCores) {
  const uint64_t job = testing::JobBuilder("research").GpusMilli(0).Cpus(4).SubmitTo(&s_);
  pb::Verdict verdict;
  verdict.set_code(pb::V_CAPACITY);
  verdict.set_cluster("lab");
  verdict.set_flavour("cpu");
  for (const auto& [milli, said] :
       {std::pair(3000, "it waits for 3 more cores in lab to become free"),
        std::pair(1000, "it waits for 1 more core in lab to become free")}) {
    verdict.set_missing_milli(milli);
    EXPECT_THAT(VerdictText(s_.state, *s_.state.FindJob(job), 0, verdict), HasSubstr(said));
  }
}

TEST_F(Sentences, SayShareOnlyWhereThereIsAnotherQueue) {
  const uint64_t job = testing::JobBuilder("research").SubmitTo(&s_);
  EXPECT_EQ(Text(job, pb::V_SHARE), "waits for gpu in lab to become free");
  s_.Queue("prod");
  EXPECT_EQ(
      Text(job, pb::V_SHARE),
      "waits for gpu in lab to become free; research has its share, so nobody is stopped for it");
  s_.ShortestFirst("research", /*max_wait_s=*/5000);  // as others of it run, its turn comes
  EXPECT_EQ(Text(job, pb::V_SHARE),
            "waits for gpu in lab to become free; research has its share, and shorter ones of it "
            "come first");
}

// Two run, one each host; a job for all four devices comes first and gets a reservation, so the two
// that are free are kept for it.
TEST_F(Sentences, TellHowManyShorterOnesAreBeforeIt) {
  s_.ShortestFirst("research", /*max_wait_s=*/5000);
  s_.Step(0);
  const uint64_t last = testing::JobBuilder("research").SubmitTo(&s_);
  s_.Do(testing::Placed(s_.state, last, "lab", {{"h01", {0}}}));
  testing::StartAll(&s_, last);
  testing::TellEnd(&s_, last, 100'000);
  const uint64_t longer = testing::JobBuilder("research").SubmitTo(&s_);
  s_.Do(testing::Placed(s_.state, longer, "lab", {{"h00", {0}}}));
  testing::StartAll(&s_, longer);
  testing::TellEnd(&s_, longer, 5'000);
  s_.Step(400);
  s_.Do(testing::Stopping(s_.state, longer, pb::PREEMPTION));
  testing::ReportAll(&s_, longer, pb::GONE, 0, true);
  const auto told = [&](uint64_t job) { return OrderText(s_.state, *s_.state.FindJob(job)); };
  EXPECT_EQ(told(longer), "behind 1 that goes first of research, whose order is shortest");
  const uint64_t first = testing::JobBuilder("research").SubmitTo(&s_);
  const uint64_t second = testing::JobBuilder("research").SubmitTo(&s_);
  testing::JobBuilder("research").Priority(1).SubmitTo(&s_);  // what is more urgent isn't shorter
  testing::JobBuilder("research")                             // has no turn yet
      .NotBefore(s_.state.now_ns() + 86'400 * kSecond)
      .SubmitTo(&s_);
  EXPECT_EQ(told(longer),
            "behind 2 shorter jobs, 1 that goes first of research, whose order is shortest");
  EXPECT_EQ(told(second),
            "behind 1 older job, 1 that goes first of research, whose order is shortest");
  EXPECT_EQ(told(last),
            "goes before the other jobs of research, whose order is shortest: it is the one that "
            "will end last");
  s_.Step(6000);
  EXPECT_EQ(told(first),
            "goes before the other jobs of research, whose order is shortest: it has waited for "
            "1h33m in all");
  s_.Queue("prod");
  const uint64_t elsewhere = testing::JobBuilder("prod").SubmitTo(&s_);
  EXPECT_EQ(told(elsewhere), "");
}

TEST_F(Sentences, NameWhoseTurnComesFirst) {
  s_.Queue("prod");
  for (int i = 0; i < 2; ++i)
    s_.Do(testing::Placed(s_.state, testing::JobBuilder("research").TimeLimit(3600).SubmitTo(&s_),
                          "lab", {{absl::StrCat("h0", i), {0}}}));
  s_.Step(60);
  const uint64_t big = testing::JobBuilder("research").Workers(2).Gpus(2).Priority(9).SubmitTo(&s_);
  const uint64_t pair = testing::JobBuilder("research").Workers(2).SubmitTo(&s_);
  const uint64_t three = testing::JobBuilder("research").Workers(3).SubmitTo(&s_);
  const uint64_t wide = testing::JobBuilder("research").Gpus(2).SubmitTo(&s_);
  const Plan plan = Decide(s_.state, s_.now_ns, SchedulingOptions{});
  for (const pb::Event& event : plan.events) s_.Do(event);
  const auto told = [&](uint64_t job) {
    return DescribeVerdict(s_.state, plan, *s_.state.FindJob(job), 0);
  };
  EXPECT_THAT(told(pair).text(),
              ::testing::MatchesRegex(absl::StrCat(
                  "behind job ", big, " .research., for which the free gpu in lab is kept.*")));
  EXPECT_EQ(told(pair).code(), pb::V_SHARE);
  EXPECT_THAT(told(pair).held_by(), ElementsAre(big));
  EXPECT_EQ(told(pair).text().find("has its share"), std::string::npos) << "it uses 2 of 4";
  EXPECT_THAT(
      told(three).text(),
      HasSubstr(absl::StrCat("gpu in lab to become free; the rest of research's share is for job ",
                             big, ", whose turn comes first")));
  EXPECT_EQ(told(wide).code(), pb::V_PLACEMENT) << "what is free isn't in its shape";
  EXPECT_THAT(
      told(wide).text(),
      HasSubstr(
          "enough gpu in lab is free by number, but each of its workers takes 2 gpu of one host"));
  const pb::ExplainResponse explained =
      Explain(s_.state, plan, pair, s_.now_ns, SchedulingOptions{});
  EXPECT_THAT(explained.why(0).text(),
              ::testing::MatchesRegex(absl::StrCat(
                  "behind job ", big,
                  " .*; research is entitled to 4 gpu now .guarantee 4., and uses 2.*")));
}

TEST_F(Sentences, ASpillIsOfItsTimeAndOfItsAttempt) {
  s_.Cluster("cloud").Hosts("cloud", 1, 2);
  const uint64_t job = testing::JobBuilder("research").SubmitTo(&s_);
  s_.Step(60);
  pb::Event opened;
  opened.mutable_cluster_opened()->set_job_uid(s_.state.FindJob(job)->uid);
  opened.mutable_cluster_opened()->set_task("main");
  opened.mutable_cluster_opened()->set_cluster("cloud");
  opened.mutable_cluster_opened()->set_reason("lab is full; cloud has room now");
  s_.Do(opened);
  s_.Step(7200);
  const auto said = [&] { return SpillText(s_.state, *s_.state.FindJob(job), 0); };
  EXPECT_THAT(said(), ::testing::MatchesRegex("may start in cloud, too, since ..:..:.. UTC, when "
                                              "it was said: lab is full; cloud has room now"));
  EXPECT_THAT(Text(job, pb::V_CAPACITY), HasSubstr("; may start in cloud, too, since "));
  s_.Do(testing::Placed(s_.state, job, "cloud", {{"h02", {0}}}));
  testing::StartAll(&s_, job);
  EXPECT_THAT(said(), ::testing::MatchesRegex("at ..:..:.. UTC: lab is full; cloud has room now"));
  testing::ReportAll(&s_, job, pb::GONE, 1);
  EXPECT_EQ(said(), "") << "the next attempt was not spilled";
  s_.Do(testing::Placed(s_.state, job, "lab", {{"h00", {0}}}));
  EXPECT_EQ(said(), "") << "it is in its first cluster";
}

TEST_F(Sentences, AJobThatWaitsForAStrayIsToldHowItsHostIsSwitchedOff) {
  const uint64_t job = testing::JobBuilder("research").SubmitTo(&s_);
  pb::Event adopted;
  adopted.mutable_store_adopted()->set_epoch(static_cast<uint64_t>(kAttemptsSinceS + 5000) * 1000);
  s_.Do(adopted);
  adopted.mutable_store_adopted()->set_settled(true);
  s_.Do(adopted);
  pb::Event stray;
  pb::AttemptReported* e = stray.mutable_attempt_reported();
  e->set_cluster("lab");
  e->set_host("h00");
  e->set_state_id(s_.state.host(s_.state.FindHost("lab", "h00")).state_id);
  *e->mutable_report()->mutable_key() = KeyOf(*s_.state.FindJob(job), 0, 40);
  e->mutable_report()->set_phase(pb::STARTED);
  s_.Do(stray);
  s_.HostState("lab", "h00", pb::HOST_UNREACHABLE);
  EXPECT_THAT(Text(job, pb::V_RESTORING),
              AllOf(HasSubstr("muster host confirm-off lab/h00"), Not(HasSubstr("fence_command"))));
  pb::Event failed;
  failed.mutable_host_fence_failed()->set_cluster("lab");
  failed.mutable_host_fence_failed()->set_host("h00");
  failed.mutable_host_fence_failed()->set_detail("no chassis");
  s_.Do(failed);
  EXPECT_THAT(Text(job, pb::V_RESTORING),
              HasSubstr("muster host confirm-off lab/h00. fence_command was run to switch it off "
                        "and failed, it is tried again: no chassis"));
}

TEST_F(Sentences, TheStartIsTheForecastsWhereThatIsNewer) {
  const uint64_t job = testing::JobBuilder("research").SubmitTo(&s_);
  struct Case {
    pb::VerdictCode code;
    int64_t in_s, expected_s;
    bool forecast;
    const char* why;
  };
  for (const Case& c : {Case{pb::V_CAPACITY, 600, 600, true, "one source of starts"},
                        Case{pb::V_CAPACITY, -5, 300, false, "an old forecast"},
                        Case{pb::V_HELD, 600, 300, false, "no forecast lifts a drain"},
                        Case{pb::V_BACKOFF, 600, 300, false, "that time is known"}}) {
    Forecast forecast;
    forecast.starts[{job, 0}].start_ns = s_.now_ns + c.in_s * kSecond;
    pb::Job told = DescribeJob(s_.state, Plan{}, *s_.state.FindJob(job));
    told.mutable_tasks(0)->mutable_verdict()->set_code(c.code);
    told.mutable_tasks(0)->mutable_verdict()->set_expected_start_ns(s_.now_ns + 300 * kSecond);
    AddForecast(forecast, job, s_.now_ns, &told);
    EXPECT_EQ(told.tasks(0).verdict().expected_start_ns(), s_.now_ns + c.expected_s * kSecond)
        << c.why;
    EXPECT_EQ(told.tasks(0).verdict().forecast(), c.forecast) << c.why;
  }
  pb::Verdict verdict;
  verdict.set_code(pb::V_CAPACITY);
  verdict.set_cluster("lab");
  verdict.set_expected_start_ns(s_.now_ns + 300 * kSecond);
  EXPECT_EQ(VerdictText(s_.state, *s_.state.FindJob(job), 0, verdict).find("starts"),
            std::string::npos)
      << "said beside it, once";
}

TEST_F(Sentences, TellWhichFaultIsTriedAgain) {
  const uint64_t job = testing::JobBuilder("research").SubmitTo(&s_);
  for (const char* times : {" (", " 2 times in a row ("}) {
    s_.Do(testing::Placed(s_.state, job, "lab", {{"h00", {0}}}));
    testing::StartAll(&s_, job);
    pb::Event event = testing::Report(
        s_.state, job, 0, s_.state.FindJob(job)->tasks[0].attempts.back().number, 0, pb::GONE, 1);
    for (pb::WorkerExit& exit :
         *event.mutable_attempt_reported()->mutable_report()->mutable_exits()) {
      exit.set_cause(pb::STORAGE_FAILURE);
      exit.set_detail("exit 1: Stale file handle");
    }
    s_.Do(event);
    EXPECT_THAT(Text(job, pb::V_BACKOFF),
                HasSubstr(absl::StrCat("met a fault of the infrastructure", times,
                                       "rank 0: exit 1: Stale file handle) and is tried again, on "
                                       "other hosts where there are any; starts again at ")));
  }
}

TEST_F(Sentences, TellHowTheLastTryEnded) {
  testing::JobBuilder builder("research");
  builder.task()->set_max_restarts(20);
  const uint64_t job = builder.SubmitTo(&s_);
  s_.Do(testing::Placed(s_.state, job, "lab", {{"h00", {0}}}));
  testing::StartAll(&s_, job);
  pb::Event event = testing::Report(s_.state, job, 0, 1, 0, pb::GONE, 75);
  for (pb::WorkerExit& exit : *event.mutable_attempt_reported()->mutable_report()->mutable_exits())
    exit.set_detail("exit 75: muster_score: the engine died");
  s_.Do(event);
  const std::string text = Text(job, pb::V_BACKOFF);
  EXPECT_THAT(text, ::testing::StartsWith("starts again at "));
  EXPECT_THAT(text, HasSubstr("; failure 1 of 20 allowed: attempt 1 failed, rank 0: exit 75: "
                              "muster_score: the engine died"));
}

TEST_F(Sentences, TellWhyAHostIsDrained) {
  const uint64_t job = testing::JobBuilder("research").SubmitTo(&s_);
  Drain("lab/h00", "a fan is replaced");
  EXPECT_THAT(Text(job, pb::V_CAPACITY), HasSubstr("; lab/h00 is drained: a fan is replaced"));
  Drain("lab", "the hall is rewired");
  EXPECT_EQ(Text(job, pb::V_HELD), "lab is drained: the hall is rewired");
}

TEST_F(Sentences, NameTheQueueThatIsHeld) {
  const uint64_t job = testing::JobBuilder("research").SubmitTo(&s_);
  pb::Event event;
  *event.mutable_queues_applied()->mutable_tree() =
      TreeOf("queues { name: \"research\" held: true }");
  s_.Do(event);
  EXPECT_EQ(Of(job), "queue research is held by its operator");
  *event.mutable_queues_applied()->mutable_tree() = TreeOf("queues { name: \"prod\" }");
  s_.Do(event);
  EXPECT_THAT(Of(job), HasSubstr("queue research was removed"));
}

TEST_F(Sentences, TellWhoseWordAnExportWaitsFor) {
  const uint64_t job = testing::JobBuilder("research").SubmitTo(&s_);
  s_.Do(testing::Placed(s_.state, job, "lab", {{"h00", {0}}}));
  testing::StartAll(&s_, job);
  pb::Event staged;
  *staged.mutable_export_staged()->mutable_key() = KeyOf(*s_.state.FindJob(job), 0, 1);
  staged.mutable_export_staged()->set_staged("/disk/staged");
  staged.mutable_export_staged()->set_target("/disk/model");
  s_.Do(staged);
  testing::ReportAll(&s_, job, pb::GONE, 0);
  s_.HostState("lab", "h00", pb::HOST_UNREACHABLE);
  const pb::Job told = DescribeJob(s_.state, Plan{}, *s_.state.FindJob(job));
  EXPECT_EQ(told.tasks(0).verdict().code(), pb::V_EXPORT);
  EXPECT_EQ(told.tasks(0).verdict().text(),
            "its processes are done; waits for lab/h00 to publish the export to /disk/model; that "
            "host can't be reached; "
            "muster cancel 1 gives it up, and it stays at /disk/staged");
}

TEST_F(Sentences, OfCheckpointsOnlyThoseThatAreKept) {
  testing::JobBuilder builder("research");
  builder.task()->mutable_checkpoint()->set_keep(2);
  const uint64_t job = builder.SubmitTo(&s_);
  const auto run = [&](int32_t attempt, const std::vector<int64_t>& steps, int64_t loaded) {
    s_.Do(testing::Placed(s_.state, job, "lab", {{"h00", {0}}}));
    testing::StartAll(&s_, job);
    for (const int64_t step : steps) {
      pb::Event event;
      *event.mutable_checkpoint_seen()->mutable_key() = KeyOf(*s_.state.FindJob(job), 0, attempt);
      event.mutable_checkpoint_seen()->mutable_checkpoint()->set_step(step);
      event.mutable_checkpoint_seen()->mutable_checkpoint()->set_path(
          absl::StrCat("/disk/", attempt, "/", step));
      event.mutable_checkpoint_seen()->set_loaded_step(loaded);
      s_.Do(event);
    }
  };
  run(1, {10, 20, 30, 40}, -1);
  testing::ReportAll(&s_, job, pb::GONE, 1);
  run(2, {50, 60, 70}, 40);
  std::vector<int64_t> steps;
  const pb::Job told = DescribeJob(s_.state, Plan{}, *s_.state.FindJob(job));
  for (const pb::Checkpoint& checkpoint : told.tasks(0).checkpoints())
    steps.push_back(checkpoint.step());
  EXPECT_THAT(steps, ElementsAre(30, 40, 60, 70))
      << "each attempt has its own directory and prunes it";
}

}  // namespace
}  // namespace muster
