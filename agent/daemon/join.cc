#include "agent/daemon/join.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

constexpr char kKeyFile[] = "join.key";
constexpr int64_t kSkewNs = 5 * kMinute;

}  // namespace

absl::StatusOr<Identity> JoinHost(const std::string& state_directory, const JoinLine& line,
                                  bool* joined) {
  const std::string path = absl::StrCat(state_directory, "/", kIdentityFile);
  const std::string key_path = absl::StrCat(state_directory, "/", kKeyFile);
  *joined = false;
  absl::StatusOr<Identity> identity = LoadIdentity(path);
  if (!absl::IsNotFound(identity.status())) return identity;
  absl::StatusOr<std::string> key = ReadFile(key_path, kMaxPemBytes);
  if (absl::IsNotFound(key.status())) {
    key = NewKey();
    if (absl::Status kept = WriteFileDurably(key_path, *key, 0600); !kept.ok()) return kept;
  }
  if (!key.ok()) return key.status();
  int64_t clock_ns = 0;
  identity = Join(line, *key, &clock_ns);
  if (!identity.ok()) return identity;
  if (identity->holder.kind != Holder::kHost)
    return absl::InvalidArgumentError("the token is a user's: muster login takes it");
  if (absl::Status kept = SaveIdentity(path, *identity); !kept.ok()) return kept;
  unlink(key_path.c_str());
  *joined = true;
  if (const int64_t ahead_ns = RealClock()->WallNs() - clock_ns; std::abs(ahead_ns) > kSkewNs) {
    LogWarn(
        "this host's clock is not the scheduler's: certificates are refused where it is an hour",
        {{"seconds_ahead", ahead_ns / kSecond}});
  }
  return identity;
}

}  // namespace muster::agent
