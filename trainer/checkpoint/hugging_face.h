// Hugging Face directories: weights in (model.safetensors, or shards with model.safetensors.index.json) and out
// (config.json, generation_config.json, model.safetensors, tokenizer files).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/model/config.h"
#include "trainer/model/lora_config.h"

namespace muster::trainer {

// The weights of a directory, mapped. Immutable; thread-safe.
class HuggingFaceWeights {
 public:
  // Opens all files and checks that every parameter of `layouts` is there with its shape; everything wrong is added to
  // `problems` under `path`.
  static HuggingFaceWeights Open(const std::string& directory, const std::vector<FlatLayout>& layouts, bool tied, const std::string& path,
                                 Problems& problems);
  // Fills the masters of a flat, converted to fp32.
  void Read(FlatParam& flat) const;

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*> where_;
};

// Adapters that an export merges into the weights, and saves beside them in adapter/ for peft.
struct AdapterExport {
  const Flats* flats;  // gathered
  LoraConfig config;
  std::string base_model;  // what training started from
};

// Writes the model to `target`: staged whole in `staging` (removed first), fsynced; the caller moves it. The flats must be
// gathered. `tokenizer`: directory whose files are copied, or "". `source`: directory the training started from, whose
// generation_config.json is kept, or "".
absl::Status StageExport(const Flats& flats, const ModelConfig& config, const std::string& tokenizer, const std::string& source,
                         const std::string& staging, const AdapterExport* adapters = nullptr);

}  // namespace muster::trainer
