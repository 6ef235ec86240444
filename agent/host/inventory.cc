#include "agent/host/inventory.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/spec/config_files.h"

namespace muster::agent {
namespace {

constexpr int64_t kSchemaTimeLimit = 20 * kSecond;
constexpr size_t kSchemaBytes = 1 << 20;

int CountCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

// "NVIDIA H100 80GB HBM3" and its memory → "h100-80g": what quota is counted in.
std::string FlavourOf(std::string name, int64_t memory_bytes) {
  name = absl::AsciiStrToLower(name);
  std::string model;
  for (size_t at = 0; at < name.size();) {
    size_t end = at;
    while (end < name.size() && (absl::ascii_isalnum(name[end]))) ++end;
    const std::string word = name.substr(at, end - at);
    const bool letter = !word.empty() && absl::ascii_isalpha(word[0]);
    if (letter && word.find_first_of("0123456789") != std::string::npos && model.empty()) model = word;
    at = end + 1;
  }
  if (model.empty()) model = absl::StrReplaceAll(name, {{"nvidia ", ""}, {" ", "-"}});
  return absl::StrCat(model, "-", (memory_bytes + (int64_t{1} << 29)) >> 30, "g");
}

// NVML's stable C interface, by name: the library comes with the driver, and only where there is one.
struct NvmlMemory {
  unsigned long long total, free, used;
};
bool ProbeGpus(v1::Inventory* inventory) {
  void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  using Device = void*;
  const auto init = reinterpret_cast<int (*)()>(::dlsym(library, "nvmlInit_v2"));
  const auto count = reinterpret_cast<int (*)(unsigned*)>(::dlsym(library, "nvmlDeviceGetCount_v2"));
  const auto handle = reinterpret_cast<int (*)(unsigned, Device*)>(::dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
  const auto name = reinterpret_cast<int (*)(Device, char*, unsigned)>(::dlsym(library, "nvmlDeviceGetName"));
  const auto uuid = reinterpret_cast<int (*)(Device, char*, unsigned)>(::dlsym(library, "nvmlDeviceGetUUID"));
  const auto memory = reinterpret_cast<int (*)(Device, NvmlMemory*)>(::dlsym(library, "nvmlDeviceGetMemoryInfo"));
  unsigned devices = 0;
  if (init == nullptr || count == nullptr || handle == nullptr || name == nullptr || uuid == nullptr || memory == nullptr || init() != 0 ||
      count(&devices) != 0) {
    return false;
  }
  for (unsigned i = 0; i < devices; ++i) {
    Device device = nullptr;
    char device_name[96] = "", device_uuid[96] = "";
    NvmlMemory bytes{};
    v1::Device* found = inventory->add_devices();
    found->set_index(static_cast<int32_t>(i));
    const bool healthy = handle(i, &device) == 0 && name(device, device_name, sizeof device_name) == 0 &&
                         uuid(device, device_uuid, sizeof device_uuid) == 0 && memory(device, &bytes) == 0;
    found->set_healthy(healthy);
    if (!healthy) continue;
    found->set_uuid(device_uuid);
    found->set_memory_bytes(static_cast<int64_t>(bytes.total));
    if (inventory->flavour().empty()) inventory->set_flavour(FlavourOf(device_name, found->memory_bytes()));
  }
  return devices > 0;
}

void DeclareCpuSlots(v1::Inventory* inventory) {
  inventory->set_flavour("cpu-slot");
  inventory->set_declared(true);
  for (int i = 0; i < CountCpus(); ++i) {
    v1::Device* device = inventory->add_devices();
    device->set_index(i);
    device->set_uuid(absl::StrCat("declared-", i));
    device->set_healthy(true);
  }
}

// The output of a program of ours, or an error after the time limit.
absl::StatusOr<std::string> Output(const std::string& program, const char* argument) {
  int out[2];
  if (::pipe2(out, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  const int errors = ::memfd_create("errors", MFD_CLOEXEC);
  if (errors >= 0) ::posix_spawn_file_actions_adddup2(&actions, errors, 2);
  char* const argv[] = {const_cast<char*>(program.c_str()), const_cast<char*>(argument), nullptr};
  char path[] = "PATH=/usr/local/bin:/usr/bin:/bin";
  char* const environment[] = {path, nullptr};
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, program.c_str(), &actions, nullptr, argv, environment);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(out[1]);
  if (error != 0) {
    ::close(out[0]);
    ::close(errors);
    return ErrnoStatus(error, program);
  }
  std::string text;
  const int64_t deadline_ns = RealClock()->MonotonicNs() + kSchemaTimeLimit;
  bool complete = false;
  while (text.size() < kSchemaBytes) {
    const int64_t left_ns = deadline_ns - RealClock()->MonotonicNs();
    pollfd ready{out[0], POLLIN, 0};
    if (left_ns <= 0 || ::poll(&ready, 1, static_cast<int>(left_ns / kMillisecond) + 1) <= 0) break;
    char buffer[65536];
    const ssize_t got = ::read(out[0], buffer, sizeof buffer);
    if (got <= 0) {
      complete = got == 0;
      break;
    }
    text.append(buffer, static_cast<size_t>(got));
  }
  ::close(out[0]);
  if (!complete) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  char words[512];
  const ssize_t length = errors < 0 ? 0 : ::pread(errors, words, sizeof words, 0);
  ::close(errors);
  if (!complete || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    const absl::string_view said = absl::StripAsciiWhitespace(absl::string_view(words, static_cast<size_t>(std::max<ssize_t>(0, length))));
    return absl::UnavailableError(absl::StrCat(program, " ", argument, " failed", said.empty() ? "" : ": ", said));
  }
  return text;
}

}  // namespace

absl::StatusOr<v1::Inventory> FindInventory(const std::string& inventory_file, const std::string& directory) {
  v1::Inventory inventory;
  if (!inventory_file.empty()) {
    absl::StatusOr<std::string> text = ReadFile(inventory_file, 256 << 10);
    if (!text.ok()) return text.status();
    std::vector<Problem> problems;
    if (!ParseHostInventory(*text, inventory_file, &inventory, &problems) || !problems.empty()) {
      ProblemFormat format;
      format.outcome = "the agent does not start";
      return absl::InvalidArgumentError(FormatProblems(problems, inventory_file, format));
    }
    inventory.set_declared(true);
  } else {
    if (!ProbeGpus(&inventory)) {
      inventory.clear_devices();
      DeclareCpuSlots(&inventory);
    }
    inventory.set_cpus_milli(int64_t{CountCpus()} * 1000);
    struct sysinfo memory{};
    if (::sysinfo(&memory) == 0) inventory.set_memory_bytes(static_cast<int64_t>(memory.totalram) * memory.mem_unit);
  }
  struct statvfs disk{};
  if (inventory.disk_bytes() == 0 && ::statvfs(directory.c_str(), &disk) == 0) {
    inventory.set_disk_bytes(static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize));
  }
  return inventory;
}

void FindTrainerSchema(const std::string& bin_directory, const std::string& cache_directory, v1::Inventory* inventory) {
  const std::string trainer = bin_directory + "/muster-trainer";
  struct stat info{};
  if (::stat(trainer.c_str(), &info) != 0) return;
  const std::string identity = absl::StrCat(info.st_dev, ".", info.st_ino, ".", info.st_size, ".", info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec, "\n");
  const std::string cache = cache_directory + "/trainer-schema";
  if (absl::StatusOr<std::string> cached = ReadFile(cache, 2 * kSchemaBytes); cached.ok() && cached->rfind(identity, 0) == 0) {
    const size_t end = cached->find('\n', identity.size());
    if (end != std::string::npos) {
      inventory->set_trainer_schema_hash(cached->substr(identity.size(), end - identity.size()));
      inventory->set_trainer_schema_json(cached->substr(end + 1));
      return;
    }
  }
  const absl::StatusOr<std::string> schema = Output(trainer, "--schema");
  const absl::StatusOr<std::string> hash = Output(trainer, "--schema-hash");
  if (!schema.ok() || !hash.ok()) {
    LogWarn("no trainer schema", {{"trainer", trainer}, {"error", std::string((schema.ok() ? hash : schema).status().message())}});
    return;
  }
  inventory->set_trainer_schema_json(*schema);
  inventory->set_trainer_schema_hash(std::string(absl::StripAsciiWhitespace(*hash)));
  const std::string content = absl::StrCat(identity, inventory->trainer_schema_hash(), "\n", *schema);
  if (const absl::Status status = WriteFileDurably(cache, content); !status.ok()) {
    LogWarn("trainer schema not cached", {{"error", std::string(status.message())}});
  }
}

}  // namespace muster::agent
