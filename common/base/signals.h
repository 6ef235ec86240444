// How a daemon learns that it is to end.
#pragma once

namespace muster {

// SIGTERM and SIGINT are blocked in this thread and in those that it starts from now on, SIGPIPE is
// ignored. Returns a descriptor from which they are read without waiting (signalfd), closed on
// exec. To be called before any thread is there.
int ReadEndSignals();

}  // namespace muster
