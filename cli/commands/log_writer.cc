#include "cli/commands/log_writer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cli/follow.h"
#include "cli/render/json.h"
#include "common/base/clock.h"
#include "common/base/units.h"

namespace muster {
namespace {

constexpr int kBackoffMs = 200;
constexpr size_t kTailBytes = 8 << 10;
constexpr size_t kLineBytesMax = 64 << 10;  // of a line that is held until its end has come
constexpr int64_t kServedNs = 5 * kSecond;  // a call that lasted so long was served
constexpr int64_t kLookNs = 5 * kSecond;    // for an answer of a server that was away

bool HasSeveralRanks(const pb::Job& job, const std::string& task) {
  for (const pb::TaskSpec& spec : job.spec().tasks()) {
    if (!task.empty() && spec.name() != task) continue;
    if (spec.workers().max() > 1 || spec.processes_per_worker() > 1 ||
        spec.resources().gpus_milli() >= 2000)
      return true;
  }
  return false;
}

// The lines of this rank that end in `data`, each with the rank in front. *line: what is held of
// one that has not ended. A carriage return ends one, as a line feed does: what several progress
// bars draw over would be each other's.
std::string WithRank(int rank, std::string_view data, std::string* line) {
  const std::string front = absl::StrCat("[", rank, "] ");
  std::string out;
  while (!data.empty()) {
    if (line->ends_with('\r')) {
      if (data[0] == '\n') {
        absl::StrAppend(&out, front, *line, "\n");
        data.remove_prefix(1);
      } else if (line->size() > 1) {  // a bar's first piece begins with one
        line->back() = '\n';
        absl::StrAppend(&out, front, *line);
      }
      line->clear();
      continue;
    }
    const size_t end = std::min(data.find_first_of("\r\n"), data.size() - 1) + 1;
    const size_t taken = std::min(end, kLineBytesMax - line->size());
    line->append(data.substr(0, taken));
    data.remove_prefix(taken);
    const bool ended = line->ends_with('\n');
    if (!ended && (line->size() < kLineBytesMax || line->ends_with('\r'))) continue;
    absl::StrAppend(&out, front, *line, ended ? "" : "\n");
    line->clear();
  }
  return out;
}

// Connecting to one that is away may take as long as a call that was served.
bool Serves(Client& client, const std::string& job, const Interrupt& interrupt) {
  const absl::Status looked =
      client.Watch(job, kLookNs, &interrupt, [](const pb::WatchJobResponse&) { return false; });
  return !absl::IsUnavailable(looked) && !absl::IsDeadlineExceeded(looked);
}

}  // namespace

LogWriter::LogWriter(Session& session, const pb::Job& job, const pb::LogsRequest& request,
                     Streams streams)
    : session_(session),
      with_rank_(request.rank() == -1 && HasSeveralRanks(job, request.task())),
      streams_(streams) {}

void LogWriter::Write(const pb::LogsResponse& chunk) {
  wrote_ = wrote_ || !chunk.data().empty() || chunk.dropped_bytes() > 0;
  has_gaps_ = has_gaps_ || chunk.dropped_bytes() > 0;
  if (session_.format() == Format::kJson || session_.format() == Format::kJsonLines) {
    session_.Out(ToJson(chunk, false));
    return;
  }
  if (chunk.dropped_bytes() > 0) {
    session_.Err(absl::StrCat("muster: ", chunk.dropped_bytes(), " bytes of rank ", chunk.rank(),
                              " were rotated away before they were read\n"));
  }
  const std::string_view data = chunk.data();
  tail_.append(data.substr(data.size() - std::min(data.size(), kTailBytes)));
  if (tail_.size() > 2 * kTailBytes) tail_.erase(0, tail_.size() - kTailBytes);
  size_t at = 0;
  for (const pb::ByteRange& range : chunk.from_stderr()) {
    const size_t begin = std::clamp(static_cast<size_t>(range.begin()), at, data.size()),
                 end = std::clamp(static_cast<size_t>(range.end()), begin, data.size());
    WritePart(chunk.rank(), false, data.substr(at, begin - at));
    WritePart(chunk.rank(), streams_ == kApart, data.substr(begin, end - begin));
    at = end;
  }
  WritePart(chunk.rank(), false, data.substr(at));
}

void LogWriter::WritePart(int rank, bool is_error, std::string_view data) {
  if (data.empty()) return;
  std::string out(data);
  if (session_.is_terminal(is_error)) out = shown_[{rank, is_error}].Next(data);
  if (with_rank_) out = WithRank(rank, out, &unfinished_[{rank, is_error}]);
  Put(is_error, out);
}

void LogWriter::Put(bool is_error, const std::string& text) {
  is_error ? session_.ErrAsItIs(text) : session_.Out(text);
}

void LogWriter::End() {
  for (auto& [from, line] : unfinished_) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) Put(from.second, absl::StrCat("[", from.first, "] ", line, "\n"));
  }
  unfinished_.clear();
  for (auto& [from, text] : shown_) Put(from.second, text.End());
}

absl::Status ReadLogs(Session& session, Client& client, pb::LogsRequest request,
                      const Interrupt& interrupt, LogWriter* writer, bool tells,
                      const std::function<void()>& on_piece) {
  bool resumable = true;
  int64_t lost_ns = 0;
  int backoff_ms = kBackoffMs;
  const auto on = [&](const pb::LogsResponse& chunk) {
    lost_ns = 0;
    backoff_ms = kBackoffMs;
    writer->Write(chunk);
    if (on_piece) on_piece();
    pb::LogsPlace* from = request.mutable_from();
    if (from->task() != chunk.task() || from->attempt() != chunk.attempt()) {
      from->Clear();
      from->set_task(chunk.task());
      from->set_attempt(chunk.attempt());
    }
    resumable = resumable && chunk.next_offset() != 0;
    (*from->mutable_next_offsets())[chunk.rank()] = chunk.next_offset();
    return !session.out_failed();
  };
  while (true) {
    const int64_t begin_ns = RealClock()->MonotonicNs();
    const absl::Status status = client.Logs(request, &interrupt, on);
    const bool away = (absl::IsUnavailable(status) || absl::IsCancelled(status)) &&
                      !status.GetPayload(kDetailsUrl).has_value();
    if (!request.follow() || !away || !resumable || interrupt.pending() || session.out_failed())
      return status;
    const int64_t now_ns = RealClock()->MonotonicNs();
    if (lost_ns == 0 || now_ns - begin_ns > kServedNs) {
      lost_ns = now_ns;
      if (tells)
        session.Err(
            "muster: no contact with the server; the job goes on without it. Trying again; Ctrl+C "
            "stops following.\n");
    }
    do {
      if (RealClock()->MonotonicNs() - lost_ns > kGiveUpAfterNs || interrupt.WaitFor(backoff_ms))
        return status;
      backoff_ms = std::min(2000, backoff_ms * 2);
    } while (!Serves(client, request.id(), interrupt));
  }
}

}  // namespace muster
