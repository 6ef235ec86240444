// Runs another program to its end, without a shell: words go to it as they are.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster {

struct ProgramOptions {
  std::vector<std::string> argv;         // the first is the program's path
  std::vector<std::string> environment;  // NAME=value; empty: our own
  std::string
      input;  // its standard input, as a file that it may open again as /dev/stdin; "": nothing
  int64_t time_limit_ns = 0;     // then it is killed, with what it started in its process group
  size_t most_bytes = 64 << 10;  // kept of its standard output; the rest is read and dropped
  const std::atomic<bool>* cancel =
      nullptr;  // looked at ten times a second; true: as when its time is over
  bool dies_with_us =
      false;  // killed when this process ends, however that does; what it started itself isn't
};

struct ProgramEnd {
  int exit_code = 0;   // -1: it did not exit by itself
  std::string output;  // standard output
  std::string why;     // "" = it exited 0; else what happened, with the end of what it said on
                       // standard error. UTF-8
};

// Blocks until it has ended. What it leaves running in the background is not waited for. An error:
// it could not be started. Thread-safe.
absl::StatusOr<ProgramEnd> RunProgram(const ProgramOptions& options);

}  // namespace muster
