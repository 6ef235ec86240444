#include "common/spec/check_together.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/view.h"
#include "common/spec/together.h"

namespace muster {
namespace {

class TogetherChecker {
 public:
  TogetherChecker(const pb::JobSpec& spec, const SpecRules& rules) : spec_(spec), rules_(rules) {}

  void Run() {
    for (int t = 0; t < spec_.tasks_size(); ++t) {
      if (!rules_.sound(TaskPath(t))) return;
      at_.emplace(spec_.tasks(t).name(), t);
      names_.push_back(spec_.tasks(t).name());
    }
    for (int t = 0; t < spec_.tasks_size(); ++t) {
      CheckNames(t, spec_.tasks(t).with(), "with");
      CheckNames(t, spec_.tasks(t).until(), "until");
    }
    if (!sound_) return;
    joined_ = spec_;
    JoinTasks(&joined_);
    for (int t = 0; t < spec_.tasks_size(); ++t) {
      const std::vector<int> together = TogetherWith(spec_, t);
      CheckUntil(t, together);
      if (together.size() > 1 && together[0] == t) CheckGroup(together);
    }
  }

 private:
  void Emit(const std::string& path, const std::string& message) {
    sound_ = false;
    rules_.emit(path, message, Document::Where::kValue);
  }
  std::string TaskPath(int t) const {
    return rules_.short_form ? "" : IndexPath("tasks", static_cast<size_t>(t));
  }
  std::string At(int t, std::string_view field) const { return JoinPath(TaskPath(t), field); }

  template <typename Names>
  void CheckNames(int t, const Names& names, std::string_view field) {
    std::set<std::string> seen;
    for (int k = 0; k < names.size(); ++k) {
      const std::string at = IndexPath(At(t, field), static_cast<size_t>(k));
      const std::string shown = absl::StrCat("\"", View(names[k].substr(0, 60)), "\"");
      if (names[k] == spec_.tasks(t).name()) {
        Emit(at, "names the task itself; name the others");
      } else if (at_.count(names[k]) == 0) {
        Emit(at, absl::StrCat("no task ", shown, " in this job.", DidYouMean(names[k], names_)));
      } else if (!seen.insert(names[k]).second) {
        Emit(at, absl::StrCat(shown, " is listed twice"));
      }
    }
  }

  void CheckUntil(int t, const std::vector<int>& together) {
    const pb::TaskSpec& task = spec_.tasks(t);
    for (int k = 0; k < task.until_size(); ++k) {
      if (std::find(together.begin(), together.end(), at_[task.until(k)]) == together.end()) {
        Emit(IndexPath(At(t, "until"), static_cast<size_t>(k)),
             absl::StrCat("\"", View(task.until(k)),
                          "\" isn't a task that this one starts together with; add it to with"));
      }
    }
    if (task.until_size() > 0 && !task.trainer_json().empty())
      Emit(At(t, "until"), "goes with run: a trainer ends by itself. Leave it out");
  }

  // Tasks that come before this one, however far.
  std::set<int> Before(const pb::JobSpec& spec, int task) const {
    std::set<int> before;
    std::vector<int> left = {task};
    while (!left.empty()) {
      const int t = left.back();
      left.pop_back();
      for (const std::string& name : spec.tasks(t).after()) {
        const auto other = at_.find(name);
        if (other != at_.end() && before.insert(other->second).second)
          left.push_back(other->second);
      }
    }
    return before;
  }

  void CheckGroup(const std::vector<int>& tasks) {
    if (tasks.size() > kMostTogether) {
      return Emit(At(tasks[0], "with"), absl::StrCat(tasks.size(),
                                                     " tasks that start together; at "
                                                     "most ",
                                                     kMostTogether));
    }
    std::map<std::string, int> variables;
    int with_gpus = -1;
    // As each says itself; then with what those before it start together with.
    for (const pb::JobSpec* spec : {&spec_, &std::as_const(joined_)}) {
      for (const int t : tasks) {
        const std::set<int> before = Before(*spec, t);
        const auto other = std::find_if(tasks.begin(), tasks.end(),
                                        [&](int o) { return o != t && before.count(o) > 0; });
        if (other == tasks.end()) continue;
        return Emit(At(t, "after"),
                    absl::StrCat("it is to start together with ", spec_.tasks(*other).name(),
                                 " and to come after it; take it out of with or of after"));
      }
    }
    for (const int t : tasks) {
      const pb::TaskSpec& task = spec_.tasks(t);
      if (task.has_workers() && task.workers().min() != task.workers().max()) {
        Emit(At(t, "workers"),
             absl::StrCat("tasks that start together have a fixed size; write workers: ",
                          task.workers().min()));
      }
      const auto [same, fresh] = variables.emplace(AddressVariable(task.name()), t);
      if (!fresh) {
        Emit(At(t, "name"), absl::StrCat("its address would be in the variable of ",
                                         spec_.tasks(same->second).name(), ", ", same->first,
                                         "; give it another name"));
      }
      if (task.resources().gpus_milli() == 0) continue;
      if (with_gpus < 0) with_gpus = t;
      CheckTypes(t, with_gpus);
    }
  }

  void CheckTypes(int t, int first) {
    const auto& types = spec_.tasks(t).resources().gpu_types();
    const auto& wanted = spec_.tasks(first).resources().gpu_types();
    if (std::equal(types.begin(), types.end(), wanted.begin(), wanted.end())) return;
    Emit(At(t, "resources.gpu_types"),
         absl::StrCat("tasks that start together take one type of GPU; write what ",
                      spec_.tasks(first).name(), " has: [", absl::StrJoin(wanted, ", "), "]"));
  }

  const pb::JobSpec& spec_;
  const SpecRules& rules_;
  std::map<std::string, int> at_;
  std::vector<std::string> names_;
  pb::JobSpec joined_;
  bool sound_ = true;  // nothing was found so far
};

}  // namespace

void CheckTogether(const pb::JobSpec& spec, const SpecRules& rules) {
  const bool any = std::any_of(
      spec.tasks().begin(), spec.tasks().end(),
      [](const pb::TaskSpec& task) { return task.with_size() > 0 || task.until_size() > 0; });
  if (any && spec.tasks_size() <= kMostTasks) TogetherChecker(spec, rules).Run();
}

}  // namespace muster
