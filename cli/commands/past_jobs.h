// How fast jobs have trained that a server knows, for the model of speed of a tuning
// (docs/tuning.md).
#pragma once

#include <string>

#include "cli/client.h"

namespace muster {

inline constexpr int kMostPastJobs = 200;

// The newest `most` settings of jobs of that queue (empty: of all that the caller sees) that have
// ended and had trained on one host of that flavour, as JSON: [{"job": "17", "ranks": 4,
// "tokens_per_s": 1e5, "trainer": {…}}]. Fewer where they don't fit into a job's variable, or where
// many newer jobs are of other programs. Empty where there is none, or where the server doesn't
// say: a tuning works without.
std::string PastJobs(Client& client, const std::string& queue, const std::string& flavour,
                     int most);

}  // namespace muster
