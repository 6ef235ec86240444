// What the commands that look and ask say: logs, queues, completion, explain, simulate, top.
#include <fcntl.h>
#include <unistd.h>

#include "cli/testing/fixture.h"
#include "common/spec/testing/test_schema.h"

namespace muster {
namespace {

using Tunnel = grpc::ServerReaderWriter<pb::TunnelOutput, pb::TunnelInput>;

void SayBegun(Tunnel* tunnel) {
  pb::TunnelOutput output;
  output.set_begun(true);
  tunnel->Write(output);
}

TEST_F(CliTest, AProfileIsTakenAgainWhereItsConnectionIsLost) {
  std::atomic<int> calls{0};
  jobs_.exec = [&](Tunnel* tunnel) {
    pb::TunnelInput start;
    tunnel->Read(&start);
    if (calls++ == 0) return grpc::Status(grpc::UNAVAILABLE, "gone");
    SayBegun(tunnel);
    pb::TunnelOutput output;
    output.set_out(R"([{"pid": 7, "os_thread_id": 7, "thread_name": "MainThread", "active": true,)"
                   R"( "frames": []}])");
    tunnel->Write(output);
    output.mutable_end()->set_exit_code(0);
    tunnel->Write(output);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"profile", "7", "--stacks"}), 0) << err_;
  EXPECT_EQ(calls, 2);
  EXPECT_THAT(out_, HasSubstr("MainThread (7), runs"));
  EXPECT_EQ(err_,
            "muster: rank 0: the connection to musterd was lost (gone): it was started anew, or "
            "the network failed; it is looked at again, for a minute\n");
}

TEST_F(CliTest, ATrainersProfileIsAskedForOnce) {
  std::atomic<int> calls{0};
  jobs_.exec = [&](Tunnel* tunnel) {
    pb::TunnelInput start;
    tunnel->Read(&start);
    ++calls;
    SayBegun(tunnel);
    return grpc::Status(grpc::UNAVAILABLE, "gone");
  };
  jobs_.got.mutable_spec()->mutable_tasks(0)->set_trainer_json("{}");
  EXPECT_EQ(Run({"profile", "7"}), kExitUnreachable);
  EXPECT_EQ(calls, 1) << "a second request would take away the first one's";
  EXPECT_EQ(err_,
            "muster: the connection to musterd was lost (gone): it was started anew, or the "
            "network failed. What ranks have recorded stays in profile/ of the job's directory; "
            "ask again in a moment: muster profile 7\n");
}

TEST_F(CliTest, WhatAProgramOrAnInputCannotDoIsRefusedBeforeItIsAsked) {
  jobs_.exec = [&](Tunnel*) { return grpc::Status(grpc::INTERNAL, "nobody was to ask"); };
  EXPECT_EQ(Run({"profile", "7", "--steps", "5"}), 2);
  EXPECT_THAT(err_, HasSubstr("does not run muster-trainer, whose steps alone are known; --for"));
  const int kept = ::dup(STDIN_FILENO), null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, STDIN_FILENO);
  EXPECT_EQ(Run({"exec", "7", "-it", "--", "bash"}), 2);
  ::dup2(kept, STDIN_FILENO);
  ::close(kept);
  ::close(null);
  EXPECT_THAT(err_, HasSubstr("-it wants a terminal, and standard input is none"));
}

TEST_F(CliTest, StorageIsToldByWhatRunsBesideTheJob) {
  pb::ExecStart asked;
  jobs_.exec = [&](Tunnel* tunnel) {
    pb::TunnelInput start;
    tunnel->Read(&start);
    asked = start.exec();
    SayBegun(tunnel);
    pb::TunnelOutput output;
    output.set_out("room 4096 1048576 262144\nfiles 20\n");
    tunnel->Write(output);
    output.mutable_end()->set_exit_code(0);
    tunnel->Write(output);
    return grpc::Status::OK;
  };
  jobs_.got.set_owner("ann");
  jobs_.got.set_directory("/data/ann/jobs/7");
  EXPECT_EQ(Run({"storage", "7"}), 0) << err_;
  EXPECT_EQ(asked.attempt(), 1) << "of another attempt it would tell another host's";
  EXPECT_EQ(out_,
            "directory         /data/ann/jobs/7\n"
            "files in it       20KiB\n"
            "free there        1GiB of 4GiB\n"
            "quota of ann      not told there\n");
  EXPECT_EQ(Run({"storage", "7", "-o", "jsonl"}), 0) << err_;
  EXPECT_EQ(out_,
            "{\"job\":\"7\",\"owner\":\"ann\",\"directory\":\"/data/ann/jobs/7\","
            "\"files_bytes\":20480,\"free_bytes\":1073741824,\"total_bytes\":4294967296}\n");
  EXPECT_EQ(Run({"storage", "7", "-o", "yaml"}), 0) << err_;
  EXPECT_EQ(out_,
            "job: \"7\"\nowner: \"ann\"\ndirectory: \"/data/ann/jobs/7\"\nfiles_bytes: 20480\n"
            "free_bytes: 1073741824\ntotal_bytes: 4294967296\n");
  EXPECT_EQ(Run({"storage", "7", "-o", "name"}), 0) << err_;
  EXPECT_EQ(out_, "7\n");
}

TEST_F(CliTest, TheStorageOfAnEndedJobIsLookedAtWhereItLies) {
  jobs_.got = JobIn(pb::SUCCEEDED, pb::TASK_SUCCEEDED);
  EXPECT_EQ(Run({"storage", "7"}), 2);
  EXPECT_THAT(err_, HasSubstr("job 7 has ended: it is not running"));
  EXPECT_THAT(err_, HasSubstr("What it reported: muster show 7"));
  jobs_.got.set_directory("/data/ann/jobs/7");
  EXPECT_EQ(Run({"storage", "7"}), 2);
  EXPECT_THAT(err_, HasSubstr("Where its storage is mounted: du -sh /data/ann/jobs/7; df -h "
                              "/data/ann/jobs/7"));
}

TEST_F(CliTest, WhatDoesNotRunIsNotAskedAndIsSaidWhereToLook) {
  const struct {
    pb::JobState state;
    pb::TaskState task;
    const char* look;
  } kCases[] = {
      {pb::WAITING, pb::TASK_WAITING, "; why: muster explain 7\n"},
      {pb::SUCCEEDED, pb::TASK_SUCCEEDED, "; how it ended: muster show 7\n"},
  };
  for (const auto& c : kCases) {
    jobs_.got = JobIn(c.state, c.task);
    EXPECT_EQ(Run({"profile", "7"}), 2);
    EXPECT_THAT(err_, HasSubstr("job 7 is not running: it is its program that is asked"));
    EXPECT_THAT(err_, HasSubstr(c.look));
    EXPECT_EQ(Run({"profile", "7", "--task", "main"}), 2);
    EXPECT_THAT(err_, HasSubstr(absl::StrCat("task main of job 7 is not running", c.look)));
  }
}

TEST_F(CliTest, AProfileOfWhatHasEndedIsNotTakenAgain) {
  std::atomic<int> calls{0};
  jobs_.exec = [&](Tunnel* tunnel) {
    pb::TunnelInput start;
    tunnel->Read(&start);
    ++calls;
    return grpc::Status(grpc::FAILED_PRECONDITION, "the attempt has ended");
  };
  EXPECT_EQ(Run({"profile", "7", "--stacks"}), 2);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(err_, "muster: the attempt has ended\n");
}

TEST_F(CliTest, ACommandThatIsCutOffSaysByWhatAndWhatToDo) {
  grpc::Status status(grpc::UNAVAILABLE, "Socket closed");
  jobs_.exec = [&](Tunnel* tunnel) {
    pb::TunnelInput start;
    tunnel->Read(&start);
    SayBegun(tunnel);
    return status;
  };
  EXPECT_EQ(Run({"exec", "7", "--", "true"}), 125);
  EXPECT_THAT(err_, HasSubstr("cut off, and is ended: the connection to musterd was lost (Socket "
                              "closed): it was started anew, or the network failed\n"));
  EXPECT_THAT(err_, HasSubstr("run the command again"));
  status = grpc::Status(grpc::FAILED_PRECONDITION, "the attempt has ended");
  EXPECT_EQ(Run({"exec", "7", "--", "true"}), 125);
  EXPECT_EQ(err_, "muster: the command was cut off, and is ended: the attempt has ended\n");
}

TEST_F(CliTest, WhatAHostSaysOfACommandSteersNoTerminal) {
  bool ends = true;
  jobs_.exec = [&](Tunnel* tunnel) {
    pb::TunnelInput start;
    tunnel->Read(&start);
    if (!ends) return grpc::Status(grpc::FAILED_PRECONDITION, "wild\x1b[2J\nword");
    pb::TunnelOutput output;
    output.mutable_end()->set_error("wild\x1b[2J\nword");
    tunnel->Write(output);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"exec", "7", "--", "true"}), 125);
  EXPECT_EQ(err_, "muster: wild?[2J word\n");
  ends = false;
  EXPECT_EQ(Run({"exec", "7", "--", "true"}), 2);
  EXPECT_EQ(err_, "muster: wild?[2J word\n");
}

TEST_F(CliTest, ACheckpointIsAwaitedWhileTheServerIsAway) {
  std::atomic<int> asked{0}, looked{0};
  jobs_.exec = [&](Tunnel* tunnel) {
    pb::TunnelInput start;
    tunnel->Read(&start);
    EXPECT_EQ(start.exec().attempt(), 1);
    if (asked++ == 0) return grpc::Status(grpc::UNAVAILABLE, "gone");
    SayBegun(tunnel);
    pb::TunnelOutput output;
    output.mutable_end()->set_exit_code(0);
    tunnel->Write(output);
    return grpc::Status::OK;
  };
  pb::Job saved = jobs_.got;
  pb::Checkpoint* checkpoint = saved.mutable_tasks(0)->add_checkpoints();
  checkpoint->set_attempt(1);
  checkpoint->set_at_ns(1);
  checkpoint->set_step(20);
  checkpoint->set_path("/data/step-20");
  jobs_.get = [&](const std::string&, pb::Job* job) {
    *job = ++looked > 4 ? saved : jobs_.got;
    return looked == 3 || looked == 4 ? grpc::Status(grpc::UNAVAILABLE, "Socket closed")
                                      : grpc::Status::OK;
  };
  EXPECT_EQ(Run({"checkpoints", "now", "7"}), 0) << err_;
  EXPECT_EQ(out_, "Job 7 has saved step 20: /data/step-20\n");
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(looked, 5);
  EXPECT_THAT(err_, HasSubstr("the connection to musterd was lost (gone): it was started anew, or "
                              "the network failed; it is asked again, for a minute\n"));
  EXPECT_THAT(err_, HasSubstr("no contact with the server; the job goes on without it"));
}

TEST_F(CliTest, LogsAreTheBytesAsTheyWere) {
  jobs_.logs = {"no newline at the end", "\x01 and on"};
  EXPECT_EQ(Run({"logs", "7"}), 0);
  EXPECT_EQ(out_, "no newline at the end\x01 and on");
}

TEST_F(CliTest, LogsWithoutOutputSaySoWhereNoneCanCome) {
  EXPECT_EQ(Run({"logs", "7"}), 0);
  EXPECT_EQ(err_, "") << "it runs: some may come";
  jobs_.got = JobIn(pb::SUCCEEDED, pb::TASK_SUCCEEDED);
  EXPECT_EQ(Run({"logs", "7"}), 0);
  EXPECT_EQ(out_, "");
  EXPECT_EQ(
      err_,
      "muster: job 7 left no output: its processes wrote none, or its hosts no longer keep it\n");
  EXPECT_EQ(Run({"logs", "7", "--reports"}), 0);
  EXPECT_EQ(err_, "muster: job 7 has no track in its file, so what it reports isn't kept\n");
  jobs_.got.mutable_spec()->mutable_track()->set_tensorboard("true");
  EXPECT_EQ(Run({"logs", "7", "--reports"}), 0);
  EXPECT_EQ(
      err_,
      "muster: job 7 left no reports: its rank 0 sent none, or its host no longer keeps them\n");
  jobs_.got.mutable_tasks(0)->clear_attempts();
  EXPECT_EQ(Run({"logs", "7"}), 0);
  EXPECT_EQ(err_, "muster: job 7 never ran, so it left no output\n");
}

TEST_F(CliTest, TheQueuesAreExportedAsApplyReadsThem) {
  queues_.nested = true;
  EXPECT_EQ(Run({"queue", "export"}), 0) << err_;
  const std::string path = Write("queues.yaml", out_);
  EXPECT_EQ(Run({"queue", "export", "-o", "name"}), 0);
  EXPECT_EQ(Run({"queue", "apply", path}), 0) << err_;
  pb::QueueTree tree;
  pb::QueueSpec* research = tree.add_queues();
  research->set_name("research");
  (*research->mutable_quota())["h100"].set_guarantee_milli(4000);
  pb::QueueSpec* leaf = research->add_queues();
  leaf->set_name("nlp");
  (*leaf->mutable_quota())["h100"].set_guarantee_milli(2000);
  EXPECT_EQ(queues_.applied.DebugString(), tree.DebugString());
}

TEST_F(CliTest, VersionAndFieldsTakeAnOutputFormat) {
  EXPECT_EQ(Run({"version", "-o", "json"}), 0);
  EXPECT_THAT(out_, ::testing::MatchesRegex("\\{\"version\": \"[^\"]+\"\\}\n"));
  EXPECT_EQ(Run({"fields", "resources.gpus", "-o", "json"}), 0);
  EXPECT_THAT(out_, HasSubstr("\"path\": \"resources.gpus\""));
  EXPECT_EQ(Run({"fields", "nosuch", "-o", "json"}), kExitNotFound) << err_;
}

TEST_F(CliTest, FieldsAndValidateAskTheTrainerHereWhereNoServerKnowsOne) {
  const std::string job = Write("job.yaml",
                                "name: x\nqueue: research\nresources: {gpus: 1, gpu_types: "
                                "[cpu-slot]}\ntrainer: {max_step: 3}\n");
  environment_ = {"MUSTER_BIN_DIR=" + home_};
  for (const bool serves : {true, false}) {  // the one that serves here knows no trainer yet
    if (!serves) StopServing();
    ASSERT_TRUE(!std::ifstream(home_ + "/muster-trainer"));
    EXPECT_EQ(Run({"fields", "trainer.max_steps"}), kExitUnreachable);
    EXPECT_THAT(err_, HasSubstr("no muster-trainer lies beside muster"));
    EXPECT_EQ(Run({"validate", job}), 0) << err_;
    EXPECT_THAT(out_, HasSubstr("trainer: unchecked, as what it takes isn't known: --schema FILE, "
                                "which `muster-trainer --schema` prints"));

    const std::string schema = Write("schema.json", kTestTrainerSchema);
    const std::string trainer = Write(
        "muster-trainer", absl::StrCat("#!/bin/sh\n[ \"$*\" = --schema ] && cat ", schema, "\n"));
    ASSERT_EQ(chmod(trainer.c_str(), 0755), 0);
    EXPECT_EQ(Run({"fields", "trainer.max_steps"}), 0) << err_;
    EXPECT_THAT(out_, HasSubstr("trainer.max_steps  (whole number)"));
    EXPECT_EQ(Run({"fields", "trainer"}), 0) << err_;
    EXPECT_THAT(out_, HasSubstr("trainer.model"));
    EXPECT_EQ(Run({"fields", "trainer.max_step"}), kExitNotFound);
    EXPECT_THAT(err_, HasSubstr("Did you mean trainer.max_steps?  All: muster fields trainer"));
    EXPECT_EQ(Run({"validate", job}), 2);
    EXPECT_THAT(err_, HasSubstr("trainer.max_step: no such field. Did you mean max_steps?"));
    const std::string whole =
        "trainer={init: i, data: d, max_length: 1, global_batch_size: 1, max_steps: 3, "
        "learning_rate: 1e-3}";
    EXPECT_EQ(Run({"validate", "--offline", job, "--set", whole}), 0) << err_;
    EXPECT_THAT(out_, HasSubstr("trainer: as the muster-trainer beside muster takes it"));
    EXPECT_EQ(unlink(trainer.c_str()), 0);
  }
}

TEST_F(CliTest, AQueueWithQueuesOfItsOwnIsNamedWithThem) {
  queues_.nested = true;
  EXPECT_EQ(Run({"submit", Write("job.yaml", "queue: research\nrun: \"true\"\n"), "-y"}), 2);
  EXPECT_THAT(err_, HasSubstr("\"research\" has queues of its own and takes no jobs itself; name "
                              "one of them: research/nlp"));
}

TEST_F(CliTest, CompletesCommandsFlagsTheirValuesAndTheServersNames) {
  const struct {
    std::vector<std::string> words;
    const char* lines;
  } kCases[] = {
      {{"jo"}, "jobs\tList unfinished jobs"},
      {{"host", "dr"}, "drain\t"},
      {{"top", "--b"}, "--by\tqueue, cluster, user or job\n"},
      {{"top", "--by", ""}, "queue\ncluster\nuser\njob\n"},
      {{"jobs", "-o", "js"}, "json\njsonl\n"},
      {{"show", ""}, "10\n9\n"},
      {{"cancel", "10", "9"}, "9\n"},
      {{"show", "10", ""}, ""},
      {{"run", "--queue", "re"}, "research\n"},
      {{"submit", "--after", "9"}, "9\n"},
      {{"run", "--gpu-type", ""}, "cpu-slot\n"},
      {{"--server", server_name_, "cluster", "show", ""}, "lab\n"},
      {{"submit", ""}, ":files\n"},
      {{"run", "--", "pyt"}, ":files\n"},
      {{"completion", "z"}, "zsh\n"},
      {{"nonsense", "--by", ""}, ""},
  };
  for (const auto& c : kCases) {
    std::vector<std::string> arguments = {"__complete"};
    arguments.insert(arguments.end(), c.words.begin(), c.words.end());
    EXPECT_EQ(Run(arguments), 0);
    if (*c.lines == '\0') {
      EXPECT_EQ(out_, "") << absl::StrJoin(c.words, " ");
    } else {
      EXPECT_EQ(out_.substr(0, std::string(c.lines).size()), c.lines)
          << absl::StrJoin(c.words, " ");
    }
    EXPECT_EQ(err_, "");
  }
  StopServing();
  EXPECT_EQ(Run({"__complete", "show", ""}), 0);
  EXPECT_EQ(out_ + err_, "") << "no server, no names, no noise";
}

TEST_F(CliTest, TheBashScriptAsksAndShowsTheWords) {
  const std::string script =
      absl::StrCat("PATH=$(dirname ", MUSTER_BINARY, "):$PATH; export MUSTER_SERVER=", server_name_,
                   "; source <(muster completion bash); COMP_WORDS=(muster top --by ''); "
                   "COMP_CWORD=3; _muster; echo \"${COMPREPLY[*]}\" > ",
                   home_, "/words; complete -p muster >> ", home_, "/words");
  ASSERT_EQ(
      system(absl::StrCat("bash -c '", absl::StrReplaceAll(script, {{"'", "'\\''"}}), "'").c_str()),
      0);
  std::ifstream words(home_ + "/words");
  std::string line;
  std::getline(words, line);
  EXPECT_EQ(line, "queue cluster user job");
  std::getline(words, line);
  EXPECT_EQ(line, "complete -F _muster muster");
  for (const char* shell : {"zsh", "fish"}) {
    EXPECT_EQ(Run({"completion", shell}), 0);
    EXPECT_THAT(out_, HasSubstr("muster __complete"));
  }
}

TEST_F(CliTest, WhoCallsAJobByAWordIsToldThatJobsGoByNumber) {
  const char kHow[] = "Jobs go by number, such as 7; members of an array as 7_3";
  const auto none = [](const std::string& id) {
    return grpc::Status(grpc::NOT_FOUND, absl::StrCat("there is no job \"", id, "\""));
  };
  jobs_.get = [&](const std::string& id, pb::Job*) { return none(id); };
  jobs_.explain = [&](const pb::ExplainRequest& request, pb::ExplainResponse*) {
    return none(request.id());
  };
  for (const char* command : {"explain", "show", "rerun"}) {
    EXPECT_EQ(Run({command, "four"}), kExitNotFound);
    EXPECT_THAT(err_, HasSubstr(absl::StrCat("there is no job \"four\". ", kHow))) << command;
    EXPECT_EQ(Run({command, "4_1"}), kExitNotFound);
    EXPECT_THAT(err_, Not(HasSubstr("by number"))) << command;
  }
}

TEST_F(CliTest, ExplainAsksForItsBudgetAndItsJsonIsTheWholeAnswer) {
  int64_t budget_ms = -1;
  jobs_.explain = [&](const pb::ExplainRequest& request, pb::ExplainResponse* response) {
    budget_ms = request.budget_ms();
    if (request.id() == "9") return grpc::Status(grpc::NOT_FOUND, "there is no job \"9\"");
    *response->mutable_job() = JobIn(pb::WAITING, pb::TASK_WAITING);
    response->add_why()->set_text("is entitled, and waits");
    response->add_relaxations()->set_change("workers: 6");
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"explain", "7"}), 0) << err_;
  EXPECT_EQ(budget_ms, 0);
  EXPECT_THAT(out_, HasSubstr("is entitled, and waits"));
  EXPECT_THAT(out_, HasSubstr("workers: 6"));
  EXPECT_EQ(Run({"explain", "7", "--budget", "5s", "-o", "json"}), 0);
  EXPECT_EQ(budget_ms, 5000);
  EXPECT_THAT(out_, HasSubstr("\"relaxations\": ["));
  EXPECT_EQ(Run({"explain", "9"}), 3);
  EXPECT_EQ(Run({"explain", "7", "--budget", "1h"}), 2);
  EXPECT_THAT(err_, HasSubstr("--budget 1h: wants a time from 1ms to 20s"));
}

TEST_F(CliTest, SimulateSendsJobsDrainsAndQuotas) {
  pb::SimulateRequest seen;
  grpc::Status answer;
  jobs_.simulate = [&](const pb::SimulateRequest& request, pb::SimulateResponse* response) {
    seen = request;
    response->set_complete(true);
    response->add_effects()->set_stopped_ns(1);
    return answer;
  };
  const std::string file = Write("hello.yaml", kHello);
  EXPECT_EQ(Run({"simulate", file, "--drain", "lab/h1", "--drain", "lab/h2", "--quota",
                 "research:cpu-slot=2", "--at", "10m", "--for", "2h"}),
            0)
      << err_;
  ASSERT_EQ(seen.jobs_size(), 1);
  EXPECT_EQ(seen.jobs(0).name(), "hello");
  EXPECT_THAT(seen.drain(), ::testing::ElementsAre("lab/h1", "lab/h2"));
  EXPECT_TRUE(seen.change_queues());
  EXPECT_EQ(seen.queues().queues(0).quota().at("cpu-slot").guarantee_milli(), 2000);
  EXPECT_EQ(seen.delay_ns(), int64_t{600} * 1'000'000'000);
  EXPECT_EQ(seen.horizon_ns(), int64_t{7200} * 1'000'000'000);
  EXPECT_EQ(Run({"simulate", file, "--detailed-exitcode"}), 7);
  EXPECT_FALSE(seen.change_queues());
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"simulate"},
                                             {"simulate", "--quota", "nonsense"},
                                             {"simulate", "--quota", "nowhere:cpu-slot=1"},
                                             {"simulate", "--drain", "h", "--at", "soon"}}) {
    EXPECT_EQ(Run(wrong), 2) << absl::StrJoin(wrong, " ");
  }
  answer = BadRequest("jobs[0].resources.gpu_types[0]", "no such flavour");
  EXPECT_EQ(Run({"simulate", file}), 2);
  EXPECT_THAT(err_, HasSubstr("2:34"));
  EXPECT_THAT(err_, HasSubstr("nothing was simulated"));
}

TEST_F(CliTest, SimulateOfATraceIsTheMusterSimBesideIt) {
  StopServing();
  environment_ = {"MUSTER_BIN_DIR=" + home_};
  const std::string csv = Write("day.csv", "");
  EXPECT_EQ(Run({"simulate", csv, "--cluster", "c.yaml"}), 2);
  EXPECT_THAT(err_, HasSubstr("muster-sim has to lie beside muster"));

  const std::string sim = Write("muster-sim", "#!/bin/sh\necho \"$@\"; exit 1\n");
  ASSERT_EQ(chmod(sim.c_str(), 0755), 0);
  const std::string cells(11, '\t');
  for (const std::string& trace :
       {csv, Write("day.trace", ""), Write("day.yaml.gz", ""), Write("packed", "\x1f\x8b\x08"),
        Write("ours", "# a day\n\ngpus,submit_s,duration_s\n1,0,5\n"),
        Write("openb", "name,cpu_milli,creation_time\r\n"),
        Write("gavel", "ResNet" + cells + "0\n"),
        Write("generator.yaml", "# Kueue\ncohorts:\n- count: 1\n")}) {
    EXPECT_EQ(Run({"simulate", trace}), 1) << trace << " muster-sim's own exit code";
    EXPECT_EQ(out_, trace + " -o table\n");
    EXPECT_EQ(err_, "");
  }
  EXPECT_EQ(Run({"-o", "json", "simulate", "--queues", "q.yaml", "--strict", csv, "--policies",
                 "muster,drf", "--cluster=c.yaml", "--compare"}),
            1);
  EXPECT_EQ(out_, absl::StrCat(
                      "compare ", csv,
                      " --cluster c.yaml --policy muster,drf --strict --queues q.yaml -o json\n"));

  const std::string job = Write("hello.yaml", kHello);
  EXPECT_EQ(Run({"simulate", job}), kExitUnreachable) << "a job file is for the server";
  const struct {
    std::vector<std::string> words;
    const char* says;
  } kWrong[] = {
      {{csv, job}, "is simulated alone"},
      {{csv, "--drain", "lab/h1"}, "--drain is about the running system"},
      {{csv, "--detailed-exitcode"}, "--detailed-exitcode is about the running system"},
      {{csv, "--columns", "WAIT"}, "--columns"},
      {{job, "--cluster", "c.yaml"}, "--cluster goes with a trace, and"},
      {{"--compare"}, "--compare goes with a trace, and no file is given"},
      {{csv, "--polcy", "drf"}, "Did you mean --policy?"},
  };
  for (const auto& wrong : kWrong) {
    std::vector<std::string> words = {"simulate"};
    words.insert(words.end(), wrong.words.begin(), wrong.words.end());
    EXPECT_EQ(Run(words), 2) << wrong.says;
    EXPECT_THAT(err_, HasSubstr(wrong.says));
    EXPECT_EQ(out_, "");
  }
  EXPECT_EQ(Run({"__complete", "simulate", csv, "--cluster", ""}), 0);
  EXPECT_EQ(out_, ":files\n");
}

TEST_F(CliTest, TopIsOneLookInAPipeAndLiveOnATerminal) {
  EXPECT_EQ(Run({"top"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("1 of 0 hosts up"));
  EXPECT_THAT(out_, HasSubstr("QUEUE"));
  EXPECT_EQ(Run({"top", "--by", "job", "-o", "name"}), 0);
  EXPECT_EQ(out_, "7\n");
  Process live(Process::OnTerminal(), {"top", "--by", "cluster"}, home_, server_name_);
  ASSERT_TRUE(live.ReadUntil("CLUSTER"));
  live.out.clear();
  ASSERT_TRUE(live.ReadUntil("CLUSTER")) << "it looks again";
  live.Type("\x03");
  EXPECT_EQ(live.Wait(), 130);
  EXPECT_EQ(Run({"ledger", "--by", "user"}), 0);
  EXPECT_THAT(out_, HasSubstr("ann"));
}

TEST_F(CliTest, DeclaredDevicesAreMarkedInClusterList) {
  EXPECT_EQ(Run({"cluster", "list"}), 0);
  EXPECT_THAT(out_, HasSubstr("cpu-slot (declared)"));
}

TEST_F(CliTest, ContextsNameTheServerAndUnknownOnesAreRefused) {
  ASSERT_EQ(system(("mkdir -p " + home_ + "/.config/muster").c_str()), 0);
  Write(".config/muster/config.yaml",
        "current_context: demo\ncontexts:\n  demo: {server: \"unix:///nowhere/demo.sock\"}\n");
  Process process({"jobs"}, home_, "");
  EXPECT_EQ(process.Wait(), 6);
  EXPECT_THAT(process.err, HasSubstr("unix:///nowhere/demo.sock"));
  EXPECT_EQ(Run({"jobs"}), 0) << "MUSTER_SERVER is more than current_context";
  EXPECT_EQ(Run({"jobs", "--context", "demo"}), 6) << "a flag is more than a variable";
  EXPECT_EQ(Run({"jobs", "--context", "other"}), 2);
  EXPECT_THAT(err_, HasSubstr("no context \"other\""));
}

}  // namespace
}  // namespace muster
