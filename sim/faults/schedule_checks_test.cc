// What the checker says of schedules that start too much, too little or too early.
#include "sim/faults/schedule_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"

namespace muster::sim::faults {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kAt = 1'800'000'000 * kSecond;  // a whole hour

class ScheduleChecksTest : public ::testing::Test {
 protected:
  static pb::JobRecord Job(uint64_t number, int64_t minute, uint64_t previous = 0) {
    pb::JobRecord job;
    job.set_number(number);
    job.set_uid(absl::StrCat("uid", number));
    job.set_owner("ann");
    job.mutable_spec()->mutable_schedule()->set_cron("*/2 * * * *");
    job.add_tasks();
    job.set_previous(previous);
    job.set_not_before_ns(kAt + minute * kMinute);
    return job;
  }
  pb::JobRecord Due(uint64_t number) const {
    pb::JobRecord job = jobs_.at(absl::StrCat("uid", number));
    job.clear_not_before_ns();
    return job;
  }
  pb::JobRecord Placed(uint64_t number, int64_t minute) const {
    pb::JobRecord job = jobs_.at(absl::StrCat("uid", number));
    job.mutable_tasks(0)->add_attempts()->set_place_ns(kAt + minute * kMinute);
    return job;
  }
  void Commit(const std::vector<pb::JobRecord>& rows) {
    for (const pb::JobRecord& row : rows) {
      const auto known = jobs_.find(row.uid());
      checks_.OnJob(known == jobs_.end() ? nullptr : &known->second, row);
      jobs_[row.uid()] = row;
    }
    checks_.Committed();
  }

  std::map<std::string, pb::JobRecord> jobs_;
  Counters counters_;
  std::vector<std::string> says_;
  ScheduleChecks checks_{&jobs_, &counters_,
                         [this](const std::string& what) { says_.push_back(what); }};
};

TEST_F(ScheduleChecksTest, OneThatKeepsItsTimesIsSound) {
  Commit({Job(1, 2)});
  Commit({Due(1), Job(2, 4, 1)});
  Commit({Placed(1, 2)});
  pb::JobRecord later = jobs_.at("uid2");  // the first goes on
  later.set_not_before_ns(kAt + 6 * kMinute);
  later.set_skipped(1);
  Commit({later});
  pb::JobRecord ended = jobs_.at("uid1");
  ended.set_end_ns(kAt + 5 * kMinute);
  Commit({ended});
  Commit({Due(2), Job(3, 8, 2)});
  Commit({Placed(2, 6)});
  pb::JobRecord cancelled = Due(3);
  cancelled.set_end_ns(kAt + 7 * kMinute);
  Commit({cancelled});
  EXPECT_THAT(says_, IsEmpty());
  EXPECT_EQ(counters_["jobs that schedules submitted"], 2);
  EXPECT_EQ(counters_["times of schedules left out"], 1);
}

TEST_F(ScheduleChecksTest, TheNextTimesJobIsThereOnce) {
  Commit({Job(1, 2)});
  Commit({Due(1)});
  EXPECT_THAT(says_, ElementsAre(HasSubstr("job 1 may start, and there is none")));
  says_.clear();
  Commit({Job(2, 4, 1)});
  EXPECT_THAT(says_, IsEmpty());
  Commit({Job(3, 4, 1)});
  EXPECT_THAT(says_, ElementsAre(HasSubstr("job 3 is a second one after job 1")));
}

TEST_F(ScheduleChecksTest, EachTimeCountsOnce) {
  Commit({Job(1, 2)});
  Commit({Due(1), Job(2, 2, 1)});
  EXPECT_THAT(says_, ElementsAre(HasSubstr("job 2 waits for a time that one has started at")));
  says_.clear();
  Commit({Job(7, 3)});
  EXPECT_THAT(says_, ElementsAre(HasSubstr("job 7 waits for a time that is none")));
}

TEST_F(ScheduleChecksTest, NothingStartsBeforeItsTimeNorBesideTheOneBefore) {
  Commit({Job(1, 2)});
  Commit({Due(1), Job(2, 4, 1)});
  Commit({Placed(1, 1)});
  EXPECT_THAT(says_, ElementsAre(HasSubstr("job 1 is placed before its time")));
  says_.clear();
  Commit({Due(2), Job(3, 6, 2)});
  EXPECT_THAT(says_, ElementsAre(HasSubstr("job 2 may start while job 1 goes on")));
}

TEST_F(ScheduleChecksTest, ABackupForgetsWhatCameAfterIt) {
  Commit({Job(1, 2)});
  const std::map<std::string, pb::JobRecord> backup = jobs_;
  Commit({Due(1), Job(2, 4, 1)});
  jobs_ = backup;
  checks_.OnRestored();
  pb::JobRecord again = Job(2, 6, 1);
  again.set_uid("another");
  Commit({Due(1), again});
  EXPECT_THAT(says_, IsEmpty());
}

}  // namespace
}  // namespace muster::sim::faults
