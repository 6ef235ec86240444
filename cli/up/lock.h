// Who keeps a `muster up` running, from which directory, for which socket, and how it fares: what
// `muster up` writes and every other command reads.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/interrupt.h"
#include "cli/settings.h"

namespace muster {

struct UpHolder {
  pid_t pid = 0;  // 0: nobody
  std::string data_dir;
  std::string server;   // unix:///path
  std::string trouble;  // what keeps ending and when it is started again; empty: all is well
};

// Holds <data_dir>/up.lock while it lives, with its pid and server inside: one `muster up` a
// directory. Beside the socket a file names the directory.
class UpLock {
 public:
  // ALREADY_EXISTS: held by another process (*holder). Others: the file can't be made.
  static absl::StatusOr<std::unique_ptr<UpLock>> Take(const std::string& data_dir,
                                                      const std::string& server, UpHolder* holder);
  static UpHolder Holder(const std::string& data_dir);
  // Of the `muster up` that keeps this server, whichever directory it has.
  static UpHolder Serving(const std::string& server, const Environment& environment);
  // Until nobody holds it. False: interrupted.
  static bool WaitUntilFree(const std::string& data_dir, const Interrupt& interrupt);
  ~UpLock();

  // Names the directory beside the socket, whose own directory is there by now.
  void NameDirectory() const;
  void ForgetDirectory() const;
  void Tell(const std::string& trouble);

 private:
  UpLock(int fd, std::string data_dir, std::string server)
      : fd_(fd), data_dir_(std::move(data_dir)), server_(std::move(server)) {}
  absl::Status Write(const std::string& trouble);

  int fd_;
  const std::string data_dir_, server_;
};

// "muster down", with the directory where it isn't the default one.
std::string DownCommand(const std::string& data_dir, const Environment& environment);

// How long to wait before a program that ended is started again: not at all the first time, then 1
// s, 2 s, 4 s, up to a minute. A program that ran for a minute begins anew.
class RestartPause {
 public:
  int64_t After(int64_t ran_ns);
  int ends() const { return ends_; }  // in a row

 private:
  int ends_ = 0;
};

}  // namespace muster
