// Who a certificate speaks for. A certificate of Muster names its holder in one URI among its
// subject's alternative names, and nowhere else:
//   muster://TRUST/user/ID         a user, by the id of the account
//   muster://TRUST/user/ID/token/TOKEN  the same, with no more rights than that token gives
//   muster://TRUST/host/CLUSTER/NAME
//   muster://TRUST/host/CLUSTER/NAME/only/ID  the same, for jobs of that user alone
//   muster://TRUST/server          the scheduler, at whatever address it is served
// TRUST is the trust id: the scheduler's own, drawn once. A certificate of another one is foreign.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace muster {

struct Holder {
  enum Kind { kServer, kUser, kHost };
  Kind kind = kServer;
  std::string trust_id;
  std::string cluster;    // of a host
  std::string name;       // of a host; of a user the id
  std::string token;      // of a user: the id of a token that has scopes; empty: all their rights
  std::string only_user;  // of a host: whose jobs alone it may be given; empty: everybody's

  bool operator==(const Holder&) const = default;
};

std::string UriOf(const Holder& holder);
// Exactly what UriOf writes, or nothing: a name with other characters than letters, digits, '.',
// '_' and '-', or of more than 63, is refused, and so is any further part.
std::optional<Holder> ParseHolder(std::string_view uri);
// The name that a scheduler's certificate is valid for, as TLS has names of servers; no address
// has it, so that the scheduler may move: "musterd.TRUST".
std::string ServerName(std::string_view trust_id);

}  // namespace muster
