#include "cli/commands/run_beside.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "cli/tunnel.h"
#include "common/base/descriptor.h"
#include "common/base/files.h"

namespace muster {

absl::StatusOr<RanBeside> RunBeside(Client* client, const Interrupt& interrupt,
                                    const pb::ExecStart& exec) {
  const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Descriptor output(::memfd_create("output", MFD_CLOEXEC));
  if (nothing.get() < 0 || output.get() < 0)
    return ErrnoStatus(errno, "no descriptors for a command beside the job");
  pb::TunnelInput start;
  *start.mutable_exec() = exec;
  const TunnelOutcome outcome = CarryTunnel(client->Exec(&interrupt).get(), start,
                                            {nothing.get(), output.get(), STDERR_FILENO}, nullptr);
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

}  // namespace muster
