#include "sim/readers.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/files.h"
#include "common/base/units.h"
#include "sim/peers/shockwave.h"

namespace muster::sim {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 30;
constexpr int64_t kMaxSeconds = 10 * 365 * int64_t{86'400};
constexpr int kGpusOfAHost = 8;

using Cells = std::vector<absl::string_view>;
using ParseLine = std::function<absl::StatusOr<TraceJob>(const Cells&)>;

absl::StatusOr<int64_t> Whole(absl::string_view text, absl::string_view column, int64_t low,
                              int64_t high) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
    return absl::InvalidArgumentError(
        absl::StrCat(column, ": \"", text, "\" is not a whole number in ", low, "..", high));
  }
  return value;
}

// Seconds, decimals allowed.
absl::StatusOr<int64_t> Seconds(absl::string_view text, absl::string_view column) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value) || !(value >= 0) || value > kMaxSeconds) {
    return absl::InvalidArgumentError(
        absl::StrCat(column, ": \"", text, "\" is no number of seconds up to ten years"));
  }
  return std::llround(value * 1000) * kMillisecond;
}

// Lines after the first `skip`, in cells; broken ones named.
absl::StatusOr<Trace> ReadLines(std::string_view text, const std::string& path, bool strict,
                                char separator, size_t cells, int skip, const ParseLine& parse) {
  Trace trace;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    line = absl::StripSuffix(line, "\r");
    if (number <= skip || line.empty()) continue;
    const Cells split = absl::StrSplit(line, separator);
    absl::StatusOr<TraceJob> job =
        split.size() == cells
            ? parse(split)
            : absl::InvalidArgumentError(absl::StrCat(split.size(), " cells instead of ", cells));
    if (job.ok()) {
      if (job->name.empty()) job->name = absl::StrCat("j", number);
      job->max_workers = job->workers;
      trace.jobs.push_back(*std::move(job));
      continue;
    }
    const std::string where = absl::StrCat(path, ":", number, ": ", job.status().message());
    if (strict) return absl::InvalidArgumentError(where);
    trace.broken.push_back(where);
  }
  std::stable_sort(trace.jobs.begin(), trace.jobs.end(),
                   [](const TraceJob& a, const TraceJob& b) { return a.submit_ns < b.submit_ns; });
  return trace;
}

// The largest workers, of at most 8 GPUs, that divide the number.
void SplitGang(int64_t gpus, TraceJob* job) {
  int64_t each = std::min<int64_t>(gpus, kGpusOfAHost);
  while (gpus % each != 0) --each;
  job->gpus_milli = each * 1000;
  job->workers = static_cast<int32_t>(gpus / each);
}

#define ASSIGN_OR_RETURN(variable, expression) \
  const auto variable = (expression);          \
  if (!variable.ok()) return variable.status()

absl::StatusOr<TraceJob> PhillyJob(const Cells& cells) {
  TraceJob job;
  ASSIGN_OR_RETURN(submit_ns, Seconds(cells[2], "submit_s"));
  ASSIGN_OR_RETURN(gpus, Whole(cells[3], "gpus", 1, 65'536));
  ASSIGN_OR_RETURN(duration_ns, Seconds(cells[4], "duration_s"));
  if (*duration_ns == 0) return absl::InvalidArgumentError("duration_s: must be above 0");
  if (cells[1].empty()) return absl::InvalidArgumentError("cluster: is empty");
  job.name = std::string(cells[0]);
  job.queue = std::string(cells[1]);
  job.clusters = {job.queue};
  job.submit_ns = *submit_ns;
  job.duration_ns = *duration_ns;
  job.checkpoint_ns = 0;
  SplitGang(*gpus, &job);
  return job;
}

absl::StatusOr<TraceJob> ShockwaveJob(const Cells& cells,
                                      const std::optional<Throughputs>& throughputs) {
  static const std::map<absl::string_view, Adaptation> kModes = {
      {"static", Adaptation::kStatic},
      {"accordion", Adaptation::kAccordion},
      {"gns", Adaptation::kGns}};
  TraceJob job;
  char model[64];
  int batch_size = 0;
  if (std::sscanf(std::string(cells[0]).c_str(), "%63[^ (] (batch size %d)", model, &batch_size) !=
      2) {
    return absl::InvalidArgumentError(
        absl::StrCat("model: \"", cells[0], "\" is no `NAME (batch size N)`"));
  }
  ASSIGN_OR_RETURN(steps, Whole(cells[5], "steps", 1, int64_t{1} << 40));
  ASSIGN_OR_RETURN(gpus, Whole(cells[6], "GPUs", 1, 1024));
  ASSIGN_OR_RETURN(duration_ns, Seconds(cells[10], "duration"));
  ASSIGN_OR_RETURN(submit_ns, Seconds(cells[11], "arrival"));
  const auto mode = kModes.find(cells[7]);
  if (mode == kModes.end())
    return absl::InvalidArgumentError(
        absl::StrCat("mode: \"", cells[7], "\" is not static, accordion or gns"));
  job.submit_ns = *submit_ns;
  job.duration_ns = *duration_ns;
  if (throughputs.has_value()) {
    ASSIGN_OR_RETURN(seconds, AdaptedSeconds(*throughputs, mode->second, model, batch_size,
                                             static_cast<int>(*gpus), *steps));
    job.duration_ns = static_cast<int64_t>(*seconds * 1000) * kMillisecond;
  }
  if (job.duration_ns <= 0) return absl::InvalidArgumentError("duration: must be above 0");
  job.checkpoint_ns = 0;
  job.gpus_milli = 1000;
  job.workers = static_cast<int32_t>(*gpus);
  return job;
}

absl::StatusOr<TraceJob> OpenbPod(const Cells& cells) {
  TraceJob job;
  ASSIGN_OR_RETURN(cpus_milli, Whole(cells[1], "cpu_milli", 0, int64_t{1} << 30));
  ASSIGN_OR_RETURN(memory_mib, Whole(cells[2], "memory_mib", 0, int64_t{1} << 30));
  ASSIGN_OR_RETURN(gpus, Whole(cells[3], "num_gpu", 0, 64));
  ASSIGN_OR_RETURN(gpu_milli, Whole(cells[4], "gpu_milli", 0, 1000));
  ASSIGN_OR_RETURN(created_ns, Seconds(cells[8], "creation_time"));
  ASSIGN_OR_RETURN(deleted_ns, Seconds(cells[9], "deletion_time"));
  if (*deleted_ns <= *created_ns)
    return absl::InvalidArgumentError("deletion_time: not after creation_time");
  if (*gpus > 1 && *gpu_milli != 1000)
    return absl::InvalidArgumentError("gpu_milli: several GPUs are whole ones: 1000");
  job.name = std::string(cells[0]);
  job.cpus_milli = *cpus_milli;
  job.memory_bytes = *memory_mib << 20;
  job.gpus_milli = *gpus * *gpu_milli;
  job.gpu_type = absl::StrReplaceAll(cells[5], {{"|", ";"}});
  job.submit_ns = *created_ns;
  job.duration_ns = *deleted_ns - *created_ns;
  job.checkpoint_ns = 0;
  return job;
}

#undef ASSIGN_OR_RETURN

constexpr char kPhillyHeader[] = "job_id,cluster,submit_s,gpus,duration_s,kind";
constexpr char kOpenbHeader[] =
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_"
    "time,scheduled_time";

std::string FormatOf(absl::string_view first) {
  if (first == kPhillyHeader) return "philly";
  if (first == kOpenbHeader) return "openb";
  return std::count(first.begin(), first.end(), '\t') == 11 ? "shockwave" : "csv";
}

__int128 WorkOf(const Trace& trace) {
  __int128 work = 0;  // GPUs' thousandths x ns
  for (const TraceJob& job : trace.jobs)
    work += static_cast<__int128>(job.gpus_milli) * job.workers * job.duration_ns;
  return work;
}

}  // namespace

absl::StatusOr<std::string> ReadMaybeCompressed(const std::string& path) {
  absl::StatusOr<std::string> bytes = ReadFile(path, kMaxBytes);
  if (!bytes.ok() || bytes->size() < 2 || (*bytes)[0] != '\x1f' || (*bytes)[1] != '\x8b')
    return bytes;
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) return absl::InternalError("zlib can't be started");
  stream.next_in = reinterpret_cast<Bytef*>(bytes->data());
  stream.avail_in = static_cast<uInt>(bytes->size());
  std::string text;
  int result = Z_OK;
  while (result == Z_OK && static_cast<int64_t>(text.size()) < kMaxBytes) {
    char part[1 << 16];
    stream.next_out = reinterpret_cast<Bytef*>(part);
    stream.avail_out = sizeof part;
    result = inflate(&stream, Z_NO_FLUSH);
    text.append(part, sizeof part - stream.avail_out);
  }
  inflateEnd(&stream);
  if (result != Z_STREAM_END)
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": broken gzip data, or more than 1 GiB of it"));
  return text;
}

absl::StatusOr<Trace> ReadTrace(const std::string& path, const ReadOptions& options) {
  const absl::StatusOr<std::string> text = ReadMaybeCompressed(path);
  if (!text.ok()) return text.status();
  const absl::string_view first =
      absl::StripSuffix(absl::string_view(*text).substr(0, text->find('\n')), "\r");
  const std::string format = options.format.empty() ? FormatOf(first) : options.format;
  const auto with_header = [&](const char* header, size_t cells,
                               const ParseLine& parse) -> absl::StatusOr<Trace> {
    if (first != header)
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":1: the header of ", format, " is ", header));
    return ReadLines(*text, path, options.strict, ',', cells, 1, parse);
  };
  if (format == "csv") return ParseTrace(*text, path, options.strict);
  if (format == "philly") return with_header(kPhillyHeader, 6, PhillyJob);
  if (format == "openb") return with_header(kOpenbHeader, 11, OpenbPod);
  if (format != "shockwave")
    return absl::InvalidArgumentError(
        absl::StrCat("no format ", format, "; there are csv, philly, shockwave, openb"));
  std::optional<Throughputs> throughputs;
  if (!options.throughputs.empty()) {
    const absl::StatusOr<std::string> json = ReadMaybeCompressed(options.throughputs);
    if (!json.ok()) return json.status();
    absl::StatusOr<Throughputs> parsed = ParseThroughputs(*json);
    if (!parsed.ok())
      return absl::InvalidArgumentError(
          absl::StrCat(options.throughputs, ": ", parsed.status().message()));
    throughputs = *std::move(parsed);
  }
  return ReadLines(*text, path, options.strict, '\t', 12, 0,
                   [&](const Cells& cells) { return ShockwaveJob(cells, throughputs); });
}

void FitToFleet(const pb::ClusterFile& clusters, bool spill, Trace* trace) {
  std::vector<std::string> names, flavours;
  for (const pb::ClusterSpec& cluster : clusters.clusters()) names.push_back(cluster.name());
  const std::map<std::string, pb::Sku> skus(clusters.skus().begin(), clusters.skus().end());
  for (const auto& [name, sku] : skus) {
    if (!sku.flavour().empty() &&
        std::find(flavours.begin(), flavours.end(), sku.flavour()) == flavours.end())
      flavours.push_back(sku.flavour());
  }
  const std::string all = absl::StrJoin(flavours, ";");
  std::map<std::string, std::string> written;  // in small letters -> as the file writes it
  for (const std::string& flavour : flavours) written[absl::AsciiStrToLower(flavour)] = flavour;
  for (TraceJob& job : trace->jobs) {
    if (job.gpu_type.empty()) job.gpu_type = all;
    std::vector<std::string> types = absl::StrSplit(job.gpu_type, ';');
    for (std::string& type : types) {
      if (const auto found = written.find(absl::AsciiStrToLower(type)); found != written.end())
        type = found->second;
    }
    job.gpu_type = absl::StrJoin(types, ";");
    std::erase_if(job.clusters, [&](const std::string& name) {
      return std::find(names.begin(), names.end(), name) == names.end();
    });
    if (!spill || job.clusters.empty()) continue;
    for (const std::string& name : names) {
      if (std::find(job.clusters.begin(), job.clusters.end(), name) == job.clusters.end())
        job.clusters.push_back(name);
    }
  }
}

void QueueBySize(Trace* trace) {
  for (TraceJob& job : trace->jobs)
    job.queue = absl::StrCat("g", (job.gpus_milli * job.workers + 999) / 1000);
}

void Cut(int64_t from_ns, int64_t until_ns, Trace* trace) {
  std::erase_if(trace->jobs, [&](const TraceJob& job) {
    return job.submit_ns < from_ns || (until_ns > 0 && job.submit_ns >= until_ns);
  });
  for (TraceJob& job : trace->jobs) job.submit_ns -= from_ns;
}

int64_t LoadPerMille(int64_t devices, const Trace& trace) {
  const int64_t span_ns = trace.jobs.empty() ? 0 : trace.jobs.back().submit_ns;
  if (devices <= 0 || span_ns <= 0) return 0;
  return static_cast<int64_t>(WorkOf(trace) / devices / span_ns);
}

int64_t LateWorkPerMille(const Trace& trace) {
  const __int128 all = WorkOf(trace);
  if (all == 0) return 0;
  __int128 late = 0;
  for (const TraceJob& job : trace.jobs) {
    const int64_t beyond_ns =
        std::max<int64_t>(0, job.submit_ns + job.duration_ns - trace.jobs.back().submit_ns);
    late +=
        static_cast<__int128>(job.gpus_milli) * job.workers * std::min(beyond_ns, job.duration_ns);
  }
  return static_cast<int64_t>(late * 1000 / all);
}

void ScaleToLoad(int64_t devices, int percent, Trace* trace) {
  const int64_t span_ns = trace->jobs.empty() ? 0 : trace->jobs.back().submit_ns;
  if (devices <= 0 || span_ns <= 0 || percent <= 0) return;
  const auto wanted_ns =
      static_cast<int64_t>(WorkOf(*trace) / (static_cast<__int128>(devices) * 10 * percent));
  for (TraceJob& job : trace->jobs)
    job.submit_ns =
        static_cast<int64_t>(static_cast<__int128>(job.submit_ns) * wanted_ns / span_ns);
}

}  // namespace muster::sim
