#include "trainer/model/blocks.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

// A weight beside its gradient: views of a FlatParam.
struct Parameter {
  at::Tensor w, d;
  Parameter() = default;
  Parameter(const FlatParam& flat, int segment, int count = 1) : w(flat.Weight(segment, count)), d(flat.Gradient(segment, count)) {}
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

  LayerBlock(const ModelConfig& config, const FlatParam& flat, ops::RopeTables rope, at::Tensor mask)
      : config_(config), rope_(std::move(rope)), mask_(std::move(mask)), input_norm_(flat, kInputNorm), qkv_(flat, kQ, 3), out_(flat, kOut),
        post_norm_(flat, kPostNorm), gate_up_(flat, kGate, 2), down_(flat, kDown) {}

  at::Tensor Forward(const at::Tensor& x, const BatchMeta& meta, Saved& saved) override {
    ops::RmsNormResult norm1 = ops::RmsNorm(x, input_norm_.w, config_.rms_norm_eps);
    const ops::Heads heads = ops::SplitAndRotate(ops::Linear(norm1.y, qkv_.w), meta.batch, config_, rope_, meta.positions);
    const ops::AttentionResult attention = meta.positions.defined() ? ops::DocumentAttention(heads, mask_, meta.documents) : ops::Attention(heads, mask_);
    const at::Tensor middle = ops::Linear(attention.out, out_.w).add_(x);
    ops::RmsNormResult norm2 = ops::RmsNorm(middle, post_norm_.w, config_.rms_norm_eps);
    const at::Tensor gate_up = ops::Linear(norm2.y, gate_up_.w);
    const at::Tensor act = ops::SwiGlu(gate_up);
    saved = {x, norm1.y, norm1.rstd, heads.q, heads.k, heads.v, attention.probabilities, attention.out, middle, norm2.y, norm2.rstd, gate_up, act};
    return ops::Linear(act, down_.w).add_(middle);
  }

  at::Tensor Backward(const at::Tensor& dy, const BatchMeta& meta, const Saved& saved) override {
    enum { kX, kNorm1, kRstd1, kHeadQ, kHeadK, kHeadV, kProbabilities, kAttention, kMiddle, kNorm2, kRstd2, kGateUp, kAct };
    const at::Tensor d_act = ops::LinearBackward(dy, saved[kAct], down_.w, down_.d);
    const at::Tensor d_gate_up = ops::SwiGluBackward(d_act, saved[kGateUp]);
    const at::Tensor d_norm2 = ops::LinearBackward(d_gate_up, saved[kNorm2], gate_up_.w, gate_up_.d);
    const at::Tensor d_middle = ops::RmsNormBackward(d_norm2, saved[kMiddle], post_norm_.w, saved[kRstd2], post_norm_.d).add_(dy);
    const at::Tensor d_attention = ops::LinearBackward(d_middle, saved[kAttention], out_.w, out_.d);
    const ops::Heads heads{saved[kHeadQ], saved[kHeadK], saved[kHeadV]};
    const ops::Heads d_heads = meta.positions.defined() ? ops::DocumentAttentionBackward(d_attention, heads, saved[kProbabilities], meta.documents)
                                                        : ops::AttentionBackward(d_attention, heads, saved[kProbabilities]);
    const at::Tensor d_qkv = ops::SplitAndRotateBackward(d_heads, config_, rope_, meta.positions);
    const at::Tensor d_norm1 = ops::LinearBackward(d_qkv, saved[kNorm1], qkv_.w, qkv_.d);
    return ops::RmsNormBackward(d_norm1, saved[kX], input_norm_.w, saved[kRstd1], input_norm_.d).add_(d_middle);
  }

 private:
  const ModelConfig config_;
  const ops::RopeTables rope_;
  const at::Tensor mask_;
  Parameter input_norm_, qkv_, out_, post_norm_, gate_up_, down_;
};

// Final norm, output projection and loss. The projection's gradient comes out of the forward (LinearCrossEntropy).
class HeadBlock : public Block {
 public:
  HeadBlock(const ModelConfig& config, Parameter norm, Parameter projection)
      : config_(config), norm_(std::move(norm)), projection_(std::move(projection)) {}

  at::Tensor Forward(const at::Tensor& x, const BatchMeta& meta, Saved& saved) override {
    ops::RmsNormResult norm = ops::RmsNorm(x, norm_.w, config_.rms_norm_eps);
    ops::LossResult loss = ops::LinearCrossEntropy(norm.y, projection_.w, meta.targets, meta.weights, meta.loss_only ? at::Tensor() : projection_.d);
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

std::vector<std::unique_ptr<Block>> MakeLlamaBlocks(const ModelConfig& config, std::vector<std::unique_ptr<FlatParam>>& flats,
                                                    int64_t max_length, at::Device device) {
  std::vector<std::unique_ptr<Block>> blocks;
  const at::ScalarType dtype = flats[0]->Weight(0).scalar_type();
  const ops::RopeTables rope = ops::MakeRopeTables(config, max_length, device);
  const at::Tensor mask = ops::MakeCausalMask(config, max_length, at::TensorOptions().dtype(dtype).device(device));
  blocks.push_back(std::make_unique<EmbeddingBlock>(*flats[0]));
  for (int64_t i = 0; i < config.num_layers; ++i) blocks.push_back(std::make_unique<LayerBlock>(config, *flats[i + 1], rope, mask));
  FlatParam& head = *flats.back();
  blocks.push_back(std::make_unique<HeadBlock>(config, Parameter(head, 0), config.tie_word_embeddings ? Parameter(*flats[0], 0) : Parameter(head, 1)));
  return blocks;
}

}  // namespace muster::trainer
