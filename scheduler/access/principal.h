// Who calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muster/v1/access.pb.h"

namespace muster {

// A caller as the door knows it (a Unix socket: SO_PEERCRED; a network: the certificate). Never
// taken from a request.
struct Principal {
  uint32_t uid = 65'534;
  std::string user;  // empty: nobody who is known here
  std::vector<std::string> groups;
  // Root, or the user who runs musterd: the way in when all else is lost. May do everything, speaks
  // as an agent, and has no rates.
  bool trusted = false;
  // Of the certificate that it came with; no serial: it came with none.
  std::string serial;
  uint64_t authority = 0;  // version of the one that signed it
  // Of a user: the id of the token that it was bought with, if that has scopes, and what they give.
  std::string token;
  std::vector<v1::Scope> scopes;
  std::string cluster, host;  // of a host: it may be that host's agent, and nothing else
  std::string only_user;      // of a host: whose jobs alone it may be given; empty: everybody's
  // At the join door: may ask for a certificate, and nothing else. `user` says from where it calls.
  bool stranger = false;

  bool certified() const { return !serial.empty(); }
  bool known() const { return !user.empty(); }
};

}  // namespace muster
