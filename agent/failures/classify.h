// Why a process of a training job ended, in the classes that a scheduler acts upon
// (docs/runbook.md, "Why a program ended").
//
// Only what says the cause counts: what Muster did itself and what the kernel and the driver said
// come before what the program wrote; of its log, what names a cause comes before what names its
// consequences ("connection closed by peer", a collective that timed out), and that before a plain
// exception; an error that training went on after doesn't count unless there is no other. Frames of
// a traceback and settings that a program prints say nothing: their words are the program's. The
// rules are text patterns of what frameworks, drivers and libraries print, in rules.cc.
//
// Pure: no clock, no files. Thread-safe. At most a few hundred lines are expected; it costs about
// 0.1 ms a line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

enum class FailureClass {
  kUserError,  // the program, its arguments or its data: it would fail again
  kOom,        // memory of the host, of its cgroup or of the device
  kHang,       // it stood still
  kKilled,     // a signal from outside that Muster didn't send
  kDevice,     // an accelerator or the link between two of one host
  kHost,       // a host went down, was restarted or can't run it
  kNetwork,    // between hosts; also: a peer vanished, and this is all that is known
  kStorage,    // file systems and object stores, full ones included
  kPreempted,  // its place was taken
};
inline constexpr int kFailureClasses = 9;

struct EndFacts {
  int exit_code = 0;
  int signal = 0;                        // that ended it; 0 = it exited
  bool preempted = false;                // Muster asked it to stop and its place was wanted
  bool silent = false;                   // Muster stopped it: no progress for hang_timeout
  bool host_lost = false;                // its host was lost, or another boot
  bool cgroup_oom = false;               // its cgroup's oom_kill count rose
  bool devices = true;                   // it held devices that aren't declared stand-ins: what its
                                         // log says of devices and their driver may be so
  std::vector<std::string_view> events;  // since it began: lines of the kernel, the driver, the
                                         // node ("NVRM: Xid (PCI:0000:4e:00): 79, …")
  std::vector<std::string_view> tail;    // the last lines of its log, oldest first
};

struct Failure {
  FailureClass cls = FailureClass::kUserError;
  // For people: the line that told it, printable and cut to 200 bytes, or what Muster knows itself;
  // empty = nothing but exit code and signal is known.
  std::string because;
};

// Never fails: what says nothing is the program's error if it exited and killed from outside if a
// signal ended it.
Failure Classify(const EndFacts& facts);

// "user_error", "oom", …: as in files and metrics.
std::string_view FailureName(FailureClass cls);

}  // namespace muster
