// muster-agent: makes one host's devices available to a Muster scheduler and runs what it is told
// to. Wiring and flags, nothing else.
#include <pwd.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/daemon/daemon.h"
#include "agent/daemon/join.h"
#include "agent/host/inventory.h"
#include "agent/host/unit.h"
#include "agent/shim/durable.h"
#include "agent/shim/private_mounts.h"
#include "common/base/files.h"
#include "common/base/ids.h"
#include "common/base/leave_no_core.h"
#include "common/base/log.h"
#include "common/base/parse_flags.h"
#include "common/base/units.h"
#include "network/log/grpc_log.h"

namespace {

constexpr char kVersion[] = "0.1.0";

// Of a host that has joined as one user's, in the state directory: whom its jobs run as is said
// once, and not by what a later start forgets.
constexpr char kSingleUserFile[] = "single-user";

// Flags of the agent that a line to join has, in the form of the others.
constexpr char kJoinFooter[] =
    "Of muster-agent's other flags (muster-agent --help), which count here, too:\n"
    "  --state-dir TEXT REQUIRED   Directory that survives restarts of the agent and the machine, "
    "mode 0700; the package's is /var/lib/muster-agent\n"
    "  --single-user               Where musterd is single_user: everything runs as the user who "
    "starts the agent";

constexpr int64_t kUpLimit = muster::kMinute;  // an agent that its unit has started is up by then

int Fail(const std::string& text, int code = 2) {
  std::cerr << "muster-agent: " << absl::StripSuffix(text, "\n") << "\n";
  return code;
}

std::string BootId() {
  std::string id;
  muster::shim::ReadSmallFile("/proc/sys/kernel/random/boot_id", &id);
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

std::string FromEnvironment(const char* name) {
  const char* value = ::getenv(name);
  return value == nullptr ? "" : value;
}

using muster::JoinLine;
using muster::agent::AgentOptions;

// As they are written on the command line.
struct Flags {
  std::string state_directory, inventory, address, ports = "20000-29999", log_level = "info",
                                                   log_file_size = "64MiB", keep_logs = "7d",
                                                   keep_log_bytes = "20GiB";
  bool no_pid_namespace = false;
  std::string min_uid = "1000", most_processes = "32768";
  JoinLine join;  // of `muster-agent join`
  bool only = false, foreground = false, as_me = false;
};

void Declare(CLI::App* app, Flags* flags, AgentOptions* options) {
  app->add_option("--server", options->server,
                  "The scheduler's socket: unix:///absolute/path. Not on a host that has joined");
  app->add_option("--cluster", options->cluster, "Cluster that this host belongs to");
  app->add_option("--host", options->host, "Name of this host in its cluster");
  app->add_option("--state-dir", flags->state_directory,
                  "Directory that survives restarts of the agent and the machine, mode 0700")
      ->required();
  app->add_option("--inventory", flags->inventory,
                  "Declare what this host has instead of probing: a file {flavour, gpus, cpus, "
                  "memory, disk}; docs/configure.md has its other keys");
  app->add_option("--address", flags->address,
                  "Where ranks on other hosts reach this one. Default: 127.0.0.1; on a host that "
                  "has joined, the address that it reaches the scheduler from");
  app->add_option("--port-range", flags->ports, "Rendezvous ports, outside the ephemeral range")
      ->capture_default_str();
  app->add_flag("--single-user", options->single_user,
                "Run everything as the user who started it, and serve nobody else. A host that has "
                "joined keeps it; --single-user=false ends that");
  app->add_option("--log-file-size", flags->log_file_size,
                  "Size at which a rank's log begins a new file")
      ->capture_default_str();
  app->add_option("--log-files", options->launch.log_files, "Files kept of a running rank's log")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--keep-attempts", options->retention.attempts,
                  "Finished attempts whose logs are kept")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  app->add_option("--keep-logs", flags->keep_logs, "How long logs of finished attempts are kept")
      ->capture_default_str();
  app->add_option("--keep-log-bytes", flags->keep_log_bytes,
                  "Size that logs of finished attempts may have together; the oldest go first")
      ->capture_default_str();
  app->add_option("--cgroup", options->cgroup,
                  "Version 2 control group below which attempts get their own: a directory, or "
                  "none. Default: the agent's own group");
  app->add_flag("--no-pid-namespace", flags->no_pid_namespace,
                "Do without a PID namespace even where there is the right to make one");
  app->add_option("--min-uid", flags->min_uid,
                  "Lowest uid that a job may run as, without --single-user")
      ->capture_default_str();
  app->add_option("--max-processes", flags->most_processes,
                  "Processes and threads that an attempt may have, without --single-user")
      ->capture_default_str();
  app->add_option("--device", options->launch.devices,
                  "Node below /dev, or directory of such, that every job gets, without "
                  "--single-user; may be repeated");
  app->add_option("--log-level", flags->log_level, "debug, info, warn or error")
      ->capture_default_str();
  app->set_version_flag("--version", kVersion);
  CLI::App* join = app->add_subcommand(
      "join",
      "Join the scheduler at this address, then go on as its agent, or with the package's state "
      "directory start its systemd unit and wait until the host is up; the state directory "
      "keeps the certificate, so that later starts need neither this nor a token");
  join->add_option("address", flags->join.address, "HOST:PORT of the scheduler's join door")
      ->required();
  join->add_option("--token", flags->join.token, "As muster host token new printed it")->required();
  join->add_option("--ca", flags->join.fingerprint,
                   "Fingerprint of the scheduler's authority, sha256:…; no other one is taken")
      ->required();
  join->add_flag("--only", flags->only, "Join, and end");
  join->add_flag("--foreground", flags->foreground,
                 "Join, and go on as the agent here, whatever units there are");
  join->add_flag("--as-me", flags->as_me,
                 "As --single-user, on a machine of your own: without root, for your jobs alone. "
                 "The token has to be of a cluster that is yours (only_user)");
  join->fallthrough();
  join->footer(kJoinFooter);
  app->require_subcommand(0, 1);
}

// Who this host is to a scheduler on the network. 0: it may go on; else the code to end with.
int Identify(const Flags& flags, const std::string& state_directory, AgentOptions* options) {
  options->identity_file = absl::StrCat(state_directory, "/", muster::agent::kIdentityFile);
  bool joined = false;
  absl::StatusOr<muster::Identity> identity =
      flags.join.address.empty()
          ? muster::LoadIdentity(options->identity_file)
          : muster::agent::JoinHost(state_directory, flags.join, flags.as_me, &joined);
  if (absl::IsNotFound(identity.status()) && flags.join.address.empty())
    return Fail("--server: missing; or join a scheduler: muster-agent join");
  if (!identity.ok()) return Fail(std::string(identity.status().message()), 1);
  if (identity->holder.kind != muster::Holder::kHost)
    return Fail(absl::StrCat(options->identity_file, ": is a user's, not a host's"));
  if ((!options->cluster.empty() && options->cluster != identity->holder.cluster) ||
      (!options->host.empty() && options->host != identity->holder.name)) {
    return Fail(absl::StrCat("this host joined as ", identity->holder.cluster, "/",
                             identity->holder.name, "; leave out --cluster and --host"));
  }
  options->cluster = identity->holder.cluster;
  options->host = identity->holder.name;
  options->identity = *std::move(identity);
  options->server = absl::StrJoin(options->identity->addresses, ",");
  if (joined)
    muster::LogInfo(
        "joined",
        {{"host", absl::StrCat(options->cluster, "/", options->host)},
         {"until", absl::FormatTime("%Y-%m-%dT%H:%M:%SZ",
                                    absl::FromUnixSeconds(options->identity->validity.end_s),
                                    absl::UTCTimeZone())}});
  const std::string single_user = absl::StrCat(state_directory, "/", kSingleUserFile);
  if (!options->single_user) ::unlink(single_user.c_str());
  if (options->single_user && ::access(single_user.c_str(), F_OK) != 0) {
    if (const absl::Status kept = muster::WriteFileDurably(single_user, "", 0600); !kept.ok())
      return Fail(std::string(kept.message()), 1);
  }
  return 0;
}

// Joining is the first start of an agent that the package's unit runs from then on.
bool GoesOnInUnit(const Flags& flags, const std::string& state_directory) {
  return !flags.join.address.empty() && !flags.only && !flags.foreground && ::geteuid() == 0 &&
         muster::agent::IsOfPackagedUnit(state_directory);
}

// The unit starts the agent without this line's flags. Why that is wrong for one of them; empty: it
// isn't, as the state directory keeps what the others say.
std::string WhyNotInUnit(const CLI::App& app) {
  const std::set<std::string> kept = {"--state-dir", "--cluster", "--host", "--single-user",
                                      "--log-level"};
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0 && !kept.contains(option->get_name()))
      return absl::StrCat(option->get_name(),
                          ": of no effect on the agent that muster-agent.service runs: put it into "
                          "OPTIONS in /etc/default/muster-agent and leave it out here, or give "
                          "--foreground");
  }
  return "";
}

// Nothing may hold the state directory any more. The code to end with.
int GoOnInUnit(const AgentOptions& options) {
  const absl::StatusOr<std::string> up = muster::agent::StartPackagedUnit(kUpLimit);
  if (!up.ok())
    return Fail(absl::StrCat(options.cluster, "/", options.host,
                             " has joined, but isn't up by muster-agent.service: ",
                             up.status().message(), ". See: journalctl -u muster-agent"),
                1);
  std::cout << "muster-agent.service is enabled, and " << *up << "\n";
  return 0;
}

// A join line, or the flag, says whom jobs run as; else what is kept does.
void ReadSingleUser(const Flags& flags, bool said, AgentOptions* options) {
  if (said || !options->server.empty() || !flags.join.address.empty()) return;
  const std::string path = absl::StrCat(flags.state_directory, "/", kSingleUserFile);
  if (::access(path.c_str(), F_OK) != 0) return;
  options->single_user = true;
  muster::LogInfo("jobs run as this agent's user, as this host joined with --single-user",
                  {{"end_it", "--single-user=false"}});
}

// Of an agent that serves several users.
std::string CheckAsOwners(const Flags& flags, muster::agent::LaunchHost* launch, bool single_user) {
  uint32_t min_uid = 0;
  if (!absl::SimpleAtoi(flags.min_uid, &min_uid) || min_uid == 0)
    return "--min-uid: wants a number of 1 or more: root runs no jobs";
  if (!absl::SimpleAtoi(flags.most_processes, &launch->most_processes) ||
      launch->most_processes < 16)
    return "--max-processes: wants a number of 16 or more";
  launch->min_uid = min_uid;
  launch->as_owners = !single_user;
  if (single_user) return "";
  if (::geteuid() != 0)
    return "only root can run jobs as their owners: start it as root, or with --single-user for "
           "your own jobs";
  if (flags.no_pid_namespace)
    return "--no-pid-namespace: jobs of several users want PID namespaces; leave it out, or give "
           "--single-user";
  for (const std::string& device : launch->devices) {
    if (device.rfind("/dev/", 0) != 0 || device.find("/.") != std::string::npos ||
        ::access(device.c_str(), F_OK) != 0)
      return "--device: wants what is there below /dev, not " + device;
  }
  return "";
}

// What is wrong with the flags; empty: they are in `options`.
std::string Check(const Flags& flags, AgentOptions* options) {
  muster::LogLevel level;
  if (!muster::ParseLogLevel(flags.log_level, &level))
    return "--log-level: wants debug, info, warn or error";
  muster::SetLogLevel(level);
  const bool network = options->server.empty();
  if (!network && !flags.join.address.empty())
    return "--server: whoever joins goes where it joined; leave it out";
  if (!network && options->server.rfind("unix:///", 0) != 0)
    return "--server: must be unix:///absolute/path; a scheduler on another machine is joined: "
           "muster-agent join";
  if (options->server.size() > 107 + 7)
    return "--server: the socket's path is longer than 107 bytes";
  if (!(network && options->cluster.empty()) && !muster::IsLabel(options->cluster))
    return "--cluster: wants at most 63 of [A-Za-z0-9._-]";
  if (!(network && options->host.empty()) && !muster::IsLabel(options->host))
    return "--host: wants at most 63 of [A-Za-z0-9._-]";
  if (const std::string wrong = CheckAsOwners(flags, &options->launch, options->single_user);
      !wrong.empty())
    return wrong;
  const auto range = muster::agent::ParsePortRange(flags.ports);
  if (!range.ok()) return std::string(range.status().message());
  options->ports = *range;
  const auto file_bytes = muster::ParseSize(flags.log_file_size);
  if (!file_bytes.ok() || *file_bytes < (64 << 10)) return "--log-file-size: wants at least 64KiB";
  options->launch.log_file_bytes = *file_bytes;
  const auto age = muster::ParseDuration(flags.keep_logs);
  if (!age.ok()) return absl::StrCat("--keep-logs: ", age.status().message());
  options->retention.age_ns = *age;
  const auto kept_bytes = muster::ParseSize(flags.keep_log_bytes);
  if (!kept_bytes.ok()) return absl::StrCat("--keep-log-bytes: ", kept_bytes.status().message());
  options->retention.bytes = *kept_bytes;
  options->launch.pid_namespace = !flags.no_pid_namespace;
  return "";
}

void FillLaunch(muster::agent::LaunchHost* launch) {
  const passwd* user = ::getpwuid(::geteuid());
  launch->bin_directory = muster::ExecutableDirectory();
  launch->user = user != nullptr ? user->pw_name : absl::StrCat(::geteuid());
  launch->home = user != nullptr ? user->pw_dir : "/";
  launch->lang = FromEnvironment("LANG");
  launch->boot_id = BootId();
  launch->sockets = muster::agent::SocketDirectories();
  launch->driver = [] { return muster::agent::DriverFiles(); };
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Makes this host's devices available to a Muster scheduler and runs what it places here.",
      "muster-agent"};
  Flags flags;
  AgentOptions options;
  Declare(&app, &flags, &options);
  if (const std::string wrong = muster::agent::WhyNoCommand(argc > 1 ? argv[1] : "");
      !wrong.empty())
    return Fail(wrong);
  if (const std::optional<int> code = muster::ParseFlags(app, argc, argv); code.has_value())
    return *code;
  if (flags.as_me) options.single_user = true;
  ReadSingleUser(flags, app.count("--single-user") > 0, &options);
  if (const std::string wrong = Check(flags, &options); !wrong.empty()) return Fail(wrong);

  absl::SetMutexDeadlockDetectionMode(
      absl::OnDeadlockCycle::kIgnore);  // Debian's looks for cycles at every lock, gRPC's own
                                        // included
  muster::RouteGrpcLog();
  ::umask(077);
  muster::LeaveNoCore();  // it holds jobs' secrets
  const std::string state_directory =
      std::filesystem::absolute(flags.state_directory).lexically_normal().string();
  if (options.launch.as_owners && muster::shim::IsPrivate(state_directory))
    return Fail(absl::StrCat("--state-dir ", state_directory, ": ",
                             muster::shim::WhyPrivate(state_directory),
                             "; give another path, such as /var/lib/muster-agent"));
  const bool in_unit = GoesOnInUnit(flags, state_directory);
  if (const std::string wrong = in_unit ? WhyNotInUnit(app) : ""; !wrong.empty())
    return Fail(wrong);
  auto state = muster::agent::StateDirectory::Open(state_directory);
  if (!state.ok()) return Fail(std::string(state.status().message()));
  if (options.server.empty()) {
    if (const int code = Identify(flags, state_directory, &options); code != 0) return code;
  }
  if (flags.only) return 0;
  if (in_unit) {
    state->reset();
    return GoOnInUnit(options);
  }
  if (flags.address.empty() && options.identity.has_value())
    flags.address = muster::OwnAddress(*options.identity);
  if (flags.address.empty()) flags.address = "127.0.0.1";
  if (flags.inventory.empty()) options.nvml = muster::agent::Nvml::Load();
  auto found = muster::agent::FindInventory(flags.inventory, state_directory, options.nvml.get());
  if (!found.ok()) return Fail(std::string(found.status().message()));
  options.inventory = *found;
  if (options.inventory.address().empty()) options.inventory.set_address(flags.address);
  options.inventory.set_agent_version(kVersion);
  options.launch.declared = options.inventory.declared();
  FillLaunch(&options.launch);
  const absl::Status status = muster::agent::RunAgent(options, *std::move(state));
  return status.ok()
             ? 0
             : (muster::LogError("agent stops", {{"error", std::string(status.message())}}), 1);
}
