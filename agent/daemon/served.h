// Who serves the scheduler's address: asked before each connection, as the scheduler says what runs
// here, and as whom.
#pragma once

#include <cstdint>
#include <string>

namespace muster::agent {

// Whose server is obeyed.
struct Trust {
  bool single_user = false;            // this user's alone
  uint32_t system_below = 0xffffffff;  // root's, and those of uids below: no job runs as them
};

// Why the scheduler on this socket, an absolute path, is not to be talked to; "": it is. A plain
// connection, which costs microseconds, and a second where the scheduler stands still.
std::string WhyNotServedLocally(const std::string& path, const Trust& trust);

}  // namespace muster::agent
