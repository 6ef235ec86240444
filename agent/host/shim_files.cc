#include "agent/host/shim_files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/shim/durable.h"
#include "agent/shim/progress.h"
#include "common/base/files.h"
#include "common/base/log.h"

namespace muster::agent {
namespace {

using shim::Line;

Claim ToClaim(shim::Claim claim) {
  switch (claim) {
    case shim::Claim::kStarted:
      return Claim::kStarted;
    case shim::Claim::kStopped:
      return Claim::kStopped;
    case shim::Claim::kNone:
      break;
  }
  return Claim::kNone;
}

v1::HostUsage ToHostUsage(const shim::Used& used) {
  v1::HostUsage usage;
  usage.set_ran_ns(std::max<int64_t>(used.ran_ns, 0));
  if (used.memory_peak_bytes >= 0) usage.set_memory_peak_bytes(used.memory_peak_bytes);
  if (used.cpu_us >= 0) usage.set_cpu_us(used.cpu_us);
  if (used.cpus_most_milli >= 0) usage.set_cpus_most_milli(used.cpus_most_milli);
  return usage;
}

// The final word, once it is there: news->final.
absl::Status ReadExits(const std::string& directory, ShimNews* news,
                       std::vector<shim::Exit>* final_exits) {
  std::string text, error;
  const int failed = shim::ReadSmallFile(absl::StrCat(directory, "/", shim::kExitsFile), &text);
  if (failed != 0 && failed != ENOENT) return ErrnoStatus(failed, directory + "/exits");
  shim::Exits exits;
  if (failed != 0 || !shim::ParseExits(text, &exits, &error)) return absl::OkStatus();
  news->final = true;
  news->start_ns = exits.start_ns;
  news->end_ns = exits.end_ns;
  news->stop_sent = exits.stop_sent;
  news->fenced = exits.fenced;
  if (exits.used.ran_ns > 0) news->usage = ToHostUsage(exits.used);
  *final_exits = std::move(exits.exits);
  return absl::OkStatus();
}

absl::Status ReadClaim(const std::string& directory, ShimNews* news) {
  if (news->claim != Claim::kNone) return absl::OkStatus();  // the first one stays
  shim::Claim claim = shim::Claim::kNone;
  const int failed = shim::ReadClaim(directory, &claim);
  // This process or the machine is short of something: that says nothing of the claim.
  if (failed == EMFILE || failed == ENFILE || failed == ENOMEM)
    return ErrnoStatus(failed, directory + "/claim");
  news->claim = failed != 0 ? UnreadableClaim(directory, failed) : ToClaim(claim);
  return absl::OkStatus();
}

void TakeEvent(std::string_view text, ShimNews* news) {
  const std::optional<Line> line = shim::ParseLine(text);
  if (!line.has_value()) return;
  shim::Exit exit;
  int64_t at_ns = 0;
  ReadNumber(*line, "at_ns", &at_ns);
  if (line->kind == "started") news->start_ns = at_ns;
  if (shim::ReadExitLine(*line, &exit)) news->exits.push_back(ToProto(exit));
  if (line->kind == "line") {
    news->lines.push_back(line->Get("json"));
    news->lines_at_ns.push_back(at_ns);
  }
}

// Complete lines from *events_read on.
void ReadEvents(const std::string& directory, int64_t* events_read, ShimNews* news) {
  const int fd = ::open(absl::StrCat(directory, "/", shim::kEventsFile).c_str(),
                        O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return;
  std::string tail;
  char buffer[65536];
  ssize_t got = 0;
  while ((got = ::pread(fd, buffer, sizeof buffer,
                        *events_read + static_cast<int64_t>(tail.size()))) > 0)
    tail.append(buffer, static_cast<size_t>(got));
  ::close(fd);
  const size_t last = tail.rfind('\n');
  tail.resize(last == std::string::npos ? 0 : last + 1);
  *events_read += static_cast<int64_t>(tail.size());
  for (size_t at = 0; at < tail.size();) {
    const size_t end = tail.find('\n', at);
    TakeEvent(std::string_view(tail).substr(at, end - at), news);
    at = end + 1;
  }
}

void ReadMetrics(const std::string& directory, ShimNews* news) {
  std::string text;
  if (shim::ReadSmallFile(absl::StrCat(directory, "/", shim::kProgressFile), &text) != 0 ||
      text.empty())
    return;
  const std::optional<Line> line =
      shim::ParseLine(std::string_view(text).substr(0, text.size() - 1));
  if (!line.has_value()) return;
  news->metrics = line->Get("json");
  ReadNumber(*line, "at_ns", &news->metrics_at_ns);
}

void ReadUsage(const std::string& directory, ShimNews* news) {
  std::string text, error;
  shim::Used used;
  if (shim::ReadSmallFile(absl::StrCat(directory, "/", shim::kUsageFile), &text) == 0 &&
      shim::ParseUsage(text, &used, &error) && used.ran_ns > 0)
    news->usage = ToHostUsage(used);
}

void ReadTimes(const std::string& directory, ShimNews* news) {
  std::string text, error;
  std::vector<shim::StepTimes::Row> rows;
  if (shim::ReadSmallFile(absl::StrCat(directory, "/", shim::kTimesFile), &text) != 0 ||
      !shim::ParseTimes(text, &rows, &error))
    return;
  news->times.clear();
  for (const shim::StepTimes::Row& row : rows) {
    v1::RankTime& time = news->times.emplace_back();
    time.set_rank(row.rank);
    time.set_step(row.step);
    time.set_steps(row.steps);
    time.set_own_us(row.own_us);
  }
}

}  // namespace

Claim UnreadableClaim(const std::string& directory, int error) {
  LogError("a start claim can't be read, look at the disk; the attempt counts as started",
           {{"file", directory + "/claim"},
            {"error", error == EBADMSG ? "it is damaged" : strerror(error)}});
  return Claim::kStarted;
}

v1::WorkerExit ToProto(const shim::Exit& exit) {
  v1::WorkerExit out;
  out.set_rank(exit.rank);
  out.set_exit_code(exit.exit_code);
  out.set_signal(exit.signal);
  out.set_detail(exit.detail);
  out.set_at_ns(exit.at_ns);
  out.set_own(exit.own);
  out.set_oom(exit.oom);
  return out;
}

absl::Status ReadShimFiles(const std::string& directory, const DeviceEvents& events,
                           int64_t* events_read, ShimNews* news) {
  // The exits first: whatever else is read later is then complete.
  std::vector<shim::Exit> final_exits;
  if (absl::Status status = ReadExits(directory, news, &final_exits); !status.ok()) return status;
  if (absl::Status status = ReadClaim(directory, news); !status.ok()) return status;
  ReadEvents(directory, events_read, news);
  if (news->final) {
    news->exits.clear();
    for (const shim::Exit& exit : final_exits) news->exits.push_back(ToProto(exit));
  }
  // What Muster ended itself needs no cause; before the last has ended, who was stopped isn't
  // known.
  if (!news->stop_sent)
    TellCauses(absl::StrCat(directory, "/", shim::kLogsDirectory), events,
               news->start_ns.value_or(0), &news->exits);
  if (!news->final || news->usage.ran_ns() == 0) ReadUsage(directory, news);
  ReadMetrics(directory, news);
  ReadTimes(directory, news);
  return absl::OkStatus();
}

}  // namespace muster::agent
