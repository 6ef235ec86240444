// What an archive may make of a directory, and what it may not.
#include "agent/shim/unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "agent/shim/act.h"
#include "common/pack/format.h"

namespace muster::shim {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = Unpacked::Kind;

class UnpackTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-unpack-XXXXXX";
    root_ = ::mkdtemp(name);
    std::filesystem::create_directory(root_ + "/job");
    Write(root_ + "/outside", "not yours");
    job_ = ::open((root_ + "/job").c_str(), O_PATH | O_DIRECTORY);
  }
  void TearDown() override {
    ::close(job_);
    std::filesystem::remove_all(root_);
  }
  static void Write(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
  }
  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static int InMemory(const std::string& bytes) {
    const int fd = ::memfd_create("archive", MFD_CLOEXEC);
    EXPECT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    return fd;
  }
  Unpacked Make(const std::string& bytes, const std::string& name = "work", uint32_t umask = 022) {
    const int archive = InMemory(bytes);
    Unpacked result = Unpack(job_, name, archive, umask);
    ::close(archive);
    return result;
  }
  static std::string Archive(const std::string& entries) {
    return std::string(kPackMagic) + entries + PackEntry(kPackEnd, "", "");
  }
  int ModeOf(const std::string& path) const {
    struct stat info {};
    EXPECT_EQ(::lstat((root_ + "/job/" + path).c_str(), &info), 0) << path;
    return static_cast<int>(info.st_mode & 07777);
  }
  std::vector<std::string> In(const std::string& path) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(root_ + "/" + path))
      names.push_back(entry.path().filename().string());
    return names;
  }

  std::string root_;
  int job_ = -1;
};

TEST_F(UnpackTest, MakesFilesProgramsDirectoriesAndLinksByTheJobsUmask) {
  const std::string archive =
      Archive(PackEntry(kPackDirectory, "src", "") + PackEntry(kPackFile, "src/a.py", "print(1)") +
              PackEntry(kPackFile, "src/empty", "") + PackEntry(kPackProgram, "run.sh", "#!") +
              PackEntry(kPackLink, "src/link", "../run.sh"));
  ASSERT_EQ(Make(archive, "work", 027).kind, Kind::kDone);
  EXPECT_EQ(Read(root_ + "/job/work/src/a.py"), "print(1)");
  EXPECT_EQ(Read(root_ + "/job/work/src/link"), "#!");
  EXPECT_EQ(Read(root_ + "/job/work/src/empty"), "");
  EXPECT_EQ(ModeOf("work"), 0700) << "its owner's, whose files may have been nobody else's";
  EXPECT_EQ(ModeOf("work/src"), 0750);
  EXPECT_EQ(ModeOf("work/src/a.py"), 0640);
  EXPECT_EQ(ModeOf("work/run.sh"), 0750);
  EXPECT_THAT(In("job"), ::testing::ElementsAre("work")) << "nothing is left over";
}

TEST_F(UnpackTest, WhatIsThereIsLeftAsItIs) {
  EXPECT_EQ(Unpack(job_, "work", -1, 022).kind, Kind::kWanted);
  ASSERT_EQ(Make(Archive(PackEntry(kPackFile, "a", "1"))).kind, Kind::kDone);
  Write(root_ + "/job/work/a", "changed by the job");
  EXPECT_EQ(Unpack(job_, "work", -1, 022).kind, Kind::kDone);
  EXPECT_EQ(Make(Archive(PackEntry(kPackFile, "a", "2"))).kind, Kind::kDone);
  EXPECT_EQ(Read(root_ + "/job/work/a"), "changed by the job");
}

TEST_F(UnpackTest, AnEmptyDirectoryComesAlong) {
  ASSERT_EQ(Make(Archive("")).kind, Kind::kDone);
  EXPECT_THAT(In("job/work"), IsEmpty());
}

TEST_F(UnpackTest, ManyFilesComeAlong) {
  std::string entries;
  for (int i = 0; i < 1000; ++i) entries += PackEntry(kPackFile, std::to_string(i), "x");
  ASSERT_EQ(Make(Archive(entries)).kind, Kind::kDone);
  EXPECT_EQ(In("job/work").size(), 1000u);
}

TEST_F(UnpackTest, NothingLeavesTheDirectory) {
  const std::string up = PackEntry(kPackLink, "up", "d") + PackEntry(kPackDirectory, "d", "");
  const struct {
    std::string what, entries;
  } cases[] = {
      {"..", PackEntry(kPackFile, "../outside", "mine")},
      {".. further down",
       PackEntry(kPackDirectory, "d", "") + PackEntry(kPackFile, "d/../../outside", "mine")},
      {"an absolute path", PackEntry(kPackFile, root_ + "/outside", "mine")},
      {"an absolute link", PackEntry(kPackLink, "a", root_)},
      {"a link up and out", PackEntry(kPackLink, "a", "..")},
      {"a link down, up and out",
       PackEntry(kPackDirectory, "d", "") + PackEntry(kPackLink, "a", "d/../..")},
      {"a link that others lead up", PackEntry(kPackDirectory, "d", "") +
                                         PackEntry(kPackLink, "d/root", "..") +
                                         PackEntry(kPackLink, "a", "d/root/..")},
      {"through a link", up + PackEntry(kPackFile, "up/file", "mine")},
      {"over a link", PackEntry(kPackLink, "a", "d") + PackEntry(kPackFile, "a", "mine")},
      {"an empty name", PackEntry(kPackFile, "", "mine")},
      {"a name with a NUL", PackEntry(kPackFile, std::string("a\0b", 3), "mine")},
      {"a slash at the end", PackEntry(kPackDirectory, "d/", "")},
      {"a device", PackEntry('c', "null", "\1\3")},
      {"a setuid program", PackEntry('s', "su", "mine")},
      {"in no directory", PackEntry(kPackFile, "d/a", "mine")},
      {"below a file", PackEntry(kPackFile, "d", "") + PackEntry(kPackFile, "d/a", "mine")},
      {"twice", PackEntry(kPackFile, "a", "1") + PackEntry(kPackFile, "a", "2")},
  };
  for (const auto& bad : cases) {
    const Unpacked result = Make(Archive(bad.entries));
    EXPECT_EQ(result.kind, Kind::kBadArchive) << bad.what << ": " << result.what;
    EXPECT_THAT(In("job"), IsEmpty()) << bad.what << ": what was made goes";
    EXPECT_EQ(Read(root_ + "/outside"), "not yours") << bad.what;
    EXPECT_THAT(In(""), ::testing::UnorderedElementsAre("job", "outside")) << bad.what;
  }
}

TEST_F(UnpackTest, WhatIsNoArchiveOrNotAWholeOneIsRefused) {
  const std::string good = Archive(PackEntry(kPackFile, "a", "text"));
  for (size_t bytes = 0; bytes < good.size(); ++bytes)
    EXPECT_EQ(Make(good.substr(0, bytes)).kind, Kind::kBadArchive) << bytes;
  EXPECT_EQ(Make(good + "x").kind, Kind::kBadArchive);
  const std::string huge = PackHeaderText({kPackFile, 1, ~uint64_t{0}}) + "a";
  EXPECT_EQ(Make(std::string(kPackMagic) + huge).kind, Kind::kBadArchive);
  EXPECT_THAT(In("job"), IsEmpty());
}

TEST_F(UnpackTest, WhatAKilledUnpackingLeftIsRemovedAndNotWhatGoesOn) {
  const auto plant = [&](const std::string& name, int64_t age_s) {
    const std::string path = root_ + "/job/" + name;
    std::filesystem::create_directories(path + "/deep");
    Write(path + "/deep/file", "half");
    const timespec times[2] = {{::time(nullptr) - age_s, 0}, {::time(nullptr) - age_s, 0}};
    EXPECT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  };
  const std::string archive = Archive(PackEntry(kPackFile, "a", "1"));
  const int half =
      InMemory(Archive(PackEntry(kPackDirectory, "d", "") + PackEntry(kPackFile, "d/a", "x") +
                       PackEntry(kPackFile, "large", std::string(3000, 'x'))));
  const pid_t pid = ::fork();
  if (pid == 0) {
    const rlimit little{2000, 2000};  // bytes of a file: SIGXFSZ ends it in the middle
    ::setrlimit(RLIMIT_FSIZE, &little);
    Unpack(job_, "work", half, 022);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ::close(half);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_EQ(In("job").size(), 1u);
  const std::string left = In("job")[0];
  ASSERT_EQ(left.substr(0, 6), ".work.");
  // The same machine's name, locked: somebody is at it.
  std::string others = left;
  others.back() = others.back() == '0' ? '1' : '0';
  plant(others, 3600);
  const int lock = ::open((root_ + "/job/" + others).c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  const std::string machine = left.substr(0, 6) + (left[6] == 'f' ? "0" : "f") + left.substr(7);
  std::string older = machine;
  older.back() = older.back() == '0' ? '1' : '0';
  plant(machine, 60);     // of another machine, which may be at it
  plant(older, 3600);     // and one that nobody waits for any more
  plant(".works", 3600);  // the job's own
  ASSERT_EQ(Make(archive).kind, Kind::kDone);
  EXPECT_THAT(In("job"), ::testing::UnorderedElementsAre("work", others, machine, ".works"));
  ::close(lock);
  EXPECT_EQ(Unpack(job_, "work", -1, 022).kind, Kind::kDone);
  EXPECT_THAT(In("job"), ::testing::UnorderedElementsAre("work", machine, ".works"))
      << "where it is unpacked already, too";
}

// Hosts of a gang on one storage, and each that finds leftovers of the others.
TEST_F(UnpackTest, ManyMayUnpackItAtOnce) {
  std::string entries;
  for (int i = 0; i < 50; ++i) entries += PackEntry(kPackFile, std::to_string(i), "x");
  std::vector<pid_t> pids;
  for (int i = 0; i < 8; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(Make(Archive(entries)).kind == Kind::kDone ? 0 : 1);
    pids.push_back(pid);
  }
  for (const pid_t pid : pids) {
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  EXPECT_THAT(In("job"), ::testing::ElementsAre("work"));
  EXPECT_EQ(In("job/work").size(), 50u);
}

// The job's own processes may have planted what they like beside it.
TEST_F(UnpackTest, APlantedLinkInItsPlaceIsNotFollowed) {
  std::filesystem::create_directory(root_ + "/elsewhere");
  std::filesystem::create_directory_symlink(root_ + "/elsewhere", root_ + "/job/work");
  const Unpacked result = Make(Archive(PackEntry(kPackFile, "a", "1")));
  EXPECT_EQ(result.kind, Kind::kStorage);
  EXPECT_THAT(In("elsewhere"), IsEmpty());
}

TEST_F(UnpackTest, ActSaysThatItWantsAnArchiveAndUnpacksIt) {
  ActRequest request;
  request.job_directory = root_ + "/job";
  request.directories = {root_ + "/job/main/attempt-1"};
  request.unpacked = "workdir-0123";
  EXPECT_EQ(Act(request).kind, ActResult::Kind::kWanted);
  EXPECT_TRUE(std::filesystem::exists(root_ + "/job/main/attempt-1"));
  request.archive = InMemory(Archive(PackEntry(kPackFile, "a", "1")));
  EXPECT_EQ(Act(request).kind, ActResult::Kind::kDone);
  EXPECT_EQ(Read(root_ + "/job/workdir-0123/a"), "1");
  ::close(request.archive);
  request.unpacked = "other";
  request.archive = InMemory("nothing");
  const ActResult bad = Act(request);
  ::close(request.archive);
  EXPECT_EQ(bad.kind, ActResult::Kind::kJobs);
  EXPECT_THAT(bad.text, HasSubstr("it is no archive"));
}

TEST_F(UnpackTest, ARequestForItIsReadAsItWasWritten) {
  ActRequest request, read;
  std::string error;
  request.unpacked = "workdir-0123";
  request.archive = 77;
  ASSERT_TRUE(ParseActRequest(FormatActRequest(request), &read, &error)) << error;
  EXPECT_EQ(read.unpacked, request.unpacked);
  EXPECT_EQ(read.archive, kArchiveFd) << "what it is to whoever does it";
  EXPECT_FALSE(ParseActRequest("muster-shim-act version=1\narchive fd=0\nend\n", &read, &error));
}

}  // namespace
}  // namespace muster::shim
