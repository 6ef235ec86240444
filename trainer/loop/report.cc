#include "trainer/loop/report.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trainer/loop/engine_options.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/mfu.h"

namespace muster::trainer {
namespace {

using nlohmann::ordered_json;

// Between two words of a rank's own time. (A host's shim takes a hundred lines a second of all its
// ranks.)
constexpr auto kOwnTimeInterval = std::chrono::milliseconds(250);

}  // namespace

Reporter::Reporter(const Setup& setup, World& world, Progress& progress, int64_t adapter_parameters,
                   const std::string& metrics)
    : setup_(setup),
      world_(world),
      progress_(progress),
      adapter_parameters_(adapter_parameters),
      metrics_(world.rank() == 0 ? metrics : "") {}

bool Reporter::IsTold(const StepReport& report) const {
  return world_.rank() == 0 &&
         (report.step % setup_.config.log_interval == 0 || report.step == setup_.config.max_steps ||
          report.evaluated || !report.skipped.empty());
}

void Reporter::Report(const StepReport& report, const StepBatches& batches) {
  ReportOwnTime(report);
  if (!IsTold(report)) return;
  const double tokens_per_s = static_cast<double>(batches.tokens) / report.step_s;
  const MemoryUse memory = ReadMemoryUse(world_.device());
  ordered_json line = {{"step", report.step},
                       {"total_steps", setup_.config.max_steps},
                       {"loss", report.loss},
                       {"grad_norm", report.norm},
                       {"learning_rate", report.learning_rate},
                       {"tokens_per_s", tokens_per_s},
                       {"step_time_s", report.step_s},
                       {"target_tokens", batches.target_tokens},
                       {"rank", 0},
                       {"memory_bytes", memory.now_bytes},
                       {"memory_peak_bytes", memory.peak_bytes},
                       {"exposed_communication_s", report.exposed_communication_s},
                       {"data_wait_s", report.data_wait_s}};
  char buffer[512];
  constexpr double kMiB = 1 << 20;
  std::snprintf(
      buffer, sizeof buffer,
      "step=%lld total_steps=%lld loss=%.9g grad_norm=%.9g learning_rate=%.9g "
      "tokens_per_s=%.0f step_time_s=%.4g memory_mib=%.0f memory_peak_mib=%.0f "
      "exposed_communication_s=%.3g data_wait_s=%.3g",
      static_cast<long long>(report.step), static_cast<long long>(setup_.config.max_steps),
      report.loss, report.norm, report.learning_rate, tokens_per_s, report.step_s,
      static_cast<double>(memory.now_bytes) / kMiB, static_cast<double>(memory.peak_bytes) / kMiB,
      report.exposed_communication_s, report.data_wait_s);
  std::string text = buffer;
  if (setup_.layout.is_object()) line["layout"] = setup_.layout;
  AddOptional(report, line, text);
  AddMfu(batches, tokens_per_s, line, text);
  metrics_.Send(line);
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
  progress_.Send(line);
}

namespace {

using Named = std::pair<const char*, double>;

// TRL's names: DPOTrainer's, and RewardTrainer's.
std::vector<Named> OfDpo(const PairMeans& means) {
  const auto [chosen, rejected, right, chosen_logps, rejected_logps] = means;
  return {{"rewards/chosen", chosen},     {"rewards/rejected", rejected},
          {"rewards/accuracies", right},  {"rewards/margins", chosen - rejected},
          {"logps/chosen", chosen_logps}, {"logps/rejected", rejected_logps}};
}
std::vector<Named> OfReward(const PairMeans& means) {
  const auto [chosen, rejected, right, none, none_either] = means;
  return {
      {"accuracy", right}, {"margin", chosen - rejected}, {"mean_reward", (chosen + rejected) / 2}};
}

void Add(const std::vector<Named>& values, ordered_json& line, std::string& text) {
  for (const auto& [name, value] : values) {
    line[name] = value;
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, " %s=%.9g", name, value);
    text += buffer;
  }
}

}  // namespace

void Reporter::AddOptional(const StepReport& report, ordered_json& line, std::string& text) const {
  if (setup_.config.dpo.on()) Add(OfDpo(report.pairs), line, text);
  if (setup_.config.reward.on()) Add(OfReward(report.pairs), line, text);
  if (setup_.config.z_loss > 0) Add({{"z_loss", report.z_loss}}, line, text);
  if (BalanceOf(setup_.config, setup_.model).kind != BalanceKind::kNone)
    Add({{"aux_loss", report.aux_loss}}, line, text);
  if (!report.skipped.empty()) {
    line["skipped"] = report.skipped;
    text += absl::StrCat(" skipped_steps=", report.skipped_steps);
  }
  if (setup_.config.cuda_graphs && world_.device().is_cuda()) {
    line["graph_replays"] = report.graph_replays;
    text += absl::StrCat(" graph_replays=", report.graph_replays);
  }
  if (report.evaluated) Add({{"eval_loss", report.evaluated->loss}}, line, text);
  if (report.evaluated && setup_.config.reward.on())
    Add({{"eval_accuracy", report.evaluated->accuracy}}, line, text);
}

void Reporter::AddMfu(const StepBatches& batches, double tokens_per_s, ordered_json& line,
                      std::string& text) {
  if (peak_flops_ < 0) {
    const TrainConfig& config = setup_.config;
    peak_flops_ = config.peak_tflops > 0 ? config.peak_tflops * 1e12
                  : world_.device().is_cuda()
                      ? PeakFlops(DeviceName(world_.device()), config.dtype == "bf16")
                      : 0;
  }
  if (peak_flops_ == 0) return;
  const FlopsPerToken flops = ModelFlopsPerToken(
      setup_.model,
      batches.attended_tokens / static_cast<double>(std::max<int64_t>(1, batches.tokens)),
      adapter_parameters_, setup_.config.dpo.on());
  const double tokens_per_peak = tokens_per_s / (peak_flops_ * world_.size());
  line["mfu_causal"] = flops.causal * tokens_per_peak;
  line["mfu_full"] = flops.full * tokens_per_peak;
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, " mfu_causal=%.4f mfu_full=%.4f",
                flops.causal * tokens_per_peak, flops.full * tokens_per_peak);
  text += buffer;
}

// Every rank tells how long its own part of the steps took, at most a few times a second, as the
// mean of those since: what is slower than its gang shows there, while whole steps all take as long
// as the slowest.
void Reporter::ReportOwnTime(const StepReport& report) {
  if (world_.size() == 1 || Env("MUSTER_PROGRESS_SOCKET").empty()) return;
  const Clock::time_point now = Clock::now();
  if (!std::exchange(own_begun_, true)) {
    // The first step warms up; a host's ranks don't speak all at once.
    own_told_ = now - kOwnTimeInterval * world_.info().local_rank / world_.info().local_size;
    return;
  }
  own_s_ += std::max(0.0, report.step_s - report.exposed_communication_s);
  ++own_steps_;
  if (now - own_told_ < kOwnTimeInterval) return;
  own_told_ = now;
  const double mean_s =
      std::exchange(own_s_, 0) / static_cast<double>(std::exchange(own_steps_, 0));
  progress_.Send({{"rank", world_.rank()}, {"step", report.step}, {"own_time_s", mean_s}});
}

}  // namespace muster::trainer
