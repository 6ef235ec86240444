#include "trainer/ops/cuda/kernels.h"

#include "trainer/ops/cuda/device.h"
#include "trainer/optim/adamw_body.h"

namespace muster::trainer::kernels {
namespace {

// Threads of a block that has a row to itself; few where rows are short (the norms of single
// heads).
constexpr int kThreads = 256, kFewThreads = 64;
constexpr int64_t kShortRow = 512;

// Elements of its row that a thread of the norm's backward keeps sums for.
constexpr int kOwnElements = 32;
static_assert(kOwnElements * kThreads == kMostNormWidth);

template <class T, int threads>
__global__ void __launch_bounds__(threads) RmsNormKernel(RmsNormArguments a) {
  using P = Pack<T>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * a.width, packs = a.width / P::kCount;
  const P* x = reinterpret_cast<const P*>(static_cast<const T*>(a.x) + first);
  const P* residual = a.residual == nullptr
                          ? nullptr
                          : reinterpret_cast<const P*>(static_cast<const T*>(a.residual) + first);
  P* sum = a.residual == nullptr ? nullptr : reinterpret_cast<P*>(static_cast<T*>(a.sum) + first);
  float squares = 0;
  for (int64_t i = threadIdx.x; i < packs; i += threads) {
    P p = x[i];
    if (residual != nullptr) {
      const P r = residual[i];
      for (int k = 0; k < P::kCount; ++k) p.at[k] = From<T>(ToFloat(p.at[k]) + ToFloat(r.at[k]));
      sum[i] = p;
    }
    for (int k = 0; k < P::kCount; ++k) squares += ToFloat(p.at[k]) * ToFloat(p.at[k]);
  }
  const float rstd = __fdiv_rn(
      1.0f, __fsqrt_rn(OverBlock<threads>(squares) / static_cast<float>(a.width) + a.epsilon));
  if (threadIdx.x == 0) a.rstd[blockIdx.x] = rstd;
  const P* in = residual != nullptr ? sum : x;  // each thread reads what it wrote
  const P* weight = static_cast<const P*>(a.weight);
  P* y = reinterpret_cast<P*>(static_cast<T*>(a.y) + first);
  for (int64_t i = threadIdx.x; i < packs; i += threads) {
    const P p = in[i], w = weight[i];
    P out;
    for (int k = 0; k < P::kCount; ++k)
      out.at[k] = From<T>(Round<T>(ToFloat(p.at[k]) * rstd) * ToFloat(w.at[k]));
    y[i] = out;
  }
}

// dx = rstd · (dn - normed · mean(dn · normed)), dn = dy · w; rows blockIdx.x, blockIdx.x +
// gridDim.x, …
template <class T, int threads>
__global__ void __launch_bounds__(threads) RmsNormBackwardKernel(RmsNormBackwardArguments a) {
  using P = Pack<T>;
  constexpr int kMostPacks = kOwnElements / P::kCount;
  const int64_t packs = a.width / P::kCount;
  const P* weight = static_cast<const P*>(a.weight);
  float sums[kOwnElements] = {};
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t first = row * a.width;
    const P* dy = reinterpret_cast<const P*>(static_cast<const T*>(a.dy) + first);
    const P* x = reinterpret_cast<const P*>(static_cast<const T*>(a.x) + first);
    const float rstd = a.rstd[row];
    float dot = 0;
    for (int j = 0; j < kMostPacks; ++j) {
      const int64_t i = threadIdx.x + static_cast<int64_t>(j) * threads;
      if (i >= packs) break;
      const P d = dy[i], p = x[i], w = weight[i];
      for (int k = 0; k < P::kCount; ++k) {
        const float normed = ToFloat(p.at[k]) * rstd;
        dot += ToFloat(d.at[k]) * ToFloat(w.at[k]) * normed;
        sums[j * P::kCount + k] += ToFloat(d.at[k]) * normed;
      }
    }
    const float mean = OverBlock<threads>(dot) / static_cast<float>(a.width);
    P* dx = reinterpret_cast<P*>(static_cast<T*>(a.dx) + first);
    const P* residual = a.residual == nullptr
                            ? nullptr
                            : reinterpret_cast<const P*>(static_cast<const T*>(a.residual) + first);
    for (int64_t i = threadIdx.x; i < packs; i += threads) {
      const P d = dy[i], p = x[i], w = weight[i];
      P out;
      for (int k = 0; k < P::kCount; ++k) {
        const float normed = ToFloat(p.at[k]) * rstd;
        out.at[k] = From<T>((ToFloat(d.at[k]) * ToFloat(w.at[k]) - normed * mean) * rstd);
      }
      if (residual != nullptr) {
        const P r = residual[i];
        for (int k = 0; k < P::kCount; ++k)
          out.at[k] = From<T>(ToFloat(out.at[k]) + ToFloat(r.at[k]));
      }
      dx[i] = out;
    }
  }
  if (a.partial == nullptr) return;
  float* partial = a.partial + static_cast<int64_t>(blockIdx.x) * a.width;
  for (int j = 0; j < kMostPacks; ++j) {
    const int64_t i = threadIdx.x + static_cast<int64_t>(j) * threads;
    if (i >= packs) break;
    for (int k = 0; k < P::kCount; ++k) partial[i * P::kCount + k] = sums[j * P::kCount + k];
  }
}

struct ColumnSums {
  const float* rows;
  int64_t count, width;
  float* to;
};
// Adds each column's sum, always in the same order.
__global__ void __launch_bounds__(kFewThreads) AddColumnsKernel(ColumnSums a) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kFewThreads + threadIdx.x;
  if (column >= a.width) return;
  float sum = 0;
  for (int64_t row = 0; row < a.count; ++row) sum += a.rows[row * a.width + column];
  a.to[column] += sum;
}

// A thread turns a pack of a head's first half and the pack that belongs to it in the second.
template <class T>
__global__ void __launch_bounds__(kThreads) RopeKernel(RopeArguments a) {
  using P = Pack<T>;
  const int64_t half = a.width / 2, packs = half / P::kCount, all_heads = a.heads + 2 * a.kv_heads;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= a.batch * a.length * all_heads * packs) return;
  const int64_t pack = index % packs, head = index / packs % all_heads,
                token = index / packs / all_heads;
  const int64_t row = token / a.length, place = token % a.length;
  T* flat = static_cast<T*>(a.qkv) + (token * all_heads + head) * a.width;
  T* own;
  if (head < a.heads)
    own = static_cast<T*>(a.q) + ((row * a.heads + head) * a.length + place) * a.width;
  else if (head < a.heads + a.kv_heads)
    own = static_cast<T*>(a.k) + ((row * a.kv_heads + head - a.heads) * a.length + place) * a.width;
  else
    own = static_cast<T*>(a.v) +
          ((row * a.kv_heads + head - a.heads - a.kv_heads) * a.length + place) * a.width;
  const P* from = reinterpret_cast<const P*>(a.backward ? own : flat);
  P* to = reinterpret_cast<P*>(a.backward ? flat : own);
  const P x1 = from[pack], x2 = from[packs + pack];
  if (head >= a.heads + a.kv_heads) {
    to[pack] = x1;
    to[packs + pack] = x2;
    return;
  }
  const int64_t position = a.positions == nullptr ? place : a.positions[token];
  const float sign = a.backward ? -1.0f : 1.0f;
  P y1, y2;
  for (int k = 0; k < P::kCount; ++k) {
    const int64_t angle = position * half + pack * P::kCount + k;
    const float c = Round<T>(a.cos[angle]), s = Round<T>(a.sin[angle]) * sign;
    y1.at[k] = From<T>(Round<T>(ToFloat(x1.at[k]) * c) - ToFloat(x2.at[k]) * s);
    y2.at[k] = From<T>(Round<T>(ToFloat(x2.at[k]) * c) + ToFloat(x1.at[k]) * s);
  }
  to[pack] = y1;
  to[packs + pack] = y2;
}

__device__ __forceinline__ float Sigmoid(float x) { return __fdiv_rn(1.0f, 1.0f + exp(-x)); }

template <class T, bool backward>
__global__ void __launch_bounds__(kThreads) SwiGluKernel(SwiGluArguments a) {
  using P = Pack<T>;
  const int64_t packs = a.width / P::kCount,
                index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= a.rows * packs) return;
  const int64_t row = index / packs, pack = index % packs;
  const P* in = static_cast<const P*>(a.gate_up) + row * 2 * packs;
  const P gate = in[pack], up = in[packs + pack];
  if (!backward) {
    P y;
    for (int k = 0; k < P::kCount; ++k) {
      const float g = ToFloat(gate.at[k]);
      y.at[k] = From<T>(Round<T>(g * Sigmoid(g)) * ToFloat(up.at[k]));
    }
    static_cast<P*>(a.y)[index] = y;
    return;
  }
  const P dy = static_cast<const P*>(a.dy)[index];
  P d_gate, d_up;
  for (int k = 0; k < P::kCount; ++k) {
    const float g = ToFloat(gate.at[k]), d = ToFloat(dy.at[k]), sigmoid = Sigmoid(g);
    d_up.at[k] = From<T>(d * Round<T>(g * sigmoid));
    d_gate.at[k] =
        From<T>(Round<T>(d * ToFloat(up.at[k])) * sigmoid * (1.0f + g * (1.0f - sigmoid)));
  }
  P* out = static_cast<P*>(a.d_gate_up) + row * 2 * packs;
  out[pack] = d_gate;
  out[packs + pack] = d_up;
}

// A row a block, read twice: once for the sum of its exponentials, kept beside the largest logit so
// far, once for the gradients. `count` elements are taken at a time: a pack's, or one where rows
// don't begin at multiples of 16 bytes.
template <class T, int count>
__global__ void __launch_bounds__(kThreads) CrossEntropyKernel(CrossEntropyArguments a) {
  struct alignas(sizeof(T) * count) Some {
    T at[count];
  };
  const int64_t row = blockIdx.x, groups = a.vocabulary / count;
  T* logits = static_cast<T*>(a.logits) + row * a.vocabulary;
  Some* some = reinterpret_cast<Some*>(logits);
  float largest = -INFINITY, sum = 0;
  for (int64_t i = threadIdx.x; i < groups; i += kThreads) {
    const Some x = some[i];
    float here = largest;
    for (int k = 0; k < count; ++k) here = fmaxf(here, ToFloat(x.at[k]));
    if (here > largest) sum *= exp(largest - here);
    largest = here;
    for (int k = 0; k < count; ++k) sum += exp(ToFloat(x.at[k]) - largest);
  }
  const int64_t target = a.targets[row];
  const float target_logit = ToFloat(logits[target]), weight = a.weights[row];
  const float top = OverBlock<kThreads, true>(largest);
  const float log_sum = log(OverBlock<kThreads>(
      groups > static_cast<int64_t>(threadIdx.x) ? sum * exp(largest - top) : 0.0f));
  if (threadIdx.x == 0) {
    const double all = static_cast<double>(top) + log_sum;
    a.loss[row] = -static_cast<double>(target_logit - top - log_sum) * weight;
    a.z[row] = all * all * weight;
  }
  if (a.loss_only) return;
  // Nobody writes before all have read the target's logit: OverBlock's barriers stand between.
  const float scale = weight * (1.0f + 2.0f * a.z_loss * (top + log_sum));
  for (int64_t i = threadIdx.x; i < groups; i += kThreads) {
    Some x = some[i];
    for (int k = 0; k < count; ++k) {
      const float d = exp(ToFloat(x.at[k]) - top - log_sum) * scale;
      x.at[k] = From<T>(i * count + k == target ? d - weight : d);
    }
    some[i] = x;
  }
}

// One element at a time, with the CPU forms' roundings: the results are theirs, bit for bit.
struct Lane {
  using F = float;
  using I = uint32_t;
  __device__ static F LoadF(const float* p) { return *p; }
  __device__ static void StoreF(float* p, F x) { *p = x; }
  __device__ static I LoadH(const uint16_t* p) { return *p; }
  __device__ static void StoreH(uint16_t* p, I x) { *p = static_cast<uint16_t>(x); }
  __device__ static F Set(float x) { return x; }
  __device__ static I SetI(uint32_t x) { return x; }
  __device__ static I Iota() { return 0; }
  __device__ static F Mul(F a, F b) { return __fmul_rn(a, b); }
  __device__ static F Sub(F a, F b) { return __fsub_rn(a, b); }
  __device__ static F Fma(F a, F b, F c) { return __fmaf_rn(a, b, c); }
  __device__ static F Div(F a, F b) { return __fdiv_rn(a, b); }
  __device__ static F Sqrt(F a) { return __fsqrt_rn(a); }
  __device__ static I AddI(I a, I b) { return a + b; }
  __device__ static I MulI(I a, I b) { return a * b; }
  __device__ static I Xor(I a, I b) { return a ^ b; }
  __device__ static I AndI(I a, I b) { return a & b; }
  template <int n>
  __device__ static I ShiftRight(I a) {
    return a >> n;
  }
  template <int n>
  __device__ static I ShiftLeft(I a) {
    return a << n;
  }
  __device__ static I AsI(F a) {
    I bits;
    memcpy(&bits, &a, sizeof bits);
    return bits;
  }
  __device__ static F AsF(I a) {
    F value;
    memcpy(&value, &a, sizeof value);
    return value;
  }
};

constexpr int64_t kAdamWChunk = 4 * kThreads;  // elements of a block

template <bool kSplit, bool kWeights, bool kGradient16, bool kMoments16>
__global__ void __launch_bounds__(kThreads) AdamWKernel(AdamWArguments a) {
  // Which run this block is of, and which of its chunks.
  int64_t chunk = blockIdx.x;
  int r = 0;
  for (; r < a.runs; ++r) {
    const int64_t chunks = (a.run[r].numel + kAdamWChunk - 1) / kAdamWChunk;
    if (chunk < chunks) break;
    chunk -= chunks;
  }
  if (r == a.runs) return;
  AdamWStep step = a.step;
  if (!a.run[r].decay) step.keep = 1.0f;
  const int64_t end = a.run[r].begin + a.run[r].numel;
  for (int part = 0; part < kAdamWChunk / kThreads; ++part) {
    const int64_t at = a.run[r].begin + chunk * kAdamWChunk + part * kThreads + threadIdx.x;
    if (at >= end) return;
    const AdamWSpan& span = a.span;
    Pointers p;
    p.masters = kSplit ? nullptr : span.masters + at;
    p.weights = kWeights || kSplit ? span.weights + at : nullptr;
    p.low_bits = kSplit ? span.low_bits + at : nullptr;
    p.gradient = static_cast<const char*>(span.gradient) + at * (kGradient16 ? 2 : 4);
    p.exp_avg = static_cast<char*>(span.exp_avg) + at * (kMoments16 ? 2 : 4);
    p.exp_avg_sq = static_cast<char*>(span.exp_avg_sq) + at * (kMoments16 ? 2 : 4);
    UpdateLanes<Lane, kSplit, kWeights, kGradient16, kMoments16>(
        step, p, span.first_element + static_cast<uint32_t>(at));
  }
}

int64_t Blocks(int64_t count, int64_t of) { return (count + of - 1) / of; }

void RmsNorm(const RmsNormArguments& a, Stream stream) {
  const bool few = a.width <= kShortRow;
  if (a.bf16 && few)
    Launch<kFewThreads>(RmsNormKernel<Bf16, kFewThreads>, a.rows, stream, a);
  else if (a.bf16)
    Launch<kThreads>(RmsNormKernel<Bf16, kThreads>, a.rows, stream, a);
  else if (few)
    Launch<kFewThreads>(RmsNormKernel<float, kFewThreads>, a.rows, stream, a);
  else
    Launch<kThreads>(RmsNormKernel<float, kThreads>, a.rows, stream, a);
}

void RmsNormBackward(const RmsNormBackwardArguments& a, Stream stream) {
  const int64_t blocks = NormBackwardBlocks(a.rows);
  const bool few = a.width <= kShortRow;
  if (a.bf16 && few)
    Launch<kFewThreads>(RmsNormBackwardKernel<Bf16, kFewThreads>, blocks, stream, a);
  else if (a.bf16)
    Launch<kThreads>(RmsNormBackwardKernel<Bf16, kThreads>, blocks, stream, a);
  else if (few)
    Launch<kFewThreads>(RmsNormBackwardKernel<float, kFewThreads>, blocks, stream, a);
  else
    Launch<kThreads>(RmsNormBackwardKernel<float, kThreads>, blocks, stream, a);
  if (a.partial == nullptr) return;
  const ColumnSums sums{a.partial, blocks, a.width, a.d_weight};
  Launch<kFewThreads>(AddColumnsKernel, Blocks(a.width, kFewThreads), stream, sums);
}

void Rope(const RopeArguments& a, Stream stream) {
  const int64_t pairs = a.batch * a.length * (a.heads + 2 * a.kv_heads) * (a.width / 2);
  if (a.bf16)
    Launch<kThreads>(RopeKernel<Bf16>, Blocks(pairs / Pack<Bf16>::kCount, kThreads), stream, a);
  else
    Launch<kThreads>(RopeKernel<float>, Blocks(pairs / Pack<float>::kCount, kThreads), stream, a);
}

void SwiGlu(const SwiGluArguments& a, Stream stream) {
  const int64_t blocks =
      Blocks(a.rows * a.width / (a.bf16 ? Pack<Bf16>::kCount : Pack<float>::kCount), kThreads);
  const bool backward = a.dy != nullptr;
  if (a.bf16 && backward)
    Launch<kThreads>(SwiGluKernel<Bf16, true>, blocks, stream, a);
  else if (a.bf16)
    Launch<kThreads>(SwiGluKernel<Bf16, false>, blocks, stream, a);
  else if (backward)
    Launch<kThreads>(SwiGluKernel<float, true>, blocks, stream, a);
  else
    Launch<kThreads>(SwiGluKernel<float, false>, blocks, stream, a);
}

void CrossEntropy(const CrossEntropyArguments& a, Stream stream) {
  if (a.bf16) {
    if (a.vocabulary % Pack<Bf16>::kCount == 0)
      Launch<kThreads>(CrossEntropyKernel<Bf16, Pack<Bf16>::kCount>, a.rows, stream, a);
    else
      Launch<kThreads>(CrossEntropyKernel<Bf16, 1>, a.rows, stream, a);
  } else {
    if (a.vocabulary % Pack<float>::kCount == 0)
      Launch<kThreads>(CrossEntropyKernel<float, Pack<float>::kCount>, a.rows, stream, a);
    else
      Launch<kThreads>(CrossEntropyKernel<float, 1>, a.rows, stream, a);
  }
}

template <bool kSplit, bool kWeights>
void AdamWOfMasters(const AdamWArguments& a, int64_t blocks, Stream stream) {
  if (a.span.gradient_bf16 && a.span.moments_bf16)
    Launch<kThreads>(AdamWKernel<kSplit, kWeights, true, true>, blocks, stream, a);
  else if (a.span.gradient_bf16)
    Launch<kThreads>(AdamWKernel<kSplit, kWeights, true, false>, blocks, stream, a);
  else if (a.span.moments_bf16)
    Launch<kThreads>(AdamWKernel<kSplit, kWeights, false, true>, blocks, stream, a);
  else
    Launch<kThreads>(AdamWKernel<kSplit, kWeights, false, false>, blocks, stream, a);
}

void AdamW(const AdamWArguments& a, Stream stream) {
  int64_t blocks = 0;
  for (int r = 0; r < a.runs; ++r) blocks += Blocks(a.run[r].numel, kAdamWChunk);
  if (a.span.masters == nullptr)
    AdamWOfMasters<true, true>(a, blocks, stream);
  else if (a.span.weights != nullptr)
    AdamWOfMasters<false, true>(a, blocks, stream);
  else
    AdamWOfMasters<false, false>(a, blocks, stream);
}

constexpr Kernels kAll = {RmsNorm, RmsNormBackward, Rope, SwiGlu, CrossEntropy, AdamW};

}  // namespace

#if defined(__CUDACC__)
const Kernels& DeviceKernels() { return kAll; }
#else
const Kernels& EmulatedKernels() { return kAll; }
#endif

}  // namespace muster::trainer::kernels
