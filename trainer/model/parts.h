// The two parts of a layer, attention and MLP (or experts in its place, moe.h). A part owns a
// stretch of what its layer saves and says of each tensor there how wide it is and whether it is
// kept, so that dropping, recomputing and the memory estimate agree.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <ATen/ATen.h>

#include "trainer/model/blocks.h"
#include "trainer/model/config.h"
#include "trainer/model/projection.h"
#include "trainer/ops/ops.h"

namespace muster::trainer {

// A part's stretch of its layer's saved tensors.
using SavedPart = std::span<at::Tensor>;

// Tables and masks that layers share.
struct AttentionTables {
  ops::RopeTables rope;
  ops::AttentionKind kind = ops::AttentionKind::kPlain;
  at::Tensor mask;     // kPlain
  int64_t window = 0;  // tokens that a token sees; 0: all before it
  ops::ScoreRule scores;
};

// Attention of norm(x), without the residual; normed once more where the model has such norms.
class AttentionPart {
 public:
  enum Slot {
    kX,
    kNorm,
    kRstd,
    kHeadQ,  // from here to kResult: attention's own
    kHeadK,
    kHeadV,
    kQ,  // q, k and their norms' statistics before Qwen3's norms
    kRstdQ,
    kK,
    kRstdK,
    kScores,  // probabilities; with FlashAttention the rows' log-sums
    kRandomState,
    kResult,
    kOut,  // before the norm behind it, and that norm's statistics
    kRstdOut,
    kCount
  };
  // `config`: of this rank's slice (SlicedConfig).
  AttentionPart(const ModelConfig& config, int64_t layer, const FlatList& flats,
                const Adapters& adapters, AttentionTables tables, const LinearOptions& options);

  // Computes what isn't in `saved`, where kX is, up to kResult.
  void Recompute(const BatchMeta& meta, SavedPart saved) const;
  // Of what is saved, the output projection's result, normed if it is to be; saves what that takes.
  at::Tensor Forward(const BatchMeta& meta, SavedPart saved) const;
  // d_out: of Forward's result and of the residual beside it. Returns d x; empties `saved`.
  at::Tensor Backward(const at::Tensor& d_out, const BatchMeta& meta, SavedPart saved) const;
  bool Recordable(const BatchMeta& meta) const;

  // Whether a slot is kept until the backward.
  static bool IsKept(int slot, RecomputeMode mode);
  // Elements a token of all that is kept, beside the norms' few, by one of `slices` ranks.
  static int64_t SavedElements(const ModelConfig& config, ops::AttentionKind kind, int64_t length,
                               RecomputeMode mode, int slices);
  // Of one slot; for kScores what a token's row of probabilities, or of log-sums, takes.
  static int64_t Width(int slot, const ModelConfig& config, ops::AttentionKind kind, int64_t length,
                       int slices);

 private:
  // Where the columns of k begin in those of q, k and v.
  int64_t KeyColumns() const { return config_.num_heads * config_.head_dim; }
  void Attend(const BatchMeta& meta, SavedPart saved) const;
  // Of rows that ranks share out: keys and values of all of them; and the backward.
  at::Tensor GatherKeys(const ops::Heads& heads) const;
  ops::Heads ContextBackward(const at::Tensor& d_out, const ops::Heads& heads,
                             const ops::FlashResult& result, const BatchMeta& meta) const;

  const ModelConfig config_;
  const bool alone_;  // no other rank is asked
  const TensorGroup context_;
  const AttentionTables tables_;
  Norm norm_, q_norm_, k_norm_, post_norm_;
  Projection qkv_, out_;  // q, k, v are one matrix
};

// What follows attention in a layer: of norm(middle), where middle is attention's result and the
// residual; and that, normed once more where the model has such norms, added.
class FeedForward {
 public:
  virtual ~FeedForward() = default;
  // How many tensors it saves.
  virtual int slots() const = 0;
  // Computes what of `saved` isn't there from what is; false: that takes attention's result.
  virtual bool Complete(const BatchMeta& meta, SavedPart saved) const = 0;
  // Computes all that isn't kept in any mode from attention's result, whose memory it may take, and
  // the residual.
  virtual void Recompute(at::Tensor attention, const at::Tensor& residual, const BatchMeta& meta,
                         SavedPart saved) const = 0;
  // Of what is saved, the layer's result; may save more.
  virtual at::Tensor Forward(const BatchMeta& meta, SavedPart saved) const = 0;
  // Returns d middle; empties `saved`.
  virtual at::Tensor Backward(const at::Tensor& dy, const BatchMeta& meta,
                              SavedPart saved) const = 0;
  virtual bool Recordable() const = 0;
  // Whether a slot is kept until the backward.
  virtual bool IsKept(int slot, RecomputeMode mode) const = 0;
};

class MlpPart : public FeedForward {
 public:
  enum Slot { kMiddle, kNorm, kRstd, kGateUp, kAct, kOut, kRstdOut, kCount };
  MlpPart(const ModelConfig& config, int64_t layer, const FlatList& flats, const Adapters& adapters,
          const LinearOptions& options);

  int slots() const override { return kCount; }
  bool Complete(const BatchMeta& meta, SavedPart saved) const override;
  void Recompute(at::Tensor attention, const at::Tensor& residual, const BatchMeta& meta,
                 SavedPart saved) const override;
  at::Tensor Forward(const BatchMeta& meta, SavedPart saved) const override;
  at::Tensor Backward(const at::Tensor& dy, const BatchMeta& meta, SavedPart saved) const override;
  bool Recordable() const override { return !gate_up_.Draws() && !down_.Draws(); }
  bool IsKept(int slot, RecomputeMode mode) const override { return Keeps(slot, mode); }

  static bool Keeps(int slot, RecomputeMode mode);
  static int64_t SavedElements(const ModelConfig& config, RecomputeMode mode, int slices);
  static int64_t Width(int slot, const ModelConfig& config, int slices);

 private:
  // Fills kOut and kRstdOut; returns what is normed.
  at::Tensor NormOut(const BatchMeta& meta, SavedPart saved) const;

  const Activation activation_;
  Norm norm_, post_norm_;
  Projection gate_up_, down_;  // gate and up are one matrix
};

}  // namespace muster::trainer
