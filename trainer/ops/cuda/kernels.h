// Our GPU kernels: what ATen has no fused operation for. Plain pointers and sizes, so that neither
// nvcc nor the tests' emulator sees ATen; trainer/ops/fused.h is how the trainer calls them,
// trainer/ops/ops.h their references.
//
// Their source also runs on the CPU, by an emulator of blocks and threads (device.h,
// fused_test.cc).
#pragma once

#include <cstdint>

#include "trainer/ops/cuda/squares.h"
#include "trainer/optim/adamw_kernel.h"

struct CUstream_st;

namespace muster::trainer::kernels {

using Stream = CUstream_st*;

// Pointers are to contiguous memory of fp32, or of bf16 where `bf16` says so; rows begin at
// multiples of 16 bytes.

struct RmsNormArguments {
  bool bf16 = false;
  bool from_one = false;  // the weight counts from 1, and y is rounded once
  int64_t rows = 0, width = 0;
  const void *x = nullptr, *residual = nullptr, *weight = nullptr;  // residual: may be null
  void* sum = nullptr;                                              // x + residual; null without
  void* y = nullptr;
  float* rstd = nullptr;  // [rows]
  float epsilon = 0;
  // The norms of single heads, in place: `stride` > 0 puts row r of x and y at r / heads · stride +
  // r % heads · width; `sum` gets what x was.
  int64_t heads = 1, stride = 0;
};

struct RmsNormBackwardArguments {
  bool bf16 = false, from_one = false;
  int64_t rows = 0, width = 0;  // at most kMostNormWidth
  const void *dy = nullptr, *x = nullptr, *weight = nullptr;
  const float* rstd = nullptr;
  const void* residual = nullptr;  // its gradient is added to dx; may be null
  void* dx = nullptr;
  float* partial =
      nullptr;  // [NormBackwardBlocks(rows), width] to work in; null: no gradient of the weight
  float* d_weight = nullptr;      // [width], added to
  int64_t heads = 1, stride = 0;  // of dy and dx, as RmsNormArguments' of x and y
};
inline constexpr int64_t kMostNormWidth = 8192;
// Blocks of rows that sum the weight's gradient by themselves.
inline int64_t NormBackwardBlocks(int64_t rows) { return rows < 528 ? rows : 528; }

// Between qkv [B·S, (H + 2·Hkv)·D] and heads q [B, H, S, D], k and v [B, Hkv, S, D], with q and k
// turned by the tables' angles. `by_token`: q is [B, S, H, D] in memory, k and v [B, S, Hkv, D].
struct RopeArguments {
  bool bf16 = false, backward = false;  // backward: from the heads' gradients to that of qkv
  bool by_token = false;
  int64_t batch = 0, length = 0, heads = 0, kv_heads = 0, width = 0;
  void *qkv = nullptr, *q = nullptr, *k = nullptr, *v = nullptr;
  const float *cos = nullptr, *sin = nullptr;  // [positions, D / 2]
  const int64_t* positions = nullptr;          // [B·S]; null: 0..S-1 in each row
};

// Where one of `heads` begins, for the token at `place` of its row.
MUSTER_ON_BOTH inline int64_t HeadsPlace(const RopeArguments& a, int64_t row, int64_t place,
                                         int64_t head, int64_t heads) {
  return (a.by_token ? (row * a.length + place) * heads + head
                     : (row * heads + head) * a.length + place) *
         a.width;
}

struct SwiGluArguments {
  bool bf16 = false;
  int64_t rows = 0, width = 0;  // gate_up is [rows, 2·width]
  const void *gate_up = nullptr, *dy = nullptr;
  void *y = nullptr,
       *d_gate_up = nullptr;  // the forward writes y; the backward, where dy isn't null, d_gate_up
};

// Turns logits [rows, vocabulary] into their gradients, in place.
struct CrossEntropyArguments {
  bool bf16 = false, loss_only = false;  // loss_only: leaves the logits
  int64_t rows = 0, vocabulary = 0;
  void* logits = nullptr;
  const int64_t* targets = nullptr;
  const float* weights = nullptr;
  double *loss = nullptr,
         *z = nullptr;  // [rows]: -weight · log p(target), and weight · (log Σ exp logits)²
  float z_loss = 0;
};

// Adds rows of dy to those of d_weight that ids name: `ids` sorted, `order` where each of them
// stands in dy; rows of one id are summed in that order before.
struct EmbeddingArguments {
  bool bf16 = false;
  int64_t rows = 0, width = 0;
  const int64_t *ids = nullptr, *order = nullptr;  // [rows]
  const void* dy = nullptr;                        // [rows, width]
  float* d_weight = nullptr;                       // [vocabulary, width]
};

// y = x where the element is kept, scaled up, and 0 where it is dropped: row `numbers[r]` of
// `width` elements by the stream that is named PREFIX and its number in decimals
// (trainer/model/philox.h).
struct DropoutArguments {
  bool bf16 = false;
  int64_t rows = 0, width = 0;
  const void* x = nullptr;
  void* y = nullptr;                 // may be x
  const int64_t* numbers = nullptr;  // [rows]
  uint64_t seed = 0, prefix = 0;     // prefix: the hash of the name up to the number
  float share = 0, scale = 1;        // kept elements are multiplied by scale, a number of x's type
};

// Adds the squares of all values to *total, exactly (squares.h): the same for every order.
struct SquaresArguments {
  bool bf16 = false;
  int64_t count = 0;
  const void* values = nullptr;
  ExactSum* partial = nullptr;  // [SquaresBlocks(count)] to work in
  ExactSum* total = nullptr;
};
MUSTER_ON_BOTH inline int64_t SquaresBlocks(int64_t count) {
  const int64_t blocks = (count + 8191) / 8192;
  return blocks < 528 ? blocks : 528;
}

struct AdamWArguments {
  AdamWStep step;  // with `keep` as it is where weights decay
  AdamWSpan span;  // of the whole owned range; first_element doesn't count
  static constexpr int kMostRuns = 32;
  int runs = 0;
  struct Run {
    int64_t begin = 0, numel = 0;  // inside the range
    bool decay = false;
    uint32_t number = 0;  // of its first element, for the rounding of bf16 moments
  } run[kMostRuns];
};

struct Kernels {
  void (*rms_norm)(const RmsNormArguments&, Stream);
  void (*rms_norm_backward)(const RmsNormBackwardArguments&, Stream);
  void (*rope)(const RopeArguments&, Stream);
  void (*swiglu)(const SwiGluArguments&, Stream);
  void (*cross_entropy)(const CrossEntropyArguments&, Stream);
  void (*adamw)(const AdamWArguments&, Stream);
  void (*embedding_backward)(const EmbeddingArguments&, Stream);
  void (*squares)(const SquaresArguments&, Stream);
  void (*dropout)(const DropoutArguments&, Stream);  // null: the CPU's stays with ATen
};

// For GPUs (kernels.cu as nvcc makes it), and for the CPU's memory (the same file with the
// emulator; the tests have it alone). All kernels of a call are queued on the stream; nothing
// waits.
const Kernels& DeviceKernels();
const Kernels& EmulatedKernels();

}  // namespace muster::trainer::kernels
