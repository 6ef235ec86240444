// Sessions with the real engine, for tests: streams that write down what they were told.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/protocol.h"
#include "scheduler/agents/seen_mac.h"
#include "scheduler/agents/sessions.h"
#include "scheduler/engine/testing/fixture.h"

namespace muster {

inline const std::string kStore(32, '5');
inline const std::string kStateA(32, 'a');
inline const std::string kStateB(32, 'b');
inline const std::string kJob(32, '1');
inline constexpr uint64_t kEpoch = 7;
inline constexpr char kMacKey[] = "the key of what agents have seen";

inline std::string BodyName(const google::protobuf::Message& message) {
  const auto* field = message.GetReflection()->GetOneofFieldDescriptor(
      message, message.GetDescriptor()->FindOneofByName("body"));
  return field == nullptr ? "nothing" : std::string(field->name());
}

class FakeStream : public AgentStream {
 public:
  explicit FakeStream(std::vector<std::string>* log) : log_(log) {}
  void Send(const pb::SchedulerMessage& message) override {
    sent.push_back(message);
    log_->push_back(BodyName(message));
  }
  void End(const absl::Status& status) override { ended = status; }
  bool trusted() const override { return is_trusted; }
  std::string only_user() const override { return for_user; }
  bool bounded() const override { return from_network; }
  std::string session() const { return sent.empty() ? "" : sent[0].session().session(); }

  std::vector<pb::SchedulerMessage> sent;
  std::optional<absl::Status> ended;
  bool is_trusted = false;
  std::string for_user;  // of its certificate
  bool from_network = false;

 private:
  std::vector<std::string>* log_;
};
using StreamPtr = std::shared_ptr<FakeStream>;

inline pb::AttemptKey Key(int32_t attempt = 1) {
  pb::AttemptKey key;
  key.set_job_uid(kJob);
  key.set_task("main");
  key.set_attempt(attempt);
  return key;
}

inline pb::Hello HelloOf(const std::string& host, const std::string& state_id) {
  pb::Hello hello;
  hello.set_protocol_version(kAgentProtocolVersion);
  hello.set_cluster("lab");
  hello.set_host(host);
  hello.set_state_id(state_id);
  hello.set_boot_id("boot");
  *hello.mutable_inventory() = TwoSlots();
  return hello;
}

// As an agent says what it has seen; without `key` it has no MAC of it.
inline void Claim(uint64_t epoch, uint64_t commit, pb::Hello* hello,
                  const std::string& key = kMacKey) {
  hello->set_store_id_seen(kStore);
  hello->set_epoch_seen(epoch);
  hello->set_commit_seen(commit);
  hello->set_mac_seen(MacOfSeen(key, kStore, epoch, commit));
}

inline pb::AgentMessage Reported(pb::AttemptPhase phase) {
  pb::AgentMessage message;
  *message.mutable_report()->mutable_key() = Key();
  message.mutable_report()->set_phase(phase);
  if (phase == pb::GONE) message.mutable_report()->add_exits();
  return message;
}

inline pb::AgentMessage Checkpointed(uint64_t sequence) {
  pb::AgentMessage message;
  *message.mutable_checkpoint()->mutable_key() = Key();
  message.mutable_checkpoint()->set_sequence(sequence);
  message.mutable_checkpoint()->mutable_checkpoint()->set_step(static_cast<int64_t>(sequence) * 10);
  message.mutable_checkpoint()->mutable_checkpoint()->set_path(absl::StrCat("/shared/", sequence));
  message.mutable_checkpoint()->set_loaded_step(-1);
  return message;
}

inline pb::AgentMessage Beat(uint64_t sequence = 1) {
  pb::AgentMessage message;
  message.mutable_heartbeat()->set_sequence(sequence);
  message.mutable_heartbeat()->set_sent_boottime_ns(1000 + static_cast<int64_t>(sequence));
  return message;
}

// Cluster lab is open; cluster shut has host n1 alone, which no agent has served yet.
class SessionsTest : public ::testing::Test {
 protected:
  SessionsTest() {
    Start(State());
    pb::Event clusters = LabConfigured();
    pb::ClusterSpec* shut = clusters.mutable_clusters_configured()->mutable_file()->add_clusters();
    shut->set_name("shut");
    shut->add_hosts()->set_name("n1");
    engine_->Post(clusters);
    Settle();
  }

  // A scheduler that has just started on this state.
  void Start(State state) {
    engine_.reset();
    SessionOptions options;
    options.store_id = kStore;
    options.epoch = kEpoch;
    options.keep_to_sku = keep_to_sku_;
    options.several_users = several_users_;
    options.mac_key = mac_key_;
    options.on_unproved = [this](const pb::Hello& hello) { unproved_.push_back(hello.host()); };
    options.on_restored = [this](uint64_t, uint64_t) { ++restored_; };
    sessions_ = std::make_unique<Sessions>(options, &clock_);
    EngineOptions engine_options;
    engine_options.last_commit = commit_;
    engine_ = std::make_unique<Engine>(engine_options, &clock_, &store_, sessions_.get(),
                                       std::move(state));
    sessions_->Attach(engine_.get());
  }
  void Settle() {
    while (engine_->Step()) {
    }
    commit_ = engine_->Snapshot()->commit;
    log_.clear();
  }
  const State& state() {
    view_ = engine_->Snapshot();
    return view_->state;
  }
  pb::HostState StateOf(const std::string& host, const std::string& cluster = "lab") {
    return state().host(state().FindHost(cluster, host)).state;
  }

  StreamPtr Open(const pb::Hello& hello, bool trusted = false, const std::string& for_user = "") {
    auto stream = std::make_shared<FakeStream>(&log_);
    stream->is_trusted = trusted;
    stream->for_user = for_user;
    pb::AgentMessage message;
    *message.mutable_hello() = hello;
    EXPECT_TRUE(sessions_->Receive(stream, message).ok());
    return stream;
  }
  StreamPtr Connect(const std::string& host = "h1", const std::string& state_id = kStateA) {
    const StreamPtr stream = Open(HelloOf(host, state_id));
    engine_->Step();
    log_.clear();
    return stream;
  }
  void Say(const StreamPtr& stream, pb::AgentMessage message, const std::string& session) {
    message.mutable_session()->set_session(session);
    EXPECT_TRUE(sessions_->Receive(stream, message).ok());
  }
  void Say(const StreamPtr& stream, const pb::AgentMessage& message) {
    Say(stream, message, stream->session());
  }
  // Job 1 of one worker, placed on the only host.
  void Submit(int environment = 0) {
    pb::JobSpec spec = OneSlotSpec();
    for (int i = 0; i < environment; ++i) (*spec.mutable_env())[absl::StrCat("V", i)] = "1";
    Submit(spec);
  }
  void Submit(const pb::JobSpec& spec) {
    pb::Event event;
    event.mutable_job_submitted()->set_uid(kJob);
    event.mutable_job_submitted()->set_number(1);
    event.mutable_job_submitted()->set_owner("ada");
    *event.mutable_job_submitted()->mutable_spec() = spec;
    engine_->Post(event);
    Settle();
  }
  bool Refused(const StreamPtr& stream) {
    return stream->sent.size() == 1 && stream->sent[0].has_refused() && stream->ended.has_value();
  }
  // Commits that the engine makes for what was said: 0 if it heard nothing.
  uint64_t Commits() {
    const uint64_t before = engine_->Snapshot()->commit;
    engine_->Step();
    return engine_->Snapshot()->commit - before;
  }

  ManualClock clock_;
  std::vector<std::string> log_;
  RecordingStore store_{&log_};
  uint64_t commit_ = 0;
  decltype(SessionOptions::keep_to_sku) keep_to_sku_;
  bool several_users_ = false;
  std::string mac_key_ = kMacKey;
  std::vector<std::string> unproved_;  // hosts, as told
  int restored_ = 0;                   // times told
  std::shared_ptr<const View> view_;
  std::unique_ptr<Sessions> sessions_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace muster
