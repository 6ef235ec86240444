// LoRA's adapters as flats: where they stand, how they begin, how they are saved and merged.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trainer/model/blocks.h"
#include "trainer/model/lora_config.h"
#include "trainer/parallel/flat_param.h"

namespace muster::trainer {

// The flats of each block that has adapters, as Family::Layout has the model's: of a slice, the
// matrix on the side that is shared out is sliced, and the other is alike on all ranks. Segments
// have peft's names ("base_model.model.MODULE.lora_A.weight").
ModelLayout MakeLoraLayout(const ModelConfig& model, const LoraConfig& config,
                           const ModelPart& part = {});

// The adapters in `flats`, by module name.
std::map<std::string, Adapter> FindAdapters(const std::vector<std::unique_ptr<FlatParam>>& flats);

// A from uniform(-1/sqrt(in), 1/sqrt(in)), B zero, as peft has it; a pure function of (seed, name,
// element).
void InitialiseAdapters(FlatParam& flat, uint64_t seed);

// w + scale·B·A, in fp32, in the type of w.
at::Tensor Merged(const at::Tensor& w, const Adapter& adapter, double scale);

// Writes `directory` as a peft adapter: adapter_config.json and adapter_model.safetensors. The
// flats must be gathered. `before_file` is called before each of the two; an error ends it there.
absl::Status SaveAdapter(const std::vector<std::unique_ptr<FlatParam>>& flats,
                         const LoraConfig& config, const std::string& base_model,
                         const std::string& directory,
                         const std::function<absl::Status()>& before_file);

}  // namespace muster::trainer
