#include "common/spec/together.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/view.h"

namespace muster {
namespace {

// By task: the first of those that it starts together with.
std::vector<int> FirstOfEach(const pb::JobSpec& spec) {
  std::vector<int> first(static_cast<size_t>(spec.tasks_size()));
  std::iota(first.begin(), first.end(), 0);
  std::map<std::string, int> at;
  for (int t = 0; t < spec.tasks_size(); ++t) at.emplace(spec.tasks(t).name(), t);
  for (int t = 0; t < spec.tasks_size(); ++t) {
    for (const std::string& name : spec.tasks(t).with()) {
      const auto other = at.find(name);
      if (other == at.end()) continue;
      const int a = first[t], b = first[other->second];
      std::replace(first.begin(), first.end(), std::max(a, b), std::min(a, b));
    }
  }
  return first;
}

}  // namespace

std::vector<int> TogetherWith(const pb::JobSpec& spec, int task) {
  const std::vector<int> first = FirstOfEach(spec);
  std::vector<int> tasks;
  for (int t = 0; t < spec.tasks_size(); ++t) {
    if (first[t] == first[task]) tasks.push_back(t);
  }
  return tasks;
}

void JoinTasks(pb::JobSpec* spec) {
  const std::vector<int> first = FirstOfEach(*spec);
  for (int f = 0; f < spec->tasks_size(); ++f) {
    std::vector<int> tasks;
    std::set<std::string> after;
    for (int t = f; t < spec->tasks_size(); ++t) {
      if (first[t] != f) continue;
      tasks.push_back(t);
      after.insert(spec->tasks(t).after().begin(), spec->tasks(t).after().end());
    }
    if (tasks.size() < 2) continue;
    for (const int t : tasks) {
      pb::TaskSpec* task = spec->mutable_tasks(t);
      task->clear_with();
      for (const int other : tasks) {
        if (other != t) task->add_with(spec->tasks(other).name());
      }
      task->mutable_after()->Assign(after.begin(), after.end());
    }
  }
}

std::string AddressVariable(std::string_view task) {
  std::string name = absl::AsciiStrToUpper(View(task));
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return absl::StrCat("MUSTER_TASK_", name, "_ADDRESS");
}

}  // namespace muster
