#include "agent/reconcile/exits.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace muster::agent {
namespace {

// How the shim says whose fault it is that a process did not get as far as its program
// (agent/shim/exec_status.h).
constexpr char kProgramMark[] = "program: ";
constexpr char kLaunchMark[] = "launch: ";
constexpr char kImageMark[] = "image: ";

}  // namespace

void FillExits(AttemptRecord* record, const std::string& detail, int64_t now_ns) {
  std::set<int32_t> known;
  for (const v1::WorkerExit& exit : record->exits) known.insert(exit.rank());
  const int32_t per_worker =
      record->prepare.processes_per_worker() > 0 ? record->prepare.processes_per_worker() : 1;
  const int32_t first = record->prepare.here().first_group_rank() * per_worker;
  for (int32_t rank = first; rank < first + record->prepare.here().workers() * per_worker; ++rank) {
    if (known.count(rank) > 0) continue;
    v1::WorkerExit& exit = record->exits.emplace_back();
    exit.set_rank(rank);
    exit.set_signal(9);
    exit.set_detail(detail);
    exit.set_at_ns(now_ns);
  }
}

std::string WithoutMark(const std::string& detail) {
  for (const std::string_view mark : {kProgramMark, kLaunchMark, kImageMark}) {
    if (detail.rfind(mark, 0) == 0) return detail.substr(mark.size());
  }
  return detail;
}

v1::Cause LaunchCause(const std::vector<v1::WorkerExit>& exits) {
  for (const v1::WorkerExit& exit : exits) {
    if (exit.exit_code() == 0) continue;
    if (exit.detail().rfind("setup: ", 0) == 0) return v1::SETUP_FAILED;
    if (exit.exit_code() != 127) continue;
    if (exit.detail().rfind(kProgramMark, 0) == 0) return v1::PROGRAM_ERROR;
    if (exit.detail().rfind(kLaunchMark, 0) == 0) return v1::LAUNCH_FAILED;
    if (exit.detail().rfind(kImageMark, 0) == 0) return v1::IMAGE_FAILED;
  }
  return v1::CAUSE_UNSPECIFIED;
}

void TellCollision(int32_t port, std::vector<v1::WorkerExit>* exits) {
  for (v1::WorkerExit& exit : *exits) {
    if (port == 0 || exit.cause() != v1::NETWORK_FAILURE) continue;
    const std::string said = absl::AsciiStrToLower(exit.detail());
    if (!absl::StrContains(said, "address already in use") &&
        !absl::StrContains(said, "eaddrinuse"))
      continue;
    bool ours = false, others = false;
    for (size_t at = 0; at < said.size();) {
      const size_t length = std::min(said.find_first_not_of("0123456789", at), said.size()) - at;
      int32_t number = 0;
      if (length > 0 && absl::SimpleAtoi(said.substr(at, length), &number)) {
        ours |= number == port;
        others |= number >= 1024 && number != port;
      }
      at += std::max<size_t>(length, 1);
    }
    if (!ours && (others || exit.rank() != 0)) continue;
    exit.set_cause(v1::RENDEZVOUS);
    exit.set_detail(
        absl::StrCat("port ", port, ", which was free when it was prepared: ", exit.detail()));
  }
}

}  // namespace muster::agent
