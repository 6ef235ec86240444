// The rules of a job, once for files and for protos.
#pragma once

#include <functional>
#include <string>

#include "common/spec/spec.h"
#include "common/spec/trainer_schema.h"

namespace muster {

struct SpecRules {
  const SpecContext& context;
  bool short_form = false;  // the one task's fields are at the top of the file
  EmitProblem emit;
  // False: a field of this map could not be read, so rules that compare its fields or miss one say
  // nothing.
  std::function<bool(const std::string& map_path)> sound;
};
void CheckJobRules(const pb::JobSpec& spec, const SpecRules& rules);

inline constexpr int32_t kMaxWorkers = 65'536;
inline constexpr int32_t kMaxProcessesPerWorker = 1'024;
inline constexpr int32_t kMaxExitCode = 255;

}  // namespace muster
