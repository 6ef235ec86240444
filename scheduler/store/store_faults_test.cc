// The store on a disk that fails: each call that SQLite makes of it fails once, in each way it can.
// From then on the store changes nothing more; opened again it holds every commit that was
// acknowledged, at most one more, and nothing else.
//
// The disk also loses its power: then a file holds what its syncs made durable. A sync that failed
// has dropped what was written since the one before for good, even if the next succeeds, as Linux
// does.
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/files.h"
#include "common/base/quiet_log.h"
#include "common/base/units.h"
#include "scheduler/store/store.h"

namespace muster {
namespace {

enum class Way { kError, kHalf, kFull };  // the last two of writes only

// Counts the fallible calls; the one numbered `fails_at` fails. One at a time: SQLite's VFS is the
// process's.
class Disk {
 public:
  static Disk* current;

  int64_t fails_at = -1;
  Way way = Way::kError;
  bool dead = false;  // nothing gets through any more: the process is gone
  std::string calls;  // one letter each: open, read, write, truncate, sync, delete, lock, map

  // True if this call is to fail.
  bool Fails(char call) {
    calls.push_back(call);
    return dead || static_cast<int64_t>(calls.size()) - 1 == fails_at;
  }

  void Wrote(const std::string& path, int64_t at, const char* bytes, int64_t size) {
    files_[path].pending.push_back({at, std::string(bytes, size), false});
  }
  void Truncated(const std::string& path, int64_t size) {
    files_[path].pending.push_back({size, "", true});
  }
  void SyncFailed(const std::string& path) { files_[path].pending.clear(); }
  void Deleted(const std::string& path) { files_.erase(path); }
  void Synced(const std::string& path) {
    File& file = files_[path];
    for (const Change& change : file.pending) {
      if (change.truncates) {
        file.durable.resize(change.at);
      } else {
        file.durable.resize(std::max<size_t>(file.durable.size(), change.at + change.bytes.size()));
        file.durable.replace(change.at, change.bytes.size(), change.bytes);
      }
    }
    file.pending.clear();
  }

  void LosePower() const {
    for (const auto& [path, file] : files_) {
      if (!path.empty())
        ASSERT_TRUE(WriteFile(path, file.durable).ok());  // else a temporary one, which goes anyway
    }
  }

 private:
  struct Change {
    int64_t at;
    std::string bytes;
    bool truncates;
  };
  struct File {
    std::string durable;
    std::vector<Change> pending;
  };
  static absl::Status WriteFile(const std::string& path, const std::string& content) {
    FILE* file = std::fopen(path.c_str(), "wb");
    if (file == nullptr) return absl::InternalError(path);
    const bool written = std::fwrite(content.data(), 1, content.size(), file) == content.size();
    return std::fclose(file) == 0 && written ? absl::OkStatus() : absl::InternalError(path);
  }

  std::map<std::string, File> files_;
};
Disk* Disk::current = nullptr;

// ---- SQLite's file system, with Disk between ----

sqlite3_vfs* g_real = nullptr;

struct Handle {
  sqlite3_file base;
  sqlite3_file* real;
  const std::string* path;
};
Handle* Of(sqlite3_file* file) { return reinterpret_cast<Handle*>(file); }
sqlite3_file* Real(sqlite3_file* file) { return Of(file)->real; }

int Close(sqlite3_file* file) {
  delete Of(file)->path;
  return Real(file)->pMethods->xClose(Real(file));
}
int Read(sqlite3_file* file, void* to, int size, sqlite3_int64 at) {
  return Disk::current->Fails('r') ? SQLITE_IOERR_READ
                                   : Real(file)->pMethods->xRead(Real(file), to, size, at);
}
int Write(sqlite3_file* file, const void* from, int size, sqlite3_int64 at) {
  Disk* const disk = Disk::current;
  int done = size;
  const bool fails = disk->Fails('w');
  if (fails) done = disk->way == Way::kHalf && !disk->dead ? size / 2 : 0;
  if (done > 0) {
    if (const int code = Real(file)->pMethods->xWrite(Real(file), from, done, at);
        code != SQLITE_OK)
      return code;
    disk->Wrote(*Of(file)->path, at, static_cast<const char*>(from), done);
  }
  return !fails ? SQLITE_OK : disk->way == Way::kFull ? SQLITE_FULL : SQLITE_IOERR_WRITE;
}
int Truncate(sqlite3_file* file, sqlite3_int64 size) {
  if (Disk::current->Fails('t')) return SQLITE_IOERR_TRUNCATE;
  Disk::current->Truncated(*Of(file)->path, size);
  return Real(file)->pMethods->xTruncate(Real(file), size);
}
int Sync(sqlite3_file* file, int) {  // the real disk need not be waited for
  if (Disk::current->Fails('s')) {
    Disk::current->SyncFailed(*Of(file)->path);
    return SQLITE_IOERR_FSYNC;
  }
  Disk::current->Synced(*Of(file)->path);
  return SQLITE_OK;
}
int FileSize(sqlite3_file* file, sqlite3_int64* size) {
  return Real(file)->pMethods->xFileSize(Real(file), size);
}
int Lock(sqlite3_file* file, int level) {
  return Disk::current->Fails('l') ? SQLITE_IOERR_LOCK
                                   : Real(file)->pMethods->xLock(Real(file), level);
}
int Unlock(sqlite3_file* file, int level) {
  return Real(file)->pMethods->xUnlock(Real(file), level);
}
int CheckReservedLock(sqlite3_file* file, int* reserved) {
  return Real(file)->pMethods->xCheckReservedLock(Real(file), reserved);
}
int FileControl(sqlite3_file* file, int what, void* argument) {
  return Real(file)->pMethods->xFileControl(Real(file), what, argument);
}
int SectorSize(sqlite3_file* file) { return Real(file)->pMethods->xSectorSize(Real(file)); }
int Characteristics(sqlite3_file* file) {
  return Real(file)->pMethods->xDeviceCharacteristics(Real(file));
}
int ShmMap(sqlite3_file* file, int page, int size, int extend, void volatile** to) {
  return Disk::current->Fails('m')
             ? SQLITE_IOERR_SHMMAP
             : Real(file)->pMethods->xShmMap(Real(file), page, size, extend, to);
}
int ShmLock(sqlite3_file* file, int at, int count, int flags) {
  return Real(file)->pMethods->xShmLock(Real(file), at, count, flags);
}
void ShmBarrier(sqlite3_file* file) { Real(file)->pMethods->xShmBarrier(Real(file)); }
int ShmUnmap(sqlite3_file* file, int remove) {
  return Real(file)->pMethods->xShmUnmap(Real(file), remove);
}

const sqlite3_io_methods kMethods = {2,
                                     Close,
                                     Read,
                                     Write,
                                     Truncate,
                                     Sync,
                                     FileSize,
                                     Lock,
                                     Unlock,
                                     CheckReservedLock,
                                     FileControl,
                                     SectorSize,
                                     Characteristics,
                                     ShmMap,
                                     ShmLock,
                                     ShmBarrier,
                                     ShmUnmap,
                                     nullptr,
                                     nullptr};

int OpenFile(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  Handle* const handle = Of(file);
  handle->base.pMethods = nullptr;
  if (Disk::current->Fails('o')) return SQLITE_CANTOPEN;
  handle->real = reinterpret_cast<sqlite3_file*>(handle + 1);
  const int code = g_real->xOpen(g_real, name, handle->real, flags, out_flags);
  if (code != SQLITE_OK) return code;
  handle->path = new std::string(name == nullptr ? "" : name);
  handle->base.pMethods = &kMethods;
  return SQLITE_OK;
}
int DeleteFile(sqlite3_vfs*, const char* name, int sync) {
  if (Disk::current->Fails('d')) return SQLITE_IOERR_DELETE;
  Disk::current->Deleted(name);
  return g_real->xDelete(g_real, name, sync);
}

class StoreFaults : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    SilenceLog();
    g_real = sqlite3_vfs_find(nullptr);
    static sqlite3_vfs faulty = *g_real;
    faulty.szOsFile = static_cast<int>(sizeof(Handle)) + g_real->szOsFile;
    faulty.zName = "muster-faults";
    faulty.pNext = nullptr;
    faulty.xOpen = OpenFile;
    faulty.xDelete = DeleteFile;
    ASSERT_EQ(sqlite3_vfs_register(&faulty, 1), SQLITE_OK);
  }
  static void TearDownTestSuite() { sqlite3_vfs_register(g_real, 1); }
};

// ---- a store's life ----

// Rows as the commits up to `last` leave them: each writes three of six rows and removes one.
std::map<std::string, std::string> RowsAfter(uint64_t last) {
  std::map<std::string, std::string> rows;
  for (uint64_t commit = 1; commit <= last; ++commit) {
    for (uint64_t i = 0; i < 3; ++i)
      rows[absl::StrCat("r", (commit + i) % 6)] = absl::StrCat(commit, std::string(300, 'x'));
    rows.erase(absl::StrCat("r", (commit + 4) % 6));
  }
  return rows;
}

Transaction TransactionOf(uint64_t commit) {
  Transaction transaction;
  transaction.commit = commit;
  // In steps: each commit trims two, and Idle the rest.
  transaction.now_ns = static_cast<int64_t>(commit / 3 * 3) * kDay;
  transaction.events = {absl::StrCat("event ", commit), std::string(500, 'e')};
  for (const auto& [id, bytes] : RowsAfter(commit)) transaction.rows.push_back({"row", id, bytes});
  transaction.rows.push_back({"row", absl::StrCat("r", (commit + 4) % 6), std::nullopt});
  return transaction;
}

struct Life {
  uint64_t acknowledged = 0, tried = 0;
  uint64_t epoch = 0;  // the highest that a start was given
  std::string store_id;
  bool failed = false;  // something said so
};

constexpr uint64_t kCommits = 14;

// Two starts, fourteen commits, Idle after every third. Ends with the first error, as the engine
// does.
Life Live(const StoreOptions& options, Disk* disk) {
  Life life;
  for (const uint64_t until : {kCommits / 2, kCommits}) {
    Recovered recovered;
    absl::StatusOr<std::unique_ptr<SqliteStore>> store = SqliteStore::Open(options, &recovered);
    if (!store.ok()) {
      life.failed = true;
      return life;
    }
    life.epoch = std::max(life.epoch, recovered.epoch);
    life.store_id = recovered.store_id;
    while (life.tried < until && !life.failed) {
      ++life.tried;
      life.failed = !(*store)->Commit(TransactionOf(life.tried)).ok();
      if (!life.failed) life.acknowledged = life.tried;
      if (!life.failed && life.tried % 3 == 0) (*store)->Idle();
    }
    if (life.failed) {
      EXPECT_FALSE((*store)->Commit(TransactionOf(life.acknowledged + 1)).ok())
          << "it went on after an error";
      disk->dead = true;
      return life;
    }
  }
  disk->dead = true;
  return life;
}

// What a start on a sound disk finds; empty if it is as it should be.
std::string WrongAfter(const StoreOptions& options, const Life& life) {
  Recovered recovered;
  const absl::Status opened = SqliteStore::Open(options, &recovered).status();
  if (!opened.ok()) return absl::StrCat("does not open: ", std::string(opened.message()));
  if (recovered.last_commit < life.acknowledged || recovered.last_commit > life.tried) {
    return absl::StrCat("has commit ", recovered.last_commit, "; ", life.acknowledged,
                        " were acknowledged, ", life.tried, " tried");
  }
  if (!life.store_id.empty() && recovered.store_id != life.store_id) return "is another store";
  if (recovered.epoch <= life.epoch) return absl::StrCat("gives epoch ", recovered.epoch, " again");
  std::map<std::string, std::string> rows;
  for (const RowChange& row : recovered.rows) rows[row.id] = *row.bytes;
  if (rows != RowsAfter(recovered.last_commit))
    return absl::StrCat("its rows are not those of commit ", recovered.last_commit);
  if (const absl::Status checked = CheckStore(options.directory); !checked.ok())
    return std::string(checked.message());
  return "";
}

TEST_F(StoreFaults, EachCallFailsOnceAndNothingAcknowledgedIsLost) {
  char name[] = "/tmp/muster-faults-XXXXXX";
  const std::string directory = mkdtemp(name);
  StoreOptions options;
  options.allow_any_file_system = true;
  options.journal_retention_ns = 2 * kDay;
  int64_t runs = 0, stopped = 0, wrong = 0;
  const auto run = [&](int64_t fails_at, Way way, bool power) {
    options.directory = absl::StrCat(directory, "/", runs++);
    Disk disk, sound;
    Disk::current = &disk;
    disk.fails_at = fails_at;
    disk.way = way;
    const Life life = Live(options, &disk);
    Disk::current = &sound;
    std::filesystem::remove(absl::StrCat(options.directory, "/", kStoreFile, "-shm"));
    if (power) disk.LosePower();
    stopped += life.failed;
    if (const std::string what = WrongAfter(options, life); !what.empty()) {
      ++wrong;
      ADD_FAILURE() << "call " << fails_at << " (" << (fails_at < 0 ? ' ' : disk.calls[fails_at])
                    << "), way " << static_cast<int>(way) << (power ? ", power lost" : "")
                    << ": the store " << what;
    }
    std::filesystem::remove_all(options.directory);
    return disk.calls;
  };
  const std::string calls = run(-1, Way::kError, false);
  run(-1, Way::kError, true);
  ASSERT_EQ(stopped, 0);
  int64_t faults = 0;
  for (int64_t at = 0; at < static_cast<int64_t>(calls.size()) && wrong < 10; ++at) {
    for (const Way way : {Way::kError, Way::kHalf, Way::kFull}) {
      if (way != Way::kError && calls[at] != 'w') continue;
      for (const bool power : {false, true}) run(at, way, power);
      ++faults;
    }
  }
  std::filesystem::remove_all(directory);
  EXPECT_GT(stopped, faults) << "most faults should end it";
  std::printf(
      "{\"calls\": %zu, \"faults\": %lld, \"runs\": %lld, \"stopped\": %lld, \"wrong\": %lld}\n",
      calls.size(), static_cast<long long>(faults), static_cast<long long>(runs),
      static_cast<long long>(stopped), static_cast<long long>(wrong));
}

// Of a sync that failed nobody knows what it left (contract 18).
TEST_F(StoreFaults, AfterATrimThatFailedNothingIsCommittedAnyMore) {
  char name[] = "/tmp/muster-faults-XXXXXX";
  const std::string directory = mkdtemp(name);
  StoreOptions options;
  options.allow_any_file_system = true;
  options.journal_retention_ns = 2 * kDay;
  size_t trims_at = 0;  // the number of the call that syncs what was trimmed
  for (const bool fails : {false, true}) {
    options.directory = absl::StrCat(directory, "/", fails);
    Disk disk;
    Disk::current = &disk;
    Recovered recovered;
    absl::StatusOr<std::unique_ptr<SqliteStore>> store = SqliteStore::Open(options, &recovered);
    ASSERT_TRUE(store.ok());
    for (uint64_t commit = 1; commit <= 6; ++commit)
      ASSERT_TRUE((*store)->Commit(TransactionOf(commit)).ok());
    const size_t begin = disk.calls.size();
    if (fails) disk.fails_at = static_cast<int64_t>(trims_at);
    (*store)->Idle();
    trims_at = disk.calls.find('s', begin);
    EXPECT_EQ(disk.calls[begin], 'w') << "there was something to trim";
    EXPECT_EQ((*store)->Commit(TransactionOf(7)).ok(), !fails);
    store->reset();
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace muster
