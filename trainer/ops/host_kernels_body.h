// The body of the CPU's kernels; each form (host_kernels.cc) defines MUSTER_KERNELS_FORM, its
// namespace, and is compiled for its instruction set. Nothing here may be instantiated under
// another form's flags, so no library templates are used.
//
// What is summed is summed in an order that depends on shapes alone, never on the number of
// threads: runs are repeatable.
#include <cstdint>
#include <cstring>

#include "trainer/ops/cuda/kernels.h"

namespace muster::trainer::kernels {
namespace {
namespace MUSTER_KERNELS_FORM {

constexpr int kLanes = 16;
using F __attribute__((vector_size(4 * kLanes))) = float;
using I __attribute__((vector_size(4 * kLanes))) = int32_t;
using U __attribute__((vector_size(4 * kLanes))) = uint32_t;
using H __attribute__((vector_size(2 * kLanes))) = uint16_t;

struct Bf16 {
  uint16_t bits;
};

// Reads and writes `n` elements, kLanes of them but at the end of a row; the lanes behind are zero.
inline F Load(const float* p, int64_t n = kLanes) {
  F x = {};
  if (n == kLanes)
    memcpy(&x, p, sizeof x);
  else
    memcpy(&x, p, static_cast<size_t>(n) * sizeof *p);
  return x;
}
inline void Store(float* p, F x, int64_t n = kLanes) {
  if (n == kLanes)
    memcpy(p, &x, sizeof x);
  else
    memcpy(p, &x, static_cast<size_t>(n) * sizeof *p);
}
inline F Load(const Bf16* p, int64_t n = kLanes) {
  H h = {};
  if (n == kLanes)
    memcpy(&h, p, sizeof h);
  else
    memcpy(&h, p, static_cast<size_t>(n) * sizeof *p);
  return (F)(__builtin_convertvector(h, U) << 16);
}
// To the nearest, ties to even; NaN stays one.
inline U RoundedBits(F x) {
  const U bits = (U)x;
  const U rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return (U)(x == x) != 0 ? rounded : (bits >> 16) | 0x40;
}
inline void Store(Bf16* p, F x, int64_t n = kLanes) {
  const H h = __builtin_convertvector(RoundedBits(x), H);
  if (n == kLanes)
    memcpy(p, &h, sizeof h);
  else
    memcpy(p, &h, static_cast<size_t>(n) * sizeof *p);
}
// What T keeps of x.
template <class T>
inline F Round(F x) {
  return (F)(RoundedBits(x) << 16);
}
template <>
inline F Round<float>(F x) {
  return x;
}

inline float Sum(F x) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x[i] += x[i + half];
  }
  return x[0];
}
inline float Largest(F x) {
  float largest = x[0];
  for (int i = 1; i < kLanes; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}
inline F All(float x) { return F{} + x; }

// e^x to 2 units in the last place: 2^n · e^r with |r| <= log(2) / 2, by Cephes' polynomial. Below
// -87 about 1e-38.
inline F Exp(F x) {
  x = x < -87.0f ? All(-87.0f) : x;
  x = x > 88.0f ? All(88.0f) : x;
  const F magic = All(12582912.0f);  // 1.5 · 2^23: what is added to it is rounded to a whole number
  const F shifted = x * 1.44269504f + magic;
  const F n = shifted - magic;
  const F r = x - n * 0.693359375f + n * 2.12194440e-4f;
  F p = All(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const F power = (F)(((I)shifted - (I)magic + 127) << 23);
  return (p * r * r + r + 1.0f) * power;
}

inline F Sigmoid(F x) { return 1.0f / (1.0f + Exp(-x)); }

// f(first element, how many) over a row.
template <class Body>
inline void ForRow(int64_t width, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) body(i, int64_t{kLanes});
  if (i < width) body(i, width - i);
}

// Rows that a thread takes at a time.
constexpr int kRows = 16;

// Where row `row` begins; with a stride, rows are heads among the columns of a matrix.
template <class Arguments>
inline int64_t PlaceOf(int64_t row, const Arguments& a) {
  return a.stride > 0 ? row / a.heads * a.stride + row % a.heads * a.width : row * a.width;
}

template <class T>
void RmsNormOf(const RmsNormArguments& a) {
  const T *all_x = static_cast<const T*>(a.x), *all_residual = static_cast<const T*>(a.residual),
          *w = static_cast<const T*>(a.weight);
#pragma omp parallel for schedule(static, kRows)
  for (int64_t row = 0; row < a.rows; ++row) {
    const T* x = all_x + PlaceOf(row, a);
    F squares = {};
    if (all_residual != nullptr) {
      const T* residual = all_residual + row * a.width;
      T* sum = static_cast<T*>(a.sum) + row * a.width;
      ForRow(a.width, [&](int64_t i, int64_t n) {
        const F s = Round<T>(Load(x + i, n) + Load(residual + i, n));
        Store(sum + i, s, n);
        squares += s * s;
      });
      x = sum;
    } else {
      ForRow(a.width, [&](int64_t i, int64_t n) {
        const F s = Load(x + i, n);
        if (a.sum != nullptr) Store(static_cast<T*>(a.sum) + row * a.width + i, s, n);
        squares += s * s;
      });
    }
    const float rstd =
        1.0f / __builtin_sqrtf(Sum(squares) / static_cast<float>(a.width) + a.epsilon);
    a.rstd[row] = rstd;
    T* y = static_cast<T*>(a.y) + PlaceOf(row, a);
    if (a.from_one) {
      ForRow(a.width, [&](int64_t i, int64_t n) {
        Store(y + i, Load(x + i, n) * rstd * (1.0f + Load(w + i, n)), n);
      });
      continue;
    }
    ForRow(a.width, [&](int64_t i, int64_t n) {
      Store(y + i, Round<T>(Load(x + i, n) * rstd) * Load(w + i, n), n);
    });
  }
}

// Blocks of rows that sum the weight's gradient by themselves.
constexpr int64_t kNormBlocks = 32;

template <class T>
void RmsNormBackwardOf(const RmsNormBackwardArguments& a) {
  const T *all_dy = static_cast<const T*>(a.dy), *all_x = static_cast<const T*>(a.x),
          *w = static_cast<const T*>(a.weight);
  const T* all_residual = static_cast<const T*>(a.residual);
  const float base = a.from_one ? 1.0f : 0.0f;
  const int64_t blocks = a.rows < kNormBlocks ? a.rows : kNormBlocks;
#pragma omp parallel for schedule(static)
  for (int64_t block = 0; block < blocks; ++block) {
    float* partial = a.partial == nullptr ? nullptr : a.partial + block * a.width;
    if (partial != nullptr) memset(partial, 0, static_cast<size_t>(a.width) * sizeof *partial);
    for (int64_t row = block * a.rows / blocks; row < (block + 1) * a.rows / blocks; ++row) {
      const T *dy = all_dy + PlaceOf(row, a), *x = all_x + row * a.width;
      const float rstd = a.rstd[row];
      F dots = {};
      ForRow(a.width, [&](int64_t i, int64_t n) {
        const F d = Load(dy + i, n), normed = Load(x + i, n) * rstd;
        dots += d * (base + Load(w + i, n)) * normed;
        if (partial != nullptr) Store(partial + i, Load(partial + i, n) + d * normed, n);
      });
      const float mean = Sum(dots) / static_cast<float>(a.width);
      T* dx = static_cast<T*>(a.dx) + PlaceOf(row, a);
      const T* residual = all_residual == nullptr ? nullptr : all_residual + row * a.width;
      ForRow(a.width, [&](int64_t i, int64_t n) {
        F d = (Load(dy + i, n) * (base + Load(w + i, n)) - Load(x + i, n) * rstd * mean) * rstd;
        if (residual != nullptr) d = Round<T>(d) + Load(residual + i, n);
        Store(dx + i, d, n);
      });
    }
  }
  if (a.partial == nullptr) return;
  for (int64_t block = 0; block < blocks; ++block) {
    const float* partial = a.partial + block * a.width;
    ForRow(a.width, [&](int64_t i, int64_t n) {
      Store(a.d_weight + i, Load(a.d_weight + i, n) + Load(partial + i, n), n);
    });
  }
}

template <class T>
void RopeOf(const RopeArguments& a) {
  const int64_t all_heads = a.heads + 2 * a.kv_heads, half = a.width / 2;
#pragma omp parallel for schedule(static, kRows)
  for (int64_t token = 0; token < a.batch * a.length; ++token) {
    const int64_t row = token / a.length, place = token % a.length,
                  position = a.positions == nullptr ? place : a.positions[token];
    const float *cos = a.cos + position * half, *sin = a.sin + position * half;
    const float sign = a.backward ? -1.0f : 1.0f;
    for (int64_t head = 0; head < all_heads; ++head) {
      T* flat = static_cast<T*>(a.qkv) + (token * all_heads + head) * a.width;
      T* own;
      if (head < a.heads)
        own = static_cast<T*>(a.q) + HeadsPlace(a, row, place, head, a.heads);
      else if (head < a.heads + a.kv_heads)
        own = static_cast<T*>(a.k) + HeadsPlace(a, row, place, head - a.heads, a.kv_heads);
      else
        own = static_cast<T*>(a.v) +
              HeadsPlace(a, row, place, head - a.heads - a.kv_heads, a.kv_heads);
      const T* from = a.backward ? own : flat;
      T* to = a.backward ? flat : own;
      if (head >= a.heads + a.kv_heads) {
        memcpy(to, from, static_cast<size_t>(a.width) * sizeof(T));
        continue;
      }
      ForRow(half, [&](int64_t i, int64_t n) {
        const F x1 = Load(from + i, n), x2 = Load(from + half + i, n);
        const F c = Round<T>(Load(cos + i, n)), s = Round<T>(Load(sin + i, n)) * sign;
        Store(to + i, Round<T>(x1 * c) - x2 * s, n);
        Store(to + half + i, Round<T>(x2 * c) + x1 * s, n);
      });
    }
  }
}

template <class T>
void SwiGluOf(const SwiGluArguments& a) {
#pragma omp parallel for schedule(static, kRows)
  for (int64_t row = 0; row < a.rows; ++row) {
    const T *gate = static_cast<const T*>(a.gate_up) + row * 2 * a.width, *up = gate + a.width;
    if (a.dy == nullptr) {
      T* y = static_cast<T*>(a.y) + row * a.width;
      ForRow(a.width, [&](int64_t i, int64_t n) {
        const F g = Load(gate + i, n);
        Store(y + i, Round<T>(g * Sigmoid(g)) * Load(up + i, n), n);
      });
      continue;
    }
    const T* dy = static_cast<const T*>(a.dy) + row * a.width;
    T *d_gate = static_cast<T*>(a.d_gate_up) + row * 2 * a.width, *d_up = d_gate + a.width;
    ForRow(a.width, [&](int64_t i, int64_t n) {
      const F g = Load(gate + i, n), d = Load(dy + i, n), sigmoid = Sigmoid(g);
      Store(d_gate + i, Round<T>(d * Load(up + i, n)) * sigmoid * (1.0f + g * (1.0f - sigmoid)), n);
      Store(d_up + i, d * Round<T>(g * sigmoid), n);
    });
  }
}

template <class T>
void CrossEntropyOf(const CrossEntropyArguments& a) {
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < a.rows; ++row) {
    T* x = static_cast<T*>(a.logits) + row * a.vocabulary;
    const int64_t target = a.targets[row];
    const float weight = a.weights[row];
    const float target_logit = Load(x + target, 1)[0];
    F largest = All(target_logit);
    ForRow(a.vocabulary, [&](int64_t i, int64_t n) {
      F here = Load(x + i, n);
      if (n < kLanes) {
        for (int64_t k = n; k < kLanes; ++k) here[k] = target_logit;
      }
      largest = here > largest ? here : largest;
    });
    const float top = Largest(largest);
    // fp32: the exponentials stay where the logits were; bf16 has no room for them.
    const bool keep = sizeof(T) == sizeof(float) && !a.loss_only;
    // With what each addition rounds off beside it (Dekker's Fast2Sum): a lane adds up many, and
    // the fewer lanes a CPU has, the more.
    F sums = {}, lost = {};
    ForRow(a.vocabulary, [&](int64_t i, int64_t n) {
      F e = Exp(Load(x + i, n) - top);
      if (n < kLanes) {
        for (int64_t k = n; k < kLanes; ++k) e[k] = 0;
      }
      if (keep) Store(x + i, e, n);
      const F more = sums + e;
      lost += e - (more - sums);
      sums = more;
    });
    const float sum = Sum(sums) + Sum(lost), log_sum = __builtin_logf(sum);
    const double all = static_cast<double>(top) + log_sum;
    a.loss[row] = -static_cast<double>(target_logit - top - log_sum) * weight;
    a.z[row] = all * all * weight;
    if (a.loss_only) continue;
    const float scale = weight * (1.0f + 2.0f * a.z_loss * (top + log_sum));
    float at_target = 0;
    if (keep) {
      const float factor = scale / sum;
      at_target = Load(x + target, 1)[0] * factor;
      ForRow(a.vocabulary, [&](int64_t i, int64_t n) { Store(x + i, Load(x + i, n) * factor, n); });
    } else {
      at_target = (Exp(All(target_logit - top - log_sum)) * scale)[0];
      ForRow(a.vocabulary, [&](int64_t i, int64_t n) {
        Store(x + i, Exp(Load(x + i, n) - top - log_sum) * scale, n);
      });
    }
    Store(x + target, All(at_target - weight), 1);
  }
}

void RmsNorm(const RmsNormArguments& a, Stream) {
  a.bf16 ? RmsNormOf<Bf16>(a) : RmsNormOf<float>(a);
}
void RmsNormBackward(const RmsNormBackwardArguments& a, Stream) {
  a.bf16 ? RmsNormBackwardOf<Bf16>(a) : RmsNormBackwardOf<float>(a);
}
void Rope(const RopeArguments& a, Stream) { a.bf16 ? RopeOf<Bf16>(a) : RopeOf<float>(a); }
void SwiGlu(const SwiGluArguments& a, Stream) { a.bf16 ? SwiGluOf<Bf16>(a) : SwiGluOf<float>(a); }
void CrossEntropy(const CrossEntropyArguments& a, Stream) {
  a.bf16 ? CrossEntropyOf<Bf16>(a) : CrossEntropyOf<float>(a);
}

// Eight values at a time; big ones one by one.
using F8 __attribute__((vector_size(32))) = float;
using D8 __attribute__((vector_size(64))) = double;
using L8 __attribute__((vector_size(64))) = int64_t;

inline F8 LoadEight(const float* p) {
  F8 x;
  memcpy(&x, p, sizeof x);
  return x;
}
inline F8 LoadEight(const Bf16* p) {
  uint32_t bits[8];
  for (int k = 0; k < 8; ++k) bits[k] = static_cast<uint32_t>(p[k].bits) << 16;
  F8 x;
  memcpy(&x, bits, sizeof x);
  return x;
}

template <class T>
ExactSum SquaresIn(const T* values, int64_t count) {
  ExactSum sum;
  L8 coarse_sum = {}, fine_sum = {};
  int64_t added = 0;
  const auto flush = [&] {
    for (int k = 0; k < 8; ++k) sum.Add(coarse_sum[k], fine_sum[k]);
    coarse_sum = fine_sum = L8{};
    added = 0;
  };
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const D8 x = __builtin_convertvector(LoadEight(values + i), D8), square = x * x;
    const L8 small = square < kSquareLimit;
    bool all = true;
    for (int k = 0; k < 8; ++k) all &= small[k] != 0;
    if (!all) {
      for (int k = 0; k < 8; ++k) sum.Add(ExactSquare(Load(values + i + k, 1)[0]));
      continue;
    }
    const D8 coarse = square + kCoarse, fine = (square - (coarse - kCoarse)) + kFine;
    coarse_sum += (L8)coarse - BitsOf(kCoarse);
    fine_sum += (L8)fine - BitsOf(kFine);
    if (++added == kSquaresAtOnce) flush();
  }
  flush();
  for (; i < count; ++i) sum.Add(ExactSquare(Load(values + i, 1)[0]));
  return sum;
}

template <class T>
void SquaresOf(const SquaresArguments& a) {
  const int64_t blocks = SquaresBlocks(a.count), packs = (a.count + 7) / 8;
  const T* values = static_cast<const T*>(a.values);
#pragma omp parallel for schedule(static)
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = packs * block / blocks * 8, end = packs * (block + 1) / blocks * 8;
    a.partial[block] = SquaresIn(values + begin, (end < a.count ? end : a.count) - begin);
  }
  for (int64_t block = 0; block < blocks; ++block) a.total->Add(a.partial[block]);
}

// Threads take columns; each id's rows are summed before they are added.
template <class T>
void EmbeddingBackwardOf(const EmbeddingArguments& a) {
  const int64_t groups = (a.width + kLanes - 1) / kLanes;
#pragma omp parallel for schedule(static)
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t column = group * kLanes,
                  n = a.width - column < kLanes ? a.width - column : kLanes;
    for (int64_t first = 0; first < a.rows;) {
      F sum = {};
      int64_t i = first;
      for (; i < a.rows && a.ids[i] == a.ids[first]; ++i)
        sum += Load(static_cast<const T*>(a.dy) + a.order[i] * a.width + column, n);
      float* to = a.d_weight + a.ids[first] * a.width + column;
      Store(to, Load(to, n) + sum, n);
      first = i;
    }
  }
}

void Squares(const SquaresArguments& a, Stream) {
  a.bf16 ? SquaresOf<Bf16>(a) : SquaresOf<float>(a);
}
void EmbeddingBackward(const EmbeddingArguments& a, Stream) {
  a.bf16 ? EmbeddingBackwardOf<Bf16>(a) : EmbeddingBackwardOf<float>(a);
}

constexpr Kernels kAll = {RmsNorm,     RmsNormBackward,   Rope,    SwiGlu, CrossEntropy,
                          AdamWOnHost, EmbeddingBackward, Squares, nullptr};

}  // namespace MUSTER_KERNELS_FORM
}  // namespace
}  // namespace muster::trainer::kernels
