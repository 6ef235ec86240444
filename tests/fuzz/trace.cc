// Our own trace files, kind and strict.
#include <cstdint>
#include <string_view>

#include "sim/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const bool strict : {false, true})
    (void)muster::sim::ParseTrace(text, "trace.csv", strict).ok();
  return 0;
}
