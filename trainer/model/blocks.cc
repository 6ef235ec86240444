#include "trainer/model/blocks.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/model/init.h"

namespace muster::trainer {
namespace {

// Number of the segment `name`, or -1.
int FindSegment(const FlatParam& flat, const std::string& name) {
  const std::vector<Segment>& segments = flat.layout().segments();
  const auto found = std::find_if(segments.begin(), segments.end(),
                                  [&](const Segment& segment) { return segment.name == name; });
  return found == segments.end() ? -1 : static_cast<int>(found - segments.begin());
}

// A weight beside its gradient: views of a FlatParam. Both undefined where the flat has no such
// segment.
struct Parameter {
  at::Tensor w, d;
  Parameter() = default;
  Parameter(const FlatParam& flat, int segment, int count = 1)
      : w(flat.Weight(segment, count)), d(flat.Gradient(segment, count)) {}
  Parameter(const FlatParam& flat, const std::string& name, int count = 1) {
    if (const int segment = FindSegment(flat, name); segment >= 0)
      *this = Parameter(flat, segment, count);
  }
};

// Dropout of the adapters' inputs.
class Dropout {
 public:
  Dropout() = default;
  explicit Dropout(const Adapters& adapters) : share_(adapters.dropout), seed_(adapters.seed) {}

  // What it leaves of x for `module`, already scaled up: by seed, module and the row's number,
  // whoever computes it and how often. Undefined where it leaves everything.
  at::Tensor Keep(const std::string& module, const at::Tensor& x, const BatchMeta& meta) const {
    if (share_ == 0 || meta.loss_only) return {};
    const at::Tensor keep = at::empty({meta.batch, meta.length, x.size(1)}, at::kFloat);
    for (int64_t row = 0; row < meta.batch; ++row) {
      at::Tensor part = keep.select(0, row);
      FillUniform(seed_, absl::StrCat("dropout ", module, " ", meta.rows[row]), 0, part.numel(),
                  part.data_ptr<float>());
    }
    return (keep > share_).to(at::kFloat).div_(1 - share_).view_as(x).to(x.options());
  }
  bool on() const { return share_ > 0; }

 private:
  double share_ = 0;
  uint64_t seed_ = 0;
};

// y = x·wᵀ for one or several linears whose weights stand under each other, with the adapters
// beside them.
class Projection {
 public:
  Projection() = default;
  // `modules`: the linears' names, whose weights (and biases, if any) are joined segments of the
  // flat.
  Projection(const FlatParam& flat, const std::vector<std::string>& modules,
             const Adapters& adapters)
      : base_(flat, modules[0] + ".weight", static_cast<int>(modules.size())),
        bias_(flat, modules[0] + ".bias", static_cast<int>(modules.size())),
        scale_(adapters.scale),
        dropout_(adapters) {
    int64_t begin = 0;
    for (size_t i = 0; i < modules.size(); ++i) {
      const int64_t out =
          flat.layout().segments()[FindSegment(flat, modules[i] + ".weight")].shape[0];
      if (const auto found = adapters.modules.find(modules[i]); found != adapters.modules.end())
        branches_.push_back({modules[i], found->second, begin, out});
      begin += out;
    }
  }

  at::Tensor Forward(const at::Tensor& x, const BatchMeta& meta) const {
    at::Tensor y = ops::Linear(x, base_.w, bias_.w);
    for (const LowRankBranch& branch : branches_) {
      const at::Tensor keep = dropout_.Keep(branch.module, x, meta);
      const at::Tensor inner =
          ops::Linear(keep.defined() ? x * keep : x, branch.adapter.a);  // [T, rank]
      y.narrow(1, branch.begin, branch.out).add_(ops::Linear(inner, branch.adapter.b), scale_);
    }
    return y;
  }

  at::Tensor Backward(const at::Tensor& dy, const at::Tensor& x, const BatchMeta& meta) const {
    at::Tensor dx = ops::LinearBackward(dy, x, base_.w, base_.d);
    ops::AddBiasGradient(dy, bias_.d);
    for (const LowRankBranch& branch : branches_) {
      const at::Tensor keep = dropout_.Keep(branch.module, x, meta);
      const at::Tensor kept = keep.defined() ? x * keep : x;
      const at::Tensor inner = ops::Linear(kept, branch.adapter.a);
      const at::Tensor d_inner =
          ops::LinearBackward(dy.narrow(1, branch.begin, branch.out) * scale_, inner,
                              branch.adapter.b, branch.adapter.d_b);
      at::Tensor d = ops::LinearBackward(d_inner, kept, branch.adapter.a, branch.adapter.d_a);
      if (keep.defined()) d.mul_(keep);
      dx.add_(d);
    }
    return dx;
  }

  // Whether anything in it is drawn on the host.
  bool Draws() const { return dropout_.on() && !branches_.empty(); }

 private:
  struct LowRankBranch {
    std::string module;
    Adapter adapter;
    int64_t begin = 0, out = 0;  // its columns of y
  };

  Parameter base_, bias_;
  std::vector<LowRankBranch> branches_;
  double scale_ = 1;
  Dropout dropout_;
};

class EmbeddingBlock : public Block {
 public:
  explicit EmbeddingBlock(const FlatParam& flat) : table_(flat, 0) {}
  at::Tensor Forward(const at::Tensor&, const BatchMeta& meta, Saved&) override {
    return ops::Embedding(meta.ids, table_.w);
  }
  at::Tensor Backward(const at::Tensor& dy, const BatchMeta& meta, Saved&) override {
    ops::EmbeddingBackward(dy, meta.ids, table_.d);
    return {};
  }

 private:
  Parameter table_;  // [V, d]
};

// x + attention(norm(x)), then + mlp(norm(that)). q, k, v are one matrix, and so are gate and up.
class LayerBlock : public Block {
 public:
  LayerBlock(const ModelConfig& config, int64_t layer, const FlatParam& flat,
             const Adapters& adapters, ops::RopeTables rope, at::Tensor mask, int64_t window)
      : config_(config), rope_(std::move(rope)), mask_(std::move(mask)), window_(window) {
    const std::string prefix = absl::StrCat("model.layers.", layer, "."),
                      attention = prefix + "self_attn.", mlp = prefix + "mlp.";
    input_norm_ = Parameter(flat, prefix + "input_layernorm.weight");
    post_norm_ = Parameter(flat, prefix + "post_attention_layernorm.weight");
    q_norm_ = Parameter(flat, attention + "q_norm.weight");
    k_norm_ = Parameter(flat, attention + "k_norm.weight");
    qkv_ = Projection(flat, {attention + "q_proj", attention + "k_proj", attention + "v_proj"},
                      adapters);
    out_ = Projection(flat, {attention + "o_proj"}, adapters);
    gate_up_ = Projection(flat, {mlp + "gate_proj", mlp + "up_proj"}, adapters);
    down_ = Projection(flat, {mlp + "down_proj"}, adapters);
  }

  at::Tensor Forward(const at::Tensor& x, const BatchMeta& meta, Saved& saved) override {
    saved.assign(kSavedCount, at::Tensor());
    saved[kX] = x;
    Recompute(meta, saved);
    return down_.Forward(saved[kAct], meta).add_(saved[kMiddle]);
  }

  at::Tensor Backward(const at::Tensor& dy, const BatchMeta& meta, Saved& saved) override {
    const auto take = [&saved](int which) { return std::exchange(saved[which], at::Tensor()); };
    at::Tensor d_act = down_.Backward(dy, take(kAct), meta);
    at::Tensor d_gate_up = ops::SwiGluBackward(d_act, take(kGateUp));
    d_act.reset();
    at::Tensor d_norm2 = gate_up_.Backward(d_gate_up, take(kNorm2), meta);
    d_gate_up.reset();
    const at::Tensor d_middle =
        ops::RmsNormBackward(d_norm2, take(kMiddle), post_norm_.w, take(kRstd2), post_norm_.d, dy);
    d_norm2.reset();
    ops::FlashResult attention{take(kAttention), take(kProbabilities), take(kRandomState)};
    const at::Tensor d_attention = out_.Backward(d_middle, attention.out, meta);
    const ops::Heads heads{take(kHeadQ), take(kHeadK), take(kHeadV)};
    if (!Flash()) attention.out.reset();
    const ops::Heads d_heads =
        Flash()
            ? ops::FlashAttentionBackward(d_attention, heads, attention, meta.sequences, window_)
        : meta.positions.defined()
            ? ops::DocumentAttentionBackward(d_attention, heads, attention.log_sum, meta.documents)
            : ops::AttentionBackward(d_attention, heads, attention.log_sum);
    attention = {};
    const at::Tensor d_qkv = ops::SplitAndRotateBackward(d_heads, config_, rope_, meta.positions);
    if (config_.qk_norm) {
      ops::NormHeadsBackward(d_qkv, 0, {take(kQ), take(kRstdQ)}, q_norm_.w, q_norm_.d);
      ops::NormHeadsBackward(d_qkv, KeyColumns(), {take(kK), take(kRstdK)}, k_norm_.w, k_norm_.d);
    }
    const at::Tensor d_norm1 = qkv_.Backward(d_qkv, take(kNorm1), meta);
    return ops::RmsNormBackward(d_norm1, take(kX), input_norm_.w, take(kRstd1), input_norm_.d,
                                d_middle);
  }

  void Drop(Saved& saved, RecomputeMode recompute) const override {
    if (recompute == RecomputeMode::kNone) return;
    for (int i = 0; i < kSavedCount; ++i) {
      const bool attention = i >= kHeadQ && i <= kAttention;
      if (i != kX && !(attention && recompute == RecomputeMode::kKeepAttention))
        saved[i] = at::Tensor();
    }
  }

  bool Recordable(const BatchMeta& meta) const override {
    return (Flash() || !meta.positions.defined()) && !qkv_.Draws() && !out_.Draws() &&
           !gate_up_.Draws() && !down_.Draws();
  }

  // Computes whatever isn't there.
  void Recompute(const BatchMeta& meta, Saved& saved) override {
    if (!saved[kNorm1].defined()) {
      ops::RmsNormResult norm = ops::RmsNorm(saved[kX], input_norm_.w, config_.rms_norm_eps);
      saved[kNorm1] = norm.y, saved[kRstd1] = norm.rstd;
    }
    if (!saved[kAttention].defined()) {
      const at::Tensor qkv = qkv_.Forward(saved[kNorm1], meta);
      if (config_.qk_norm) {
        const ops::HeadNormResult q =
            ops::NormHeads(qkv, 0, config_.num_heads, q_norm_.w, config_.rms_norm_eps);
        const ops::HeadNormResult k = ops::NormHeads(qkv, KeyColumns(), config_.num_kv_heads,
                                                     k_norm_.w, config_.rms_norm_eps);
        saved[kQ] = q.x, saved[kRstdQ] = q.rstd, saved[kK] = k.x, saved[kRstdK] = k.rstd;
      }
      const ops::Heads heads = ops::SplitAndRotate(qkv, meta.batch, config_, rope_, meta.positions);
      saved[kHeadQ] = heads.q, saved[kHeadK] = heads.k, saved[kHeadV] = heads.v;
      if (Flash()) {
        const ops::FlashResult attention = ops::FlashAttention(heads, meta.sequences, window_);
        saved[kProbabilities] = attention.log_sum, saved[kRandomState] = attention.random_state,
        saved[kAttention] = attention.out;
      } else {
        const ops::AttentionResult attention =
            meta.positions.defined() ? ops::DocumentAttention(heads, mask_, meta.documents)
                                     : ops::Attention(heads, mask_);
        saved[kProbabilities] = attention.probabilities, saved[kAttention] = attention.out;
      }
    }
    if (saved[kAct].defined()) return;
    ops::ResidualNormResult norm = ops::ResidualRmsNorm(
        out_.Forward(saved[kAttention], meta), saved[kX], post_norm_.w, config_.rms_norm_eps);
    saved[kMiddle] = norm.sum, saved[kNorm2] = norm.y, saved[kRstd2] = norm.rstd;
    saved[kGateUp] = gate_up_.Forward(norm.y, meta);
    saved[kAct] = ops::SwiGlu(saved[kGateUp]);
  }

 private:
  // What a layer saves; from kHeadQ to kAttention: attention's. q, k and their norms' statistics
  // before those norms, where the model has them.
  enum {
    kX,
    kNorm1,
    kRstd1,
    kHeadQ,
    kHeadK,
    kHeadV,
    kQ,
    kRstdQ,
    kK,
    kRstdK,
    kProbabilities,
    kRandomState,
    kAttention,
    kMiddle,
    kNorm2,
    kRstd2,
    kGateUp,
    kAct,
    kSavedCount
  };

  // There is no mask where FlashAttention is used, and its log-sums and state stand for the
  // probabilities.
  bool Flash() const { return !mask_.defined(); }
  // Where the columns of k begin in those of q, k and v.
  int64_t KeyColumns() const { return config_.num_heads * config_.head_dim; }

  const ModelConfig config_;
  const ops::RopeTables rope_;
  const at::Tensor mask_;
  const int64_t window_;  // 0: none
  Parameter input_norm_, post_norm_, q_norm_, k_norm_;
  Projection qkv_, out_, gate_up_, down_;
};

// Final norm, output projection and loss. The gradients of the projection and its adapter come out
// of the forward (LinearCrossEntropy).
class HeadBlock : public Block {
 public:
  HeadBlock(const ModelConfig& config, Parameter norm, Parameter projection,
            const Adapters& adapters, double z_loss)
      : config_(config),
        norm_(std::move(norm)),
        projection_(std::move(projection)),
        scale_(adapters.scale),
        dropout_(adapters),
        z_loss_(z_loss) {
    if (const auto found = adapters.modules.find(kModule); found != adapters.modules.end())
      adapter_ = found->second;
  }

  at::Tensor Forward(const at::Tensor& x, const BatchMeta& meta, Saved& saved) override {
    const ops::RmsNormResult norm = ops::RmsNorm(x, norm_.w, config_.rms_norm_eps);
    const ops::LossResult loss =
        adapter_ ? Adapted(norm.y, meta)
                 : ops::LinearCrossEntropy(norm.y, projection_.w, meta.targets, meta.weights,
                                           projection_.d, meta.loss_only, z_loss_);
    saved = {x, norm.rstd, loss.dx};
    return loss.loss;
  }
  at::Tensor Backward(const at::Tensor&, const BatchMeta&, Saved& saved) override {
    const Saved own = std::exchange(saved, {});
    return ops::RmsNormBackward(own[2], own[0], norm_.w, own[1], norm_.d);
  }

 private:
  static constexpr char kModule[] = "lm_head";

  ops::LossResult Adapted(const at::Tensor& x, const BatchMeta& meta) const {
    const at::Tensor keep = dropout_.Keep(kModule, x, meta);
    const at::Tensor kept = keep.defined() ? x * keep : x;
    ops::LossBranch branch{ops::Linear(kept, adapter_->a) * scale_, adapter_->b, {}, adapter_->d_b};
    if (!meta.loss_only) branch.d_inner = at::empty_like(branch.inner);
    ops::LossResult loss = ops::LinearCrossEntropy(x, projection_.w, meta.targets, meta.weights,
                                                   projection_.d, meta.loss_only, z_loss_, &branch);
    if (meta.loss_only) return loss;
    at::Tensor d = ops::LinearBackward(branch.d_inner * scale_, kept, adapter_->a, adapter_->d_a);
    if (keep.defined()) d.mul_(keep);
    loss.dx.add_(d);
    return loss;
  }

  const ModelConfig config_;
  Parameter norm_, projection_;
  std::optional<Adapter> adapter_;
  const double scale_;
  const Dropout dropout_;
  const double z_loss_;
};

}  // namespace

ModelLayout MakeLlamaLayout(const ModelConfig& config) {
  const int64_t d = config.hidden_size, f = config.intermediate_size;
  const int64_t q = config.num_heads * config.head_dim, kv = config.num_kv_heads * config.head_dim;
  ModelLayout layout;
  FlatLayout& embedding = layout.flats.emplace_back();
  embedding.Add("model.embed_tokens.weight", {config.vocab_size, d}, true);
  layout.block_flats.push_back({0});
  for (int64_t i = 0; i < config.num_layers; ++i) {
    FlatLayout& flat = layout.flats.emplace_back();
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    flat.Add(prefix + "input_layernorm.weight", {d}, false);
    flat.Add(prefix + "self_attn.q_proj.weight", {q, d}, true);
    flat.Add(prefix + "self_attn.k_proj.weight", {kv, d}, true, /*joined=*/true);
    flat.Add(prefix + "self_attn.v_proj.weight", {kv, d}, true, /*joined=*/true);
    flat.Add(prefix + "self_attn.o_proj.weight", {d, q}, true);
    flat.Add(prefix + "post_attention_layernorm.weight", {d}, false);
    flat.Add(prefix + "mlp.gate_proj.weight", {f, d}, true);
    flat.Add(prefix + "mlp.up_proj.weight", {f, d}, true, /*joined=*/true);
    flat.Add(prefix + "mlp.down_proj.weight", {d, f}, true);
    if (config.qkv_bias) {
      flat.Add(prefix + "self_attn.q_proj.bias", {q}, false);
      flat.Add(prefix + "self_attn.k_proj.bias", {kv}, false, /*joined=*/true);
      flat.Add(prefix + "self_attn.v_proj.bias", {kv}, false, /*joined=*/true);
    }
    if (config.out_bias) flat.Add(prefix + "self_attn.o_proj.bias", {d}, false);
    if (config.qk_norm) {
      flat.Add(prefix + "self_attn.q_norm.weight", {config.head_dim}, false);
      flat.Add(prefix + "self_attn.k_norm.weight", {config.head_dim}, false);
    }
    if (config.mlp_bias) {
      flat.Add(prefix + "mlp.gate_proj.bias", {f}, false);
      flat.Add(prefix + "mlp.up_proj.bias", {f}, false, /*joined=*/true);
      flat.Add(prefix + "mlp.down_proj.bias", {d}, false);
    }
    layout.block_flats.push_back({static_cast<int>(i) + 1});
  }
  FlatLayout& head = layout.flats.emplace_back();
  const int head_flat = static_cast<int>(config.num_layers) + 1;
  head.Add("model.norm.weight", {d}, false);
  if (config.tie_word_embeddings) {
    layout.block_flats.push_back({head_flat, 0});
  } else {
    head.Add("lm_head.weight", {config.vocab_size, d}, true);
    layout.block_flats.push_back({head_flat});
  }
  return layout;
}

std::vector<std::unique_ptr<Block>> MakeLlamaBlocks(const ModelConfig& config,
                                                    std::vector<std::unique_ptr<FlatParam>>& flats,
                                                    const Adapters& adapters, int64_t max_length,
                                                    at::Device device, double z_loss) {
  std::vector<std::unique_ptr<Block>> blocks;
  const at::ScalarType dtype = flats[0]->Weight(0).scalar_type();
  const ops::RopeTables rope = ops::MakeRopeTables(config, max_length, device);
  std::map<int64_t, at::Tensor> masks;  // by window
  const auto window_of = [&](int64_t layer) {
    return config.Window(layer) < max_length ? config.Window(layer) : 0;
  };
  const bool flash =
      ops::UsesFlashAttention(at::TensorOptions().dtype(dtype).device(device), config.head_dim);
  const auto mask_of = [&](int64_t layer) {
    const int64_t window = window_of(layer);
    at::Tensor& mask = masks[window];
    if (!mask.defined() && !flash)
      mask = ops::MakeCausalMask(config, max_length,
                                 at::TensorOptions().dtype(dtype).device(device), window);
    return mask;
  };
  blocks.push_back(std::make_unique<EmbeddingBlock>(*flats[0]));
  for (int64_t i = 0; i < config.num_layers; ++i)
    blocks.push_back(std::make_unique<LayerBlock>(config, i, *flats[i + 1], adapters, rope,
                                                  mask_of(i), window_of(i)));
  FlatParam& head = *flats.back();
  blocks.push_back(std::make_unique<HeadBlock>(
      config, Parameter(head, 0),
      config.tie_word_embeddings ? Parameter(*flats[0], 0) : Parameter(head, 1), adapters, z_loss));
  return blocks;
}

}  // namespace muster::trainer
