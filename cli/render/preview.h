// The table before a submission: where it would run, when, and whom it would take
// from. Pure.
#pragma once

#include <string>

#include "cli/render/format.h"
#include "muster/v1/job_service.pb.h"

namespace muster {

std::string RenderPreview(const pb::PreviewResponse& preview, const Screen& screen, int64_t now_ns);

// A line for each task that the preview's table isn't about: what it takes, and when it comes.
std::string OtherTasksText(const pb::PreviewResponse& preview);

// Where ranks lie and by how many workers a task grows, where `asked` leaves it out and `resolved`
// has it (FillPlacement): a line a task.
std::string FilledInText(const pb::JobSpec& asked, const pb::JobSpec& resolved);

// Somebody would be stopped or shrunk for the chosen candidate (--detailed-exitcode).
bool WouldEvict(const pb::PreviewResponse& preview);

}  // namespace muster
