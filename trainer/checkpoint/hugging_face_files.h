// What reading and writing Hugging Face directories have in common.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/ATen.h>

namespace muster::trainer {

inline constexpr int64_t kChunkElements = int64_t{1} << 20;  // that are converted at once
inline constexpr char kSingle[] = "model.safetensors";
inline constexpr char kIndex[] = "model.safetensors.index.json", kConfig[] = "config.json";

// Of a type's name in a safetensors file; Undefined where no weights are read of it.
at::ScalarType TorchType(const std::string& dtype);

}  // namespace muster::trainer
