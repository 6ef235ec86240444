// What programs tell of a process's time, for `muster profile`: stacks of py-spy as text, and
// traces of several processes as one that Perfetto shows.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster {

// Between two documents of one output (ASCII's record separator, which JSON never has).
inline constexpr char kBetweenDocuments = '\x1e';
std::vector<std::string> SplitDocuments(const std::string& output);

// `dump` is what `py-spy dump --json` says of one process: its threads, the main one first, each
// with its frames, the innermost first. An error if it is something else.
absl::StatusOr<std::string> RenderStacks(const std::string& dump);

struct RankTrace {
  int rank = 0;
  std::string json;  // in Chrome's format: an array of events, or an object with `traceEvents`
};

// One trace in which each process has a number of its own and a name that begins with its rank.
// Times are as they are told, from the earliest `baseTimeNanoseconds` where traces have one.
absl::StatusOr<std::string> MergeTraces(const std::vector<RankTrace>& traces);

}  // namespace muster
