#include "agent/host/disk_guard.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "common/base/units.h"

namespace muster::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kMiB = int64_t{1} << 20;

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// A disk of 64 MiB, of which 3.2 are to stay free, with directories of two jobs.
class DiskGuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-disk-XXXXXX";
    directory_ = ::mkdtemp(name);
    if (::mount("muster-test", directory_.c_str(), "tmpfs", 0, "size=64m") != 0)
      GTEST_SKIP() << "nothing may be mounted here";
    mounted_ = true;
    for (const char* job : {"/a", "/b", "/state"})
      std::filesystem::create_directory(directory_ + job);
  }
  void TearDown() override {
    if (mounted_) ::umount2(directory_.c_str(), MNT_DETACH);
    std::filesystem::remove_all(directory_);
  }
  void Write(const std::string& name, int64_t mib) {
    std::ofstream out(directory_ + "/" + name, std::ios::binary | std::ios::app);
    for (int64_t i = 0; i < mib; ++i) out << std::string(kMiB, 'x');
  }
  void Age(const std::string& name) {
    const timespec old[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, (directory_ + "/" + name).c_str(), old, 0), 0);
  }
  static AttemptId Id(const std::string& task) { return {"uid", task, 1}; }
  std::vector<DiskUser> Both() const {
    return {{Id("a"), directory_ + "/a"}, {Id("b"), directory_ + "/b"}};
  }
  DiskNews Look(const std::function<void()>& meanwhile = [] {}, int64_t later_ns = 0) {
    return look_.At(Both(), Now() + later_ns, meanwhile);
  }

  bool mounted_ = false;
  std::string directory_;
  DiskLook look_{""};
};

TEST(DiskFloor, IsATwentiethAndAGibibyteAtMost) {
  EXPECT_EQ(DiskFloor(64 * kMiB), 64 * kMiB / 20);
  EXPECT_EQ(DiskFloor(int64_t{4} << 40), int64_t{1} << 30);
}

TEST_F(DiskGuardTest, WhoseDirectoryGrowsIsNamedOnceAndNotWhoLiesThere) {
  Write("b/checkpoint", 40);
  Age("b/checkpoint");
  Write("a/fill", 10);
  DiskNews news = Look();
  EXPECT_EQ(news.low, "");
  EXPECT_THAT(news.fills, IsEmpty());
  Write("a/fill", 11);
  news = Look([&] { Write("a/fill", 1); });
  EXPECT_THAT(news.low, HasSubstr("has 3MiB left of 64MiB, and wants 3MiB"));
  ASSERT_EQ(news.fills.size(), 1u);
  EXPECT_EQ(news.fills[0].first, Id("a"));
  EXPECT_EQ(news.fills[0].second, "it wrote 22MiB to " + directory_ +
                                      "/a within a minute, and the disk has 3MiB left of 64MiB");
  EXPECT_THAT(Look([&] { Write("a/fill", 1); }, 10 * kSecond).fills, IsEmpty())
      << "it is being stopped";
}

TEST_F(DiskGuardTest, WhoWritesNoMoreIsLeftAloneWhileThereIsSomeRoom) {
  Write("a/fill", 62);
  EXPECT_THAT(Look().low, Not(IsEmpty())) << "nothing new starts";
  EXPECT_THAT(Look().fills, IsEmpty());
}

TEST_F(DiskGuardTest, OnAFullDiskWhoWroteMostOfLateIsNamed) {
  Write("b/log", 2);
  Write("a/fill", 70);
  const DiskNews news = Look();
  ASSERT_EQ(news.fills.size(), 1u);
  EXPECT_EQ(news.fills[0].first, Id("a"));
}

TEST_F(DiskGuardTest, ThereIsEnoughAgainAFourthAboveTheFloor) {
  Write("a/fill", 61);
  const std::string low = Look().low;
  EXPECT_THAT(low, Not(IsEmpty()));
  Write("b/more", 1);
  EXPECT_EQ(Look().low, low) << "it is told once";
  std::filesystem::remove(directory_ + "/b/more");
  std::filesystem::resize_file(directory_ + "/a/fill", 60 * kMiB + kMiB / 2);
  EXPECT_EQ(Look().low, low) << "3.5 MiB";
  std::filesystem::resize_file(directory_ + "/a/fill", 59 * kMiB);
  EXPECT_EQ(Look().low, "");
}

TEST_F(DiskGuardTest, LinksLeadNowhere) {
  Write("b/large", 30);
  std::filesystem::create_directory_symlink(directory_ + "/b", directory_ + "/a/link");
  std::filesystem::create_directories(directory_ + "/a/x/y");
  Write("a/x/y/small", 2);
  EXPECT_EQ(WrittenSince(directory_ + "/a", Now() - kMinute), 2 * kMiB);
  EXPECT_EQ(WrittenSince(directory_ + "/a/link", Now() - kMinute), 0);
  EXPECT_EQ(WrittenSince(directory_ + "/none", 0), 0);
}

}  // namespace
}  // namespace muster::agent
