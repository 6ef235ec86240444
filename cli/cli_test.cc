// The real binary against a scripted server on a Unix socket: exit codes, what goes to which stream, Ctrl+C, pages, refusals.
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <mutex>
#include <sstream>

#include <grpcpp/grpcpp.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cli/exit_code.h"
#include "cli/render/format.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "muster/v1/cluster_service.grpc.pb.h"
#include "muster/v1/job_service.grpc.pb.h"
#include "muster/v1/queue_service.grpc.pb.h"

extern char** environ;

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

grpc::Status BadRequest(const std::string& field, const std::string& description) {
  google::rpc::BadRequest bad;
  auto* violation = bad.add_field_violations();
  violation->set_field(field);
  violation->set_description(description);
  google::rpc::Status status;
  status.set_code(grpc::INVALID_ARGUMENT);
  status.add_details()->PackFrom(bad);
  return {grpc::INVALID_ARGUMENT, "the job is not valid", status.SerializeAsString()};
}

pb::Job JobIn(pb::JobState state, pb::TaskState task_state) {
  pb::Job job;
  job.set_number(7);
  job.set_state(state);
  job.mutable_spec()->set_name("hello");
  job.mutable_spec()->set_queue("research");
  job.mutable_spec()->add_tasks()->set_name("main");
  pb::Task* task = job.add_tasks();
  task->set_name("main");
  task->set_state(task_state);
  pb::Attempt* attempt = task->add_attempts();
  attempt->set_number(1);
  attempt->set_cluster("lab");
  attempt->add_placements()->set_host("h1");
  attempt->set_start_ns(1795269600000000000);
  attempt->set_state(task_state);
  if (HasEnded(state)) attempt->set_end_ns(1795269601000000000), job.set_end_ns(1795269601000000000);
  return job;
}

// Each method does what the test put into its member; the defaults are a quiet system with one queue.
struct Fake : pb::JobService::Service {
  std::function<grpc::Status(const pb::PreviewRequest&, pb::PreviewResponse*)> preview;
  std::function<grpc::Status(const pb::SubmitRequest&, pb::SubmitResponse*)> submit;
  std::function<grpc::Status(grpc::ServerContext*, grpc::ServerWriter<pb::WatchJobResponse>*)> watch;
  std::function<grpc::Status(const pb::ExplainRequest&, pb::ExplainResponse*)> explain;
  std::function<grpc::Status(const pb::SimulateRequest&, pb::SimulateResponse*)> simulate;
  pb::Job got = JobIn(pb::RUNNING, pb::TASK_RUNNING);
  grpc::Status get_status;
  std::vector<std::string> logs;
  std::vector<std::pair<int64_t, int64_t>> logs_from_stderr;   // of each of them
  std::atomic<int> cancels{0};

  grpc::Status Preview(grpc::ServerContext*, const pb::PreviewRequest* request, pb::PreviewResponse* response) override {
    return preview ? preview(*request, response) : grpc::Status::OK;
  }
  grpc::Status Explain(grpc::ServerContext*, const pb::ExplainRequest* request, pb::ExplainResponse* response) override { return explain(*request, response); }
  grpc::Status Simulate(grpc::ServerContext*, const pb::SimulateRequest* request, pb::SimulateResponse* response) override { return simulate(*request, response); }
  grpc::Status Submit(grpc::ServerContext*, const pb::SubmitRequest* request, pb::SubmitResponse* response) override {
    *response->mutable_job() = JobIn(pb::WAITING, pb::TASK_WAITING);
    *response->mutable_job()->mutable_spec() = request->spec();
    return submit ? submit(*request, response) : grpc::Status::OK;
  }
  grpc::Status Get(grpc::ServerContext*, const pb::GetJobRequest*, pb::Job* job) override {
    *job = got;
    return get_status;
  }
  grpc::Status List(grpc::ServerContext*, const pb::ListJobsRequest* request, pb::ListJobsResponse* response) override {
    int page = request->page_token().empty() ? 0 : std::stoi(request->page_token());
    for (int i = 0; i < 2; ++i) {
      *response->add_jobs() = JobIn(pb::RUNNING, pb::TASK_RUNNING);
      response->mutable_jobs(i)->set_number(static_cast<uint64_t>(10 - 2 * page - i));
    }
    if (page < 2) response->set_next_page_token(std::to_string(page + 1));
    return grpc::Status::OK;
  }
  grpc::Status Watch(grpc::ServerContext* context, const pb::WatchJobRequest*, grpc::ServerWriter<pb::WatchJobResponse>* writer) override { return watch(context, writer); }
  grpc::Status Cancel(grpc::ServerContext*, const pb::CancelJobRequest*, pb::Job* job) override {
    ++cancels;
    *job = JobIn(pb::RUNNING, pb::TASK_STOPPING);
    return grpc::Status::OK;
  }
  grpc::Status Logs(grpc::ServerContext*, const pb::LogsRequest*, grpc::ServerWriter<pb::LogsResponse>* writer) override {
    for (const std::string& data : logs) {
      pb::LogsResponse chunk;
      chunk.set_data(data);
      for (const auto& [begin, end] : logs_from_stderr) {
        chunk.add_from_stderr()->set_begin(begin);
        chunk.mutable_from_stderr(chunk.from_stderr_size() - 1)->set_end(end);
      }
      writer->Write(chunk);
    }
    return grpc::Status::OK;
  }
};

struct FakeQueues : pb::QueueService::Service {
  bool evicts = false;
  bool nested = false;                 // research has a queue of its own
  pb::QueueTree applied;
  grpc::Status List(grpc::ServerContext*, const pb::ListQueuesRequest*, pb::ListQueuesResponse* response) override {
    response->add_queues()->set_path("research");
    response->mutable_queues(0)->mutable_spec()->set_name("research");
    if (nested) {
      pb::Queue* leaf = response->add_queues();
      leaf->set_path("research/nlp");
      leaf->mutable_spec()->set_name("nlp");
      (*leaf->mutable_spec()->mutable_quota())["h100"].set_guarantee_milli(2000);
    }
    response->set_version(4);
    return grpc::Status::OK;
  }
  grpc::Status Apply(grpc::ServerContext*, const pb::ApplyQueuesRequest* request, pb::ApplyQueuesResponse* response) override {
    if (request->if_version() != 0 && request->if_version() != 4) return {grpc::ABORTED, "the queues are at version 4, not 3"};
    applied = request->tree();
    response->set_version(5);
    response->add_changes("research: weight 1 -> 2");
    if (request->dry_run() && evicts) {
      pb::PreviewResponse::Taken* taken = response->add_evicted();
      taken->set_job(5);
      taken->set_queue("prod");
      taken->set_gpus_milli(2000);
      taken->set_outcome("goes on with 1 worker");
    }
    return grpc::Status::OK;
  }
};

struct FakeClusters : pb::ClusterService::Service {
  grpc::Status ListClusters(grpc::ServerContext*, const pb::ListClustersRequest*, pb::ListClustersResponse* response) override {
    pb::Cluster* cluster = response->add_clusters();
    cluster->set_name("lab");
    pb::Capacity* capacity = cluster->add_capacity();
    capacity->set_flavour("cpu-slot");
    capacity->set_declared(true);
    capacity->set_total_milli(2000);
    return grpc::Status::OK;
  }
  grpc::Status Top(grpc::ServerContext*, const pb::TopRequest* request, pb::TopResponse* response) override {
    response->set_hosts_up(1);
    auto* row = response->add_rows();
    row->set_name(pb::TopRequest::By_Name(request->by()));
    row->set_job(request->by() == pb::TopRequest::JOB ? 7 : 0);
    row->set_flavour("cpu-slot");
    return grpc::Status::OK;
  }
  grpc::Status GetLedger(grpc::ServerContext*, const pb::GetLedgerRequest* request, pb::LedgerResponse* response) override {
    response->add_entries()->set_class_("productive");
    if (request->by() == pb::GetLedgerRequest::USER) response->add_rows()->set_name("ann");
    return grpc::Status::OK;
  }
  grpc::Status GetTrainerSchema(grpc::ServerContext*, const pb::GetTrainerSchemaRequest*, pb::GetTrainerSchemaResponse*) override { return grpc::Status::OK; }
};

// A running `muster`, its two streams read into strings; or on a terminal of 120 columns, all of it in `out`.
class Process {
 public:
  struct OnTerminal {};
  Process(OnTerminal, std::vector<std::string> arguments, const std::string& home, const std::string& server) {
    arguments.insert(arguments.begin(), MUSTER_BINARY);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    std::vector<std::string> variables = {"HOME=" + home, "TZ=UTC", "PATH=/usr/bin:/bin", "MUSTER_SERVER=" + server, "TERM=xterm", "LC_ALL=C.UTF-8"};
    std::vector<char*> envp;
    for (std::string& variable : variables) envp.push_back(variable.data());
    envp.push_back(nullptr);
    // Not forkpty: gRPC's fork handlers would wait for its threads. A new session's first terminal becomes its own.
    struct winsize size = {30, 120, 0, 0};
    int terminal = -1;
    char name[64];
    EXPECT_EQ(openpty(&fds_[0], &terminal, name, nullptr, &size), 0);
    fcntl(fds_[0], F_SETFD, FD_CLOEXEC);
    fcntl(terminal, F_SETFD, FD_CLOEXEC);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    for (int fd = 0; fd < 3; ++fd) posix_spawn_file_actions_addopen(&actions, fd, name, O_RDWR, 0);
    EXPECT_EQ(posix_spawn(&pid_, MUSTER_BINARY, &actions, &attributes, argv.data(), envp.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(terminal);
    fds_[1] = open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
  void Type(const std::string& keys) { EXPECT_EQ(write(fds_[0], keys.data(), keys.size()), static_cast<ssize_t>(keys.size())); }

  Process(std::vector<std::string> arguments, const std::string& home, const std::string& server, const std::vector<std::string>& environment = {}) {
    int out[2], err[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(err, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_adddup2(&actions, err[1], 2);
    arguments.insert(arguments.begin(), MUSTER_BINARY);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    std::vector<std::string> variables = {"HOME=" + home, "TZ=UTC", "PATH=/usr/bin:/bin", "MUSTER_SERVER=" + server};
    variables.insert(variables.end(), environment.begin(), environment.end());
    std::vector<char*> envp;
    for (std::string& variable : variables) envp.push_back(variable.data());
    envp.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, MUSTER_BINARY, &actions, nullptr, argv.data(), envp.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(err[1]);
    fds_[0] = out[0];
    fds_[1] = err[0];
  }
  ~Process() {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    close(fds_[0]);
    close(fds_[1]);
  }
  void Interrupt() { kill(pid_, SIGINT); }
  // Reads until either stream holds `text`; false: they ended without, or 30 s went by.
  bool ReadUntil(const std::string& text) {
    return Read([&] { return absl::StrContains(out, text) || absl::StrContains(err, text); });
  }
  int Wait() {
    Read([] { return false; });
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  std::string out, err;

 private:
  bool Read(const std::function<bool()>& enough) {
    auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    bool open[2] = {true, true};
    while (!enough()) {
      if ((!open[0] && !open[1]) || std::chrono::steady_clock::now() > end) return false;
      struct pollfd polls[2] = {{open[0] ? fds_[0] : -1, POLLIN, 0}, {open[1] ? fds_[1] : -1, POLLIN, 0}};
      poll(polls, 2, 1000);
      for (int i = 0; i < 2; ++i) {
        if (polls[i].revents == 0) continue;
        char buffer[4096];
        ssize_t count = read(fds_[i], buffer, sizeof buffer);
        if (count <= 0) {
          open[i] = false;
        } else {
          (i == 0 ? out : err).append(buffer, static_cast<size_t>(count));
        }
      }
    }
    return true;
  }

  pid_t pid_ = -1;
  int fds_[2];
};

class CliTest : public ::testing::Test {
 protected:
  CliTest() {
    char name[] = "/tmp/muster-cli-test-XXXXXX";
    home_ = mkdtemp(name);
    server_name_ = absl::StrCat("unix://", home_, "/s");
    Serve();
  }
  ~CliTest() override {
    StopServing();
    EXPECT_EQ(system(("rm -rf " + home_).c_str()), 0);
  }
  void Serve() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(server_name_, grpc::InsecureServerCredentials());
    builder.RegisterService(&jobs_);
    builder.RegisterService(&queues_);
    builder.RegisterService(&clusters_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  void StopServing() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  int Run(std::vector<std::string> arguments) {
    Process process(std::move(arguments), home_, server_name_, environment_);
    int code = process.Wait();
    out_ = process.out;
    err_ = process.err;
    return code;
  }
  std::string Write(const std::string& name, const std::string& text) {
    std::string path = home_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  // The job as given, then (if ended) the stream's end; else until the client hangs up.
  static auto Watching(std::vector<pb::Job> states) {
    return [states](grpc::ServerContext* context, grpc::ServerWriter<pb::WatchJobResponse>* writer) {
      for (const pb::Job& job : states) {
        pb::WatchJobResponse response;
        *response.mutable_job() = job;
        writer->Write(response);
      }
      while (!HasEnded(states.back().state()) && !context->IsCancelled()) poll(nullptr, 0, 5);
      return grpc::Status::OK;
    };
  }

  std::string home_, server_name_, out_, err_;
  std::vector<std::string> environment_;  // of what Run starts, beside the usual
  Fake jobs_;
  FakeQueues queues_;
  FakeClusters clusters_;
  std::unique_ptr<grpc::Server> server_;
};

constexpr char kHello[] = "name: hello\nresources: {gpus: 1, gpu_types: [cpu-slot]}\nrun: echo hello\n";

TEST(ExitCodeTest, EveryStatusHasItsDocumentedCode) {
  const std::pair<absl::StatusCode, int> codes[] = {
      {absl::StatusCode::kOk, 0}, {absl::StatusCode::kInvalidArgument, 2}, {absl::StatusCode::kFailedPrecondition, 2}, {absl::StatusCode::kAlreadyExists, 2},
      {absl::StatusCode::kNotFound, 3}, {absl::StatusCode::kPermissionDenied, 4}, {absl::StatusCode::kUnauthenticated, 4}, {absl::StatusCode::kAborted, 5},
      {absl::StatusCode::kUnavailable, 6}, {absl::StatusCode::kDeadlineExceeded, 6}, {absl::StatusCode::kInternal, 6}, {absl::StatusCode::kCancelled, 130}};
  for (const auto& [status, code] : codes) EXPECT_EQ(ExitCodeFor(absl::Status(status, "x")), code) << absl::StatusCodeToString(status);
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
  EXPECT_THAT(err_, HasSubstr("TLS"));
}

TEST_F(CliTest, AnEmptySettingsFileSaysNothingAndAWrongOneIsToldWithItsRemedy) {
  const auto with = [&](const std::string& file) { return absl::StrCat("HOME=", home_, " MUSTER_SERVER=", server_name_, " MUSTER_CONFIG=", file, " ", MUSTER_BINARY, " jobs -o name > ", home_, "/out 2>&1"); };
  EXPECT_EQ(WEXITSTATUS(system(with("/dev/null").c_str())), 0);
  EXPECT_EQ(WEXITSTATUS(system(with(Write("empty.yaml", "# nothing yet\n")).c_str())), 0);
  EXPECT_EQ(WEXITSTATUS(system(with(Write("wrong.yaml", "curent_context: lab\n")).c_str())), 2);
  std::ifstream said(home_ + "/out");
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(said), {}), HasSubstr("Did you mean current_context?"));
}

TEST_F(CliTest, UsageErrorsAreExitTwoOnStderr) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{{}, {"nope"}, {"jobs", "--nope"}, {"show"}, {"jobs", "-o", "xml"}, {"logs", "7", "--rank", "-3"},
                                                                                        {"jobs", "--columns", "nope"}, {"jobs", "--state", "asleep"}, {"submit", "/nope.yaml"}}) {
    EXPECT_EQ(Run(arguments), 2) << absl::StrJoin(arguments, " ");
    EXPECT_EQ(out_, "");
    EXPECT_THAT(err_, HasSubstr("muster: "));
  }
  EXPECT_EQ(Run({"jbos"}), 2);
  EXPECT_THAT(err_, HasSubstr("no such command or option: jbos. Did you mean jobs?"));
  EXPECT_EQ(Run({"jobs", "--ouput", "json"}), 2);
  EXPECT_THAT(err_, HasSubstr("no such option: --ouput. Did you mean --output?"));
  EXPECT_EQ(Run({"jobs", "7"}), 2);
  EXPECT_THAT(err_, HasSubstr("does not take this: 7"));
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
  const std::pair<grpc::StatusCode, int> codes[] = {{grpc::NOT_FOUND, 3}, {grpc::PERMISSION_DENIED, 4}, {grpc::INVALID_ARGUMENT, 2}};
  for (const auto& [status, code] : codes) {
    jobs_.get_status = grpc::Status(status, "because");
    EXPECT_EQ(Run({"show", "7"}), code);
    EXPECT_THAT(err_, HasSubstr("because"));
  }
  std::string file = Write("queues.yaml", "queues: [{name: research, quota: {cpu-slot: {weight: 2}}}]\n");
  EXPECT_EQ(Run({"queue", "apply", file, "--if-version", "3"}), 5);
  EXPECT_EQ(Run({"queue", "diff", file}), 0);
  EXPECT_EQ(out_, "research: weight 1 -> 2\n");
  EXPECT_THAT(err_, HasSubstr("Nothing was changed.  Apply: muster queue apply " + file + " --if-version 4"));
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
  const std::tuple<pb::JobState, pb::TaskState, int> outcomes[] = {{pb::SUCCEEDED, pb::TASK_SUCCEEDED, 0}, {pb::FAILED, pb::TASK_FAILED, 1}, {pb::CANCELLED, pb::TASK_CANCELLED, 8}};
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
  for (std::vector<std::string> arguments : {std::vector<std::string>{"attach", "7"}, {"submit", "-y", Write("hello.yaml", kHello)}}) {
    Process process(arguments, home_, server_name_);
    ASSERT_TRUE(process.ReadUntil("attempt 1 runs on lab/h1")) << process.out << process.err;
    process.Interrupt();
    EXPECT_EQ(process.Wait(), 130);
    EXPECT_THAT(process.err, HasSubstr("Job 7 is still running.  Follow: muster attach 7   Stop it: muster cancel 7"));
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
  jobs_.watch = Watching({JobIn(pb::SUCCEEDED, pb::TASK_SUCCEEDED)});
  Serve();
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_THAT(process.err, HasSubstr("The server is back."));
  EXPECT_THAT(process.out, HasSubstr("Job 7 hello succeeded"));
}

TEST_F(CliTest, WaitGivesUpAfterItsTimeout) {
  jobs_.watch = Watching({JobIn(pb::RUNNING, pb::TASK_RUNNING)});
  EXPECT_EQ(Run({"wait", "7", "--timeout", "50ms"}), 124);
  EXPECT_THAT(err_, HasSubstr("It goes on"));
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

TEST_F(CliTest, SetPutsAValueOverTheFiles) {
  pb::JobSpec spec;
  jobs_.submit = [&](const pb::SubmitRequest& request, pb::SubmitResponse*) {
    spec = request.spec();
    return grpc::Status::OK;
  };
  const std::string path = Write("hello.yaml", kHello);
  EXPECT_EQ(Run({"submit", "-o", "name", "--set", "resources.gpus=2", "--set", "env.GREETING=a b", "--set", "workers={min: 1, max: 3}", path}), 0) << err_;
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
    return ++asked < 3 ? grpc::Status(grpc::UNAVAILABLE, "its schema isn't known", status.SerializeAsString()) : grpc::Status::OK;
  };
  EXPECT_EQ(Run({"submit", "-o", "name", Write("hello.yaml", kHello)}), 0) << "asked again: " << err_;
  asked = -100;
  EXPECT_EQ(Run({"submit", "-y", Write("hello.yaml", kHello)}), 6);
  EXPECT_EQ(err_, "muster: its schema isn't known\n");
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

TEST_F(CliTest, TheHelpOfEveryCommandNamesTheFlagsThatAllTake) {
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{{"jobs"}, {"queue", "apply"}, {"host", "drain"}, {"submit"}}) {
    std::vector<std::string> arguments = command;
    arguments.push_back("--help");
    EXPECT_EQ(Run(arguments), 0);
    for (const char* flag : {"--server", "--context", "-o table|wide|json|jsonl|yaml|name", "--columns"}) EXPECT_THAT(out_, HasSubstr(flag)) << command[0];
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
  std::string path = Write("bad.yaml", "name: hello\nqueue: nowhere\nresources: {gpu: 1}\nrun: echo\n");
  EXPECT_EQ(Run({"submit", path}), 2);
  EXPECT_THAT(err_, HasSubstr("2 problems, nothing was submitted"));
  EXPECT_THAT(err_, HasSubstr("3:13"));
  EXPECT_THAT(err_, HasSubstr("Did you mean gpus?"));
  EXPECT_THAT(err_, HasSubstr("2:8"));
  EXPECT_EQ(out_, "");
}

TEST_F(CliTest, TheServersFieldViolationsGetTheirPlacesInTheFile) {
  jobs_.preview = [](const pb::PreviewRequest&, pb::PreviewResponse*) { return BadRequest("resources.gpu_types[0]", "no such flavour today"); };
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
    return request.wait_for_capacity() ? grpc::Status::OK : grpc::Status(grpc::FAILED_PRECONDITION, "never fits", status.SerializeAsString());
  };
  bool waits = false;
  jobs_.submit = [&](const pb::SubmitRequest& request, pb::SubmitResponse*) {
    waits = request.wait_for_capacity();
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"submit", "-y", Write("big.yaml", kHello)}), 2);
  EXPECT_THAT(err_, HasSubstr("big.yaml: this job can never start, so it was not accepted\n  12 workers x 8 = 96 h100-80g in one cluster; phx has 64\n"
                              "  Hosts are on their way? muster submit "));
  EXPECT_FALSE(waits);
  EXPECT_EQ(Run({"submit", "-y", "-d", Write("big.yaml", kHello), "--wait-for-capacity"}), 0) << err_;
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
  const std::string trainer = Write("muster-trainer",
                                    "#!/bin/sh\ncat \"$3\" > " + home_ + "/asked\necho \"$4 $5 $6 $7 $8 $9\" >> " + home_ +
                                        "/asked\necho '{\"memory_bytes\": 96636764160, \"fits_with\": \"zero_stage: 3\", \"fits_with_bytes\": 64424509440}'\n");
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
      {"h100-80g", "h100-80g: does not fit: a rank needs about 90.0 GiB, a GPU has 80. With zero_stage: 3 it needs about 60.0.\n"},
      {"h200-141g", "h200-141g: a rank needs about 90.0 of a GPU's 141 GiB.\n"},
      {"cpu-slot", ""},
      {"mystery", ""},
  };
  const std::string path = Write("hello.yaml", kHello);
  for (const Case& one : cases) {
    flavour = one.flavour;
    EXPECT_EQ(Run({"submit", path, "--preview-only"}), 0) << err_;
    if (*one.said != '\0') EXPECT_THAT(out_, HasSubstr(one.said));
    else EXPECT_THAT(out_, Not(HasSubstr("a rank needs")));
  }
  std::stringstream asked;
  asked << std::ifstream(home_ + "/asked").rdbuf();
  EXPECT_EQ(asked.str(), "{\"max_steps\": 3}--ranks 8 --device h200-141g --device-memory " + std::to_string(int64_t{141} << 30) + "\n");
  // Without a trainer, or with one that can't tell, the preview stands alone.
  Write("muster-trainer", "#!/bin/sh\nexit 2\n");
  flavour = "h100-80g";
  EXPECT_EQ(Run({"submit", path, "--preview-only"}), 0) << err_;
  EXPECT_THAT(out_, ::testing::AllOf(HasSubstr("h100-80g"), Not(HasSubstr("a rank needs"))));
}

TEST_F(CliTest, RunPutsTheJobsOutputOnStdoutAndAllElseOnStderr) {
  jobs_.logs = {"one\n", "two\n"};
  jobs_.watch = Watching({JobIn(pb::RUNNING, pb::TASK_RUNNING), JobIn(pb::SUCCEEDED, pb::TASK_SUCCEEDED)});
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

TEST_F(CliTest, RunKeepsTheStreamsApartAndLogsKeepsThemTogether) {
  jobs_.logs = {"out 1\nerr 1\nout 2\nerr 2\n"};
  jobs_.logs_from_stderr = {{6, 12}, {18, 24}};
  jobs_.watch = Watching({JobIn(pb::RUNNING, pb::TASK_RUNNING), JobIn(pb::SUCCEEDED, pb::TASK_SUCCEEDED)});
  EXPECT_EQ(Run({"run", "--", "true"}), 0) << err_;
  EXPECT_EQ(out_, "out 1\nout 2\n");
  EXPECT_THAT(err_, HasSubstr("err 1\nerr 2\n"));
  EXPECT_EQ(Run({"logs", "7"}), 0);
  EXPECT_EQ(out_, "out 1\nerr 1\nout 2\nerr 2\n");
  jobs_.logs_from_stderr = {{6, 12}, {3, 99}};        // nonsense from a server harms nobody
  EXPECT_EQ(Run({"run", "--", "true"}), 0) << err_;
  EXPECT_EQ(out_, "out 1\n");
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
  EXPECT_EQ(err_, "muster: job 7 left no output: its processes wrote none, or its hosts no longer keep it\n");
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
  tree.add_queues()->set_name("research");
  pb::QueueSpec* leaf = tree.mutable_queues(0)->add_queues();
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

TEST_F(CliTest, AQueueWithQueuesOfItsOwnIsNamedWithThem) {
  queues_.nested = true;
  EXPECT_EQ(Run({"run", "--queue", "research", "--", "true"}), 2);
  EXPECT_THAT(err_, HasSubstr("\"research\" has queues of its own and takes no jobs itself; name one of them: research/nlp"));
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
      EXPECT_EQ(out_.substr(0, std::string(c.lines).size()), c.lines) << absl::StrJoin(c.words, " ");
    }
    EXPECT_EQ(err_, "");
  }
  StopServing();
  EXPECT_EQ(Run({"__complete", "show", ""}), 0);
  EXPECT_EQ(out_ + err_, "") << "no server, no names, no noise";
}

TEST_F(CliTest, TheBashScriptAsksAndShowsTheWords) {
  const std::string script = absl::StrCat("PATH=$(dirname ", MUSTER_BINARY, "):$PATH; export MUSTER_SERVER=", server_name_,
                                          "; source <(muster completion bash); COMP_WORDS=(muster top --by ''); COMP_CWORD=3; _muster; echo \"${COMPREPLY[*]}\" > ", home_,
                                          "/words; complete -p muster >> ", home_, "/words");
  ASSERT_EQ(system(absl::StrCat("bash -c '", absl::StrReplaceAll(script, {{"'", "'\\''"}}), "'").c_str()), 0);
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
  EXPECT_EQ(Run({"simulate", file, "--drain", "lab/h1", "--drain", "lab/h2", "--quota", "research:cpu-slot=2", "--at", "10m", "--for", "2h"}), 0) << err_;
  ASSERT_EQ(seen.jobs_size(), 1);
  EXPECT_EQ(seen.jobs(0).name(), "hello");
  EXPECT_THAT(seen.drain(), ::testing::ElementsAre("lab/h1", "lab/h2"));
  EXPECT_TRUE(seen.change_queues());
  EXPECT_EQ(seen.queues().queues(0).quota().at("cpu-slot").guarantee_milli(), 2000);
  EXPECT_EQ(seen.delay_ns(), int64_t{600} * 1'000'000'000);
  EXPECT_EQ(seen.horizon_ns(), int64_t{7200} * 1'000'000'000);
  EXPECT_EQ(Run({"simulate", file, "--detailed-exitcode"}), 7);
  EXPECT_FALSE(seen.change_queues());
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {"simulate"}, {"simulate", "--quota", "nonsense"}, {"simulate", "--quota", "nowhere:cpu-slot=1"}, {"simulate", "--drain", "h", "--at", "soon"}}) {
    EXPECT_EQ(Run(wrong), 2) << absl::StrJoin(wrong, " ");
  }
  answer = BadRequest("jobs[0].resources.gpu_types[0]", "no such flavour");
  EXPECT_EQ(Run({"simulate", file}), 2);
  EXPECT_THAT(err_, HasSubstr("2:34"));
  EXPECT_THAT(err_, HasSubstr("nothing was simulated"));
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
  Write(".config/muster/config.yaml", "current_context: demo\ncontexts:\n  demo: {server: \"unix:///nowhere/demo.sock\"}\n");
  Process process({"jobs"}, home_, "");
  EXPECT_EQ(process.Wait(), 6);
  EXPECT_THAT(process.err, HasSubstr("unix:///nowhere/demo.sock"));
  EXPECT_EQ(Run({"jobs", "--context", "other"}), 2);
  EXPECT_THAT(err_, HasSubstr("no context \"other\""));
}

}  // namespace
}  // namespace muster
