#include "trainer/ops/low_bits.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/ATen.h>

namespace muster::trainer::low_bits {
namespace {

constexpr int kPlaces = 65536;  // between -1 and 1, both among them

float AbsMax(const float* x, int64_t n) {
  float most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::fabs(x[i]));
  return most;
}

// A NaN becomes the highest: what follows from it is refused where it is noticed.
float Clamp(float x) { return std::max(-1.0f, std::min(1.0f, x)); }

float AtPlace(int place) { return static_cast<float>(place) / (kPlaces - 1) * 2 - 1; }
int PlaceOf(float x) {
  // NOLINTNEXTLINE(bugprone-incorrect-roundings): never negative, and in a loop over all moments
  return static_cast<int>((x + 1.0f) * 0.5f * static_cast<float>(kPlaces - 1) + 0.5f);
}

ByteMap MakeDynamicMap(bool is_signed) {
  constexpr int kExponents = 7;
  std::vector<float> values = {0, 1};
  for (int i = 0; i < kExponents; ++i) {
    const int64_t parts = int64_t{1} << (is_signed ? i : i + 1);
    const at::Tensor bounds = at::linspace(0.1, 1, parts + 1, at::kFloat);
    const at::Tensor means = (bounds.narrow(0, 0, parts) + bounds.narrow(0, 1, parts)) / 2 *
                             std::pow(10.0, i - kExponents + 1);
    for (int64_t part = 0; part < parts; ++part) {
      values.push_back(means[part].item<float>());
      if (is_signed) values.push_back(-values.back());
    }
  }
  std::sort(values.begin(), values.end());
  ByteMap map;
  TORCH_CHECK(values.size() == map.size());
  std::copy(values.begin(), values.end(), map.begin());
  return map;
}

// The entry of the map that is nearest to each place; of two the lower one.
std::vector<uint8_t> MakeNearest(const ByteMap& map) {
  std::vector<uint8_t> nearest(kPlaces);
  for (int place = 0; place < kPlaces; ++place) {
    const float x = AtPlace(place);
    const auto above = std::upper_bound(map.begin(), map.end(), x);
    auto found = above == map.begin() ? above : above - 1;
    if (above != map.end() && std::fabs(*above - x) < std::fabs(*found - x)) found = above;
    nearest[place] = static_cast<uint8_t>(found - map.begin());
  }
  return nearest;
}

}  // namespace

const Nf4Map& Nf4Values() {
  static const Nf4Map values = {
      -1.0f,
      -0.6961928009986877f,
      -0.5250730514526367f,
      -0.39491748809814453f,
      -0.28444138169288635f,
      -0.18477343022823334f,
      -0.09105003625154495f,
      0.0f,
      0.07958029955625534f,
      0.16093020141124725f,
      0.24611230194568634f,
      0.33791524171829224f,
      0.44070982933044434f,
      0.5626170039176941f,
      0.7229568362236023f,
      1.0f,
  };
  return values;
}

const ByteMap& DynamicMap(bool is_signed) {
  static const ByteMap kSigned = MakeDynamicMap(true), kUnsigned = MakeDynamicMap(false);
  return is_signed ? kSigned : kUnsigned;
}

const std::vector<uint8_t>& Nearest(bool is_signed) {
  static const std::vector<uint8_t> kSigned = MakeNearest(DynamicMap(true)),
                                    kUnsigned = MakeNearest(DynamicMap(false));
  return is_signed ? kSigned : kUnsigned;
}

ByteMap StableMap(bool is_signed) {
  ByteMap map = DynamicMap(is_signed);
  const std::vector<uint8_t>& nearest = Nearest(is_signed);
  for (int code = 0; code < static_cast<int>(map.size()); ++code) {
    const float wanted = map[code];
    if (nearest[PlaceOf(wanted)] == code) continue;
    // Of the places that give the code, the one nearest to the entry. None does where places are
    // farther apart than entries.
    float least = 2;
    for (int place = 0; place < kPlaces; ++place) {
      const float distance = std::fabs(AtPlace(place) - wanted);
      if (nearest[place] != code || distance >= least) continue;
      least = distance;
      map[code] = AtPlace(place);
    }
  }
  if (is_signed) map[0] = -1;
  return map;
}

void QuantiseNf4(const float* x, int64_t n, uint8_t* packed, float* absmax) {
  constexpr float kLeast = 1e-38f;  // that is divided by
  const Nf4Map& values = Nf4Values();
  std::array<float, 15> bounds;
  for (size_t i = 0; i < bounds.size(); ++i) bounds[i] = (values[i] + values[i + 1]) / 2;
  for (int64_t begin = 0; begin < n; begin += kNf4Block) {
    const int64_t count = std::min(kNf4Block, n - begin);
    float& most = absmax[begin / kNf4Block];
    most = AbsMax(x + begin, count);
    const bool whole = count == kNf4Block;
    if (!whole) most = std::max(most, kLeast);
    const float scale = 1.0f / std::max(most, kLeast);
    std::array<uint8_t, kNf4Block> codes = {};
    for (int64_t i = 0; i < count; ++i) {
      const float v = Clamp(whole ? x[begin + i] * scale : x[begin + i] / most);
      int code = 0;
      for (const float bound : bounds) code += v > bound ? 1 : 0;
      codes[i] = static_cast<uint8_t>(code);
    }
    if (count % 2 != 0) codes[count] = 7;  // zero
    for (int64_t i = 0; i < count; i += 2)
      packed[(begin + i) / 2] = static_cast<uint8_t>(codes[i] << 4 | codes[i + 1]);
  }
}

void QuantiseBytes(const float* x, int64_t n, bool is_signed, uint8_t* codes, float* absmax) {
  const std::vector<uint8_t>& nearest = Nearest(is_signed);
  for (int64_t begin = 0; begin < n; begin += kByteBlock) {
    const int64_t count = std::min(kByteBlock, n - begin);
    const float most = absmax[begin / kByteBlock] = AbsMax(x + begin, count);
    if (most == 0) {
      std::fill_n(codes + begin, count, uint8_t{0});
      continue;
    }
    for (int64_t i = 0; i < count; ++i) {
      const float v = Clamp(x[begin + i] / most);
      codes[begin + i] = nearest[PlaceOf(v)];
    }
  }
}

void DequantiseBytes(const uint8_t* codes, const float* absmax, int64_t n, const ByteMap& map,
                     float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = map[codes[i]] * absmax[i / kByteBlock];
}

}  // namespace muster::trainer::low_bits
