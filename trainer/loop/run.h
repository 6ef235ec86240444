// One training run on one rank: load, steps, evaluations, checkpoints, export.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/data/batches.h"
#include "trainer/loop/exchange.h"
#include "trainer/loop/guard.h"
#include "trainer/loop/profile.h"
#include "trainer/loop/progress.h"
#include "trainer/loop/reference.h"
#include "trainer/loop/report.h"
#include "trainer/loop/requests.h"
#include "trainer/loop/resume.h"
#include "trainer/loop/saving.h"
#include "trainer/loop/setup.h"
#include "trainer/optim/adamw.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/parallel/engine.h"

namespace muster::trainer {

// Exit code where what was asked for can't be done.
inline constexpr int kRefused = 2;

// Not thread-safe. All ranks make one from the same setup.
class Run {
 public:
  // `dump_tokens`, `metrics`: files that rank 0 appends to, or "". `world` must outlive it.
  Run(Setup setup, World* world, const std::string& dump_tokens, const std::string& metrics);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Returns the process's exit code.
  int Go();

  int64_t step() const { return step_; }
  // Before the process ends without its destructors.
  void SendWhatIsKept() { progress_.Delivered(); }

 private:
  bool Leads() const { return world_.rank() == 0; }
  int64_t RowsToEvaluate(int64_t all) const;
  RunState State() const { return {step_, next_sequence_, guard_.recent()}; }
  bool AwaitDataCheck();
  void CheckData();
  bool Steps();
  StepBatches ReadBatches(StepReport& report);
  bool MakeReferences();
  void FindReference(const StepBatches& batches, const Logps& known);
  StepExchange ForwardAndBackward(const StepBatches& batches, StepReport& report);
  void Update(const StepExchange& all, StepReport& report);
  bool EvaluationIsDue() const;
  double TakeWaited();
  std::optional<Evaluated> Evaluate();
  void TellProfile(const absl::StatusOr<std::string>& path);
  void DumpTokens();

  Setup setup_;
  const TrainConfig& config_;
  World& world_;
  Progress progress_;
  Engine engine_;
  Guard guard_;
  AdamW optimizer_;
  const LrSchedule learning_rate_;
  Reporter reporter_;
  Requests requests_;
  Saving saving_;
  std::optional<ShardCheck> data_check_;
  std::optional<BatchReader> batches_;
  std::vector<std::pair<BatchReader, int64_t>> evaluations_;  // and how many rows
  Logps reference_;                                           // with dpo, without LoRA
  std::vector<Logps> evaluations_references_;                 // as evaluations_
  int64_t step_ = 0, next_sequence_ = 0;
  bool first_ = true;  // no step is done yet
  int dump_fd_ = -1;
};

}  // namespace muster::trainer
