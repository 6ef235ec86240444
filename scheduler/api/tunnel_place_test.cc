// Where a tunnel leads: jobs as State has them, played by events.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/api/tunnel_stream.h"
#include "scheduler/engine/testing/fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

pb::TunnelInput Exec(int32_t rank = 0, const std::string& task = "") {
  pb::TunnelInput start;
  start.mutable_exec()->set_id("1");
  start.mutable_exec()->set_rank(rank);
  start.mutable_exec()->set_task(task);
  start.mutable_exec()->add_command("true");
  return start;
}

class TunnelPlaceTest : public ::testing::Test {
 protected:
  void Submit(int workers) {
    pb::Event event;
    pb::JobSubmitted* job = event.mutable_job_submitted();
    job->set_number(1);
    job->set_uid(std::string(32, '1'));
    job->set_owner("ann");
    *job->mutable_spec() = OneSlotSpec();
    job->mutable_spec()->mutable_tasks(0)->mutable_workers()->set_min(workers);
    job->mutable_spec()->mutable_tasks(0)->mutable_workers()->set_max(workers);
    lab_.engine.Post(event);
    lab_.engine.Step();
  }
  void Report(pb::AttemptPhase phase) {
    pb::Event event;
    pb::AttemptReported* reported = event.mutable_attempt_reported();
    reported->set_cluster("lab");
    reported->set_host("h1");
    reported->set_state_id(std::string(32, 'a'));
    pb::AttemptKey* key = reported->mutable_report()->mutable_key();
    key->set_job_uid(std::string(32, '1'));
    key->set_task("main");
    key->set_attempt(1);
    reported->mutable_report()->set_phase(phase);
    if (phase == pb::GONE) reported->mutable_report()->add_exits()->set_exit_code(0);
    lab_.engine.Post(event);
    lab_.engine.Step();
  }
  absl::Status Find(const pb::TunnelInput& start) {
    place_ = TunnelPlace();
    return FindTunnelPlace(lab_.engine.Snapshot()->state, 1, start, &place_);
  }

  LabWithOneHost lab_;
  TunnelPlace place_;
};

TEST_F(TunnelPlaceTest, WhereOwnersAloneMayNobodyElseBeginsOne) {
  Submit(1);
  const std::shared_ptr<const View> view = lab_.engine.Snapshot();
  Principal ann, oli, root;
  ann.user = "ann";
  oli.user = "oli";
  root.user = "root";
  root.trusted = true;
  const auto check = [&](const Principal& who, bool operators) {
    return CheckTunnelUser(view->state, 1, who, operators);
  };
  for (const Principal* who : {&ann, &oli, &root}) EXPECT_TRUE(check(*who, true).ok()) << who->user;
  EXPECT_TRUE(check(ann, false).ok());
  EXPECT_TRUE(check(root, false).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(check(oli, false)));
  EXPECT_THAT(std::string(check(oli, false).message()), HasSubstr("this job is ann's"));
}

TEST_F(TunnelPlaceTest, LeadsToTheHostOfTheRankOnceItRuns) {
  Submit(2);
  EXPECT_THAT(std::string(Find(Exec()).message()), HasSubstr("job 1 doesn't run yet"));
  EXPECT_TRUE(place_.waits);
  Report(pb::STARTED);
  const absl::Status found = Find(Exec(1));
  ASSERT_TRUE(found.ok()) << found;
  EXPECT_EQ(place_.cluster, "lab");
  EXPECT_EQ(place_.host, "h1");
  EXPECT_EQ(place_.open.key().attempt(), 1);
  EXPECT_EQ(place_.open.exec().rank(), 1);
  const absl::Status rank = Find(Exec(2));
  EXPECT_TRUE(absl::IsNotFound(rank));
  EXPECT_THAT(std::string(rank.message()), HasSubstr("has no rank 2; it has ranks 0 to 1"));
  EXPECT_TRUE(absl::IsNotFound(Find(Exec(0, "other"))));
  pb::TunnelInput later = Exec();
  later.mutable_exec()->set_attempt(2);
  EXPECT_THAT(std::string(Find(later).message()), HasSubstr("attempt 1 does"));
  Report(pb::GONE);
  EXPECT_THAT(std::string(Find(Exec()).message()), HasSubstr("job 1 has ended"));
}

TEST_F(TunnelPlaceTest, AHostWhoseAgentCannotIsNamed) {
  pb::Event older = HostJoins("h1");
  older.mutable_host_hello()->mutable_inventory()->set_opens_tunnels(false);
  lab_.engine.Post(older);
  Submit(1);
  Report(pb::STARTED);
  const absl::Status found = Find(Exec());
  EXPECT_TRUE(absl::IsFailedPrecondition(found));
  EXPECT_THAT(std::string(found.message()),
              HasSubstr("lab/h1 has a muster-agent that can't do this: upgrade muster-agent"));
}

TEST(CheckTunnelStart, WhatIsNoneIsRefused) {
  EXPECT_TRUE(CheckTunnelStart(Exec(), true).ok());
  EXPECT_FALSE(CheckTunnelStart(Exec(), false).ok()) << "of a Forward";
  pb::TunnelInput start = Exec();
  start.mutable_exec()->add_command(std::string("a\0b", 3));
  EXPECT_FALSE(CheckTunnelStart(start, true).ok());
  start = Exec();
  start.mutable_exec()->add_command(std::string(64 << 10, 'x'));
  EXPECT_FALSE(CheckTunnelStart(start, true).ok()) << "too long";
  start = Exec();
  start.mutable_exec()->clear_command();
  EXPECT_FALSE(CheckTunnelStart(start, true).ok());
  start = Exec();
  start.mutable_exec()->set_term("a=b");
  EXPECT_FALSE(CheckTunnelStart(start, true).ok());
  start = Exec();
  start.mutable_exec()->mutable_size()->set_rows(-1);
  EXPECT_FALSE(CheckTunnelStart(start, true).ok());
  for (const int port : {0, -1, 65'536}) {
    start.mutable_forward()->set_port(port);
    EXPECT_FALSE(CheckTunnelStart(start, false).ok()) << port;
  }
  start.mutable_forward()->set_port(8888);
  EXPECT_TRUE(CheckTunnelStart(start, false).ok());
}

TEST(TunnelNote, SaysTheProgramAndNotWhatItIsGiven) {
  pb::TunnelInput start = Exec(3);
  start.mutable_exec()->add_command("--password=hunter2");
  EXPECT_EQ(TunnelNote(start), "true and 1 more words of 18 bytes, rank 3");
  std::string umlauts = "x";
  for (int i = 0; i < 200; ++i) umlauts += "\u00fc";
  start.mutable_exec()->set_command(0, umlauts);
  EXPECT_EQ(TunnelNote(start), umlauts.substr(0, 199) + " and 1 more words of 18 bytes, rank 3")
      << "an audit's note is valid UTF-8";
}

}  // namespace
}  // namespace muster
