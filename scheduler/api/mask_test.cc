// What answers leave out for whom.
#include "scheduler/api/mask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::JobBuilder;
using ::testing::Not;
using testing::SystemBuilder;

// Job 1 in `mine`, jobs 2 and 3 in `theirs`. vic sees `mine`, oli operates it.
class MaskTest : public ::testing::Test {
 protected:
  MaskTest() {
    system_.Cluster("c").Hosts("c", 1, 2).Queue("mine").Queue("theirs");
    JobBuilder("mine").SubmitTo(&system_, "a");
    JobBuilder("theirs").SubmitTo(&system_, "b");
    JobBuilder("theirs").SubmitTo(&system_, "c");
    for (const auto& [user, role] :
         {std::pair("vic", pb::ROLE_VIEWER), {"oli", pb::ROLE_OPERATOR}}) {
      pb::Event event;
      event.mutable_binding_changed()->mutable_binding()->set_user(user);
      event.mutable_binding_changed()->mutable_binding()->set_queue("mine");
      event.mutable_binding_changed()->mutable_binding()->set_role(role);
      system_.Do(event);
    }
  }
  SystemBuilder system_;
  const Principal vic_{4001, "vic", {}, false}, oli_{4002, "oli", {}, false},
      root_{0, "root", {}, true};
};

TEST_F(MaskTest, SentencesNameNoJobThatIsNotSeen) {
  const Sight sight(system_.state, vic_);
  const std::pair<const char*, const char*> cases[] = {
      {"waits for 2 gpu; held by job 1", "waits for 2 gpu; held by job 1"},
      {"waits for 2 gpu; held by job 2", "waits for 2 gpu; held by another's job"},
      {"held by jobs 2, 3 until later", "held by others' jobs until later"},
      {"held by jobs 1, 3", "held by job 1 and others' work"},
      {"behind job 2 (theirs), for which it is kept", "behind another's job, for which it is kept"},
      {"behind job 1 (mine) and 2 others", "behind job 1 (mine) and 2 others"},
      {"job 2 (theirs) ended", "another's job ended"},
      {"job 99", "another's job"},
      {"waits for jobs 1, 2 to succeed", "waits for job 1 and others' work to succeed"},
      {"waits for array 2 to end", "waits for others' arrays to end"},
      {"waits for arrays 1, 2 to end", "waits for others' arrays to end"},
      {"waits for array 1 to end", "waits for array 1 to end"},
      {"others of its jobs, whose turn comes first", "others of its jobs, whose turn comes first"},
      {"a subjob 2 and jobs", "a subjob 2 and jobs"},
  };
  for (const auto& [said, told] : cases) EXPECT_EQ(HideJobs(sight, said), told);
  EXPECT_EQ(HideJobs(Sight(system_.state, root_), "job 2 (theirs)"), "job 2 (theirs)");
}

TEST_F(MaskTest, MembersAreNamedAsCommandsTakeThem) {
  pb::Event event;
  pb::JobSubmitted* e = event.mutable_job_submitted();
  e->set_number(system_.state.next_job_number());
  e->set_uid("d");
  e->set_owner("ann");
  e->mutable_spec()->set_queue("mine");
  e->mutable_spec()->set_array("7-8");
  pb::TaskSpec* task = e->mutable_spec()->add_tasks();
  task->set_name("main");
  task->mutable_workers()->set_min(1);
  task->mutable_workers()->set_max(1);
  e->set_members(2);
  system_.Do(event);
  ASSERT_NE(system_.state.FindJob(5), nullptr);
  const Sight root(system_.state, root_), vic(system_.state, vic_);
  EXPECT_EQ(HideJobs(root, "held by jobs 1, 2, 5 (mine) and 3 others; job 4"),
            "held by jobs 1, 2, 4_8 (mine) and 3 others; job 4_7");
  EXPECT_EQ(HideJobs(vic, "held by jobs 2, 5"), "held by job 4_8 and others' work");
  pb::ExplainResponse explained;
  explained.mutable_job()->set_number(1);
  explained.add_why()->add_holders()->set_job(5);
  Mask(root, &explained);
  EXPECT_EQ(explained.why(0).holders(0).id(), "4_8");
}

TEST_F(MaskTest, OfAJobWhoMayNotReadItsOutputSeesNeitherEnvironmentNorWhatItsFailuresSaid) {
  const JobRow& row = *system_.state.FindJob(1);
  pb::Job job;
  (*job.mutable_spec()->mutable_env())["TOKEN"] = "s3cret";
  (*job.mutable_spec()->add_tasks()->mutable_env())["KEY"] = "s3cret";
  job.set_detail("exit 1: s3cret");
  pb::Task* task = job.add_tasks();
  task->add_attempts()->set_detail("exit 1: s3cret");
  task->mutable_verdict()->set_code(pb::V_BACKOFF);
  task->mutable_verdict()->set_text("met a fault (s3cret) and is tried again");
  task->mutable_verdict()->add_held_by(1);
  task->mutable_verdict()->add_held_by(2);
  pb::Job for_vic = job, for_oli = job;
  MaskJob(Sight(system_.state, vic_), row, &for_vic);
  MaskJob(Sight(system_.state, oli_), row, &for_oli);
  EXPECT_THAT(for_vic.DebugString(), Not(HasSubstr("s3cret")));
  EXPECT_EQ(for_vic.spec().env().count("TOKEN"), 1u) << "names stay";
  EXPECT_THAT(for_vic.tasks(0).verdict().held_by(), ElementsAre(1));
  EXPECT_EQ(for_oli.detail(), "exit 1: s3cret");
  EXPECT_EQ(for_oli.spec().env().at("TOKEN"), "s3cret");
  EXPECT_THAT(for_oli.tasks(0).verdict().held_by(), ElementsAre(1)) << "job 2 isn't hers";
}

// A line of a program's output stands in what speaks against a host.
TEST_F(MaskTest, BlamesAndQuarantinesQuoteOutputToThoseWhoMayReadIt) {
  pb::Host host;
  host.add_blames()->set_job(1);
  host.mutable_blames(0)->set_detail("s3cret of job 1");
  host.add_blames()->set_job(2);
  host.mutable_blames(1)->set_detail("s3cret of job 2");
  host.mutable_blames(1)->set_task("main");
  host.mutable_blames(1)->set_attempt(3);
  host.add_blames()->set_detail("the driver says Xid 79");
  pb::Quarantine* quarantine = host.add_quarantines();
  quarantine->set_reason("blamed 2 times in 24h, last: s3cret of job 2");
  *quarantine->add_evidence() = host.blames(0);
  *quarantine->add_evidence() = host.blames(1);
  host.add_use()->add_jobs(1);
  host.mutable_use(0)->add_jobs(2);
  pb::Host for_vic = host, for_oli = host, for_root = host;
  Mask(Sight(system_.state, vic_), &for_vic);
  Mask(Sight(system_.state, oli_), &for_oli);
  Mask(Sight(system_.state, root_), &for_root);
  EXPECT_THAT(for_vic.DebugString(), Not(HasSubstr("s3cret")));
  EXPECT_EQ(for_vic.blames(0).job(), 1u);
  EXPECT_EQ(for_vic.blames(1).job(), 0u);
  EXPECT_EQ(for_vic.blames(1).task(), "");
  EXPECT_EQ(for_vic.blames(1).attempt(), 3) << "else it would be the host's own word";
  EXPECT_EQ(for_vic.blames(2).detail(), "the driver says Xid 79") << "of nobody's job";
  EXPECT_EQ(for_vic.quarantines(0).reason(), "blamed 2 times in 24h");
  EXPECT_THAT(for_vic.use(0).jobs(), ElementsAre(1));
  EXPECT_EQ(for_oli.blames(0).detail(), "s3cret of job 1");
  EXPECT_THAT(for_oli.DebugString(), Not(HasSubstr("s3cret of job 2")));
  EXPECT_EQ(for_root.DebugString(), host.DebugString());
}

TEST_F(MaskTest, AnswersToQuestionsNameOthersNeitherByNumberNorByQueue) {
  pb::ExplainResponse explained;
  explained.mutable_job()->set_number(1);
  pb::ExplainResponse::Why* why = explained.add_why();
  why->add_holders()->set_job(2);
  why->mutable_holders(0)->set_queue("theirs");
  why->set_text("held by job 2 (theirs)");
  pb::ExplainResponse::Relaxation* change = explained.add_relaxations();
  change->set_change("job 2 (theirs) ended");
  change->add_takes_from()->set_job(3);
  change->mutable_takes_from(0)->set_queue("theirs");
  (*change->mutable_spec()->mutable_env())["KEY"] = "s3cret";
  const Sight vic(system_.state, vic_);
  Mask(vic, &explained);
  EXPECT_THAT(explained.DebugString(), Not(HasSubstr("theirs")));
  EXPECT_THAT(explained.DebugString(), Not(HasSubstr("s3cret")));
  EXPECT_EQ(explained.relaxations(0).takes_from(0).job(), 0u);

  pb::PreviewResponse preview;
  preview.add_candidates()->add_after_jobs(2);
  preview.mutable_candidates(0)->add_takes_from()->set_queue("theirs");
  preview.mutable_candidates(0)->mutable_takes_from(0)->set_job(2);
  Mask(vic, &preview);
  EXPECT_EQ(preview.candidates(0).after_jobs_size(), 0);
  EXPECT_THAT(preview.DebugString(), Not(HasSubstr("theirs")));

  pb::SimulateResponse simulated;
  simulated.add_effects()->set_job(2);
  simulated.mutable_effects(0)->set_queue("theirs");
  simulated.add_queues()->set_path("theirs");
  simulated.add_queues()->set_path("mine");
  Mask(vic, &simulated);
  EXPECT_EQ(simulated.effects_size(), 1) << "that somebody is stopped is told";
  EXPECT_THAT(simulated.DebugString(), Not(HasSubstr("theirs")));
  EXPECT_EQ(simulated.queues_size(), 1);
}

TEST_F(MaskTest, RowsOfQueuesAreThoseThatAreSeen) {
  pb::TopResponse top;
  pb::LedgerResponse ledger;
  for (const char* queue : {"mine", "theirs"}) {
    top.add_rows()->set_name(queue);
    ledger.add_rows()->set_name(queue);
  }
  const Sight vic(system_.state, vic_);
  Mask(vic, pb::TopRequest::QUEUE, &top);
  Mask(vic, pb::GetLedgerRequest::QUEUE, &ledger);
  ASSERT_EQ(top.rows_size(), 1);
  ASSERT_EQ(ledger.rows_size(), 1);
  EXPECT_EQ(top.rows(0).name(), "mine");
  EXPECT_EQ(ledger.rows(0).name(), "mine");
}

}  // namespace
}  // namespace muster
