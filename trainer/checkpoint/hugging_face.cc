#include "trainer/checkpoint/hugging_face.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "trainer/checkpoint/hugging_face_files.h"
#include "trainer/model/experts_config.h"
#include "trainer/model/family.h"
#include "trainer/model/lora.h"
#include "trainer/model/reward.h"

namespace muster::trainer {

at::ScalarType TorchType(const std::string& dtype) {
  if (dtype == "F32") return at::kFloat;
  if (dtype == "BF16") return at::kBFloat16;
  if (dtype == "F16") return at::kHalf;
  if (dtype == "F64") return at::kDouble;
  return at::ScalarType::Undefined;
}

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kEmbedding[] = "model.embed_tokens.weight", kHead[] = "lm_head.weight";

// The directory's weight files. `map`: where an index means tensors to be; empty without one.
std::set<std::string> WeightFiles(const std::string& directory, const std::string& path,
                                  std::map<std::string, std::string>& map, Problems& problems) {
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
  map = WeightMapIn(text.ok() ? *text : "", wrong);
  for (const std::string& what : wrong)
    problems.push_back({path, absl::StrCat(directory, "/", kIndex, what)});
  std::set<std::string> names;
  for (const auto& [tensor, file] : map) names.insert(file);
  return names;
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

// Whether files have several of these layouts' linears as one.
bool AreJoined(const std::vector<FlatLayout>& layouts,
               const std::function<bool(const std::string&)>& has) {
  for (const FlatLayout& layout : layouts) {
    for (const Segment& segment : layout.segments()) {
      const std::string name = JoinedName(segment.name);
      if (!name.empty() && has(name)) return true;
    }
  }
  return false;
}

// That a tensor is missing, and where an index means it to be.
std::string Lacking(const std::string& name, bool tied,
                    const std::map<std::string, std::string>& map) {
  const bool either = tied && name == kEmbedding;
  for (const std::string& one : {name, std::string(either ? kHead : "")}) {
    if (const auto meant = map.find(one); meant != map.end())
      return absl::StrCat("has no ", one, " in ", meant->second, ", where ", kIndex,
                          " means it to be; download both again");
  }
  return either ? absl::StrCat("has neither ", kEmbedding, " nor ", kHead,
                               ", of which config.json's model (tie_word_embeddings) has one")
                : absl::StrCat("has no ", name, ", which config.json's model has");
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

// Gives the parts of matrices that are several linears' names of their own, as if each stood by
// itself.
std::string HuggingFaceWeights::SplitJoined(const std::vector<FlatLayout>& layouts) {
  std::map<std::string, std::vector<int64_t>> wanted;  // the shapes of what is split
  std::map<std::string, Tensor> split;
  for (const FlatLayout& layout : layouts) {
    for (const Segment& segment : layout.segments()) {
      const std::string name = JoinedName(segment.name);
      const auto found = where_.find(name);
      if (found == where_.end() || where_.contains(segment.name)) continue;
      if (where_.contains(name + ".absmax"))
        return absl::StrCat(name,
                            " is quantised, and the linears that it is made of are not read "
                            "from NF4 yet; give the unquantised model, which quantize: {type: nf4} "
                            "quantises as it is read");
      std::vector<int64_t>& whole =
          wanted.try_emplace(name, std::vector<int64_t>{0, 0}).first->second;
      split[segment.name] = {found->second.file, found->second.entry, segment.shape,
                             whole[0] * segment.shape[1]};
      whole = {whole[0] + segment.shape[0], segment.shape[1]};
    }
  }
  for (const auto& [name, shape] : wanted) {
    if (where_.at(name).shape != shape)
      return absl::StrCat(name, " is [", absl::StrJoin(where_.at(name).shape, ", "),
                          "] where config.json means [", absl::StrJoin(shape, ", "),
                          "]; take config.json and the weights from one place");
  }
  for (const auto& [name, unused] : wanted) where_.erase(name);
  where_.merge(split);
  return "";
}

HuggingFaceWeights HuggingFaceWeights::Open(const std::string& directory,
                                            const std::vector<FlatLayout>& layouts, bool tied,
                                            const std::string& path, Problems& problems,
                                            bool nested, bool draws_score) {
  HuggingFaceWeights weights;
  const size_t before = problems.size();
  std::map<std::string, std::string> map;
  for (const std::string& name : WeightFiles(directory, path, map, problems)) {
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
  const bool joined = AreJoined(layouts, [&](const std::string& name) {
    return weights.where_.contains(name) || map.contains(name);
  });
  if (const std::string wrong = weights.SplitJoined(layouts); !wrong.empty()) {
    problems.push_back({path, wrong});
    return weights;
  }
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
  bool misled = false;    // by an index
  for (const FlatLayout& layout : layouts) {
    for (const Segment& segment : layout.segments()) {
      wanted.insert(segment.name);
      const auto found = weights.where_.find(segment.name);
      if (found == weights.where_.end() && draws_score && segment.name == kScoreName) continue;
      if (found == weights.where_.end()) {
        const std::string whole = joined ? JoinedName(segment.name) : "";
        const std::string lacking = Lacking(whole.empty() ? segment.name : whole, tied, map);
        if (!whole.empty() && !wrong.empty() && wrong.back() == lacking) continue;  // by a part
        wrong.push_back(lacking);
        misled |= absl::StrContains(wrong.back(), kIndex);
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
  if (!wrong.empty() && !damaged && !misled) {
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

}  // namespace muster::trainer
