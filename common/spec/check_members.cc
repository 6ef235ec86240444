#include "common/spec/check_members.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/view.h"
#include "common/spec/check_trainer.h"
#include "common/spec/members.h"

namespace muster {
namespace {

constexpr int kMaxNames = 16;
constexpr size_t kMaxValueBytes = 4'096;

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= 63 && !(name[0] >= '0' && name[0] <= '9') &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return c == '_' || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                  (c >= '0' && c <= '9');
         });
}

bool IsTrainerKey(std::string_view name) {
  if (!SetsTrainer(name)) return false;
  const std::vector<absl::string_view> keys =
      absl::StrSplit(View(name.substr(name.find('.') + 1)), '.');
  return keys.size() <= 8 && std::all_of(keys.begin(), keys.end(), [](absl::string_view key) {
           return IsName({key.data(), key.size()});
         });
}

class MembersChecker {
 public:
  MembersChecker(const pb::JobSpec& spec, const SpecRules& rules) : spec_(spec), rules_(rules) {}

  void Run() {
    const bool array = !spec_.array().empty(), sweep = !spec_.sweep().empty(),
               workers = spec_.has_independent_workers();
    if (array + sweep + workers > 1) {
      return Emit(workers ? "independent_workers" : "sweep",
                  "array, sweep and independent_workers exclude each other: each says what the "
                  "members are; keep one");
    }
    if (array) CheckArray();
    if (sweep) CheckSweep();
    if (workers) CheckWorkers();
  }

 private:
  void Emit(const std::string& path, const std::string& message) {
    rules_.emit(path, message, Document::Where::kValue);
  }

  void CheckArray() {
    std::string why;
    if (!ParseArray(spec_.array(), &why).has_value()) Emit("array", why);
  }

  void CheckSweep() {
    if (spec_.sweep_size() > kMaxNames)
      return Emit("sweep", absl::StrCat(spec_.sweep_size(), " names; at most ", kMaxNames));
    std::set<std::string> names;
    bool sound = true;
    for (const pb::SweepValues& values : spec_.sweep()) {
      const std::string path = JoinPath("sweep", values.name());
      if (values.name() == "index") {
        Emit(path, "is what {{index}} stands for; take another name");
      } else if (!IsName(values.name()) && !IsTrainerKey(values.name())) {
        Emit(path,
             "is no name: letters, digits and '_', not starting with a digit; or "
             "trainer.KEY for a key of trainer");
      } else if (!names.insert(values.name()).second) {
        Emit(path, "is there twice");
      } else if (CheckValues(values, path)) {
        CheckTrainerValues(values, path);
        continue;
      }
      sound = false;
    }
    if (sound && MembersOf(spec_) > kMaxMembers) {
      Emit("sweep", absl::StrCat("more than ", kMaxMembers,
                                 " combinations; try fewer values, or submit it in parts"));
    }
  }

  bool CheckValues(const pb::SweepValues& values, const std::string& path) {
    if (values.values().empty()) {
      Emit(path, "has no values; write them as a list, such as [1e-4, 3e-4]");
      return false;
    }
    if (values.values_size() > kMaxMembers) {
      Emit(path, absl::StrCat(values.values_size(), " values; at most ", kMaxMembers));
      return false;
    }
    std::set<std::string> seen;
    for (int i = 0; i < values.values_size(); ++i) {
      const std::string& value = values.values(i);
      const std::string at = IndexPath(path, static_cast<size_t>(i));
      if (value.size() > kMaxValueBytes || value.find('\0') != std::string::npos) {
        Emit(at, absl::StrCat("longer than ", kMaxValueBytes, " characters, or with a NUL in it"));
        return false;
      }
      if (!seen.insert(value).second) {
        Emit(at, absl::StrCat("\"", value.substr(0, 60), "\" is there twice"));
        return false;
      }
    }
    return true;
  }

  // Each value alone, in the trainer's configuration as the job has it.
  void CheckTrainerValues(const pb::SweepValues& values, const std::string& path) {
    if (!SetsTrainer(values.name())) return;
    bool any = false;
    for (const pb::TaskSpec& task : spec_.tasks()) {
      if (task.trainer_json().empty()) continue;
      any = true;
      const std::set<std::string> before = TrainerProblems(task, task.trainer_json());
      for (int i = 0; i < values.values_size(); ++i) {
        const std::string at = IndexPath(path, static_cast<size_t>(i));
        std::string with = task.trainer_json();
        if (!SetTrainerKey(values.name(), values.values(i), &with))
          return Emit(at, "names a key below one that is no map");
        for (const std::string& problem : TrainerProblems(task, with)) {
          if (before.count(problem) > 0) continue;
          Emit(at, problem);
          return;
        }
      }
    }
    if (!any) Emit(path, "sets a key of trainer, and no task has one; add trainer:");
  }

  std::set<std::string> TrainerProblems(const pb::TaskSpec& task, const std::string& json) const {
    std::set<std::string> problems;
    const EmitProblem emit = [&](const std::string& path, const std::string& message,
                                 Document::Where) {
      problems.insert(absl::StrCat(path, ": ", message));
    };
    const nlohmann::json value = ParseBoundedJson(json, kMaxYamlBytes);
    const nlohmann::json schema =
        ParseBoundedJson(rules_.context.trainer_schema_json, size_t{1} << 20);
    CheckTrainerLayout(value, task, "trainer", emit);
    if (schema.is_object()) CheckAgainstSchema(value, schema, "trainer", emit);
    CheckTrainerPaths(value, "trainer", emit);
    return problems;
  }

  void CheckWorkers() {
    const pb::Workers& workers = spec_.independent_workers();
    if (workers.min() < 1 || workers.max() < workers.min() || workers.max() > kMaxMembers) {
      Emit("independent_workers",
           absl::StrCat("must be a number from 1 to ", kMaxMembers,
                        ", or {min: 1, max: 16} with min no larger than max; got {min: ",
                        workers.min(), ", max: ", workers.max(), "}"));
    }
    if (spec_.tasks_size() > 1) {
      return Emit("independent_workers",
                  "goes with one task; make a job of its own of the task that has them");
    }
    if (spec_.tasks_size() == 1 && spec_.tasks(0).workers().max() > 1) {
      Emit("independent_workers", "stands in place of workers; leave workers out");
    }
    if (spec_.tasks_size() == 1 && !spec_.tasks(0).trainer_json().empty()) {
      Emit("independent_workers",
           "goes with run; a trainer's ranks work together: give it workers, or a sweep");
    }
  }

  const pb::JobSpec& spec_;
  const SpecRules& rules_;
};

}  // namespace

void CheckMembers(const pb::JobSpec& spec, const SpecRules& rules) {
  MembersChecker(spec, rules).Run();
}

}  // namespace muster
