// What shims leave in attempts' directories, as the Reconciler takes it in.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "agent/host/causes.h"
#include "agent/reconcile/record.h"
#include "agent/shim/format.h"

namespace muster::agent {

// Reads what a shim left or leaves in an attempt's directory. `events_read` in and out: what was
// read of DIR/events before is not read again, so `news` is to be what it was then, but for lines
// that were dropped. `alive` is the caller's to fill. An error: what is there can't be told now, so
// look again.
absl::Status ReadShimFiles(const std::string& directory, const DeviceEvents& events,
                           int64_t* events_read, ShimNews* news);

// What an attempt's claim counts as that can't be read (`error`: why), which the log is told:
// "started". Whatever it says, of what has started nothing starts once more, and it is gone only
// when nothing of it runs.
Claim UnreadableClaim(const std::string& directory, int error);

v1::WorkerExit ToProto(const shim::Exit& exit);

// `*out` stays as it is where the line has no such number.
template <typename Number>
void ReadNumber(const shim::Line& line, const char* key, Number* out) {
  int64_t value = 0;
  if (line.GetInt(key, &value)) *out = static_cast<Number>(value);
}

}  // namespace muster::agent
