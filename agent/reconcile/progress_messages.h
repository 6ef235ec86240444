// What a progress line told, as the messages that the agent sends of it; whose it is, is left out.
#pragma once

#include "agent/progress/line.h"
#include "muster/v1/agent.pb.h"

namespace muster::agent {

v1::Progress MessageOf(const ProgressLine::Metrics& metrics);
v1::CheckpointReport MessageOf(const ProgressLine::Checkpoint& checkpoint);
v1::LoadedReport MessageOf(const ProgressLine::Loaded& loaded);
v1::ExportReport MessageOf(const ProgressLine::Export& exported);

}  // namespace muster::agent
