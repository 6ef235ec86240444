#include "cli/up/supervisor.h"

#include <fcntl.h>
#include <sys/file.h>
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
constexpr int64_t kReadyWithin = 60 * kSecond;

std::string LockPath(const std::string& data_dir) { return data_dir + "/up.lock"; }

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

void ReadHolder(int fd, pid_t* pid, std::string* server) {
  char text[512] = {};
  ssize_t length = pread(fd, text, sizeof text - 1, 0);
  char name[400] = {};
  long number = 0;
  if (length > 0 && sscanf(text, "%ld %399s", &number, name) >= 1)
    *pid = static_cast<pid_t>(number);
  *server = name;
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

absl::StatusOr<std::unique_ptr<UpLock>> UpLock::Take(const std::string& data_dir,
                                                     const std::string& server, pid_t* holder,
                                                     std::string* held_server) {
  int fd = open(LockPath(data_dir).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return ErrnoStatus(errno, LockPath(data_dir));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    ReadHolder(fd, holder, held_server);
    close(fd);
    return absl::AlreadyExistsError("muster up is already running");
  }
  std::string text = absl::StrCat(getpid(), " ", server, "\n");
  if (ftruncate(fd, 0) != 0 ||
      pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    absl::Status status = ErrnoStatus(errno, LockPath(data_dir));
    close(fd);
    return status;
  }
  return std::unique_ptr<UpLock>(new UpLock(fd));
}

pid_t UpLock::Holder(const std::string& data_dir, std::string* server) {
  int fd = open(LockPath(data_dir).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  pid_t pid = 0;
  if (flock(fd, LOCK_SH | LOCK_NB) != 0) ReadHolder(fd, &pid, server);
  close(fd);
  return pid;
}

bool UpLock::WaitUntilFree(const std::string& data_dir, const Interrupt& interrupt) {
  int fd = open(LockPath(data_dir).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return true;
  bool free = false;
  while (!(free = flock(fd, LOCK_SH | LOCK_NB) == 0) && !interrupt.WaitFor(kPollMs)) {
  }
  close(fd);
  return free;
}

UpLock::~UpLock() { close(fd_); }

Supervisor::Supervisor(UpPlan plan, const Interrupt& interrupt)
    : plan_(std::move(plan)), interrupt_(interrupt) {}

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
  for (const char* program : {"musterd", "muster-agent", "muster-shim"}) {
    std::string path = absl::StrCat(plan_.binaries_dir, "/", program);
    if (access(path.c_str(), X_OK) != 0)
      return absl::NotFoundError(absl::StrCat(
          path, ": not there, but muster up needs it beside this program (or MUSTER_BIN_DIR)"));
  }
  if (absl::Status status = WriteFiles(); !status.ok()) return status;
  if (absl::Status status = MakeSocketDirectory(plan_.server); !status.ok()) return status;
  daemon_ = std::make_unique<Child>(
      plan_.binaries_dir + "/musterd",
      std::vector<std::string>{"--data-dir", plan_.data_dir + "/server", "--listen", plan_.server,
                               "--clusters", plan_.data_dir + "/clusters.yaml", "--queues",
                               plan_.data_dir + "/queues.yaml", "--single-user"},
      plan_.data_dir + "/logs/musterd.log");
  std::vector<std::string> arguments = {
      "--server",  plan_.server, "--cluster",    kUpCluster,
      "--host",    kUpHost,      "--state-dir",  plan_.data_dir + "/agent",
      "--address", "127.0.0.1",  "--single-user"};
  if (plan_.slots > 0) {
    arguments.push_back("--inventory");
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
  return WaitReady(*agent_, [&] {
    absl::StatusOr<pb::Host> host = client_->GetHost(absl::StrCat(kUpCluster, "/", kUpHost));
    return host.ok() && host->state() == pb::HOST_UP;
  });
}

absl::Status Supervisor::Run() {
  int64_t window_ns = RealClock()->MonotonicNs();
  int restarts = 0;
  while (!interrupt_.WaitFor(200)) {
    for (Child* child : {daemon_.get(), agent_.get()}) {
      child->KeepShort();
      if (child->Running()) continue;
      int64_t now_ns = RealClock()->MonotonicNs();
      if (now_ns - window_ns > kMinute) window_ns = now_ns, restarts = 0;
      if (++restarts > 5) {
        return absl::InternalError(absl::StrCat(
            child->name(), " ended ", restarts, " times within a minute (", child->ending(),
            "). Its last words:\n", LastWords(*child, plan_.data_dir)));
      }
      fprintf(stderr, "%s ended (%s) and is started again; jobs don't notice\n",
              child->name().c_str(), child->ending().c_str());
      if (absl::Status status = child->Start(); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

void Supervisor::Stop() {
  if (daemon_ != nullptr) daemon_->Stop(10'000);
  if (agent_ != nullptr) agent_->Stop(10'000);
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
