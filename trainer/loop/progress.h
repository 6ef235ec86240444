// Progress lines: JSON objects to the datagram socket MUSTER_PROGRESS_SOCKET, or to stdout when there is none. Sending
// never blocks and never fails the training: a line that can't be delivered is dropped.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace muster::trainer {

class Progress {
 public:
  // `socket_path`: "" for stdout.
  explicit Progress(std::string socket_path);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Send(const nlohmann::ordered_json& line);

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace muster::trainer
