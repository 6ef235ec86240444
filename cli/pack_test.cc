// What comes along with a job, and what stays behind.
#include "cli/pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "cli/ignore.h"
#include "common/pack/format.h"
#include "common/pki/sha256.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As git has it (gitignore(5)).
TEST(IgnoreRulesTest, AreThoseOfGit) {
  const struct {
    std::string lines, path;
    bool directory, ignored;
  } cases[] = {
      {"*.o", "a.o", false, true},
      {"*.o", "src/deep/a.o", false, true},
      {"*.o", "a.o.txt", false, false},
      {"build/", "build", true, true},
      {"build/", "src/build", true, true},
      {"build/", "build", false, false},
      {"/build", "build", true, true},
      {"/build", "src/build", true, false},
      {"src/*.py", "src/a.py", false, true},
      {"src/*.py", "src/deep/a.py", false, false},
      {"src/*.py", "other/src/a.py", false, false},
      {"**/logs", "logs", true, true},
      {"**/logs", "a/b/logs", true, true},
      {"a/**/z", "a/z", false, true},
      {"a/**/z", "a/b/c/z", false, true},
      {"data/**", "data/x/y", false, true},
      {"data/**", "data", true, false},
      {"*", ".hidden", false, true},
      {"file[0-9].txt", "file7.txt", false, true},
      {"file?.txt", "file10.txt", false, false},
      {"*.pt\n!keep.pt", "keep.pt", false, false},
      {"*.pt\n!keep.pt", "lose.pt", false, true},
      {"!keep.pt\n*.pt", "keep.pt", false, true},
      {"# a comment\n\n", "# a comment", false, false},
      {"\\#odd", "#odd", false, true},
      {"\\!odd", "!odd", false, true},
      {"spaces  \r", "spaces", false, true},
      {"[", "[", false, true},
      {"/", "a", true, false},
      {"!", "a", true, false},
  };
  for (const auto& c : cases) {
    IgnoreRules rules;
    rules.Add(c.lines);
    EXPECT_EQ(rules.Ignores(c.path, c.directory), c.ignored) << c.lines << " on " << c.path;
  }
}

class PackTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-pack-XXXXXX";
    directory_ = mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string At(const std::string& path) const { return directory_ + "/" + path; }
  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(At(path)).parent_path());
    std::ofstream(At(path)) << text;
  }
  // Kind and path of each entry.
  static std::vector<std::string> EntriesOf(const Pack& pack) {
    std::vector<std::string> entries;
    std::string_view rest = pack.bytes;
    EXPECT_EQ(rest.substr(0, kPackMagic.size()), kPackMagic);
    rest.remove_prefix(kPackMagic.size());
    for (PackHeader header; header = ReadPackHeader(rest), header.kind != kPackEnd;) {
      rest.remove_prefix(kPackHeaderBytes);
      entries.push_back(absl::StrCat(std::string(1, header.kind), " ",
                                     std::string(rest.substr(0, header.path_bytes))));
      rest.remove_prefix(header.path_bytes + header.content_bytes);
    }
    EXPECT_EQ(rest.size(), kPackHeaderBytes);
    return entries;
  }
  std::string Refusal() const {
    const absl::StatusOr<Pack> pack = PackDirectory(directory_);
    EXPECT_TRUE(absl::IsInvalidArgument(pack.status())) << pack.status();
    return std::string(pack.status().message());
  }

  std::string directory_;
};

TEST_F(PackTest, AllComesAlongButWhatIsNamedNotTo) {
  for (const char* path : {"train.py", "src/model.py", "src/__pycache__/model.pyc", ".git/HEAD",
                           ".venv/bin/python", "data/big.bin", "data/small.txt", ".hidden"})
    Write(path, "x");
  Write(".musterignore", "data/*.bin\n");
  ASSERT_EQ(chmod(At("train.py").c_str(), 0700), 0);
  ASSERT_EQ(mkfifo(At("src/pipe").c_str(), 0600), 0);
  ASSERT_EQ(symlink("../train.py", At("src/link").c_str()), 0);
  const absl::StatusOr<Pack> pack = PackDirectory(directory_);
  ASSERT_TRUE(pack.ok()) << pack.status();
  EXPECT_THAT(EntriesOf(*pack),
              ElementsAre("f .hidden", "f .musterignore", "d data", "f data/small.txt", "d src",
                          "l src/link", "f src/model.py", "x train.py"));
  EXPECT_EQ(pack->entries, 8);
  EXPECT_EQ(pack->digest, Sha256Hex(pack->bytes));
  Write(".musterignore", "!.venv\n");
  EXPECT_THAT(EntriesOf(*PackDirectory(directory_)), ::testing::Contains("f .venv/bin/python"));
}

// Whoever packs it, when, and whatever the order that the file system tells it in.
TEST_F(PackTest, TheSameContentHasTheSameDigest) {
  for (const char* path : {"b", "a", "c/d"}) Write("one/" + std::string(path), path);
  for (const char* path : {"c/d", "a", "b"}) Write("two/" + std::string(path), path);
  ASSERT_EQ(chmod(At("two/a").c_str(), 0604), 0);
  const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours(10);
  std::filesystem::last_write_time(At("two/b"), old);
  EXPECT_EQ(PackDirectory(At("one"))->digest, PackDirectory(At("two"))->digest);
  ASSERT_EQ(chmod(At("two/a").c_str(), 0755), 0);
  EXPECT_NE(PackDirectory(At("one"))->digest, PackDirectory(At("two"))->digest) << "a program now";
}

TEST_F(PackTest, OneThatIsTooLargeNamesItsLargestEntriesAndTheRemedy) {
  Write("train.py", "x");
  Write("runs/old/model/ckpt.pt", "");
  std::filesystem::resize_file(At("runs/old/model/ckpt.pt"), 100 << 20);  // takes no room
  Write("data/a", "");
  std::filesystem::resize_file(At("data/a"), 20 << 20);
  const std::string why = Refusal();
  EXPECT_THAT(why, AllOf(HasSubstr("120MiB"), HasSubstr("at most 64MiB"),
                         HasSubstr("The largest: runs/old/model/ckpt.pt (100MiB), data/a (20MiB)"),
                         HasSubstr(directory_ + "/.musterignore"), HasSubstr("--workdir /PATH")));
  Write(".musterignore", "runs/\n");
  EXPECT_TRUE(PackDirectory(directory_).ok());
}

TEST_F(PackTest, OneOfTooManyFilesIsTold) {
  for (int i = 0; i <= kPackMaxEntries; ++i) Write(absl::StrCat("many/", i), "");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("at most 64MiB in 20000 may"),
                               HasSubstr("many (0B, 20002 entries)")));
}

TEST_F(PackTest, WhatCanNotComeAlongIsNamedWithTheRemedy) {
  const auto refused = [&](const std::string& path, const std::string& what) {
    EXPECT_THAT(Refusal(), AllOf(HasSubstr(path + " " + what), HasSubstr("a line /" + path)));
    Write(".musterignore", "/" + path + "\n");
    EXPECT_TRUE(PackDirectory(directory_).ok()) << path;
    std::filesystem::remove(At(".musterignore"));
    std::filesystem::remove(At(path));
  };
  Write("a/train.py", "x");
  for (const char* target : {"/etc/passwd", "../..", "b/../../..", ""}) {
    if (*target == '\0') continue;
    ASSERT_EQ(symlink(target, At("a/link").c_str()), 0);
    refused("a/link", absl::StrCat("is a link out of it, to ", target));
  }
  if (geteuid() == 0) return;  // who reads everything
  Write("secret", "x");
  ASSERT_EQ(chmod(At("secret").c_str(), 0), 0);
  refused("secret", "can't be read");
}

// It may be listed and not entered: as if it were empty, else.
TEST_F(PackTest, ADirectoryThatMayNotBeEnteredIsNamed) {
  namespace fs = std::filesystem;
  fs::create_directory(directory_ + "/parts");
  Write("parts/model.py", "x");
  ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
  ASSERT_EQ(chmod((directory_ + "/parts").c_str(), 0444), 0);
  const auto packed = [&]() -> std::string {
    int pipe_fds[2];
    EXPECT_EQ(pipe(pipe_fds), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      if (geteuid() == 0 && setuid(65534) != 0) _exit(1);  // root may enter it
      const std::string said(PackDirectory(directory_).status().message());
      _exit(write(pipe_fds[1], said.data(), said.size()) < 0 ? 1 : 0);
    }
    close(pipe_fds[1]);
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
    char said[1000];
    const ssize_t size = read(pipe_fds[0], said, sizeof said);
    close(pipe_fds[0]);
    return {said, static_cast<size_t>(std::max<ssize_t>(size, 0))};
  };
  EXPECT_THAT(packed(), AllOf(HasSubstr("parts/model.py can't be looked at (Permission denied)"),
                              HasSubstr(absl::StrCat("chmod u+x ", directory_, "/parts")),
                              HasSubstr("a line /parts/model.py")));
  Write(".musterignore", "/parts/model.py\n");
  EXPECT_EQ(packed(), "");
  ASSERT_EQ(chmod((directory_ + "/parts").c_str(), 0755), 0);
}

TEST_F(PackTest, OneThatIsNotThereIsTold) {
  directory_ += "/none";
  EXPECT_THAT(Refusal(), HasSubstr(directory_ + ": can't be read: No such file or directory"));
  directory_.resize(directory_.size() - 5);
}

}  // namespace
}  // namespace muster
