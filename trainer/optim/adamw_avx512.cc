// Compiled for AVX-512 (F, BW, VL, DQ); entered only where the machine has it.
#include <immintrin.h>

#include <cstdint>

namespace muster::trainer {
namespace {

struct V {
  static constexpr int kLanes = 16;
  using F = __m512;
  using I = __m512i;
  static F LoadF(const float* p) { return _mm512_loadu_ps(p); }
  static void StoreF(float* p, F x) { _mm512_storeu_ps(p, x); }
  static I LoadH(const uint16_t* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static void StoreH(uint16_t* p, I x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x));
  }
  static F Set(float x) { return _mm512_set1_ps(x); }
  static I SetI(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static I Iota() {
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static F Sqrt(F a) { return _mm512_sqrt_ps(a); }
  static I AddI(I a, I b) { return _mm512_add_epi32(a, b); }
  static I MulI(I a, I b) { return _mm512_mullo_epi32(a, b); }
  static I Xor(I a, I b) { return _mm512_xor_si512(a, b); }
  static I AndI(I a, I b) { return _mm512_and_si512(a, b); }
  template <int n>
  static I ShiftRight(I a) {
    return _mm512_srli_epi32(a, n);
  }
  template <int n>
  static I ShiftLeft(I a) {
    return _mm512_slli_epi32(a, n);
  }
  static I AsI(F a) { return _mm512_castps_si512(a); }
  static F AsF(I a) { return _mm512_castsi512_ps(a); }
};

}  // namespace
}  // namespace muster::trainer

#include "trainer/optim/adamw_body.h"

namespace muster::trainer {

void UpdateAdamWAvx512(const AdamWStep& step, const AdamWSpan& span) { Update<V>(step, span); }

}  // namespace muster::trainer
