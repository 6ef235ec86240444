// A progress line's JSON as messages. Unknown keys are ignored, as they may come from a newer
// trainer.
#pragma once

#include <optional>
#include <string>

#include "muster/v1/agent.pb.h"

namespace muster::agent {

struct ProgressLine {
  std::optional<v1::Progress> progress;  // a line with "step"
  std::optional<v1::CheckpointReport> checkpoint;
  std::optional<v1::LoadedReport> loaded;
  std::optional<v1::ExportReport> export_report;
};

// nullopt: not a JSON object. Keys with a wrong type count as missing.
std::optional<ProgressLine> ParseProgressLine(const std::string& json);

}  // namespace muster::agent
