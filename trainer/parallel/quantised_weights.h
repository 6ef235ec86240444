// The weights of a flat in NF4 (ops/low_bits.h), and how ranks share them out. Each segment is cut
// into *units* of 16,384 elements, the last of which may be shorter. A unit is a row of bytes: its
// elements in 4 bits, its 256 blocks' scales, and where scales are nested the scale of those. So no
// block of any kind is in two units, and a rank owns whole ones: a gather is one of bytes.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace muster::trainer {

class FlatLayout;

// How a flat's weights are kept: as they are; with a scale in fp32 a block; or with nested scales:
// less their mean over the parameter they are quantised by a dynamic map.
enum class Quantisation { kNone, kNf4, kNf4Nested };

// What a parameter's units have in common.
struct Nf4Common {
  float offset = 0;                  // nested: the scales' mean
  at::Tensor map;                    // nested: fp32 [256], that scales are entries of
  at::ScalarType type = at::kFloat;  // which its values are rounded to
};
// Units of one parameter, on the host.
struct Nf4Units {
  at::Tensor rows;  // uint8 [units, UnitBytes]
  Nf4Common common;
};

inline constexpr int64_t kUnitElements = 16384;
inline constexpr int64_t kUnitCodes = kUnitElements / 2;  // bytes
inline constexpr int64_t kUnitBlocks = kUnitElements / 64;
constexpr int64_t UnitBytes(Quantisation kind) {
  return kUnitCodes + (kind == Quantisation::kNf4Nested ? kUnitBlocks + 4 : kUnitBlocks * 4);
}
constexpr int64_t UnitsOf(int64_t numel) { return (numel + kUnitElements - 1) / kUnitElements; }

// The values of consecutive units, from an element on that is the first of `rows`: into out [n], of
// any type and on the same device.
void DequantiseUnits(const at::Tensor& rows, Quantisation kind, const Nf4Common& common,
                     const at::Tensor& out);
// The same by ATen's operations, which any device has.
void DequantiseByAten(const at::Tensor& rows, Quantisation kind, const Nf4Common& common,
                      const at::Tensor& out);

// Not thread-safe.
class QuantisedWeights {
 public:
  // Of rank `rank` of `ranks` that share them out.
  QuantisedWeights(const FlatLayout& layout, Quantisation kind, int rank, int ranks,
                   at::Device device);

  Quantisation kind() const { return kind_; }
  int ranks() const { return ranks_; }
  // Bytes that one of `ranks` ranks owns.
  static int64_t OwnedBytes(const FlatLayout& layout, Quantisation kind, int ranks);
  // uint8 [units, UnitBytes]: what this rank owns, and memory for what all do.
  const at::Tensor& owned() const { return owned_; }
  at::Tensor MemoryForAll() const;

  // This rank's units of a segment: the first, counted in the segment, and their number.
  std::pair<int64_t, int64_t> OwnedUnits(int segment) const;
  // Takes over a segment's owned units; what they have in common every rank must be told.
  void Set(int segment, const Nf4Units& units);

  // Makes the weights, flat [padded], of all ranks' rows.
  void Dequantise(const FlatLayout& layout, const at::Tensor& rows, const at::Tensor& flat) const;

 private:
  const Quantisation kind_;
  const int ranks_;
  std::vector<int64_t> first_;  // unit of each segment, and the end
  int64_t owned_begin_ = 0;     // unit
  at::Tensor owned_;
  std::vector<Nf4Common> common_;  // by segment
};

}  // namespace muster::trainer
