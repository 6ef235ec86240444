#include "cli/up/supervisor.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "cli/render/format.h"
#include "cli/settings.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/units.h"

namespace muster {
namespace {

constexpr int kPollMs = 20;
constexpr int kKeepMs = 200;
constexpr int64_t kReadyWithin = 60 * kSecond;
constexpr int64_t kWellAfter = 10 * kSecond;  // what ran for so long is well again

// What a child that ended or isn't ready said last; on a full disk its log, and so that, may be
// empty, and the disk is what matters.
std::string LastWords(const Child& child, const std::string& data_dir) {
  constexpr uint64_t kScarceBytes = 64 << 20;
  std::string words = child.LastLines();
  std::error_code error;
  const std::filesystem::space_info room = std::filesystem::space(data_dir, error);
  if (!error && room.available < kScarceBytes) {
    absl::StrAppend(&words, words.empty() || words.back() == '\n' ? "" : "\n", "only ",
                    room.available >> 20, " MiB are free in ", data_dir,
                    ": free some, or name another place with --data-dir");
  }
  return words;
}

// The directory of the socket must be ours alone: below /tmp anybody may have made it before us.
absl::Status MakeSocketDirectory(const std::string& server) {
  std::string path = server.substr(std::string("unix://").size());
  std::string directory = path.substr(0, path.rfind('/'));
  absl::Status made = MakeDirectories(directory, 0700);
  if (!made.ok()) return made;
  struct stat info;
  if (lstat(directory.c_str(), &info) != 0) return ErrnoStatus(errno, directory);
  if (!S_ISDIR(info.st_mode) || info.st_uid != getuid()) {
    return absl::PermissionDeniedError(absl::StrCat(
        directory, " belongs to somebody else; choose another socket: --listen unix:///path"));
  }
  return absl::OkStatus();
}

}  // namespace

Supervisor::Supervisor(UpPlan plan, const Interrupt& interrupt, UpLock* lock)
    : plan_(std::move(plan)), interrupt_(interrupt), lock_(lock) {}

absl::Status Supervisor::WriteFiles() {
  for (const char* part : {"", "/logs", "/storage", "/server", "/agent"}) {
    if (absl::Status made = MakeDirectories(plan_.data_dir + part, 0700); !made.ok()) return made;
  }
  absl::Status status =
      WriteFileDurably(plan_.data_dir + "/clusters.yaml", ClustersYaml(plan_.data_dir));
  if (status.ok()) status = WriteFileDurably(plan_.data_dir + "/queues.yaml", QueuesYaml());
  if (status.ok() && plan_.slots > 0)
    status = WriteFileDurably(plan_.data_dir + "/host.yaml", HostYaml(plan_.slots));
  return status;
}

template <typename Ready>
absl::Status Supervisor::WaitReady(Child& child, Ready ready) {
  int64_t begin_ns = RealClock()->MonotonicNs();
  while (!ready()) {
    if (interrupt_.pending()) return absl::CancelledError("interrupted");
    if (!child.Running())
      return absl::InternalError(absl::StrCat(child.name(), " ended (", child.ending(),
                                              "). Its last words:\n",
                                              LastWords(child, plan_.data_dir)));
    if (RealClock()->MonotonicNs() - begin_ns > kReadyWithin) {
      return absl::DeadlineExceededError(
          absl::StrCat(child.name(), " was not ready within ", FormatSpan(kReadyWithin),
                       ". Its last words:\n", LastWords(child, plan_.data_dir)));
    }
    interrupt_.WaitFor(kPollMs);
  }
  return absl::OkStatus();
}

absl::Status Supervisor::Start() {
  std::vector<std::string> programs = {"musterd", "muster-agent", "muster-shim"};
  if (!plan_.exporter.empty()) programs.emplace_back("muster-exporter");
  for (const std::string& program : programs) {
    std::string path = absl::StrCat(plan_.binaries_dir, "/", program);
    if (access(path.c_str(), X_OK) != 0)
      return absl::NotFoundError(absl::StrCat(
          path,
          ": not there, but muster up needs it beside this program (or MUSTER_BIN_DIR). In a "
          "checkout this builds it: deploy/build.sh ",
          program));
  }
  if (absl::Status status = WriteFiles(); !status.ok()) return status;
  if (absl::Status status = MakeSocketDirectory(plan_.server); !status.ok()) return status;
  lock_->NameDirectory();
  daemon_ = std::make_unique<Child>(
      plan_.binaries_dir + "/musterd",
      std::vector<std::string>{"--data-dir", plan_.data_dir + "/server", "--listen", plan_.server,
                               "--clusters", plan_.data_dir + "/clusters.yaml", "--queues",
                               plan_.data_dir + "/queues.yaml", "--master-key",
                               plan_.data_dir + "/master.key", "--single-user"},
      plan_.data_dir + "/logs/musterd.log");
  std::vector<std::string> arguments = {
      "--server",  plan_.server, "--cluster",    kUpCluster,
      "--host",    kUpHost,      "--state-dir",  plan_.data_dir + "/agent",
      "--address", "127.0.0.1",  "--single-user"};
  if (plan_.slots > 0) {
    arguments.emplace_back("--inventory");
    arguments.push_back(plan_.data_dir + "/host.yaml");
  }
  agent_ = std::make_unique<Child>(plan_.binaries_dir + "/muster-agent", arguments,
                                   plan_.data_dir + "/logs/agent.log");

  if (plan_.adopt_restored) daemon_->AlsoOnce("--adopt-restored");
  if (absl::Status status = daemon_->Start(); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(plan_.server);
  if (!client.ok()) return client.status();
  client_ = *std::move(client);
  absl::Status status = WaitReady(
      *daemon_, [&] { return CheckReachable(plan_.server).ok() && client_->Ping().ok(); });
  if (!status.ok()) return status;
  if (status = agent_->Start(); !status.ok()) return status;
  if (status = StartExporter(); !status.ok()) return status;
  return WaitReady(*agent_, [&] {
    absl::StatusOr<pb::Host> host = client_->GetHost(absl::StrCat(kUpCluster, "/", kUpHost));
    return host.ok() && host->state() == pb::HOST_UP;
  });
}

absl::Status Supervisor::StartExporter() {
  if (plan_.exporter.empty()) return absl::OkStatus();
  exporter_ = std::make_unique<Child>(
      plan_.binaries_dir + "/muster-exporter",
      std::vector<std::string>{"--config", plan_.exporter, "--muster",
                               plan_.binaries_dir + "/muster", "--server", plan_.server},
      plan_.data_dir + "/logs/exporter.log");
  return exporter_->Start();
}

void Supervisor::Run() {
  const int64_t now_ns = RealClock()->MonotonicNs();
  Kept daemon{.child = daemon_.get(), .started_ns = now_ns};
  Kept agent{.child = agent_.get(), .started_ns = now_ns};
  Kept exporter{.child = exporter_.get(), .started_ns = now_ns};
  std::vector<Kept*> all = {&daemon, &agent};
  if (exporter_ != nullptr) all.push_back(&exporter);
  socket_seen_ = true;  // it was ready
  std::string told;
  while (!interrupt_.WaitFor(kKeepMs)) {
    for (Kept* kept : all) Keep(kept);
    KeepSocket(&daemon);
    const std::string trouble = absl::StrCat(daemon.trouble, agent.trouble, exporter.trouble);
    if (trouble != told) lock_->Tell(trouble);
    told = trouble;
  }
}

void Supervisor::Keep(Kept* kept) {
  Child* child = kept->child;
  const int64_t now_ns = RealClock()->MonotonicNs();
  child->KeepShort();
  if (child->Running()) {
    if (now_ns - kept->started_ns > kWellAfter) kept->trouble.clear();
    return;
  }
  if (kept->due_ns == 0) {
    const int64_t pause_ns = kept->pause.After(now_ns - kept->started_ns);
    kept->due_ns = now_ns + pause_ns;
    std::string what =
        absl::StrCat(child->name(), " ended (", child->ending(), ") and is started again");
    if (kept->pause.ends() > 1) {
      what = absl::StrCat(child->name(), " ended ", kept->pause.ends(), " times in a row (",
                          child->ending(), "); it is started again at ",
                          FormatClockSeconds(RealClock()->WallNs() + pause_ns));
      kept->trouble = absl::StrCat(what, ". Its last words:\n", LastWords(*child, plan_.data_dir));
      if (kept->trouble.back() != '\n') kept->trouble += '\n';
    }
    fprintf(stderr, "%s; jobs don't notice\n", what.c_str());
  }
  if (now_ns < kept->due_ns) return;
  kept->due_ns = 0;
  kept->started_ns = now_ns;
  if (child == daemon_.get()) {
    socket_seen_ = false;
    MakeSocketDirectory(plan_.server).IgnoreError();  // what it lacks, it says itself
    lock_->NameDirectory();
  }
  if (absl::Status status = child->Start(); !status.ok())
    kept->trouble = absl::StrCat(child->name(), ": ", std::string(status.message()), "\n");
}

// Where others clear /tmp, or the last session's end clears XDG_RUNTIME_DIR.
void Supervisor::KeepSocket(Kept* daemon) {
  if (daemon->due_ns != 0) return;
  if (access(plan_.server.substr(std::string("unix://").size()).c_str(), F_OK) == 0) {
    socket_seen_ = true;
  } else if (socket_seen_ || RealClock()->MonotonicNs() - daemon->started_ns > kReadyWithin) {
    fprintf(stderr, "the socket is gone; musterd is started again, jobs don't notice\n");
    daemon_->Stop(10'000);
    Keep(daemon);
  }
}

void Supervisor::Stop() {
  if (exporter_ != nullptr) exporter_->Stop(20'000);
  if (daemon_ != nullptr) daemon_->Stop(10'000);
  if (agent_ != nullptr) agent_->Stop(10'000);
  lock_->ForgetDirectory();
  // Directories that were made for sockets go, unless something is in them: jobs that go on have
  // theirs there.
  const std::string socket = LocalSocketPath(ProcessEnvironment);
  if (plan_.server == "unix://" + socket) rmdir(socket.substr(0, socket.rfind('/')).c_str());
  rmdir(TemporarySocketDirectory().c_str());
}

std::string Supervisor::Describe() {
  std::string found;
  absl::StatusOr<pb::Host> host = client_->GetHost(absl::StrCat(kUpCluster, "/", kUpHost));
  if (host.ok()) {
    const pb::Inventory& inventory = host->inventory();
    found = inventory.devices_size() == 0
                ? "no devices"
                : absl::StrCat(inventory.devices_size(), " ", Plain(inventory.flavour()));
    if (inventory.declared())
      absl::StrAppend(&found, plan_.slots > 0 ? " (declared stand-ins)"
                                              : " (declared stand-ins: no GPU found here)");
    absl::StrAppend(&found, ", ", FormatMilli(inventory.cpus_milli()), " cpus, ",
                    FormatSize(inventory.memory_bytes() >> 20 << 20));
  }
  std::string text = absl::StrCat("Muster is up: ", found, "\n", " cluster ", kUpCluster, ", host ",
                                  kUpHost, ", queue ", kUpQueue, "\n", " server  ", plan_.server,
                                  "\n", " data    ", plan_.data_dir, "\n");
  if (access(absl::StrCat(plan_.binaries_dir, "/muster-trainer").c_str(), X_OK) != 0) {
    absl::StrAppend(
        &text,
        " trainer none beside this program: jobs with trainer: fail, those with run: work\n");
  }
  return text;
}

}  // namespace muster
