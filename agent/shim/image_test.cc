#include "agent/shim/image.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

namespace muster::shim {
namespace {

namespace fs = std::filesystem;

TEST(ImageText, IsReadAsItWasWrittenAndNothingElseIs) {
  const Image image{"/a b", {"/j", "/c"}, {"/lib/x.so"}, "/w"};
  Image read;
  std::string error;
  ASSERT_TRUE(ParseImage(FormatImage(image), &read, &error)) << error;
  EXPECT_EQ(FormatImage(read), FormatImage(image));
  EXPECT_EQ(read.path, "/a b");
  for (const char* bad : {"", "muster-shim-image version=1\nend\n",
                          "muster-shim-image version=1\nimage path=a\nend\n",
                          "muster-shim-image version=1\nimage path=/a\nshown path=b\nend\n",
                          "muster-shim-image version=1\nimage path=/a\nother path=/b\nend\n",
                          "muster-shim-image version=1\nimage path=/a\n"}) {
    EXPECT_FALSE(ParseImage(bad, &read, &error)) << bad;
  }
}

TEST(ImageNames, OneIsAddedWhereTheImageHasNone) {
  const std::string root = "root:x:0:0:root:/root:/bin/sh\n", ann = "ann:x:1000:1000::/h:/bin/sh";
  EXPECT_EQ(WithName(root, 1000, ann), root + ann + "\n");
  EXPECT_EQ(WithName("root:x:0:", 1000, ann), "root:x:0:\n" + ann + "\n");
  EXPECT_EQ(WithName("", 1000, ann), ann + "\n");
  EXPECT_EQ(WithName(root + "bob:x:1000:1::/:\n", 1000, ann), root + "bob:x:1000:1::/:\n");
  EXPECT_EQ(WithName("1000:x:1:\nx\n:1000:\n", 1000, ann), "1000:x:1:\nx\n:1000:\n" + ann + "\n");
}

TEST(ImageShows, TheHostsDataAndNothingOfItsSystem) {
  for (const char* name : {"home", "data", "scratch", "mnt", "srv", "opt", "media", "nfs"})
    EXPECT_TRUE(IsShownWhereMissing(name)) << name;
  for (const char* name : {"", ".", "..", "bin", "boot", "dev", "etc", "lib", "lib64", "libx32",
                           "proc", "root", "run", "sbin", "sys", "tmp", "usr", "var", ".hidden"})
    EXPECT_FALSE(IsShownWhereMissing(name)) << name;
}

// An image of directories and a file: what it is like in there is seen by a child's own calls.
class ImageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 ? 0 : 1);
    int status = 0;
    ::waitpid(pid, &status, 0);
    if (status != 0) GTEST_SKIP() << "no user namespaces here";
    // Not in /tmp, which is the host's in there, too.
    char name[] = "/var/lib/muster-image-XXXXXX";
    if (::mkdtemp(name) == nullptr) GTEST_SKIP() << "/var/lib can't be written";
    root_ = name;
    ::chmod(root_.c_str(), 0755);
    image_ = {root_ + "/image", {root_ + "/job", root_ + "/gone"}, {root_ + "/libcuda.so.1"}, ""};
    for (const char* directory : {"/image/etc", "/image/opt/app", "/image/var", "/job", "/other"})
      fs::create_directories(root_ + directory);
    fs::permissions(root_ + "/job", fs::perms(0777));
    std::ofstream(root_ + "/image/etc/passwd") << "root:x:0:0:root:/:/bin/sh\n";
    std::ofstream(root_ + "/image/mark") << "x";
    std::ofstream(root_ + "/libcuda.so.1") << "driver";
  }
  void TearDown() override {
    if (!root_.empty()) fs::remove_all(root_);
  }

  // What a child says of itself in there; what went wrong, if it couldn't get there. `as`: uid.
  std::string Within(
      const std::function<std::string()>& look, uid_t as = ::getuid(),
      const std::function<bool()>& before = [] { return true; }) {
    int pipe[2];
    EXPECT_EQ(::pipe(pipe), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      std::string said;
      if (as != ::getuid() && (::setresgid(as, as, as) != 0 || ::setresuid(as, as, as) != 0))
        ::_exit(2);
      if (!before()) ::_exit(2);
      ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);  // as after the exec that comes before it
      ::setenv("USER", "ann", 1);
      ::setenv("SHELL", "/bin/sh", 1);
      ::setenv("HOME", "/home/ann", 1);
      bool refused = false;
      const int error = EnterImage(image_, &said, &refused);
      said = error != 0 ? (refused ? "refused: " : "") + said + ": " + strerror(error) : look();
      ::_exit(::write(pipe[1], said.data(), said.size()) < 0 ? 1 : 0);
    }
    ::close(pipe[1]);
    std::string said;
    char buffer[4096];
    for (ssize_t got; (got = ::read(pipe[0], buffer, sizeof buffer)) > 0;)
      said.append(buffer, static_cast<size_t>(got));
    ::close(pipe[0]);
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
    return said;
  }
  static std::string There(const std::string& path) {
    return ::access(path.c_str(), F_OK) == 0 ? "yes" : "no";
  }
  static std::string Written(const std::string& path) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    return fd < 0 ? strerrorname_np(errno) : "yes";
  }

  std::string root_;
  Image image_;
};

TEST_F(ImageTest, IsSeenWithWhatIsShownAndNothingElse) {
  EXPECT_EQ(Within([] { return There("/mark"); }), "yes");
  EXPECT_EQ(Within([&] { return There(root_ + "/job"); }), "yes");
  EXPECT_EQ(Within([&] { return There(root_ + "/other"); }), "no");
  EXPECT_EQ(Within([&] { return There(image_.path); }), "no") << "the host is gone";
  for (const char* path : {"/host", "/lower", "/made", "/usr/bin", "/etc/shadow", "/root"})
    EXPECT_EQ(Within([&] { return There(path); }), "no") << path;
  for (const char* path : {"/dev/null", "/proc/self/status", "/sys/kernel", "/tmp", "/opt/app"})
    EXPECT_EQ(Within([&] { return There(path); }), "yes") << path;
  EXPECT_EQ(Within([] { return There("/.muster/driver/libcuda.so.1"); }), "yes");
}

TEST_F(ImageTest, IsNotWrittenAndWhatIsShownIs) {
  for (const char* path : {"/new", "/mark", "/etc/new", "/opt/app/new", "/.muster/driver/new"})
    EXPECT_EQ(Within([&] { return Written(path); }), "EROFS") << path;
  EXPECT_EQ(Within([&] { return Written(root_ + "/job/new"); }), "yes");
  EXPECT_TRUE(fs::exists(root_ + "/job/new"));
  EXPECT_FALSE(fs::exists(root_ + "/image/new"));
}

TEST_F(ImageTest, GivesNoRights) {
  EXPECT_EQ(Within([] {
              struct statvfs info {};
              return ::statvfs("/", &info) == 0 && (info.f_flag & ST_NOSUID) != 0 &&
                             (info.f_flag & ST_NODEV) != 0
                         ? std::string("plain")
                         : std::string("devices or setuid files count");
            }),
            "plain");
  EXPECT_EQ(Within([] { return std::to_string(::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)); }), "1");
}

TEST_F(ImageTest, AUserKeepsIdentityAndName) {
  if (::getuid() != 0) GTEST_SKIP() << "wants root";
  const auto names = [] {
    std::ifstream file("/etc/passwd");
    return std::to_string(::getuid()) + " " + std::to_string(::getgid()) + " " +
           std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(Within(names, 61001),
            "61001 61001 root:x:0:0:root:/:/bin/sh\nann:x:61001:61001::/home/ann:/bin/sh\n");
  EXPECT_EQ(Within([&] { return Written(root_ + "/job/of-ann"); }, 61001), "yes");
  struct stat info {};
  ASSERT_EQ(::stat((root_ + "/job/of-ann").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 61001u);
}

TEST_F(ImageTest, NamesBehindLinksAreTheImagesAndNeverTheHosts) {
  if (::getuid() != 0) GTEST_SKIP() << "wants root";
  const auto names = [] {
    std::ifstream file("/etc/passwd");
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string mine = "ann:x:61001:61001::/home/ann:/bin/sh\n", passwd = "/etc/passwd";
  fs::create_directories(image_.path + "/usr/share");
  std::ofstream(image_.path + "/usr/share/passwd") << "bob:x:7:7::/:\n";
  std::ofstream(root_ + "/other/passwd") << "eve:x:8:8::/:\n";
  fs::create_symlink("x", image_.path + "/usr/share/circle");
  fs::create_symlink("circle", image_.path + "/usr/share/x");
  const std::string out = "/../../../../../..";
  const struct {
    std::string target, want;
  } links[] = {
      {"../usr/share/passwd", "bob:x:7:7::/:\n" + mine},
      {"/usr/share/passwd", "bob:x:7:7::/:\n" + mine},
      {root_ + "/other/passwd", mine},
      {".." + out + root_ + "/other/passwd", mine},
      {"/host" + root_ + "/other/passwd", mine},
      {"nowhere", mine},
      {"../usr/share/x", "refused: image " + image_.path +
                             ": its mounts: /etc/passwd: Too many levels of symbolic links"},
      {"../usr", "refused: image " + image_.path + ": its mounts: /etc/passwd: Is a directory"},
  };
  for (const auto& link : links) {
    fs::remove(image_.path + passwd);
    fs::create_symlink(link.target, image_.path + passwd);
    EXPECT_EQ(Within(names, 61001), link.want) << link.target;
  }
}

TEST_F(ImageTest, WhatCanNotBeOneIsSaidByName) {
  const auto none = [] { return std::string("entered"); };
  const std::string path = image_.path;
  image_.path = path + "/mark";
  EXPECT_EQ(Within(none), "image " + path + "/mark: Not a directory");
  image_.path = root_ + "/no";
  EXPECT_EQ(Within(none), "image " + root_ + "/no: No such file or directory");
  if (::getuid() != 0) return;
  image_.path = path;
  fs::permissions(path, fs::perms(0700));
  EXPECT_EQ(Within(none, 61001), "image " + path + ": Permission denied");
}

// Host, kernel and the image's file system have a say in it: whose path it is doesn't matter.
TEST_F(ImageTest, WhatNamespacesAndMountsRefuseIsNoPathsFault) {
  const auto none = [] { return std::string("entered"); };
  const uid_t uid = ::getuid();
  const gid_t gid = ::getgid();
  // In a namespace of its own that allows none below it, as a host may be set up.
  const auto forbid = [&] {
    const auto write = [](const char* path, const std::string& text) {
      std::ofstream file(path);
      return static_cast<bool>(file << text << std::flush);
    };
    const auto same = [](unsigned id) {
      return std::to_string(id) + " " + std::to_string(id) + " 1";
    };
    return ::unshare(CLONE_NEWUSER) == 0 && write("/proc/self/setgroups", "deny") &&
           write("/proc/self/uid_map", same(uid)) && write("/proc/self/gid_map", same(gid)) &&
           write("/proc/sys/user/max_user_namespaces", "0");
  };
  EXPECT_EQ(Within(none, uid, forbid),
            "refused: image " + image_.path + ": a user namespace: No space left on device");
  image_.path = "/proc/sys";  // compares names in its own way, which no overlay takes
  EXPECT_EQ(Within(none), "refused: image /proc/sys: its mounts: overlay: Invalid argument");
}

}  // namespace
}  // namespace muster::shim
