#include "sim/trace.h"

#include "common/base/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/v1/job.pb.h"

namespace muster::sim {
namespace {

TEST(Trace, ReadsColumnsInAnyOrderAndSortsBySubmitTime) {
  const auto trace =
      ParseTrace("duration_s,submit_s,workers,gpus,clusters\n60,10.5,2,4,phx;dal\n30,1,,0.5,\n",
                 "t.csv", true);
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->jobs.size(), 2u);
  EXPECT_EQ(trace->jobs[0].duration_ns, 30 * kSecond);
  EXPECT_EQ(trace->jobs[0].gpus_milli, 500);
  EXPECT_EQ(trace->jobs[1].submit_ns, 10'500'000'000);
  EXPECT_THAT(trace->jobs[1].clusters, testing::ElementsAre("phx", "dal"));
  EXPECT_EQ(trace->jobs[1].max_workers, 2);
}

TEST(Trace, BrokenLinesAreLeftOutWithTheirPlaceOrStopAStrictRead) {
  const struct {
    const char* line;
    const char* want;
  } kCases[] = {{"x,60,1,1", "t.csv:2: submit_s: \"x\" is no number of seconds"},
                {"1,0,1,1", "t.csv:2: duration_s must be above 0"},
                {"1,60,0,1", "t.csv:2: workers: \"0\" is not a whole number in 1..65536"},
                {"1,60,1", "t.csv:2: 3 cells, the header has 4"},
                {"1,60,2,1.5", "t.csv:2: a fraction of a GPU needs gpus below 1 and one worker"},
                {"1,60,1,0.0001", "t.csv:2: gpus: \"0.0001\" has more than three decimals"}};
  for (const auto& c : kCases) {
    const std::string text =
        std::string("submit_s,duration_s,workers,gpus\n") + c.line + "\n5,60,1,1\n";
    const auto kept = ParseTrace(text, "t.csv", false);
    ASSERT_TRUE(kept.ok()) << c.line;
    EXPECT_EQ(kept->jobs.size(), 1u) << c.line;
    EXPECT_THAT(kept->broken, testing::ElementsAre(c.want));
    EXPECT_EQ(ParseTrace(text, "t.csv", true).status().message(), c.want);
  }
}

TEST(Trace, ReadsBlocksOfRanks) {
  const std::string header = "submit_s,duration_s,workers,gpus,blocks\n";
  const auto trace =
      ParseTrace(header + "1,60,16,4,2:island;8:host;64:rack\n2,60,1,1,\n", "t.csv", true);
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->jobs[0].blocks.size(), 3u);
  EXPECT_EQ(trace->jobs[0].blocks[0].required, pb::ISLAND);
  EXPECT_EQ(trace->jobs[0].blocks[1].gpus, 8);
  EXPECT_EQ(trace->jobs[0].blocks[2].required, pb::RACK);
  EXPECT_TRUE(trace->jobs[1].blocks.empty());
  for (const char* bad : {"8", "8:cluster", "0:host", "8:host:rack"})
    EXPECT_FALSE(ParseTrace(header + "1,60,16,4," + bad + "\n", "t.csv", true).ok()) << bad;
}

TEST(Trace, AnUnusableHeaderIsRefused) {
  for (const char* header :
       {"", "submit_s", "submit_s,duration_s,gpu", "submit_s,submit_s,duration_s"}) {
    EXPECT_FALSE(ParseTrace(std::string(header) + "\n1,2,3\n", "t.csv", false).ok()) << header;
  }
}

TEST(Trace, TheSameSeedDrawsTheSameJobs) {
  const auto one = RandomTrace(200, 7, {"a", "b"}, {"h"}, 8),
             two = RandomTrace(200, 7, {"a", "b"}, {"h"}, 8);
  const auto other = RandomTrace(200, 8, {"a", "b"}, {"h"}, 8);
  int differences = 0;
  for (size_t i = 0; i < 200; ++i) {
    EXPECT_EQ(one.jobs[i].submit_ns, two.jobs[i].submit_ns);
    EXPECT_EQ(one.jobs[i].gpus_milli, two.jobs[i].gpus_milli);
    differences += one.jobs[i].submit_ns != other.jobs[i].submit_ns;
  }
  EXPECT_GT(differences, 100);
}

}  // namespace
}  // namespace muster::sim
