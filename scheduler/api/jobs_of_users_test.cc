// A user's unfinished jobs have a bound; what ended makes room, a second later at the latest.
#include "scheduler/api/jobs_of_users.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "scheduler/engine/testing/fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kNow = 1000 * kSecond;

void Submit(uint64_t number, const std::string& owner, LabWithOneHost* lab) {
  pb::Event event;
  event.mutable_job_submitted()->set_number(number);
  event.mutable_job_submitted()->set_uid(absl::StrCat("uid", number));
  event.mutable_job_submitted()->set_owner(owner);
  *event.mutable_job_submitted()->mutable_spec() = OneSlotSpec();
  lab->engine.Post(event);
  lab->engine.Step();
}

TEST(JobsOfUsers, CountsEachUsersOwnAndWhatCameSince) {
  LabWithOneHost lab;
  for (uint64_t number = 1; number <= 4; ++number)
    Submit(number, number == 2 ? "bob" : "ann", &lab);
  const std::shared_ptr<const View> view = lab.engine.Snapshot();
  JobsOfUsers users(5);
  const auto take = [&](const std::string& owner, int64_t jobs, int64_t now_ns) {
    return users.Take(view->state, owner, jobs, 100, now_ns);
  };
  const absl::Status three = take("ann", 3, kNow);
  EXPECT_TRUE(absl::IsResourceExhausted(three));
  EXPECT_THAT(std::string(three.message()),
              HasSubstr("you have 3 unfinished jobs, and there may be 5"));
  EXPECT_TRUE(take("ann", 2, kNow).ok());
  EXPECT_TRUE(take("bob", 4, kNow).ok());
  // What she submitted may be refused for another reason, so it isn't said that she has five.
  EXPECT_TRUE(absl::IsUnavailable(take("ann", 1, kNow)));
  EXPECT_TRUE(absl::IsUnavailable(take("ann", 1, kNow + kSecond - 1)));
  // It was refused in the end, or has ended since: it isn't there when they are counted again.
  EXPECT_TRUE(absl::IsResourceExhausted(take("ann", 3, kNow + kSecond)));
  EXPECT_TRUE(take("ann", 2, kNow + kSecond).ok());
  EXPECT_TRUE(absl::IsUnavailable(take("ann", 1, kNow + kSecond)));
  EXPECT_TRUE(take("cid", 5, kNow + kSecond).ok()) << "who has none";
}

TEST(JobsOfUsers, LongOnesAreBoundedTogether) {
  LabWithOneHost lab;
  const std::shared_ptr<const View> view = lab.engine.Snapshot();
  JobsOfUsers users(100'000);
  const int64_t half = JobsOfUsers::kMostBytes / 2;
  const absl::Status all = users.Take(view->state, "ann", 1, 2 * half + 1, kNow);
  EXPECT_TRUE(absl::IsResourceExhausted(all));
  EXPECT_THAT(std::string(all.message()), HasSubstr("512MiB of a user"));
  EXPECT_TRUE(users.Take(view->state, "ann", 1, half, kNow).ok());
  EXPECT_TRUE(users.Take(view->state, "ann", 1, half, kNow).ok());
  EXPECT_TRUE(absl::IsUnavailable(users.Take(view->state, "ann", 1, 1, kNow)));
}

// What is kept of each, and of an array once.
TEST(JobsOfUsers, BytesAreCountedInState) {
  LabWithOneHost lab;
  Submit(1, "ann", &lab);
  Submit(2, "ann", &lab);
  const std::shared_ptr<const View> view = lab.engine.Snapshot();
  const auto kept = static_cast<int64_t>(view->state.FindJob(1)->spec_bytes->size() +
                                         view->state.FindJob(2)->spec_bytes->size());
  ASSERT_GT(kept, 0);
  const int64_t rest = JobsOfUsers::kMostBytes - kept;
  JobsOfUsers users(100'000);
  EXPECT_TRUE(absl::IsResourceExhausted(users.Take(view->state, "ann", 1, rest + 1, kNow)));
  EXPECT_TRUE(users.Take(view->state, "ann", 1, rest, kNow).ok());
}

}  // namespace
}  // namespace muster
