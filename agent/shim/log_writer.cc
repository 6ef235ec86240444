#include "agent/shim/log_writer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "agent/shim/durable.h"

namespace muster::shim {
namespace {

std::optional<std::pair<int32_t, int64_t>> ParseName(std::string_view name) {
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos || name.size() - dot - 1 != 16) return std::nullopt;
  int32_t rank = 0;
  uint64_t offset = 0;
  const char *begin = name.data(), *end = begin + name.size();
  const auto first = std::from_chars(begin, begin + dot, rank);
  const auto second = std::from_chars(begin + dot + 1, end, offset, 16);
  if (first.ec != std::errc() || first.ptr != begin + dot || second.ec != std::errc() ||
      second.ptr != end)
    return std::nullopt;
  return std::make_pair(rank, static_cast<int64_t>(offset));
}

std::vector<std::pair<int32_t, int64_t>> List(const std::string& directory) {
  std::vector<std::pair<int32_t, int64_t>> files;
  DIR* dir = ::opendir(directory.c_str());
  if (dir == nullptr) return files;
  while (const dirent* entry = ::readdir(dir)) {
    if (const auto file = ParseName(entry->d_name)) files.push_back(*file);
  }
  ::closedir(dir);
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::string LogFileName(int32_t rank, int64_t offset) {
  char name[48];
  snprintf(name, sizeof name, "%" PRId32 ".%016" PRIx64, rank, static_cast<uint64_t>(offset));
  return name;
}

std::vector<int64_t> LogFileOffsets(const std::string& directory, int32_t rank) {
  std::vector<int64_t> offsets;
  for (const auto& [file_rank, offset] : List(directory)) {
    if (file_rank == rank) offsets.push_back(offset);
  }
  return offsets;
}

std::vector<int32_t> LogRanks(const std::string& directory) {
  std::vector<int32_t> ranks;
  for (const auto& [rank, offset] : List(directory)) {
    if (ranks.empty() || ranks.back() != rank) ranks.push_back(rank);
  }
  return ranks;
}

LogWriter::LogWriter(std::string directory, int32_t rank, int64_t file_bytes, int64_t files)
    : directory_(std::move(directory)), rank_(rank), file_bytes_(file_bytes), files_(files) {}

LogWriter::~LogWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void LogWriter::OpenNext() {
  if (fd_ >= 0) ::close(fd_);
  start_ += size_;
  size_ = 0;
  const std::string name = directory_ + "/" + LogFileName(rank_, start_);
  const auto open = [&] {
    return ::open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  };
  fd_ = open();
  if (fd_ < 0 && errno == ENOENT && (::mkdir(directory_.c_str(), 0700) == 0 || errno == EEXIST))
    fd_ = open();
  if (start_ == 0) return;
  std::vector<int64_t> offsets = LogFileOffsets(directory_, rank_);
  for (size_t i = 0; i + static_cast<size_t>(files_) < offsets.size(); ++i) {
    ::unlink((directory_ + "/" + LogFileName(rank_, offsets[i])).c_str());
  }
}

void LogWriter::Append(std::string_view lines) {
  if (fd_ < 0 || (size_ > 0 && size_ + static_cast<int64_t>(lines.size()) > file_bytes_))
    OpenNext();
  if (fd_ < 0 || WriteAll(fd_, lines) != 0) {
    // Part of it may have been written; the file's length is the truth about offsets.
    const off_t length = fd_ < 0 ? -1 : ::lseek(fd_, 0, SEEK_END);
    if (length >= 0) size_ = length;
    return;
  }
  size_ += static_cast<int64_t>(lines.size());
}

std::string MarkedLine(std::string_view line, bool is_error) {
  const bool ambiguous =
      !line.empty() && (line.front() == kErrorMark || line.front() == kOutputMark);
  std::string marked = is_error    ? std::string(1, kErrorMark)
                       : ambiguous ? std::string(1, kOutputMark)
                                   : std::string();
  return marked.append(line);
}

void LineBuffer::Add(std::string_view bytes, LogWriter* log) {
  std::string out;
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    const size_t room = static_cast<size_t>(line_bytes_) - partial_.size();
    const size_t take = std::min(newline == std::string_view::npos ? bytes.size() : newline, room);
    partial_.append(bytes.substr(0, take));
    bytes.remove_prefix(take);
    const bool ended = !bytes.empty() && bytes.front() == '\n';
    if (ended) bytes.remove_prefix(1);
    if (ended || (partial_.size() == static_cast<size_t>(line_bytes_) && !bytes.empty())) {
      out += MarkedLine(partial_, is_error_);
      out.push_back('\n');
      partial_.clear();
    }
  }
  if (!out.empty()) log->Append(out);
}

void LineBuffer::Finish(LogWriter* log) {
  if (partial_.empty()) return;
  log->Append(MarkedLine(partial_, is_error_) + "\n");
  partial_.clear();
}

}  // namespace muster::shim
