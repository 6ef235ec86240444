#include <utility>

#include "trainer/ops/fused.h"
#include "trainer/ops/ops.h"

namespace muster::trainer::ops {
namespace {

thread_local PutOff* put_off = nullptr;

// d_w += dyᵀ·x with an fp32 sum, whatever the inputs' type.
void AddOuter(const GradientSum& d_w, const at::Tensor& dy, const at::Tensor& x) {
  if (x.scalar_type() != at::kFloat && !x.is_cuda()) {
    d_w.Add(at::mm(dy.t(), x));  // the CPU has no product with an fp32 result
    return;
  }
  at::Tensor sum = d_w.tensor();
  const int beta = d_w.Begin() ? 0 : 1;  // 0: what stands in the sum isn't read
  if (x.scalar_type() == at::kFloat)
    sum.addmm_(dy.t(), x, beta);
  else  // in place: a temporary of it would be written and read once more
    at::addmm_out(sum, d_w.tensor(), dy.t(), x, at::kFloat, beta);
}

}  // namespace

PutOffWeights::PutOffWeights(PutOff* list) { put_off = list; }
PutOffWeights::~PutOffWeights() { put_off = nullptr; }

at::Tensor Linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  return bias.defined() ? at::addmm(bias, x, w.t()) : at::mm(x, w.t());
}

void AddBiasGradient(const at::Tensor& dy, const GradientSum& d_bias) {
  if (d_bias.defined()) d_bias.Add(dy.sum({0}, /*keepdim=*/false, at::kFloat));
}

void AddOrPutOff(std::function<void()> add) {
  if (put_off != nullptr)
    put_off->push_back(std::move(add));
  else
    add();
}

void AddWeightGradient(const at::Tensor& dy, const at::Tensor& x, const GradientSum& d_w) {
  if (d_w.defined()) AddOrPutOff([d_w, dy, x] { AddOuter(d_w, dy, x); });
}

at::Tensor LinearBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w,
                          const GradientSum& d_w) {
  AddWeightGradient(dy, x, d_w);
  return at::mm(dy, w);
}

at::Tensor Embedding(const at::Tensor& ids, const at::Tensor& w) {
  return at::index_select(w, 0, ids);
}

void EmbeddingBackward(const at::Tensor& dy, const at::Tensor& ids, const GradientSum& d_w) {
  if (!d_w.defined()) return;
  const at::Tensor& sum = d_w.ToAdd();  // most rows get nothing
  if (!fused::EmbeddingBackward(dy, ids, sum))
    sum.add_(at::embedding_dense_backward(dy.to(at::kFloat), ids, sum.size(0), /*padding_idx=*/-1,
                                          /*scale_grad_by_freq=*/false));
}

void CapInPlace(const at::Tensor& x, double softcap) { x.div_(softcap).tanh_().mul_(softcap); }

at::Tensor CapDerivative(const at::Tensor& capped, double softcap) {
  return (capped / softcap).square_().neg_().add_(1);
}

int64_t LogitsChunk(int64_t tokens, int64_t vocabulary, bool gpu) {
  constexpr int64_t kTile = 128;  // of a GPU's products
  int64_t most = std::max<int64_t>(1, (gpu ? kLogitsChunkOnGpu : kLogitsChunk) / vocabulary);
  if (!gpu || tokens <= most || most < kTile) return std::max<int64_t>(1, std::min(tokens, most));
  most = most / kTile * kTile;
  const int64_t parts = (tokens + most - 1) / most, even = (tokens + parts - 1) / parts;
  return std::min(tokens, (even + kTile - 1) / kTile * kTile);
}

LossResult LinearCrossEntropy(const at::Tensor& x, const at::Tensor& w, const at::Tensor& targets,
                              const at::Tensor& weights, const GradientSum& d_w, bool loss_only,
                              double z_loss, const LossBranch* branch,
                              const at::Tensor& token_losses, double softcap) {
  const int64_t tokens = x.size(0);
  const int64_t chunk = LogitsChunk(tokens, w.size(0), x.is_cuda());
  LossResult result{at::zeros({2}, x.options().dtype(at::kDouble)),
                    loss_only ? at::Tensor() : at::empty_like(x)};
  const at::Tensor loss = result.loss[0], z_sum = result.loss[1];
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t length = std::min(chunk, tokens - begin);
    const at::Tensor x_part = x.narrow(0, begin, length);
    const at::Tensor target = targets.narrow(0, begin, length).unsqueeze(1);  // [n, 1]
    const at::Tensor weight = weights.narrow(0, begin, length).unsqueeze(1);  // [n, 1]
    at::Tensor logits = at::mm(x_part, w.t());                                // [n, V]
    const at::Tensor inner =
        branch != nullptr ? branch->inner.narrow(0, begin, length) : at::Tensor();
    if (inner.defined()) logits.addmm_(inner, branch->b.t());
    at::Tensor slope;  // of the capped logits
    if (softcap > 0) {
      CapInPlace(logits, softcap);
      if (!loss_only) slope = CapDerivative(logits, softcap);
    }
    at::Tensor d_logits;
    const at::Tensor losses =
        token_losses.defined() ? token_losses.narrow(0, begin, length) : at::Tensor();
    if (const auto sums = fused::CrossEntropy(logits, target, weight, loss_only, z_loss, losses)) {
      result.loss.add_(*sums);
      d_logits = logits;
    } else {
      if (logits.scalar_type() != at::kFloat) logits = logits.to(at::kFloat);
      at::Tensor log_p = at::_log_softmax(logits, 1, /*half_to_float=*/false);  // [n, V]
      const at::Tensor log_p_target = log_p.gather(1, target);                  // [n, 1]
      const at::Tensor weighted = log_p_target.to(at::kDouble) * weight;
      loss.sub_(weighted.sum());
      if (losses.defined()) losses.copy_(weighted.squeeze(1).neg());
      at::Tensor scale = weight;  // of the softmax in d logits
      if (z_loss > 0) {
        const at::Tensor log_sum =
            logits.gather(1, target).sub_(log_p_target);  // [n, 1]: log Σ exp logits
        z_sum.add_((log_sum.to(at::kDouble).square() * weight).sum(), z_loss);
        scale = weight * (log_sum * (2 * z_loss) + 1);
      }
      logits.reset();
      if (!loss_only) {
        // softmax * scale - onehot * weight, in the place of log_p
        log_p.exp_().mul_(scale);
        log_p.scatter_add_(1, target, weight.neg());
        d_logits = log_p.to(x.scalar_type());
      }
    }
    if (loss_only) continue;
    if (slope.defined()) d_logits.mul_(slope);
    if (d_w.defined()) AddOuter(d_w, d_logits, x_part);
    at::Tensor dx = result.dx.narrow(0, begin, length);
    at::mm_out(dx, d_logits, w);
    if (!inner.defined()) continue;
    AddOuter(branch->d_b, d_logits, inner);
    at::Tensor d_inner = branch->d_inner.narrow(0, begin, length);
    at::mm_out(d_inner, d_logits, branch->b);
  }
  return result;
}

}  // namespace muster::trainer::ops
