#include "cli/up/lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <thread>

namespace muster {
namespace {

using ::testing::HasSubstr;

class UpLockTest : public ::testing::Test {
 protected:
  UpLockTest() {
    char name[] = "/tmp/muster-up-lock-test-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~UpLockTest() override { std::filesystem::remove_all(directory_); }

  absl::StatusOr<std::unique_ptr<UpLock>> Take() {
    return UpLock::Take(directory_, "unix:///run/s", &holder_);
  }

  std::string directory_;
  UpHolder holder_;
};

TEST_F(UpLockTest, WordsStandInPlaceOfThoseBefore) {
  const auto lock = Take();
  ASSERT_TRUE(lock.ok()) << lock.status();
  for (const char* trouble : {"one\ntwo and more", "three", "", "four"}) {
    (*lock)->Tell(trouble);
    const UpHolder holder = UpLock::Holder(directory_);
    EXPECT_EQ(holder.pid, getpid());
    EXPECT_EQ(holder.server, "unix:///run/s");
    EXPECT_EQ(holder.trouble, trouble);
  }
  EXPECT_TRUE(absl::IsAlreadyExists(Take().status()));
  EXPECT_EQ(holder_.pid, getpid());
}

TEST_F(UpLockTest, WhatCannotBeWrittenLeavesItsHolderNamed) {
  const auto lock = Take();
  ASSERT_TRUE(lock.ok()) << lock.status();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit none{0, before.rlim_max};
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  (*lock)->Tell("the disk is full");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  const UpHolder holder = UpLock::Holder(directory_);
  EXPECT_EQ(holder.pid, getpid());
  EXPECT_EQ(holder.server, "unix:///run/s");
}

// For this thread there are no locks, as on some network file systems. False: it can't be.
bool HaveNoLocks() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_flock, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOLCK),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{4, code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST_F(UpLockTest, AFileThatCannotBeLockedIsNobodys) {
  bool could = false;
  absl::Status taken;
  UpHolder holder;
  std::thread([&] {
    could = HaveNoLocks();
    taken = Take().status();
    holder = UpLock::Holder(directory_);
  }).join();
  if (!could) GTEST_SKIP() << "no filter can be set here";
  EXPECT_TRUE(absl::IsFailedPrecondition(taken)) << taken;
  EXPECT_THAT(std::string(taken.message()),
              HasSubstr("/up.lock can't be locked: No locks available; name a directory on a local "
                        "file system: --data-dir DIR"));
  EXPECT_EQ(holder.pid, 0);
  EXPECT_TRUE(Take().ok());
}

}  // namespace
}  // namespace muster
