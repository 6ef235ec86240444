// The real muster-agent and muster-shim against a small scheduler of the test's own.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/files.h"
#include "common/base/ids.h"
#include "common/base/testing/eventually.h"
#include "muster/v1/agent_service.grpc.pb.h"

namespace muster {
namespace {

namespace pb = ::muster::v1;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(20);

class FakeScheduler final : public pb::AgentService::Service {
 public:
  explicit FakeScheduler(const std::string& socket) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeScheduler() override {
    server_->Shutdown(std::chrono::system_clock::now() + milliseconds(100));
  }

  grpc::Status Connect(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<pb::SchedulerMessage, pb::AgentMessage>* stream) override {
    pb::AgentMessage message;
    while (stream->Read(&message)) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (message.has_hello()) {
        if (refusals_ > 0) {
          --refusals_;
          pb::SchedulerMessage refused;
          refused.mutable_refused()->set_reason("another agent serves as lab/a");
          stream->Write(refused);
          return grpc::Status::OK;
        }
        if (ignored_ > 0) {
          --ignored_;
          continue;
        }
        hello_ = message.hello();
        stream_ = stream;
        context_ = context;
        key_.set_store_id(std::string(32, 'a'));
        key_.set_epoch(1);
        key_.set_session(RandomId());
        key_.set_state_id(hello_.state_id());
        pb::SchedulerMessage welcome;
        welcome.mutable_welcome()->set_lease_ns(lease_ns_);
        welcome.mutable_welcome()->set_heartbeat_ns(200'000'000);
        *welcome.mutable_session() = key_;
        stream->Write(welcome);
        ++hellos_;
      }
      received_.push_back(message);
      changed_.notify_all();
    }
    std::lock_guard<std::mutex> lock(mutex_);
    if (stream_ == stream) {
      stream_ = nullptr;
      context_ = nullptr;
    }
    return grpc::Status::OK;
  }

  grpc::Status ReadSecrets(grpc::ServerContext*, const pb::ReadSecretsRequest*,
                           pb::ReadSecretsResponse* response) override {
    std::lock_guard<std::mutex> lock(mutex_);
    ++secrets_asked_;
    if (secrets_late_ > 0) {
      --secrets_late_;
      return {grpc::StatusCode::UNAVAILABLE, "not yet"};
    }
    pb::ReadSecretsResponse::Secret* secret = response->add_secrets();
    secret->set_variable("TOKEN");
    secret->set_value("sesame");
    return grpc::Status::OK;
  }
  // So many questions for secrets get no answer from now on. How many there were before.
  int LateSecrets(int questions) {
    std::lock_guard<std::mutex> lock(mutex_);
    secrets_late_ = questions;
    return secrets_asked_;
  }

  void Send(pb::SchedulerMessage message) {
    std::lock_guard<std::mutex> lock(mutex_);
    ASSERT_NE(stream_, nullptr);
    *message.mutable_session() = key_;
    stream_->Write(message);
  }

  // Takes messages until one fits; false after kPatience.
  bool WaitFor(const std::function<bool(const pb::AgentMessage&)>& fits,
               pb::AgentMessage* found = nullptr) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto end = steady_clock::now() + kPatience;
    while (true) {
      while (!received_.empty()) {
        pb::AgentMessage message = received_.front();
        received_.pop_front();
        if (!fits(message)) continue;
        if (found != nullptr) *found = message;
        return true;
      }
      if (changed_.wait_until(lock, end) == std::cv_status::timeout) return false;
    }
  }
  bool WaitForPhase(const pb::AttemptKey& key, pb::AttemptPhase phase,
                    pb::AttemptReport* report = nullptr) {
    pb::AgentMessage message;
    const bool found = WaitFor(
        [&](const pb::AgentMessage& m) {
          return m.has_report() && m.report().key().task() == key.task() &&
                 m.report().phase() == phase;
        },
        &message);
    if (found && report != nullptr) *report = message.report();
    return found;
  }
  bool WaitForHello(int count) {
    return Eventually([&] {
      std::lock_guard<std::mutex> lock(mutex_);
      return hellos_ >= count;
    });
  }
  // So many Hellos are refused from now on, and the present stream ends.
  void Refuse(int hellos) {
    std::lock_guard<std::mutex> lock(mutex_);
    refusals_ = hellos;
    if (context_ != nullptr) context_->TryCancel();
  }
  int hellos() {
    std::lock_guard<std::mutex> lock(mutex_);
    return hellos_;
  }
  // So many Hellos get no answer from now on. How many were welcomed before.
  int Ignore(int hellos) {
    std::lock_guard<std::mutex> lock(mutex_);
    ignored_ = hellos;
    return hellos_;
  }
  void Lease(milliseconds lease) {  // of sessions that begin from now on
    std::lock_guard<std::mutex> lock(mutex_);
    lease_ns_ = std::chrono::nanoseconds(lease).count();
  }
  pb::Hello hello() {
    std::lock_guard<std::mutex> lock(mutex_);
    return hello_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<pb::AgentMessage> received_;
  grpc::ServerReaderWriter<pb::SchedulerMessage, pb::AgentMessage>* stream_ = nullptr;
  pb::SessionKey key_;
  pb::Hello hello_;
  int hellos_ = 0;
  int refusals_ = 0, ignored_ = 0;
  int secrets_asked_ = 0, secrets_late_ = 0;
  int64_t lease_ns_ = int64_t{10} * 1'000'000'000;
  grpc::ServerContext* context_ = nullptr;  // of stream_
  std::unique_ptr<grpc::Server> server_;
};

class AgentTest : public ::testing::Test {
 protected:
  // The programs without a trainer beside them: a second after the start, its schema would begin a
  // new session in the midst of a test.
  static void SetUpTestSuite() {
    char name[] = "/tmp/muster-agent-bin-XXXXXX";
    programs_ = ::mkdtemp(name);
    for (const std::string program : {"/muster-agent", "/muster-shim"})
      std::filesystem::copy_file(MUSTER_TEST_BIN + program, programs_ + program);
    ::setenv("MUSTER_BIN_DIR", programs_.c_str(), 1);  // tests/run.sh names that of the build
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(programs_); }

  void SetUp() override {
    std::string name = place_ + "/muster-agent-test-XXXXXX";
    directory_ = ::mkdtemp(name.data());
    std::ofstream(directory_ + "/host.yaml")
        << "{flavour: cpu-slot, gpus: 2, cpus: 2, memory: 1GiB, disk: 1GiB}\n";
    scheduler_ = std::make_unique<FakeScheduler>(directory_ + "/s.sock");
    StartAgent();
    ASSERT_TRUE(scheduler_->WaitForHello(1));
  }
  void TearDown() override {
    for (const pb::AttemptKey& key : started_) Stop(key, 0);
    for (const pb::AttemptKey& key : started_)
      EXPECT_TRUE(scheduler_->WaitForPhase(key, pb::GONE)) << key.task();
    KillAgent(SIGTERM);
    scheduler_.reset();
    std::filesystem::remove_all(directory_);
  }

  void StartAgent() {
    const std::string program = programs_ + "/muster-agent";
    std::vector<std::string> words = {"muster-agent",
                                      "--server",
                                      "unix://" + directory_ + "/s.sock",
                                      "--cluster",
                                      "lab",
                                      "--host",
                                      "a",
                                      "--state-dir",
                                      directory_ + "/state"};
    if (owner_.empty()) words.emplace_back("--single-user");
    if (declared_) words.insert(words.end(), {"--inventory", directory_ + "/host.yaml"});
    words.insert(words.end(), flags_.begin(), flags_.end());
    if (!shell_.empty()) {  // $0 is the program, with what it is started with
      words[0] = program;
      words.insert(words.begin(), {"sh", "-c", shell_});
    }
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    ASSERT_EQ(::posix_spawn(&agent_, shell_.empty() ? program.c_str() : "/bin/sh", &actions,
                            nullptr, argv.data(), environ),
              0);
    ::posix_spawn_file_actions_destroy(&actions);
  }
  // Another agent, which finds two GPUs of the stand-in for NVIDIA's library.
  void StartWithTwoGpus() {
    KillAgent(SIGKILL);
    std::filesystem::create_directory(directory_ + "/nvml");
    std::ofstream(directory_ + "/nvml/devices")
        << "NVIDIA H100 80GB HBM3|GPU-a|85520809984\nNVIDIA H100 80GB HBM3|GPU-b|85520809984\n";
    ::setenv("FAKE_NVML", (directory_ + "/nvml").c_str(), 1);
    ::setenv("LD_LIBRARY_PATH", MUSTER_FAKE_NVML_DIR, 1);
    declared_ = false;
    StartAgent();
    ::unsetenv("FAKE_NVML");
    ::unsetenv("LD_LIBRARY_PATH");
    ASSERT_TRUE(scheduler_->WaitForHello(2));
  }
  void KillAgent(int signal) {
    if (agent_ <= 0) return;  // it never started, and -1 would be everybody
    ::kill(agent_, signal);
    ::waitpid(agent_, nullptr, 0);
    agent_ = -1;
  }

  pb::SchedulerMessage PrepareMessage(const std::string& task, const std::string& script,
                                      bool at_once) {
    pb::SchedulerMessage message;
    pb::Prepare* prepare = message.mutable_prepare();
    prepare->mutable_key()->set_job_uid(std::string(32, 'b'));
    prepare->mutable_key()->set_task(task);
    prepare->mutable_key()->set_attempt(1);
    prepare->set_job_number(7);
    prepare->set_owner(owner_);
    prepare->mutable_task()->set_name(task);
    prepare->mutable_task()->mutable_run()->set_shell(script);
    prepare->mutable_here()->set_host("a");
    prepare->mutable_here()->set_workers(1);
    prepare->set_processes_per_worker(1);
    prepare->set_gang_workers(1);
    prepare->set_hosts_rendezvous(true);
    prepare->set_job_directory(directory_ + storage_ + "/job");
    prepare->set_attempt_directory(directory_ + storage_ + "/job/" + task + "/attempt-1");
    prepare->set_checkpoint_directory(directory_ + storage_ + "/ckpt/" + task);
    prepare->set_umask(022);
    prepare->set_start_at_once(at_once);
    return message;
  }
  pb::AttemptKey Launch(const std::string& task, const std::string& script) {
    pb::SchedulerMessage message = PrepareMessage(task, script, true);
    const pb::AttemptKey key = message.prepare().key();
    scheduler_->Send(message);
    started_.push_back(key);
    return key;
  }
  // Sends a gang's Prepare and waits until it is prepared. StartGang is its second phase.
  pb::AttemptKey PrepareGang(const std::string& script, pb::AttemptReport* report) {
    pb::SchedulerMessage message = PrepareMessage("gang", script, false);
    message.mutable_prepare()->mutable_task()->set_rank_variables(true);
    scheduler_->Send(message);
    EXPECT_TRUE(scheduler_->WaitForPhase(message.prepare().key(), pb::PREPARED, report));
    return message.prepare().key();
  }
  void StartGang(const pb::AttemptKey& key, int32_t port) {
    pb::SchedulerMessage message;
    *message.mutable_start()->mutable_key() = key;
    message.mutable_start()->set_master_address("127.0.0.1");
    message.mutable_start()->set_master_port(port);
    scheduler_->Send(message);
  }
  void Stop(const pb::AttemptKey& key, int64_t grace_ns) {
    pb::SchedulerMessage message;
    *message.mutable_stop()->mutable_key() = key;
    message.mutable_stop()->set_cause(pb::CANCEL);
    message.mutable_stop()->set_grace_ns(grace_ns);
    scheduler_->Send(message);
  }
  std::string Read(const std::string& path) {
    return ReadFile(directory_ + "/" + path).value_or("");
  }

  inline static std::string programs_;    // the directory of those that are tested
  std::string place_ = "/tmp", storage_;  // the test's directory is in it; the jobs' in that
  std::string owner_;                     // of jobs; empty: the agent serves one user
  std::string directory_;
  std::unique_ptr<FakeScheduler> scheduler_;
  pid_t agent_ = -1;
  std::vector<std::string> flags_;
  std::string shell_;  // that starts the agent; empty: none does
  bool declared_ = true;
  std::vector<pb::AttemptKey> started_;
};

// It neither spins nor lives on deaf: who started it sees it end, and why.
TEST_F(AgentTest, WhereItMayOpenTooFewFilesItEndsAndSaysWhy) {
  KillAgent(SIGTERM);
  int said = 0;
  for (int files = 5; files <= 8;
       ++files) {  // its lock, and five that it waits with, beside 0 to 2
    SCOPED_TRACE(files);
    shell_ =
        absl::StrCat("exec 2> ", directory_, "/said; ulimit -n ", files, "; exec \"$0\" \"$@\"");
    StartAgent();
    int status = 0;
    bool ended = false;
    EXPECT_TRUE(Eventually([&] { return ended = ::waitpid(agent_, &status, WNOHANG) == agent_; }));
    if (!ended) KillAgent(SIGKILL);
    agent_ = -1;
    EXPECT_NE(status, 0);
    said += absl::StrContains(Read("said"), "raise LimitNOFILE") ? 1 : 0;
  }
  EXPECT_GT(said, 0) << Read("said");
  const int before = scheduler_->hellos();
  shell_.clear();
  StartAgent();
  ASSERT_TRUE(Eventually([&] { return scheduler_->hellos() > before; }));
}

TEST_F(AgentTest, RunsAProcessAndTellsItsExitCode) {
  const pb::AttemptKey key = Launch("main", "echo rank ${RANK-none} of ${WORLD_SIZE-none}; exit 3");
  pb::AttemptReport report;
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::GONE, &report));
  ASSERT_EQ(report.exits_size(), 1);
  EXPECT_EQ(report.exits(0).exit_code(), 3);
  EXPECT_FALSE(report.stop_sent());

  pb::SchedulerMessage logs;
  logs.mutable_log_request()->set_request(1);
  *logs.mutable_log_request()->mutable_key() = key;
  logs.mutable_log_request()->set_rank(-1);
  scheduler_->Send(logs);
  pb::AgentMessage chunk;
  ASSERT_TRUE(
      scheduler_->WaitFor([](const pb::AgentMessage& m) { return m.has_log_chunk(); }, &chunk));
  EXPECT_EQ(chunk.log_chunk().data(), "rank none of none\n");
  EXPECT_EQ(chunk.log_chunk().next_offset(), 18);
  ASSERT_TRUE(scheduler_->WaitFor([](const pb::AgentMessage& m) {
    return m.has_log_chunk() && m.log_chunk().end() && !m.log_chunk().more();
  }));
}

TEST_F(AgentTest, SendsSoMuchOfALogAsIsAskedForAndGoesOnFromThere) {
  const pb::AttemptKey key =
      Launch("main", "seq 100000 123999");  // 7 bytes each: two whole pieces and some
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::GONE));
  std::string read;
  int answers = 0;
  for (bool more = true; more && answers < 10; ++answers) {
    const uint64_t request = static_cast<uint64_t>(100 + answers);
    pb::SchedulerMessage logs;
    logs.mutable_log_request()->set_request(request);
    *logs.mutable_log_request()->mutable_key() = key;
    logs.mutable_log_request()->set_rank(-1);
    logs.mutable_log_request()->set_max_bytes(1);
    if (!read.empty())
      (*logs.mutable_log_request()->mutable_from())[0] = static_cast<int64_t>(read.size());
    scheduler_->Send(logs);
    pb::AgentMessage chunk;
    do {
      ASSERT_TRUE(scheduler_->WaitFor(
          [&](const pb::AgentMessage& m) { return m.log_chunk().request() == request; }, &chunk));
      read += chunk.log_chunk().data();
      if (!chunk.log_chunk().data().empty())
        EXPECT_EQ(chunk.log_chunk().next_offset(), static_cast<int64_t>(read.size()));
    } while (!chunk.log_chunk().end());
    more = chunk.log_chunk().more();
  }
  EXPECT_EQ(answers, 4) << "three with a piece each, and one with nothing more";
  EXPECT_EQ(read.size(), 168'000u);
  EXPECT_EQ(read.substr(0, 7), "100000\n");
  EXPECT_EQ(read.substr(read.size() - 7), "123999\n");
}

// A file system whose server says nothing: whoever asks it for anything waits. Seen by this thread
// and what it starts.
class DeadMount {
 public:
  explicit DeadMount(const std::string& path)
      : path_(path), server_(::open("/dev/fuse", O_RDWR | O_CLOEXEC)) {
    const std::string options = absl::StrCat(
        "fd=", server_, ",rootmode=40000,user_id=", ::geteuid(), ",group_id=", ::getegid());
    there_ = server_ >= 0 && ::unshare(CLONE_NEWNS) == 0 &&
             ::mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
             ::mount("dead", path.c_str(), "fuse", MS_NODEV | MS_NOSUID, options.c_str()) == 0;
  }
  ~DeadMount() {
    Fail();
    if (there_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  bool there() const { return there_; }
  void Fail() { ::close(std::exchange(server_, -1)); }  // whoever waits gets an error

 private:
  const std::string path_;
  int server_;
  bool there_ = false;
};

TEST_F(AgentTest, ADeadMountHoldsUpOnlyWhoNamesIt) {
  std::filesystem::create_directory(directory_ + "/dead");
  DeadMount dead(directory_ + "/dead");
  if (!dead.there()) GTEST_SKIP() << "may not mount: " << strerror(errno);
  KillAgent(SIGTERM);
  StartAgent();
  ASSERT_TRUE(scheduler_->WaitForHello(2));

  pb::SchedulerMessage lost = PrepareMessage("lost", "true", true);
  lost.mutable_prepare()->mutable_task()->set_workdir(directory_ + "/dead/work");
  scheduler_->Send(lost);
  pb::AttemptReport report;
  ASSERT_TRUE(scheduler_->WaitForPhase(Launch("main", "exit 3"), pb::GONE, &report))
      << "the agent waits for the mount";
  EXPECT_EQ(report.exits(0).exit_code(), 3);
  ASSERT_TRUE(scheduler_->WaitFor([](const pb::AgentMessage& m) { return m.has_heartbeat(); }));

  dead.Fail();
  ASSERT_TRUE(scheduler_->WaitForPhase(lost.prepare().key(), pb::GONE, &report));
  EXPECT_EQ(report.cause(), pb::LAUNCH_FAILED);
  EXPECT_NE(report.detail().find("/dead/work: "), std::string::npos) << report.detail();
}

// The values that it held are gone, and whoever starts asks again: no host is to blame.
TEST_F(AgentTest, OneThatWasRestartedAsksForSecretsAgainBeforeItStarts) {
  pb::SchedulerMessage message = PrepareMessage("gang", "test \"$TOKEN\" = sesame", false);
  message.mutable_prepare()->add_secrets("TOKEN");
  const pb::AttemptKey key = message.prepare().key();
  scheduler_->Send(message);
  pb::AttemptReport report;
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::PREPARED, &report));
  KillAgent(SIGKILL);
  StartAgent();
  ASSERT_TRUE(scheduler_->WaitForHello(2));
  EXPECT_EQ(scheduler_->LateSecrets(2), 1);
  StartGang(key, report.rendezvous_port());
  pb::SchedulerMessage query;  // it waits on, whatever else is asked
  *query.mutable_query()->mutable_key() = key;
  scheduler_->Send(query);
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::GONE, &report)) << "nothing was held";
  ASSERT_EQ(report.exits_size(), 1) << report.detail();
  EXPECT_EQ(report.exits(0).exit_code(), 0);
  EXPECT_EQ(scheduler_->LateSecrets(0), 4);
}

// Somebody else's server in the scheduler's place, for as long as this is there: it counts who
// comes, and who says a word.
class Impostor {
 public:
  Impostor(const std::string& path, const std::string& notes) : path_(path) {
    std::filesystem::rename(path, path + ".away");
    const int server = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(server, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const int told = ::open(notes.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    pid_ = ::fork();
    if (pid_ == 0) {
      if (::setuid(61'234) != 0 || ::listen(server, 10) != 0) ::_exit(1);
      while (true) {
        const int caller = ::accept(server, nullptr, nullptr);
        char byte = 0;
        const char* note = ::read(caller, &byte, 1) > 0 ? "word\n" : "silence\n";
        if (::write(told, note, strlen(note)) < 0) ::_exit(1);
        ::close(caller);
      }
    }
    ::close(server);
    ::close(told);
  }
  ~Impostor() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    std::filesystem::rename(path_ + ".away", path_);
  }

 private:
  const std::string path_;
  pid_t pid_ = -1;
};

TEST_F(AgentTest, SecretsAreAskedOfNobodyElse) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be somebody else";
  pb::SchedulerMessage message = PrepareMessage("gang", "test \"$TOKEN\" = sesame", false);
  message.mutable_prepare()->add_secrets("TOKEN");
  {
    const Impostor impostor(directory_ + "/s.sock", directory_ + "/notes");
    scheduler_->Send(message);  // by the stream that there is
    ASSERT_TRUE(Eventually([&] { return Read("notes").size() > 2 * strlen("silence\n"); }))
        << "it is tried again";
    EXPECT_FALSE(absl::StrContains(Read("notes"), "word"));
  }
  ASSERT_TRUE(scheduler_->WaitForPhase(message.prepare().key(), pb::PREPARED));
  EXPECT_EQ(scheduler_->LateSecrets(0), 1);
}

TEST_F(AgentTest, ReportsItsDeclaredDevices) {
  EXPECT_TRUE(scheduler_->hello().inventory().declared());
  EXPECT_EQ(scheduler_->hello().inventory().devices_size(), 2);
  EXPECT_EQ(scheduler_->hello().inventory().flavour(), "cpu-slot");
}

TEST_F(AgentTest, OneThatIsRefusedComesBackMoreAndMoreSlowly) {
  const auto begin = steady_clock::now();
  scheduler_->Refuse(5);
  ASSERT_TRUE(scheduler_->WaitForHello(2));
  EXPECT_GE(steady_clock::now() - begin, milliseconds(20 + 20 + 40 + 80 + 160));
}

TEST_F(AgentTest, ASessionEndsWithItsLeaseAndSoDoesAHelloThatNobodyAnswers) {
  scheduler_->Lease(milliseconds(300));
  scheduler_->Refuse(1);
  ASSERT_TRUE(scheduler_->WaitForHello(2));
  ASSERT_TRUE(scheduler_->WaitForHello(3)) << "nothing came for a lease";
  const int before = scheduler_->Ignore(2);
  ASSERT_TRUE(scheduler_->WaitForHello(before + 1)) << "two Hellos had no answer";
}

TEST_F(AgentTest, ProcessesOutliveTheAgentAndTheirExitCodeIsKept) {
  const pb::AttemptKey key =
      Launch("main",
             "echo $$ > $MUSTER_JOB_DIR/pid; ps -o pid= -p $$ > /dev/null || true; "
             "while [ ! -e $MUSTER_JOB_DIR/go ]; do sleep 0.02; done; exit 5");
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::STARTED));
  ASSERT_TRUE(Eventually([&] { return !Read("job/pid").empty(); }));
  const std::string pid = Read("job/pid");
  KillAgent(SIGKILL);
  StartAgent();
  ASSERT_TRUE(scheduler_->WaitForHello(2));
  const pb::Hello hello = scheduler_->hello();
  ASSERT_EQ(hello.attempts_size(), 1);
  EXPECT_EQ(hello.attempts(0).phase(), pb::STARTED);
  EXPECT_EQ(Read("job/pid"), pid);
  KillAgent(SIGKILL);
  std::ofstream(directory_ + "/job/go") << "go";  // ends while no agent is there
  StartAgent();
  ASSERT_TRUE(scheduler_->WaitForHello(3));
  pb::AttemptReport report;
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::GONE, &report));
  ASSERT_EQ(report.exits_size(), 1);
  EXPECT_EQ(report.exits(0).exit_code(), 5);
}

// The shim of the one attempt that runs; 0: none.
pid_t ShimOf(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string words = ReadFile(entry.path().string() + "/cmdline").value_or("");
    if (words.rfind("muster-shim", 0) == 0 && words.find(directory) != std::string::npos)
      return static_cast<pid_t>(std::stol(entry.path().filename()));
  }
  return 0;
}

TEST_F(AgentTest, AFreshStateDirectoryEndsWhatRanWithTheLostOneBeforeItsHello) {
  Launch("main", "echo $$ > $MUSTER_JOB_DIR/pid; exec sleep 1000");
  ASSERT_TRUE(Eventually([&] { return !Read("job/pid").empty(); }));
  const std::string lost = scheduler_->hello().state_id();
  std::string ours;         // as we see it: its own number may be one of a namespace
  const auto found = [&] {  // not in the moment of its exec, when it has no environment
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::ifstream environment(entry.path() / "environ");
      const std::string text((std::istreambuf_iterator<char>(environment)),
                             std::istreambuf_iterator<char>());
      if (text.find("MUSTER_JOB_DIR=" + directory_) != std::string::npos) ours = entry.path();
    }
    return !ours.empty();
  };
  ASSERT_TRUE(Eventually(found));
  KillAgent(SIGKILL);
  // A shim that sees that its directory is gone ends by itself. This one stands still.
  const pid_t shim = ShimOf(directory_);
  ASSERT_GT(shim, 0);
  ASSERT_EQ(::kill(shim, SIGSTOP), 0);
  std::filesystem::remove_all(directory_ + "/state");
  StartAgent();
  ASSERT_TRUE(scheduler_->WaitForHello(2));
  EXPECT_NE(scheduler_->hello().state_id(), lost);
  EXPECT_FALSE(std::filesystem::exists(ours)) << "it runs, and nobody knows of it";
  if (HasFailure()) ::kill(shim, SIGKILL);
}

TEST_F(AgentTest, WhatGotAwayFromItsShimIsKilledBeforeTheAttemptIsGone) {
  flags_ = {"--no-pid-namespace"};
  KillAgent(SIGKILL);
  StartAgent();
  ASSERT_TRUE(scheduler_->WaitForHello(2));
  if (scheduler_->hello().inventory().isolation().find("no control groups") != std::string::npos)
    GTEST_SKIP() << scheduler_->hello().inventory().isolation();
  // Neither its group, nor its session, nor its environment says whose it is.
  const pb::AttemptKey key =
      Launch("main", "env -i setsid sleep 1000 & echo $! > $MUSTER_JOB_DIR/pid; wait");
  ASSERT_TRUE(Eventually([&] { return !Read("job/pid").empty(); }));
  const pid_t stray = static_cast<pid_t>(std::stol(Read("job/pid")));
  ASSERT_EQ(::kill(stray, 0), 0);
  const pid_t shim = ShimOf(directory_);
  ASSERT_GT(shim, 0);
  ::kill(shim, SIGKILL);
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::GONE));
  // Dead it may wait for its new parent to take notice.
  const std::string stat = ReadFile(absl::StrCat("/proc/", stray, "/stat")).value_or("");
  EXPECT_TRUE(stat.empty() || stat.find(") Z ") != std::string::npos)
      << "it has the attempt's devices, and nobody knows of it: " << stat;
}

TEST_F(AgentTest, AProgramThatTakesMoreMemoryThanItsTaskStatesIsKilledAndThatIsToldForCertain) {
  if (scheduler_->hello().inventory().isolation().find("memory limits") == std::string::npos ||
      scheduler_->hello().inventory().isolation().find("no memory limits") != std::string::npos) {
    GTEST_SKIP() << scheduler_->hello().inventory().isolation();
  }
  pb::SchedulerMessage message = PrepareMessage(
      "main",
      "echo begins; head -c 400000000 /dev/zero | tail -c 399999999 > /dev/null; echo never", true);
  message.mutable_prepare()->mutable_task()->mutable_resources()->set_memory_bytes(int64_t{64}
                                                                                   << 20);
  started_.push_back(message.prepare().key());
  scheduler_->Send(message);
  pb::AttemptReport report;
  ASSERT_TRUE(scheduler_->WaitForPhase(started_.back(), pb::GONE, &report));
  ASSERT_EQ(report.exits_size(), 1);
  EXPECT_TRUE(report.exits(0).oom());
  EXPECT_EQ(report.exits(0).cause(), pb::OUT_OF_MEMORY);
  EXPECT_NE(report.exits(0).detail().find("memory limit"), std::string::npos)
      << report.exits(0).detail();
}

TEST_F(AgentTest, TellsWhatAnAttemptUsedAndWhatTheDriverSaysOfItsGpus) {
  ASSERT_NO_FATAL_FAILURE(StartWithTwoGpus());
  std::ofstream(directory_ + "/nvml/uses") << "0|37|1000\n1|90|7000\n";
  pb::SchedulerMessage message =
      PrepareMessage("main", "while [ ! -e $MUSTER_JOB_DIR/go ]; do sleep 0.02; done", true);
  message.mutable_prepare()->mutable_here()->add_devices(0);
  const pb::AttemptKey key = message.prepare().key();
  started_.push_back(key);
  scheduler_->Send(message);
  // Once it has been looked at, it ends.
  ASSERT_TRUE(Eventually([&] {
    for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/state/attempts")) {
      if (std::filesystem::exists(entry.path() / "gpus")) return true;
    }
    return false;
  }));
  std::ofstream(directory_ + "/job/go") << "go";
  pb::AttemptReport report;
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::GONE, &report));
  EXPECT_GE(report.usage().ran_ns(), int64_t{1'000'000'000}) << report.DebugString();
  EXPECT_GT(report.usage().cpu_us(), 0);
  EXPECT_GT(report.usage().memory_peak_bytes(), 0);
  EXPECT_EQ(report.usage().gpus().memory_peak_bytes(), 1000) << "of its own";
  EXPECT_EQ(report.usage().gpus().memory_bytes(), 85520809984);
}

TEST_F(AgentTest, TellsWhatTheDriverSaysOfADeviceAndWhomItHit) {
  ASSERT_NO_FATAL_FAILURE(StartWithTwoGpus());
  ASSERT_EQ(scheduler_->hello().inventory().flavour(), "h100-80g");
  pb::SchedulerMessage message =
      PrepareMessage("main",
                     "touch $MUSTER_JOB_DIR/runs$RANK; while [ ! -e $MUSTER_JOB_DIR/go$RANK ]; do "
                     "sleep 0.02; done; exit 1",
                     true);
  message.mutable_prepare()->mutable_here()->add_devices(0);
  message.mutable_prepare()->mutable_here()->add_devices(1);
  message.mutable_prepare()->set_processes_per_worker(2);
  const pb::AttemptKey key = message.prepare().key();
  started_.push_back(key);
  scheduler_->Send(message);
  // What the driver said before they ran says nothing of them.
  ASSERT_TRUE(Eventually([&] {
    return std::filesystem::exists(directory_ + "/job/runs0") &&
           std::filesystem::exists(directory_ + "/job/runs1");
  }));
  const auto tell = [&](const char* line) {
    std::ofstream(directory_ + "/nvml/events", std::ios::app) << line << "\n";
  };
  tell("0|8|31");  // the program's own
  tell("1|8|94");  // of the device, which goes on
  pb::AgentMessage told;
  ASSERT_TRUE(scheduler_->WaitFor([](const pb::AgentMessage& m) { return m.has_fault(); }, &told));
  EXPECT_EQ(told.fault().device(), 1);
  EXPECT_EQ(told.fault().code(), 94);
  EXPECT_EQ(scheduler_->hellos(), 2);
  tell("1|8|79");  // it has to be reset
  ASSERT_TRUE(scheduler_->WaitForHello(3));
  EXPECT_FALSE(scheduler_->hello().inventory().devices(1).healthy());
  EXPECT_EQ(scheduler_->hello().inventory().devices(1).fault(), "Xid 79 on GPU 1");
  EXPECT_TRUE(scheduler_->hello().inventory().devices(0).healthy());
  std::ofstream(directory_ + "/job/go1") << "go";
  pb::AttemptReport report;
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::GONE, &report));
  ASSERT_EQ(report.exits_size(), 2);
  EXPECT_EQ(report.exits(1).cause(), pb::DEVICE_FAILURE) << report.DebugString();
  EXPECT_NE(report.exits(1).detail().find("Xid"), std::string::npos);
}

TEST_F(AgentTest, ChecksItsHostAndItsHeartbeatsGoOnMeanwhile) {
  ASSERT_TRUE(scheduler_->hello().checks_host());
  pb::SchedulerMessage message;
  message.mutable_check_host()->set_request(5);
  message.mutable_check_host()->set_device(-1);
  message.mutable_check_host()->set_timeout_ns(int64_t{60} * 1'000'000'000);
  for (const std::string& word :
       {std::string("/bin/sh"), std::string("-c"),
        absl::StrCat("while [ ! -e ", directory_, "/go ]; do sleep 0.02; done; exit 3")})
    message.mutable_check_host()->add_command(word);
  scheduler_->Send(message);
  for (int beat = 0; beat < 3; ++beat) {
    ASSERT_TRUE(scheduler_->WaitFor([](const pb::AgentMessage& m) { return m.has_heartbeat(); }));
  }
  std::ofstream(directory_ + "/go") << "go";
  pb::AgentMessage told;
  ASSERT_TRUE(
      scheduler_->WaitFor([](const pb::AgentMessage& m) { return m.has_checked(); }, &told));
  EXPECT_EQ(told.checked().request(), 5u);
  EXPECT_FALSE(told.checked().passed());
  EXPECT_NE(told.checked().detail(), "");
}

TEST_F(AgentTest, LogsOfAForgottenAttemptThatAreTooLargeGoAtOnce) {
  KillAgent(SIGTERM);
  flags_ = {"--keep-log-bytes", "10"};
  StartAgent();
  ASSERT_TRUE(scheduler_->WaitForHello(2));
  const pb::AttemptKey key = Launch("loud", "echo more than ten bytes");
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::GONE));
  const std::string name = absl::StrCat(key.job_uid(), ".loud.1"),
                    attempt = directory_ + "/state/attempts/" + name;
  EXPECT_TRUE(std::filesystem::exists(attempt + "/logs"));
  pb::SchedulerMessage forget;
  *forget.mutable_forget()->mutable_key() = key;
  scheduler_->Send(forget);
  started_.clear();
  EXPECT_TRUE(Eventually([&] {
    return !std::filesystem::exists(attempt) &&
           !std::filesystem::exists(directory_ + "/state/logs/" + name);
  }));
}

TEST_F(AgentTest, StopsWithSigtermAndReportsThatItDid) {
  const pb::AttemptKey key = Launch("main",
                                    "trap 'echo saved > $MUSTER_JOB_DIR/saved; exit 0' TERM; touch "
                                    "$MUSTER_JOB_DIR/ready; while :; do sleep 0.02; done");
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(directory_ + "/job/ready"); }));
  Stop(key, int64_t{10} * 1'000'000'000);
  pb::AttemptReport report;
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::GONE, &report));
  EXPECT_TRUE(report.stop_sent());
  EXPECT_EQ(report.exits(0).exit_code(), 0);
  EXPECT_EQ(Read("job/saved"), "saved\n");
}

TEST_F(AgentTest, StartsAGangInTwoPhases) {
  pb::AttemptReport report;
  const pb::AttemptKey key =
      PrepareGang("echo $MASTER_ADDR:$MASTER_PORT > $MUSTER_JOB_DIR/master", &report);
  EXPECT_GE(report.rendezvous_port(), 20000);
  StartGang(key, report.rendezvous_port());
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::GONE));
  EXPECT_EQ(Read("job/master"), absl::StrCat("127.0.0.1:", report.rendezvous_port(), "\n"));
}

TEST_F(AgentTest, APortThatIsTakenBetweenPrepareAndStartIsTheInfrastructuresFault) {
  pb::AttemptReport report;
  const pb::AttemptKey key = PrepareGang(
      "python3 -c 'import os, socket\nsocket.create_server((\"0.0.0.0\", "
      "int(os.environ[\"MASTER_PORT\"])))'",
      &report);
  const int taken = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(report.rendezvous_port()));
  ASSERT_EQ(::bind(taken, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(taken, 1), 0);
  StartGang(key, report.rendezvous_port());
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::GONE, &report));
  ::close(taken);
  ASSERT_EQ(report.exits_size(), 1);
  EXPECT_EQ(report.exits(0).cause(), pb::RENDEZVOUS) << report.exits(0).detail();
}

TEST_F(AgentTest, RefusesReservedVariablesWithAReason) {
  pb::SchedulerMessage prepare = PrepareMessage("bad", "true", true);
  (*prepare.mutable_prepare()->mutable_task()->mutable_env())["LD_PRELOAD"] = "/tmp/x.so";
  scheduler_->Send(prepare);
  pb::AttemptReport report;
  ASSERT_TRUE(scheduler_->WaitForPhase(prepare.prepare().key(), pb::GONE, &report));
  EXPECT_EQ(report.cause(), pb::PROGRAM_ERROR);
  EXPECT_NE(report.detail().find("LD_PRELOAD"), std::string::npos);
}

TEST_F(AgentTest, StopOfAnUnknownAttemptForbidsItsLaterStart) {
  pb::SchedulerMessage prepare = PrepareMessage("late", "touch $MUSTER_JOB_DIR/ran", true);
  Stop(prepare.prepare().key(), 0);
  ASSERT_TRUE(scheduler_->WaitForPhase(prepare.prepare().key(), pb::GONE));
  scheduler_->Send(prepare);
  pb::AttemptReport report;
  ASSERT_TRUE(scheduler_->WaitForPhase(prepare.prepare().key(), pb::GONE, &report));
  EXPECT_EQ(report.exits_size(), 0);
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/job/ran"));
}

TEST_F(AgentTest, ForwardsProgressAndRepeatsCheckpointsUntilAcknowledged) {
  const pb::AttemptKey key =
      Launch("train",
             "python3 -c 'import socket,os,time\n"
             "s=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM)\n"
             "p=os.environ[\"MUSTER_PROGRESS_SOCKET\"]\n"
             "s.sendto(b\"{\\\"step\\\": 3, \\\"total_steps\\\": 9, \\\"loss\\\": 2.5, "
             "\\\"rank\\\": 0}\", p)\n"
             "s.sendto(b\"{\\\"checkpoint\\\": {\\\"step\\\": 3, \\\"path\\\": \\\"/c/step-3\\\", "
             "\\\"loaded_step\\\": -1}}\", p)'");
  pb::AgentMessage progress;
  ASSERT_TRUE(
      scheduler_->WaitFor([](const pb::AgentMessage& m) { return m.has_progress(); }, &progress));
  EXPECT_EQ(progress.progress().progress().step(), 3);
  EXPECT_EQ(progress.progress().progress().loss(), 2.5);
  pb::AgentMessage checkpoint;
  const auto is_checkpoint = [](const pb::AgentMessage& m) { return m.has_checkpoint(); };
  for (int repeat = 0; repeat < 3; ++repeat) {
    ASSERT_TRUE(scheduler_->WaitFor(is_checkpoint, &checkpoint));
    EXPECT_EQ(checkpoint.checkpoint().sequence(), 1u);
    EXPECT_EQ(checkpoint.checkpoint().checkpoint().path(), "/c/step-3");
    EXPECT_EQ(checkpoint.checkpoint().loaded_step(), -1);
  }
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::GONE));
}

// An agent that runs jobs as their owners: as root, with an account of a private /etc in a mount
// namespace of this process.
class OwnersAgentTest : public AgentTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "wants root";
    place_ = "/var/lib";
    storage_ = "/ann";
    owner_ = "ann";
    flags_ = {"--max-processes", "60"};
    char name[] = "/var/lib/muster-agent-accounts-XXXXXX";
    accounts_ = ::mkdtemp(name);
    std::ofstream(accounts_ + "/passwd") << "root:x:0:0::/root:/bin/bash\n"
                                            "ann:x:61011:61011::/home/ann:/bin/bash\n";
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    ASSERT_EQ(::mount((accounts_ + "/passwd").c_str(), "/etc/passwd", nullptr, MS_BIND, nullptr),
              0);
    AgentTest::SetUp();
    ::chmod(directory_.c_str(), 0755);
    std::filesystem::create_directory(directory_ + "/ann");
    ASSERT_EQ(::chown((directory_ + "/ann").c_str(), 61011, 61011), 0);
  }
  void TearDown() override {
    if (accounts_.empty()) return;
    AgentTest::TearDown();
    ::umount2("/etc/passwd", MNT_DETACH);
    std::filesystem::remove_all(accounts_);
  }
  // Of ann, whose uid no other test has, that live.
  static int Processes() {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string status = ReadFile(entry.path().string() + "/status").value_or("");
      count +=
          absl::StrContains(status, "\nUid:\t61011\t") && !absl::StrContains(status, "\nState:\tZ")
              ? 1
              : 0;
    }
    return count;
  }

  std::string accounts_;
};

TEST_F(OwnersAgentTest, AJobRunsAsItsOwner) {
  const pb::AttemptKey key = Launch(
      "main", "echo $(id -u) $(id -g) $USER $HOME > $MUSTER_JOB_DIR/who; test -O $MUSTER_JOB_DIR");
  pb::AttemptReport report;
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::GONE, &report));
  ASSERT_EQ(report.exits_size(), 1) << report.DebugString();
  EXPECT_EQ(report.exits(0).exit_code(), 0) << report.DebugString();
  EXPECT_EQ(Read("ann/job/who"), "61011 61011 ann /home/ann\n");
  EXPECT_NE(scheduler_->hello().inventory().isolation().find("as their owners"), std::string::npos);
}

TEST_F(OwnersAgentTest, AJobOfRootsIsRefused) {
  owner_ = "root";
  const pb::AttemptKey key = Launch("main", "touch $MUSTER_JOB_DIR/ran");
  pb::AttemptReport report;
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::GONE, &report));
  EXPECT_NE(report.detail().find("uid 0 (root) runs no jobs"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/ann/job"));
}

// A user of a certificate whose account nobody has made: three such jobs must not cost the host.
TEST_F(OwnersAgentTest, AJobOfSomebodyWithoutAnAccountFailsAndBlamesNoHost) {
  owner_ = "bob";
  const pb::AttemptKey key = Launch("main", "touch $MUSTER_JOB_DIR/ran");
  pb::AttemptReport report;
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::GONE, &report));
  EXPECT_EQ(report.cause(), pb::PROGRAM_ERROR);
  EXPECT_NE(report.detail().find("knows no user bob: the administrator makes the account"),
            std::string::npos)
      << report.detail();
}

TEST_F(OwnersAgentTest, AProgramBelowTmpIsSoughtInTheJobsOwn) {
  pb::SchedulerMessage message = PrepareMessage("main", "", true);
  message.mutable_prepare()->mutable_task()->mutable_run()->add_exec("/tmp/program-of-the-hosts");
  scheduler_->Send(message);
  pb::AttemptReport report;
  ASSERT_TRUE(scheduler_->WaitForPhase(message.prepare().key(), pb::GONE, &report));
  ASSERT_EQ(report.exits_size(), 1) << report.DebugString();
  EXPECT_NE(report.exits(0).detail().find("/tmp is private to each job"), std::string::npos)
      << report.exits(0).detail();
}

TEST_F(OwnersAgentTest, APublishedExportIsTheOwnersAndWhereTheOwnerMayWrite) {
  const pb::AttemptKey key =
      Launch("main", "mkdir $MUSTER_EXPORT_STAGING; echo w > $MUSTER_EXPORT_STAGING/w");
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::GONE));
  const auto publish = [&](const std::string& target) {
    pb::SchedulerMessage message;
    *message.mutable_publish()->mutable_key() = key;
    message.mutable_publish()->set_staged(directory_ + "/ann/job/main/attempt-1/export-staging");
    message.mutable_publish()->set_target(target);
    scheduler_->Send(message);
    pb::AgentMessage answer;
    EXPECT_TRUE(scheduler_->WaitFor([](const pb::AgentMessage& m) { return m.has_export_report(); },
                                    &answer));
    return answer.export_report();
  };
  const std::string target = directory_ + "/cron.d";  // root's
  EXPECT_NE(publish(target).detail().find("Permission denied"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(target));
  EXPECT_NE(publish("../../../state/x").detail().find("leads out"), std::string::npos);
  EXPECT_TRUE(publish("model").published());
  EXPECT_EQ(Read("ann/job/model/w"), "w\n");
}

TEST_F(OwnersAgentTest, WhatWasPreparedStartsAsItsOwnerAfterTheAgentWasKilled) {
  pb::AttemptReport report;
  const pb::AttemptKey key = PrepareGang("id -u > $MUSTER_JOB_DIR/who", &report);
  KillAgent(SIGKILL);
  StartAgent();
  ASSERT_TRUE(scheduler_->WaitForHello(2));
  StartGang(key, report.rendezvous_port());
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::GONE));
  EXPECT_EQ(Read("ann/job/who"), "61011\n");
}

TEST_F(OwnersAgentTest, NothingOfAJobOutlivesItsShim) {
  const pb::AttemptKey key = Launch(
      "main", "for i in 1 2 3; do env -i setsid sleep 1000 & done; touch $MUSTER_JOB_DIR/on; wait");
  ASSERT_TRUE(Eventually(
      [&] { return std::filesystem::exists(directory_ + "/ann/job/on") && Processes() >= 4; }));
  KillAgent(SIGKILL);
  const pid_t shim = ShimOf(directory_);
  ASSERT_GT(shim, 0);
  ::kill(shim, SIGKILL);
  EXPECT_TRUE(Eventually([] { return Processes() == 0; }));
  StartAgent();
  EXPECT_TRUE(scheduler_->WaitForPhase(key, pb::GONE));
}

TEST_F(OwnersAgentTest, AForkBombMeetsItsLimit) {
  const pb::AttemptKey key = Launch("main",
                                    "exec python3 -c '\n"
                                    "import os, signal\n"
                                    "forked = 0\n"
                                    "try:\n"
                                    "    while forked < 300:\n"
                                    "        if os.fork() == 0: signal.pause()\n"
                                    "        forked += 1\n"
                                    "except OSError: pass\n"
                                    "count = os.environ[\"MUSTER_JOB_DIR\"] + \"/count\"\n"
                                    "open(count + \".new\", \"w\").write(str(forked))\n"
                                    "os.rename(count + \".new\", count)\n"
                                    "signal.pause()'");
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(directory_ + "/ann/job/count"); }));
  const int forked = std::stoi(Read("ann/job/count"));
  EXPECT_GT(forked, 20);
  EXPECT_LT(forked, 60);
  Stop(key, 0);
  ASSERT_TRUE(scheduler_->WaitForPhase(key, pb::GONE));
  EXPECT_EQ(Processes(), 0);
}

TEST_F(OwnersAgentTest, SaysThatItRunsJobsAsTheirOwnersAndOneOfASingleUserDoesnt) {
  EXPECT_TRUE(scheduler_->hello().runs_as_owner());
  EXPECT_TRUE(scheduler_->hello().inventory().gives_secrets());
  EXPECT_TRUE(scheduler_->hello().inventory().unpacks());
  KillAgent(SIGTERM);
  owner_.clear();
  flags_.clear();
  StartAgent();
  ASSERT_TRUE(scheduler_->WaitForHello(2));
  EXPECT_FALSE(scheduler_->hello().runs_as_owner());
}

// Whoever served the socket could have any job run as anybody.
TEST_F(OwnersAgentTest, AServerThatAJobCouldBeIsNotObeyed) {
  KillAgent(SIGTERM);
  const pid_t thief = ::fork();
  ASSERT_GE(thief, 0);
  if (thief == 0) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (directory_ + "/ann/s.sock").copy(address.sun_path, sizeof address.sun_path - 1);
    if (::setgid(61011) != 0 || ::setuid(61011) != 0 ||
        ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(fd, 10) != 0)
      ::_exit(1);
    ::pause();
  }
  const std::string place = directory_ + "/ann/s.sock", said = directory_ + "/said";
  EXPECT_TRUE(Eventually([&] { return std::filesystem::exists(place); }));
  const int code = ::system(
      absl::StrCat(
          "timeout 60 sh -c '\"$0\" --server unix://", place, " --cluster c --host h --state-dir ",
          directory_, "/other-state > ", said, " 2>&1 & until grep -q refused ", said,
          " 2> /dev/null; do sleep 0.05; done; kill $!; wait $!' ", programs_, "/muster-agent")
          .c_str());
  EXPECT_EQ(code, 0);
  EXPECT_NE(Read("said").find("served by uid 61011, whom jobs may run as"), std::string::npos)
      << Read("said");
  ::kill(thief, SIGKILL);
  ::waitpid(thief, nullptr, 0);
  StartAgent();
  ASSERT_TRUE(scheduler_->WaitForHello(2));
}

TEST_F(OwnersAgentTest, OnlyRootStartsSuchAnAgent) {
  KillAgent(SIGTERM);
  const std::string said = directory_ + "/ann/said";
  const int code =
      ::system(absl::StrCat("setpriv --reuid 61011 --clear-groups ", MUSTER_TEST_BIN,
                            "/muster-agent --server unix:///s --cluster c --host h --state-dir ",
                            directory_, "/ann/state > ", said, " 2>&1")
                   .c_str());
  EXPECT_NE(code, 0);
  EXPECT_NE(Read("ann/said").find("only root can run jobs as their owners"), std::string::npos)
      << Read("ann/said");
  StartAgent();
  ASSERT_TRUE(scheduler_->WaitForHello(2));
}

}  // namespace
}  // namespace muster
