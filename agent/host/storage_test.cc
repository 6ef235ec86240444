// Which paths others answer for, and work on storage that may never come back.
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <memory>

#include "absl/strings/str_cat.h"
#include "agent/host/mounts.h"
#include "agent/host/state_dir.h"
#include "agent/host/storage_threads.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/testing/eventually.h"

namespace muster::agent {
namespace {

const AttemptId kId{std::string(32, 'a'), "main", 1};
const StorageKey kPrepare{kId, StorageUse::kPrepare};

class StorageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-storage-test-XXXXXX";
    directory_ = std::filesystem::canonical(::mkdtemp(name)).string();
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string directory_;
};

TEST_F(StorageTest, APathLiesOnWhatIsMountedOnItsWayLinksFollowed) {
  for (const char* name : {"disk", "nas", "over", "blank name"})
    std::filesystem::create_directory(directory_ + "/" + name);
  std::filesystem::create_symlink(directory_ + "/nas/jobs", directory_ + "/jobs");
  std::filesystem::create_symlink("../nas", directory_ + "/disk/link");
  std::filesystem::create_symlink("loop", directory_ + "/loop");
  const std::string table = directory_ + "/mountinfo";
  std::ofstream(table)
      << "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
      << "23 22 0:33 / /proc/sys/fs/binfmt_misc rw shared:5 - autofs systemd-1 rw\n"
      << "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
      << "40 27 0:50 / " << directory_
      << "/nas rw,relatime shared:7 master:2 - nfs4 nas:/export rw,vers=4.2\n"
      << "41 27 0:51 / " << directory_ << "/over rw - nfs old:/x rw\n"
      << "42 27 0:52 / " << directory_ << "/over rw - tmpfs tmpfs rw\n"
      << "43 27 0:53 / " << directory_
      << "/blank\\040name rw - fuse.sshfs me@far:/my\\040files rw\n"
      << "damaged\n";
  Mounts mounts(table);
  const std::string nas = absl::StrCat(directory_, "/nas (nfs4 of nas:/export)");
  const std::pair<std::string, std::string> cases[] = {
      {"/nas", nas},
      {"/nas/jobs/1", nas},
      {"/./disk//../nas/", nas},
      {"/jobs/1/main", nas},     // a link there
      {"/disk/link/deep", nas},  // a relative one
      {"/nasty", ""},
      {"/disk/new/one", ""},    // not there yet
      {"/disk/../over/x", ""},  // what lies on top counts
      {"/loop/x", ""},
      {"/mountinfo/x", ""},
      {"/blank name/x", absl::StrCat(directory_, "/blank name (fuse.sshfs of me@far:/my files)")},
  };
  for (const auto& [path, want] : cases)
    EXPECT_EQ(mounts.ServedByOthers(directory_ + path), want) << path;
  EXPECT_EQ(mounts.ServedByOthers("/proc/sys/fs/binfmt_misc"), "");

  std::ofstream(table) << "27 1 0:30 / / rw - 9p root rw\n";
  EXPECT_EQ(Mounts(table).ServedByOthers("/tmp"), "/ (9p of root)");
  EXPECT_EQ(Mounts(directory_ + "/missing").ServedByOthers("/tmp"), "");
}

// Work that waits until it is let go.
struct Stuck {
  std::shared_ptr<std::promise<absl::Status>> gate = std::make_shared<std::promise<absl::Status>>();
  std::shared_future<absl::Status> future = gate->get_future().share();
  StorageWork work(bool may_be_given_up) const {
    return {.where = "/nas", .may_be_given_up = may_be_given_up, .run = [future = future] {
              return future.get();
            }};
  }
};

bool Ready(const StorageThreads& threads) {
  pollfd ready{threads.ready(), POLLIN, 0};
  return ::poll(&ready, 1, 20'000) == 1;
}

TEST(StorageThreads, TellOnceWhatCameOfIt) {
  StorageThreads threads;
  const Stuck first, other;
  EXPECT_TRUE(absl::IsUnavailable(threads.Do(kPrepare, first.work(true))));
  EXPECT_TRUE(absl::IsUnavailable(threads.Do({kId, StorageUse::kPublish}, other.work(false))))
      << "of its own";
  EXPECT_TRUE(threads.UnderWay(kPrepare));
  EXPECT_TRUE(threads.TakeAnswered().empty());
  first.gate->set_value(absl::ResourceExhaustedError("full"));
  ASSERT_TRUE(Ready(threads));
  EXPECT_EQ(threads.TakeAnswered(), std::vector<StorageKey>{kPrepare});
  EXPECT_FALSE(threads.UnderWay(kPrepare));
  EXPECT_TRUE(threads.UnderWay({kId, StorageUse::kPublish}));
  EXPECT_TRUE(absl::IsResourceExhausted(threads.Do(kPrepare, first.work(true))));
  const Stuck again;
  EXPECT_TRUE(absl::IsUnavailable(threads.Do(kPrepare, again.work(true)))) << "begun anew";
  again.gate->set_value(absl::OkStatus());
  ASSERT_TRUE(Ready(threads));
  EXPECT_EQ(threads.TakeAnswered(), std::vector<StorageKey>{kPrepare});
  threads.Drop(kPrepare);
  threads.Drop({kId, StorageUse::kPublish});
  EXPECT_TRUE(threads.UnderWay({kId, StorageUse::kPublish})) << "only what is answered is dropped";
  EXPECT_TRUE(absl::IsUnavailable(
      threads.Do(kPrepare, {.where = "/nas", .run = [] { return absl::OkStatus(); }})));
  other.gate->set_value(absl::OkStatus());
}

// The agent's loop asks: it has heartbeats to send, or its host is taken for silent and its fences
// end what runs there.
TEST(StorageThreads, WhoAsksGoesOnAtOnce) {
  StorageThreads threads(10 * kSecond);
  const Stuck stuck;
  const int64_t began_ns = RealClock()->BootNs();
  EXPECT_TRUE(absl::IsUnavailable(threads.Do(kPrepare, stuck.work(true))));
  EXPECT_TRUE(threads.TakeAnswered().empty());
  EXPECT_LT(RealClock()->BootNs() - began_ns, 5 * kSecond);
  stuck.gate->set_value(absl::OkStatus());
}

TEST(StorageThreads, ArePatientForSoLongUnlessItMustNotBeGivenUp) {
  StorageThreads threads(50 * kMillisecond);
  const Stuck prepare, publish;
  threads.Do(kPrepare, prepare.work(true));
  threads.Do({kId, StorageUse::kPublish}, publish.work(false));
  EXPECT_LE(threads.next_ns(), RealClock()->BootNs() + 50 * kMillisecond);
  std::vector<StorageKey> answered;
  ASSERT_TRUE(Eventually([&] {
    answered = threads.TakeAnswered();
    return !answered.empty();
  }));
  EXPECT_EQ(answered, std::vector<StorageKey>{kPrepare});
  const absl::Status status = threads.Do(kPrepare, prepare.work(true));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_EQ(status.message(), "no answer from /nas within 50ms");
  ASSERT_TRUE(
      Eventually([&] { return threads.TakeAnswered().empty() && threads.next_ns() == INT64_MAX; }));
  EXPECT_TRUE(threads.UnderWay({kId, StorageUse::kPublish}));
  // It comes back after all: the one is of no interest any more, the other is told.
  prepare.gate->set_value(absl::OkStatus());
  publish.gate->set_value(absl::OkStatus());
  ASSERT_TRUE(Eventually([&] {
    answered = threads.TakeAnswered();
    return !answered.empty();
  }));
  EXPECT_EQ(answered, (std::vector<StorageKey>{{kId, StorageUse::kPublish}}));
}

// What the scheduler has may come late, and this host is not to blame.
TEST(StorageThreads, WhatIsOfNoHostHasItsOwnPatienceAndBlamesNone) {
  StorageThreads threads(1);
  const Stuck patient, late;
  StorageWork work = patient.work(true);
  work.patience_ns = kHour;
  ASSERT_TRUE(absl::IsUnavailable(threads.Do({kId, StorageUse::kFetch}, std::move(work))));
  work = late.work(true);
  work.patience_ns = 20 * kMillisecond;
  work.of_this_host = false;
  const StorageKey other{{kId.job_uid, "other", 1}, StorageUse::kFetch};
  ASSERT_TRUE(absl::IsUnavailable(threads.Do(other, std::move(work))));
  std::vector<StorageKey> answered;
  ASSERT_TRUE(Eventually([&] {
    answered = threads.TakeAnswered();
    return !answered.empty();
  }));
  EXPECT_EQ(answered, std::vector<StorageKey>{other});
  const absl::Status status = threads.Do(other, late.work(true));
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_EQ(status.message(), "no answer from /nas within 20ms");
  EXPECT_TRUE(threads.Has({kId, StorageUse::kFetch}));
  for (const Stuck* stuck : {&patient, &late}) stuck->gate->set_value(absl::OkStatus());
}

// What it brought goes with an answer that nobody asks for.
TEST(StorageThreads, WhatWorkBringsIsTakenByWhoAsksAndElseDropped) {
  StorageThreads threads;
  for (const bool asked : {true, false}) {
    auto brought = std::make_shared<int>(0);
    const std::weak_ptr<int> held = brought;
    int taken = 0;
    StorageWork work{.where = "the scheduler",
                     .may_be_given_up = true,
                     .run =
                         [brought] {
                           *brought = 7;
                           return absl::OkStatus();
                         },
                     .take = [brought, &taken] { taken = *brought; }};
    brought.reset();
    ASSERT_TRUE(absl::IsUnavailable(threads.Do(kPrepare, std::move(work))));
    work = {};
    ASSERT_TRUE(Ready(threads));
    ASSERT_EQ(threads.TakeAnswered(), std::vector<StorageKey>{kPrepare});
    EXPECT_TRUE(threads.Has(kPrepare));
    if (asked) {
      EXPECT_TRUE(threads.Do(kPrepare, {}).ok());
    } else {
      threads.Drop(kPrepare);
    }
    EXPECT_FALSE(threads.Has(kPrepare));
    EXPECT_EQ(taken, asked ? 7 : 0);
    EXPECT_TRUE(Eventually([&] { return held.expired(); })) << "its thread has ended, too";
  }
}

TEST(StorageThreads, OfADeadMountAreFewAndHoldUpNoOther) {
  StorageThreads threads(1);
  const Stuck stuck;
  const auto begin = [&](int attempt) {
    return threads.Do({{kId.job_uid, "main", attempt}, StorageUse::kPrepare}, stuck.work(true));
  };
  int attempt = 0;
  while (absl::IsUnavailable(begin(++attempt))) {
    ASSERT_LT(attempt, 100);
    ASSERT_TRUE(Eventually([&] { return !threads.TakeAnswered().empty(); }));
  }
  EXPECT_EQ(attempt, 9);
  EXPECT_TRUE(absl::IsDeadlineExceeded(begin(attempt))) << "told at once";
  EXPECT_TRUE(absl::IsUnavailable(threads.Do(
      {{kId.job_uid, "other", 1}, StorageUse::kPrepare},
      {.where = "/other", .may_be_given_up = true, .run = [] { return absl::OkStatus(); }})));
  // Once the threads are back, the mount is tried again.
  stuck.gate->set_value(absl::OkStatus());
  EXPECT_TRUE(Eventually([&] {
    threads.TakeAnswered();
    return absl::IsUnavailable(begin(++attempt));
  }));
}

// The old one may be large, and the target's storage slow: neither holds up the agent.
TEST_F(StorageTest, AnExportIsPublishedByAThread) {
  auto state = StateDirectory::Open(directory_ + "/state");
  ASSERT_TRUE(state.ok()) << state.status();
  StorageThreads threads;
  (*state)->PublishBy(&threads);
  for (const char* name : {"/job/staged/deep", "/job/model/old"})
    std::filesystem::create_directories(directory_ + name);
  AttemptRecord record;
  record.id = kId;
  record.prepare.set_job_directory(directory_ + "/job");
  EXPECT_TRUE(absl::IsUnavailable((*state)->Publish(record, directory_ + "/job/staged", "model")));
  ASSERT_TRUE(Ready(threads));
  EXPECT_EQ(threads.TakeAnswered(), (std::vector<StorageKey>{{kId, StorageUse::kPublish}}));
  EXPECT_TRUE((*state)->Publish(record, directory_ + "/job/staged", "model").ok());
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/job/model/deep"));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/job/staged"));
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/job/model.previous/old"));
}

}  // namespace
}  // namespace muster::agent
