// SIGTERM and Ctrl+C ask a run to stop after the step that it is in.
#pragma once

namespace muster::trainer {

// From here on they only ask.
void StopOnSignals();
bool StopRequested();

}  // namespace muster::trainer
