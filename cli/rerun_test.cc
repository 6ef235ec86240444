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

TEST_F(RerunTest, RefusesAJobThatIsNotThere) {
  jobs_.get_status = grpc::Status(grpc::StatusCode::NOT_FOUND, "there is no job \"9\"");
  EXPECT_NE(Run({"rerun", "-d", "9"}), 0);
  EXPECT_THAT(err_, HasSubstr("there is no job"));
}

}  // namespace
}  // namespace muster
