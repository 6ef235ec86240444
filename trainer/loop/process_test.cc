#include "trainer/loop/process.h"

#include <cstdlib>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/AllocatorConfig.h>
#include <gtest/gtest.h>

#include "trainer/ops/fused.h"

namespace muster::trainer {
namespace {

constexpr const char* kAllocator[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};

bool SegmentsGrow() {
  return c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments();
}
bool FillsMemory() { return at::globalContext().deterministicFillUninitializedMemory(); }

// As torch has it by itself before, and as the other tests have it after.
class PrepareProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kAllocator) ::unsetenv(name);
    at::globalContext().setDeterministicFillUninitializedMemory(true);
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:False");
    config_.threads = threads_;
  }
  void TearDown() override {
    SetUp();
    at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
    at::set_num_threads(threads_);
    ops::fused::Allow(true);
  }

  const int threads_ = at::get_num_threads();
  TrainConfig config_;
};

TEST_F(PrepareProcessTest, SegmentsOfAGpusMemoryGrowUnlessTheUserSaysOtherwise) {
  PrepareProcess(/*gpu=*/false, 1, config_);
  EXPECT_FALSE(SegmentsGrow());
  for (const char* name : kAllocator) {
    ::setenv(name, "expandable_segments:False", /*overwrite=*/1);
    PrepareProcess(/*gpu=*/true, 1, config_);
    EXPECT_FALSE(SegmentsGrow()) << name;
    ::unsetenv(name);
  }
  PrepareProcess(/*gpu=*/true, 1, config_);
  EXPECT_TRUE(SegmentsGrow());
}

TEST_F(PrepareProcessTest, FreshMemoryIsNotWrittenForTheSakeOfDeterminism) {
  for (const Determinism how : {Determinism::kNo, Determinism::kYes, Determinism::kElastic}) {
    SetUp();
    ASSERT_TRUE(FillsMemory());
    config_.deterministic = how;
    PrepareProcess(/*gpu=*/false, 1, config_);
    EXPECT_FALSE(FillsMemory());
    EXPECT_EQ(at::globalContext().deterministicAlgorithms(), how != Determinism::kNo);
  }
}

TEST_F(PrepareProcessTest, ThreadsAreAsAskedForAndOneWhereTheirNumberWouldChangeBits) {
  config_.threads = 3;
  PrepareProcess(/*gpu=*/false, 1, config_);
  EXPECT_EQ(at::get_num_threads(), 3);
  config_.threads = 0, config_.deterministic = Determinism::kElastic;
  PrepareProcess(/*gpu=*/false, 1, config_);
  EXPECT_EQ(at::get_num_threads(), 1);
}

TEST_F(PrepareProcessTest, OwnKernelsAreUsedUnlessReferencesAreAskedFor) {
  for (const bool reference : {true, false}) {
    config_.reference_ops = reference;
    PrepareProcess(/*gpu=*/false, 1, config_);
    EXPECT_EQ(ops::fused::Allowed(), !reference);
  }
}

// Two groups that begin at once corrupt it (groups.cc). Before main, unless somebody asks for it.
TEST(Process, TorchsFlightRecorderIsOff) {
  if (std::getenv("TORCH_NCCL_TRACE_BUFFER_SIZE") != nullptr)
    GTEST_SKIP() << "somebody asks for it";
  for (const char* name : {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT"}) {
    const char* value = std::getenv(name);
    EXPECT_STREQ(value, "0") << name;
  }
}

}  // namespace
}  // namespace muster::trainer
