#include "cli/commands/log_writer.h"

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

LogWriter::LogWriter(Session& session, const pb::Job& job, const pb::LogsRequest& request)
    : session_(session), with_rank_(request.rank() < 0 && HasSeveralRanks(job, request.task())) {}

void LogWriter::Write(const pb::LogsResponse& chunk) {
  if (session_.format() == Format::kJson || session_.format() == Format::kJsonLines) {
    session_.Out(ToJson(chunk, false));
    return;
  }
  if (chunk.dropped_bytes() > 0) {
    session_.Err(absl::StrCat("muster: ", chunk.dropped_bytes(), " bytes of rank ", chunk.rank(), " were rotated away before they were read\n"));
  }
  if (!with_rank_) {
    session_.Out(chunk.data());
    return;
  }
  std::string& line = unfinished_[chunk.rank()];
  line += chunk.data();
  std::string out;
  size_t begin = 0;
  for (size_t end; (end = line.find('\n', begin)) != std::string::npos; begin = end + 1) {
    absl::StrAppend(&out, "[", chunk.rank(), "] ", line.substr(begin, end + 1 - begin));
  }
  line.erase(0, begin);
  session_.Out(out);
}

void LogWriter::End() {
  for (const auto& [rank, line] : unfinished_) if (!line.empty()) session_.Out(absl::StrCat("[", rank, "] ", line, "\n"));
  unfinished_.clear();
}

}  // namespace muster
