// The layers of a micro-batch as CUDA graphs: each layer's forward and backward is recorded once
// and from then on started whole, so that a step costs the host two launches a layer instead of
// dozens. Weights and gradients have fixed addresses (slots), layers take no decisions from
// tensors, and collectives stand between layers; so a layer's kernels are the same in every step of
// one shape.
//
// What is recorded: the first shape of micro-batch that is met after a step by plain launches
// (which loads kernels and libraries' buffers). Micro-batches of another shape, with more documents
// than were left room for, or with LoRA's dropout where no kernel draws it run by plain launches,
// as do embedding, head and evaluations. The numbers are the same bits either way, but for rounding
// where documents are packed: FlashAttention may cut its work by the longest document, which graphs
// take from the row.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "trainer/model/blocks.h"

namespace muster::trainer {

// Work of a device, recorded. The tests have one for the CPU.
class Graph {
 public:
  struct Stuck : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  using Work = std::function<std::vector<at::Tensor>()>;
  virtual ~Graph() = default;
  // Calls `work` once; what it starts on the device is recorded and not done. Returns its tensors:
  // each Replay fills them. Throws if something can't be recorded; nothing was done then. If it is
  // a Stuck, recording could not be ended either: nothing more can run.
  virtual std::vector<at::Tensor> Record(const Work& work) = 0;
  virtual void Replay() = 0;
};
using MakeGraph = std::function<std::unique_ptr<Graph>()>;

// Makes CUDA graphs that share one pool of memory: they must be replayed in the order in which they
// were recorded.
MakeGraph CudaGraphs(at::Device device);

// Not thread-safe. Micro-batches run one after another, each from the first layer's forward to the
// first layer's backward.
class BlockGraphs {
 public:
  // Layers are the blocks between the first and the last; they must outlive it.
  BlockGraphs(const std::vector<std::unique_ptr<Block>>& blocks, RecomputeMode recompute,
              MakeGraph make);

  // A step begins.
  void BeginStep() { ++steps_; }
  // A micro-batch begins; decides how its layers run.
  void Begin(const BatchMeta& meta);
  // Whether this micro-batch's `block` runs by graphs: then instead of the block's own calls the
  // two below, which recompute by themselves.
  bool Runs(int block) const { return way_ != kPlain && IsLayer(block); }
  // As Block's. What a layer hands to the next by graphs isn't returned once it is recorded.
  at::Tensor Forward(int block, const at::Tensor& x, Saved& saved);
  at::Tensor Backward(int block, const at::Tensor& dy, Saved& saved);
  // Micro-batches so far whose layers were replayed.
  int64_t replayed() const { return replayed_; }

 private:
  enum Way { kPlain, kRecord, kReplay };
  struct Layer {
    std::unique_ptr<Graph> forward, backward;
  };
  bool IsLayer(int block) const {
    return block > 0 && block + 1 < static_cast<int>(blocks_.size());
  }
  int last() const { return static_cast<int>(blocks_.size()) - 2; }
  bool Fits(const BatchMeta& meta) const;
  void Prepare(const BatchMeta& meta);
  void TakeOver(const BatchMeta& meta);

  const std::vector<std::unique_ptr<Block>>& blocks_;
  const RecomputeMode recompute_;
  const MakeGraph make_;
  std::vector<Layer> layers_;  // by block
  int steps_ = 0;
  int64_t replayed_ = 0;
  Way way_ = kPlain;
  bool recorded_ = false, off_ = false;
  BatchMeta
      meta_;  // the recorded shape, with memory of its own for what differs between micro-batches
  at::Tensor x_, dy_, y_, dx_;  // what goes into the first layer and the last one's backward, and
                                // comes out of the last and the first
};

}  // namespace muster::trainer
