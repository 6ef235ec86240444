#include "common/spec/check_spec.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/ids.h"
#include "common/base/job_defaults.h"
#include "common/base/secret_use.h"
#include "common/base/view.h"
#include "common/spec/check_blocks.h"
#include "common/spec/check_image.h"
#include "common/spec/check_members.h"
#include "common/spec/check_on.h"
#include "common/spec/check_predecessors.h"
#include "common/spec/check_schedule.h"
#include "common/spec/check_together.h"
#include "common/spec/check_trackers.h"
#include "common/spec/check_trainer.h"
#include "common/spec/check_workers.h"
#include "common/spec/placement_defaults.h"
#include "common/spec/ray.h"
#include "common/spec/reader.h"
#include "common/spec/trainer_schema.h"

namespace muster {
namespace {

constexpr int kMaxTasks = kMostTasks;
constexpr int kMaxListed = 64;  // clusters, gpu_types
constexpr int kMaxLabels = 64;
constexpr int kMaxResumeFrom = 16;
constexpr int kMaxFinalExitCodes = 16;
constexpr int kMaxVariables = 256;
constexpr size_t kMaxVariableBytes = 32 << 10;
constexpr size_t kMaxScriptBytes = 64 << 10;
constexpr size_t kMaxPathBytes = 4'096;
constexpr int64_t kMaxGpusMilli = 1'024'000;
constexpr int64_t kMaxDurationNs = 3'650 * kDay;
constexpr int64_t kLeastFenceAfterNs = 10 * kSecond;
constexpr char kLabelRule[] =
    "must be 1 to 63 of letters, digits, '.', '_' and '-', and start with a letter, a digit or '_'";

std::string Quoted(std::string_view text) {
  return absl::StrCat("\"", View(text.substr(0, 60)), text.size() > 60 ? "..." : "", "\"");
}

bool IsVariableName(std::string_view name) {
  if (name.empty() || name.size() > 255 || (name[0] >= '0' && name[0] <= '9')) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return c == '_' || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  });
}

class JobChecker {
 public:
  JobChecker(const pb::JobSpec& spec, const SpecRules& rules)
      : spec_(spec), rules_(rules), context_(rules.context) {}

  void Run() {
    CheckJob();
    if (spec_.tasks_size() > kMaxTasks) {
      return Emit("tasks",
                  absl::StrCat(spec_.tasks_size(), " tasks; a job has at most ", kMaxTasks));
    }
    if (spec_.tasks_size() == 0 && Sound(""))
      Emit("tasks", "is empty; a job has at least one task");
    CheckTaskNames();
    CheckOrder();
    for (int i = 0; i < spec_.tasks_size(); ++i) CheckTask(spec_.tasks(i), TaskPath(i));
  }

 private:
  void Emit(const std::string& path, const std::string& message) {
    rules_.emit(path, message, Document::Where::kValue);
  }
  void EmitName(const std::string& path, const std::string& message) {
    rules_.emit(path, message, Document::Where::kName);
  }
  bool Sound(const std::string& map_path) const { return rules_.sound(map_path); }
  std::string TaskPath(int i) const {
    return rules_.short_form ? "" : IndexPath("tasks", static_cast<size_t>(i));
  }

  template <typename List>
  bool Unique(const List& list, const std::string& path, int most) {
    if (list.size() > most) {
      Emit(path, absl::StrCat(list.size(), " entries; at most ", most));
      return false;
    }
    std::set<std::string> seen;
    for (int i = 0; i < list.size(); ++i) {
      if (!seen.insert(list[i]).second)
        Emit(IndexPath(path, static_cast<size_t>(i)),
             absl::StrCat(Quoted(list[i]), " is listed twice"));
    }
    return true;
  }

  void CheckNul(const std::string& text, const std::string& path) {
    if (text.find('\0') != std::string::npos) Emit(path, "may not hold a NUL character");
  }

  void CheckJob() {
    if (!spec_.name().empty() && !IsLabel(spec_.name()))
      Emit("name", absl::StrCat(Quoted(spec_.name()), ": ", kLabelRule));
    CheckQueue();
    if (spec_.priority() < 0 || spec_.priority() > 100)
      Emit("priority",
           absl::StrCat("must be a whole number from 0 to 100; got ", spec_.priority()));
    if (Unique(spec_.clusters(), "clusters", kMaxListed)) {
      for (int i = 0; i < spec_.clusters_size(); ++i) {
        CheckKnown(spec_.clusters(i), context_.clusters, "cluster",
                   IndexPath("clusters", static_cast<size_t>(i)));
      }
    }
    if (spec_.labels_size() > kMaxLabels)
      Emit("labels", absl::StrCat(spec_.labels_size(), " labels; at most ", kMaxLabels));
    const std::map<std::string, std::string> labels(spec_.labels().begin(), spec_.labels().end());
    for (const auto& [name, value] : labels) {
      const std::string path = JoinPath("labels", name);
      if (!IsLabel(name)) EmitName(path, absl::StrCat("the label's name ", kLabelRule));
      if (value.size() > 63)
        Emit(path, absl::StrCat("a label's value has at most 63 characters; got ", value.size()));
      if (std::any_of(value.begin(), value.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; })) {
        Emit(path, "a label's value has no control characters");
      }
    }
    CheckEnv(spec_.env(), "env");
    CheckSecrets();
  }

  void CheckSecrets() {
    if (!Unique(spec_.secrets(), "secrets", kMaxListed)) return;
    std::set<std::string> variables;
    for (int i = 0; i < spec_.secrets_size(); ++i) {
      const std::string at = IndexPath("secrets", static_cast<size_t>(i));
      const SecretUse use = ReadSecretUse(spec_.secrets(i));
      if (!IsSecretName(use.name) || !IsVariableName(use.variable)) {
        Emit(at, absl::StrCat(Quoted(spec_.secrets(i)),
                              " names no secret; write NAME, or NAME=VARIABLE: letters, digits and "
                              "'_', not starting with a digit"));
      } else if (IsReservedVariable(use.variable)) {
        Emit(at, absl::StrCat(use.variable, " may not be set: Muster or the loader decides it"));
      } else if (spec_.env().count(use.variable) != 0) {
        Emit(at, absl::StrCat(use.variable, " is in env:, too; leave out one of both"));
      } else if (!variables.insert(use.variable).second) {
        Emit(at, absl::StrCat(use.variable, " is set twice"));
      }
    }
  }

  void CheckQueue() {
    if (spec_.queue().empty()) return;
    const std::vector<std::string> parts = absl::StrSplit(spec_.queue(), '/');
    if (spec_.queue().size() > 512 || parts.size() > 8 ||
        !std::all_of(parts.begin(), parts.end(), [](const std::string& p) { return IsLabel(p); })) {
      return Emit(
          "queue",
          absl::StrCat(Quoted(spec_.queue()),
                       " is no queue path; write names with '/' between, such as research/nlp"));
    }
    std::vector<std::string> below;
    for (const std::string& leaf : context_.queues) {
      const size_t size = spec_.queue().size();
      if (leaf.size() > size && leaf[size] == '/' && absl::StartsWith(leaf, spec_.queue()))
        below.push_back(leaf);
    }
    if (!below.empty()) {
      return Emit(
          "queue",
          absl::StrCat(Quoted(spec_.queue()),
                       " has queues of its own and takes no jobs itself; name one of them: ",
                       absl::StrJoin(below, ", ")));
    }
    CheckKnown(spec_.queue(), context_.queues, "queue", "queue");
  }

  // A name that must exist, if the context knows which do.
  void CheckKnown(const std::string& name, const std::vector<std::string>& known,
                  std::string_view what, const std::string& path) {
    if (what != "queue" && !IsLabel(name))
      return Emit(path,
                  absl::StrCat(Quoted(name), ": the name of a ", View(what), " ", kLabelRule));
    if (known.empty() || std::find(known.begin(), known.end(), name) != known.end()) return;
    std::vector<std::string> shown(
        known.begin(),
        known.begin() + std::min<std::ptrdiff_t>(8, static_cast<std::ptrdiff_t>(known.size())));
    if (known.size() > shown.size()) shown.emplace_back("...");
    const std::string guess = DidYouMean(name, known);
    Emit(path,
         absl::StrCat("no ", View(what), " ", Quoted(name), " here.",
                      guess.empty() ? absl::StrCat(" There ", known.size() == 1 ? "is " : "are ",
                                                   absl::StrJoin(shown, ", "), ".")
                                    : guess));
  }

  template <typename Map>
  void CheckEnv(const Map& env, const std::string& path) {
    if (env.size() > static_cast<size_t>(kMaxVariables))
      Emit(path, absl::StrCat(env.size(), " variables; at most ", kMaxVariables));
    const std::map<std::string, std::string> sorted(env.begin(), env.end());
    for (const auto& [name, value] : sorted) {
      const std::string at = JoinPath(path, name);
      if (!IsVariableName(name)) {
        EmitName(at, "is no variable's name: letters, digits and '_', not starting with a digit");
      } else if (IsReservedVariable(name)) {
        EmitName(at, "may not be set: Muster or the loader decides it");
      } else if (value.size() > kMaxVariableBytes) {
        Emit(at, absl::StrCat("longer than ", kMaxVariableBytes / 1024, " KiB"));
      } else {
        CheckNul(value, at);
      }
    }
  }

  void CheckTaskNames() {
    std::map<std::string, int> first;
    for (int i = 0; i < spec_.tasks_size(); ++i) {
      const std::string& name = spec_.tasks(i).name();
      const std::string path = JoinPath(TaskPath(i), "name");
      if (name.empty()) {
        if (spec_.tasks_size() > 1 && Sound(TaskPath(i)))
          Emit(path, "is missing; each of several tasks has a name");
        continue;
      }
      if (rules_.short_form) continue;
      if (!IsLabel(name)) Emit(path, absl::StrCat(Quoted(name), ": ", kLabelRule));
      const auto [seen, fresh] = first.emplace(name, i);
      if (!fresh)
        Emit(path, absl::StrCat(Quoted(name), " is already the name of tasks[", seen->second, "]"));
    }
  }

  // `after`: known tasks, and no cycle (depth-first, each task once).
  void CheckOrder() {
    std::map<std::string, int> index;
    std::vector<std::string> names;
    for (int i = 0; i < spec_.tasks_size(); ++i) {
      index.emplace(spec_.tasks(i).name(), i);
      if (!spec_.tasks(i).name().empty()) names.push_back(spec_.tasks(i).name());
    }
    bool names_sound = true;
    for (int i = 0; i < spec_.tasks_size(); ++i) names_sound = names_sound && Sound(TaskPath(i));
    for (int i = 0; i < spec_.tasks_size(); ++i) {
      const pb::TaskSpec& task = spec_.tasks(i);
      const std::string path = JoinPath(TaskPath(i), "after");
      if (!Unique(task.after(), path, kMaxTasks)) return;
      for (int k = 0; k < task.after_size(); ++k) {
        const std::string at = IndexPath(path, static_cast<size_t>(k));
        if (task.after(k) == task.name()) {
          Emit(at, "a task can't wait for itself");
        } else if (index.count(task.after(k)) == 0 && names_sound) {
          Emit(at, absl::StrCat("no task ", Quoted(task.after(k)), " in this job.",
                                DidYouMean(task.after(k), names)));
        }
      }
    }
    std::vector<int> state(static_cast<size_t>(spec_.tasks_size()),
                           0);  // 0 new, 1 on the path, 2 done
    std::vector<int> path;
    for (int i = 0; i < spec_.tasks_size(); ++i) {
      if (state[static_cast<size_t>(i)] == 0 && Visit(i, index, &state, &path)) return;
    }
  }

  // True: a cycle was found and said. Recursion is at most kMaxTasks deep.
  bool Visit(int task, const std::map<std::string, int>& index, std::vector<int>* state,
             std::vector<int>* path) {
    (*state)[static_cast<size_t>(task)] = 1;
    path->push_back(task);
    for (const std::string& name : spec_.tasks(task).after()) {
      const auto next = index.find(name);
      if (next == index.end() || next->second == task) continue;
      const int seen = (*state)[static_cast<size_t>(next->second)];
      if (seen == 1) {
        std::string cycle;
        for (auto it = std::find(path->begin(), path->end(), next->second); it != path->end();
             ++it) {
          absl::StrAppend(&cycle, spec_.tasks(*it).name(), " waits for ");
        }
        Emit(JoinPath(TaskPath(task), "after"), absl::StrCat("a cycle: ", cycle, name));
        return true;
      }
      if (seen == 0 && Visit(next->second, index, state, path)) return true;
    }
    path->pop_back();
    (*state)[static_cast<size_t>(task)] = 2;
    return false;
  }

  void CheckTask(const pb::TaskSpec& task, const std::string& path) {
    const auto at = [&](std::string_view field) { return JoinPath(path, field); };
    if (const std::string workers = at("workers"); task.has_workers() && Sound(workers))
      CheckWorkers(task.workers(), workers,
                   [this](const auto& where, const auto& what) { Emit(where, what); });
    CheckResources(task, at("resources"));
    if (task.processes_per_worker() < 0 || task.processes_per_worker() > kMaxProcessesPerWorker) {
      Emit(at("processes_per_worker"),
           absl::StrCat("must be a whole number from 1 to ", kMaxProcessesPerWorker, "; got ",
                        task.processes_per_worker()));
    }
    CheckTopology(task.topology(), at("topology"));
    bool blocks_sound = Sound(at("topology")) && Sound(at("workers")) && Sound(at("resources"));
    for (int b = 0; b < task.topology().blocks_size(); ++b)
      blocks_sound = blocks_sound && Sound(at(absl::StrCat("topology.blocks[", b, "]")));
    if (blocks_sound)
      CheckBlocks(task, path, [this](const auto& where, const auto& what) { Emit(where, what); });
    if (task.setup().size() > kMaxScriptBytes)
      Emit(at("setup"),
           absl::StrCat("longer than ", kMaxScriptBytes / 1024, " KiB; put it into a file"));
    CheckNul(task.setup(), at("setup"));
    CheckProgram(task, path);
    if (const std::string why = WhyNoImage(task); !why.empty()) Emit(at("image"), why);
    CheckWorkdir(task.workdir(), at("workdir"));
    CheckDigest(task, at("workdir_digest"));
    CheckEnv(task.env(), at("env"));
    CheckCheckpoint(task.checkpoint(), at("checkpoint"));
    if (task.has_input()) CheckInput(task.input(), at("input"));
    if (task.has_max_restarts() && (task.max_restarts() < 0 || task.max_restarts() > 1000)) {
      Emit(at("max_restarts"),
           absl::StrCat("must be a whole number from 0 to 1000; got ", task.max_restarts()));
    }
    CheckDuration(task.retry_faults_for_ns(), kMaxDurationNs, at("retry_faults_for"));
    CheckFinalExitCodes(task, at("final_exit_codes"));
    CheckDuration(task.hang_timeout_ns(), kMaxDurationNs, at("hang_timeout"));
    CheckDuration(task.grace_ns(), kHour, at("grace"));
    CheckDuration(task.time_limit_ns(), kMaxDurationNs, at("time_limit"));
    if (task.fence_after_ns() != 0 && task.when_unreachable() != pb::FENCE) {
      Emit(at("fence_after"),
           "goes with when_unreachable: fence only. Leave it out, or say when_unreachable: fence");
    } else if (task.fence_after_ns() != 0 && (task.fence_after_ns() < kLeastFenceAfterNs ||
                                              task.fence_after_ns() > kMaxDurationNs)) {
      Emit(at("fence_after"),
           absl::StrCat("must be from ", FormatDuration(kLeastFenceAfterNs),
                        " (heartbeats come every few seconds) to ", FormatDuration(kMaxDurationNs),
                        "; got ", FormatDuration(task.fence_after_ns())));
    }
    if (!pb::WhenUnreachable_IsValid(task.when_unreachable()))
      Emit(at("when_unreachable"), "must be one of replace, wait, fence");
  }

  void CheckDuration(int64_t duration_ns, int64_t most_ns, const std::string& path) {
    if (duration_ns < 0) return Emit(path, "may not be negative");
    if (duration_ns > most_ns)
      Emit(path, absl::StrCat("must be from 0s to ", FormatDuration(most_ns), "; got ",
                              FormatDuration(duration_ns)));
  }

  void CheckFinalExitCodes(const pb::TaskSpec& task, const std::string& path) {
    if (task.final_exit_codes_size() > kMaxFinalExitCodes)
      Emit(path, absl::StrCat("has more than ", kMaxFinalExitCodes, " entries"));
    for (int i = 0; i < task.final_exit_codes_size(); ++i) {
      const int32_t code = task.final_exit_codes(i);
      if (code < 1 || code > kMaxExitCode)
        Emit(absl::StrCat(path, "[", i, "]"),
             absl::StrCat("must be a whole number from 1 to ", kMaxExitCode, "; got ", code));
    }
  }

  void CheckResources(const pb::TaskSpec& task, const std::string& path) {
    const pb::Resources& r = task.resources();
    const auto at = [&](std::string_view field) { return JoinPath(path, field); };
    if (r.gpus_milli() < 0 || r.gpus_milli() > kMaxGpusMilli) {
      Emit(at("gpus"), absl::StrCat("must be a number from 0 to ", kMaxGpusMilli / 1000, "; got ",
                                    FormatMilli(r.gpus_milli())));
    } else if (r.gpus_milli() % 1000 != 0) {
      if (r.gpus_milli() > 1000) {
        Emit(at("gpus"), absl::StrCat(FormatMilli(r.gpus_milli()),
                                      ": a worker takes a fraction of one GPU, or whole ones"));
      } else if (task.workers().max() > 1 && Sound(ParentPath(path))) {
        Emit(at("gpus"),
             absl::StrCat(FormatMilli(r.gpus_milli()),
                          ": a fraction of a GPU works with one worker only; workers is ",
                          task.workers().max()));
      } else if (task.processes_per_worker() > 1) {
        Emit(at("gpus"),
             absl::StrCat(FormatMilli(r.gpus_milli()),
                          ": a fraction of a GPU works with one process; processes_per_worker is ",
                          task.processes_per_worker()));
      }
    }
    if (Sound(path)) {
      if (r.gpus_milli() > 0 && r.gpu_types().empty()) {
        std::vector<std::string> known;
        for (const auto& [flavour, unused] : context_.flavours) known.push_back(flavour);
        if (known.size() > 8) known.resize(8);
        Emit(at("gpu_types"),
             absl::StrCat("is missing; gpus needs the types it may run on, such as gpu_types: [",
                          known.empty() ? "h100-80g" : absl::StrJoin(known, ", "), "]"));
      }
      if (r.gpus_milli() == 0 && !r.gpu_types().empty())
        Emit(at("gpu_types"), "without gpus; give gpus: 1 or more, or leave gpu_types out");
    }
    if (Unique(r.gpu_types(), at("gpu_types"), kMaxListed)) {
      for (int i = 0; i < r.gpu_types_size(); ++i)
        CheckFlavour(r.gpu_types(i), IndexPath(at("gpu_types"), static_cast<size_t>(i)));
    }
    if (r.cpus_milli() < 0 || r.cpus_milli() > 65'536'000)
      Emit(at("cpus"),
           absl::StrCat("must be a number from 0 to 65536; got ", FormatMilli(r.cpus_milli())));
    const auto bytes = [&](int64_t value, std::string_view field) {
      if (value < 0 || value > (int64_t{1} << 60))
        Emit(at(field), "must be a size from 0 to 1024PiB");
    };
    bytes(r.memory_bytes(), "memory");
    bytes(r.disk_bytes(), "disk");
  }

  void CheckFlavour(const std::string& flavour, const std::string& path) {
    if (!IsLabel(flavour))
      return Emit(path, absl::StrCat(Quoted(flavour), ": a flavour's name ", kLabelRule));
    if (context_.flavours.empty() || context_.flavours.count(flavour) > 0) return;
    std::vector<std::string> known;
    for (const auto& [name, clusters] : context_.flavours) {
      if (known.size() == 8) break;
      known.push_back(
          clusters.empty() ? name : absl::StrCat(name, " (", absl::StrJoin(clusters, ", "), ")"));
    }
    const std::string last = known.back();
    known.pop_back();
    Emit(path, absl::StrCat("no flavour ", Quoted(flavour), " here. ",
                            known.empty() ? absl::StrCat("There is ", last)
                                          : absl::StrCat("There are ", absl::StrJoin(known, ", "),
                                                         " and ", last),
                            "."));
  }

  void CheckTopology(const pb::Topology& topology, const std::string& path) {
    for (const auto& [level, field] : {std::pair(topology.preferred(), "preferred"),
                                       std::pair(topology.required(), "required")}) {
      if (level == pb::ANY)
        Emit(JoinPath(path, field),
             "any: not yet; a gang stays inside one cluster. Use cluster or a tighter level");
      if (!pb::TopologyLevel_IsValid(level))
        Emit(JoinPath(path, field), "must be one of island, host, rack, block, cluster");
    }
    if (topology.preferred() != pb::ANY && topology.required() != pb::TOPOLOGY_LEVEL_UNSPECIFIED &&
        topology.preferred() > topology.required()) {
      Emit(JoinPath(path, "preferred"),
           "is looser than required; prefer a level that is as tight or tighter");
    }
  }

  void CheckProgram(const pb::TaskSpec& task, const std::string& path) {
    const auto at = [&](std::string_view field) { return JoinPath(path, field); };
    const bool trainer = !task.trainer_json().empty();
    if (trainer && task.has_run())
      EmitName(at("trainer"), "run and trainer exclude each other; keep one");
    if (!trainer && !task.has_run() && Sound(path))
      Emit(at("run"), "is missing; give run: (a command) or trainer: (what muster-trainer trains)");
    if (trainer) CheckTrainer(task, at("trainer"));
    if (!task.has_run()) return;
    const pb::Run& run = task.run();
    size_t bytes = run.shell().size();
    for (const std::string& word : run.exec()) bytes += word.size() + 1;
    if (!run.shell().empty() && run.exec_size() > 0)
      Emit(at("run"), "is either a text for bash or a list of words");
    if (run.exec_size() > 0 ? run.exec(0).empty()
                            : run.shell().find_first_not_of(" \t\r\n") == std::string::npos) {
      if (Sound(path)) Emit(at("run"), "is empty; write the command");
    }
    if (bytes > kMaxScriptBytes)
      Emit(at("run"),
           absl::StrCat("longer than ", kMaxScriptBytes / 1024, " KiB; put it into a file"));
    CheckNul(run.shell(), at("run"));
    for (int i = 0; i < run.exec_size(); ++i)
      CheckNul(run.exec(i), IndexPath(at("run"), static_cast<size_t>(i)));
  }

  void CheckTrainer(const pb::TaskSpec& task, const std::string& path) {
    const nlohmann::json value = ParseBoundedJson(task.trainer_json(), kMaxYamlBytes);
    if (!value.is_object()) return Emit(path, "must be a map of fields");
    pb::TaskSpec filled = task;
    FillPlacement(spec_, &filled);
    CheckTrainerLayout(value, filled, path, rules_.emit);
    const nlohmann::json schema = ParseBoundedJson(context_.trainer_schema_json, size_t{1} << 20);
    if (schema.is_object()) CheckAgainstSchema(value, schema, path, rules_.emit);
    CheckTrainerPaths(value, path, rules_.emit);
  }

  void CheckWorkdir(const std::string& workdir, const std::string& path) {
    if (workdir.empty()) return;
    if (workdir.size() > kMaxPathBytes)
      return Emit(path, absl::StrCat("longer than ", kMaxPathBytes, " characters"));
    CheckNul(workdir, path);
  }

  void CheckDigest(const pb::TaskSpec& task, const std::string& path) {
    const std::string& digest = task.workdir_digest();
    if (digest.empty()) return;
    if (digest.size() != 64 || digest.find_first_not_of("0123456789abcdef") != digest.npos)
      return Emit(path, "must be 64 hexadecimal digits; leave it out, and workdir comes along");
    if (task.workdir().empty() || task.workdir()[0] == '/')
      Emit(path, "goes with a relative workdir, such as workdir: .");
  }

  void CheckInput(const pb::Input& input, const std::string& path) {
    if (input.storage().empty())
      return Emit(JoinPath(path, "storage"), "is missing; name the storage where the data lies");
    CheckKnown(input.storage(), context_.storages, "storage", JoinPath(path, "storage"));
    if (input.size_bytes() <= 0)
      Emit(JoinPath(path, "size"),
           "must be above 0, such as 120GiB; it says how much a start elsewhere would move");
  }

  void CheckCheckpoint(const pb::CheckpointPolicy& policy, const std::string& path) {
    if (!policy.storage().empty())
      CheckKnown(policy.storage(), context_.storages, "storage", JoinPath(path, "storage"));
    CheckDuration(policy.interval_ns(), kMaxDurationNs, JoinPath(path, "interval"));
    if (policy.has_keep() && (policy.keep() < 1 || policy.keep() > 1000)) {
      Emit(JoinPath(path, "keep"),
           absl::StrCat("must be a whole number from 1 to 1000; got ", policy.keep()));
    }
    const std::string from = JoinPath(path, "resume_from");
    if (policy.resume_from_size() > kMaxResumeFrom)
      Emit(from, absl::StrCat("at most ", kMaxResumeFrom, "; got ", policy.resume_from_size()));
    for (const std::string& checkpoint : policy.resume_from()) {
      const bool whole = absl::StartsWith(checkpoint, "/") || absl::StrContains(checkpoint, "://");
      // They reach the program as one variable, with commas between them.
      if (!whole || checkpoint.size() > kMaxPathBytes || absl::StrContains(checkpoint, ','))
        Emit(from, absl::StrCat("must be absolute paths or URLs without commas, of at most ",
                                kMaxPathBytes, " bytes; got \"", checkpoint.substr(0, 200),
                                "\". Of a job by its number: muster submit --resume-from JOB"));
    }
  }

  const pb::JobSpec& spec_;
  const SpecRules& rules_;
  const SpecContext& context_;
};

}  // namespace

bool IsReservedVariable(std::string_view name) {
  static constexpr std::array kNames = {std::string_view("RANK"),
                                        std::string_view("LOCAL_RANK"),
                                        std::string_view("WORLD_SIZE"),
                                        std::string_view("LOCAL_WORLD_SIZE"),
                                        std::string_view("GROUP_RANK"),
                                        std::string_view("GROUP_WORLD_SIZE"),
                                        std::string_view("ROLE_RANK"),
                                        std::string_view("ROLE_WORLD_SIZE"),
                                        std::string_view("ROLE_NAME"),
                                        std::string_view("MASTER_ADDR"),
                                        std::string_view("MASTER_PORT"),
                                        std::string_view("CUDA_VISIBLE_DEVICES"),
                                        std::string_view("CUDA_DEVICE_ORDER"),
                                        std::string_view("NVIDIA_VISIBLE_DEVICES"),
                                        std::string_view("HIP_VISIBLE_DEVICES"),
                                        std::string_view("ROCR_VISIBLE_DEVICES"),
                                        std::string_view("GPU_DEVICE_ORDINAL")};
  if (std::find(kNames.begin(), kNames.end(), name) != kNames.end()) return true;
  for (std::string_view prefix : {"LD_", "MUSTER_", "TORCHELASTIC_", "CUDA_MPS_"}) {
    if (name.substr(0, prefix.size()) == prefix) return true;
  }
  return false;
}

void CheckJobRules(const pb::JobSpec& spec, const SpecRules& rules) {
  JobChecker(spec, rules).Run();
  CheckMembers(spec, rules);
  CheckRay(spec, rules);
  CheckPredecessors(spec, rules);
  CheckOn(spec, rules);
  CheckSchedule(spec, rules);
  CheckTogether(spec, rules);
  CheckTrackers(spec, rules);
}

bool IsShortForm(const pb::JobSpec& spec) {
  return spec.tasks_size() == 1 && (spec.tasks(0).name().empty() || spec.tasks(0).name() == "main");
}

std::string TaskFieldPath(const pb::JobSpec& spec, int task, std::string_view field) {
  return JoinPath(IsShortForm(spec) ? "" : IndexPath("tasks", static_cast<size_t>(task)), field);
}

std::vector<FieldProblem> CheckSpec(const pb::JobSpec& spec, const SpecContext& context) {
  std::vector<FieldProblem> found;
  SpecRules rules{context};
  rules.emit = [&](const std::string& path, const std::string& message, Document::Where) {
    found.push_back({path, message});
  };
  rules.sound = [](const std::string&) { return true; };
  rules.short_form = IsShortForm(spec);
  CheckJobRules(spec, rules);
  return found;
}

}  // namespace muster
