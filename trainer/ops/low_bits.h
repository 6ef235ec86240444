// Numbers in few bits, by blocks that share a scale: the largest absolute value of the block, with
// which its values are divided before each becomes the number of the nearest entry of a map. The
// maps, blocks and roundings are those of bitsandbytes (0.50, on a CPU), bit for bit.
//   NF4: 4 bits, quantiles of a normal distribution (QLoRA, arXiv 2305.14314, section 3), blocks of
//   64.
//   Dynamic maps: 8 bits, which spend some on the exponent (8-bit optimizers, arXiv 2110.02861,
//   section 2), blocks of 256.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace muster::trainer::low_bits {

inline constexpr int64_t kNf4Block = 64, kByteBlock = 256;  // elements that share a scale

using Nf4Map = std::array<float, 16>;
using ByteMap = std::array<float, 256>;

// All ascending.
const Nf4Map& Nf4Values();
const ByteMap& DynamicMap(bool is_signed);

// x [n] into packed [ceil(n / 2)], two elements a byte, the first in the high bits; and absmax
// [ceil(n / 64)].
void QuantiseNf4(const float* x, int64_t n, uint8_t* packed, float* absmax);

// x [n] into codes [n] of DynamicMap(is_signed), and absmax [ceil(n / 256)]. A quotient goes to the
// entry that is nearest to the next of 65,536 places between -1 and 1, not to itself: so of
// unsigned ones none but a block of zeros becomes zero.
void QuantiseBytes(const float* x, int64_t n, bool is_signed, uint8_t* codes, float* absmax);

// Values near a map's entries of which QuantiseBytes makes the same codes and scale again,
// whichever of a block's values is the largest: -1 for the lowest signed entry, which is -0.993.
ByteMap StableMap(bool is_signed);

// That entry's number, by place.
const std::vector<uint8_t>& Nearest(bool is_signed);

// Back: out [n].
void DequantiseBytes(const uint8_t* codes, const float* absmax, int64_t n, const ByteMap& map,
                     float* out);

}  // namespace muster::trainer::low_bits
