#include <gtest/gtest.h>

#include <set>

#include "agent/reconcile/reconciler.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

const AttemptId kId{std::string(32, 'a'), "main", 1};
constexpr char kBoot[] = "boot-2";

// ---- Decide: every recorded state against every command ----

AttemptRecord Prepared(const char* boot = kBoot) {
  AttemptRecord record;
  record.id = kId;
  record.prepared = true;
  record.boot_id = boot;
  record.prepare.mutable_here()->set_workers(2);
  record.prepare.set_processes_per_worker(1);
  return record;
}
AttemptRecord Half() {
  AttemptRecord record = Prepared();
  record.prepared = false;
  return record;
}
AttemptRecord Claimed(Claim claim, bool ended = false) {
  AttemptRecord record = Prepared();
  record.claim = claim;
  record.ended = ended;
  return record;
}

TEST(Decide, EveryStateAgainstEveryCommand) {
  const std::vector<Command> commands = {Command::kPrepare, Command::kPrepareAndStart,
                                         Command::kStart,   Command::kStop,
                                         Command::kForget,  Command::kQuery};
  const struct {
    const char* name;
    std::optional<AttemptRecord> record;
    bool forgotten;
    bool shim_lives;
    std::vector<Action> want;  // parallel to commands
  } cases[] = {
      {"unknown",
       std::nullopt,
       false,
       false,
       {Action::kPrepare, Action::kSpawn, Action::kRefuse, Action::kRefuse, Action::kIgnore,
        Action::kRefuse}},
      {"forgotten",
       std::nullopt,
       true,
       false,
       {Action::kRefuse, Action::kRefuse, Action::kRefuse, Action::kRefuse, Action::kIgnore,
        Action::kRefuse}},
      {"half prepared",
       Half(),
       false,
       false,
       {Action::kRefuse, Action::kRefuse, Action::kRefuse, Action::kRefuse, Action::kIgnore,
        Action::kRefuse}},
      {"prepared",
       Prepared(),
       false,
       false,
       {Action::kReport, Action::kSpawn, Action::kSpawn, Action::kRefuse, Action::kIgnore,
        Action::kReport}},
      {"prepared, shim about to claim",
       Prepared(),
       false,
       true,
       {Action::kReport, Action::kReport, Action::kReport, Action::kRefuse, Action::kIgnore,
        Action::kReport}},
      {"prepared in an earlier boot",
       Prepared("boot-1"),
       false,
       false,
       {Action::kRefuse, Action::kRefuse, Action::kRefuse, Action::kRefuse, Action::kIgnore,
        Action::kRefuse}},
      {"claimed stopped",
       Claimed(Claim::kStopped),
       false,
       false,
       {Action::kReport, Action::kReport, Action::kReport, Action::kReport, Action::kForget,
        Action::kReport}},
      {"running",
       Claimed(Claim::kStarted),
       false,
       true,
       {Action::kReport, Action::kReport, Action::kReport, Action::kStop, Action::kIgnore,
        Action::kReport}},
      {"ended",
       Claimed(Claim::kStarted, true),
       false,
       false,
       {Action::kReport, Action::kReport, Action::kReport, Action::kReport, Action::kForget,
        Action::kReport}},
  };
  for (const auto& c : cases) {
    for (size_t i = 0; i < commands.size(); ++i) {
      const Situation situation{c.record.has_value() ? &*c.record : nullptr, c.forgotten,
                                c.shim_lives, kBoot};
      EXPECT_EQ(Decide(situation, commands[i]).action, c.want[i]) << c.name << ", command " << i;
    }
  }
}

// ---- Reconciler with effects that only remember ----

struct World final : Files, Processes, Sender {
  absl::Status PersistPrepared(const AttemptRecord& record, bool durable) override {
    log.emplace_back(durable ? "prepared" : "prepared, not synced");
    return prepared_error;
  }
  absl::StatusOr<Claim> ClaimStopped(const AttemptRecord& record) override {
    log.emplace_back("claim");
    if (claims.count(record.id) == 0) claims[record.id] = Claim::kStopped;
    return claims[record.id];
  }
  absl::Status PersistStop(const AttemptRecord& record) override {
    log.emplace_back("stop");
    return absl::OkStatus();
  }
  absl::Status Renew(const AttemptRecord& record) override {
    log.push_back(absl::StrCat("renew ", record.renewed_ns));
    return absl::OkStatus();
  }
  absl::Status PersistOutcome(const AttemptRecord& record) override {
    outcomes[record.id] = record;
    return absl::OkStatus();
  }
  absl::Status KeepGpus(const AttemptRecord& record) override {
    gpus_kept[record.id] = record.gpus;
    return absl::OkStatus();
  }
  absl::Status PersistSeen(const Seen& seen, bool synced) override {
    if (logs_seen)
      log.push_back(
          absl::StrCat(synced ? "seen, synced, " : "seen ", seen.epoch, ":", seen.commit));
    this->seen = seen;
    return seen_error;
  }
  absl::Status Forget(const AttemptId& id) override {
    log.emplace_back("forget");
    return absl::OkStatus();
  }
  absl::Status Publish(const AttemptRecord& record, const std::string& staged,
                       const std::string& target) override {
    log.emplace_back("publish");
    return publish_error;
  }
  absl::StatusOr<int32_t> Prepare(const v1::Prepare& prepare) override {
    if (!prepare_error.ok()) return prepare_error;
    return 20001;
  }
  absl::Status SpawnShim(const AttemptRecord& record) override {
    if (!spawn_error.ok()) return spawn_error;
    log.emplace_back("spawn");
    return absl::OkStatus();
  }
  void SignalShim(const AttemptId& id) override { log.emplace_back("signal"); }
  bool ShimLives(const AttemptId& id) override { return live.count(id) > 0; }
  void Send(v1::AgentMessage message) override { sent.push_back(std::move(message)); }

  std::vector<std::string> Take() { return std::exchange(log, {}); }
  const v1::AttemptReport& LastReport() const { return sent.back().report(); }

  std::map<AttemptId, AttemptRecord> outcomes;
  std::map<AttemptId, GpuRecord> gpus_kept;
  std::vector<std::string> log;
  std::vector<v1::AgentMessage> sent;
  std::map<AttemptId, Claim> claims;
  std::set<AttemptId> live;
  Seen seen;
  bool logs_seen = false;
  absl::Status seen_error, prepared_error, prepare_error, publish_error, spawn_error;
};

using Log = std::vector<std::string>;

class ReconcilerTest : public ::testing::Test {
 protected:
  void SetUp() override { Begin({}); }

  void Begin(std::vector<AttemptRecord> records) {
    agent_ = std::make_unique<Reconciler>(HostIds{"lab", "a", std::string(32, 'e'), kBoot},
                                          std::move(records), Seen{}, &world_, &world_, &world_);
    session_.set_store_id("store");
    session_.set_epoch(3);
    session_.set_session("s1");
    session_.set_state_id(std::string(32, 'e'));
    v1::SchedulerMessage welcome;
    welcome.mutable_welcome();
    Tell(welcome);
  }
  bool Tell(v1::SchedulerMessage message) {
    *message.mutable_session() = session_;
    return agent_->OnMessage(message, 1000);
  }
  void Prepare(bool at_once) {
    v1::SchedulerMessage message;
    *message.mutable_prepare() = Prepared().prepare;
    *message.mutable_prepare()->mutable_key() = KeyOf(kId);
    message.mutable_prepare()->set_start_at_once(at_once);
    Tell(message);
  }
  void Start() {
    v1::SchedulerMessage message;
    *message.mutable_start()->mutable_key() = KeyOf(kId);
    Tell(message);
  }
  void Stop(int64_t grace_ns, v1::Cause cause = v1::CANCEL) {
    v1::SchedulerMessage message;
    *message.mutable_stop()->mutable_key() = KeyOf(kId);
    message.mutable_stop()->set_cause(cause);
    message.mutable_stop()->set_grace_ns(grace_ns);
    Tell(message);
  }
  void Forget() {
    v1::SchedulerMessage message;
    *message.mutable_forget()->mutable_key() = KeyOf(kId);
    Tell(message);
  }
  static ShimNews Running() {
    ShimNews news;
    news.claim = Claim::kStarted;
    news.alive = true;
    news.start_ns = 5;
    return news;
  }
  static v1::WorkerExit Exit(int rank, int code) {
    v1::WorkerExit exit;
    exit.set_rank(rank);
    exit.set_exit_code(code);
    return exit;
  }

  World world_;
  v1::SessionKey session_;
  std::unique_ptr<Reconciler> agent_;
};

TEST_F(ReconcilerTest, TellsTheNewestLineOncePerSessionAndAgainWhenItIsSaidAgain) {
  Prepare(true);
  ShimNews news = Running();
  const auto told = [&] {
    const size_t before = world_.sent.size();
    agent_->OnShim(kId, news, 2000);
    return std::count_if(world_.sent.begin() + static_cast<int64_t>(before), world_.sent.end(),
                         [](const auto& m) { return m.has_progress(); });
  };
  EXPECT_EQ(told(), 0);
  news.metrics = R"({"step": 1})";
  news.metrics_at_ns = 10;
  EXPECT_EQ(told(), 1);
  EXPECT_EQ(told(), 0);
  news.metrics_at_ns = 20;
  EXPECT_EQ(told(), 1) << "the same words, later";
  agent_->OnDisconnected();
  news.metrics_at_ns = 30;
  EXPECT_EQ(told(), 0);
  v1::SchedulerMessage welcome;
  welcome.mutable_welcome();
  session_.set_session("s2");
  Tell(welcome);
  EXPECT_EQ(told(), 1) << "nobody heard of it";
}

TEST_F(ReconcilerTest, TellsHowLongStepsTakeOncePerSession) {
  Prepare(true);
  ShimNews news = Running();
  news.times.emplace_back().set_own_us(7);
  const auto told = [&] {
    const size_t before = world_.sent.size();
    agent_->OnShim(kId, news, 2000);
    return std::count_if(world_.sent.begin() + static_cast<int64_t>(before), world_.sent.end(),
                         [](const auto& m) { return m.progress().times_size() > 0; });
  };
  EXPECT_EQ(told(), 1);
  EXPECT_EQ(told(), 0);
  agent_->OnDisconnected();
  v1::SchedulerMessage welcome;
  welcome.mutable_welcome();
  session_.set_session("s2");
  Tell(welcome);
  EXPECT_EQ(told(), 1) << "its scheduler may be another one";
  EXPECT_EQ(told(), 0);
}

TEST_F(ReconcilerTest, AGangPreparesThenStarts) {
  Prepare(false);
  EXPECT_EQ(world_.Take(), Log({"prepared"}));
  EXPECT_EQ(world_.LastReport().phase(), v1::PREPARED);
  EXPECT_EQ(world_.LastReport().rendezvous_port(), 20001);
  Prepare(false);  // a duplicate
  EXPECT_EQ(world_.Take(), Log({}));
  Start();
  EXPECT_EQ(world_.Take(), Log({"spawn"}));
  agent_->OnShim(kId, Running(), 2000);
  EXPECT_EQ(world_.LastReport().phase(), v1::STARTED);
  Start();  // late
  EXPECT_EQ(world_.Take(), Log({}));
  EXPECT_EQ(world_.LastReport().phase(), v1::STARTED);
}

TEST_F(ReconcilerTest, CommandsOfAnotherSessionAreDropped) {
  for (const char* part : {"session", "epoch", "store", "state"}) {
    v1::SchedulerMessage message;
    *message.mutable_prepare() = Prepared().prepare;
    *message.mutable_prepare()->mutable_key() = KeyOf(kId);
    *message.mutable_session() = session_;
    if (part == std::string("session")) message.mutable_session()->set_session("s0");
    if (part == std::string("epoch")) message.mutable_session()->set_epoch(2);
    if (part == std::string("store")) message.mutable_session()->set_store_id("other");
    if (part == std::string("state")) message.mutable_session()->set_state_id("other");
    EXPECT_TRUE(agent_->OnMessage(message, 1000));
    EXPECT_EQ(agent_->Find(kId), nullptr) << part;
  }
  agent_->OnDisconnected();
  Prepare(false);
  EXPECT_EQ(agent_->Find(kId), nullptr) << "after the stream's end";
}

TEST_F(ReconcilerTest, AnEmptyMessageEndsTheStream) { EXPECT_FALSE(Tell({})); }

TEST_F(ReconcilerTest, StopBeforeTheClaimMeansGone) {
  Prepare(false);
  world_.Take();
  Stop(10);
  EXPECT_EQ(world_.Take(), Log({"claim"}));
  EXPECT_EQ(world_.LastReport().phase(), v1::GONE);
  EXPECT_EQ(world_.LastReport().cause(), v1::CAUSE_UNSPECIFIED)
      << "it is no fault of this host, whatever the stop is for";
  Start();
  EXPECT_EQ(world_.Take(), Log({}));
}

TEST_F(ReconcilerTest, AStopThatLosesTheClaimStopsTheShim) {
  Prepare(true);
  world_.Take();
  world_.claims[kId] = Claim::kStarted;
  Stop(10);
  EXPECT_EQ(world_.Take(), Log({"claim", "stop", "signal"}));
  EXPECT_EQ(world_.LastReport().phase(), v1::STARTED);
}

TEST_F(ReconcilerTest, TheCauseIsRecordedBeforeTheSignalAndTheFirstOneStays) {
  Prepare(true);
  agent_->OnShim(kId, Running(), 2000);
  world_.Take();
  Stop(100, v1::PREEMPTION);
  EXPECT_EQ(world_.Take(), Log({"stop", "signal"}));
  Stop(100, v1::PREEMPTION);
  EXPECT_EQ(world_.Take(), Log({"signal"}));
  Stop(0, v1::CANCEL);
  EXPECT_EQ(world_.Take(), Log({"stop", "signal"}));
  EXPECT_EQ(agent_->Find(kId)->stop->cause, v1::PREEMPTION);
  EXPECT_EQ(agent_->Find(kId)->stop->grace_ns, 0);
}

TEST_F(ReconcilerTest, AStopThatCameAfterTheLastProcessHadEndedIsNotToldAsSent) {
  Prepare(true);
  agent_->OnShim(kId, Running(), 2000);
  Stop(100, v1::CANCEL);
  EXPECT_FALSE(world_.LastReport().stop_sent()) << "only its shim knows";
  ShimNews news = Running();
  news.final = true;
  news.exits = {Exit(0, 0), Exit(1, 0)};
  agent_->OnShim(kId, news, 2000);
  EXPECT_EQ(world_.LastReport().phase(), v1::GONE);
  EXPECT_FALSE(world_.LastReport().stop_sent());
}

TEST_F(ReconcilerTest, AFailedRankIsToldWhileTheOthersRun) {
  Prepare(true);
  ShimNews news = Running();
  news.exits = {Exit(1, 9)};
  agent_->OnShim(kId, news, 2000);
  EXPECT_EQ(world_.LastReport().phase(), v1::STARTED);
  ASSERT_EQ(world_.LastReport().exits_size(), 1);
  EXPECT_EQ(world_.LastReport().exits(0).exit_code(), 9);
}

TEST_F(ReconcilerTest, ACollisionOfItsRendezvousPortIsToldAsSuch) {
  const struct {
    const char* what;
    int rank;
    v1::Cause told;  // by the log of the rank
    const char* detail;
    v1::Cause cause;
  } cases[] = {
      {"torch", 0, v1::NETWORK_FAILURE,
       "exit 1: torch.distributed.DistNetworkError: The server socket has failed to listen on any "
       "local network address. port: 20001, useIpv6: true, code: -98, name: "
       "EADDRINUSE, message: address already in use",
       v1::RENDEZVOUS},
      {"torch, old", 0, v1::NETWORK_FAILURE, "exit 1: RuntimeError: Address already in use",
       v1::RENDEZVOUS},
      {"with its address", 0, v1::NETWORK_FAILURE,
       "exit 1: failed to bind to 0.0.0.0:20001 (errno: 98 - Address already in use).",
       v1::RENDEZVOUS},
      {"of another rank that knows no port", 1, v1::NETWORK_FAILURE,
       "exit 1: OSError: [Errno 98] Address already in use", v1::NETWORK_FAILURE},
      {"of another port", 0, v1::NETWORK_FAILURE,
       "exit 1: failed to bind to [::]:29500 (errno: 98 - Address already in use).",
       v1::NETWORK_FAILURE},
      {"of a port that begins like it", 0, v1::NETWORK_FAILURE,
       "exit 1: [::]:200011 Address already in use", v1::NETWORK_FAILURE},
      {"another failure", 0, v1::NETWORK_FAILURE, "exit 1: connection to 10.0.0.1:20001 reset",
       v1::NETWORK_FAILURE},
      {"another cause", 0, v1::PROGRAM_ERROR, "exit 1: Address already in use", v1::PROGRAM_ERROR},
  };
  for (const auto& c : cases) {
    for (const bool final : {false, true}) {
      world_.claims.clear();
      Begin({});
      Prepare(true);  // World gives it port 20001
      ShimNews news = Running();
      news.exits = {Exit(c.rank, 1)};
      news.exits[0].set_cause(c.told);
      news.exits[0].set_detail(c.detail);
      news.final = final;
      for (int again = 0; again < 2; ++again) agent_->OnShim(kId, news, 2000);
      const v1::WorkerExit& exit = world_.LastReport().exits(0);
      EXPECT_EQ(exit.cause(), c.cause) << c.what;
      const std::string wanted =
          c.cause == v1::RENDEZVOUS
              ? absl::StrCat("port 20001, which was free when it was prepared: ", c.detail)
              : c.detail;
      EXPECT_EQ(exit.detail(), wanted) << c.what;
    }
  }
}

TEST_F(ReconcilerTest, TheEndIsRepeatedUntilForgottenAndForgottenForTheSession) {
  Prepare(true);
  ShimNews news = Running();
  news.final = true;
  news.exits = {Exit(0, 0), Exit(1, 0)};
  agent_->OnShim(kId, news, 2000);
  EXPECT_EQ(world_.LastReport().phase(), v1::GONE);
  world_.sent.clear();
  agent_->RepeatReports();
  ASSERT_EQ(world_.sent.size(), 1u);
  EXPECT_EQ(world_.LastReport().exits_size(), 2);
  world_.Take();
  Forget();
  EXPECT_EQ(world_.Take(), Log({"forget"}));
  Prepare(true);  // late
  EXPECT_EQ(world_.Take(), Log({"claim"}));
  EXPECT_EQ(world_.LastReport().phase(), v1::GONE);
}

TEST_F(ReconcilerTest, ForgetOfARunningAttemptDoesNothing) {
  Prepare(true);
  agent_->OnShim(kId, Running(), 2000);
  world_.Take();
  Forget();
  EXPECT_EQ(world_.Take(), Log({}));
  EXPECT_NE(agent_->Find(kId), nullptr);
}

TEST_F(ReconcilerTest, AKilledShimCountsAsKilledRanks) {
  Prepare(true);
  ShimNews news = Running();
  news.exits = {Exit(1, 4)};
  agent_->OnShim(kId, news, 2000);
  news.alive = false;
  agent_->OnShim(kId, news, 3000);
  EXPECT_EQ(world_.LastReport().phase(), v1::GONE);
  ASSERT_EQ(world_.LastReport().exits_size(), 2);
  EXPECT_EQ(world_.LastReport().exits(0).exit_code(), 4);
  EXPECT_EQ(world_.LastReport().exits(1).signal(), 9);
  EXPECT_EQ(world_.LastReport().cause(), v1::CAUSE_UNSPECIFIED);
}

TEST_F(ReconcilerTest, TheRanksOfAKilledShimAreThoseOfItsHostsWorkers) {
  AttemptRecord record = Prepared();
  record.prepare.mutable_here()->set_first_group_rank(3);
  record.prepare.mutable_here()->set_workers(2);
  record.prepare.set_processes_per_worker(4);
  record.claim = Claim::kStarted;
  Begin({record});
  ShimNews news = Running();
  news.alive = false;
  agent_->OnShim(kId, news, 3000);
  ASSERT_EQ(world_.LastReport().exits_size(), 8);
  EXPECT_EQ(world_.LastReport().exits(0).rank(), 12);
  EXPECT_EQ(world_.LastReport().exits(7).rank(), 19);
}

TEST_F(ReconcilerTest, ARebootIsAFaultOfTheHost) {
  AttemptRecord record = Prepared("boot-1");
  record.claim = Claim::kStarted;
  Begin({record});
  ShimNews news = Running();
  news.alive = false;
  agent_->OnShim(kId, news, 3000);
  EXPECT_EQ(world_.LastReport().phase(), v1::GONE);
  EXPECT_EQ(world_.LastReport().cause(), v1::HOST_LOST);
}

// Decision 018: a task on one host promises nothing before its shim's claim, and from its first
// checkpoint on its record counts.
TEST_F(ReconcilerTest, ARecordIsDurableBeforeOthersRelyOnIt) {
  Prepare(true);
  EXPECT_EQ(world_.Take(), Log({"prepared, not synced", "spawn"}));
  ShimNews news = Running();
  news.lines = {R"({"step":1})"};
  news.lines_at_ns = {1};
  agent_->OnShim(kId, news, 2000);
  EXPECT_EQ(world_.Take(), Log({}));
  news.lines.emplace_back(R"({"checkpoint":{"step":5,"path":"/c/5"}})");
  news.lines.emplace_back(R"({"checkpoint":{"step":9,"path":"/c/9"}})");
  news.lines_at_ns = {1, 2, 3};
  agent_->OnShim(kId, news, 2000);
  EXPECT_EQ(world_.Take(), Log({"prepared"}));
  EXPECT_EQ(world_.sent.back().checkpoint().sequence(), 2u);
}

TEST_F(ReconcilerTest, WithoutItsRecordAnAttemptEndsAndNothingOfItCounts) {
  AttemptRecord record;
  record.id = kId;
  record.claim = Claim::kStarted;  // the claim outlived power loss, the record did not
  Begin({record});
  ShimNews news;
  news.claim = Claim::kStarted;
  news.lines = {R"({"checkpoint":{"step":5,"path":"/c/5"}})"};
  news.lines_at_ns = {1};
  world_.sent.clear();
  agent_->OnShim(kId, news, 3000);
  ASSERT_EQ(world_.sent.size(), 1u);
  EXPECT_EQ(world_.LastReport().phase(), v1::GONE);
  EXPECT_EQ(world_.LastReport().cause(), v1::HOST_LOST);
  v1::SchedulerMessage publish;
  *publish.mutable_publish()->mutable_key() = KeyOf(kId);
  publish.mutable_publish()->set_staged("/s");
  publish.mutable_publish()->set_target("model");
  Tell(publish);
  EXPECT_FALSE(world_.sent.back().export_report().published());
  EXPECT_EQ(world_.Take(), Log({}));
}

TEST_F(ReconcilerTest, AFailedPrepareIsGoneWithItsReason) {
  for (absl::Status* error : {&world_.prepare_error, &world_.prepared_error}) {
    world_ = World();
    *error = absl::ResourceExhaustedError("No space left on device");
    Begin({});
    Prepare(true);
    EXPECT_EQ(world_.LastReport().phase(), v1::GONE);
    EXPECT_EQ(world_.LastReport().cause(), v1::LAUNCH_FAILED);
    EXPECT_EQ(world_.LastReport().detail(), "No space left on device");
    EXPECT_EQ(world_.claims[kId], Claim::kStopped);
  }
}

TEST_F(ReconcilerTest, WhatTheSchedulerDidNotSendBlamesNoHost) {
  world_.prepare_error = absl::AbortedError("the job's secrets can't be fetched");
  Prepare(true);
  EXPECT_EQ(world_.LastReport().phase(), v1::GONE);
  EXPECT_EQ(world_.LastReport().cause(), v1::NETWORK_FAILURE);
  EXPECT_EQ(world_.LastReport().detail(), "the job's secrets can't be fetched");
}

TEST_F(ReconcilerTest, AStartWhoseSecretsAreUnderWayCountsAsNotReceived) {
  AttemptRecord prepared = Prepared();
  Begin({prepared});
  world_.Take();
  world_.sent.clear();
  world_.spawn_error = absl::UnavailableError("under way");
  Start();
  EXPECT_TRUE(world_.sent.empty()) << world_.sent.back().DebugString();
  EXPECT_EQ(world_.claims.count(kId), 0u);
  world_.spawn_error = absl::OkStatus();
  Start();
  EXPECT_EQ(world_.Take(), Log({"spawn"}));
}

TEST_F(ReconcilerTest, WhatTheJobNamesAndIsNotThereIsTheJobsMistake) {
  world_.prepare_error = absl::InvalidArgumentError("workdir /nowhere: No such file or directory");
  Prepare(true);
  EXPECT_EQ(world_.LastReport().cause(), v1::PROGRAM_ERROR);
  EXPECT_EQ(world_.LastReport().detail(), "workdir /nowhere: No such file or directory");

  world_ = World();
  Begin({});
  Prepare(true);
  ShimNews news = Running();
  news.alive = false;
  news.final = true;
  news.exits = {Exit(0, 127)};
  for (const auto& [detail, cause] :
       {std::pair("program: exec nosuch: No such file or directory", v1::PROGRAM_ERROR),
        std::pair("launch: fork: Cannot allocate memory", v1::LAUNCH_FAILED),
        std::pair("image: image /x: a user namespace: Permission denied", v1::IMAGE_FAILED)}) {
    Begin({});
    Prepare(true);
    news.exits[0].set_detail(detail);
    agent_->OnShim(kId, news, 3000);
    EXPECT_EQ(world_.LastReport().phase(), v1::GONE);
    EXPECT_EQ(world_.LastReport().cause(), cause) << detail;
    EXPECT_EQ(world_.LastReport().exits(0).detail(),
              std::string(detail).substr(std::string(detail).find(' ') + 1))
        << "the cause says the rest";
  }
}

TEST_F(ReconcilerTest, WhyAnAttemptWhoseShimWasKilledDidNotStartIsKeptWithItsEnd) {
  Prepare(true);
  ShimNews news = Running();
  news.alive = false;
  news.exits = {Exit(0, 127)};
  news.exits[0].set_detail("launch: fork: Cannot allocate memory");
  agent_->OnShim(kId, news, 3000);
  EXPECT_EQ(world_.LastReport().cause(), v1::LAUNCH_FAILED);
  ASSERT_EQ(world_.outcomes.count(kId), 1u);
  Begin({world_.outcomes[kId]});  // restarted
  EXPECT_EQ(world_.LastReport().phase(), v1::GONE);
  EXPECT_EQ(world_.LastReport().cause(), v1::LAUNCH_FAILED);
  EXPECT_EQ(world_.LastReport().exits_size(), 2);
}

// From the network a scheduler takes no message above 320 KiB: one would end its host's streams.
TEST_F(ReconcilerTest, TheEndsOfVeryManyProcessesAreToldInSeveralMessages) {
  const struct {
    int ranks, code;
    size_t detail_bytes;
    bool ended;
  } cases[] = {{1024, 127, 4096, true}, {1024, 127, 4096, false}, {9000, 0, 0, true}};
  for (const auto& c : cases) {
    AttemptRecord record = Claimed(Claim::kStarted, c.ended);
    for (int rank = 0; rank < c.ranks; ++rank) {
      record.exits.push_back(Exit(rank, c.code));
      record.exits.back().set_at_ns(1'800'000'000 * kSecond);
      record.exits.back().set_detail(std::string(c.detail_bytes, 'x'));
    }
    world_.sent.clear();
    Begin({record});
    EXPECT_GT(world_.sent.size(), 1u);
    std::set<int32_t> ranks;
    for (const v1::AgentMessage& message : world_.sent) {
      EXPECT_LT(message.ByteSizeLong(), 300u << 10);
      for (const v1::WorkerExit& exit : message.report().exits()) ranks.insert(exit.rank());
      const bool gone = c.ended && &message == &world_.sent.back();
      EXPECT_EQ(message.report().phase(), gone ? v1::GONE : v1::STARTED);
    }
    EXPECT_EQ(ranks.size(), static_cast<size_t>(c.ranks));
    EXPECT_GT(world_.LastReport().exits_size(), 0) << "without any its host has lost track of it";
    EXPECT_LT(agent_->Hello({}, 1).ByteSizeLong(), 300u << 10);
    // After another boot it is in the Hello, and its end isn't told before the ends that follow.
    record.boot_id = "boot-1";
    Begin({record});
    const v1::Hello hello = agent_->Hello({}, 1).hello();
    ASSERT_EQ(hello.attempts_size(), 1);
    EXPECT_EQ(hello.attempts(0).phase(), v1::STARTED);
  }
}

TEST_F(ReconcilerTest, OfManyProcessesOnlyTheLastReportIsRepeatedInASession) {
  AttemptRecord record = Claimed(Claim::kStarted, true);
  constexpr int kRanks = 100;
  for (int rank = 0; rank < kRanks; ++rank) {
    record.exits.push_back(Exit(rank, 1));
    record.exits.back().set_at_ns((1000 - rank) * kSecond);  // the highest rank failed first
    record.exits.back().set_detail(std::string(4000, 'x'));
  }
  record.exits[kRanks - 1].set_exit_code(0);
  record.cause = v1::HOST_LOST;
  record.detail = "its fence";
  Begin({record});
  ASSERT_GT(world_.sent.size(), 2u);
  std::vector<int32_t> ranks, wanted;
  for (int rank = kRanks - 2; rank >= 0; --rank) wanted.push_back(rank);
  wanted.push_back(kRanks - 1);  // it didn't fail
  for (const v1::AgentMessage& message : world_.sent) {
    EXPECT_EQ(message.report().cause(), v1::HOST_LOST);
    EXPECT_EQ(message.report().detail(), "its fence");
    for (const v1::WorkerExit& exit : message.report().exits()) ranks.push_back(exit.rank());
  }
  EXPECT_EQ(ranks, wanted) << "in the order in which they failed";

  const size_t parts = world_.sent.size();
  const std::string last = world_.LastReport().SerializeAsString();
  agent_->RepeatReports();
  ASSERT_EQ(world_.sent.size(), parts + 1);
  EXPECT_EQ(world_.LastReport().SerializeAsString(), last);

  agent_->OnDisconnected();
  world_.sent.clear();
  session_.set_session("s2");
  v1::SchedulerMessage welcome;
  welcome.mutable_welcome();
  Tell(welcome);
  EXPECT_EQ(world_.sent.size(), parts) << "nobody else was told";
}

TEST_F(ReconcilerTest, AHelloOfAttemptsThatAreEachAlmostTooLargeStaysSmall) {
  std::vector<AttemptRecord> records;
  for (int attempt = 1; attempt <= 3; ++attempt) {
    AttemptRecord& record = records.emplace_back(Claimed(Claim::kStarted, true));
    record.id.attempt = attempt;
    record.boot_id = "an older boot";
    for (int rank = 0; rank < 28; ++rank) {
      record.exits.push_back(Exit(rank, 1));
      record.exits.back().set_detail(std::string(4000, 'x'));
    }
  }
  Begin(records);
  const v1::Hello hello = agent_->Hello({}, 1).hello();
  EXPECT_LT(hello.ByteSizeLong(), 260u << 10);
  ASSERT_EQ(hello.attempts_size(), 3);
  EXPECT_EQ(hello.attempts(1).phase(), v1::GONE);
  EXPECT_EQ(hello.attempts(2).phase(), v1::STARTED) << "its end follows, with those of its ranks";
  EXPECT_EQ(hello.attempts(2).exits_size(), 0);
  EXPECT_EQ(world_.LastReport().phase(), v1::GONE);
  EXPECT_EQ(world_.LastReport().exits_size(), 28);
}

TEST_F(ReconcilerTest, AHelloOfManyEndedAttemptsStaysSmallAndTheRestFollowsTheWelcome) {
  constexpr int kMany = 5000;
  std::vector<AttemptRecord> records;
  for (int i = 0; i < kMany; ++i) {
    records.push_back(Claimed(Claim::kStarted, true));
    records.back().id.attempt = i + 1;
  }
  AttemptRecord runs = Claimed(Claim::kStarted, false);
  runs.id.attempt = kMany + 1;
  records.push_back(runs);
  Begin(records);
  const v1::Hello hello = agent_->Hello({}, 1).hello();
  EXPECT_LT(hello.ByteSizeLong(), 200u << 10);
  EXPECT_EQ(hello.attempts(hello.attempts_size() - 1).phase(), v1::STARTED)
      << "it is never left out";
  std::set<uint64_t> said;  // since the Welcome
  for (const v1::AgentMessage& message : world_.sent) {
    if (message.has_report()) said.insert(message.report().key().attempt());
  }
  EXPECT_EQ(said.size(), records.size());

  // After another boot all are said in the Hello: nothing else tells how they ended.
  for (AttemptRecord& record : records) record.boot_id = "an older boot";
  Begin(records);
  EXPECT_EQ(agent_->Hello({}, 1).hello().attempts_size(), kMany + 1);
}

TEST_F(ReconcilerTest, HelloHasEveryRecordAndTheHighestEpoch) {
  AttemptRecord ended = Claimed(Claim::kStarted, true);
  AttemptRecord prepared = Prepared();
  prepared.id.attempt = 2;
  world_.logs_seen = true;
  Begin({ended, prepared});
  const v1::Hello hello = agent_->Hello({}, 1).hello();
  ASSERT_EQ(hello.attempts_size(), 2);
  EXPECT_EQ(hello.attempts(0).phase(), v1::GONE);
  EXPECT_EQ(hello.attempts(1).phase(), v1::PREPARED);
  EXPECT_EQ(hello.epoch_seen(), 3u);
  EXPECT_EQ(world_.seen.epoch, 3u);

  // The newest commit is told exactly, however seldom it is written down while nothing is done
  // because of it.
  EXPECT_EQ(world_.Take(), (Log{"seen, synced, 3:0"}));
  v1::SchedulerMessage later;
  later.mutable_heartbeat_ack();
  for (const uint64_t commit : {5, 7}) {
    later.set_commit(commit);
    Tell(later);
    EXPECT_EQ(agent_->Hello({}, 1).hello().commit_seen(), commit);
  }
  EXPECT_EQ(world_.seen.commit, 0u);
  later.set_commit(64);
  Tell(later);
  EXPECT_EQ(world_.Take(), (Log{"seen 3:64"}));
}

TEST_F(ReconcilerTest, TheMacOfTheNewestThatItHasSeenIsKeptAndSaidWithIt) {
  struct Message {
    uint64_t epoch, commit;
    const char* mac;
    Seen said;  // by a Hello after it
  };
  const Message messages[] = {
      {3, 5, "m5", {"store", 3, 5, "m5"}}, {3, 4, "m4", {"store", 3, 5, "m5"}},  // it comes late
      {3, 5, "m5", {"store", 3, 5, "m5"}}, {4, 2, "n2", {"store", 4, 2, "n2"}},
      {5, 9, "", {"store", 5, 9, ""}},  // of a musterd that has no key: not the MAC of before
      {6, 1, "o1", {"store", 6, 1, "o1"}},
  };
  for (const Message& m : messages) {
    v1::SchedulerMessage message;
    if (m.epoch != session_.epoch()) {
      session_.set_epoch(m.epoch);
      message.mutable_welcome();
    } else {
      *message.mutable_query()->mutable_key() = KeyOf(kId);
    }
    message.set_commit(m.commit);
    message.set_mac(m.mac);
    Tell(message);
    const v1::Hello hello = agent_->Hello({}, 1).hello();
    const Seen said{hello.store_id_seen(), hello.epoch_seen(), hello.commit_seen(),
                    hello.mac_seen()};
    EXPECT_TRUE(said == m.said) << m.epoch << ":" << m.commit << " " << said.mac;
    EXPECT_TRUE(world_.seen == m.said) << m.epoch << ":" << m.commit << " " << world_.seen.mac;
  }
}

// An agent that was upgraded has what the one before it kept; an idle store has few new commits.
TEST_F(ReconcilerTest, TheFirstMacIsKeptAtOnce) {
  world_.logs_seen = true;
  v1::SchedulerMessage ack;
  ack.mutable_heartbeat_ack();
  ack.set_commit(1);
  Tell(ack);
  EXPECT_EQ(world_.Take(), Log{});
  ack.set_mac("m1");
  Tell(ack);
  EXPECT_EQ(world_.Take(), (Log{"seen 3:1"}));
  EXPECT_EQ(world_.seen.mac, "m1");
  ack.set_commit(2);
  ack.set_mac("m2");
  Tell(ack);
  EXPECT_EQ(world_.Take(), Log{}) << "later ones with the commit numbers";
  EXPECT_EQ(agent_->Hello({}, 1).hello().mac_seen(), "m2");
}

TEST_F(ReconcilerTest, TheCommitNumberOfACommandIsKeptBeforeItIsActedOn) {
  v1::SchedulerMessage stop;
  *stop.mutable_stop()->mutable_key() = KeyOf(kId);
  stop.set_commit(5);
  world_.logs_seen = true;
  Tell(stop);
  EXPECT_EQ(world_.Take(), (Log{"seen 3:5", "claim"}));
  v1::SchedulerMessage forget;
  *forget.mutable_forget()->mutable_key() = KeyOf(kId);
  forget.set_commit(6);
  Tell(forget);
  EXPECT_EQ(world_.Take(), (Log{"seen 3:6", "forget"}));
  forget.set_commit(6);
  Tell(forget);
  EXPECT_EQ(world_.Take(), Log{}) << "once a commit";
  // So is that of a heartbeat that puts off a fence, and only of such a one.
  v1::SchedulerMessage ack;
  ack.mutable_heartbeat_ack();
  ack.set_commit(7);
  Tell(ack);
  EXPECT_EQ(world_.Take(), Log{});
  *ack.mutable_heartbeat_ack()->add_renews() = KeyOf(kId);
  Tell(ack);
  EXPECT_EQ(world_.Take(), (Log{"seen 3:7"}));
  // What can't be kept isn't acted on; the scheduler repeats it.
  world_.seen_error = absl::ResourceExhaustedError("No space left on device");
  stop.mutable_stop()->mutable_key()->set_attempt(2);
  stop.set_commit(8);
  Tell(stop);
  EXPECT_EQ(world_.Take(), (Log{"seen 3:8"}));
  world_.seen_error = absl::OkStatus();
  Tell(stop);
  EXPECT_EQ(world_.Take(), (Log{"seen 3:8", "claim"}));
}

// Of a restored store: its scheduler takes a host that has answered for one that serves no other.
TEST_F(ReconcilerTest, AWelcomeWhoseEpochCantBeKeptBeginsNoSession) {
  const auto welcome = [&](uint64_t epoch, const char* session) {
    agent_->OnDisconnected();
    session_.set_epoch(epoch);
    session_.set_session(session);
    v1::SchedulerMessage message;
    message.mutable_welcome();
    EXPECT_TRUE(Tell(message));
    return agent_->has_session();
  };
  world_.seen_error = absl::InternalError("Input/output error");
  EXPECT_FALSE(welcome(1'800'000'000'000, "s2"));
  EXPECT_EQ(agent_->Hello({}, 1).hello().epoch_seen(), 3u);
  EXPECT_TRUE(welcome(4, "s3")) << "the scheduler was only started again";
  EXPECT_FALSE(welcome(1'800'000'000'000, "s4"));
  world_.seen_error = absl::OkStatus();
  EXPECT_TRUE(welcome(1'800'000'000'000, "s5"));
  EXPECT_EQ(agent_->Hello({}, 1).hello().epoch_seen(), 1'800'000'000'000u);
}

TEST_F(ReconcilerTest, CheckpointsAreRepeatedUntilAcknowledgedByNumber) {
  Prepare(true);
  ShimNews news = Running();
  news.lines = {R"({"checkpoint":{"step":5,"path":"/c/5"}})",
                R"({"checkpoint":{"step":9,"path":"/c/9"}})"};
  news.lines_at_ns = {1, 2};
  agent_->OnShim(kId, news, 2000);
  agent_->OnShim(kId, news, 2000);
  ASSERT_EQ(agent_->Find(kId)->checkpoints.size(), 2u);
  v1::SchedulerMessage ack;
  *ack.mutable_checkpoint_ack()->mutable_key() = KeyOf(kId);
  ack.mutable_checkpoint_ack()->set_sequence(1);
  Tell(ack);
  world_.sent.clear();
  agent_->RepeatReports();
  ASSERT_EQ(world_.sent.size(), 2u);
  EXPECT_EQ(world_.sent[0].checkpoint().sequence(), 2u);
  EXPECT_EQ(world_.sent[0].checkpoint().loaded_step(), -1);
}

TEST_F(ReconcilerTest, LinesAreTakenInOnceAndNeedNotBeKeptNorCheckpointsThatAreAcknowledged) {
  const auto line = [](int step) {
    return absl::StrCat(R"({"checkpoint":{"step":)", step, R"(,"path":"/c/)", step, "\"}}");
  };
  const auto acknowledge = [&](uint64_t sequence) {
    v1::SchedulerMessage ack;
    *ack.mutable_checkpoint_ack()->mutable_key() = KeyOf(kId);
    ack.mutable_checkpoint_ack()->set_sequence(sequence);
    Tell(ack);
  };
  Prepare(true);
  ShimNews news = Running();
  for (int step = 1; step <= 1000; ++step) {
    news.lines = {line(step)};
    news.lines_at_ns = {step};
    world_.sent.clear();
    agent_->OnShim(kId, news, 2000);
    agent_->OnShim(kId, news, 2000);
    ASSERT_EQ(world_.sent[0].checkpoint().sequence(), static_cast<uint64_t>(step));
    EXPECT_EQ(world_.sent[0].checkpoint().checkpoint().step(), step);
    acknowledge(static_cast<uint64_t>(step));
    EXPECT_TRUE(agent_->Find(kId)->checkpoints.empty());
    news.DropLines();
  }
  // An agent that was restarted counts them anew, and tells those that nobody has acknowledged.
  AttemptRecord record = Prepared();
  record.claim = Claim::kStarted;
  record.checkpoint_acked = 1000;
  Begin({record});
  news = Running();
  for (int step = 1; step <= 1001; ++step) {
    news.lines.push_back(line(step));
    news.lines_at_ns.push_back(step);
  }
  world_.sent.clear();
  agent_->OnShim(kId, news, 2000);
  ASSERT_EQ(agent_->Find(kId)->checkpoints.size(), 1u);
  EXPECT_EQ(agent_->Find(kId)->checkpoints[0].sequence(), 1001u);
  EXPECT_EQ(std::count_if(world_.sent.begin(), world_.sent.end(),
                          [](const auto& m) { return m.has_checkpoint(); }),
            1);
}

TEST_F(ReconcilerTest, OfManyCheckpointsThatNobodyAcknowledgesTheFirstAndTheNewestAreKept) {
  Prepare(true);
  ShimNews news = Running();
  for (int step = 1; step <= 1000; ++step) {
    news.lines.push_back(absl::StrCat(R"({"checkpoint":{"step":)", step, R"(,"path":"/c"}})"));
    news.lines_at_ns.push_back(step);
  }
  agent_->OnShim(kId, news, 2000);
  const std::vector<v1::CheckpointReport>& kept = agent_->Find(kId)->checkpoints;
  ASSERT_EQ(kept.size(), 100u);
  EXPECT_EQ(kept[0].sequence(), 1u) << "it names what the attempt loaded";
  EXPECT_EQ(kept[1].sequence(), 902u);
  EXPECT_EQ(kept[99].sequence(), 1000u);
}

TEST_F(ReconcilerTest, PublishesOnceAndSaysSoEachTime) {
  Prepare(true);
  world_.Take();
  v1::SchedulerMessage publish;
  *publish.mutable_publish()->mutable_key() = KeyOf(kId);
  publish.mutable_publish()->set_staged("/s");
  publish.mutable_publish()->set_target("/t");
  world_.publish_error = absl::InternalError("no");
  Tell(publish);
  EXPECT_FALSE(world_.sent.back().export_report().published());
  EXPECT_EQ(world_.sent.back().export_report().detail(), "no");
  world_.publish_error = absl::OkStatus();
  Tell(publish);
  Tell(publish);
  EXPECT_EQ(world_.Take(), Log({"publish", "publish"}));
  EXPECT_TRUE(world_.sent.back().export_report().published());
}

TEST_F(ReconcilerTest, WhileItsStorageIsAskedACommandCountsAsNotYetReceived) {
  for (const bool at_once : {false, true}) {
    world_ = World();
    world_.prepare_error = absl::UnavailableError("under way");
    Begin({});
    const size_t said = world_.sent.size();
    Prepare(at_once);
    Prepare(at_once);
    EXPECT_EQ(world_.Take(), Log({}));
    EXPECT_EQ(world_.sent.size(), said);
    EXPECT_EQ(agent_->Find(kId), nullptr);
    world_.prepare_error = absl::OkStatus();
    Prepare(at_once);
    EXPECT_EQ(world_.Take(), at_once ? Log({"prepared, not synced", "spawn"}) : Log({"prepared"}));
  }
  // Stopped meanwhile, it never starts.
  world_ = World();
  world_.prepare_error = absl::UnavailableError("under way");
  Begin({});
  Prepare(true);
  Stop(0);
  EXPECT_EQ(world_.LastReport().phase(), v1::GONE);
  world_.prepare_error = absl::OkStatus();
  Prepare(true);
  EXPECT_EQ(world_.LastReport().phase(), v1::GONE);
  EXPECT_EQ(world_.Take(), Log({"claim"}));
}

TEST_F(ReconcilerTest, AnExportThatIsBeingPublishedIsToldWhenItIs) {
  Prepare(true);
  v1::SchedulerMessage publish;
  *publish.mutable_publish()->mutable_key() = KeyOf(kId);
  publish.mutable_publish()->set_staged("/s");
  world_.publish_error = absl::UnavailableError("under way");
  const size_t said = world_.sent.size();
  Tell(publish);
  EXPECT_EQ(world_.sent.size(), said) << "a failed try would be counted";
  world_.publish_error = absl::OkStatus();
  Tell(publish);
  EXPECT_TRUE(world_.sent.back().export_report().published());
}

TEST_F(ReconcilerTest, APublishOfWhatItDoesNotKnowIsAnsweredWithAnError) {
  v1::SchedulerMessage publish;
  *publish.mutable_publish()->mutable_key() = KeyOf(kId);
  publish.mutable_publish()->set_staged("/s");
  world_.sent.clear();
  Tell(publish);
  ASSERT_EQ(world_.sent.size(), 1u);
  EXPECT_FALSE(world_.sent[0].export_report().published());
  EXPECT_EQ(world_.sent[0].export_report().detail(),
            "lab/a knows nothing of this attempt any more");
  EXPECT_EQ(world_.Take(), Log({}));
}

TEST_F(ReconcilerTest, AnAcknowledgedHeartbeatPutsTheFenceOffToItsSendingTime) {
  v1::SchedulerMessage prepare;
  *prepare.mutable_prepare() = Prepared().prepare;
  *prepare.mutable_prepare()->mutable_key() = KeyOf(kId);
  prepare.mutable_prepare()->mutable_task()->set_when_unreachable(v1::FENCE);
  prepare.mutable_prepare()->set_start_at_once(true);
  agent_->Hello({}, 500);
  v1::SchedulerMessage welcome;
  welcome.mutable_welcome();
  Tell(welcome);
  Tell(prepare);
  EXPECT_EQ(agent_->Find(kId)->renewed_ns, 500) << "the Welcome acknowledged the Hello";
  world_.Take();
  v1::SchedulerMessage ack;
  ack.mutable_heartbeat_ack()->set_sent_boottime_ns(700);
  Tell(ack);
  EXPECT_EQ(world_.Take(), Log()) << "it does not name the attempt";
  *ack.mutable_heartbeat_ack()->add_renews() = KeyOf(kId);
  Tell(ack);
  EXPECT_EQ(world_.Take(), Log({"renew 700"}));
  ack.mutable_heartbeat_ack()->set_sent_boottime_ns(600);
  Tell(ack);
  EXPECT_EQ(world_.Take(), Log()) << "late: an older one takes nothing back";
}

TEST_F(ReconcilerTest, WhatItsFenceStoppedIsToldAsLost) {
  Prepare(true);
  ShimNews news;
  news.claim = Claim::kStarted;
  news.final = news.stop_sent = news.fenced = true;
  agent_->OnShim(kId, news, 2000);
  EXPECT_EQ(world_.LastReport().phase(), v1::GONE);
  EXPECT_EQ(world_.LastReport().cause(), v1::HOST_LOST);
  EXPECT_TRUE(world_.LastReport().stop_sent());
}

}  // namespace
}  // namespace muster::agent
