#include "network/log/grpc_log.h"

#include <grpc/support/log.h>

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"

namespace muster {
namespace {

constexpr size_t kMostBytes = 500;  // of what strangers may have had a hand in

struct Told {
  int64_t next_ns = 0;
  int64_t times = 0;  // since it was told
};

// How often it was said since it was told last, this time included; 0: it isn't told now.
int64_t TimesToTell(const char* file, int line) {
  // Never destroyed: gRPC's threads may outlive main.
  static auto* const mutex = new std::mutex;
  static auto* const told = new std::map<std::pair<std::string, int>, Told>;
  const int64_t now_ns = RealClock()->MonotonicNs();
  std::lock_guard lock(*mutex);
  Told& place = (*told)[{file, line}];
  ++place.times;
  if (now_ns < place.next_ns) return 0;
  place.next_ns = now_ns + kGrpcLogNs;
  return std::exchange(place.times, 0);
}

void Tell(gpr_log_func_args* said) {
  const int64_t times = TimesToTell(said->file, said->line);
  if (times == 0) return;
  const std::string_view file(said->file);
  const std::string what(
      absl::StripAsciiWhitespace(absl::string_view(said->message).substr(0, kMostBytes)));
  // An error of gRPC's is one connection's, seldom ours.
  LogEvent(said->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarn : LogLevel::kInfo, "gRPC",
           {{"what", what},
            {"at", absl::StrCat(std::string(file.substr(file.rfind('/') + 1)), ":", said->line)},
            {"times", times}});
}

}  // namespace

void RouteGrpcLog() { gpr_set_log_function(Tell); }

}  // namespace muster
