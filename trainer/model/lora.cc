#include "trainer/model/lora.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/model/block_layout.h"
#include "trainer/model/init.h"

namespace muster::trainer {
namespace {

constexpr char kPrefix[] = "base_model.model.";
constexpr char kA[] = ".lora_A.weight";
constexpr char kB[] = ".lora_B.weight";

}  // namespace

ModelLayout MakeLoraLayout(const ModelConfig& model, const LoraConfig& config,
                           const ModelPart& part) {
  ModelLayout layout;
  layout.block_flats.emplace_back();  // the embedding has none
  for (int64_t number = 0; number <= model.num_layers; ++number) {
    BlockLayout block(part.slice, layout);
    for (const LinearModule& module :
         number < model.num_layers ? LayerLinears(model, number) : HeadLinears(model)) {
      const bool wanted =
          std::any_of(config.target_modules.begin(), config.target_modules.end(),
                      [&](const std::string& p) { return MatchesModule(p, module.name); });
      if (!wanted) continue;
      const std::string a = kPrefix + module.name + kA, b = kPrefix + module.name + kB;
      if (module.sliced_dim == 0) {
        block.Keep(a, {config.rank, module.in}, true);
        block.Cut(b, {module.out, config.rank}, 0, module.units, true);
      } else {
        block.Cut(a, {config.rank, module.in}, 1, module.units, true);
        block.Keep(b, {module.out, config.rank}, true);
      }
    }
  }
  return Restrict(model, std::move(layout), part);
}

std::map<std::string, Adapter> FindAdapters(const std::vector<std::unique_ptr<FlatParam>>& flats) {
  std::map<std::string, Adapter> adapters;
  for (const std::unique_ptr<FlatParam>& flat : flats) {
    for (size_t i = 0; i < flat->layout().segments().size(); ++i) {
      absl::string_view name = flat->layout().segments()[i].name;
      if (!absl::ConsumePrefix(&name, kPrefix)) continue;
      const int segment = static_cast<int>(i);
      if (absl::ConsumeSuffix(&name, kA)) {
        Adapter& adapter = adapters[std::string(name)];
        adapter.a = flat->Weight(segment), adapter.d_a = flat->SumOf(segment);
      } else if (absl::ConsumeSuffix(&name, kB)) {
        Adapter& adapter = adapters[std::string(name)];
        adapter.b = flat->Weight(segment), adapter.d_b = flat->SumOf(segment);
      }
    }
  }
  return adapters;
}

void InitialiseAdapters(FlatParam& flat, uint64_t seed) {
  const at::Tensor host = at::zeros({flat.owned_end() - flat.owned_begin()}, at::kFloat);
  for (const SegmentPiece& piece : PiecesIn(flat.layout(), flat.owned_begin(), flat.owned_end())) {
    const Segment& segment = flat.layout().segments()[piece.segment];
    if (!absl::EndsWith(segment.name, kA)) continue;
    ForEachRun(flat.layout(), piece, [&](int64_t at, int64_t in_parameter, int64_t count) {
      FillUniform(seed, segment.name, in_parameter, count, host.data_ptr<float>() + at);
    });
    host.narrow(0, piece.range_begin, piece.numel)
        .mul_(2)
        .sub_(1)
        .mul_(1 / std::sqrt(static_cast<double>(segment.parameter_shape()[1])));
  }
  flat.SetOwned(FlatParam::kMaster, host);
}

at::Tensor Merged(const at::Tensor& w, const Adapter& adapter, double scale) {
  return at::addmm(w.to(at::kFloat), adapter.b.to(at::kFloat), adapter.a.to(at::kFloat), /*beta=*/1,
                   /*alpha=*/scale)
      .to(w.scalar_type());
}

absl::Status SaveAdapter(const std::vector<std::unique_ptr<FlatParam>>& flats,
                         const LoraConfig& config, const std::string& base_model,
                         const std::string& directory,
                         const std::function<absl::Status()>& before_file) {
  if (absl::Status s = MakeDirectories(directory); !s.ok()) return s;
  std::vector<at::Tensor> host;
  std::vector<SafetensorsTensor> tensors;
  for (const std::unique_ptr<FlatParam>& flat : flats) {
    for (size_t i = 0; i < flat->layout().segments().size(); ++i) {
      const Segment& segment = flat->layout().segments()[i];
      host.push_back(flat->Weight(static_cast<int>(i)).cpu().contiguous());
      tensors.push_back({segment.name,
                         host.back().scalar_type() == at::kBFloat16 ? "BF16" : "F32",
                         segment.shape,
                         {static_cast<const uint8_t*>(host.back().data_ptr()),
                          static_cast<size_t>(host.back().nbytes())}});
    }
  }
  if (absl::Status s = before_file(); !s.ok()) return s;
  if (absl::StatusOr<WrittenFile> w =
          WriteSafetensors(directory + "/adapter_model.safetensors", tensors, {{"format", "pt"}});
      !w.ok())
    return w.status();
  nlohmann::ordered_json modules = nlohmann::ordered_json::array();
  for (const auto& [name, adapter] : FindAdapters(flats)) modules.push_back(name);
  const nlohmann::ordered_json content = {{"peft_type", "LORA"},
                                          {"task_type", "CAUSAL_LM"},
                                          {"base_model_name_or_path", base_model},
                                          {"r", config.rank},
                                          {"lora_alpha", config.alpha},
                                          {"lora_dropout", config.dropout},
                                          {"target_modules", modules},
                                          {"bias", "none"},
                                          {"fan_in_fan_out", false},
                                          {"inference_mode", true}};
  if (absl::Status s = before_file(); !s.ok()) return s;
  return WriteFileDurably(directory + "/adapter_config.json", content.dump(2) + "\n");
}

}  // namespace muster::trainer
