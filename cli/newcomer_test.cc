// What people who were new to it stumbled over: each command says what they needed to know.
#include <sys/file.h>

#include "cli/testing/fixture.h"
#include "cli/up/lock.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/units.h"

namespace muster {
namespace {

TEST_F(CliTest, AWrongOptionBeforeTheCommandIsNamedNotTheDashes) {
  EXPECT_EQ(Run({"run", "--cpu=1", "--", "hostname"}), 2);
  EXPECT_THAT(err_, HasSubstr("no such option: --cpu=1. Did you mean --cpus?"));
}

TEST_F(CliTest, ASandboxThatWasNotBuiltIsToldHow) {
  environment_ = {"MUSTER_BIN_DIR=" + home_};
  EXPECT_EQ(Run({"sandbox"}), 2);
  EXPECT_THAT(err_, HasSubstr("deploy/build.sh muster-sandbox"));
  EXPECT_THAT(err_, Not(HasSubstr("muster up")));
}

TEST_F(CliTest, RunSaysThatPathAndDirectoryDontComeAlongAndHowTheyWould) {
  pb::Job failed = JobIn(pb::FAILED, pb::TASK_FAILED);
  failed.mutable_tasks(0)->mutable_attempts(0)->set_cause(pb::LAUNCH_FAILED);
  jobs_.watch = Watching({failed});
  ASSERT_EQ(mkdir((home_ + "/venv").c_str(), 0700), 0);
  const std::string python = Write("venv/python-of-mine", "#!/bin/sh\n");
  ASSERT_EQ(chmod(python.c_str(), 0700), 0);
  Write("train.py", "print()\n");
  const std::string there = absl::StrCat("cd ", home_, "; export PATH=", home_, "/venv:$PATH; ");
  EXPECT_EQ(Shell(there + "muster run -- python-of-mine train.py > /dev/null"), 1);
  EXPECT_THAT(err_, HasSubstr("python-of-mine is " + python +
                              " here, but this shell's PATH doesn't come along: the job won't "
                              "find it"));
  EXPECT_THAT(err_, HasSubstr("train.py lies in this directory, which doesn't come along"));
  const std::string remedy = "muster run --env PATH -C . -- python-of-mine train.py\n";
  EXPECT_THAT(err_, HasSubstr("To take it along: " + remedy));
  EXPECT_THAT(err_, HasSubstr("With what it missed: " + remedy)) << "and once more at its end";
  EXPECT_EQ(Shell(there + "muster run --env PATH -C . -- python-of-mine train.py "
                          "> /dev/null"),
            1);
  EXPECT_THAT(err_, Not(HasSubstr("come along")));
  EXPECT_EQ(Shell(there + "muster run -- echo hello > /dev/null"), 1);
  EXPECT_THAT(err_, Not(HasSubstr("come along")));
}

TEST_F(CliTest, RunSaysThatStandardInputDoesntComeAlong) {
  jobs_.watch = Watching({JobIn(pb::SUCCEEDED, pb::TASK_SUCCEEDED)});
  const std::string rows = Write("rows.txt", "1\n");
  EXPECT_EQ(Shell("muster run -- cat > /dev/null < " + rows), 0);
  EXPECT_THAT(err_, HasSubstr("Standard input doesn't come along"));
  EXPECT_EQ(Shell("while read line; do muster run -d -- echo $line > /dev/null; done < " + rows),
            0);
  EXPECT_THAT(err_, Not(HasSubstr("Standard input"))) << "it is the loop's";
  EXPECT_EQ(Shell("muster run -- cat > /dev/null < /dev/null"), 0);
  EXPECT_THAT(err_, Not(HasSubstr("Standard input")));
}

TEST_F(CliTest, WhatAFlagGaveIsWrongThereAndNotInTheFile) {
  jobs_.submit = [](const pb::SubmitRequest& request, pb::SubmitResponse*) {
    return BadRequest("queue", "there is no queue " + request.spec().queue());
  };
  const std::string job = Write("hello.yaml", kHello);
  EXPECT_EQ(Run({"submit", "-y", "--queue", "nowhere", job}), 2);
  EXPECT_THAT(err_, HasSubstr("nothing was submitted\n  --queue: there is no queue nowhere\n"));
  EXPECT_THAT(err_, Not(HasSubstr("hello.yaml:")));
  EXPECT_EQ(Run({"submit", "-y", job}), 2);
  EXPECT_THAT(err_, HasSubstr("hello.yaml:")) << "the file's own";
}

TEST_F(CliTest, WhoFollowsTheLogsOfAJobThatWaitsIsToldSo) {
  jobs_.got = JobIn(pb::WAITING, pb::TASK_WAITING);
  jobs_.got.mutable_tasks(0)->clear_attempts();
  EXPECT_EQ(Run({"logs", "-f", "7"}), 0);
  EXPECT_THAT(err_, HasSubstr("job 7 waits; its output follows as soon as it runs.  Why: muster "
                              "explain 7"));
  jobs_.got = JobIn(pb::RUNNING, pb::TASK_RUNNING);
  EXPECT_EQ(Run({"logs", "-f", "7"}), 0);
  EXPECT_THAT(err_, Not(HasSubstr("waits")));
}

TEST_F(CliTest, AHostIsNamedWithItsClusterAndAClusterIsNoHost) {
  for (const char* host : {"lab/h1", "lab/h2", "phx/h2"})
    clusters_.hosts.add_hosts()->set_name(host);
  const struct {
    const char *verb, *name, *said;
  } kCases[] = {
      {"drain", "h2", "h2: hosts are named with their cluster: lab/h2 or phx/h2"},
      {"release", "h1", "h1: hosts are named with their cluster: muster host release lab/h1"},
      {"confirm-off", "h2", "lab/h2 or phx/h2"},
      {"confirm-off", "lab", "lab is a cluster. Its hosts: muster host list lab"},
      {"drain", "h1", "h1: hosts are named with their cluster: muster host drain lab/h1"},
      {"resume", "h1", "muster host resume lab/h1"},
      {"show", "lab", "lab is a cluster: muster cluster show lab. Its hosts: muster host list lab"},
      {"drain", "localhost", "there is no host localhost. Those there are: muster host list"},
  };
  for (const auto& c : kCases) {
    EXPECT_NE(Run({"host", c.verb, c.name}), 0) << c.name;
    EXPECT_THAT(err_, HasSubstr(c.said));
  }
  EXPECT_NE(Run({"host", "release", "h1", "3"}), 0);
  EXPECT_THAT(err_, HasSubstr("muster host release lab/h1 3"));
}

TEST_F(CliTest, AnEmptyQueueIsASlip) {
  const std::string job = Write("hello.yaml", kHello);
  for (const std::vector<std::string>& line : {std::vector<std::string>{"submit", "-y", job},
                                               {"run", "--", "true"},
                                               {"rerun", "-d", "7"}}) {
    std::vector<std::string> words = {line[0], "--queue", ""};
    words.insert(words.end(), line.begin() + 1, line.end());
    EXPECT_EQ(Run(words), 2);
    EXPECT_THAT(err_, HasSubstr("--queue: is empty; give a value, or leave it out"));
  }
}

TEST_F(CliTest, AnOrdinaryJobHasNoMembersAndIsShownItself) {
  jobs_.list_status = grpc::Status(grpc::NOT_FOUND, "\"7\" is no array's number");
  jobs_.got.mutable_spec()->set_queue("research");
  EXPECT_EQ(Run({"jobs", "7", "--columns", "job,state"}), 0) << err_;
  EXPECT_THAT(out_, ::testing::MatchesRegex("JOB +STATE\n +7 +running\n"));
  EXPECT_EQ(Run({"jobs", "7", "-o", "name"}), 0) << err_;
  EXPECT_EQ(out_, "7\n");
  EXPECT_EQ(Run({"jobs", "7", "--all", "-o", "name"}), 0) << err_;
  EXPECT_EQ(out_, "7\n");
  for (const auto& [flag, value] : {std::pair("--state", "failed"), std::pair("--owner", "ben"),
                                    std::pair("--label", "a=b"), std::pair("--queue", "hidden")}) {
    EXPECT_EQ(Run({"jobs", "7", flag, value, "-o", "name"}), 3) << flag;
    EXPECT_EQ(out_, "") << flag;
    EXPECT_THAT(err_, HasSubstr("job 7 is no array: flags such as --state choose among an array's "
                                "members, and it has none. The job itself: muster jobs 7"))
        << flag;
  }
  jobs_.got.mutable_array()->set_members(3);
  EXPECT_EQ(Run({"jobs", "7", "--queue", "hidden"}), 3);
  EXPECT_THAT(err_, HasSubstr("\"7\" is no array's number")) << "as the server says";
  jobs_.got.clear_array();
  EXPECT_EQ(Run({"jobs", "7", "--tasks"}), 2);
  EXPECT_THAT(err_, HasSubstr("job 7 is no array: it has no members. All of it: muster show 7"));
  jobs_.get_status = grpc::Status(grpc::NOT_FOUND, "there is no job \"9\"");
  EXPECT_EQ(Run({"jobs", "9"}), 3);
  EXPECT_THAT(err_, HasSubstr("there is no job"));
}

TEST_F(CliTest, LogsOfSeveralTasksAreOfOneThatIsNamed) {
  pb::JobSpec* spec = jobs_.got.mutable_spec();
  spec->mutable_tasks(0)->set_name("server");
  spec->add_tasks()->set_name("train");
  pb::Task* server = jobs_.got.mutable_tasks(0);
  server->set_name("server");
  *jobs_.got.add_tasks() = *server;
  jobs_.got.mutable_tasks(1)->set_name("train");
  std::string asked;
  jobs_.stream_logs = [&](grpc::ServerContext*, const pb::LogsRequest& request,
                          grpc::ServerWriter<pb::LogsResponse>*) {
    asked = request.task();
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"logs", "7"}), 0) << err_;
  EXPECT_EQ(asked, "server") << "of those that started together the file's first";
  EXPECT_THAT(err_, HasSubstr("job 7 has tasks server, train; this is server, the newest that ran. "
                              "Another: --task train"));
  for (int t = 0; t < 2; ++t)
    jobs_.got.mutable_tasks(t)->mutable_attempts(0)->set_place_ns(100 + t);
  EXPECT_EQ(Run({"logs", "7"}), 0) << err_;
  EXPECT_EQ(asked, "train");
  EXPECT_EQ(Run({"logs", "7", "--task", "server"}), 0) << err_;
  EXPECT_EQ(asked, "server");
  EXPECT_THAT(err_, Not(HasSubstr("has tasks")));
}

TEST_F(CliTest, ResumeSaysWhatElseKeepsWorkAway) {
  EXPECT_EQ(Run({"host", "resume", "lab/h1"}), 0) << err_;
  EXPECT_EQ(out_, "lab/h1 takes work again.\n");
  clusters_.got.set_drained(true);
  clusters_.got.set_drain_reason("moves");
  EXPECT_EQ(Run({"host", "resume", "lab/h1"}), 0) << err_;
  EXPECT_EQ(out_,
            "lab/h1 takes work again once its cluster does, which is drained: moves.  muster "
            "cluster resume lab\n");
  for (const char* name : {"lab/h1", "lab/h2"}) {
    pb::Host* host = clusters_.hosts.add_hosts();
    host->set_name(name);
    host->set_drained(name != std::string("lab/h1"));
  }
  EXPECT_EQ(Run({"cluster", "resume", "lab"}), 0) << err_;
  EXPECT_EQ(out_,
            "lab takes work again but for lab/h2, which is drained itself.  muster host resume "
            "lab/h2\n");
  clusters_.hosts.mutable_hosts(0)->set_drained(true);
  EXPECT_EQ(Run({"cluster", "resume", "lab"}), 0) << err_;
  EXPECT_EQ(out_,
            "lab takes work again once its hosts do, which are all drained themselves.  muster "
            "host resume lab/h1\n");
}

// A login's file and the settings that name it.
class LogoutTest : public CliTest {
 protected:
  LogoutTest() {
    EXPECT_EQ(system(("mkdir -p " + home_ + "/.config/muster").c_str()), 0);
    Write(".config/muster/lab.identity", "{}");
  }
  // Its exit code, with no server named.
  int Logout(std::vector<std::string> words) {
    words.insert(words.begin(), "logout");
    Process process(std::move(words), home_, "");
    const int code = process.Wait();
    out_ = process.out;
    err_ = process.err;
    return code;
  }
  bool Has(const std::string& name) {
    return access((home_ + "/.config/muster/" + name).c_str(), F_OK) == 0;
  }
};

TEST_F(CliTest, LoginNamesTheFlagOfAWrongContext) {
  EXPECT_EQ(Run({"login", "127.0.0.1:1", "--token", "t", "--ca", "sha256:0", "--as", "my lab"}), 2);
  EXPECT_THAT(err_, HasSubstr("--as: wants at most 63 of"));
}

TEST_F(LogoutTest, RemovesTheKeyAndTheSettingsThatLoginWrote) {
  Write(".config/muster/config.yaml", "current_context: lab\n");
  EXPECT_EQ(Logout({}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("Logged out: the key and certificate in " + home_ +
                              "/.config/muster/lab.identity are gone."));
  EXPECT_THAT(out_, HasSubstr("Commands go to this machine's server again"));
  EXPECT_FALSE(Has("lab.identity"));
  EXPECT_FALSE(Has("config.yaml"));
  EXPECT_EQ(Logout({}), 2) << "there is nothing more to leave";
  EXPECT_THAT(err_, HasSubstr("you are not logged in anywhere: this machine keeps no login"));
  Write(".config/muster/lab.identity", "{}");
  Write(".config/muster/work.identity", "{}");
  EXPECT_EQ(Logout({}), 2) << "commands use neither";
  EXPECT_THAT(err_, HasSubstr("name a context: muster logout lab, of lab, work"));
}

TEST_F(LogoutTest, LeavesOtherSettingsAsTheyAre) {
  const std::string others = "contexts:\n  demo: {server: \"unix:///nowhere\"}  # mine\n";
  Write(".config/muster/config.yaml", "current_context: lab  # the large one\n" + others);
  EXPECT_EQ(Logout({"lab"}), 0) << err_;
  EXPECT_EQ(ReadFile(home_ + "/.config/muster/config.yaml", 1000).value(), others);
  Write(".config/muster/config.yaml", "current_context: demo\n" + others);
  Write(".config/muster/lab.identity", "{}");
  EXPECT_EQ(Logout({"lab"}), 0) << err_;
  EXPECT_THAT(out_, Not(HasSubstr("Commands go")));
  EXPECT_EQ(Logout({"demo"}), 3) << "it is no login";
  EXPECT_THAT(err_, HasSubstr("it has no key to remove; to drop it, take it out of " + home_ +
                              "/.config/muster/config.yaml"));
  EXPECT_EQ(Logout({"../lab"}), 2);
}

TEST_F(LogoutTest, KnowsALoginThatTheSettingsNameOtherwise) {
  const std::string config =
      Write(".config/muster/config.yaml",
            absl::StrCat("current_context: work\ncontexts:\n  work: {login: ", home_,
                         "/.config/muster/lab.identity, queue: research}\n"));
  EXPECT_EQ(Logout({}), 0) << err_;
  EXPECT_FALSE(Has("lab.identity"));
  EXPECT_THAT(ReadFile(config, 1000).value(), Not(HasSubstr("current_context")));
  // That of the settings counts, and stays.
  Write(".config/muster/lab.identity", "{}");
  const std::string own = "current_context: lab\ncontexts:\n  lab: {server: \"unix:///nowhere\"}\n";
  Write(".config/muster/config.yaml", own);
  EXPECT_EQ(Logout({"lab"}), 3);
  EXPECT_EQ(ReadFile(config, 1000).value(), own);
}

TEST_F(LogoutTest, RemovesNothingWhereItCantMendTheSettings) {
  Write(".config/muster/config.yaml", "{current_context: lab}\n");
  EXPECT_EQ(Logout({}), 2);
  EXPECT_THAT(err_, HasSubstr("take current_context out of"));
  EXPECT_TRUE(Has("lab.identity"));
}

TEST_F(LogoutTest, NeitherItNorLoginTouchesALoginThatIsBeingRenewed) {
  Write(".config/muster/config.yaml", "current_context: lab\n");
  const std::string file = home_ + "/.config/muster/lab.identity";
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
  Process logout({"logout", "lab"}, home_, "");
  Process login({"login", "127.0.0.1:1", "--token", "t", "--ca", "sha256:0", "--as", "lab"}, home_,
                "");
  EXPECT_EQ(logout.Wait(), 2);
  EXPECT_EQ(login.Wait(), 2) << "before its token is spent";
  for (const std::string& told : {logout.err, login.err})
    EXPECT_THAT(told, HasSubstr(file + ": another muster command renews or replaces this login"));
  EXPECT_TRUE(Has("lab.identity"));
  EXPECT_TRUE(Has("config.yaml"));
  close(fd);
  EXPECT_EQ(Logout({"lab"}), 0) << err_;
}

TEST_F(LogoutTest, KeepsTheFileThatMusterConfigNamesAndItsMode) {
  const std::string config = Write("settings.yaml", "current_context: lab\n");
  ASSERT_EQ(chmod(config.c_str(), 0600), 0);
  ASSERT_EQ(symlink(config.c_str(), (home_ + "/link.yaml").c_str()), 0);
  Write("lab.identity", "{}");
  environment_ = {"MUSTER_CONFIG=" + home_ + "/link.yaml"};
  server_name_.clear();
  EXPECT_EQ(Run({"logout"}), 0) << err_;
  EXPECT_EQ(ReadFile(config, 1000).value(), "");
  struct stat info;
  ASSERT_EQ(stat(config.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_EQ(Run({"logout"}), 2);
  EXPECT_THAT(err_, HasSubstr("you are not logged in")) << "commands go on working";
}

TEST_F(CliTest, ARemedyKeepsTheFlagsAndIsForProgramsThatMissedSomethingOnly) {
  pb::Job killed = JobIn(pb::FAILED, pb::TASK_FAILED);
  killed.mutable_tasks(0)->mutable_attempts(0)->set_cause(pb::OUT_OF_MEMORY);
  jobs_.watch = Watching({killed});
  Write("train.py", "print()\n");
  const std::string run =
      absl::StrCat("cd ", home_, "; muster run --memory 1GiB -- python3 train.py > /dev/null");
  EXPECT_EQ(Shell(run), 1);
  EXPECT_THAT(err_, HasSubstr("To take it along: muster run --memory 1GiB"));
  EXPECT_THAT(err_, Not(HasSubstr("With what it missed")));
  pb::Job failed = JobIn(pb::FAILED, pb::TASK_FAILED);
  failed.mutable_tasks(0)->mutable_attempts(0)->set_cause(pb::PROGRAM_ERROR);
  jobs_.watch = Watching({failed});
  jobs_.logs = {"Traceback (most recent call last):\nValueError: 3\n"};
  EXPECT_EQ(Shell(run), 1);
  EXPECT_THAT(err_, Not(HasSubstr("With what it missed"))) << "it found all that it read";
  jobs_.logs.insert(jobs_.logs.begin(),
                    "python3: can't open file 'train.py': [Errno 2] No such file or directory\n");
  EXPECT_EQ(Shell(run), 1);
  EXPECT_THAT(err_, ::testing::ContainsRegex(
                        "With what it missed: muster run --memory 1GiB.* -- python3 train.py\n"));
}

TEST_F(CliTest, AFlagThatTakesSeveralTakesNoWordOfTheProgram) {
  pb::JobSpec spec;
  jobs_.submit = [&](const pb::SubmitRequest& request, pb::SubmitResponse* response) {
    spec = request.spec();
    response->mutable_job()->set_number(7);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"run", "-d", "--gpus", "1", "--gpu-type", "a,b", "--gpu-type", "c", "--", "bash",
                 "-c", "echo hi"}),
            0)
      << err_;
  EXPECT_THAT(spec.tasks(0).resources().gpu_types(), ::testing::ElementsAre("a", "b", "c"));
  EXPECT_THAT(spec.tasks(0).run().exec(), ::testing::ElementsAre("bash", "-c", "echo hi"));
  EXPECT_EQ(Run({"run", "-d", "--cluster", "lab", "--", "echo", "--name", "x", "--workers", "2"}),
            0)
      << err_;
  EXPECT_EQ(spec.name(), "echo");
  EXPECT_EQ(spec.tasks(0).workers().max(), 1);
}

TEST_F(CliTest, WhatTheServerSaysOfARunsFieldsIsSaidOfItsFlags) {
  const std::pair<const char*, const char*> cases[] = {
      {"tasks[main].resources.gpu_types", "--gpu-type"},
      {"tasks[main].env[A]", "--env"},
      {"queue", "--queue"},
      {"hang_timeout", "hang_timeout"}};
  for (const auto& [field, flag] : cases) {
    jobs_.submit = [&](const pb::SubmitRequest&, pb::SubmitResponse*) {
      return BadRequest(field, "is wrong");
    };
    EXPECT_EQ(Run({"run", "--", "true"}), 2);
    EXPECT_EQ(err_, absl::StrCat("muster: nothing was submitted\n  ", flag, ": is wrong\n"));
  }
}

TEST_F(CliTest, InAPipeOutputComesBeforeTheLineThatTellsItsEnd) {
  jobs_.watch =
      Watching({JobIn(pb::RUNNING, pb::TASK_RUNNING), JobIn(pb::SUCCEEDED, pb::TASK_SUCCEEDED)});
  jobs_.stream_logs = [](grpc::ServerContext*, const pb::LogsRequest&,
                         grpc::ServerWriter<pb::LogsResponse>* writer) {
    for (const char* line : {"one\n", "two\n", "three\n"}) {
      poll(nullptr, 0, 50);  // the end of the job is known by now
      pb::LogsResponse chunk;
      chunk.set_data(line);
      writer->Write(chunk);
    }
    return grpc::Status::OK;
  };
  EXPECT_EQ(Shell(absl::StrCat("muster run -- true > ", home_, "/all 2>&1")), 0);
  std::stringstream all;
  all << std::ifstream(home_ + "/all").rdbuf();
  EXPECT_THAT(all.str(), ::testing::ContainsRegex("one\ntwo\nthree\n[^\n]*ended"));
  EXPECT_THAT(all.str(), ::testing::EndsWith("Job 7 hello succeeded.\n"));
}

TEST_F(CliTest, SubmitSaysWhereItsOutputIs) {
  jobs_.watch = Watching({JobIn(pb::SUCCEEDED, pb::TASK_SUCCEEDED)});
  EXPECT_EQ(Run({"submit", "-y", Write("hello.yaml", kHello)}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("Its output: muster logs -f 7\n"));
  EXPECT_THAT(out_, ::testing::EndsWith("  Its output: muster logs 7\n"));
  EXPECT_EQ(Run({"run", "--", "true"}), 0);
  EXPECT_THAT(err_, Not(HasSubstr("muster logs"))) << "it was on the screen";
}

TEST_F(CliTest, SeveralFilesAreSubmittedTogetherOrNotAtAll) {
  std::atomic<int> submitted{0};
  jobs_.submit = [&](const pb::SubmitRequest&, pb::SubmitResponse* response) {
    response->mutable_job()->set_number(static_cast<uint64_t>(7 + submitted++));
    return grpc::Status::OK;
  };
  const std::string a = Write("a.yaml", kHello), b = Write("b.yaml", kHello);
  EXPECT_EQ(Run({"submit", "-y", a, b}), 0) << err_;
  EXPECT_EQ(submitted, 2);
  EXPECT_THAT(out_, HasSubstr("Job 7 hello submitted."));
  EXPECT_THAT(out_, HasSubstr("Job 8 hello submitted."));
  EXPECT_THAT(err_, HasSubstr("All of them: muster wait 7 8\n"));
  EXPECT_EQ(Run({"submit", "-o", "name", a, b}), 0);
  EXPECT_EQ(out_, "9\n10\n");
  submitted = 0;
  EXPECT_EQ(Run({"submit", "-y", a, Write("bad.yaml", "woerkers: 2\nrun: ls\n")}), 2);
  EXPECT_THAT(err_, HasSubstr("bad.yaml"));
  EXPECT_EQ(Run({"submit", "-y", "--idempotency-key", "k", a, b}), 2);
  EXPECT_THAT(err_, HasSubstr("and these are 2: submit them one by one, each with its own: muster "
                              "submit " +
                              a));
  EXPECT_EQ(submitted, 0);
  std::vector<std::string> keys;
  jobs_.submit = [&](const pb::SubmitRequest& request, pb::SubmitResponse*) {
    keys.push_back(request.idempotency_key());
    return grpc::Status(grpc::DEADLINE_EXCEEDED, "Deadline Exceeded");
  };
  EXPECT_EQ(Run({"submit", "-y", a, b}), 6);
  ASSERT_FALSE(keys.empty());
  EXPECT_THAT(err_,
              HasSubstr("Safe to repeat: muster submit " + a +
                        " (and this command's flags) with --idempotency-key " + keys[0] + "\n"));
}

TEST_F(CliTest, ValidateAsksTheServerWhetherAnyClusterCouldHoldIt) {
  jobs_.preview = [](const pb::PreviewRequest&, pb::PreviewResponse*) {
    google::rpc::PreconditionFailure failure;
    failure.add_violations()->set_description("a worker takes 64 GPUs; the largest host has 8");
    google::rpc::Status status;
    status.set_code(grpc::FAILED_PRECONDITION);
    status.add_details()->PackFrom(failure);
    return grpc::Status(grpc::FAILED_PRECONDITION, "this job can never start",
                        status.SerializeAsString());
  };
  const std::string path = Write("hello.yaml", kHello);
  EXPECT_EQ(Run({"validate", path}), 2);
  EXPECT_THAT(err_, HasSubstr("the largest host has 8"));
  EXPECT_THAT(err_, HasSubstr("can never start, not valid"));
  EXPECT_EQ(out_, "");
  EXPECT_EQ(Run({"validate", "--offline", path}), 0) << "nobody is asked";
  jobs_.preview = [](const pb::PreviewRequest&, pb::PreviewResponse*) {
    return grpc::Status(grpc::RESOURCE_EXHAUSTED, "too many ask");
  };
  EXPECT_EQ(Run({"validate", path}), 0);
  EXPECT_THAT(out_, HasSubstr("whether a cluster could hold it is not known: too many ask"));
}

TEST_F(CliTest, AWorkdirThatIsNotHereIsNotedBeforeTheJobFailsOnIt) {
  const std::string path =
      Write("ddp.yaml", absl::StrCat(kHello, "workdir: /opt/muster/no-such-examples\n"));
  jobs_.watch = Watching({JobIn(pb::SUCCEEDED, pb::TASK_SUCCEEDED)});
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"validate", path}, {"validate", "--offline", path}, {"submit", "-y", path}}) {
    EXPECT_EQ(Run(command), 0) << err_;
    EXPECT_THAT(err_, HasSubstr("workdir /opt/muster/no-such-examples: no such directory on this "
                                "machine"));
    EXPECT_THAT(err_, HasSubstr("--set workdir=DIR"));
  }
  EXPECT_EQ(Run({"validate", "--set", "workdir=" + home_, path}), 0);
  EXPECT_EQ(err_, "");
}

TEST_F(CliTest, FilesOfOtherSchedulersAreRecognisedAndTranslated) {
  const std::string slurm =
      Write("train.sh",
            "#!/bin/bash\n#SBATCH --job-name=llama\n#SBATCH -N 2\n"
            "#SBATCH --gres=gpu:A100:8   # all of them\n#SBATCH -t 1-12:00:00\n"
            "#SBATCH --mem=64G --ntasks-per-node 8 -c 4 -p research\n"
            "#SBATCH --array=1-4 -q high --exclusive\nsrun python train.py\n");
  for (const char* command : {"submit", "validate"}) {
    EXPECT_EQ(Run({command, slurm}), 2);
    EXPECT_THAT(err_, HasSubstr("this is a Slurm batch script"));
    EXPECT_THAT(err_,
                HasSubstr("  name: llama\n  queue: research\n  array: 1-4\n  workers: 2\n"
                          "  resources: {gpus: 8, gpu_types: [a100], cpus: 32, memory: 64GiB}"));
    EXPECT_THAT(err_, HasSubstr("  processes_per_worker: 8\n  time_limit: 36h\n  run: |\n"));
    EXPECT_THAT(err_, HasSubstr("MUSTER_ARRAY_INDEX, in place of"));
    EXPECT_THAT(err_, HasSubstr("Not in it, for you to look at: --exclusive, -q.\n"));
  }
  const std::string sky = Write("sky.yaml",
                                "name: llama\nnum_nodes: 2\nresources:\n  accelerators: H100:8\n"
                                "file_mounts:\n  /data: s3://acme/data\nrun: python train.py\n");
  EXPECT_EQ(Run({"validate", sky}), 2);
  EXPECT_THAT(err_, HasSubstr("this looks like a SkyPilot task"));
  EXPECT_THAT(err_, HasSubstr("  workers: 2\n  resources: {gpus: 8, gpu_types: [h100]}"));
  EXPECT_THAT(err_, HasSubstr("file_mounts: has no counterpart"));
  EXPECT_EQ(Run({"validate", Write("bad.yaml", "woerkers: 2\nrun: ls\n")}), 2);
  EXPECT_THAT(err_, Not(HasSubstr("SkyPilot")));
}

TEST_F(CliTest, CompletionOffersToCancelOnlyWhatHasNotEnded) {
  const std::vector<int> unfinished = {pb::WAITING, pb::RUNNING};
  for (const char* command : {"cancel", "wait", "attach", "explain"}) {
    EXPECT_EQ(Run({"__complete", command, ""}), 0);
    EXPECT_THAT(std::vector<int>(jobs_.listed.states().begin(), jobs_.listed.states().end()),
                ::testing::ElementsAreArray(unfinished))
        << command;
  }
  EXPECT_EQ(Run({"__complete", "logs", ""}), 0);
  EXPECT_EQ(jobs_.listed.states_size(), 0) << "what ended has output, too";
}

TEST_F(CliTest, QEndsWhatDrawsItselfAgain) {
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"top"}, {"jobs", "-w"}}) {
    Process live(Process::OnTerminal(), command, home_, server_name_);
    ASSERT_TRUE(live.ReadUntil("QUEUE"));
    live.Type("q");
    EXPECT_EQ(live.Wait(), 0);
    EXPECT_THAT(live.out, Not(HasSubstr("q\r"))) << "it isn't shown";
  }
}

TEST_F(CliTest, AProgramsEscapesDontReachTheTerminalAndArriveWholeInAPipe) {
  const std::string raw = "\x1b[31mred\x1b[0m \x1b]0;owned\x07\x1b[2J\n";
  jobs_.logs = {raw};
  EXPECT_EQ(Run({"logs", "7"}), 0);
  EXPECT_EQ(out_, raw);
  Process terminal(Process::OnTerminal(), {"logs", "7"}, home_, server_name_);
  EXPECT_EQ(terminal.Wait(), 0);
  EXPECT_THAT(terminal.out, HasSubstr("\x1b[31mred\x1b[0m ^[]0;owned^G^[[2J\r\n"));
  jobs_.watch = Watching({JobIn(pb::SUCCEEDED, pb::TASK_SUCCEEDED)});
  Process run(Process::OnTerminal(), {"run", "--", "true"}, home_, server_name_);
  EXPECT_EQ(run.Wait(), 0);
  EXPECT_THAT(run.out, HasSubstr("\x1b[31mred\x1b[0m ^[]0;owned^G^[[2J"));
}

TEST_F(CliTest, UnderSudoItSaysWhoseMusterThatIs) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  StopServing();
  environment_ = {"SUDO_USER=ann"};
  EXPECT_EQ(Run({"jobs"}), 6);
  EXPECT_THAT(err_, HasSubstr("the muster up of ann doesn't serve: run it without sudo"));
}

TEST(RestartPauseTest, PausesGrowAndNeverEndAndAGoodRunForgetsThem) {
  RestartPause pause;
  std::vector<int64_t> seconds;
  for (int end = 0; end < 9; ++end) seconds.push_back(pause.After(0) / 1'000'000'000);
  EXPECT_THAT(seconds, ::testing::ElementsAre(0, 1, 2, 4, 8, 16, 32, 60, 60));
  for (int end = 0; end < 1000; ++end) EXPECT_EQ(pause.After(0), 60'000'000'000);
  EXPECT_EQ(pause.ends(), 1009);
  EXPECT_EQ(pause.After(60'000'000'000), 0);
  EXPECT_EQ(pause.ends(), 1);
}

// ---- host token new ----

TEST_F(CliTest, TokensOfARangeOfHostsAreOneList) {
  trust_.new_token = [](const pb::NewTokenRequest& request, pb::NewTokenResponse* response) {
    response->set_id("of " + request.host());
    response->set_host(request.host());
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"host", "token", "new", "lab/h[09-10]a", "-o", "yaml"}), 0) << err_;
  EXPECT_EQ(out_,
            "- id: \"of lab/h09a\"\n  host: \"lab/h09a\"\n"
            "- id: \"of lab/h10a\"\n  host: \"lab/h10a\"\n");
  EXPECT_EQ(Run({"host", "token", "new", "lab/h[09-10]a", "-o", "json"}), 0) << err_;
  EXPECT_EQ(out_.substr(0, 3) + out_.substr(out_.size() - 3), "[\n \n]\n");
  EXPECT_EQ(Run({"host", "token", "new", "lab/h[09-10]a", "-o", "name"}), 0) << err_;
  EXPECT_EQ(out_, "of lab/h09a\nof lab/h10a\n");
  EXPECT_EQ(Run({"host", "token", "new", "lab/h[0-100000]"}), kExitBadInput);
  EXPECT_THAT(err_, HasSubstr("has more than 100000 hosts; write a smaller one"));
}

TEST_F(CliTest, ARangeOfHostsThatIsRefusedMidwaySaysWhoHasATokenAndHowToGoOn) {
  trust_.new_token = [](const pb::NewTokenRequest& request, pb::NewTokenResponse* response) {
    if (request.host() == "lab/h10a") return grpc::Status(grpc::NOT_FOUND, "there is no h10a");
    response->set_id("of " + request.host());
    response->set_host(request.host());
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"host", "token", "new", "lab/h[08-12]a", "-o", "yaml"}), kExitNotFound);
  EXPECT_EQ(out_,
            "- id: \"of lab/h08a\"\n  host: \"lab/h08a\"\n"
            "- id: \"of lab/h09a\"\n  host: \"lab/h09a\"\n");
  EXPECT_EQ(err_,
            "muster: there is no h10a\n"
            "  lab/h[08-09]a have their tokens. Go on with the others: muster host token new "
            "'lab/h[10-12]a'\n");
  EXPECT_EQ(Run({"host", "token", "new", "lab/h[10-12]a", "-o", "yaml"}), kExitNotFound);
  EXPECT_EQ(out_, "[]\n");
  EXPECT_EQ(err_, "muster: there is no h10a\n");
}

TEST_F(CliTest, AMissingWordIsNamedWithThoseThatThereAre) {
  EXPECT_EQ(Run({"ca", "rotate"}), kExitBadInput);
  EXPECT_THAT(err_, HasSubstr("muster: step is required: prepare, sign, drop\n"));
  EXPECT_EQ(Run({"explain"}), kExitBadInput);
  EXPECT_THAT(err_, HasSubstr("muster: job is required\n"));
}

TEST_F(CliTest, WhoWantsHostsOfAMusterUpIsToldWhatItIsFor) {
  trust_.new_token = [](const pb::NewTokenRequest&, pb::NewTokenResponse*) {
    return grpc::Status(grpc::FAILED_PRECONDITION, "this musterd serves no network");
  };
  const char kWhy[] =
      "It is that of muster up, which serves one user on one machine. Several "
      "machines: docs/hosts.md\n";
  for (const char* host : {"lab/h1", "lab/h[1-2]"}) {
    EXPECT_EQ(Run({"host", "token", "new", host}), kExitBadInput);
    EXPECT_THAT(err_, Not(HasSubstr("muster up")));
  }
  UpHolder holder;
  const absl::StatusOr<std::unique_ptr<UpLock>> lock = UpLock::Take(home_, server_name_, &holder);
  ASSERT_TRUE(lock.ok()) << lock.status();
  (*lock)->NameDirectory();
  for (const char* host : {"lab/h1", "lab/h[1-2]"}) {
    EXPECT_EQ(Run({"host", "token", "new", host}), kExitBadInput);
    EXPECT_THAT(err_, HasSubstr(kWhy)) << host;
  }
}

TEST_F(CliTest, OfASpentTokenIsToldWhenItIsForgotten) {
  pb::Holding* row = trust_.holders.add_holders();
  row->set_name("lab/h1");
  pb::Holding::Token* token = row->add_tokens();
  token->set_id("t1");
  token->set_spent(true);
  token->set_expires_ns(RealClock()->WallNs() + 90 * kMinute);
  EXPECT_EQ(Run({"host", "token", "list"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("t1 spent, forgotten in 1h"));
}

TEST_F(CliTest, OneCertificateIsNotSeveral) {
  trust_.revoked.set_certificates(1);
  EXPECT_EQ(Run({"host", "revoke", "lab/h1"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("Revoked 1 certificate and 0 tokens;"));
}

TEST_F(CliTest, ANameOfASweepThatNothingTakesIsRefusedOrNoted) {
  const std::string path =
      Write("sweep.yaml", absl::StrReplaceAll(kHello, {{"echo hello", "echo '{{lr}}'"}}));
  EXPECT_EQ(Run({"submit", "-y", "-d", path, "--sweep", "lrr=1,2"}), 2);
  EXPECT_THAT(err_, HasSubstr("sweep.lrr: nothing takes it, and {{lr}} has no value. Write {{lrr}},"
                              " or call it lr"));
  EXPECT_EQ(Run({"submit", "-y", "-d", path, "--sweep", "lr=1,2", "--sweep", "seed=1"}), 0) << err_;
  EXPECT_THAT(err_, HasSubstr("muster: note: sweep.seed: no {{seed}} stands in the job; only a "
                              "program that reads MUSTER_SWEEP_seed takes its values.\n"));
  EXPECT_THAT(err_, Not(HasSubstr("sweep.lr:")));
  EXPECT_EQ(Run({"submit", "-y", "-d", path, "--sweep", "lr=1,2", "--sweep", "lrr=1"}), 0) << err_;
  EXPECT_THAT(err_, HasSubstr("sweep.lrr: no {{lrr}} stands in the job. Did you mean lr? Only a "
                              "program that reads MUSTER_SWEEP_lrr takes its values.\n"));
  for (const char* command : {"validate", "submit"}) {
    EXPECT_EQ(Run({command, path, command[0] == 's' ? "-yd" : "--offline"}), 0) << err_;
    EXPECT_THAT(err_, HasSubstr("note: run: {{lr}} stays as it stands: no sweep of the job has "
                                "that name.\n"));
  }
}

TEST_F(CliTest, AVariableOfTheCommandLineTakesANameOfASweep) {
  clusters_.trainer_schema = R"({"type": "object"})";
  const std::string path =
      Write("train.yaml",
            "name: llama\nqueue: research\nresources: {gpus: 1, gpu_types: [cpu-slot]}\n"
            "trainer: {max_steps: 5}\n");
  EXPECT_EQ(Run({"submit", "-y", "-d", path, "--sweep", "seed=1,2"}), 2);
  EXPECT_THAT(err_, HasSubstr("sweep.seed: nothing takes it"));
  EXPECT_EQ(Run({"submit", "-y", "-d", path, "--sweep", "seed=1,2", "--env", "SEED={{seed}}"}), 0)
      << err_;
}

TEST_F(CliTest, WhatIsFilledInForATrainersLayoutIsShown) {
  const std::string path =
      Write("train.yaml",
            "name: llama\nqueue: research\nworkers: {min: 4, max: 8}\n"
            "resources: {gpus: 1, gpu_types: [cpu-slot]}\ntrainer: {parallel: {tp: 4}}\n");
  const std::string filled =
      "Filled in by the trainer's layout: workers.multiple_of: 4; topology.blocks: [{gpus: 4, "
      "preferred: island}]\n";
  clusters_.trainer_schema = R"({"type": "object"})";
  EXPECT_EQ(Run({"validate", path}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr(filled));
  jobs_.preview = [](const pb::PreviewRequest& request, pb::PreviewResponse* response) {
    *response->mutable_resolved() = request.spec();
    pb::TaskSpec* task = response->mutable_resolved()->mutable_tasks(0);
    task->mutable_workers()->set_multiple_of(4);
    pb::RankBlock* block = task->mutable_topology()->add_blocks();
    block->set_gpus(4);
    block->set_preferred(pb::ISLAND);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"submit", path, "--preview-only"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr(filled));
}

TEST_F(CliTest, WhetherATrainerThatComesLaterFitsIsShownToo) {
  const std::string trainer =
      Write("muster-trainer", "#!/bin/sh\necho '{\"memory_bytes\": 96636764160}'\n");
  ASSERT_EQ(chmod(trainer.c_str(), 0755), 0);
  environment_ = {"MUSTER_BIN_DIR=" + home_};
  jobs_.preview = [](const pb::PreviewRequest& request, pb::PreviewResponse* response) {
    *response->mutable_resolved() = request.spec();
    response->set_task("prepare");
    pb::TaskSpec* train = response->mutable_resolved()->add_tasks();
    train->set_name("train");
    train->add_after("prepare");
    train->set_trainer_json("{}");
    train->mutable_resources()->set_gpus_milli(1000);
    train->mutable_resources()->add_gpu_types("h100-80g");
    response->mutable_resolved()->mutable_tasks(0)->set_name("prepare");
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"submit", Write("hello.yaml", kHello), "--preview-only"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("Task train: 1 worker with 1 h100-80g, after prepare: its place is "
                              "looked for then.\n"));
  EXPECT_THAT(out_, HasSubstr("Task train: h100-80g: does not fit: a rank needs about 90.0 GiB"));
}

}  // namespace
}  // namespace muster
