#include "cli/commands/log_writer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cli/render/json.h"

namespace muster {
namespace {

bool HasSeveralRanks(const pb::Job& job, const std::string& task) {
  for (const pb::TaskSpec& spec : job.spec().tasks()) {
    if (!task.empty() && spec.name() != task) continue;
    if (spec.workers().max() > 1 || spec.processes_per_worker() > 1 || spec.resources().gpus_milli() >= 2000) return true;
  }
  return false;
}

}  // namespace

LogWriter::LogWriter(Session& session, const pb::Job& job, const pb::LogsRequest& request, Streams streams)
    : session_(session), with_rank_(request.rank() < 0 && HasSeveralRanks(job, request.task())), streams_(streams) {}

void LogWriter::Write(const pb::LogsResponse& chunk) {
  wrote_ = wrote_ || !chunk.data().empty() || chunk.dropped_bytes() > 0;
  if (session_.format() == Format::kJson || session_.format() == Format::kJsonLines) {
    session_.Out(ToJson(chunk, false));
    return;
  }
  if (chunk.dropped_bytes() > 0) {
    session_.Err(absl::StrCat("muster: ", chunk.dropped_bytes(), " bytes of rank ", chunk.rank(), " were rotated away before they were read\n"));
  }
  const std::string_view data = chunk.data();
  size_t at = 0;
  for (const pb::ByteRange& range : chunk.from_stderr()) {
    const size_t begin = std::clamp(static_cast<size_t>(range.begin()), at, data.size()), end = std::clamp(static_cast<size_t>(range.end()), begin, data.size());
    WritePart(chunk.rank(), false, data.substr(at, begin - at));
    WritePart(chunk.rank(), streams_ == kApart, data.substr(begin, end - begin));
    at = end;
  }
  WritePart(chunk.rank(), false, data.substr(at));
}

void LogWriter::WritePart(int rank, bool is_error, std::string_view data) {
  if (data.empty()) return;
  std::string out(data);
  if (with_rank_) {
    std::string& line = unfinished_[{rank, is_error}];
    line += data;
    out.clear();
    size_t begin = 0;
    for (size_t end; (end = line.find('\n', begin)) != std::string::npos; begin = end + 1) {
      absl::StrAppend(&out, "[", rank, "] ", line.substr(begin, end + 1 - begin));
    }
    line.erase(0, begin);
  }
  is_error ? session_.Err(out) : session_.Out(out);
}

void LogWriter::End() {
  for (const auto& [from, line] : unfinished_) {
    if (line.empty()) continue;
    const std::string text = absl::StrCat("[", from.first, "] ", line, "\n");
    from.second ? session_.Err(text) : session_.Out(text);
  }
  unfinished_.clear();
}

}  // namespace muster
