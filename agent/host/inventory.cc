#include "agent/host/inventory.h"

#include <sched.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/run_program.h"
#include "common/base/units.h"
#include "common/spec/config_files.h"

namespace muster::agent {
namespace {

constexpr int64_t kSchemaTimeLimit = 20 * kSecond;
constexpr size_t kSchemaBytes = 1 << 20;
constexpr int64_t kEnterTimeLimit = 10 * kSecond;

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
    if (letter && word.find_first_of("0123456789") != std::string::npos && model.empty())
      model = word;
    at = end + 1;
  }
  if (model.empty()) model = absl::StrReplaceAll(name, {{"nvidia ", ""}, {" ", "-"}});
  return absl::StrCat(model, "-", (memory_bytes + (int64_t{1} << 29)) >> 30, "g");
}

bool ProbeGpus(Nvml* nvml, v1::Inventory* inventory) {
  if (nvml == nullptr) return false;
  for (const Nvml::Device& device : nvml->Devices()) {
    v1::Device* found = inventory->add_devices();
    found->set_index(inventory->devices_size() - 1);
    found->set_healthy(device.healthy);
    if (!device.healthy) found->set_fault("it doesn't answer its driver");
    found->set_uuid(device.uuid);
    found->set_memory_bytes(device.memory_bytes);
    if (device.healthy && inventory->flavour().empty())
      inventory->set_flavour(FlavourOf(device.name, device.memory_bytes));
  }
  return inventory->devices_size() > 0;
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
  ProgramOptions options;
  options.argv = {program, argument};
  options.environment = {"PATH=/usr/local/bin:/usr/bin:/bin"};
  options.time_limit_ns = kSchemaTimeLimit;
  options.most_bytes = kSchemaBytes;
  absl::StatusOr<ProgramEnd> end = RunProgram(options);
  if (!end.ok()) return end.status();
  if (!end->why.empty())
    return absl::UnavailableError(absl::StrCat(program, " ", argument, " failed: ", end->why));
  if (end->output.size() == kSchemaBytes)
    return absl::UnavailableError(
        absl::StrCat(program, " ", argument, " answers with ", kSchemaBytes, " bytes or more"));
  return std::move(end->output);
}

}  // namespace

absl::StatusOr<v1::Inventory> FindInventory(const std::string& inventory_file,
                                            const std::string& directory, Nvml* nvml) {
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
    if (!ProbeGpus(nvml, &inventory)) {
      inventory.clear_devices();
      DeclareCpuSlots(&inventory);
    }
    inventory.set_cpus_milli(int64_t{CountCpus()} * 1000);
    struct sysinfo memory {};
    if (::sysinfo(&memory) == 0)
      inventory.set_memory_bytes(static_cast<int64_t>(memory.totalram) * memory.mem_unit);
  }
  struct statvfs disk {};
  if (inventory.disk_bytes() == 0 && ::statvfs(directory.c_str(), &disk) == 0) {
    inventory.set_disk_bytes(static_cast<int64_t>(disk.f_bavail) *
                             static_cast<int64_t>(disk.f_frsize));
  }
  return inventory;
}

std::string Summary(const v1::Inventory& inventory) {
  const auto& devices = inventory.devices();
  const int64_t broken = std::count_if(devices.begin(), devices.end(),
                                       [](const v1::Device& device) { return !device.healthy(); });
  return absl::StrCat(
      devices.empty() ? "no GPUs" : absl::StrCat(devices.size(), " ", inventory.flavour()),
      broken == 0 ? "" : absl::StrCat(" (", broken, " not healthy)"), ", ",
      FormatMilli(inventory.cpus_milli()), " CPUs, ", FormatSize(inventory.memory_bytes()),
      " of memory, ", FormatSize(inventory.disk_bytes()), " of disk",
      inventory.declared() ? ", declared" : "");
}

void FindTrainerSchema(const std::string& bin_directory, const std::string& cache_directory,
                       v1::Inventory* inventory) {
  const std::string trainer = bin_directory + "/muster-trainer";
  struct stat info {};
  if (::stat(trainer.c_str(), &info) != 0) return;
  const std::string identity = absl::StrCat(info.st_dev, ".", info.st_ino, ".", info.st_size, ".",
                                            info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec, "\n");
  const std::string cache = cache_directory + "/trainer-schema";
  if (absl::StatusOr<std::string> cached = ReadFile(cache, 2 * kSchemaBytes);
      cached.ok() && cached->rfind(identity, 0) == 0) {
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
    LogWarn("no trainer schema",
            {{"trainer", trainer},
             {"error", std::string((schema.ok() ? hash : schema).status().message())}});
    return;
  }
  inventory->set_trainer_schema_json(*schema);
  inventory->set_trainer_schema_hash(std::string(absl::StripAsciiWhitespace(*hash)));
  const std::string content =
      absl::StrCat(identity, inventory->trainer_schema_hash(), "\n", *schema);
  if (const absl::Status status = WriteFileDurably(cache, content); !status.ok()) {
    LogWarn("trainer schema not cached", {{"error", std::string(status.message())}});
  }
}

void FindAbilities(const std::string& bin_directory, bool as_owners, v1::Inventory* inventory) {
  AnnounceAll(inventory);
  ProgramOptions options;
  options.argv = {bin_directory + "/muster-shim", "--can-enter"};
  if (as_owners) options.argv.emplace_back("nobody");
  options.time_limit_ns = kEnterTimeLimit;
  const absl::StatusOr<ProgramEnd> end = RunProgram(options);
  const std::string why = end.ok() ? end->why : std::string(end.status().message());
  inventory->set_enters_images(why.empty());
  if (!why.empty()) LogWarn("images can't be entered on this host", {{"why", why}});
}

}  // namespace muster::agent
