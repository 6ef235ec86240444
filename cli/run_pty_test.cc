// `muster run --pty` against a scripted server.
#include "cli/testing/fixture.h"

namespace muster {
namespace {

using Tunnel = grpc::ServerReaderWriter<pb::TunnelOutput, pb::TunnelInput>;

const std::vector<std::string> kLine = {"run", "--pty", "--", "true"};

class RunPtyTest : public CliTest {
 protected:
  RunPtyTest() {
    char name[64];
    EXPECT_EQ(openpty(&terminal_[0], &terminal_[1], name, nullptr, nullptr), 0);
    for (const int fd : terminal_) fcntl(fd, F_SETFD, FD_CLOEXEC);
    input_ = name;
    jobs_.watch = Watching({JobIn(pb::WAITING, pb::TASK_WAITING)});
    jobs_.exec = [this](Tunnel* tunnel) {
      pb::TunnelInput start;
      tunnel->Read(&start);
      const auto& command = start.exec().command();
      if (command.size() > 2 && absl::StrContains(command[2], "terminal.taken")) {
        ++taken_;
        return End(tunnel, 0);
      }
      ++commands_;
      if (const int left = fails_; left > 0) {
        fails_ = left - 1;
        return grpc::Status(grpc::UNAVAILABLE, "gone");
      }
      return End(tunnel, 5);
    };
  }
  ~RunPtyTest() override {
    StopServing();
    HangUp();
    close(terminal_[1]);
  }

  void HangUp() {
    if (terminal_[0] >= 0) close(terminal_[0]);
    terminal_[0] = -1;
  }

  static grpc::Status End(Tunnel* tunnel, int code) {
    pb::TunnelOutput output;
    output.set_begun(true);
    tunnel->Write(output);
    output.mutable_end()->set_exit_code(code);
    tunnel->Write(output);
    return grpc::Status::OK;
  }

  void JobRuns() {
    jobs_.watch =
        Watching({JobIn(pb::RUNNING, pb::TASK_RUNNING), JobIn(pb::FAILED, pb::TASK_FAILED)});
  }

  std::atomic<int> commands_{0}, taken_{0}, fails_{0};
  std::atomic<bool> input_ended_{false};
  int terminal_[2] = {-1, -1};  // of its standard input: the other end, and itself
};

TEST_F(RunPtyTest, WaitsWhileTheServerIsAway) {
  Process process(kLine, home_, server_name_, {}, input_);
  ASSERT_TRUE(process.ReadUntil("submitted."));
  StopServing();
  ASSERT_TRUE(process.ReadUntil("no contact with the server; the job waits")) << process.err;
  JobRuns();
  Serve();
  EXPECT_EQ(process.Wait(), 5) << process.err;
  EXPECT_THAT(process.err, HasSubstr("the server is back"));
  EXPECT_EQ(commands_, 1);
  EXPECT_EQ(taken_, 1) << "its job waits until its output has arrived";
  EXPECT_EQ(jobs_.cancels, 0);
}

TEST_F(RunPtyTest, BeginsAgainWhatHasNotBegun) {
  JobRuns();
  fails_ = 2;
  EXPECT_EQ(Run(kLine), 5) << err_;
  EXPECT_EQ(commands_, 3);
  EXPECT_THAT(err_, HasSubstr("the terminal isn't there yet: the connection to musterd was lost"));
  EXPECT_EQ(jobs_.cancels, 0);
}

TEST_F(RunPtyTest, IsCutOffOnceItHasBegunAndSaysThatTheJobEnds) {
  JobRuns();
  jobs_.exec = [this](Tunnel* tunnel) {
    ++commands_;
    pb::TunnelInput start;
    tunnel->Read(&start);
    pb::TunnelOutput output;
    output.set_begun(true);
    tunnel->Write(output);
    return grpc::Status(grpc::UNAVAILABLE, "gone");
  };
  EXPECT_EQ(Run(kLine), 125);
  EXPECT_THAT(err_, HasSubstr("The job ends with its terminal."));
  EXPECT_THAT(err_, Not(HasSubstr("The job goes on")));
  EXPECT_EQ(commands_, 1);
  EXPECT_EQ(jobs_.cancels, 1);
}

TEST_F(RunPtyTest, CancelsTheJobWhenItsTerminalGoesAway) {
  for (const int number : {SIGHUP, SIGTERM, SIGINT}) {
    jobs_.cancels = 0;
    Process process(kLine, home_, server_name_, {}, input_);
    ASSERT_TRUE(process.ReadUntil("submitted."));
    process.Signal(number);
    if (number == SIGHUP) process.Signal(number);  // the shell's, and the kernel's
    EXPECT_EQ(process.Wait(), 130) << process.err;
    EXPECT_EQ(jobs_.cancels, 1) << number;
  }
}

TEST_F(RunPtyTest, IsRefusedWithoutATerminalBeforeAnythingIsSubmitted) {
  bool submitted = false;
  jobs_.submit = [&](const pb::SubmitRequest&, pb::SubmitResponse*) {
    submitted = true;
    return grpc::Status::OK;
  };
  input_ = "/dev/null";
  EXPECT_EQ(Run(kLine), 2);
  EXPECT_THAT(err_, HasSubstr("--pty wants a terminal, and standard input is none"));
  EXPECT_THAT(err_, HasSubstr("leave --pty out"));
  EXPECT_FALSE(submitted);
}

// Where no signal says so: the window was closed, and its shell has left.
TEST_F(RunPtyTest, ATerminalThatEndsIsNoEndOfInput) {
  JobRuns();
  jobs_.exec = [this](Tunnel* tunnel) {
    pb::TunnelInput input;
    tunnel->Read(&input);
    pb::TunnelOutput output;
    output.set_begun(true);
    tunnel->Write(output);
    output.set_out("<the terminal>");
    tunnel->Write(output);
    while (tunnel->Read(&input)) {
      if (input.end()) input_ended_ = true;
    }
    return grpc::Status(grpc::CANCELLED, "cancelled");
  };
  Process process(kLine, home_, server_name_, {}, input_);
  ASSERT_TRUE(process.ReadUntil("<the terminal>")) << process.err;
  HangUp();
  EXPECT_EQ(process.Wait(), 125) << process.err;
  EXPECT_FALSE(input_ended_);
  EXPECT_EQ(jobs_.cancels, 1);
}

TEST_F(RunPtyTest, CancelsTheJobOnceTheServerIsBack) {
  Process process(kLine, home_, server_name_, {}, input_);
  ASSERT_TRUE(process.ReadUntil("submitted."));
  StopServing();
  ASSERT_TRUE(process.ReadUntil("no contact with the server; the job waits")) << process.err;
  process.Interrupt();
  ASSERT_TRUE(process.ReadUntil("tried again to cancel job 7")) << process.err;
  Serve();
  EXPECT_EQ(process.Wait(), 130) << process.err;
  EXPECT_EQ(jobs_.cancels, 1);
}

TEST_F(RunPtyTest, IsNoJobToSubmitAgain) {
  pb::JobSpec submitted;
  jobs_.submit = [&](const pb::SubmitRequest& request, pb::SubmitResponse*) {
    submitted = request.spec();
    return grpc::Status::OK;
  };
  JobRuns();
  ASSERT_EQ(Run(kLine), 5) << err_;
  *jobs_.got.mutable_spec() = submitted;
  submitted.Clear();
  EXPECT_EQ(Run({"rerun", "-d", "7"}), 2);
  EXPECT_THAT(absl::StrReplaceAll(err_, {{"\n", " "}}), HasSubstr("muster run --pty -- CMD ARGS"));
  EXPECT_EQ(submitted.tasks_size(), 0);
}

}  // namespace
}  // namespace muster
