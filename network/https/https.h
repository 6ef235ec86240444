// One small question over HTTPS: libcurl with bounds. TLS 1.2 or newer, the server's certificate
// and name are verified, no redirect is followed, no other protocol is spoken, nothing is kept
// between questions. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/units.h"

namespace muster {

struct HttpsQuestion {
  std::string url;
  // As a form, by POST; none: GET.
  std::vector<std::pair<std::string, std::string>> form;
  std::string ca_file;  // PEM; empty: the authorities that the machine trusts
  int64_t timeout_ns = 5 * kSecond;
  size_t bytes_max = 256 << 10;             // of the answer
  const std::atomic<bool>* stop = nullptr;  // once true it ends within a second; may be null
};
struct HttpsAnswer {
  int64_t status = 0;
  std::string body;
};

// UNAVAILABLE: no answer came within the time, it is too long, or whoever answers isn't trusted;
// the message says which. An answer of any status is one.
absl::StatusOr<HttpsAnswer> Ask(const HttpsQuestion& question);

}  // namespace muster
