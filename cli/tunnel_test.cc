#include "cli/tunnel.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <deque>
#include <thread>

#include "absl/strings/cord.h"
#include "cli/client.h"

namespace muster {
namespace {

// A call whose other end is played by the test: what it says, and what it was told.
class FakeCall : public TunnelCall {
 public:
  bool Write(const pb::TunnelInput& input) override {
    std::lock_guard lock(mutex_);
    written_.push_back(input);
    changed_.notify_all();
    return !over_;
  }
  bool Read(pb::TunnelOutput* output) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return over_ || !says_.empty(); });
    if (says_.empty()) return false;
    *output = says_.front();
    says_.pop_front();
    return true;
  }
  void Cancel() override { Over(); }
  absl::Status Finish() override { return absl::OkStatus(); }

  void Say(const pb::TunnelOutput& output) {
    std::lock_guard lock(mutex_);
    says_.push_back(output);
    changed_.notify_all();
  }
  void Over() {
    std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  // Once so much input, or its end, has come.
  int64_t AwaitInput(int64_t bytes, bool end = false) {
    std::unique_lock lock(mutex_);
    int64_t got = 0;
    const auto enough = [&] {
      got = 0;
      bool ended = false;
      for (const pb::TunnelInput& input : written_) {
        got += static_cast<int64_t>(input.data().size());
        ended = ended || input.end();
      }
      return end ? ended : got >= bytes;
    };
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20), enough));
    return got;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<pb::TunnelOutput> says_;
  std::vector<pb::TunnelInput> written_;
  bool over_ = false;
};

pb::TunnelOutput Begun() {
  pb::TunnelOutput output;
  output.set_begun(true);
  return output;
}

TEST(CarryTunnel, ASenderIsNoMoreThanAWindowAheadAndSaysItsEnd) {
  int in[2], out[2];
  ASSERT_EQ(pipe(in), 0);
  ASSERT_EQ(pipe(out), 0);
  FakeCall call;
  call.Say(Begun());
  TunnelOutcome outcome;
  std::thread carrying(
      [&] { outcome = CarryTunnel(&call, pb::TunnelInput(), {in[0], out[1], out[1]}, nullptr); });
  constexpr int64_t kAll = 3 * TunnelWindow::kBytes;
  std::thread writing([&] {
    const std::string piece(64 << 10, 'x');
    for (int64_t sent = 0; sent < kAll; sent += static_cast<int64_t>(piece.size()))
      ASSERT_EQ(write(in[1], piece.data(), piece.size()), static_cast<ssize_t>(piece.size()));
    close(in[1]);
  });
  // All but a piece of the window comes at once; with nothing taken, never more than the window.
  int64_t got = call.AwaitInput(TunnelWindow::kBytes - (64 << 10) + 1);
  EXPECT_LE(got, TunnelWindow::kBytes);
  for (int64_t taken = TunnelWindow::kBytes; taken <= kAll; taken += TunnelWindow::kBytes) {
    pb::TunnelOutput output;
    output.set_taken_bytes(got);
    call.Say(output);
    got = call.AwaitInput(std::min(kAll, got + TunnelWindow::kBytes / 2));
    EXPECT_LE(got, taken + TunnelWindow::kBytes);
  }
  pb::TunnelOutput output;
  output.set_taken_bytes(got);
  call.Say(output);
  EXPECT_EQ(call.AwaitInput(kAll, /*end=*/true), kAll);
  output.set_out("said");
  call.Say(output);
  output.mutable_end()->set_exit_code(7);
  call.Say(output);
  call.Over();
  carrying.join();
  writing.join();
  EXPECT_TRUE(outcome.begun && outcome.ended);
  EXPECT_EQ(outcome.end.exit_code(), 7);
  char said[4];
  ASSERT_EQ(read(out[0], said, 4), 4);
  EXPECT_EQ(std::string(said, 4), "said");
  for (const int fd : {in[0], out[0], out[1]}) close(fd);
}

TEST(CarryTunnel, ACallThatBreaksOffEndsAtOnceThoughNothingIsTyped) {
  int in[2];
  ASSERT_EQ(pipe(in), 0);
  FakeCall call;
  call.Say(Begun());
  TunnelOutcome outcome;
  std::thread carrying(
      [&] { outcome = CarryTunnel(&call, pb::TunnelInput(), {in[0], 1, 2}, nullptr); });
  call.Over();
  carrying.join();
  EXPECT_FALSE(outcome.ended);
  close(in[0]);
  close(in[1]);
}

TEST(WhyCutOff, SaysWhoFailedAndWhetherTheSameMayBeginAgain) {
  absl::Status word = absl::UnavailableError("host lab/h1: its agent is away");
  word.SetPayload(kDetailsUrl, absl::Cord("by musterd itself"));
  const struct {
    absl::Status status;
    const char* why;
    bool again;
  } kCases[] = {
      {absl::OkStatus(), "musterd ended the call", true},
      {absl::UnavailableError("Socket closed"),
       "the connection to musterd was lost (Socket closed): it was started anew, or the network "
       "failed",
       true},
      {absl::UnavailableError(""),
       "the connection to musterd was lost: it was started anew, or the network failed", true},
      {word, "host lab/h1: its agent is away", true},
      // Musterd of the version before.
      {absl::UnavailableError("the attempt has ended"), "the attempt has ended", false},
      {absl::UnavailableError("the job has ended"), "the job has ended", false},
      {absl::UnavailableError("host lab/h1 is not connected now; try again once it is"),
       "host lab/h1 is not connected now; try again once it is", true},
      {absl::UnavailableError("host lab/h1 doesn't answer; try again in a moment"),
       "host lab/h1 doesn't answer; try again in a moment", true},
      {absl::UnavailableError("the host's muster-agent is gone, and with it what it held open"),
       "the host's muster-agent is gone, and with it what it held open", true},
      {absl::FailedPreconditionError("the attempt has ended"), "the attempt has ended", false},
      {absl::PermissionDeniedError("you may not"), "you may not", false},
      {absl::CancelledError("here"), "here", false}};
  for (const auto& [status, why, again] : kCases) {
    const CutOff cut = WhyCutOff(status);
    EXPECT_EQ(cut.why, why) << status;
    EXPECT_EQ(cut.may_begin_again, again) << status;
  }
}

}  // namespace
}  // namespace muster
