// Whom a submission may name in after, and what that means for its submitter.
#include "scheduler/api/named_jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "scheduler/api/submit.h"
#include "scheduler/engine/testing/fixture.h"
#include "scheduler/state/bytes.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class Past : public History {
 public:
  void Add(uint64_t number, const std::string& queue, pb::JobState state) {
    pb::JobRecord& job = jobs_[absl::StrCat(number)];
    job.set_number(number);
    job.set_uid(absl::StrCat("past", number));
    *job.mutable_spec() = OneSlotSpec();
    job.mutable_spec()->set_queue(queue);
    job.set_state(state);
    job.set_end_ns(1);
    job.add_tasks();
  }
  absl::StatusOr<std::string> Find(std::string_view id) override {
    const auto job = jobs_.find(std::string(id));
    return job == jobs_.end() ? "" : DeterministicBytes(job->second);
  }
  absl::Status Scan(uint64_t, uint64_t, const std::function<bool(const Row&)>&) override {
    return absl::OkStatus();
  }

 private:
  std::map<std::string, pb::JobRecord> jobs_;
};

// Jobs 1 in `mine` and 2 in `theirs` wait; of 1003 to 1005 only the history knows. vic submits to
// `mine` alone.
class NamedJobsTest : public ::testing::Test {
 protected:
  NamedJobsTest() {
    pb::Event queues;
    pb::QueueTree* tree = queues.mutable_queues_applied()->mutable_tree();
    tree->add_queues()->set_name("mine");
    tree->add_queues()->set_name("theirs");
    lab_.engine.Post(queues);
    Bind(false);
    Submit("mine", {}, "a", *vic_);
    Submit("theirs", {}, "b", root_);
    past_.Add(1003, "mine", pb::SUCCEEDED);
    past_.Add(1004, "mine", pb::FAILED);
    past_.Add(1005, "theirs", pb::SUCCEEDED);
  }
  void Bind(bool revoked) {
    pb::Event event;
    event.mutable_binding_changed()->mutable_binding()->set_user("vic");
    event.mutable_binding_changed()->mutable_binding()->set_queue("mine");
    event.mutable_binding_changed()->mutable_binding()->set_role(pb::ROLE_SUBMITTER);
    event.mutable_binding_changed()->set_revoked(revoked);
    lab_.engine.Post(event);
    lab_.engine.Step();
  }
  SubmitOutcome Submit(const std::string& queue, const std::vector<std::string>& after,
                       const std::string& key, const Principal& who, bool revoke = false) {
    auto request = std::make_shared<pb::SubmitRequest>();
    *request->mutable_spec() = OneSlotSpec();
    request->mutable_spec()->set_queue(queue);
    request->set_idempotency_key(key);
    for (const std::string& id : after) request->mutable_spec()->add_after(id);
    const absl::StatusOr<FindNamed> named =
        NamedFor(lab_.engine.Snapshot(), &past_, std::make_shared<Principal>(who), request->spec());
    EXPECT_TRUE(named.ok()) << named.status();
    if (revoke) Bind(true);
    SubmitOutcome outcome;
    const Change change = [this](Engine::Operation operation, Engine::Done done) {
      lab_.engine.Call(std::move(operation), std::move(done));
    };
    muster::Submit(
        &lab_.engine, change, SpecDefaults(), who.user, request,
        [&](const SubmitOutcome& result) { outcome = result; }, RandomId, *named);
    lab_.engine.Step();
    return outcome;
  }

  LabWithOneHost lab_;
  Past past_;
  const std::shared_ptr<const Principal> vic_ =
      std::make_shared<Principal>(Principal{4001, "vic", {}, false});
  const Principal root_{0, "root", {}, true};
};

TEST_F(NamedJobsTest, WhatIsNotSeenLooksAsIfItWereNotThere) {
  const struct {
    std::string id, vic, root;
  } kCases[] = {
      {"1", "", ""},
      {"2", "there is no job \"2\"", ""},
      {"1003", "", ""},
      {"1004", "job 1004 failed", "job 1004 failed"},
      {"1005", "there is no job \"1005\"", ""},
      {"99", "there is no job \"99\"", "there is no job \"99\""},
  };
  for (const auto& c : kCases) {
    for (const bool root : {false, true}) {
      const std::string& wanted = root ? c.root : c.vic;
      const SubmitOutcome outcome =
          Submit("mine", {c.id}, absl::StrCat(c.id, root), root ? root_ : *vic_);
      ASSERT_EQ(outcome.resolution.problems.size(), wanted.empty() ? 0u : 1u) << c.id << root;
      if (wanted.empty()) {
        EXPECT_TRUE(outcome.status.ok()) << outcome.status;
        const JobRow* job = lab_.engine.Snapshot()->state.FindJob(outcome.number);
        EXPECT_EQ(job->awaits.size(), c.id == "1" || c.id == "2" ? 1u : 0u) << c.id;
        continue;
      }
      EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(outcome.resolution.problems[0].path, "after[0]");
      EXPECT_THAT(outcome.resolution.problems[0].message, HasSubstr(wanted));
    }
  }
}

TEST_F(NamedJobsTest, WhatIsNotSeenAnyMoreAtTheStepIsNotThere) {
  ASSERT_TRUE(Submit("mine", {"2"}, "others", root_).status.ok());
  const uint64_t theirs = lab_.engine.Snapshot()->state.next_job_number() - 1;
  ASSERT_TRUE(Submit("mine", {absl::StrCat(theirs)}, "seen", *vic_).status.ok());
  const SubmitOutcome revoked =
      Submit("mine", {absl::StrCat(theirs)}, "not any more", *vic_, /*revoke=*/true);
  ASSERT_EQ(revoked.resolution.problems.size(), 1u);
  EXPECT_THAT(revoked.resolution.problems[0].message, HasSubstr("there is no job"));
}

}  // namespace
}  // namespace muster
