// Reading a rank's log files while they grow and rotate (agent/shim/log_writer.h names them by
// offset).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace muster::agent {

// A place in one rank's log. Not thread-safe.
class LogCursor {
 public:
  // From the beginning of what is kept, or from the last `tail_lines` lines (0: all), which Seek or
  // the first Read looks for.
  LogCursor(std::string directory, int32_t rank, int64_t tail_lines);
  // From an offset that a cursor had, perhaps another agent's, before.
  static LogCursor At(std::string directory, int32_t rank, int64_t offset);

  int32_t rank() const { return rank_; }
  int64_t offset() const {
    return offset_;
  }  // of what Read gives next, in the log as it stands in its files
  // The logs of a forgotten attempt lie elsewhere under the same names.
  void MoveTo(std::string directory) { directory_ = std::move(directory); }
  // Looks for where the last lines begin, backwards through so many bytes at most, of which it
  // takes off what it read. False: that was too few; once more goes on.
  bool Seek(int64_t* bytes);
  // What the processes wrote, in whole lines, the shim's marks taken off.
  struct Piece {
    std::string data;
    std::vector<std::pair<int64_t, int64_t>>
        from_stderr;  // begin and end in `data`, ascending; the rest is standard output's
  };
  // Up to `max_bytes` more of the log (more than its longest line); empty at the present end.
  // `*dropped` grows by what was deleted before it could be read.
  Piece Read(int64_t max_bytes, int64_t* dropped);

 private:
  int64_t SeekPiece();

  std::string directory_;
  const int32_t rank_;
  int64_t offset_ = 0;
  // While the last lines are sought:
  int64_t sought_lines_ = 0;       // that many more newlines, to the left of
  int64_t sought_to_ = INT64_MAX;  // this offset; INT64_MAX: the present end
  bool sought_last_ = true;        // the log's last byte has yet to be seen: it ends a line
};

// The last lines of a rank's log, so many and so many bytes at most, as the processes wrote them.
// Where all bytes are of one line, its end.
std::string LastLines(const std::string& directory, int32_t rank, int64_t lines, int64_t bytes);

}  // namespace muster::agent
