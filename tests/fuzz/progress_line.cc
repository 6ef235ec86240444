// What programs write to the progress socket, as shim and agent read it: what the scheduler would
// refuse never comes out of it.
#include <cstdint>
#include <string_view>

#include "agent/progress/line.h"
#include "agent/shim/progress.h"
#include "common/base/check.h"
#include "common/base/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;
  const auto line =
      agent::ParseProgressLine(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!line.has_value()) return 0;
  const auto fits = [](const std::string& text) {
    return text.size() <= 4096 && ValidUtf8(text) == text;
  };
  if (line->metrics) MUSTER_CHECK(line->metrics->step >= 0 && line->metrics->total_steps >= 0);
  if (line->checkpoint)
    MUSTER_CHECK(fits(line->checkpoint->path) && fits(line->checkpoint->loaded_path));
  if (line->loaded) MUSTER_CHECK(fits(line->loaded->path) && line->loaded->refused.size() <= 1000);
  if (line->exported) MUSTER_CHECK(fits(line->exported->staged) && fits(line->exported->target));
  if (const auto time = shim::StepTimeOf(*line))
    MUSTER_CHECK(time->rank >= 0 && time->step >= 0 && time->own_us >= 0);
  const bool durable = line->checkpoint || line->loaded || line->exported;
  const shim::LineKind kind = shim::KindOf(*line);
  MUSTER_CHECK(durable ==
               (kind == shim::LineKind::kCheckpoint || kind == shim::LineKind::kDurable));
  return 0;
}
