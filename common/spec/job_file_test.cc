#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/spec/blocks.h"
#include "common/spec/spec.h"
#include "common/spec/testing/test_schema.h"
#include "common/spec/trainer_schema.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

SpecContext Here() {
  SpecContext context;
  context.trainer_schema_json = kTestTrainerSchema;
  context.flavours = {{"h100-80g", {"phx"}}, {"a100-80g", {"dal"}}};
  context.clusters = {"phx", "dal"};
  context.queues = {"research/nlp", "prod"};
  context.storages = {"lustre-phx"};
  return context;
}

// "LINE:COLUMN PATH: MESSAGE", one a line; a file's problem without a path has "-".
std::string Summary(const std::vector<Problem>& problems) {
  std::string out;
  for (const Problem& p : problems) {
    absl::StrAppend(&out, out.empty() ? "" : "\n", p.line, ":", p.column, " ",
                    p.path.empty() ? "-" : p.path, ": ", p.message);
  }
  return out;
}

std::string Problems(std::string_view text, const SpecContext& context) {
  pb::JobSpec spec;
  std::vector<Problem> problems;
  const bool good = ParseJobFile(text, "job.yaml", context, &spec, &problems);
  EXPECT_EQ(good, problems.empty());
  return Summary(problems);
}

struct BadCase {
  const char* name;
  const char* text;
  const char* want;
};

class BadJobFile : public testing::TestWithParam<BadCase> {};

TEST_P(BadJobFile, IsRefusedWithPlaceAndRemedy) {
  EXPECT_EQ(Problems(GetParam().text, Here()), GetParam().want);
}

const BadCase kBadCases[] = {
#include "common/spec/testing/bad_jobs.inc"
};

INSTANTIATE_TEST_SUITE_P(JobFile, BadJobFile, testing::ValuesIn(kBadCases),
                         [](const testing::TestParamInfo<BadCase>& info) {
                           return std::string(info.param.name);
                         });

TEST(JobFile, CapsHoldBeforeTheParserCanRunAway) {
  const std::string deep_flow = "run: " + std::string(200, '[') + std::string(200, ']');
  EXPECT_THAT(Problems(deep_flow, {}), testing::HasSubstr("1:37 -: nested deeper than 32 levels"));
  EXPECT_NE(Problems("run: " + std::string(200'000, '['), {}), "");
  std::string deep_block;
  for (int i = 0; i < 400; ++i) deep_block += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  EXPECT_THAT(Problems(deep_block, {}), testing::HasSubstr("nested deeper than 32 levels"));
  std::string dashes = "run:\n  ";
  for (int i = 0; i < 50'000; ++i) dashes += "- ";
  EXPECT_THAT(Problems(dashes, {}), testing::HasSubstr("nested deeper than 32 levels"));
  EXPECT_THAT(Problems(std::string(300'000, '#'), {}),
              testing::HasSubstr("0:0 -: larger than 256 KiB"));
  std::string many = "run: [";
  for (int i = 0; i < 20'000; ++i) many += "a,";
  EXPECT_THAT(Problems(many + "a]", {}), testing::HasSubstr("more than 10000 values"));
  for (const char* unit :
       {"{", "? ", "{a: ", "&a ", "!a ", "*a ", "'", "\"", "|\n", "a: ", "[{", "- a: "}) {
    std::string text = "a: ";
    while (text.size() < 100'000) text += unit;
    EXPECT_NE(Problems(text, {}), "") << unit;
  }
}

std::string ReadWhole(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

constexpr char kElastic[] = R"(name: vit-pretrain
queue: research/vision
priority: 40
labels: {project: vit, owner: alice}
clusters: [phx, dal]
after: [17, 18_3]
after_any: [19]
workers: {min: 4, max: 16}
resources:
  gpus: 4
  gpu_types: [h100-80g, a100-80g]
  memory: 400GiB
topology: {preferred: rack, required: cluster}
env: {NCCL_DEBUG: WARN}
run: [.venv/bin/python, train.py, --batch-tokens, "2097152"]
checkpoint: {storage: s3-shared, interval: 10m, keep: 3, resume_from: [/old/step-2, "s3://a/step-1"]}
input: {storage: s3-shared, size: 120GiB}
max_restarts: 3
retry_faults_for: 2h
final_exit_codes: [2, 127]
hang_timeout: 15m
grace: 5m
time_limit: 3d
)";

constexpr char kPipeline[] = R"(name: wiki-sft
queue: research/nlp
clusters: [phx, dal]
env: {HF_HUB_CACHE: /mnt/lustre/hf}
tasks:
  - name: prepare
    resources: {cpus: 32, memory: 128GiB}
    run: |
      muster-trainer prepare --input wiki/*.parquet \
        --output $MUSTER_JOB_DIR/tokens
  - name: train
    after: [prepare]
    workers: 2
    resources: {gpus: 8, gpu_types: [h100-80g]}
    time_limit: 12h
    trainer:
      init: /models/Llama-3.1-8B
      data: tokens
      max_length: 8192
      global_batch_size: 128
      max_steps: 3e3
      learning_rate: 2e-5
      export: model
  - name: evaluate
    after: [train]
    resources: {gpus: 0.5, gpu_types: [a100-80g, h100-80g]}
    workdir: /opt/eval
    env: {LEVEL: 3}
    setup: source /etc/profile
    run: python eval.py --model $MUSTER_JOB_DIR/model
    max_restarts: 0
)";

TEST(JobFile, AnElasticJobIsReadWhole) {
  pb::JobSpec spec;
  std::vector<Problem> problems;
  ASSERT_TRUE(ParseJobFile(kElastic, "x.yaml", {}, &spec, &problems)) << Summary(problems);
  const pb::TaskSpec& task = spec.tasks(0);
  EXPECT_EQ(spec.name(), "vit-pretrain");
  EXPECT_EQ(spec.priority(), 40);
  EXPECT_EQ(spec.labels().at("owner"), "alice");
  EXPECT_THAT(spec.after(), testing::ElementsAre("17", "18_3"));
  EXPECT_THAT(spec.after_any(), testing::ElementsAre("19"));
  EXPECT_EQ(task.after_size(), 0) << "at the top they are jobs";
  EXPECT_EQ(spec.env().at("NCCL_DEBUG"), "WARN");
  EXPECT_EQ(task.workers().min(), 4);
  EXPECT_EQ(task.workers().max(), 16);
  EXPECT_EQ(task.resources().gpus_milli(), 4000);
  EXPECT_EQ(task.resources().memory_bytes(), int64_t{400} << 30);
  EXPECT_EQ(task.topology().preferred(), pb::RACK);
  EXPECT_THAT(task.run().exec(),
              testing::ElementsAre(".venv/bin/python", "train.py", "--batch-tokens", "2097152"));
  EXPECT_EQ(task.checkpoint().interval_ns(), 10 * kMinute);
  ASSERT_EQ(task.checkpoint().resume_from_size(), 2);
  EXPECT_EQ(task.checkpoint().resume_from(1), "s3://a/step-1");
  EXPECT_EQ(task.input().storage(), "s3-shared");
  EXPECT_EQ(task.input().size_bytes(), int64_t{120} << 30);
  EXPECT_EQ(task.time_limit_ns(), 3 * kDay);
  EXPECT_EQ(task.grace_ns(), 5 * kMinute);
  EXPECT_THAT(task.final_exit_codes(), testing::ElementsAre(2, 127));
}

TEST(JobFile, BlocksOfRanksAreReadWrittenAndGiveTheStep) {
  const struct {
    const char* workers;
    const char* blocks;
    int32_t multiple_of;
    RankUnits units;
  } kCases[] = {
      {"8", "[{gpus: 4, required: host}]", 2, {2, 2, 2}},
      {"8", "[{gpus: 2, required: rack}]", 0, {1, 1, 1}},
      {"8", "[{gpus: 1, required: host}]", 0, {1, 1, 1}},
      {"8", "[{gpus: 4, required: island}]", 2, {2, 2, 2, 4}},
      {"8", "[{gpus: 1, required: island}, {gpus: 4, required: host}]", 2, {2, 2, 2, 1}},
      {"{min: 4, max: 8}", "[{gpus: 4, required: rack}, {gpus: 8, preferred: rack}]", 4, {1, 2, 2}},
      {"{min: 8, max: 16, multiple_of: 8}",
       "[{gpus: 4, preferred: host, required: block}]",
       8,
       {1, 1, 2}},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.blocks);
    const std::string text = absl::StrCat("run: ls\nworkers: ", c.workers,
                                          "\nresources: {gpus: 2, gpu_types: [h100-80g]}\n",
                                          "topology: {blocks: ", c.blocks, "}\n");
    pb::JobSpec spec, again;
    std::vector<Problem> problems;
    ASSERT_TRUE(ParseJobFile(text, "x.yaml", {}, &spec, &problems)) << Summary(problems);
    EXPECT_EQ(RankUnitsOf(spec.tasks(0), 0), c.units);
    ASSERT_TRUE(ParseJobFile(SpecToYaml(spec), "x.yaml", {}, &again, &problems))
        << Summary(problems);
    EXPECT_EQ(again.ShortDebugString(), spec.ShortDebugString());
    ApplyDefaults(&spec, SpecDefaults{});
    EXPECT_EQ(spec.tasks(0).workers().multiple_of(), c.multiple_of);
  }
}

TEST(JobFile, TheTrainersMapBecomesCanonicalJsonTypedByItsSchema) {
  pb::JobSpec spec;
  std::vector<Problem> problems;
  SpecContext context;
  context.trainer_schema_json = kTestTrainerSchema;
  ASSERT_TRUE(ParseJobFile(kPipeline, "x.yaml", context, &spec, &problems)) << Summary(problems);
  EXPECT_EQ(
      spec.tasks(1).trainer_json(),
      R"({"data":"tokens","export":"model","global_batch_size":128,"init":"/models/Llama-3.1-8B","learning_rate":2e-05,)"
      R"("max_length":8192,"max_steps":3000})");
  EXPECT_EQ(spec.tasks(2).resources().gpus_milli(), 500);
  EXPECT_EQ(spec.tasks(2).env().at("LEVEL"), "3");
  const char* numbers_as_text =
      "trainer: {model: {hidden_size: 6.4e1, head_dim: null, hidden_act: null, "
      "quantization_config: null, bos_token_id: [1, 2]}, data: 007, max_length: 1, "
      "global_batch_size: 1, max_steps: 1, learning_rate: 1}\n";
  ASSERT_TRUE(ParseJobFile(numbers_as_text, "x.yaml", context, &spec, &problems))
      << Summary(problems);
  EXPECT_THAT(spec.tasks(0).trainer_json(), testing::HasSubstr(R"("data":"007")"));
  EXPECT_THAT(spec.tasks(0).trainer_json(), testing::HasSubstr(R"("hidden_size":64,)"));
}

TEST(CheckAgainstSchema, EveryOneOfOfAllOfHolds) {
  const nlohmann::json schema = nlohmann::json::parse(
      R"({"type": "object", "oneOf": [{"required": ["init"]}, {"required": ["model"]}],
    "allOf": [{"oneOf": [{"required": ["data"]}, {"required": ["mixture"]}]}]})");
  const std::pair<const char*, const char*> cases[] = {
      {R"({"init": 1, "data": 1})", ""},
      {R"({"init": 1})", "trainer: give data or mixture\n"},
      {R"({"model": 1, "data": 1, "mixture": 1})",
       "trainer.mixture: data and mixture exclude each other; keep one\n"},
      {R"({})", "trainer: give init or model\ntrainer: give data or mixture\n"},
  };
  for (const auto& [value, want] : cases) {
    std::string said;
    CheckAgainstSchema(nlohmann::json::parse(value), schema, "trainer",
                       [&](const std::string& path, const std::string& message, Document::Where) {
                         said += path + ": " + message + "\n";
                       });
    EXPECT_EQ(said, want) << value;
  }
}

TEST(JobFile, SettingsArePutOverTheFile) {
  const std::string_view file =
      "queue: prod\ntasks:\n  - {name: prepare, run: [make]}\n  - {name: train, after: [prepare], "
      "trainer: {max_steps: 5}}\n";
  const auto read = [&](const std::vector<std::string>& settings, pb::JobSpec* spec) {
    std::vector<Problem> problems;
    SpecContext context = Here();
    context.trainer_schema_json.clear();
    ParseJobFile(file, "job.yaml", context, spec, &problems, settings);
    return Summary(problems);
  };
  pb::JobSpec spec;
  EXPECT_EQ(read({"priority=7", "tasks[train].trainer.max_steps=9", "tasks[0].run=[make, -k]",
                  "labels.sweep=\"1\"", "tasks[1].grace=5s"},
                 &spec),
            "");
  EXPECT_EQ(spec.priority(), 7);
  EXPECT_EQ(spec.tasks(1).trainer_json(), "{\"max_steps\":9}");
  EXPECT_THAT(spec.tasks(0).run().exec(), testing::ElementsAre("make", "-k"));
  EXPECT_EQ(spec.labels().at("sweep"), "1");
  EXPECT_EQ(spec.tasks(1).grace_ns(), 5'000'000'000);
  const struct {
    const char* setting;
    const char* want;
  } kCases[] = {
      {"priority",
       "0:0 --set priority: write FIELD=VALUE, such as trainer.max_steps=100 or "
       "tasks[train].workers=4"},
      {"=3",
       "0:0 --set =3: write FIELD=VALUE, such as trainer.max_steps=100 or tasks[train].workers=4"},
      {"a..b=3",
       "0:0 --set a..b=3: write FIELD=VALUE, such as trainer.max_steps=100 or "
       "tasks[train].workers=4"},
      {"tasks[eval].workers=2",
       "0:0 --set tasks[eval].workers: the file has no element [eval]. There are: prepare, train"},
      {"tasks[trian].workers=2",
       "0:0 --set tasks[trian].workers: the file has no element [trian]. Did you mean train? There "
       "are: prepare, train"},
      {"queue.x=2", "0:0 --set queue.x: what stands before x has no fields in the file"},
      {"priority=200", "0:0 priority: must be a whole number from 0 to 100; got 200"},
      {"nothing=1", "0:0 nothing: no such field."},
      {"trainer.max_steps=9",
       "0:0 trainer: belongs to a task: with tasks: every task has its own; write --set "
       "tasks[train].trainer.max_steps=9"},
      {"grace=5s",
       "0:0 grace: belongs to a task: with tasks: every task has its own; write --set "
       "tasks[prepare].grace=5s; others: train"},
      {"priority=[", "0:0 --set priority: not valid YAML: end of sequence flow not found"},
  };
  for (const auto& c : kCases) EXPECT_EQ(read({c.setting}, &spec), c.want);
}

TEST(JobFile, TheFilesStemIsTheDefaultName) {
  for (const auto& [file, name] :
       {std::pair("dir/sft 8b.v2.yaml", "sft-8b.v2"), std::pair("-", "job"),
        std::pair("/x/.yaml", "yaml"), std::pair("é.yaml", "job")}) {
    pb::JobSpec spec;
    std::vector<Problem> problems;
    EXPECT_TRUE(ParseJobFile("run: ls\n", file, {}, &spec, &problems)) << Summary(problems);
    EXPECT_EQ(spec.name(), name) << file;
  }
}

TEST(JobFile, YamlOfASpecReadsBackAsTheSameSpec) {
  const char* awkward = R"(name: job
env: {EMPTY: "", TRUTH: "true", NUMBER: "1e5", QUOTE: "a \"b\"\\", LINES: "a\n\n b\nc", NULLISH: "~", HASH: "a #b", ÜBER_NOT: x}
run: "  indented\nsecond\n\n"
time_limit: 1d1h1m1s
grace: 1500ms
resources: {memory: 1000B, cpus: 0.125}
track: {tensorboard: "true", mlflow: "https://mlflow.example.org:8080/x", wandb: team/p.1}
notify: {webhook: team-room, mail: ann@example.org, on: [failed, cancelled]}
)";
  std::string fixed(awkward);
  fixed = absl::StrReplaceAll(fixed, {{", ÜBER_NOT: x", ""}});
  for (const std::string& text : {std::string(kElastic), std::string(kPipeline), fixed}) {
    pb::JobSpec spec, again, full, full_again;
    std::vector<Problem> problems;
    ASSERT_TRUE(ParseJobFile(text, "x.yaml", {}, &spec, &problems)) << Summary(problems);
    const std::string yaml = SpecToYaml(spec);
    ASSERT_TRUE(ParseJobFile(yaml, "x.yaml", {}, &again, &problems)) << yaml << Summary(problems);
    EXPECT_EQ(spec.DebugString(), again.DebugString()) << yaml;
    full = spec;
    ApplyDefaults(&full);
    ASSERT_TRUE(ParseJobFile(SpecToYaml(full), "x.yaml", {}, &full_again, &problems))
        << SpecToYaml(full) << Summary(problems);
    EXPECT_EQ(full.DebugString(), full_again.DebugString()) << SpecToYaml(full);
  }
}

// Replaces, removes, doubles and moves pieces of good files. Whatever is still accepted must
// survive the way to YAML and back.
TEST(JobFile, MutatedFilesAreRefusedOrReadBackAsTheSameSpec) {
  constexpr uint32_t kSeed = 20'261'121;
  std::mt19937 random(kSeed);
  const std::vector<std::string> pieces = {"{",  "}", "[", "]",  ": ",    "- ", "\n",      "\"",
                                           "'",  "|", ">", "#",  "&a ",   "*a", "!x ",     "? ",
                                           "\t", ",", "~", "-1", "1e999", "\\", "\xc3\xa9"};
  for (int round = 0; round < 4'000; ++round) {
    std::string text = round % 2 == 0 ? kElastic : kPipeline;
    for (uint32_t edits = random() % 4 + 1; edits > 0; --edits) {
      const size_t at = random() % text.size(),
                   size = std::min<size_t>(random() % 12, text.size() - at);
      switch (random() % 3) {
        case 0:
          text.erase(at, size);
          break;
        case 1:
          text.insert(at, pieces[random() % pieces.size()]);
          break;
        default:
          text.insert(random() % text.size(), text.substr(at, size));
      }
    }
    pb::JobSpec spec, again;
    std::vector<Problem> problems;
    if (!ParseJobFile(text, "x.yaml", {}, &spec, &problems)) {
      ASSERT_FALSE(problems.empty());
      ASSERT_FALSE(FormatProblems(problems, "x.yaml").empty());
      continue;
    }
    ASSERT_TRUE(CheckSpec(spec).empty()) << "seed " << kSeed << " round " << round << "\n" << text;
    ASSERT_TRUE(ParseJobFile(SpecToYaml(spec), "x.yaml", {}, &again, &problems))
        << "seed " << kSeed << " round " << round << "\n"
        << SpecToYaml(spec) << Summary(problems);
    ASSERT_EQ(spec.DebugString(), again.DebugString())
        << "seed " << kSeed << " round " << round << "\n"
        << text << SpecToYaml(spec);
  }
}

TEST(JobFile, RankVariablesAreAskedForByATask) {
  for (const bool asked : {true, false}) {
    pb::JobSpec spec, again;
    std::vector<Problem> problems;
    const std::string text =
        absl::StrCat("rank_variables: ", asked ? "true" : "false", "\nrun: a\n");
    ASSERT_TRUE(ParseJobFile(text, "x.yaml", {}, &spec, &problems)) << Summary(problems);
    EXPECT_EQ(spec.tasks(0).rank_variables(), asked);
    ASSERT_TRUE(ParseJobFile(SpecToYaml(spec), "x.yaml", {}, &again, &problems))
        << Summary(problems);
    EXPECT_EQ(again.tasks(0).rank_variables(), asked) << SpecToYaml(spec);
  }
}

TEST(JobFile, DefaultsAreFilledOnceAndPassTheChecks) {
  pb::JobSpec spec;
  std::vector<Problem> problems;
  ASSERT_TRUE(ParseJobFile(kPipeline, "x.yaml", {}, &spec, &problems)) << Summary(problems);
  spec.mutable_tasks(2)->set_retry_faults_for_ns(0);
  ApplyDefaults(&spec, {.max_restarts = 5, .time_limit_ns = kDay});
  const pb::JobSpec once = spec;
  ApplyDefaults(&spec, {.max_restarts = 7});
  EXPECT_EQ(once.DebugString(), spec.DebugString());
  EXPECT_EQ(spec.tasks(0).resources().cpus_milli(), 32'000);
  EXPECT_EQ(spec.tasks(0).max_restarts(), 5);
  EXPECT_EQ(spec.tasks(0).time_limit_ns(), kDay);
  EXPECT_EQ(spec.tasks(0).retry_faults_for_ns(), 30 * kMinute);
  EXPECT_EQ(spec.tasks(2).retry_faults_for_ns(), 0);
  EXPECT_EQ(spec.tasks(0).when_unreachable(), pb::WAIT);
  EXPECT_EQ(spec.tasks(0).workers().max(), 1);
  EXPECT_EQ(spec.tasks(1).processes_per_worker(), 8);
  EXPECT_EQ(spec.tasks(1).when_unreachable(), pb::REPLACE);
  EXPECT_EQ(spec.tasks(2).processes_per_worker(), 1);
  EXPECT_EQ(spec.tasks(2).max_restarts(), 0);
  EXPECT_EQ(spec.tasks(1).checkpoint().keep(), 2);
  EXPECT_EQ(CheckSpec(spec).size(), 0u);
}

// What is wrong with a job file of ours.
std::vector<Problem> ProblemsOfFile(const std::filesystem::path& path) {
  pb::JobSpec spec;
  std::vector<Problem> problems;
  SpecContext context;
  context.trainer_schema_json = kTestTrainerSchema;
  context.default_queue = "default";  // the examples run on muster up, which has one queue
  ParseJobFile(ReadWhole(path), path.string(), context, &spec, &problems);
  return problems;
}

TEST(JobFile, OurExamplesAreRead) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("deploy/examples")) {
    if (entry.path().extension() != ".yaml") continue;
    ++files;
    EXPECT_EQ(Summary(ProblemsOfFile(entry.path())), "") << entry.path();
  }
  EXPECT_GE(files, 3);
}

TEST(JobFile, TheSharedExamplesAreReadOrRefusedForWhatIsNotYetOnly) {
  if (!std::filesystem::exists("../shared/examples")) GTEST_SKIP() << "needs ../shared/examples";
  for (const char* name : {"sft.yaml", "elastic.yaml", "pipeline.yaml"}) {
    const std::filesystem::path path = std::filesystem::path("../shared/examples") / name;
    ASSERT_TRUE(std::filesystem::exists(path)) << path;
    for (const Problem& problem : ProblemsOfFile(path))
      EXPECT_THAT(problem.message, testing::HasSubstr("not yet:")) << Summary({problem});
  }
}

TEST(CheckSpec, ProtosObeyTheSameRulesAsFiles) {
  const auto found = [](const pb::JobSpec& spec) {
    std::string out;
    for (const FieldProblem& p : CheckSpec(spec, Here()))
      absl::StrAppend(&out, out.empty() ? "" : "\n", p.path, ": ", p.message);
    return out;
  };
  pb::JobSpec spec;
  EXPECT_EQ(found(spec), "tasks: is empty; a job has at least one task");
  spec.set_priority(101);
  pb::TaskSpec* task = spec.add_tasks();
  task->mutable_run()->set_shell("ls");
  task->mutable_workers()->set_min(8);
  task->mutable_workers()->set_max(4);
  task->set_grace_ns(-1);
  (*task->mutable_env())["LD_PRELOAD"] = "x";
  EXPECT_EQ(found(spec),
            "priority: must be a whole number from 0 to 100; got 101\n"
            "workers.max: 4 is below min 8\n"
            "env.LD_PRELOAD: may not be set: Muster or the loader decides it\n"
            "grace: may not be negative");
}

TEST(JobFile, AWordMayStandInPlaceOfATrainersMap) {
  SpecContext context;
  context.trainer_schema_json = kTestTrainerSchema;
  const auto read = [&](const std::string& parallel) {
    pb::JobSpec spec;
    std::vector<Problem> problems;
    const bool good = ParseJobFile(
        absl::StrCat(
            "workers: {min: 2, max: 8}\n"
            "trainer: {init: a, data: b, max_length: 1, global_batch_size: 1, max_steps: 1, "
            "learning_rate: 1, parallel: ",
            parallel, "}\n"),
        "x.yaml", context, &spec, &problems);
    return good ? spec.tasks(0).trainer_json() : Summary(problems);
  };
  EXPECT_THAT(read("auto"), testing::HasSubstr(R"("parallel":"auto")"));
  EXPECT_THAT(read("automatic"), testing::HasSubstr("must be a map, or auto; got \"automatic\""));
  EXPECT_THAT(read("{tp: 1}"), testing::HasSubstr(R"("parallel":{"tp":1})"));
  EXPECT_THAT(read("{tp: 4}"), testing::HasSubstr("tp: 4 must divide the ranks of a gang"))
      << "what is named has to go with every size";
}

TEST(JobFile, WorkersInMultiplesAreWrittenBack) {
  pb::JobSpec spec, again;
  std::vector<Problem> problems;
  const std::string text = "workers: {min: 2, max: 8, multiple_of: 2}\n";
  ASSERT_TRUE(ParseJobFile(text + "run: ls\n", "x.yaml", SpecContext(), &spec, &problems))
      << Summary(problems);
  EXPECT_EQ(spec.tasks(0).workers().multiple_of(), 2);
  EXPECT_THAT(SpecToYaml(spec), testing::HasSubstr(text));
  ASSERT_TRUE(ParseJobFile("workers: {min: 4, max: 4, multiple_of: 4}\nrun: ls\n", "x.yaml",
                           SpecContext(), &again, &problems));
  EXPECT_THAT(SpecToYaml(again), testing::HasSubstr("workers: {min: 4, max: 4, multiple_of: 4}"));
  EXPECT_EQ(CheckSpec(spec).size() + CheckSpec(again).size(), 0u);
}

TEST(JobFile, SlicesThatItsWorkersCantHaveAreRefusedAtTheirPlace) {
  pb::JobSpec spec;
  std::vector<Problem> problems;
  const char* text =
      "workers: 3\n"
      "trainer:\n"
      "  model: {num_key_value_heads: 8}\n"
      "  parallel: {tp: 2}\n";
  ASSERT_FALSE(ParseJobFile(text, "x.yaml", SpecContext(), &spec, &problems));
  EXPECT_EQ(Summary(problems),
            "4:18 trainer.parallel.tp: 2 doesn't divide the 3 ranks (workers x "
            "processes_per_worker); use 1, or 2 or 4 ranks");
}

TEST(CheckSpec, WorkIsBoundedForAnyProto) {
  pb::JobSpec spec;
  for (int i = 0; i < 100'000; ++i) spec.add_tasks();
  EXPECT_EQ(CheckSpec(spec).size(), 1u);
  spec.clear_tasks();
  spec.add_tasks()->set_trainer_json(std::string(100'000, '['));
  EXPECT_EQ(CheckSpec(spec).size(), 1u);
}

TEST(PlaceProblems, TheDaemonsProblemsGetTheirPlacesInTheFile) {
  const std::vector<Problem> placed =
      PlaceProblems(kPipeline, "x.yaml",
                    {{"tasks[2].resources.gpu_types[1]", "no such flavour"},
                     {"tasks[0].workdir", "does not exist"},
                     {"queue", "no such queue"}});
  EXPECT_EQ(Summary(placed),
            "2:8 queue: no such queue\n6:5 tasks[0].workdir: does not exist\n26:50 "
            "tasks[2].resources.gpu_types[1]: no such flavour");
}

TEST(FormatProblems, LooksAsProductSays) {
  const char* text = R"(name: sft-8b
queue: research/nlp
workers: 2
resources: {gpu: 8, gpu_types: [H100]}
time_limit: 6h
processes_per_worker: 8
trainer:
  init: /models/Llama-3.1-8B
  per_device_train_batch_size: 4
  gradient_accumulation_steps: 2
)";
  SpecContext context = Here();
  context.trainer_schema_json = absl::StrReplaceAll(
      kTestTrainerSchema, {{"\"required\": [\"data\", \"max_length\", \"global_batch_size\", "
                            "\"max_steps\", \"learning_rate\"],",
                            ""}});
  pb::JobSpec spec;
  std::vector<Problem> problems;
  ASSERT_FALSE(ParseJobFile(text, "sft.yaml", context, &spec, &problems));
  ProblemFormat format;
  format.footer = JobFooter(problems, "sft.yaml");
  EXPECT_EQ(FormatProblems(problems, "sft.yaml", format),
            R"(sft.yaml: 4 problems, nothing was submitted
 4:13  resources.gpu: no such field. Did you mean gpus?
       4 | resources: {gpu: 8, gpu_types: [H100]}
         |             ^^^
 4:33  resources.gpu_types[0]: no flavour "H100" here. There are a100-80g (dal) and h100-80g (phx).
 9:3   trainer.per_device_train_batch_size: the batch is global, so that it survives a resize.
       For 4 a device, 16 GPUs, 2 accumulations:  global_batch_size: 128
 10:3  trainer.gradient_accumulation_steps: follows from global_batch_size, micro_batch_size and the number of ranks; leave it out
       10 |   gradient_accumulation_steps: 2
          |   ^^^^^^^^^^^^^^^^^^^^^^^^^^^
All fields: muster fields resources     Check offline: muster validate --offline sft.yaml
)");
}

TEST(FormatProblems, LongLinesAreCutAndControlCharactersShownAsQuestionMarks) {
  Problem problem;
  problem.line = 1;
  problem.column = 501;
  problem.caret_width = 900;
  problem.path = "env.A\x1b[31m";
  problem.message = "bad";
  problem.source_line = std::string(500, 'a') + "\xc3\xa4" + std::string(500, 'b');
  const std::string shown = FormatProblems({problem}, "x.yaml");
  EXPECT_EQ(shown.find('\x1b'), std::string::npos);
  EXPECT_THAT(shown, testing::HasSubstr("env.A?[31m: bad"));
  EXPECT_THAT(shown, testing::HasSubstr("1 | ..." + std::string(36, 'a') + "\xc3\xa4" +
                                        std::string(73, 'b') + "...\n"));
  EXPECT_THAT(FormatProblems({problem}, "x.yaml", {.color = true}),
              testing::HasSubstr("\033[31m^^^"));
}

TEST(FormatProblems, BytesThatAreNotUtf8AreShownAsQuestionMarks) {
  Problem problem;
  problem.line = 1;
  problem.column = 8;
  problem.message = "bad";
  problem.source_line = "name: a\xff b\xe2\x82 c\xc2\x9b d\xc3\xa4";
  EXPECT_THAT(FormatProblems({problem}, "x.yaml"),
              testing::HasSubstr("1 | name: a? b?? c? d\xc3\xa4\n"));
}

TEST(DidYouMean, FindsTheNearestNameOnly) {
  const std::vector<std::string> names = {"gpus", "gpu_types", "memory", "learning_rate"};
  EXPECT_EQ(DidYouMean("gpu", names), " Did you mean gpus?");
  EXPECT_EQ(DidYouMean("learningRate", names), " Did you mean learning_rate?");
  EXPECT_EQ(DidYouMean("gpu-types", names), " Did you mean gpu_types?");
  EXPECT_EQ(DidYouMean("mmeory", names), " Did you mean memory?") << "neighbours swapped";
  EXPECT_EQ(DidYouMean("H100-80", {"a100-40g", "h100-80g"}), " Did you mean h100-80g?")
      << "'-' in both";
  EXPECT_EQ(DidYouMean("zzz", names), "");
  EXPECT_EQ(DidYouMean(std::string(100'000, 'g'), names), "");
}

TEST(DidYouMean, OneEditIsOneLetterOrTwoNeighbours) {
  for (const char* word : {"rat", "ratee", "Rote", "rtae"})
    EXPECT_TRUE(IsOneEditFrom(word, "rate")) << word;
  for (const char* word : {"rate", "RATE", "ra", "rates_", "tare", ""})
    EXPECT_FALSE(IsOneEditFrom(word, "rate")) << word;
}

}  // namespace
}  // namespace muster
