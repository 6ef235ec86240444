// `muster rerun`.
#include "cli/testing/fixture.h"

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

}  // namespace
}  // namespace muster
