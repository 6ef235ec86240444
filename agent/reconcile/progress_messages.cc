#include "agent/reconcile/progress_messages.h"

namespace muster::agent {

v1::Progress MessageOf(const ProgressLine::Metrics& metrics) {
  v1::Progress progress;
  progress.set_step(metrics.step);
  progress.set_total_steps(metrics.total_steps);
  progress.set_loss(metrics.loss);
  progress.set_tokens_per_s(metrics.tokens_per_s);
  progress.set_mfu_causal(metrics.mfu_causal);
  progress.set_mfu_full(metrics.mfu_full);
  progress.set_grad_norm(metrics.grad_norm);
  progress.set_rows_per_s(metrics.rows_per_s);
  progress.set_bad_rows(metrics.bad_rows);
  return progress;
}

v1::CheckpointReport MessageOf(const ProgressLine::Checkpoint& checkpoint) {
  v1::CheckpointReport report;
  report.mutable_checkpoint()->set_step(checkpoint.step);
  report.mutable_checkpoint()->set_path(checkpoint.path);
  report.mutable_checkpoint()->set_size_bytes(checkpoint.size_bytes);
  report.set_loaded_step(checkpoint.loaded_step);
  report.set_loaded_path(checkpoint.loaded_path);
  return report;
}

v1::LoadedReport MessageOf(const ProgressLine::Loaded& loaded) {
  v1::LoadedReport report;
  report.set_step(loaded.step);
  report.set_path(loaded.path);
  for (const std::string& refused : loaded.refused) report.add_refused(refused);
  return report;
}

v1::ExportReport MessageOf(const ProgressLine::Export& exported) {
  v1::ExportReport report;
  report.set_staged(exported.staged);
  report.set_target(exported.target);
  return report;
}

}  // namespace muster::agent
