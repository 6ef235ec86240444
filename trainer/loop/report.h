// What a run tells of its steps: a line for people, one for programs.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "trainer/data/batches.h"
#include "trainer/loop/progress.h"
#include "trainer/loop/setup.h"
#include "trainer/model/pairs.h"
#include "trainer/parallel/groups.h"

namespace muster::trainer {

// Means over what was evaluated on: targets, or pairs.
struct Evaluated {
  double loss = 0;
  double accuracy = 0;  // with reward: the share of pairs whose chosen answer has the higher one
};

// What a step is reported with, beside its batches.
struct StepReport {
  int64_t step = 0;  // its number, from 1
  double loss = 0, z_loss = 0, aux_loss = 0, norm = 0, learning_rate = 0, step_s = 0;
  double data_wait_s = 0;              // until the batches were there
  double exposed_communication_s = 0;  // this rank waited for others; on GPUs only what the host
                                       // waited
  std::string skipped;                 // why there was no update
  int64_t skipped_steps = 0;           // so far
  std::optional<Evaluated> evaluated;
  int64_t graph_replays = 0;
  PairMeans pairs = {};  // with dpo or reward
};

// Not thread-safe.
class Reporter {
 public:
  // `adapter_parameters`: trained beside a frozen model; 0 where the model is trained. `metrics`: a
  // file that rank 0 appends to, or "". The others must outlive it.
  Reporter(const Setup& setup, World& world, Progress& progress, int64_t adapter_parameters,
           const std::string& metrics);

  void Report(const StepReport& report, const StepBatches& batches);

 private:
  using Clock = std::chrono::steady_clock;
  bool IsTold(const StepReport& report) const;
  void ReportOwnTime(const StepReport& report);
  void AddOptional(const StepReport& report, nlohmann::ordered_json& line, std::string& text) const;
  void AddMfu(const StepBatches& batches, double tokens_per_s, nlohmann::ordered_json& line,
              std::string& text);

  const Setup& setup_;
  World& world_;
  Progress& progress_;
  const int64_t adapter_parameters_;
  MetricsFile metrics_;
  double peak_flops_ = -1;  // not looked up yet
  double own_s_ = 0;        // of own_steps_, since it was told last
  int64_t own_steps_ = 0;
  bool own_begun_ = false;
  Clock::time_point own_told_;
};

}  // namespace muster::trainer
