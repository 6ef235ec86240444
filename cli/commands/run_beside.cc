#include "cli/commands/run_beside.h"

#include <sys/mman.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "cli/tunnel.h"
#include "common/base/files.h"

namespace muster {

absl::StatusOr<RanBeside> RunBeside(Client* client, const Interrupt& interrupt,
                                    const pb::ExecStart& exec) {
  const int output = ::memfd_create("output", MFD_CLOEXEC);
  if (output < 0) return absl::ErrnoToStatus(errno, "no memory for a command's output");
  const absl::Cleanup close = [output] { ::close(output); };
  pb::TunnelInput start;
  *start.mutable_exec() = exec;
  const std::unique_ptr<TunnelCall> call = client->Exec(&interrupt);
  const TunnelOutcome outcome =
      CarryTunnel(call.get(), start, {-1, output, STDERR_FILENO}, nullptr);
  if (interrupt.pending()) return absl::CancelledError("interrupted");
  if (!outcome.ended)
    return outcome.status.ok() ? absl::UnavailableError("its server ended the call")
                               : outcome.status;
  if (!outcome.end.error().empty()) return absl::FailedPreconditionError(outcome.end.error());
  if (outcome.end.signal() != 0)
    return absl::UnavailableError(
        absl::StrCat("the command was ended by signal ", outcome.end.signal()));
  RanBeside ran;
  ran.exit_code = outcome.end.exit_code();
  ran.output.resize(static_cast<size_t>(::lseek(output, 0, SEEK_END)));
  for (size_t at = 0; at < ran.output.size();) {
    const ssize_t got =
        ::pread(output, ran.output.data() + at, ran.output.size() - at, static_cast<off_t>(at));
    if (got <= 0) return absl::ErrnoToStatus(errno, "a command's output can't be read");
    at += static_cast<size_t>(got);
  }
  return ran;
}

}  // namespace muster
