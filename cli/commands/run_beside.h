// A command beside a job's worker (docs/exec.md) whose output is read, for commands of ours that
// stand on one.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "cli/client.h"
#include "cli/interrupt.h"

namespace muster {

inline constexpr int kSignalled = 128;  // and the signal, as an exit code

struct RanBeside {
  int exit_code = 0;
  std::string output;
};

// It has nothing on standard input; its standard error is this process's. An error where it
// couldn't begin or was cut off; CANCELLED if the interrupt is pending.
absl::StatusOr<RanBeside> RunBeside(Client* client, const Interrupt& interrupt,
                                    const pb::ExecStart& exec);

// The same for a command that does no harm if it is begun twice: where musterd, its host's agent or
// the network fails it, again, for a minute from the first time. `say` is told why, once, and may
// change `exec` for the tries that follow.
absl::StatusOr<RanBeside> RunBesideAgain(Client* client, const Interrupt& interrupt,
                                         const pb::ExecStart& exec,
                                         const std::function<void(const std::string&)>& say);

}  // namespace muster
