#include "common/spec/check_members.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/view.h"
#include "common/spec/check_trainer.h"
#include "common/spec/member_names.h"
#include "common/spec/members.h"
#include "common/spec/placement_defaults.h"

namespace muster {
namespace {

constexpr int kMaxNames = 16;
constexpr size_t kMaxValueBytes = 4'096;

bool IsTrainerKey(std::string_view name) {
  if (!SetsTrainer(name)) return false;
  const std::vector<absl::string_view> keys =
      absl::StrSplit(View(name.substr(name.find('.') + 1)), '.');
  return keys.size() <= 8 && std::all_of(keys.begin(), keys.end(), [](absl::string_view key) {
           return IsPlainName({key.data(), key.size()});
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
    if (!sound_ || !(array || sweep || workers)) return;
    CheckBytes();
    CheckPlaceholders();
    if (sound_ && sweep) CheckTrainerValues();
    if (sound_ && !workers) CheckExports();
    if (sound_ && sweep) CheckTaken();
  }

 private:
  void Emit(const std::string& path, const std::string& message) {
    sound_ = false;
    rules_.emit(path, message, Document::Where::kValue);
  }

  void CheckBytes() {
    const int64_t all = static_cast<int64_t>(spec_.ByteSizeLong()) * MembersOf(spec_);
    if (all <= kMaxMembersBytes) return;
    Emit(spec_.array().empty() ? spec_.sweep().empty() ? "independent_workers" : "sweep" : "array",
         absl::StrCat(MembersOf(spec_), " members of a job of ", spec_.ByteSizeLong(),
                      " bytes; together at most ", kMaxMembersBytes >> 20,
                      " MiB: put scripts and long lists into files, or submit it in parts"));
  }

  // {{lR}}, {{ lr }} and {{indx}} would stay as they stand in what runs. Braces that look like no
  // name of the job's are another program's.
  void CheckPlaceholders() {
    std::vector<std::string> names = {"index"};
    for (const pb::SweepValues& values : spec_.sweep()) names.push_back(values.name());
    std::string told;  // one a field
    for (const Placeholder& of : PlaceholdersOf(spec_, rules_.short_form)) {
      if (of.path == told || std::find(names.begin(), names.end(), of.inner) != names.end())
        continue;
      const std::string wrong = WrongPlaceholder(of.inner, names);
      if (wrong.empty()) continue;
      told = of.path;
      Emit(of.path, wrong);
    }
  }

  // A name that has no effect. Programs may read its variable; the trainer reads none.
  void CheckTaken() {
    const bool trainers_alone =
        spec_.tasks_size() > 0 &&
        std::all_of(spec_.tasks().begin(), spec_.tasks().end(), [](const pb::TaskSpec& task) {
          return !task.trainer_json().empty() && task.setup().empty();
        });
    for (const std::string& name : UntakenNames(spec_)) {
      std::string why = WhyUntaken(name, spec_);
      if (why.empty() && trainers_alone)
        why = absl::StrCat("nothing takes it: no {{", name,
                           "}} stands in env or trainer.export, and the trainer reads no ",
                           SweepVariable(name),
                           ". A key of trainer is trainer.KEY; members that are the same are an "
                           "array: 0-9.",
                           DidYouMean(absl::StrCat("trainer.", name), TrainerKeys()));
      if (!why.empty()) Emit(JoinPath("sweep", name), why);
    }
  }

  // "trainer.learning_rate": those that its schema has at the top.
  std::vector<std::string> TrainerKeys() const {
    std::vector<std::string> keys;
    const nlohmann::json schema =
        ParseBoundedJson(rules_.context.trainer_schema_json, size_t{1} << 20);
    if (!schema.is_object() || !schema.contains("properties")) return keys;
    for (const auto& [key, of] : schema["properties"].items())
      keys.push_back(absl::StrCat("trainer.", key));
    return keys;
  }

  void CheckArray() {
    std::string why;
    if (!ParseArray(spec_.array(), &why).has_value()) Emit("array", why);
  }

  void CheckSweep() {
    if (spec_.sweep_size() > kMaxNames)
      return Emit("sweep", absl::StrCat(spec_.sweep_size(), " names; at most ", kMaxNames));
    std::map<std::string, std::string> variables;  // and the name that each is of
    for (const pb::SweepValues& values : spec_.sweep()) {
      const std::string& name = values.name();
      const std::string path = JoinPath("sweep", name);
      const auto other = variables.emplace(SweepVariable(name), name);
      if (name == "index") {
        Emit(path, "is what {{index}} stands for; take another name");
      } else if (!IsPlainName(name) && !IsTrainerKey(name)) {
        Emit(path,
             "is no name: letters, digits and '_', not starting with a digit; or "
             "trainer.KEY for a key of trainer");
      } else if (!other.second) {
        Emit(path, other.first->second == name
                       ? "is there twice"
                       : absl::StrCat("has the variable ", other.first->first, ", as ",
                                      other.first->second, " has; keep one"));
      } else {
        CheckValues(values, path);
        CheckNested(name, path);
      }
    }
    if (sound_ && MembersOf(spec_) > kMaxMembers) {
      Emit("sweep", absl::StrCat("more than ", kMaxMembers,
                                 " combinations; try fewer values, or submit it in parts"));
    }
  }

  // trainer.model beside trainer.model.layers: the one would replace what the other sets.
  void CheckNested(const std::string& name, const std::string& path) {
    for (const pb::SweepValues& other : spec_.sweep()) {
      if (absl::StartsWith(name, absl::StrCat(other.name(), ".")))
        Emit(path,
             absl::StrCat("is a key below ", other.name(), ", which is swept, too; keep one"));
    }
  }

  void CheckValues(const pb::SweepValues& values, const std::string& path) {
    if (values.values().empty())
      return Emit(path, "has no values; write them as a list, such as [1e-4, 3e-4]");
    if (values.values_size() > kMaxMembers)
      return Emit(path, absl::StrCat(values.values_size(), " values; at most ", kMaxMembers));
    std::set<std::string> seen;
    for (int i = 0; i < values.values_size(); ++i) {
      const std::string& value = values.values(i);
      const std::string at = IndexPath(path, static_cast<size_t>(i));
      if (value.size() > kMaxValueBytes || value.find('\0') != std::string::npos)
        return Emit(
            at, absl::StrCat("longer than ", kMaxValueBytes, " characters, or with a NUL in it"));
      if (!seen.insert(value).second)
        return Emit(at, absl::StrCat("\"", value.substr(0, 60), "\" is there twice"));
    }
  }

  // Each value alone, in the trainer's configuration as the job has it.
  void CheckTrainerValues() {
    const nlohmann::json schema =
        ParseBoundedJson(rules_.context.trainer_schema_json, size_t{1} << 20);
    for (const pb::SweepValues& values : spec_.sweep()) {
      if (SetsTrainer(values.name()))
        CheckTrainerValues(values, schema, JoinPath("sweep", values.name()));
    }
  }

  void CheckTrainerValues(const pb::SweepValues& values, const nlohmann::json& schema,
                          const std::string& path) {
    bool any = false;
    for (pb::TaskSpec task : spec_.tasks()) {
      if (task.trainer_json().empty()) continue;
      any = true;
      FillPlacement(spec_, &task);  // by that it will grow
      const std::set<std::string> before = TrainerProblems(task, schema, task.trainer_json());
      for (int i = 0; i < values.values_size(); ++i) {
        const std::string at = IndexPath(path, static_cast<size_t>(i));
        std::string with = task.trainer_json();
        if (!SetTrainerKey(values.name(), values.values(i), &with))
          return Emit(at, "names a key below one that is no map");
        for (const std::string& problem : TrainerProblems(task, schema, with)) {
          if (before.count(problem) == 0) return Emit(at, problem);
        }
      }
    }
    if (!any) Emit(path, "sets a key of trainer, and no task has one; add trainer:");
  }

  std::set<std::string> TrainerProblems(const pb::TaskSpec& task, const nlohmann::json& schema,
                                        const std::string& json) const {
    std::set<std::string> problems;
    const EmitProblem emit = [&](const std::string& path, const std::string& message,
                                 Document::Where) {
      problems.insert(absl::StrCat(path, ": ", message));
    };
    const nlohmann::json value = ParseBoundedJson(json, kMaxYamlBytes);
    CheckTrainerLayout(value, task, "trainer", emit);
    if (schema.is_object()) CheckAgainstSchema(value, schema, "trainer", emit);
    CheckTrainerPaths(value, "trainer", emit);
    return problems;
  }

  // Members that export to one place would replace one another's models.
  void CheckExports() {
    if (MembersOf(spec_) < 2) return;
    for (int t = 0; t < spec_.tasks_size(); ++t) {
      std::map<std::string, int32_t> members;
      const std::string given = ExportOf(spec_.tasks(t));
      const bool swept =
          std::any_of(spec_.sweep().begin(), spec_.sweep().end(),
                      [](const pb::SweepValues& of) { return of.name() == "trainer.export"; });
      if (!swept && (given.empty() || given[0] != '/')) continue;  // below the member's directory
      if (!swept && absl::StrContains(given, "{{index}}")) continue;
      for (int32_t m = 0; m < MembersOf(spec_); ++m) {
        const std::string target = ExportOf(TaskOfMember(spec_, t, m));
        if (target.empty() || target[0] != '/' || members.emplace(target, m).second) continue;
        const std::string task =
            rules_.short_form ? "" : IndexPath("tasks", static_cast<size_t>(t));
        return Emit(JoinPath(JoinPath(task, "trainer"), "export"),
                    absl::StrCat("members ", members[target], " and ", m, " would both export to ",
                                 target, "; add {{index}}, such as ", given, "/{{index}}"));
      }
    }
  }

  void CheckWorkers() {
    const pb::Workers& workers = spec_.independent_workers();
    if (workers.min() < 1 || workers.max() < workers.min() || workers.max() > kMaxMembers) {
      Emit("independent_workers",
           absl::StrCat("must be a number from 1 to ", kMaxMembers,
                        ", or {min: 1, max: 16} with min no larger than max; got {min: ",
                        workers.min(), ", max: ", workers.max(), "}"));
    }
    if (workers.multiple_of() != 0) {
      Emit("independent_workers.multiple_of",
           "goes with workers: independent workers come and go one at a time; leave it out");
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
  bool sound_ = true;  // nothing was found so far
};

}  // namespace

void CheckMembers(const pb::JobSpec& spec, const SpecRules& rules) {
  MembersChecker(spec, rules).Run();
}

}  // namespace muster
