#include "scheduler/agents/stragglers.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

pb::AttemptKey Key() {
  pb::AttemptKey key;
  key.set_job_uid(std::string(32, '1'));
  key.set_task("main");
  key.set_attempt(1);
  return key;
}

class StragglersTest : public ::testing::Test {
 protected:
  // A host's word: median own times of its ranks, from `first` on.
  std::vector<pb::StragglerSeen> Tell(int32_t first, const std::vector<int64_t>& own_us,
                                      int32_t steps = 32) {
    google::protobuf::RepeatedPtrField<pb::RankTime> times;
    for (const int64_t us : own_us) {
      pb::RankTime* time = times.Add();
      time->set_rank(first++);
      time->set_steps(steps);
      time->set_own_us(us);
    }
    std::vector<pb::StragglerSeen> news = stragglers_.Told(Key(), attempt_, times);
    for (const pb::StragglerSeen& seen : news) {  // as Apply does
      std::erase_if(attempt_.stragglers,
                    [&](const pb::Straggler& row) { return row.rank() == seen.rank(); });
      if (seen.permille() == 0) continue;
      attempt_.stragglers.emplace_back().set_rank(seen.rank());
      attempt_.stragglers.back().set_permille(seen.permille());
    }
    return news;
  }

  Stragglers stragglers_;
  AttemptRow attempt_;
};

TEST_F(StragglersTest, NamesTheRankThatIsSlowerThanTheOthersOfItsGangAcrossHosts) {
  EXPECT_TRUE(Tell(0, {1000, 1010}).empty());
  EXPECT_TRUE(Tell(2, {990, 1290}).empty()) << "below the factor";
  for (const bool slow_first : {false, true}) {
    SCOPED_TRACE(slow_first);
    attempt_.stragglers.clear();
    std::vector<pb::StragglerSeen> news;
    for (const bool slow : {slow_first, !slow_first}) {
      EXPECT_TRUE(news.empty()) << "of half a gang";
      news = slow ? Tell(2, {990, 1400}) : Tell(0, {1000, 1010});
    }
    ASSERT_EQ(news.size(), 1u);
    EXPECT_EQ(news[0].rank(), 3);
    EXPECT_EQ(news[0].permille(), 1400);
  }
  Tell(0, {1000, 1010});
  EXPECT_TRUE(Tell(2, {990, 1450}).empty()) << "no news";
  Tell(0, {1000, 1010});
  EXPECT_EQ(Tell(2, {990, 1900}).size(), 1u) << "much worse";
}

TEST_F(StragglersTest, IsOverOnlyWellBelowTheFactor) {
  Tell(0, {1000, 1000, 1400});
  EXPECT_TRUE(Tell(0, {1000, 1000, 1250}).empty());
  const std::vector<pb::StragglerSeen> news = Tell(0, {1000, 1000, 1100});
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].permille(), 0);
}

TEST_F(StragglersTest, SaysNothingOfFewStepsFewRanksOrAGangThatIsSlowAsOne) {
  EXPECT_TRUE(Tell(0, {1000, 1000, 5000}, 19).empty());
  EXPECT_TRUE(Tell(0, {1000, 5000}).empty());
  EXPECT_TRUE(Tell(0, {5000, 5000, 5000, 5100}).empty());
}

TEST_F(StragglersTest, KnowsWhatAnEarlierSchedulerToldOf) {
  attempt_.stragglers.emplace_back().set_rank(2);
  attempt_.stragglers.back().set_permille(1500);
  const std::vector<pb::StragglerSeen> news = Tell(0, {1000, 1000, 1000});
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].rank(), 2);
  EXPECT_EQ(news[0].permille(), 0);
}

}  // namespace
}  // namespace muster
