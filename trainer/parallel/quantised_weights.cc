#include "trainer/parallel/quantised_weights.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "trainer/ops/low_bits.h"
#include "trainer/parallel/flat_param.h"

namespace muster::trainer {
namespace {

// Units that ATen dequantises at once: what it needs for that is several times as large.
constexpr int64_t kAtOnce = 64;

int64_t UnitsIn(const FlatLayout& layout) {
  int64_t units = 0;
  for (const Segment& segment : layout.segments()) units += UnitsOf(segment.numel);
  return units;
}

int64_t UnitsOfARank(const FlatLayout& layout, int ranks) {
  return (UnitsIn(layout) + ranks - 1) / ranks;
}

// The scales of one unit's blocks.
void UnitScales(const uint8_t* row, bool nested, const Nf4Common& common, const float* map,
                float* scales) {
  const uint8_t* at = row + kUnitCodes;
  if (!nested) {
    std::copy_n(at, kUnitBlocks * 4, reinterpret_cast<uint8_t*>(scales));
    return;
  }
  float most = 0;
  std::copy_n(at + kUnitBlocks, sizeof(most), reinterpret_cast<uint8_t*>(&most));
  for (int64_t block = 0; block < kUnitBlocks; ++block)
    scales[block] = map[at[block]] * most + common.offset;
}

template <typename Rounded, typename Out>
void DequantiseOnHost(const at::Tensor& rows, bool nested, const Nf4Common& common,
                      const at::Tensor& out) {
  const low_bits::Nf4Map& values = low_bits::Nf4Values();
  const int64_t n = out.numel(), unit_bytes = rows.size(1);
  const auto* all = rows.const_data_ptr<uint8_t>();
  const float* map = nested ? common.map.const_data_ptr<float>() : nullptr;
  Out* to = out.data_ptr<Out>();
  at::parallel_for(0, UnitsOf(n), 1, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const uint8_t* row = all + unit * unit_bytes;
      float scales[kUnitBlocks];
      UnitScales(row, nested, common, map, scales);
      const int64_t first = unit * kUnitElements, count = std::min(kUnitElements, n - first);
      for (int64_t i = 0; i < count; ++i) {
        const int code = i % 2 == 0 ? row[i / 2] >> 4 : row[i / 2] & 15;
        const float value = values[code] * scales[i / low_bits::kNf4Block];
        to[first + i] = static_cast<Out>(static_cast<float>(static_cast<Rounded>(value)));
      }
    }
  });
}

template <typename Rounded>
void DequantiseTo(const at::Tensor& rows, bool nested, const Nf4Common& common,
                  const at::Tensor& out) {
  if (out.scalar_type() == at::kBFloat16)
    DequantiseOnHost<Rounded, c10::BFloat16>(rows, nested, common, out);
  else
    DequantiseOnHost<Rounded, float>(rows, nested, common, out);
}

}  // namespace

void DequantiseByAten(const at::Tensor& rows, Quantisation kind, const Nf4Common& common,
                      const at::Tensor& out) {
  const at::Tensor values =
      at::from_blob(const_cast<float*>(low_bits::Nf4Values().data()), {16}, at::kFloat)
          .to(rows.device());
  const bool nested = kind == Quantisation::kNf4Nested;
  for (int64_t unit = 0; unit < UnitsOf(out.numel()); unit += kAtOnce) {
    const at::Tensor part = rows.narrow(0, unit, std::min(kAtOnce, rows.size(0) - unit));
    const at::Tensor codes = part.narrow(1, 0, kUnitCodes);
    at::Tensor scales = part.narrow(1, kUnitCodes, nested ? kUnitBlocks : kUnitBlocks * 4);
    if (nested) {
      const at::Tensor most = part.narrow(1, kUnitCodes + kUnitBlocks, 4).contiguous();
      scales =
          common.map.index({scales.to(at::kInt)}).mul_(most.view(at::kFloat)).add_(common.offset);
    } else {
      scales = scales.contiguous().view(at::kFloat);
    }
    const at::Tensor both =
        at::stack({codes.bitwise_right_shift(4), codes.bitwise_and(15)}, /*dim=*/2).to(at::kInt);
    const at::Tensor made = values.index({both})
                                .view({part.size(0), kUnitBlocks, low_bits::kNf4Block})
                                .mul_(scales.unsqueeze(2))
                                .to(common.type)
                                .view(-1);
    const int64_t first = unit * kUnitElements, count = std::min(made.numel(), out.numel() - first);
    out.narrow(0, first, count).copy_(made.narrow(0, 0, count));
  }
}

void DequantiseUnits(const at::Tensor& rows, Quantisation kind, const Nf4Common& common,
                     const at::Tensor& out) {
  if (!rows.is_cpu()) return DequantiseByAten(rows, kind, common, out);
  const bool nested = kind == Quantisation::kNf4Nested;
  if (common.type == at::kBFloat16)
    DequantiseTo<c10::BFloat16>(rows, nested, common, out);
  else if (common.type == at::kHalf)
    DequantiseTo<c10::Half>(rows, nested, common, out);
  else
    DequantiseTo<float>(rows, nested, common, out);
}

QuantisedWeights::QuantisedWeights(const FlatLayout& layout, Quantisation kind, int rank, int ranks,
                                   at::Device device)
    : kind_(kind), ranks_(ranks), first_{0}, common_(layout.segments().size()) {
  for (const Segment& segment : layout.segments())
    first_.push_back(first_.back() + UnitsOf(segment.numel));
  const int64_t own = UnitsOfARank(layout, ranks);
  owned_begin_ = rank * own;
  owned_ = at::zeros({own, UnitBytes(kind)}, at::TensorOptions().dtype(at::kByte).device(device));
}

int64_t QuantisedWeights::OwnedBytes(const FlatLayout& layout, Quantisation kind, int ranks) {
  return UnitsOfARank(layout, ranks) * UnitBytes(kind);
}

at::Tensor QuantisedWeights::MemoryForAll() const {
  return at::empty({owned_.size(0) * ranks_, owned_.size(1)}, owned_.options());
}

std::pair<int64_t, int64_t> QuantisedWeights::OwnedUnits(int segment) const {
  const int64_t begin = std::max(first_[segment], owned_begin_),
                end = std::min(first_[segment + 1], owned_begin_ + owned_.size(0));
  return {std::max<int64_t>(0, begin - first_[segment]), std::max<int64_t>(0, end - begin)};
}

void QuantisedWeights::Set(int segment, const Nf4Units& units) {
  common_[segment] = units.common;
  if (units.common.map.defined()) common_[segment].map = units.common.map.to(owned_.device());
  const auto [begin, count] = OwnedUnits(segment);
  TORCH_CHECK(units.rows.size(0) == count, "another number of units");
  if (count > 0) owned_.narrow(0, first_[segment] + begin - owned_begin_, count).copy_(units.rows);
}

void QuantisedWeights::Dequantise(const FlatLayout& layout, const at::Tensor& rows,
                                  const at::Tensor& flat) const {
  for (size_t s = 0; s < layout.segments().size(); ++s) {
    const Segment& segment = layout.segments()[s];
    DequantiseUnits(rows.narrow(0, first_[s], first_[s + 1] - first_[s]), kind_, common_[s],
                    flat.narrow(0, segment.offset, segment.numel));
  }
}

}  // namespace muster::trainer
