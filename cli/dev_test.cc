// `muster dev`: the job that it makes, and which one it means.
#include "cli/testing/fixture.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class DevTest : public CliTest {
 protected:
  DevTest() {
    jobs_.listing.emplace();
    jobs_.submit = [this](const pb::SubmitRequest& request, pb::SubmitResponse*) {
      submitted_.push_back(request.spec());
      return grpc::Status::OK;
    };
  }

  static pb::Job Environment(const std::string& name, pb::JobState state) {
    pb::Job job = JobIn(state, HasEnded(state) ? pb::TASK_CANCELLED : pb::TASK_RUNNING);
    job.mutable_spec()->set_name(name);
    (*job.mutable_spec()->mutable_labels())["muster-dev"] = "environment";
    pb::Run* run = job.mutable_spec()->mutable_tasks(0)->mutable_run();
    for (const char* word : {"python3", "-m", "muster_dev", "--idle=2h"}) run->add_exec(word);
    job.set_directory("/storage/jobs/7");
    job.set_cluster("lab");
    return job;
  }

  std::vector<pb::JobSpec> submitted_;
};

TEST_F(DevTest, UpMakesAJobOfOneProcessThatEndsWhenItIsIdle) {
  environment_.emplace_back("VIRTUAL_ENV=/home/ann/env");
  ASSERT_EQ(Run({"dev", "up", "--gpus", "2", "--gpu-type", "h100", "--idle", "90m"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("muster dev open 7"));
  ASSERT_EQ(submitted_.size(), 1u);
  const pb::JobSpec& spec = submitted_[0];
  EXPECT_EQ(spec.name(), "dev");
  EXPECT_EQ(spec.queue(), "research");
  EXPECT_EQ(spec.labels().at("muster-dev"), "environment");
  EXPECT_THAT(spec.tasks(0).run().exec(),
              ElementsAre("/home/ann/env/bin/python", "-m", "muster_dev", "--idle=5400s"));
  EXPECT_EQ(spec.tasks(0).processes_per_worker(), 1) << "not one for each GPU";
  EXPECT_EQ(spec.tasks(0).resources().gpus_milli(), 2000);
}

TEST_F(DevTest, OfOneNameThereIsOneThatGoesOn) {
  jobs_.listing = {Environment("dev", pb::RUNNING)};
  EXPECT_EQ(Run({"dev", "up"}), 2);
  EXPECT_THAT(err_, HasSubstr("there is environment dev (job 7) already"));
  EXPECT_TRUE(submitted_.empty());
  EXPECT_EQ(Run({"dev", "up", "--name", "other"}), 0) << err_;
}

TEST_F(DevTest, ResumeGoesOnInTheDirectoryOfTheOneBefore) {
  jobs_.got = Environment("dev", pb::CANCELLED);
  ASSERT_EQ(Run({"dev", "resume", "7"}), 0) << err_;
  ASSERT_EQ(submitted_.size(), 1u);
  EXPECT_EQ(submitted_[0].tasks(0).workdir(), "/storage/jobs/7/work");
  EXPECT_THAT(submitted_[0].clusters(), ElementsAre("lab")) << "where that directory is";

  jobs_.got.mutable_spec()->mutable_tasks(0)->set_workdir("/home/ann/project");
  ASSERT_EQ(Run({"dev", "resume", "7"}), 0) << err_;
  EXPECT_EQ(submitted_[1].tasks(0).workdir(), "/home/ann/project");
  EXPECT_EQ(submitted_[1].clusters_size(), 0);
}

TEST_F(DevTest, SaysWhichOneItDoesNotTake) {
  jobs_.got = Environment("dev", pb::RUNNING);
  EXPECT_EQ(Run({"dev", "resume", "7"}), 2);
  EXPECT_THAT(err_, HasSubstr("has not ended: muster dev open 7"));
  jobs_.got = JobIn(pb::RUNNING, pb::TASK_RUNNING);
  EXPECT_EQ(Run({"dev", "stop", "7"}), 2);
  EXPECT_THAT(err_, HasSubstr("job 7 is no environment"));
  EXPECT_EQ(Run({"dev", "stop", "dev"}), 3);
  EXPECT_THAT(err_, HasSubstr("you have no environment dev"));
  jobs_.listing = {Environment("a", pb::RUNNING), Environment("b", pb::RUNNING)};
  EXPECT_EQ(Run({"dev", "stop"}), 2);
  EXPECT_THAT(err_, HasSubstr("which one? There are a (7), b (7); write its number"));
  EXPECT_EQ(jobs_.cancels, 0);
}

TEST_F(DevTest, OpenByNameOfOneThatHasEndedSaysHowItEnded) {
  jobs_.listing = {Environment("dev", pb::FAILED)};
  jobs_.got = Environment("dev", pb::FAILED);
  EXPECT_EQ(Run({"dev", "open"}), 3);
  EXPECT_THAT(err_, HasSubstr("environment dev (job 7) goes on no more: "));
  EXPECT_THAT(err_, HasSubstr("muster logs 7. A new one: muster dev up"));
}

TEST_F(DevTest, AnIdleThatIsNoDurationIsRefusedAtOnce) {
  EXPECT_EQ(Run({"dev", "up", "--idle", "soon"}), 2);
  EXPECT_THAT(err_, HasSubstr("--idle soon: "));
  EXPECT_EQ(Run({"dev", "up", "--idle", "500ms"}), 2);
  EXPECT_THAT(err_, HasSubstr("--idle 500ms: wants whole seconds"));
  EXPECT_THAT(submitted_, IsEmpty());
}

TEST_F(DevTest, StopCancelsTheOneOfThatName) {
  jobs_.listing = {Environment("a", pb::RUNNING), Environment("b", pb::RUNNING)};
  jobs_.got = Environment("b", pb::RUNNING);
  ASSERT_EQ(Run({"dev", "stop", "b"}), 0) << err_;
  EXPECT_EQ(jobs_.cancels, 1);
  EXPECT_THAT(out_, HasSubstr("muster dev resume 7"));
}

TEST_F(DevTest, OpenWaitsOnWhileTheServerIsAway) {
  jobs_.got = Environment("dev", pb::WAITING);
  jobs_.got.mutable_tasks(0)->set_state(pb::TASK_WAITING);
  std::atomic<int> calls{0};
  jobs_.watch = [&, ends = Watching({Environment("dev", pb::FAILED)})](
                    grpc::ServerContext* context,
                    grpc::ServerWriter<pb::WatchJobResponse>* writer) {
    if (++calls > 2) return ends(context, writer);
    pb::WatchJobResponse response;
    *response.mutable_job() = jobs_.got;
    writer->Write(response);
    return calls == 1 ? grpc::Status(grpc::UNAVAILABLE, "Socket closed") : grpc::Status::OK;
  };
  EXPECT_EQ(Run({"dev", "open", "7", "--no-browser"}), 2);
  EXPECT_EQ(calls, 3);
  EXPECT_THAT(err_, HasSubstr("no contact with the server; the environment goes on without it"));
  EXPECT_THAT(err_, HasSubstr("the server is back"));
  EXPECT_THAT(err_, HasSubstr("Again, once that is mended: muster dev resume 7"));
}

TEST_F(DevTest, AnAnswerThatCannotBeReadSaysWhatToInstallAnew) {
  jobs_.got = Environment("dev", pb::RUNNING);
  jobs_.watch = Watching({jobs_.got});
  for (const char* answer :
       {"", "{}", R"({"port": 0, "token": "a"})", R"({"port": 8888, "token": "a b"})"}) {
    jobs_.exec = [&](grpc::ServerReaderWriter<pb::TunnelOutput, pb::TunnelInput>* tunnel) {
      pb::TunnelInput start;
      tunnel->Read(&start);
      pb::TunnelOutput output;
      output.set_begun(true);
      tunnel->Write(output);
      output.set_out(answer);
      tunnel->Write(output);
      output.mutable_end()->set_exit_code(0);
      tunnel->Write(output);
      return grpc::Status::OK;
    };
    EXPECT_EQ(Run({"dev", "open", "7", "--no-browser"}), 2) << answer;
    EXPECT_THAT(err_, HasSubstr("muster_dev of job 7 didn't tell its port and token"));
    EXPECT_THAT(err_, HasSubstr("muster dev stop 7; muster dev resume 7"));
  }
}

TEST_F(DevTest, OpenOfOneThatHasEndedSaysWhyAndHowToGoOn) {
  jobs_.got = Environment("dev", pb::FAILED);
  jobs_.watch = Watching({jobs_.got});
  EXPECT_EQ(Run({"dev", "open", "7", "--no-browser"}), 2);
  EXPECT_THAT(err_, HasSubstr("muster logs 7"));
  EXPECT_THAT(err_, HasSubstr("Again, once that is mended: muster dev resume 7"));
  EXPECT_EQ(out_, "");
}

}  // namespace
}  // namespace muster
