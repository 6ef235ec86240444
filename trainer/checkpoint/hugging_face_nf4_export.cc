// Weights in NF4 as bitsandbytes saves them (as_dict of QuantState in its functional.py, 0.50):
// what hugging_face_nf4.cc reads.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "trainer/checkpoint/hugging_face.h"
#include "trainer/checkpoint/hugging_face_files.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/model/family.h"
#include "trainer/ops/low_bits.h"

namespace muster::trainer {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kLongestNumber = 24;  // characters of a double in JSON
constexpr int64_t kAlignment = 8;       // bytes, of numbers in the file
constexpr int64_t kFloatBytes = 4;

int64_t BlocksOf(int64_t numel, int64_t block) { return (numel + block - 1) / block; }

// What bitsandbytes keeps of a weight beside its tensors, as JSON.
std::string StateText(const Segment& weight, bool nested, const std::string& dtype, float offset) {
  ordered_json state;
  state["quant_type"] = "nf4";
  state["blocksize"] = low_bits::kNf4Block;
  state["dtype"] = TorchName(dtype);
  state["shape"] = weight.shape;
  if (nested) {
    state["nested_blocksize"] = low_bits::kByteBlock;
    state["nested_dtype"] = "float32";
    state["nested_offset"] = static_cast<double>(offset);
  }
  return state.dump();
}

// A linear's weight, and how long its state is in the file, with the spaces behind it.
struct Quantised {
  const Segment* weight;
  int64_t state_bytes;
};

// All of a file, in its order: what stays as it is, then the linears' weights.
struct Plan {
  std::vector<SafetensorsTensor> tensors;
  std::vector<const Segment*> plain;
  std::vector<Quantised> linears;
  int64_t bytes = 0;

  void Add(const std::string& name, const char* dtype, std::vector<int64_t> shape) {
    int64_t size = SafetensorsElementBytes(dtype);
    for (const int64_t dim : shape) size *= dim;
    tensors.push_back({name, dtype, std::move(shape), {}});
    bytes += size;
  }
  // The state's length must be known before its number is, and readers want numbers to be aligned:
  // so spaces fill it up, which JSON may have.
  void AddLinear(const Segment& weight, bool nested, const std::string& dtype) {
    const int64_t blocks = BlocksOf(weight.numel, low_bits::kNf4Block);
    int64_t state =
        static_cast<int64_t>(StateText(weight, nested, dtype, 0).size()) + kLongestNumber;
    state += (kAlignment - (bytes + state) % kAlignment) % kAlignment;
    linears.push_back({&weight, state});
    Add(weight.name + kNf4State, "U8", {state});
    Add(weight.name + ".quant_map", "F32", {static_cast<int64_t>(low_bits::Nf4Values().size())});
    if (nested) {
      Add(weight.name + ".nested_absmax", "F32", {BlocksOf(blocks, low_bits::kByteBlock)});
      Add(weight.name + ".nested_quant_map", "F32",
          {static_cast<int64_t>(low_bits::DynamicMap(true).size())});
    }
    Add(weight.name + ".absmax", nested ? "U8" : "F32", {blocks});
    Add(weight.name, "U8", {(weight.numel + 1) / 2, 1});
  }
};

Plan PlanOf(const std::vector<FlatLayout>& layouts, bool nested, const std::string& dtype) {
  Plan plan;
  for (const FlatLayout& layout : layouts) {
    if (layout.linears()) continue;
    for (const Segment& segment : layout.segments()) {
      plan.plain.push_back(&segment);
      plan.Add(segment.name, FileType(dtype), segment.shape);
    }
  }
  for (const FlatLayout& layout : layouts) {
    if (!layout.linears()) continue;
    for (const Segment& segment : layout.segments()) plan.AddLinear(segment, nested, dtype);
  }
  return plan;
}

template <typename T>
absl::Status Append(SafetensorsWriter& writer, const T* data, size_t count) {
  return writer.Append({reinterpret_cast<const uint8_t*>(data), count * sizeof(T)});
}

// A chunk of a parameter, as `type` has it.
at::Tensor ReadChunk(const HuggingFaceWeights& weights, const Segment& segment, int64_t begin,
                     at::ScalarType type) {
  const at::Tensor some = at::empty({std::min(kChunkElements, segment.numel - begin)}, at::kFloat);
  weights.ReadRange(segment.name, begin, some.numel(), some.data_ptr<float>());
  return some.to(type);
}

absl::Status WritePlain(const HuggingFaceWeights& weights, const Segment& segment,
                        at::ScalarType type, SafetensorsWriter& writer) {
  for (int64_t begin = 0; begin < segment.numel; begin += kChunkElements) {
    const at::Tensor part = ReadChunk(weights, segment, begin, type);
    if (absl::Status s = Append(writer, static_cast<const uint8_t*>(part.data_ptr()),
                                static_cast<size_t>(part.nbytes()));
        !s.ok())
      return s;
  }
  return absl::OkStatus();
}

// Whether a weight's values are, as `type` has them. Codes and scales don't tell: to the quantiser
// a NaN is the largest number of its block.
bool AreFinite(const HuggingFaceWeights& weights, const Segment& weight, at::ScalarType type) {
  for (int64_t begin = 0; begin < weight.numel; begin += kChunkElements) {
    if (!at::isfinite(ReadChunk(weights, weight, begin, type)).all().item<bool>()) return false;
  }
  return true;
}

absl::Status WriteLinear(const HuggingFaceWeights& weights, const Quantised& linear, bool nested,
                         const std::string& dtype, SafetensorsWriter& writer) {
  const Segment& weight = *linear.weight;
  const at::ScalarType type = TorchType(FileType(dtype));
  const int64_t blocks = BlocksOf(weight.numel, low_bits::kNf4Block);
  const Nf4Units units = weights.ReadUnits(weight.name, weight.numel,
                                           nested ? Quantisation::kNf4Nested : Quantisation::kNf4,
                                           type, 0, UnitsOf(weight.numel));
  // The scales' mean of very large ones isn't, either.
  if (!AreFinite(weights, weight, type) || !std::isfinite(units.common.offset))
    return absl::InvalidArgumentError(
        absl::StrCat(weight.name, " has values that aren't finite as ", dtype,
                     "; give a model that has none", dtype == "fp16" ? ", or --dtype bf16" : ""));
  const auto* rows = units.rows.const_data_ptr<uint8_t>();
  // Of each unit's bytes the `width` from `begin` on; `count` in all: the last unit may be short.
  const auto append = [&](int64_t begin, int64_t width, int64_t count) -> absl::Status {
    for (int64_t unit = 0; count > 0; ++unit, count -= width) {
      absl::Status s = Append(writer, rows + unit * units.rows.size(1) + begin,
                              static_cast<size_t>(std::min(width, count)));
      if (!s.ok()) return s;
    }
    return absl::OkStatus();
  };
  std::string state = StateText(weight, nested, dtype, units.common.offset);
  state.resize(static_cast<size_t>(linear.state_bytes), ' ');
  absl::Status s = Append(writer, state.data(), state.size());
  s.Update(Append(writer, low_bits::Nf4Values().data(), low_bits::Nf4Values().size()));
  if (nested) {
    s.Update(append(kUnitCodes + kUnitBlocks, kFloatBytes,
                    BlocksOf(blocks, low_bits::kByteBlock) * kFloatBytes));
    s.Update(Append(writer, units.common.map.const_data_ptr<float>(),
                    static_cast<size_t>(units.common.map.numel())));
  }
  const int64_t scale_bytes = nested ? 1 : kFloatBytes;
  s.Update(append(kUnitCodes, kUnitBlocks * scale_bytes, blocks * scale_bytes));
  s.Update(append(0, kUnitCodes, (weight.numel + 1) / 2));
  return s;
}

}  // namespace

absl::Status WriteNf4Weights(const Nf4Export& nf4, const ModelConfig& config,
                             const std::string& dtype, const std::string& path) {
  const std::vector<FlatLayout> layouts = MakeLayout(config, {.linears_apart = true}).flats;
  const Plan plan = PlanOf(layouts, nf4.nested, dtype);
  absl::StatusOr<SafetensorsWriter> writer =
      SafetensorsWriter::Create(path, plan.tensors, {{"format", "pt"}});
  if (!writer.ok()) return writer.status();
  for (const Segment* segment : plan.plain) {
    if (absl::Status s = WritePlain(*nf4.weights, *segment, TorchType(FileType(dtype)), *writer);
        !s.ok())
      return s;
  }
  for (const Quantised& linear : plan.linears) {
    if (absl::Status s = WriteLinear(*nf4.weights, linear, nf4.nested, dtype, *writer); !s.ok())
      return s;
  }
  return writer->Finish().status();
}

}  // namespace muster::trainer
