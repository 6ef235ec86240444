// Exports put in their places.
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "agent/shim/act.h"
#include "agent/shim/durable.h"

namespace muster::shim {
namespace {

// "" where nothing can be read.
std::string Text(const std::string& path) {
  std::string text;
  ReadSmallFile(path, &text);
  return text;
}

class ExportsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-exports-test-XXXXXX";
    directory_ = ::mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string directory_;
};

TEST_F(ExportsTest, ALinkThatIsNamedLikeTheMarkIsNotWrittenThrough) {
  const std::string staged = directory_ + "/job/a/export-staging";
  std::filesystem::create_directories(staged);
  std::ofstream(directory_ + "/mine") << "mine";
  std::filesystem::create_symlink(directory_ + "/mine", staged + "/.muster-export");
  PublishExport(staged, directory_ + "/job", directory_ + "/job/model");
  EXPECT_EQ(Text(directory_ + "/mine"), "mine");
}

TEST_F(ExportsTest, WhatLiesAtTheTargetAndIsNoExportOfBeforeIsKept) {
  const std::string staged = directory_ + "/job/a/export-staging",
                    target = directory_ + "/job/model";
  const auto publish = [&] {
    std::filesystem::create_directories(staged);
    std::ofstream(staged + "/w") << "exported";
    ASSERT_TRUE(PublishExport(staged, directory_ + "/job", target).done());
    EXPECT_EQ(Text(target + "/w"), "exported");
    EXPECT_FALSE(std::filesystem::exists(staged));
  };
  const auto clear = [&] {
    for (const char* name : {"", ".previous", ".previous-2"})
      std::filesystem::remove_all(target + name);
  };
  // A directory of somebody's, a file, a link.
  std::filesystem::create_directories(target);
  std::ofstream(target + "/theirs") << "weights";
  publish();
  EXPECT_EQ(Text(target + ".previous/theirs"), "weights");
  clear();
  std::ofstream(target) << "a file";
  publish();
  EXPECT_EQ(Text(target + ".previous"), "a file");
  clear();
  std::filesystem::create_symlink(directory_ + "/elsewhere", target);
  publish();
  EXPECT_TRUE(std::filesystem::is_symlink(target + ".previous"));
  // An export that somebody has added to, beside what is kept already; and one that somebody has
  // changed.
  std::ofstream(target + "/notes") << "mine";
  publish();
  EXPECT_EQ(Text(target + ".previous-2/notes"), "mine");
  clear();
  publish();
  std::ofstream(target + "/w") << "by hand ";
  publish();
  EXPECT_EQ(Text(target + ".previous/w"), "by hand ");
  // One whose publication a crash cut short is published as it would have been.
  clear();
  publish();
  std::filesystem::create_directories(staged);
  std::ofstream(staged + "/w") << "exported";
  ASSERT_EQ(::rename(target.c_str(), (staged + ".previous").c_str()), 0);
  publish();
  EXPECT_FALSE(std::filesystem::exists(staged + ".previous"));
  EXPECT_FALSE(std::filesystem::exists(target + ".previous"));
  // The directory that the export lies in can't be its target.
  std::filesystem::create_directories(staged);
  EXPECT_FALSE(PublishExport(staged, directory_ + "/job", directory_ + "/job/a").done());
  EXPECT_TRUE(std::filesystem::exists(staged));
}

TEST_F(ExportsTest, ATargetMayHaveSlashesAtItsEnd) {
  const std::string job = directory_ + "/job", staged = job + "/a/export-staging";
  for (const std::string& target : {job + "/model/", job + "/model//", std::string("model/")}) {
    std::filesystem::remove_all(job);
    std::filesystem::create_directories(staged);
    std::filesystem::create_directories(job + "/model/theirs");
    std::ofstream(staged + "/w") << "exported";
    const ActResult result = PublishExport(staged, job, target);
    ASSERT_TRUE(result.done()) << target << ": " << result.text;
    EXPECT_EQ(Text(job + "/model/w"), "exported") << target;
    EXPECT_TRUE(std::filesystem::exists(job + "/model.previous/theirs")) << target;
  }
}

}  // namespace
}  // namespace muster::shim
