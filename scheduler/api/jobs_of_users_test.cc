// A user's unfinished jobs have a bound; what ended makes room, a second later at the latest.
#include "scheduler/api/jobs_of_users.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

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
    Submit(number, number == 4 ? "bob" : "ann", &lab);
  const std::shared_ptr<const View> view = lab.engine.Snapshot();
  JobsOfUsers users(5);
  const auto why = [&](const std::string& owner, int64_t jobs, int64_t now_ns) {
    return users.WhyNoMore(view->state, owner, jobs, 100, now_ns);
  };
  EXPECT_THAT(why("ann", 3, kNow), HasSubstr("you have 3 unfinished jobs, and there may be 5"));
  EXPECT_EQ(why("ann", 2, kNow), "");
  EXPECT_THAT(why("ann", 1, kNow), HasSubstr("you have 5 unfinished jobs"));
  EXPECT_EQ(why("bob", 4, kNow), "");
  // It was refused in the end, or has ended since: it isn't there when they are counted again.
  EXPECT_NE(why("ann", 1, kNow + kSecond - 1), "");
  EXPECT_EQ(why("ann", 1, kNow + kSecond), "");
}

TEST(JobsOfUsers, LongOnesAreBoundedTogether) {
  LabWithOneHost lab;
  const std::shared_ptr<const View> view = lab.engine.Snapshot();
  JobsOfUsers users(100'000);
  const int64_t half = JobsOfUsers::kMostBytes / 2;
  EXPECT_EQ(users.WhyNoMore(view->state, "ann", 1, half, kNow), "");
  EXPECT_EQ(users.WhyNoMore(view->state, "ann", 1, half, kNow), "");
  EXPECT_THAT(users.WhyNoMore(view->state, "ann", 1, 1, kNow), HasSubstr("512MiB of a user"));
}

}  // namespace
}  // namespace muster
