// The body of UpdateAdamW over a vector type V, which a form of the kernel defines in an unnamed
// namespace before it includes this file: nothing here may be instantiated under another form's
// compiler flags, so no library templates are used. V has: kLanes; F and I (lanes of float and of
// 32-bit integers); LoadF StoreF (fp32), LoadH StoreH (the low halves of I), Set(float),
// SetI(uint32), Iota, Mul Sub Fma(a, b, c) = a·b + c, Div Sqrt, AddI MulI ShiftRight ShiftLeft Xor
// AndI, AsI AsF.
#pragma once

#include "trainer/optim/adamw_kernel.h"

#if defined(__CUDACC__)
#define MUSTER_LANE_FUNCTION __device__
#else
#define MUSTER_LANE_FUNCTION
#endif

namespace muster::trainer {
namespace {

// bf16 lanes in the low halves.
template <class V>
MUSTER_LANE_FUNCTION typename V::F FromBf16(typename V::I bits) {
  return V::AsF(V::template ShiftLeft<16>(bits));
}

// Half away from zero: then the 16 bits below are a signed distance that always fits.
template <class V>
MUSTER_LANE_FUNCTION typename V::I ToBf16(typename V::F value) {
  return V::template ShiftRight<16>(V::AddI(V::AsI(value), V::SetI(0x8000)));
}

// Rounded up as often as the distance says, by 16 bits of noise.
template <class V>
MUSTER_LANE_FUNCTION typename V::I ToBf16(typename V::F value, typename V::I noise) {
  return V::template ShiftRight<16>(V::AddI(V::AsI(value), V::AndI(noise, V::SetI(0xFFFF))));
}

// A mixer of 32 bits after MurmurHash3's.
template <class V>
MUSTER_LANE_FUNCTION typename V::I Noise(typename V::I element, uint32_t key) {
  typename V::I h = V::MulI(V::AddI(element, V::SetI(key)), V::SetI(0x9E3779B1u));
  h = V::MulI(V::Xor(h, V::template ShiftRight<15>(h)), V::SetI(0x85EBCA77u));
  h = V::MulI(V::Xor(h, V::template ShiftRight<13>(h)), V::SetI(0xC2B2AE3Du));
  return V::Xor(h, V::template ShiftRight<16>(h));
}

struct Pointers {
  float* masters;
  uint16_t *weights, *low_bits;
  const void* gradient;
  void *exp_avg, *exp_avg_sq;
};

// One group of V::kLanes elements.
template <class V, bool kSplit, bool kWeights, bool kGradient16, bool kMoments16>
MUSTER_LANE_FUNCTION inline void UpdateLanes(const AdamWStep& s, const Pointers& at,
                                             uint32_t element) {
  using F = typename V::F;
  using I = typename V::I;
  F g;
  if constexpr (kGradient16)
    g = FromBf16<V>(V::LoadH(static_cast<const uint16_t*>(at.gradient)));
  else
    g = V::LoadF(static_cast<const float*>(at.gradient));
  g = V::Mul(g, V::Set(s.clip));
  F m, v, p;
  if constexpr (kMoments16) {
    m = FromBf16<V>(V::LoadH(static_cast<const uint16_t*>(at.exp_avg)));
    v = FromBf16<V>(V::LoadH(static_cast<const uint16_t*>(at.exp_avg_sq)));
  } else {
    m = V::LoadF(static_cast<const float*>(at.exp_avg));
    v = V::LoadF(static_cast<const float*>(at.exp_avg_sq));
  }
  if constexpr (kSplit) {
    // weight·2^16 + (low_bits as a signed number)
    const I low_bits =
        V::AddI(V::Xor(V::LoadH(at.low_bits), V::SetI(0x8000)), V::SetI(0xFFFF8000u));
    p = V::AsF(V::AddI(V::template ShiftLeft<16>(V::LoadH(at.weights)), low_bits));
  } else {
    p = V::LoadF(at.masters);
  }
  m = V::Fma(V::Sub(g, m), V::Set(s.one_minus_beta1), m);
  v = V::Fma(V::Mul(g, V::Set(s.one_minus_beta2)), g, V::Mul(v, V::Set(s.beta2)));
  const F bottom = V::Fma(V::Sqrt(v), V::Set(s.inverse_root), V::Set(s.epsilon));
  p = V::Fma(V::Set(-s.step_size), V::Div(m, bottom), V::Mul(p, V::Set(s.keep)));
  if constexpr (kSplit) {
    const I weight = ToBf16<V>(p);
    V::StoreH(at.weights, weight);
    V::StoreH(
        at.low_bits,
        V::AsI(p));  // what is below the weight's bits is what the signed distance is modulo 2^16
  } else {
    V::StoreF(at.masters, p);
    if constexpr (kWeights) V::StoreH(at.weights, ToBf16<V>(p));
  }
  if constexpr (kMoments16) {
    const I noise = Noise<V>(V::AddI(V::SetI(element), V::Iota()), s.noise);
    V::StoreH(static_cast<uint16_t*>(at.exp_avg), ToBf16<V>(m, noise));
    V::StoreH(static_cast<uint16_t*>(at.exp_avg_sq),
              ToBf16<V>(v, V::template ShiftRight<16>(noise)));
  } else {
    V::StoreF(static_cast<float*>(at.exp_avg), m);
    V::StoreF(static_cast<float*>(at.exp_avg_sq), v);
  }
}

template <bool k16>
inline void* Forward(void* at, int64_t by) {
  return static_cast<char*>(at) + by * (k16 ? 2 : 4);
}

template <bool k16>
inline void Copy(void* to, const void* from, int64_t numel) {
  __builtin_memcpy(to, from, static_cast<unsigned long>(numel) * (k16 ? 2 : 4));
}

template <class V, bool kSplit, bool kWeights, bool kGradient16, bool kMoments16>
void UpdateRange(const AdamWStep& step, const AdamWSpan& span) {
  Pointers at{span.masters,  span.weights, span.low_bits,
              span.gradient, span.exp_avg, span.exp_avg_sq};
  const AdamWStep s = step;
  int64_t done = 0;
  for (; done + V::kLanes <= span.numel; done += V::kLanes) {
    UpdateLanes<V, kSplit, kWeights, kGradient16, kMoments16>(
        s, at, span.first_element + static_cast<uint32_t>(done));
    if constexpr (!kSplit) at.masters += V::kLanes;
    if constexpr (kWeights) at.weights += V::kLanes;
    if constexpr (kSplit) at.low_bits += V::kLanes;
    at.gradient = static_cast<const char*>(at.gradient) + V::kLanes * (kGradient16 ? 2 : 4);
    at.exp_avg = Forward<kMoments16>(at.exp_avg, V::kLanes);
    at.exp_avg_sq = Forward<kMoments16>(at.exp_avg_sq, V::kLanes);
  }
  const int64_t left = span.numel - done;
  if (left == 0) return;
  // The rest goes through a full group beside it, so that each element sees the same operations.
  alignas(64) float masters[V::kLanes] = {};
  alignas(64) uint16_t weights[V::kLanes] = {}, low_bits[V::kLanes] = {};
  alignas(64) float gradient[V::kLanes] = {}, exp_avg[V::kLanes] = {}, exp_avg_sq[V::kLanes] = {};
  if constexpr (!kSplit) Copy<false>(masters, at.masters, left);
  if constexpr (kSplit)
    Copy<true>(weights, at.weights, left), Copy<true>(low_bits, at.low_bits, left);
  Copy<kGradient16>(gradient, at.gradient, left);
  Copy<kMoments16>(exp_avg, at.exp_avg, left);
  Copy<kMoments16>(exp_avg_sq, at.exp_avg_sq, left);
  UpdateLanes<V, kSplit, kWeights, kGradient16, kMoments16>(
      s, {masters, weights, low_bits, gradient, exp_avg, exp_avg_sq},
      span.first_element + static_cast<uint32_t>(done));
  if constexpr (!kSplit) Copy<false>(at.masters, masters, left);
  if constexpr (kWeights) Copy<true>(at.weights, weights, left);
  if constexpr (kSplit) Copy<true>(at.low_bits, low_bits, left);
  Copy<kMoments16>(at.exp_avg, exp_avg, left);
  Copy<kMoments16>(at.exp_avg_sq, exp_avg_sq, left);
}

template <class V, bool kSplit, bool kWeights>
void UpdateOfMasters(const AdamWStep& step, const AdamWSpan& span) {
  if (span.gradient_bf16) {
    if (span.moments_bf16)
      UpdateRange<V, kSplit, kWeights, true, true>(step, span);
    else
      UpdateRange<V, kSplit, kWeights, true, false>(step, span);
  } else {
    if (span.moments_bf16)
      UpdateRange<V, kSplit, kWeights, false, true>(step, span);
    else
      UpdateRange<V, kSplit, kWeights, false, false>(step, span);
  }
}

template <class V>
void Update(const AdamWStep& step, const AdamWSpan& span) {
  if (span.masters == nullptr)
    UpdateOfMasters<V, true, true>(step, span);
  else if (span.weights != nullptr)
    UpdateOfMasters<V, false, true>(step, span);
  else
    UpdateOfMasters<V, false, false>(step, span);
}

}  // namespace
}  // namespace muster::trainer
