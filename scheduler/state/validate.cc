#include "scheduler/state/validate.h"
namespace muster { absl::Status Validate(const State&, const Plan&) { return absl::OkStatus(); } }
