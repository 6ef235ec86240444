// What a host is told follows from State alone (contracts 4-9 of docs/contracts.md): a State loaded
// from its rows tells the same.
#include "scheduler/engine/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/engine/engine.h"
#include "scheduler/state/testing/builders.h"
#include "scheduler/state/testing/random_events.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::JobBuilder;
using testing::Placed;
using testing::Report;
using testing::Stopping;
using testing::TaskOf;

std::string Describe(const pb::SchedulerMessage& message) {
  switch (message.body_case()) {
    case pb::SchedulerMessage::kPrepare:
      return absl::StrCat("prepare ", AttemptText(message.prepare().key()),
                          message.prepare().start_at_once() ? " and start" : "");
    case pb::SchedulerMessage::kStart:
      return absl::StrCat("start ", AttemptText(message.start().key()), " ",
                          message.start().master_address(), ":", message.start().master_port());
    case pb::SchedulerMessage::kStop:
      return absl::StrCat("stop ", AttemptText(message.stop().key()), " ",
                          pb::Cause_Name(message.stop().cause()), " ",
                          message.stop().grace_ns() / kSecond, "s");
    case pb::SchedulerMessage::kPublish:
      return absl::StrCat("publish ", AttemptText(message.publish().key()), " ",
                          message.publish().staged(), " ", message.publish().target());
    case pb::SchedulerMessage::kQuery:
      return absl::StrCat("query ", AttemptText(message.query().key()));
    default:
      return message.DebugString();
  }
}

std::vector<std::string> Describe(const std::vector<pb::SchedulerMessage>& messages) {
  std::vector<std::string> all;
  for (const pb::SchedulerMessage& message : messages) {
    EXPECT_FALSE(message.has_session()) << "the link fills it in";
    all.push_back(Describe(message));
  }
  return all;
}

std::string Text(const std::vector<pb::SchedulerMessage>& messages) {
  std::string text;
  for (const pb::SchedulerMessage& message : messages) text += message.DebugString();
  return text;
}

// Cluster lab with four hosts of two GPUs each; queue research; job directories on /disk.
class CommandsTest : public ::testing::Test {
 protected:
  CommandsTest() {
    s_.Cluster("lab", "disk").Hosts("lab", 4, 2).Queue("research", 8);
    pb::Event event;
    pb::ClusterFile* file = event.mutable_clusters_configured()->mutable_file();
    *file = s_.state.cluster_file();
    (*file->mutable_storages())["disk"].set_path("/disk");
    (*file->mutable_storages())["fast"].set_path("/fast");
    (*file->mutable_storages())["fast"].add_clusters("lab");
    s_.Do(event);
    s_.Step(1);
  }

  uint64_t Gang(int hosts) {
    const uint64_t job = JobBuilder("research").Workers(hosts).SubmitTo(&s_);
    PlaceAgain(job);
    return job;
  }
  void PlaceAgain(uint64_t job, int first_host = 0) {
    std::vector<testing::On> parts;
    for (int w = 0; w < s_.state.FindJob(job)->task_spec(0).workers().min(); ++w)
      parts.push_back({absl::StrCat("h0", first_host + w), {0}});
    s_.Do(Placed(s_.state, job, "lab", parts));
  }
  void Says(uint64_t job, size_t part, pb::AttemptPhase phase, int exit_code = -1) {
    s_.Do(Report(s_.state, job, 0, TaskOf(s_.state, job).attempts.back().number, part, phase,
                 exit_code));
  }
  void GangIsPrepared(uint64_t job) {
    pb::Event event;
    *event.mutable_gang_prepared()->mutable_key() = KeyOf(*s_.state.FindJob(job), 0, 1);
    event.mutable_gang_prepared()->set_master_address("10.0.0.1");
    event.mutable_gang_prepared()->set_master_port(20'000);
    s_.Do(event);
  }
  void Staged(uint64_t job, int32_t attempt) {
    pb::Event event;
    *event.mutable_export_staged()->mutable_key() = KeyOf(*s_.state.FindJob(job), 0, attempt);
    event.mutable_export_staged()->set_staged("/disk/staged");
    event.mutable_export_staged()->set_target("/disk/model");
    s_.Do(event);
  }
  void Published(uint64_t job, int32_t attempt) {
    pb::Event event;
    *event.mutable_export_published()->mutable_key() = KeyOf(*s_.state.FindJob(job), 0, attempt);
    s_.Do(event);
  }
  void Lose(uint64_t job, const std::string& host) {
    pb::Event event;
    *event.mutable_attempt_lost()->mutable_key() =
        KeyOf(*s_.state.FindJob(job), 0, TaskOf(s_.state, job).attempts.back().number);
    event.mutable_attempt_lost()->set_cluster("lab");
    event.mutable_attempt_lost()->set_host(host);
    s_.Do(event);
  }
  // Asked twice, and of a State loaded from the rows: always the same. Job by job the same, too,
  // but for what was lost here.
  std::vector<std::string> To(const std::string& host) {
    const std::vector<pb::SchedulerMessage> commands = CommandsFor(s_.state, "lab", host);
    EXPECT_EQ(Text(commands), Text(CommandsFor(s_.state, "lab", host))) << "repeated";
    EXPECT_EQ(Text(commands), Text(CommandsFor(*State::Load(s_.state.AllRows()), "lab", host)))
        << "loaded";
    const HostId id = s_.state.FindHost("lab", host);
    if (id == kNoHost) return Describe(commands);
    std::multiset<std::string> of_jobs, of_host;
    for (const uint64_t number : s_.state.AllJobs()) {
      for (const HostCommand& command : CommandsOf(s_.state, *s_.state.FindJob(number))) {
        if (command.host == id) of_jobs.insert(command.message.DebugString());
      }
    }
    const std::vector<LostRow>& lost = s_.state.host(id).lost;
    for (const pb::SchedulerMessage& command : commands) {
      const bool of_lost = std::any_of(lost.begin(), lost.end(), [&](const LostRow& row) {
        return AttemptText(row.key) == AttemptText(command.stop().key());
      });
      if (!of_lost) of_host.insert(command.DebugString());
    }
    EXPECT_EQ(of_jobs, of_host);
    return Describe(commands);
  }
  std::vector<std::string> Asked(const std::string& host,
                                 const std::set<std::string>& mentioned = {}) {
    return Describe(QueriesFor(s_.state, "lab", host, mentioned));
  }

  testing::SystemBuilder s_;
};

TEST_F(CommandsTest, AMemberIsToldWhichOneItIs) {
  pb::Event event;
  pb::JobSubmitted* e = event.mutable_job_submitted();
  *e->mutable_spec() = JobBuilder("research").spec;
  e->mutable_spec()->set_array("5-9:2");
  (*e->mutable_spec()->mutable_env())["OUT"] = "/out/{{index}}";
  e->mutable_spec()->mutable_tasks(0)->mutable_run()->set_shell("work {{index}}");
  e->set_members(3);
  e->set_number(s_.state.next_job_number());
  e->set_uid("array");
  s_.Do(event);
  PlaceAgain(e->number() + 1);
  const std::vector<pb::SchedulerMessage> told = CommandsFor(s_.state, "lab", "h00");
  ASSERT_EQ(told.size(), 1u);
  const pb::Prepare& prepare = told[0].prepare();
  EXPECT_EQ(prepare.task().run().shell(), "work 7");
  EXPECT_EQ(prepare.job_env().at("OUT"), "/out/7");
  EXPECT_EQ(prepare.member_env().at("MUSTER_ARRAY_INDEX"), "7");
  EXPECT_EQ(prepare.member_env().at("MUSTER_ARRAY_JOB"), absl::StrCat(e->number()));
}

// What counts against its holder's memory may be used, and no more.
TEST_F(CommandsTest, AJobOnAnothersDevicesIsToldWhichAttemptsAndItsPartOfTheMemory) {
  const uint64_t holder = Gang(1);
  testing::StartAll(&s_, holder);
  const HostRow& host = s_.state.host(s_.state.FindHost("lab", "h00"));
  const int64_t whole_bytes = host.inventory.memory_bytes();
  ASSERT_GT(whole_bytes, 0);
  for (const int64_t states_bytes : {int64_t{0}, int64_t{1} << 20}) {
    JobBuilder builder("research");
    builder.GpusMilli(500).spec.set_on(absl::StrCat(holder));
    builder.task()->mutable_resources()->set_memory_bytes(states_bytes);
    const uint64_t job = builder.SubmitTo(&s_);
    pb::Event placed = Placed(s_.state, job, "lab", {{"h00", {0}}});
    placed.mutable_attempt_placed()->set_holder_attempt(1);
    s_.Do(placed);
    const std::vector<pb::SchedulerMessage> told = CommandsFor(s_.state, "lab", "h00");
    const pb::Prepare& prepare = told.back().prepare();
    ASSERT_EQ(prepare.job_number(), job);
    EXPECT_EQ(prepare.member_env().at("MUSTER_ON"), "uid1.1");
    EXPECT_EQ(prepare.task().resources().memory_bytes(),
              states_bytes > 0 ? states_bytes : whole_bytes / 4)
        << "half of one of its two devices";
  }
}

TEST_F(CommandsTest, AGangIsStartedOnlyOnceStartingIsCommitted) {
  const uint64_t job = Gang(2);
  EXPECT_THAT(To("h00"), ElementsAre("prepare uid1/main/1"));
  EXPECT_THAT(To("h01"), ElementsAre("prepare uid1/main/1"));
  EXPECT_THAT(To("h02"), IsEmpty()) << "it has no part";
  EXPECT_THAT(To("nowhere"), IsEmpty());
  Says(job, 0, pb::PREPARED);
  EXPECT_THAT(To("h00"), IsEmpty()) << "it waits for the other";
  EXPECT_THAT(To("h01"), ElementsAre("prepare uid1/main/1"));
  Says(job, 1, pb::PREPARED);
  EXPECT_THAT(To("h00"), IsEmpty()) << "Starting isn't committed";
  EXPECT_THAT(To("h01"), IsEmpty());
  GangIsPrepared(job);
  EXPECT_THAT(To("h00"), ElementsAre("start uid1/main/1 10.0.0.1:20000"));
  EXPECT_THAT(To("h01"), ElementsAre("start uid1/main/1 10.0.0.1:20000"));
  Says(job, 0, pb::STARTED);
  EXPECT_THAT(To("h00"), IsEmpty());
  EXPECT_THAT(To("h01"), ElementsAre("start uid1/main/1 10.0.0.1:20000"));
  Says(job, 1, pb::STARTED);
  EXPECT_THAT(To("h01"), IsEmpty());
}

TEST_F(CommandsTest, ATaskOnOneHostIsPreparedAndStartedByOneCommand) {
  const uint64_t job = Gang(1);
  EXPECT_THAT(To("h00"), ElementsAre("prepare uid1/main/1 and start"));
  Says(job, 0, pb::PREPARED);  // its agent died before it started the program
  EXPECT_THAT(To("h00"), ElementsAre("start uid1/main/1 127.0.0.1:20000"));
  Says(job, 0, pb::STARTED);
  EXPECT_THAT(To("h00"), IsEmpty());
}

TEST_F(CommandsTest, PrepareSaysWhereAndAsWhatToRun) {
  JobBuilder builder("research");
  builder.Workers(3).task()->mutable_checkpoint()->set_storage("fast");
  (*builder.spec.mutable_env())["A"] = "b";
  const uint64_t number = builder.SubmitTo(&s_);
  pb::Event placed = Placed(s_.state, number, "lab", {{"h00", {0, 1}, 2}, {"h01", {1}}});
  placed.mutable_attempt_placed()->add_resume_from("/fast/new");
  placed.mutable_attempt_placed()->add_resume_from("/fast/old");
  s_.Do(placed);
  const pb::Prepare first = CommandsFor(s_.state, "lab", "h00").at(0).prepare();
  const pb::Prepare second = CommandsFor(s_.state, "lab", "h01").at(0).prepare();
  EXPECT_EQ(first.job_number(), number);
  EXPECT_EQ(first.job_name(), "job");
  EXPECT_EQ(first.owner(), "ann");
  EXPECT_EQ(first.queue(), "research");
  EXPECT_EQ(first.job_env().at("A"), "b");
  EXPECT_EQ(first.task().name(), "main");
  EXPECT_EQ(first.here().host(), "h00");
  EXPECT_THAT(first.here().devices(), ElementsAre(0, 1));
  EXPECT_EQ(first.here().workers(), 2);
  EXPECT_TRUE(first.hosts_rendezvous());
  EXPECT_THAT(second.here().devices(), ElementsAre(1));
  EXPECT_EQ(second.here().first_group_rank(), 2);
  EXPECT_FALSE(second.hosts_rendezvous());
  for (const pb::Prepare& prepare : {first, second}) {
    EXPECT_EQ(prepare.gang_workers(), 3);
    EXPECT_EQ(prepare.job_directory(), "/disk/jobs/1-uid1");
    EXPECT_EQ(prepare.attempt_directory(), "/disk/jobs/1-uid1/main/attempt-1");
    EXPECT_EQ(prepare.checkpoint_storage(), "fast");
    EXPECT_EQ(prepare.checkpoint_directory(), "/fast/jobs/1-uid1/main/attempt-1/checkpoints");
    EXPECT_THAT(prepare.resume_from(), ElementsAre("/fast/new", "/fast/old"));
  }
}

TEST_F(CommandsTest, AStoragesPathMayNameTheOwner) {
  pb::Event event;
  pb::ClusterFile* file = event.mutable_clusters_configured()->mutable_file();
  *file = s_.state.cluster_file();
  (*file->mutable_storages())["disk"].set_path("/disk/{user}");
  s_.Do(event);
  Gang(2);
  const pb::Prepare prepare = CommandsFor(s_.state, "lab", "h00").at(0).prepare();
  EXPECT_EQ(prepare.job_directory(), absl::StrCat("/disk/", prepare.owner(), "/jobs/1-",
                                                  prepare.key().job_uid().substr(0, 8)));
}

TEST_F(CommandsTest, AStopIsRepeatedToEachHostUntilThatHostIsGone) {
  for (const pb::AttemptPhase phase :
       {pb::ATTEMPT_PHASE_UNSPECIFIED, pb::PREPARED, pb::STARTED, pb::EXITED}) {
    SCOPED_TRACE(pb::AttemptPhase_Name(phase));
    const uint64_t job = Gang(2);
    const std::string stop = absl::StrCat("stop uid", job, "/main/1 DRAIN 1s");
    if (phase >= pb::PREPARED) {
      Says(job, 0, pb::PREPARED);
      Says(job, 1, pb::PREPARED);
      GangIsPrepared(job);
    }
    if (phase > pb::PREPARED) Says(job, 0, phase);
    s_.Do(Stopping(s_.state, job, pb::DRAIN));
    EXPECT_THAT(To("h00"), ElementsAre(stop));
    EXPECT_THAT(To("h01"), ElementsAre(stop));
    Says(job, 0, pb::GONE);
    EXPECT_THAT(To("h00"), IsEmpty());
    EXPECT_THAT(To("h01"), ElementsAre(stop));
    Says(job, 1, pb::GONE);
    EXPECT_THAT(To("h01"), IsEmpty());
  }
}

TEST_F(CommandsTest, ALostAttemptIsStoppedAtOnceUntilItsHostIsGoneForThatAttempt) {
  const uint64_t job = Gang(1);
  Says(job, 0, pb::STARTED);
  Lose(job, "h00");
  const std::string stop = "stop uid1/main/1 HOST_LOST 0s";
  EXPECT_THAT(To("h00"), ElementsAre(stop));
  EXPECT_THAT(Asked("h00"), ElementsAre("query uid1/main/1"));
  const pb::Event gone = Report(s_.state, job, 0, 1, 0, pb::GONE);
  PlaceAgain(job);
  EXPECT_THAT(To("h00"), ElementsAre("prepare uid1/main/2 and start", stop));
  Says(job, 0, pb::GONE, 0);
  EXPECT_THAT(To("h00"), ElementsAre(stop)) << "the end of attempt 2 says nothing of attempt 1";
  s_.Do(gone);
  EXPECT_THAT(To("h00"), IsEmpty());
  EXPECT_THAT(Asked("h00"), IsEmpty());
}

// A restored store waits a lease for its hosts, and then places on one that knows of it and says
// nothing; that one may be served by the store's original meanwhile.
TEST_F(CommandsTest, AHostThatRunsWhatNobodyKnowsStopsThatBeforeItIsToldToStartAnything) {
  Gang(1);
  pb::Event stray = Report(s_.state, 1, 0, 1, 0, pb::STARTED);
  pb::AttemptReport* report = stray.mutable_attempt_reported()->mutable_report();
  report->mutable_key()->set_attempt(7);
  s_.Do(stray);
  EXPECT_THAT(To("h00"), ElementsAre("stop uid1/main/7 HOST_LOST 0s"));
  report->set_phase(pb::GONE);
  s_.Do(stray);
  EXPECT_THAT(To("h00"), ElementsAre("prepare uid1/main/1 and start"));
}

TEST_F(CommandsTest, AHostWithAnotherStateIdIsToldToStopAndNothingElse) {
  const uint64_t starting = Gang(2);
  const uint64_t preparing = Gang(2);
  Says(starting, 0, pb::PREPARED);
  Says(starting, 1, pb::PREPARED);
  GangIsPrepared(starting);
  s_.Hello("lab", "h00", 2, "gpu", 64, "another");
  EXPECT_THAT(To("h00"), IsEmpty());
  EXPECT_THAT(To("h01"), ElementsAre("start uid1/main/1 10.0.0.1:20000", "prepare uid2/main/1"))
      << "it is the same agent as before";
  s_.Do(Stopping(s_.state, starting, pb::HOST_LOST));
  s_.Do(Stopping(s_.state, preparing, pb::HOST_LOST));
  EXPECT_THAT(To("h00"),
              ElementsAre("stop uid1/main/1 HOST_LOST 1s", "stop uid2/main/1 HOST_LOST 1s"));
}

TEST_F(CommandsTest, AnAgentThatKnowsNoSecretsAnyMoreIsNotToldToStartAJobThatHasSome) {
  JobBuilder builder("research");
  builder.spec.add_secrets("TOKEN");
  const uint64_t job = builder.SubmitTo(&s_);
  PlaceAgain(job);
  EXPECT_THAT(To("h00"), ElementsAre("prepare uid1/main/1 and start"));
  s_.Hello("lab", "h00", 2, "gpu", 64, "s1", kUnpacks | kEntersImages);
  EXPECT_THAT(To("h00"), IsEmpty());
  s_.Hello("lab", "h00", 2);
  Says(job, 0, pb::PREPARED);
  s_.Hello("lab", "h00", 2, "gpu", 64, "s1", 0);
  EXPECT_THAT(To("h00"), ElementsAre("start uid1/main/1 127.0.0.1:20000"))
      << "what it starts was prepared by an agent that knew";
}

TEST_F(CommandsTest, ReportsAreKeptOfATrackedJob) {
  for (const bool tracked : {false, true}) {
    JobBuilder builder("research");
    if (tracked) builder.spec.mutable_track()->set_tensorboard("true");
    builder.SubmitTo(&s_);
  }
  PlaceAgain(1);
  PlaceAgain(2);
  std::vector<bool> kept;
  for (const pb::SchedulerMessage& message : CommandsFor(s_.state, "lab", "h00"))
    if (message.has_prepare()) kept.push_back(message.prepare().keep_reports());
  EXPECT_THAT(kept, ElementsAre(false, true));
}

TEST_F(CommandsTest, TheHostOfRankZeroPublishesUntilItSaysSo) {
  const uint64_t job = Gang(2);
  testing::StartAll(&s_, job);
  EXPECT_FALSE(AwaitsExport(s_.state, KeyOf(*s_.state.FindJob(job), 0, 1)));
  Staged(job, 1);
  const std::string publish = "publish uid1/main/1 /disk/staged /disk/model";
  EXPECT_TRUE(AwaitsExport(s_.state, KeyOf(*s_.state.FindJob(job), 0, 1)));
  EXPECT_THAT(To("h00"), ElementsAre(publish));
  EXPECT_THAT(To("h01"), IsEmpty());
  Says(job, 0, pb::GONE, 0);
  Says(job, 1, pb::GONE, 0);
  EXPECT_THAT(To("h00"), ElementsAre(publish)) << "also after its end";
  Published(job, 1);
  EXPECT_THAT(To("h00"), IsEmpty());
  EXPECT_FALSE(AwaitsExport(s_.state, KeyOf(*s_.state.FindJob(job), 0, 1)));
  EXPECT_EQ(s_.state.FindJob(job)->state, pb::SUCCEEDED);
}

TEST_F(CommandsTest, AnExportIsPublishedByItsAttemptAlsoWhileALaterOneRuns) {
  const uint64_t job = Gang(1);
  Says(job, 0, pb::STARTED);
  Staged(job, 1);
  Says(job, 0, pb::GONE, 1);
  PlaceAgain(job, 1);
  EXPECT_THAT(To("h00"), ElementsAre("publish uid1/main/1 /disk/staged /disk/model"));
  EXPECT_THAT(To("h01"), ElementsAre("prepare uid1/main/2 and start"));
  Says(job, 0, pb::GONE, 0);
  EXPECT_EQ(TaskOf(s_.state, job).current(), &TaskOf(s_.state, job).attempts.back())
      << "it waits for the export";
  Published(job, 1);
  EXPECT_EQ(s_.state.FindJob(job)->state, pb::SUCCEEDED);
  EXPECT_THAT(To("h00"), IsEmpty());
}

TEST_F(CommandsTest, NobodyWaitsForTheExportOfAJobThatHasEnded) {
  const uint64_t job = Gang(1);
  Says(job, 0, pb::STARTED);
  Staged(job, 1);
  s_.Cancel(job);
  s_.Do(Stopping(s_.state, job, pb::CANCEL));
  Says(job, 0, pb::GONE, 1);
  ASSERT_TRUE(s_.state.FindJob(job)->finished());
  EXPECT_THAT(To("h00"), IsEmpty());
  EXPECT_FALSE(AwaitsExport(s_.state, KeyOf(*s_.state.FindJob(job), 0, 1)))
      << "its host may forget it";
}

TEST_F(CommandsTest, AsksAfterWhatAHelloLeavesOut) {
  const uint64_t told = Gang(1);
  const uint64_t silent = Gang(1);
  const uint64_t unprepared = Gang(1);
  const uint64_t gone = Gang(1);
  for (const uint64_t job : {told, silent, gone}) Says(job, 0, pb::STARTED);
  Says(gone, 0, pb::GONE, 0);
  EXPECT_THAT(Asked("h00", {absl::StrCat("uid", told, "/main/1")}),
              ElementsAre(absl::StrCat("query uid", silent, "/main/1")))
      << "not after job " << unprepared << ", which gets its Prepare again";
  EXPECT_THAT(Asked("h01"), IsEmpty());
}

// The engine says after each step what its changed hosts are to do, and of its changed jobs what
// may be new: nothing else comes to hold.
TEST(CommandsOf, WithWhatItWasLeavesOutNothingThatHasComeToHold) {
  size_t came = 0, said_of_jobs = 0, all_of_jobs = 0;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    testing::RandomEvents events(seed);
    State state;
    for (int i = 0; i < 2500; ++i) {
      const State before = state;
      Apply(&state, events.Next(state));
      std::set<std::string> said;
      const ChangedRows changed = state.TakeChanges();
      for (const HostId id : changed.hosts) {
        const HostRow& host = state.host(id);
        for (const auto& command :
             CommandsFor(state, state.clusters()[host.cluster].name, host.name))
          said.insert(state.HostName(id) + " " + Describe(command));
      }
      for (const uint64_t number : changed.jobs) {
        const JobRow* job = state.FindJob(number);
        if (job == nullptr) continue;
        all_of_jobs += CommandsOf(state, *job).size();
        for (const HostCommand& command : CommandsOf(state, *job, before.FindJob(job->number))) {
          said.insert(state.HostName(command.host) + " " + Describe(command.message));
          ++said_of_jobs;
        }
      }
      for (const HostId id : state.hosts()) {
        const std::string name = state.HostName(id), cluster = name.substr(0, name.find('/'));
        const std::vector<std::string> held =
            Describe(CommandsFor(before, cluster, state.host(id).name));
        for (const std::string& holds :
             Describe(CommandsFor(state, cluster, state.host(id).name))) {
          if (std::find(held.begin(), held.end(), holds) != held.end()) continue;
          ++came;
          ASSERT_TRUE(said.contains(name + " " + holds))
              << "seed " << seed << ", event " << i << ": " << name << " " << holds;
        }
      }
    }
  }
  EXPECT_GT(came, 500u);
  EXPECT_LT(said_of_jobs, all_of_jobs);
}

}  // namespace
}  // namespace muster
