#include "scheduler/access/audit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <utility>

#include <google/protobuf/util/json_util.h>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/base/utf8.h"
#include "common/pki/sha256.h"

namespace muster {
namespace {

constexpr size_t kHashChars = 64, kNumberChars = 20;
constexpr char kEnding[] = ".audit";
constexpr int64_t kPartsOfBound = 16;  // files that a bound has at least
constexpr size_t kObjectsTold = 8, kObjectBytes = 100;

std::string Chained(const std::string& before, const std::string& json) {
  const std::string from = before.empty() ? std::string(kHashChars, '0') : before;
  return absl::BytesToHexString(Sha256(absl::StrCat(from, " ", json)));
}

std::string AuditFileName(const std::string& directory, uint64_t first, const std::string& before) {
  return absl::StrCat(directory, "/", absl::StrFormat("%020d", first), before.empty() ? "" : "-",
                      before, kEnding);
}

// Before releases with a bound, names had no hash.
AuditFile AuditFileAt(const std::filesystem::path& path) {
  AuditFile file;
  file.path = path;
  const std::string stem = path.stem();
  const std::string number = stem.substr(0, kNumberChars);
  const bool named = stem.size() == kNumberChars ||
                     (stem.size() == kNumberChars + 1 + kHashChars && stem[kNumberChars] == '-');
  if (!named || !absl::SimpleAtoi(number, &file.first)) file.first = 0;
  if (file.first > 0 && stem.size() > kNumberChars) file.before = stem.substr(kNumberChars + 1);
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  file.bytes = error ? 0 : static_cast<int64_t>(bytes);
  return file;
}

// By the number of their first record, with which their names begin.
std::vector<AuditFile> FilesIn(const std::string& directory) {
  std::vector<AuditFile> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().extension() == kEnding) files.push_back(AuditFileAt(entry.path()));
  }
  std::sort(files.begin(), files.end(),
            [](const AuditFile& a, const AuditFile& b) { return a.path < b.path; });
  return files;
}

// The record's number, which comes first in what is written here; 0: this is something else.
uint64_t NumberIn(const std::string& json) {
  static constexpr char kBefore[] = R"({"number":")";
  constexpr size_t kFrom = sizeof kBefore - 1;
  if (!absl::StartsWith(json, kBefore)) return 0;
  const size_t end = json.find('"', kFrom);
  uint64_t number = 0;
  if (end == std::string::npos || !absl::SimpleAtoi(json.substr(kFrom, end - kFrom), &number))
    return 0;
  return number;
}

absl::Status WasChanged(const std::string& at, const std::string& what) {
  return absl::DataLossError(absl::StrCat("the audit was changed: ", at, ": ", what));
}

// Follows the chain, file by file and line by line.
class ChainReader {
 public:
  explicit ChainReader(const std::function<void(const pb::AuditRecord&)>* each = nullptr,
                       uint64_t noted = 0, std::string noted_hash = "")
      : each_(each), noted_(noted), noted_hash_(std::move(noted_hash)) {}

  absl::Status Read(const AuditFile& file) {
    std::ifstream in(file.path, std::ios::binary);
    if (!in) return ErrnoStatus(errno, file.path);
    if (head.first == 0 && !file.before.empty()) {
      head.last = file.first - 1;
      head.hash = file.before;
    }
    if (!file.before.empty() && file.before != head.hash)
      return WasChanged(file.path, "its name has another hash than that of the record before it");
    std::string text;
    int64_t read = 0;
    for (int line = 1; read < file.bytes && std::getline(in, text); ++line) {
      const std::string at = absl::StrCat(file.path, ":", line);
      read += static_cast<int64_t>(text.size()) + 1;
      if (absl::Status status = Follow(text, at); !status.ok()) return status;
      if (line == 1 && head.last != file.first)
        return WasChanged(at, absl::StrCat("is record ", head.last, ", not that of its name"));
    }
    return absl::OkStatus();
  }

  AuditHead head;
  bool found_noted = false;

 private:
  absl::Status Follow(const std::string& line, const std::string& at) {
    if (line.size() <= kHashChars + 1 || line[kHashChars] != ' ')
      return WasChanged(at, "is no record");
    const std::string hash = line.substr(0, kHashChars), json = line.substr(kHashChars + 1);
    pb::AuditRecord record;
    uint64_t number = each_ != nullptr ? 0 : NumberIn(json);
    if (number == 0) {
      if (!google::protobuf::util::JsonStringToMessage(json, &record).ok())
        return WasChanged(at, "is no record");
      number = record.number();
      record.set_hash(hash);
    }
    // Where the oldest file's name has no hash, nothing tells what it follows on.
    const bool follows = head.first != 0 || !head.hash.empty() || number == 1;
    if (follows && number != head.last + 1)
      return WasChanged(at, absl::StrCat("record ", number, " follows on ", head.last));
    if (follows && Chained(head.hash, json) != hash)
      return WasChanged(at, absl::StrCat("the hash of record ", number, " is another"));
    if (head.first == 0) head.first = number;
    head.last = number;
    head.hash = hash;
    found_noted = found_noted || (number == noted_ && hash == noted_hash_);
    if (each_ != nullptr) (*each_)(record);
    return absl::OkStatus();
  }

  const std::function<void(const pb::AuditRecord&)>* const each_;  // null: nobody wants them
  const uint64_t noted_;
  const std::string noted_hash_;
};

// All of them; those from the front may be gone by now, also some that were read.
absl::Status ReadAll(const std::vector<AuditFile>& files, ChainReader* reader) {
  for (size_t i = 0; i < files.size(); ++i) {
    absl::Status status = reader->Read(files[i]);
    if (status.ok()) continue;
    if (!absl::IsNotFound(status)) return status;
    std::error_code error;
    if (i > 0 && std::filesystem::exists(files[i - 1].path, error))
      return WasChanged(files[i].path, "is not there any more");
    reader->head = AuditHead();  // the next one is the oldest
  }
  return absl::OkStatus();
}

// Cuts off what follows the last line's end: a record that was being written when power failed.
absl::Status CutTorn(AuditFile* file) {
  if (file->bytes == 0) return absl::OkStatus();
  std::ifstream in(file->path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const size_t end = text.rfind('\n');
  const size_t whole = end == std::string::npos ? 0 : end + 1;
  if (whole == text.size()) return absl::OkStatus();
  LogWarn("the audit's last record was not written whole, and is cut off", {{"file", file->path}});
  if (truncate(file->path.c_str(), static_cast<off_t>(whole)) != 0)
    return ErrnoStatus(errno, file->path);
  file->bytes = static_cast<int64_t>(whole);
  return absl::OkStatus();
}

// When the first record of the file is of; 0: it has none that can be read.
int64_t BegunNs(const AuditFile& file) {
  std::ifstream in(file.path, std::ios::binary);
  std::string line;
  pb::AuditRecord record;
  if (!std::getline(in, line) || line.size() <= kHashChars + 1 ||
      !google::protobuf::util::JsonStringToMessage(line.substr(kHashChars + 1), &record).ok())
    return 0;
  return record.at_ns();
}

// Of text that whoever is denied may have chosen.
void Shorten(std::string* text) {
  if (text->size() > kAuditTextMost)
    *text = absl::StrCat(std::string(CutUtf8(*text, kAuditTextMost)), "…");
  *text = ValidUtf8(*text);  // else nobody could read the record again
}

// Addresses, and uids that nobody knows here: one machine may have any number of both.
bool IsStranger(const pb::AuditRecord& record) {
  return record.user().empty() || absl::StartsWith(record.user(), kAuditAddress);
}

}  // namespace

absl::StatusOr<AuditHead> ReadAudit(const std::string& directory,
                                    const std::function<void(const pb::AuditRecord&)>& each) {
  ChainReader reader(each ? &each : nullptr);
  if (absl::Status status = ReadAll(FilesIn(directory), &reader); !status.ok()) return status;
  return reader.head;
}

absl::StatusOr<std::unique_ptr<Audit>> Audit::Open(const std::string& directory,
                                                   const AuditOptions& options) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus(errno, directory);
  std::vector<AuditFile> files = FilesIn(directory);
  if (!files.empty()) {
    if (absl::Status status = CutTorn(&files.back()); !status.ok()) return status;
  }
  // The newest one, and where nothing was written to that yet, the one before.
  size_t from = files.empty() ? 0 : files.size() - 1;
  while (from > 0 && files[from].bytes == 0) --from;
  ChainReader reader;
  for (size_t i = from; i < files.size(); ++i) {
    if (absl::Status status = reader.Read(files[i]); !status.ok()) return status;
  }
  AuditHead head = reader.head;
  if (!files.empty() && head.last > 0) head.first = files.front().first;
  for (AuditFile& file : files) file.begun_ns = BegunNs(file);
  int fd = -1;
  if (!files.empty()) {
    fd = open(files.back().path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return ErrnoStatus(errno, files.back().path);
  }
  return std::unique_ptr<Audit>(new Audit(
      directory, options, std::deque<AuditFile>(files.begin(), files.end()), std::move(head), fd));
}

Audit::Audit(std::string directory, const AuditOptions& options, std::deque<AuditFile> files,
             AuditHead head, int fd)
    : directory_(std::move(directory)),
      options_(options),
      files_(std::move(files)),
      head_(std::move(head)),
      fd_(fd) {
  for (const AuditFile& file : files_) total_bytes_ += file.bytes;
  thread_ = std::thread([this] { Run(); });
}

Audit::~Audit() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (fd_ >= 0) close(fd_);
}

void Audit::Add(pb::AuditRecord record, Written written) {
  Take(std::move(record), std::move(written), /*connection=*/false);
}

void Audit::AddConnection(pb::AuditRecord record) {
  Take(std::move(record), nullptr, /*connection=*/true);
}

void Audit::Take(pb::AuditRecord record, Written written, bool connection) {
  Shorten(record.mutable_object());
  Shorten(record.mutable_detail());
  std::unique_lock lock(mutex_);
  if (record.outcome() != "OK" && !TakeDenial(record, connection)) {
    lock.unlock();
    if (written) written(absl::OkStatus());
    return;
  }
  waiting_.push_back(std::move(record));
  if (written) told_once_written_.push_back(std::move(written));
  changed_.notify_all();
}

bool Audit::TakeDenial(const pb::AuditRecord& record, bool connection) {
  const int64_t now_ns = options_.clock->MonotonicNs();
  const std::string who = absl::StrCat(record.uid(), " ", record.user());
  auto at = denied_.find(who);
  if (at != denied_.end() && at->second.until_ns <= now_ns) {
    TellCounted(/*all=*/false);
    at = denied_.end();
  }
  if (at == denied_.end()) {
    const bool stranger = IsStranger(record);
    const bool room =
        stranger ? strangers_ < kAuditStrangersMost : denied_.size() - strangers_ < kAuditUsersMost;
    if (!room || waiting_.size() >= kAuditWaitingMost) {
      LeaveOut();
      return false;
    }
    at = denied_.emplace(who, Denied()).first;
    at->second.until_ns = now_ns + kMinute;
    at->second.stranger = stranger;
    strangers_ += stranger ? 1 : 0;
  }
  Denied& denied = at->second;
  Denials& of = denied.by_call[absl::StrCat(record.method(), " ", record.outcome())];
  const bool first = of.seen++ == 0;
  const bool room = !denied.stranger || StrangersHaveRoom();
  if (room && waiting_.size() < kAuditWaitingMost &&
      (connection ? first : denied.whole < kAuditWhole)) {
    denied.whole += connection ? 0 : 1;
    strangers_told_ += denied.stranger ? 1 : 0;
    return true;
  }
  if (!room && of.counted == 0) {
    LeaveOut();
    return false;
  }
  if (of.counted++ == 0) strangers_told_ += denied.stranger ? 1 : 0;  // by one record
  of.last = record;
  const std::string object(CutUtf8(record.object(), kObjectBytes));
  if (object.empty() || std::find(of.objects.begin(), of.objects.end(), object) != of.objects.end())
    return false;
  if (of.objects.size() < kObjectsTold) {
    of.objects.push_back(object);
  } else {
    of.others = true;
  }
  return false;
}

bool Audit::StrangersHaveRoom() {
  const int64_t now_ns = options_.clock->MonotonicNs();
  if (strangers_until_ns_ <= now_ns) {
    strangers_until_ns_ = now_ns + kMinute;
    strangers_told_ = 0;
  }
  return strangers_told_ < kAuditOfStrangers;
}

void Audit::LeaveOut() {
  if (left_out_++ == 0) left_out_until_ns_ = options_.clock->MonotonicNs() + kMinute;
}

void Audit::Tell(const Denied& denied) {
  for (const auto& [call, of] : denied.by_call) {
    if (of.counted == 0) continue;
    pb::AuditRecord record = of.last;
    if (of.counted > 1) {
      record.set_object(absl::StrCat(of.counted, " more"));
      record.set_detail(absl::StrCat(
          of.counted, " more in the same minute",
          of.objects.empty() ? "" : absl::StrCat(", of ", absl::StrJoin(of.objects, ", ")),
          of.others ? " and others" : "", "; the last: ", of.last.detail()));
    }
    waiting_.push_back(std::move(record));
  }
}

void Audit::TellCounted(bool all) {
  const int64_t now_ns = options_.clock->MonotonicNs();
  for (auto it = denied_.begin(); it != denied_.end();) {
    if (!all && it->second.until_ns > now_ns) {
      ++it;
      continue;
    }
    Tell(it->second);
    strangers_ -= it->second.stranger ? 1 : 0;
    it = denied_.erase(it);
  }
  if (left_out_ == 0 || (!all && left_out_until_ns_ > now_ns)) return;
  pb::AuditRecord record;
  record.set_at_ns(options_.clock->WallNs());
  record.set_outcome("LEFT_OUT");
  record.set_detail(absl::StrCat(std::exchange(left_out_, 0),
                                 " denials, of more users or addresses than are told apart"));
  waiting_.push_back(std::move(record));
}

void Audit::Flush() {
  std::unique_lock lock(mutex_);
  const uint64_t until = rounds_ + (busy_ ? 2 : 1);  // the one that goes on may lack some
  asked_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return rounds_ >= until || stopping_; });
}

void Audit::Run() {
  while (true) {
    std::vector<pb::AuditRecord> records;
    std::vector<Written> told;
    {
      std::unique_lock lock(mutex_);
      if (std::exchange(busy_, false)) ++rounds_;
      changed_.notify_all();
      // Minutes end, and files grow old.
      const auto most =
          denied_.empty() && left_out_ == 0 ? std::chrono::seconds(600) : std::chrono::seconds(1);
      changed_.wait_for(lock, most, [this] { return stopping_ || asked_ || !waiting_.empty(); });
      asked_ = false;
      busy_ = true;
      TellCounted(/*all=*/stopping_);
      if (stopping_ && waiting_.empty()) return;
      records.swap(waiting_);
      told.swap(told_once_written_);
    }
    const absl::Status status = WriteAll(std::move(records));
    for (const Written& written : told) written(status);
    if (!status.ok() && !std::exchange(failed_, true))
      LogError("the audit can't be written: what is done now is not recorded",
               {{"error", std::string(status.message())}});
    if (status.ok()) failed_ = false;
  }
}

absl::Status Audit::WriteAll(std::vector<pb::AuditRecord> records) {
  std::lock_guard writing(writing_);
  bool wrote = false;
  const auto trim = [&]() -> absl::Status {
    std::optional<pb::AuditRecord> gone = Trim();
    if (!gone.has_value()) return absl::OkStatus();
    wrote = true;
    return Write(*std::move(gone));
  };
  for (pb::AuditRecord& record : records) {
    if (absl::Status status = Write(std::move(record)); !status.ok()) return status;
    wrote = true;
    if (absl::Status status = trim(); !status.ok()) return status;
  }
  if (absl::Status status = trim(); !status.ok()) return status;
  if (!wrote) return absl::OkStatus();
  return fdatasync(fd_) == 0 ? absl::OkStatus() : ErrnoStatus(errno, directory_);
}

absl::Status Audit::Begin() {
  // Power may fail: what comes after it must not be there without it.
  if (fd_ >= 0 && fdatasync(fd_) != 0) return ErrnoStatus(errno, directory_);
  AuditFile file;
  file.first = head_.last + 1;
  file.before = head_.hash;
  file.path = AuditFileName(directory_, file.first, file.before);
  const int fd =
      open(file.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return ErrnoStatus(errno, file.path);
  if (absl::Status status = SyncDirectory(directory_); !status.ok()) {
    close(fd);
    return status;
  }
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

bool Audit::Full(const pb::AuditRecord& record) const {
  const AuditFile& file = files_.back();
  if (file.bytes == 0) return false;
  if (file.bytes >= options_.file_bytes) return true;
  if (options_.most_bytes > 0 && file.bytes >= options_.most_bytes / kPartsOfBound) return true;
  return options_.retention_ns > 0 && file.begun_ns > 0 &&
         record.at_ns() - file.begun_ns > options_.retention_ns / kPartsOfBound;
}

std::optional<pb::AuditRecord> Audit::Trim() {
  const int64_t now_ns = options_.clock->WallNs();
  uint64_t first = 0;
  bool by_size = false;
  while (files_.size() > 1) {
    const int64_t next_ns = files_[1].begun_ns;
    const bool old =
        options_.retention_ns > 0 && next_ns > 0 && next_ns < now_ns - options_.retention_ns;
    const bool large = options_.most_bytes > 0 && total_bytes_ > options_.most_bytes;
    if (!old && !large) break;
    const AuditFile& file = files_.front();
    if (unlink(file.path.c_str()) != 0 && errno != ENOENT) {
      if (!std::exchange(stuck_, true))
        LogError("an old file of the audit can't be removed",
                 {{"error", std::string(ErrnoStatus(errno, file.path).message())}});
      break;
    }
    stuck_ = false;
    by_size = by_size || !old;
    if (first == 0) first = std::max<uint64_t>(1, file.first);
    total_bytes_ -= file.bytes;
    files_.pop_front();
  }
  if (first == 0) return std::nullopt;
  head_.first = files_.front().first;
  pb::AuditRecord record;
  record.set_at_ns(now_ns);
  record.set_user("musterd");
  record.set_uid(geteuid());
  record.set_method("Audit/Remove");
  record.set_object(absl::StrCat("records ", first, " to ", head_.first - 1));
  record.set_outcome("OK");
  record.set_detail(by_size ? absl::StrCat("the audit had more than ",
                                           FormatSize(options_.most_bytes), " (audit_size)")
                            : absl::StrCat("older than ", FormatDuration(options_.retention_ns),
                                           " (audit_retention)"));
  return record;
}

absl::Status Audit::Write(pb::AuditRecord record) {
  if (fd_ < 0 || Full(record)) {
    if (absl::Status status = Begin(); !status.ok()) return status;
  }
  AuditFile& file = files_.back();
  record.set_number(head_.last + 1);
  record.clear_hash();
  std::string json;
  MUSTER_CHECK(google::protobuf::util::MessageToJsonString(record, &json).ok());
  const std::string hash = Chained(head_.hash, json);
  const std::string line = absl::StrCat(hash, " ", json, "\n");
  for (size_t at = 0; at < line.size();) {
    const ssize_t wrote = write(fd_, line.data() + at, line.size() - at);
    if (wrote > 0) {
      at += static_cast<size_t>(wrote);
      continue;
    }
    if (wrote < 0 && errno == EINTR) continue;
    absl::Status status = ErrnoStatus(errno, directory_);
    if (ftruncate(fd_, file.bytes) != 0) return ErrnoStatus(errno, directory_);  // no half a line
    return status;
  }
  if (file.bytes == 0) file.begun_ns = record.at_ns();
  file.bytes += static_cast<int64_t>(line.size());
  total_bytes_ += static_cast<int64_t>(line.size());
  if (head_.first == 0) head_.first = record.number();
  head_.last = record.number();
  head_.hash = hash;
  return absl::OkStatus();
}

Audit::Reading Audit::Now() {
  std::lock_guard writing(writing_);
  Reading now;
  now.files = FilesIn(directory_);
  now.head = head_;
  if (files_.empty()) return now;
  const AuditFile& newest = files_.back();
  for (AuditFile& file : now.files) {
    if (file.path != newest.path) continue;
    now.foreign = file.bytes != newest.bytes;
    file.bytes = newest.bytes;  // what is written meanwhile comes behind it
  }
  return now;
}

absl::StatusOr<std::vector<pb::AuditRecord>> Audit::Newest(
    size_t limit, const std::function<bool(const pb::AuditRecord&)>& wanted) {
  Flush();
  const Reading now = Now();
  std::deque<pb::AuditRecord> newest;
  // Each file can be read by itself: the newest ones first, and no more than it takes.
  for (auto file = now.files.rbegin(); file != now.files.rend() && newest.size() < limit; ++file) {
    std::deque<pb::AuditRecord> here;
    const std::function<void(const pb::AuditRecord&)> each = [&](const pb::AuditRecord& record) {
      if (!wanted(record)) return;
      here.push_back(record);
      if (here.size() > limit - newest.size()) here.pop_front();
    };
    ChainReader reader(&each);
    absl::Status status = reader.Read(*file);
    if (absl::IsNotFound(status)) break;  // it was old
    if (!status.ok()) return status;
    newest.insert(newest.begin(), here.begin(), here.end());
  }
  return std::vector<pb::AuditRecord>(newest.begin(), newest.end());
}

absl::StatusOr<AuditHead> Audit::Verify(uint64_t number, const std::string& hash) {
  Flush();
  const Reading now = Now();
  ChainReader reader(nullptr, number, hash);
  if (absl::Status status = ReadAll(now.files, &reader); !status.ok()) return status;
  const AuditHead& head = reader.head;
  if (head.last != now.head.last || head.hash != now.head.hash) {
    return absl::DataLossError(absl::StrCat("the audit was changed: it ends with record ",
                                            head.last, ", and record ", now.head.last,
                                            " was the last that was written"));
  }
  if (now.foreign) {
    return absl::DataLossError(absl::StrCat("the audit was changed: behind record ", head.last,
                                            " its newest file has what was not written here"));
  }
  if (number > 0 && number < head.first) {
    return absl::NotFoundError(
        absl::StrCat("record ", number, " is not kept any more: the oldest is record ", head.first,
                     ". Note the last line of this command "
                     "without --noted; muster audit list --user musterd "
                     "says what was removed by age and size"));
  }
  if (number > 0 && !reader.found_noted) {
    return absl::DataLossError(absl::StrCat("the audit was changed: record ", number,
                                            " is not there, or has another hash"));
  }
  return head;
}

}  // namespace muster
