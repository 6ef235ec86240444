// `muster tune`: the job of trials that it makes of a job that trains.
#include "cli/testing/fixture.h"

namespace muster {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::StartsWith;

constexpr char kJob[] =
    "name: llama\nqueue: research\nsecrets: [HF_TOKEN]\nenv: {A: b}\n"
    "tasks:\n"
    "- {name: prepare, run: prepare}\n"
    "- name: train\n"
    "  after: [prepare]\n"
    "  workers: {min: 2, max: 4}\n"
    "  resources: {gpus: 1, gpu_types: [cpu-slot], memory: 4GiB}\n"
    "  env: {C: d}\n"
    "  trainer: {init: /models/llama, data: DATA, max_length: 64, global_batch_size: 8, "
    "max_steps: 9, learning_rate: 1e-3}\n";

class TuneTest : public CliTest {
 protected:
  TuneTest() {
    jobs_.submit = [this](const pb::SubmitRequest& request, pb::SubmitResponse*) {
      submitted_.push_back(request.spec());
      return grpc::Status::OK;
    };
  }

  std::string WriteJob(const std::string& data) {
    return Write("llama.yaml", absl::StrReplaceAll(kJob, {{"DATA", data}}));
  }

  std::vector<pb::JobSpec> submitted_;
};

TEST_F(TuneTest, MakesAJobOfTrialsWithTheRanksOfTheGangOnOneHost) {
  ASSERT_EQ(Run({"tune", WriteJob("/data/tokens"), "--study", "/data/study", "--knobs",
                 "zero_stage,recompute", "--knob", "z_loss=0,1e-4", "--trials", "12", "--workers",
                 "3", "--history", "/data/speeds", "-d"}),
            0)
      << err_;
  ASSERT_EQ(submitted_.size(), 1u);
  const pb::JobSpec& spec = submitted_[0];
  EXPECT_EQ(spec.name(), "llama-tune");
  EXPECT_EQ(spec.queue(), "research");
  EXPECT_THAT(spec.secrets(), ElementsAre("HF_TOKEN"));
  EXPECT_EQ(spec.env().at("A"), "b");
  EXPECT_EQ(spec.independent_workers().min(), 1);
  EXPECT_EQ(spec.independent_workers().max(), 3);
  ASSERT_EQ(spec.tasks_size(), 1);
  const pb::TaskSpec& task = spec.tasks(0);
  EXPECT_EQ(task.env().at("C"), "d");
  EXPECT_EQ(task.resources().gpus_milli(), 2000) << "of two workers";
  EXPECT_EQ(task.resources().memory_bytes(), int64_t{8} << 30);
  EXPECT_EQ(task.processes_per_worker(), 1);
  const auto& words = task.run().exec();
  EXPECT_THAT(words, Contains("--study"));
  EXPECT_THAT(words, Contains("/data/study"));
  for (const char* word : {"--trials=12", "--ranks=2", "--knob=zero_stage", "--knob=recompute",
                           "--knob=z_loss=0,1e-4", "--history=/data/speeds", "--sku=cpu-slot"})
    EXPECT_THAT(words, Contains(word));
  EXPECT_THAT(words, Contains(StartsWith("--trainer={")));
  EXPECT_THAT(words, Not(Contains(StartsWith("--device")))) << "a stand-in is no GPU";
}

// A job that has trained on one host.
pb::Job Trained(uint64_t number) {
  pb::Job job = JobIn(pb::SUCCEEDED, pb::TASK_SUCCEEDED);
  job.set_number(number);
  pb::Task* task = job.mutable_tasks(0);
  task->mutable_attempts(0)->set_flavour("cpu-slot");
  task->mutable_attempts(0)->set_workers(2);
  task->mutable_progress()->set_attempt(1);
  task->mutable_progress()->set_step(100);
  task->mutable_progress()->set_tokens_per_s(5000);
  return job;
}

// The same as one that was asked for, which has its configuration, too.
pb::Job TrainedWith(uint64_t number, const std::string& trainer) {
  pb::Job job = Trained(number);
  job.mutable_spec()->mutable_tasks(0)->set_processes_per_worker(2);
  job.mutable_spec()->mutable_tasks(0)->set_trainer_json(trainer);
  return job;
}

std::string Told(uint64_t number, const std::string& trainer) {
  return absl::StrCat(R"({"job":")", number, R"(","ranks":4,"tokens_per_s":5000.0,"trainer":)",
                      trainer, "}");
}

// What `muster tune` tells of past jobs, where the queue has `listed` and each is asked for by its
// number.
class PastJobsTest : public TuneTest {
 protected:
  PastJobsTest() {
    jobs_.get = [this](const std::string& id, pb::Job* job) {
      asked_.push_back(id);
      if (const auto found = got_.find(id); found != got_.end()) {
        *job = found->second;
        return grpc::Status::OK;
      }
      return grpc::Status(grpc::NOT_FOUND, "there is no such job");
    };
  }

  void Add(pb::Job listed, const std::string& trainer) {
    got_[absl::StrCat(listed.number())] = TrainedWith(listed.number(), trainer);
    listed_.push_back(std::move(listed));
  }

  std::string PastJobs(const std::string& most = "") {
    jobs_.listing = listed_;
    submitted_.clear();
    std::vector<std::string> line = {
        "tune", WriteJob("/data/tokens"), "--study", "/s", "--knobs", "recompute", "-d"};
    if (!most.empty()) line.insert(line.end(), {"--past-jobs", most});
    EXPECT_EQ(Run(line), 0) << err_;
    if (submitted_.size() != 1) return "not submitted";
    EXPECT_THAT(submitted_[0].tasks(0).run().exec(), Not(Contains(StartsWith("--past-jobs"))))
        << "every account reads a process's words";
    const auto& env = submitted_[0].tasks(0).env();
    const auto found = env.find("TUNE_PAST_JOBS");
    return found == env.end() ? "" : found->second;
  }

  std::vector<pb::Job> listed_;
  std::map<std::string, pb::Job> got_;
  std::vector<std::string> asked_;
};

TEST_F(PastJobsTest, AreThoseOfTheQueueThatHaveTrainedAndHowFast) {
  Add(Trained(20), R"({"data": "/d", "export": "m", "init": "/a", "global_batch_size": 8})");
  Add(Trained(19), R"({"data": "/e", "init": "/a", "global_batch_size": 8})");  // once is enough
  Add(Trained(18), R"({"init": "/b"})");
  const std::string first = Told(20, R"({"global_batch_size":8,"init":"/a"})");
  EXPECT_EQ(PastJobs(), absl::StrCat("[", first, ",", Told(18, R"({"init":"/b"})"), "]"));
  EXPECT_EQ(jobs_.listed.queue(), "research");
  EXPECT_EQ(PastJobs("1"), absl::StrCat("[", first, "]"));
  EXPECT_EQ(PastJobs("0"), "");
}

TEST_F(PastJobsTest, AreNoneThatSayNothingOfASpeedOnOneHostOfTheFlavour) {
  const struct {
    const char* what;
    std::function<void(pb::Job*)> change;
  } kCases[] = {
      {"few steps", [](pb::Job* job) { job->mutable_tasks(0)->mutable_progress()->set_step(3); }},
      {"no speed",
       [](pb::Job* job) { job->mutable_tasks(0)->mutable_progress()->set_tokens_per_s(0); }},
      {"another flavour",
       [](pb::Job* job) { job->mutable_tasks(0)->mutable_attempts(0)->set_flavour("h100"); }},
      {"two hosts",
       [](pb::Job* job) { job->mutable_tasks(0)->mutable_attempts(0)->add_placements(); }},
      {"an array", [](pb::Job* job) { job->mutable_array()->set_members(3); }},
      {"of another attempt",
       [](pb::Job* job) { job->mutable_tasks(0)->mutable_progress()->set_attempt(2); }},
      {"it runs", [](pb::Job* job) { job->set_state(pb::RUNNING); }},
  };
  for (const auto& c : kCases) {
    listed_.clear();
    asked_.clear();
    pb::Job job = Trained(20);
    c.change(&job);
    Add(job, R"({"init": "/a"})");
    EXPECT_EQ(PastJobs(), "") << c.what;
    EXPECT_TRUE(asked_.empty()) << c.what;
  }
}

TEST_F(PastJobsTest, AreFoundBehindOthers) {
  listed_.push_back(Trained(300));  // forgotten since
  for (uint64_t number = 299; number > 40; --number) Add(Trained(number), "");
  Add(Trained(40), absl::StrCat(R"({"init": ")", std::string(30'000, 'x'), R"("})"));
  Add(Trained(39), R"({"init": "/a"})");
  EXPECT_EQ(PastJobs(), absl::StrCat("[", Told(39, R"({"init":"/a"})"), "]"))
      << "neither programs of others nor one that doesn't fit take its place";
  EXPECT_EQ(asked_.size(), 262u);
}

TEST_F(PastJobsTest, AreAskedForAgainWhileTheServerIsAway) {
  Add(Trained(20), R"({"init": "/a"})");
  const auto found = jobs_.get;
  int away = 2;
  jobs_.get = [&](const std::string& id, pb::Job* job) {
    return away-- > 0 ? grpc::Status(grpc::UNAVAILABLE, "starts") : found(id, job);
  };
  EXPECT_EQ(PastJobs(), absl::StrCat("[", Told(20, R"({"init":"/a"})"), "]"));
  Add(Trained(19), R"({"init": "/b"})");
  away = 1000;
  EXPECT_EQ(PastJobs(), "") << "a tuning works without";
  EXPECT_GT(away, 990) << "and doesn't wait for each of them";
}

TEST_F(TuneTest, RefusesWhatCanBeNoTrial) {
  const std::string good = WriteJob("/data/tokens");
  const std::string run = Write("run.yaml", "queue: research\nrun: python3 train.py\n");
  const struct {
    std::vector<std::string> line;
    std::string told;
  } kCases[] = {
      {{"tune", good, "--study", "study", "--knobs", "recompute"}, "--study study: write the abs"},
      {{"tune", good, "--study", "/s"},
       "--knobs or --knob is required: --knobs zero_stage,micro_batch, or --knob "
       "learning_rate=log:1e-5..1e-2"},
      {{"tune", good, "--knobs", "recompute"}, "--study"},
      {{"tune", "--study", "/s", "--knobs", "recompute"}, "file"},
      {{"tune", run, "--study", "/s", "--knobs", "recompute"}, "has no task with trainer:"},
      {{"tune", good, "--study", "/s", "--knobs", "recompute", "--set", "array=0-1"},
       "has an array or a sweep"},
  };
  for (const auto& c : kCases) {
    EXPECT_NE(Run(c.line), 0);
    EXPECT_THAT(err_, HasSubstr(c.told));
  }
  EXPECT_NE(Run({"tune", WriteJob("tokens"), "--study", "/s", "--knobs", "recompute"}), 0);
  EXPECT_THAT(err_, HasSubstr("trainer.data: tokens lies in the job's directory"));
  EXPECT_TRUE(submitted_.empty());
}

TEST_F(TuneTest, RefusesKnobsThatNoWorkerWouldTake) {
  clusters_.trainer_schema =
      R"({"type": "object", "additionalProperties": false, "properties": {
          "init": {"type": "string"}, "data": {"type": "string"}, "max_length": {"type": "integer"},
          "global_batch_size": {"type": "integer"}, "max_steps": {"type": "integer"},
          "learning_rate": {"type": "number", "exclusiveMinimum": 0},
          "micro_batch_size": {"type": "integer", "minimum": 1},
          "parallel": {"type": "object", "additionalProperties": false,
                       "properties": {"tp": {"type": "integer", "minimum": 1}}}}})";
  const std::string good = WriteJob("/data/tokens");
  const struct {
    const char *flag, *knob, *told;
  } kCases[] = {
      {"--knobs", "zero_stag", "--knobs zero_stag: no such name. Did you mean zero_stage?"},
      {"--knobs", "zero_stage=1", "--knobs zero_stage=1: takes names alone; with values write "},
      {"--knobs", "recompute,recompute", "recompute stands twice; keep one"},
      {"--knob", "learning_rate=3e-4..1e-4",
       "LOW must be below HIGH; write learning_rate=1e-4..3e-4"},
      {"--knob", "learning_rate=log:1e-3..1e-4",
       "LOW must be below HIGH; write learning_rate=log:1e-4..1e-3"},
      {"--knob", "learning_rate=2..2", "of one value write learning_rate=2"},
      {"--knob", "learning_rate=log:0..1", "of a range by logarithm LOW must be above 0"},
      {"--knob", "learning_rate=low..1", "LOW and HIGH of a range are numbers"},
      {"--knob", "learning_rate=log:3", "LOW and HIGH of a range are numbers"},
      {"--knob", "learning_rate=", "has no values; write learning_rate=VALUE,VALUE"},
      {"--knob", "learning_rate=1,,2", "one of its values is empty"},
      {"--knob", "learning_rate=1,1", "has 1 twice; take one out"},
      {"--knob", "learning_rate=fast,1", "trainer.learning_rate: must be a number"},
      {"--knob", "learning_rate=-1..1", "trainer.learning_rate: must be a number"},
      {"--knob", "learning_rat=1,2", "no such field. Did you mean learning_rate?"},
      {"--knob", "micro_batch=0,1", "trainer.micro_batch_size: must be a whole number"},
      {"--knob", "parallel.pt=1,2", "trainer.parallel.pt: no such field. Did you mean tp?"},
      {"--knob", "paralel.tp=1,2", "trainer.paralel: no such field. Did you mean parallel?"},
      {"--knob", "learning_rate", "write FIELD=VALUE,VALUE"},
      {"--knob", "recomput", "such as learning_rate=log:1e-5..1e-2. Did you mean recompute?"},
      {"--knob", "trainer.learning_rate=1,2",
       "is named as it stands below trainer: --knob learning_rate=1,2"},
      {"--knob", "trainer.x", "is named as it stands below trainer: --knob x"},
      {"--knob", "1=2", "write FIELD=VALUE,VALUE"},
  };
  for (const auto& c : kCases) {
    EXPECT_NE(Run({"tune", good, "--study", "/s", c.flag, c.knob, "-d"}), 0) << c.knob;
    EXPECT_THAT(err_, HasSubstr(c.told)) << c.knob;
  }
  EXPECT_TRUE(submitted_.empty());
  ASSERT_EQ(Run({"tune", good, "--study", "/s", "--knob", "learning_rate=log:1e-5..1e-2", "--knob",
                 "parallel.tp=1,2", "--knob", "micro_batch", "-d"}),
            0)
      << err_;
}

TEST_F(TuneTest, ShowsTheStudyOfAJob) {
  jobs_.got.mutable_spec()->mutable_tasks(0)->mutable_run()->add_exec("python3");
  EXPECT_NE(Run({"tune", "show", "7"}), 0);
  EXPECT_THAT(err_, HasSubstr("job 7 was not submitted by muster tune; name its study's"));
  const std::string study = home_;
  for (const std::string& word : {std::string("--study"), study})
    jobs_.got.mutable_spec()->mutable_tasks(0)->mutable_run()->add_exec(word);
  const std::string python = Write("python", "#!/bin/sh\necho \"$@\"\n");
  ASSERT_EQ(chmod(python.c_str(), 0755), 0);
  ASSERT_EQ(Run({"tune", "show", "7", "--python", python}), 0) << err_;
  EXPECT_EQ(out_, absl::StrCat("-m muster_tune show ", study, "\n"));
  Write("python", "#!/bin/sh\nexit 3\n");
  EXPECT_NE(Run({"tune", "show", "7", "--python", python}), 0);
  EXPECT_THAT(err_, HasSubstr("has no muster_tune: pip install Muster's python/ folder there"));
  EXPECT_NE(Run({"tune", "show", "/nowhere", "--python", python}), 0);
  EXPECT_THAT(err_, HasSubstr("is not there on this machine"));
}

}  // namespace
}  // namespace muster
