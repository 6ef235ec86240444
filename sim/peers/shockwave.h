// Batch sizes that change while a job trains, as Shockwave's traces have them (Zheng et al.,
// NSDI'23, §5 and appendix): what Accordion and GNS do to ResNet-18, ResNet-50, LM and
// Recommendation is published as tables by epoch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::sim {

enum class Adaptation { kStatic, kAccordion, kGns };

// Steps a second on the reference GPU by (model, batch size, GPUs).
using Throughputs = std::map<std::tuple<std::string, int, int>, double>;

// Reads the JSON of Gavel's measurements: {"v100": {"('LM (batch size 5)', 1)": {"null": 133.8,
// …}}}; other GPUs, and pairs of jobs on one GPU, are left out.
absl::StatusOr<Throughputs> ParseThroughputs(std::string_view json);

// Steps of an epoch; 0 for an unknown model.
int64_t StepsOfEpoch(std::string_view model, int batch_size);
// Batch size in each of `epochs` epochs of a job that began with `batch_size` on `gpus` GPUs.
std::vector<int> BatchSizes(Adaptation adaptation, std::string_view model, int batch_size, int gpus,
                            int epochs);

// How long `steps` steps at the first batch size take, told in epochs, when the batch size adapts.
// NOT_FOUND names a combination that wasn't measured.
absl::StatusOr<double> AdaptedSeconds(const Throughputs& throughputs, Adaptation adaptation,
                                      const std::string& model, int batch_size, int gpus,
                                      int64_t steps);

}  // namespace muster::sim
