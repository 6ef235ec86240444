// What programs write to the progress socket: the one reader of it. The shim reads what it has to
// do with a line, the agent what to tell of it. No protobuf, as the shim has none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::agent {

// Unknown keys are ignored, as they may come from a newer trainer. What the scheduler would refuse
// is shortened or missing (scheduler/agents/check_message.cc).
struct ProgressLine {
  struct Metrics {
    int64_t step = 0, total_steps = 0;
    double loss = 0, tokens_per_s = 0, mfu_causal = 0, mfu_full = 0, grad_norm = 0, rows_per_s = 0;
    int64_t bad_rows = 0;
  };
  struct Checkpoint {
    std::string path;
    int64_t step = 0, size_bytes = 0;
    int64_t loaded_step = -1;
    std::string loaded_path;
  };
  struct Loaded {
    int64_t step = -1;
    std::string path;
    std::vector<std::string> refused;  // "path: why"
  };
  struct Export {
    std::string staged, target;
  };

  std::optional<Metrics> metrics;  // a line with "step"
  std::optional<Checkpoint> checkpoint;
  std::optional<Loaded> loaded;
  std::optional<Export> exported;
  int32_t rank = 0;             // -1: what is said is none
  double own_time_s = 0;        // of `rank`; 0: it isn't told
  bool own_time_alone = false;  // besides rank and step nothing else is told
};

// nullopt: not a JSON object. Keys with a wrong type count as missing, as do NaN, Infinity and
// numbers that no double holds.
std::optional<ProgressLine> ParseProgressLine(std::string_view json);

}  // namespace muster::agent
