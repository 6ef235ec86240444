// What a scrape tells of systems that read like sentences; tests/system/test_metrics.py reads a
// real one with a strict parser.
#include "scheduler/api/metrics.h"

#include <functional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using testing::JobBuilder;
using ::testing::Not;
using testing::Placed;
using testing::SystemBuilder;

// The lines of a scrape of this system, 90 s after its beginning.
std::vector<std::string> Scrape(const SystemBuilder& system, MetricsInput input = {}) {
  const View view{system.state, std::make_shared<const Plan>(), 1, system.now_ns};
  input.view = &view;
  input.now_ns = SystemBuilder::kStart + 90 * kSecond;
  return absl::StrSplit(RenderMetrics(input), '\n');
}

struct Case {
  const char* name;
  std::function<void(SystemBuilder*)> build;
  std::vector<std::string> want;     // lines
  std::vector<std::string> nowhere;  // beginnings of lines
};
void PrintTo(const Case& of, std::ostream* out) { *out << of.name; }

const Case kCases[] = {
    {"Empty",
     [](SystemBuilder*) {},
     {"# TYPE muster_hosts gauge", "muster_submissions_total 0", "muster_takes_submissions 1"},
     {"muster_hosts{", "muster_devices{"}},
    {"QuotasOfAnIdleQueue",
     [](SystemBuilder* s) { s->Cluster("lab").Hosts("lab", 1, 4).Queue("research", 2, 3); },
     {R"(muster_queue_guaranteed_devices{queue="research",flavour="gpu"} 2)",
      R"(muster_queue_limit_devices{queue="research",flavour="gpu"} 3)",
      R"(muster_queue_used_devices{queue="research",flavour="gpu"} 0)",
      R"(muster_queue_waiting_tasks{queue="research",flavour="gpu"} 0)",
      R"(muster_queue_oldest_wait_seconds{queue="research",flavour="gpu"} 0)",
      R"(muster_hosts{cluster="lab",state="up"} 1)",
      R"(muster_hosts{cluster="lab",state="silent"} 0)",
      R"(muster_devices{cluster="lab",flavour="gpu",state="free"} 4)"},
     {}},
    {"NoLimitNoSample",
     [](SystemBuilder* s) { s->Cluster("lab").Queue("research", 2); },
     {"# TYPE muster_queue_limit_devices gauge"},
     {"muster_queue_limit_devices{"}},
    {"WhatRunsAndBorrows",
     [](SystemBuilder* s) {
       s->Cluster("lab").Hosts("lab", 2, 4).Queue("research", 2);
       const uint64_t job = JobBuilder("research").Workers(3).SubmitTo(s);
       s->Do(Placed(s->state, job, "lab", {{"h00", {0, 1, 2}, 3}}));
     },
     {R"(muster_queue_used_devices{queue="research",flavour="gpu"} 3)",
      R"(muster_queue_borrowed_devices{queue="research",flavour="gpu"} 1)",
      R"(muster_queue_running_tasks{queue="research",flavour="gpu"} 1)",
      R"(muster_queue_waiting_tasks{queue="research",flavour="gpu"} 0)",
      R"(muster_devices{cluster="lab",flavour="gpu",state="used"} 3)",
      R"(muster_devices{cluster="lab",flavour="gpu",state="free"} 5)"},
     {}},
    {"WhatWaitsInAnInnerQueueToo",
     [](SystemBuilder* s) {
       s->Cluster("lab").Hosts("lab", 1, 1).Queue("research", 1).Queue("research/nlp", 1);
       JobBuilder("research/nlp").Workers(2).SubmitTo(s);
       JobBuilder("research/nlp").GpusMilli(500).SubmitTo(s);
     },
     {R"(muster_queue_waiting_devices{queue="research",flavour="gpu"} 2.5)",
      R"(muster_queue_waiting_devices{queue="research/nlp",flavour="gpu"} 2.5)",
      R"(muster_queue_waiting_tasks{queue="research/nlp",flavour="gpu"} 2)",
      R"(muster_queue_oldest_wait_seconds{queue="research/nlp",flavour="gpu"} 90)"},
     {}},
    {"WorkWithoutGpusCountsCores",
     [](SystemBuilder* s) {
       s->Cluster("lab").Hosts("lab", 1, 1).Queue("research");
       JobBuilder("research").Cpus(8).GpusMilli(0).SubmitTo(s);
     },
     {R"(muster_queue_waiting_devices{queue="research",flavour="cpu"} 8)",
      R"(muster_queue_waiting_tasks{queue="research",flavour="cpu"} 1)"},
     {R"(muster_devices{cluster="lab",flavour="")"}},
    {"TasksThatWaitForOthersDoNot",
     [](SystemBuilder* s) {
       s->Cluster("lab").Queue("research");
       JobBuilder("research").Task("a").Task("b", {"a"}).SubmitTo(s);
     },
     {R"(muster_queue_waiting_tasks{queue="research",flavour="gpu"} 1)"},
     {}},
    {"HostsThatWereTakenOutOfTheirClusterArentAway",
     [](SystemBuilder* s) {
       s->Cluster("lab")
           .Hosts("lab", 2, 2, "gpu", "r1")
           .Hosts("lab", 2, 2)
           .Close("lab");  // h00 and h01 are listed
       for (const char* host : {"h00", "h02"}) s->HostState("lab", host, pb::HOST_UNREACHABLE);
     },
     {R"(muster_hosts{cluster="lab",state="unreachable"} 1)",
      R"(muster_hosts{cluster="lab",state="removed"} 1)",
      R"(muster_hosts{cluster="lab",state="up"} 2)",
      R"(muster_devices{cluster="lab",flavour="gpu",state="free"} 4)",
      R"(muster_devices{cluster="lab",flavour="gpu",state="down"} 2)"},
     {}},
    {"EachHostIsInOneState",
     [](SystemBuilder* s) {
       s->Cluster("lab").Hosts("lab", 4, 2).Cluster("cloud").Hosts("cloud", 1, 2);
       s->HostState("lab", "h00", pb::HOST_SILENT);
       s->HostState("lab", "h01", pb::HOST_UNREACHABLE);
       s->Drain("lab/h01");
       s->Drain("lab/h02");
       s->Drain("cloud");
     },
     {R"(muster_hosts{cluster="lab",state="up"} 1)",
      R"(muster_hosts{cluster="lab",state="silent"} 1)",
      R"(muster_hosts{cluster="lab",state="unreachable"} 1)",
      R"(muster_hosts{cluster="lab",state="drained"} 1)",
      R"(muster_hosts{cluster="cloud",state="drained"} 1)",
      R"(muster_devices{cluster="lab",flavour="gpu",state="free"} 4)",
      R"(muster_devices{cluster="lab",flavour="gpu",state="down"} 4)",
      R"(muster_devices{cluster="cloud",flavour="gpu",state="down"} 2)"},
     {}},
    {"NamesAreEscaped",
     [](SystemBuilder* s) { s->Cluster("a\"b\\c\nd").Hosts("a\"b\\c\nd", 1, 1); },
     {R"(muster_hosts{cluster="a\"b\\c\nd",state="up"} 1)"},
     {}},
};

class MetricsOf : public ::testing::TestWithParam<Case> {};

TEST_P(MetricsOf, ASystem) {
  SystemBuilder system;
  GetParam().build(&system);
  const std::vector<std::string> lines = Scrape(system);
  for (const std::string& line : GetParam().want) EXPECT_THAT(lines, Contains(line));
  for (const std::string& beginning : GetParam().nowhere)
    EXPECT_THAT(lines, Not(Contains(::testing::StartsWith(beginning))));
  std::set<std::string> seen;
  for (const std::string& line : lines) {
    EXPECT_TRUE(line.empty() || seen.insert(line.substr(0, line.rfind(' '))).second)
        << "twice: " << line;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, MetricsOf, ::testing::ValuesIn(kCases),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           return std::string(info.param.name);
                         });

TEST(Metrics, QuarantinedDevicesAreNotDown) {
  SystemBuilder system;
  system.Cluster("lab").Hosts("lab", 2, 4);
  pb::QuarantineRule rule;
  rule.set_device_blames(1);
  rule.set_max_percent(50);
  system.Rule("lab", rule);
  pb::Event event;
  event.mutable_host_fault()->set_cluster("lab");
  event.mutable_host_fault()->set_host("h00");
  event.mutable_host_fault()->mutable_fault()->set_device(1);
  event.mutable_host_fault()->mutable_fault()->set_at_ns(system.now_ns);
  system.Do(event);
  const std::vector<std::string> lines = Scrape(system);
  EXPECT_THAT(lines,
              Contains(R"(muster_devices{cluster="lab",flavour="gpu",state="quarantined"} 1)"));
  EXPECT_THAT(lines, Contains(R"(muster_devices{cluster="lab",flavour="gpu",state="down"} 0)"));
  EXPECT_THAT(lines, Contains(R"(muster_devices{cluster="lab",flavour="gpu",state="free"} 7)"));
}

TEST(Metrics, TellCountsAndDurations) {
  MetricsInput input;
  input.stats.events = 12;
  input.stats.plans = 4;
  input.stats.refused_plans = 1;
  input.stats.submissions = 3;
  input.stats.starts = 2;
  input.stats.evictions = 1;
  for (const int64_t us : {60, 180, 180, 40'000, 30'000'000}) input.stats.commit.Add(us * 1000);
  input.uptime_ns = 61'500'000'000;
  input.version = "1.2";
  input.takes_submissions = false;
  input.agent_sessions = 7;
  input.unproved_hellos = 2;
  input.agent_rests = 9;
  input.audit_bytes = 512;
  input.database_bytes = 4096;
  input.wal_bytes = 32;
  input.logins = ProviderCounts{3, 2, 1, 5, 4};
  input.network = NetworkCounts{4, 90, 5, 6, 7, 8, 9, 10};
  const std::vector<std::string> lines = Scrape(SystemBuilder(), input);
  for (const char* line : {R"(muster_provider_logins_total{outcome="issued"} 3)",
                           R"(muster_provider_logins_total{outcome="refused"} 2)",
                           R"(muster_provider_logins_total{outcome="unavailable"} 1)",
                           R"(muster_provider_key_reads_total{outcome="read"} 1)",
                           R"(muster_provider_key_reads_total{outcome="failed"} 4)",
                           "muster_connections 4",
                           "muster_connections_accepted_total 90",
                           "muster_connections_refused_total 5",
                           R"(muster_connections_ended_total{why="no_call"} 6)",
                           R"(muster_connections_ended_total{why="silent"} 7)",
                           R"(muster_connections_ended_total{why="unexplained"} 8)",
                           R"(muster_connections_ended_total{why="too_many"} 9)",
                           R"(muster_connections_ended_total{why="certificate"} 10)",
                           "muster_events_committed_total 12",
                           "muster_plans_committed_total 4",
                           "muster_plans_refused_total 1",
                           "muster_submissions_total 3",
                           "muster_starts_total 2",
                           "muster_evictions_total 1",
                           "# TYPE muster_commit_duration_seconds histogram",
                           R"(muster_commit_duration_seconds_bucket{le="0.0001"} 1)",
                           R"(muster_commit_duration_seconds_bucket{le="0.00025"} 3)",
                           R"(muster_commit_duration_seconds_bucket{le="0.025"} 3)",
                           R"(muster_commit_duration_seconds_bucket{le="0.05"} 4)",
                           R"(muster_commit_duration_seconds_bucket{le="10"} 4)",
                           R"(muster_commit_duration_seconds_bucket{le="+Inf"} 5)",
                           "muster_commit_duration_seconds_sum 30.04042",
                           "muster_commit_duration_seconds_count 5",
                           "muster_step_duration_seconds_count 0",
                           "muster_uptime_seconds 61.5",
                           R"(muster_build_info{version="1.2"} 1)",
                           "muster_takes_submissions 0",
                           "muster_agent_sessions 7",
                           "muster_unproved_hellos_total 2",
                           "muster_agent_rests_total 9",
                           "muster_audit_bytes 512",
                           R"(muster_store_bytes{file="database"} 4096)",
                           R"(muster_store_bytes{file="wal"} 32)"}) {
    EXPECT_THAT(lines, Contains(line));
  }
}

}  // namespace
}  // namespace muster
