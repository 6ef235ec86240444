#include "scheduler/store/store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "muster/v1/record.pb.h"
#include "scheduler/engine/testing/fixture.h"
#include "scheduler/state/state.h"
#include "scheduler/store/admin.h"
#include "scheduler/store/crc.h"
#include "scheduler/store/history.h"
#include "scheduler/store/migrations.h"
#include "scheduler/store/place.h"
#include "scheduler/store/sql.h"

namespace {

long g_file_system = 0;  // what statfs says of every directory; 0: the truth

}  // namespace

extern "C" int statfs(const char* path, struct statfs* info) noexcept {
  const int result = static_cast<int>(::syscall(SYS_statfs, path, info));
  if (result == 0 && g_file_system != 0) info->f_type = g_file_system;
  return result;
}

namespace muster {
namespace {

using ::testing::HasSubstr;

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-store-XXXXXX";
    directory_ = mkdtemp(name);
    options_.directory = directory_ + "/data";
  }
  void TearDown() override {
    store_.reset();
    std::filesystem::remove_all(directory_);
  }
  absl::Status Open() {
    store_.reset();
    absl::StatusOr<std::unique_ptr<SqliteStore>> store = SqliteStore::Open(options_, &recovered_);
    if (!store.ok()) return store.status();
    store_ = *std::move(store);
    return absl::OkStatus();
  }
  absl::Status Commit(uint64_t number, std::vector<std::string> events,
                      std::vector<RowChange> rows = {}, int64_t now_ns = kDay) {
    Transaction transaction;
    transaction.commit = number;
    transaction.now_ns = now_ns;
    transaction.events = std::move(events);
    transaction.rows = std::move(rows);
    return store_->Commit(transaction);
  }
  // Runs SQL on the closed store, as a fault would.
  void Damage(const std::string& sql) {
    store_.reset();
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open((options_.directory + "/" + kStoreFile).c_str(), &db), SQLITE_OK);
    absl::Status status = Execute(db, sql);
    sqlite3_close(db);
    ASSERT_TRUE(status.ok()) << status;
  }
  // From a connection of its own, as an operator's tool reads it.
  absl::Status ReadJournal(
      uint64_t first, uint64_t last,
      const std::function<void(uint64_t commit, const std::string& event)>& each) {
    sqlite3* db = nullptr;
    EXPECT_EQ(sqlite3_open_v2((options_.directory + "/" + kStoreFile).c_str(), &db,
                              SQLITE_OPEN_READONLY, nullptr),
              SQLITE_OK);
    const absl::Status status = ScanJournal(db, first, last, each);
    sqlite3_close(db);
    return status;
  }
  std::vector<std::string> Journal(uint64_t first, uint64_t last) {
    std::vector<std::string> events;
    const absl::Status status =
        ReadJournal(first, last, [&](uint64_t commit, const std::string& event) {
          events.push_back(std::to_string(commit) + event);
        });
    if (!status.ok()) events.push_back(std::string(status.message()));
    return events;
  }

  std::string directory_;
  StoreOptions options_;
  Recovered recovered_;
  std::unique_ptr<SqliteStore> store_;
};

TEST(Crc32cTest, KnownValues) {
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720 B.4
  EXPECT_EQ(Crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
}
TEST(Crc32cTest, GoesOn) { EXPECT_EQ(Crc32c("6789", Crc32c("12345")), Crc32c("123456789")); }

TEST_F(StoreTest, WhatWasCommittedIsThereAfterReopening) {
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(recovered_.created);
  EXPECT_EQ(recovered_.epoch, 1u);
  const std::string id = recovered_.store_id;
  ASSERT_TRUE(Commit(1, {"a", "b"}, {{"host", "lab/h1", "one"}, {"meta", "", "m"}}).ok());
  ASSERT_TRUE(
      Commit(2, {"c"}, {{"host", "lab/h1", std::nullopt}, {"meta", "", std::string("\0n", 2)}})
          .ok());
  ASSERT_TRUE(Open().ok());
  EXPECT_FALSE(recovered_.created);
  EXPECT_EQ(recovered_.store_id, id);
  EXPECT_EQ(recovered_.epoch, 2u);
  EXPECT_EQ(recovered_.last_commit, 2u);
  ASSERT_EQ(recovered_.rows.size(), 1u);
  EXPECT_EQ(recovered_.rows[0].kind, "meta");
  EXPECT_EQ(*recovered_.rows[0].bytes, std::string("\0n", 2));
  EXPECT_THAT(Journal(1, 2), ::testing::ElementsAre("1a", "1b", "2c"));
  EXPECT_TRUE(CheckStore(options_.directory).ok());
  const std::atomic<bool> stop = true;
  EXPECT_EQ(CheckStore(options_.directory, &stop).code(), absl::StatusCode::kCancelled);
}

std::vector<sqlite3*>* g_writers = nullptr;  // connections that may write the store

TEST_F(StoreTest, OneConnectionWritesAndItHasTheSettingsThatKeepItSafe) {
  std::vector<sqlite3*> writers;
  g_writers = &writers;
  const auto opened = +[](sqlite3* db, const char**, const sqlite3_api_routines*) -> int {
    const char* file = sqlite3_db_filename(db, "main");
    if (file != nullptr && std::string_view(file).ends_with(kStoreFile) &&
        sqlite3_db_readonly(db, "main") == 0)
      g_writers->push_back(db);
    return SQLITE_OK;
  };
  pb::Event step;
  step.mutable_step()->set_now_ns(kDay);
  State state;
  Apply(&state, step);
  ASSERT_EQ(sqlite3_auto_extension(reinterpret_cast<void (*)()>(opened)), SQLITE_OK);
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Commit(1, {step.SerializeAsString()}, state.AllRows()).ok());
  EXPECT_EQ(Journal(1, 1).size(), 1u);
  EXPECT_TRUE(CheckStore(options_.directory).ok());
  EXPECT_TRUE(BackupStore(options_.directory, directory_ + "/backup.sqlite").ok());
  store_->Idle();
  sqlite3_cancel_auto_extension(reinterpret_cast<void (*)()>(opened));
  ASSERT_EQ(writers.size(), 1u);
  const std::pair<const char*, const char*> settings[] = {
      {"journal_mode", "wal"},    {"synchronous", "2"},     {"foreign_keys", "1"},
      {"trusted_schema", "0"},    {"cell_size_check", "1"}, {"mmap_size", "0"},
      {"wal_autocheckpoint", "0"}};
  for (const auto& [name, value] : settings)
    EXPECT_EQ(QueryText(writers[0], std::string("PRAGMA ") + name).value_or("error"), value)
        << name;
}

TEST_F(StoreTest, TheWriteAheadLogIsCopiedAtAThousandPagesAndEmptiedWhenThereIsTime) {
  ASSERT_TRUE(Open().ok());
  const std::string log = options_.directory + "/" + kStoreFile + "-wal";
  for (uint64_t commit = 1; commit <= 20; ++commit) {
    ASSERT_TRUE(Commit(commit, {"a"},
                       {{"host", "lab/h1", std::string(1 << 20, static_cast<char>('a' + commit))}})
                    .ok());
    ASSERT_LT(std::filesystem::file_size(log), 8u << 20) << commit;
  }
  store_->Idle();
  EXPECT_EQ(std::filesystem::file_size(log), 0u);
}

// One open reader keeps the writer from using the write-ahead log anew (contract 21).
TEST_F(StoreTest, AReadersTransactionIsOfAThousandCommitsAtMost) {
  // In memory, where there is such a place: it takes more commits than its syncs are worth.
  if (char name[] = "/dev/shm/muster-store-XXXXXX"; mkdtemp(name) != nullptr) {
    std::filesystem::remove_all(directory_);
    directory_ = name;
    options_.directory = directory_ + "/data";
  }
  options_.allow_any_file_system = true;
  ASSERT_TRUE(Open().ok());
  for (uint64_t commit = 1; commit <= 1100; ++commit) ASSERT_TRUE(Commit(commit, {"a"}).ok());
  store_.reset();
  sqlite3* writer = nullptr;
  ASSERT_EQ(sqlite3_open((options_.directory + "/" + kStoreFile).c_str(), &writer), SQLITE_OK);
  uint64_t read = 0;
  const absl::Status status = ReadJournal(1, 1100, [&](uint64_t commit, const std::string&) {
    if (commit == 1)
      EXPECT_TRUE(
          Execute(writer, "UPDATE journal SET bytes = 'z' WHERE commit_number IN (900, 1050)")
              .ok());
    read = commit;
  });
  sqlite3_close(writer);
  // What changed meanwhile isn't in the transaction of commit 1, which 900 is of; it is in that of
  // 1050.
  EXPECT_EQ(read, 1049u);
  EXPECT_THAT(std::string(status.message()), HasSubstr("checksum of commit 1050"));
}

TEST_F(StoreTest, ASecondDaemonIsRefused) {
  ASSERT_TRUE(Open().ok());
  Recovered other;
  const absl::Status status = SqliteStore::Open(options_, &other).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("another musterd"));
}

TEST_F(StoreTest, ACopyIsServedOnlyOnceItIsAdopted) {
  ASSERT_TRUE(Open().ok());
  if (FileIdentity(options_.directory + "/" + kStoreFile).empty())
    GTEST_SKIP() << directory_ << " lies where inodes say nothing";
  ASSERT_TRUE(Commit(1, {"e"}).ok());
  const std::string original = options_.directory, id = recovered_.store_id;
  store_.reset();
  options_.directory = directory_ + "/moved";
  std::filesystem::rename(original, options_.directory);
  ASSERT_TRUE(Open().ok()) << "it is the same file";
  store_.reset();
  const std::string moved = options_.directory;
  options_.directory = directory_ + "/copy";
  std::filesystem::copy(moved, options_.directory);
  const absl::Status refused = Open();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("this is a copy"));
  options_.adopt_restored = true;
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(recovered_.store_id, id);
  ASSERT_TRUE(Commit(2, {"adopted"}).ok());
  options_.adopt_restored = false;
  EXPECT_TRUE(Open().ok()) << "it is a store of its own now";
  options_.directory = moved;
  EXPECT_TRUE(Open().ok()) << "the original knows nothing of it";
}

TEST(PlaceTest, AFileIsKnownByWhatIsKnownOfIt) {
  struct Case {
    const char *one, *other;
    bool same;
  };
  for (const Case& c : {Case{"7.100.5", "7.100.5", true}, Case{"7.100.5", "7.100.6", false},
                        Case{"7.100.5", "8.100.5", false}, Case{"7.100.5", "7.0.0", true},
                        Case{"7.0.0", "8.0.0", false}, Case{"7.0.0", "7.0.0", true},
                        Case{"7.100.5", "", true}, Case{"", "7.0.0", true}}) {
    EXPECT_EQ(MayBeSameFile(c.one, c.other), c.same) << c.one << " " << c.other;
  }
}

TEST_F(StoreTest, WhatAnOlderReleaseServedSaysNotWhereItLay) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Commit(1, {"e"}).ok());
  Damage("UPDATE meta SET instance = '0123456789abcdef0123456789abcdef'");
  EXPECT_TRUE(Open().ok());
}

TEST_F(StoreTest, ANetworkFileSystemIsRefused) {
  g_file_system = 0x6969;
  const absl::Status status = Open();
  g_file_system = 0;
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(options_.directory + " is on a network file system (nfs)"));
  EXPECT_TRUE(std::filesystem::is_empty(options_.directory))
      << "neither a lock nor a database was made there";
  EXPECT_TRUE(Open().ok());
}

struct ThiefCase {
  const char* name;
  const char* sql;
};

class TakenStoreTest : public StoreTest, public ::testing::WithParamInterface<ThiefCase> {};

TEST_P(TakenStoreTest, RefusesACommitAndLeavesNothingOfIt) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Commit(1, {"a"}).ok());
  sqlite3* thief = nullptr;  // a second writer, as after a lost lock
  ASSERT_EQ(sqlite3_open((options_.directory + "/" + kStoreFile).c_str(), &thief), SQLITE_OK);
  ASSERT_TRUE(Execute(thief, GetParam().sql).ok());
  EXPECT_EQ(Commit(2, {"b"}, {{"meta", "", "m"}}).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Commit(2, {"b"}).code(), absl::StatusCode::kFailedPrecondition)
      << "a store that failed refuses everything";
  EXPECT_EQ(*QueryInt(thief, "SELECT count(*) FROM journal"), 1);
  EXPECT_EQ(*QueryInt(thief, "SELECT count(*) FROM rows"), 0);
  sqlite3_close(thief);
}

TEST_P(TakenStoreTest, TrimsNothingOfIt) {
  ASSERT_TRUE(Open().ok());
  for (uint64_t i = 1; i <= 10; ++i) ASSERT_TRUE(Commit(i, {"x"}, {}, kDay).ok());
  ASSERT_TRUE(Commit(11, {"y"}, {}, 3 * kDay).ok());
  sqlite3* thief = nullptr;
  ASSERT_EQ(sqlite3_open((options_.directory + "/" + kStoreFile).c_str(), &thief), SQLITE_OK);
  const int64_t before = *QueryInt(thief, "SELECT count(*) FROM journal");
  ASSERT_GT(before, 1) << "there is something to trim";
  ASSERT_TRUE(Execute(thief, GetParam().sql).ok());
  store_->Idle();
  EXPECT_EQ(*QueryInt(thief, "SELECT count(*) FROM journal"), before);
  EXPECT_EQ(Commit(12, {"z"}).code(), absl::StatusCode::kFailedPrecondition);
  sqlite3_close(thief);
}

INSTANTIATE_TEST_SUITE_P(
    Store, TakenStoreTest,
    ::testing::Values(
        ThiefCase{"AnotherEpoch", "UPDATE meta SET epoch = epoch + 1"},
        // As where two copies of one store were opened, and their files changed places.
        ThiefCase{"AnotherInstanceOfTheSameEpoch", "UPDATE meta SET instance = 'thief'"}),
    [](const auto& info) { return info.param.name; });

struct DamageCase {
  const char* name;
  const char* sql;
  absl::StatusCode code;
  const char* says;
};

class DamagedStoreTest : public StoreTest, public ::testing::WithParamInterface<DamageCase> {};

TEST_P(DamagedStoreTest, IsRefused) {
  ASSERT_TRUE(Open().ok());
  for (uint64_t i = 1; i <= 5; ++i) ASSERT_TRUE(Commit(i, {"x", "y"}).ok());
  Damage(GetParam().sql);
  const absl::Status status = Open();
  EXPECT_EQ(status.code(), GetParam().code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().says));
  EXPECT_THAT(std::string(status.message()), HasSubstr(options_.directory));
}

INSTANTIATE_TEST_SUITE_P(
    Store, DamagedStoreTest,
    ::testing::Values(
        DamageCase{"FlippedByte",
                   "UPDATE journal SET bytes = 'z' WHERE commit_number = 3 AND seq = 1",
                   absl::StatusCode::kDataLoss, "checksum of commit 3"},
        DamageCase{"MissingCommit", "DELETE FROM journal WHERE commit_number = 3",
                   absl::StatusCode::kDataLoss, "commit 2 lacks"},
        DamageCase{"MissingEvent", "DELETE FROM journal WHERE commit_number = 3 AND seq = 0",
                   absl::StatusCode::kDataLoss, "lacks event"},
        DamageCase{"MissingEnd", "DELETE FROM journal WHERE commit_number = 5",
                   absl::StatusCode::kDataLoss, "ends at commit 4"},
        DamageCase{"NewerVersion", "PRAGMA user_version = 99",
                   absl::StatusCode::kFailedPrecondition, "newer than this musterd"}),
    [](const auto& info) { return info.param.name; });

// What the thread that musterd starts for it finds: damage that opening the store doesn't meet.
TEST_F(StoreTest, TheCheckOfTheWholeStoreFindsAChangedEvent) {
  ASSERT_TRUE(Open().ok());
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(Commit(i, {"x"}).ok());
  EXPECT_TRUE(CheckStore(options_.directory).ok());
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((options_.directory + "/" + kStoreFile).c_str(), &db), SQLITE_OK);
  ASSERT_TRUE(Execute(db, "UPDATE journal SET bytes = 'z' WHERE commit_number = 2").ok());
  sqlite3_close(db);
  const absl::Status status = CheckStore(options_.directory);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("checksum of commit 2, event 0"));
}

TEST_F(StoreTest, TheCheckOfTheWholeStoreFindsADamagedPage) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Commit(1, {"x"}).ok());
  store_.reset();  // nothing is left in the write-ahead log
  const std::string file = options_.directory + "/" + kStoreFile;
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(file.c_str(), &db), SQLITE_OK);
  const int64_t page = *QueryInt(
                    db, "SELECT rootpage FROM sqlite_master WHERE name = 'history_by_end'"),
                page_bytes = *QueryInt(db, "PRAGMA page_size");
  sqlite3_close(db);
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(CheckStore(options_.directory).ok());
  const int fd = ::open(file.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_EQ(::pwrite(fd, "damaged.", 8, (page - 1) * page_bytes), 8);
  ::close(fd);
  const absl::Status status = CheckStore(options_.directory);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("quick_check"));
  EXPECT_TRUE(Open().ok()) << "no index of the history is read then";
}

// A store as version 1 wrote it: without history.
constexpr char kVersionOne[] =
    "PRAGMA journal_mode=WAL;"
    "CREATE TABLE meta (one INTEGER PRIMARY KEY CHECK (one = 1), store_id TEXT NOT NULL, epoch "
    "INTEGER NOT NULL,"
    " instance TEXT NOT NULL, last_commit INTEGER NOT NULL);"
    "CREATE TABLE journal (commit_number INTEGER NOT NULL, seq INTEGER NOT NULL, now_ns INTEGER "
    "NOT NULL, crc INTEGER NOT NULL,"
    " bytes BLOB NOT NULL, PRIMARY KEY (commit_number, seq)) WITHOUT ROWID;"
    "CREATE TABLE rows (kind TEXT NOT NULL, id TEXT NOT NULL, bytes BLOB NOT NULL, PRIMARY KEY "
    "(kind, id)) WITHOUT ROWID;"
    "INSERT INTO meta VALUES (1, '0123456789abcdef0123456789abcdef', 7, 'x', 0);"
    "INSERT INTO rows VALUES ('meta', '', 'm'); PRAGMA user_version = 1";

TEST_F(StoreTest, VersionOneIsMigrated) {
  std::filesystem::create_directories(options_.directory);
  Damage(kVersionOne);
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(recovered_.epoch, 8u);
  EXPECT_EQ(recovered_.store_id, "0123456789abcdef0123456789abcdef");
  EXPECT_EQ(recovered_.rows.size(), 1u);
  EXPECT_TRUE(Commit(1, {"a"}).ok());
  // What it was before lies beside it, whole.
  store_.reset();
  sqlite3* before = nullptr;
  ASSERT_EQ(sqlite3_open((options_.directory + "/muster.db.version-1").c_str(), &before),
            SQLITE_OK);
  EXPECT_EQ(*QueryInt(before, "PRAGMA user_version"), 1);
  EXPECT_EQ(*QueryInt(before, "SELECT epoch FROM meta"), 7);
  EXPECT_EQ(*QueryInt(before, "SELECT count(*) FROM rows"), 1);
  sqlite3_close(before);
}

TEST_F(StoreTest, AMigrationThatFailsHalfwayLeavesTheStoreAsItWas) {
  std::filesystem::create_directories(options_.directory);
  Damage(std::string(kVersionOne) +
         "; CREATE TABLE history_by_owner (in_the_way)");  // of an index that the step makes after
                                                           // its table
  const absl::Status status = Open();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("migration from version 1"));
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((options_.directory + "/" + kStoreFile).c_str(), &db), SQLITE_OK);
  EXPECT_EQ(*QueryInt(db, "PRAGMA user_version"), 1);
  EXPECT_EQ(
      *QueryInt(db,
                "SELECT count(*) FROM sqlite_master WHERE name IN ('history', 'history_by_end')"),
      0);
  EXPECT_EQ(*QueryInt(db, "SELECT epoch FROM meta"), 7);
  EXPECT_TRUE(Execute(db, "DROP TABLE history_by_owner").ok());
  sqlite3_close(db);
  EXPECT_TRUE(Open().ok()) << "and it is migrated once nothing is in the way";
}

TEST_F(StoreTest, WhatIsRefusedIsNotMigrated) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Commit(1, {"e"}).ok());
  Damage("PRAGMA user_version = 2; UPDATE meta SET instance = 'backup'");
  EXPECT_EQ(Open().code(), absl::StatusCode::kFailedPrecondition);
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((options_.directory + "/" + kStoreFile).c_str(), &db), SQLITE_OK);
  EXPECT_EQ(*QueryInt(db, "PRAGMA user_version"), 2) << "the older release can go on with it";
  sqlite3_close(db);
  EXPECT_FALSE(std::filesystem::exists(options_.directory + "/muster.db.version-2"));
}

// A store as an older version wrote it: its rows are not what its events make by the rules of now.
class OlderStoreTest : public StoreTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Versions, OlderStoreTest, ::testing::Range(2, kSchemaVersion));

TEST_P(OlderStoreTest, IsMigratedAndItsJournalNotAppliedByNewRules) {
  const std::string copy =
      absl::StrCat("muster.db.version-", GetParam());  // with the tables of now
  ASSERT_TRUE(Open().ok());
  for (uint64_t i = 1; i <= 3; ++i) {
    pb::Event step;
    step.mutable_step()->set_now_ns(static_cast<int64_t>(i) * kDay);
    ASSERT_TRUE(Commit(i, {step.SerializeAsString()}).ok());
  }
  Damage(absl::StrCat("PRAGMA user_version = ", GetParam()));
  std::ofstream(options_.directory + "/" + copy) << "of an upgrade that was gone back on";
  const absl::StatusOr<StoreReport> before = VerifyStore(options_.directory + "/" + kStoreFile);
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_FALSE(before->replayed) << "also before it is migrated";
  ASSERT_TRUE(Open().ok());
  pb::Event step;
  step.mutable_step()->set_now_ns(4 * kDay);
  ASSERT_TRUE(Commit(4, {step.SerializeAsString()}).ok());
  EXPECT_TRUE(BackupStore(options_.directory, directory_ + "/copy").ok());
  store_.reset();
  for (const auto& [file, version, first] :
       {std::tuple{std::string(kStoreFile), kSchemaVersion, 2}, std::tuple{copy, GetParam(), 1}}) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open((options_.directory + "/" + file).c_str(), &db), SQLITE_OK);
    EXPECT_EQ(*QueryInt(db, "PRAGMA user_version"), version) << file;
    EXPECT_EQ(*QueryInt(db, "SELECT min(commit_number) FROM journal"), first) << file;
    sqlite3_close(db);
  }
}

TEST_F(StoreTest, FinishedJobsGoToTheHistory) {
  pb::JobRecord job;
  job.set_number(7);
  job.set_uid("u");
  job.set_owner("ada");
  job.mutable_spec()->set_queue("research");
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Commit(1, {"a"}, {{"job", "7", job.SerializeAsString()}}).ok());
  job.set_state(pb::SUCCEEDED);
  job.set_end_ns(kDay);
  ASSERT_TRUE(Commit(2, {"b"}, {{"job", "7", job.SerializeAsString()}}).ok());
  ASSERT_TRUE(Commit(3, {"c"}, {{"job", "7", std::nullopt}}).ok());
  Damage("CREATE TABLE probe AS SELECT owner || queue || state AS t FROM history");
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((options_.directory + "/" + kStoreFile).c_str(), &db), SQLITE_OK);
  EXPECT_EQ(*QueryText(db, "SELECT group_concat(t) FROM probe"), "adaresearch3");
  sqlite3_close(db);
}

TEST_F(StoreTest, TheHistoryIsReadBesideTheWriter) {
  ASSERT_TRUE(Open().ok());
  const auto history = StoreHistory::Open(options_.directory);
  ASSERT_TRUE(history.ok()) << history.status();
  pb::JobRecord job;
  for (uint64_t number = 1; number <= 5; ++number) {
    job.set_number(number);
    job.set_uid("uid" + std::to_string(number));
    job.set_owner(number % 2 == 0 ? "bob" : "ada");
    job.set_state(number == 3 ? pb::FAILED : pb::SUCCEEDED);
    job.set_end_ns(kDay);
    job.mutable_spec()->set_queue("research");
    ASSERT_TRUE(
        Commit(number, {"e"}, {{"job", std::to_string(number), job.SerializeAsString()}}).ok());
  }
  const std::string newest = job.SerializeAsString();
  for (const auto& [id, want] : std::map<std::string, std::string>{
           {"5", newest}, {"uid5", newest}, {"6", ""}, {"uid", ""}, {"", ""}, {"-1", ""}}) {
    EXPECT_EQ(*(*history)->Find(id), want) << id;
  }
  const auto scan = [&](uint64_t before, uint64_t above, int most) {
    std::string seen;
    const absl::Status status = (*history)->Scan(before, above, [&](const History::Row& row) {
      seen += std::to_string(row.number) + std::string(row.owner) +
              std::string(row.queue.substr(0, 1)) + std::to_string(row.state) +
              (row.record() == newest ? "*" : "") + " ";
      return --most > 0;
    });
    EXPECT_TRUE(status.ok()) << status;
    return seen;
  };
  EXPECT_EQ(scan(UINT64_MAX, 0, 10), "5adar3* 4bobr3 3adar4 2bobr3 1adar3 ");
  EXPECT_EQ(scan(5, 1, 10), "4bobr3 3adar4 2bobr3 ");
  EXPECT_EQ(scan(UINT64_MAX, 0, 2), "5adar3* 4bobr3 ");
  ASSERT_TRUE(Commit(6, {"e"}).ok()) << "a question that was ended early holds nothing";
  store_->Idle();
  EXPECT_FALSE(StoreHistory::Open(directory_).ok()) << "there is no store";
}

TEST_F(StoreTest, OldCommitsAndHistoryAreTrimmedAndTheRestStaysContiguous) {
  ASSERT_TRUE(Open().ok());
  for (uint64_t i = 1; i <= 300; ++i) ASSERT_TRUE(Commit(i, {"x"}, {}, kDay).ok());
  ASSERT_TRUE(Commit(301, {"y"}, {}, 3 * kDay).ok());
  for (int i = 0; i < 10; ++i) store_->Idle();
  ASSERT_TRUE(Open().ok()) << "the tail check accepts a trimmed journal";
  EXPECT_THAT(Journal(1, 301), ::testing::ElementsAre("301y"));
}

TEST_F(StoreTest, AStoreThatNeverRestsTrimsAsFastAsItGrows) {
  ASSERT_TRUE(Open().ok());
  uint64_t commit = 0;
  const auto end_a_job = [&](int64_t now_ns) {
    pb::JobRecord job;
    job.set_number(++commit);
    job.set_uid(std::to_string(commit));
    job.set_end_ns(now_ns);
    return Commit(commit, {"x", "y"}, {{"job", job.uid(), job.SerializeAsString()}}, now_ns);
  };
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(end_a_job(kDay).ok());
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(end_a_job(30 * kDay).ok());
  store_.reset();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((options_.directory + "/" + kStoreFile).c_str(), &db), SQLITE_OK);
  EXPECT_EQ(*QueryInt(db, "SELECT min(commit_number) FROM journal"), 101);
  EXPECT_EQ(*QueryInt(db, "SELECT count(*) FROM journal"), 120);
  EXPECT_EQ(*QueryInt(db, "SELECT count(*) FROM history"), 60);
  sqlite3_close(db);
}

TEST(PlaceTest, SubmissionsNeedRoomOnTheDisk) {
  EXPECT_EQ(WhyNoRoom("/", 0), "");
  EXPECT_THAT(
      WhyNoRoom("/", int64_t{1} << 60),
      HasSubstr("MiB are free in /; new jobs are taken again once there are 1099511627776"));
  EXPECT_THAT(WhyNoRoom("/nowhere", 0), HasSubstr("No such file"));
}

TEST(PlaceTest, RoomIsAskedForNowAndThen) {
  const std::string folder =
      std::filesystem::temp_directory_path() / absl::StrCat("room-", getpid());
  ManualClock clock;
  RoomWatch room(folder, &clock, 0);
  EXPECT_THAT(room.Why(), HasSubstr("No such file"));
  std::filesystem::create_directory(folder);
  EXPECT_THAT(room.Why(), HasSubstr("No such file"));
  clock.now_ns += kRoomAgeNs;
  EXPECT_EQ(room.Why(), "");
  std::filesystem::remove(folder);
}

TEST(PlaceTest, NetworkFileSystemsAreKnown) {
  EXPECT_EQ(NetworkFileSystem(0x6969), "nfs");
  EXPECT_EQ(NetworkFileSystem(0xFF534D42L), "cifs");
  EXPECT_EQ(NetworkFileSystem(0xEF53), "");
}

// ---- what an operator does ----

TEST_F(StoreTest, WhereThereIsNothingToAdoptNothingIsMade) {
  options_.adopt_restored = true;
  const absl::Status status = Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Put the backup there"));
  EXPECT_FALSE(std::filesystem::exists(options_.directory + "/" + kStoreFile));
}

TEST_F(StoreTest, AStoreOfANewerReleaseIsNeitherCheckedNorReplayed) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Commit(1, {"e"}).ok());
  Damage(absl::StrCat("PRAGMA user_version = ", kSchemaVersion + 1));
  const std::string file = options_.directory + "/" + kStoreFile;
  EXPECT_EQ(VerifyStore(file).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReplayStore(file, SchedulingOptions()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(StoreTest, ABackupIsServedOnlyOnceItIsAdopted) {
  ASSERT_TRUE(Open().ok());
  pb::Event step;
  step.mutable_step()->set_now_ns(kDay);
  ASSERT_TRUE(Commit(1, {step.SerializeAsString()}).ok());
  const std::string copy = directory_ + "/copy";
  const absl::Status made = BackupStore(options_.directory, copy);
  EXPECT_EQ(made.code(), absl::StatusCode::kDataLoss)
      << "its rows are not what its journal makes: " << made;
  EXPECT_FALSE(std::filesystem::exists(copy));
  EXPECT_FALSE(std::filesystem::exists(copy + ".part"));
  State state;
  Apply(&state, step);
  ASSERT_TRUE(Commit(2, {step.SerializeAsString()}, state.AllRows()).ok());
  ASSERT_TRUE(BackupStore(options_.directory, copy).ok());
  EXPECT_EQ(BackupStore(options_.directory, copy).code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(Commit(3, {step.SerializeAsString()}).ok()) << "it goes on meanwhile";
  const absl::StatusOr<StoreReport> report = VerifyStore(copy);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->last_commit, 2u);
  EXPECT_TRUE(report->replayed);
  const absl::StatusOr<ReplayReport> replayed = ReplayStore(copy, SchedulingOptions());
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->commits, 2u);

  store_.reset();
  const uint64_t epoch = recovered_.epoch;
  options_.directory = directory_ + "/restored";
  std::filesystem::create_directories(options_.directory);
  std::filesystem::copy_file(copy, options_.directory + "/" + kStoreFile);
  EXPECT_EQ(Open().code(), absl::StatusCode::kFailedPrecondition);
  options_.adopt_restored = true;
  ASSERT_TRUE(Open().ok());
  EXPECT_GT(recovered_.epoch, epoch + 1'000'000'000)
      << "above every epoch that an agent can have seen";
  options_.adopt_restored = false;
  EXPECT_EQ(Open().code(), absl::StatusCode::kFailedPrecondition)
      << "nothing was committed: it is a backup still";
  options_.adopt_restored = true;
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Commit(3, {step.SerializeAsString()}).ok());
  options_.adopt_restored = false;
  EXPECT_TRUE(Open().ok());
}

TEST_F(StoreTest, WhatIsTrimmedWhileVerifyReadsIsNotMissing) {
  ASSERT_TRUE(Open().ok());
  State state;
  pb::Event step;
  for (uint64_t commit = 1; commit <= 9; ++commit) {
    step.mutable_step()->set_now_ns(kDay + static_cast<int64_t>(commit));
    Apply(&state, step);
    ASSERT_TRUE(Commit(commit, {step.SerializeAsString()}, state.AllRows()).ok());
  }
  store_.reset();
  static std::string file;
  static int trims;
  file = options_.directory + "/" + kStoreFile;
  // Right before it begins with the journal, musterd trims five commits.
  const auto before_journal = +[](unsigned, void*, void*, void* text) -> int {
    if (std::string_view(static_cast<const char*>(text)).starts_with("SELECT commit_number, seq") &&
        trims++ == 0) {
      sqlite3* writer = nullptr;
      EXPECT_EQ(sqlite3_open(file.c_str(), &writer), SQLITE_OK);
      EXPECT_TRUE(Execute(writer, "DELETE FROM journal WHERE commit_number <= 5").ok());
      sqlite3_close(writer);
    }
    return 0;
  };
  static int (*traced)(unsigned, void*, void*, void*);
  traced = before_journal;
  const auto opened = +[](sqlite3* db, const char**, const sqlite3_api_routines*) -> int {
    if (sqlite3_db_readonly(db, "main") == 1)
      sqlite3_trace_v2(db, SQLITE_TRACE_STMT, traced, nullptr);
    return SQLITE_OK;
  };
  const std::string copy = directory_ + "/copy";
  std::filesystem::copy_file(file, copy);
  ASSERT_EQ(sqlite3_auto_extension(reinterpret_cast<void (*)()>(opened)), SQLITE_OK);
  const absl::StatusOr<StoreReport> report = VerifyStore(file);
  EXPECT_EQ(trims, 1);
  file = copy;
  trims = 0;
  const absl::Status replayed = ReplayStore(file, SchedulingOptions()).status();
  sqlite3_cancel_auto_extension(reinterpret_cast<void (*)()>(opened));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->first_commit, 6u);
  EXPECT_EQ(report->events, 4u);
  EXPECT_FALSE(report->replayed);
  EXPECT_EQ(replayed.code(), absl::StatusCode::kFailedPrecondition) << replayed;
  EXPECT_THAT(std::string(replayed.message()), HasSubstr("begins with commit 6"));
}

TEST_F(StoreTest, VerifyFindsARowThatTheJournalDoesNotMake) {
  ASSERT_TRUE(Open().ok());
  pb::Event step;
  step.mutable_step()->set_now_ns(kDay);
  State state;
  Apply(&state, step);
  ASSERT_TRUE(Commit(1, {step.SerializeAsString()}, state.AllRows()).ok());
  const std::string file = options_.directory + "/" + kStoreFile;
  EXPECT_TRUE(VerifyStore(file).ok());
  state = State();
  step.mutable_step()->set_now_ns(2 * kDay);
  Apply(&state, step);
  ASSERT_TRUE(Commit(2, {step.SerializeAsString()}).ok());
  const absl::Status status = VerifyStore(file).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("differs from what the journal makes"));
}

}  // namespace
}  // namespace muster
