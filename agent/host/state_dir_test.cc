#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/host/shim_files.h"
#include "agent/host/state_dir.h"
#include "agent/host/testing/host_fixture.h"
#include "agent/shim/durable.h"
#include "agent/shim/format.h"
#include "agent/shim/log_writer.h"
#include "common/base/files.h"
#include "common/base/ids.h"

namespace muster::agent {
namespace {

TEST_F(HostTest, WhatRanWithALostDirectoryEndsBeforeTheNewOneHasItsId) {
  const std::string path = directory_ + "/s";
  int times = 0;
  const StateDirectory::Making making = {
      RandomId, [&](const std::string& of) {
        ++times;
        EXPECT_EQ(of, path);
        // Who dies now does it again.
        EXPECT_FALSE(std::filesystem::exists(path + "/state_id"));
      }};
  ASSERT_TRUE(StateDirectory::Open(path, making).ok());
  ASSERT_TRUE(StateDirectory::Open(path, making).ok());
  EXPECT_EQ(times, 1);
}

TEST_F(HostTest, StateSurvivesAndOneAgentHasIt) {
  auto state = StateDirectory::Open(directory_ + "/s");
  ASSERT_TRUE(state.ok()) << state.status();
  const std::string id = (*state)->state_id();
  const absl::Status second = StateDirectory::Open(directory_ + "/s").status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(second.message().find("systemctl stop muster-agent"), absl::string_view::npos)
      << second;
  AttemptRecord record = Record();
  record.port = 20007;
  ASSERT_TRUE((*state)->PersistPrepared(record, true).ok());
  record.stop = StopRecord{v1::PREEMPTION, 7};
  ASSERT_TRUE((*state)->PersistStop(record).ok());
  ASSERT_TRUE((*state)->PersistSeen({"store", 4, 99}, true).ok());
  AttemptRecord unknown;
  unknown.id = {std::string(32, 'd'), "x.y", 1};
  EXPECT_EQ((*state)->ClaimStopped(unknown).value(), Claim::kStopped);
  state->reset();

  state = StateDirectory::Open(directory_ + "/s");
  ASSERT_TRUE(state.ok());
  EXPECT_EQ((*state)->state_id(), id);
  EXPECT_EQ((*state)->seen(), (Seen{"store", 4, 99}));
  const auto records = (*state)->Load();
  ASSERT_TRUE(records.ok());
  ASSERT_EQ(records->size(), 2u);
  EXPECT_TRUE((*records)[0].prepared);
  EXPECT_EQ((*records)[0].port, 20007);
  EXPECT_EQ((*records)[0].prepare.SerializeAsString(), record.prepare.SerializeAsString());
  EXPECT_EQ((*records)[0].stop, record.stop);
  EXPECT_EQ((*records)[1].id, unknown.id);
  EXPECT_EQ((*records)[1].claim, Claim::kStopped);
}

// Its shim is dead, and the agent may be restarted before anybody has heard of it.
TEST_F(HostTest, WhyProcessesEndedIsKeptWithTheOutcome) {
  AttemptRecord record = Record();
  record.ended = true;
  v1::WorkerExit& exit = record.exits.emplace_back();
  exit.set_rank(2);
  exit.set_exit_code(1);
  exit.set_detail("exit 1: CUDA error: uncorrectable ECC error");
  exit.set_at_ns(5);
  exit.set_oom(true);
  exit.set_own(true);
  exit.set_cause(v1::DEVICE_FAILURE);
  v1::WorkerExit& other = record.exits.emplace_back();
  other.set_rank(3);
  other.set_signal(9);
  other.set_detail("its shim was killed");
  auto state = StateDirectory::Open(directory_ + "/s");
  ASSERT_TRUE((*state)->PersistPrepared(record, true).ok());
  ASSERT_TRUE((*state)->PersistOutcome(record).ok());
  auto found = (*state)->Load();
  ASSERT_TRUE(found.ok() && found->size() == 1);
  ASSERT_EQ(found->at(0).exits.size(), 2u);
  for (size_t i = 0; i < 2; ++i)
    EXPECT_EQ(found->at(0).exits[i].SerializeAsString(), record.exits[i].SerializeAsString());
  // As the release before wrote it.
  Write("s/attempts/" + DirectoryName(record.id) + "/outcome",
        "muster-agent-outcome version=1\n"
        "outcome ended=1 cause=0 detail=x start_ns=1 end_ns=2 stop_sent=0 checkpoint_acked=0 "
        "published=0\n"
        "exit rank=2 code=1 signal=0 at_ns=5 detail=killed\nend\n");
  found = (*state)->Load();
  ASSERT_TRUE(found.ok() && found->size() == 1);
  ASSERT_EQ(found->at(0).exits.size(), 1u);
  EXPECT_EQ(found->at(0).exits[0].detail(), "killed");
  EXPECT_EQ(found->at(0).exits[0].cause(), v1::CAUSE_UNSPECIFIED);
}

// One of many is no reason to serve none; and nothing may run twice.
TEST_F(HostTest, AClaimThatCannotBeReadCountsAsStarted) {
  auto state = StateDirectory::Open(directory_ + "/s");
  AttemptRecord record = Record(), other = Record();
  other.id.attempt = 3;
  *other.prepare.mutable_key() = KeyOf(other.id);
  ASSERT_TRUE((*state)->PersistPrepared(record, true).ok());
  ASSERT_TRUE((*state)->PersistPrepared(other, true).ok());
  const std::string claim = (*state)->AttemptDirectory(record.id) + "/" + shim::kClaimFile;
  const auto is_started = [&](const std::string& how) {
    const auto found = (*state)->Load();
    ASSERT_TRUE(found.ok()) << how << ": " << found.status();
    ASSERT_EQ(found->size(), 2u) << how;
    EXPECT_TRUE(found->at(0).prepared) << how;
    EXPECT_EQ(found->at(0).claim, Claim::kStarted) << how;
    EXPECT_EQ(found->at(1).claim, Claim::kNone) << how;
    EXPECT_FALSE((*state)->ClaimStopped(record).ok()) << how;
  };
  for (const char* text : {"", "star", "stopped\nstopped\n"}) {
    std::ofstream(claim, std::ios::trunc) << text;
    is_started(text);
  }
  std::filesystem::remove(claim);
  std::filesystem::create_directory(claim);
  is_started("an error of its reader");
}

// As an agent that knows of none it would end what runs.
TEST_F(HostTest, AttemptsThatCannotBeListedAreNotTakenForNone) {
  auto state = StateDirectory::Open(directory_ + "/s");
  ASSERT_TRUE((*state)->Load().ok());
  std::filesystem::rename(directory_ + "/s/attempts", directory_ + "/s/away");
  EXPECT_FALSE((*state)->Load().ok());
}

// What power loss leaves of a file that was not synced: any part of it, which counts as none.
TEST_F(HostTest, AFileOfWhichAPartIsLeftCountsAsNone) {
  const std::string path = directory_ + "/s";
  AttemptRecord record = Record();
  record.port = 20007;
  record.stop = StopRecord{v1::PREEMPTION, 7};
  record.ended = true;
  record.cause = v1::HOST_LOST;
  record.detail = "the host was restarted";
  record.checkpoint_acked = 3;
  shim::Exits exits;
  exits.exits.push_back({0, 0, 0, 5, "", true, false});
  std::string attempt;
  {
    auto state = StateDirectory::Open(path);
    ASSERT_TRUE((*state)->PersistPrepared(record, true).ok());
    ASSERT_TRUE((*state)->PersistStop(record).ok());
    ASSERT_TRUE((*state)->PersistOutcome(record).ok());
    ASSERT_TRUE((*state)->PersistSeen({"store", 4, 99}, true).ok());
    attempt = (*state)->AttemptDirectory(record.id);
    ASSERT_EQ(shim::ReplaceFile(attempt, shim::kExitsFile, shim::FormatExits(exits)), 0);
  }
  struct Found {
    bool prepared, stop, outcome, seen, exits;
    bool operator==(const Found&) const = default;
  };
  const auto find = [&] {
    auto state = StateDirectory::Open(path);
    const auto records = (*state)->Load();
    EXPECT_EQ(records.value().size(), 1u);
    const AttemptRecord& there = (*records)[0];
    ShimNews news;
    int64_t events_read = 0;
    EXPECT_TRUE(ReadShimFiles(attempt, {}, &events_read, &news).ok());
    EXPECT_EQ(there.ended, there.cause == v1::HOST_LOST);
    EXPECT_EQ(there.ended, there.detail == record.detail && there.checkpoint_acked == 3);
    return Found{there.prepared, there.stop.has_value(), there.ended,
                 !(*state)->seen().store_id.empty(), news.final && news.exits.size() == 1};
  };
  ASSERT_EQ(find(), (Found{true, true, true, true, true}));
  const struct {
    std::string name;
    Found without;
  } files[] = {{attempt + "/prepared", {false, true, true, true, true}},
               {attempt + "/stop", {true, false, true, true, true}},
               {attempt + "/outcome", {true, true, false, true, true}},
               {path + "/seen", {true, true, true, false, true}},
               {attempt + "/exits", {true, true, true, true, false}}};
  for (const auto& file : files) {
    const std::string whole = ReadFile(file.name).value();
    for (size_t length = 0; length < whole.size(); ++length) {
      std::ofstream(file.name, std::ios::trunc) << whole.substr(0, length);
      EXPECT_EQ(find(), file.without) << file.name << " of " << length;
    }
    std::ofstream(file.name, std::ios::trunc) << whole;
    ASSERT_EQ(find(), (Found{true, true, true, true, true})) << file.name;
  }
}

// The newest commit number is a name among the attempts', which is durable with whatever is next
// made durable there.

// The newest commit number is a name among the attempts', which is durable with whatever is next
// made durable there.
TEST_F(HostTest, TheCommitNumberIsExactAfterARestart) {
  const std::string attempts = directory_ + "/s/attempts";
  const auto names = [&] {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(attempts)) {
      if (std::string name = entry.path().filename(); name.starts_with(".seen-"))
        found.insert(std::move(name));
    }
    return found;
  };
  using Names = std::set<std::string>;
  auto state = StateDirectory::Open(directory_ + "/s");
  ASSERT_TRUE((*state)->PersistSeen({"store", 4, 0}, true).ok());
  for (const uint64_t commit : {1, 9, 10})
    ASSERT_TRUE((*state)->PersistSeen({"store", 4, commit}, false).ok());
  EXPECT_EQ(names(), Names{".seen-4-10"});
  // The last that is known to be synced stays until a younger one is, as a rename may be half lost
  // with the power.
  ASSERT_TRUE((*state)->ClaimStopped(Record()).ok());
  for (const uint64_t commit : {10, 11, 12})
    ASSERT_TRUE((*state)->PersistSeen({"store", 4, commit}, false).ok());
  EXPECT_EQ(names(), (Names{".seen-4-10", ".seen-4-12"}));
  ASSERT_TRUE((*state)->Forget(Record().id).ok());
  (*state)->CollectForgotten();
  EXPECT_EQ(names(), Names{".seen-4-12"});
  ASSERT_TRUE((*state)->PersistSeen({"store", 4, 13}, false).ok());
  AttemptRecord record = Record();
  ASSERT_TRUE((*state)->PersistPrepared(record, true).ok());
  EXPECT_EQ(names(), Names{".seen-4-13"});
  ASSERT_TRUE((*state)->PersistSeen({"store", 4, 14}, false).ok());
  state->reset();
  Write("s/attempts/.seen-4-9", "");   // power loss may bring an old name back
  Write("s/attempts/.seen-3-15", "");  // or one of an epoch before
  state = StateDirectory::Open(directory_ + "/s");
  EXPECT_EQ((*state)->seen(), (Seen{"store", 4, 14}));
  EXPECT_EQ((*state)->Load()->size(), 1u) << "they are no attempts";
  EXPECT_EQ(names(), (Names{".seen-4-13", ".seen-4-14"}));
  ASSERT_TRUE((*state)->PersistSeen({"store", 4, 15}, false).ok());
  EXPECT_EQ(names(), (Names{".seen-4-13", ".seen-4-15"}))
      << "what may not be synced is renamed, not what is";
  // A new epoch counts from what it says.
  ASSERT_TRUE((*state)->PersistSeen({"store", 5, 2}, true).ok());
  state->reset();
  state = StateDirectory::Open(directory_ + "/s");
  EXPECT_EQ((*state)->seen(), (Seen{"store", 5, 2}));
  ASSERT_TRUE((*state)->PersistSeen({"store", 5, 3}, false).ok());
  EXPECT_EQ(names(), Names{".seen-5-3"});
}

// Without its MAC an agent that was restarted could not tell of a later state of the store.
TEST_F(HostTest, TheMacOfWhatWasSeenIsThereAfterARestart) {
  const std::string attempts = directory_ + "/s/attempts";
  const std::string zero(16, '\0'), high(16, '\xfe'), plain(16, 'a');
  auto state = StateDirectory::Open(directory_ + "/s");
  const auto again = [&] {
    state->reset();
    state = StateDirectory::Open(directory_ + "/s");
    return (*state)->seen();
  };
  ASSERT_TRUE((*state)->PersistSeen({"store", 4, 0, zero}, true).ok());
  EXPECT_EQ(again(), (Seen{"store", 4, 0, zero}));
  ASSERT_TRUE((*state)->PersistSeen({"store", 4, 7, high}, false).ok());
  EXPECT_TRUE(std::filesystem::exists(attempts + "/.seen-4-7-fefefefefefefefefefefefefefefefe"));
  EXPECT_EQ(again(), (Seen{"store", 4, 7, high}));
  // Each number has its own: what power loss leaves of two is believed, too.
  ASSERT_TRUE((*state)->ClaimStopped(Record()).ok());
  ASSERT_TRUE((*state)->PersistSeen({"store", 4, 8, plain}, false).ok());
  EXPECT_EQ(again(), (Seen{"store", 4, 8, plain}));
  state->reset();
  std::filesystem::remove(attempts + "/.seen-4-8-61616161616161616161616161616161");
  EXPECT_EQ(again(), (Seen{"store", 4, 7, high}));
  // A new epoch's, which has none, and one that is newer than the synced file.
  ASSERT_TRUE((*state)->PersistSeen({"store", 5, 2, ""}, true).ok());
  EXPECT_EQ(again(), (Seen{"store", 5, 2, ""}));
  Write("s/attempts/.seen-6-0-61616161616161616161616161616161", "");
  EXPECT_EQ(again(), (Seen{"store", 6, 0, plain}));
}

TEST_F(HostTest, WhatAReleaseWithoutMacsKeptIsRead) {
  {
    auto state = StateDirectory::Open(directory_ + "/s");
    ASSERT_TRUE(state.ok()) << state.status();
  }
  Write("s/seen", "muster-agent-seen version=1\nseen store_id=store epoch=4 commit=7\nend\n");
  Write("s/attempts/.seen-4-9", "");
  auto state = StateDirectory::Open(directory_ + "/s");
  EXPECT_EQ((*state)->seen(), (Seen{"store", 4, 9, ""}));
}

// As upgrades and ways back leave them: in whatever order the names are read.
TEST_F(HostTest, OfOneCommitTheMacIsTakenAndOfTwoTheNewest) {
  const struct {
    std::vector<std::string> names;
    Seen want;
  } cases[] = {
      {{}, {"store", 4, 7, "ab"}},
      {{".seen-4-7"}, {"store", 4, 7, "ab"}},
      {{".seen-4-6-6364"}, {"store", 4, 7, "ab"}},
      {{".seen-4-8"}, {"store", 4, 8, ""}},
      {{".seen-4-8", ".seen-4-8-6364"}, {"store", 4, 8, "cd"}},
      {{".seen-4-8-6364", ".seen-4-9"}, {"store", 4, 9, ""}},
      {{".seen-3-9-6364"}, {"store", 4, 7, "ab"}},
  };
  int number = 0;
  for (const auto& c : cases) {
    const std::string folder = absl::StrCat("s", ++number);
    ASSERT_TRUE(StateDirectory::Open(directory_ + "/" + folder).ok());
    Write(folder + "/seen",
          "muster-agent-seen version=1\nseen store_id=store epoch=4 commit=7 mac=6162\nend\n");
    for (const std::string& name : c.names) Write(absl::StrCat(folder, "/attempts/", name), "");
    const auto state = StateDirectory::Open(directory_ + "/" + folder);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ((*state)->seen(), c.want) << number << ": " << (*state)->seen().mac;
  }
}

TEST(ParseSeenName, TakesItWithAndWithoutAMac) {
  const struct {
    const char* name;
    std::optional<Seen> want;
  } cases[] = {
      {".seen-4-9", Seen{"", 4, 9, ""}},
      {".seen-4-9-", Seen{"", 4, 9, ""}},
      {".seen-4-9-6162", Seen{"", 4, 9, "ab"}},
      {".seen-4-9-616", std::nullopt},
      {".seen-4-9-61zz", std::nullopt},
      {".seen-4-9-61-62", std::nullopt},
      {".seen-4", std::nullopt},
      {".seen-4-x", std::nullopt},
      {".sean-4-9", std::nullopt},
  };
  for (const auto& c : cases) {
    Seen seen;
    EXPECT_EQ(ParseSeenName(c.name, &seen), c.want.has_value()) << c.name;
    if (c.want.has_value()) EXPECT_EQ(seen, *c.want) << c.name;
  }
}

TEST_F(HostTest, AStateDirectoryOpenToOthersIsRefused) {
  std::filesystem::create_directory(directory_ + "/s");
  std::filesystem::permissions(directory_ + "/s", std::filesystem::perms(0755));
  EXPECT_EQ(StateDirectory::Open(directory_ + "/s").status().code(),
            absl::StatusCode::kPermissionDenied);
}

TEST_F(HostTest, ForgettingKeepsTheLogsUntilRetentionTakesThem) {
  auto state = StateDirectory::Open(directory_ + "/s");
  const AttemptRecord record = Record();
  ASSERT_TRUE((*state)->PersistPrepared(record, true).ok());
  std::filesystem::create_directory((*state)->AttemptDirectory(record.id) + "/logs");
  ASSERT_TRUE((*state)->Forget(record.id).ok());
  EXPECT_TRUE((*state)->Load()->empty());
  EXPECT_TRUE(std::filesystem::exists((*state)->LogDirectory(record.id)));
  (*state)->PruneLogs({0, INT64_MAX}, 0);
  EXPECT_FALSE(std::filesystem::exists((*state)->LogDirectory(record.id)));
  EXPECT_TRUE((*state)->Forget(record.id).ok());  // again
}

TEST_F(HostTest, OfWhatWroteNothingThatIsKnownUntilRetentionTakesIt) {
  auto state = StateDirectory::Open(directory_ + "/s");
  const AttemptRecord record = Record();
  ASSERT_TRUE((*state)->PersistPrepared(record, true).ok());
  ASSERT_TRUE((*state)->Forget(record.id).ok());
  EXPECT_TRUE(std::filesystem::exists((*state)->LogDirectory(record.id)));
  EXPECT_TRUE(shim::LogRanks((*state)->LogDirectory(record.id)).empty());
  (*state)->PruneLogs({0, INT64_MAX}, 0);
  EXPECT_FALSE(std::filesystem::exists((*state)->LogDirectory(record.id)));
}

// By number, size and age, the oldest first, and never many files at once.

// By number, size and age, the oldest first, and never many files at once.
TEST_F(HostTest, LogsAreKeptWithinTheirBoundsAndRemovedAFewFilesAtATime) {
  auto state = StateDirectory::Open(directory_ + "/s");
  int forgotten = 0;
  const auto forget = [&](int files) {
    AttemptRecord record;
    record.id = {std::string(32, 'c'), "t", ++forgotten};
    *record.prepare.mutable_key() = KeyOf(record.id);
    ASSERT_TRUE((*state)->PersistPrepared(record, false).ok());
    const std::string logs = (*state)->AttemptDirectory(record.id) + "/logs";
    if (files > 0) std::filesystem::create_directory(logs);
    for (int i = 0; i < files; ++i)
      std::ofstream(absl::StrCat(logs, "/", shim::LogFileName(i, 0))) << std::string(1000, 'x');
    ASSERT_TRUE((*state)->Forget(record.id).ok());
  };
  const auto kept = [&] {
    std::vector<int> attempts;
    for (int i = 1; i <= forgotten; ++i) {
      if (std::filesystem::exists((*state)->LogDirectory({std::string(32, 'c'), "t", i})))
        attempts.push_back(i);
    }
    return attempts;
  };
  const Retention all{1000, 100, 1'000'000};
  forget(5);
  EXPECT_FALSE((*state)->PruneLogs(all, 1000));
  for (int i = 0; i < 4; ++i) forget(5);
  forget(0);
  EXPECT_FALSE((*state)->PruneLogs(all, 1050));
  EXPECT_EQ(kept().size(), 6u);
  EXPECT_FALSE((*state)->PruneLogs(all, 1101)) << "the age of what is forgotten counts from then";
  EXPECT_EQ(kept(), (std::vector<int>{2, 3, 4, 5, 6}));
  // Its size counts when it is forgotten, and after a restart, too.
  EXPECT_FALSE((*state)->LogsOverflow({1000, 100, 20'000}));
  EXPECT_TRUE((*state)->LogsOverflow({1000, 100, 19'999}));
  for (int i = 2; i <= 6; ++i) {
    const timespec times[2] = {{1000 + i, 0}, {1000 + i, 0}};
    ::utimensat(AT_FDCWD, (*state)->LogDirectory({std::string(32, 'c'), "t", i}).c_str(), times, 0);
  }
  state->reset();
  state = StateDirectory::Open(directory_ + "/s");
  const Retention small{1000, INT64_MAX, 10'000};
  EXPECT_TRUE((*state)->LogsOverflow({1000, 100, 19'999}));
  EXPECT_FALSE((*state)->LogsOverflow({1000, 100, 20'000}));
  // Ten files and two directories, three at a time.
  int calls = 1;
  for (; (*state)->PruneLogs(small, 2000, 3) && calls < 20; ++calls) {
  }
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(kept(), (std::vector<int>{4, 5, 6}));
  EXPECT_FALSE((*state)->PruneLogs({1, INT64_MAX, INT64_MAX}, 2000));
  EXPECT_EQ(kept(), std::vector<int>{6});
  for (int i = 0; i < 300; ++i) forget(0);
  EXPECT_FALSE((*state)->LogsOverflow({1, INT64_MAX, INT64_MAX}));
  forget(0);
  EXPECT_TRUE((*state)->LogsOverflow({1, INT64_MAX, INT64_MAX}));
}

// A shim holds a lock of it, which a new file of the same name would not have.
// Its shim holds a lock of the file: another in its place, and the agent would take it for dead.

// A shim holds a lock of it, which a new file of the same name would not have.
// Its shim holds a lock of the file: another in its place, and the agent would take it for dead.
TEST_F(HostTest, ARecordThatIsMadeDurableLaterStaysTheSameFile) {
  AttemptRecord record = Record();
  for (int i = 0; i < 20; ++i)
    (*record.prepare.mutable_job_env())[absl::StrCat("NAME", i)] =
        "value";  // a map's bytes differ from time to time
  auto state = StateDirectory::Open(directory_ + "/s");
  const std::string name = (*state)->AttemptDirectory(record.id) + "/prepared";
  const auto inode = [&] {
    struct stat info {};
    return ::stat(name.c_str(), &info) == 0 ? info.st_ino : 0;
  };
  ASSERT_TRUE((*state)->PersistPrepared(record, false).ok());
  const ino_t before = inode();
  ASSERT_TRUE((*state)->PersistPrepared(record, true).ok());
  EXPECT_EQ(inode(), before);
  for (int restart = 0; restart < 3; ++restart) {
    state->reset();
    state = StateDirectory::Open(directory_ + "/s");
    const auto known = (*state)->Load();
    ASSERT_EQ(known->size(), 1u);
    ASSERT_TRUE((*state)->PersistPrepared(known->at(0), true).ok());
    EXPECT_EQ(inode(), before) << "after an agent's restart";
    // As an agent of the release before wrote it.
    std::string text = ReadFile(name).value();
    const size_t sum = text.find(" sum=");
    if (sum == std::string::npos) break;
    text.erase(sum, text.find('\n', sum) - sum);
    const int fd = ::open(name.c_str(), O_WRONLY | O_TRUNC);
    EXPECT_EQ(shim::WriteAll(fd, text), 0);
    ::close(fd);
  }
  AttemptRecord another = record;
  another.port = record.port + 1;
  ASSERT_TRUE((*state)->PersistPrepared(another, true).ok());
  EXPECT_NE(inode(), before) << "what isn't the same record is replaced";
}

TEST_F(HostTest, ARecordOfWhichAPartIsDamagedCountsAsNone) {
  auto state = StateDirectory::Open(directory_ + "/s");
  const AttemptRecord record = Record();
  ASSERT_TRUE((*state)->PersistPrepared(record, false).ok());
  EXPECT_TRUE((*state)->Load()->at(0).prepared);
  const std::string directory = (*state)->AttemptDirectory(record.id);
  std::string text = ReadFile(directory + "/prepared").value();
  const size_t at = text.find("message=") + 20;
  text[at] = text[at] == 'x' ? 'y' : 'x';
  ASSERT_EQ(shim::ReplaceFile(directory, shim::kPreparedFile, text, false), 0);
  EXPECT_FALSE((*state)->Load()->at(0).prepared);
}

// No descriptor, signal mask or variable of the agent is found in a job, and its shim is our child.

}  // namespace
}  // namespace muster::agent
