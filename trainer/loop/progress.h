// Progress lines: JSON objects to the datagram socket MUSTER_PROGRESS_SOCKET, or to stdout when there is none and nobody looks (it is no
// terminal). Sending never fails the training: a line that can't be delivered is dropped.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace muster::trainer {

class Progress {
 public:
  // `socket_path`: "" for stdout, unless that is a terminal.
  explicit Progress(std::string socket_path);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // What is told once, such as a checkpoint, is tried again for a second where the reader's queue is full.
  enum Kind { kNewest, kDurable };
  void Send(const nlohmann::ordered_json& line, Kind kind = kNewest);

 private:
  std::string path_;
  int fd_ = -1;
};

// A file that gets each step's metrics as a line of JSON, all digits: for plots, and for comparing runs.
class MetricsFile {
 public:
  // Appends to `path`, "" for none; throws std::runtime_error if that can't be opened.
  explicit MetricsFile(const std::string& path);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  // What can't be written is dropped.
  void Send(const nlohmann::ordered_json& line);

 private:
  int fd_ = -1;
  bool cut_ = false;  // the last line was written in part
};

}  // namespace muster::trainer
