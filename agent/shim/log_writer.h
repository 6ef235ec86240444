// Logs of one rank: files named by the offset of their first byte, so that a reader that knows an
// offset finds its place after any rotation.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster::shim {

// In place of a rank: what rank 0 reported, a JSON object a line with the time it came (at_ns),
// where that is kept. It lies beside the logs, and is read and kept as long as they are.
inline constexpr int32_t kReports = -2;
inline constexpr int64_t kReportsFileBytes = int64_t{8} << 20, kReportsFiles = 8;

// `logs/<rank>.<offset in 16 hex digits>`
std::string LogFileName(int32_t rank, int64_t offset);
// Offsets of the first byte of each file of a rank, ascending; and the ranks that have files,
// ascending, kReports among them.
std::vector<int64_t> LogFileOffsets(const std::string& directory, int32_t rank);
std::vector<int32_t> LogRanks(const std::string& directory);

// Appends whole lines (directory and file are made for the first), cuts longer ones, begins a new
// file when one is full and deletes the oldest. A full disk loses log bytes, never the process that
// writes them. Not thread-safe.
class LogWriter {
 public:
  LogWriter(std::string directory, int32_t rank, int64_t file_bytes, int64_t files);
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  void Append(std::string_view lines);

 private:
  void OpenNext();

  const std::string directory_;
  const int32_t rank_;
  const int64_t file_bytes_;
  const int64_t files_;
  int fd_ = -1;
  int64_t start_ = 0;  // offset of the open file's first byte
  int64_t size_ = 0;   // bytes in it
};

// Which stream a line of a log came on: one of standard error begins with kErrorMark; one of
// standard output that begins with either byte itself has kOutputMark before it.
constexpr char kErrorMark = '\x02', kOutputMark = '\x03';
// The line as it stands in a log.
std::string MarkedLine(std::string_view line, bool is_error);

// Collects a stream, standard error or output, into lines of at most `line_bytes` (mark and newline
// not counted).
class LineBuffer {
 public:
  LineBuffer(int64_t line_bytes, bool is_error) : line_bytes_(line_bytes), is_error_(is_error) {}
  void Add(std::string_view bytes, LogWriter* log);
  void Finish(LogWriter* log);  // what is left, as a line

 private:
  const int64_t line_bytes_;
  const bool is_error_;
  std::string partial_;
};

}  // namespace muster::shim
