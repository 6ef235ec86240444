// Which paths lie on file systems that another machine or another process answers for. One that
// doesn't answer keeps whoever asks it for anything, for as long as it takes
// (docs/decisions/044-dead-mounts.md).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/base/descriptor.h"

namespace muster::agent {

// Where file systems lie that can't be written, by their mount or as a whole; `table` is in the
// form of proc(5), /proc/PID/mountinfo.
std::vector<std::string> ReadOnlyMounts(const std::string& table);

// Not thread-safe.
class Mounts {
 public:
  // `table` is in the form of proc(5), /proc/PID/mountinfo. One that can't be read names nothing.
  explicit Mounts(const std::string& table = "/proc/self/mountinfo");

  // The first such file system on the way to an absolute path, symbolic links followed: "/home
  // (nfs4 of nas:/home)"; "": there is none. What isn't there yet lies where its parent does.
  // Touches none of them; where none is mounted, this costs one system call.
  std::string ServedByOthers(const std::string& path);

 private:
  void Read();

  const std::string table_;
  const Descriptor changes_;                   // the kernel tells by it that the table is another
  std::map<std::string, std::string> served_;  // what is said of them, by mount point
};

}  // namespace muster::agent
