// Hugging Face directories: weights in (model.safetensors, or shards with
// model.safetensors.index.json) and out (config.json, generation_config.json, model.safetensors,
// tokenizer files), to a directory or an object store.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/model/config.h"
#include "trainer/model/families.h"
#include "trainer/model/lora_config.h"

namespace muster::trainer {

// The weights of a directory, mapped. Immutable; thread-safe.
class HuggingFaceWeights {
 public:
  // Opens all files and checks that every parameter of `layouts` is there with its shape;
  // everything wrong is added to `problems` under `path`. Experts may stand one by one, as
  // transformers writes them, or all of a layer in one tensor, as it has them in memory; q, k and
  // v, and gate and up, may be one matrix, as Phi-3 has them. With a
  // tied head one of the embedding and lm_head.weight is enough, as it is for transformers: they
  // are the same weights. Where `layouts` have linears that stand apart, those may be saved in NF4
  // by bitsandbytes; `nested`: with nested scales. `draws_score`: the weights of a score may be
  // lacking, and a head of tokens is left.
  static HuggingFaceWeights Open(const std::string& directory,
                                 const std::vector<FlatLayout>& layouts, bool tied,
                                 const std::string& path, Problems& problems, bool nested = false,
                                 bool draws_score = false);
  bool Has(const std::string& name) const { return where_.contains(name); }
  // Fills the masters of a flat, converted to fp32, with zeros where a score is lacking; or
  // quantises.
  void Read(FlatParam& flat) const;
  // Units [first, first + count) of a parameter of `numel` elements, which are rounded to `type`
  // before they are quantised; as they are saved, if they are so.
  Nf4Units ReadUnits(const std::string& name, int64_t numel, Quantisation kind, at::ScalarType type,
                     int64_t first, int64_t count) const;
  // Copies elements [begin, begin + n) of a parameter of the layouts to `out`, converted to fp32.
  void ReadRange(const std::string& name, int64_t begin, int64_t n, float* out) const;
  // The type of all its parameters as `dtype` of a checkpoint (fp32, bf16, fp16); of several, the
  // one that holds all.
  std::string Dtype() const;

 private:
  // A tensor as it is stored, or from an element on a part of one.
  struct Tensor {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
    std::vector<int64_t> shape;
    int64_t begin = 0;
  };
  void SplitExperts(const ExpertWords& words);
  // What is wrong; "": nothing.
  std::string SplitJoined(const std::vector<FlatLayout>& layouts);
  std::span<const uint8_t> Bytes(const std::string& name) const;
  std::vector<float> Floats(const std::string& name) const;
  std::string ReadState(const std::string& name, const std::vector<int64_t>& shape, bool nested);
  void TakeQuantised(const std::vector<FlatLayout>& layouts, bool nested,
                     std::vector<std::string>& wrong);
  void CopyUnits(const std::string& name, Quantisation kind, int64_t first,
                 const at::Tensor& rows) const;
  void ReadQuantised(FlatParam& flat) const;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<const SafetensorsFile*, std::string> paths_;
  std::map<std::string, Tensor> where_;  // by the name of the parameter
  // Of parameters that are saved in NF4: what their units have in common, and the tensors beside
  // them.
  std::map<std::string, Nf4Common> quantised_;
  std::map<std::string, Tensor> beside_;
};

// Adapters that an export merges into the weights, and saves beside them in adapter/ for peft.
struct AdapterExport {
  const Flats* flats;  // gathered
  LoraConfig config;
  std::string base_model;  // what training started from
};

// Elements [begin, begin + out.numel()) of segment `segment` of the model's flat `flat`, as fp32 on
// the host. An export reads every segment once, in order, some rows at a time.
using ReadParameter =
    std::function<absl::Status(int flat, int segment, int64_t begin, at::Tensor out)>;

// An export whose layers' linears are in NF4, as bitsandbytes saves them.
struct Nf4Export {
  const HuggingFaceWeights* weights;  // all of the model's, not quantised
  bool nested = true;                 // scales are
};

struct ExportOptions {
  // Of the weights: fp32, bf16 or fp16.
  std::string dtype = {};
  // Directory whose files are copied, weights and large ones aside, or "".
  std::string tokenizer = {};
  // Directory the training started from, whose generation_config.json is kept, or "".
  std::string source = {};
  const AdapterExport* adapters = nullptr;
  // Where it is given, weights come from there, and go into one file.
  const Nf4Export* nf4 = nullptr;
  // Weights of more bytes go into several files, with an index; a tensor that is larger into one of
  // its own.
  int64_t most_file_bytes = std::numeric_limits<int64_t>::max();
};

// Writes a model whole into the directory `staging` (removed first), fsynced; the caller moves it.
// Takes little memory beside what `read` takes.
absl::Status StageExport(const ReadParameter& read, const ModelConfig& config,
                         const ExportOptions& options, const std::string& staging);

// Writes a model to a place in an object store (push.h), config.json last. Whether it takes an
// earlier one's place.
absl::StatusOr<bool> PushExport(const ReadParameter& read, const ModelConfig& config,
                                ExportOptions options, const std::string& place);

// Whether a tokenizer of the kinds that transformers knows lies in `directory`, and all that goes
// along with it can be read.
bool HasTokenizer(const std::string& directory);

// Writes the weights of `config`'s model, those of the directory `source`, as a checkpoint of step
// 0 without an optimizer, in little memory, to `staging` (removed first), fsynced; the caller moves
// it. It remembers `source`, for what an export of it takes along.
absl::Status StageCheckpoint(const HuggingFaceWeights& weights, const ModelConfig& config,
                             const std::string& source, const std::string& staging);

}  // namespace muster::trainer
