// What a model is made of: blocks, such as the embedding, a layer, the head. Each has an explicit
// forward and backward and reads its weights from FlatParams; what the backward needs is kept by
// the caller, per block and micro-batch.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "trainer/model/config.h"
#include "trainer/ops/context_attention.h"
#include "trainer/ops/ops.h"
#include "trainer/parallel/flat_param.h"
#include "trainer/parallel/mesh.h"
#include "trainer/parallel/tensor_group.h"

namespace muster::trainer {

class RouterBalance;  // balance.h
struct PairBatch;     // pairs.h

// What a rank knows of a micro-batch whose rows ranks share out (context parallelism): its part of
// attention. BatchMeta then has this rank's tokens alone.
struct ContextMeta {
  std::vector<ops::ContextCall> calls;
  std::vector<uint8_t> counts;      // [T]; 0: the place only fills up
  std::vector<int64_t> row_tokens;  // of each row, on all ranks together
};

// What is known of a micro-batch apart from activations.
struct BatchMeta {
  int64_t batch = 0, length = 0;
  at::Tensor ids;      // [T]
  at::Tensor targets;  // [T]
  at::Tensor
      weights;  // [T] fp32, divided by the step's global number of target tokens; 0: doesn't count
  // Rows packed with documents: each token's position in its document, [T], and where the documents
  // stand. Tokens outside of all are padding. Undefined and empty: every row is one sequence.
  at::Tensor positions = {};
  std::vector<ops::DocumentSpan> documents = {};
  ops::FlashSequences sequences = {};  // the same, where FlashAttention may be used
  at::Tensor in_documents = {};        // [T] fp32: 0 for padding, and in rows that only fill up;
                                       // undefined: there is none
  bool loss_only = false;              // no backward follows
  // Each row's number in the data's order: what dropout depends on; and the same on a GPU.
  std::vector<int64_t> rows = {};
  at::Tensor row_numbers = {};
  // Each row's share of the step's rows; 0: it only fills up. What an auxiliary loss counts rows
  // by.
  std::vector<float> row_shares = {};
  // Null: rows are whole.
  std::shared_ptr<ContextMeta> context = {};
  // What routers tell of this micro-batch; null: there is no such loss.
  std::shared_ptr<RouterBalance> balance = {};
  // Which tokens count where experts' tokens are counted (router_bias.h); undefined: nobody counts.
  at::Tensor counted = {};
  // Null: the loss is of tokens; otherwise of pairs.
  std::shared_ptr<PairBatch> pairs = {};
  bool adapters_off = false;  // with loss_only: the frozen model alone

  int64_t tokens() const { return batch * length; }
};

// Tensors that a block's forward leaves for its backward.
using Saved = std::vector<at::Tensor>;

// What of them isn't kept until then, but computed once more: nothing; all but attention's inputs
// and results (its cost grows with the square of the length); all but the block's input; or what
// passes over memory give again, without a product: norms and activations. The results are the same
// bits.
enum class RecomputeMode { kNone, kPointwise, kKeepAttention, kFull };

// Stateless apart from tables. Called under at::NoGradGuard. What blocks hand on is [T, d], or
// where ranks have slices of the model this rank's part of that (tensor_group.h).
class Block {
 public:
  virtual ~Block() = default;
  // x: [T, d] of the block below (undefined for the first). Returns [T, d]; the last block returns
  // loss and z-loss ([2] double).
  virtual at::Tensor Forward(const at::Tensor& x, const BatchMeta& meta, Saved& saved) = 0;
  // Adds the weights' gradients to the flats, returns d x. `dy` is undefined for the last block.
  // Empties `saved`, each tensor when it isn't needed any more.
  virtual at::Tensor Backward(const at::Tensor& dy, const BatchMeta& meta, Saved& saved) = 0;
  // Drops from `saved` what Recompute, called before the backward, computes once more.
  virtual void Drop(Saved& saved, RecomputeMode mode) const {}
  virtual void Recompute(const BatchMeta& meta, Saved& saved) {}
  // Whether what it starts on a GPU depends on the micro-batch's shape alone, not on the host's
  // view of what is in it.
  virtual bool Recordable(const BatchMeta& meta) const { return false; }
};

// The model, or what a rank has of it: its flats' layouts (independent of ranks) and its blocks.
struct ModelLayout {
  std::vector<FlatLayout> flats;
  std::vector<std::vector<int>> block_flats;  // flats of each block
  // Of each block, its number in the whole model; and the first block of each stretch
  // (parallel/pipeline.h), then the number of blocks.
  std::vector<int> blocks, stretches;
};

// Which slice of the model a rank has, of how many.
struct TensorSlice {
  int index = 0, count = 1;
};

// What a rank has of the model: a slice of some stretches of it, and its share of their experts.
struct ModelPart {
  TensorSlice slice;
  int stage = 0, stages = 1;  // its place in a pipeline
  int chunks = 1;             // stretches
  TensorSlice experts = {};
  bool linears_apart = false;  // the matrices of the layers' linears are in flats of their own
};
ModelPart PartOf(const Mesh& mesh, int rank, int chunks);

// The blocks of each of the stages · chunks stretches of a model of `layers` layers: the first, and
// their number behind them. The embedding goes with the first layer, the head with the last.
std::vector<int> CutBlocks(const ModelConfig& config, int stretches);
// What of `whole`, the layout of the part's slice, the part has.
ModelLayout Restrict(const ModelConfig& config, ModelLayout whole, const ModelPart& part);

// LoRA's low-rank branch beside one linear: views of its flat.
struct Adapter {
  at::Tensor a, b;            // [rank, in], [out, rank]
  ops::GradientSum d_a, d_b;  // their gradients
};
// A model's, by module name ("model.layers.0.self_attn.q_proj"), and what they have in common.
struct Adapters {
  std::map<std::string, Adapter> modules;
  double scale = 1, dropout = 0;
  uint64_t seed = 0;
};

}  // namespace muster::trainer
