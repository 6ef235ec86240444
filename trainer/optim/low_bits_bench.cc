// What bench/run.sh quantised compares with bitsandbytes: the trainer's own numbers in few bits.
//
//   muster-bench-low-bits weights DIR NESTED DTYPE OUT    the linears of a Hugging Face directory
//   as
//       they are kept: W.codes, W.absmax, W.nested_absmax, W.offset, and W.values as a layer has
//       them. NESTED: true or false; DTYPE: fp32 or bf16.
//   muster-bench-low-bits adamw IN STEPS RATE DECAY OUT   updates with moments in 8 bits of the
//       parameters "p.NAME" by the gradients "g.STEP.NAME", from step 1 on
//
// IN and OUT are safetensors files.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "absl/strings/str_cat.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/hugging_face.h"
#include "trainer/checkpoint/json_text.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/model/family.h"
#include "trainer/model/quantize_config.h"
#include "trainer/optim/adamw.h"

namespace muster::trainer {
namespace {

class Written {
 public:
  void Add(const std::string& name, const at::Tensor& tensor) {
    kept_.push_back(tensor.contiguous());
    const at::Tensor& own = kept_.back();
    tensors_.push_back(
        {name,
         own.scalar_type() == at::kByte       ? "U8"
         : own.scalar_type() == at::kBFloat16 ? "BF16"
                                              : "F32",
         own.sizes().vec(),
         {static_cast<const uint8_t*>(own.data_ptr()), static_cast<size_t>(own.nbytes())}});
  }
  int To(const std::string& path) const {
    const auto written = WriteSafetensors(path, tensors_, {{"format", "pt"}});
    if (!written.ok()) std::fprintf(stderr, "%s\n", written.status().ToString().c_str());
    return written.ok() ? 0 : 1;
  }

 private:
  std::vector<at::Tensor> kept_;
  std::vector<SafetensorsTensor> tensors_;
};

int Weights(const std::string& directory, bool nested, at::ScalarType dtype,
            const std::string& out) {
  Problems problems;
  const auto text = ReadFile(directory + "/config.json");
  TORCH_CHECK(text.ok(), directory, " has no config.json");
  const auto content = ParseJson(*text, directory);
  TORCH_CHECK(content.ok(), directory, "/config.json is no JSON");
  const QuantizeConfig quantize{true, nested};
  const ModelConfig model = ParseModelConfig(
      WithoutQuantization(*content, quantize, "config.json", problems), "model", false, problems);
  const std::vector<FlatLayout> layouts = MakeLayout(model, {.linears_apart = true}).flats;
  const HuggingFaceWeights weights = HuggingFaceWeights::Open(
      directory, layouts, model.tie_word_embeddings, directory, problems, nested);
  for (const auto& problem : problems)
    std::fprintf(stderr, "%s: %s\n", problem.path.c_str(), problem.text.c_str());
  if (!problems.empty()) return 2;
  const Quantisation kind = nested ? Quantisation::kNf4Nested : Quantisation::kNf4;
  Written written;
  for (const FlatLayout& layout : layouts) {
    if (!layout.linears()) continue;
    for (const Segment& segment : layout.segments()) {
      const int64_t n = segment.numel, blocks = (n + 63) / 64;
      const Nf4Units units = weights.ReadUnits(segment.name, n, kind, dtype, 0, UnitsOf(n));
      const auto part = [&](int64_t begin, int64_t width, int64_t count) {
        return units.rows.narrow(1, begin, width).contiguous().view(-1).narrow(0, 0, count);
      };
      written.Add(segment.name + ".codes", part(0, kUnitCodes, (n + 1) / 2));
      if (nested) {
        written.Add(segment.name + ".absmax", part(kUnitCodes, kUnitBlocks, blocks));
        written.Add(segment.name + ".nested_absmax",
                    part(kUnitCodes + kUnitBlocks, 4, 4 * UnitsOf(n)).clone().view(at::kFloat));
        written.Add(segment.name + ".offset", at::full({1}, units.common.offset));
      } else {
        written.Add(segment.name + ".absmax",
                    part(kUnitCodes, 4 * kUnitBlocks, 4 * blocks).clone().view(at::kFloat));
      }
      const at::Tensor values = at::empty({n}, dtype);
      DequantiseUnits(units.rows, kind, units.common, values);
      written.Add(segment.name + ".values", values);
    }
  }
  return written.To(out);
}

at::Tensor Floats(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  const at::Tensor values = at::empty(entry.shape, at::kFloat);
  std::memcpy(values.data_ptr(), file.Data(entry).data(), values.nbytes());
  return values;
}

int Train(const std::string& in, int steps, double rate, double decay, const std::string& out) {
  const auto file = SafetensorsFile::Open(in);
  TORCH_CHECK(file.ok(), file.status().ToString());
  const auto& tensors = file->header().tensors;
  FlatLayout layout;
  for (const auto& [name, entry] : tensors) {
    if (name.starts_with("p.")) layout.Add(name.substr(2), entry.shape, /*weight_decay=*/true);
  }
  const std::unique_ptr<World> world = World::Connect({}, at::kCPU);
  std::vector<std::unique_ptr<FlatParam>> flats;
  flats.push_back(
      std::make_unique<FlatParam>(layout, world.get(), FlatOptions{.int8_moments = true}));
  FlatParam& flat = *flats[0];
  const std::vector<Segment>& segments = layout.segments();
  for (int s = 0; s < static_cast<int>(segments.size()); ++s)
    flat.Weight(s).copy_(Floats(*file, tensors.at("p." + segments[s].name)));
  AdamW optimizer(flats, {0.9, 0.999, 1e-8, decay});
  for (int step = 1; step <= steps; ++step) {
    for (int s = 0; s < static_cast<int>(segments.size()); ++s)
      flat.Gradient(s).copy_(
          Floats(*file, tensors.at(absl::StrCat("g.", step, ".", segments[s].name))));
    optimizer.Step(step, rate, 1);
  }
  Written written;
  for (int s = 0; s < static_cast<int>(segments.size()); ++s)
    written.Add(segments[s].name, flat.Weight(s));
  return written.To(out);
}

int Main(int argc, char** argv) {
  const c10::NoGradGuard no_grad;
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "weights" && argc == 6)
    return Weights(argv[2], std::string(argv[3]) == "true",
                   std::string(argv[4]) == "bf16" ? at::kBFloat16 : at::kFloat, argv[5]);
  if (what == "adamw" && argc == 7)
    return Train(argv[2], std::atoi(argv[3]), std::atof(argv[4]), std::atof(argv[5]), argv[6]);
  std::fprintf(stderr,
               "muster-bench-low-bits weights DIR NESTED DTYPE OUT, or adamw IN STEPS RATE DECAY "
               "OUT\n");
  return 2;
}

}  // namespace
}  // namespace muster::trainer

int main(int argc, char** argv) { return muster::trainer::Main(argc, argv); }
