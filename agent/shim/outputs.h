// What the attempt's programs print, on its way into the logs, and what a worker's setup exports.
// Not thread-safe.
#pragma once

#include <poll.h>

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/shim/log_writer.h"

namespace muster::shim {

class Outputs {
 public:
  // `directory`: of the logs.
  Outputs(std::string directory, int64_t file_bytes, int64_t files, int64_t line_bytes)
      : directory_(std::move(directory)),
        file_bytes_(file_bytes),
        files_(files),
        line_bytes_(line_bytes) {}
  ~Outputs();
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;

  // Both take the descriptor, a pipe's end.
  void AddLog(int fd, int32_t rank, bool is_error);
  void AddExports(int fd, size_t worker);

  void AddTo(std::vector<pollfd>* polled) const;
  // Of descriptors that AddTo gave, and that are ready now.
  void Read(const std::vector<pollfd>& polled);
  // What the worker's setup has exported so far.
  std::string Exports(size_t worker);
  void Log(int32_t rank, const std::string& line, bool is_error);
  void Report(const std::string& line);  // among kReports
  // At the end: what lies in the pipes, and no more. Somebody else may have a write end (passed
  // through a socket, opened in /proc), and may go on writing.
  void Drain();

 private:
  struct Stream {
    int fd = -1;
    int32_t rank = 0;
    bool exports = false;
    size_t worker = 0;
    LineBuffer lines;
  };

  LogWriter* Writer(int32_t rank);
  void Read(Stream* stream);
  void Close(Stream* stream);

  const std::string directory_;
  const int64_t file_bytes_, files_, line_bytes_;
  std::list<Stream> streams_;
  std::map<int32_t, std::unique_ptr<LogWriter>> logs_;  // by rank
  std::map<size_t, std::string> exports_;               // by worker
};

}  // namespace muster::shim
