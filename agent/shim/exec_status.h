// What a child says on its way from fork to exec: on a pipe that a successful exec closes
// (O_CLOEXEC).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace muster::shim {

// In the child: tells why `what` failed with `error`; the agent reads the first word. "program: …"
// for what the job names and this host doesn't have, "launch: …" for what is no fault of the job.
void TellLaunchFailure(int fd, const std::string& what, int error);

// In the parent: empty once exec has happened, else the child's words. A dead network file system
// below the program or its workdir would keep the child, and whoever waits for it, for ever: after
// `patience_ns` that is said instead, with *late = true, and the child may still be on its way.
// `meanwhile` is called ten times a second while it waits.
std::string AwaitExec(int fd, const std::string& program, int64_t patience_ns, bool* late,
                      const std::function<void()>& meanwhile);

}  // namespace muster::shim
