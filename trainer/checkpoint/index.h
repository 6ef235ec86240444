// How a checkpoint's files are named and what its index says; for those who write checkpoints and those who read them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "trainer/checkpoint/safetensors.h"
#include "trainer/parallel/flat_param.h"

namespace muster::trainer {

inline constexpr char kCheckpointFormat[] = "muster-checkpoint-1";
// What a rank's file has of each flat, in this order; the last two only where `CheckpointMeta::optimizer`.
inline constexpr const char* kCheckpointKinds[] = {"master", "exp_avg", "exp_avg_sq"};

// What a checkpoint says beside its tensors.
struct CheckpointMeta {
  int64_t step = 0;           // optimizer steps done
  int64_t next_sequence = 0;  // data cursor: the first sequence not trained on yet
  int64_t seed = 0;
  std::vector<double> recent_losses;  // trainer/loop/guard.h
  int packing_version = 0;
  std::string data_fingerprint;
  int zero_stage = 0;
  std::string dtype;          // of the weights: fp32, bf16 or fp16
  bool optimizer = true;      // false: the moments are zero and not in the files
  nlohmann::json model;       // config.json content
  nlohmann::json trainer;     // the `trainer:` map; null for a converted model
  // Directories that an export takes more than weights from, as they were called then; empty: none.
  std::string source;         // the Hugging Face directory that training started from, or that was converted
  std::string tokenizer;      // the tokenizer's files
};

// "step-00000041"
std::string CheckpointName(int64_t step);
// "rank-00001-of-00004.safetensors"
std::string RankFileName(int rank, int size);
// "flat.3.exp_avg"
std::string FlatTensorName(int flat, const char* kind);

// Elements [begin, end) of flat `flat` that rank `rank`'s file has.
using Shares = std::function<std::pair<int64_t, int64_t>(int flat, int rank)>;
// Where each parameter's elements are: global tensor -> ranges of flats in files.
nlohmann::json TensorMap(const std::vector<const FlatLayout*>& layouts, int ranks, const Shares& shares);

// index.json's text, with its own checksum in it. files: of the ranks.
std::string IndexText(const CheckpointMeta& meta, const std::vector<WrittenFile>& files, nlohmann::json tensors);

}  // namespace muster::trainer
