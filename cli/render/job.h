// Jobs as tables and pages: `jobs`, `history`, `show`, `explain`, and the event lines of a followed
// job. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/render/format.h"
#include "cli/render/table.h"

namespace muster {

Table JobsTable(const std::vector<pb::Job>& jobs,
                int64_t now_ns);  // unfinished ones: progress, place, ETA or verdict
Table HistoryTable(const std::vector<pb::Job>& jobs,
                   int64_t now_ns);  // finished ones: outcome and times
std::string RenderJob(const pb::Job& job, const Screen& screen, int64_t now_ns);  // `muster show`

// It waited for a time first, so that the time since its submission says nothing.
bool HadATime(const pb::Job& job);
// Of a job that waits for a time: " It starts at 03:00, and then by 0 3 * * *."; else empty.
std::string WaitsForText(const pb::Job& job, int64_t now_ns);
// How to end the schedule of an earlier job too, whose job of a later time waits.
std::string GoesOnText(const pb::Job& waits, int64_t now_ns);
// Some attempt of it was placed: there may be output.
bool HasRun(const pb::Job& job);
// "Job 318 sft-8b, research/nlp, 2 x 8 h100-80g: waiting since 13:58"
std::string HeadLine(const pb::Job& job, int64_t now_ns);
// Why it waits, or when what runs of it ends.
std::string WhyText(const pb::Job& job, int64_t now_ns);
// Why it did not succeed, from the task that did it: "main, killed: rank 3 by SIGKILL".
std::string OutcomeReason(const pb::Job& job);

// What happened between two looks at a job, oldest first, each with its clock time and task:
// "14:01:38  main  attempt 1 runs on phx/r4/h07,h08". `before` is nullptr at the first look: then
// what is under way.
std::vector<std::string> EventLines(const pb::Job* before, const pb::Job& after, int64_t now_ns);

// "Job 318 sft-8b succeeded after 12 m.", "Job 318 sft-8b failed: main, killed: rank 3 by SIGKILL."
std::string OutcomeLine(const pb::Job& job);

}  // namespace muster
