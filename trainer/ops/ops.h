// The model's operations, each with an explicit forward and backward, on any device that ATen
// knows: on GPUs by our kernels and FlashAttention where they can (fused.h), else by ATen's plain
// operations, which are the kernels' reference; autograd is what the tests compare those with.
// Shapes: T = tokens (batch * sequence), d = hidden size. All functions are stateless; gradients of
// weights are added to the fp32 sums given (`d_…`, gradient_sum.h); an undefined one is of a frozen
// weight, and its gradient isn't computed. To be called without autograd (at::NoGradGuard or
// InferenceMode).
#pragma once

#include <functional>
#include <vector>

#include <ATen/ATen.h>

#include "trainer/model/config.h"
#include "trainer/ops/document_span.h"
#include "trainer/ops/gradient_sum.h"

namespace muster::trainer::ops {

// While one lives, what this thread's LinearBackward would add to weights' gradients is put off:
// into `list`, whose entries do it in their order, to the same bits. They keep the products'
// inputs.
using PutOff = std::vector<std::function<void()>>;
class PutOffWeights {
 public:
  explicit PutOffWeights(PutOff* list);
  ~PutOffWeights();
  PutOffWeights(const PutOffWeights&) = delete;
  PutOffWeights& operator=(const PutOffWeights&) = delete;
};
// Adds to a weight's gradient: calls `add`, now or when the thread's list does.
void AddOrPutOff(std::function<void()> add);

// y = x · wᵀ + bias.  x [T, in], w [out, in], bias [out] or undefined → [T, out]
at::Tensor Linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias = {});
// Adds dyᵀ·x to d_w [out, in] (fp32) and returns dx [T, in].
at::Tensor LinearBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w,
                          const GradientSum& d_w);
// That alone.
void AddWeightGradient(const at::Tensor& dy, const at::Tensor& x, const GradientSum& d_w);
// Adds the sum of dy's rows to d_bias [out] (fp32).
void AddBiasGradient(const at::Tensor& dy, const GradientSum& d_bias);

// y = x / rms(x) · w, statistics in fp32.  x [T, d], w [d] → y [T, d], rstd [T, 1] (fp32)
// `from_one`, here and below: the weight counts from 1, y = x / rms(x) · (1 + w), in fp32 and
// rounded once (Gemma).
struct RmsNormResult {
  at::Tensor y, rstd;
};
RmsNormResult RmsNorm(const at::Tensor& x, const at::Tensor& w, double eps, bool from_one = false);
// The same of x + residual, which is `sum`; x may be taken for that.
struct ResidualNormResult {
  at::Tensor sum, y, rstd;
};
ResidualNormResult ResidualRmsNorm(at::Tensor x, const at::Tensor& residual, const at::Tensor& w,
                                   double eps, bool from_one = false);
// d x, with the gradient `residual` [T, d] that goes past the norm added to it where it is given;
// of a sum, both its parts'.
at::Tensor RmsNormBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w,
                           const at::Tensor& rstd, const GradientSum& d_w,
                           const at::Tensor& residual = {}, bool from_one = false);

// Norms each of `heads` heads of qkv [T, …] from column `begin` on, in place: Qwen3's q_norm and
// k_norm.  w [D] Returns what stood there, as [T·heads, D], and rstd [T·heads, 1]: the backward
// needs them.
struct HeadNormResult {
  at::Tensor x, rstd;
};
HeadNormResult NormHeads(const at::Tensor& qkv, int64_t begin, int64_t heads, const at::Tensor& w,
                         double eps, bool from_one = false);
// Turns those columns of d_qkv into the gradient before the norm, in place; adds to d_w [D].
void NormHeadsBackward(const at::Tensor& d_qkv, int64_t begin, const HeadNormResult& before,
                       const at::Tensor& w, const GradientSum& d_w, bool from_one = false);

// Rotary embedding tables for positions 0..length-1: cos and sin [length, R / 2], fp32, where R is
// config.RotaryDim(), times YaRN's or LongRoPE's attention factor. Scaled as config.rope says:
// Llama 3's bands, YaRN (Peng et al., arXiv 2309.00071), LongRoPE (Ding et al., arXiv 2402.13753;
// its long factors where `length` is above the original one), or linearly. `local`: of layers with
// a window, which have a base of their own and no scaling.
struct RopeTables {
  at::Tensor cos, sin;
};
RopeTables MakeRopeTables(const ModelConfig& config, int64_t length, at::Device device,
                          bool local = false);

// Splits qkv [B*S, (H + 2·Hkv)·D] into heads and rotates the first R elements of q and k (halves
// convention, as transformers has it). q [B, H, S, D], k and v [B, Hkv, S, D]: contiguous, or, for
// FlashAttention, as [B, S, H, D] in memory.
struct Heads {
  at::Tensor q, k, v;
};
// positions [B*S]: each token's; undefined: 0..S-1 in every row.
Heads SplitAndRotate(const at::Tensor& qkv, int64_t batch, const ModelConfig& config,
                     const RopeTables& rope, const at::Tensor& positions = {});
at::Tensor SplitAndRotateBackward(const Heads& d_heads, const ModelConfig& config,
                                  const RopeTables& rope, const at::Tensor& positions = {});

// What of q·kᵀ goes into the softmax: its multiple by `scale` (0: 1 / √D), and with `softcap` c > 0
// c · tanh(that / c) (Gemma 2, arXiv 2408.00118, section 2). FlashAttention knows no cap.
struct ScoreRule {
  double scale = 0, softcap = 0;
  double ScaleOf(int64_t head_dim) const;
};
// What that makes of q [N, n, D] and k [N, m, D]: [N, n, m], before the mask; and, in place, the
// gradient of q·kᵀ from that of the result, which is computed again where there is a cap.
at::Tensor Scores(const at::Tensor& q, const at::Tensor& k, const ScoreRule& rule);
void ScoresBackward(const at::Tensor& d_scores, const at::Tensor& q, const at::Tensor& k,
                    const ScoreRule& rule);

// Causal attention by plain batched products; grouped queries read their key head without copies.
// Returns out [B*S, H·D] and the probabilities [B·Hkv, G·S, S] that the backward needs.
struct AttentionResult {
  at::Tensor out, probabilities;
};
// The additive mask [G·S, S] (0 or -inf) that Attention wants, in the type of q. `window`: tokens
// that a token sees, itself among them; 0: all before it.
at::Tensor MakeCausalMask(const ModelConfig& config, int64_t length,
                          const at::TensorOptions& options, int64_t window = 0);
AttentionResult Attention(const Heads& heads, const at::Tensor& mask, const ScoreRule& rule = {});
Heads AttentionBackward(const at::Tensor& d_out, const Heads& heads,
                        const at::Tensor& probabilities, const ScoreRule& rule = {});

// How attention is computed: by plain batched products, or by FlashAttention, which needs neither
// masks nor room for the probabilities.
enum class AttentionKind { kPlain, kFlash };
// FlashAttention takes bf16 heads of at most 256 elements whose scores have no cap, on GPUs, where
// kernels are allowed.
AttentionKind ChooseAttention(bool gpu, bool kernels, at::ScalarType dtype,
                              const ModelConfig& config);
// For heads in memory of `options`, by this process.
AttentionKind ChooseAttention(const at::TensorOptions& options, const ModelConfig& config);

// Causal attention inside each document alone, one document after another: a document's result
// doesn't depend on what it is packed with. Tokens of no document get zero. `mask` may be for
// longer sequences. probabilities: all documents' [Hkv, G·n, n], one behind the other, flat.
AttentionResult DocumentAttention(const Heads& heads, const at::Tensor& mask,
                                  const std::vector<DocumentSpan>& documents,
                                  const ScoreRule& rule = {});
Heads DocumentAttentionBackward(const at::Tensor& d_out, const Heads& heads,
                                const at::Tensor& probabilities,
                                const std::vector<DocumentSpan>& documents,
                                const ScoreRule& rule = {});

// The same by FlashAttention-2 (Dao, arXiv 2307.08691), as ATen has it: of whole rows, or of the
// sequences between `bounds`
// ([n + 1], int32, on the device; made by SequenceBounds), the longest of which has `longest`
// tokens.
struct FlashResult {
  at::Tensor out, log_sum, random_state;  // [B·S, H·D]; what the backward needs
};
struct FlashSequences {
  at::Tensor bounds = {};
  int64_t longest = 0;
};
// Where the documents of `batch` rows begin and end in B·S tokens; what stands between them
// (padding) counts as more documents.
std::vector<int32_t> SequenceBounds(const std::vector<DocumentSpan>& documents, int64_t batch,
                                    int64_t length);
FlashResult FlashAttention(const Heads& heads, const FlashSequences& sequences, int64_t window,
                           const ScoreRule& rule = {});
Heads FlashAttentionBackward(const at::Tensor& d_out, const Heads& heads, const FlashResult& result,
                             const FlashSequences& sequences, int64_t window,
                             const ScoreRule& rule = {});

// A gated linear unit (Shazeer, arXiv 2002.05202): activation(gate) · up of gate_up [T, 2·F] → [T,
// F]. SwiGLU has kernels, GEGLU is ATen's alone.
at::Tensor GatedUnit(const at::Tensor& gate_up, Activation activation = Activation::kSilu);
// → d_gate_up [T, 2·F]
at::Tensor GatedUnitBackward(const at::Tensor& d_y, const at::Tensor& gate_up,
                             Activation activation = Activation::kSilu);

// Rows of w [V, d] for ids [T] → [T, d]; the backward adds rows of dy to d_w.
at::Tensor Embedding(const at::Tensor& ids, const at::Tensor& w);
void EmbeddingBackward(const at::Tensor& dy, const at::Tensor& ids, const GradientSum& d_w);

// Cross-entropy of x·wᵀ against targets, with the backward in the same pass, a chunk of tokens at a
// time, so that the logits of all tokens never exist at once (the idea of Liger's fused linear
// cross-entropy). weights [T] fp32: what each token's loss counts, already divided by the global
// number of target tokens.
// Tokens of a chunk: few of the logits exist at once, and on a CPU they stay in its cache. On a GPU
// each chunk reads and writes the whole gradient of w: chunks of equal size, some 600 MB of bf16.
inline constexpr int64_t kLogitsChunk = int64_t{1} << 22;
inline constexpr int64_t kLogitsChunkOnGpu = int64_t{5} << 26;
int64_t LogitsChunk(int64_t tokens, int64_t vocabulary, bool gpu);
// `z_loss` > 0 adds, to the gradients, those of z_loss · Σ weight · (log Σ exp logits)² (PaLM,
// arXiv 2204.02311, section 5). Returns the weighted loss and that sum times z_loss (in double, [2]
// on x's device) and dx [T, d]; adds to d_w [V, d]. loss_only: neither. `branch`, if there is one,
// adds inner·bᵀ to the logits: inner [T, r], b [V, r]; its gradients come into d_inner and, added,
// d_b. `token_losses` [T] double, where given, gets each token's weighted loss. Weights may be
// below 0. `softcap` c > 0: of logits l the loss sees c · tanh(l / c).
struct LossResult {
  at::Tensor loss, dx;
};
// A low-rank branch beside the output projection.
struct LossBranch {
  at::Tensor inner, b, d_inner;
  GradientSum d_b;
};
LossResult LinearCrossEntropy(const at::Tensor& x, const at::Tensor& w, const at::Tensor& targets,
                              const at::Tensor& weights, const GradientSum& d_w,
                              bool loss_only = false, double z_loss = 0,
                              const LossBranch* branch = nullptr,
                              const at::Tensor& token_losses = {}, double softcap = 0);
// Puts c · tanh(x / c) in the place of x; and the derivative of that where the result is `capped`.
void CapInPlace(const at::Tensor& x, double softcap);
at::Tensor CapDerivative(const at::Tensor& capped, double softcap);

}  // namespace muster::trainer::ops
