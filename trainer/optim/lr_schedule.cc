#include "trainer/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace muster::trainer {

double LrSchedule::At(int64_t step) const {
  if (type == "warmup_stable_decay") {
    const auto share = [](int64_t done, int64_t of) {
      return static_cast<double>(done) / static_cast<double>(std::max<int64_t>(1, of));
    };
    const int64_t decay_begin = total_steps - decay_steps;
    double factor = 1;
    if (step < warmup_steps) {
      factor = share(step, warmup_steps);
    } else if (step >= total_steps) {
      factor = 0;
    } else if (step >= decay_begin) {
      const double progress = share(step - decay_begin, decay_steps);
      factor = decay_type == "linear"   ? 1 - progress
               : decay_type == "1-sqrt" ? 1 - std::sqrt(progress)
                                        : 0.5 * (1 + std::cos(std::numbers::pi * progress));
    }
    return peak * std::max(0.0, factor * (1 - min_ratio) + min_ratio);
  }
  if (step < warmup_steps)
    return peak *
           (static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, warmup_steps)));
  const double span = static_cast<double>(std::max<int64_t>(1, total_steps - warmup_steps));
  double share = 1;
  if (type == "cosine") {
    const double progress = static_cast<double>(step - warmup_steps) / span;
    share = std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * 0.5 * 2.0 * progress)));
  } else if (type == "linear") {
    share = std::max(0.0, static_cast<double>(total_steps - step) / span);
  }
  return peak * (min_ratio + (1 - min_ratio) * share);
}

}  // namespace muster::trainer
