// What is checked of a task's `image`.
#pragma once

#include <string>

#include "muster/v1/job.pb.h"

namespace muster {

// Empty: it may be one, or the task has none.
inline std::string WhyNoImage(const v1::TaskSpec& task) {
  constexpr size_t kMostBytes = 4'096;
  const std::string& image = task.image();
  if (image.empty()) return "";
  if (image.size() > kMostBytes) return "longer than 4096 characters";
  if (image.find('\0') != std::string::npos) return "may not hold a NUL character";
  if (image[0] != '/') {
    return "must be the absolute path of a directory that the hosts see, such as "
           "/data/images/pytorch; how to make one of what a registry has: docs/programs.md";
  }
  if (!task.trainer_json().empty())
    return "goes with run: muster-trainer runs with what its hosts have. Leave it out";
  return "";
}

}  // namespace muster
