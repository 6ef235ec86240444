// When a quarantine ends: by time alone, or with a check of its host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/units.h"
#include "scheduler/agents/testing/sessions_fixture.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class QuarantineEnds : public SessionsTest {
 protected:
  // h1 is in quarantine for an hour from now on.
  void TakeOut(const std::vector<std::string>& command = {}) {
    pb::Event clusters = LabConfigured();
    pb::ClusterSpec* lab =
        clusters.mutable_clusters_configured()->mutable_file()->mutable_clusters(0);
    lab->mutable_quarantine()->set_host_blames(1);
    lab->mutable_quarantine()->set_max_percent(100);
    lab->mutable_quarantine()->set_release_after_ns(kHour);
    for (const std::string& word : command) lab->add_host_check(word);
    lab->set_host_check_timeout_ns(20 * kSecond);
    engine_->Post(clusters);
    pb::Event fault;
    fault.mutable_host_fault()->set_cluster("lab");
    fault.mutable_host_fault()->set_host("h1");
    fault.mutable_host_fault()->mutable_fault()->set_device(-1);
    fault.mutable_host_fault()->mutable_fault()->set_at_ns(1);
    fault.mutable_host_fault()->mutable_fault()->set_detail("it smells of smoke");
    engine_->Post(fault);
    Settle();
    ASSERT_TRUE(Out());
  }
  const HostRow& Host() { return state().host(state().FindHost("lab", "h1")); }
  bool Out() { return Host().quarantined(); }
  StreamPtr ConnectThatChecks() {
    pb::Hello hello = HelloOf("h1", kStateA);
    hello.set_checks_host(true);
    const StreamPtr stream = Open(hello);
    Settle();
    return stream;
  }
  void After(int64_t span_ns) {
    clock_.now_ns += span_ns;
    sessions_->Tick();
    Settle();
  }
  // What the stream was asked to check, oldest first.
  static std::vector<pb::CheckHost> Asked(const StreamPtr& stream) {
    std::vector<pb::CheckHost> asked;
    for (const pb::SchedulerMessage& message : stream->sent) {
      if (message.has_check_host()) asked.push_back(message.check_host());
    }
    return asked;
  }
  void Answer(const StreamPtr& stream, uint64_t request, const std::string& why = "") {
    pb::AgentMessage message;
    message.mutable_checked()->set_request(request);
    message.mutable_checked()->set_passed(why.empty());
    message.mutable_checked()->set_detail(why);
    Say(stream, message);
    Settle();
  }
};

TEST_F(QuarantineEnds, ByTimeAloneWhereTheAgentCannotCheck) {
  const StreamPtr stream = Connect();
  TakeOut();
  After(kHour - kSecond);
  EXPECT_TRUE(Out());
  After(kSecond);
  EXPECT_FALSE(Out());
  EXPECT_THAT(Asked(stream), IsEmpty()) << "an agent one release older ends a stream for it";
}

TEST_F(QuarantineEnds, OnlyOnceTheHostHasPassedItsCheck) {
  const StreamPtr stream = ConnectThatChecks();
  TakeOut({"/usr/bin/check", "--gpu={device}"});
  After(kHour - kSecond);
  EXPECT_THAT(Asked(stream), IsEmpty());
  After(kSecond);
  EXPECT_TRUE(Out());
  ASSERT_THAT(Asked(stream), SizeIs(1));
  EXPECT_EQ(Asked(stream)[0].device(), -1);
  EXPECT_THAT(Asked(stream)[0].command(), ElementsAre("/usr/bin/check", "--gpu=all"));
  EXPECT_EQ(Asked(stream)[0].timeout_ns(), 20 * kSecond);
  After(kSecond);
  EXPECT_THAT(Asked(stream), SizeIs(1)) << "it is under way";
  Answer(stream, Asked(stream)[0].request() + 1);
  EXPECT_TRUE(Out()) << "the answer to another question";
  Answer(stream, Asked(stream)[0].request());
  EXPECT_FALSE(Out());
}

TEST_F(QuarantineEnds, NotWhereTheCheckFailsAndItIsCheckedAgainLater) {
  const StreamPtr stream = ConnectThatChecks();
  TakeOut();
  After(kHour);
  ASSERT_THAT(Asked(stream), SizeIs(1));
  EXPECT_THAT(Asked(stream)[0].command(), IsEmpty()) << "the device query";
  Answer(stream, Asked(stream)[0].request(), "device 1 doesn't answer its driver");
  EXPECT_TRUE(Out());
  EXPECT_EQ(Host().quarantines[0].check_detail(), "device 1 doesn't answer its driver");
  After(9 * kMinute);
  EXPECT_THAT(Asked(stream), SizeIs(1));
  After(kMinute);
  ASSERT_THAT(Asked(stream), SizeIs(2));
  Answer(stream, Asked(stream)[1].request());
  EXPECT_FALSE(Out());
}

TEST_F(QuarantineEnds, NotBeforeItsHostSpeaksAndWhatWasNotAnsweredIsAskedAgain) {
  StreamPtr stream = ConnectThatChecks();
  TakeOut();
  sessions_->Closed(stream.get());
  After(kHour);
  EXPECT_TRUE(Out()) << "nobody can say whether it is fit";
  stream = ConnectThatChecks();
  After(kSecond);
  ASSERT_THAT(Asked(stream), SizeIs(1));
  sessions_->Closed(stream.get());
  stream = ConnectThatChecks();
  After(kSecond);
  ASSERT_THAT(Asked(stream), SizeIs(1)) << "its agent came back, and knows nothing of it";
  for (int i = 0; i < 7; ++i) {
    Say(stream, Beat());
    After(10 * kSecond);
  }
  ASSERT_THAT(Asked(stream), SizeIs(2)) << "no answer within its time and a lease";
  Answer(stream, Asked(stream)[1].request());
  EXPECT_FALSE(Out());
}

}  // namespace
}  // namespace muster
