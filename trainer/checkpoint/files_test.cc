// Directories put in place of others, also on a file system that can't exchange two names; files
// with and without the disk.
#include "trainer/checkpoint/files.h"

#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace {

int exchange_error = 0;  // what an exchange fails with; 0: it is done
int syncs = 0;

}  // namespace

// In the place of libc's.
extern "C" int renameat2(int old_folder, const char* old_name, int new_folder, const char* new_name,
                         unsigned flags) noexcept {
  if (exchange_error != 0 && (flags & RENAME_EXCHANGE) != 0) return errno = exchange_error, -1;
  return static_cast<int>(
      ::syscall(SYS_renameat2, old_folder, old_name, new_folder, new_name, flags));
}
extern "C" int fsync(int fd) {
  ++syncs;
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace muster::trainer {
namespace {

class ReplacedDirectory : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    exchange_error = GetParam();
    parent_ = std::filesystem::temp_directory_path() / ("files_test." + std::to_string(::getpid()));
    RemoveTree(parent_);
    to_ = parent_ + "/model", from_ = parent_ + "/model.staging";
    Make(from_, "new");
  }
  void TearDown() override {
    exchange_error = 0;
    RemoveTree(parent_);
  }
  void Make(const std::string& path, const std::string& content) {
    ASSERT_TRUE(MakeDirectories(path + "/adapter").ok());
    ASSERT_TRUE(WriteFileDurably(path + "/adapter/config.json", content).ok());
  }
  void ExpectNewAlone() {
    EXPECT_EQ(*ReadFile(to_ + "/adapter/config.json"), "new");
    std::vector<std::string> entries;
    for (const auto& entry : std::filesystem::directory_iterator(parent_))
      entries.push_back(entry.path().string());
    EXPECT_EQ(entries, std::vector<std::string>{to_});
  }
  std::string parent_, from_, to_;
};

INSTANTIATE_TEST_SUITE_P(FileSystems, ReplacedDirectory,
                         ::testing::Values(0, EINVAL, ENOSYS, EOPNOTSUPP));

TEST_P(ReplacedDirectory, TakesThePlaceOfNothingOfAnEmptyOneAndOfAnother) {
  EXPECT_EQ(ReplaceDirectory(from_, to_), absl::OkStatus());
  ExpectNewAlone();
  RemoveTree(to_);
  ASSERT_TRUE(MakeDirectories(to_).ok());
  Make(from_, "new");
  EXPECT_EQ(ReplaceDirectory(from_, to_), absl::OkStatus());
  ExpectNewAlone();
  Make(to_, "old");
  Make(to_ + ".replaced", "older");  // as a crash leaves it where names can't be exchanged
  Make(from_, "new");
  EXPECT_EQ(ReplaceDirectory(from_, to_), absl::OkStatus());
  if (GetParam() == 0) RemoveTree(to_ + ".replaced");
  ExpectNewAlone();
}

TEST_P(ReplacedDirectory, StaysWhereTheNewOneIsMissing) {
  RemoveTree(from_);
  Make(to_, "new");
  EXPECT_FALSE(ReplaceDirectory(from_, to_).ok());
  ExpectNewAlone();
}

TEST(WrittenFile, IsThereWholeWithoutTheDiskWhereTheFileCacheIsEnough) {
  const std::string parent =
      std::filesystem::temp_directory_path() / ("written_test." + std::to_string(::getpid()));
  ASSERT_TRUE(MakeDirectories(parent).ok());
  const std::string path = parent + "/file";
  for (const auto& [until, wanted] : {std::pair(Until::kOnDisk, 2), {Until::kCached, 0}}) {
    syncs = 0;
    EXPECT_EQ(WriteFileDurably(path, std::to_string(wanted), until), absl::OkStatus());
    EXPECT_EQ(syncs, wanted);  // of the file, and of its directory
    EXPECT_EQ(*ReadFile(path), std::to_string(wanted));
    EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  }
  // A directory is in the way of the name: nothing is left.
  ASSERT_TRUE(MakeDirectories(parent + "/taken/x").ok());
  EXPECT_FALSE(WriteFileDurably(parent + "/taken", "", Until::kCached).ok());
  EXPECT_FALSE(std::filesystem::exists(parent + "/taken.tmp"));
  RemoveTree(parent);
}

TEST(Directories, OverlapWhereOneIsTheOtherOrLiesInIt) {
  const std::string parent =
      std::filesystem::temp_directory_path() / ("overlap_test." + std::to_string(::getpid()));
  RemoveTree(parent);
  ASSERT_TRUE(MakeDirectories(parent + "/runs/init").ok());
  ASSERT_TRUE(MakeDirectories(parent + "/runs/init2").ok());
  std::filesystem::create_directory_symlink(parent + "/runs", parent + "/link");
  struct Case {
    const char* one;
    const char* other;
    bool wanted;
  };
  const Case cases[] = {{"/runs/init", "/runs/init", true},
                        {"/runs/init", "/runs/init/", true},
                        {"/runs/init", "/link/init", true},
                        {"/runs", "/runs/init", true},
                        {"/link", "/runs/init", true},
                        {"/runs/init/new", "/runs/init", true},
                        {"/link/init/new/one", "/runs/init", true},
                        {"/runs/init2", "/runs/init", false},
                        {"/runs/init.new", "/runs/init", false},
                        {"/new", "/runs/init", false}};
  for (const Case& c : cases) {
    EXPECT_EQ(DirectoriesOverlap(parent + c.one, parent + c.other), c.wanted)
        << c.one << " and " << c.other;
    EXPECT_EQ(DirectoriesOverlap(parent + c.other, parent + c.one), c.wanted)
        << c.other << " and " << c.one;
  }
  EXPECT_TRUE(IsAtOrAbove(parent + "/link", parent + "/runs/init/new"));
  EXPECT_FALSE(IsAtOrAbove(parent + "/runs/init", parent + "/link"));
  // What isn't there may be made.
  EXPECT_TRUE(IsAtOrAbove(parent + "/new", parent + "/new"));
  EXPECT_TRUE(IsAtOrAbove(parent + "/new", parent + "/new/one"));
  EXPECT_TRUE(IsAtOrAbove(parent + "/link/new", parent + "/runs/new/one"));
  EXPECT_FALSE(IsAtOrAbove(parent + "/new", parent + "/new2"));
  EXPECT_FALSE(IsAtOrAbove(parent + "/new/one", parent + "/new"));
  RemoveTree(parent);
}

}  // namespace
}  // namespace muster::trainer
