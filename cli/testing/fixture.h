// For the tests of `muster`: the real binary against a scripted server on a Unix socket.
#pragma once

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
#include <map>
#include <mutex>
#include <optional>
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
#include "muster/v1/pack_service.grpc.pb.h"
#include "muster/v1/queue_service.grpc.pb.h"
#include "muster/v1/secret_service.grpc.pb.h"
#include "muster/v1/trust_service.grpc.pb.h"

extern char** environ;

namespace muster {

using ::testing::HasSubstr;
using ::testing::Not;

inline grpc::Status BadRequest(const std::string& field, const std::string& description) {
  google::rpc::BadRequest bad;
  auto* violation = bad.add_field_violations();
  violation->set_field(field);
  violation->set_description(description);
  google::rpc::Status status;
  status.set_code(grpc::INVALID_ARGUMENT);
  status.add_details()->PackFrom(bad);
  return {grpc::INVALID_ARGUMENT, "the job is not valid", status.SerializeAsString()};
}

inline pb::Job JobIn(pb::JobState state, pb::TaskState task_state) {
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
  if (HasEnded(state))
    attempt->set_end_ns(1795269601000000000), job.set_end_ns(1795269601000000000);
  return job;
}

// Each method does what the test put into its member; the defaults are a quiet system with one
// queue.
struct Fake : pb::JobService::Service {
  std::function<grpc::Status(const pb::PreviewRequest&, pb::PreviewResponse*)> preview;
  std::function<grpc::Status(const pb::SubmitRequest&, pb::SubmitResponse*)> submit;
  std::function<grpc::Status(grpc::ServerContext*, grpc::ServerWriter<pb::WatchJobResponse>*)>
      watch;
  std::function<grpc::Status(const pb::ExplainRequest&, pb::ExplainResponse*)> explain;
  std::function<grpc::Status(const pb::SimulateRequest&, pb::SimulateResponse*)> simulate;
  std::function<grpc::Status(const std::string&, pb::Job*)> get;  // instead of what follows
  pb::Job got = JobIn(pb::RUNNING, pb::TASK_RUNNING);
  grpc::Status get_status;
  std::function<grpc::Status(grpc::ServerContext*, const pb::LogsRequest&,
                             grpc::ServerWriter<pb::LogsResponse>*)>
      stream_logs;  // instead of what follows
  std::vector<std::string> logs;
  std::vector<std::pair<int64_t, int64_t>> logs_from_stderr;  // of each of them
  std::function<grpc::Status(grpc::ServerReaderWriter<pb::TunnelOutput, pb::TunnelInput>*)> exec;
  std::atomic<int> cancels{0};
  grpc::Status list_status;
  pb::ListJobsRequest listed;                   // the newest
  std::optional<std::vector<pb::Job>> listing;  // in one page, instead of two of two

  grpc::Status Preview(grpc::ServerContext*, const pb::PreviewRequest* request,
                       pb::PreviewResponse* response) override {
    return preview ? preview(*request, response) : grpc::Status::OK;
  }
  grpc::Status Explain(grpc::ServerContext*, const pb::ExplainRequest* request,
                       pb::ExplainResponse* response) override {
    return explain(*request, response);
  }
  grpc::Status Simulate(grpc::ServerContext*, const pb::SimulateRequest* request,
                        pb::SimulateResponse* response) override {
    return simulate(*request, response);
  }
  grpc::Status Submit(grpc::ServerContext*, const pb::SubmitRequest* request,
                      pb::SubmitResponse* response) override {
    *response->mutable_job() = JobIn(pb::WAITING, pb::TASK_WAITING);
    *response->mutable_job()->mutable_spec() = request->spec();
    return submit ? submit(*request, response) : grpc::Status::OK;
  }
  grpc::Status Exec(grpc::ServerContext*,
                    grpc::ServerReaderWriter<pb::TunnelOutput, pb::TunnelInput>* stream) override {
    return exec(stream);
  }
  grpc::Status Get(grpc::ServerContext*, const pb::GetJobRequest* request, pb::Job* job) override {
    if (get) return get(request->id(), job);
    *job = got;
    return get_status;
  }
  grpc::Status List(grpc::ServerContext*, const pb::ListJobsRequest* request,
                    pb::ListJobsResponse* response) override {
    listed = *request;
    if (!list_status.ok()) return list_status;
    if (listing.has_value()) {
      for (const pb::Job& job : *listing) {
        const auto& states = request->states();
        if (states.empty() || std::find(states.begin(), states.end(), job.state()) != states.end())
          *response->add_jobs() = job;
      }
      return grpc::Status::OK;
    }
    int page = request->page_token().empty() ? 0 : std::stoi(request->page_token());
    for (int i = 0; i < 2; ++i) {
      *response->add_jobs() = JobIn(pb::RUNNING, pb::TASK_RUNNING);
      response->mutable_jobs(i)->set_number(static_cast<uint64_t>(10 - 2 * page - i));
    }
    if (page < 2) response->set_next_page_token(std::to_string(page + 1));
    return grpc::Status::OK;
  }
  grpc::Status Watch(grpc::ServerContext* context, const pb::WatchJobRequest*,
                     grpc::ServerWriter<pb::WatchJobResponse>* writer) override {
    return watch ? watch(context, writer) : grpc::Status::OK;
  }
  grpc::Status Cancel(grpc::ServerContext*, const pb::CancelJobRequest*, pb::Job* job) override {
    ++cancels;
    *job = JobIn(pb::RUNNING, pb::TASK_STOPPING);
    return grpc::Status::OK;
  }
  grpc::Status Logs(grpc::ServerContext* context, const pb::LogsRequest* request,
                    grpc::ServerWriter<pb::LogsResponse>* writer) override {
    if (stream_logs) return stream_logs(context, *request, writer);
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
  bool nested = false;  // research has a queue of its own
  pb::QueueTree applied;
  grpc::Status List(grpc::ServerContext*, const pb::ListQueuesRequest*,
                    pb::ListQueuesResponse* response) override {
    response->add_queues()->set_path("research");
    response->mutable_queues(0)->mutable_spec()->set_name("research");
    if (nested) {
      (*response->mutable_queues(0)->mutable_spec()->mutable_quota())["h100"].set_guarantee_milli(
          4000);
      pb::Queue* leaf = response->add_queues();
      leaf->set_path("research/nlp");
      leaf->mutable_spec()->set_name("nlp");
      (*leaf->mutable_spec()->mutable_quota())["h100"].set_guarantee_milli(2000);
    }
    response->set_version(4);
    return grpc::Status::OK;
  }
  grpc::Status Apply(grpc::ServerContext*, const pb::ApplyQueuesRequest* request,
                     pb::ApplyQueuesResponse* response) override {
    if (request->if_version() != 0 && request->if_version() != 4)
      return {grpc::ABORTED, "the queues are at version 4, not 3"};
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

// Takes what comes, in pieces.
struct FakePacks : pb::PackService::Service {
  std::map<std::string, std::string> whole, coming;  // by digest
  int pieces = 0;
  int forget_after = 0;  // pieces; 0: it forgets nothing
  bool forgets_all = false;
  grpc::Status Put(grpc::ServerContext*, const pb::PutPackRequest* request,
                   pb::PutPackResponse* response) override {
    const auto size = static_cast<size_t>(request->size_bytes());
    response->set_next_offset(request->size_bytes());
    if (whole.count(request->digest()) != 0) return grpc::Status::OK;
    if (!request->data().empty() && (++pieces == forget_after || forgets_all)) coming.clear();
    std::string& pack = coming[request->digest()];
    if (static_cast<size_t>(request->offset()) == pack.size()) pack += request->data();
    response->set_next_offset(static_cast<int64_t>(pack.size()));
    if (pack.size() == size) whole[request->digest()] = pack;
    return grpc::Status::OK;
  }
};

struct FakeSecrets : pb::SecretService::Service {
  std::map<std::string, std::string> values;
  grpc::Status Set(grpc::ServerContext*, const pb::SetSecretRequest* request,
                   pb::SetSecretResponse*) override {
    values[request->name()] = request->value();
    return grpc::Status::OK;
  }
  grpc::Status List(grpc::ServerContext*, const pb::ListSecretsRequest*,
                    pb::ListSecretsResponse* response) override {
    for (const auto& [name, value] : values) response->add_secrets()->set_name(name);
    return grpc::Status::OK;
  }
  grpc::Status Delete(grpc::ServerContext*, const pb::DeleteSecretRequest* request,
                      pb::DeleteSecretResponse*) override {
    return values.erase(request->name()) != 0
               ? grpc::Status::OK
               : grpc::Status(grpc::NOT_FOUND, "you have no secret of that name");
  }
};

struct FakeClusters : pb::ClusterService::Service {
  pb::Cluster got;  // the only cluster
  pb::ListHostsResponse hosts;

  grpc::Status Ping(grpc::ServerContext*, const pb::PingRequest*,
                    pb::PingResponse* response) override {
    response->set_user("ann");
    return grpc::Status::OK;
  }
  grpc::Status ListClusters(grpc::ServerContext*, const pb::ListClustersRequest*,
                            pb::ListClustersResponse* response) override {
    pb::Cluster* cluster = response->add_clusters();
    cluster->set_name("lab");
    pb::Capacity* capacity = cluster->add_capacity();
    capacity->set_flavour("cpu-slot");
    capacity->set_declared(true);
    capacity->set_total_milli(2000);
    return grpc::Status::OK;
  }
  grpc::Status GetCluster(grpc::ServerContext*, const pb::GetClusterRequest*,
                          pb::Cluster* response) override {
    *response = got;
    return grpc::Status::OK;
  }
  grpc::Status ListHosts(grpc::ServerContext*, const pb::ListHostsRequest*,
                         pb::ListHostsResponse* response) override {
    *response = hosts;
    return grpc::Status::OK;
  }
  grpc::Status Resume(grpc::ServerContext*, const pb::ResumeRequest*,
                      pb::ResumeResponse*) override {
    return grpc::Status::OK;
  }
  grpc::Status Top(grpc::ServerContext*, const pb::TopRequest* request,
                   pb::TopResponse* response) override {
    response->set_hosts_up(1);
    auto* row = response->add_rows();
    row->set_name(pb::TopRequest::By_Name(request->by()));
    row->set_job(request->by() == pb::TopRequest::JOB ? 7 : 0);
    row->set_flavour("cpu-slot");
    return grpc::Status::OK;
  }
  grpc::Status GetLedger(grpc::ServerContext*, const pb::GetLedgerRequest* request,
                         pb::LedgerResponse* response) override {
    response->add_entries()->set_class_("productive");
    if (request->by() == pb::GetLedgerRequest::USER) response->add_rows()->set_name("ann");
    return grpc::Status::OK;
  }
  grpc::Status GetTrainerSchema(grpc::ServerContext*, const pb::GetTrainerSchemaRequest*,
                                pb::GetTrainerSchemaResponse* response) override {
    response->set_json(trainer_schema);
    return grpc::Status::OK;
  }
  std::string trainer_schema;  // empty: none is known
};

struct FakeTrust : pb::TrustService::Service {
  std::function<grpc::Status(const pb::NewTokenRequest&, pb::NewTokenResponse*)> new_token;

  grpc::Status NewToken(grpc::ServerContext*, const pb::NewTokenRequest* request,
                        pb::NewTokenResponse* response) override {
    return new_token ? new_token(*request, response)
                     : grpc::Status(grpc::UNIMPLEMENTED, "no tokens here");
  }

  pb::ListHoldersResponse holders;
  grpc::Status ListHolders(grpc::ServerContext*, const pb::ListHoldersRequest*,
                           pb::ListHoldersResponse* response) override {
    *response = holders;
    return grpc::Status::OK;
  }

  pb::RevokeHolderResponse revoked;
  grpc::Status RevokeHolder(grpc::ServerContext*, const pb::RevokeHolderRequest*,
                            pb::RevokeHolderResponse* response) override {
    *response = revoked;
    return grpc::Status::OK;
  }
};

// A running `muster`, its two streams read into strings; or on a terminal of 120 columns, all of it
// in `out`.
class Process {
 public:
  struct OnTerminal {};
  Process(OnTerminal, std::vector<std::string> arguments, const std::string& home,
          const std::string& server) {
    arguments.insert(arguments.begin(), MUSTER_BINARY);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    std::vector<std::string> variables = {"HOME=" + home,       "TZ=UTC",
                                          "PATH=/usr/bin:/bin", "MUSTER_SERVER=" + server,
                                          "TERM=xterm",         "LC_ALL=C.UTF-8"};
    std::vector<char*> envp;
    for (std::string& variable : variables) envp.push_back(variable.data());
    envp.push_back(nullptr);
    // Not forkpty: gRPC's fork handlers would wait for its threads. A new session's first terminal
    // becomes its own.
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
    EXPECT_EQ(posix_spawn(&pid_, MUSTER_BINARY, &actions, &attributes, argv.data(), envp.data()),
              0);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(terminal);
    fds_[1] = open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
  void Type(const std::string& keys) {
    EXPECT_EQ(write(fds_[0], keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }

  Process(std::vector<std::string> arguments, const std::string& home, const std::string& server,
          const std::vector<std::string>& environment = {},
          const std::string& input = "/dev/null") {
    int out[2], err[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(err, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, input.c_str(), O_RDONLY | O_NOCTTY, 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_adddup2(&actions, err[1], 2);
    arguments.insert(arguments.begin(), MUSTER_BINARY);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    std::vector<std::string> variables = {"HOME=" + home, "TZ=UTC", "PATH=/usr/bin:/bin",
                                          "MUSTER_SERVER=" + server};
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
  void Signal(int number) { kill(pid_, number); }
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
      struct pollfd polls[2] = {{open[0] ? fds_[0] : -1, POLLIN, 0},
                                {open[1] ? fds_[1] : -1, POLLIN, 0}};
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
    builder.RegisterService(&packs_);
    builder.RegisterService(&secrets_);
    builder.RegisterService(&trust_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  void StopServing() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  int Run(std::vector<std::string> arguments) {
    Process process(std::move(arguments), home_, server_name_, environment_, input_);
    int code = process.Wait();
    out_ = process.out;
    err_ = process.err;
    return code;
  }
  // A line of a shell's, in which `muster` is the program; its exit code. Standard error comes into
  // err_.
  int Shell(const std::string& line) {
    const std::string script =
        Write("script",
              absl::StrCat("export HOME=", home_, " MUSTER_SERVER=", server_name_,
                           "\nmuster() { timeout 30 ", MUSTER_BINARY, " \"$@\"; }\n", line, "\n"));
    const int status = system(absl::StrCat("bash ", script, " 2> ", home_, "/err").c_str());
    std::stringstream said;
    said << std::ifstream(home_ + "/err").rdbuf();
    err_ = said.str();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string Write(const std::string& name, const std::string& text) {
    std::string path = home_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  // The job as given, then (if ended) the stream's end; else until the client hangs up.
  static auto Watching(const std::vector<pb::Job>& states) {
    return
        [states](grpc::ServerContext* context, grpc::ServerWriter<pb::WatchJobResponse>* writer) {
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
  std::string input_ = "/dev/null";       // likewise: its standard input
  Fake jobs_;
  FakeQueues queues_;
  FakeClusters clusters_;
  FakePacks packs_;
  FakeSecrets secrets_;
  FakeTrust trust_;
  std::unique_ptr<grpc::Server> server_;
};

constexpr char kHello[] =
    "name: hello\nresources: {gpus: 1, gpu_types: [cpu-slot]}\nrun: echo hello\n";

}  // namespace muster
