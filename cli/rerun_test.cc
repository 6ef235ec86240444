// `muster rerun`.
#include <set>

#include "cli/testing/fixture.h"
#include "common/spec/members.h"

namespace muster {
namespace {

using ::testing::Pair;
using ::testing::UnorderedElementsAre;

class RerunTest : public CliTest {
 protected:
  RerunTest() {
    jobs_.submit = [this](const pb::SubmitRequest& request, pb::SubmitResponse*) {
      submitted_.push_back(request.spec());
      return grpc::Status::OK;
    };
    jobs_.got.set_number(7);
    jobs_.got.set_owner("ann");
    pb::JobSpec* spec = jobs_.got.mutable_spec();
    spec->clear_tasks();
    spec->set_name("train");
    spec->set_queue("research");
    (*spec->mutable_env())["WANDB_MODE"] = "offline";
    pb::TaskSpec* task = spec->add_tasks();
    task->mutable_run()->set_shell("python3 train.py");
    task->set_workdir(".");
    task->set_workdir_digest(std::string(64, 'a'));
  }

  std::vector<pb::JobSpec> submitted_;
};

TEST_F(RerunTest, SubmitsAJobAgainAsItWas) {
  ASSERT_EQ(Run({"rerun", "-d", "7"}), 0) << err_;
  ASSERT_EQ(submitted_.size(), 1u);
  EXPECT_EQ(submitted_[0].name(), "train");
  EXPECT_EQ(submitted_[0].queue(), "research");
  EXPECT_EQ(submitted_[0].tasks(0).run().shell(), "python3 train.py");
  EXPECT_EQ(submitted_[0].tasks(0).workdir_digest(), std::string(64, 'a'))
      << "the directory that came along, not the one that is here now";
  EXPECT_THAT(submitted_[0].env(), UnorderedElementsAre(Pair("WANDB_MODE", "offline")));
}

TEST_F(RerunTest, WithWhatTheFlagsChange) {
  ASSERT_EQ(Run({"rerun", "-d", "7", "--queue", "prod", "--set", "priority=5", "--env", "A=b"}), 0)
      << err_;
  ASSERT_EQ(submitted_.size(), 1u);
  EXPECT_EQ(submitted_[0].queue(), "prod");
  EXPECT_EQ(submitted_[0].priority(), 5);
  EXPECT_THAT(submitted_[0].env(),
              UnorderedElementsAre(Pair("WANDB_MODE", "offline"), Pair("A", "b")));
}

TEST_F(RerunTest, ComesAfterTheSameJobsUnlessTheFlagsNameOthers) {
  jobs_.got.mutable_spec()->add_after("5");
  jobs_.got.mutable_spec()->add_after_any("6");
  const struct {
    std::vector<std::string> flags, after, any;
  } kCases[] = {
      {{}, {"5"}, {"6"}},
      {{"--after", "8,9_1", "--after", "10"}, {"8", "9_1", "10"}, {"6"}},
      {{"--after-any", "8"}, {"5"}, {"8"}},
      {{"--after", "none", "--after-any", "none"}, {}, {}},
  };
  for (const auto& c : kCases) {
    std::vector<std::string> line = {"rerun", "-d", "7"};
    line.insert(line.end(), c.flags.begin(), c.flags.end());
    ASSERT_EQ(Run(line), 0) << err_;
    EXPECT_THAT(submitted_.back().after(), ::testing::ElementsAreArray(c.after));
    EXPECT_THAT(submitted_.back().after_any(), ::testing::ElementsAreArray(c.any));
  }
  EXPECT_NE(Run({"rerun", "-d", "7", "--after", "8,"}), 0);
  EXPECT_THAT(err_, HasSubstr("after[1]: \"\" names no job"));
}

TEST_F(RerunTest, RefusesWhatItsCallerMayNotReadWhole) {
  (*jobs_.got.mutable_spec()->mutable_env())["WANDB_MODE"] = "(hidden)";
  EXPECT_NE(Run({"rerun", "-d", "7"}), 0);
  EXPECT_THAT(err_, HasSubstr("job 7 is ann's, and its environment is hidden from you"));
  EXPECT_THAT(err_, HasSubstr("muster show 7 --spec"));
  EXPECT_TRUE(submitted_.empty());
}

TEST_F(RerunTest, OfAMemberThatAloneAndSaysWhatIsOtherwise) {
  jobs_.got.mutable_member()->set_id("7_3");
  jobs_.got.mutable_member()->set_index(3);
  pb::SweepValues* values = jobs_.got.mutable_spec()->add_sweep();
  values->set_name("lr");
  values->add_values("1e-4");
  values->add_values("3e-4");
  pb::SweepValues* own = jobs_.got.mutable_member()->add_values();
  own->set_name("lr");
  own->add_values("3e-4");
  ASSERT_EQ(Run({"rerun", "-d", "7_3"}), 0) << err_;
  EXPECT_THAT(err_, HasSubstr("7_3 alone: MUSTER_ARRAY_SIZE is 1 in it, and its index is 0."));
  ASSERT_EQ(submitted_.size(), 1u);
  EXPECT_EQ(submitted_[0].sweep(0).values_size(), 1);
  EXPECT_EQ(submitted_[0].sweep(0).values(0), "3e-4");
}

// Of the sweep 7 over lr the members 7_1 and 7_2 have failed.
class FailedSweepTest : public RerunTest {
 protected:
  FailedSweepTest() {
    array_ = jobs_.got;
    array_.mutable_array()->set_members(3);
    array_.mutable_spec()->add_sweep()->set_name("lr");
    for (const char* value : {"0", "1", "2"})
      array_.mutable_spec()->mutable_sweep(0)->add_values(value);
    jobs_.listing.emplace();
    for (const int index : {1, 2}) {
      pb::Job& member = jobs_.listing->emplace_back(jobs_.got);
      *member.mutable_spec() = array_.spec();
      member.set_state(pb::FAILED);
      pb::ArrayMember* of = member.mutable_member();
      of->set_array(7);
      of->set_index(index);
      of->set_id(absl::StrCat("7_", index));
      of->add_values()->set_name("lr");
      of->mutable_values(0)->add_values(absl::StrCat(index));
    }
    jobs_.get = [this](const std::string& id, pb::Job* job) {
      *job = id == "7" ? array_ : jobs_.listing->at(id == "7_1" ? 0 : 1);
      return grpc::Status::OK;
    };
  }

  pb::Job array_;
};

TEST_F(FailedSweepTest, OneKeyStandsForNoSeveralMembers) {
  ASSERT_EQ(Run({"rerun", "-d", "7", "--failed", "--idempotency-key", "k"}), 2);
  EXPECT_THAT(err_, HasSubstr("these are 2: submit them one by one, each with its own: muster "
                              "rerun 7_1 (and this command's flags but --failed)"));
  EXPECT_TRUE(submitted_.empty());
  ASSERT_EQ(Run({"rerun", "-d", "7", "--failed"}), 0) << err_;
  EXPECT_EQ(submitted_.size(), 2u);
}

TEST_F(FailedSweepTest, EachIsCalledByItsPlaceInTheArray) {
  for (size_t member = 0; member < 2; ++member) jobs_.listing->at(member).set_number(9 + member);
  ASSERT_EQ(Run({"rerun", "-d", "7", "--failed"}), 0) << err_;
  for (const char* name : {"job 7_1:\n", "job 7_2:\n"}) EXPECT_THAT(err_, HasSubstr(name));
  EXPECT_NE(Run({"rerun", "-d", "7", "--failed", "--set", "workers=0"}), 0);
  EXPECT_THAT(err_, HasSubstr("job 7_2: 1 problem, nothing was submitted"));
}

TEST_F(FailedSweepTest, WhereNoneHasFailedForGoodThoseThatAreTriedAgainAreCounted) {
  const struct {
    int tried_again;
    const char* said;
  } kCases[] = {
      {0, "--failed: no member of array 7 has failed: muster jobs 7 --tasks\n"},
      {1,
       "no member of array 7 has failed for good; 1 waits to be tried again, as max_restarts "
       "allows: muster jobs 7 --tasks\n"},
      {2,
       "no member of array 7 has failed for good; 2 wait to be tried again, as max_restarts "
       "allows: muster jobs 7 --tasks\n"},
  };
  for (const auto& c : kCases) {
    for (int member = 0; member < 2; ++member) {
      pb::Job& job = jobs_.listing->at(static_cast<size_t>(member));
      job.set_state(pb::WAITING);
      job.clear_tasks();
      pb::Task* task = job.add_tasks();
      task->set_state(pb::TASK_WAITING);
      task->set_restarts_used(member < c.tried_again ? 1 : 0);
    }
    EXPECT_EQ(Run({"rerun", "-d", "7", "--failed"}), 2);
    EXPECT_THAT(err_, HasSubstr(c.said));
  }
}

TEST_F(FailedSweepTest, WhatIsTheSameJobWithOtherValuesIsSubmittedOnce) {
  ASSERT_EQ(Run({"rerun", "-d", "7", "--failed", "--sweep", "lr=8,9"}), 0) << err_;
  ASSERT_EQ(submitted_.size(), 1u);
  EXPECT_EQ(submitted_[0].sweep(0).values_size(), 2);
  EXPECT_THAT(err_, HasSubstr("7_2: --sweep makes it the same job as 7_1, which is submitted "
                              "once."));
  EXPECT_THAT(err_, Not(HasSubstr("MUSTER_ARRAY_SIZE is 1")));
  ASSERT_EQ(Run({"rerun", "-d", "7", "--failed", "--sweep", "seed=1,2"}), 0) << err_;
  ASSERT_EQ(submitted_.size(), 3u) << "each keeps its own lr";
  EXPECT_EQ(submitted_[1].sweep(0).values(0), "1");
  EXPECT_EQ(submitted_[2].sweep(0).values(0), "2");
}

// The same command would submit once more what was submitted before a refusal.
TEST_F(FailedSweepTest, ARefusalNamesWhatCameBeforeAndWhatIsLeft) {
  const struct {
    size_t refused;
    const char *said, *not_said;
  } kCases[] = {
      {0, "Not submitted yet: muster rerun 7_2 (and this command's flags but --failed)",
       "Submitted before that"},
      {1, "the same command would submit them again", "Not submitted yet"},
  };
  for (const auto& c : kCases) {
    size_t asked = 0;
    jobs_.submit = [&](const pb::SubmitRequest&, pb::SubmitResponse*) {
      return asked++ == c.refused ? grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "not yours")
                                  : grpc::Status::OK;
    };
    EXPECT_NE(Run({"rerun", "-d", "7", "--failed"}), 0);
    EXPECT_THAT(err_, HasSubstr(c.said));
    EXPECT_THAT(err_, Not(HasSubstr(c.not_said)));
  }
}

TEST_F(RerunTest, FailedMembersThatOneArrayCannotNameAreSeveral) {
  jobs_.got.mutable_spec()->set_array("0-9999%8");
  jobs_.got.mutable_array()->set_members(10'000);
  std::set<int64_t> failed;
  jobs_.listing.emplace();
  for (int index = 0; index < 9000; index += 3) {
    pb::Job& member = jobs_.listing->emplace_back();
    member.set_state(pb::FAILED);
    member.mutable_member()->set_index(index);
    failed.insert(index);
  }
  EXPECT_EQ(Run({"rerun", "-d", "7", "--failed", "--array", "0-9"}), 2);
  EXPECT_THAT(err_, HasSubstr("--array: --failed says which members run again"));
  ASSERT_EQ(Run({"rerun", "-d", "7", "--failed"}), 0) << err_;
  ASSERT_EQ(submitted_.size(), 4u);
  std::set<int64_t> again;
  for (const pb::JobSpec& spec : submitted_) {
    EXPECT_LE(spec.array().size(), kMaxArrayBytes);
    EXPECT_EQ(MembersAtATime(spec), 2) << "together as many as before";
    for (int32_t member = 0; member < MembersOf(spec); ++member)
      EXPECT_TRUE(again.insert(IndexOfMember(spec, member)).second);
  }
  EXPECT_EQ(again, failed);
  jobs_.got.mutable_spec()->set_array("0-9999%3");
  EXPECT_EQ(Run({"rerun", "-d", "7", "--failed"}), 2);
  EXPECT_THAT(err_, HasSubstr("--failed: 3000 members of array 7 take 4 arrays, and only 3 may run "
                              "at a time; run all of them again: muster rerun 7, or name some"));
  EXPECT_EQ(submitted_.size(), 4u);
}

TEST_F(RerunTest, OtherMembersAreTheSweepsOwnOrRefused) {
  pb::SweepValues* values = jobs_.got.mutable_spec()->add_sweep();
  values->set_name("lr");
  values->add_values("1e-4");
  values = jobs_.got.mutable_spec()->add_sweep();
  values->set_name("seed");
  values->add_values("1");
  ASSERT_EQ(Run({"rerun", "-d", "7", "--sweep", "lr=7,8"}), 0) << err_;
  ASSERT_EQ(submitted_.size(), 1u);
  EXPECT_EQ(submitted_[0].sweep(0).values_size(), 2);
  EXPECT_EQ(submitted_[0].sweep(1).name(), "seed") << "it stays";
  EXPECT_NE(Run({"rerun", "-d", "7", "--array", "0-3"}), 0);
  EXPECT_THAT(err_,
              HasSubstr("the job has a sweep, and a job has one of both; take the sweep out "
                        "of its file (muster show 7 --spec writes it), or leave --array out"));
  EXPECT_NE(Run({"rerun", "-d", "7", "--array", ""}), 0);
  EXPECT_THAT(err_, HasSubstr("--array is empty"));
  jobs_.got.mutable_spec()->clear_sweep();
  jobs_.got.mutable_spec()->set_array("0-3");
  EXPECT_NE(Run({"rerun", "-d", "7", "--sweep", "lr=1"}), 0);
  EXPECT_THAT(err_,
              HasSubstr("the job has an array, and a job has one of both; take the array out "
                        "of its file (muster show 7 --spec writes it), or leave --sweep out"));
  jobs_.got.mutable_spec()->clear_array();
  EXPECT_NE(Run({"rerun", "-d", "7", "--sweep", "lr=1,,2"}), 0);
  EXPECT_THAT(err_, HasSubstr("one of its values is empty"));
}

// A trainer's, with the placement that submission filled in for its layout.
void MakeTrainer(pb::TaskSpec* task) {
  task->set_name("main");
  task->clear_run();
  task->clear_workdir();
  task->clear_workdir_digest();
  task->set_trainer_json(R"({"parallel":{"tp":2}})");
  task->mutable_workers()->set_min(4);
  task->mutable_workers()->set_max(8);
  task->mutable_resources()->set_gpus_milli(1'000);
  task->mutable_resources()->add_gpu_types("cpu-slot");
  task->set_processes_per_worker(1);
  task->mutable_workers()->set_multiple_of(2);
  pb::RankBlock* block = task->mutable_topology()->add_blocks();
  block->set_gpus(2);
  block->set_preferred(pb::ISLAND);
}

TEST_F(RerunTest, ASweepOverTheLayoutKeepsNoPlacementOfTheOneBefore) {
  MakeTrainer(jobs_.got.mutable_spec()->mutable_tasks(0));
  jobs_.got.mutable_spec()->mutable_tasks(0)->mutable_workers()->set_min(8);
  ASSERT_EQ(Run({"rerun", "-d", "7", "--sweep", "trainer.parallel.tp=4,8"}), 0) << err_;
  ASSERT_EQ(submitted_.size(), 1u);
  EXPECT_EQ(submitted_[0].tasks(0).workers().multiple_of(), 0);
  EXPECT_EQ(submitted_[0].tasks(0).topology().blocks_size(), 0);
  ASSERT_EQ(Run({"rerun", "-d", "7", "--sweep", "trainer.learning_rate=1e-4,2e-4"}), 0) << err_;
  EXPECT_EQ(submitted_.back().tasks(0).workers().multiple_of(), 2) << "its layout is the same";
  EXPECT_EQ(submitted_.back().tasks(0).topology().blocks_size(), 1);
  jobs_.got.mutable_spec()->mutable_tasks(0)->mutable_workers()->set_min(4);
  ASSERT_EQ(Run({"rerun", "-d", "7", "--sweep", "trainer.parallel.tp=1,2"}), 0) << err_;
  EXPECT_EQ(submitted_.back().tasks(0).workers().multiple_of(), 2) << "without it tp can't be 2";
}

TEST_F(RerunTest, AnotherLayoutKeepsNoPlacementOfTheOneBefore) {
  pb::TaskSpec* task = jobs_.got.mutable_spec()->mutable_tasks(0);
  MakeTrainer(task);
  ASSERT_EQ(Run({"rerun", "-d", "7", "--set", "trainer.parallel.tp=4"}), 0) << err_;
  ASSERT_EQ(submitted_.size(), 1u);
  EXPECT_THAT(submitted_[0].tasks(0).trainer_json(), HasSubstr(R"("tp":4)"));
  EXPECT_EQ(submitted_[0].tasks(0).workers().multiple_of(), 0);
  EXPECT_EQ(submitted_[0].tasks(0).topology().blocks_size(), 0);
  const std::vector<std::vector<std::string>> kNoOtherLayout = {
      {}, {"--set", "priority=5"}, {"--set", "trainer.parallel.tp=2"}};
  for (const std::vector<std::string>& same : kNoOtherLayout) {
    std::vector<std::string> line = {"rerun", "-d", "7"};
    line.insert(line.end(), same.begin(), same.end());
    ASSERT_EQ(Run(line), 0) << err_;
    EXPECT_EQ(submitted_.back().tasks(0).workers().multiple_of(), 2)
        << "an older server doesn't fill it in again";
    EXPECT_EQ(submitted_.back().tasks(0).topology().blocks_size(), 1);
  }
  ASSERT_EQ(Run({"show", "7", "--spec"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("multiple_of: 2"));
  task->mutable_workers()->set_multiple_of(4);  // the file's own
  ASSERT_EQ(Run({"rerun", "-d", "7", "--set", "trainer.parallel.tp=4"}), 0) << err_;
  EXPECT_EQ(submitted_.back().tasks(0).workers().multiple_of(), 4);
  EXPECT_EQ(submitted_.back().tasks(0).topology().blocks_size(), 0);
}

TEST_F(RerunTest, RefusesOneOfSeveralIndependentWorkers) {
  jobs_.got.mutable_member()->set_id("7_3");
  jobs_.got.mutable_spec()->mutable_independent_workers()->set_max(4);
  EXPECT_NE(Run({"rerun", "-d", "7_3"}), 0);
  EXPECT_THAT(err_, HasSubstr("muster rerun 7\n"));
  EXPECT_TRUE(submitted_.empty());
}

TEST_F(RerunTest, RefusesAJobThatIsNotThere) {
  jobs_.get_status = grpc::Status(grpc::StatusCode::NOT_FOUND, "there is no job \"9\"");
  EXPECT_NE(Run({"rerun", "-d", "9"}), 0);
  EXPECT_THAT(err_, HasSubstr("there is no job"));
}

class ResumeTest : public RerunTest {
 protected:
  ResumeTest() {
    jobs_.got.set_state(pb::FAILED);
    jobs_.got.clear_tasks();
    jobs_.got.add_tasks();
  }
  void Tell(const std::string& path) {
    jobs_.got.mutable_tasks(0)->add_checkpoints()->set_path(path);
  }
};

TEST_F(ResumeTest, BeginsFromTheNewestCheckpointOfAJobThatEnded) {
  Tell("/shared/jobs/7/attempt-1/step-10");
  Tell("/shared/jobs/7/attempt-2/step-20");
  jobs_.got.mutable_spec()->mutable_tasks(0)->mutable_checkpoint()->add_resume_from("/shared/old");
  ASSERT_EQ(Run({"resume", "-d", "7", "--set", "priority=5"}), 0) << err_;
  ASSERT_EQ(submitted_.size(), 1u);
  EXPECT_EQ(submitted_[0].priority(), 5);
  EXPECT_THAT(submitted_[0].tasks(0).checkpoint().resume_from(),
              ::testing::ElementsAre("/shared/jobs/7/attempt-2/step-20",
                                     "/shared/jobs/7/attempt-1/step-10", "/shared/old"));
  EXPECT_THAT(err_, HasSubstr("It goes on from the checkpoint /shared/jobs/7/attempt-2/step-20; if "
                              "that can't be read, from 2 others."));
}

TEST_F(RerunTest, WhatIsWrongWithItIsNotSaidOfAFile) {
  EXPECT_NE(Run({"rerun", "-d", "7", "--set", "workers=0"}), 0);
  EXPECT_THAT(err_, HasSubstr("job 7: 1 problem, nothing was submitted"));
  EXPECT_THAT(err_, HasSubstr("All fields: muster fields workers     Its file, to change it: "
                              "muster show 7 --spec"));
  EXPECT_THAT(err_, Not(HasSubstr("validate --offline")));
}

TEST_F(ResumeTest, WhatItWouldBeginFromIsListedTheNewestFirst) {
  Tell("/shared/jobs/7/attempt-1/step-10");
  Tell("/shared/jobs/7/attempt-2/step-20");
  ASSERT_EQ(Run({"checkpoints", "list", "7", "-o", "name"}), 0) << err_;
  EXPECT_EQ(out_, "/shared/jobs/7/attempt-2/step-20\n/shared/jobs/7/attempt-1/step-10\n");
  jobs_.got.mutable_tasks(0)->mutable_checkpoints(0)->set_path("/shared/jobs/5/step-00000008");
  jobs_.got.mutable_tasks(0)->mutable_checkpoints(1)->set_attempt(2);
  jobs_.got.mutable_tasks(0)->mutable_checkpoints(1)->set_step(20);
  ASSERT_EQ(Run({"checkpoints", "list", "7", "--columns", "step,size"}), 0) << err_;
  EXPECT_THAT(out_, ::testing::MatchesRegex("STEP +SIZE\n +20 +-\n +8 +-\n"));
  EXPECT_THAT(err_, HasSubstr("SIZE is what a program tells of its checkpoints"));
  jobs_.got.mutable_tasks(0)->mutable_checkpoints(1)->set_size_bytes(int64_t{3} << 30);
  ASSERT_EQ(Run({"checkpoints", "list", "7", "--columns", "step,size"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("3GiB"));
  EXPECT_EQ(err_, "");
  jobs_.got.mutable_tasks(0)->clear_checkpoints();
  ASSERT_EQ(Run({"checkpoints", "list", "7"}), 0) << err_;
}

class ResumeFromTest : public ResumeTest {
 protected:
  // The ended job 7 has the tasks prepare and train, of which train began from another job's, and
  // told steps 10 and 20.
  ResumeFromTest() {
    pb::JobSpec* spec = jobs_.got.mutable_spec();
    spec->mutable_tasks(0)->set_name("prepare");
    spec->add_tasks()->set_name("train");
    pb::Task* train = jobs_.got.add_tasks();
    train->add_checkpoints()->set_path("/shared/5/step-90");
    for (const int step : {10, 20}) {
      pb::Checkpoint* checkpoint = train->add_checkpoints();
      checkpoint->set_step(step);
      checkpoint->set_attempt(1);
      checkpoint->set_path(absl::StrCat("s3://acme/7/train/step-", step));
    }
  }
  // What the only task of a new job, called main, begins from; nothing: it was refused.
  std::vector<std::string> From(const std::string& from, const std::string& file = kOne) {
    submitted_.clear();
    if (Run({"submit", "-d", "--resume-from", from, Write("job.yaml", file)}) != 0) return {};
    const auto& paths = submitted_.at(0).tasks(submitted_[0].tasks_size() - 1).checkpoint();
    return {paths.resume_from().begin(), paths.resume_from().end()};
  }
  static constexpr char kOne[] =
      "queue: research\nrun: a\ncheckpoint: {resume_from: [/shared/old]}\n";
  static constexpr char kTwo[] =
      "queue: research\ntasks:\n- {name: check, run: a}\n- {name: train, run: a, after: [check]}\n";
};

TEST_F(ResumeFromTest, ANewJobBeginsFromThoseOfAnEndedOne) {
  const std::vector<std::string> all = {"s3://acme/7/train/step-20", "s3://acme/7/train/step-10",
                                        "/shared/5/step-90"};
  const std::vector<std::string> older = {"s3://acme/7/train/step-10"};
  EXPECT_EQ(From("7/train"), all) << err_;
  EXPECT_EQ(From("7/train/10"), older) << err_;
  EXPECT_EQ(From("7/train/90"), std::vector<std::string>{"/shared/5/step-90"}) << err_;
  EXPECT_EQ(From("7", kTwo), all) << err_;
  EXPECT_EQ(submitted_.at(0).tasks(0).checkpoint().resume_from_size(), 0);
  EXPECT_EQ(From("7/train/10", kTwo), older) << err_;
  // Of two jobs with one task each the names don't matter.
  jobs_.got.mutable_spec()->mutable_tasks()->DeleteSubrange(0, 1);
  jobs_.got.mutable_tasks()->DeleteSubrange(0, 1);
  EXPECT_EQ(From("7"), all) << err_;
}

TEST_F(ResumeFromTest, WhatCantBeIsRefusedWithWhatThereIs) {
  const struct {
    const char *from, *file, *said;
  } kCases[] = {
      {"7/", kOne, "write JOB, JOB/TASK or JOB/TASK/STEP"},
      {"7/train/ten", kOne, "write JOB, JOB/TASK or JOB/TASK/STEP"},
      {"7/train/-1", kOne, "write JOB, JOB/TASK or JOB/TASK/STEP"},
      {"7/train/10/1", kOne, "write JOB, JOB/TASK or JOB/TASK/STEP"},
      {"/shared/7/step-10", kOne, "Paths and URLs stand in the file's checkpoint.resume_from"},
      {"7/trian", kOne, "job 7 has no task trian; it has prepare, train"},
      {"7/prepare", kTwo, "this job has no task prepare; it has check"},
      {"7/train/15", kOne, "has no checkpoint of step 15; what it has: muster checkpoints"},
      {"7/train/0", kOne, "has no checkpoint of step 0; what it has: muster checkpoints"},
      {"7/prepare", kOne, "job 7 told no checkpoint for the tasks of this one"},
      {"7", kOne, "job 7 told no checkpoint for the tasks of this one"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.from);
    EXPECT_TRUE(From(c.from, c.file).empty());
    EXPECT_THAT(err_, HasSubstr(c.said));
    EXPECT_TRUE(submitted_.empty());
  }
  jobs_.got.set_state(pb::RUNNING);
  EXPECT_TRUE(From("7/train").empty());
  EXPECT_THAT(err_, HasSubstr("job 7 has not ended, and removes old checkpoints as new ones come. "
                              "End it first: muster cancel 7"));
  jobs_.get_status = grpc::Status(grpc::StatusCode::NOT_FOUND, "there is no job \"9\"");
  EXPECT_TRUE(From("9").empty());
  EXPECT_THAT(err_, HasSubstr("there is no job"));
}

TEST_F(ResumeTest, RefusesAJobWithoutCheckpoints) {
  EXPECT_NE(Run({"resume", "-d", "7"}), 0);
  EXPECT_THAT(err_, HasSubstr("job 7 told no checkpoint to go on from"));
  EXPECT_THAT(err_, HasSubstr("muster rerun 7"));
  EXPECT_TRUE(submitted_.empty());
}

TEST_F(ResumeTest, RefusesAJobThatRuns) {
  Tell("/shared/jobs/7/attempt-1/step-10");
  jobs_.got.set_state(pb::RUNNING);
  EXPECT_NE(Run({"resume", "-d", "7"}), 0);
  EXPECT_THAT(err_, HasSubstr("muster cancel 7"));
  EXPECT_TRUE(submitted_.empty());
}

TEST_F(ResumeTest, RefusesAWholeArray) {
  Tell("/shared/jobs/7/attempt-1/step-10");
  jobs_.got.mutable_array()->set_members(3);
  EXPECT_NE(Run({"resume", "-d", "7"}), 0);
  EXPECT_THAT(err_, HasSubstr("resume its members one by one"));
}

}  // namespace
}  // namespace muster
