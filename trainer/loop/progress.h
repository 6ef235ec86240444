// Progress lines: JSON objects to the datagram socket MUSTER_PROGRESS_SOCKET, or to stdout when
// there is none and nobody looks (it is no terminal). Sending never fails the training: a line that
// can't be delivered is dropped, or kept for later if it is one that is told once.
#pragma once

#include <deque>
#include <string>

#include <nlohmann/json.hpp>

namespace muster::trainer {

class Progress {
 public:
  // `socket_path`: "" for stdout, unless that is a terminal.
  explicit Progress(std::string socket_path);
  // Tries for a while to send what is kept.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // What is told once, such as a checkpoint, is tried again for a second where the reader's queue
  // is full, and then kept, as it is where nobody reads: it goes before any later line. The
  // kMostKept newest are.
  enum Kind { kNewest, kDurable };
  void Send(const nlohmann::ordered_json& line, Kind kind = kNewest);
  // Tries once to send what is kept; whether nothing is then.
  bool Delivered() { return SendKept(1); }

  static constexpr size_t kMostKept = 100;

 private:
  // kFull: the reader's queue. kAbsent: there is no reader just now. kNever: no reader takes it.
  enum Outcome { kSent, kFull, kAbsent, kNever };
  Outcome SendOnce(const std::string& text);
  bool SendKept(int tries);

  std::string path_;
  int fd_ = -1;
  std::deque<std::string> kept_;  // durable lines, the oldest first
};

// A file that gets each step's metrics as a line of JSON, all digits: for plots, and for comparing
// runs.
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
