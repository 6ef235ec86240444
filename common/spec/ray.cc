#include "common/spec/ray.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace muster {

pb::Run RayLauncher(const pb::TaskSpec& task) {
  pb::Run launcher;
  for (const char* word : {"python3", "-m", "muster_ray"}) launcher.add_exec(word);
  if (task.ray().dashboard()) launcher.add_exec("--dashboard");
  const pb::Resources& resources = task.resources();
  if (resources.cpus_milli() > 0) {
    launcher.add_exec("--cpus");
    launcher.add_exec(absl::StrCat(std::max<int64_t>(1, resources.cpus_milli() / 1000)));
  }
  if (resources.memory_bytes() > 0) {
    launcher.add_exec("--memory-bytes");
    launcher.add_exec(absl::StrCat(resources.memory_bytes()));
  }
  launcher.add_exec("--");
  if (task.run().exec().empty()) {
    for (const char* word : {"bash", "-euo", "pipefail", "-c"}) launcher.add_exec(word);
    launcher.add_exec(task.run().shell());
  } else {
    for (const std::string& word : task.run().exec()) launcher.add_exec(word);
  }
  return launcher;
}

void CheckRay(const pb::JobSpec& spec, const SpecRules& rules) {
  for (int t = 0; t < spec.tasks_size(); ++t) {
    const pb::TaskSpec& task = spec.tasks(t);
    if (!task.has_ray()) continue;
    const std::string path = rules.short_form ? "" : IndexPath("tasks", static_cast<size_t>(t));
    const auto emit = [&](const std::string& at, const std::string& message) {
      rules.emit(at, message, Document::Where::kName);
    };
    if (!spec.has_independent_workers()) {
      emit(JoinPath(path, "ray"),
           "needs independent_workers, whose number is the cluster's, such as "
           "independent_workers: {min: 2, max: 8}");
    }
    if (!task.trainer_json().empty())
      emit(JoinPath(path, "ray"), "goes with run, the program on the head; leave trainer out");
    if (task.processes_per_worker() > 1)
      emit(JoinPath(path, "processes_per_worker"),
           "is 1 with ray, whose node has all that the worker has; leave it out");
    if (spec.clusters_size() > 1)
      emit("clusters", "with ray name one: its workers share a directory, which is a cluster's");
  }
}

}  // namespace muster
