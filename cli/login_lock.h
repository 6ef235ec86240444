// The right to replace or remove a login's file: one process has it at a time. A renewal that finds
// it taken is left out; `muster login` and `muster logout` wait for it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/units.h"

namespace muster {

class LoginLock {
 public:
  // Takes it, unless another process has it; held() tells.
  explicit LoginLock(const std::string& path);
  // Waits for it at most that long, where there is a file. FAILED_PRECONDITION: others have it.
  static absl::StatusOr<std::unique_ptr<LoginLock>> Wait(const std::string& path, int64_t limit_ns);
  ~LoginLock();
  LoginLock(const LoginLock&) = delete;
  LoginLock& operator=(const LoginLock&) = delete;

  // And the file is still the one that was locked: a login or a renewal replaces it.
  bool held() const;

 private:
  const std::string path_;
  const int fd_;  // below 0: there is no file that could be read
  bool locked_ = false;
};

inline constexpr int64_t kLoginLockLimitNs = 3 * kSecond;  // of `muster login` and `logout`

}  // namespace muster
