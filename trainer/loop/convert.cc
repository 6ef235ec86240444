#include "trainer/loop/convert.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/objects/object_place.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/hugging_face.h"
#include "trainer/checkpoint/objects.h"
#include "trainer/checkpoint/push.h"
#include "trainer/loop/failures.h"
#include "trainer/model/blocks.h"
#include "trainer/model/families.h"
#include "trainer/model/family.h"
#include "trainer/model/lora.h"
#include "trainer/model/quantize_config.h"

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// With an output that has no slash at its end: what is on its way there lies beside it, not in it.
ConvertOptions WithoutSlash(ConvertOptions options) {
  std::string& output = options.output;
  while (!IsObject(output) && output.size() > 1 && output.back() == '/') output.pop_back();
  return options;
}

// Nothing, an empty directory, or one that holds `marker` and so is an earlier result.
void CheckOutput(const std::string& output, const char* marker, const char* what,
                 Problems& problems) {
  if (IsObject(output))
    return problems.push_back(
        {"--output", absl::StrCat(output,
                                  ": a directory is wanted, which is put in place whole; copy it "
                                  "from there to the store")});
  std::error_code error, hidden;
  if (!fs::exists(output, error) && !error) return;
  if (error)
    return problems.push_back(
        {"--output", absl::StrCat(output, " can't be looked at: ", error.message(),
                                  "; name a directory that you may write")});
  if (fs::is_directory(output, error) &&
      (fs::is_empty(output, hidden) || fs::exists(output + "/" + marker, hidden)))
    return;
  problems.push_back({"--output", absl::StrCat(output, " exists and is no earlier ", what,
                                               "; name a new directory")});
}

// A place in an object store that can be written.
void CheckPlace(const std::string& output, Problems& problems) {
  std::string problem = WhyNoObjectPlace(output, ObjectPlace::kPrefix);
  if (problem.empty()) problem = std::string(ClaimPlace(PlaceOf(output)).message());
  if (!problem.empty()) problems.push_back({"--output", problem});
}

void CheckDtype(const std::string& dtype, Problems& problems) {
  if (dtype != "fp32" && dtype != "bf16" && dtype != "fp16")
    problems.push_back({"--dtype", absl::StrCat("must be fp32, bf16 or fp16; got ", dtype)});
}

void CheckTokenizer(const std::string& tokenizer, Problems& problems) {
  std::error_code error;  // a place that can't be looked at is no place to take from
  if (!tokenizer.empty() && !fs::is_directory(tokenizer, error))
    problems.push_back({"--tokenizer", absl::StrCat(tokenizer, " is no directory")});
}

// What the last line says of a directory that was there before, or of one that not even the
// directory above was there for.
const char* InPlace(const std::string& output) {
  std::error_code error;  // which is told of where it is written
  if (IsObject(output)) return "";
  const fs::path above = fs::path(output).parent_path();
  if (!above.empty() && !fs::exists(above, error))
    return ", and the directories above it, which were not there";
  return fs::exists(output, error) && !fs::is_empty(output, error) ? ", in place of what was there"
                                                                   : "";
}

// What is wrong with an input that has no index.json.
std::string WhyNoCheckpoint(const std::string& input) {
  const std::vector<std::string> inside = ListCheckpoints(input);
  if (!inside.empty())
    return absl::StrCat(input, " is a directory of checkpoints; did you mean ", inside.front(),
                        inside.size() == 1
                            ? ", the only one?"
                            : absl::StrCat(", the newest of its ", inside.size(), "?"));
  std::error_code error;
  if (!IsObject(input) && !fs::exists(input, error) && !error)
    return absl::StrCat(
        input, ": there is no such directory; a run's are step-… in its MUSTER_CHECKPOINT_DIR");
  return error ? absl::StrCat(input, " can't be looked at: ", error.message(),
                              "; name one that you may read")
               : "";
}

// Carries out `work`; says what goes wrong. `done` is printed when nothing does.
template <typename Work>
int Carry(const char* command, const std::string& done, Work work) {
  absl::Status status;
  try {
    at::NoGradGuard no_grad;
    status = work();
  } catch (const std::exception& e) {
    status = absl::InternalError(Message(e));
  }
  if (!status.ok()) {
    std::fprintf(stderr, "%s failed: %s\n", command, std::string(status.message()).c_str());
    return 1;
  }
  std::puts(done.c_str());
  return 0;
}

// The config.json of a Hugging Face directory.
json ReadModelContent(const std::string& input, Problems& problems) {
  absl::StatusOr<std::string> text = ReadFile(input + "/config.json");
  const absl::StatusOr<json> parsed =
      text.ok() ? ParseJson(*text, input + "/config.json") : text.status();
  const json content = parsed.ok() ? *parsed : json();
  if (!parsed.ok())
    problems.push_back({"--input", std::string(parsed.status().message())});
  else if (!content.is_object())
    problems.push_back(
        {"--input",
         absl::StrCat(
             input,
             "/config.json is no JSON object; give a Hugging Face directory or a checkpoint")});
  return content;
}

bool IsQuantised(const json& content) {
  return content.is_object() && content.contains("quantization_config") &&
         !content["quantization_config"].is_null();
}

int ImportCheckpoint(const ConvertOptions& given) {
  const ConvertOptions options = WithoutSlash(given);
  Problems problems;
  const json content = ReadModelContent(options.input, problems);
  if (IsQuantised(content))
    problems.push_back(
        {"--input", absl::StrCat(options.input,
                                 "/config.json has a quantization_config, and checkpoints have "
                                 "weights that aren't quantised; give the unquantised model")});
  for (const auto& [flag, given] :
       {std::pair("--dtype", &options.dtype), std::pair("--tokenizer", &options.tokenizer),
        std::pair("--init", &options.init)}) {
    if (!given->empty())
      problems.push_back(
          {flag, "is for turning a checkpoint into a Hugging Face directory; leave it out"});
  }
  CheckOutput(options.output, "index.json", "checkpoint", problems);
  if (!problems.empty()) return Refuse("convert", problems);
  const ModelConfig model =
      ParseModelConfig(content, "--input/config.json", /*strict=*/false, problems);
  if (!problems.empty()) return Refuse("convert", problems);
  const HuggingFaceWeights weights = HuggingFaceWeights::Open(
      options.input, MakeLayout(model).flats, model.tie_word_embeddings, "--input", problems);
  if (!problems.empty()) return Refuse("convert", problems);
  const std::string told =
      HasTokenizer(options.input)
          ? ""
          : "\nnote: no tokenizer lies there; an export of it will want --tokenizer DIR";
  return Carry("convert",
               absl::StrCat("converted ", options.input, " to a checkpoint of step 0, ",
                            options.output, InPlace(options.output), told),
               [&]() -> absl::Status {
                 const std::string unfinished = options.output + ".unfinished";
                 if (absl::Status s = StageCheckpoint(weights, model, options.input, unfinished);
                     !s.ok())
                   return s;
                 return ReplaceDirectory(unfinished, options.output);
               });
}

// What is wrong with options for a quantised directory, whatever the model.
void CheckQuantise(const ConvertOptions& options, Problems& problems) {
  if (options.quantize.empty())
    problems.push_back(
        {"--double", "says how --quantize nf4 keeps its scales; add that, or leave it out"});
  else if (options.quantize != "nf4")
    problems.push_back({"--quantize", absl::StrCat("must be nf4; got ", options.quantize)});
  const std::string& nested = options.quantize_double;
  if (!nested.empty() && nested != "true" && nested != "false")
    problems.push_back({"--double", absl::StrCat("must be true or false; got ", nested)});
  if (!options.dtype.empty()) CheckDtype(options.dtype, problems);
  if (!options.init.empty())
    problems.push_back({"--init", "is for a LoRA run's checkpoint; leave it out"});
  CheckTokenizer(options.tokenizer, problems);
  CheckOutput(options.output, "config.json", "export", problems);
  if (IsObject(options.output)) return;
  // It gets there by way of a directory beside it, and what was there goes by another one.
  for (const char* beside : {"", ".unfinished", ".replaced"}) {
    const std::string goes = options.output + beside;
    if (!DirectoriesOverlap(goes, options.input)) continue;
    problems.push_back({"--output", absl::StrCat(goes,
                                                 " holds the weights that are to be quantised, or "
                                                 "lies in their directory; name a directory apart "
                                                 "from it")});
    return;
  }
}

// What is wrong with a model of which a quantised directory is wanted.
void CheckQuantisable(const ModelConfig& model, Problems& problems) {
  if (model.experts.count > 0)
    problems.push_back({"--quantize",
                        "is not supported for models with experts, whose weights are no linears "
                        "for bitsandbytes; use the model as it is"});
  if (FieldsOfFamily(model.family).joined_linears)
    problems.push_back(
        {"--quantize", absl::StrCat("is not supported yet for ", model.family,
                                    ", whose linears stand together in files; train with quantize: "
                                    "{type: nf4}, which quantises them as they are read, or "
                                    "quantise the model in transformers")});
}

// Of a Hugging Face directory one whose linears are quantised.
int Quantise(const ConvertOptions& given) {
  const ConvertOptions options = WithoutSlash(given);
  Problems problems;
  const json content = ReadModelContent(options.input, problems);
  if (IsQuantised(content))
    problems.push_back(
        {"--input", absl::StrCat(options.input,
                                 "/config.json has a quantization_config: its weights are "
                                 "quantised already; give the unquantised model")});
  CheckQuantise(options, problems);
  if (!problems.empty()) return Refuse("convert", problems);
  const ModelConfig model =
      ParseModelConfig(content, "--input/config.json", /*strict=*/false, problems);
  if (problems.empty()) CheckQuantisable(model, problems);
  if (!problems.empty()) return Refuse("convert", problems);
  const HuggingFaceWeights weights = HuggingFaceWeights::Open(
      options.input, MakeLayout(model).flats, model.tie_word_embeddings, "--input", problems);
  if (!problems.empty()) return Refuse("convert", problems);
  const Nf4Export nf4{&weights, options.quantize_double != "false"};
  const std::string tokenizer = !options.tokenizer.empty()    ? options.tokenizer
                                : HasTokenizer(options.input) ? options.input
                                                              : "";
  const ExportOptions wanted{.dtype = options.dtype.empty() ? weights.Dtype() : options.dtype,
                             .tokenizer = tokenizer,
                             .source = options.input,
                             .nf4 = &nf4};
  const char* told = tokenizer.empty() ? "\nnote: it has no tokenizer, as none lies there: "
                                         "--tokenizer DIR puts one beside it"
                                       : "";
  return Carry("convert",
               absl::StrCat("quantised ", options.input, " to ", options.output, " in NF4 with ",
                            nf4.nested ? "quantised" : "fp32", " scales, the rest in ",
                            wanted.dtype, InPlace(options.output), told),
               [&]() -> absl::Status {
                 const std::string unfinished = options.output + ".unfinished";
                 if (absl::Status s = StageExport({}, model, wanted, unfinished); !s.ok()) return s;
                 return ReplaceDirectory(unfinished, options.output);
               });
}

}  // namespace

namespace {

// The weights that a LoRA run's adapters stand beside: of such a run the checkpoint has the
// adapters alone.
struct Base {
  LoraConfig lora;
  QuantizeConfig quantize;
  std::string init;
  std::unique_ptr<HuggingFaceWeights> weights;  // null: the checkpoint has all weights

  ModelLayout Layout(const ModelConfig& model) const {
    return MakeLayout(model, {.linears_apart = quantize.on});
  }
};

Base FindBase(const ConvertOptions& options, const CheckpointMeta& meta, const ModelConfig& model,
              Problems& problems) {
  Base base;
  const json& trainer = meta.trainer;
  if (!trainer.is_object() || !trainer.contains("lora")) return base;
  base.lora = ParseLora(trainer["lora"], "lora", problems);
  if (trainer.contains("quantize"))
    base.quantize = ParseQuantize(trainer["quantize"], "quantize", problems);
  base.init = !options.init.empty() ? options.init : meta.source;
  if (base.init.empty() && !trainer.value("init", "").empty()) {
    // As it was given: relative to a job's directory that isn't known here.
    base.init = fs::absolute(trainer.value("init", "")).lexically_normal().string();
    std::fprintf(stderr,
                 "note: the checkpoint doesn't say where the weights lay that it was trained "
                 "beside; trainer.init there is taken for %s\n",
                 base.init.c_str());
  }
  std::error_code error;  // what can't be looked at is none
  if (!fs::is_directory(base.init, error)) {
    problems.push_back({"--init", absl::StrCat("the checkpoint has adapters alone, and the "
                                               "weights they were trained beside are not in ",
                                               base.init, "; name their directory")});
  } else {
    base.weights = std::make_unique<HuggingFaceWeights>(
        HuggingFaceWeights::Open(base.init, base.Layout(model).flats, model.tie_word_embeddings,
                                 "--init", problems, base.quantize.nested));
  }
  return base;
}

// What the export says of its tokenizer.
std::string TokenizerText(const std::string& tokenizer, const std::string& remembered) {
  if (!tokenizer.empty()) return absl::StrCat(", with the tokenizer of ", tokenizer);
  if (remembered.empty())
    return "\nnote: it has no tokenizer, as the checkpoint names none: --tokenizer DIR puts one "
           "beside it";
  return absl::StrCat("\nnote: it has no tokenizer, as that of the checkpoint can't be read in ",
                      remembered, " any more: --tokenizer DIR puts one beside it");
}

// Where an export's tokenizer and the other files of its model come from; "": from nowhere.
struct Sources {
  std::string tokenizer, model;
};

// The frozen weights that adapters were trained beside, as they were: of type `dtype`, or
// quantised.
class BaseReader {
 public:
  BaseReader(const Base& base, const ModelConfig& model, at::ScalarType dtype)
      : base_(base), dtype_(dtype) {
    for (const FlatLayout& flat : base.Layout(model).flats) {
      for (const Segment& segment : flat.segments()) {
        if (flat.linears()) linears_.insert(segment.name);
        if (flat.router_bias()) exact_.insert(segment.name);
      }
    }
  }
  // Elements from `begin` on of a parameter, as fp32.
  void Read(const Segment& segment, int64_t begin, const at::Tensor& out) {
    if (!linears_.contains(segment.name)) {
      base_.weights->ReadRange(segment.name, begin, out.numel(), out.data_ptr<float>());
      if (dtype_ != at::kFloat && !exact_.contains(segment.name)) out.copy_(out.to(dtype_));
      return;
    }
    const Quantisation kind = base_.quantize.nested ? Quantisation::kNf4Nested : Quantisation::kNf4;
    if (name_ != segment.name) {
      const Nf4Units units = base_.weights->ReadUnits(segment.name, segment.numel, kind, dtype_, 0,
                                                      UnitsOf(segment.numel));
      whole_ = at::empty({segment.numel}, dtype_);
      DequantiseUnits(units.rows, kind, units.common, whole_);
      name_ = segment.name;
    }
    out.copy_(whole_.narrow(0, begin, out.numel()));
  }

 private:
  const Base& base_;
  const at::ScalarType dtype_;
  std::set<std::string> linears_, exact_;  // quantised; fp32 whatever the rest is
  std::string name_;                       // of what was read last, dequantised
  at::Tensor whole_;
};

absl::Status WriteExport(const Checkpoint& checkpoint, const ModelConfig& model, const Base& base,
                         const std::string& dtype, const Sources& sources,
                         const std::string& output) {
  const CheckpointMeta& meta = checkpoint.meta();
  std::unique_ptr<World> world = World::Connect({}, at::kCPU);
  Flats adapters;
  if (base.weights != nullptr) {
    for (FlatLayout& layout : MakeLoraLayout(model, base.lora).flats) {
      adapters.push_back(std::make_unique<FlatParam>(
          std::move(layout), world.get(),
          FlatOptions{.dtype = meta.dtype == "bf16" ? at::kBFloat16 : at::kFloat}));
      if (absl::Status s = checkpoint.Read(*adapters.back()); !s.ok()) return s;
      adapters.back()->StartUnshard();
    }
  }
  const std::vector<FlatLayout> layouts = MakeLayout(model).flats;
  BaseReader beside(base, model, meta.dtype == "bf16" ? at::kBFloat16 : at::kFloat);
  const ReadParameter read = [&](int flat, int segment, int64_t begin,
                                 const at::Tensor& out) -> absl::Status {
    const Segment& wanted = layouts[flat].segments()[segment];
    if (base.weights == nullptr)
      return checkpoint.ReadRange(wanted, 0, begin, out.numel(), out.data_ptr<float>());
    beside.Read(wanted, begin, out);
    return absl::OkStatus();
  };
  const std::string unfinished = output + ".unfinished";
  const AdapterExport merged{&adapters, base.lora, base.init};
  const ExportOptions options{.dtype = dtype,
                              .tokenizer = sources.tokenizer,
                              .source = sources.model,
                              .adapters = base.weights != nullptr ? &merged : nullptr};
  if (IsObject(output)) return PushExport(read, model, options, PlaceOf(output)).status();
  if (absl::Status s = StageExport(read, model, options, unfinished); !s.ok()) return s;
  return ReplaceDirectory(unfinished, output);
}

}  // namespace

int Export(const ConvertOptions& given) {
  const ConvertOptions options = WithoutSlash(given);
  absl::StatusOr<std::string> text = ReadFile(options.input + "/index.json", size_t{1} << 30);
  absl::StatusOr<Checkpoint> checkpoint =
      text.ok() ? Checkpoint::Parse(options.input, *text) : text.status();
  absl::Status status = checkpoint.ok() ? checkpoint->VerifyFiles(0, 1) : checkpoint.status();
  Problems problems;
  if (!status.ok()) {
    const std::string why = text.ok() ? "" : WhyNoCheckpoint(options.input);
    problems.push_back(
        {options.flag, !why.empty()
                           ? why
                           : absl::StrCat(options.input, ": ", std::string(status.message()),
                                          "; take another checkpoint of the run")});
    return Refuse("export", problems);
  }
  const CheckpointMeta& meta = checkpoint->meta();
  const ModelConfig model = ParseModelConfig(meta.model, "model", /*strict=*/false, problems);
  const std::string dtype = options.dtype.empty() ? meta.dtype : options.dtype;
  CheckDtype(dtype, problems);
  CheckTokenizer(options.tokenizer, problems);
  const Base base = FindBase(options, meta, model, problems);
  if (problems.empty() && IsObject(options.output)) {
    CheckPlace(options.output, problems);
  } else if (problems.empty()) {
    CheckOutput(options.output, "config.json", "export", problems);
    if (!base.init.empty() && DirectoriesOverlap(options.output, base.init))
      problems.push_back(
          {"--output", absl::StrCat(options.output,
                                    " holds the weights that the adapters were trained beside, or "
                                    "lies in their directory, ",
                                    base.init,
                                    ", and the export would replace them; name a directory apart "
                                    "from it")});
  }
  if (!problems.empty()) return Refuse("export", problems);
  Sources sources;
  std::error_code error;  // a place that can't be looked at is no place to take from
  sources.model = !base.init.empty()                     ? base.init
                  : !options.init.empty()                ? options.init
                  : fs::is_directory(meta.source, error) ? meta.source
                                                         : "";
  const std::string& remembered = meta.tokenizer;
  sources.tokenizer = !options.tokenizer.empty()                        ? options.tokenizer
                      : !remembered.empty() && HasTokenizer(remembered) ? remembered
                                                                        : "";
  const std::string told = TokenizerText(sources.tokenizer, remembered);
  return Carry(
      "export",
      absl::StrCat("exported step=", meta.step, " to ", options.output, InPlace(options.output),
                   told),
      [&] { return WriteExport(*checkpoint, model, base, dtype, sources, options.output); });
}

int Convert(const ConvertOptions& options) {
  std::error_code hidden;  // which is told of below
  const bool quantises = !options.quantize.empty() || !options.quantize_double.empty();
  if (IsObject(options.input) || fs::exists(options.input + "/index.json", hidden)) {
    if (!quantises) return Export(options);
    return Refuse("convert", {{"--quantize",
                               absl::StrCat("is for a Hugging Face directory, and ", options.input,
                                            " is a checkpoint; leave it out, and quantise what "
                                            "comes of that")}});
  }
  if (fs::exists(options.input + "/config.json", hidden))
    return quantises ? Quantise(options) : ImportCheckpoint(options);
  if (const std::string why = WhyNoCheckpoint(options.input); !why.empty())
    return Refuse("convert", {{"--input", why}});
  return Refuse("convert",
                {{"--input", absl::StrCat(options.input,
                                          " has neither index.json, as a checkpoint has, nor "
                                          "config.json, as a Hugging Face directory has")}});
}

}  // namespace muster::trainer
