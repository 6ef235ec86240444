#include "scheduler/api/submit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "common/pki/sha256.h"
#include "scheduler/engine/testing/fixture.h"

namespace muster {
namespace {

TEST(Sha256Test, KnownValue) {
  std::string hex;
  for (const char c : Sha256("abc"))
    absl::StrAppend(&hex, absl::Hex(static_cast<uint8_t>(c), absl::kZeroPad2));
  EXPECT_EQ(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

struct SubmitCase {
  const char* name;
  const char* owner;
  const char* key;
  const char* shell;
  absl::StatusCode code;
  uint64_t number;
  bool existed;
};

// After ada submitted `true` with key k: job 1.
class SubmitKeyTest : public ::testing::TestWithParam<SubmitCase> {};

TEST_P(SubmitKeyTest, AgainstAKnownKey) {
  LabWithOneHost lab;
  Engine& engine = lab.engine;
  SubmitOutcome outcome;
  const auto submit = [&](const std::string& owner, const std::string& key,
                          const std::string& shell) {
    pb::SubmitRequest request;
    *request.mutable_spec() = OneSlotSpec();
    request.mutable_spec()->mutable_tasks(0)->mutable_run()->set_shell(shell);
    request.set_idempotency_key(key);
    Submit(&engine, SpecDefaults(), owner, std::make_shared<pb::SubmitRequest>(request),
           [&](const SubmitOutcome& result) { outcome = result; });
    engine.Step();
  };
  submit("ada", "k", "true");
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  submit(GetParam().owner, GetParam().key, GetParam().shell);
  EXPECT_EQ(outcome.status.code(), GetParam().code) << outcome.status;
  EXPECT_EQ(outcome.number, GetParam().number);
  EXPECT_EQ(outcome.existed, GetParam().existed);
}

TEST(SubmitTest, IsCheckedAgainstWhatWasQueuedBeforeIt) {
  LabWithOneHost lab;
  Engine& engine = lab.engine;
  std::vector<absl::StatusCode> answers;
  const auto submit = [&](const std::string& queue) {
    pb::SubmitRequest request;
    *request.mutable_spec() = OneSlotSpec();
    request.mutable_spec()->set_queue(queue);
    request.set_idempotency_key(queue);
    Submit(&engine, SpecDefaults(), "ada", std::make_shared<pb::SubmitRequest>(request),
           [&](const SubmitOutcome& result) { answers.push_back(result.status.code()); });
  };
  pb::Event event;
  event.mutable_queues_applied()->mutable_tree()->add_queues()->set_name("research");
  engine.Post(event);
  submit("research");  // not durable yet when it is asked for
  submit("default");   // still there when it is asked for
  engine.Step();
  EXPECT_THAT(answers,
              ::testing::ElementsAre(absl::StatusCode::kOk, absl::StatusCode::kInvalidArgument));
}

TEST(SubmitTest, IsCheckedAgainstTheClustersThatWereConfiguredMeanwhile) {
  LabWithOneHost lab;
  pb::Event with_annex = LabConfigured();
  pb::ClusterSpec* annex = with_annex.mutable_clusters_configured()->mutable_file()->add_clusters();
  annex->set_name("annex");
  annex->set_open(true);
  lab.engine.Post(with_annex);
  lab.engine.Step();
  lab.engine.Post(LabConfigured());
  pb::SubmitRequest request;
  *request.mutable_spec() = OneSlotSpec();
  request.mutable_spec()->add_clusters("annex");
  request.set_wait_for_capacity(true);
  request.set_idempotency_key("k");
  absl::StatusCode answer = absl::StatusCode::kUnknown;
  Submit(&lab.engine, SpecDefaults(), "ada", std::make_shared<pb::SubmitRequest>(request),
         [&](const SubmitOutcome& result) { answer = result.status.code(); });
  lab.engine.Step();
  EXPECT_EQ(answer, absl::StatusCode::kInvalidArgument);
}

// Nothing that a store holds or a user says makes a uid: two that are alike in both, such as one
// that was restored and the time that it was restored to, give different ones (contract 16).
TEST(SubmitTest, AUidIsDrawnAndFollowsFromNothing) {
  std::set<std::string> uids;
  for (int i = 0; i < 3; ++i) {
    LabWithOneHost lab;
    pb::SubmitRequest request;
    *request.mutable_spec() = OneSlotSpec();
    request.set_idempotency_key("k");
    uint64_t number = 0;
    Submit(&lab.engine, SpecDefaults(), "ada", std::make_shared<pb::SubmitRequest>(request),
           [&](const SubmitOutcome& outcome) { number = outcome.number; });
    lab.engine.Step();
    ASSERT_EQ(number, 1u);
    uids.insert(lab.engine.Snapshot()->state.FindJob(number)->uid);
  }
  EXPECT_THAT(uids, ::testing::SizeIs(3));
  EXPECT_THAT(uids, ::testing::Each(::testing::ContainsRegex("^[0-9a-f]{32}$")));
}

TEST(SubmitTest, IsToldToComeBackWhereTooManyWait) {
  EngineOptions options;
  options.most_queued = 2;
  LabWithOneHost lab(options);
  Engine& engine = lab.engine;
  std::vector<absl::StatusCode> answers;
  const auto submit = [&](const std::string& key) {
    pb::SubmitRequest request;
    *request.mutable_spec() = OneSlotSpec();
    request.set_idempotency_key(key);
    Submit(&engine, SpecDefaults(), "ada", std::make_shared<pb::SubmitRequest>(request),
           [&](const SubmitOutcome& result) { answers.push_back(result.status.code()); });
  };
  submit("a");
  submit("b");
  submit("c");
  EXPECT_THAT(answers, ::testing::ElementsAre(absl::StatusCode::kUnavailable));
  engine.Step();
  EXPECT_THAT(answers, ::testing::ElementsAre(absl::StatusCode::kUnavailable, absl::StatusCode::kOk,
                                              absl::StatusCode::kOk));
  submit("c");
  engine.Step();
  EXPECT_EQ(answers.back(), absl::StatusCode::kOk);
  EXPECT_EQ(engine.Snapshot()->state.AllJobs().size(), 3u);
}

INSTANTIATE_TEST_SUITE_P(
    Keys, SubmitKeyTest,
    ::testing::Values(
        SubmitCase{"SameAgain", "ada", "k", "true", absl::StatusCode::kOk, 1, true},
        SubmitCase{"AnotherSpec", "ada", "k", "false", absl::StatusCode::kAlreadyExists, 0, false},
        SubmitCase{"AnotherOwner", "bob", "k", "true", absl::StatusCode::kOk, 2, false},
        SubmitCase{"AnotherKey", "ada", "l", "true", absl::StatusCode::kOk, 2, false},
        SubmitCase{"NoKey", "ada", "", "true", absl::StatusCode::kInvalidArgument, 0, false}),
    [](const auto& info) { return info.param.name; });

TEST(Submit, TheUmaskIsTheSubmittersAlsoWhenItIsZeroAndElseTheUsualOne) {
  LabWithOneHost lab;
  Engine& engine = lab.engine;
  uint64_t number = 0;
  for (const auto& [given, want] : {std::pair(0, 0u), std::pair(077, 077u), std::pair(-1, 022u)}) {
    pb::SubmitRequest request;
    *request.mutable_spec() = OneSlotSpec();
    request.set_idempotency_key(absl::StrCat(given));
    if (given >= 0) request.set_umask(static_cast<uint32_t>(given));
    Submit(&engine, SpecDefaults(), "ada", std::make_shared<pb::SubmitRequest>(request),
           [&](const SubmitOutcome& outcome) { number = outcome.number; });
    engine.Step();
    EXPECT_EQ(engine.Snapshot()->state.FindJob(number)->umask, want) << given;
  }
}

}  // namespace
}  // namespace muster
