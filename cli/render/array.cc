#include "cli/render/array.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/render/bar.h"
#include "cli/render/job.h"

namespace muster {

std::string JobId(const pb::Job& job) {
  return job.has_member() ? job.member().id() : absl::StrCat(job.number());
}

pb::JobSpec OwnSpec(const pb::Job& job) {
  pb::JobSpec spec = job.spec();
  if (!job.has_member()) return spec;
  if (!spec.array().empty()) spec.set_array(absl::StrCat(job.member().index()));
  *spec.mutable_sweep() = job.member().values();
  return spec;
}

std::string ArrayCounts(const pb::ArrayStatus& array) {
  std::vector<std::string> parts;
  for (const auto& [count, what] :
       {std::pair(array.succeeded(), "succeeded"), std::pair(array.failed(), "failed"),
        std::pair(array.cancelled(), "cancelled"), std::pair(array.unneeded(), "not needed"),
        std::pair(array.running(), "running"), std::pair(array.waiting(), "waiting"),
        std::pair(array.later(), "behind others")}) {
    if (count > 0) parts.push_back(absl::StrCat(count, " ", what));
  }
  return absl::StrJoin(parts, ", ");
}

std::string ShortArrayCounts(const pb::ArrayStatus& array) {
  const int ended = array.succeeded() + array.failed() + array.cancelled() + array.unneeded();
  return absl::StrCat(ended, "/", array.members(), " ended",
                      array.running() > 0 ? absl::StrCat(", ", array.running(), " run") : "",
                      array.failed() > 0 ? absl::StrCat(", ", array.failed(), " failed") : "");
}

std::string MemberValues(const pb::ArrayMember& member) {
  return absl::StrJoin(member.values(), ", ", [](std::string* out, const pb::SweepValues& of) {
    absl::StrAppend(out, of.name(), "=", of.values(0));
  });
}

Table MembersTable(const std::vector<pb::Job>& jobs, int64_t now_ns) {
  const bool swept = std::any_of(jobs.begin(), jobs.end(),
                                 [](const pb::Job& job) { return job.member().values_size() > 0; });
  std::vector<Table::Column> columns = {{"JOB", Table::kRight}};
  if (swept) columns.push_back({"VALUES"});
  for (const Table::Column& column :
       {Table::Column{"STATE"}, Table::Column{"WHERE", Table::kLeft, false, 2},
        Table::Column{"PROGRESS", Table::kLeft, false, 1},
        Table::Column{"ATTEMPT", Table::kRight, true}, Table::Column{"RAN", Table::kRight},
        Table::Column{"WHY"}})
    columns.push_back(column);
  Table table(columns);
  for (const pb::Job& job : jobs) {
    const pb::Task* task = LeadTask(job);
    const pb::Attempt* attempt = task == nullptr ? nullptr : NewestAttempt(*task);
    std::vector<std::string> row = {JobId(job)};
    if (swept) row.push_back(MemberValues(job.member()));
    const bool ended = HasEnded(job.state());
    row.push_back(StateName(job.state()));
    row.push_back(attempt == nullptr ? "" : PlaceName(*attempt));
    row.push_back(task == nullptr ? "" : ShortProgress(*task));
    row.push_back(attempt == nullptr ? "" : absl::StrCat(attempt->number()));
    row.push_back(
        job.start_ns() == 0 ? "" : FormatSpan((ended ? job.end_ns() : now_ns) - job.start_ns()));
    row.push_back(job.state() == pb::SUCCEEDED ? ""
                  : ended                      ? OutcomeReason(job)
                                               : WhyText(job, now_ns));
    table.AddRow(std::move(row));
  }
  return table;
}

}  // namespace muster
