// Job files of other schedulers: what they say, in a job file's fields. A start, not a converter.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace muster {

struct Foreign {
  std::string what;       // "a Slurm batch script"; empty: it looks like no other scheduler's
  std::string text;       // the job file that says as much, with what it leaves out
  bool replaces = false;  // it is no YAML, so what YAML finds wrong with it means nothing
};

Foreign TranslateForeign(absl::string_view file);

}  // namespace muster
