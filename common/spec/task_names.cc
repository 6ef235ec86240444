#include "common/spec/task_names.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/view.h"

namespace muster {
namespace {

constexpr int kMostNames = 20;

}  // namespace

std::string NoSuchTask(std::string_view job, const pb::JobSpec& spec, std::string_view name) {
  const int told = std::min(spec.tasks_size(), kMostNames);
  const std::string names =
      absl::StrJoin(spec.tasks().begin(), spec.tasks().begin() + told, ", ",
                    [](std::string* out, const pb::TaskSpec& task) { *out += task.name(); });
  const int left = spec.tasks_size() - told;
  return absl::StrCat(View(job), " has no task ", View(name), "; it has ", names,
                      left > 0 ? absl::StrCat(" and ", left, " more") : "");
}

}  // namespace muster
