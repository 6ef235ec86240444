#include "agent/host/logs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "agent/shim/log_writer.h"

namespace muster::agent {
namespace {

constexpr int64_t kSeekPiece = 256 << 10;

std::string ReadAt(const std::string& path, int64_t offset, int64_t max_bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return "";
  std::string data(static_cast<size_t>(max_bytes), '\0');
  const ssize_t got = ::pread(fd, data.data(), data.size(), offset);
  ::close(fd);
  data.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return data;
}

int64_t SizeOf(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? int64_t{info.st_size} : 0;
}

// Takes the marks off lines as the shim wrote them.
LogCursor::Piece Unmarked(std::string_view marked) {
  LogCursor::Piece piece;
  piece.data.reserve(marked.size());
  while (!marked.empty()) {
    const std::string_view line = marked.substr(
        0, marked.find('\n') == std::string_view::npos ? marked.size() : marked.find('\n') + 1);
    marked.remove_prefix(line.size());
    const bool is_error = line.front() == shim::kErrorMark;
    const int64_t begin = static_cast<int64_t>(piece.data.size());
    piece.data.append(line.substr(is_error || line.front() == shim::kOutputMark ? 1 : 0));
    if (!is_error) continue;
    const int64_t end = static_cast<int64_t>(piece.data.size());
    if (!piece.from_stderr.empty() && piece.from_stderr.back().second == begin) {
      piece.from_stderr.back().second = end;
    } else {
      piece.from_stderr.emplace_back(begin, end);
    }
  }
  return piece;
}

}  // namespace

LogCursor::LogCursor(std::string directory, int32_t rank, int64_t tail_lines)
    : directory_(std::move(directory)),
      rank_(rank),
      sought_lines_(std::max<int64_t>(0, tail_lines)) {
  if (sought_lines_ > 0) return;
  const std::vector<int64_t> starts = shim::LogFileOffsets(directory_, rank_);
  if (!starts.empty()) offset_ = starts.front();
}

bool LogCursor::Seek(int64_t* bytes) {
  while (sought_lines_ > 0) {
    if (*bytes <= 0) return false;
    *bytes -= SeekPiece();
  }
  return true;
}

// Backwards until one newline more than asked for is seen. Returns how much was read.
int64_t LogCursor::SeekPiece() {
  const std::vector<int64_t> starts = shim::LogFileOffsets(directory_, rank_);
  const auto next = std::lower_bound(starts.begin(), starts.end(), sought_to_);
  if (next == starts.begin()) {  // there are no more lines
    offset_ = sought_to_ == INT64_MAX ? 0 : sought_to_;
    sought_lines_ = 0;
    return 0;
  }
  const int64_t start = *std::prev(next);
  const std::string path = directory_ + "/" + shim::LogFileName(rank_, start);
  const int64_t end = std::min(SizeOf(path), sought_to_ - start);
  const int64_t begin = std::max<int64_t>(0, end - kSeekPiece);
  sought_to_ = start + begin;
  const std::string piece = ReadAt(path, begin, end - begin);
  for (size_t at = piece.size(); at-- > 0;) {
    if (piece[at] == '\n' && !sought_last_ && --sought_lines_ == 0) {
      offset_ = sought_to_ + static_cast<int64_t>(at) + 1;
      break;
    }
    sought_last_ = false;
  }
  return end - begin;
}

LogCursor LogCursor::At(std::string directory, int32_t rank, int64_t offset) {
  LogCursor cursor(std::move(directory), rank, 0);
  cursor.offset_ = std::max<int64_t>(0, offset);
  return cursor;
}

LogCursor::Piece LogCursor::Read(int64_t max_bytes, int64_t* dropped) {
  int64_t no_limit = INT64_MAX;
  Seek(&no_limit);
  const std::vector<int64_t> starts = shim::LogFileOffsets(directory_, rank_);
  if (starts.empty()) return {};
  if (starts.front() > offset_) {
    *dropped += starts.front() - offset_;
    offset_ = starts.front();
  }
  for (size_t i = 0; i < starts.size(); ++i) {
    const int64_t end = i + 1 < starts.size() ? starts[i + 1] : INT64_MAX;
    if (offset_ < starts[i] || offset_ >= end) continue;
    std::string data = ReadAt(directory_ + "/" + shim::LogFileName(rank_, starts[i]),
                              offset_ - starts[i], max_bytes);
    // A line may be half written: it comes whole with the next Read, unless nothing will be added
    // to this file any more.
    const size_t lines = data.rfind('\n') + 1;  // npos + 1 = 0
    const bool full = static_cast<int64_t>(data.size()) == max_bytes ||
                      offset_ + static_cast<int64_t>(data.size()) == end;
    if (lines > 0 || !full) data.resize(lines);
    offset_ += static_cast<int64_t>(data.size());
    return Unmarked(data);
  }
  return {};
}

std::string LastLines(const std::string& directory, int32_t rank, int64_t lines, int64_t bytes) {
  // As many as there are with a mark on each line, and one before them.
  const size_t most = static_cast<size_t>(2 * bytes + 1);
  const std::vector<int64_t> starts = shim::LogFileOffsets(directory, rank);
  std::string log;
  for (auto start = starts.rbegin(); start != starts.rend() && log.size() < most; ++start) {
    const std::string path = directory + "/" + shim::LogFileName(rank, *start);
    const int64_t end = SizeOf(path);  // what comes meanwhile is left out
    const int64_t wanted = std::min(end, static_cast<int64_t>(most - log.size()));
    const std::string piece = ReadAt(path, end - wanted, wanted);
    if (static_cast<int64_t>(piece.size()) < wanted) break;  // deleted meanwhile
    log.insert(0, piece);
  }
  const bool cut = log.size() == most;
  if (const size_t last = log.rfind('\n'); last != std::string::npos) log.resize(last + 1);
  const size_t whole = log.find('\n') + 1;  // npos + 1 = 0
  if (cut && whole < log.size()) log.erase(0, whole);

  const std::string text = Unmarked(log).data;
  size_t from = text.size() - std::min(text.size(), static_cast<size_t>(bytes));
  if (from > 0 && text[from - 1] != '\n') {
    const size_t line = text.find('\n', from) + 1;
    if (line > 0 && line < text.size()) from = line;
  }
  size_t begin = text.size();
  for (int64_t left = lines; left > 0 && begin > from; --left)
    begin = begin < 2 ? 0 : text.rfind('\n', begin - 2) + 1;
  return text.substr(std::max(from, begin));
}

}  // namespace muster::agent
