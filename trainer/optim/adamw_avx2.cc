// Compiled for AVX2 and FMA; entered only where the machine has them.
#include <immintrin.h>

#include <cstdint>

namespace muster::trainer {
namespace {

struct V {
  static constexpr int kLanes = 8;
  using F = __m256;
  using I = __m256i;
  static F LoadF(const float* p) { return _mm256_loadu_ps(p); }
  static void StoreF(float* p, F x) { _mm256_storeu_ps(p, x); }
  static I LoadH(const uint16_t* p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void StoreH(uint16_t* p, I x) {
    const I low = _mm256_and_si256(x, _mm256_set1_epi32(0xFFFF));
    const I packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  static F Set(float x) { return _mm256_set1_ps(x); }
  static I SetI(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static I Iota() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static F Sqrt(F a) { return _mm256_sqrt_ps(a); }
  static I AddI(I a, I b) { return _mm256_add_epi32(a, b); }
  static I MulI(I a, I b) { return _mm256_mullo_epi32(a, b); }
  static I Xor(I a, I b) { return _mm256_xor_si256(a, b); }
  static I AndI(I a, I b) { return _mm256_and_si256(a, b); }
  template <int n>
  static I ShiftRight(I a) {
    return _mm256_srli_epi32(a, n);
  }
  template <int n>
  static I ShiftLeft(I a) {
    return _mm256_slli_epi32(a, n);
  }
  static I AsI(F a) { return _mm256_castps_si256(a); }
  static F AsF(I a) { return _mm256_castsi256_ps(a); }
};

}  // namespace
}  // namespace muster::trainer

#include "trainer/optim/adamw_body.h"

namespace muster::trainer {

void UpdateAdamWAvx2(const AdamWStep& step, const AdamWSpan& span) { Update<V>(step, span); }

}  // namespace muster::trainer
