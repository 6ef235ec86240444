// Sentences about a queue's share: what it is entitled to, what it uses.
#pragma once

#include <string>

#include "muster/v1/queue.pb.h"
#include "scheduler/state/state.h"

namespace muster {

// "research/vision is entitled to 16 h100-80g now (guarantee 8, borrowed 8), and uses 16"
std::string ShareText(const JobRow& job, const pb::QueueUse& use);
// It is one of those that its queue is entitled to run, though the queue uses that much: others of
// the queue run in its place.
std::string BeyondText(const JobRow& job, const pb::QueueUse& use);

}  // namespace muster
