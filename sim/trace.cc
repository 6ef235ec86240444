#include "sim/trace.h"

#include <algorithm>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/units.h"
#include "muster/v1/job.pb.h"
#include "sim/random.h"

namespace muster::sim {
namespace {

// Seconds with decimals to nanoseconds, through ParseDuration, which is exact.
absl::StatusOr<int64_t> ParseSeconds(const std::string& text) {
  if (text.find_first_not_of("0123456789.") != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no number of seconds"));
  }
  return ParseDuration(absl::StrCat(text, "s"));
}

absl::StatusOr<int32_t> ParseCount(const std::string& text, int32_t low, int32_t high) {
  int32_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not a whole number in ", low, "..", high));
  }
  return value;
}

// "4:island;8:host;64:rack"
absl::StatusOr<std::vector<TraceBlock>> ParseBlocks(const std::string& text) {
  static const std::map<std::string, int32_t> kLevels = {
      {"island", v1::ISLAND}, {"host", v1::HOST}, {"rack", v1::RACK}, {"block", v1::BLOCK}};
  std::vector<TraceBlock> blocks;
  for (const absl::string_view one : absl::StrSplit(text, ';', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(one, ':');
    const auto level = words.size() == 2 ? kLevels.find(words[1]) : kLevels.end();
    if (level == kLevels.end())
      return absl::InvalidArgumentError(
          absl::StrCat("\"", one, "\" is no block of ranks, such as 8:host, 64:rack or 512:block"));
    const absl::StatusOr<int32_t> gpus = ParseCount(words[0], 1, 65536);
    if (!gpus.ok()) return gpus.status();
    blocks.push_back({*gpus, level->second});
  }
  return blocks;
}

absl::Status SetColumn(const std::string& column, const std::string& text, TraceJob* job) {
  const auto set = [](auto parsed, auto* field) {
    if (parsed.ok()) *field = *parsed;
    return parsed.status();
  };
  if (column == "submit_s") return set(ParseSeconds(text), &job->submit_ns);
  if (column == "duration_s") return set(ParseSeconds(text), &job->duration_ns);
  if (column == "checkpoint_s") return set(ParseSeconds(text), &job->checkpoint_ns);
  if (column == "workers") return set(ParseCount(text, 1, 65536), &job->workers);
  if (column == "max_workers") return set(ParseCount(text, 1, 65536), &job->max_workers);
  if (column == "multiple_of") return set(ParseCount(text, 1, 65536), &job->multiple_of);
  if (column == "blocks") return set(ParseBlocks(text), &job->blocks);
  if (column == "priority") return set(ParseCount(text, 0, 100), &job->priority);
  if (column == "gpus") return set(ParseMilli(text), &job->gpus_milli);
  if (column == "cpus") return set(ParseMilli(text), &job->cpus_milli);
  if (column == "queue") job->queue = text;
  if (column == "name") job->name = text;
  if (column == "gpu_type") job->gpu_type = text;
  if (column == "clusters") job->clusters = absl::StrSplit(text, ';', absl::SkipEmpty());
  return absl::OkStatus();
}

absl::Status CheckJob(const TraceJob& job) {
  if (job.duration_ns <= 0) return absl::InvalidArgumentError("duration_s must be above 0");
  if (job.max_workers < job.workers) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_workers ", job.max_workers, " is below workers ", job.workers));
  }
  if (job.multiple_of > 1 &&
      (job.workers % job.multiple_of != 0 || job.max_workers % job.multiple_of != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("workers ", job.workers, " and max_workers ", job.max_workers,
                     " must be multiples of multiple_of, ", job.multiple_of));
  }
  if (job.gpus_milli % 1000 != 0 && (job.gpus_milli > 1000 || job.max_workers > 1)) {
    return absl::InvalidArgumentError("a fraction of a GPU needs gpus below 1 and one worker");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Trace> ParseTrace(std::string_view text, const std::string& filename, bool strict) {
  static const std::vector<std::string> kColumns = {
      "submit_s", "duration_s", "queue",    "workers", "max_workers",  "gpus",        "gpu_type",
      "cpus",     "clusters",   "priority", "name",    "checkpoint_s", "multiple_of", "blocks"};
  Trace trace;
  std::vector<std::string> header;
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++line_number;
    line = absl::StripSuffix(line, "\r");
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> cells = absl::StrSplit(line, ',');
    if (header.empty()) {
      header = cells;
      for (const std::string& column : header) {
        if (std::count(header.begin(), header.end(), column) > 1) {
          return absl::InvalidArgumentError(
              absl::StrCat(filename, ":", line_number, ": column ", column, " appears twice"));
        }
        if (std::find(kColumns.begin(), kColumns.end(), column) == kColumns.end()) {
          return absl::InvalidArgumentError(
              absl::StrCat(filename, ":", line_number, ": unknown column \"", column,
                           "\"; there are ", absl::StrJoin(kColumns, ", ")));
        }
      }
      for (const char* required : {"submit_s", "duration_s"}) {
        if (std::find(header.begin(), header.end(), required) == header.end()) {
          return absl::InvalidArgumentError(
              absl::StrCat(filename, ":", line_number, ": the header lacks ", required));
        }
      }
      continue;
    }
    TraceJob job;
    job.name = absl::StrCat("j", line_number);
    job.max_workers = 0;
    absl::Status status = absl::OkStatus();
    if (cells.size() != header.size()) {
      status = absl::InvalidArgumentError(
          absl::StrCat(cells.size(), " cells, the header has ", header.size()));
    }
    for (size_t i = 0; status.ok() && i < cells.size(); ++i) {
      if (cells[i].empty()) continue;
      status = SetColumn(header[i], cells[i], &job);
      if (!status.ok())
        status = absl::InvalidArgumentError(absl::StrCat(header[i], ": ", status.message()));
    }
    if (job.max_workers == 0) job.max_workers = job.workers;
    if (status.ok()) status = CheckJob(job);
    if (!status.ok()) {
      const std::string where = absl::StrCat(filename, ":", line_number, ": ", status.message());
      if (strict) return absl::InvalidArgumentError(where);
      trace.broken.push_back(where);
      continue;
    }
    trace.jobs.push_back(std::move(job));
  }
  if (header.empty())
    return absl::InvalidArgumentError(
        absl::StrCat(filename, ": empty; the first line names the columns"));
  std::stable_sort(trace.jobs.begin(), trace.jobs.end(),
                   [](const TraceJob& a, const TraceJob& b) { return a.submit_ns < b.submit_ns; });
  return trace;
}

Trace RandomTrace(int count, uint64_t seed, const std::vector<std::string>& queues,
                  const std::vector<std::string>& flavours, int max_gpus_per_host) {
  Random random(seed);
  Trace trace;
  int64_t at_ns = 0;
  for (int i = 0; i < count; ++i) {
    TraceJob job;
    at_ns += random.Between(0, 240) * kSecond;
    job.submit_ns = at_ns;
    job.name = absl::StrCat("r", i);
    job.queue = queues[random.Below(queues.size())];
    job.gpu_type = flavours[random.Below(flavours.size())];
    job.duration_ns = random.Between(30, 7200) * kSecond;
    job.priority = random.OneIn(4) ? static_cast<int32_t>(random.Between(1, 100)) : 0;
    job.checkpoint_ns = random.Between(60, 1200) * kSecond;
    if (random.OneIn(8)) {
      job.gpus_milli = random.Between(1, 9) * 100;
    } else {
      job.gpus_milli = 1000 * random.Between(1, max_gpus_per_host);
      job.workers = random.OneIn(3) ? static_cast<int32_t>(random.Between(2, 4)) : 1;
    }
    job.max_workers = job.gpus_milli >= 1000 && random.OneIn(4)
                          ? job.workers + static_cast<int32_t>(random.Between(1, 4))
                          : job.workers;
    trace.jobs.push_back(std::move(job));
  }
  return trace;
}

}  // namespace muster::sim
