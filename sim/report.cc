#include "sim/report.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/units.h"

namespace muster::sim {
namespace {

int64_t Quantile(const std::vector<int64_t>& sorted, int per_mille) {
  if (sorted.empty()) return 0;
  return sorted[std::min(sorted.size() - 1, sorted.size() * static_cast<size_t>(per_mille) / 1000)];
}

int64_t Mean(const std::vector<int64_t>& values) {
  if (values.empty()) return 0;
  __int128 sum = 0;
  for (const int64_t v : values) sum += v;
  return static_cast<int64_t>(sum / static_cast<__int128>(values.size()));
}

std::set<std::string> QueuesOf(const WorldResult& result) {
  std::set<std::string> queues;
  for (const JobResult& job : result.jobs) queues.insert(job.queue);
  return queues;
}

// For a column: no more than two units, seconds at the finest.
std::string Short(int64_t ns) {
  return ns < 10 * kSecond ? FormatDuration(ns / (100 * kMillisecond) * (100 * kMillisecond))
                           : FormatDuration(ns / kSecond * kSecond);
}
std::string PerMille(int64_t per_mille) {
  return absl::StrFormat("%d.%d %%", per_mille / 10, per_mille % 10);
}

std::string Seconds(int64_t ns) { return absl::StrFormat("%.3f", static_cast<double>(ns) / 1e9); }

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&quoted, "\\", std::string(1, c));
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppend(&quoted, absl::StrFormat("\\u%04x", static_cast<unsigned char>(c)));
    } else {
      quoted.push_back(c);
    }
  }
  return quoted + "\"";
}

std::string SummaryJson(const Summary& s) {
  return absl::StrCat(
      "{\"jobs\":", s.jobs, ",\"started\":", s.started, ",\"unfinished\":", s.unfinished,
      ",\"refused\":", s.refused, ",\"wait_mean_s\":", Seconds(s.wait_mean_ns),
      ",\"wait_p50_s\":", Seconds(s.wait_p50_ns), ",\"wait_p99_s\":", Seconds(s.wait_p99_ns),
      ",\"wait_max_s\":", Seconds(s.wait_max_ns), ",\"delay_mean_s\":", Seconds(s.delay_mean_ns),
      ",\"jct_mean_s\":", Seconds(s.jct_mean_ns), ",\"evictions\":", s.evictions,
      ",\"late\":", s.late, ",\"late_with_room\":", s.late_with_room,
      ",\"late_behind_older\":", s.late_behind, ",\"late_max_s\":", Seconds(s.late_max_ns),
      ",\"left_out\":", s.left_out, ",\"overtaken\":", s.overtaken,
      ",\"overtaken_max_s\":", Seconds(s.overtaken_max_ns), "}");
}

std::string LateJobs(const WorldResult& result, int64_t patience_ns) {
  std::string text = ",\"late_jobs\":[";
  bool first = true;
  for (const JobResult& job : result.jobs) {
    if (job.late_ns <= patience_ns) continue;
    absl::StrAppend(&text, first ? "" : ",", "\n{\"name\":", Quoted(job.name),
                    ",\"queue\":", Quoted(job.queue), ",\"gpus\":", FormatMilli(job.gpus_milli),
                    ",\"late_s\":", Seconds(job.late_ns),
                    ",\"late_room_s\":", Seconds(job.late_room_ns),
                    ",\"late_behind_s\":", Seconds(job.late_behind_ns),
                    ",\"verdict\":", Quoted(job.late_verdict), "}");
    first = false;
  }
  return text + "]";
}

}  // namespace

Summary Summarize(const WorldResult& result, const std::string& queue, int64_t patience_ns) {
  Summary s;
  std::vector<int64_t> waits, delays, jcts;
  for (const JobResult& job : result.jobs) {
    if (!queue.empty() && job.queue != queue) continue;
    ++s.jobs;
    if (!job.refused.empty()) {
      ++s.refused;
      continue;
    }
    if (job.start_ns >= 0) waits.push_back(job.start_ns - job.submit_ns);
    if (job.end_ns >= 0) {
      jcts.push_back(job.end_ns - job.submit_ns);
      delays.push_back(job.end_ns - job.submit_ns - job.duration_ns);
    } else {
      ++s.unfinished;
    }
    s.evictions += job.evictions;
    s.late += job.late_ns > patience_ns;
    s.late_with_room += job.late_ns > patience_ns && job.late_room_ns > patience_ns;
    s.late_behind += IsLateBehind(job, patience_ns);
    s.left_out += job.left_out_ns > patience_ns;
    s.late_max_ns = std::max(s.late_max_ns, job.late_ns);
    s.overtaken += job.overtaken_ns > patience_ns;
    s.overtaken_max_ns = std::max(s.overtaken_max_ns, job.overtaken_ns);
  }
  std::sort(waits.begin(), waits.end());
  s.started = static_cast<int>(waits.size());
  s.wait_mean_ns = Mean(waits);
  s.wait_p50_ns = Quantile(waits, 500);
  s.wait_p99_ns = Quantile(waits, 990);
  s.wait_max_ns = waits.empty() ? 0 : waits.back();
  s.delay_mean_ns = Mean(delays);
  s.jct_mean_ns = Mean(jcts);
  return s;
}

int64_t UtilisationPerMille(const WorldResult& result) {
  return result.capacity_device_us == 0
             ? 0
             : static_cast<int64_t>(static_cast<__int128>(result.used_device_us) * 1000 /
                                    result.capacity_device_us);
}

std::string QueueTable(const WorldResult& result, int64_t patience_ns) {
  std::string text = absl::StrFormat("%-24s %7s %10s %10s %10s %10s %9s %5s %10s\n", "QUEUE",
                                     "STARTED", "WAIT MEAN", "WAIT P50", "WAIT P99", "WAIT MAX",
                                     "EVICTIONS", "LATE", "UNFINISHED");
  const auto row = [&](const std::string& name, const Summary& s) {
    absl::StrAppendFormat(&text, "%-24s %7d %10s %10s %10s %10s %9d %5d %10d\n", name, s.started,
                          Short(s.wait_mean_ns), Short(s.wait_p50_ns), Short(s.wait_p99_ns),
                          Short(s.wait_max_ns), s.evictions, s.late, s.unfinished);
  };
  row("(all)", Summarize(result, "", patience_ns));
  for (const std::string& queue : QueuesOf(result))
    row(queue, Summarize(result, queue, patience_ns));
  absl::StrAppendFormat(&text,
                        "utilisation %s until the last submission; %s to the last end, %d "
                        "evictions, %d engine steps, digest %016x\n",
                        PerMille(UtilisationPerMille(result)), Short(result.end_ns),
                        result.evictions, result.steps, result.digest);
  return text;
}

std::string PolicyTable(const std::vector<std::pair<std::string, WorldResult>>& runs,
                        int64_t patience_ns) {
  std::string text =
      absl::StrFormat("%-14s %7s %10s %10s %10s %10s %10s %9s %7s %9s %5s %10s %8s\n", "POLICY",
                      "STARTED", "WAIT MEAN", "WAIT P50", "WAIT P99", "DELAY MEAN", "JCT MEAN",
                      "MAKESPAN", "UTIL", "EVICTIONS", "LATE", "LATE MAX", "STUCK");
  for (const auto& [name, result] : runs) {
    const Summary s = Summarize(result, "", patience_ns);
    absl::StrAppendFormat(&text, "%-14s %7d %10s %10s %10s %10s %10s %9s %7s %9d %5d %10s %8d\n",
                          name, s.started, Short(s.wait_mean_ns), Short(s.wait_p50_ns),
                          Short(s.wait_p99_ns), Short(s.delay_mean_ns), Short(s.jct_mean_ns),
                          Short(result.end_ns), PerMille(UtilisationPerMille(result)), s.evictions,
                          s.late, Short(s.late_max_ns), result.stuck.size());
  }
  return text;
}

std::string Json(const pb::ClusterFile& clusters,
                 const std::vector<std::pair<std::string, WorldResult>>& runs, int64_t patience_ns,
                 bool with_jobs) {
  std::string text = absl::StrCat("{\"devices\":", DevicesOf(clusters, ""), ",\"clusters\":[");
  for (int c = 0; c < clusters.clusters_size(); ++c)
    absl::StrAppend(&text, c == 0 ? "" : ",", Quoted(clusters.clusters(c).name()));
  absl::StrAppend(&text, "],\"runs\":[");
  for (size_t r = 0; r < runs.size(); ++r) {
    const auto& [name, result] = runs[r];
    absl::StrAppend(
        &text, r == 0 ? "" : ",", "\n{\"policy\":", Quoted(name),
        ",\"summary\":", SummaryJson(Summarize(result, "", patience_ns)), ",\"utilisation\":",
        absl::StrFormat("%.4f",
                        static_cast<double>(result.used_device_us) /
                            static_cast<double>(std::max<int64_t>(1, result.capacity_device_us))),
        ",\"end_s\":", Seconds(result.end_ns),
        ",\"last_submit_s\":", Seconds(result.last_submit_ns), ",\"steps\":", result.steps,
        ",\"stuck\":", result.stuck.size(), ",\"real_s\":", Seconds(result.real_ns),
        ",\"step_s\":", Seconds(result.step_ns), ",\"digest\":\"",
        absl::StrFormat("%016x", result.digest), "\",\"queues\":{");
    bool first = true;
    for (const std::string& queue : QueuesOf(result)) {
      absl::StrAppend(&text, first ? "" : ",", Quoted(queue), ":",
                      SummaryJson(Summarize(result, queue, patience_ns)));
      first = false;
    }
    absl::StrAppend(&text, "}", LateJobs(result, patience_ns));
    if (with_jobs) {
      absl::StrAppend(&text, ",\"jobs\":[");
      for (size_t j = 0; j < result.jobs.size(); ++j) {
        const JobResult& job = result.jobs[j];
        absl::StrAppend(&text, j == 0 ? "" : ",", "\n{\"name\":", Quoted(job.name),
                        ",\"queue\":", Quoted(job.queue), ",\"gpus\":", FormatMilli(job.gpus_milli),
                        ",\"submit_s\":", Seconds(job.submit_ns),
                        ",\"start_s\":", job.start_ns < 0 ? "null" : Seconds(job.start_ns),
                        ",\"end_s\":", job.end_ns < 0 ? "null" : Seconds(job.end_ns),
                        ",\"evictions\":", job.evictions, ",\"late_s\":", Seconds(job.late_ns),
                        ",\"late_room_s\":", Seconds(job.late_room_ns),
                        ",\"left_out_s\":", Seconds(job.left_out_ns),
                        ",\"overtaken_s\":", Seconds(job.overtaken_ns), ",\"segments\":[");
        for (size_t i = 0; i < job.segments.size(); ++i) {
          const Segment& segment = job.segments[i];
          absl::StrAppend(&text, i == 0 ? "" : ",", "[", Seconds(segment.from_ns), ",",
                          Seconds(segment.until_ns < 0 ? result.end_ns : segment.until_ns), ",",
                          segment.cluster, ",", FormatMilli(segment.gpus_milli), "]");
        }
        absl::StrAppend(&text, "]}");
      }
      absl::StrAppend(&text, "]");
    }
    absl::StrAppend(&text, "}");
  }
  return absl::StrCat(text, "]}\n");
}

}  // namespace muster::sim
