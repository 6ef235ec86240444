#include "trainer/loop/run.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>

#include "trainer/loop/engine_options.h"
#include "trainer/loop/export.h"
#include "trainer/loop/failures.h"
#include "trainer/loop/stop.h"
#include "trainer/model/lora.h"
#include "trainer/model/router_bias.h"
#include "trainer/parallel/range.h"

namespace muster::trainer {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

EngineOptions OptionsFor(const TrainConfig& config, const ModelConfig& model, const World& world) {
  EngineOptions options = MakeEngineOptions(config, model);
  SumAsTrees(config, world.mesh().dp(), &options.flats);
  const at::Device device = world.device();
  if (config.cuda_graphs && device.is_cuda()) options.graphs = CudaGraphs(device);
  return options;
}

// Adds what this rank counts of a micro-batch's pairs.
void AddPairs(const BatchMeta& batch, PairMeans& sums) {
  if (!batch.pairs || !batch.pairs->means.defined()) return;
  const at::Tensor its = batch.pairs->means.cpu();
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += its.data_ptr<double>()[i];
}

int64_t AdapterParameters(const TrainConfig& config, const ModelConfig& model) {
  int64_t sum = 0;
  if (config.lora.on()) {
    for (const FlatLayout& flat : MakeLoraLayout(model, config.lora).flats) sum += flat.numel();
  }
  return sum;
}

}  // namespace

Run::Run(Setup setup, World* world, const std::string& dump_tokens, const std::string& metrics)
    : setup_(std::move(setup)),
      config_(setup_.config),
      world_(*world),
      progress_(Env("MUSTER_PROGRESS_SOCKET")),
      engine_(setup_.model, world, OptionsFor(config_, setup_.model, *world)),
      guard_(config_.spike_factor, config_.skip_limit),
      optimizer_(engine_.flats(), {config_.adam_beta1, config_.adam_beta2, config_.adam_epsilon,
                                   config_.weight_decay}),
      learning_rate_{config_.lr_scheduler_type, config_.learning_rate, config_.WarmupSteps(),
                     config_.max_steps,         config_.min_lr_ratio,  config_.DecaySteps(),
                     config_.decay_type},
      reporter_(setup_, world_, progress_, AdapterParameters(config_, setup_.model), metrics),
      requests_(Leads() ? setup_.surroundings.requests : ""),
      saving_(setup_, world_, engine_.flats(), progress_, requests_) {
  const Mesh& mesh = world_.mesh();
  const int replica = mesh.DpIndex(world_.rank()), replicas = mesh.dp();
  const int taking = TreeRanksOf(config_, replicas);
  const ContextShare context{mesh.CpIndex(world_.rank()), mesh.cp(), config_.parallel.cp_sharding};
  const int64_t micro =
      ChooseMicroBatchSize(config_, SharePerRank(config_.global_batch_size, replicas));
  batches_.emplace(setup_.packer.get(), config_.global_batch_size, micro, replica, replicas,
                   world_.device(), /*rows=*/-1, context, taking);
  if (Leads() && taking > 0 && taking < replicas)
    std::fprintf(stderr,
                 "note: deterministic: elastic: of %d ranks %d compute; of %d units of the layout "
                 "%d do, the largest power of two that divides the step's %lld parts\n",
                 world_.size(), world_.size() / replicas * taking, mesh.units(),
                 TreeUnitsOf(config_, replicas), static_cast<long long>(TreeParts(config_)));
  for (const Setup::Evaluation& one : setup_.evaluations) {
    const int64_t rows = RowsToEvaluate(one.packer->rows_per_epoch());
    evaluations_.emplace_back(BatchReader(one.packer.get(), config_.global_batch_size, micro,
                                          replica, replicas, world_.device(), rows, context),
                              rows);
  }
  if (world_.info().local_rank == 0) {  // one process a host
    std::vector<const TokenShards*> shards;
    for (const auto& one : setup_.shards) shards.push_back(one.get());
    for (const Setup::Evaluation& one : setup_.evaluations) shards.push_back(one.shards.get());
    data_check_.emplace(std::move(shards));
  }
  if (Leads() && engine_.slots_are_registered())
    std::fprintf(stderr,
                 "note: weights and gradients are gathered and summed in memory that is registered "
                 "with NCCL (NCCL_LOCAL_REGISTER=0 in the job's env: in plain memory's way)\n");
  if (Leads() && !dump_tokens.empty()) {
    dump_fd_ = ::open(dump_tokens.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    TORCH_CHECK(dump_fd_ >= 0, "cannot open ", dump_tokens);
  }
}

Run::~Run() {
  if (dump_fd_ >= 0) ::close(dump_fd_);
}

int64_t Run::RowsToEvaluate(int64_t all) const {
  return config_.eval_sequences > 0 ? std::min(config_.eval_sequences, all) : all;
}

// Before any checkpoint is loaded: the reference is of the weights that training starts from. False
// if a stop was requested meanwhile.
bool Run::MakeReferences() {
  if (Leads() && !setup_.packer->note().empty())
    std::fprintf(stderr, "note: %s\n", setup_.packer->note().c_str());
  if (!config_.dpo.on() || config_.lora.on()) return true;
  const Mesh& mesh = world_.mesh();
  const auto make = [&](const TokenShards& shards, Packer* packer) {
    BatchReader reader(
        packer, config_.global_batch_size,
        ChooseMicroBatchSize(config_, SharePerRank(config_.global_batch_size, mesh.dp())),
        mesh.DpIndex(world_.rank()), mesh.dp(), world_.device(), packer->rows_per_epoch(),
        /*context=*/{}, TreeRanksOf(config_, mesh.dp()));
    return MakeReference(setup_, world_, engine_, shards, reader, packer->rows_per_epoch());
  };
  std::optional<Logps> one = make(*setup_.shards[0], setup_.packer.get());
  if (!one) return false;
  reference_ = *std::move(one);
  for (const Setup::Evaluation& evaluation : setup_.evaluations) {
    one = make(*evaluation.shards, evaluation.packer.get());
    if (!one) return false;
    evaluations_references_.push_back(*std::move(one));
  }
  return true;
}

// Of LoRA's batches the frozen model says it now; else it is `known`.
void Run::FindReference(const StepBatches& batches, const Logps& known) {
  if (!config_.dpo.on()) return;
  const Range range([] { return "reference"; });
  if (config_.lora.on())
    engine_.FindReference(batches.micro);
  else
    GiveReference(known, batches.micro);
}

int Run::Go() {
  if (!MakeReferences()) {
    if (Leads()) std::printf("stopped_at_step=0\n");
    return 0;
  }
  const Beginning beginning = LoadWeights(setup_, world_, engine_, progress_);
  if (!beginning.problems.empty()) {
    if (Leads()) Refuse("resume", beginning.problems);
    return kRefused;
  }
  if (!beginning.path.empty()) {
    step_ = beginning.state.step;
    next_sequence_ = beginning.state.next_sequence;
    guard_.Restore(beginning.state.recent_losses);
    saving_.Loaded(step_, beginning.path);
  }
  if (Leads() && step_ == config_.max_steps) {
    std::fprintf(
        stderr, "note: %s is of step %lld, and max_steps is %lld: there is nothing left to train\n",
        beginning.path.c_str(), static_cast<long long>(step_),
        static_cast<long long>(config_.max_steps));
  }
  const bool stopped = Steps();
  optimizer_.Finish();
  const bool finished = step_ >= config_.max_steps;
  if (saving_.on() && (stopped || finished) && !saving_.SaveNow(State(), stopped)) return 1;
  if (!finished || !AwaitDataCheck()) {
    if (Leads()) std::printf("stopped_at_step=%lld\n", static_cast<long long>(step_));
    return 0;
  }
  return setup_.export_target.empty() ? 0 : ExportModel(setup_, world_, engine_, progress_);
}

// Throws if data was found to be damaged.
void Run::CheckData() {
  if (data_check_)
    TORCH_CHECK(data_check_->Found().ok(), std::string(data_check_->Found().message()));
}

// Whether all data is verified. False if a stop was requested first: what is trained is in a
// checkpoint, and a run that goes on from there verifies anew.
bool Run::AwaitDataCheck() {
  const auto done = [this](std::chrono::milliseconds moment) {
    const bool verified = !data_check_ || data_check_->WaitFor(moment);
    CheckData();
    return verified;
  };
  return Await(world_, done, StopRequested);
}

StepBatches Run::ReadBatches(StepReport& report) {
  const Range range([] { return "read the batch"; });
  const Clock::time_point begin = Clock::now();
  absl::StatusOr<StepBatches> batches = batches_->Read(next_sequence_);
  TORCH_CHECK(batches.ok(), std::string(batches.status().message()));
  report.data_wait_s = SecondsSince(begin);
  return *std::move(batches);
}

// Afterwards the gradients are summed, and all ranks know what all told.
StepExchange Run::ForwardAndBackward(const StepBatches& batches, StepReport& report) {
  StepExchange mine;
  FindReference(batches, reference_);
  const EngineLoss loss = engine_.Run(batches.micro);
  for (const BatchMeta& batch : batches.micro) AddPairs(batch, mine.pairs);
  mine.loss = loss.loss, mine.z_loss = loss.z, mine.aux_loss = loss.balance;
  {
    const Range range([] { return "gradient norm"; });
    mine.squared_norm = ShardSquaredNorm(engine_.flats());
  }
  mine.stop = StopRequested();
  mine.checkpoint = (Leads() && saving_.IsDue(step_ + 1)) || saving_.WantsAnew();
  mine.unsynced = saving_.unsynced();
  mine.profile_steps = requests_.TakeProfile();
  const Range range([] { return "exchange with other ranks"; });
  const Clock::time_point begin = Clock::now();
  StepExchange all = Exchange(world_, mine, saving_.Mine());
  if (world_.size() > 1) report.exposed_communication_s = SecondsSince(begin);
  report.exposed_communication_s += TakeWaited();
  return all;
}

// One update, unless the step isn't fit to be learned from. Of offloaded state it goes on beside
// the next forward pass.
void Run::Update(const StepExchange& all, StepReport& report) {
  report.loss = all.loss, report.z_loss = all.z_loss, report.aux_loss = all.aux_loss,
  report.norm = std::sqrt(all.squared_norm.Value());
  report.pairs = all.pairs;
  report.skipped = guard_.Judge(report.loss, report.norm);
  report.skipped_steps = guard_.skipped();
  TORCH_CHECK(guard_.MaySkip(), report.skipped,
              "; lower learning_rate, use dtype: fp32, or let skip_limit pass over such steps");
  report.learning_rate = learning_rate_.At(step_);
  const Range range([] { return "optimizer"; });
  if (report.skipped.empty()) {
    optimizer_.Start(step_ + 1, report.learning_rate,
                     ClipCoefficient(report.norm, config_.max_grad_norm));
    MoveRouterBiases(engine_.flats(), config_.router_bias_speed);
  } else if (Leads()) {
    std::fprintf(stderr, "step %lld skipped: %s\n", static_cast<long long>(step_ + 1),
                 report.skipped.c_str());
  }
}

// Runs to the last step or to a stop. Returns whether it was stopped.
bool Run::Steps() {
  saving_.Begin();
  Profile profile(config_.profile_steps, config_.max_steps - step_,
                  setup_.surroundings.Resolve("profile"), world_.rank(), world_.device().is_cuda());
  while (step_ < config_.max_steps) {
    profile.Begin(step_ + 1);
    const Clock::time_point begin = Clock::now();
    StepReport report;
    const StepBatches batches = ReadBatches(report);
    DumpTokens();
    if (step_ + 1 < config_.max_steps)
      batches_->ReadAhead(next_sequence_ + config_.global_batch_size);
    const StepExchange all = ForwardAndBackward(batches, report);
    CheckData();
    saving_.Take(all.writers, all.unsynced);
    Update(all, report);
    ++step_;
    next_sequence_ += config_.global_batch_size;
    if (std::exchange(first_, false)) {
      world_.SetTimeout(config_.StepTimeout());
      saving_.SyncLoaded();
    }
    report.step = step_;
    report.step_s = SecondsSince(begin);
    report.graph_replays = engine_.replayed_micro_batches();
    bool stop = all.stop;
    if (EvaluationIsDue() && !stop) {
      if (step_ == config_.max_steps && saving_.on()) {
        optimizer_.Finish();
        saving_.SaveNow(State());  // first what may not be lost
      }
      const Range range([] { return "evaluate"; });
      report.evaluated = Evaluate();
      stop = !report.evaluated;
    }
    reporter_.Report(report, batches);
    stop = stop && step_ < config_.max_steps;
    if (all.checkpoint && !stop && step_ < config_.max_steps) {
      const Range range([] { return "copy for a checkpoint"; });
      optimizer_.Finish();
      saving_.Start(State());
    }
    TellProfile(stop ? profile.Finish() : profile.End());
    profile.Ask(all.profile_steps, config_.max_steps - step_);
    if (stop) return true;
  }
  return false;
}

bool Run::EvaluationIsDue() const {
  return config_.eval_interval > 0 &&
         (step_ % config_.eval_interval == 0 || step_ == config_.max_steps);
}

// Seconds that gathers and sums were waited for since the last call.
double Run::TakeWaited() {
  double waited_s = TensorGroup::TakeWaited() + engine_.TakeWaited();
  for (const auto* flats : {&engine_.flats(), &engine_.model_flats()}) {
    for (const std::unique_ptr<FlatParam>& flat : *flats) waited_s += flat->TakeWaited();
  }
  return waited_s;
}

// Means over the targets, or pairs, of the rows to evaluate on, or none if a stop was requested
// meanwhile; collective, the same on every rank.
std::optional<Evaluated> Run::Evaluate() {
  double loss = 0, right = 0;
  int64_t averaged = 0;
  for (size_t i = 0; i < evaluations_.size(); ++i) {
    auto& [reader, rows] = evaluations_[i];
    for (int64_t first = 0; first < rows; first += config_.global_batch_size) {
      absl::StatusOr<StepBatches> batches = reader.Read(first);
      TORCH_CHECK(batches.ok(), std::string(batches.status().message()));
      FindReference(*batches, config_.lora.on() || !config_.dpo.on() ? reference_
                                                                     : evaluations_references_[i]);
      loss += engine_.Evaluate(batches->micro) * static_cast<double>(batches->averaged);
      averaged += batches->averaged;
      PairMeans means = {};
      for (const BatchMeta& batch : batches->micro) AddPairs(batch, means);
      right += means[2] * static_cast<double>(batches->averaged);
      TakeWaited();  // it is no step's
      if (OnAny(world_, StopRequested())) return std::nullopt;
    }
  }
  Evaluated sum;
  for (const std::vector<double>& row : world_.GatherRows({loss, right}))
    sum.loss += row[0], sum.accuracy += row[1];
  const auto count = static_cast<double>(std::max<int64_t>(1, averaged));
  return Evaluated{sum.loss / count, sum.accuracy / count};
}

// A profile that can't be written is no reason to end a run.
void Run::TellProfile(const absl::StatusOr<std::string>& path) {
  if (!path.ok()) std::fprintf(stderr, "%s\n", std::string(path.status().message()).c_str());
  if (!path.ok() || path->empty() || !Leads()) return;
  std::printf("profile path=%s\n", path->c_str());
  std::fflush(stdout);
}

void Run::DumpTokens() {
  if (dump_fd_ < 0) return;
  absl::StatusOr<std::vector<int32_t>> ids = batches_->ReadIds(next_sequence_);
  TORCH_CHECK(ids.ok(), std::string(ids.status().message()));
  const ssize_t bytes = static_cast<ssize_t>(ids->size() * sizeof(int32_t));
  TORCH_CHECK(::write(dump_fd_, ids->data(), static_cast<size_t>(bytes)) == bytes,
              "cannot write the token dump");
}

}  // namespace muster::trainer
