// What kernels.cu is written in: CUDA C++ under nvcc; under a C++ compiler the few words of it that
// are used, carried out on the CPU. There each block runs by itself, its threads taking turns at
// barriers and shuffles: slow, and enough to test indices and sums.
#pragma once

#include <cstdint>
#include <cstring>

struct CUstream_st;

#if !defined(__CUDACC__)
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
// One block runs at a time.
#define __shared__ static

namespace muster::trainer::kernels {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};
inline Dim3 blockIdx, gridDim, threadIdx, blockDim;

// A block's threads as fibers of this one. Contexts make their stacks; switching is by jumps, which
// need no system call.
class Block {
 public:
  static constexpr size_t kStackBytes = 1 << 16;
  static constexpr unsigned kWarp = 32;

  Block(unsigned threads, std::function<void()> body)
      : body_(std::move(body)),
        fibers_(threads),
        warps_((threads + kWarp - 1) / kWarp),
        slots_(threads) {
    current_ = this;
    for (unsigned t = 0; t < threads; ++t) {
      Fiber& fiber = fibers_[t];
      if (t == stacks_.size()) stacks_.emplace_back(new char[kStackBytes]);
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = stacks_[t].get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      makecontext(&fiber.context, &Block::Enter, 0);
    }
    for (bool any = true; any;) {
      any = false;
      for (unsigned t = 0; t < threads; ++t) {
        if (fibers_[t].done) continue;
        any = true;
        threadIdx.x = t;
        Resume(fibers_[t]);
      }
    }
  }

  static Block& Current() { return *current_; }
  void WaitForAll() { Wait(all_, static_cast<unsigned>(fibers_.size())); }
  // The value of the warp's lane that differs from this one's number by `mask`.
  float Exchange(float value, unsigned mask) {
    const unsigned thread = threadIdx.x;
    slots_[thread] = value;
    Wait(warps_[thread / kWarp], kWarp);
    const float found = slots_[thread ^ mask];
    Wait(warps_[thread / kWarp], kWarp);
    return found;
  }

 private:
  struct Fiber {
    ucontext_t context;
    jmp_buf place;
    bool begun = false, done = false;
  };
  struct Barrier {
    unsigned count = 0;
    uint64_t generation = 0;
  };
  static void Enter() {
    Block& block = *current_;
    const unsigned thread = threadIdx.x;
    block.body_();
    block.fibers_[thread].done = true;
    _longjmp(block.scheduler_, 1);
  }
  // Nothing but the jumps: no local may change between them.
  [[gnu::noinline]] void Resume(Fiber& fiber) {
    if (_setjmp(scheduler_) != 0) return;
    if (fiber.begun) _longjmp(fiber.place, 1);
    fiber.begun = true;
    setcontext(&fiber.context);
  }
  [[gnu::noinline]] void Yield(Fiber& fiber) {
    if (_setjmp(fiber.place) == 0) _longjmp(scheduler_, 1);
  }
  void Wait(Barrier& barrier, unsigned expected) {
    const unsigned thread = threadIdx.x;
    const uint64_t generation = barrier.generation;
    if (++barrier.count == expected) {
      barrier.count = 0;
      ++barrier.generation;
      return;
    }
    while (barrier.generation == generation) {
      Yield(fibers_[thread]);
    }
  }

  static inline Block* current_ = nullptr;
  static inline std::vector<std::unique_ptr<char[]>> stacks_;  // one block after another uses them
  const std::function<void()> body_;
  jmp_buf scheduler_;
  std::vector<Fiber> fibers_;
  Barrier all_;
  std::vector<Barrier> warps_;
  std::vector<float> slots_;
};

inline void __syncthreads() { Block::Current().WaitForAll(); }
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  return Block::Current().Exchange(value, static_cast<unsigned>(mask));
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
using std::exp;
using std::log;

}  // namespace muster::trainer::kernels
#endif

namespace muster::trainer::kernels {

// Starts `kernel` with `threads` threads (a multiple of 32) in each of `blocks` blocks.
template <int threads, class Arguments>
void Launch(void (*kernel)(Arguments), int64_t blocks, CUstream_st* stream,
            const Arguments& arguments) {
  if (blocks == 0) return;
#if defined(__CUDACC__)
  kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(arguments);
#else
  gridDim.x = static_cast<unsigned>(blocks);
  blockDim.x = threads;
  for (int64_t b = 0; b < blocks; ++b) {
    blockIdx.x = static_cast<unsigned>(b);
    Block(threads, [&] { kernel(arguments); });
  }
#endif
}

struct Bf16 {
  uint16_t bits;
};

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(Bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// To the nearest, ties to even, as ATen does.
template <class T>
__device__ __forceinline__ T From(float x);
template <>
__device__ __forceinline__ float From<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ Bf16 From<Bf16>(float x) {
#if defined(__CUDA_ARCH__)  // one instruction of the GPU's
  Bf16 rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(x));
  return rounded;
#else
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (x != x) return {0x7FC0};
  return {static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
#endif
}
// What T keeps of x.
template <class T>
__device__ __forceinline__ float Round(float x) {
  return ToFloat(From<T>(x));
}

// What one load of 16 bytes brings.
template <class T>
struct alignas(16) Pack {
  static constexpr int kCount = 16 / sizeof(T);
  T at[kCount];
};

__device__ __forceinline__ float WarpSum(float value) {
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, mask);
  return value;
}

__device__ __forceinline__ float WarpMax(float value) {
  for (int mask = 16; mask > 0; mask /= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFFu, value, mask);
    value = other > value ? other : value;
  }
  return value;
}

// The sum, or the largest, of all threads' values, the same in each of them. To be called by all.
template <int threads, bool maximum = false>
__device__ __forceinline__ float OverBlock(float value) {
  constexpr int kWarps = threads / 32;
  __shared__ float parts[kWarps];
  value = maximum ? WarpMax(value) : WarpSum(value);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  __syncthreads();  // the parts of the call before are read
  if (lane == 0) parts[warp] = value;
  __syncthreads();
  value = parts[lane < kWarps ? lane : 0];
  if (maximum) return WarpMax(value);
  return WarpSum(lane < kWarps ? value : 0);
}

}  // namespace muster::trainer::kernels
