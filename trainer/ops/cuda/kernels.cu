#include "trainer/ops/cuda/kernels.h"

#include "trainer/model/philox.h"
#include "trainer/ops/cuda/device.h"
#include "trainer/optim/adamw_body.h"

namespace muster::trainer::kernels {
namespace {

// Threads of a block that has a row to itself; few where rows are short (the norms of single
// heads).
constexpr int kThreads = 256, kFewThreads = 64;
constexpr int64_t kShortRow = 512;

// Loads that a thread has under way before it uses the first.
constexpr int kSquaresAhead = 4, kRowsAhead = 16;

// Where a head's row begins in a matrix of which heads are some of the columns.
template <class Arguments>
__device__ __forceinline__ int64_t PlaceOfHead(int64_t row, const Arguments& a) {
  return row / a.heads * a.stride + row % a.heads * a.width;
}

template <class T, int threads>
__global__ void __launch_bounds__(threads) RmsNormKernel(RmsNormArguments a) {
  using P = Pack<T>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * a.width, packs = a.width / P::kCount;
  const int64_t place = a.stride > 0 ? PlaceOfHead(blockIdx.x, a) : first;
  const P* x = reinterpret_cast<const P*>(static_cast<const T*>(a.x) + place);
  const P* residual = a.residual == nullptr
                          ? nullptr
                          : reinterpret_cast<const P*>(static_cast<const T*>(a.residual) + first);
  P* sum = a.sum == nullptr ? nullptr : reinterpret_cast<P*>(static_cast<T*>(a.sum) + first);
  float squares = 0;
  for (int64_t i = threadIdx.x; i < packs; i += threads) {
    P p = x[i];
    if (residual != nullptr) {
      const P r = residual[i];
      for (int k = 0; k < P::kCount; ++k) p.at[k] = From<T>(ToFloat(p.at[k]) + ToFloat(r.at[k]));
    }
    if (sum != nullptr) sum[i] = p;
    for (int k = 0; k < P::kCount; ++k) squares += ToFloat(p.at[k]) * ToFloat(p.at[k]);
  }
  const float rstd = __fdiv_rn(
      1.0f, __fsqrt_rn(OverBlock<threads>(squares) / static_cast<float>(a.width) + a.epsilon));
  if (threadIdx.x == 0) a.rstd[blockIdx.x] = rstd;
  const P* in = sum != nullptr ? sum : x;  // each thread reads what it wrote
  const P* weight = static_cast<const P*>(a.weight);
  P* y = reinterpret_cast<P*>(static_cast<T*>(a.y) + place);
  for (int64_t i = threadIdx.x; i < packs; i += threads) {
    const P p = in[i], w = weight[i];
    P out;
    for (int k = 0; k < P::kCount; ++k) {
      const float normed = ToFloat(p.at[k]) * rstd;
      out.at[k] = From<T>(a.from_one ? normed * (1.0f + ToFloat(w.at[k]))
                                     : Round<T>(normed) * ToFloat(w.at[k]));
    }
    y[i] = out;
  }
}

// dx = rstd · (dn - normed · mean(dn · normed)), dn = dy · w; rows blockIdx.x, blockIdx.x +
// gridDim.x, … A thread keeps its `most` packs of a row, so that each is read once.
template <class T, int threads, int most>
__global__ void __launch_bounds__(threads, most* Pack<T>::kCount > 16 ? 1 : 4)
    RmsNormBackwardKernel(RmsNormBackwardArguments a) {
  using P = Pack<T>;
  const int64_t packs = a.width / P::kCount;
  const P* weight = static_cast<const P*>(a.weight);
  const float base = a.from_one ? 1.0f : 0.0f;
  float sums[most * P::kCount] = {};
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t first = row * a.width, place = a.stride > 0 ? PlaceOfHead(row, a) : first;
    const P* dy = reinterpret_cast<const P*>(static_cast<const T*>(a.dy) + place);
    const P* x = reinterpret_cast<const P*>(static_cast<const T*>(a.x) + first);
    const P* residual = a.residual == nullptr
                            ? nullptr
                            : reinterpret_cast<const P*>(static_cast<const T*>(a.residual) + first);
    P d[most], p[most];
    for (int j = 0; j < most; ++j) {
      const int64_t i = threadIdx.x + static_cast<int64_t>(j) * threads;
      if (i < packs) d[j] = dy[i], p[j] = x[i];
    }
    const float rstd = a.rstd[row];
    float dot = 0;
    for (int j = 0; j < most; ++j) {
      const int64_t i = threadIdx.x + static_cast<int64_t>(j) * threads;
      if (i >= packs) continue;
      const P w = weight[i];
      for (int k = 0; k < P::kCount; ++k) {
        const float normed = ToFloat(p[j].at[k]) * rstd;
        dot += ToFloat(d[j].at[k]) * (base + ToFloat(w.at[k])) * normed;
        sums[j * P::kCount + k] += ToFloat(d[j].at[k]) * normed;
      }
    }
    const float mean = OverBlock<threads>(dot) / static_cast<float>(a.width);
    P* dx = reinterpret_cast<P*>(static_cast<T*>(a.dx) + place);
    for (int j = 0; j < most; ++j) {
      const int64_t i = threadIdx.x + static_cast<int64_t>(j) * threads;
      if (i >= packs) continue;
      const P w = weight[i];
      P r, out;
      if (residual != nullptr) r = residual[i];
      for (int k = 0; k < P::kCount; ++k) {
        const float normed = ToFloat(p[j].at[k]) * rstd;
        out.at[k] =
            From<T>((ToFloat(d[j].at[k]) * (base + ToFloat(w.at[k])) - normed * mean) * rstd);
        if (residual != nullptr) out.at[k] = From<T>(ToFloat(out.at[k]) + ToFloat(r.at[k]));
      }
      dx[i] = out;
    }
  }
  if (a.partial == nullptr) return;
  float* partial = a.partial + static_cast<int64_t>(blockIdx.x) * a.width;
  for (int j = 0; j < most; ++j) {
    const int64_t i = threadIdx.x + static_cast<int64_t>(j) * threads;
    if (i >= packs) continue;
    for (int k = 0; k < P::kCount; ++k) partial[i * P::kCount + k] = sums[j * P::kCount + k];
  }
}

struct ColumnSums {
  const float* rows;
  int64_t count, width;
  float* to;
};
// Adds each column's sum, always in the same order: a group's threads sum every kGroups-th row.
constexpr int kColumns = 32, kGroups = kThreads / kColumns;
__global__ void __launch_bounds__(kThreads) AddColumnsKernel(ColumnSums a) {
  __shared__ float parts[kGroups][kColumns];
  const int own = static_cast<int>(threadIdx.x) % kColumns,
            group = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + own;
  float sum = 0;
  for (int64_t row = group; column < a.width && row < a.count; row += kGroups)
    sum += a.rows[row * a.width + column];
  parts[group][own] = sum;
  __syncthreads();
  if (group > 0 || column >= a.width) return;
  for (int g = 1; g < kGroups; ++g) sum += parts[g][own];
  a.to[column] += sum;
}

// A thread turns a pack of a head's first half and the pack that belongs to it in the second.
// Numbers are N: 32 bits divide several times as fast as 64.
template <class T, class N>
__global__ void __launch_bounds__(kThreads) RopeKernel(RopeArguments a) {
  using P = Pack<T>;
  const int64_t half = a.width / 2, all_heads = a.heads + 2 * a.kv_heads;
  const N packs = static_cast<N>(half / P::kCount), every_head = static_cast<N>(all_heads);
  const N index = static_cast<N>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= static_cast<N>(a.batch * a.length) * every_head * packs) return;
  const int64_t pack = index % packs, head = index / packs % every_head;
  const N of_token = index / packs / every_head, length = static_cast<N>(a.length);
  const int64_t token = of_token, row = of_token / length, place = of_token % length;
  T* flat = static_cast<T*>(a.qkv) + (token * all_heads + head) * a.width;
  T* own;
  if (head < a.heads)
    own = static_cast<T*>(a.q) + HeadsPlace(a, row, place, head, a.heads);
  else if (head < a.heads + a.kv_heads)
    own = static_cast<T*>(a.k) + HeadsPlace(a, row, place, head - a.heads, a.kv_heads);
  else
    own = static_cast<T*>(a.v) + HeadsPlace(a, row, place, head - a.heads - a.kv_heads, a.kv_heads);
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

__device__ __forceinline__ float Sigmoid(float x) { return __frcp_rn(1.0f + exp(-x)); }

template <class T, bool backward, class N>
__global__ void __launch_bounds__(kThreads) SwiGluKernel(SwiGluArguments a) {
  using P = Pack<T>;
  const N of_row = static_cast<N>(a.width / P::kCount),
          number = static_cast<N>(blockIdx.x) * kThreads + threadIdx.x;
  if (number >= static_cast<N>(a.rows) * of_row) return;
  const int64_t index = number, packs = of_row, row = number / of_row, pack = number % of_row;
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

// Elements that a thread takes, in loads of 16 bytes; and of a block.
constexpr int kAdamWPack = 8;
constexpr int64_t kAdamWChunk = kAdamWPack * kThreads;

// A thread's elements of one array.
template <class T>
struct alignas(16) Eight {
  T at[kAdamWPack];
};
template <class T>
__device__ __forceinline__ void CopyEight(void* to, const void* from) {
  *static_cast<Eight<T>*>(to) = *static_cast<const Eight<T>*>(from);
}
template <bool k16>
__device__ __forceinline__ void CopyEightOf(void* to, const void* from) {
  if (k16)
    CopyEight<uint16_t>(to, from);
  else
    CopyEight<float>(to, from);
}

template <bool kSplit, bool kWeights, bool kGradient16, bool kMoments16>
__device__ __forceinline__ Pointers PointersAt(const AdamWSpan& span, int64_t at) {
  Pointers p;
  p.masters = kSplit ? nullptr : span.masters + at;
  p.weights = kWeights || kSplit ? span.weights + at : nullptr;
  p.low_bits = kSplit ? span.low_bits + at : nullptr;
  p.gradient = static_cast<const char*>(span.gradient) + at * (kGradient16 ? 2 : 4);
  p.exp_avg = static_cast<char*>(span.exp_avg) + at * (kMoments16 ? 2 : 4);
  p.exp_avg_sq = static_cast<char*>(span.exp_avg_sq) + at * (kMoments16 ? 2 : 4);
  return p;
}

// Eight elements that begin at a multiple of eight of the range, and so at 16 bytes in every array.
template <bool kSplit, bool kWeights, bool kGradient16, bool kMoments16>
__device__ __forceinline__ void UpdateEight(const AdamWStep& step, const Pointers& p,
                                            uint32_t number) {
  Eight<float> masters, gradient, exp_avg, exp_avg_sq;
  Eight<uint16_t> weights, low_bits;
  if (!kSplit) CopyEight<float>(&masters, p.masters);
  if (kSplit) CopyEight<uint16_t>(&weights, p.weights);
  if (kSplit) CopyEight<uint16_t>(&low_bits, p.low_bits);
  CopyEightOf<kGradient16>(&gradient, p.gradient);
  CopyEightOf<kMoments16>(&exp_avg, p.exp_avg);
  CopyEightOf<kMoments16>(&exp_avg_sq, p.exp_avg_sq);
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (int k = 0; k < kAdamWPack; ++k) {
    const Pointers own = {kSplit ? nullptr : &masters.at[k],
                          &weights.at[k],
                          &low_bits.at[k],
                          reinterpret_cast<const char*>(&gradient) + k * (kGradient16 ? 2 : 4),
                          reinterpret_cast<char*>(&exp_avg) + k * (kMoments16 ? 2 : 4),
                          reinterpret_cast<char*>(&exp_avg_sq) + k * (kMoments16 ? 2 : 4)};
    UpdateLanes<Lane, kSplit, kWeights, kGradient16, kMoments16>(step, own,
                                                                 number + static_cast<uint32_t>(k));
  }
  if (!kSplit) CopyEight<float>(p.masters, &masters);
  if (kSplit || kWeights) CopyEight<uint16_t>(p.weights, &weights);
  if (kSplit) CopyEight<uint16_t>(p.low_bits, &low_bits);
  CopyEightOf<kMoments16>(p.exp_avg, &exp_avg);
  CopyEightOf<kMoments16>(p.exp_avg_sq, &exp_avg_sq);
}

// The chunks of a run begin at multiples of eight elements of the range: the first and the last may
// lie beyond it in part.
MUSTER_ON_BOTH inline int64_t AdamWChunks(int64_t begin, int64_t numel) {
  const int64_t first = begin / kAdamWPack * kAdamWPack;
  return numel == 0 ? 0 : (begin + numel - first + kAdamWChunk - 1) / kAdamWChunk;
}

template <bool kSplit, bool kWeights, bool kGradient16, bool kMoments16>
__global__ void __launch_bounds__(kThreads) AdamWKernel(AdamWArguments a) {
  // Which run this block is of, and which of its chunks.
  int64_t chunk = blockIdx.x;
  int r = 0;
  for (; r < a.runs; ++r) {
    const int64_t chunks = AdamWChunks(a.run[r].begin, a.run[r].numel);
    if (chunk < chunks) break;
    chunk -= chunks;
  }
  if (r == a.runs) return;
  AdamWStep step = a.step;
  if (!a.run[r].decay) step.keep = 1.0f;
  const int64_t begin = a.run[r].begin, end = begin + a.run[r].numel;
  const int64_t at = begin / kAdamWPack * kAdamWPack + chunk * kAdamWChunk +
                     static_cast<int64_t>(threadIdx.x) * kAdamWPack;
  const uint32_t number = a.run[r].number - static_cast<uint32_t>(begin);  // of element 0
  if (at >= begin && at + kAdamWPack <= end) {
    const Pointers p = PointersAt<kSplit, kWeights, kGradient16, kMoments16>(a.span, at);
    UpdateEight<kSplit, kWeights, kGradient16, kMoments16>(step, p,
                                                           number + static_cast<uint32_t>(at));
    return;
  }
  for (int64_t one = at < begin ? begin : at; one < at + kAdamWPack && one < end; ++one) {
    const Pointers p = PointersAt<kSplit, kWeights, kGradient16, kMoments16>(a.span, one);
    UpdateLanes<Lane, kSplit, kWeights, kGradient16, kMoments16>(
        step, p, number + static_cast<uint32_t>(one));
  }
}

// A block takes some columns of the rows of one id, the one whose first place in the sorted ids is
// the block's. An id may stand there thousands of times: rows are read ahead, and added in order.
template <class T>
__global__ void __launch_bounds__(kThreads) EmbeddingKernel(EmbeddingArguments a) {
  const int64_t parts = (a.width + kThreads - 1) / kThreads, first = blockIdx.x / parts,
                column = blockIdx.x % parts * kThreads + threadIdx.x, id = a.ids[first];
  if ((first > 0 && a.ids[first - 1] == id) || column >= a.width) return;
  const T* dy = static_cast<const T*>(a.dy) + column;
  float sum = 0;
  for (int64_t i = first; i < a.rows && a.ids[i] == id; i += kRowsAhead) {
    T ahead[kRowsAhead];
    bool its[kRowsAhead];
    for (int k = 0; k < kRowsAhead;
         ++k) {  // also what isn't this id's: no load waits for another's
      const int64_t at = i + k < a.rows ? i + k : a.rows - 1;
      its[k] = i + k < a.rows && a.ids[at] == id;
      ahead[k] = dy[a.order[at] * a.width];
    }
    for (int k = 0; k < kRowsAhead; ++k) sum = its[k] ? sum + ToFloat(ahead[k]) : sum;
  }
  a.d_weight[id * a.width + column] += sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads) DropoutKernel(DropoutArguments a) {
  using P = Pack<T>;
  const int64_t packs = a.width / P::kCount,
                index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= a.rows * packs) return;
  const int64_t row = index / packs, first = index % packs * P::kCount;
  const uint64_t stream = HashDecimal(a.prefix, a.numbers[row]);
  const P x = static_cast<const P*>(a.x)[index];
  P y;
  for (int k = 0; k < P::kCount; k += 2) {
    const uint64_t element = static_cast<uint64_t>(first + k);
    const UniformNumbers pair = UniformPair(a.seed, stream, element / 2);
    for (int half = 0; half < 2; ++half)
      y.at[k + half] =
          From<T>(ToFloat(x.at[k + half]) *
                  (UniformOf(pair, element + static_cast<uint64_t>(half)) > a.share ? a.scale : 0));
  }
  static_cast<P*>(a.y)[index] = y;
}

// The sum of all threads' sums; in thread 0. To be called by all.
template <int threads>
__device__ __forceinline__ ExactSum SumOverBlock(const ExactSum& mine) {
  __shared__ uint64_t parts[3][threads];
  parts[0][threadIdx.x] = mine.low;
  parts[1][threadIdx.x] = mine.high;
  parts[2][threadIdx.x] = mine.out_of_range;
  __syncthreads();
  ExactSum sum;
  if (threadIdx.x == 0) {
    for (int t = 0; t < threads; ++t) sum.Add(ExactSum{parts[0][t], parts[1][t], parts[2][t]});
  }
  return sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads) SquaresKernel(SquaresArguments a) {
  using P = Pack<T>;
  const int64_t packs = a.count / P::kCount, all = static_cast<int64_t>(gridDim.x) * kThreads,
                mine = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  SquaresInOrder squares;
  for (int64_t i = mine; i < packs; i += kSquaresAhead * all) {
    P p[kSquaresAhead];
    for (int j = 0; j < kSquaresAhead; ++j) {
      if (i + j * all < packs) p[j] = static_cast<const P*>(a.values)[i + j * all];
    }
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (int j = 0; j < kSquaresAhead; ++j) {
      if (i + j * all >= packs) continue;
      for (int k = 0; k < P::kCount; ++k) squares.Add(ToFloat(p[j].at[k]));
    }
  }
  if (const int64_t rest = packs * P::kCount + mine; rest < a.count)
    squares.Add(ToFloat(static_cast<const T*>(a.values)[rest]));
  const ExactSum sum = SumOverBlock<kThreads>(squares.Sum());
  if (threadIdx.x == 0) a.partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kFewThreads) AddSquaresKernel(SquaresArguments a) {
  ExactSum mine;
  for (int64_t block = threadIdx.x; block < SquaresBlocks(a.count); block += kFewThreads)
    mine.Add(a.partial[block]);
  const ExactSum sum = SumOverBlock<kFewThreads>(mine);
  if (threadIdx.x == 0) a.total->Add(sum);
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

template <class T>
void RmsNormBackwardOf(const RmsNormBackwardArguments& a, Stream stream) {
  constexpr int kCount = Pack<T>::kCount;
  constexpr int kFew = static_cast<int>(kShortRow) / (kFewThreads * kCount),
                kMost = static_cast<int>(kMostNormWidth) / (kThreads * kCount), kHalf = kMost / 2;
  const int64_t blocks = NormBackwardBlocks(a.rows);
  if (a.width <= kShortRow)
    Launch<kFewThreads>(RmsNormBackwardKernel<T, kFewThreads, kFew>, blocks, stream, a);
  else if (a.width <= kMostNormWidth / 2)
    Launch<kThreads>(RmsNormBackwardKernel<T, kThreads, kHalf>, blocks, stream, a);
  else
    Launch<kThreads>(RmsNormBackwardKernel<T, kThreads, kMost>, blocks, stream, a);
  if (a.partial == nullptr) return;
  const ColumnSums sums{a.partial, blocks, a.width, a.d_weight};
  Launch<kThreads>(AddColumnsKernel, Blocks(a.width, kColumns), stream, sums);
}
void RmsNormBackward(const RmsNormBackwardArguments& a, Stream stream) {
  a.bf16 ? RmsNormBackwardOf<Bf16>(a, stream) : RmsNormBackwardOf<float>(a, stream);
}

// Whether a kernel's numbers, those of the last block's idle threads among them, fit 32 bits.
bool Fits32(int64_t numbers) { return numbers < (int64_t{1} << 32) - kThreads; }

template <class T>
void RopeOf(const RopeArguments& a, Stream stream) {
  const int64_t packs =
      a.batch * a.length * (a.heads + 2 * a.kv_heads) * (a.width / 2) / Pack<T>::kCount;
  if (Fits32(packs))
    Launch<kThreads>(RopeKernel<T, uint32_t>, Blocks(packs, kThreads), stream, a);
  else
    Launch<kThreads>(RopeKernel<T, int64_t>, Blocks(packs, kThreads), stream, a);
}
void Rope(const RopeArguments& a, Stream stream) {
  a.bf16 ? RopeOf<Bf16>(a, stream) : RopeOf<float>(a, stream);
}

template <class T, bool backward>
void SwiGluOf(const SwiGluArguments& a, Stream stream) {
  const int64_t packs = a.rows * a.width / Pack<T>::kCount;
  if (Fits32(packs))
    Launch<kThreads>(SwiGluKernel<T, backward, uint32_t>, Blocks(packs, kThreads), stream, a);
  else
    Launch<kThreads>(SwiGluKernel<T, backward, int64_t>, Blocks(packs, kThreads), stream, a);
}
void SwiGlu(const SwiGluArguments& a, Stream stream) {
  const bool backward = a.dy != nullptr;
  if (a.bf16)
    backward ? SwiGluOf<Bf16, true>(a, stream) : SwiGluOf<Bf16, false>(a, stream);
  else
    backward ? SwiGluOf<float, true>(a, stream) : SwiGluOf<float, false>(a, stream);
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
  for (int r = 0; r < a.runs; ++r) blocks += AdamWChunks(a.run[r].begin, a.run[r].numel);
  if (a.span.masters == nullptr)
    AdamWOfMasters<true, true>(a, blocks, stream);
  else if (a.span.weights != nullptr)
    AdamWOfMasters<false, true>(a, blocks, stream);
  else
    AdamWOfMasters<false, false>(a, blocks, stream);
}

void EmbeddingBackward(const EmbeddingArguments& a, Stream stream) {
  const int64_t blocks = a.rows * Blocks(a.width, kThreads);
  if (a.bf16)
    Launch<kThreads>(EmbeddingKernel<Bf16>, blocks, stream, a);
  else
    Launch<kThreads>(EmbeddingKernel<float>, blocks, stream, a);
}

void Squares(const SquaresArguments& a, Stream stream) {
  if (a.count == 0) return;
  if (a.bf16)
    Launch<kThreads>(SquaresKernel<Bf16>, SquaresBlocks(a.count), stream, a);
  else
    Launch<kThreads>(SquaresKernel<float>, SquaresBlocks(a.count), stream, a);
  Launch<kFewThreads>(AddSquaresKernel, 1, stream, a);
}

void Dropout(const DropoutArguments& a, Stream stream) {
  if (a.bf16)
    Launch<kThreads>(DropoutKernel<Bf16>, Blocks(a.rows * a.width / Pack<Bf16>::kCount, kThreads),
                     stream, a);
  else
    Launch<kThreads>(DropoutKernel<float>, Blocks(a.rows * a.width / Pack<float>::kCount, kThreads),
                     stream, a);
}

constexpr Kernels kAll = {RmsNorm, RmsNormBackward,   Rope,    SwiGlu, CrossEntropy,
                          AdamW,   EmbeddingBackward, Squares, Dropout};

}  // namespace

#if defined(__CUDACC__)
const Kernels& DeviceKernels() { return kAll; }
#else
const Kernels& EmulatedKernels() { return kAll; }
#endif

}  // namespace muster::trainer::kernels
