// Who calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muster {

// A caller as the door knows it (a Unix socket: SO_PEERCRED). Never taken from a request.
struct Principal {
  uint32_t uid = 65'534;
  std::string user;  // empty: nobody who is known here
  std::vector<std::string> groups;
  // Root, or the user who runs musterd: the way in when all else is lost. May do everything, speaks
  // as an agent, and has no rates.
  bool trusted = false;

  bool known() const { return !user.empty(); }
};

}  // namespace muster
