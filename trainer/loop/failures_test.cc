#include "trainer/loop/failures.h"

#include <stdexcept>
#include <thread>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace muster::trainer {
namespace {

// As NCCL's watchdog tells of a peer that doesn't answer.
TEST(EndByOurWordsDeathTest, AnExceptionThatLeavesAThreadIsToldInOneLine) {
  const auto end = [](auto throw_it) {
    EndByOurWords(3, [](const std::string& why) {
      std::fprintf(stderr, "announced: %s\n", why.substr(0, 20).c_str());
    });
    std::thread(throw_it).join();
  };
  EXPECT_EXIT(end([] {
                throw std::runtime_error(
                    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(…)");
              }),
              ::testing::ExitedWithCode(1),
              "^rank 3 failed: another rank is gone or can't be reached: .Rank 3. Watchdog.*\n"
              "announced: another rank is gone\n$");
  EXPECT_EXIT(end([] { TORCH_CHECK(false, "no kernel image"); }), ::testing::ExitedWithCode(1),
              "^rank 3 failed: no kernel image\nannounced: no kernel image\n$");
}

}  // namespace
}  // namespace muster::trainer
