// The learning rate as a function of the step alone, equal to transformers'
// get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup and
// get_constant_schedule_with_warmup (transformers/optimization.py); with min_lr_ratio > 0 cosine
// and linear end at that share instead of 0 (get_cosine_with_min_lr_schedule_with_warmup).
// warmup_stable_decay is get_wsd_schedule: constant after the warm-up, then decay_steps of decay at
// the end.
#pragma once

#include <cstdint>
#include <string>

namespace muster::trainer {

struct LrSchedule {
  std::string type;  // cosine, linear, constant or warmup_stable_decay
  double peak = 0;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double min_ratio = 0;
  int64_t decay_steps = 0;            // warmup_stable_decay
  std::string decay_type = "cosine";  // cosine, linear or 1-sqrt

  // The rate of the optimizer step number `step`, counted from 0.
  double At(int64_t step) const;
};

}  // namespace muster::trainer
