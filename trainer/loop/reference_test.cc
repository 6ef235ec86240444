#include "trainer/loop/reference.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace muster::trainer {
namespace {

TEST(Reference, AFileIsReadBackBitForBitAndOnlyIfItIsWholeAndOfTheSame) {
  const std::string folder =
      std::filesystem::temp_directory_path() / ("reference_test." + std::to_string(::getpid()));
  const std::string path = folder + "/below/one.safetensors";
  const Logps logps = {{-1.5, -0.1}, {std::nan(""), -3}, {-7, -1e-300}};
  EXPECT_TRUE(absl::IsNotFound(ReadReference(path, "key", 3).status()));
  ASSERT_TRUE(WriteReference(path, "key", logps).ok());
  const Logps read = *ReadReference(path, "key", 3);
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read[0], logps[0]);
  EXPECT_TRUE(std::isnan(read[1].first));
  EXPECT_EQ(read[2], logps[2]);
  EXPECT_TRUE(absl::IsDataLoss(ReadReference(path, "another", 3).status()));
  EXPECT_TRUE(absl::IsDataLoss(ReadReference(path, "key", 4).status()));
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put(1);
  file.close();
  EXPECT_TRUE(absl::IsDataLoss(ReadReference(path, "key", 3).status()));
  RemoveTree(folder);
}

}  // namespace
}  // namespace muster::trainer
