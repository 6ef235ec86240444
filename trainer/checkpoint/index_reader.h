// What the two kinds of index say that the trainer reads: a checkpoint's index.json, and
// model.safetensors.index.json of a Hugging Face directory. Nothing of them is trusted: no file
// outside the directory, no piece outside its file or tensor, none twice, none lacking. Needs no
// torch. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "trainer/parallel/slice.h"

namespace muster::trainer {

inline constexpr char kCheckpointFormat[] = "muster-checkpoint-1";
// Of an index that has slices; one without stays readable for those that know none.
inline constexpr char kSlicedFormat[] = "muster-checkpoint-2";
// How far lists and objects of an index may nest; what a job file and a config.json hold nests in
// it.
inline constexpr int kIndexDepth = 64;

// What a checkpoint says beside its tensors.
struct CheckpointMeta {
  int64_t step = 0;           // optimizer steps done
  int64_t next_sequence = 0;  // data cursor: the first sequence not trained on yet
  int64_t seed = 0;
  std::vector<double> recent_losses;  // trainer/loop/guard.h
  int packing_version = 0;
  std::string data_fingerprint;
  int zero_stage = 0;
  std::string dtype;       // of the weights: fp32, bf16 or fp16
  bool optimizer = true;   // false: the moments are zero and not in the files
  nlohmann::json model;    // config.json content
  nlohmann::json trainer;  // the `trainer:` map; null for a converted model
  // Directories that an export takes more than weights from, as they were called then; empty: none.
  std::string
      source;  // the Hugging Face directory that training started from, or that was converted
  std::string tokenizer;  // the tokenizer's files
};

// A checkpoint's index.json.
struct CheckpointIndex {
  struct File {
    std::string name;  // in the checkpoint's directory
    uint64_t size_bytes = 0;
    uint32_t crc32c = 0;
  };
  // `numel` elements from `tensor_begin` of the tensor, or of a slice of it, are at `file_begin` of
  // flat `flat` in file `file`. They end inside both, and no two pieces share an element.
  struct Piece {
    int file = 0, flat = 0;
    int64_t tensor_begin = 0, file_begin = 0, numel = 0;
    std::optional<Slice> slice = {};  // all slices of a tensor are of one dimension, and apart
  };
  struct Tensor {
    std::vector<int64_t> shape;  // all >= 1; their product times 4 fits int64_t
    std::vector<Piece> pieces;   // make up the tensor
  };
  CheckpointMeta meta;
  std::vector<File> files;
  std::map<std::string, Tensor> tensors;
};

// Reads an index and checks its checksum and all that is said above; DataLoss says what is wrong.
absl::StatusOr<CheckpointIndex> ReadIndex(const std::string& text);

// The text of `index` with its own checksum in it.
std::string SealedIndex(nlohmann::json index);

// Where a model.safetensors.index.json means each tensor to be: names of files in its directory.
// What is wrong is added to `problems`.
std::map<std::string, std::string> WeightMapIn(const std::string& index_text,
                                               std::vector<std::string>& problems);

}  // namespace muster::trainer
