// How a checkpoint's files are named, and its index as it is written; index_reader.h reads it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "trainer/checkpoint/index_reader.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/parallel/flat_param.h"

namespace muster::trainer {

// What a rank's file has of each flat, in this order; the last two only where
// `CheckpointMeta::optimizer`.
inline constexpr const char* kCheckpointKinds[] = {"master", "exp_avg", "exp_avg_sq"};

// "step-00000041"
std::string CheckpointName(int64_t step);
// "rank-00001-of-00004.safetensors"
std::string RankFileName(int rank, int size);
// "flat.3.exp_avg"
std::string FlatTensorName(int flat, const char* kind);

// Elements [begin, end) of flat `flat` that rank `rank`'s file has.
using Shares = std::function<std::pair<int64_t, int64_t>(int flat, int rank)>;
// Where each parameter's elements are: global tensor -> ranges of flats in files. `layouts`: of
// each rank, which may have other parts of the model than the others; flats are counted by rank.
using RankLayouts = std::vector<const FlatLayout*>;
nlohmann::json TensorMap(const std::vector<RankLayouts>& layouts, const Shares& shares);

// index.json's text, with its own checksum in it. files: of the ranks.
std::string IndexText(const CheckpointMeta& meta, const std::vector<WrittenFile>& files,
                      nlohmann::json tensors);

}  // namespace muster::trainer
