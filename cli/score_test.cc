// `muster score`: the job of independent workers that it makes.
#include <filesystem>

#include "cli/testing/fixture.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ScoreTest : public CliTest {
 protected:
  ScoreTest() {
    jobs_.submit = [this](const pb::SubmitRequest& request, pb::SubmitResponse*) {
      submitted_.push_back(request.spec());
      return grpc::Status::OK;
    };
  }

  std::vector<pb::JobSpec> submitted_;
};

TEST_F(ScoreTest, MakesAJobOfIndependentWorkers) {
  ASSERT_EQ(Run({"score",
                 "--gpus",
                 "2",
                 "--gpu-type",
                 "cpu-slot",
                 "/models/sft",
                 "/in/*.jsonl",
                 "/out",
                 "--workers",
                 "8",
                 "--engine",
                 "vllm",
                 "--column",
                 "text",
                 "--max-tokens",
                 "64",
                 "--env",
                 "A=b",
                 "--secret",
                 "HF_TOKEN",
                 "--set",
                 "max_restarts=50",
                 "-d",
                 "--",
                 "--temperature",
                 "0.7"}),
            0)
      << err_;
  ASSERT_EQ(submitted_.size(), 1u);
  const pb::JobSpec& spec = submitted_[0];
  EXPECT_EQ(spec.name(), "score");
  EXPECT_EQ(spec.queue(), "research");
  EXPECT_EQ(spec.env().at("A"), "b");
  EXPECT_THAT(spec.secrets(), ElementsAre("HF_TOKEN"));
  EXPECT_EQ(spec.independent_workers().min(), 1);
  EXPECT_EQ(spec.independent_workers().max(), 8);
  ASSERT_EQ(spec.tasks_size(), 1);
  const pb::TaskSpec& task = spec.tasks(0);
  EXPECT_EQ(task.resources().gpus_milli(), 2000);
  EXPECT_EQ(task.processes_per_worker(), 1) << "one engine for both GPUs";
  EXPECT_EQ(task.max_restarts(), 50);
  EXPECT_THAT(task.final_exit_codes(), ElementsAre(1, 2, 126, 127));
  EXPECT_THAT(err_, HasSubstr("MODEL /models/sft: no such directory on this machine"));
  EXPECT_THAT(task.run().exec(),
              ElementsAre("python3", "-m", "muster_score", "--input", "/in/*.jsonl", "--output",
                          "/out", "--model", "/models/sft", "--engine", "vllm", "--column", "text",
                          "--max-tokens", "64", "--temperature", "0.7"));
}

TEST_F(ScoreTest, AStoreTakesADirectoryOfWorkAndAnEngineOfOnesOwnNoModel) {
  ASSERT_EQ(Run({"score", "-", "s3://b/in/*.parquet", "s3://b/out/", "--work", "/shared/w",
                 "--engine", "fraud:Fraud", "--python", "/env/bin/python", "--queue", "research",
                 "--name", "fraud", "-d"}),
            0)
      << err_;
  ASSERT_EQ(submitted_.size(), 1u);
  EXPECT_EQ(submitted_[0].name(), "fraud");
  EXPECT_EQ(submitted_[0].independent_workers().max(), 16);
  EXPECT_EQ(submitted_[0].tasks(0).max_restarts(), 20);
  EXPECT_THAT(
      submitted_[0].tasks(0).run().exec(),
      ElementsAre("/env/bin/python", "-m", "muster_score", "--input", "s3://b/in/*.parquet",
                  "--output", "s3://b/out/", "--work", "/shared/w", "--engine", "fraud:Fraud"));
}

TEST_F(ScoreTest, RefusesPlacesThatWorkersDontFind) {
  const struct {
    std::vector<std::string> line;
    std::string told;
  } kCases[] = {
      {{"score", "/m", "in/*.jsonl", "/out"}, "IN in/*.jsonl: write the absolute path"},
      {{"score", "/m", "/in/*.jsonl", "out"}, "OUT out: write the absolute path"},
      {{"score", ".", "/in/*.jsonl", "/out"}, "MODEL .: write the absolute path"},
      {{"score", "s3://b/sft", "/in/*.jsonl", "/out"},
       "MODEL s3://b/sft: models in object stores aren't read; copy it to a directory"},
      {{"score", "/m", "/in/*.jsonl", "s3://b/out"}, "with --work"},
      {{"score", "/m", "/in/*.jsonl", "s3://b/out", "--work", "w"}, "with --work"},
      {{"score", "/m", "/in/*.jsonl", "/out", "--work", "/w"}, "--work /w: is for an OUT in an"},
      {{"score", "/m", "/in/1.jsonl", "/in/2.jsonl", "/out"}, "write IN in quotes"},
      {{"score", "/m", "/in/*.jsonl"}, "out"},
      {{"score", "-", "/in/*.jsonl", "/out"}, "MODEL -: is for an engine of your own"},
      {{"score", "-", "/in/*.jsonl", "/out", "--engine", "vllm"}, "MODEL -: is for an engine"},
      {{"score", "/m", "/in/*.jsonl", "/out", "--set", "max_restarts=-5"}, "max_restarts"},
  };
  for (const auto& c : kCases) {
    EXPECT_NE(Run(c.line), 0);
    EXPECT_THAT(err_, HasSubstr(c.told));
  }
  EXPECT_THAT(submitted_, IsEmpty());
}

TEST_F(ScoreTest, RefusesAModelThatTheOnlyHostHasNot) {
  clusters_.hosts.add_hosts()->mutable_inventory()->set_address("127.0.0.1");
  std::filesystem::create_directory(home_ + "/empty");
  std::filesystem::create_directory(home_ + "/model");
  const std::string config = Write("model/config.json", "{}");
  const struct {
    std::string model, engine, told;  // told: "" = it is taken
  } kCases[] = {
      {home_ + "/none", "transformers", "/none: there is no such directory"},
      {home_ + "/none", "vllm", "/none: there is no such directory"},
      {home_ + "/empty", "transformers", "/empty: has no config.json"},
      {config, "transformers", "config.json: is a file; write its directory"},
      {home_ + "/model", "transformers", ""},
      {home_ + "/empty", "vllm", ""},
      {home_ + "/none", "own:Engine", ""},
      {"org/name", "transformers", ""},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(absl::StrCat(c.model, " ", c.engine));
    submitted_.clear();
    const int code = Run({"score", "-d", "--engine", c.engine, c.model, config, "/out"});
    EXPECT_EQ(code == 0, c.told.empty()) << err_;
    EXPECT_THAT(absl::StrReplaceAll(err_, {{"\n  ", " "}}), HasSubstr(c.told));
    EXPECT_EQ(submitted_.size(), c.told.empty() ? 1u : 0u);
  }
  EXPECT_EQ(Run({"score", "-d", "--set", "image=/data/images/pytorch", home_ + "/none",
                 "/in/*.jsonl", "/out"}),
            0)
      << "it may be in the image: " << err_;
}

TEST_F(ScoreTest, RefusesAPatternThatFindsNothingOnTheOnlyHost) {
  const std::string model = home_ + "/model", none = home_ + "/none*.jsonl";
  std::filesystem::create_directory(model);
  const std::string there = Write("model/config.json", "{}");
  EXPECT_EQ(Run({"score", "-d", model, none, "/out"}), 0) << "other hosts may have it: " << err_;
  clusters_.hosts.add_hosts()->mutable_inventory()->set_address("127.0.0.1");
  for (const std::string& in : {home_ + "/mod*/*.json", there, home_ + "/**/none"})
    EXPECT_EQ(Run({"score", "-d", model, in, "/out"}), 0) << in << ": " << err_;
  submitted_.clear();
  EXPECT_NE(Run({"score", "-d", model, none, "/out"}), 0);
  EXPECT_THAT(absl::StrReplaceAll(err_, {{"\n  ", " "}}),
              HasSubstr("none*.jsonl: no file is there"));
  EXPECT_THAT(submitted_, IsEmpty());
}

}  // namespace
}  // namespace muster
