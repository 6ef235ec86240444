// Watch and Logs as clients meet them: the real server on a Unix socket, the real engine, an agent
// played by the test.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <thread>

#include "common/base/protocol.h"
#include "muster/v1/cluster_service.grpc.pb.h"
#include "muster/v1/job_service.grpc.pb.h"
#include "scheduler/api/errors.h"
#include "scheduler/api/log_stream.h"
#include "scheduler/api/server.h"
#include "scheduler/api/services.h"
#include "scheduler/engine/testing/fixture.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr auto kPatience = std::chrono::seconds(20);
constexpr size_t kPieceBytes = 64 << 10;

// Lines that all differ, so much of them.
std::string Lines(size_t bytes) {
  std::string lines;
  for (int i = 0; lines.size() < bytes; ++i) absl::StrAppend(&lines, "line ", i, "\n");
  return lines;
}

// The agent of lab/h1: what it was told, to be waited for.
class FakeAgent : public AgentStream, public std::enable_shared_from_this<FakeAgent> {
 public:
  explicit FakeAgent(Sessions* sessions) : sessions_(sessions) {}

  void Send(const pb::SchedulerMessage& message) override {
    std::lock_guard lock(mutex_);
    session_ = message.session();
    told_.push_back(message);
    changed_.notify_all();
  }
  void End(const absl::Status&) override {}

  void Join() {
    pb::AgentMessage message;
    pb::Hello* hello = message.mutable_hello();
    hello->set_protocol_version(kAgentProtocolVersion);
    hello->set_cluster("lab");
    hello->set_host("h1");
    hello->set_state_id(std::string(32, 'a'));
    hello->set_boot_id("boot");
    *hello->mutable_inventory() = TwoSlots();
    EXPECT_TRUE(sessions_->Receive(shared_from_this(), message).ok());
    Await([](const pb::SchedulerMessage& m) { return m.has_welcome(); });
  }
  // The first message of this kind that was not asked for before.
  pb::SchedulerMessage Await(const std::function<bool(const pb::SchedulerMessage&)>& wanted) {
    std::unique_lock lock(mutex_);
    pb::SchedulerMessage found;
    const bool came = changed_.wait_for(lock, kPatience, [&] {
      for (; looked_ < told_.size(); ++looked_) {
        if (!wanted(told_[looked_])) continue;
        found = told_[looked_++];
        return true;
      }
      return false;
    });
    EXPECT_TRUE(came) << "the scheduler never said it";
    return found;
  }
  pb::LogRequest AwaitLogRequest() {
    return Await([](const pb::SchedulerMessage& m) { return m.has_log_request(); }).log_request();
  }
  void Say(pb::AgentMessage message) {
    {
      std::lock_guard lock(mutex_);
      *message.mutable_session() = session_;
    }
    EXPECT_TRUE(sessions_->Receive(shared_from_this(), message).ok());
  }
  void Report(const pb::AttemptKey& key, pb::AttemptPhase phase, int exit_code = -1) {
    pb::AgentMessage message;
    *message.mutable_report()->mutable_key() = key;
    message.mutable_report()->set_phase(phase);
    if (exit_code >= 0) message.mutable_report()->add_exits()->set_exit_code(exit_code);
    Say(std::move(message));
  }
  void Output(uint64_t request, const std::string& data, int64_t dropped_bytes = 0,
              int64_t next_offset = 0, int32_t rank = 0) {
    pb::AgentMessage message;
    message.mutable_log_chunk()->set_request(request);
    message.mutable_log_chunk()->set_rank(rank);
    message.mutable_log_chunk()->set_data(data);
    message.mutable_log_chunk()->set_dropped_bytes(dropped_bytes);
    message.mutable_log_chunk()->set_next_offset(next_offset);
    Say(std::move(message));
  }
  // As an agent does of a log of one rank: from where it is asked, as much as it is asked for at
  // once.
  void Serve(const pb::LogRequest& request, const std::string& log) {
    const size_t from =
        request.from().count(0) != 0 ? static_cast<size_t>(request.from().at(0)) : 0;
    size_t at = from;
    for (; at < log.size() && at - from < static_cast<size_t>(request.max_bytes());
         at += kPieceBytes) {
      Output(request.request(), log.substr(at, kPieceBytes), 0,
             static_cast<int64_t>(std::min(log.size(), at + kPieceBytes)));
    }
    EndOutput(request.request(), at < log.size());
  }
  bool WasCancelled(uint64_t request) {
    std::lock_guard lock(mutex_);
    return std::any_of(told_.begin(), told_.end(), [&](const pb::SchedulerMessage& m) {
      return m.log_cancel().request() == request;
    });
  }
  void EndOutput(uint64_t request, bool more = false) {
    pb::AgentMessage message;
    message.mutable_log_chunk()->set_request(request);
    message.mutable_log_chunk()->set_end(true);
    message.mutable_log_chunk()->set_more(more);
    Say(std::move(message));
  }
  void Leave() { sessions_->Closed(this); }

 private:
  Sessions* const sessions_;
  std::mutex mutex_;
  std::condition_variable changed_;
  pb::SessionKey session_;
  std::vector<pb::SchedulerMessage> told_;
  size_t looked_ = 0;
};

class StreamsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-streams-XXXXXX";
    folder_ = ::mkdtemp(name);
    SessionOptions session_options;
    session_options.store_id = std::string(32, '5');
    session_options.epoch = 1;
    sessions_ = std::make_unique<Sessions>(session_options, RealClock());
    EngineOptions options;
    options.scheduling.restart_backoff_ns = kMillisecond;
    engine_ = std::make_unique<Engine>(options, RealClock(), &store_, sessions_.get(), State());
    sessions_->Attach(engine_.get());
    engine_->Post(LabConfigured());
    engine_->Step();
    hub_ = std::make_unique<WatchHub>(engine_.get());
    engine_->Observe(hub_->observer());
    context_.engine = engine_.get();
    context_.sessions = sessions_.get();
    context_.clock = RealClock();
    context_.scheduling = options.scheduling;
    context_.single_user = true;
    guard_ =
        std::make_unique<Guard>(GuardParts{engine_.get(), nullptr, &users_, nullptr, RealClock()});
    context_.guard = guard_.get();
    server_ = std::make_unique<ApiServer>(&context_, hub_.get());
    stepping_ = std::thread([this] { engine_->Run(); });
    ASSERT_TRUE(server_->Listen(folder_ + "/s", 0600).ok());
    jobs_ = Stub(folder_ + "/s");
    agent_ = std::make_shared<FakeAgent>(sessions_.get());
  }
  void TearDown() override {
    server_->Shutdown();
    if (others_ != nullptr) others_->Shutdown(std::chrono::system_clock::now());
    engine_->Stop();
    stepping_.join();
    hub_->Stop();
    std::filesystem::remove_all(folder_);
  }

  static std::unique_ptr<pb::JobService::Stub> Stub(const std::string& socket) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return pb::JobService::NewStub(grpc::CreateCustomChannel(
        "unix://" + socket, grpc::InsecureChannelCredentials(), arguments));
  }
  // The same services as another, ordinary user meets them.
  std::unique_ptr<pb::JobService::Stub> StubOfBob() {
    others_service_ = std::make_unique<JobServiceImpl>(&context_, hub_.get(), &others_door_);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix://" + folder_ + "/bob", grpc::InsecureServerCredentials());
    builder.RegisterService(others_service_.get());
    others_ = builder.BuildAndStart();
    return Stub(folder_ + "/bob");
  }

  std::string Submit(int max_restarts = 3) {
    grpc::ClientContext call;
    pb::SubmitRequest request;
    *request.mutable_spec() = OneSlotSpec();
    request.mutable_spec()->mutable_tasks(0)->set_max_restarts(max_restarts);
    request.set_idempotency_key("key " + std::to_string(++submitted_));
    pb::SubmitResponse response;
    const grpc::Status status = jobs_->Submit(&call, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return std::to_string(response.job().number());
  }
  pb::AttemptKey AwaitPrepare() {
    return agent_->Await([](const pb::SchedulerMessage& m) { return m.has_prepare(); })
        .prepare()
        .key();
  }
  // Job 1 on lab/h1, its first attempt running.
  pb::AttemptKey Running(int max_restarts = 3) {
    agent_->Join();
    Submit(max_restarts);
    const pb::AttemptKey key = AwaitPrepare();
    agent_->Report(key, pb::STARTED);
    AwaitState(
        [](const State& state) { return state.FindJob(1)->tasks[0].state == pb::TASK_RUNNING; });
    return key;
  }
  void AwaitState(const std::function<bool(const State&)>& wanted) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    std::shared_ptr<const View> view = engine_->Snapshot();
    for (; !wanted(view->state) && std::chrono::steady_clock::now() < until;
         view = engine_->Snapshot())
      std::this_thread::yield();
    EXPECT_TRUE(wanted(view->state));
  }
  void AwaitWatchers(size_t watchers) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (hub_->watchers() != watchers && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    EXPECT_EQ(hub_->watchers(), watchers);
  }
  void AwaitNobodyWatches() { AwaitWatchers(0); }

  std::unique_ptr<grpc::ClientReader<pb::WatchJobResponse>> Watch(grpc::ClientContext* call,
                                                                  const std::string& id) {
    call->set_deadline(std::chrono::system_clock::now() + kPatience);
    pb::WatchJobRequest request;
    request.set_id(id);
    return jobs_->Watch(call, request);
  }
  std::unique_ptr<grpc::ClientReader<pb::LogsResponse>> Logs(
      grpc::ClientContext* call, bool follow,
      const std::function<void(pb::LogsRequest*)>& change = nullptr,
      pb::JobService::Stub* as = nullptr) {
    call->set_deadline(std::chrono::system_clock::now() + kPatience);
    pb::LogsRequest request;
    request.set_id("1");
    request.set_rank(-1);
    request.set_follow(follow);
    if (change) change(&request);
    return (as == nullptr ? jobs_.get() : as)->Logs(call, request);
  }
  // The status of a Logs call that gives nothing.
  grpc::Status Refused(bool follow, const std::function<void(pb::LogsRequest*)>& change) {
    grpc::ClientContext call;
    const auto reader = Logs(&call, follow, change);
    pb::LogsResponse response;
    EXPECT_FALSE(reader->Read(&response));
    return reader->Finish();
  }

  std::string folder_;
  RecordingStore store_{nullptr};
  std::unique_ptr<Sessions> sessions_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<WatchHub> hub_;
  Users users_{{{"bob", 4711, {}}}, geteuid(), false, RealClock()};
  std::unique_ptr<Guard> guard_;
  ApiContext context_;
  std::unique_ptr<ApiServer> server_;
  const UidDoor others_door_{&users_, 4711};
  std::unique_ptr<JobServiceImpl> others_service_;
  std::unique_ptr<grpc::Server> others_;
  std::thread stepping_;
  std::unique_ptr<pb::JobService::Stub> jobs_;
  std::shared_ptr<FakeAgent> agent_;
  int submitted_ = 0;
};

// A user's jobs of a megabyte each kept everybody who sees them from listing any.
TEST_F(StreamsTest, AListOfLongJobsComesInSeveralPages) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  const auto jobs = pb::JobService::NewStub(grpc::CreateCustomChannel(
      "unix://" + folder_ + "/s", grpc::InsecureChannelCredentials(), arguments));
  constexpr int kJobs = 20;
  pb::SubmitRequest submit;
  *submit.mutable_spec() = OneSlotSpec();
  for (int i = 0; i < 30; ++i)
    (*submit.mutable_spec()->mutable_env())[absl::StrCat("V", i)] = std::string(31 << 10, 'x');
  for (int i = 0; i < kJobs; ++i) {
    submit.set_idempotency_key(absl::StrCat("long ", i));
    grpc::ClientContext call;
    pb::SubmitResponse response;
    ASSERT_TRUE(jobs->Submit(&call, submit, &response).ok());
  }
  std::vector<uint64_t> numbers, wanted;
  for (int i = kJobs; i > 0; --i) wanted.push_back(static_cast<uint64_t>(i));
  pb::ListJobsRequest request;
  request.set_page_size(1000);
  int pages = 0;
  do {
    grpc::ClientContext call;
    pb::ListJobsResponse page;
    ASSERT_TRUE(jobs->List(&call, request, &page).ok());
    EXPECT_LT(page.ByteSizeLong(), 18u << 20);
    for (const pb::Job& job : page.jobs()) numbers.push_back(job.number());
    request.set_page_token(page.next_page_token());
    ++pages;
  } while (!request.page_token().empty() && pages < 5);
  EXPECT_EQ(numbers, wanted);
  EXPECT_EQ(pages, 2);
}

// ---- the socket ----

// As whoever has this uid; -1: it can't.
int ConnectAs(uint32_t uid, const std::string& path) {
  int fd = -1;
  std::thread([&] {  // it alone becomes somebody else: so the call without the library
    if (syscall(SYS_setresuid, uid, uid, uid) != 0) return;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval patience{20, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return;
    close(fd);
    fd = -1;
  })
      .join();
  return fd;
}

// A server's first words, rather than the end.
bool IsServed(int fd) {
  char byte = 0;
  return fd >= 0 && recv(fd, &byte, 1, 0) == 1;
}

class SocketTest : public StreamsTest {
 protected:
  static constexpr uint32_t kBob = 4711, kNobody = 4712;

  void Serve(SocketLimits limits) {
    several_ = context_;
    several_.single_user = false;
    socket_ = std::make_unique<ApiServer>(&several_, hub_.get(), limits);
    path_ = folder_ + "/all";
    ASSERT_EQ(chmod(folder_.c_str(), 0711), 0);
    ASSERT_TRUE(socket_->Listen(path_, 0666).ok());
  }
  void TearDown() override {
    for (const int fd : open_) close(fd);
    if (socket_ != nullptr) socket_->Shutdown();
    StreamsTest::TearDown();
  }
  // Stays open where it is served.
  bool Serves(uint32_t uid) {
    const int fd = ConnectAs(uid, path_);
    if (IsServed(fd)) {
      open_.push_back(fd);
      return true;
    }
    if (fd >= 0) close(fd);
    return false;
  }
  void CloseNewest() {
    close(open_.back());
    open_.pop_back();
  }
  bool ServesSoon(uint32_t uid) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < until) {
      if (Serves(uid)) return true;
    }
    return false;
  }

  ApiContext several_;
  std::unique_ptr<ApiServer> socket_;
  std::string path_;
  std::vector<int> open_;
};

TEST_F(SocketTest, AUserHasOnlySoManyConnections) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be other users";
  Serve({.users = 256, .connections_of_user = 2});
  EXPECT_TRUE(Serves(kBob));
  EXPECT_TRUE(Serves(kBob));
  EXPECT_FALSE(Serves(kBob));
  EXPECT_TRUE(Serves(kNobody)) << "another one's are not counted with them";
  CloseNewest();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(Serves(0)) << "the way in when all else is lost";
  for (int i = 0; i < 4; ++i) CloseNewest();
  CloseNewest();
  EXPECT_TRUE(ServesSoon(kBob)) << "one of bob's has ended";
}

// The 257th user of a machine was refused until musterd was started again.
TEST_F(SocketTest, AUserWithoutConnectionsMakesRoomForAnother) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be other users";
  Serve({.users = 2, .idle_ns = 0});
  EXPECT_TRUE(Serves(0));
  EXPECT_TRUE(Serves(kBob));
  EXPECT_FALSE(Serves(kNobody)) << "both have connections";
  CloseNewest();
  EXPECT_TRUE(ServesSoon(kNobody));
  EXPECT_TRUE(Serves(0));
  EXPECT_FALSE(Serves(kBob));
}

// ---- Submit ----

TEST_F(StreamsTest, WithoutRoomForItAJobIsRefusedForNowAndPingSaysSo) {
  pb::SubmitRequest known;
  *known.mutable_spec() = OneSlotSpec();
  known.set_idempotency_key("known");
  pb::SubmitResponse first, repeated;
  grpc::ClientContext before, after;
  ASSERT_TRUE(jobs_->Submit(&before, known, &first).ok());
  context_.why_no_submissions = [] { return "only 12 MiB are free"; };
  pb::SubmitRequest request;
  *request.mutable_spec() = OneSlotSpec();
  request.set_idempotency_key("key");
  pb::SubmitResponse response;
  grpc::ClientContext call;
  const grpc::Status status = jobs_->Submit(&call, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "only 12 MiB are free");
  EXPECT_THAT(status.error_details(), HasSubstr("STORE_FULL"));
  EXPECT_EQ(engine_->Snapshot()->state.active_jobs().size(), 1u);
  ASSERT_TRUE(jobs_->Submit(&after, known, &repeated).ok()) << "it is there already";
  EXPECT_EQ(repeated.job().number(), first.job().number());
  pb::PingResponse ping;
  grpc::ClientContext again;
  const auto channel =
      grpc::CreateChannel("unix://" + folder_ + "/s", grpc::InsecureChannelCredentials());
  ASSERT_TRUE(pb::ClusterService::NewStub(channel)->Ping(&again, pb::PingRequest(), &ping).ok());
  EXPECT_FALSE(ping.accepts_submissions());
  EXPECT_EQ(ping.why_not(), "only 12 MiB are free");
}

// ---- Watch ----

TEST_F(StreamsTest, AWatchTellsTheJobNowThenWhatHappensInOrderAndEndsWithTheJob) {
  const std::string id = Submit();
  grpc::ClientContext call;
  const auto reader = Watch(&call, id);
  pb::WatchJobResponse message;
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.job().state(), pb::WAITING);
  EXPECT_NE(message.job().tasks(0).verdict().text(), "") << "a waiting task says why";
  EXPECT_THAT(message.events(), IsEmpty()) << "the past is not told again";

  agent_->Join();
  const pb::AttemptKey key = AwaitPrepare();
  agent_->Report(key, pb::STARTED);
  agent_->Report(key, pb::GONE, 0);
  std::vector<std::string> events;
  uint64_t version = message.job().version();
  while (reader->Read(&message)) {
    EXPECT_GE(message.job().version(), version) << "never an older job after a newer one";
    version = message.job().version();
    events.insert(events.end(), message.events().begin(), message.events().end());
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(message.job().state(), pb::SUCCEEDED) << "the last message is the end";
  EXPECT_THAT(events, ElementsAre("attempt 1 is placed on lab/h1 with 1 worker",
                                  "attempt 1 runs on lab/h1 with 1 worker",
                                  "attempt 1 ended: every worker is done", "succeeded"));
  AwaitNobodyWatches();
}

TEST_F(StreamsTest, AWatchOfAnEndedJobIsOneMessage) {
  const pb::AttemptKey key = Running();
  agent_->Report(key, pb::GONE, 0);
  AwaitState([](const State& state) { return state.FindJob(1)->finished(); });
  grpc::ClientContext call;
  const auto reader = Watch(&call, "1");
  pb::WatchJobResponse message;
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.job().state(), pb::SUCCEEDED);
  EXPECT_FALSE(reader->Read(&message));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(StreamsTest, AWatchResumedLaterBeginsWithTheJobAsItIsAndMissesNothingAfterwards) {
  const pb::AttemptKey key = Running();
  {
    grpc::ClientContext first;
    const auto reader = Watch(&first, "1");
    pb::WatchJobResponse message;
    ASSERT_TRUE(reader->Read(&message));
    first.TryCancel();  // the client hangs up
    while (reader->Read(&message)) {
    }
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  AwaitNobodyWatches();
  EXPECT_EQ(engine_->Snapshot()->state.FindJob(1)->state, pb::RUNNING)
      << "hanging up touches no job";
  grpc::ClientContext second;
  const auto reader = Watch(&second, "1");
  pb::WatchJobResponse message;
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.job().tasks(0).state(), pb::TASK_RUNNING);
  EXPECT_THAT(message.events(), IsEmpty());
  agent_->Report(key, pb::GONE, 0);
  std::vector<std::string> events;
  while (reader->Read(&message))
    events.insert(events.end(), message.events().begin(), message.events().end());
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_THAT(events, ElementsAre("attempt 1 ended: every worker is done", "succeeded"));
}

TEST_F(StreamsTest, ASlowReaderGetsFewerMessagesButEverythingThatHappened) {
  const pb::AttemptKey key = Running();
  grpc::ClientContext call;
  const auto reader = Watch(&call, "1");
  pb::WatchJobResponse message;
  ASSERT_TRUE(reader->Read(&message));
  constexpr int kChanges = 500;  // of messages that are more together than what is under way
  for (int step = 1; step <= kChanges; ++step) {
    pb::Event event;
    *event.mutable_checkpoint_seen()->mutable_key() = key;
    event.mutable_checkpoint_seen()->mutable_checkpoint()->set_step(step);
    event.mutable_checkpoint_seen()->mutable_checkpoint()->set_path(
        absl::StrCat("/shared/", std::string(20'000, 'x'), step));
    event.mutable_checkpoint_seen()->set_loaded_step(-1);
    engine_->Post(event);
    AwaitState([&](const State& state) {
      const auto& checkpoints = state.FindJob(1)->tasks[0].checkpoints;
      return !checkpoints.empty() && checkpoints.back().step() == step;  // a commit each
    });
  }
  int messages = 0;
  std::vector<std::string> checkpoints;
  const auto read = [&] {
    if (!reader->Read(&message)) return false;
    ++messages;
    for (const std::string& event : message.events()) {
      if (event.rfind("checkpoint", 0) == 0) checkpoints.push_back(event);
    }
    return true;
  };
  while (checkpoints.size() < kChanges)
    ASSERT_TRUE(read())
        << "nothing else happens to the job: what was held back must come by itself";
  agent_->Report(key, pb::GONE, 0);
  while (read()) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(message.job().state(), pb::SUCCEEDED);
  EXPECT_LT(messages, kChanges) << "what waits is told together";
  ASSERT_EQ(checkpoints.size(), static_cast<size_t>(kChanges)) << "nothing is left out";
  for (int step = 1; step <= kChanges; ++step)
    EXPECT_EQ(checkpoints[step - 1], absl::StrCat("checkpoint at step ", step));
}

TEST_F(StreamsTest, OneUserFollowsOnlySoManyJobsAtOnce) {
  Submit();
  std::vector<std::unique_ptr<grpc::ClientContext>> calls;
  std::vector<std::unique_ptr<grpc::ClientReader<pb::WatchJobResponse>>> readers;
  const auto follow = [&] {
    readers.push_back(
        Watch(calls.emplace_back(std::make_unique<grpc::ClientContext>()).get(), "1"));
  };
  pb::WatchJobResponse message;
  for (int i = 0; i < kWatchesMax; ++i) follow();
  AwaitWatchers(kWatchesMax);
  grpc::ClientContext refused;
  const auto reader = Watch(&refused, "1");
  EXPECT_FALSE(reader->Read(&message));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("you follow 1024 jobs now"));
  calls[0]->TryCancel();
  AwaitWatchers(kWatchesMax - 1);
  follow();
  AwaitWatchers(kWatchesMax);
  for (const auto& call : calls) call->TryCancel();
}

TEST_F(StreamsTest, UnknownJobsAndThoseOfOthersLookAlike) {
  Submit();
  const auto bob = StubOfBob();
  for (const auto& [stub, id] : {std::pair(jobs_.get(), "4711"), std::pair(jobs_.get(), "nonsense"),
                                 std::pair(bob.get(), "1")}) {
    grpc::ClientContext watch, logs;
    for (grpc::ClientContext* call : {&watch, &logs})
      call->set_deadline(std::chrono::system_clock::now() + kPatience);
    pb::WatchJobRequest watch_request;
    watch_request.set_id(id);
    pb::WatchJobResponse told;
    const auto watching = stub->Watch(&watch, watch_request);
    EXPECT_FALSE(watching->Read(&told));
    const grpc::Status unseen = watching->Finish();
    EXPECT_EQ(unseen.error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_THAT(unseen.error_message(), StartsWith(absl::StrCat("there is no job \"", id, "\"")));
    pb::LogsRequest logs_request;
    logs_request.set_id(id);
    pb::LogsResponse chunk;
    const auto reading = stub->Logs(&logs, logs_request);
    EXPECT_FALSE(reading->Read(&chunk));
    EXPECT_EQ(reading->Finish().error_message(), unseen.error_message());
  }
  EXPECT_EQ(hub_->watchers(), 0u);
}

TEST_F(StreamsTest, WhoFollowsKeepsNoStateOfItsBeginningAlive) {
  const std::string id = Submit();  // nobody can run it
  std::weak_ptr<const View> first = engine_->Snapshot();
  grpc::ClientContext watch, logs;
  const auto watching = Watch(&watch, id);
  pb::WatchJobResponse news;
  ASSERT_TRUE(watching->Read(&news));
  const auto reading = Logs(&logs, true);
  AwaitWatchers(2);
  Submit();
  const auto until = std::chrono::steady_clock::now() + kPatience / 2;  // the calls end with it
  while (!first.expired() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_TRUE(first.expired());
  watch.TryCancel();
  logs.TryCancel();
}

// ---- Logs ----

TEST_F(StreamsTest, LogsFollowAJobFromAttemptToAttemptAndEndWithIt) {
  const pb::AttemptKey first = Running();
  grpc::ClientContext call;
  const auto reader = Logs(&call, true);
  const pb::LogRequest one = agent_->AwaitLogRequest();
  EXPECT_EQ(one.key().attempt(), 1);
  EXPECT_TRUE(one.follow());
  agent_->Output(one.request(), "one\n");
  pb::LogsResponse chunk;
  ASSERT_TRUE(reader->Read(&chunk)) << "at once, not at the end";
  EXPECT_EQ(chunk.data(), "one\n");
  EXPECT_EQ(chunk.attempt(), 1);
  EXPECT_EQ(chunk.task(), "main");
  // A file was rotated away before it was read: the agent counts what is missing.
  agent_->Output(one.request(), "one again\n", 77);
  ASSERT_TRUE(reader->Read(&chunk));
  EXPECT_EQ(chunk.dropped_bytes(), 77);
  agent_->Report(first, pb::GONE, 1);
  agent_->EndOutput(one.request());

  const pb::AttemptKey second = AwaitPrepare();
  ASSERT_EQ(second.attempt(), 2);
  agent_->Report(second, pb::STARTED);
  const pb::LogRequest two = agent_->AwaitLogRequest();
  EXPECT_EQ(two.key().attempt(), 2);
  agent_->Output(two.request(), "two\n");
  agent_->Report(second, pb::GONE, 0);
  AwaitState([](const State& state) { return state.FindJob(1)->finished(); });
  ASSERT_TRUE(reader->Read(&chunk));
  EXPECT_EQ(chunk.data(), "two\n");
  EXPECT_EQ(chunk.attempt(), 2);
  agent_->EndOutput(two.request());  // what a host still sends after the job's end is not cut off
  EXPECT_FALSE(reader->Read(&chunk));
  EXPECT_TRUE(reader->Finish().ok());
  AwaitNobodyWatches();
}

TEST_F(StreamsTest, LogsOfOneAttemptEndWithItsOutput) {
  Running();
  grpc::ClientContext call;
  const auto reader =
      Logs(&call, false, [](pb::LogsRequest* request) { request->set_tail_lines(5); });
  const pb::LogRequest request = agent_->AwaitLogRequest();
  EXPECT_EQ(request.tail_lines(), 5);
  EXPECT_FALSE(request.follow());
  agent_->Output(request.request(), "so far\n");
  agent_->EndOutput(request.request());
  pb::LogsResponse chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  EXPECT_EQ(chunk.data(), "so far\n");
  EXPECT_FALSE(reader->Read(&chunk));
  EXPECT_TRUE(reader->Finish().ok()) << "the job runs on, the call does not";
}

TEST_F(StreamsTest, LogsThatAreGivenUpAreGivenUpAtTheAgent) {
  Running();
  grpc::ClientContext call;
  const auto reader = Logs(&call, true);
  const pb::LogRequest request = agent_->AwaitLogRequest();
  call.TryCancel();
  EXPECT_EQ(agent_->Await([](const pb::SchedulerMessage& m) { return m.has_log_cancel(); })
                .log_cancel()
                .request(),
            request.request());
  AwaitNobodyWatches();
  agent_->Output(request.request(), "for nobody\n");  // what was on its way harms nothing
  pb::LogsResponse chunk;
  while (reader->Read(&chunk)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(StreamsTest, OutputIsAskedForInPiecesAndNothingOfItIsLeftOut) {
  Running();
  grpc::ClientContext call;
  const auto reader =
      Logs(&call, false, [](pb::LogsRequest* request) { request->set_tail_lines(1'000'000'000); });
  const std::string log = Lines(12 << 20);
  std::thread serving([&] {
    for (size_t at = 0; at < log.size();) {
      const pb::LogRequest request = agent_->AwaitLogRequest();
      EXPECT_GT(request.max_bytes(), 0);
      EXPECT_EQ(request.tail_lines(), 1'000'000'000) << "for ranks that were not heard yet";
      EXPECT_EQ(request.from().count(0), at == 0 ? 0u : 1u);
      if (request.request() == 0 || (at != 0 && request.from().count(0) == 0)) return;
      agent_->Serve(request, log);
      at += static_cast<size_t>(request.max_bytes());
    }
  });
  std::string read;
  pb::LogsResponse chunk;
  while (reader->Read(&chunk)) {
    read += chunk.data();
    EXPECT_EQ(chunk.dropped_bytes(), 0);
    EXPECT_EQ(chunk.next_offset(), static_cast<int64_t>(read.size()));
  }
  EXPECT_TRUE(reader->Finish().ok());
  serving.join();
  EXPECT_TRUE(read == log) << read.size() << " of " << log.size();
}

TEST_F(StreamsTest, OfAnAgentThatSendsMoreThanWaitsForItsReaderTheRestIsAskedForLater) {
  Running();
  grpc::ClientContext call;
  const auto reader = Logs(&call, false);
  const pb::LogRequest first = agent_->AwaitLogRequest();
  const std::string log = Lines(16 << 20);
  size_t sent = 0;
  for (; sent < log.size() && !agent_->WasCancelled(first.request()); sent += kPieceBytes) {
    agent_->Output(first.request(), log.substr(sent, kPieceBytes), 0,
                   static_cast<int64_t>(std::min(log.size(), sent + kPieceBytes)));
  }
  EXPECT_LT(sent, size_t{10} << 20) << "what waits is bounded";
  std::thread serving([&] {
    for (int64_t at = 0; at < static_cast<int64_t>(log.size());) {
      const pb::LogRequest request = agent_->AwaitLogRequest();
      if (request.from().count(0) == 0) break;
      at = request.from().at(0) + request.max_bytes();
      agent_->Serve(request, log);
    }
  });
  std::string read;
  pb::LogsResponse chunk;
  while (reader->Read(&chunk)) read += chunk.data();
  EXPECT_TRUE(reader->Finish().ok());
  serving.join();
  EXPECT_TRUE(read == log) << read.size() << " of " << log.size();
}

TEST_F(StreamsTest, AnOlderAgentThatDoesntWaitForASlowReaderEndsTheCallRatherThanLeaveOutputOut) {
  Running();
  grpc::ClientContext call;
  const auto reader = Logs(&call, false);
  const pb::LogRequest request = agent_->AwaitLogRequest();
  const std::string data(64 << 10, 'x');
  for (int i = 0; i < 256; ++i) agent_->Output(request.request(), data);
  agent_->EndOutput(request.request());
  pb::LogsResponse chunk;
  while (reader->Read(&chunk)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(StreamsTest, FollowedOutputGoesOnWhereItWasWhenItsAgentIsBack) {
  const pb::AttemptKey key = Running();
  grpc::ClientContext call;
  const auto reader =
      Logs(&call, true, [](pb::LogsRequest* request) { request->set_tail_lines(3); });
  const pb::LogRequest first = agent_->AwaitLogRequest();
  EXPECT_EQ(first.tail_lines(), 3);
  agent_->Output(first.request(), "one\n", 0, 704);
  pb::LogsResponse chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  pb::LogRequest second;
  for (int i = 0; i < 3; ++i) {  // it may be away again and again while the attempt runs
    agent_->Leave();
    agent_->Join();
    second = agent_->AwaitLogRequest();
  }
  EXPECT_NE(second.request(), first.request());
  EXPECT_EQ(second.key().attempt(), 1);
  EXPECT_EQ(second.tail_lines(), 0);
  ASSERT_EQ(second.from().count(0), 1u);
  EXPECT_EQ(second.from().at(0), 704);
  agent_->Output(second.request(), "two\n", 0, 709);
  ASSERT_TRUE(reader->Read(&chunk));
  EXPECT_EQ(chunk.data(), "two\n");
  EXPECT_EQ(chunk.next_offset(), 709);
  agent_->Report(key, pb::GONE, 0);
  agent_->EndOutput(second.request());
  EXPECT_FALSE(reader->Read(&chunk));
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << "all of it came: " << status.error_message();
}

TEST_F(StreamsTest, OutputIsReadFromAnAgentThatWasAwayForAMoment) {
  Running();
  agent_->Leave();
  grpc::ClientContext call;
  const auto reader = Logs(&call, false);
  AwaitWatchers(1);
  agent_->Join();
  const pb::LogRequest first = agent_->AwaitLogRequest();
  agent_->Output(first.request(), "one\n", 0, 704);
  pb::LogsResponse chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  agent_->Leave();
  agent_->Join();
  const pb::LogRequest second = agent_->AwaitLogRequest();
  EXPECT_EQ(second.from().at(0), 704);
  agent_->Output(second.request(), "two\n", 0, 709);
  agent_->EndOutput(second.request());
  ASSERT_TRUE(reader->Read(&chunk));
  EXPECT_EQ(chunk.data(), "two\n");
  EXPECT_FALSE(reader->Read(&chunk));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(StreamsTest, ACallGoesOnWhereAnotherBrokeOff) {
  Running();
  grpc::ClientContext call;
  const auto reader = Logs(&call, true, [](pb::LogsRequest* request) {
    request->set_tail_lines(3);
    request->mutable_from()->set_task("main");
    request->mutable_from()->set_attempt(1);
    (*request->mutable_from()->mutable_next_offsets())[0] = 4;
    (*request->mutable_from()->mutable_next_offsets())[7] = 9;  // nobody's
  });
  const pb::LogRequest request = agent_->AwaitLogRequest();
  EXPECT_EQ(request.tail_lines(), 0);
  ASSERT_EQ(request.from().size(), 1u);
  EXPECT_EQ(request.from().at(0), 4);
}

TEST_F(StreamsTest, ReportsAreReadOnFromWhereACallBrokeOff) {
  Running();
  grpc::ClientContext call;
  const auto reader = Logs(&call, false, [](pb::LogsRequest* request) {
    request->set_rank(-2);
    request->mutable_from()->set_task("main");
    request->mutable_from()->set_attempt(1);
    (*request->mutable_from()->mutable_next_offsets())[-2] = 4;
  });
  const pb::LogRequest request = agent_->AwaitLogRequest();
  EXPECT_EQ(request.rank(), -2);
  ASSERT_EQ(request.from().size(), 1u);
  EXPECT_EQ(request.from().at(-2), 4);
  agent_->Output(request.request(), "{}\n", 0, 7, -2);
  agent_->EndOutput(request.request());
  pb::LogsResponse chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  EXPECT_EQ(chunk.data(), "{}\n");
  EXPECT_EQ(chunk.rank(), -2);
  EXPECT_EQ(chunk.next_offset(), 7);
  EXPECT_FALSE(reader->Read(&chunk));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(StreamsTest, AnAgentThatGivesOutputWhereReportsAreAskedForIsAskedNoMore) {
  Running();
  grpc::ClientContext call;
  const auto reader = Logs(&call, false, [](pb::LogsRequest* request) { request->set_rank(-2); });
  const pb::LogRequest request = agent_->AwaitLogRequest();
  agent_->Output(request.request(), "of an older release\n", 0, 20);
  agent_->EndOutput(request.request(), true);
  pb::LogsResponse chunk;
  EXPECT_FALSE(reader->Read(&chunk));
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(agent_->WasCancelled(request.request())) << "it needn't send the rest";
}

TEST_F(StreamsTest, OnlySoManyReadLogsAtOnce) {
  Submit();  // nobody can run it: who follows it waits
  std::vector<std::unique_ptr<grpc::ClientContext>> calls;
  std::vector<std::unique_ptr<grpc::ClientReader<pb::LogsResponse>>> readers;
  const auto read = [&] {
    readers.push_back(
        Logs(calls.emplace_back(std::make_unique<grpc::ClientContext>()).get(), true));
  };
  for (int i = 0; i < kLogReadersMax; ++i) read();
  AwaitWatchers(kLogReadersMax);
  const grpc::Status status = Refused(true, nullptr);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(),
            "192 calls of yours read logs now, and no more of one user are served at once; end one "
            "of them");
  calls[0]->TryCancel();
  AwaitWatchers(kLogReadersMax - 1);
  read();
  AwaitWatchers(kLogReadersMax);

  pb::Event event;
  event.mutable_binding_changed()->mutable_binding()->set_user("bob");
  event.mutable_binding_changed()->mutable_binding()->set_role(pb::ROLE_OPERATOR);
  engine_->Post(event);
  AwaitState([](const State& state) { return !state.bindings().empty(); });
  const auto bob = StubOfBob();
  for (int i = kLogReadersMax; i < kLogReadersOfAll; ++i)
    readers.push_back(Logs(calls.emplace_back(std::make_unique<grpc::ClientContext>()).get(), true,
                           nullptr, bob.get()));
  AwaitWatchers(kLogReadersOfAll);
  grpc::ClientContext call;
  const auto one_more = Logs(&call, true, nullptr, bob.get());
  pb::LogsResponse chunk;
  EXPECT_FALSE(one_more->Read(&chunk));
  EXPECT_EQ(one_more->Finish().error_message(),
            "256 calls of all users read logs now, and no more are served at once; try again "
            "later");
  calls[1]->TryCancel();
  AwaitWatchers(kLogReadersOfAll - 1);
  readers.push_back(Logs(calls.emplace_back(std::make_unique<grpc::ClientContext>()).get(), true,
                         nullptr, bob.get()));
  AwaitWatchers(kLogReadersOfAll);
  for (const auto& call : calls) call->TryCancel();
}

TEST_F(StreamsTest, OutputThatBreaksOffIsAnErrorAfterWhatCame) {
  Running();
  grpc::ClientContext call;
  const auto reader = Logs(&call, false);
  agent_->Output(agent_->AwaitLogRequest().request(), "half of it\n");
  agent_->Leave();
  pb::LogsResponse chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  EXPECT_EQ(chunk.data(), "half of it\n");
  EXPECT_FALSE(reader->Read(&chunk));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("disconnected"));
  // Asked again while its host is away: what waits for it ends with a tick, as in musterd.
  std::atomic<bool> over = false;
  std::thread ticking([&] {
    while (!over) {
      sessions_->Tick();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  EXPECT_THAT(Refused(false, nullptr).error_message(), HasSubstr("lab/h1 is not connected"));
  over = true;
  ticking.join();
}

TEST_F(StreamsTest, WhatThereIsNoOutputOfIsSaidAsItIs) {
  const auto attempt = [](int32_t number) {
    return [number](pb::LogsRequest* request) { request->set_attempt(number); };
  };
  Submit();  // nobody can run it
  EXPECT_THAT(Refused(false, nullptr).error_message(), HasSubstr("nothing of it has run"));
  EXPECT_THAT(Refused(false, attempt(9)).error_message(), HasSubstr("nothing of it has run"));
  agent_->Join();
  const pb::AttemptKey key = AwaitPrepare();
  EXPECT_THAT(Refused(false, nullptr).error_message(), HasSubstr("attempt 1 has not started yet"));
  agent_->Report(key, pb::STARTED);
  AwaitState(
      [](const State& state) { return state.FindJob(1)->tasks[0].state == pb::TASK_RUNNING; });
  EXPECT_THAT(Refused(false, attempt(9)).error_message(),
              HasSubstr("job 1 has no attempt 9; there is 1"));
  EXPECT_THAT(Refused(false, [](pb::LogsRequest* request) { request->set_task("nothing"); })
                  .error_message(),
              HasSubstr("job 1 has no task nothing; it has "));
  const grpc::Status rank = Refused(false, [](pb::LogsRequest* request) { request->set_rank(7); });
  EXPECT_EQ(rank.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(rank.error_message(), HasSubstr("no rank 7"));
  agent_->Report(key, pb::GONE, 0);
  AwaitState([](const State& state) { return state.FindJob(1)->finished(); });
  EXPECT_THAT(Refused(true, attempt(9)).error_message(),
              HasSubstr("job 1 has no attempt 9; there is 1"));
}

}  // namespace
}  // namespace muster
