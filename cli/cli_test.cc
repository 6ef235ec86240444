// Exit codes, what goes to which stream, Ctrl+C, pages, submissions and refusals.
#include <sys/socket.h>
#include <sys/un.h>

#include <future>

#include "cli/client.h"
#include "cli/testing/fixture.h"

namespace muster {
namespace {

TEST(ExitCodeTest, EveryStatusHasItsDocumentedCode) {
  const std::pair<absl::StatusCode, int> codes[] = {{absl::StatusCode::kOk, 0},
                                                    {absl::StatusCode::kInvalidArgument, 2},
                                                    {absl::StatusCode::kFailedPrecondition, 2},
                                                    {absl::StatusCode::kAlreadyExists, 2},
                                                    {absl::StatusCode::kNotFound, 3},
                                                    {absl::StatusCode::kPermissionDenied, 4},
                                                    {absl::StatusCode::kUnauthenticated, 4},
                                                    {absl::StatusCode::kAborted, 5},
                                                    {absl::StatusCode::kUnavailable, 6},
                                                    {absl::StatusCode::kDeadlineExceeded, 6},
                                                    {absl::StatusCode::kInternal, 6},
                                                    {absl::StatusCode::kCancelled, 130}};
  for (const auto& [status, code] : codes)
    EXPECT_EQ(ExitCodeFor(absl::Status(status, "x")), code) << absl::StatusCodeToString(status);
  EXPECT_EQ(ExitCodeFor(pb::SUCCEEDED), 0);
  EXPECT_EQ(ExitCodeFor(pb::FAILED), 1);
  EXPECT_EQ(ExitCodeFor(pb::CANCELLED), 8);
}

TEST_F(CliTest, UnreachableNamesTheSocketAndTheRemedy) {
  StopServing();
  EXPECT_EQ(Run({"jobs"}), 6);
  EXPECT_EQ(out_, "");
  EXPECT_THAT(err_, HasSubstr(server_name_));
  EXPECT_THAT(err_, HasSubstr("muster up"));
  EXPECT_EQ(Run({"jobs", "--server", "example.org:7070"}), 2);
  EXPECT_THAT(err_, HasSubstr("muster login"));
}

// Listens and never accepts, as a daemon that is stopped.
class Deaf {
 public:
  Deaf(const std::string& path, int backlog) {
    address_.sun_family = AF_UNIX;
    EXPECT_LT(path.size(), sizeof address_.sun_path);
    path.copy(address_.sun_path, sizeof address_.sun_path - 1);
    listens_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(listens_, Address(), sizeof address_), 0);
    EXPECT_EQ(listen(listens_, backlog), 0);
  }
  ~Deaf() {
    close(listens_);
    for (const int caller : callers_) close(caller);
    unlink(address_.sun_path);
  }
  Deaf(const Deaf&) = delete;
  Deaf& operator=(const Deaf&) = delete;

  void FillUp() {
    for (int fd = -1; callers_.empty() || fd >= 0;) {
      callers_.push_back(fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (connect(fd, Address(), sizeof address_) != 0) fd = -1;
    }
    EXPECT_EQ(errno, EAGAIN);
  }
  // A caller is taken and told nothing.
  bool TakeOne() {
    struct pollfd waits = {listens_, POLLIN, 0};
    if (poll(&waits, 1, 30'000) != 1) return false;
    callers_.push_back(accept4(listens_, nullptr, nullptr, SOCK_CLOEXEC));
    return callers_.back() >= 0;
  }

 private:
  const sockaddr* Address() const { return reinterpret_cast<const sockaddr*>(&address_); }

  sockaddr_un address_{};
  int listens_ = -1;
  std::vector<int> callers_;
};

TEST_F(CliTest, WhoListensAndTakesNobodyIsThereAndIsNotWaitedForForEver) {
  StopServing();
  std::future<absl::Status> looked;
  {
    Deaf deaf(home_ + "/s", 1);
    deaf.FillUp();
    looked = std::async(std::launch::async, [this] { return CheckReachable(server_name_); });
    EXPECT_EQ(looked.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  }  // whoever hangs is refused
  EXPECT_TRUE(looked.get().ok());
}

TEST_F(CliTest, AnEmptySettingsFileSaysNothingAndAWrongOneIsToldWithItsRemedy) {
  const auto with = [&](const std::string& file) {
    return absl::StrCat("HOME=", home_, " MUSTER_SERVER=", server_name_, " MUSTER_CONFIG=", file,
                        " ", MUSTER_BINARY, " jobs -o name > ", home_, "/out 2>&1");
  };
  EXPECT_EQ(WEXITSTATUS(system(with("/dev/null").c_str())), 0);
  EXPECT_EQ(WEXITSTATUS(system(with(Write("empty.yaml", "# nothing yet\n")).c_str())), 0);
  EXPECT_EQ(WEXITSTATUS(system(with(Write("wrong.yaml", "curent_context: lab\n")).c_str())), 2);
  std::ifstream said(home_ + "/out");
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(said), {}),
              HasSubstr("Did you mean current_context?"));
}

TEST_F(CliTest, UsageErrorsAreExitTwoOnStderr) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"nope"},
                                             {"jobs", "--nope"},
                                             {"show"},
                                             {"jobs", "-o", "xml"},
                                             {"logs", "7", "--rank", "-3"},
                                             {"jobs", "--columns", "nope"},
                                             {"jobs", "--state", "asleep"},
                                             {"submit", "/nope.yaml"}}) {
    EXPECT_EQ(Run(arguments), 2) << absl::StrJoin(arguments, " ");
    EXPECT_EQ(out_, "");
    EXPECT_THAT(err_, HasSubstr("muster: "));
  }
  EXPECT_EQ(Run({"jbos"}), 2);
  EXPECT_THAT(err_, HasSubstr("no such command or option: jbos. Did you mean jobs?"));
  EXPECT_EQ(Run({"jobs", "--ouput", "json"}), 2);
  EXPECT_THAT(err_, HasSubstr("no such option: --ouput. Did you mean --output?"));
  EXPECT_EQ(Run({"squeue"}), 2);
  EXPECT_THAT(err_, HasSubstr("no such command or option: squeue. Did you mean jobs?"));
  EXPECT_EQ(Run({"estimate"}), 2);
  EXPECT_THAT(err_, HasSubstr("no such command or option: estimate. Did you mean muster-trainer "
                              "estimate --config FILE.json?"));
  EXPECT_EQ(Run({"checkpoints", "49"}), 2);
  EXPECT_THAT(err_, HasSubstr("no such command or option: 49. Did you mean muster checkpoints "
                              "list 49?"));
  EXPECT_EQ(Run({"history", "7"}), 2);
  EXPECT_THAT(err_, HasSubstr("does not take this: 7"));
}

TEST_F(CliTest, TheParsersSentencesAreInOurWords) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"run", "--name", "a", "--name", "b", "--", "true"},
       "--name stands there 2 times; write it once"},
      {{"jobs", "--owner"}, "--owner wants a value behind it: TEXT"},
      {{"run", "-C", ".", "--workdir", "/x", "--", "true"}, " don't go together; leave one"},
  };
  for (const auto& [line, told] : cases) {
    EXPECT_EQ(Run(line), 2);
    EXPECT_THAT(err_, HasSubstr(told));
  }
}

TEST_F(CliTest, AFilterThatNothingPassesIsNotSaidToBeNoJobs) {
  jobs_.listing = std::vector<pb::Job>();
  EXPECT_EQ(Run({"jobs", "--owner", "nobody"}), 0);
  EXPECT_EQ(err_, "No such jobs.\n");
  EXPECT_EQ(Run({"history", "--owner", "nobody"}), 0);
  EXPECT_EQ(err_, "No such jobs.\n");
  EXPECT_EQ(Run({"jobs"}), 0);
  EXPECT_EQ(err_, "No unfinished jobs.  Finished ones: muster history\n");
}

TEST_F(CliTest, OutputThatCantBeWrittenIsToldAndNeverExitZero) {
  const char kTold[] = "muster: cannot write the output: No space left on device\n";
  jobs_.logs = {"one\n", "two\n"};
  jobs_.watch = Watching({JobIn(pb::RUNNING, pb::TASK_RUNNING)});
  for (const char* line :
       {"muster queue export", "muster show 7 --spec", "muster jobs -o json", "muster logs 7",
        "muster --help", "muster attach 7", "muster top --watch", "muster jobs --watch"}) {
    EXPECT_EQ(Shell(absl::StrCat(line, " > /dev/full")), 6) << line;
    EXPECT_EQ(err_, kTold) << line;
  }
  EXPECT_EQ(Shell("muster jobs -o json > /dev/null"), 0) << err_;
  EXPECT_EQ(Shell("muster cancel 7 8 > /dev/full"), 6);
  EXPECT_EQ(jobs_.cancels, 2) << "what it does, it does";
  jobs_.watch = Watching({JobIn(pb::FAILED, pb::TASK_FAILED)});
  EXPECT_EQ(Shell("muster run -- false > /dev/full"), 1) << "the job's own";
  EXPECT_THAT(err_, HasSubstr(kTold));
}

TEST_F(CliTest, AReaderThatLeavesEndsItQuietlyEvenWhereSigpipeIsIgnored) {
  jobs_.stream_logs = [](grpc::ServerContext* context, const pb::LogsRequest&,
                         grpc::ServerWriter<pb::LogsResponse>* writer) {
    pb::LogsResponse chunk;
    chunk.set_data("a line\n");
    while (!context->IsCancelled() && writer->Write(chunk)) {
    }
    return grpc::Status::OK;
  };
  EXPECT_EQ(Shell("trap '' PIPE; muster logs -f 7 | head -n 1 > /dev/null; exit ${PIPESTATUS[0]}"),
            128 + SIGPIPE);
  EXPECT_EQ(err_, "");
}

TEST_F(CliTest, HelpIsAlsoAWord) {
  EXPECT_EQ(Run({"--help"}), 0);
  const std::string whole = out_;
  EXPECT_EQ(Run({"help"}), 0);
  EXPECT_EQ(out_, whole);
  EXPECT_EQ(Run({"queue", "apply", "--help"}), 0);
  const std::string command = out_;
  EXPECT_EQ(Run({"help", "queue", "apply"}), 0);
  EXPECT_EQ(out_, command);
}

TEST_F(CliTest, ServerRefusalsMapToTheirExitCodes) {
  const std::pair<grpc::StatusCode, int> codes[] = {
      {grpc::NOT_FOUND, 3}, {grpc::PERMISSION_DENIED, 4}, {grpc::INVALID_ARGUMENT, 2}};
  for (const auto& [status, code] : codes) {
    jobs_.get_status = grpc::Status(status, "because");
    EXPECT_EQ(Run({"show", "7"}), code);
    EXPECT_THAT(err_, HasSubstr("because"));
  }
  std::string file =
      Write("queues.yaml", "queues: [{name: research, quota: {cpu-slot: {weight: 2}}}]\n");
  EXPECT_EQ(Run({"queue", "apply", file, "--if-version", "3"}), 5);
  EXPECT_EQ(Run({"queue", "diff", file}), 0);
  EXPECT_EQ(out_, "research: weight 1 -> 2\n");
  EXPECT_THAT(err_, HasSubstr("Nothing was changed.  Apply: muster queue apply " + file +
                              " --if-version 4"));
}

TEST_F(CliTest, ListReadsAllPagesUpToTheLimit) {
  EXPECT_EQ(Run({"jobs", "-o", "name"}), 0);
  EXPECT_EQ(out_, "10\n9\n8\n7\n6\n5\n");
  EXPECT_EQ(Run({"jobs", "-o", "name", "--limit", "2"}), 0);
  EXPECT_EQ(out_, "10\n9\n");
  EXPECT_THAT(err_, HasSubstr("more than 2"));
  EXPECT_EQ(Run({"jobs"}), 0);
  EXPECT_THAT(out_, HasSubstr("10  hello  research  running"));
  EXPECT_THAT(out_, Not(HasSubstr("\x1b")));
}

TEST_F(CliTest, FollowEndsWithTheJobsOutcome) {
  const std::tuple<pb::JobState, pb::TaskState, int> outcomes[] = {
      {pb::SUCCEEDED, pb::TASK_SUCCEEDED, 0},
      {pb::FAILED, pb::TASK_FAILED, 1},
      {pb::CANCELLED, pb::TASK_CANCELLED, 8}};
  for (const auto& [state, task_state, code] : outcomes) {
    jobs_.watch = Watching({JobIn(pb::RUNNING, pb::TASK_RUNNING), JobIn(state, task_state)});
    EXPECT_EQ(Run({"attach", "7"}), code);
    EXPECT_THAT(out_, HasSubstr("main  attempt 1 runs on lab/h1"));
    EXPECT_THAT(out_, HasSubstr("Job 7 hello "));
    EXPECT_EQ(err_, "");
    EXPECT_EQ(Run({"wait", "7"}), code);
    EXPECT_EQ(out_ + err_, "");
  }
}

TEST_F(CliTest, CtrlCStopsFollowingAndNeverTouchesTheJob) {
  jobs_.watch = Watching({JobIn(pb::RUNNING, pb::TASK_RUNNING)});
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"attach", "7"}, {"submit", "-y", Write("hello.yaml", kHello)}}) {
    Process process(arguments, home_, server_name_);
    ASSERT_TRUE(process.ReadUntil("attempt 1 runs on lab/h1")) << process.out << process.err;
    process.Interrupt();
    EXPECT_EQ(process.Wait(), 130);
    EXPECT_THAT(
        process.err,
        HasSubstr("Job 7 is still running.  Follow: muster attach 7   Stop it: muster cancel 7"));
    EXPECT_EQ(jobs_.cancels, 0);
  }
}

TEST_F(CliTest, OnATerminalItAsksDrawsABarAndCtrlCIsTheSame) {
  pb::Job job = JobIn(pb::RUNNING, pb::TASK_RUNNING);
  pb::Progress* progress = job.mutable_tasks(0)->mutable_progress();
  progress->set_attempt(1);
  progress->set_step(1);
  progress->set_total_steps(4);
  progress->set_at_ns(1);
  jobs_.watch = Watching({job, job});
  std::atomic<int> submitted{0};
  jobs_.submit = [&](const pb::SubmitRequest&, pb::SubmitResponse*) {
    ++submitted;
    return grpc::Status::OK;
  };
  std::string path = Write("hello.yaml", kHello);
  Process no(Process::OnTerminal(), {"submit", path}, home_, server_name_);
  ASSERT_TRUE(no.ReadUntil("Submit? [Y/n] ")) << no.out;
  no.Type("n\n");
  EXPECT_EQ(no.Wait(), 0);
  EXPECT_THAT(no.out, HasSubstr("Nothing was submitted."));
  EXPECT_EQ(submitted, 0);

  Process stopped(Process::OnTerminal(), {"submit", path}, home_, server_name_);
  ASSERT_TRUE(stopped.ReadUntil("Submit? [Y/n] "));
  stopped.Type("\x03");
  EXPECT_EQ(stopped.Wait(), 130);
  EXPECT_EQ(submitted, 0);

  Process yes(Process::OnTerminal(), {"submit", path}, home_, server_name_);
  ASSERT_TRUE(yes.ReadUntil("Submit? [Y/n] "));
  yes.Type("\n");
  ASSERT_TRUE(yes.ReadUntil("\x1b[1A\r\x1b[J")) << yes.out;  // the bar is redrawn in its place
  EXPECT_THAT(yes.out, HasSubstr("━━━━━╸"));
  yes.Type("\x03");
  EXPECT_EQ(yes.Wait(), 130);
  EXPECT_THAT(yes.out, HasSubstr("Follow: muster attach 7   Stop it: muster cancel 7"));
  EXPECT_EQ(submitted, 1);
  EXPECT_EQ(jobs_.cancels, 0);
}

TEST_F(CliTest, FollowOutlivesTheServer) {
  jobs_.watch = Watching({JobIn(pb::RUNNING, pb::TASK_RUNNING)});
  Process process({"attach", "7"}, home_, server_name_);
  ASSERT_TRUE(process.ReadUntil("attempt 1 runs on lab/h1"));
  StopServing();
  ASSERT_TRUE(process.ReadUntil("No contact with the server; the job goes on"));
  jobs_.watch =
      Watching({JobIn(pb::RUNNING, pb::TASK_RUNNING), JobIn(pb::SUCCEEDED, pb::TASK_SUCCEEDED)});
  Serve();
  EXPECT_EQ(process.Wait(), 0);
  const size_t back = process.err.find("The server is back.");
  EXPECT_NE(back, std::string::npos);
  EXPECT_EQ(process.err.find("The server is back.", back + 1), std::string::npos) << "once";
  EXPECT_THAT(process.out, HasSubstr("Job 7 hello succeeded"));
}

TEST_F(CliTest, FollowOutlivesAServerThatCancelsWhatHasNotEnded) {
  std::atomic<int> calls{0};
  jobs_.watch = [&, ends = Watching({JobIn(pb::SUCCEEDED, pb::TASK_SUCCEEDED)})](
                    grpc::ServerContext* context,
                    grpc::ServerWriter<pb::WatchJobResponse>* writer) {
    if (++calls > 1) return ends(context, writer);
    pb::WatchJobResponse response;
    *response.mutable_job() = JobIn(pb::RUNNING, pb::TASK_RUNNING);
    writer->Write(response);
    return grpc::Status(grpc::CANCELLED, "Cancelled on the server side");
  };
  for (const char* command : {"wait", "attach"}) {
    calls = 0;
    EXPECT_EQ(Run({command, "7"}), 0) << err_;
    EXPECT_EQ(calls, 2) << command;
  }
}

TEST_F(CliTest, WaitGivesUpAfterItsTimeout) {
  jobs_.watch = Watching({JobIn(pb::RUNNING, pb::TASK_RUNNING)});
  EXPECT_EQ(Run({"wait", "7", "--timeout", "50ms"}), 124);
  EXPECT_THAT(err_, HasSubstr("It goes on"));
}

TEST_F(CliTest, WaitHasOneTimeoutForAllJobs) {
  jobs_.watch = [ends = Watching({JobIn(pb::SUCCEEDED, pb::TASK_SUCCEEDED)})](
                    grpc::ServerContext* context,
                    grpc::ServerWriter<pb::WatchJobResponse>* writer) {
    poll(nullptr, 0, 400);  // what each job takes
    return ends(context, writer);
  };
  EXPECT_EQ(Run({"wait", "7", "8", "9", "--timeout", "1s"}), 124);
  EXPECT_THAT(err_, HasSubstr("has not ended within 1.0 s"));
}

TEST_F(CliTest, SubmitSendsTheFilesSpecWithTheOnlyQueueAndOneKey) {
  std::mutex mutex;
  std::vector<pb::SubmitRequest> seen;
  jobs_.submit = [&](const pb::SubmitRequest& request, pb::SubmitResponse*) {
    std::lock_guard<std::mutex> lock(mutex);
    seen.push_back(request);
    return seen.size() == 1 ? grpc::Status(grpc::UNAVAILABLE, "restarting") : grpc::Status::OK;
  };
  EXPECT_EQ(Run({"submit", "-o", "name", Write("hello.yaml", kHello)}), 0) << err_;
  EXPECT_EQ(out_, "7\n");
  ASSERT_EQ(seen.size(), 2u);  // the first answer was lost: the same key again
  EXPECT_EQ(seen[0].idempotency_key(), seen[1].idempotency_key());
  EXPECT_EQ(seen[0].idempotency_key().size(), 32u);
  EXPECT_EQ(seen[1].spec().queue(), "research");
  EXPECT_EQ(seen[1].spec().tasks(0).run().shell(), "echo hello");
  EXPECT_EQ(seen[1].spec().tasks(0).resources().gpus_milli(), 1000);
}

TEST_F(CliTest, ASubmissionWithoutAnAnswerIsRepeatedThenToldWithItsKey) {
  std::mutex mutex;
  std::vector<std::string> keys;
  size_t answers_from = 3;
  jobs_.submit = [&](const pb::SubmitRequest& request, pb::SubmitResponse*) {
    std::lock_guard<std::mutex> lock(mutex);
    keys.push_back(request.idempotency_key());
    return keys.size() < answers_from ? grpc::Status(grpc::DEADLINE_EXCEEDED, "Deadline Exceeded")
                                      : grpc::Status::OK;
  };
  const std::string path = Write("hello.yaml", kHello);
  EXPECT_EQ(Run({"submit", "-o", "name", path}), 0) << err_;
  ASSERT_EQ(keys.size(), 3u);
  EXPECT_THAT(keys, ::testing::Each(keys[0]));
  answers_from = SIZE_MAX;
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"submit", "-y", "-d", path}, {"run", "-d", "--", "true"}}) {
    keys.clear();
    EXPECT_EQ(Run(command), 6);
    ASSERT_GT(keys.size(), 1u);
    EXPECT_THAT(err_, HasSubstr("the job may have been submitted, or not.\n  Safe to repeat: the "
                                "same command with --idempotency-key " +
                                keys[0] + "\n"));
    EXPECT_THAT(err_, Not(HasSubstr("muster up")));
  }
  answers_from = 0;
  keys.clear();
  EXPECT_EQ(Run({"run", "-d", "--idempotency-key", "mine", "--", "true"}), 0) << err_;
  EXPECT_THAT(keys, ::testing::ElementsAre("mine"));
}

TEST_F(CliTest, SetPutsAValueOverTheFiles) {
  pb::JobSpec spec;
  jobs_.submit = [&](const pb::SubmitRequest& request, pb::SubmitResponse*) {
    spec = request.spec();
    return grpc::Status::OK;
  };
  const std::string path = Write("hello.yaml", kHello);
  EXPECT_EQ(Run({"submit", "-o", "name", "--set", "resources.gpus=2", "--set", "env.GREETING=a b",
                 "--set", "workers={min: 1, max: 3}", path}),
            0)
      << err_;
  EXPECT_EQ(spec.tasks(0).resources().gpus_milli(), 2000);
  EXPECT_EQ(spec.tasks(0).resources().gpu_types(0), "cpu-slot");
  EXPECT_EQ(spec.env().at("GREETING"), "a b");
  EXPECT_EQ(spec.tasks(0).workers().max(), 3);
  EXPECT_EQ(Run({"submit", path, "--set", "resources.gpu=2"}), 2);
  EXPECT_THAT(err_, HasSubstr("resources.gpu: no such field. Did you mean gpus?"));
  EXPECT_EQ(Run({"validate", "--offline", path, "--set", "workers=0"}), 2);
}

TEST_F(CliTest, TheServersNotYetIsNotTakenForAServerThatIsAway) {
  int asked = 0;
  jobs_.preview = [&](const pb::PreviewRequest&, pb::PreviewResponse*) {
    google::rpc::ErrorInfo info;
    info.set_reason("TRAINER_SCHEMA_UNKNOWN");
    google::rpc::Status status;
    status.add_details()->PackFrom(info);
    return ++asked < 3 ? grpc::Status(grpc::UNAVAILABLE, "its schema isn't known",
                                      status.SerializeAsString())
                       : grpc::Status::OK;
  };
  EXPECT_EQ(Run({"submit", "-o", "name", Write("hello.yaml", kHello)}), 0)
      << "asked again: " << err_;
  asked = -100;
  EXPECT_EQ(Run({"submit", "-y", Write("hello.yaml", kHello)}), 6);
  EXPECT_EQ(err_, "muster: its schema isn't known\n");
  EXPECT_LE(asked, -100 + 8) << "who answers that it can't yet is left more time after each try";
}

TEST_F(CliTest, OnATerminalADrainShowsWhomItStopsAndAsks) {
  std::string simulated;
  jobs_.simulate = [&](const pb::SimulateRequest& request, pb::SimulateResponse* response) {
    simulated = request.drain(0);
    auto* effect = response->add_effects();
    effect->set_job(368);
    effect->set_stopped_ns(1);
    effect->set_cause(pb::DRAIN);
    return grpc::Status::OK;
  };
  Process no(Process::OnTerminal(), {"host", "drain", "lab/h1"}, home_, server_name_);
  ASSERT_TRUE(no.ReadUntil("Drain lab/h1? [y/N] ")) << no.out;
  EXPECT_THAT(no.out, HasSubstr("368"));
  no.Type("\n");
  EXPECT_EQ(no.Wait(), 0);
  EXPECT_THAT(no.out, HasSubstr("Nothing was drained."));
  EXPECT_EQ(simulated, "lab/h1");
  simulated.clear();
  Process yes(Process::OnTerminal(), {"host", "drain", "lab/h1", "--yes"}, home_, server_name_);
  yes.Wait();
  EXPECT_EQ(simulated, "") << "it doesn't ask";
  EXPECT_EQ(yes.out.find("[y/N]"), std::string::npos);
}

TEST_F(CliTest, OnATerminalItIsAskedWhetherAHostIsOff) {
  Process no(Process::OnTerminal(), {"host", "confirm-off", "lab/h1"}, home_, server_name_);
  ASSERT_TRUE(no.ReadUntil("Is lab/h1 switched off? What still runs there would run twice. [y/N] "))
      << no.out;
  no.Type("\n");
  EXPECT_EQ(no.Wait(), 0);
  EXPECT_THAT(no.out, HasSubstr("Nothing was changed."));
  Process yes(Process::OnTerminal(), {"host", "confirm-off", "lab/h1", "-y"}, home_, server_name_);
  yes.Wait();
  EXPECT_EQ(yes.out.find("[y/N]"), std::string::npos);
}

TEST_F(CliTest, TheHelpOfEveryCommandNamesTheFlagsThatAllTake) {
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"jobs"}, {"queue", "apply"}, {"host", "drain"}, {"submit"}}) {
    std::vector<std::string> arguments = command;
    arguments.emplace_back("--help");
    EXPECT_EQ(Run(arguments), 0);
    for (const char* flag :
         {"--server", "--context", "-o table|wide|json|jsonl|yaml|name", "--columns"})
      EXPECT_THAT(out_, HasSubstr(flag)) << command[0];
  }
}

TEST_F(CliTest, QueueApplyTellsWhomItWouldTakeFrom) {
  const std::string path = Write("queues.yaml", "queues:\n  - name: research\n");
  EXPECT_EQ(Run({"queue", "apply", path, "--dry-run", "--detailed-exitcode"}), 0) << err_;
  queues_.evicts = true;
  EXPECT_EQ(Run({"queue", "apply", path, "--dry-run"}), 0);
  EXPECT_THAT(out_, HasSubstr("Takes from prod 5: 2 GPUs; it goes on with 1 worker\n"));
  EXPECT_EQ(Run({"queue", "apply", path, "--dry-run", "--detailed-exitcode"}), 7);
  EXPECT_EQ(Run({"queue", "diff", path, "--detailed-exitcode"}), 7);
  EXPECT_EQ(Run({"queue", "apply", path, "--detailed-exitcode"}), 2) << "only with --dry-run";
}

TEST_F(CliTest, AllProblemsOfAFileAreShownWithTheirPlaces) {
  std::string path =
      Write("bad.yaml", "name: hello\nqueue: nowhere\nresources: {gpu: 1}\nrun: echo\n");
  EXPECT_EQ(Run({"submit", path}), 2);
  EXPECT_THAT(err_, HasSubstr("2 problems, nothing was submitted"));
  EXPECT_THAT(err_, HasSubstr("3:13"));
  EXPECT_THAT(err_, HasSubstr("Did you mean gpus?"));
  EXPECT_THAT(err_, HasSubstr("2:8"));
  EXPECT_EQ(out_, "");
}

TEST_F(CliTest, TheServersFieldViolationsGetTheirPlacesInTheFile) {
  jobs_.preview = [](const pb::PreviewRequest&, pb::PreviewResponse*) {
    return BadRequest("resources.gpu_types[0]", "no such flavour today");
  };
  EXPECT_EQ(Run({"submit", "-y", Write("hello.yaml", kHello)}), 2);
  EXPECT_THAT(err_, HasSubstr("2:34"));
  EXPECT_THAT(err_, HasSubstr("resources.gpu_types[0]: no such flavour today"));
}

TEST_F(CliTest, AJobThatCanNeverStartIsExitTwoWithTheReasonUnlessItMayWaitForHosts) {
  jobs_.preview = [](const pb::PreviewRequest& request, pb::PreviewResponse*) {
    google::rpc::PreconditionFailure failure;
    auto* violation = failure.add_violations();
    violation->set_type("NEVER_FITS");
    violation->set_description("12 workers x 8 = 96 h100-80g in one cluster; phx has 64");
    google::rpc::ErrorInfo info;
    info.set_reason("WAIT_FOR_CAPACITY");
    google::rpc::Status status;
    status.add_details()->PackFrom(failure);
    status.add_details()->PackFrom(info);
    return request.wait_for_capacity()
               ? grpc::Status::OK
               : grpc::Status(grpc::FAILED_PRECONDITION, "never fits", status.SerializeAsString());
  };
  bool waits = false;
  jobs_.submit = [&](const pb::SubmitRequest& request, pb::SubmitResponse*) {
    waits = request.wait_for_capacity();
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"submit", "-y", Write("big.yaml", kHello)}), 2);
  EXPECT_THAT(err_, HasSubstr("big.yaml: this job can never start, nothing was submitted\n  12 "
                              "workers x 8 = 96 h100-80g in one cluster; phx has 64\n"
                              "  Hosts are on their way? muster submit "));
  EXPECT_FALSE(waits);
  EXPECT_EQ(Run({"submit", "-y", "-d", Write("big.yaml", kHello), "--wait-for-capacity"}), 0)
      << err_;
  EXPECT_TRUE(waits);
}

TEST_F(CliTest, PreviewOnlySubmitsNothingAndTellsOfEvictions) {
  jobs_.preview = [](const pb::PreviewRequest&, pb::PreviewResponse* response) {
    auto* candidate = response->add_candidates();
    candidate->set_cluster("lab");
    candidate->set_chosen(true);
    candidate->add_takes_from()->set_job(3);
    return grpc::Status::OK;
  };
  jobs_.submit = [](const pb::SubmitRequest&, pb::SubmitResponse*) {
    ADD_FAILURE() << "submitted";
    return grpc::Status::OK;
  };
  std::string path = Write("hello.yaml", kHello);
  EXPECT_EQ(Run({"submit", path, "--preview-only"}), 0);
  EXPECT_THAT(out_, HasSubstr("TAKES FROM"));
  EXPECT_EQ(Run({"submit", path, "--preview-only", "--detailed-exitcode"}), 7);
}

TEST_F(CliTest, SubmitShowsWhetherATrainersRanksFitTheirGpus) {
  const std::string trainer =
      Write("muster-trainer", "#!/bin/sh\ncat \"$3\" > " + home_ +
                                  "/asked\necho \"$4 $5 $6 $7 $8 $9\" >> " + home_ +
                                  "/asked\necho '{\"memory_bytes\": 96636764160, \"fits_with\": "
                                  "\"zero_stage: 3\", \"fits_with_bytes\": 64424509440}'\n");
  ASSERT_EQ(chmod(trainer.c_str(), 0755), 0);
  environment_ = {"MUSTER_BIN_DIR=" + home_};
  std::string flavour;
  jobs_.preview = [&](const pb::PreviewRequest& request, pb::PreviewResponse* response) {
    *response->mutable_resolved() = request.spec();
    response->mutable_resolved()->mutable_tasks(0)->set_trainer_json("{\"max_steps\": 3}");
    response->mutable_resolved()->mutable_tasks(0)->set_processes_per_worker(2);
    response->mutable_resolved()->mutable_tasks(0)->mutable_resources()->set_gpus_milli(2000);
    response->set_task(response->resolved().tasks(0).name());
    auto* candidate = response->add_candidates();
    candidate->set_cluster("lab");
    candidate->set_flavour(flavour);
    candidate->set_declared(flavour == "cpu-slot");
    candidate->set_workers(4);
    return grpc::Status::OK;
  };
  struct Case {
    const char *flavour, *said;
  };
  const Case cases[] = {
      {"h100-80g",
       "h100-80g: does not fit: a rank needs about 90.0 GiB, a GPU has 80. With zero_stage: 3 it "
       "needs about 60.0.\n"},
      {"h200-141g", "h200-141g: a rank needs about 90.0 of a GPU's 141 GiB.\n"},
      {"cpu-slot", ""},
      {"mystery", ""},
  };
  const std::string path = Write("hello.yaml", kHello);
  for (const Case& one : cases) {
    flavour = one.flavour;
    EXPECT_EQ(Run({"submit", path, "--preview-only"}), 0) << err_;
    if (*one.said != '\0')
      EXPECT_THAT(out_, HasSubstr(one.said));
    else
      EXPECT_THAT(out_, Not(HasSubstr("a rank needs")));
  }
  std::stringstream asked;
  asked << std::ifstream(home_ + "/asked").rdbuf();
  EXPECT_EQ(asked.str(), "{\"max_steps\": 3}--ranks 8 --device h200-141g --device-memory " +
                             std::to_string(int64_t{141} << 30) + "\n");
  // Without a trainer, or with one that can't tell, the preview stands alone.
  Write("muster-trainer", "#!/bin/sh\nexit 2\n");
  flavour = "h100-80g";
  EXPECT_EQ(Run({"submit", path, "--preview-only"}), 0) << err_;
  EXPECT_THAT(out_, ::testing::AllOf(HasSubstr("h100-80g"), Not(HasSubstr("a rank needs"))));
  // Its exit code is 3 where a rank doesn't fit: an answer, too.
  Write("muster-trainer", "#!/bin/sh\necho '{\"memory_bytes\": 96636764160}'\nexit 3\n");
  EXPECT_EQ(Run({"submit", path, "--preview-only"}), 0) << err_;
  EXPECT_THAT(
      out_,
      HasSubstr(
          "h100-80g: does not fit: a rank needs about 90.0 GiB, a GPU has 80. Take more workers"));
}

TEST_F(CliTest, SubmitSaysWhoChoosesALayoutThatNobodyKnowsYet) {
  std::string trainer;
  jobs_.preview = [&](const pb::PreviewRequest& request, pb::PreviewResponse* response) {
    *response->mutable_resolved() = request.spec();
    response->mutable_resolved()->mutable_tasks(0)->set_trainer_json(trainer);
    response->mutable_resolved()->mutable_tasks(0)->mutable_resources()->set_gpus_milli(2000);
    response->set_task(response->resolved().tasks(0).name());
    auto* candidate = response->add_candidates();
    candidate->set_cluster("lab");
    candidate->set_flavour("cpu-slot");
    candidate->set_declared(true);
    return grpc::Status::OK;
  };
  const std::string path = Write("hello.yaml", kHello);
  trainer = "{\"parallel\": \"auto\"}";
  EXPECT_EQ(Run({"submit", path, "--preview-only"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("parallel: auto: the ranks choose their layout when they start"));
  for (const char* other : {"{}", "{\"parallel\": {\"tp\": 2}}", "{\"parallel\": 3}"}) {
    trainer = other;
    EXPECT_EQ(Run({"submit", path, "--preview-only"}), 0) << err_;
    EXPECT_THAT(out_, Not(HasSubstr("the ranks choose"))) << other;
  }
}

TEST_F(CliTest, RunPutsTheJobsOutputOnStdoutAndAllElseOnStderr) {
  jobs_.logs = {"one\n", "two\n"};
  jobs_.watch =
      Watching({JobIn(pb::RUNNING, pb::TASK_RUNNING), JobIn(pb::SUCCEEDED, pb::TASK_SUCCEEDED)});
  pb::JobSpec spec;
  jobs_.submit = [&](const pb::SubmitRequest& request, pb::SubmitResponse*) {
    spec = request.spec();
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"run", "--gpus", "1", "--", "echo", "-n", "--gpus", "x y"}), 0) << err_;
  EXPECT_EQ(out_, "one\ntwo\n");
  EXPECT_THAT(err_, HasSubstr("Job 7 hello succeeded"));
  EXPECT_THAT(spec.tasks(0).run().exec(), ::testing::ElementsAre("echo", "-n", "--gpus", "x y"));
  EXPECT_THAT(spec.tasks(0).resources().gpu_types(), ::testing::ElementsAre("cpu-slot"));
}

TEST_F(CliTest, FollowedOutputGoesOnWhereItWasWhenTheServerWasAway) {
  int calls = 0;
  jobs_.stream_logs = [&](grpc::ServerContext*, const pb::LogsRequest& request,
                          grpc::ServerWriter<pb::LogsResponse>* writer) {
    pb::LogsResponse chunk;
    chunk.set_task("main");
    chunk.set_attempt(1);
    if (++calls == 1) {
      EXPECT_FALSE(request.has_from());
      chunk.set_data("one\n");
      chunk.set_next_offset(4);
      writer->Write(chunk);
      return grpc::Status(grpc::UNAVAILABLE, "Socket closed");
    }
    EXPECT_EQ(request.from().task(), "main");
    EXPECT_EQ(request.from().attempt(), 1);
    EXPECT_EQ(request.from().next_offsets().at(0), 4);
    if (calls == 2) return grpc::Status(grpc::UNAVAILABLE, "still away");
    chunk.set_data("two\n");
    chunk.set_next_offset(8);
    writer->Write(chunk);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"logs", "-f", "7"}), 0) << err_;
  EXPECT_EQ(out_, "one\ntwo\n");
  EXPECT_EQ(calls, 3);
  EXPECT_THAT(err_, HasSubstr("no contact with the server; the job goes on without it"));
  calls = 0;
  jobs_.watch =
      Watching({JobIn(pb::RUNNING, pb::TASK_RUNNING), JobIn(pb::SUCCEEDED, pb::TASK_SUCCEEDED)});
  EXPECT_EQ(Run({"run", "--", "true"}), 0) << err_;
  EXPECT_EQ(out_, "one\ntwo\n");
  EXPECT_THAT(err_, Not(HasSubstr("not complete")));
  calls = 0;
  EXPECT_EQ(Run({"logs", "7"}), 6) << "without --follow what is missing is told at once";
  EXPECT_EQ(out_, "one\n");
}

TEST_F(CliTest, AServerThatTakesLongToBeFoundAwayIsToldToBeAwayOnce) {
  std::atomic<int> calls{0};
  jobs_.stream_logs = [&](grpc::ServerContext* context, const pb::LogsRequest&,
                          grpc::ServerWriter<pb::LogsResponse>* writer) {
    pb::LogsResponse chunk;
    chunk.set_data(++calls == 1 ? "one\n" : "two\n");
    chunk.set_next_offset(4);
    writer->Write(chunk);
    while (calls == 1 && !context->IsCancelled()) poll(nullptr, 0, 5);
    return grpc::Status::OK;
  };
  Process process({"logs", "-f", "7"}, home_, server_name_);
  ASSERT_TRUE(process.ReadUntil("one\n")) << process.err;
  StopServing();
  {
    Deaf deaf(home_ + "/s", 8);
    EXPECT_TRUE(deaf.TakeOne());
    EXPECT_TRUE(deaf.TakeOne()) << "it is tried anew after 10 s";
  }
  Serve();
  EXPECT_EQ(process.Wait(), 0) << process.err;
  EXPECT_EQ(process.out, "one\ntwo\n");
  const std::string told = "no contact with the server";
  const size_t first = process.err.find(told);
  EXPECT_NE(first, std::string::npos);
  EXPECT_EQ(process.err.find(told, first + 1), std::string::npos) << process.err;
}

TEST_F(CliTest, OfAnEarlierAttemptNoPlaceIsKept) {
  int calls = 0;
  jobs_.stream_logs = [&](grpc::ServerContext*, const pb::LogsRequest& request,
                          grpc::ServerWriter<pb::LogsResponse>* writer) {
    if (++calls == 2) {
      EXPECT_EQ(request.from().attempt(), 2);
      EXPECT_EQ(request.from().next_offsets().size(), 1u) << "rank 1 begins where its log does";
      return grpc::Status::OK;
    }
    for (const int attempt : {1, 2}) {
      pb::LogsResponse chunk;
      chunk.set_task("main");
      chunk.set_attempt(attempt);
      chunk.set_rank(attempt == 1 ? 1 : 0);
      chunk.set_data("one\n");
      chunk.set_next_offset(4);
      writer->Write(chunk);
    }
    return grpc::Status(grpc::UNAVAILABLE, "Socket closed");
  };
  EXPECT_EQ(Run({"logs", "-f", "7"}), 0) << err_;
  EXPECT_EQ(calls, 2);
}

TEST_F(CliTest, OutputThatIsNotCompleteIsToldAndNeverExitZero) {
  const grpc::Status kMissing = [] {
    google::rpc::ErrorInfo info;
    info.set_reason("OUTPUT_INCOMPLETE");
    google::rpc::Status status;
    status.add_details()->PackFrom(info);
    return grpc::Status(grpc::UNAVAILABLE, "lab/h1 has disconnected", status.SerializeAsString());
  }();
  int64_t dropped = 0;
  grpc::Status ends = kMissing;
  jobs_.stream_logs = [&](grpc::ServerContext*, const pb::LogsRequest&,
                          grpc::ServerWriter<pb::LogsResponse>* writer) {
    pb::LogsResponse chunk;
    chunk.set_data("one\n");
    chunk.set_dropped_bytes(dropped);
    writer->Write(chunk);
    return ends;
  };
  jobs_.watch =
      Watching({JobIn(pb::RUNNING, pb::TASK_RUNNING), JobIn(pb::SUCCEEDED, pb::TASK_SUCCEEDED)});
  EXPECT_EQ(Run({"run", "--", "true"}), 6);
  EXPECT_THAT(err_, HasSubstr("muster: the output is not complete here: lab/h1 has disconnected  "
                              "All of it: muster logs 7\n"));
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"logs", "7"}, {"logs", "-f", "7"}}) {
    EXPECT_EQ(Run(command), 6);
    EXPECT_EQ(out_, "one\n");
    EXPECT_EQ(err_, "muster: lab/h1 has disconnected\n");
  }
  ends = grpc::Status::OK;
  dropped = 5;
  EXPECT_EQ(Run({"run", "--", "true"}), 6);
  EXPECT_EQ(Run({"logs", "7"}), 6);
  EXPECT_EQ(err_, "muster: 5 bytes of rank 0 were rotated away before they were read\n");
  jobs_.watch =
      Watching({JobIn(pb::RUNNING, pb::TASK_RUNNING), JobIn(pb::FAILED, pb::TASK_FAILED)});
  EXPECT_EQ(Run({"run", "--", "true"}), 1) << "the job's own";
}

TEST_F(CliTest, LinesOfSeveralRanksAreWholeAndProgressBarsAreLines) {
  jobs_.got.mutable_spec()->mutable_tasks(0)->mutable_workers()->set_max(2);
  using Chunk = std::pair<int, std::string>;
  const std::string kilobyte(1024, 'x');
  std::string long_line, held;
  for (int i = 0; i < 65; ++i) (i < 64 ? held : long_line) += kilobyte;
  const struct {
    std::vector<Chunk> chunks;
    std::string shown;
  } kCases[] = {
      {{{0, "a"}, {1, "b\n"}, {0, "c\nd"}}, "[1] b\n[0] ac\n[0] d\n"},
      {{{0, "\r 10%"}, {1, "b\n"}, {0, "\r 20%"}, {0, " of 5\r"}, {1, "c\n"}, {0, "\nd\r"}},
       "[1] b\n[0]  10%\n[1] c\n[0]  20% of 5\r\n[0] d\n"},
      {{{0, "\r"}, {0, "\r\r"}, {0, "\r\n\n"}}, "[0] \r\n[0] \n"},
      // One that never ends is held no further.
      {{{0, held + long_line}, {1, "b\n"}, {0, "\r"}, {0, "c"}},
       "[0] " + held + "\n[1] b\n[0] " + long_line + "\n[0] c\n"},
      {{{0, held.substr(1) + "\r"}, {0, "\nc"}}, "[0] " + held.substr(1) + "\r\n[0] c\n"},
  };
  for (const auto& c : kCases) {
    jobs_.stream_logs = [&](grpc::ServerContext*, const pb::LogsRequest&,
                            grpc::ServerWriter<pb::LogsResponse>* writer) {
      for (const auto& [rank, data] : c.chunks) {
        pb::LogsResponse chunk;
        chunk.set_rank(rank);
        chunk.set_data(data);
        writer->Write(chunk);
      }
      return grpc::Status::OK;
    };
    EXPECT_EQ(Run({"logs", "7"}), 0) << err_;
    EXPECT_EQ(out_, c.shown);
  }
}

TEST_F(CliTest, RunKeepsTheStreamsApartAndLogsKeepsThemTogether) {
  jobs_.logs = {"out 1\nerr 1\nout 2\nerr 2\n"};
  jobs_.logs_from_stderr = {{6, 12}, {18, 24}};
  jobs_.watch =
      Watching({JobIn(pb::RUNNING, pb::TASK_RUNNING), JobIn(pb::SUCCEEDED, pb::TASK_SUCCEEDED)});
  EXPECT_EQ(Run({"run", "--", "true"}), 0) << err_;
  EXPECT_EQ(out_, "out 1\nout 2\n");
  EXPECT_THAT(err_, HasSubstr("err 1\nerr 2\n"));
  EXPECT_EQ(Run({"logs", "7"}), 0);
  EXPECT_EQ(out_, "out 1\nerr 1\nout 2\nerr 2\n");
  jobs_.logs_from_stderr = {{6, 12}, {3, 99}};  // nonsense from a server harms nobody
  EXPECT_EQ(Run({"run", "--", "true"}), 0) << err_;
  EXPECT_EQ(out_, "out 1\n");
}

}  // namespace
}  // namespace muster
