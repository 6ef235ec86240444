// What programs write to the progress socket, as the agent reads it.
#include <cstdint>
#include <string>

#include "agent/reconcile/progress_line.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  muster::agent::ParseProgressLine(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
