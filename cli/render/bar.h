// The lines of a followed job: the bar of a task that runs, and plain lines where there is no
// terminal. Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/render/format.h"

namespace muster {

// "main ━━━━━━━╸────── 41%  246/600  loss 1.321  106k tok/s  MFU 37% causal  ckpt 240  ends 15:40":
// fields that aren't known are left out; the rightmost go first when the screen is narrow. Without
// a total: no bar. `name_width` aligns tasks.
std::string TaskBar(const pb::Task& task, const Screen& screen, int64_t now_ns, int name_width = 0);

// A line for each task that is under way (runs, stops, prepares) or waits for a place; what a live
// screen shows below the events.
std::vector<std::string> LiveLines(const pb::Job& job, const Screen& screen, int64_t now_ns);

// For pipes, no escape codes: "14:01:38  main  41%  246/600  loss 1.321  106k tok/s  ckpt 240".
// Empty while the task has reported nothing.
std::string PlainProgress(const pb::Task& task, int64_t now_ns);

// It waits for its next try, and its verdict says why and until when.
bool PausesAfterFailure(const pb::Task& task);

// When it will have ended: as its program says, else of rows at their pace. Unix time; 0: unknown.
int64_t ExpectedEndNs(const pb::Progress& progress);

// "2 bad rows"; "": none.
std::string ShortBadRows(const pb::Progress& progress);

// "41% 246/600", "step 246", of rows "41% 246/600 118 rows/s", or "" when nothing was reported.
std::string ShortProgress(const pb::Task& task);

}  // namespace muster
