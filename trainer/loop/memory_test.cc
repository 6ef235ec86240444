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

// A host of 4 MiB, with the `cgroup` that a process is in and files of its control groups.
class AHost {
 public:
  explicit AHost(const std::string& cgroup) : root_(::testing::TempDir() + "/a-host") {
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo", "MemTotal: 4096 kB\nMemFree: 1 kB\nMemAvailable: 2048 kB");
    Write("/proc/self/cgroup", cgroup);
  }
  ~AHost() { std::filesystem::remove_all(root_); }
  void Write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + name).parent_path());
    std::ofstream(root_ + name) << text << "\n";
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

constexpr char kVersion1[] = "5:cpu,cpuacct:/job\n4:memory:/job/task\n0::/job";

TEST(HostMemory, IsTheHostsWhereNoGroupHasALimit) {
  const AHost host(kVersion1);
  EXPECT_EQ(HostMemoryLimit(host.root()), 4 << 20);
  EXPECT_EQ(AvailableHostBytes(host.root()), 2 << 20);
  host.Write("/sys/fs/cgroup/memory/job/task/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(HostMemoryLimit(host.root()), 4 << 20) << "that is no limit";
  EXPECT_EQ(HostMemoryLimit(host.root() + "/none"), 0);
}

TEST(HostMemory, KnowsLimitsOfVersion1) {
  const AHost host(kVersion1);
  host.Write("/sys/fs/cgroup/memory/job/task/memory.limit_in_bytes", "9223372036854771712");
  host.Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1000");
  host.Write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "700");
  host.Write("/sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 50");
  EXPECT_EQ(HostMemoryLimit(host.root()), 1000);
  EXPECT_EQ(AvailableHostBytes(host.root()), 350);
  host.Write("/sys/fs/cgroup/cpu,cpuacct/job/memory.limit_in_bytes", "10");
  EXPECT_EQ(HostMemoryLimit(host.root()), 1000) << "another controller's";
  host.Write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1050");
  EXPECT_EQ(AvailableHostBytes(host.root()), 1) << "none, which isn't that nobody knows";
}

// In a container the host's path isn't there, and the root is the container's group.
TEST(HostMemory, TakesTheRootsLimitWhereThePathIsNotThere) {
  const AHost host("4:memory:/docker/1234");
  host.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000");
  EXPECT_EQ(HostMemoryLimit(host.root()), 5000);
}

TEST(HostMemory, KnowsLimitsOfVersion2) {
  const AHost host("0::/job");
  host.Write("/sys/fs/cgroup/job/memory.max", "3000");
  EXPECT_EQ(HostMemoryLimit(host.root()), 3000);
}

}  // namespace
}  // namespace muster::trainer
