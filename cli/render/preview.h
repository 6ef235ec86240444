// The table before a submission: where it would run, when, and whom it would take
// from. Pure.
#pragma once

#include <string>

#include "cli/render/format.h"
#include "muster/v1/job_service.pb.h"

namespace muster {

std::string RenderPreview(const pb::PreviewResponse& preview, const Screen& screen, int64_t now_ns);

// Somebody would be stopped or shrunk for the chosen candidate (--detailed-exitcode).
bool WouldEvict(const pb::PreviewResponse& preview);

}  // namespace muster
