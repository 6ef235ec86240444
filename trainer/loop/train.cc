// Long: one class, Run, whose loop, checkpoints, evaluation and reports share its state.
#include "trainer/loop/train.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Logging.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checksum.h"
#include "trainer/checkpoint/hugging_face.h"
#include "trainer/checkpoint/objects.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/data/batches.h"
#include "trainer/loop/config.h"
#include "trainer/loop/engine_options.h"
#include "trainer/loop/exchange.h"
#include "trainer/loop/failures.h"
#include "trainer/loop/guard.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/mfu.h"
#include "trainer/loop/profile.h"
#include "trainer/loop/progress.h"
#include "trainer/loop/setup.h"
#include "trainer/model/init.h"
#include "trainer/model/lora.h"
#include "trainer/ops/fused.h"
#include "trainer/optim/adamw.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/parallel/engine.h"
#include "trainer/parallel/range.h"

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using nlohmann::json;
using nlohmann::ordered_json;

// Exit code where what was asked for can't be done.
constexpr int kRefused = 2;

// NCCL may take this long to end its kernels; then the process ends with them.
constexpr unsigned kAbortLimitS = 5;

// Between two words of a rank's own time. (A host's shim takes a hundred lines a second of all its
// ranks.)
constexpr auto kOwnTimeInterval = std::chrono::milliseconds(250);

volatile std::sig_atomic_t stop_requested = 0;
void RequestStop(int) { stop_requested = 1; }

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

EngineOptions OptionsFor(const TrainConfig& config, at::Device device) {
  EngineOptions options = MakeEngineOptions(config);
  if (config.cuda_graphs && device.is_cuda()) options.graphs = CudaGraphs(device);
  return options;
}

// One training run on one rank.
class Run {
 public:
  // `dump_tokens`, `metrics`: files that rank 0 appends to, or "".
  Run(Setup setup, World* world, std::string dump_tokens, const std::string& metrics)
      : setup_(std::move(setup)),
        config_(setup_.config),
        world_(*world),
        progress_(Env("MUSTER_PROGRESS_SOCKET")),
        metrics_(world->rank() == 0 ? metrics : ""),
        engine_(setup_.model, world, OptionsFor(config_, world->device())),
        guard_(config_.spike_factor, config_.skip_limit),
        optimizer_(engine_.flats(), {config_.adam_beta1, config_.adam_beta2, config_.adam_epsilon,
                                     config_.weight_decay}) {
    if (config_.lora.on()) {
      for (const std::unique_ptr<FlatParam>& flat : engine_.flats())
        adapter_parameters_ += flat->layout().numel();
    }
    const int64_t share = SharePerRank(config_.global_batch_size, world_.size());
    const int64_t micro = ChooseMicroBatchSize(config_, share);
    batches_.emplace(setup_.packer.get(), config_.global_batch_size, micro, world_.rank(),
                     world_.size(), world_.device());
    for (const Setup::Evaluation& one : setup_.evaluations) {
      const int64_t all = one.packer->rows_per_epoch();
      evaluations_.push_back(
          {BatchReader(one.packer.get(), config_.global_batch_size, micro, world_.rank(),
                       world_.size(), world_.device(), RowsToEvaluate(all)),
           RowsToEvaluate(all)});
    }
    if (world_.info().local_rank == 0) {  // one process a host
      std::vector<const TokenShards*> shards;
      for (const auto& one : setup_.shards) shards.push_back(one.get());
      for (const Setup::Evaluation& one : setup_.evaluations) shards.push_back(one.shards.get());
      data_check_.emplace(std::move(shards));
    }
    if (!setup_.surroundings.checkpoint_directory.empty()) {
      writer_.emplace(world_, engine_.flats(), setup_.surroundings.checkpoint_directory,
                      setup_.surroundings.checkpoint_keep);
    }
    if (world_.rank() == 0 && !dump_tokens.empty()) {
      dump_fd_ = ::open(dump_tokens.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
      TORCH_CHECK(dump_fd_ >= 0, "cannot open ", dump_tokens);
    }
  }
  ~Run() {
    if (dump_fd_ >= 0) ::close(dump_fd_);
  }

  int Go() {
    if (const Problems problems = Load(); !problems.empty()) {
      if (Leads()) Refuse("resume", problems);
      return kRefused;
    }
    if (Leads() && step_ == config_.max_steps) {
      std::fprintf(
          stderr,
          "note: %s is of step %lld, and max_steps is %lld: there is nothing left to train\n",
          loaded_path_.c_str(), static_cast<long long>(step_),
          static_cast<long long>(config_.max_steps));
    }
    const bool stopped = Steps();
    const bool finished = step_ >= config_.max_steps;
    if (writer_ && (stopped || finished) && !SaveNow()) return 1;
    if (!finished || !AwaitDataCheck()) {
      if (world_.rank() == 0) std::printf("stopped_at_step=%lld\n", static_cast<long long>(step_));
      return 0;
    }
    return setup_.export_target.empty() ? 0 : ExportModel();
  }

  int64_t step() const { return step_; }
  // Before the process ends without its destructors.
  void SendWhatIsKept() { progress_.Delivered(); }

 private:
  bool Leads() const { return world_.rank() == 0; }
  std::chrono::milliseconds StepTimeout() const {
    return std::chrono::milliseconds(static_cast<int64_t>(config_.step_timeout_s * 1000));
  }
  int64_t RowsToEvaluate(int64_t all) const {
    return config_.eval_sequences > 0 ? std::min(config_.eval_sequences, all) : all;
  }

  // Whether all data is verified; throws if some is damaged. False if a stop was requested first:
  // what is trained is in a checkpoint, and a run that goes on from there verifies anew.
  bool AwaitDataCheck() {
    const auto done = [this](std::chrono::milliseconds moment) {
      const bool verified = !data_check_ || data_check_->WaitFor(moment);
      if (data_check_)
        TORCH_CHECK(data_check_->Found().ok(), std::string(data_check_->Found().message()));
      return verified;
    };
    return Await(world_, done, [] { return stop_requested != 0; });
  }

  // Weights and optimizer state: from the newest good checkpoint, else from `init`, else drawn.
  // Returns why the checkpoint isn't one of this run, the same on every rank.
  Problems Load() {
    LoadOutcome outcome = OpenNewest(world_, setup_.surroundings.resume_from, engine_.flats());
    for (const SkippedCheckpoint& skipped : outcome.skipped) {
      if (Leads())
        std::fprintf(stderr, "checkpoint refused: %s: %s\n", skipped.path.c_str(),
                     skipped.why.c_str());
    }
    TORCH_CHECK(outcome.checkpoint != nullptr || outcome.skipped.empty(),
                "none of the checkpoints to resume from can be used; start the job anew to begin "
                "without one");
    if (config_.lora.on()) {
      for (const std::unique_ptr<FlatParam>& flat : engine_.model_flats()) {
        setup_.init_weights->Read(*flat);
      }
    }
    if (outcome.checkpoint == nullptr) {
      BeginWithout();
      return {};
    }
    const Checkpoint& checkpoint = *outcome.checkpoint;
    const CheckpointMeta& meta = checkpoint.meta();
    if (Problems problems = WhyAnother(checkpoint); !problems.empty()) return problems;
    if (Leads()) TellWhatChanged(checkpoint);
    std::string error;
    for (const std::unique_ptr<FlatParam>& flat : engine_.flats()) {
      if (absl::Status s = checkpoint.Read(*flat); !s.ok() && error.empty())
        error = std::string(s.message());
    }
    for (const std::string& one : world_.GatherTexts(error))
      TORCH_CHECK(one.empty(), "cannot read ", checkpoint.path(), ": ", one);
    step_ = meta.step;
    next_sequence_ = meta.next_sequence;
    guard_.Restore(meta.recent_losses);
    last_checkpoint_step_ = loaded_step_ = step_;
    loaded_path_ = checkpoint.path();
    if (Leads()) TellLoaded(outcome.skipped);
    return {};
  }

  // Weights without a checkpoint: adapters and models are drawn, or come from `init`.
  void BeginWithout() {
    for (const std::unique_ptr<FlatParam>& flat : engine_.flats()) {
      if (config_.lora.on())
        InitialiseAdapters(*flat, static_cast<uint64_t>(config_.seed));
      else if (setup_.init_weights != nullptr)
        setup_.init_weights->Read(*flat);
      else
        InitialiseMasters(*flat, static_cast<uint64_t>(config_.seed),
                          setup_.model.initializer_range);
    }
  }

  Problems WhyAnother(const Checkpoint& checkpoint) const {
    const CheckpointMeta& meta = checkpoint.meta();
    Problems problems;
    const std::vector<std::string> other =
        ParseModelConfig(meta.model, "model", false, problems).DifferencesFrom(setup_.model);
    problems.clear();
    if (!other.empty()) {
      problems.push_back(
          {config_.model ? "trainer.model" : "trainer.init",
           absl::StrCat(
               "is another model than that of ", checkpoint.path(), ", whose ",
               absl::StrJoin(other, "; "),
               "; give the model that was trained, or a new place for this one's checkpoints")});
    }
    if (meta.step > config_.max_steps) {
      problems.push_back(
          {"trainer.max_steps",
           absl::StrCat(config_.max_steps, " is below the step of ", checkpoint.path(), ", ",
                        meta.step,
                        "; raise it, or resume from an earlier checkpoint. `muster-trainer export` "
                        "writes this one's model as it is")});
    }
    return problems;
  }

  // On the rank that leads.
  void TellWhatChanged(const Checkpoint& checkpoint) const {
    const CheckpointMeta& meta = checkpoint.meta();
    if (meta.trainer.is_object()) {
      if (const std::vector<std::string> changed = ChangedFields(meta.trainer, setup_.trainer);
          !changed.empty()) {
        // Those that say which rows a step takes.
        const bool other_rows =
            meta.step > 0 &&
            std::any_of(changed.begin(), changed.end(), [](const std::string& one) {
              const std::string key = one.substr(0, one.find(':'));
              return key == "seed" || key == "packing" || key == "document_mask" ||
                     key == "max_length" || key == "max_row_length" || key == "global_batch_size";
            });
        std::fprintf(stderr, "note: changed since %s: %s%s\n", checkpoint.path().c_str(),
                     absl::StrJoin(changed, ", ").c_str(),
                     other_rows ? " (the rows that steps take are others)" : "");
      }
    }
    if (meta.step > 0) {
      if (meta.data_fingerprint != setup_.DataFingerprint())
        std::fprintf(stderr, "note: the data is not what %s was trained on\n",
                     checkpoint.path().c_str());
      if (meta.packing_version != kPackingVersion)
        std::fprintf(stderr, "note: %s was packed by version %d: the data's order is another\n",
                     checkpoint.path().c_str(), meta.packing_version);
    }
  }

  void TellLoaded(const std::vector<SkippedCheckpoint>& skipped) {
    std::fprintf(stderr, "resumed from %s at step %lld\n", loaded_path_.c_str(),
                 static_cast<long long>(step_));
    ordered_json loaded = {
        {"step", step_}, {"path", loaded_path_}, {"skipped", ordered_json::array()}};
    for (const SkippedCheckpoint& one : skipped)
      loaded["skipped"].push_back({{"path", one.path}, {"why", one.why}});
    progress_.Send({{"loaded", loaded}}, Progress::kDurable);
  }

  // Runs to the last step or to a stop. Returns whether it was stopped.
  bool Steps() {
    const LrSchedule schedule{
        config_.lr_scheduler_type, config_.learning_rate, config_.WarmupSteps(), config_.max_steps,
        config_.min_lr_ratio,      config_.DecaySteps(),  config_.decay_type};
    last_checkpoint_time_ = Clock::now();
    bool first = true;
    Profile profile(config_.profile_steps, config_.max_steps - step_,
                    setup_.surroundings.Resolve("profile"), world_.rank(),
                    world_.device().is_cuda());
    while (step_ < config_.max_steps) {
      profile.Begin(step_ + 1);
      const Clock::time_point begin = Clock::now();
      std::optional<Range> range(std::in_place, [] { return "read the batch"; });
      absl::StatusOr<StepBatches> batches = batches_->Read(next_sequence_);
      TORCH_CHECK(batches.ok(), std::string(batches.status().message()));
      range.reset();
      StepReport report;
      report.data_wait_s = Seconds(Clock::now() - begin);
      DumpTokens();
      StepExchange mine;
      const EngineLoss loss = engine_.Run(batches->micro);
      mine.loss = loss.loss, mine.z_loss = loss.z;
      range.emplace([] { return "gradient norm"; });
      mine.squared_norm = ShardSquaredNorm(engine_.flats());
      mine.stop = stop_requested != 0;
      mine.checkpoint = Leads() && CheckpointIsDue();
      range.emplace([] { return "exchange with other ranks"; });
      const Clock::time_point exchange_begin = Clock::now();
      const StepExchange all =
          Exchange(world_, mine, writer_ ? writer_->Mine() : CheckpointWriter::Report{});
      if (world_.size() > 1)
        report.exposed_communication_s = Seconds(Clock::now() - exchange_begin);
      report.exposed_communication_s += TakeWaited();
      if (data_check_)
        TORCH_CHECK(data_check_->Found().ok(), std::string(data_check_->Found().message()));
      if (writer_) {
        if (const auto outcome = writer_->Take(all.writers)) Tell(*outcome);
      }
      report.loss = all.loss, report.z_loss = all.z_loss, report.norm = std::sqrt(all.squared_norm);
      report.skipped = guard_.Judge(report.loss, report.norm);
      TORCH_CHECK(guard_.MaySkip(), report.skipped,
                  "; lower learning_rate, use dtype: fp32, or let skip_limit pass over such steps");
      report.learning_rate = schedule.At(step_);
      range.emplace([] { return "optimizer"; });
      if (report.skipped.empty())
        optimizer_.Step(step_ + 1, report.learning_rate,
                        ClipCoefficient(report.norm, config_.max_grad_norm));
      else if (Leads())
        std::fprintf(stderr, "step %lld skipped: %s\n", static_cast<long long>(step_ + 1),
                     report.skipped.c_str());
      ++step_;
      next_sequence_ += config_.global_batch_size;
      if (first) world_.SetTimeout(StepTimeout()), first = false;
      report.step_s = Seconds(Clock::now() - begin);
      bool stop = all.stop;
      if (EvaluationIsDue() && !stop) {
        if (step_ == config_.max_steps && writer_) SaveNow();  // first what may not be lost
        range.emplace([] { return "evaluate"; });
        report.eval_loss = Evaluate();
        stop = !report.eval_loss;
      }
      range.reset();
      Report(report, *batches);
      stop = stop && step_ < config_.max_steps;
      if (all.checkpoint && !stop && step_ < config_.max_steps) {
        range.emplace([] { return "copy for a checkpoint"; });
        StartSaving();
        range.reset();
      }
      TellProfile(stop ? profile.Finish() : profile.End());
      if (stop) return true;
    }
    return false;
  }

  bool CheckpointIsDue() const {
    if (!writer_) return false;
    if (config_.save_steps > 0 && (step_ + 1) % config_.save_steps == 0) return true;
    const double interval_s = setup_.surroundings.checkpoint_interval_s;
    return interval_s > 0 && !writer_->busy() &&
           Seconds(Clock::now() - last_checkpoint_time_) >= interval_s;
  }

  bool EvaluationIsDue() const {
    return config_.eval_interval > 0 &&
           (step_ % config_.eval_interval == 0 || step_ == config_.max_steps);
  }

  // Seconds that gathers and sums were waited for since the last call.
  double TakeWaited() {
    double waited_s = 0;
    for (const auto* flats : {&engine_.flats(), &engine_.model_flats()}) {
      for (const std::unique_ptr<FlatParam>& flat : *flats) waited_s += flat->TakeWaited();
    }
    return waited_s;
  }

  // Mean loss over the targets of the rows to evaluate on, or none if a stop was requested
  // meanwhile; collective, the same on every rank.
  std::optional<double> Evaluate() {
    double loss = 0;
    int64_t targets = 0;
    for (auto& [reader, rows] : evaluations_) {
      for (int64_t first = 0; first < rows; first += config_.global_batch_size) {
        absl::StatusOr<StepBatches> batches = reader.Read(first);
        TORCH_CHECK(batches.ok(), std::string(batches.status().message()));
        loss += engine_.Evaluate(batches->micro) * static_cast<double>(batches->target_tokens);
        targets += batches->target_tokens;
        TakeWaited();  // it is no step's
        if (OnAny(world_, stop_requested != 0)) return std::nullopt;
      }
    }
    double sum = 0;
    for (const std::vector<double>& row : world_.GatherRows({loss})) sum += row[0];
    return sum / static_cast<double>(std::max<int64_t>(1, targets));
  }

  // A profile that can't be written is no reason to end a run.
  void TellProfile(const absl::StatusOr<std::string>& path) {
    if (!path.ok()) std::fprintf(stderr, "%s\n", std::string(path.status().message()).c_str());
    if (!path.ok() || path->empty() || !Leads()) return;
    std::printf("profile path=%s\n", path->c_str());
    std::fflush(stdout);
  }

  void DumpTokens() {
    if (dump_fd_ < 0) return;
    absl::StatusOr<std::vector<int32_t>> ids = batches_->ReadIds(next_sequence_);
    TORCH_CHECK(ids.ok(), std::string(ids.status().message()));
    const ssize_t bytes = static_cast<ssize_t>(ids->size() * sizeof(int32_t));
    TORCH_CHECK(::write(dump_fd_, ids->data(), static_cast<size_t>(bytes)) == bytes,
                "cannot write the token dump");
  }

  // What a step is reported with, beside its batches.
  struct StepReport {
    double loss = 0, z_loss = 0, norm = 0, learning_rate = 0, step_s = 0;
    double data_wait_s = 0;  // until the batches were there
    double exposed_communication_s =
        0;                // this rank waited for others; on GPUs only what the host waited
    std::string skipped;  // why there was no update
    std::optional<double> eval_loss;
  };

  void Report(const StepReport& report, const StepBatches& batches) {
    ReportOwnTime(report);
    if (!Leads() || (step_ % config_.log_interval != 0 && step_ != config_.max_steps &&
                     !report.eval_loss && report.skipped.empty()))
      return;
    const double tokens_per_s = static_cast<double>(batches.tokens) / report.step_s;
    const MemoryUse memory = ReadMemoryUse(world_.device());
    ordered_json line = {{"step", step_},
                         {"total_steps", config_.max_steps},
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
    std::string text;
    char buffer[512];
    constexpr double kMiB = 1 << 20;
    std::snprintf(buffer, sizeof buffer,
                  "step=%lld total_steps=%lld loss=%.9g grad_norm=%.9g learning_rate=%.9g "
                  "tokens_per_s=%.0f step_time_s=%.4g memory_mib=%.0f memory_peak_mib=%.0f "
                  "exposed_communication_s=%.3g data_wait_s=%.3g",
                  static_cast<long long>(step_), static_cast<long long>(config_.max_steps),
                  report.loss, report.norm, report.learning_rate, tokens_per_s, report.step_s,
                  static_cast<double>(memory.now_bytes) / kMiB,
                  static_cast<double>(memory.peak_bytes) / kMiB, report.exposed_communication_s,
                  report.data_wait_s);
    text = buffer;
    if (config_.z_loss > 0) {
      line["z_loss"] = report.z_loss;
      std::snprintf(buffer, sizeof buffer, " z_loss=%.9g", report.z_loss);
      text += buffer;
    }
    if (!report.skipped.empty()) {
      line["skipped"] = report.skipped;
      text += absl::StrCat(" skipped_steps=", guard_.skipped());
    }
    if (config_.cuda_graphs && world_.device().is_cuda()) {
      line["graph_replays"] = engine_.replayed_micro_batches();
      text += absl::StrCat(" graph_replays=", engine_.replayed_micro_batches());
    }
    if (report.eval_loss) {
      line["eval_loss"] = *report.eval_loss;
      std::snprintf(buffer, sizeof buffer, " eval_loss=%.9g", *report.eval_loss);
      text += buffer;
    }
    if (peak_flops_ < 0) {
      peak_flops_ = config_.peak_tflops > 0 ? config_.peak_tflops * 1e12
                    : world_.device().is_cuda()
                        ? PeakFlops(DeviceName(world_.device()), config_.dtype == "bf16")
                        : 0;
    }
    if (peak_flops_ > 0) {
      const FlopsPerToken flops = ModelFlopsPerToken(
          setup_.model,
          batches.attended_tokens / static_cast<double>(std::max<int64_t>(1, batches.tokens)),
          adapter_parameters_);
      const double tokens_per_peak = tokens_per_s / (peak_flops_ * world_.size());
      line["mfu_causal"] = flops.causal * tokens_per_peak;
      line["mfu_full"] = flops.full * tokens_per_peak;
      std::snprintf(buffer, sizeof buffer, " mfu_causal=%.4f mfu_full=%.4f",
                    flops.causal * tokens_per_peak, flops.full * tokens_per_peak);
      text += buffer;
    }
    metrics_.Send(line);
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
    progress_.Send(line);
  }

  // Every rank tells how long its own part of the steps took, at most a few times a second, as the
  // mean of those since: what is slower than its gang shows there, while whole steps all take as
  // long as the slowest.
  void ReportOwnTime(const StepReport& report) {
    if (world_.size() == 1 || Env("MUSTER_PROGRESS_SOCKET").empty()) return;
    const Clock::time_point now = Clock::now();
    if (!std::exchange(own_begun_,
                       true)) {  // the first step warms up; a host's ranks don't speak all at once
      own_told_ = now - kOwnTimeInterval * world_.info().local_rank / world_.info().local_size;
      return;
    }
    own_s_ += std::max(0.0, report.step_s - report.exposed_communication_s);
    ++own_steps_;
    if (now - own_told_ < kOwnTimeInterval) return;
    own_told_ = now;
    const double mean_s =
        std::exchange(own_s_, 0) / static_cast<double>(std::exchange(own_steps_, 0));
    progress_.Send({{"rank", world_.rank()}, {"step", step_}, {"own_time_s", mean_s}});
  }

  // Copies the state of the current step and has it written beside the next ones; ends what is
  // still being written first.
  void StartSaving() {
    if (writer_->busy()) Tell(FinishSaving());
    if (untold_) PruneIfTold();
    CheckpointMeta meta;
    meta.step = step_;
    meta.next_sequence = next_sequence_;
    meta.seed = config_.seed;
    meta.recent_losses = guard_.recent();
    meta.packing_version = kPackingVersion;
    meta.data_fingerprint = setup_.DataFingerprint();
    meta.zero_stage = static_cast<int>(config_.zero_stage);
    meta.dtype = config_.dtype;
    meta.model = ToHuggingFace(setup_.model, config_.dtype == "bf16" ? "bfloat16" : "float32");
    meta.trainer = setup_.trainer;
    meta.source = setup_.init_directory;
    meta.tokenizer = setup_.TokenizerDirectory();
    last_checkpoint_time_ = Clock::now();
    writer_->Start(meta);
    if (!config_.save_in_background) Tell(FinishSaving());
  }

  CheckpointOutcome FinishSaving() {
    world_.SetTimeout(kStartTimeout);  // storage may be slower than any step
    CheckpointOutcome outcome = writer_->Finish();
    world_.SetTimeout(StepTimeout());
    return outcome;
  }

  // Returns once a checkpoint of the current step is published; false if that failed.
  bool SaveNow() {
    if (writer_->busy()) Tell(FinishSaving());
    if (last_checkpoint_step_ != step_) StartSaving();
    if (writer_->busy()) Tell(FinishSaving());
    return last_checkpoint_step_ == step_;
  }

  // Says that a checkpoint was published, or why not.
  void Tell(const CheckpointOutcome& outcome) {
    if (!outcome.status.ok()) {
      if (Leads())
        std::fprintf(stderr, "checkpoint of step %lld failed: %s\n",
                     static_cast<long long>(outcome.step),
                     std::string(outcome.status.message()).c_str());
      return;
    }
    last_checkpoint_step_ = outcome.step;
    if (!Leads()) return;
    std::printf("checkpoint step=%lld path=%s seconds=%.3f copy_s=%.3f\n",
                static_cast<long long>(outcome.step), outcome.path.c_str(), outcome.total_s,
                outcome.copy_s);
    std::fflush(stdout);
    ordered_json told = {{"step", outcome.step}, {"path", outcome.path}};
    if (loaded_step_ >= 0) told["loaded_step"] = loaded_step_, told["loaded_path"] = loaded_path_;
    progress_.Send({{"checkpoint", told}}, Progress::kDurable);
    PruneIfTold();
  }

  // Old checkpoints may go once the word of the newest is out: until then the scheduler knows no
  // other than those.
  void PruneIfTold() {
    untold_ = !progress_.Delivered();
    if (!untold_) writer_->Told(last_checkpoint_step_);
  }

  int ExportModel() {
    world_.SetTimeout(kStartTimeout);  // NCCL's clocks run from where a rank asks: the others ask
                                       // for all at once, rank 0 copies the model meanwhile
    engine_.UnshardAll();
    world_.SetTimeout(StepTimeout());
    // Rank 0 writes in a thread, so that the others need not wait for it in one long exchange. When
    // one of them has died nobody waits for the thread: it ends with the process.
    std::packaged_task<int()> task([this] { return WriteExport(); });
    std::future<int> written = task.get_future();
    if (Leads()) std::thread(std::move(task)).detach();
    Await(
        world_,
        [&](std::chrono::milliseconds moment) {
          return !Leads() || written.wait_for(moment) == std::future_status::ready;
        },
        nullptr);
    return Leads() ? written.get() : 0;
  }

  int WriteExport() {
    at::NoGradGuard no_grad;
    if (world_.device().is_cuda()) c10::cuda::set_device(world_.device().index());
    const bool managed = !setup_.surroundings.export_staging.empty();
    const std::string staged = managed ? setup_.surroundings.export_staging + "/export"
                                       : setup_.export_target + ".staging";
    const std::string unfinished = staged + ".unfinished";
    const AdapterExport adapters{&engine_.flats(), config_.lora, setup_.init_directory};
    const ReadParameter read = [&](int flat, int segment, int64_t first, at::Tensor out) {
      out.copy_(
          engine_.model_flats()[flat]->Weight(segment).view(-1).narrow(0, first, out.numel()));
      return absl::OkStatus();
    };
    const bool replaces = fs::exists(setup_.export_target + "/config.json");
    absl::Status status =
        StageExport(read, setup_.model, config_.dtype, setup_.TokenizerDirectory(),
                    setup_.init_directory, unfinished, config_.lora.on() ? &adapters : nullptr);
    if (status.ok()) status = ReplaceDirectory(unfinished, managed ? staged : setup_.export_target);
    if (!status.ok()) {
      std::fprintf(stderr, "export failed: %s\n", std::string(status.message()).c_str());
      return 1;
    }
    if (managed)
      std::printf("export staged=%s target=%s\n", staged.c_str(), setup_.export_target.c_str());
    else
      std::printf("exported to %s%s\n", setup_.export_target.c_str(),
                  replaces ? ", in place of the export that was there" : "");
    std::fflush(stdout);
    progress_.Send(
        {{"export",
          {{"staged", managed ? staged : setup_.export_target}, {"target", setup_.export_target}}}},
        Progress::kDurable);
    return 0;
  }

  Setup setup_;
  const TrainConfig& config_;
  World& world_;
  Progress progress_;
  MetricsFile metrics_;
  Engine engine_;
  Guard guard_;
  AdamW optimizer_;
  std::optional<ShardCheck> data_check_;
  std::optional<CheckpointWriter> writer_;  // none without a place for checkpoints
  std::optional<BatchReader> batches_;
  std::vector<std::pair<BatchReader, int64_t>> evaluations_;  // and how many rows
  int64_t step_ = 0, next_sequence_ = 0;
  int64_t loaded_step_ = -1, last_checkpoint_step_ = -1;
  std::string loaded_path_;
  bool untold_ = false;  // of rank 0: the line of the newest checkpoint waits in progress_
  Clock::time_point last_checkpoint_time_;
  int64_t adapter_parameters_ = 0;
  double peak_flops_ = -1;  // not looked up yet
  double own_s_ = 0;        // of own_steps_, since it was told last
  int64_t own_steps_ = 0;
  bool own_begun_ = false;
  Clock::time_point own_told_;
  int dump_fd_ = -1;
};

void ChooseThreads(int64_t wanted, int local_size) {
  const int64_t cores = std::max<unsigned>(1, std::thread::hardware_concurrency());
  at::set_num_threads(
      static_cast<int>(wanted > 0 ? wanted : std::max<int64_t>(1, cores / local_size)));
}

// What the command line says besides the configuration. `leads`: this rank writes the metrics.
void CheckFlags(const TrainOptions& options, bool leads, TrainConfig& config, Problems& problems) {
  if (!options.profile.empty() &&
      (!absl::SimpleAtoi(options.profile, &config.profile_steps) || config.profile_steps < 1)) {
    problems.push_back(
        {"--profile", absl::StrCat("must be a number of steps, from 1; got ", options.profile)});
  }
  if (!options.metrics.empty() && leads) {
    const std::string folder = fs::path(options.metrics).parent_path().string();
    if (::access(options.metrics.c_str(), W_OK) != 0 &&
        (errno != ENOENT || ::access(folder.empty() ? "." : folder.c_str(), W_OK) != 0)) {
      problems.push_back(
          {"--metrics", absl::StrCat(options.metrics, " can't be written: ", std::strerror(errno),
                                     "; name a file in a folder that is there")});
    }
  }
}

// Ends the process: destructors of a broken process group may wait for peers that are gone.
[[noreturn]] void Fail(const std::exception& e, int rank, World* world, Run* run, bool gpu) {
  const std::string message = Message(e);
  std::string blamed = world == nullptr ? "" : world->AnnouncedFailure();
  if (blamed.empty() && world != nullptr) world->AnnounceFailure(message);
  std::fprintf(stderr, "rank %d failed at step %lld: %s%s%s\n", rank,
               static_cast<long long>(run == nullptr ? 0 : run->step() + 1), message.c_str(),
               blamed.empty() ? "" : "\n  because of ", blamed.c_str());
  std::fflush(nullptr);
  if (run != nullptr) run->SendWhatIsKept();
  if (world != nullptr && gpu) {
    ::alarm(kAbortLimitS);
    world->Abort();
  }
  ::_exit(1);
}

}  // namespace

int Train(const TrainOptions& options) {
  const Clock::time_point begin = Clock::now();
  // A lost peer makes c10d warn with a stack trace for each of its sockets; what matters is said by
  // us, in one line.
  ::setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*overwrite=*/0);
  c10::initLogging();
  std::signal(SIGTERM, RequestStop);
  std::signal(SIGINT, RequestStop);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error like a full disk
  Problems problems;
  absl::StatusOr<WorldInfo> info = WorldInfo::FromEnvironment();
  if (!info.ok()) problems.push_back({"environment", std::string(info.status().message())});
  Setup setup = ReadSetup(options.config_path, problems);
  const absl::StatusOr<at::Device> chosen =
      info.ok() ? ChooseDevice(info->local_rank) : at::Device(at::kCPU);
  if (!chosen.ok()) problems.push_back({"environment", std::string(chosen.status().message())});
  const at::Device device = chosen.value_or(at::kCPU);
  if (info.ok())
    CheckLayout(setup.config, info->size, device.is_cuda(), ops::fused::Compiled(), problems);
  CheckFlags(options, info.ok() && info->rank == 0, setup.config, problems);
  if (!problems.empty()) return Refuse(options.config_path, problems);
  if (device.is_cuda())
    c10::cuda::set_device(device.index());  // what names no device means this rank's

  // The disk works while ranks meet and memory is made.
  std::thread read_ahead;
  if (!setup.surroundings.resume_from.empty()) {
    // A quarter of what is free for all ranks of the host: the page cache belongs to others as
    // well.
    const auto most = static_cast<size_t>(AvailableHostBytes() / 4 / info->local_size);
    read_ahead = std::thread([path = setup.surroundings.resume_from.front(), rank = info->rank,
                              size = info->size, most] { ReadAheadOf(path, rank, size, most); });
  }
  at::NoGradGuard no_grad;
  ops::fused::Allow(!setup.config.reference_ops);
  ChooseThreads(setup.config.threads, info->local_size);
  if (setup.config.deterministic)
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  std::unique_ptr<World> world;
  std::unique_ptr<Run> run;
  try {
    world = World::Connect(*info, device);
    world->MakeShardGroups(static_cast<int>(setup.config.shard_size));
    world->GatherRows({0});
    if (info->rank == 0) {
      std::printf("first_collective_s=%.3f ranks=%d backend=%s device=%s\n",
                  Seconds(Clock::now() - begin), info->size,
                  info->size == 1    ? "none"
                  : device.is_cuda() ? "nccl"
                                     : "gloo",
                  device.str().c_str());
      std::fflush(stdout);
    }
    if (device.is_cuda()) {
      world->WatchFailures([&](const std::string& why) {
        std::fprintf(stderr, "rank %d gives up waiting for others, because of %s\n", info->rank,
                     why.c_str());
        std::fflush(nullptr);
        ::alarm(kAbortLimitS);
        world->Abort();
        ::_exit(1);
      });
    }
    run =
        std::make_unique<Run>(std::move(setup), world.get(), options.dump_tokens, options.metrics);
    if (read_ahead.joinable()) read_ahead.join();
    const int code = run->Go();
    world->StopWatching();
    if (code != 0 && code != kRefused) world->AnnounceFailure("failed after its last step");
    // Rank 0 hosts the store and may not leave while others still look for it.
    world->GatherRows({0});
    return code;
  } catch (const std::exception& e) {
    if (read_ahead.joinable()) read_ahead.detach();
    Fail(e, info->rank, world.get(), run.get(), device.is_cuda());
  }
}

}  // namespace muster::trainer
