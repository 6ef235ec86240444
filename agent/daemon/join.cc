#include "agent/daemon/join.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

constexpr char kKeyFile[] = "join.key";
constexpr int64_t kSkewNs = 5 * kMinute;

std::string TimeText(int64_t unix_ns) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixNanos(unix_ns), absl::UTCTimeZone());
}

// Why its scheduler refuses it; empty: it doesn't, or nobody can be asked. One that has expired is
// renewed where that is possible.
std::string WhyRefused(const std::string& path, Identity* identity) {
  absl::Status status;
  if (identity->validity.end_s > WallS()) {
    status = AskNews(DialWith(*identity, grpc::ChannelArguments())).status();
  } else {
    absl::StatusOr<Identity> renewed = RenewExpired(*identity);
    status = renewed.status();
    if (renewed.ok() && SaveIdentity(path, *renewed).ok()) *identity = *std::move(renewed);
  }
  std::string why(status.message());
  if (absl::IsUnauthenticated(status)) return why;
  return EndedBeforeAnyCall(why) ? WhyNotTaken(*identity, why) : "";
}

// With the key that is kept for it. A token that was spent by a host whose clock is wrong buys the
// same again: it is for this key.
absl::StatusOr<Identity> Buy(const std::string& key_path, const JoinLine& line, bool as_me) {
  absl::StatusOr<std::string> key = ReadFile(key_path, kMaxPemBytes);
  if (absl::IsNotFound(key.status())) {
    key = NewKey();
    if (absl::Status kept = WriteFileDurably(key_path, *key, 0600); !kept.ok()) return kept;
  }
  if (!key.ok()) return key.status();
  int64_t scheduler_ns = 0;
  absl::StatusOr<Identity> identity = Join(line, *key, &scheduler_ns);
  if (!identity.ok()) return identity;
  if (identity->holder.kind != Holder::kHost)
    return absl::InvalidArgumentError("the token is a user's: muster login takes it");
  if (const std::string why = as_me ? WhyNotAsMe(*identity) : ""; !why.empty())
    return absl::InvalidArgumentError(why);
  const int64_t here_ns = RealClock()->WallNs();
  LogInfo("the scheduler's clock", {{"says", TimeText(scheduler_ns)}, {"here", TimeText(here_ns)}});
  if (const std::string why = WhyClocksDiffer(here_ns, scheduler_ns); !why.empty())
    return absl::FailedPreconditionError(why);
  return identity;
}

}  // namespace

std::string WhyNoCommand(const std::string& first) {
  if (first.empty() || first[0] == '-' || first == "join") return "";
  return absl::StrCat("there is no command \"", first,
                      "\"; the only one is join, see muster-agent join --help");
}

std::string WithRemedy(const Identity& identity, const std::string& why) {
  return absl::StrCat(why, ". On musterd's machine `muster host token new ",
                      identity.holder.cluster, "/", identity.holder.name,
                      "` prints a line that joins this host anew: run it here");
}

std::string WhyClocksDiffer(int64_t here_ns, int64_t scheduler_ns) {
  const int64_t ahead_ns = here_ns - scheduler_ns;
  if (std::abs(ahead_ns) <= kSkewNs) return "";
  return absl::StrCat("this host's clock says ", TimeText(here_ns), ", and the scheduler's ",
                      TimeText(scheduler_ns), ": it is ",
                      FormatDuration(std::abs(ahead_ns) / kSecond * kSecond),
                      ahead_ns > 0 ? " ahead" : " behind",
                      ", and may be 5m off at most. Set it (timedatectl set-ntp true), then run "
                      "the same line again: its token is still this host's");
}

std::string WhyNotAsMe(const Identity& identity) {
  if (!identity.holder.only_user.empty()) return "";
  return absl::StrCat("--as-me: ", identity.holder.cluster, "/", identity.holder.name,
                      " is a host for everybody's jobs. Ask for a token of a cluster that has "
                      "only_user with your name in musterd's clusters.yaml");
}

absl::StatusOr<Identity> JoinHost(const std::string& state_directory, const JoinLine& line,
                                  bool as_me, bool* joined) {
  const std::string path = absl::StrCat(state_directory, "/", kIdentityFile);
  const std::string key_path = absl::StrCat(state_directory, "/", kKeyFile);
  *joined = false;
  absl::StatusOr<Identity> before = LoadIdentity(path);
  if (!before.ok() && !absl::IsNotFound(before.status())) return before;
  std::string refused;
  if (before.ok()) {
    refused = WhyRefused(path, &*before);
    if (refused.empty() && as_me) refused = WhyNotAsMe(*before);
    if (refused.empty() && IsSignedBy(*before, line.fingerprint)) {
      LogInfo("this host has joined already: the line's token isn't spent",
              {{"host", absl::StrCat(before->holder.cluster, "/", before->holder.name)}});
      return before;
    }
  }
  absl::StatusOr<Identity> identity = Buy(key_path, line, as_me);
  if (!identity.ok()) {
    if (!before.ok() || !refused.empty()) return identity;
    LogWarn("this host goes on as what it has joined as: the line buys nothing",
            {{"why", std::string(identity.status().message())}});
    return before;
  }
  if (before.ok()) {
    const std::string old_path = absl::StrCat(state_directory, "/", kOldIdentityFile);
    if (absl::Status kept = WriteFileDurably(old_path, WriteIdentity(*before), 0600); !kept.ok())
      return kept;
    LogWarn("a new identity in the place of the old one",
            {{"why", refused.empty() ? "the line is of another authority" : refused},
             {"old", old_path}});
  }
  if (absl::Status kept = SaveIdentity(path, *identity); !kept.ok()) return kept;
  unlink(key_path.c_str());
  *joined = true;
  return identity;
}

}  // namespace muster::agent
