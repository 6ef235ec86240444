// `muster explain` and `muster simulate` on the screen (docs/asking.md). Pure.
#pragma once

#include <string>

#include "cli/render/format.h"
#include "muster/v1/job_service.pb.h"

namespace muster {

// Where a job stands, why it waits, and what would make it start.
std::string RenderExplain(const pb::ExplainResponse& explained, const Screen& screen);

// What starts when, who is stopped or comes later, and how the queues change.
std::string RenderSimulation(const pb::SimulateResponse& simulated, const Screen& screen);

// "scratch 311: 16, goes on in dal; 305: …"; empty: from nobody.
std::string TakenText(const google::protobuf::RepeatedPtrField<pb::PreviewResponse::Taken>& taken);

}  // namespace muster
