#include "cli/commands/run_beside.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "cli/tunnel.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"
#include "common/base/files.h"
#include "common/base/units.h"

namespace muster {
namespace {

constexpr int64_t kAgainForNs = kMinute;
constexpr int kPauseMs = 1000;
constexpr int kPauseOfBegunMs = 6000;  // what was begun has 5 s to end (docs/exec.md)

absl::StatusOr<RanBeside> RunOnce(Client* client, const Interrupt& interrupt,
                                  const pb::ExecStart& exec, bool* begun) {
  const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Descriptor output(::memfd_create("output", MFD_CLOEXEC));
  if (nothing.get() < 0 || output.get() < 0)
    return ErrnoStatus(errno, "no descriptors for a command beside the job");
  pb::TunnelInput start;
  *start.mutable_exec() = exec;
  const TunnelOutcome outcome = CarryTunnel(client->Exec(&interrupt).get(), start,
                                            {nothing.get(), output.get(), STDERR_FILENO}, nullptr);
  *begun = outcome.begun;
  if (interrupt.pending()) return absl::CancelledError("interrupted");
  if (!outcome.ended)
    return outcome.status.ok() ? absl::UnavailableError("its server ended the call")
                               : outcome.status;
  if (!outcome.end.error().empty()) return absl::FailedPreconditionError(outcome.end.error());
  const int signal = outcome.end.signal();
  RanBeside ran{signal != 0 ? kSignalled + signal : outcome.end.exit_code(), ""};
  ran.output.resize(static_cast<size_t>(::lseek(output.get(), 0, SEEK_END)));
  for (size_t at = 0; at < ran.output.size();) {
    const ssize_t got = ::pread(output.get(), ran.output.data() + at, ran.output.size() - at,
                                static_cast<off_t>(at));
    if (got <= 0) return ErrnoStatus(errno, "a command's output can't be read");
    at += static_cast<size_t>(got);
  }
  return ran;
}

}  // namespace

absl::StatusOr<RanBeside> RunBeside(Client* client, const Interrupt& interrupt,
                                    const pb::ExecStart& exec) {
  bool begun = false;
  return RunOnce(client, interrupt, exec, &begun);
}

absl::StatusOr<RanBeside> RunBesideAgain(Client* client, const Interrupt& interrupt,
                                         const pb::ExecStart& exec,
                                         const std::function<void(const std::string&)>& say) {
  std::optional<int64_t> until_ns;
  while (true) {
    bool begun = false;
    absl::StatusOr<RanBeside> ran = RunOnce(client, interrupt, exec, &begun);
    if (ran.ok()) return ran;
    const CutOff cut = WhyCutOff(ran.status());
    if (!cut.may_begin_again) return ran;
    const int64_t now_ns = RealClock()->MonotonicNs();
    const int pause_ms = begun ? kPauseOfBegunMs : kPauseMs;
    if (!until_ns.has_value()) {
      until_ns = now_ns + kAgainForNs;
      say(cut.why);
    }
    if (now_ns + pause_ms * kMillisecond > *until_ns) return ran;
    if (interrupt.WaitFor(pause_ms)) return absl::CancelledError("interrupted");
  }
}

}  // namespace muster
