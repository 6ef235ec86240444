#include "trainer/model/blocks.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/model/init.h"

namespace muster::trainer {
namespace {

// A weight beside its gradient: views of a FlatParam.
struct Parameter {
  at::Tensor w, d;
  Parameter() = default;
  Parameter(const FlatParam& flat, int segment, int count = 1) : w(flat.Weight(segment, count)), d(flat.Gradient(segment, count)) {}
};

// y = x·wᵀ for one or several linears whose weights stand under each other, with the adapters beside them.
class Projection {
 public:
  Projection() = default;
  // `modules`: the linears' names, one a segment from `segment` on.
  Projection(const FlatParam& flat, int segment, const std::vector<std::string>& modules, const Adapters& adapters)
      : base_(flat, segment, static_cast<int>(modules.size())), scale_(adapters.scale), dropout_(adapters.dropout), seed_(adapters.seed) {
    int64_t begin = 0;
    for (size_t i = 0; i < modules.size(); ++i) {
      const int64_t out = flat.layout().segments()[segment + static_cast<int>(i)].shape[0];
      if (const auto found = adapters.modules.find(modules[i]); found != adapters.modules.end()) detours_.push_back({modules[i], found->second, begin, out});
      begin += out;
    }
  }

  at::Tensor Forward(const at::Tensor& x, const BatchMeta& meta) const {
    at::Tensor y = ops::Linear(x, base_.w);
    for (const Detour& detour : detours_) {
      const at::Tensor keep = Keep(detour, x, meta);
      const at::Tensor inner = ops::Linear(keep.defined() ? x * keep : x, detour.adapter.a);  // [T, rank]
      y.narrow(1, detour.begin, detour.out).add_(ops::Linear(inner, detour.adapter.b), scale_);
    }
    return y;
  }

  at::Tensor Backward(const at::Tensor& dy, const at::Tensor& x, const BatchMeta& meta) const {
    at::Tensor dx = ops::LinearBackward(dy, x, base_.w, base_.d);
    for (const Detour& detour : detours_) {
      const at::Tensor keep = Keep(detour, x, meta);
      const at::Tensor kept = keep.defined() ? x * keep : x;
      const at::Tensor inner = ops::Linear(kept, detour.adapter.a);
      const at::Tensor d_inner = ops::LinearBackward(dy.narrow(1, detour.begin, detour.out) * scale_, inner, detour.adapter.b, detour.adapter.d_b);
      at::Tensor d = ops::LinearBackward(d_inner, kept, detour.adapter.a, detour.adapter.d_a);
      if (keep.defined()) d.mul_(keep);
      dx.add_(d);
    }
    return dx;
  }

 private:
  struct Detour {
    std::string module;
    Adapter adapter;
    int64_t begin = 0, out = 0;  // its columns of y
  };

  // What dropout leaves of x, already scaled up: by seed, module and the row's number, whoever computes it and how often.
  at::Tensor Keep(const Detour& detour, const at::Tensor& x, const BatchMeta& meta) const {
    if (dropout_ == 0 || meta.loss_only) return {};
    const at::Tensor keep = at::empty({meta.batch, meta.length, x.size(1)}, at::kFloat);
    for (int64_t row = 0; row < meta.batch; ++row) {
      at::Tensor part = keep.select(0, row);
      FillUniform(seed_, absl::StrCat("dropout ", detour.module, " ", meta.rows[row]), 0, part.numel(), part.data_ptr<float>());
    }
    return (keep > dropout_).to(at::kFloat).div_(1 - dropout_).view_as(x).to(x.options());
  }

  Parameter base_;
  std::vector<Detour> detours_;
  double scale_ = 1, dropout_ = 0;
  uint64_t seed_ = 0;
};

class EmbeddingBlock : public Block {
 public:
  explicit EmbeddingBlock(const FlatParam& flat) : table_(flat, 0) {}
  at::Tensor Forward(const at::Tensor&, const BatchMeta& meta, Saved&) override { return ops::Embedding(meta.ids, table_.w); }
  at::Tensor Backward(const at::Tensor& dy, const BatchMeta& meta, const Saved&) override {
    ops::EmbeddingBackward(dy, meta.ids, table_.d);
    return {};
  }

 private:
  Parameter table_;  // [V, d]
};

// x + attention(norm(x)), then + mlp(norm(that)).
class LayerBlock : public Block {
 public:
  // Segments of a layer's flat, in order; q, k, v are one matrix, and so are gate and up.
  enum { kInputNorm, kQ, kK, kV, kOut, kPostNorm, kGate, kUp, kDown };

  LayerBlock(const ModelConfig& config, int64_t layer, const FlatParam& flat, const Adapters& adapters, ops::RopeTables rope, at::Tensor mask)
      : config_(config), rope_(std::move(rope)), mask_(std::move(mask)), input_norm_(flat, kInputNorm), post_norm_(flat, kPostNorm) {
    const std::string attention = absl::StrCat("model.layers.", layer, ".self_attn."), mlp = absl::StrCat("model.layers.", layer, ".mlp.");
    qkv_ = Projection(flat, kQ, {attention + "q_proj", attention + "k_proj", attention + "v_proj"}, adapters);
    out_ = Projection(flat, kOut, {attention + "o_proj"}, adapters);
    gate_up_ = Projection(flat, kGate, {mlp + "gate_proj", mlp + "up_proj"}, adapters);
    down_ = Projection(flat, kDown, {mlp + "down_proj"}, adapters);
  }

  at::Tensor Forward(const at::Tensor& x, const BatchMeta& meta, Saved& saved) override {
    ops::RmsNormResult norm1 = ops::RmsNorm(x, input_norm_.w, config_.rms_norm_eps);
    const ops::Heads heads = ops::SplitAndRotate(qkv_.Forward(norm1.y, meta), meta.batch, config_, rope_, meta.positions);
    const ops::AttentionResult attention = meta.positions.defined() ? ops::DocumentAttention(heads, mask_, meta.documents) : ops::Attention(heads, mask_);
    const at::Tensor middle = out_.Forward(attention.out, meta).add_(x);
    ops::RmsNormResult norm2 = ops::RmsNorm(middle, post_norm_.w, config_.rms_norm_eps);
    const at::Tensor gate_up = gate_up_.Forward(norm2.y, meta);
    const at::Tensor act = ops::SwiGlu(gate_up);
    saved = {x, norm1.y, norm1.rstd, heads.q, heads.k, heads.v, attention.probabilities, attention.out, middle, norm2.y, norm2.rstd, gate_up, act};
    return down_.Forward(act, meta).add_(middle);
  }

  at::Tensor Backward(const at::Tensor& dy, const BatchMeta& meta, const Saved& saved) override {
    enum { kX, kNorm1, kRstd1, kHeadQ, kHeadK, kHeadV, kProbabilities, kAttention, kMiddle, kNorm2, kRstd2, kGateUp, kAct };
    const at::Tensor d_act = down_.Backward(dy, saved[kAct], meta);
    const at::Tensor d_gate_up = ops::SwiGluBackward(d_act, saved[kGateUp]);
    const at::Tensor d_norm2 = gate_up_.Backward(d_gate_up, saved[kNorm2], meta);
    const at::Tensor d_middle = ops::RmsNormBackward(d_norm2, saved[kMiddle], post_norm_.w, saved[kRstd2], post_norm_.d).add_(dy);
    const at::Tensor d_attention = out_.Backward(d_middle, saved[kAttention], meta);
    const ops::Heads heads{saved[kHeadQ], saved[kHeadK], saved[kHeadV]};
    const ops::Heads d_heads = meta.positions.defined() ? ops::DocumentAttentionBackward(d_attention, heads, saved[kProbabilities], meta.documents)
                                                        : ops::AttentionBackward(d_attention, heads, saved[kProbabilities]);
    const at::Tensor d_qkv = ops::SplitAndRotateBackward(d_heads, config_, rope_, meta.positions);
    const at::Tensor d_norm1 = qkv_.Backward(d_qkv, saved[kNorm1], meta);
    return ops::RmsNormBackward(d_norm1, saved[kX], input_norm_.w, saved[kRstd1], input_norm_.d).add_(d_middle);
  }

 private:
  const ModelConfig config_;
  const ops::RopeTables rope_;
  const at::Tensor mask_;
  Parameter input_norm_, post_norm_;
  Projection qkv_, out_, gate_up_, down_;
};

// Final norm, output projection and loss. The projection's gradient comes out of the forward (LinearCrossEntropy).
class HeadBlock : public Block {
 public:
  HeadBlock(const ModelConfig& config, Parameter norm, Parameter projection)
      : config_(config), norm_(std::move(norm)), projection_(std::move(projection)) {}

  at::Tensor Forward(const at::Tensor& x, const BatchMeta& meta, Saved& saved) override {
    ops::RmsNormResult norm = ops::RmsNorm(x, norm_.w, config_.rms_norm_eps);
    ops::LossResult loss = ops::LinearCrossEntropy(norm.y, projection_.w, meta.targets, meta.weights, projection_.d, meta.loss_only);
    saved = {x, norm.rstd, loss.dx};
    return loss.loss;
  }
  at::Tensor Backward(const at::Tensor&, const BatchMeta&, const Saved& saved) override {
    return ops::RmsNormBackward(saved[2], saved[0], norm_.w, saved[1], norm_.d);
  }

 private:
  const ModelConfig config_;
  Parameter norm_, projection_;
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

std::vector<std::unique_ptr<Block>> MakeLlamaBlocks(const ModelConfig& config, std::vector<std::unique_ptr<FlatParam>>& flats, const Adapters& adapters,
                                                    int64_t max_length, at::Device device) {
  std::vector<std::unique_ptr<Block>> blocks;
  const at::ScalarType dtype = flats[0]->Weight(0).scalar_type();
  const ops::RopeTables rope = ops::MakeRopeTables(config, max_length, device);
  const at::Tensor mask = ops::MakeCausalMask(config, max_length, at::TensorOptions().dtype(dtype).device(device));
  blocks.push_back(std::make_unique<EmbeddingBlock>(*flats[0]));
  for (int64_t i = 0; i < config.num_layers; ++i) blocks.push_back(std::make_unique<LayerBlock>(config, i, *flats[i + 1], adapters, rope, mask));
  FlatParam& head = *flats.back();
  blocks.push_back(std::make_unique<HeadBlock>(config, Parameter(head, 0), config.tie_word_embeddings ? Parameter(*flats[0], 0) : Parameter(head, 1)));
  return blocks;
}

}  // namespace muster::trainer
