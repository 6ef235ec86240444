#include "trainer/model/parts.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

at::Tensor Take(SavedPart saved, int slot) { return std::exchange(saved[slot], at::Tensor()); }

std::string LayerPrefix(int64_t layer) { return absl::StrCat("model.layers.", layer, "."); }

}  // namespace

AttentionPart::AttentionPart(const ModelConfig& config, int64_t layer, const FlatList& flats,
                             const Adapters& adapters, AttentionTables tables,
                             const LinearOptions& options)
    : config_(config),
      alone_(options.tensor.size() == 1 && options.context.size() == 1),
      context_(options.context),
      tables_(std::move(tables)) {
  const std::string attention = LayerPrefix(layer) + "self_attn.";
  const auto norm = [&](const std::string& name) {
    return Norm(config, Parameter(flats, name + ".weight"));
  };
  norm_ = norm(LayerPrefix(layer) + "input_layernorm");
  q_norm_ = norm(attention + "q_norm");
  k_norm_ = norm(attention + "k_norm");
  if (config.post_norms) post_norm_ = norm(LayerPrefix(layer) + "post_attention_layernorm");
  qkv_ = Projection(flats, {attention + "q_proj", attention + "k_proj", attention + "v_proj"},
                    adapters, options, Projection::Slices::kOfOutputs, attention + "qkv_proj");
  out_ =
      Projection(flats, {attention + "o_proj"}, adapters, options, Projection::Slices::kOfInputs);
}

bool AttentionPart::IsKept(int slot, RecomputeMode mode) {
  const bool own = slot >= kHeadQ && slot <= kResult;
  switch (mode) {
    case RecomputeMode::kNone:
      return true;
    case RecomputeMode::kPointwise:
      return slot != kNorm;
    case RecomputeMode::kKeepAttention:
      return own || slot == kX;
    case RecomputeMode::kFull:
      return slot == kX;
  }
  return true;
}

int64_t AttentionPart::Width(int slot, const ModelConfig& config, ops::AttentionKind kind,
                             int64_t length, int slices) {
  const int64_t q = config.num_heads * config.head_dim, kv = config.num_kv_heads * config.head_dim;
  switch (slot) {
    case kX:
    case kNorm:
      return config.hidden_size / slices;
    case kOut:
      return config.post_norms ? config.hidden_size / slices : 0;
    case kHeadQ:
    case kResult:
      return q;
    case kHeadK:
    case kHeadV:
      return kv;
    case kQ:
      return config.qk_norm ? q : 0;
    case kK:
      return config.qk_norm ? kv : 0;
    case kScores:  // fp32 log-sums count as two of bf16
      return kind == ops::AttentionKind::kFlash ? 2 * config.num_heads : config.num_heads * length;
    default:
      return 0;
  }
}

int64_t AttentionPart::SavedElements(const ModelConfig& config, ops::AttentionKind kind,
                                     int64_t length, RecomputeMode mode, int slices) {
  int64_t sum = 0;
  for (int slot = 0; slot < kCount; ++slot) {
    if (IsKept(slot, mode)) sum += Width(slot, config, kind, length, slices);
  }
  return sum;
}

bool AttentionPart::Recordable(const BatchMeta& meta) const {
  return alone_ && (tables_.kind == ops::AttentionKind::kFlash || !meta.positions.defined()) &&
         !qkv_.Draws() && !out_.Draws();
}

void AttentionPart::Recompute(const BatchMeta& meta, SavedPart saved) const {
  if (!saved[kNorm].defined()) {
    ops::RmsNormResult norm = norm_.Forward(saved[kX]);
    saved[kNorm] = norm.y, saved[kRstd] = norm.rstd;
  }
  if (saved[kResult].defined()) return;
  {
    const at::Tensor qkv = qkv_.Forward(saved[kNorm], meta);
    if (config_.qk_norm) {
      const ops::HeadNormResult q = q_norm_.Heads(qkv, 0, config_.num_heads);
      const ops::HeadNormResult k = k_norm_.Heads(qkv, KeyColumns(), config_.num_kv_heads);
      saved[kQ] = q.x, saved[kRstdQ] = q.rstd, saved[kK] = k.x, saved[kRstdK] = k.rstd;
    }
    const ops::Heads heads =
        ops::SplitAndRotate(qkv, meta.batch, config_, tables_.rope, meta.positions);
    saved[kHeadQ] = heads.q, saved[kHeadK] = heads.k, saved[kHeadV] = heads.v;
    Attend(meta, saved);
  }
}

void AttentionPart::Attend(const BatchMeta& meta, SavedPart saved) const {
  const ops::Heads heads{saved[kHeadQ], saved[kHeadK], saved[kHeadV]};
  if (meta.context) {
    const ops::FlashResult found =
        ops::ContextAttention(heads.q, GatherKeys(heads), meta.context->calls, tables_.kind,
                              tables_.mask, tables_.window, tables_.scores);
    saved[kScores] = found.log_sum, saved[kRandomState] = found.random_state,
    saved[kResult] = found.out;
    return;
  }
  if (tables_.kind == ops::AttentionKind::kFlash) {
    const ops::FlashResult flash =
        ops::FlashAttention(heads, meta.sequences, tables_.window, tables_.scores);
    saved[kScores] = flash.log_sum, saved[kRandomState] = flash.random_state,
    saved[kResult] = flash.out;
    return;
  }
  const ops::AttentionResult attention =
      meta.positions.defined()
          ? ops::DocumentAttention(heads, tables_.mask, meta.documents, tables_.scores)
          : ops::Attention(heads, tables_.mask, tables_.scores);
  saved[kScores] = attention.probabilities, saved[kResult] = attention.out;
}

at::Tensor AttentionPart::GatherKeys(const ops::Heads& heads) const {
  return context_.Stack(ops::KeysAndValues(heads)).flatten(0, 1);
}

// Other ranks' keys are gathered once more: kept, they would be the part of the activations that no
// number of ranks makes smaller.
ops::Heads AttentionPart::ContextBackward(const at::Tensor& d_out, const ops::Heads& heads,
                                          const ops::FlashResult& result,
                                          const BatchMeta& meta) const {
  const ops::ContextGradients found =
      ops::ContextAttentionBackward(d_out, heads.q, GatherKeys(heads), result, meta.context->calls,
                                    tables_.kind, tables_.window, tables_.scores);
  const int64_t hkv = heads.k.size(1), d = heads.k.size(3);
  const at::Tensor own = context_.SumScatterTokens(found.keys_values.flatten(1))
                             .view({meta.batch, meta.length, 2 * hkv, d})
                             .transpose(1, 2)
                             .to(heads.k.scalar_type());
  return {found.q, own.narrow(1, 0, hkv).contiguous(), own.narrow(1, hkv, hkv).contiguous()};
}

at::Tensor AttentionPart::Forward(const BatchMeta& meta, SavedPart saved) const {
  const at::Tensor out = out_.Forward(saved[kResult], meta);
  if (!post_norm_.there()) return out;
  const ops::RmsNormResult normed = post_norm_.Forward(out);
  saved[kOut] = out, saved[kRstdOut] = normed.rstd;
  return normed.y;
}

at::Tensor AttentionPart::Backward(const at::Tensor& d_out, const BatchMeta& meta,
                                   SavedPart saved) const {
  const bool flash = tables_.kind == ops::AttentionKind::kFlash;
  ops::FlashResult attention{Take(saved, kResult), Take(saved, kScores), Take(saved, kRandomState)};
  const at::Tensor d_attention = out_.Backward(
      post_norm_.there() ? post_norm_.Backward(d_out, Take(saved, kOut), Take(saved, kRstdOut))
                         : d_out,
      attention.out, meta);
  const ops::Heads heads{Take(saved, kHeadQ), Take(saved, kHeadK), Take(saved, kHeadV)};
  if (!flash) attention.out.reset();
  const ops::Heads d_heads =
      meta.context ? ContextBackward(d_attention, heads, attention, meta)
      : flash      ? ops::FlashAttentionBackward(d_attention, heads, attention, meta.sequences,
                                                 tables_.window, tables_.scores)
      : meta.positions.defined()
          ? ops::DocumentAttentionBackward(d_attention, heads, attention.log_sum, meta.documents,
                                           tables_.scores)
          : ops::AttentionBackward(d_attention, heads, attention.log_sum, tables_.scores);
  attention = {};
  const at::Tensor d_qkv =
      ops::SplitAndRotateBackward(d_heads, config_, tables_.rope, meta.positions);
  if (config_.qk_norm) {
    q_norm_.HeadsBackward(d_qkv, 0, {Take(saved, kQ), Take(saved, kRstdQ)});
    k_norm_.HeadsBackward(d_qkv, KeyColumns(), {Take(saved, kK), Take(saved, kRstdK)});
  }
  const at::Tensor d_norm = qkv_.Backward(d_qkv, Take(saved, kNorm), meta);
  return norm_.Backward(d_norm, Take(saved, kX), Take(saved, kRstd), d_out);
}

MlpPart::MlpPart(const ModelConfig& config, int64_t layer, const FlatList& flats,
                 const Adapters& adapters, const LinearOptions& options)
    : activation_(config.activation) {
  const std::string mlp = LayerPrefix(layer) + "mlp.";
  const auto norm = [&](const char* name) {
    return Norm(config, Parameter(flats, LayerPrefix(layer) + name + ".weight"));
  };
  norm_ = norm(config.post_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm");
  if (config.post_norms) post_norm_ = norm("post_feedforward_layernorm");
  gate_up_ = Projection(flats, {mlp + "gate_proj", mlp + "up_proj"}, adapters, options,
                        Projection::Slices::kOfOutputs, mlp + "gate_up_proj");
  down_ = Projection(flats, {mlp + "down_proj"}, adapters, options, Projection::Slices::kOfInputs);
}

int64_t MlpPart::Width(int slot, const ModelConfig& config, int slices) {
  switch (slot) {
    case kMiddle:
    case kNorm:
      return config.hidden_size / slices;
    case kOut:
      return config.post_norms ? config.hidden_size / slices : 0;
    case kGateUp:
      return 2 * config.intermediate_size;
    case kAct:
      return config.intermediate_size;
    default:
      return 0;
  }
}

bool MlpPart::Keeps(int slot, RecomputeMode mode) {
  return mode == RecomputeMode::kNone ||
         (mode == RecomputeMode::kPointwise &&
          (slot == kMiddle || slot == kGateUp || slot == kOut || slot == kRstdOut));
}

bool MlpPart::Complete(const BatchMeta&, SavedPart saved) const {
  if (saved[kAct].defined()) return true;
  if (!saved[kGateUp].defined()) return false;
  const ops::RmsNormResult norm = norm_.Forward(saved[kMiddle]);
  saved[kNorm] = norm.y, saved[kRstd] = norm.rstd;
  saved[kAct] = ops::GatedUnit(saved[kGateUp], activation_);
  return true;
}

int64_t MlpPart::SavedElements(const ModelConfig& config, RecomputeMode mode, int slices) {
  int64_t sum = 0;
  for (int slot = 0; slot < kCount; ++slot) {
    if (Keeps(slot, mode)) sum += Width(slot, config, slices);
  }
  return sum;
}

void MlpPart::Recompute(at::Tensor attention, const at::Tensor& residual, const BatchMeta& meta,
                        SavedPart saved) const {
  ops::ResidualNormResult norm = norm_.Forward(std::move(attention), residual);
  saved[kMiddle] = norm.sum, saved[kNorm] = norm.y, saved[kRstd] = norm.rstd;
  saved[kGateUp] = gate_up_.Forward(norm.y, meta);
  saved[kAct] = ops::GatedUnit(saved[kGateUp], activation_);
}

at::Tensor MlpPart::NormOut(const BatchMeta& meta, SavedPart saved) const {
  saved[kOut] = down_.Forward(saved[kAct], meta);
  const ops::RmsNormResult normed = post_norm_.Forward(saved[kOut]);
  saved[kRstdOut] = normed.rstd;
  return normed.y;
}

at::Tensor MlpPart::Forward(const BatchMeta& meta, SavedPart saved) const {
  if (post_norm_.there()) return NormOut(meta, saved).add_(saved[kMiddle]);
  return down_.Forward(saved[kAct], meta).add_(saved[kMiddle]);
}

at::Tensor MlpPart::Backward(const at::Tensor& dy, const BatchMeta& meta, SavedPart saved) const {
  at::Tensor d_out = dy;
  if (post_norm_.there()) {
    if (!saved[kOut].defined()) NormOut(meta, saved);
    d_out = post_norm_.Backward(dy, Take(saved, kOut), Take(saved, kRstdOut));
  }
  at::Tensor d_act = down_.Backward(d_out, Take(saved, kAct), meta);
  d_out.reset();
  at::Tensor d_gate_up = ops::GatedUnitBackward(d_act, Take(saved, kGateUp), activation_);
  d_act.reset();
  const at::Tensor d_norm = gate_up_.Backward(d_gate_up, Take(saved, kNorm), meta);
  d_gate_up.reset();
  return norm_.Backward(d_norm, Take(saved, kMiddle), Take(saved, kRstd), dy);
}

}  // namespace muster::trainer
