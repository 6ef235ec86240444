#include "scheduler/access/audit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>

#include <google/protobuf/util/json_util.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/pki/sha256.h"

namespace muster {
namespace {

constexpr size_t kHashChars = 64;
constexpr char kEnding[] = ".audit";

std::string Chained(const std::string& before, const std::string& json) {
  const std::string from = before.empty() ? std::string(kHashChars, '0') : before;
  return absl::BytesToHexString(Sha256(absl::StrCat(from, " ", json)));
}

std::string FileName(const std::string& directory, uint64_t first) {
  return absl::StrCat(directory, "/", absl::StrFormat("%020d", first), kEnding);
}

// By the number of their first record, which is their name.
std::vector<std::string> FilesIn(const std::string& directory) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().extension() == kEnding) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Follows the chain line by line. `at`: file and line, for what is wrong.
absl::Status Follow(const std::string& line, const std::string& at, AuditHead* head,
                    const std::function<void(const pb::AuditRecord&)>& each) {
  const auto wrong = [&](const std::string& what) {
    return absl::DataLossError(absl::StrCat("the audit was changed: ", at, ": ", what));
  };
  if (line.size() <= kHashChars + 1 || line[kHashChars] != ' ') return wrong("is no record");
  const std::string hash = line.substr(0, kHashChars), json = line.substr(kHashChars + 1);
  pb::AuditRecord record;
  if (!google::protobuf::util::JsonStringToMessage(json, &record).ok())
    return wrong("is no record");
  record.set_hash(hash);
  // What the oldest file begins with follows on records that were taken away.
  if (head->first == 0) {
    if (record.number() != 1) {
      *head = {record.number(), record.number(), hash};
      if (each) each(record);
      return absl::OkStatus();
    }
    head->first = 1;
  } else if (record.number() != head->last + 1) {
    return wrong(absl::StrCat("record ", record.number(), " follows on ", head->last));
  }
  if (Chained(head->hash, json) != hash)
    return wrong(absl::StrCat("the hash of record ", record.number(), " is another"));
  head->last = record.number();
  head->hash = hash;
  if (each) each(record);
  return absl::OkStatus();
}

// Cuts off what follows the last line's end: a record that was being written when power failed.
absl::Status CutTorn(const std::string& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size == 0) return absl::OkStatus();
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const size_t end = text.rfind('\n');
  const size_t whole = end == std::string::npos ? 0 : end + 1;
  if (whole == text.size()) return absl::OkStatus();
  LogWarn("the audit's last record was not written whole, and is cut off", {{"file", path}});
  return truncate(path.c_str(), static_cast<off_t>(whole)) == 0 ? absl::OkStatus()
                                                                : ErrnoStatus(errno, path);
}

}  // namespace

absl::StatusOr<AuditHead> ReadAudit(const std::string& directory,
                                    const std::function<void(const pb::AuditRecord&)>& each) {
  AuditHead head;
  for (const std::string& path : FilesIn(directory)) {
    std::ifstream in(path, std::ios::binary);
    if (!in) return ErrnoStatus(errno, path);
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
      if (absl::Status status = Follow(line, absl::StrCat(path, ":", number), &head, each);
          !status.ok())
        return status;
    }
  }
  return head;
}

absl::StatusOr<std::unique_ptr<Audit>> Audit::Open(const std::string& directory,
                                                   int64_t file_bytes) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus(errno, directory);
  const std::vector<std::string> files = FilesIn(directory);
  if (!files.empty()) {
    if (absl::Status status = CutTorn(files.back()); !status.ok()) return status;
  }
  absl::StatusOr<AuditHead> head = ReadAudit(directory);
  if (!head.ok()) return head.status();
  int fd = -1;
  int64_t bytes = 0;
  if (!files.empty()) {
    fd = open(files.back().c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return ErrnoStatus(errno, files.back());
    bytes = lseek(fd, 0, SEEK_END);
  }
  return std::unique_ptr<Audit>(new Audit(directory, file_bytes, *head, fd, bytes));
}

Audit::Audit(std::string directory, int64_t file_bytes, AuditHead head, int fd, int64_t bytes)
    : directory_(std::move(directory)),
      file_bytes_(file_bytes),
      head_(std::move(head)),
      fd_(fd),
      bytes_(bytes),
      thread_([this] { Run(); }) {}

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
  std::unique_lock lock(mutex_);
  if (waiting_.size() >= kAuditWaitingMost && record.outcome() != "OK") {
    ++left_out_;
    lock.unlock();
    if (written) written(absl::OkStatus());
    return;
  }
  waiting_.push_back(std::move(record));
  if (written) told_once_written_.push_back(std::move(written));
  changed_.notify_all();
}

void Audit::Flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return (waiting_.empty() && !busy_) || stopping_; });
}

void Audit::Run() {
  while (true) {
    std::vector<pb::AuditRecord> records;
    std::vector<Written> told;
    {
      std::unique_lock lock(mutex_);
      busy_ = false;
      changed_.notify_all();
      changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      records.swap(waiting_);
      told.swap(told_once_written_);
      busy_ = true;
      if (left_out_ > 0) {
        pb::AuditRecord left_out;
        left_out.set_at_ns(records.back().at_ns());
        left_out.set_outcome("LEFT_OUT");
        left_out.set_detail(
            absl::StrCat(std::exchange(left_out_, 0), " denials, more than are kept"));
        records.push_back(std::move(left_out));
      }
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
  for (pb::AuditRecord& record : records) {
    if (absl::Status status = Write(std::move(record)); !status.ok()) return status;
  }
  return fdatasync(fd_) == 0 ? absl::OkStatus() : ErrnoStatus(errno, directory_);
}

absl::Status Audit::Begin() {
  const std::string path = FileName(directory_, head_.last + 1);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return ErrnoStatus(errno, path);
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
  bytes_ = 0;
  return absl::OkStatus();
}

absl::Status Audit::Write(pb::AuditRecord record) {
  if (fd_ < 0 || bytes_ >= file_bytes_) {
    if (absl::Status status = Begin(); !status.ok()) return status;
  }
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
    if (ftruncate(fd_, bytes_) != 0) return ErrnoStatus(errno, directory_);  // no half a line
    return status;
  }
  bytes_ += static_cast<int64_t>(line.size());
  if (head_.first == 0) head_.first = record.number();
  head_.last = record.number();
  head_.hash = hash;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<pb::AuditRecord>> Audit::Newest(
    size_t limit, const std::function<bool(const pb::AuditRecord&)>& wanted) {
  Flush();
  std::lock_guard writing(writing_);
  std::deque<pb::AuditRecord> newest;
  const absl::StatusOr<AuditHead> head = ReadAudit(directory_, [&](const pb::AuditRecord& record) {
    if (!wanted(record)) return;
    newest.push_back(record);
    if (newest.size() > limit) newest.pop_front();
  });
  if (!head.ok()) return head.status();
  return std::vector<pb::AuditRecord>(newest.begin(), newest.end());
}

absl::StatusOr<AuditHead> Audit::Verify(uint64_t number, const std::string& hash) {
  Flush();
  std::lock_guard writing(writing_);
  bool found = number == 0;
  absl::StatusOr<AuditHead> head = ReadAudit(directory_, [&](const pb::AuditRecord& record) {
    found = found || (record.number() == number && record.hash() == hash);
  });
  if (!head.ok()) return head;
  if (head->last != head_.last || head->hash != head_.hash) {
    return absl::DataLossError(absl::StrCat("the audit was changed: it ends with record ",
                                            head->last, ", and record ", head_.last,
                                            " was the last that was written"));
  }
  if (!found) {
    return absl::DataLossError(absl::StrCat("the audit was changed: record ", number,
                                            " is not there, or has another hash"));
  }
  return head;
}

}  // namespace muster
