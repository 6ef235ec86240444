#include "agent/host/state_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/host/processes.h"
#include "agent/host/shim_files.h"
#include "agent/shim/act.h"
#include "agent/shim/durable.h"
#include "agent/shim/format.h"
#include "common/base/files.h"
#include "common/base/fnv.h"
#include "common/base/ids.h"
#include "common/base/log.h"

namespace muster::agent {
namespace {

using shim::Line;

constexpr int64_t kShimLogBytes = 1 << 20;  // begun anew by an agent that finds more

constexpr char kOutcomeFile[] = "outcome";
constexpr char kGpusFile[] = "gpus";
constexpr char kSeenFile[] = "seen";
constexpr size_t kReservedBytes = 4096;  // one block
constexpr char kSeenPrefix[] = ".seen-";
constexpr char kForgottenPrefix[] = ".forgotten-";
constexpr int64_t kKeptTooMany = 300;     // so many more than are to be kept
constexpr char kReserve[] = "/reserve/";  // and a number: empty directories
constexpr int kReserves = 16;
constexpr char kSilentFile[] =
    "/logs/.silent";  // linked in the place of logs of an attempt that wrote nothing

// Whether `to` is now what `from` was; an empty name is of no file.
bool Rename(const std::string& from, const std::string& to) {
  return !from.empty() && ::rename(from.c_str(), to.c_str()) == 0;
}
bool Link(const std::string& from, const std::string& to) {
  return !from.empty() && ::link(from.c_str(), to.c_str()) == 0;
}

absl::Status Errno(int error, const std::string& what) {
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, what);
}

// shim::ReplaceFile of a file that must be replaced on a full disk, too: the first one of a name
// takes the spare, so another is made while there is room.
absl::Status ReplaceAndReserve(const std::string& directory, const char* name,
                               const std::string& content, bool sync = true) {
  const int error = shim::ReplaceFile(directory, name, content, sync);
  if (error == 0) shim::ReserveFile(directory, name, kReservedBytes);
  return Errno(error, name);
}

// What isn't hidden, sorted.
absl::StatusOr<std::vector<std::string>> List(const std::string& directory) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(directory.c_str());
  if (dir == nullptr) return ErrnoStatus(errno, directory);
  const dirent* entry = nullptr;
  while (errno = 0, (entry = ::readdir(dir)) != nullptr) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  const int failed = errno;
  ::closedir(dir);
  if (failed != 0) return ErrnoStatus(failed, directory);
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status CheckOurs(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISDIR(info.st_mode)) return absl::FailedPreconditionError(path + ": not a directory");
  if (info.st_uid != ::geteuid())
    return absl::PermissionDeniedError(path + ": belongs to another user");
  if ((info.st_mode & 077) != 0)
    return absl::PermissionDeniedError(
        path + ": others may enter it; chmod 700 it, or give another --state-dir");
  return absl::OkStatus();
}

int64_t SumOf(std::string_view message) { return static_cast<int64_t>(Fnv1a(message) >> 1); }

bool SumFits(const Line& line, std::string_view message) {
  int64_t sum = 0;
  return !line.GetInt("sum", &sum) ||
         sum == SumOf(message);  // missing: of an agent of the release before
}

// Takes in what `prepared` says of this attempt; false: it is damaged, as power loss may leave what
// was not synced.
bool ParsePrepared(const std::string& text, AttemptRecord* record) {
  std::vector<Line> lines;
  std::string error;
  if (!shim::ParseFile(text, "muster-agent-attempt", &lines, &error) || lines.size() != 2)
    return false;
  const std::string message = lines[1].Get("message");
  v1::Prepare prepare;
  if (!SumFits(lines[0], message) || !prepare.ParseFromString(message) ||
      IdOf(prepare.key()) != record->id)
    return false;
  record->prepare = std::move(prepare);
  record->boot_id = lines[0].Get("boot_id");
  ReadNumber(lines[0], "port", &record->port);
  return true;
}

int64_t BytesBelow(const std::string& directory) {
  int64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    struct stat info {};
    if (::lstat(it->path().c_str(), &info) == 0) bytes += info.st_size;
  }
  return bytes;
}

// Removes it, but at most *files files of it. False: there is more of it.
bool RemoveSome(const std::string& path, int* files) {
  std::error_code error, ignored;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    if (*files <= 0) return false;
    --*files;
    std::filesystem::remove_all(it->path(), ignored);
  }
  if (*files <= 0) return false;
  --*files;
  std::filesystem::remove_all(path, ignored);
  return true;
}

}  // namespace

std::string DirectoryName(const AttemptId& id) {
  return absl::StrCat(id.job_uid, ".", id.task, ".", id.attempt);
}

bool ParseSeenName(const std::string& name, Seen* seen) {
  const std::vector<std::string> parts = absl::StrSplit(name, '-');
  if (parts.size() < 3 || parts.size() > 4 || absl::StrCat(parts[0], "-") != kSeenPrefix ||
      !absl::SimpleAtoi(parts[1], &seen->epoch) || !absl::SimpleAtoi(parts[2], &seen->commit))
    return false;
  const std::string mac = parts.size() == 4 ? parts[3] : "";
  if (mac.size() % 2 != 0 || mac.find_first_not_of("0123456789abcdef") != std::string::npos)
    return false;
  seen->mac = absl::HexStringToBytes(mac);
  return true;
}

bool ParseDirectoryName(const std::string& name, AttemptId* id) {
  const size_t first = name.find('.');
  const size_t last = name.rfind('.');
  if (first == std::string::npos || last == first) return false;
  id->job_uid = name.substr(0, first);
  id->task = name.substr(first + 1, last - first - 1);
  return absl::SimpleAtoi(name.substr(last + 1), &id->attempt) && IsValid(*id);
}

StateDirectory::Making StateDirectory::OfThisMachine() {
  return {RandomId, [](const std::string& path) {
            if (const int ended = EndForgottenShims(path); ended > 0)
              LogWarn("ended shims of a lost state directory", {{"shims", ended}});
          }};
}

absl::StatusOr<std::unique_ptr<StateDirectory>> StateDirectory::Open(const std::string& path,
                                                                     const Making& making) {
  if (absl::Status status = MakeDirectories(path); !status.ok()) return status;
  if (absl::Status status = CheckOurs(path); !status.ok()) return status;
  std::unique_ptr<StateDirectory> directory(new StateDirectory(path));
  directory->lock_ =
      ::open((path + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (directory->lock_ < 0) return ErrnoStatus(errno, path + "/lock");
  if (::flock(directory->lock_, LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        path +
        ": another agent runs with this state directory. Stop that one first (systemctl stop "
        "muster-agent, where its package's unit runs it)");
  }
  for (const char* name : {"/attempts", "/logs", "/reserve"}) {
    if (absl::Status status = MakeDirectories(path + name); !status.ok()) return status;
  }
  if (const int silent =
          ::open((path + kSilentFile).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
      silent >= 0)
    ::close(silent);
  if (struct stat log{};
      ::stat((path + "/shim.log").c_str(), &log) == 0 && log.st_size > kShimLogBytes)
    ::truncate((path + "/shim.log").c_str(), 0);
  if (const int failed = shim::MakeClaimTexts(path); failed != 0) return ErrnoStatus(failed, path);
  // Without it nothing that a restarted scheduler says is done on a full disk, a stop of what fills
  // it neither.
  if (const int failed = shim::ReserveFile(path, kSeenFile, kReservedBytes); failed != 0)
    LogWarn("no room is kept for the scheduler's epoch",
            {{"directory", path}, {"error", strerror(failed)}});
  for (const auto& entry : std::filesystem::directory_iterator(path + "/attempts")) {
    if (entry.path().filename().string().rfind(kForgottenPrefix, 0) == 0)
      directory->forgotten_.push_back(entry.path().string());
  }
  directory->CollectForgotten();
  directory->FillReserve();
  directory->LoadKeptLogs();
  absl::StatusOr<std::string> id = ReadFile(path + "/state_id", 1024);
  if (!id.ok() && !absl::IsNotFound(id.status())) return id.status();
  if (!id.ok()) {
    making.end_forgotten(path);
    id = making.new_id() + "\n";
    if (absl::Status status = WriteFileDurably(path + "/state_id", *id); !status.ok())
      return status;
  }
  directory->state_id_ = std::string(absl::StripSuffix(*id, "\n"));
  if (!IsId(directory->state_id_))
    return absl::DataLossError(path +
                               "/state_id: damaged; move the state directory away to begin afresh");
  directory->LoadSeen();
  return directory;
}

void StateDirectory::LoadSeen() {
  absl::StatusOr<std::string> seen = ReadFile(absl::StrCat(path_, "/", kSeenFile), 4096);
  std::vector<Line> lines;
  std::string error;
  if (seen.ok() && shim::ParseFile(*seen, "muster-agent-seen", &lines, &error) &&
      lines.size() == 1) {
    seen_.store_id = lines[0].Get("store_id");
    ReadNumber(lines[0], "epoch", &seen_.epoch);
    ReadNumber(lines[0], "commit", &seen_.commit);
    seen_.mac = absl::HexStringToBytes(lines[0].Get("mac"));
  }
  // The two newest of this epoch; more, and those of another, are of a loss of power.
  std::vector<std::pair<uint64_t, std::string>> names;  // commit and path
  for (const auto& entry : std::filesystem::directory_iterator(path_ + "/attempts")) {
    Seen named;
    if (!ParseSeenName(entry.path().filename().string(), &named)) continue;
    if (named.epoch > seen_.epoch) {
      seen_.epoch = named.epoch;
      seen_.commit = 0;
      seen_.mac.clear();
      for (const auto& [number, path] : names) ::unlink(path.c_str());
      names.clear();
    }
    if (named.epoch == seen_.epoch) {
      names.emplace_back(named.commit, entry.path().string());
      if (named.commit > seen_.commit || (named.commit == seen_.commit && !named.mac.empty())) {
        seen_.commit = named.commit;
        seen_.mac = named.mac;
      }
    } else {
      ::unlink(entry.path().c_str());
    }
  }
  std::sort(names.rbegin(), names.rend());
  for (size_t i = 2; i < names.size(); ++i) ::unlink(names[i].second.c_str());
  if (names.size() == 1) synced_seen_ = names[0].second;
  if (names.size() > 1) {
    synced_seen_ = names[1].second;
    new_seen_ = names[0].second;
  }
}

// What is in attempts/ is durable by its names.
void StateDirectory::NamesSynced() {
  if (new_seen_.empty()) return;
  if (!synced_seen_.empty()) ::unlink(synced_seen_.c_str());
  synced_seen_ = std::exchange(new_seen_, "");
}

StateDirectory::~StateDirectory() {
  if (lock_ >= 0) ::close(lock_);
}

std::string StateDirectory::AttemptDirectory(const AttemptId& id) const {
  return absl::StrCat(path_, "/attempts/", DirectoryName(id));
}

std::string StateDirectory::LogDirectory(const AttemptId& id) const {
  const std::string live = absl::StrCat(AttemptDirectory(id), "/", shim::kLogsDirectory);
  return ::access(live.c_str(), F_OK) == 0 ? live
                                           : absl::StrCat(path_, "/logs/", DirectoryName(id));
}

// Its name becomes durable with the claim or the marker.
absl::Status StateDirectory::MakeAttemptDirectory(const AttemptId& id) {
  const std::string directory = AttemptDirectory(id);
  if (::mkdir(directory.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  absl::Status failed = ErrnoStatus(errno, directory);
  for (int i = 0; i < kReserves; ++i) {
    if (::renameat2(AT_FDCWD, absl::StrCat(path_, kReserve, i).c_str(), AT_FDCWD, directory.c_str(),
                    RENAME_NOREPLACE) == 0)
      return absl::OkStatus();
  }
  return failed;
}

// Directories for attempts that come while the disk is full: what is refused is refused by a claim,
// which needs one.
void StateDirectory::FillReserve() {
  for (int i = 0; i < kReserves; ++i) ::mkdir(absl::StrCat(path_, kReserve, i).c_str(), 0700);
}

absl::Status StateDirectory::PersistPrepared(const AttemptRecord& record, bool durable) {
  if (absl::Status status = MakeAttemptDirectory(record.id); !status.ok()) return status;
  if (durable) {
    if (const int failed = shim::SyncDirectory(path_ + "/attempts"); failed != 0)
      return ErrnoStatus(failed, path_ + "/attempts");
    NamesSynced();
  }
  const std::string name = absl::StrCat(AttemptDirectory(record.id), "/", shim::kPreparedFile);
  // A shim may hold a lock of the file that is there: it stays, whatever bytes the same record
  // would be written as now.
  AttemptRecord there;
  there.id = record.id;
  std::string text;
  if (durable && shim::ReadSmallFile(name, &text) == 0 && ParsePrepared(text, &there) &&
      there.boot_id == record.boot_id && there.port == record.port) {
    return Errno(shim::SyncFile(name), "prepared");
  }
  const std::string message = record.prepare.SerializeAsString();
  const std::vector<Line> lines = {Line{"prepared"}
                                       .Add("boot_id", record.boot_id)
                                       .Add("port", record.port)
                                       .Add("sum", SumOf(message)),
                                   Line{"prepare"}.Add("message", message)};
  return Errno(shim::ReplaceFile(AttemptDirectory(record.id), shim::kPreparedFile,
                                 shim::FormatFile("muster-agent-attempt", lines), durable),
               "prepared");
}

absl::StatusOr<Claim> StateDirectory::ClaimStopped(const AttemptRecord& record) {
  if (absl::Status status = MakeAttemptDirectory(record.id); !status.ok()) return status;
  shim::Claim winner = shim::Claim::kNone;
  const int error = shim::MakeClaim(AttemptDirectory(record.id), shim::Claim::kStopped, &winner);
  if (error != 0) return ErrnoStatus(error, "claim");
  NamesSynced();
  return winner == shim::Claim::kStarted ? Claim::kStarted : Claim::kStopped;
}

absl::Status StateDirectory::PersistStop(const AttemptRecord& record) {
  const shim::StopOrder order{record.stop->cause, record.stop->grace_ns};
  return ReplaceAndReserve(AttemptDirectory(record.id), shim::kStopFile,
                           shim::FormatStop(order));  // a shorter one may follow
}

absl::Status StateDirectory::Renew(const AttemptRecord& record) {
  return ReplaceAndReserve(AttemptDirectory(record.id), shim::kRenewedFile,
                           shim::FormatRenewal(record.renewed_ns), /*sync=*/false);
}

absl::Status StateDirectory::PersistOutcome(const AttemptRecord& record) {
  std::vector<Line> lines = {
      Line{"outcome"}
          .Add("ended", int64_t{record.ended})
          .Add("cause", static_cast<int64_t>(record.cause))
          .Add("detail", record.detail)
          .Add("start_ns", record.start_ns)
          .Add("end_ns", record.end_ns)
          .Add("stop_sent", int64_t{record.stop_sent})
          .Add("checkpoint_acked", static_cast<int64_t>(record.checkpoint_acked))
          .Add("published", int64_t{record.published})};
  if (record.ended) {
    for (const v1::WorkerExit& exit : record.exits) {
      lines.push_back(shim::ExitLine({exit.rank(), exit.exit_code(), exit.signal(), exit.at_ns(),
                                      exit.detail(), exit.own(), exit.oom()})
                          .Add("cause", static_cast<int64_t>(exit.cause())));
    }
  }
  return Errno(shim::ReplaceFile(AttemptDirectory(record.id), kOutcomeFile,
                                 shim::FormatFile("muster-agent-outcome", lines)),
               "outcome");
}

void StateDirectory::LoadOutcome(AttemptRecord* record) const {
  absl::StatusOr<std::string> text =
      ReadFile(absl::StrCat(AttemptDirectory(record->id), "/", kOutcomeFile));
  std::vector<Line> lines;
  std::string error;
  if (!text.ok() || !shim::ParseFile(*text, "muster-agent-outcome", &lines, &error) ||
      lines.empty())
    return;
  const Line& line = lines[0];
  int64_t cause = 0;
  ReadNumber(line, "ended", &record->ended);
  ReadNumber(line, "cause", &cause);
  record->cause = static_cast<v1::Cause>(cause);
  record->detail = line.Get("detail");
  ReadNumber(line, "start_ns", &record->start_ns);
  ReadNumber(line, "end_ns", &record->end_ns);
  ReadNumber(line, "stop_sent", &record->stop_sent);
  ReadNumber(line, "checkpoint_acked", &record->checkpoint_acked);
  ReadNumber(line, "published", &record->published);
  for (size_t i = 1; i < lines.size(); ++i) {
    shim::Exit exit;
    if (!shim::ReadExitLine(lines[i], &exit)) continue;
    v1::Cause its_cause = v1::CAUSE_UNSPECIFIED;
    ReadNumber(lines[i], "cause", &its_cause);  // of the release before, missing
    record->exits.push_back(ToProto(exit));
    record->exits.back().set_cause(its_cause);
  }
}

absl::Status StateDirectory::KeepGpus(const AttemptRecord& record) {
  const GpuRecord& gpus = record.gpus;
  std::vector<Line> lines = {Line{"gpus"}
                                 .Add("slot_ns", gpus.slot_ns)
                                 .Add("memory_peak_bytes", gpus.memory_peak_bytes)
                                 .Add("memory_bytes", gpus.memory_bytes)};
  for (const GpuRecord::Slot& slot : gpus.slots)
    lines.push_back(Line{"slot"}.Add("busy_ns", slot.busy_ns).Add("watched_ns", slot.watched_ns));
  return Errno(shim::ReplaceFile(AttemptDirectory(record.id), kGpusFile,
                                 shim::FormatFile("muster-agent-gpus", lines), /*sync=*/false),
               kGpusFile);
}

void StateDirectory::LoadGpus(AttemptRecord* record) const {
  absl::StatusOr<std::string> text =
      ReadFile(absl::StrCat(AttemptDirectory(record->id), "/", kGpusFile));
  std::vector<Line> lines;
  std::string error;
  if (!text.ok() || !shim::ParseFile(*text, "muster-agent-gpus", &lines, &error) || lines.empty() ||
      lines.size() > kGpuSlots + 1)
    return;
  GpuRecord gpus;
  ReadNumber(lines[0], "slot_ns", &gpus.slot_ns);
  ReadNumber(lines[0], "memory_peak_bytes", &gpus.memory_peak_bytes);
  ReadNumber(lines[0], "memory_bytes", &gpus.memory_bytes);
  for (size_t i = 1; i < lines.size(); ++i) {
    GpuRecord::Slot& slot = gpus.slots.emplace_back();
    ReadNumber(lines[i], "busy_ns", &slot.busy_ns);
    ReadNumber(lines[i], "watched_ns", &slot.watched_ns);
  }
  record->gpus = std::move(gpus);
}

absl::Status StateDirectory::PersistSeen(const Seen& seen, bool synced) {
  if (!synced) {
    std::string name = absl::StrCat(path_, "/attempts/", kSeenPrefix, seen.epoch, "-", seen.commit);
    if (!seen.mac.empty()) absl::StrAppend(&name, "-", absl::BytesToHexString(seen.mac));
    if (name == synced_seen_ || name == new_seen_) return absl::OkStatus();
    if (!Rename(new_seen_, name) && !Link(synced_seen_, name)) {
      const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
      if (fd < 0) return ErrnoStatus(errno, name);
      ::close(fd);
    }
    new_seen_ = std::move(name);
    return absl::OkStatus();
  }
  const Line line = Line{"seen"}
                        .Add("store_id", seen.store_id)
                        .Add("epoch", static_cast<int64_t>(seen.epoch))
                        .Add("commit", static_cast<int64_t>(seen.commit))
                        .Add("mac", absl::BytesToHexString(seen.mac));
  return ReplaceAndReserve(path_, kSeenFile, shim::FormatFile("muster-agent-seen", {line}));
}

absl::StatusOr<std::vector<AttemptRecord>> StateDirectory::Load() {
  const absl::StatusOr<std::vector<std::string>> names = List(path_ + "/attempts");
  if (!names.ok()) return names.status();
  std::vector<AttemptRecord> records;
  for (const std::string& name : *names) {
    AttemptRecord record;
    if (!ParseDirectoryName(name, &record.id)) {
      LogWarn("not an attempt", {{"directory", path_ + "/attempts/" + name}});
      continue;
    }
    const std::string directory = AttemptDirectory(record.id);
    absl::StatusOr<std::string> text = ReadFile(absl::StrCat(directory, "/", shim::kPreparedFile));
    std::string error;
    if (text.ok() && ParsePrepared(*text, &record)) {
      record.prepared = true;
      record.durable = !record.prepare.start_at_once();
      if (record.prepare.start_at_once()) {
        record.master_address = "127.0.0.1";
        record.master_port = record.port;
      }
    }
    shim::Claim claim = shim::Claim::kNone;
    const int failed = shim::ReadClaim(directory, &claim);
    record.claim = failed != 0                      ? UnreadableClaim(directory, failed)
                   : claim == shim::Claim::kStarted ? Claim::kStarted
                   : claim == shim::Claim::kStopped ? Claim::kStopped
                                                    : Claim::kNone;
    shim::StopOrder stop;
    text = ReadFile(absl::StrCat(directory, "/", shim::kStopFile));
    if (text.ok() && shim::ParseStop(*text, &stop, &error))
      record.stop = StopRecord{static_cast<v1::Cause>(stop.cause), stop.grace_ns};
    LoadOutcome(&record);
    LoadGpus(&record);
    records.push_back(std::move(record));
  }
  return records;
}

absl::Status StateDirectory::Forget(const AttemptId& id) {
  const std::string directory = AttemptDirectory(id);
  const std::string logs = absl::StrCat(directory, "/", shim::kLogsDirectory);
  const std::string kept = absl::StrCat(path_, "/logs/", DirectoryName(id));
  bool is_kept = ::rename(logs.c_str(), kept.c_str()) == 0;
  const int64_t bytes = is_kept ? BytesBelow(kept) : 0;
  if (!is_kept) {
    if (errno != ENOENT)
      LogWarn("logs not kept", {{"directory", logs}, {"error", strerror(errno)}});
    is_kept = ::link((path_ + kSilentFile).c_str(), kept.c_str()) == 0;  // without it: "no logs"
  }
  if (is_kept) {
    kept_logs_.push_back({DirectoryName(id), 0, bytes});
    kept_log_bytes_ += bytes;
  }
  std::error_code error;
  // Not a mixture after a crash: the directory leaves its name first.
  std::string doomed = absl::StrCat(path_, "/attempts/", kForgottenPrefix, DirectoryName(id));
  const auto leave = [&] {
    return ::rename(directory.c_str(), doomed.c_str()) == 0 || errno == ENOENT;
  };
  bool left = leave();
  if (!left && (errno == EEXIST || errno == ENOTEMPTY)) {
    std::filesystem::remove_all(doomed, error);
    left = leave();
  }
  if (!left) return ErrnoStatus(errno, directory);
  forgotten_.push_back(std::move(doomed));
  return absl::OkStatus();
}

void StateDirectory::CollectForgotten() {
  if (forgotten_.empty()) return;
  if (const int failed = shim::SyncDirectory(path_ + "/attempts"); failed != 0) {
    LogWarn("forgotten attempts stay for now",
            {{"directory", path_ + "/attempts"}, {"error", strerror(failed)}});
    return;
  }
  NamesSynced();
  std::error_code error;
  for (const std::string& directory : forgotten_) std::filesystem::remove_all(directory, error);
  forgotten_.clear();
  if (::access(absl::StrCat(path_, kReserve, 0).c_str(), F_OK) != 0) FillReserve();
}

absl::Status StateDirectory::Publish(const AttemptRecord& record, const std::string& staged,
                                     const std::string& target) {
  const v1::Prepare& prepare = record.prepare;
  shim::ActRequest request;
  request.job_directory = prepare.job_directory();
  request.staged = staged;
  request.target = target;
  const auto publish = [owners = owners_, owner = prepare.owner(), request] {
    if (owners == nullptr)
      return ToStatus(shim::PublishExport(request.staged, request.job_directory, request.target));
    const absl::StatusOr<Owner> who = owners->Known(owner);
    return who.ok() ? owners->Act(*who, request) : who.status();
  };
  if (threads_ == nullptr) return publish();
  // Never given up: it would still happen, whatever was told.
  return threads_->Do({record.id, StorageUse::kPublish}, {.where = target, .run = publish});
}

void StateDirectory::LoadKeptLogs() {
  for (const std::string& name : NamesIn(path_ + "/logs")) {
    struct stat info {};
    const std::string path = absl::StrCat(path_, "/logs/", name);
    if (::lstat(path.c_str(), &info) != 0) continue;
    kept_logs_.push_back({name, int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec,
                          BytesBelow(path)});
    kept_log_bytes_ += kept_logs_.back().bytes;
  }
  std::sort(kept_logs_.begin(), kept_logs_.end(),
            [](const KeptLogs& a, const KeptLogs& b) { return a.at_ns < b.at_ns; });
}

bool StateDirectory::LogsOverflow(const Retention& retention) const {
  return kept_log_bytes_ > retention.bytes ||
         static_cast<int64_t>(kept_logs_.size()) > retention.attempts + kKeptTooMany;
}

bool StateDirectory::PruneLogs(const Retention& retention, int64_t now_ns, int most_files) {
  for (auto it = kept_logs_.rbegin(); it != kept_logs_.rend() && it->at_ns == 0; ++it)
    it->at_ns = now_ns;
  while (!kept_logs_.empty()) {
    const KeptLogs& oldest = kept_logs_.front();
    if (static_cast<int64_t>(kept_logs_.size()) <= retention.attempts &&
        kept_log_bytes_ <= retention.bytes && now_ns - oldest.at_ns <= retention.age_ns)
      return false;
    if (!RemoveSome(absl::StrCat(path_, "/logs/", oldest.name), &most_files)) return true;
    kept_log_bytes_ -= oldest.bytes;
    kept_logs_.pop_front();
  }
  return false;
}

}  // namespace muster::agent
