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
constexpr int64_t kServedNs = 5 * kSecond;  // a call that lasted so long was served

bool HasSeveralRanks(const pb::Job& job, const std::string& task) {
  for (const pb::TaskSpec& spec : job.spec().tasks()) {
    if (!task.empty() && spec.name() != task) continue;
    if (spec.workers().max() > 1 || spec.processes_per_worker() > 1 ||
        spec.resources().gpus_milli() >= 2000)
      return true;
  }
  return false;
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
  if (with_rank_) {
    std::string& line = unfinished_[{rank, is_error}];
    line += out;
    out.clear();
    size_t begin = 0;
    for (size_t end; (end = line.find('\n', begin)) != std::string::npos; begin = end + 1) {
      absl::StrAppend(&out, "[", rank, "] ", line.substr(begin, end + 1 - begin));
    }
    line.erase(0, begin);
  }
  Put(is_error, out);
}

void LogWriter::Put(bool is_error, const std::string& text) {
  is_error ? session_.ErrAsItIs(text) : session_.Out(text);
}

void LogWriter::End() {
  for (const auto& [from, line] : unfinished_) {
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
    if (now_ns - lost_ns > kGiveUpAfterNs || interrupt.WaitFor(backoff_ms)) return status;
    backoff_ms = std::min(2000, backoff_ms * 2);
  }
}

}  // namespace muster
