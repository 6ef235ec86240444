#include "trainer/loop/guard.h"

#include <cmath>
#include <cstdio>
#include <numeric>

namespace muster::trainer {

std::string Guard::Judge(double loss, double norm) {
  char text[160] = "";
  const double mean = recent_.empty() ? 0
                                      : std::accumulate(recent_.begin(), recent_.end(), 0.0) /
                                            static_cast<double>(recent_.size());
  if (!std::isfinite(loss) || !std::isfinite(norm)) {
    std::snprintf(text, sizeof text, "loss or gradient is not finite (loss %g, grad_norm %g)", loss,
                  norm);
  } else if (spike_factor_ > 0 && recent_.size() >= kLeast && loss > spike_factor_ * mean) {
    std::snprintf(text, sizeof text, "the loss jumped to %.6g from a mean of %.6g", loss, mean);
  }
  if (text[0] != '\0') {
    ++bad_in_a_row_, ++skipped_;
    return text;
  }
  bad_in_a_row_ = 0;
  recent_.push_back(loss);
  if (recent_.size() > kWindow) recent_.pop_front();
  return "";
}

void Guard::Restore(const std::vector<double>& recent) {
  recent_.assign(recent.begin(), recent.end());
  while (recent_.size() > kWindow) recent_.pop_front();
}

}  // namespace muster::trainer
