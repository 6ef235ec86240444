#include "trainer/loop/memory.h"

#include <filesystem>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>

namespace muster::trainer {
namespace {

TEST(ControlGroupRoom, IsWhatTheTightestGroupAboveLeaves) {
  const std::string root = ::testing::TempDir() + "/control-groups";
  std::filesystem::create_directories(root + "/job/task");
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(root + name) << text << "\n";
  };
  EXPECT_EQ(ControlGroupRoom(root, "/job/task"), std::numeric_limits<int64_t>::max());
  write("/job/task/memory.max", "max");
  write("/job/memory.max", "1000");
  write("/job/memory.current", "700");
  EXPECT_EQ(ControlGroupRoom(root, "/job/task"), 300);
  write("/job/memory.stat", "anon 600\ninactive_file 50");
  EXPECT_EQ(ControlGroupRoom(root, "/job/task"), 350) << "what the kernel can drop is room";
  write("/job/task/memory.max", "90");
  write("/job/task/memory.current", "100");
  EXPECT_EQ(ControlGroupRoom(root, "/job/task"), 0);
  EXPECT_EQ(ControlGroupRoom(root, "/"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ControlGroupLimit(root, "/job/task"), 90) << "whatever is used";
  EXPECT_EQ(ControlGroupLimit(root, "/job"), 1000);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace muster::trainer
