#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "trainer/checkpoint/hugging_face.h"
#include "trainer/checkpoint/hugging_face_files.h"
#include "trainer/checkpoint/push.h"
#include "trainer/model/families.h"
#include "trainer/model/family.h"
#include "trainer/model/lora.h"
#include "trainer/model/quantize_config.h"

namespace muster::trainer {

const char* TorchName(const std::string& dtype) {
  return dtype == "bf16" ? "bfloat16" : dtype == "fp16" ? "float16" : "float32";
}
const char* FileType(const std::string& dtype) {
  return dtype == "bf16" ? "BF16" : dtype == "fp16" ? "F16" : "F32";
}

namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kLargestAlong = uintmax_t{64} << 20;

// Files of a Hugging Face directory that an export takes along, if they aren't larger than
// kLargestAlong: the tokenizer's, a licence, a card; not weights of any kind, nor what belongs to
// those or to the run that made them, or says that they are no whole model.
bool GoesAlong(const fs::directory_entry& entry) {
  static constexpr const char* kWeights[] = {".safetensors", ".bin", ".pt",        ".pth",
                                             ".ckpt",        ".h5",  ".msgpack",   ".gguf",
                                             ".onnx",        ".npz", ".index.json"};
  const std::string name = entry.path().filename().string();
  std::error_code error;
  return entry.is_regular_file(error) && name[0] != '.' && name != "adapter_config.json" &&
         name != "trainer_state.json" && name != kUnfinishedExport &&
         !absl::StartsWith(name, "events.out.") &&
         std::none_of(std::begin(kWeights), std::end(kWeights),
                      [&](const char* end) { return absl::EndsWith(name, end); });
}

// What an export consists of.
struct WrittenExport {
  std::set<std::string> names;  // of files, in its directory, but for these two
  std::string index;            // of weights in several files; or ""
  std::string config;
};

// Where a segment's rows stand in files: the tensor, and the first of its rows.
struct InFile {
  size_t tensor;
  int64_t row;
};

// The tensors of all files in order, and the segments' places, one after another.
struct WeightTensors {
  std::vector<SafetensorsTensor> tensors;
  std::vector<InFile> places;
};

// `joins`: linears that are one in files.
WeightTensors TensorsOf(const std::vector<FlatLayout>& layouts, const std::string& dtype,
                        bool joins) {
  WeightTensors found;
  auto& [tensors, places] = found;
  for (const FlatLayout& layout : layouts) {
    // Routers' biases as transformers keeps them.
    const char* type = layout.router_bias() ? "F32" : FileType(dtype);
    for (const Segment& segment : layout.segments()) {
      const std::string joined = joins ? JoinedName(segment.name) : "";
      if (joined.empty() || tensors.empty() || tensors.back().name != joined) {
        tensors.push_back({joined.empty() ? segment.name : joined, type, segment.shape, {}});
        places.push_back({tensors.size() - 1, 0});
      } else {  // parts stand behind each other
        places.push_back({tensors.size() - 1, tensors.back().shape[0]});
        tensors.back().shape[0] += segment.shape[0];
      }
    }
  }
  return found;
}

// A file of weights.
struct WeightFile {
  std::string name;
  std::vector<SafetensorsTensor> tensors;
  int64_t bytes = 0;
};

// Which tensors go into which files, in order: one that is too big for `most_bytes` alone.
std::vector<WeightFile> DivideWeights(const std::vector<SafetensorsTensor>& tensors,
                                      int64_t most_bytes) {
  std::vector<WeightFile> files(1);
  for (const SafetensorsTensor& tensor : tensors) {
    auto bytes = static_cast<int64_t>(at::elementSize(TorchType(tensor.dtype)));
    for (const int64_t size : tensor.shape) bytes *= size;
    if (!files.back().tensors.empty() && files.back().bytes > most_bytes - bytes)
      files.emplace_back();
    files.back().tensors.push_back(tensor);
    files.back().bytes += bytes;
  }
  for (size_t i = 0; i < files.size(); ++i)
    files[i].name = files.size() == 1
                        ? kSingle
                        : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, files.size());
  return files;
}

// model.safetensors.index.json, as transformers writes it; "" of a single file.
std::string WeightIndex(const std::vector<WeightFile>& files) {
  if (files.size() == 1) return "";
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  int64_t total = 0;
  for (const WeightFile& file : files) {
    total += file.bytes;
    for (const SafetensorsTensor& tensor : file.tensors) map[tensor.name] = file.name;
  }
  return nlohmann::ordered_json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(
             2) +
         "\n";
}

// Is called before a file takes its place, which an error leaves as it is.
using BeforeCommit = std::function<absl::Status()>;

// Writes all files of weights, a chunk of rows at a time.
absl::Status WriteWeights(const ReadParameter& read, const std::vector<FlatLayout>& layouts,
                          const WeightTensors& weights, const std::vector<WeightFile>& files,
                          const std::string& directory, const AdapterExport* adapters,
                          const BeforeCommit& before_commit) {
  std::map<std::string, Adapter> modules;
  if (adapters != nullptr) modules = FindAdapters(*adapters->flats);
  std::optional<SafetensorsWriter> writer;
  const auto commit = [&] {
    absl::Status s = before_commit();
    return s.ok() ? writer->Finish().status() : s;
  };
  auto file = files.begin();  // that comes next
  size_t file_begins = 0;     // its first tensor
  auto place = weights.places.begin();
  for (int flat = 0; flat < static_cast<int>(layouts.size()); ++flat) {
    for (int index = 0; index < static_cast<int>(layouts[flat].segments().size()); ++index) {
      const auto [tensor, first] = *place++;
      if (tensor == file_begins) {
        if (writer.has_value()) {
          if (absl::Status s = commit(); !s.ok()) return s;
        }
        absl::StatusOr<SafetensorsWriter> begun = SafetensorsWriter::Create(
            absl::StrCat(directory, "/", file->name), file->tensors, {{"format", "pt"}});
        if (!begun.ok()) return begun.status();
        writer.emplace(*std::move(begun));
        file_begins += file++->tensors.size();
      }
      const Segment& segment = layouts[flat].segments()[index];
      const SafetensorsTensor& whole = weights.tensors[tensor];
      const int64_t rows = segment.shape[0], width = segment.numel / rows,
                    step = std::max<int64_t>(1, kChunkElements / width);
      const auto adapter = modules.find(std::string(absl::StripSuffix(whole.name, ".weight")));
      for (int64_t row = 0; row < rows; row += step) {
        const int64_t count = std::min(step, rows - row);
        at::Tensor part = at::empty({count, width}, at::kFloat);
        if (absl::Status s = read(flat, index, row * width, part.view(-1)); !s.ok()) return s;
        if (adapter != modules.end()) {
          const at::Tensor b = adapter->second.b.cpu().narrow(0, first + row, count);
          part = Merged(part, {adapter->second.a.cpu(), b, {}, {}}, adapters->config.Scale());
        }
        part = part.to(TorchType(whole.dtype));
        if (absl::Status s = writer->Append(
                {static_cast<const uint8_t*>(part.data_ptr()), static_cast<size_t>(part.nbytes())});
            !s.ok())
          return s;
      }
    }
  }
  return commit();
}

// The tokenizer's files, and what else goes along.
absl::Status CopyAlong(const std::string& tokenizer, const std::string& directory,
                       const BeforeCommit& before_commit, std::set<std::string>& names) {
  const auto failed = [&](const std::string& why) {
    return absl::UnavailableError(absl::StrCat("cannot copy the tokenizer from ", tokenizer, ": ",
                                               why, "; name another by --tokenizer DIR"));
  };
  std::error_code error;
  for (fs::directory_iterator it(tokenizer, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!GoesAlong(*it) || name == kConfig || names.contains(name)) continue;
    std::error_code gone;
    if (const uintmax_t size = it->file_size(gone); !gone && size > kLargestAlong) {
      std::fprintf(stderr, "note: %s is left out of the export, as it is larger than %d MiB\n",
                   it->path().c_str(), static_cast<int>(kLargestAlong >> 20));
      continue;
    }
    const absl::StatusOr<std::string> content = ReadFile(it->path().string());
    if (!content.ok()) return failed(std::string(content.status().message()));
    if (absl::Status s = before_commit(); !s.ok()) return s;
    if (absl::Status s = WriteFileDurably(absl::StrCat(directory, "/", name), *content); !s.ok())
      return s;
    names.insert(name);
  }
  return error ? failed(error.message()) : absl::OkStatus();
}

// Writes all files of weights, of either kind.
absl::Status WriteWeightFiles(const ReadParameter& read, const ModelConfig& config,
                              const ExportOptions& options, const std::string& directory,
                              const BeforeCommit& before_commit, WrittenExport& written) {
  if (options.nf4 != nullptr) {
    written.names.insert(kSingle);
    return WriteNf4Weights(*options.nf4, config, options.dtype,
                           absl::StrCat(directory, "/", kSingle));
  }
  const std::vector<FlatLayout> layouts = MakeLayout(config).flats;
  const WeightTensors weights =
      TensorsOf(layouts, options.dtype, FieldsOfFamily(config.family).joined_linears);
  const std::vector<WeightFile> files = DivideWeights(weights.tensors, options.most_file_bytes);
  for (const WeightFile& file : files) written.names.insert(file.name);
  written.index = WeightIndex(files);
  return WriteWeights(read, layouts, weights, files, directory, options.adapters, before_commit);
}

// Writes all files but config.json and the weights' index, which are the caller's to write last.
absl::Status WriteFiles(const ReadParameter& read, const ModelConfig& config,
                        const ExportOptions& options, const std::string& directory,
                        const BeforeCommit& before_commit, WrittenExport& written) {
  if (absl::Status s = MakeDirectories(directory); !s.ok()) return s;
  if (absl::Status s = WriteWeightFiles(read, config, options, directory, before_commit, written);
      !s.ok())
    return s;
  nlohmann::ordered_json content = ToHuggingFace(config, TorchName(options.dtype));
  if (options.nf4 != nullptr)
    content["quantization_config"] =
        QuantizationConfig(options.nf4->nested, config.score, TorchName(options.dtype));
  written.config = content.dump(2) + "\n";
  const AdapterExport* adapters = options.adapters;
  if (adapters != nullptr) {
    if (absl::Status s = SaveAdapter(*adapters->flats, adapters->config, adapters->base_model,
                                     directory + "/adapter", before_commit);
        !s.ok())
      return s;
    written.names.insert("adapter/adapter_model.safetensors");
  }
  absl::StatusOr<std::string> generation = absl::NotFoundError("");
  if (!options.source.empty()) generation = ReadFile(options.source + "/generation_config.json");
  if (!generation.ok()) {
    nlohmann::ordered_json ids = nlohmann::ordered_json::object();
    for (const auto& [key, id] : config.token_ids.items()) ids[key] = id;
    generation = ids.dump(2) + "\n";
  }
  const std::string name = "generation_config.json";
  if (absl::Status s = before_commit(); !s.ok()) return s;
  if (absl::Status s = WriteFileDurably(absl::StrCat(directory, "/", name), *generation); !s.ok())
    return s;
  written.names.insert(name);
  return options.tokenizer.empty()
             ? absl::OkStatus()
             : CopyAlong(options.tokenizer, directory, before_commit, written.names);
}

absl::Status WriteDirectory(const ReadParameter& read, const ModelConfig& config,
                            const ExportOptions& options, const std::string& staging) {
  WrittenExport written;
  const BeforeCommit nothing = [] { return absl::OkStatus(); };  // nobody else writes there
  if (absl::Status s = WriteFiles(read, config, options, staging, nothing, written); !s.ok())
    return s;
  if (!written.index.empty()) {
    if (absl::Status s = WriteFileDurably(absl::StrCat(staging, "/", kIndex), written.index);
        !s.ok())
      return s;
  }
  if (absl::Status s = WriteFileDurably(absl::StrCat(staging, "/", kConfig), written.config);
      !s.ok())
    return s;
  return SyncTree(staging);
}

}  // namespace

absl::Status StageExport(const ReadParameter& read, const ModelConfig& config,
                         const ExportOptions& options, const std::string& staging) {
  RemoveTree(staging);
  const absl::Status status = WriteDirectory(read, config, options, staging);
  if (!status.ok()) RemoveTree(staging);  // a full disk stays full otherwise
  return status;
}

absl::StatusOr<bool> PushExport(const ReadParameter& read, const ModelConfig& config,
                                ExportOptions options, const std::string& place) {
  // The client sends parts of 10 MiB, and a store takes 10,000 of an object.
  constexpr int64_t kMostObjectBytes = int64_t{40} << 30;
  options.most_file_bytes = std::min(options.most_file_bytes, kMostObjectBytes);
  absl::StatusOr<PlacedExport> placed = PlacedExport::Begin(place);
  if (!placed.ok()) return placed.status();
  WrittenExport written;
  const BeforeCommit look = [&] { return placed->StillMine(); };
  if (absl::Status s = WriteFiles(read, config, options, place, look, written); !s.ok()) return s;
  if (absl::Status s = placed->Finish(written.names, written.index, written.config); !s.ok())
    return s;
  return placed->replaces();
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
