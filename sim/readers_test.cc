#include "sim/readers.h"

#include <zlib.h>

#include <cstdio>
#include <fstream>

#include "common/base/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/peers/shockwave.h"

namespace muster::sim {
namespace {

using testing::ElementsAre;

std::string Write(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

constexpr char kPhilly[] = "job_id,cluster,submit_s,gpus,duration_s,kind\n";
constexpr char kOpenb[] =
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_"
    "time,scheduled_time\n";

TEST(Readers, PhillyJobsBecomeGangsOfWholeHostsWhereTheirSizeAllows) {
  const struct {
    int gpus;
    int workers;
    int each;
  } kCases[] = {{1, 1, 1},    {8, 1, 8},    {12, 2, 6},  {24, 3, 8},
                {128, 16, 8}, {504, 63, 8}, {22, 11, 2}, {13, 13, 1}};
  for (const auto& c : kCases) {
    const auto trace = ReadTrace(
        Write("p.csv", std::string(kPhilly) + "p1,7f04ca,10," + std::to_string(c.gpus) + ",60,\n"),
        {});
    ASSERT_TRUE(trace.ok()) << trace.status();
    ASSERT_EQ(trace->jobs.size(), 1u);
    const TraceJob& job = trace->jobs[0];
    EXPECT_EQ(job.workers, c.workers) << c.gpus;
    EXPECT_EQ(job.gpus_milli, c.each * 1000) << c.gpus;
    EXPECT_EQ(job.queue, "7f04ca");
    EXPECT_THAT(job.clusters, ElementsAre("7f04ca"));
    EXPECT_EQ(job.submit_ns, 10 * kSecond);
  }
}

TEST(Readers, BrokenLinesAreNamedWithTheirPlaceOrStopAStrictRead) {
  const struct {
    const char* header;
    const char* line;
    const char* want;
  } kCases[] = {
      {kPhilly, "p1,c,10,1,60", "5 cells instead of 6"},
      {kPhilly, "p1,c,x,1,60,", "submit_s: \"x\" is no number of seconds up to ten years"},
      {kPhilly, "p1,c,-1,1,60,", "submit_s: \"-1\" is no number of seconds up to ten years"},
      {kPhilly, "p1,c,1e99,1,60,", "submit_s: \"1e99\" is no number of seconds up to ten years"},
      {kPhilly, "p1,c,10,0,60,", "gpus: \"0\" is not a whole number in 1..65536"},
      {kPhilly, "p1,c,10,1,0,", "duration_s: must be above 0"},
      {kPhilly, "p1,,10,1,60,", "cluster: is empty"},
      {kOpenb, "a,1000,512,2,500,,LS,Running,0,10,0",
       "gpu_milli: several GPUs are whole ones: 1000"},
      {kOpenb, "a,1000,512,1,500,,LS,Running,10,10,0", "deletion_time: not after creation_time"},
      {kOpenb, "a,1000,512,1,500,,LS,Running,10,,0",
       "deletion_time: \"\" is no number of seconds up to ten years"},
  };
  for (const auto& c : kCases) {
    const std::string good =
        c.header == kPhilly ? "p2,c,5,1,60,\n" : "b,1000,512,1,500,T4,LS,Running,0,10,0\n";
    const std::string path = Write("broken.csv", std::string(c.header) + c.line + "\n" + good);
    const auto kept = ReadTrace(path, {});
    ASSERT_TRUE(kept.ok()) << c.line << kept.status();
    EXPECT_EQ(kept->jobs.size(), 1u) << c.line;
    const std::string want = path + ":2: " + c.want;
    EXPECT_THAT(kept->broken, ElementsAre(want));
    EXPECT_EQ(ReadTrace(path, {.strict = true}).status().message(), want);
  }
}

TEST(Readers, ShockwaveLinesTellWhatIsWrongWithThem) {
  const std::string good =
      "LM (batch size 10)\tx\tlm\t--steps\t1\t600\t2\tstatic\t1\t-1.000000\t100\t7";
  const auto with = [&](size_t cell, const std::string& text) {
    std::string line;
    size_t at = 0;
    for (size_t c = 0; c < 12; ++c) {
      const size_t end = std::min(good.find('\t', at), good.size());
      line += (c == 0 ? "" : "\t") + (c == cell ? text : good.substr(at, end - at));
      at = end + 1;
    }
    return line;
  };
  const struct {
    size_t cell;
    const char* text;
    const char* want;
  } kCases[] = {{0, "LM", "model: \"LM\" is no `NAME (batch size N)`"},
                {5, "0", "steps: \"0\" is not a whole number in 1..1099511627776"},
                {7, "magic", "mode: \"magic\" is not static, accordion or gns"},
                {10, "0", "duration: must be above 0"},
                {11, "", "arrival: \"\" is no number of seconds up to ten years"}};
  for (const auto& c : kCases) {
    const std::string path = Write("s.trace", good + "\n" + with(c.cell, c.text) + "\n");
    const auto trace = ReadTrace(path, {.format = "shockwave"});
    ASSERT_TRUE(trace.ok());
    EXPECT_THAT(trace->broken, ElementsAre(path + ":2: " + c.want));
    ASSERT_EQ(trace->jobs.size(), 1u);
    EXPECT_EQ(trace->jobs[0].workers, 2);
    EXPECT_EQ(trace->jobs[0].duration_ns, 100 * kSecond);
    EXPECT_EQ(trace->jobs[0].submit_ns, 7 * kSecond);
  }
}

TEST(Readers, OpenbPodsKeepTheirShareMemoryAndModels) {
  const auto trace = ReadTrace(
      Write("o.csv", std::string(kOpenb) +
                         "pod-1,6000,12288,1,460,V100M16|V100M32,LS,Running,427061,427161,427061\n"
                         "pod-2,6000,12288,0,0,,BE,Running,1,2,1\n"
                         "pod-3,6000,12288,8,1000,,BE,Running,3,5,1\n"),
      {});
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->jobs.size(), 3u);
  EXPECT_EQ(trace->jobs[0].gpus_milli, 0);
  EXPECT_EQ(trace->jobs[1].gpus_milli, 8000);
  const TraceJob& pod = trace->jobs[2];
  EXPECT_EQ(pod.gpus_milli, 460);
  EXPECT_EQ(pod.gpu_type, "V100M16;V100M32");
  EXPECT_EQ(pod.cpus_milli, 6000);
  EXPECT_EQ(pod.memory_bytes, int64_t{12288} << 20);
  EXPECT_EQ(pod.duration_ns, 100 * kSecond);
}

TEST(Readers, GzippedFilesAreReadAndBrokenOnesRefused) {
  const std::string path = testing::TempDir() + "p.csv.gz";
  gzFile file = gzopen(path.c_str(), "wb");
  const std::string text = std::string(kPhilly) + "p1,c,10,1,60,\n";
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  const auto trace = ReadTrace(path, {});
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->jobs.size(), 1u);
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  EXPECT_THAT(
      ReadTrace(Write("cut.csv.gz", bytes.substr(0, bytes.size() / 2)), {}).status().message(),
      testing::HasSubstr("broken gzip data"));
}

TEST(Readers, AFleetDropsUnknownClustersAndAppendsTheOthers) {
  pb::ClusterFile clusters;
  (*clusters.mutable_skus())["s"].set_flavour("gpu");
  for (const char* name : {"a", "b", "c"}) clusters.add_clusters()->set_name(name);
  Trace trace;
  trace.jobs.resize(3);
  trace.jobs[0].clusters = {"b"};
  trace.jobs[1].clusters = {"gone"};
  trace.jobs[2].gpu_type = "other";
  Trace own = trace;
  FitToFleet(clusters, true, &trace);
  EXPECT_THAT(trace.jobs[0].clusters, ElementsAre("b", "a", "c"));
  EXPECT_THAT(trace.jobs[1].clusters, testing::IsEmpty());
  EXPECT_EQ(trace.jobs[0].gpu_type, "gpu");
  EXPECT_EQ(trace.jobs[2].gpu_type, "other");
  FitToFleet(clusters, false, &own);
  EXPECT_THAT(own.jobs[0].clusters, ElementsAre("b"));
}

TEST(Readers, GpuTypesAreTheFleetsWhateverTheCaseOfTheirLetters) {
  for (const char* flavour : {"t4", "T4"}) {
    pb::ClusterFile clusters;
    (*clusters.mutable_skus())["s"].set_flavour(flavour);
    Trace trace;
    trace.jobs.resize(2);
    trace.jobs[0].gpu_type = "T4;G2";
    trace.jobs[1].gpu_type = "t4";
    FitToFleet(clusters, true, &trace);
    EXPECT_EQ(trace.jobs[0].gpu_type, std::string(flavour) + ";G2");
    EXPECT_EQ(trace.jobs[1].gpu_type, flavour);
  }
}

TEST(Readers, QueuesBySizeAreNamedAfterTheGpusOfTheGang) {
  Trace trace;
  trace.jobs.resize(2);
  trace.jobs[0].workers = 3;
  trace.jobs[0].gpus_milli = 8000;
  trace.jobs[1].gpus_milli = 500;
  QueueBySize(&trace);
  EXPECT_EQ(trace.jobs[0].queue, "g24");
  EXPECT_EQ(trace.jobs[1].queue, "g1");
}

TEST(Readers, WorkAfterTheLastSubmissionIsLate) {
  Trace trace;
  trace.jobs.resize(3);
  trace.jobs[0].duration_ns = 100 * kSecond;
  trace.jobs[1].submit_ns = 50 * kSecond;
  trace.jobs[1].duration_ns = 200 * kSecond;  // 150 s of it are after the last submission
  trace.jobs[2].submit_ns = 100 * kSecond;
  trace.jobs[2].duration_ns = 100 * kSecond;
  EXPECT_EQ(LateWorkPerMille(trace), 625);
  EXPECT_EQ(LateWorkPerMille(Trace()), 0);
}

TEST(Readers, ScalingReachesTheLoadAndKeepsTheOrder) {
  Trace trace;
  for (int i = 0; i < 100; ++i) {
    TraceJob job;
    job.submit_ns = i * i * kMinute;
    job.duration_ns = 3 * kHour;
    trace.jobs.push_back(job);
  }
  ScaleToLoad(4, 85, &trace);
  EXPECT_NEAR(static_cast<double>(LoadPerMille(4, trace)), 850, 2);
  EXPECT_TRUE(std::is_sorted(
      trace.jobs.begin(), trace.jobs.end(),
      [](const TraceJob& a, const TraceJob& b) { return a.submit_ns < b.submit_ns; }));
  Cut(trace.jobs[10].submit_ns, trace.jobs[20].submit_ns, &trace);
  EXPECT_EQ(trace.jobs.size(), 10u);
  EXPECT_EQ(trace.jobs[0].submit_ns, 0);
}

TEST(Shockwave, BatchSizesFollowTheModesTables) {
  // GNS on LM with 10 doubles at epochs 11, 21 and 41, to at most 80.
  const std::vector<int> gns = BatchSizes(Adaptation::kGns, "LM", 10, 1, 50);
  EXPECT_EQ(gns[10], 10);
  EXPECT_EQ(gns[11], 20);
  EXPECT_EQ(gns[21], 40);
  EXPECT_EQ(gns[41], 80);
  // Accordion goes to the largest outside of critical regimes, not in the first 30 %.
  const std::vector<int> accordion = BatchSizes(Adaptation::kAccordion, "ResNet-18", 32, 1, 200);
  EXPECT_EQ(accordion[30], 32);
  EXPECT_EQ(accordion[61], 256);
  EXPECT_EQ(accordion[155], 32);
  EXPECT_EQ(accordion[160], 256);
  EXPECT_THAT(BatchSizes(Adaptation::kAccordion, "Transformer", 32, 1, 20), testing::Each(32));
  EXPECT_THAT(BatchSizes(Adaptation::kStatic, "LM", 10, 1, 20), testing::Each(10));
}

TEST(Shockwave, AdaptedDurationsAddUpTheEpochs) {
  const auto throughputs = ParseThroughputs(
      R"json({"v100": {"('LM (batch size 40)', 1)": {"null": 10}, "('LM (batch size 80)', 1)": {"null": 8},
                                                "('LM (batch size 5)', 1)": {"null": 0}}, "k80": {}})json");
  ASSERT_TRUE(throughputs.ok()) << throughputs.status();
  EXPECT_EQ(throughputs->size(), 2u);
  const int64_t first = StepsOfEpoch("LM", 40), second = StepsOfEpoch("LM", 80);
  const auto seconds = AdaptedSeconds(*throughputs, Adaptation::kGns, "LM", 40, 1, 15 * first);
  ASSERT_TRUE(seconds.ok());
  EXPECT_NEAR(*seconds, 11 * static_cast<double>(first) / 10 + 4 * static_cast<double>(second) / 8,
              1e-6);
  EXPECT_THAT(AdaptedSeconds(*throughputs, Adaptation::kStatic, "LM", 5, 1, 100).status().message(),
              testing::HasSubstr("LM with batch size 5 on 1 GPUs was not measured"));
  EXPECT_FALSE(ParseThroughputs("[]").ok());
  EXPECT_FALSE(ParseThroughputs("{\"v100\": {}}").ok());
}

}  // namespace
}  // namespace muster::sim
