// What a child says on its way from fork to exec: on a pipe that a successful exec closes
// (O_CLOEXEC).
#pragma once

#include <optional>
#include <string>

namespace muster::shim {

// In the child: tells why `what` failed with `error`; the agent reads the first word. "program: …"
// for what the job names and this host doesn't have, "launch: …" for what is no fault of the job.
void TellLaunchFailure(int fd, const std::string& what, int error);
// "launch: …" whatever the error: a step of Muster's own, in which the job names nothing.
void TellHostFailure(int fd, const std::string& what, int error);
// "image: …": namespaces and mounts didn't let it in. The kernel, its settings, and the file system
// that the job chose for its image have a say in that.
void TellImageRefused(int fd, const std::string& what, int error);

// In the parent, of a descriptor that doesn't block: empty once exec has happened, else the child's
// words. Nothing: it is still on its way. `said` keeps what came so far.
std::optional<std::string> ReadLaunch(int fd, std::string* said);

}  // namespace muster::shim
