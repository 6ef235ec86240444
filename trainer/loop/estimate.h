// What a training run will need of each rank, said before anything runs: memory by class,
// communication and products a step. The model's weights and their state are counted exactly (by
// the rules of FlatParam and the slots of its schedules), activations and the working memory of the
// largest operations from the blocks' shapes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trainer/loop/config.h"
#include "trainer/model/config.h"

namespace muster::trainer {

struct MemoryClass {
  std::string name;
  int64_t bytes = 0;
  bool on_host = false;  // offloaded, on a GPU's host
};

// One stage of a pipeline.
struct StageEstimate {
  int64_t layers = 0, bytes = 0;         // bytes: of one of its ranks
  int64_t in_flight = 0;                 // micro-batches (of a stretch each) that it keeps at most
  std::vector<MemoryClass> memory = {};  // `bytes` by class, and what is on the host
};

struct Estimate {
  int64_t parameters = 0, trained_parameters = 0;
  int64_t micro_batch = 0, micro_batches = 0;  // rows, and how many of them a rank takes a step
  std::vector<MemoryClass> memory;             // of one rank of the stage that needs the most
  int stage = 0;                               // which that is
  std::vector<StageEstimate> stages;
  double bubble = 0;                           // share of a step in which a stage waits for others
  int64_t pipeline_bytes = 0;                  // that a rank sends other stages a step
  int64_t gather_bytes = 0, reduce_bytes = 0;  // that a rank sends a step
  int64_t slice_bytes = 0;                     // and inside layers that ranks share out
  int64_t context_bytes = 0;                   // and of keys and values, and their gradients
  int64_t expert_bytes = 0;                    // and to other ranks' experts
  double flops = 0;                            // a step, all ranks (mfu_causal's count)
  int64_t saving_bytes = 0;                    // of the host, while a checkpoint is being written
  // On the device, where a rank's experts meet twice as many tokens as the mean; 0: experts aren't
  // shared out, and each rank's meet its own tokens alone.
  int64_t uneven_bytes = 0;

  int64_t DeviceBytes() const;
};

// Share of a GPU's peak that training reaches, for predictions.
inline constexpr double kUsualShareOfPeak = 0.5;

// `gpus`: of ranks that have one each; otherwise on CPUs, where `runtime_bytes` is what the process
// takes before it trains.
Estimate MakeEstimate(const TrainConfig& config, const ModelConfig& model, int ranks, bool gpus,
                      int64_t runtime_bytes);
// The same with uneven_bytes, which is another estimate, and which no search asks for.
Estimate MakeWholeEstimate(const TrainConfig& config, const ModelConfig& model, int ranks,
                           bool gpus, int64_t runtime_bytes);

// The fewest changes, of those that cost nothing but time, with which a rank fits into
// `device_bytes` of a GPU: fields of `trainer:` as in a job file, and what it needs then. Nothing
// if it fits as it is, or with none of them.
struct Remedy {
  std::string fields;
  int64_t bytes = 0;
};
std::optional<Remedy> FindRemedy(const TrainConfig& config, const ModelConfig& model, int ranks,
                                 int64_t device_bytes);

// What the predicted times go by.
struct NamedHosts {
  std::string device;  // a GPU's name, or ""
  int ranks_per_host = 8;
  // That a GPU sends others of its host, and of other hosts, one way; 0: by its name.
  double within_bytes_per_s = 0, between_bytes_per_s = 0;
};
nlohmann::ordered_json ToJson(const Estimate& estimate, const TrainConfig& config,
                              const ModelConfig& model, int ranks, const NamedHosts& hosts);
std::string ToText(const Estimate& estimate, const TrainConfig& config, const ModelConfig& model,
                   int ranks, const NamedHosts& hosts);

struct EstimateOptions {
  std::string config_path, ranks = "1", device, json;
  std::string device_memory;  // of a GPU ("80GiB"): also tells what would make a rank that needs
                              // more fit; empty: as the device's name says
  std::string search;         // how many layouts to tell; empty: none are looked for
  std::string ranks_per_host = "8";
  std::string within_host, between_hosts;  // GB/s of a GPU, one way; empty: as the device's are
};
// `muster-trainer estimate`. Exit code 0, 3 where a rank doesn't fit, or 2 with all problems on
// stderr.
int RunEstimate(const EstimateOptions& options);

}  // namespace muster::trainer
