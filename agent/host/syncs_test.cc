// In which order the agent and the shim write, sync, rename and link (contracts 3, 5, 13 of
// docs/contracts.md): this program's own fsync, rename and link tell, and then do it; its write and
// mkdir know of a full disk. What a loss of power leaves is not tested by this, but that each step
// waits for what it relies on.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "agent/host/state_dir.h"
#include "agent/shim/durable.h"
#include "agent/shim/format.h"

namespace {

std::string g_root;  // empty: nothing is told
std::vector<std::string> g_log;
bool g_full = false;     // no file below the root grows, no directory is made there
int64_t g_ends_at = -1;  // SIGTERM arrives before the call that would be g_log[g_ends_at]

// A path below the root, without what differs from run to run.
std::string Short(const std::string& path) {
  std::string name = std::filesystem::path(path).lexically_normal().string();
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  name = name == g_root ? "." : name.substr(g_root.size() + 1);
  return absl::StrReplaceAll(name, {{absl::StrCat(".", ::getpid(), ".tmp"), ".tmp"}});
}

void Tell(const std::string& what, const std::string& path, const std::string& to = "") {
  if (g_root.empty() || !absl::StartsWith(path, g_root)) return;
  if (static_cast<int64_t>(g_log.size()) == g_ends_at) ::raise(SIGTERM);
  g_log.push_back(
      absl::StrCat(what, " ", Short(path), to.empty() ? "" : absl::StrCat(" ", Short(to))));
}

std::string PathOf(int fd) {
  return std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", fd)).string();
}

}  // namespace

extern "C" int fsync(int fd) {
  Tell("sync", PathOf(fd));
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
extern "C" int rename(const char* from, const char* to) noexcept {
  Tell("rename", from, to);
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
extern "C" int renameat2(int from_directory, const char* from, int to_directory, const char* to,
                         unsigned flags) noexcept {
  const int result =
      static_cast<int>(::syscall(SYS_renameat2, from_directory, from, to_directory, to, flags));
  if (result == 0)
    Tell((flags & RENAME_EXCHANGE) != 0 ? "exchange" : "rename", from,
         to);  // not every file system can; then it isn't what counts
  return result;
}
extern "C" int link(const char* from, const char* to) noexcept {
  Tell("link", from, to);
  return static_cast<int>(::syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
}
extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  if (g_full && absl::StartsWith(path, g_root) && ::access(path, F_OK) != 0)
    return errno = ENOSPC, -1;
  return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
extern "C" ssize_t write(int fd, const void* bytes, size_t size) {
  struct stat info {};
  if (g_full && absl::StartsWith(PathOf(fd), g_root) && ::fstat(fd, &info) == 0 &&
      ::lseek(fd, 0, SEEK_CUR) + static_cast<off_t>(size) > info.st_size)
    return errno = ENOSPC, -1;
  return ::syscall(SYS_write, fd, bytes, size);
}

namespace muster::agent {
namespace {

using Log = std::vector<std::string>;

class Syncs : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-syncs-test-XXXXXX";
    root_ = std::filesystem::canonical(::mkdtemp(name)).string();
  }
  void TearDown() override {
    g_root.clear();
    g_full = false;
    std::filesystem::remove_all(root_);
  }
  // From now on.
  void Listen() {
    g_root = root_;
    g_log.clear();
  }
  static Log Take() { return std::exchange(g_log, {}); }

  std::string root_;
};

TEST_F(Syncs, AFileIsSyncedBeforeItsNameAndItsNameBeforeItCounts) {
  Listen();
  ASSERT_EQ(shim::ReplaceFile(root_, "exits", "x"), 0);
  EXPECT_EQ(Take(), (Log{"sync .exits.tmp", "rename .exits.tmp exits", "sync ."}));
  ASSERT_EQ(shim::ReplaceFile(root_, "renewed", "x", /*sync=*/false), 0);
  EXPECT_EQ(Take(), (Log{"rename .renewed.tmp renewed"}));
  std::ofstream(shim::SpareName(root_, "exits")) << "what was there before";
  ASSERT_EQ(shim::ReplaceFile(root_, "exits", "y"), 0);
  EXPECT_EQ(Take(), (Log{"sync .exits.spare", "exchange .exits.spare exits", "sync ."}));
  std::filesystem::remove(root_ + "/exits");
  ASSERT_EQ(shim::ReplaceFile(root_, "exits", "z"), 0);
  EXPECT_EQ(Take(), (Log{"sync .exits.spare", "rename .exits.spare exits", "sync ."}));
}

TEST_F(Syncs, AClaimItsDirectoryAndTheDirectorysNameAreDurableBeforeAnybodyActsOnIt) {
  std::filesystem::create_directories(root_ + "/attempts/a");
  const std::string directory = root_ + "/attempts/a";
  shim::Claim winner = shim::Claim::kNone;
  Listen();
  ASSERT_EQ(shim::MakeClaim(directory, shim::Claim::kStarted, &winner), 0);  // no text lies ready
  EXPECT_EQ(Take(),
            (Log{"link claim-started attempts/a/claim", "sync attempts/a/.claim-started.tmp",
                 "link attempts/a/.claim-started.tmp attempts/a/claim", "sync attempts/a",
                 "sync attempts"}));
  // Who lost it acts on it as well.
  ASSERT_EQ(shim::MakeClaimTexts(root_), 0);
  Take();
  ASSERT_EQ(shim::MakeClaim(directory, shim::Claim::kStopped, &winner), 0);
  EXPECT_EQ(winner, shim::Claim::kStarted);
  EXPECT_EQ(Take(),
            (Log{"link claim-stopped attempts/a/claim", "sync attempts/a", "sync attempts"}));
}

TEST_F(Syncs, OfAStateDirectory) {
  ASSERT_TRUE(std::filesystem::create_directory(root_ + "/s"));
  std::filesystem::permissions(root_ + "/s", std::filesystem::perms::owner_all);
  Listen();
  auto state = StateDirectory::Open(root_ + "/s");
  ASSERT_TRUE(state.ok()) << state.status();
  Take();
  AttemptRecord record;
  record.id = {std::string(32, 'c'), "t", 1};
  *record.prepare.mutable_key() = KeyOf(record.id);
  const std::string at = "s/attempts/" + DirectoryName(record.id);

  // Durable: with its directory's name. Not so: only whole.
  ASSERT_TRUE((*state)->PersistPrepared(record, true).ok());
  EXPECT_EQ(Take(),
            (Log{"sync s/attempts", "sync " + at + "/.prepared.tmp",
                 absl::StrCat("rename ", at, "/.prepared.tmp ", at, "/prepared"), "sync " + at}));
  AttemptRecord later = record;
  later.id.attempt = 2;
  *later.prepare.mutable_key() = KeyOf(later.id);
  const std::string there = "s/attempts/" + DirectoryName(later.id);
  ASSERT_TRUE((*state)->PersistPrepared(later, false).ok());
  EXPECT_EQ(Take(), (Log{absl::StrCat("rename ", there, "/.prepared.tmp ", there, "/prepared")}));
  ASSERT_TRUE((*state)->PersistPrepared(later, true).ok());
  EXPECT_EQ(Take(), (Log{"sync s/attempts", "sync " + there + "/prepared", "sync " + there}));

  record.stop = StopRecord{v1::CANCEL, 1};
  ASSERT_TRUE((*state)->PersistStop(record).ok());
  EXPECT_EQ(Take(), (Log{"sync " + at + "/.stop.tmp",
                         absl::StrCat("rename ", at, "/.stop.tmp ", at, "/stop"), "sync " + at,
                         absl::StrCat("rename ", at, "/.stop.tmp ", at, "/.stop.spare")}));
  ASSERT_TRUE((*state)->ClaimStopped(record).ok());
  EXPECT_EQ(Take(),
            (Log{"link s/claim-stopped " + at + "/claim", "sync " + at, "sync s/attempts"}));

  // The commit number of a Forget is synced with the name that goes, before what it names is
  // removed.
  ASSERT_TRUE((*state)->PersistSeen({"store", 1, 7}, false).ok());
  ASSERT_TRUE((*state)->PersistSeen({"store", 1, 8}, false).ok());
  Take();
  ASSERT_TRUE((*state)->PersistSeen({"store", 1, 9}, false).ok());
  ASSERT_TRUE((*state)->Forget(record.id).ok());
  const std::string doomed = root_ + "/s/attempts/.forgotten-" + DirectoryName(record.id);
  EXPECT_TRUE(std::filesystem::exists(doomed));
  (*state)->CollectForgotten();
  EXPECT_FALSE(std::filesystem::exists(doomed));
  const Log log = Take();
  ASSERT_FALSE(log.empty());
  EXPECT_EQ(log.front(), "rename s/attempts/.seen-1-8 s/attempts/.seen-1-9");
  EXPECT_EQ(log.back(), "sync s/attempts");
}

TEST_F(Syncs, OnAFullDiskAttemptsAreRefusedAndStopped) {
  ASSERT_TRUE(std::filesystem::create_directory(root_ + "/s"));
  std::filesystem::permissions(root_ + "/s", std::filesystem::perms::owner_all);
  auto state = StateDirectory::Open(root_ + "/s");
  ASSERT_TRUE(state.ok()) << state.status();
  AttemptRecord record;
  record.id = {std::string(32, 'c'), "t", 1};
  *record.prepare.mutable_key() = KeyOf(record.id);
  // Begun before: its shim has reserved room for a stop.
  ASSERT_TRUE((*state)->PersistPrepared(record, true).ok());
  ASSERT_EQ(shim::ReserveFile((*state)->AttemptDirectory(record.id), shim::kStopFile, 4096), 0);
  record.stop = StopRecord{v1::CANCEL, 1};
  ASSERT_TRUE((*state)->PersistSeen({"store", 1, 1}, /*synced=*/true).ok());
  Listen();
  g_full = true;
  EXPECT_TRUE((*state)->PersistStop(record).ok());
  // What a scheduler that was restarted says is obeyed once its epoch is kept, however often it
  // was.
  for (uint64_t epoch = 2; epoch <= 4; ++epoch)
    EXPECT_TRUE((*state)->PersistSeen({"store", epoch, 1}, /*synced=*/true).ok()) << epoch;
  for (int round = 0; round < 3; ++round) {
    for (int attempt = 2; attempt < 10; ++attempt) {
      AttemptRecord late;
      late.id = {record.id.job_uid, record.id.task, 10 * round + attempt};
      EXPECT_FALSE((*state)->PersistPrepared(late, true).ok());
      const absl::StatusOr<Claim> winner = (*state)->ClaimStopped(late);
      ASSERT_TRUE(winner.ok()) << winner.status();
      EXPECT_EQ(*winner, Claim::kStopped);
      ASSERT_TRUE(round == 2 || (*state)->Forget(late.id).ok());
    }
    g_full = round == 1;  // there is room for a moment, but not at once
    (*state)->CollectForgotten();
    g_full = true;
  }
  g_full = false;
  state->reset();
  state = StateDirectory::Open(root_ + "/s");
  ASSERT_TRUE(state.ok()) << state.status();
  const auto records = (*state)->Load();
  ASSERT_TRUE(records.ok()) << records.status();
  ASSERT_EQ(records->size(), 9u);
  for (const AttemptRecord& found : *records) {
    if (found.id == record.id)
      EXPECT_EQ(found.stop, record.stop);
    else
      EXPECT_EQ(found.claim, Claim::kStopped) << found.id.attempt;
  }
}

// The marker comes last, whole, and by its name: what ends before it is no preparation (contract
// 5).
TEST_F(Syncs, ASigtermDuringPrepareLeavesNoMarker) {
  AttemptRecord record;
  record.id = {std::string(32, 'c'), "t", 1};
  record.boot_id = "boot";
  *record.prepare.mutable_key() = KeyOf(record.id);
  for (const bool durable : {true, false}) {
    int64_t at = 0;
    for (bool named = false; !named; ++at) {  // of the calls, which SIGTERM comes before; until it
                                              // comes after the marker has its name
      const std::string directory = absl::StrCat(root_, "/", durable ? "durable" : "loose", at);
      ASSERT_TRUE(std::filesystem::create_directory(directory));
      std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
      ASSERT_TRUE(StateDirectory::Open(directory).ok());
      const pid_t agent = ::fork();
      if (agent == 0) {
        auto state = StateDirectory::Open(directory);
        Listen();
        g_ends_at = at;
        if (state.ok()) (*state)->PersistPrepared(record, durable).IgnoreError();
        ::raise(SIGTERM);
      }
      int status = 0;
      ASSERT_EQ(::waitpid(agent, &status, 0), agent);
      ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
      auto state = StateDirectory::Open(directory);
      ASSERT_TRUE(state.ok()) << state.status();
      const auto records = (*state)->Load();
      ASSERT_TRUE(records.ok()) << records.status();
      named = std::filesystem::exists((*state)->AttemptDirectory(record.id) + "/prepared");
      const bool prepared = !records->empty() && records->front().prepared;
      EXPECT_EQ(prepared, named) << at;
    }
    // Before: the names of attempts are synced, the marker's content is; then it gets its name.
    EXPECT_EQ(at - 1, durable ? 3 : 1);
  }
}

}  // namespace
}  // namespace muster::agent
