#include "agent/host/environment.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/job_defaults.h"
#include "common/base/secret_use.h"
#include "common/pki/sha256.h"
#include "common/spec/check_on.h"
#include "common/spec/spec.h"

namespace muster::agent {
namespace {

using Environment = std::map<std::string, std::string>;

using Variables = google::protobuf::Map<std::string, std::string>;

absl::Status CheckJobVariables(const Variables& from) {
  for (const auto& [name, value] : from) {
    if (IsReservedVariable(name))
      return absl::InvalidArgumentError(
          absl::StrCat("env.", name, ": Muster sets this variable itself"));
    if (name.empty() || name.find('=') != std::string::npos ||
        name.find('\0') != std::string::npos || value.find('\0') != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("env.", name, ": not a variable that a process can have"));
    }
  }
  return absl::OkStatus();
}

void AddJobVariables(const Variables& from, Environment* to) {
  for (const auto& [name, value] : from) (*to)[name] = value;
}

void Put(std::vector<shim::EnvironmentVariable>* variables, const char* name,
         const std::string& value) {
  variables->push_back({name, value});
}

}  // namespace

std::string TrainerConfigPath(const v1::Prepare& prepare) {
  return prepare.attempt_directory() + "/trainer.json";
}

std::string UnpackedName(const v1::Prepare& prepare) {
  constexpr size_t kDigits = 12;
  const std::string& digest = prepare.task().workdir_digest();
  return digest.empty() ? "" : absl::StrCat("workdir-", digest.substr(0, kDigits));
}

uint32_t UmaskOf(const v1::Prepare& prepare) { return prepare.umask() & 0777; }

absl::Status CheckLaunch(const v1::Prepare& prepare) {
  const v1::TaskSpec& task = prepare.task();
  const v1::Placement& here = prepare.here();
  if (here.workers() < 1)
    return absl::InvalidArgumentError("the placement has no worker for this host");
  if (prepare.gang_workers() < here.first_group_rank() + here.workers())
    return absl::InvalidArgumentError("the placement is larger than its gang");
  const bool relative = !task.workdir().empty() && task.workdir()[0] != '/';
  if (relative != !task.workdir_digest().empty() ||
      (relative && (!IsSha256Hex(task.workdir_digest()) || prepare.job_directory().empty())))
    return absl::InvalidArgumentError("workdir: it is relative, and no directory came along");
  if (task.trainer_json().empty() && task.run().exec().empty() && task.run().shell().empty()) {
    return absl::InvalidArgumentError("the task has neither run nor trainer");
  }
  for (const std::string& text : prepare.secrets()) {
    const std::string variable = ReadSecretUse(text).variable;
    if (variable.empty() || IsReservedVariable(variable) ||
        variable.find_first_of(std::string_view("=\0", 2)) != std::string::npos)
      return absl::InvalidArgumentError(
          absl::StrCat("secrets: ", variable, " is no variable that a job may set"));
  }
  if (!task.image().empty() && (task.image()[0] != '/' || !task.trainer_json().empty()))
    return absl::InvalidArgumentError("image: wants an absolute path, and run");
  if (absl::Status status = CheckJobVariables(prepare.job_env()); !status.ok()) return status;
  return CheckJobVariables(task.env());
}

namespace {

std::vector<std::string> Arguments(const v1::Prepare& prepare, const std::string& bin_directory) {
  const v1::TaskSpec& task = prepare.task();
  if (!task.trainer_json().empty())
    return {bin_directory + "/muster-trainer", "train", "--config", TrainerConfigPath(prepare)};
  if (!task.run().exec().empty()) return {task.run().exec().begin(), task.run().exec().end()};
  return {"bash", "-euo", "pipefail", "-c", task.run().shell()};
}

// Of each process: its part of the worker's cores. The trainer's results are to be the same bits on
// every host, whatever that has.
int64_t ThreadsOf(const v1::Prepare& prepare) {
  const v1::TaskSpec& task = prepare.task();
  if (!task.trainer_json().empty()) return 1;
  const int64_t cores = task.resources().cpus_milli() / 1000;
  return std::max<int64_t>(1, cores / std::max(1, prepare.processes_per_worker()));
}

std::string RunIdOf(const AttemptId& id) {
  return absl::StrCat(id.job_uid, ".", id.task, ".", id.attempt);
}

// What all processes of the attempt on this host have in their environment.
Environment CommonEnvironment(const AttemptRecord& record, const LaunchHost& host,
                              const std::string& progress_socket, const Owner* owner) {
  const v1::Prepare& prepare = record.prepare;
  const v1::TaskSpec& task = prepare.task();
  Environment common;
  common["HOME"] = owner != nullptr ? owner->home : host.home;
  common["USER"] = owner != nullptr ? owner->name : host.user;
  common["LOGNAME"] = common["USER"];
  common["LANG"] = host.lang.empty() ? "C.UTF-8" : host.lang;
  common["SHELL"] = "/bin/bash";
  common["OMP_NUM_THREADS"] = absl::StrCat(ThreadsOf(prepare));
  common["PYTHONUNBUFFERED"] = "1";  // what it prints is to be followed, not to come at its end
  common["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  AddJobVariables(prepare.job_env(), &common);
  AddJobVariables(task.env(), &common);
  common["PATH"] = absl::StrCat(host.bin_directory, ":", common["PATH"]);

  common["MUSTER_JOB"] = absl::StrCat(prepare.job_number());
  AddJobVariables(prepare.member_env(), &common);
  common["MUSTER_TASK"] = record.id.task;
  common["MUSTER_ATTEMPT"] = absl::StrCat(record.id.attempt);
  common["MUSTER_RUN_ID"] = RunIdOf(record.id);
  common["MUSTER_JOB_DIR"] = prepare.job_directory();
  common["MUSTER_CHECKPOINT_DIR"] = prepare.checkpoint_directory();
  common["MUSTER_RESUME_FROM"] = absl::StrJoin(prepare.resume_from(), ",");
  const int64_t interval_ns = task.checkpoint().has_interval_ns() ? task.checkpoint().interval_ns()
                                                                  : kDefaultCheckpointIntervalNs;
  common["MUSTER_CHECKPOINT_INTERVAL_S"] =
      absl::StrFormat("%.9g", static_cast<double>(interval_ns) / 1e9);
  common["MUSTER_CHECKPOINT_KEEP"] = absl::StrCat(
      task.checkpoint().has_keep() ? task.checkpoint().keep() : kDefaultCheckpointsKept);
  common["MUSTER_EXPORT_STAGING"] = prepare.attempt_directory() + "/export-staging";
  common["MUSTER_REQUEST_DIR"] = prepare.attempt_directory() + "/requests";
  if (!progress_socket.empty()) common["MUSTER_PROGRESS_SOCKET"] = progress_socket;
  common["MUSTER_REPORTS"] = prepare.keep_reports() ? "each" : "newest";
  return common;
}

// Whether its processes find torchrun's variables. A program that finds RANK takes itself for one
// of several, so a lone process has them only if its task asks for them. An elastic gang of one
// worker is a gang: its next attempt may have more.
bool HasRankVariables(const v1::Prepare& prepare, int32_t per_worker) {
  const v1::TaskSpec& task = prepare.task();
  return task.rank_variables() || !task.trainer_json().empty() || task.workers().max() > 1 ||
         prepare.gang_workers() > 1 || per_worker > 1;
}

// torchrun's variables of one process.
void AddRank(const AttemptRecord& record, int32_t group_rank, int32_t local, int32_t per_worker,
             shim::ProcessSpec* process) {
  const v1::Prepare& prepare = record.prepare;
  const v1::TaskSpec& task = prepare.task();
  const std::string rank = absl::StrCat(process->rank);
  const std::string world = absl::StrCat(prepare.gang_workers() * per_worker);
  const auto put = [process](const char* name, const std::string& value) {
    Put(&process->env, name, value);
  };
  put("RANK", rank);
  put("LOCAL_RANK", absl::StrCat(local));
  put("WORLD_SIZE", world);
  put("LOCAL_WORLD_SIZE", absl::StrCat(per_worker));
  put("GROUP_RANK", absl::StrCat(group_rank));
  put("GROUP_WORLD_SIZE", absl::StrCat(prepare.gang_workers()));
  put("ROLE_RANK", rank);
  put("ROLE_WORLD_SIZE", world);
  put("MASTER_ADDR", record.master_address);
  put("MASTER_PORT", absl::StrCat(record.master_port));
  put("TORCHELASTIC_RUN_ID", RunIdOf(record.id));
  put("TORCHELASTIC_RESTART_COUNT", absl::StrCat(prepare.restarts_used()));
  put("TORCHELASTIC_MAX_RESTARTS",
      absl::StrCat(task.has_max_restarts() ? task.max_restarts() : kDefaultMaxRestarts));
}

void AddDevices(const std::string& devices, shim::ProcessSpec* process) {
  // The driver's order, which our indices are of: CUDA's own begins with the fastest. Indices, as
  // there are programs that read no UUIDs here.
  Put(&process->env, "CUDA_DEVICE_ORDER", "PCI_BUS_ID");
  // Empty, not missing: without GPUs of its own a process must not see others'.
  Put(&process->env, "CUDA_VISIBLE_DEVICES", devices);
}

// The image, and what of the host is seen in it: what the job was given a path of.
void AddImage(const v1::Prepare& prepare, const LaunchHost& host, shim::Spec* spec) {
  spec->image.path = prepare.task().image();
  spec->image.shown = ShownInImage(prepare);
  if (!spec->progress_socket.empty())
    spec->image.shown.push_back(spec->progress_socket.substr(0, spec->progress_socket.rfind('/')));
  for (const shim::EnvironmentVariable& variable : spec->env) {
    if (variable.name == "HOME") spec->image.shown.push_back(variable.value);
  }
  std::erase_if(spec->image.shown, [](const std::string& path) { return path[0] != '/'; });
  if (host.declared || prepare.here().devices_size() == 0 || !host.driver) return;
  spec->image.driver = host.driver();
  if (spec->image.driver.empty()) return;
  spec->env.push_back({"LD_LIBRARY_PATH", shim::kDriverDirectory});  // which `env` may not set
  for (shim::EnvironmentVariable& variable : spec->env) {
    if (variable.name == "PATH") absl::StrAppend(&variable.value, ":", shim::kDriverDirectory);
  }
}

}  // namespace

std::string WorkdirOf(const v1::Prepare& prepare) {
  const v1::TaskSpec& task = prepare.task();
  if (!task.workdir_digest().empty())
    return absl::StrCat(prepare.job_directory(), "/", UnpackedName(prepare));
  return task.workdir().empty() ? prepare.attempt_directory() : task.workdir();
}

std::vector<std::string> ShownInImage(const v1::Prepare& prepare) {
  std::vector<std::string> shown = {prepare.job_directory(), prepare.attempt_directory(),
                                    prepare.checkpoint_directory()};
  // A workdir among a system's own directories is the image's.
  const std::string& workdir = prepare.task().workdir();
  const std::string top = workdir.substr(0, workdir.find('/', 1));
  if (shim::IsShownWhereMissing(top.substr(std::min<size_t>(top.size(), 1))))
    shown.push_back(workdir);
  std::erase_if(shown, [](const std::string& path) { return path.empty() || path[0] != '/'; });
  return shown;
}

std::vector<std::string> DriverFiles(const std::string& root) {
  constexpr const char* kDirectories[] = {"/usr/lib/x86_64-linux-gnu",
                                          "/usr/lib/x86_64-linux-gnu/nvidia/current",
                                          "/usr/lib64",
                                          "/usr/lib64/nvidia",
                                          "/usr/lib/nvidia",
                                          "/usr/local/nvidia/lib64"};
  constexpr absl::string_view kBegin[] = {"libcuda.so.", "libcudadebugger.so.", "libnvcuvid.so.",
                                          "libnvidia-", "libnvoptix.so."};
  std::map<std::string, std::string> found;  // by last name: the first directory counts
  for (const char* directory : kDirectories) {
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(root + directory, none)) {
      const std::string name = entry.path().filename();
      if (absl::StrContains(name, ".so.") &&
          std::any_of(std::begin(kBegin), std::end(kBegin),
                      [&](absl::string_view begin) { return absl::StartsWith(name, begin); }))
        found.try_emplace(name, entry.path());
    }
  }
  if (found.find("libcuda.so.1") == found.end()) return {};
  if (::access((root + "/usr/bin/nvidia-smi").c_str(), X_OK) == 0)
    found["nvidia-smi"] = root + "/usr/bin/nvidia-smi";
  std::vector<std::string> files;
  for (const auto& [name, path] : found) files.push_back(path);
  return files;
}

absl::StatusOr<shim::Spec> MakeShimSpec(const AttemptRecord& record, const LaunchHost& host,
                                        const std::string& token,
                                        const std::string& progress_socket, const Owner* owner) {
  const v1::Prepare& prepare = record.prepare;
  const v1::TaskSpec& task = prepare.task();
  const v1::Placement& here = prepare.here();
  const int32_t per_worker = std::max(1, prepare.processes_per_worker());
  if (absl::Status status = CheckLaunch(prepare); !status.ok()) return status;

  shim::Spec spec;
  spec.job_uid = record.id.job_uid;
  spec.task = record.id.task;
  spec.attempt = record.id.attempt;
  spec.boot_id = host.boot_id;
  spec.token = token;
  spec.umask = UmaskOf(prepare);
  spec.setup = task.setup();
  spec.grace_ns = task.has_grace_ns() ? task.grace_ns() : kDefaultGraceNs;
  if (task.when_unreachable() == v1::FENCE) {
    spec.fence_after_ns = task.fence_after_ns() > 0 ? task.fence_after_ns() : kDefaultFenceAfterNs;
    spec.renewed_ns = record.renewed_ns;
  }
  spec.log_file_bytes = host.log_file_bytes;
  spec.log_files = host.log_files;
  spec.pid_namespace = host.pid_namespace;
  spec.as_itself = !host.as_owners;
  if (host.as_owners) {
    if (owner == nullptr) return absl::InternalError("nobody to run this as");
    spec.user = owner->user;
  }
  spec.progress_socket = progress_socket;
  if (const auto on = prepare.member_env().find(kHolderVariable); on != prepare.member_env().end())
    spec.holder_mark = absl::StrCat("muster-on.", on->second, ".", spec.job_uid, ".", spec.attempt);
  spec.keep_reports = prepare.keep_reports() && here.first_group_rank() == 0;
  spec.workdir = WorkdirOf(prepare);
  spec.argv = Arguments(prepare, host.bin_directory);
  for (const auto& [name, value] : CommonEnvironment(record, host, progress_socket, owner))
    spec.env.push_back({name, value});
  if (!task.image().empty()) AddImage(prepare, host, &spec);

  const int64_t devices_per_worker = here.devices_size() / here.workers();
  for (int32_t w = 0; w < here.workers(); ++w) {
    shim::WorkerSpec& worker = spec.workers.emplace_back();
    worker.group_rank = here.first_group_rank() + w;
    std::string devices;
    if (!host.declared) {
      devices = absl::StrJoin(here.devices().begin() + w * devices_per_worker,
                              here.devices().begin() + (w + 1) * devices_per_worker, ",");
    }
    for (int32_t local = 0; local < per_worker; ++local) {
      shim::ProcessSpec& process = worker.processes.emplace_back();
      process.rank = worker.group_rank * per_worker + local;
      if (HasRankVariables(prepare, per_worker))
        AddRank(record, worker.group_rank, local, per_worker, &process);
      AddDevices(devices, &process);
    }
  }
  return spec;
}

}  // namespace muster::agent
