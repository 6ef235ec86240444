// What reading and writing Hugging Face directories have in common.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/ATen.h>

#include "absl/status/status.h"
#include "trainer/checkpoint/hugging_face.h"

namespace muster::trainer {

inline constexpr int64_t kChunkElements = int64_t{1} << 20;  // that are converted at once
inline constexpr char kSingle[] = "model.safetensors";
inline constexpr char kIndex[] = "model.safetensors.index.json", kConfig[] = "config.json";
// Behind the name of a weight that bitsandbytes has quantised: that of its state, as JSON.
inline constexpr char kNf4State[] = ".quant_state.bitsandbytes__nf4";

// Of a type's name in a safetensors file; Undefined where no weights are read of it.
at::ScalarType TorchType(const std::string& dtype);
// Of a checkpoint's dtype (fp32, bf16, fp16): its name in torch, and in a safetensors file.
const char* TorchName(const std::string& dtype);
const char* FileType(const std::string& dtype);

// Writes all weights of a model into one file, tensor by tensor.
absl::Status WriteNf4Weights(const Nf4Export& nf4, const ModelConfig& config,
                             const std::string& dtype, const std::string& path);

}  // namespace muster::trainer
