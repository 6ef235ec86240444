#include "trainer/model/family.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/model/block_layout.h"
#include "trainer/model/experts_config.h"
#include "trainer/model/moe.h"
#include "trainer/model/pairs.h"
#include "trainer/model/parts.h"
#include "trainer/model/projection.h"
#include "trainer/model/reward.h"
#include "trainer/model/vocab.h"
#include "trainer/parallel/pipeline.h"

namespace muster::trainer {
namespace {

// A table of rows for all tokens of the vocabulary, or for this rank's.
struct VocabTable {
  Parameter parameter;  // [V, d], or a slice of that
  VocabSlice slice;

  VocabTable(FlatParam& flat, int segment) : parameter(flat, segment) {
    const Segment& own = flat.layout().segments()[segment];
    slice = {0, own.shape[0], own.parameter_shape()[0]};
    if (own.slice) slice.begin = own.slice->begin, slice.end = own.slice->end;
  }
};

class EmbeddingBlock : public Block {
 public:
  EmbeddingBlock(const ModelConfig& config, VocabTable table, const TensorGroup& tensor)
      : table_(std::move(table)), tensor_(tensor) {
    if (config.scaled_embeddings)
      scale_ = at::full({}, std::sqrt(static_cast<double>(config.hidden_size)), at::kFloat)
                   .to(table_.parameter.w.scalar_type())
                   .item<double>();
  }
  at::Tensor Forward(const at::Tensor&, const BatchMeta& meta, Saved&) override {
    const at::Tensor rows =
        tensor_.size() == 1 ? ops::Embedding(meta.ids, table_.parameter.w)
                            : VocabEmbedding(meta.ids, table_.parameter.w, table_.slice, tensor_);
    return scale_ == 1 ? rows : rows.mul_(scale_);
  }
  at::Tensor Backward(const at::Tensor& dy, const BatchMeta& meta, Saved&) override {
    const at::Tensor d_rows = scale_ == 1 ? dy : dy * scale_;
    if (tensor_.size() == 1)
      ops::EmbeddingBackward(d_rows, meta.ids, table_.parameter.d);
    else
      VocabEmbeddingBackward(d_rows, meta.ids, table_.parameter.d, table_.slice, tensor_);
    return {};
  }

 private:
  const VocabTable table_;
  const TensorGroup tensor_;
  double scale_ = 1;  // a number of the weights' type
};

// x + attention(norm(x)), then + mlp(norm(that)).
class LayerBlock : public Block {
 public:
  LayerBlock(AttentionPart attention, std::unique_ptr<const FeedForward> mlp)
      : attention_(std::move(attention)), mlp_(std::move(mlp)) {}

  at::Tensor Forward(const at::Tensor& x, const BatchMeta& meta, Saved& saved) override {
    saved.assign(AttentionPart::kCount + mlp_->slots(), at::Tensor());
    saved[AttentionPart::kX] = x;
    Recompute(meta, saved);
    return mlp_->Forward(meta, OfMlp(saved));
  }

  at::Tensor Backward(const at::Tensor& dy, const BatchMeta& meta, Saved& saved) override {
    const at::Tensor d_middle = mlp_->Backward(dy, meta, OfMlp(saved));
    return attention_.Backward(d_middle, meta, OfAttention(saved));
  }

  void Drop(Saved& saved, RecomputeMode mode) const override {
    for (int slot = 0; slot < AttentionPart::kCount; ++slot) {
      if (!AttentionPart::IsKept(slot, mode)) OfAttention(saved)[slot] = at::Tensor();
    }
    for (int slot = 0; slot < mlp_->slots(); ++slot) {
      if (!mlp_->IsKept(slot, mode)) OfMlp(saved)[slot] = at::Tensor();
    }
  }

  // Computes whatever isn't there.
  void Recompute(const BatchMeta& meta, Saved& saved) override {
    attention_.Recompute(meta, OfAttention(saved));
    if (mlp_->Complete(meta, OfMlp(saved))) return;
    mlp_->Recompute(attention_.Forward(meta, OfAttention(saved)), saved[AttentionPart::kX], meta,
                    OfMlp(saved));
  }

  bool Recordable(const BatchMeta& meta) const override {
    return attention_.Recordable(meta) && mlp_->Recordable();
  }

 private:
  static SavedPart OfAttention(Saved& saved) {
    return SavedPart(saved).first(AttentionPart::kCount);
  }
  static SavedPart OfMlp(Saved& saved) { return SavedPart(saved).subspan(AttentionPart::kCount); }

  const AttentionPart attention_;
  const std::unique_ptr<const FeedForward> mlp_;
};

// Final norm, output projection and loss. The gradients of the projection and its adapter come out
// of the forward (LinearCrossEntropy).
class HeadBlock : public Block {
 public:
  HeadBlock(const ModelConfig& config, Parameter norm, const VocabTable& projection,
            const Adapters& adapters, const BlockOptions& options)
      : softcap_(config.final_softcap),
        norm_(config, std::move(norm)),
        projection_(projection.parameter),
        slice_(projection.slice),
        tensor_(options.tensor),
        scale_(adapters.scale),
        dropout_(adapters),
        z_loss_(options.z_loss),
        dpo_(options.dpo) {
    if (const auto found = adapters.modules.find(kModule); found != adapters.modules.end())
      adapter_ = found->second;
  }

  at::Tensor Forward(const at::Tensor& x, const BatchMeta& meta, Saved& saved) override {
    const ops::RmsNormResult norm = norm_.Forward(x);
    const at::Tensor all = tensor_.GatherTokens(norm.y, meta.tokens());
    ops::LossResult loss = meta.pairs ? OfPairs(all, meta) : Of(all, meta, AskOf(meta));
    if (!meta.loss_only) loss.dx = tensor_.SumScatterTokens(loss.dx);
    saved = {x, norm.rstd, loss.dx};
    return loss.loss;
  }
  at::Tensor Backward(const at::Tensor&, const BatchMeta&, Saved& saved) override {
    const Saved own = std::exchange(saved, {});
    return norm_.Backward(own[2], own[0], own[1]);
  }

 private:
  static constexpr char kModule[] = "lm_head";

  // What is asked of the projection: which weights, whether gradients, and each token's loss.
  struct Ask {
    at::Tensor weights;
    bool loss_only = false;
    at::Tensor token_losses = {};
  };
  static Ask AskOf(const BatchMeta& meta) { return {meta.weights, meta.loss_only}; }

  ops::LossResult Of(const at::Tensor& x, const BatchMeta& meta, const Ask& ask) const {
    return adapter_ && !meta.adapters_off ? Adapted(x, meta, ask) : Loss(x, meta, ask);
  }

  ops::LossResult Loss(const at::Tensor& x, const BatchMeta& meta, const Ask& ask,
                       const ops::LossBranch* branch = nullptr) const {
    return tensor_.size() == 1
               ? ops::LinearCrossEntropy(x, projection_.w, meta.targets, ask.weights, projection_.d,
                                         ask.loss_only, z_loss_, branch, ask.token_losses, softcap_)
               : VocabCrossEntropy(x, projection_.w, meta.targets, ask.weights, projection_.d,
                                   slice_, tensor_, ask.loss_only, z_loss_, branch,
                                   ask.token_losses, softcap_);
  }

  ops::LossResult Adapted(const at::Tensor& x, const BatchMeta& meta, const Ask& ask) const {
    const Dropout::Mask mask = dropout_.For(kModule, x, meta);
    const at::Tensor kept = mask.Apply(x);
    ops::LossBranch branch{ops::Linear(kept, adapter_->a) * scale_, adapter_->b, {}, adapter_->d_b};
    if (!ask.loss_only) branch.d_inner = at::empty_like(branch.inner);
    ops::LossResult loss = Loss(x, meta, ask, &branch);
    if (ask.loss_only) return loss;
    loss.dx.add_(
        mask.Apply(ops::LinearBackward(branch.d_inner * scale_, kept, adapter_->a, adapter_->d_a)));
    return loss;
  }

  // A pair's derivative needs its log-probabilities first, so logits are computed twice: the second
  // time as a cross-entropy whose tokens have the weights that make its gradient the pairs'.
  ops::LossResult OfPairs(const at::Tensor& x, const BatchMeta& meta) const {
    PairBatch& pairs = *meta.pairs;
    const at::Tensor losses = at::empty({x.size(0)}, x.options().dtype(at::kDouble));
    Of(x, meta, {pairs.chosen + pairs.rejected, /*loss_only=*/true, losses});
    pairs.policy = SumLogps(pairs, -losses);
    ops::LossResult result{at::zeros({2}, losses.options())};
    if (!pairs.reference.chosen.defined()) return result;  // only asked for log-probabilities
    const PairCosts costs = CostsOf(pairs, dpo_);
    if (!meta.loss_only)
      result.dx = Of(x, meta, {TokenWeights(pairs, costs), /*loss_only=*/false}).dx;
    if (tensor_.rank() == 0) {  // all ranks of a slice know the same
      result.loss[0] = (costs.costs * pairs.shares).sum();
      pairs.means = MeansOf(pairs, dpo_.beta);
    }
    return result;
  }

  const double softcap_;
  const Norm norm_;
  Parameter projection_;
  const VocabSlice slice_;
  const TensorGroup tensor_;
  std::optional<Adapter> adapter_;
  const double scale_;
  const Dropout dropout_;
  const double z_loss_;
  const DpoConfig dpo_;
};

// Adds the segments of a layer's router and experts: each expert's gate above its up, those of all
// under each other, so that they are one matrix; and so the downs.
void AddExperts(const ModelConfig& config, int64_t layer, const TensorSlice& share,
                BlockLayout& block) {
  const int64_t d = config.hidden_size, f = config.experts.width,
                own = config.experts.count / share.count;
  block.Keep(RouterName(config, layer), {config.experts.count, d}, /*weight_decay=*/true);
  bool joined = false;
  const auto add = [&](int64_t expert, ExpertMatrix matrix, int dim) {
    const std::vector<int64_t> shape =
        dim == 0 ? std::vector<int64_t>{f, d} : std::vector<int64_t>{d, f};
    const std::string name = ExpertName(config, layer, share.index * own + expert, matrix);
    if (share.count > 1)
      block.Whole(name, shape, joined);
    else
      block.Cut(name, shape, dim, f, true, joined);
    joined = true;
  };
  for (int64_t expert = 0; expert < own; ++expert) {
    add(expert, ExpertMatrix::kGate, 0);
    add(expert, ExpertMatrix::kUp, 0);
  }
  joined = false;
  for (int64_t expert = 0; expert < own; ++expert) add(expert, ExpertMatrix::kDown, 1);
  if (config.experts.sigmoid)
    block.KeepRouterBias(RouterBiasName(config, layer), config.experts.count);
  if (config.experts.shared == 0) return;
  const int64_t all = config.experts.shared_width;
  const auto name = [&](const char* linear) {
    return SharedExpertsName(config, layer, linear) + ".weight";
  };
  block.Cut(name("gate_proj"), {all, d}, 0, all, true);
  block.Cut(name("up_proj"), {all, d}, 0, all, true, /*joined=*/true);
  block.Cut(name("down_proj"), {d, all}, 1, all, true);
}

// Adds a layer's segments, in the order in which its parts use them.
void AddLayer(const ModelConfig& config, int64_t layer, const TensorSlice& share,
              BlockLayout& block) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const bool sparse = config.HasExperts(layer);
  const int64_t d = config.hidden_size, f = config.intermediate_size;
  const int64_t h = config.num_heads, q = h * config.head_dim;
  const int64_t hkv = config.num_kv_heads, kv = hkv * config.head_dim;
  block.Keep(prefix + "input_layernorm.weight", {d});
  block.Cut(prefix + "self_attn.q_proj.weight", {q, d}, 0, h, true);
  block.Cut(prefix + "self_attn.k_proj.weight", {kv, d}, 0, hkv, true, /*joined=*/true);
  block.Cut(prefix + "self_attn.v_proj.weight", {kv, d}, 0, hkv, true, /*joined=*/true);
  block.Cut(prefix + "self_attn.o_proj.weight", {d, q}, 1, h, true);
  block.Keep(prefix + "post_attention_layernorm.weight", {d});
  if (config.post_norms) block.Keep(prefix + "pre_feedforward_layernorm.weight", {d});
  if (sparse) {
    AddExperts(config, layer, share, block);
  } else {
    block.Cut(prefix + "mlp.gate_proj.weight", {f, d}, 0, f, true);
    block.Cut(prefix + "mlp.up_proj.weight", {f, d}, 0, f, true, /*joined=*/true);
    block.Cut(prefix + "mlp.down_proj.weight", {d, f}, 1, f, true);
  }
  if (config.post_norms) block.Keep(prefix + "post_feedforward_layernorm.weight", {d});
  if (config.qkv_bias) {
    block.Cut(prefix + "self_attn.q_proj.bias", {q}, 0, h, false);
    block.Cut(prefix + "self_attn.k_proj.bias", {kv}, 0, hkv, false, /*joined=*/true);
    block.Cut(prefix + "self_attn.v_proj.bias", {kv}, 0, hkv, false, /*joined=*/true);
  }
  if (config.out_bias) block.Keep(prefix + "self_attn.o_proj.bias", {d});
  if (config.qk_norm) {
    block.Keep(prefix + "self_attn.q_norm.weight", {config.head_dim});
    block.Keep(prefix + "self_attn.k_norm.weight", {config.head_dim});
  }
  if (config.mlp_bias && !sparse) {
    block.Cut(prefix + "mlp.gate_proj.bias", {f}, 0, f, false);
    block.Cut(prefix + "mlp.up_proj.bias", {f}, 0, f, false, /*joined=*/true);
    block.Keep(prefix + "mlp.down_proj.bias", {d});
  }
}

// Llama and its like: layers of one attention and one MLP or experts, an embedding that the head
// may be tied to.
class LlamaLikeFamily : public Family {
 public:
  ModelLayout Layout(const ModelConfig& config, const ModelPart& part) const override {
    const TensorSlice& slice = part.slice;
    const std::vector<int64_t> table = {config.vocab_size, config.hidden_size};
    ModelLayout layout;
    BlockLayout(slice, layout).Cut("model.embed_tokens.weight", table, 0, config.vocab_size, true);
    for (int64_t i = 0; i < config.num_layers; ++i) {
      BlockLayout block(slice, layout, part.linears_apart);
      AddLayer(config, i, part.experts, block);
    }
    BlockLayout head(slice, layout);
    head.Keep("model.norm.weight", {config.hidden_size});
    if (config.score)
      head.Keep(kScoreName, {1, config.hidden_size}, /*weight_decay=*/true);
    else if (config.tie_word_embeddings)
      head.Share(0);
    else
      head.Cut("lm_head.weight", table, 0, config.vocab_size, true);
    return layout;
  }

  std::vector<std::unique_ptr<Block>> MakeBlocks(
      const ModelConfig& config, const ModelLayout& layout,
      const std::vector<std::unique_ptr<FlatParam>>& flats, const Adapters& adapters,
      const BlockOptions& options) const override {
    const ModelConfig own = SlicedConfig(config, {options.tensor.rank(), options.tensor.size()},
                                         options.experts.size());
    std::vector<std::unique_ptr<Block>> blocks;
    const at::TensorOptions memory =
        at::TensorOptions().dtype(flats[0]->Weight(0).scalar_type()).device(options.device);
    AttentionTables tables;
    const auto rope = [&](bool local) {
      return ops::MakeRopeTables(config, options.max_length, options.device, local);
    };
    const bool two = config.local_rope_theta > 0;
    const ops::RopeTables all = rope(false), local = two ? rope(true) : all;
    tables.kind = ops::ChooseAttention(memory, config);
    tables.scores.softcap = config.attention_softcap;
    if (config.query_pre_attn_scalar > 0)
      tables.scores.scale = 1 / std::sqrt(static_cast<double>(config.query_pre_attn_scalar));
    std::map<int64_t, at::Tensor> masks;  // by window
    for (const int number : layout.blocks) {
      FlatList list;
      for (const int flat : layout.block_flats[blocks.size()]) list.push_back(flats[flat].get());
      const int64_t layer = number - 1;
      if (layer < 0) {
        blocks.push_back(
            std::make_unique<EmbeddingBlock>(config, VocabTable(*list[0], 0), options.tensor));
      } else if (layer < config.num_layers) {
        tables.rope = config.Window(layer) > 0 ? local : all;
        tables.window = config.Window(layer) < options.max_length ? config.Window(layer) : 0;
        at::Tensor& mask = masks[tables.window];
        if (!mask.defined() && tables.kind == ops::AttentionKind::kPlain)
          mask = ops::MakeCausalMask(config, options.max_length, memory, tables.window);
        tables.mask = mask;
        blocks.push_back(std::make_unique<LayerBlock>(
            AttentionPart(own, layer, list, adapters, tables, LinearsOf(options)),
            MakeFeedForward(own, layer, list, adapters, options)));
      } else if (config.score) {
        blocks.push_back(
            MakeRewardHead(config, Parameter(*list[0], 0), Parameter(*list[0], 1), options));
      } else {
        // The projection is the last of the norm's flat, or has one: of slices, or the embedding's.
        blocks.push_back(std::make_unique<HeadBlock>(
            config, Parameter(*list[0], 0),
            list.size() == 1 ? VocabTable(*list[0], 1) : VocabTable(*list[1], 0), adapters,
            options));
      }
    }
    return blocks;
  }

  LayerElements SavedByLayer(const ModelConfig& config, int64_t layer, ops::AttentionKind kind,
                             int64_t length, RecomputeMode mode, int slices,
                             int groups) const override {
    const ModelConfig own = SlicedConfig(config, {slices - 1, slices}, groups);  // none is larger
    return {AttentionPart::SavedElements(own, kind, length, mode, slices),
            config.HasExperts(layer) ? MoePart::SavedElements(own, mode, slices, groups)
                                     : MlpPart::SavedElements(own, mode, slices)};
  }

 private:
  static LinearOptions LinearsOf(const BlockOptions& options) {
    return {options.tensor, options.context, options.fp8};
  }
  static std::unique_ptr<const FeedForward> MakeFeedForward(const ModelConfig& config,
                                                            int64_t layer, const FlatList& flats,
                                                            const Adapters& adapters,
                                                            const BlockOptions& options) {
    if (config.HasExperts(layer))
      return std::make_unique<MoePart>(config, layer, flats, adapters, options.tensor,
                                       options.experts);
    return std::make_unique<MlpPart>(config, layer, flats, adapters, LinearsOf(options));
  }
};

}  // namespace

ModelPart PartOf(const Mesh& mesh, int rank, int chunks) {
  return {{mesh.TpIndex(rank), mesh.tp()},
          mesh.PpIndex(rank),
          mesh.pp(),
          chunks,
          {mesh.EpIndex(rank), mesh.ep()}};
}

std::vector<int> CutBlocks(const ModelConfig& config, int stretches) {
  // Weights that a token meets; attention's products are alike in all layers.
  const int64_t d = config.hidden_size, q = config.num_heads * config.head_dim,
                kv = config.num_kv_heads * config.head_dim;
  const ExpertsConfig& experts = config.experts;
  std::vector<int64_t> costs;
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    costs.push_back(2 * d * (q + kv) +
                    (config.HasExperts(layer)
                         ? d * experts.count +
                               3 * d * (experts.width * experts.per_token + experts.shared_width)
                         : 3 * d * config.intermediate_size));
  // In 64ths of a layer, whose squares don't overflow.
  constexpr int64_t kLayer = 64;
  const int64_t most = *std::max_element(costs.begin(), costs.end());
  const int64_t head = kLayer * d * (config.score ? 1 : config.vocab_size) / most;
  for (int64_t& cost : costs) cost = std::max<int64_t>(1, kLayer * cost / most);
  std::vector<int> first = CutLayers(costs, head, stretches);
  for (size_t i = 1; i < first.size(); ++i) first[i] += i + 1 == first.size() ? 2 : 1;
  return first;
}

ModelLayout Restrict(const ModelConfig& config, ModelLayout whole, const ModelPart& part) {
  const int all = static_cast<int>(whole.block_flats.size());
  const std::vector<int> cuts =
      part.stages == 1 ? std::vector<int>{0, all} : CutBlocks(config, part.stages * part.chunks);
  ModelLayout own;
  std::vector<int> numbers(whole.flats.size(), -1), uses(whole.flats.size(), 0);
  for (const std::vector<int>& flats : whole.block_flats) {
    for (const int flat : flats) ++uses[flat];
  }
  for (size_t stretch = static_cast<size_t>(part.stage); stretch + 1 < cuts.size();
       stretch += static_cast<size_t>(part.stages)) {
    own.stretches.push_back(static_cast<int>(own.blocks.size()));
    for (int block = cuts[stretch]; block < cuts[stretch + 1]; ++block) {
      own.blocks.push_back(block);
      own.block_flats.emplace_back();
      for (const int flat : whole.block_flats[block]) {
        --uses[flat];
        if (numbers[flat] < 0) {
          numbers[flat] = static_cast<int>(own.flats.size());
          own.flats.push_back(std::move(whole.flats[flat]));
        }
        own.block_flats.back().push_back(numbers[flat]);
      }
    }
  }
  own.stretches.push_back(static_cast<int>(own.blocks.size()));
  for (size_t flat = 0; flat < numbers.size(); ++flat) {
    if (numbers[flat] >= 0 && uses[flat] > 0) own.flats[numbers[flat]].HoldAtBothEnds();
  }
  return own;
}

ModelConfig SlicedConfig(const ModelConfig& config, const TensorSlice& slice, int groups) {
  const auto part = [&](int64_t count) {
    const auto [begin, end] = PartOf(count, slice.index, slice.count);
    return end - begin;
  };
  ModelConfig own = config;
  own.num_heads = part(config.num_heads);
  own.num_kv_heads = part(config.num_kv_heads);
  own.intermediate_size = part(config.intermediate_size);
  if (groups == 1) own.experts.width = part(config.experts.width);
  own.experts.shared_width = part(config.experts.shared_width);
  return own;
}

const Family& FamilyFor(const ModelConfig&) {
  static const LlamaLikeFamily like;
  return like;
}

}  // namespace muster::trainer
