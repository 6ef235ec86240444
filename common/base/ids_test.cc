#include "common/base/ids.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>

namespace muster {
namespace {

TEST(Ids, AreRandomInEachOfTheir128Bits) {
  constexpr int kIds = 1000;
  std::set<std::string> seen;
  std::array<int, 128> ones{};
  for (int i = 0; i < kIds; ++i) {
    const std::string id = RandomId();
    ASSERT_TRUE(IsId(id)) << id;
    EXPECT_TRUE(seen.insert(id).second) << id;
    for (size_t bit = 0; bit < ones.size(); ++bit) {
      const char digit = id[bit / 4];
      ones[bit] += (digit <= '9' ? digit - '0' : digit - 'a' + 10) >> (bit % 4) & 1;
    }
  }
  // Ten standard deviations: chance does not get there.
  for (size_t bit = 0; bit < ones.size(); ++bit)
    EXPECT_NEAR(ones[bit], kIds / 2.0, 158) << "bit " << bit;
}

}  // namespace
}  // namespace muster
