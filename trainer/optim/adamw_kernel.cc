#include "trainer/optim/adamw_kernel.h"

#include <cmath>
#include <cstring>

namespace muster::trainer {
namespace {

struct V {
  static constexpr int kLanes = 1;
  using F = float;
  using I = uint32_t;
  static F LoadF(const float* p) { return *p; }
  static void StoreF(float* p, F x) { *p = x; }
  static I LoadH(const uint16_t* p) { return *p; }
  static void StoreH(uint16_t* p, I x) { *p = static_cast<uint16_t>(x); }
  static F Set(float x) { return x; }
  static I SetI(uint32_t x) { return x; }
  static I Iota() { return 0; }
  static F Mul(F a, F b) { return a * b; }
  static F Sub(F a, F b) { return a - b; }
  static F Fma(F a, F b, F c) { return std::fma(a, b, c); }
  static F Div(F a, F b) { return a / b; }
  static F Sqrt(F a) { return std::sqrt(a); }
  static I AddI(I a, I b) { return a + b; }
  static I MulI(I a, I b) { return a * b; }
  static I Xor(I a, I b) { return a ^ b; }
  static I AndI(I a, I b) { return a & b; }
  template <int n>
  static I ShiftRight(I a) {
    return a >> n;
  }
  template <int n>
  static I ShiftLeft(I a) {
    return a << n;
  }
  static I AsI(F a) {
    I bits;
    std::memcpy(&bits, &a, sizeof bits);
    return bits;
  }
  static F AsF(I a) {
    F value;
    std::memcpy(&value, &a, sizeof value);
    return value;
  }
};

}  // namespace
}  // namespace muster::trainer

#include "trainer/optim/adamw_body.h"

namespace muster::trainer {

void UpdateAdamWAvx512(const AdamWStep& step, const AdamWSpan& span);
void UpdateAdamWAvx2(const AdamWStep& step, const AdamWSpan& span);

CpuForm BestCpuForm() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return CpuForm::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return CpuForm::kAvx2;
#endif
  return CpuForm::kPlain;
}

void UpdateAdamW(CpuForm form, const AdamWStep& step, const AdamWSpan& span) {
#if defined(__x86_64__)
  if (form == CpuForm::kAvx512) return UpdateAdamWAvx512(step, span);
  if (form == CpuForm::kAvx2) return UpdateAdamWAvx2(step, span);
#endif
  Update<V>(step, span);
}

void SplitMasters(const float* masters, uint16_t* weights, uint16_t* low_bits, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) {
    const uint32_t bits = V::AsI(masters[i]);
    weights[i] = static_cast<uint16_t>((bits + 0x8000u) >> 16);
    if (low_bits != nullptr) low_bits[i] = static_cast<uint16_t>(bits);
  }
}

void JoinMasters(const uint16_t* weights, const uint16_t* low_bits, float* masters, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) {
    const uint32_t distance =
        (static_cast<uint32_t>(low_bits[i]) ^ 0x8000u) + 0xFFFF8000u;  // sign-extended
    masters[i] = V::AsF((static_cast<uint32_t>(weights[i]) << 16) + distance);
  }
}

}  // namespace muster::trainer
