#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <set>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "cli/commands/beside.h"
#include "cli/commands/commands.h"
#include "cli/interrupt.h"
#include "cli/up/child.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/units.h"

namespace muster {
namespace {

constexpr int64_t kReadyWithin = 60 * kSecond;
constexpr int kPollMs = 20;

struct SandboxOptions {
  uint64_t seed = 1;
};

// A directory of ours alone for the socket, in the runtime directory if there is one.
absl::StatusOr<std::string> MakePrivateDirectory() {
  std::string base = ProcessEnvironment("XDG_RUNTIME_DIR");
  struct stat info;
  if (base.empty() || stat(base.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) ||
      access(base.c_str(), W_OK) != 0)
    base = "/tmp";
  std::string name = base + "/muster-sandbox-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) return ErrnoStatus(errno, name);
  return name;
}

// What there is to look at: numbers, and a job that waits.
std::string Describe(Client& client, const std::string& server, int64_t took_ns) {
  std::string text = "Muster sandbox";
  pb::TopRequest request;
  request.set_by(pb::TopRequest::CLUSTER);
  if (absl::StatusOr<pb::TopResponse> top = client.Top(request); top.ok()) {
    int64_t gpus_milli = 0;
    std::set<std::string> clusters;
    for (const auto& row : top->rows()) clusters.insert(row.name());
    for (const auto& total : top->totals()) gpus_milli += total.total_milli();
    absl::StrAppend(&text, ": ", clusters.size(), " clusters, ", top->hosts_up(), " hosts, ",
                    FormatMilli(gpus_milli), " GPUs; ", top->running_jobs(), " jobs run, ",
                    top->waiting_jobs(), " wait");
  }
  absl::StrAppend(&text, ". Ready after ", FormatSpan(took_ns), ".\n",
                  "The scheduler is real: engine, agents' protocol, API. Hosts, GPUs and programs "
                  "are simulated, and nothing is stored.\n",
                  "In another shell:  export MUSTER_SERVER=", server, "\n");
  pb::ListJobsRequest waiting;
  waiting.add_states(pb::WAITING);
  waiting.set_page_size(1000);
  std::string number = "JOB";
  if (absl::StatusOr<pb::ListJobsResponse> jobs = client.List(waiting); jobs.ok()) {
    for (const pb::Job& job :
         jobs->jobs()) {  // the newest comes first: the last one has waited longest
      number = absl::StrCat(job.number());
    }
  }
  absl::StrAppend(&text, "Try:  muster top     muster jobs --limit 20     muster explain ", number,
                  "     muster ledger --by queue\n",
                  "      muster simulate --drain phx/h001     muster queue list\n",
                  "      muster run --queue scratch --gpus 1 --gpu-type l40s-48g -- sleep 20\n",
                  "Ctrl+C ends it and leaves nothing behind.\n");
  return text;
}

int Sandbox(Session& session, const SandboxOptions& options) {
  if (const std::string missing = MissingBeside("muster-sandbox"); !missing.empty()) {
    session.Err(missing);
    return kExitBadInput;
  }
  Interrupt interrupt;
  absl::StatusOr<std::string> directory = MakePrivateDirectory();
  if (!directory.ok()) return session.Fail(directory.status());
  const std::string server = absl::StrCat("unix://", *directory, "/musterd.sock");
  int code = kExitOk;
  {
    Child child(ExecutableDirectory() + "/muster-sandbox",
                {"--directory", *directory, "--seed", absl::StrCat(options.seed)},
                *directory + "/sandbox.log");
    const int64_t begin_ns = RealClock()->MonotonicNs();
    absl::Status started = child.Start();
    if (started.ok() && session.err_screen().live) session.Err("Making two hours of history ...\n");
    while (started.ok() && !CheckReachable(server).ok()) {
      if (interrupt.WaitFor(kPollMs))
        started = absl::CancelledError("");
      else if (!child.Running())
        started = absl::InternalError(
            absl::StrCat("muster-sandbox ended (", child.ending(), "): ", child.LastLines()));
      else if (RealClock()->MonotonicNs() - begin_ns > kReadyWithin)
        started = absl::DeadlineExceededError(
            absl::StrCat("the sandbox was not ready after ", FormatSpan(kReadyWithin)));
    }
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(server);
    if (!started.ok()) {
      code = interrupt.pending() ? kExitInterrupted : session.Fail(started);
    } else if (!client.ok()) {
      code = session.Fail(client.status());
    } else {
      session.Out(Describe(**client, server, RealClock()->MonotonicNs() - begin_ns));
      while (!interrupt.WaitFor(500)) {
        if (child.Running()) continue;
        code = session.Fail(absl::InternalError(
            absl::StrCat("muster-sandbox ended (", child.ending(), "): ", child.LastLines())));
        break;
      }
    }
    child.Stop(5'000);
  }
  std::error_code ignored;
  std::filesystem::remove_all(*directory, ignored);
  if (code == kExitOk) session.Err("The sandbox is gone.\n");
  return code;
}

}  // namespace

void AddSandbox(CLI::App& root, Session& session) {
  auto options = std::make_shared<SandboxOptions>();
  CLI::App* sandbox = root.add_subcommand("sandbox",
                                          "A live scheduler over 4,096 simulated GPUs with jobs: "
                                          "to try every command; no root, nothing kept");
  sandbox->add_option("--seed", options->seed, "Other jobs")->capture_default_str();
  sandbox->callback([&session, options] {
    session.command = [&session, options] { return Sandbox(session, *options); };
  });
}

}  // namespace muster
