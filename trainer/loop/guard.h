// Decides whether a step is fit to be learned from: one bad batch, or one fault of the hardware,
// may undo a long run.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace muster::trainer {

// A function of the losses alone, so every rank comes to the same verdict. Not thread-safe.
class Guard {
 public:
  // `spike_factor`: a loss above this many times the mean of the last kWindow good ones is a spike
  // (0: none is), once there were kLeast. `skip_limit`: bad steps in a row that are passed over.
  Guard(double spike_factor, int64_t skip_limit)
      : spike_factor_(spike_factor), skip_limit_(skip_limit) {}

  // What is wrong with a step ("" for nothing), from its loss and gradient norm over all ranks.
  std::string Judge(double loss, double norm);
  // Whether one more bad step may be skipped; of those since the last good one.
  bool MaySkip() const { return bad_in_a_row_ <= skip_limit_; }
  int64_t skipped() const { return skipped_; }

  // The losses it remembers: a resumed run goes on with them.
  std::vector<double> recent() const { return {recent_.begin(), recent_.end()}; }
  void Restore(const std::vector<double>& recent);

  static constexpr size_t kWindow = 32, kLeast = 8;

 private:
  const double spike_factor_;
  const int64_t skip_limit_;
  std::deque<double> recent_;
  int64_t bad_in_a_row_ = 0, skipped_ = 0;
};

}  // namespace muster::trainer
