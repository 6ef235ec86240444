// Questions that take long, and the agents that must be heard meanwhile: the real server on a Unix
// socket, and a clock that keeps previews waiting.
#include "scheduler/api/questions.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/protocol.h"
#include "muster/v1/agent_service.grpc.pb.h"
#include "muster/v1/job_service.grpc.pb.h"
#include "muster/v1/queue_service.grpc.pb.h"
#include "scheduler/api/outlook.h"
#include "scheduler/api/server.h"
#include "scheduler/api/services.h"
#include "scheduler/engine/testing/fixture.h"

namespace muster {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

TEST(Questions, AreAnsweredByTheirOwnThreadsAndRefusedAboveTheBound) {
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future().share();
  std::atomic<int> answered = 0;
  std::promise<void> begun;
  Questions questions(1, 2);
  ASSERT_TRUE(questions.Ask([&] {
    begun.set_value();
    gone.wait();
    ++answered;
  }));
  begun.get_future().wait();
  EXPECT_TRUE(questions.Ask([&] { ++answered; }));
  EXPECT_TRUE(questions.Ask([&] { ++answered; }));
  EXPECT_FALSE(questions.Ask([&] { ++answered; })) << "two wait already";
  go.set_value();
  questions.Stop();
  EXPECT_EQ(answered, 3) << "those that wait are answered";
  EXPECT_FALSE(questions.Ask([&] { ++answered; }));
}

// Whoever asks it for the time of day waits until it is let go.
class HeldClock : public Clock {
 public:
  int64_t WallNs() override {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !held_; });
    return RealClock()->WallNs();
  }
  int64_t MonotonicNs() override { return RealClock()->MonotonicNs(); }
  int64_t BootNs() override { return RealClock()->BootNs(); }

  bool AwaitSomebody() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [this] { return waiting_ > 0; });
  }
  void LetGo() {
    std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = true;
  int waiting_ = 0;
};

class BurstTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-burst-XXXXXX";
    folder_ = ::mkdtemp(name);
    SessionOptions session_options;
    session_options.store_id = std::string(32, '5');
    session_options.epoch = 1;
    sessions_ = std::make_unique<Sessions>(session_options, RealClock());
    engine_ =
        std::make_unique<Engine>(EngineOptions(), RealClock(), &store_, sessions_.get(), State());
    sessions_->Attach(engine_.get());
    engine_->Post(LabConfigured());
    engine_->Post(HostJoins("h0"));  // somebody that jobs fit on
    engine_->Step();
    hub_ = std::make_unique<WatchHub>(engine_.get());
    outlook_ = std::make_unique<Outlook>(engine_.get(), RealClock(), SchedulingOptions());
    context_.engine = engine_.get();
    context_.sessions = sessions_.get();
    context_.outlook = outlook_.get();
    guard_ = std::make_unique<Guard>(GuardParts{engine_.get(), nullptr, &users_, nullptr, &clock_});
    context_.guard = guard_.get();
    context_.clock = &clock_;
    context_.single_user = true;
    server_ = std::make_unique<ApiServer>(&context_, hub_.get());
    stepping_ = std::thread([this] { engine_->Run(); });
    ASSERT_TRUE(server_->Listen(folder_ + "/s", 0600).ok());
    channel_ = Channel();
  }
  void TearDown() override {
    clock_.LetGo();
    server_->Shutdown();
    outlook_->Stop();
    engine_->Stop();
    stepping_.join();
    hub_->Stop();
    std::filesystem::remove_all(folder_);
  }
  std::shared_ptr<grpc::Channel> Channel() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel("unix://" + folder_ + "/s", grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  std::string folder_;
  HeldClock clock_;
  RecordingStore store_{nullptr};
  std::unique_ptr<Sessions> sessions_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<WatchHub> hub_;
  std::unique_ptr<Outlook> outlook_;
  Users users_{{}, geteuid(), true, &clock_};
  std::unique_ptr<Guard> guard_;
  ApiContext context_;
  std::unique_ptr<ApiServer> server_;
  std::thread stepping_;
  std::shared_ptr<grpc::Channel> channel_;
};

struct Previewed {
  grpc::ClientContext call;
  pb::PreviewRequest request;
  pb::PreviewResponse response;
  std::promise<grpc::Status> status;
};

TEST_F(BurstTest, AnAgentsHeartbeatIsAnsweredWhileManyPreviewsRun) {
  // The agent is there before them, as agents are.
  const auto agents = pb::AgentService::NewStub(Channel());
  grpc::ClientContext agent;
  agent.set_deadline(std::chrono::system_clock::now() + 2 * kPatience);
  const auto stream = agents->Connect(&agent);
  pb::AgentMessage message;
  pb::Hello* hello = message.mutable_hello();
  hello->set_protocol_version(kAgentProtocolVersion);
  hello->set_cluster("lab");
  hello->set_host("h1");
  hello->set_state_id(std::string(32, 'a'));
  hello->set_boot_id("boot");
  *hello->mutable_inventory() = TwoSlots();
  ASSERT_TRUE(stream->Write(message));
  pb::SchedulerMessage told;
  ASSERT_TRUE(stream->Read(&told));
  ASSERT_TRUE(told.has_welcome()) << told.DebugString();
  const pb::SessionKey session = told.session();

  const auto jobs = pb::JobService::NewStub(channel_);
  std::vector<std::unique_ptr<Previewed>> previews;
  for (int i = 0; i < 300; ++i) {
    Previewed* preview = previews.emplace_back(std::make_unique<Previewed>()).get();
    *preview->request.mutable_spec() = OneSlotSpec();
    jobs->async()->Preview(&preview->call, &preview->request, &preview->response,
                           [preview](grpc::Status status) { preview->status.set_value(status); });
  }
  ASSERT_TRUE(clock_.AwaitSomebody());
  message.Clear();
  *message.mutable_session() = session;
  message.mutable_heartbeat()->set_sequence(7);
  ASSERT_TRUE(stream->Write(message));
  bool acknowledged = false;
  while (!acknowledged && stream->Read(&told))
    acknowledged = told.has_heartbeat_ack() && told.heartbeat_ack().sequence() == 7;
  EXPECT_TRUE(acknowledged) << "previews hold up an agent's heartbeat";
  clock_.LetGo();
  int answered = 0, busy = 0;
  for (const auto& preview : previews) {
    const grpc::Status status = preview->status.get_future().get();
    if (status.ok()) ++answered;
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) ++busy;
    if (status.ok()) EXPECT_EQ(preview->response.resolved().tasks_size(), 1);
  }
  EXPECT_EQ(answered + busy, 300);
  EXPECT_GE(answered, 256) << "so many may wait";
  agent.TryCancel();
}

TEST_F(BurstTest, ADryRunOfQueuesIsAnsweredByTheSameThreads) {
  clock_.LetGo();
  const auto queues = pb::QueueService::NewStub(channel_);
  grpc::ClientContext call;
  pb::ApplyQueuesRequest request;
  request.set_dry_run(true);
  request.mutable_tree()->add_queues()->set_name("research");
  pb::ApplyQueuesResponse response;
  const grpc::Status status = queues->Apply(&call, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(response.changes_size(), 0);
  EXPECT_EQ(engine_->Snapshot()->state.queue_version(), 0u);
  outlook_->Stop();
  grpc::ClientContext late;
  EXPECT_EQ(queues->Apply(&late, request, &response).error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace muster
