// Identity providers (OpenID Connect) whose users may log in. Each has a thread of its own, which
// reads the provider's keys, keeps them for an hour, and looks at tokens: one that doesn't answer
// keeps nobody waiting but its own users. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "scheduler/trust/id_token.h"

namespace muster {

inline constexpr int64_t kKeysKeptNs = kHour;
// So long after its keys were read a provider isn't asked again, whatever key a token names; and
// after it could not be.
inline constexpr int64_t kKeysRestNs = 30 * kSecond, kFailedRestNs = 5 * kSecond;
inline constexpr size_t kWaitingMost = 64;  // tokens of one provider

struct ProviderParts {
  // The body that is read from `url`; an error says why none is. Ends early once *stop.
  std::function<absl::StatusOr<std::string>(const std::string& url, const std::string& ca_file,
                                            const std::atomic<bool>* stop)>
      fetch;
  // How the machine knows a name. May take as long as a directory service does.
  std::function<NameKind(const std::string& name)> kind_of;
  Clock* clock = nullptr;
};

// Since the start.
struct ProviderCounts {
  int64_t issued = 0, refused = 0, unavailable = 0;  // logins
  int64_t fetches = 0, failed_fetches = 0;           // of keys
};

class Providers {
 public:
  using Done = std::function<void(absl::StatusOr<Vouched>)>;

  Providers(std::vector<IssuerRules> rules, ProviderParts parts);
  ~Providers();

  const std::vector<IssuerRules>& rules() const { return rules_; }
  // Whether the token counts for whoever has the key of `request` (a PEM request for a
  // certificate), and whom it names. UNAUTHENTICATED: it doesn't. UNAVAILABLE: the provider's keys
  // can't be read now, or too many wait. `done` is called once, here or on the provider's thread.
  void Check(const std::string& token, const std::string& request, Done done);
  // Whoever waits is answered, and whoever comes later: UNAVAILABLE. Idempotent.
  void Stop();

  void Count(const absl::Status& outcome);  // of a login
  ProviderCounts Counts() const;

 private:
  class Provider;

  const std::vector<IssuerRules> rules_;
  const ProviderParts parts_;
  std::vector<std::unique_ptr<Provider>> providers_;
  std::atomic<int64_t> issued_ = 0, refused_ = 0, unavailable_ = 0;
};

}  // namespace muster
