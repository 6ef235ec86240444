#include "trainer/model/family.h"

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/model/parts.h"
#include "trainer/model/projection.h"

namespace muster::trainer {
namespace {

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

// x + attention(norm(x)), then + mlp(norm(that)).
class LayerBlock : public Block {
 public:
  LayerBlock(AttentionPart attention, MlpPart mlp)
      : attention_(std::move(attention)), mlp_(std::move(mlp)) {}

  at::Tensor Forward(const at::Tensor& x, const BatchMeta& meta, Saved& saved) override {
    saved.assign(kSavedCount, at::Tensor());
    saved[AttentionPart::kX] = x;
    Recompute(meta, saved);
    return mlp_.Forward(meta, OfMlp(saved));
  }

  at::Tensor Backward(const at::Tensor& dy, const BatchMeta& meta, Saved& saved) override {
    const at::Tensor d_middle = mlp_.Backward(dy, meta, OfMlp(saved));
    return attention_.Backward(d_middle, meta, OfAttention(saved));
  }

  void Drop(Saved& saved, RecomputeMode mode) const override {
    for (int slot = 0; slot < AttentionPart::kCount; ++slot) {
      if (!AttentionPart::IsKept(slot, mode)) OfAttention(saved)[slot] = at::Tensor();
    }
    for (int slot = 0; slot < MlpPart::kCount; ++slot) {
      if (!MlpPart::IsKept(slot, mode)) OfMlp(saved)[slot] = at::Tensor();
    }
  }

  // Computes whatever isn't there.
  void Recompute(const BatchMeta& meta, Saved& saved) override {
    attention_.Recompute(meta, OfAttention(saved));
    if (OfMlp(saved)[MlpPart::kAct].defined()) return;
    if (OfMlp(saved)[MlpPart::kGateUp].defined()) return mlp_.RecomputePointwise(OfMlp(saved));
    mlp_.Recompute(attention_.Forward(meta, OfAttention(saved)), saved[AttentionPart::kX], meta,
                   OfMlp(saved));
  }

  bool Recordable(const BatchMeta& meta) const override {
    return attention_.Recordable(meta) && mlp_.Recordable();
  }

 private:
  static constexpr int kSavedCount = AttentionPart::kCount + MlpPart::kCount;
  static SavedPart OfAttention(Saved& saved) {
    return SavedPart(saved).first(AttentionPart::kCount);
  }
  static SavedPart OfMlp(Saved& saved) { return SavedPart(saved).last(MlpPart::kCount); }

  const AttentionPart attention_;
  const MlpPart mlp_;
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
    const Dropout::Mask mask = dropout_.For(kModule, x, meta);
    const at::Tensor kept = mask.Apply(x);
    ops::LossBranch branch{ops::Linear(kept, adapter_->a) * scale_, adapter_->b, {}, adapter_->d_b};
    if (!meta.loss_only) branch.d_inner = at::empty_like(branch.inner);
    ops::LossResult loss = ops::LinearCrossEntropy(x, projection_.w, meta.targets, meta.weights,
                                                   projection_.d, meta.loss_only, z_loss_, &branch);
    if (meta.loss_only) return loss;
    loss.dx.add_(
        mask.Apply(ops::LinearBackward(branch.d_inner * scale_, kept, adapter_->a, adapter_->d_a)));
    return loss;
  }

  const ModelConfig config_;
  Parameter norm_, projection_;
  std::optional<Adapter> adapter_;
  const double scale_;
  const Dropout dropout_;
  const double z_loss_;
};

// Adds a layer's segments, in the order in which its parts use them.
void AddLayer(const ModelConfig& config, const std::string& prefix, FlatLayout& flat) {
  const int64_t d = config.hidden_size, f = config.intermediate_size;
  const int64_t q = config.num_heads * config.head_dim, kv = config.num_kv_heads * config.head_dim;
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
}

// Llama and its like: layers of one attention and one dense MLP, an embedding that the head may be
// tied to.
class DenseFamily : public Family {
 public:
  ModelLayout Layout(const ModelConfig& config) const override {
    ModelLayout layout;
    layout.flats.emplace_back().Add("model.embed_tokens.weight",
                                    {config.vocab_size, config.hidden_size}, true);
    layout.block_flats.push_back({0});
    for (int64_t i = 0; i < config.num_layers; ++i) {
      AddLayer(config, absl::StrCat("model.layers.", i, "."), layout.flats.emplace_back());
      layout.block_flats.push_back({static_cast<int>(i) + 1});
    }
    FlatLayout& head = layout.flats.emplace_back();
    const int head_flat = static_cast<int>(config.num_layers) + 1;
    head.Add("model.norm.weight", {config.hidden_size}, false);
    if (config.tie_word_embeddings) {
      layout.block_flats.push_back({head_flat, 0});
    } else {
      head.Add("lm_head.weight", {config.vocab_size, config.hidden_size}, true);
      layout.block_flats.push_back({head_flat});
    }
    return layout;
  }

  std::vector<std::unique_ptr<Block>> MakeBlocks(const ModelConfig& config,
                                                 std::vector<std::unique_ptr<FlatParam>>& flats,
                                                 const Adapters& adapters,
                                                 const BlockOptions& options) const override {
    std::vector<std::unique_ptr<Block>> blocks;
    const at::TensorOptions memory =
        at::TensorOptions().dtype(flats[0]->Weight(0).scalar_type()).device(options.device);
    AttentionTables tables;
    tables.rope = ops::MakeRopeTables(config, options.max_length, options.device);
    tables.kind = ops::ChooseAttention(memory, config.head_dim);
    std::map<int64_t, at::Tensor> masks;  // by window
    blocks.push_back(std::make_unique<EmbeddingBlock>(*flats[0]));
    for (int64_t i = 0; i < config.num_layers; ++i) {
      tables.window = config.Window(i) < options.max_length ? config.Window(i) : 0;
      at::Tensor& mask = masks[tables.window];
      if (!mask.defined() && tables.kind == ops::AttentionKind::kPlain)
        mask = ops::MakeCausalMask(config, options.max_length, memory, tables.window);
      tables.mask = mask;
      blocks.push_back(
          std::make_unique<LayerBlock>(AttentionPart(config, i, *flats[i + 1], adapters, tables),
                                       MlpPart(config, i, *flats[i + 1], adapters)));
    }
    FlatParam& head = *flats.back();
    blocks.push_back(std::make_unique<HeadBlock>(
        config, Parameter(head, 0),
        config.tie_word_embeddings ? Parameter(*flats[0], 0) : Parameter(head, 1), adapters,
        options.z_loss));
    return blocks;
  }

  LayerElements SavedByLayer(const ModelConfig& config, ops::AttentionKind kind, int64_t length,
                             RecomputeMode mode) const override {
    return {AttentionPart::SavedElements(config, kind, length, mode),
            MlpPart::SavedElements(config, mode)};
  }
};

}  // namespace

const Family& FamilyFor(const ModelConfig&) {
  static const DenseFamily dense;
  return dense;
}

}  // namespace muster::trainer
