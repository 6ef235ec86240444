#include "trainer/checkpoint/hugging_face.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "trainer/model/lora.h"

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kSingle[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";

at::ScalarType TorchType(const std::string& dtype) {
  if (dtype == "F32") return at::kFloat;
  if (dtype == "BF16") return at::kBFloat16;
  if (dtype == "F16") return at::kHalf;
  if (dtype == "F64") return at::kDouble;
  return at::ScalarType::Undefined;
}

// The directory's weight files.
std::vector<std::string> WeightFiles(const std::string& directory, const std::string& path, Problems& problems) {
  if (!fs::exists(directory + "/" + kIndex)) {
    if (!fs::exists(directory + "/" + kSingle)) problems.push_back({path, absl::StrCat(directory, " holds neither ", kSingle, " nor ", kIndex)});
    return {kSingle};
  }
  absl::StatusOr<std::string> text = ReadFile(directory + "/" + kIndex);
  const json index = text.ok() ? json::parse(*text, nullptr, false) : json();
  std::set<std::string> names;
  if (index.is_object() && index.contains("weight_map") && index["weight_map"].is_object()) {
    for (const auto& [tensor, file] : index["weight_map"].items()) {
      if (file.is_string() && file.get<std::string>().find('/') == std::string::npos) names.insert(file.get<std::string>());
      else problems.push_back({path, absl::StrCat(directory, "/", kIndex, ": weight_map.", tensor, " is no file name")});
    }
  }
  if (names.empty()) problems.push_back({path, absl::StrCat(directory, "/", kIndex, " has no weight_map")});
  return {names.begin(), names.end()};
}

}  // namespace

HuggingFaceWeights HuggingFaceWeights::Open(const std::string& directory, const std::vector<FlatLayout>& layouts, bool tied,
                                            const std::string& path, Problems& problems) {
  HuggingFaceWeights weights;
  const size_t before = problems.size();
  for (const std::string& name : WeightFiles(directory, path, problems)) {
    if (problems.size() > before) return weights;
    absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(directory + "/" + name);
    if (!file.ok()) {
      problems.push_back({path, std::string(file.status().message())});
      continue;
    }
    weights.files_.push_back(std::make_unique<SafetensorsFile>(*std::move(file)));
    for (const auto& [tensor, entry] : weights.files_.back()->header().tensors) {
      if (!weights.where_.emplace(tensor, weights.files_.back().get()).second) problems.push_back({path, absl::StrCat(tensor, " stands in two files")});
    }
  }
  if (problems.size() > before) return weights;
  std::set<std::string> wanted;
  for (const FlatLayout& layout : layouts) {
    for (const Segment& segment : layout.segments()) {
      wanted.insert(segment.name);
      const auto found = weights.where_.find(segment.name);
      if (found == weights.where_.end()) {
        problems.push_back({path, absl::StrCat("has no ", segment.name)});
        continue;
      }
      const SafetensorsEntry& entry = found->second->header().tensors.at(segment.name);
      if (entry.shape != segment.shape) {
        problems.push_back({path, absl::StrCat(segment.name, " is [", absl::StrJoin(entry.shape, ", "), "] where config.json means [",
                                               absl::StrJoin(segment.shape, ", "), "]")});
      } else if (TorchType(entry.dtype) == at::ScalarType::Undefined) {
        problems.push_back({path, absl::StrCat(segment.name, " is of dtype ", entry.dtype, "; F32, BF16, F16 and F64 can be read")});
      }
    }
  }
  for (const auto& [name, file] : weights.where_) {
    const bool harmless = absl::EndsWith(name, "rotary_emb.inv_freq") || (tied && name == "lm_head.weight");
    if (!wanted.contains(name) && !harmless) problems.push_back({path, absl::StrCat("has ", name, ", which config.json's model doesn't have")});
  }
  return weights;
}

void HuggingFaceWeights::Read(FlatParam& flat) const {
  const at::Tensor host = at::zeros({flat.owned_end() - flat.owned_begin()}, at::kFloat);
  for (const SegmentPiece& piece : PiecesIn(flat.layout(), flat.owned_begin(), flat.owned_end())) {
    const std::string& name = flat.layout().segments()[piece.segment].name;
    const SafetensorsFile& file = *where_.at(name);
    const SafetensorsEntry& entry = file.header().tensors.at(name);
    const at::ScalarType type = TorchType(entry.dtype);
    const auto bytes = file.Data(entry).subspan(static_cast<size_t>(piece.segment_begin) * at::elementSize(type));
    // Copied first: a tensor's bytes in a file need not be aligned.
    const at::Tensor raw = at::empty({piece.numel}, type);
    std::copy_n(bytes.data(), raw.nbytes(), static_cast<uint8_t*>(raw.data_ptr()));
    host.narrow(0, piece.range_begin, piece.numel).copy_(raw);
  }
  flat.masters().copy_(host);
  flat.MarkStale();
}

absl::Status StageExport(const Flats& flats, const ModelConfig& config, const std::string& tokenizer, const std::string& source,
                         const std::string& staging, const AdapterExport* adapters) {
  std::error_code error;
  RemoveTree(staging);
  if (absl::Status s = MakeDirectories(staging); !s.ok()) return s;
  std::vector<at::Tensor> host;
  std::vector<SafetensorsTensor> tensors;
  bool bf16 = false;
  std::map<std::string, Adapter> modules;
  if (adapters != nullptr) modules = FindAdapters(*adapters->flats);
  for (const std::unique_ptr<FlatParam>& flat : flats) {
    for (size_t i = 0; i < flat->layout().segments().size(); ++i) {
      const Segment& segment = flat->layout().segments()[i];
      at::Tensor weight = flat->Weight(static_cast<int>(i));
      if (const auto adapter = modules.find(std::string(absl::StripSuffix(segment.name, ".weight"))); adapter != modules.end()) {
        weight = Merged(weight, adapter->second, adapters->config.Scale());
      }
      host.push_back(weight.cpu().contiguous());
      bf16 = host.back().scalar_type() == at::kBFloat16;
      tensors.push_back({segment.name, bf16 ? "BF16" : "F32", segment.shape,
                         {static_cast<const uint8_t*>(host.back().data_ptr()), static_cast<size_t>(host.back().nbytes())}});
    }
  }
  if (absl::StatusOr<WrittenFile> w = WriteSafetensors(staging + "/" + kSingle, tensors, {{"format", "pt"}}); !w.ok()) return w.status();
  if (adapters != nullptr) {
    if (absl::Status s = SaveAdapter(*adapters->flats, adapters->config, adapters->base_model, staging + "/adapter"); !s.ok()) return s;
  }
  const std::string config_text = ToHuggingFace(config, bf16 ? "bfloat16" : "float32").dump(2) + "\n";
  if (absl::Status s = WriteFileDurably(staging + "/config.json", config_text); !s.ok()) return s;
  absl::StatusOr<std::string> generation = absl::NotFoundError("");
  if (!source.empty()) generation = ReadFile(source + "/generation_config.json");
  if (!generation.ok()) {
    nlohmann::ordered_json ids = nlohmann::ordered_json::object();
    for (const auto& [key, id] : config.token_ids.items()) ids[key] = id;
    generation = ids.dump(2) + "\n";
  }
  if (absl::Status s = WriteFileDurably(staging + "/generation_config.json", *generation); !s.ok()) return s;
  if (!tokenizer.empty()) {
    for (const fs::directory_entry& entry : fs::directory_iterator(tokenizer, error)) {
      if (entry.is_regular_file() && !error) fs::copy_file(entry.path(), fs::path(staging) / entry.path().filename(), fs::copy_options::skip_existing, error);
    }
    if (error) return absl::UnavailableError(absl::StrCat("cannot copy the tokenizer from ", tokenizer, ": ", error.message()));
  }
  return SyncTree(staging);
}

}  // namespace muster::trainer
