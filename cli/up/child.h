// A program that runs as a child of `muster up`: in its own process group (a Ctrl+C of the terminal
// doesn't reach it), its output in a log file, told to end (SIGTERM) should the parent die without
// a word.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster {

// A log of more than 64 MiB becomes <path>.1 in place of the one before, and goes on empty. Also
// while a program appends to it (O_APPEND): what that writes at this very moment may be lost.
void KeepLogShort(const std::string& path);

class Child {
 public:
  Child(std::string program, std::vector<std::string> arguments, std::string log_path);
  ~Child();  // Stop
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  absl::Status Start();  // may be called again once it has ended
  void KeepShort();      // its log; now and then
  void AlsoOnce(std::string argument) { once_ = std::move(argument); }  // at the next start only
  bool Running();                                                       // reaps it
  void Stop(int grace_ms);  // SIGTERM, then SIGKILL; returns when it is gone
  const std::string& name() const { return name_; }
  std::string ending() const { return ending_; }  // "exit 2", "SIGKILL"; once it isn't running
  std::string LastLines() const;  // of the log since the last start, for a failure's message

 private:
  void Note(int wait_status);

  std::string program_, name_, log_path_, ending_;
  std::vector<std::string> arguments_;
  std::string once_;
  off_t log_begin_ = 0;
  pid_t pid_ = -1;
};

}  // namespace muster
