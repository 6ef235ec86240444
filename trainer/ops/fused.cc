#include "trainer/ops/fused.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "trainer/ops/host_kernels.h"

namespace muster::trainer::ops::fused {
namespace {

bool allowed = true;
const kernels::Kernels* on_cpu = &kernels::HostKernels();

// What a kernel may be given: contiguous, of one of the two types, rows of whole 16-byte packs.
bool Suits(const at::Tensor& x, int64_t width) {
  const bool type = x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat;
  return type && x.is_contiguous() && width % (16 / static_cast<int64_t>(x.element_size())) == 0 &&
         reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0;
}

bool Like(const at::Tensor& x, const at::Tensor& other) {
  return other.scalar_type() == x.scalar_type() && other.is_contiguous() &&
         reinterpret_cast<uintptr_t>(other.data_ptr()) % 16 == 0;
}

bool IsBf16(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16; }

at::Tensor Fp32(const at::Tensor& like, at::IntArrayRef sizes) {
  return at::empty(sizes, like.options().dtype(at::kFloat));
}

}  // namespace

void Allow(bool use) { allowed = use; }
bool Allowed() { return allowed; }

bool Compiled() {
#if defined(MUSTER_CUDA_KERNELS)
  return true;
#else
  return false;
#endif
}

void UseOnCpu(const kernels::Kernels* table) { on_cpu = table; }

const kernels::Kernels* KernelsFor(const at::Tensor& x) {
  if (!allowed) return nullptr;
  if (!x.is_cuda()) return on_cpu;
#if defined(MUSTER_CUDA_KERNELS)
  return &kernels::DeviceKernels();
#else
  return nullptr;
#endif
}

kernels::Stream StreamOf(const at::Tensor& x) {
  return x.is_cuda() ? c10::cuda::getCurrentCUDAStream(x.device().index()).stream() : nullptr;
}

void CheckLaunch(const at::Tensor& x) {
  if (x.is_cuda()) C10_CUDA_CHECK(cudaGetLastError());
}

std::optional<ResidualNormResult> ResidualRmsNorm(const at::Tensor& x, const at::Tensor& residual,
                                                  const at::Tensor& w, double eps, bool from_one) {
  const kernels::Kernels* table = KernelsFor(x);
  const int64_t width = x.size(-1);
  if (table == nullptr || !Suits(x, width) || !Like(x, w) ||
      (residual.defined() && !Like(x, residual)))
    return std::nullopt;
  ResidualNormResult result{residual.defined() ? at::empty_like(x) : x, at::empty_like(x),
                            Fp32(x, {x.size(0), 1})};
  kernels::RmsNormArguments a;
  a.bf16 = IsBf16(x), a.from_one = from_one, a.rows = x.size(0), a.width = width;
  a.x = x.data_ptr(), a.weight = w.data_ptr();
  if (residual.defined()) a.residual = residual.data_ptr(), a.sum = result.sum.data_ptr();
  a.y = result.y.data_ptr(), a.rstd = result.rstd.data_ptr<float>(),
  a.epsilon = static_cast<float>(eps);
  table->rms_norm(a, StreamOf(x));
  CheckLaunch(x);
  return result;
}

std::optional<at::Tensor> RmsNormBackward(const at::Tensor& dy, const at::Tensor& x,
                                          const at::Tensor& w, const at::Tensor& rstd,
                                          const at::Tensor& d_w, const at::Tensor& residual,
                                          bool from_one) {
  const kernels::Kernels* table = KernelsFor(x);
  const int64_t width = x.size(-1);
  if (table == nullptr || width > kernels::kMostNormWidth || !Suits(x, width) || !Like(x, dy) ||
      !Like(x, w) || (residual.defined() && !Like(x, residual)))
    return std::nullopt;
  at::Tensor dx = at::empty_like(x), partial;
  kernels::RmsNormBackwardArguments a;
  a.bf16 = IsBf16(x), a.from_one = from_one, a.rows = x.size(0), a.width = width;
  a.dy = dy.data_ptr(), a.x = x.data_ptr(), a.weight = w.data_ptr(),
  a.rstd = rstd.data_ptr<float>(), a.dx = dx.data_ptr();
  if (residual.defined()) a.residual = residual.data_ptr();
  if (d_w.defined()) {
    partial = Fp32(x, {kernels::NormBackwardBlocks(a.rows), width});
    a.partial = partial.data_ptr<float>(), a.d_weight = d_w.data_ptr<float>();
  }
  table->rms_norm_backward(a, StreamOf(x));
  CheckLaunch(x);
  return dx;
}

namespace {

at::Tensor ByToken(const at::Tensor& heads) { return heads.transpose(1, 2); }

kernels::RopeArguments RopeOf(const Heads& heads, const at::Tensor& qkv, const RopeTables& rope,
                              const at::Tensor& positions) {
  kernels::RopeArguments a;
  a.by_token = !heads.q.is_contiguous() || !heads.k.is_contiguous();
  a.bf16 = IsBf16(qkv);
  a.batch = heads.q.size(0), a.heads = heads.q.size(1), a.length = heads.q.size(2),
  a.width = heads.q.size(3), a.kv_heads = heads.k.size(1);
  a.qkv = qkv.data_ptr(), a.q = heads.q.data_ptr(), a.k = heads.k.data_ptr(),
  a.v = heads.v.data_ptr();
  a.cos = rope.cos.data_ptr<float>(), a.sin = rope.sin.data_ptr<float>();
  if (positions.defined()) a.positions = positions.data_ptr<int64_t>();
  return a;
}

}  // namespace

std::optional<Heads> SplitAndRotate(const at::Tensor& qkv, int64_t batch, const ModelConfig& config,
                                    const RopeTables& rope, const at::Tensor& positions,
                                    bool by_token) {
  const kernels::Kernels* table = KernelsFor(qkv);
  if (table == nullptr || !Suits(qkv, config.head_dim / 2) || config.partial_rotary_factor != 1)
    return std::nullopt;
  const int64_t length = qkv.size(0) / batch, d = config.head_dim;
  const auto make = [&](int64_t count) {
    return by_token ? ByToken(at::empty({batch, length, count, d}, qkv.options()))
                    : at::empty({batch, count, length, d}, qkv.options());
  };
  Heads heads{make(config.num_heads), make(config.num_kv_heads), make(config.num_kv_heads)};
  table->rope(RopeOf(heads, qkv, rope, positions), StreamOf(qkv));
  CheckLaunch(qkv);
  return heads;
}

std::optional<at::Tensor> SplitAndRotateBackward(const Heads& d_heads, const ModelConfig& config,
                                                 const RopeTables& rope,
                                                 const at::Tensor& positions) {
  const kernels::Kernels* table = KernelsFor(d_heads.q);
  const auto suit = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return Suits(q, config.head_dim / 2) && Like(q, k) && Like(q, v);
  };
  if (table == nullptr || config.partial_rotary_factor != 1 ||
      (!suit(d_heads.q, d_heads.k, d_heads.v) &&
       !suit(ByToken(d_heads.q), ByToken(d_heads.k), ByToken(d_heads.v))))
    return std::nullopt;
  const int64_t tokens = d_heads.q.size(0) * d_heads.q.size(2);
  at::Tensor d_qkv =
      at::empty({tokens, (config.num_heads + 2 * config.num_kv_heads) * config.head_dim},
                d_heads.q.options());
  kernels::RopeArguments a = RopeOf(d_heads, d_qkv, rope, positions);
  a.backward = true;
  table->rope(a, StreamOf(d_qkv));
  CheckLaunch(d_qkv);
  return d_qkv;
}

std::optional<at::Tensor> SwiGlu(const at::Tensor& gate_up) {
  const kernels::Kernels* table = KernelsFor(gate_up);
  const int64_t width = gate_up.size(1) / 2;
  if (table == nullptr || !Suits(gate_up, width)) return std::nullopt;
  at::Tensor y = at::empty({gate_up.size(0), width}, gate_up.options());
  kernels::SwiGluArguments a;
  a.bf16 = IsBf16(gate_up), a.rows = gate_up.size(0), a.width = width,
  a.gate_up = gate_up.data_ptr(), a.y = y.data_ptr();
  table->swiglu(a, StreamOf(gate_up));
  CheckLaunch(gate_up);
  return y;
}

std::optional<at::Tensor> SwiGluBackward(const at::Tensor& d_y, const at::Tensor& gate_up) {
  const kernels::Kernels* table = KernelsFor(gate_up);
  const int64_t width = gate_up.size(1) / 2;
  if (table == nullptr || !Suits(gate_up, width) || !Like(gate_up, d_y)) return std::nullopt;
  at::Tensor d = at::empty_like(gate_up);
  kernels::SwiGluArguments a;
  a.bf16 = IsBf16(gate_up), a.rows = gate_up.size(0), a.width = width,
  a.gate_up = gate_up.data_ptr(), a.dy = d_y.data_ptr(), a.d_gate_up = d.data_ptr();
  table->swiglu(a, StreamOf(gate_up));
  CheckLaunch(gate_up);
  return d;
}

namespace {

// Heads of width w.size(0) among the columns of `all` from `begin` on: whether a kernel can take
// them where they are.
bool SuitsHeads(const at::Tensor& all, int64_t begin, const at::Tensor& w) {
  const int64_t size = all.element_size();
  return Suits(all, w.size(0)) && all.dim() == 2 && all.size(1) * size % 16 == 0 &&
         begin * size % 16 == 0 && Like(all, w);
}

}  // namespace

std::optional<HeadNormResult> NormHeads(const at::Tensor& qkv, int64_t begin, int64_t heads,
                                        const at::Tensor& w, double eps, bool from_one) {
  const kernels::Kernels* table = KernelsFor(qkv);
  if (table == nullptr || !SuitsHeads(qkv, begin, w)) return std::nullopt;
  const int64_t rows = qkv.size(0) * heads, d = w.size(0);
  HeadNormResult before{at::empty({rows, d}, qkv.options()), Fp32(qkv, {rows, 1})};
  kernels::RmsNormArguments a;
  a.bf16 = IsBf16(qkv), a.from_one = from_one, a.rows = rows, a.width = d, a.heads = heads;
  a.stride = qkv.size(1);
  a.y = static_cast<char*>(qkv.data_ptr()) + begin * qkv.element_size(), a.x = a.y;
  a.sum = before.x.data_ptr(), a.weight = w.data_ptr(), a.rstd = before.rstd.data_ptr<float>();
  a.epsilon = static_cast<float>(eps);
  table->rms_norm(a, StreamOf(qkv));
  CheckLaunch(qkv);
  return before;
}

bool NormHeadsBackward(const at::Tensor& d_qkv, int64_t begin, const HeadNormResult& before,
                       const at::Tensor& w, const at::Tensor& d_w, bool from_one) {
  const kernels::Kernels* table = KernelsFor(d_qkv);
  const int64_t d = w.size(0);
  if (table == nullptr || !SuitsHeads(d_qkv, begin, w) || !Like(d_qkv, before.x) ||
      d > kernels::kMostNormWidth)
    return false;
  at::Tensor partial;
  kernels::RmsNormBackwardArguments a;
  a.bf16 = IsBf16(d_qkv), a.from_one = from_one, a.rows = before.x.size(0), a.width = d;
  a.heads = a.rows / d_qkv.size(0), a.stride = d_qkv.size(1);
  a.dx = static_cast<char*>(d_qkv.data_ptr()) + begin * d_qkv.element_size(), a.dy = a.dx;
  a.x = before.x.data_ptr(), a.weight = w.data_ptr(), a.rstd = before.rstd.data_ptr<float>();
  if (d_w.defined()) {
    partial = Fp32(d_qkv, {kernels::NormBackwardBlocks(a.rows), d});
    a.partial = partial.data_ptr<float>(), a.d_weight = d_w.data_ptr<float>();
  }
  table->rms_norm_backward(a, StreamOf(d_qkv));
  CheckLaunch(d_qkv);
  return true;
}

bool EmbeddingBackward(const at::Tensor& dy, const at::Tensor& ids, const at::Tensor& d_w) {
  const kernels::Kernels* table = KernelsFor(dy);
  if (table == nullptr || !Suits(dy, 0) || !d_w.is_contiguous()) return false;
  const auto [sorted, order] = ids.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  kernels::EmbeddingArguments a;
  a.bf16 = IsBf16(dy), a.rows = dy.size(0), a.width = dy.size(1);
  a.ids = sorted.data_ptr<int64_t>(), a.order = order.data_ptr<int64_t>();
  a.dy = dy.data_ptr(), a.d_weight = d_w.data_ptr<float>();
  table->embedding_backward(a, StreamOf(dy));
  CheckLaunch(dy);
  return true;
}

bool AddSquares(const at::Tensor& values, kernels::ExactSum* total) {
  const kernels::Kernels* table = values.is_cuda() ? KernelsFor(values) : on_cpu;
  if (table == nullptr || !Suits(values, 0)) return false;
  static_assert(sizeof(kernels::ExactSum) == 24);
  const at::Tensor partial =
      at::empty({3 * kernels::SquaresBlocks(values.numel())}, values.options().dtype(at::kLong));
  kernels::SquaresArguments a;
  a.bf16 = IsBf16(values), a.count = values.numel(), a.values = values.data_ptr();
  a.partial = reinterpret_cast<kernels::ExactSum*>(partial.data_ptr<int64_t>()), a.total = total;
  table->squares(a, StreamOf(values));
  CheckLaunch(values);
  return true;
}

bool DrawsBeside(const at::Tensor& x) {
  const kernels::Kernels* table = KernelsFor(x);
  return table != nullptr && table->dropout != nullptr && Suits(x, x.size(-1));
}

at::Tensor Dropout(const at::Tensor& x, const at::Tensor& numbers, uint64_t seed, uint64_t prefix,
                   double share) {
  const at::Tensor given = x.contiguous();
  at::Tensor y = at::empty_like(given);
  kernels::DropoutArguments a;
  a.bf16 = IsBf16(x), a.rows = numbers.numel(), a.width = x.numel() / a.rows;
  a.x = given.data_ptr(), a.y = y.data_ptr(), a.numbers = numbers.data_ptr<int64_t>();
  a.seed = seed, a.prefix = prefix, a.share = static_cast<float>(share);
  a.scale = 1.0f / static_cast<float>(1 - share);
  if (a.bf16) a.scale = static_cast<float>(c10::BFloat16(a.scale));
  KernelsFor(x)->dropout(a, StreamOf(x));
  CheckLaunch(x);
  return y;
}

std::optional<at::Tensor> CrossEntropy(const at::Tensor& logits, const at::Tensor& targets,
                                       const at::Tensor& weights, bool loss_only, double z_loss,
                                       const at::Tensor& losses) {
  const kernels::Kernels* table = KernelsFor(logits);
  if (table == nullptr || !Suits(logits, 0) || !targets.is_contiguous() || !weights.is_contiguous())
    return std::nullopt;
  const at::Tensor sums = at::empty({2, logits.size(0)}, logits.options().dtype(at::kDouble));
  kernels::CrossEntropyArguments a;
  a.bf16 = IsBf16(logits), a.loss_only = loss_only, a.rows = logits.size(0),
  a.vocabulary = logits.size(1);
  a.logits = logits.data_ptr(), a.targets = targets.data_ptr<int64_t>(),
  a.weights = weights.data_ptr<float>();
  a.loss = sums.data_ptr<double>(), a.z = a.loss + a.rows, a.z_loss = static_cast<float>(z_loss);
  table->cross_entropy(a, StreamOf(logits));
  CheckLaunch(logits);
  if (losses.defined()) losses.copy_(sums[0]);
  at::Tensor result = sums.sum(1);
  result[1].mul_(z_loss);
  return result;
}

}  // namespace muster::trainer::ops::fused
