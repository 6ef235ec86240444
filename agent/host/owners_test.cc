// Owners of jobs by the machine's accounts: as root, with accounts of a private /etc in a mount
// namespace of this process. Skipped without root.
#include "agent/host/owners.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "agent/host/processes.h"
#include "agent/host/state_dir.h"
#include "common/base/files.h"
#include "common/base/testing/eventually.h"

namespace muster::agent {
namespace {

namespace fs = std::filesystem;

constexpr char kAccounts[] =
    "root:x:0:0:root:/root:/bin/bash\n"
    "daemon:x:1:1:daemon:/:/usr/sbin/nologin\n"
    "svc:x:999:999::/var/lib/svc:/usr/sbin/nologin\n"
    "ann:x:61001:61001::/home/ann:/bin/bash\n"
    "toor:x:0:0::/root:/bin/bash\n"
    "staff:x:61003:0::/home/staff:/bin/bash\n"
    "wheel:x:61004:61004::/home/wheel:/bin/bash\n"
    "nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\n";
constexpr char kGroups[] = "root:x:0:wheel\nann:x:61001:\nteam:x:61100:ann,bob\n";

class OwnersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "wants root";
    char name[] = "/var/lib/muster-owners-test-XXXXXX";
    root_ = ::mkdtemp(name);
    ::chmod(root_.c_str(), 0755);
    std::ofstream(root_ + "/passwd") << kAccounts;
    std::ofstream(root_ + "/group") << kGroups;
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    for (const std::string file : {"passwd", "group"})
      ASSERT_EQ(::mount((root_ + "/" + file).c_str(), ("/etc/" + file).c_str(), nullptr, MS_BIND,
                        nullptr),
                0);
    fs::create_directory(root_ + "/ann");
    ASSERT_EQ(::chown((root_ + "/ann").c_str(), 61001, 61001), 0);
    host_.bin_directory = MUSTER_TEST_BIN;
    host_.as_owners = true;
    host_.user = "root";
    prepare_.mutable_key()->set_job_uid(std::string(32, 'c'));
    prepare_.mutable_key()->set_task("train");
    prepare_.mutable_key()->set_attempt(1);
    prepare_.set_owner("ann");
    prepare_.mutable_task()->mutable_run()->set_shell("true");
    prepare_.mutable_here()->set_workers(1);
    prepare_.set_gang_workers(1);
    prepare_.set_job_directory(root_ + "/ann/jobs/1");
    prepare_.set_attempt_directory(root_ + "/ann/jobs/1/train/attempt-1");
  }
  void TearDown() override {
    for (const char* file : {"/etc/passwd", "/etc/group"}) ::umount2(file, MNT_DETACH);
    if (!root_.empty()) fs::remove_all(root_);
  }
  std::shared_ptr<Owners> Make(uint32_t min_uid = 1000) {
    return std::make_shared<Owners>(root_ + "/owners",
                                    std::string(MUSTER_TEST_BIN) + "/muster-shim", min_uid);
  }
  absl::Status Prepare() {
    auto state = StateDirectory::Open(root_ + "/state");
    EXPECT_TRUE(state.ok()) << state.status();
    return HostProcesses(state->get(), host_, PortRange()).Prepare(prepare_).status();
  }

  std::string root_;
  LaunchHost host_;
  v1::Prepare prepare_;
};

TEST_F(OwnersTest, AreFoundByNameAndByNumberWithTheirGroups) {
  for (const char* name : {"ann", "61001"}) {
    const absl::StatusOr<Owner> owner = FindOwner(name, 1000);
    ASSERT_TRUE(owner.ok()) << owner.status();
    EXPECT_EQ(owner->name, "ann");
    EXPECT_EQ(owner->home, "/home/ann");
    EXPECT_EQ(owner->user.uid, 61001u);
    EXPECT_EQ(owner->user.gid, 61001u);
    EXPECT_EQ(owner->user.groups, (std::vector<uint32_t>{61001, 61100}));
  }
}

TEST_F(OwnersTest, WhoRunsNoJobsIsToldWhy) {
  const struct {
    const char* name;
    absl::StatusCode code;
    const char* says;
  } cases[] = {
      {"root", absl::StatusCode::kInvalidArgument, "uid 0 (root) runs no jobs"},
      {"0", absl::StatusCode::kInvalidArgument, "uid 0 (root) runs no jobs"},
      {"toor", absl::StatusCode::kInvalidArgument, "uid 0 (root) runs no jobs"},
      {"svc", absl::StatusCode::kInvalidArgument, "uid 999 is below 1000"},
      {"nobody", absl::StatusCode::kInvalidArgument, "nobody's"},
      {"staff", absl::StatusCode::kInvalidArgument, "group 0"},
      {"wheel", absl::StatusCode::kInvalidArgument, "group 0"},
      {"bob", absl::StatusCode::kInvalidArgument, "this host knows no user bob"},
      {"61009", absl::StatusCode::kInvalidArgument, "this host knows no user 61009"},
      {"", absl::StatusCode::kInvalidArgument, "knows no user"},
      {"../ann", absl::StatusCode::kInvalidArgument, "knows no user"},
      {"-ann", absl::StatusCode::kInvalidArgument, "knows no user"},
      {"a\nb", absl::StatusCode::kInvalidArgument, "knows no user"},
  };
  for (const auto& c : cases) {
    const absl::Status status = FindOwner(c.name, 1000).status();
    EXPECT_EQ(status.code(), c.code) << c.name;
    EXPECT_TRUE(absl::StrContains(status.message(), c.says)) << status;
  }
  EXPECT_TRUE(FindOwner("svc", 900).ok());
}

TEST_F(OwnersTest, WhoWasFoundIsKnownToTheNextAgent) {
  EXPECT_FALSE(Make()->Known("ann").ok());
  ASSERT_TRUE(Make()->Ask("ann").ok());
  const absl::StatusOr<Owner> known = Make()->Known("ann");
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(known->user.groups, (std::vector<uint32_t>{61001, 61100}));
  EXPECT_EQ(known->home, "/home/ann");
  EXPECT_FALSE(Make(70000)->Known("ann").ok()) << "what is refused now stays refused";
}

TEST_F(OwnersTest, AJobsDirectoriesAreItsOwners) {
  const absl::Status status = Prepare();
  ASSERT_TRUE(status.ok()) << status;
  struct stat info {};
  ASSERT_EQ(::lstat(prepare_.attempt_directory().c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 61001u);
}

TEST_F(OwnersTest, ADirectoryOfAnothersIsNotMadeByRoot) {
  prepare_.set_job_directory(root_ + "/roots/jobs/1");
  fs::create_directory(root_ + "/roots");
  const absl::Status status = Prepare();
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(absl::StrContains(status.message(), "Permission denied")) << status;
  EXPECT_TRUE(fs::is_empty(root_ + "/roots"));
}

TEST_F(OwnersTest, NobodysJobIsRefusedBeforeAnythingIsMade) {
  for (const char* owner : {"root", "svc", "bob", ""}) {
    prepare_.set_owner(owner);
    EXPECT_FALSE(Prepare().ok()) << owner;
  }
  EXPECT_TRUE(fs::is_empty(root_ + "/ann"));
}

TEST_F(OwnersTest, AnAgentOfOneUserRefusesOthersJobs) {
  host_.as_owners = false;
  host_.user = "bob";
  const absl::Status status = Prepare();
  EXPECT_TRUE(absl::StrContains(status.message(), "serves bob alone")) << status;
  EXPECT_TRUE(fs::is_empty(root_ + "/ann"));
  host_.user = "ann";
  EXPECT_TRUE(Prepare().ok());
}

TEST_F(OwnersTest, WhatAJobWouldNotSeeIsRefused) {
  prepare_.mutable_task()->set_workdir("/tmp/mine");
  EXPECT_TRUE(absl::IsInvalidArgument(Prepare()));
  prepare_.mutable_task()->set_workdir("/tmpfiles");
  EXPECT_TRUE(absl::StrContains(Prepare().message(), "No such file"));
  prepare_.mutable_task()->clear_workdir();
  prepare_.set_job_directory("/tmp/jobs/1");
  EXPECT_TRUE(absl::StrContains(Prepare().message(), "give the storage another path"));
}

TEST_F(OwnersTest, ExportsArePublishedAsTheOwner) {
  ASSERT_TRUE(Prepare().ok());
  auto state = StateDirectory::Open(root_ + "/state");
  ASSERT_TRUE(state.ok());
  StorageThreads threads;
  auto owners = std::make_shared<Owners>(root_ + "/state/owners",
                                         std::string(MUSTER_TEST_BIN) + "/muster-shim", 1000);
  (*state)->PublishBy(&threads, owners);
  AttemptRecord record;
  record.id = IdOf(prepare_.key());
  record.prepare = prepare_;
  const std::string staged = prepare_.attempt_directory() + "/export-staging";
  fs::create_directory(staged);
  ASSERT_EQ(::chown(staged.c_str(), 61001, 61001), 0);
  const auto publish = [&](const std::string& target) {
    EXPECT_TRUE(absl::IsUnavailable((*state)->Publish(record, staged, target)));
    EXPECT_TRUE(Eventually([&] { return !threads.TakeAnswered().empty(); }));
    return (*state)->Publish(record, staged, target);
  };
  EXPECT_FALSE(publish(root_ + "/cron.d").ok());
  EXPECT_FALSE(fs::exists(root_ + "/cron.d"));
  const absl::Status status = publish("model");
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(fs::exists(prepare_.job_directory() + "/model"));
}

TEST_F(OwnersTest, AJobGetsTheNodesOfItsDevices) {
  const std::string proc = root_ + "/proc", dev = root_ + "/dev";
  // In the order of the bus; the driver counts in another.
  for (const auto& [bus, minor] : {std::pair("0000:17:00.0", 1), std::pair("0000:65:00.0", 0)}) {
    fs::create_directories(proc + "/driver/nvidia/gpus/" + bus);
    std::ofstream(proc + "/driver/nvidia/gpus/" + bus + "/information")
        << "Model: \t\t H100\nDevice Minor: \t " << minor << "\n";
  }
  fs::create_directory(dev);
  for (const char* name : {"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"})
    std::ofstream(dev + "/" + name) << "";
  EXPECT_EQ(DeviceNodes({0}, proc, dev).value(),
            (std::vector<std::string>{dev + "/nvidiactl", dev + "/nvidia-uvm", dev + "/nvidia1"}));
  EXPECT_TRUE(DeviceNodes({}, proc, dev).value().empty());
  EXPECT_TRUE(absl::StrContains(DeviceNodes({2}, proc, dev).status().message(), "device 2"));
}

}  // namespace
}  // namespace muster::agent
