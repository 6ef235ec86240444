// A task's workers as its file has them: "4", "{min: 2, max: 8, multiple_of: 2}".
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "muster/v1/job.pb.h"

namespace muster {

inline std::string WorkersText(const v1::Workers& workers) {
  if (workers.min() >= workers.max()) return absl::StrCat(workers.min());
  return absl::StrCat(
      "{min: ", workers.min(), ", max: ", workers.max(),
      workers.multiple_of() > 1 ? absl::StrCat(", multiple_of: ", workers.multiple_of()) : "", "}");
}
inline std::string WorkersText(const v1::TaskSpec& task) { return WorkersText(task.workers()); }

}  // namespace muster
