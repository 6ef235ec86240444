#include "trainer/checkpoint/hugging_face.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "trainer/model/experts_config.h"
#include "trainer/model/family.h"
#include "trainer/model/lora.h"
#include "trainer/model/reward.h"

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kChunkElements = int64_t{1} << 20;  // that are converted at once
constexpr char kSingle[] = "model.safetensors";
constexpr char kEmbedding[] = "model.embed_tokens.weight", kHead[] = "lm_head.weight";
constexpr char kIndex[] = "model.safetensors.index.json";

at::ScalarType TorchType(const std::string& dtype) {
  if (dtype == "F32") return at::kFloat;
  if (dtype == "BF16") return at::kBFloat16;
  if (dtype == "F16") return at::kHalf;
  if (dtype == "F64") return at::kDouble;
  return at::ScalarType::Undefined;
}

// The directory's weight files.
std::vector<std::string> WeightFiles(const std::string& directory, const std::string& path,
                                     Problems& problems) {
  if (!fs::exists(directory + "/" + kIndex)) {
    if (!fs::exists(directory + "/" + kSingle)) {
      const bool pickled = fs::exists(directory + "/pytorch_model.bin") ||
                           fs::exists(directory + "/pytorch_model.bin.index.json");
      problems.push_back(
          {path,
           absl::StrCat(
               directory, " holds neither ", kSingle, " nor ", kIndex,
               pickled ? "; load it in transformers and save_pretrained() it, which writes them"
                       : "; download the weights, too")});
    }
    return {kSingle};
  }
  absl::StatusOr<std::string> text = ReadFile(directory + "/" + kIndex);
  std::vector<std::string> wrong;
  const std::set<std::string> names = WeightFilesIn(text.ok() ? *text : "", wrong);
  for (const std::string& what : wrong)
    problems.push_back({path, absl::StrCat(directory, "/", kIndex, what)});
  return {names.begin(), names.end()};
}

// How these layouts name experts.
ExpertWords WordsOf(const std::vector<FlatLayout>& layouts) {
  for (const FlatLayout& layout : layouts) {
    for (const Segment& segment : layout.segments()) {
      if (absl::StrContains(segment.name, kMixtralWords.block)) return kMixtralWords;
    }
  }
  return kQwenWords;
}

// "model.layers.3.mlp.experts." of "model.layers.3.mlp.experts.5.up_proj.weight"; "" of no expert.
std::string ExpertsOf(const std::string& name) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = name.find(kExperts);
  return at == std::string::npos ? "" : name.substr(0, at + kExperts.size());
}

// Where the experts of a layer are fewer than `layouts` want: that says more than each tensor that
// is missing.
std::vector<std::string> MiscountedExperts(const std::vector<FlatLayout>& layouts,
                                           const std::function<bool(const std::string&)>& has) {
  struct Experts {
    std::set<std::string> all;      // as numbers in names
    std::set<std::string> lacking;  // of which no tensor is there
  };
  std::map<std::string, Experts> layers;
  for (const FlatLayout& layout : layouts) {
    for (const Segment& segment : layout.segments()) {
      const std::string prefix = ExpertsOf(segment.name);
      if (prefix.empty()) continue;
      const std::string number =
          segment.name.substr(prefix.size(), segment.name.find('.', prefix.size()) - prefix.size());
      Experts& experts = layers[prefix];
      if (experts.all.insert(number).second) experts.lacking.insert(number);
      if (has(segment.name)) experts.lacking.erase(number);
    }
  }
  for (const auto& [prefix, experts] : layers) {
    if (experts.lacking.empty()) continue;
    return {absl::StrCat("has weights of ", experts.all.size() - experts.lacking.size(),
                         " experts in ", absl::StripSuffix(prefix, "."),
                         " where config.json means ", experts.all.size(),
                         "; lacking: ", absl::StrJoin(experts.lacking, ", "))};
  }
  return {};
}

}  // namespace

// Gives the experts of tensors that hold a whole layer's names of their own, as if each stood by
// itself: [experts, 2·width, hidden] with each gate above its up, and [experts, hidden, width].
void HuggingFaceWeights::SplitExperts(const ExpertWords& words) {
  constexpr char kGateUp[] = ".experts.gate_up_proj", kDown[] = ".experts.down_proj";
  std::map<std::string, Tensor> split;
  std::vector<std::string> gone;
  for (const auto& [name, tensor] : where_) {
    const bool gate_up = absl::EndsWith(name, kGateUp);
    if ((!gate_up && !absl::EndsWith(name, kDown)) || tensor.shape.size() != 3 ||
        (gate_up && tensor.shape[1] % 2 != 0))
      continue;
    // In memory the block between layer and experts is called mlp in every family.
    const std::string layer = name.substr(0, name.rfind('.', name.find(".experts.") - 1) + 1);
    const int64_t rows = gate_up ? tensor.shape[1] / 2 : tensor.shape[1], width = tensor.shape[2];
    const auto add = [&](int64_t expert, const char* word, int64_t begin) {
      split[absl::StrCat(layer, words.block, ".experts.", expert, ".", word, ".weight")] = {
          tensor.file, tensor.entry, {rows, width}, begin};
    };
    for (int64_t expert = 0; expert < tensor.shape[0]; ++expert) {
      const int64_t size = rows * width;
      if (gate_up) {
        add(expert, words.gate, 2 * expert * size);
        add(expert, words.up, (2 * expert + 1) * size);
      } else {
        add(expert, words.down, expert * size);
      }
    }
    gone.push_back(name);
    if (const auto router = where_.find(layer + "mlp.gate.weight"); router != where_.end()) {
      split[absl::StrCat(layer, words.block, ".gate.weight")] = router->second;
      if (words.block != std::string_view("mlp")) gone.push_back(router->first);
    }
  }
  for (const std::string& name : gone) where_.erase(name);
  for (auto& [name, tensor] : split) where_.insert_or_assign(name, std::move(tensor));
}

HuggingFaceWeights HuggingFaceWeights::Open(const std::string& directory,
                                            const std::vector<FlatLayout>& layouts, bool tied,
                                            const std::string& path, Problems& problems,
                                            bool nested, bool draws_score) {
  HuggingFaceWeights weights;
  const size_t before = problems.size();
  for (const std::string& name : WeightFiles(directory, path, problems)) {
    if (problems.size() > before) return weights;
    absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(directory + "/" + name);
    if (!file.ok()) {
      problems.push_back(
          {path, absl::StrCat(std::string(file.status().message()),
                              absl::IsNotFound(file.status()) ? "; download it, too" : "")});
      continue;
    }
    weights.files_.push_back(std::make_unique<SafetensorsFile>(*std::move(file)));
    weights.paths_[weights.files_.back().get()] = directory + "/" + name;
    for (const auto& [tensor, entry] : weights.files_.back()->header().tensors) {
      const Tensor stored{weights.files_.back().get(), &entry, entry.shape};
      if (!weights.where_.emplace(tensor, stored).second)
        problems.push_back({path, absl::StrCat(tensor, " stands in two files")});
    }
  }
  if (problems.size() > before) return weights;
  weights.SplitExperts(WordsOf(layouts));
  if (const auto head = weights.where_.find(kHead);
      tied && head != weights.where_.end() && !weights.where_.contains(kEmbedding)) {
    weights.where_[kEmbedding] = head->second;
    weights.where_.erase(head);
  }
  std::set<std::string> wanted;
  std::vector<std::string> wrong = MiscountedExperts(
      layouts, [&](const std::string& name) { return weights.where_.contains(name); });
  const size_t others = wrong.size();
  weights.TakeQuantised(layouts, nested, wrong);
  const bool damaged = wrong.size() > others;
  bool prefixed = false;  // the names of a model without a head
  for (const FlatLayout& layout : layouts) {
    for (const Segment& segment : layout.segments()) {
      wanted.insert(segment.name);
      const auto found = weights.where_.find(segment.name);
      if (found == weights.where_.end() && draws_score && segment.name == kScoreName) continue;
      if (found == weights.where_.end()) {
        wrong.push_back(absl::StrCat("has no ", segment.name, ", which config.json's model has"));
        prefixed |= weights.where_.contains(std::string(absl::StripPrefix(segment.name, "model.")));
        continue;
      }
      const SafetensorsEntry& entry = *found->second.entry;
      if (weights.quantised_.contains(segment.name) || (damaged && layout.linears())) continue;
      if (found->second.shape != segment.shape) {
        wrong.push_back(
            absl::StrCat(segment.name, " is [", absl::StrJoin(found->second.shape, ", "),
                         "] where config.json means [", absl::StrJoin(segment.shape, ", "), "]"));
      } else if (TorchType(entry.dtype) == at::ScalarType::Undefined) {
        wrong.push_back(absl::StrCat(segment.name, " is of dtype ", entry.dtype,
                                     "; F32, BF16, F16 and F64 can be read"));
      }
    }
  }
  for (const auto& [name, tensor] : weights.where_) {
    const bool harmless =
        absl::EndsWith(name, "rotary_emb.inv_freq") || ((tied || draws_score) && name == kHead);
    if (!wanted.contains(name) && !harmless)
      wrong.push_back(absl::StrCat("has ", name, ", which config.json's model doesn't have"));
  }
  // A wrong config.json makes them all wrong: the first tell enough.
  constexpr size_t kTold = 5;
  for (size_t i = 0; i < std::min(wrong.size(), kTold); ++i) problems.push_back({path, wrong[i]});
  if (wrong.size() > kTold)
    problems.push_back(
        {path, absl::StrCat("and ", wrong.size() - kTold, " more tensors that don't fit")});
  if (!wrong.empty() && !damaged) {
    problems.push_back(
        {path,
         prefixed
             ? "its names lack \"model.\": it was saved without its head; save the model for "
               "causal language modelling"
             : "config.json and the weights are of different models; take both from one place"});
  }
  return weights;
}

void HuggingFaceWeights::ReadRange(const std::string& name, int64_t begin, int64_t n,
                                   float* out) const {
  const SafetensorsFile& file = *where_.at(name).file;
  const SafetensorsEntry& entry = *where_.at(name).entry;
  const at::ScalarType type = TorchType(entry.dtype);
  const int64_t first = where_.at(name).begin;
  for (int64_t at = 0; at < n; at += kChunkElements) {
    const int64_t count = std::min(kChunkElements, n - at);
    const auto bytes =
        file.Data(entry).subspan(static_cast<size_t>(first + begin + at) * at::elementSize(type),
                                 static_cast<size_t>(count) * at::elementSize(type));
    // Copied first: a tensor's bytes in a file need not be aligned.
    const at::Tensor raw = at::empty({count}, type);
    std::copy_n(bytes.data(), bytes.size(), static_cast<uint8_t*>(raw.data_ptr()));
    file.file().Release(bytes);
    at::from_blob(out + at, {count}, at::kFloat).copy_(raw);
  }
}

void HuggingFaceWeights::Read(FlatParam& flat) const {
  if (flat.quantised() != nullptr) return ReadQuantised(flat);
  const at::Tensor host = flat.Landing(FlatParam::kMaster);
  for (const SegmentPiece& piece : PiecesIn(flat.layout(), flat.owned_begin(), flat.owned_end())) {
    const std::string& name = flat.layout().segments()[piece.segment].name;
    if (name == kScoreName && !Has(name)) continue;  // it is drawn
    ForEachRun(flat.layout(), piece, [&](int64_t at, int64_t in_parameter, int64_t count) {
      ReadRange(name, in_parameter, count, host.data_ptr<float>() + at);
    });
  }
  flat.SetOwned(FlatParam::kMaster, host);
}

std::string HuggingFaceWeights::Dtype() const {
  std::set<std::string> types;
  for (const auto& [name, tensor] : where_) {
    // Routers' biases are fp32 whatever the rest is.
    if (!absl::EndsWith(name, kRouterBias)) types.insert(tensor.entry->dtype);
  }
  if (types == std::set<std::string>{"BF16"}) return "bf16";
  return types == std::set<std::string>{"F16"} ? "fp16" : "fp32";
}

namespace {

const char* TorchName(const std::string& dtype) {
  return dtype == "bf16" ? "bfloat16" : dtype == "fp16" ? "float16" : "float32";
}
const char* FileType(const std::string& dtype) {
  return dtype == "bf16" ? "BF16" : dtype == "fp16" ? "F16" : "F32";
}

constexpr uintmax_t kLargestAlong = uintmax_t{64} << 20;

// Files of a Hugging Face directory that an export takes along, if they aren't larger than
// kLargestAlong: the tokenizer's, a licence, a card; not weights of any kind, nor what belongs to
// those or to the run that made them.
bool GoesAlong(const fs::directory_entry& entry) {
  static constexpr const char* kWeights[] = {".safetensors", ".bin", ".pt",        ".pth",
                                             ".ckpt",        ".h5",  ".msgpack",   ".gguf",
                                             ".onnx",        ".npz", ".index.json"};
  const std::string name = entry.path().filename().string();
  std::error_code error;
  return entry.is_regular_file(error) && name[0] != '.' && name != "adapter_config.json" &&
         name != "trainer_state.json" && !absl::StartsWith(name, "events.out.") &&
         std::none_of(std::begin(kWeights), std::end(kWeights),
                      [&](const char* end) { return absl::EndsWith(name, end); });
}

// Writes model.safetensors, a chunk of rows at a time.
absl::Status WriteWeights(const ReadParameter& read, const std::vector<FlatLayout>& layouts,
                          const std::string& dtype, const std::string& path,
                          const AdapterExport* adapters) {
  std::vector<SafetensorsTensor> tensors;
  const auto type_of = [&](const FlatLayout& layout) {
    return layout.router_bias() ? "F32" : FileType(dtype);  // as transformers keeps them
  };
  for (const FlatLayout& layout : layouts) {
    for (const Segment& segment : layout.segments())
      tensors.push_back({segment.name, type_of(layout), segment.shape, {}});
  }
  absl::StatusOr<SafetensorsWriter> writer =
      SafetensorsWriter::Create(path, tensors, {{"format", "pt"}});
  if (!writer.ok()) return writer.status();
  std::map<std::string, Adapter> modules;
  if (adapters != nullptr) modules = FindAdapters(*adapters->flats);
  for (int flat = 0; flat < static_cast<int>(layouts.size()); ++flat) {
    const at::ScalarType type = TorchType(type_of(layouts[flat]));
    for (int index = 0; index < static_cast<int>(layouts[flat].segments().size()); ++index) {
      const Segment& segment = layouts[flat].segments()[index];
      const int64_t rows = segment.shape[0], width = segment.numel / rows,
                    step = std::max<int64_t>(1, kChunkElements / width);
      const auto adapter = modules.find(std::string(absl::StripSuffix(segment.name, ".weight")));
      for (int64_t row = 0; row < rows; row += step) {
        const int64_t count = std::min(step, rows - row);
        at::Tensor part = at::empty({count, width}, at::kFloat);
        if (absl::Status s = read(flat, index, row * width, part.view(-1)); !s.ok()) return s;
        if (adapter != modules.end())
          part = Merged(
              part,
              {adapter->second.a.cpu(), adapter->second.b.cpu().narrow(0, row, count), {}, {}},
              adapters->config.Scale());
        part = part.to(type);
        if (absl::Status s = writer->Append(
                {static_cast<const uint8_t*>(part.data_ptr()), static_cast<size_t>(part.nbytes())});
            !s.ok())
          return s;
      }
    }
  }
  return writer->Finish().status();
}

absl::Status WriteExport(const ReadParameter& read, const ModelConfig& config,
                         const std::string& dtype, const std::string& tokenizer,
                         const std::string& source, const std::string& staging,
                         const AdapterExport* adapters) {
  std::error_code error;
  if (absl::Status s = MakeDirectories(staging); !s.ok()) return s;
  if (absl::Status s =
          WriteWeights(read, MakeLayout(config).flats, dtype, staging + "/" + kSingle, adapters);
      !s.ok())
    return s;
  if (adapters != nullptr) {
    if (absl::Status s = SaveAdapter(*adapters->flats, adapters->config, adapters->base_model,
                                     staging + "/adapter");
        !s.ok())
      return s;
  }
  const std::string config_text = ToHuggingFace(config, TorchName(dtype)).dump(2) + "\n";
  if (absl::Status s = WriteFileDurably(staging + "/config.json", config_text); !s.ok()) return s;
  absl::StatusOr<std::string> generation = absl::NotFoundError("");
  if (!source.empty()) generation = ReadFile(source + "/generation_config.json");
  if (!generation.ok()) {
    nlohmann::ordered_json ids = nlohmann::ordered_json::object();
    for (const auto& [key, id] : config.token_ids.items()) ids[key] = id;
    generation = ids.dump(2) + "\n";
  }
  if (absl::Status s = WriteFileDurably(staging + "/generation_config.json", *generation); !s.ok())
    return s;
  if (!tokenizer.empty()) {
    for (const fs::directory_entry& entry : fs::directory_iterator(tokenizer, error)) {
      if (error || !GoesAlong(entry)) continue;
      if (entry.file_size(error) > kLargestAlong) {
        std::fprintf(stderr, "note: %s is left out of the export, as it is larger than %d MiB\n",
                     entry.path().c_str(), static_cast<int>(kLargestAlong >> 20));
        continue;
      }
      fs::copy_file(entry.path(), fs::path(staging) / entry.path().filename(),
                    fs::copy_options::skip_existing, error);
    }
    if (error)
      return absl::UnavailableError(absl::StrCat("cannot copy the tokenizer from ", tokenizer, ": ",
                                                 error.message(),
                                                 "; name another by --tokenizer DIR"));
  }
  return SyncTree(staging);
}

}  // namespace

absl::Status StageExport(const ReadParameter& read, const ModelConfig& config,
                         const std::string& dtype, const std::string& tokenizer,
                         const std::string& source, const std::string& staging,
                         const AdapterExport* adapters) {
  RemoveTree(staging);
  const absl::Status status =
      WriteExport(read, config, dtype, tokenizer, source, staging, adapters);
  if (!status.ok()) RemoveTree(staging);  // a full disk stays full otherwise
  return status;
}

bool HasTokenizer(const std::string& directory) {
  static constexpr const char* kNames[] = {
      "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
      "vocab.json",     "vocab.txt",       "spiece.model"};
  bool found = false;
  std::error_code error;
  for (fs::directory_iterator it(directory, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    if (GoesAlong(*it) && ::access(it->path().c_str(), R_OK) != 0) return false;
    found |= std::any_of(std::begin(kNames), std::end(kNames),
                         [&](const char* name) { return it->path().filename() == name; });
  }
  return found && !error;
}

absl::Status StageCheckpoint(const HuggingFaceWeights& weights, const ModelConfig& config,
                             const std::string& source, const std::string& staging) {
  RemoveTree(staging);
  if (absl::Status s = MakeDirectories(staging); !s.ok()) return s;
  const std::vector<FlatLayout> layouts = MakeLayout(config).flats;
  RankLayouts pointers;
  std::vector<SafetensorsTensor> tensors;
  for (int flat = 0; flat < static_cast<int>(layouts.size()); ++flat) {
    pointers.push_back(&layouts[flat]);
    tensors.push_back(
        {FlatTensorName(flat, kCheckpointKinds[0]), "F32", {layouts[flat].PaddedNumel(1)}, {}});
  }
  absl::StatusOr<SafetensorsWriter> writer = SafetensorsWriter::Create(
      staging + "/" + RankFileName(0, 1), tensors, {{"format", kCheckpointFormat}});
  if (!writer.ok()) return writer.status();
  for (const FlatLayout& layout : layouts) {
    const int64_t padded = layout.PaddedNumel(1);
    for (int64_t begin = 0; begin < padded; begin += kChunkElements) {
      const at::Tensor part = at::zeros({std::min(kChunkElements, padded - begin)}, at::kFloat);
      for (const SegmentPiece& piece : PiecesIn(layout, begin, begin + part.numel())) {
        weights.ReadRange(layout.segments()[piece.segment].name, piece.segment_begin, piece.numel,
                          part.data_ptr<float>() + piece.range_begin);
      }
      if (absl::Status s = writer->Append(
              {static_cast<const uint8_t*>(part.data_ptr()), static_cast<size_t>(part.nbytes())});
          !s.ok())
        return s;
    }
  }
  const absl::StatusOr<WrittenFile> written = writer->Finish();
  if (!written.ok()) return written.status();
  CheckpointMeta meta;
  meta.dtype = weights.Dtype();
  meta.optimizer = false;
  meta.source = fs::absolute(source).lexically_normal().string();
  if (HasTokenizer(source)) meta.tokenizer = meta.source;
  meta.model = ToHuggingFace(config, TorchName(meta.dtype));
  const Shares all = [&](int flat, int) {
    return std::pair<int64_t, int64_t>(0, layouts[flat].PaddedNumel(1));
  };
  if (absl::Status s = WriteFileDurably(staging + "/index.json",
                                        IndexText(meta, {*written}, TensorMap({pointers}, all)));
      !s.ok())
    return s;
  return SyncTree(staging);
}

}  // namespace muster::trainer
