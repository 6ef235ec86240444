// Quantised weights of a Hugging Face directory: made of plain ones as they are read, or read as
// bitsandbytes has saved them ("W", "W.absmax", "W.quant_map", "W.nested_absmax",
// "W.nested_quant_map", "W.quant_state.bitsandbytes__nf4" for a weight W).
#include <algorithm>
#include <cmath>
#include <cstring>

#include <ATen/Parallel.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trainer/checkpoint/hugging_face.h"
#include "trainer/checkpoint/hugging_face_files.h"
#include "trainer/checkpoint/json_text.h"
#include "trainer/ops/low_bits.h"

namespace muster::trainer {
namespace {

using nlohmann::json;

constexpr int64_t kUnitsAtOnce = 64;  // that are read and quantised

int64_t BlocksOf(int64_t numel, int64_t block) { return (numel + block - 1) / block; }

at::ScalarType StateType(const std::string& dtype) {
  if (dtype == "float32") return at::kFloat;
  if (dtype == "bfloat16") return at::kBFloat16;
  if (dtype == "float16") return at::kHalf;
  return at::ScalarType::Undefined;
}

// What of the scales' mean goes into a model may not depend on the number of threads.
float MeanByOneThread(const at::Tensor& values) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const float mean = values.mean().item<float>();
  at::set_num_threads(threads);
  return mean;
}

// fp32 in place.
void RoundTo(at::ScalarType type, const at::Tensor& values) {
  if (type != at::kFloat) values.copy_(values.to(type));
}

// A tensor that stands beside a quantised weight: the bytes wanted, or what is wrong.
struct Wanted {
  const char* suffix;
  const char* dtype;  // null: any
  int64_t bytes;
};

// What is wrong with a state's JSON for a weight of `shape`; "": nothing.
std::string WrongState(const json& state, const std::vector<int64_t>& shape, bool nested) {
  const auto text = [&](const char* key) { return state.value(key, json()).dump(); };
  if (!state.is_object()) return "is no JSON object";
  if (state.value("quant_type", json()) != "nf4")
    return absl::StrCat("has quant_type ", text("quant_type"), " where nf4 is meant");
  if (state.value("blocksize", json()) != low_bits::kNf4Block)
    return absl::StrCat("has blocks of ", text("blocksize"), "; those of ", low_bits::kNf4Block,
                        " can be read");
  if (state.value("shape", json()) != json(shape))
    return absl::StrCat("has shape ", text("shape"), " where config.json means [",
                        absl::StrJoin(shape, ", "), "]");
  const json dtype = state.value("dtype", json());
  if (!dtype.is_string() || StateType(dtype.get<std::string>()) == at::ScalarType::Undefined)
    return absl::StrCat("has dtype ", text("dtype"), "; float32, bfloat16 and float16 can be read");
  if (state.contains("nested_offset") != nested)
    return nested ? "has scales that aren't nested, and trainer.quantize.double is true; use false"
                  : "has nested scales, and trainer.quantize.double is false; use true";
  if (nested &&
      (!state["nested_offset"].is_number() || !std::isfinite(state["nested_offset"].get<double>())))
    return absl::StrCat("has nested_offset ", text("nested_offset"), ", which is no number");
  if (nested && state.value("nested_blocksize", json()) != low_bits::kByteBlock)
    return absl::StrCat("has nested blocks of ", text("nested_blocksize"), "; those of ",
                        low_bits::kByteBlock, " can be read");
  return "";
}

}  // namespace

std::span<const uint8_t> HuggingFaceWeights::Bytes(const std::string& name) const {
  const Tensor& tensor = where_.at(name);
  return tensor.file->Data(*tensor.entry);
}

// What is wrong with the tensors of the quantised weight `name`; else takes note of what they say.
std::string HuggingFaceWeights::ReadState(const std::string& name,
                                          const std::vector<int64_t>& shape, bool nested) {
  const auto says = [&](const std::string& tensor, const std::string& what) {
    return absl::StrCat(paths_.at(where_.at(name).file), ": ", tensor, " ", what);
  };
  const std::span<const uint8_t> text = Bytes(name + kNf4State);
  const absl::StatusOr<json> state = ParseJson(
      std::string(reinterpret_cast<const char*>(text.data()), text.size()), name + kNf4State);
  if (!state.ok()) return says(name + kNf4State, "is no JSON");
  if (const std::string wrong = WrongState(*state, shape, nested); !wrong.empty())
    return says(name + kNf4State, wrong);
  int64_t numel = 1;
  for (const int64_t dim : shape) numel *= dim;
  const int64_t blocks = BlocksOf(numel, low_bits::kNf4Block),
                outer = BlocksOf(blocks, low_bits::kByteBlock);
  std::vector<Wanted> wanted = {{"", nullptr, (numel + 1) / 2},
                                {".absmax", nested ? "U8" : "F32", nested ? blocks : blocks * 4},
                                {".quant_map", "F32", 16 * 4}};
  if (nested) {
    wanted.push_back({".nested_absmax", "F32", outer * 4});
    wanted.push_back({".nested_quant_map", "F32", 256 * 4});
  }
  for (const Wanted& one : wanted) {
    const std::string tensor = name + one.suffix;
    const auto found = where_.find(tensor);
    if (found == where_.end()) return says(tensor, "is missing");
    const SafetensorsEntry& entry = *found->second.entry;
    const auto bytes = static_cast<int64_t>(entry.end - entry.begin);
    if ((one.dtype != nullptr && entry.dtype != one.dtype) || bytes != one.bytes)
      return says(tensor, absl::StrCat("has ", bytes, " bytes of ", entry.dtype, " where ",
                                       one.bytes, one.dtype == nullptr ? "" : " of ",
                                       one.dtype == nullptr ? "" : one.dtype, " are meant"));
    if (entry.dtype != "F32" || *one.suffix == '\0') continue;
    for (const float value : Floats(tensor)) {
      if (!std::isfinite(value)) return says(tensor, "has values that aren't finite");
    }
  }
  const std::vector<float> map = Floats(name + ".quant_map");
  if (!std::equal(map.begin(), map.end(), low_bits::Nf4Values().begin()))
    return says(name + ".quant_map", "is not the map of NF4");
  Nf4Common& common = quantised_[name];
  common.type = StateType((*state)["dtype"].get<std::string>());
  if (!nested) return "";
  common.offset = (*state)["nested_offset"].get<float>();
  common.map = at::tensor(Floats(name + ".nested_quant_map"));
  return "";
}

std::vector<float> HuggingFaceWeights::Floats(const std::string& name) const {
  const std::span<const uint8_t> bytes = Bytes(name);  // not aligned
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

// Of a directory that bitsandbytes has quantised: checks what belongs to the linears in `layouts`,
// and takes all but the weights themselves out of the tensors that are known.
void HuggingFaceWeights::TakeQuantised(const std::vector<FlatLayout>& layouts, bool nested,
                                       std::vector<std::string>& wrong) {
  const bool any = std::any_of(where_.begin(), where_.end(), [](const auto& one) {
    return absl::EndsWith(one.first, kNf4State);
  });
  if (!any) return;
  constexpr char kRemedy[] =
      "; download the directory again, or save it again from transformers and bitsandbytes";
  for (const FlatLayout& layout : layouts) {
    if (!layout.linears()) continue;
    for (const Segment& segment : layout.segments()) {
      if (!where_.contains(segment.name)) continue;  // said elsewhere
      if (!where_.contains(segment.name + kNf4State)) {
        wrong.push_back(absl::StrCat(
            paths_.at(where_.at(segment.name).file), ": ", segment.name, " has no ", kNf4State + 1,
            ", and others have: a model of which some linears are skipped can't be read; quantise "
            "all of them, or give the unquantised model"));
        continue;
      }
      if (const std::string what = ReadState(segment.name, segment.shape, nested); !what.empty())
        wrong.push_back(absl::StrCat(
            what, absl::EndsWith(what, "; use true") || absl::EndsWith(what, "; use false")
                      ? ""
                      : kRemedy));
      for (const char* suffix : {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"})
        beside_.insert(where_.extract(segment.name + suffix));
      beside_.insert(where_.extract(segment.name + kNf4State));
    }
  }
}

Nf4Units HuggingFaceWeights::ReadUnits(const std::string& name, int64_t numel, Quantisation kind,
                                       at::ScalarType type, int64_t first, int64_t count) const {
  Nf4Units units;
  units.rows = at::zeros({count, UnitBytes(kind)}, at::kByte);
  if (const auto saved = quantised_.find(name); saved != quantised_.end()) {
    units.common = saved->second;
    CopyUnits(name, kind, first, units.rows);
    return units;
  }
  const bool nested = kind == Quantisation::kNf4Nested;
  units.common.type = type;
  if (!nested && count == 0) return units;
  // Scales that are nested depend on all of the parameter.
  const int64_t begin = nested ? 0 : first, end = nested ? UnitsOf(numel) : first + count;
  const at::Tensor scales = at::zeros({(end - begin) * kUnitBlocks}, at::kFloat);
  const at::Tensor values = at::empty({kUnitsAtOnce * kUnitElements}, at::kFloat);
  const at::Tensor others = at::empty({kUnitsAtOnce, kUnitCodes}, at::kByte);
  for (int64_t unit = begin; unit < end; unit += kUnitsAtOnce) {
    const int64_t some = std::min(kUnitsAtOnce, end - unit), element = unit * kUnitElements,
                  n = std::min(some * kUnitElements, numel - element);
    ReadRange(name, element, n, values.data_ptr<float>());
    RoundTo(type, values.narrow(0, 0, n));
    at::parallel_for(0, some, 1, [&](int64_t from, int64_t to) {
      for (int64_t u = from; u < to; ++u) {
        const int64_t own = unit + u - first;
        uint8_t* codes = own >= 0 && own < count
                             ? units.rows.data_ptr<uint8_t>() + own * units.rows.size(1)
                             : others.data_ptr<uint8_t>() + u * kUnitCodes;
        low_bits::QuantiseNf4(values.data_ptr<float>() + u * kUnitElements,
                              std::min(kUnitElements, n - u * kUnitElements), codes,
                              scales.data_ptr<float>() + (unit + u - begin) * kUnitBlocks);
      }
    });
  }
  const at::Tensor real = scales.narrow(
      0, 0, std::min(scales.numel(), BlocksOf(numel, low_bits::kNf4Block) - begin * kUnitBlocks));
  if (nested) {
    units.common.offset = MeanByOneThread(real);
    units.common.map = at::tensor(
        at::ArrayRef<float>(low_bits::DynamicMap(true).data(), low_bits::DynamicMap(true).size()));
    real.sub_(units.common.offset);
  }
  for (int64_t own = 0; own < count; ++own) {
    uint8_t* row = units.rows.data_ptr<uint8_t>() + own * units.rows.size(1) + kUnitCodes;
    const int64_t block = (first + own - begin) * kUnitBlocks;
    const float* its = scales.data_ptr<float>() + block;
    if (!nested) {
      std::memcpy(row, its, kUnitBlocks * sizeof(float));
      continue;
    }
    float most = 0;
    low_bits::QuantiseBytes(its, std::min(kUnitBlocks, real.numel() - block), /*is_signed=*/true,
                            row, &most);
    std::memcpy(row + kUnitBlocks, &most, sizeof(most));
  }
  return units;
}

// Units of a weight that is saved as bytes, from unit `first` on.
void HuggingFaceWeights::CopyUnits(const std::string& name, Quantisation kind, int64_t first,
                                   const at::Tensor& rows) const {
  const bool nested = kind == Quantisation::kNf4Nested;
  struct Part {
    std::span<const uint8_t> bytes;
    int64_t in_unit, at;  // bytes of a unit, and where they go
  };
  const auto beside = [&](const char* suffix) {
    const Tensor& tensor = beside_.at(name + suffix);
    return tensor.file->Data(*tensor.entry);
  };
  std::vector<Part> parts = {
      {Bytes(name), kUnitCodes, 0},
      {beside(".absmax"), nested ? kUnitBlocks : kUnitBlocks * 4, kUnitCodes}};
  if (nested) parts.push_back({beside(".nested_absmax"), 4, kUnitCodes + kUnitBlocks});
  for (int64_t own = 0; own < rows.size(0); ++own) {
    for (const Part& part : parts) {
      const int64_t begin = (first + own) * part.in_unit,
                    n = std::min<int64_t>(part.in_unit,
                                          static_cast<int64_t>(part.bytes.size()) - begin);
      std::copy_n(part.bytes.data() + begin, n,
                  rows.data_ptr<uint8_t>() + own * rows.size(1) + part.at);
    }
  }
}

void HuggingFaceWeights::ReadQuantised(FlatParam& flat) const {
  QuantisedWeights& quantised = *flat.quantised();
  const std::vector<Segment>& segments = flat.layout().segments();
  for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
    const auto [first, count] = quantised.OwnedUnits(s);
    quantised.Set(s, ReadUnits(segments[s].name, segments[s].numel, quantised.kind(),
                               flat.options().dtype, first, count));
  }
}

}  // namespace muster::trainer
