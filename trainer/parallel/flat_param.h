// FlatParam: parameters that are gathered, reduced and updated together. Flat, padded, sharded over its process group.
//
// Terms. A *segment* is one parameter inside the flat: name, shape, offset. The layout of segments doesn't depend on the
// number of ranks; only the padding at the end does. The flat's *shard* of rank r is its r-th of `size` equal parts. What
// a rank owns (masters, moments, its share of a checkpoint) is its *owned range*: the whole flat with ZeRO-0, the shard
// with ZeRO-1. A *frozen* flat is not trained: every rank has all of it, and there are no gradients, moments or masters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "trainer/parallel/groups.h"

namespace muster::trainer {

struct Segment {
  std::string name;            // Hugging Face's name of the parameter
  std::vector<int64_t> shape;
  bool weight_decay = true;
  int64_t offset = 0;          // in elements, in the flat
  int64_t numel = 0;
};

// Where segments stand. Value type.
class FlatLayout {
 public:
  // Adds a segment; `joined` puts it right behind the one before (so that both can be used as one matrix), otherwise it
  // starts at a multiple of 32 elements (128 bytes in fp32).
  void Add(std::string name, std::vector<int64_t> shape, bool weight_decay, bool joined = false);

  const std::vector<Segment>& segments() const { return segments_; }
  // Elements up to the end of the last segment.
  int64_t numel() const { return numel_; }
  // numel() padded so that `ranks` equal shards of a multiple of 32 elements make it up.
  int64_t PaddedNumel(int ranks) const;

 private:
  std::vector<Segment> segments_;
  int64_t numel_ = 0;
};

// A stretch of one segment inside a range of the flat.
struct SegmentPiece {
  int segment = 0;
  int64_t segment_begin = 0;  // first element, inside the segment
  int64_t range_begin = 0;    // the same element, inside the range
  int64_t numel = 0;
};
// The pieces of `layout`'s segments in flat elements [begin, end), in order.
std::vector<SegmentPiece> PiecesIn(const FlatLayout& layout, int64_t begin, int64_t end);

// Memory and collectives of one flat. Not thread-safe; all ranks call Gather and StartReduce in the same order.
class FlatParam {
 public:
  // dtype: of the weights that the model computes with. Masters, moments and gradients are fp32.
  FlatParam(FlatLayout layout, World* world, int zero_stage, at::ScalarType dtype, bool frozen = false);

  const FlatLayout& layout() const { return layout_; }
  bool frozen() const { return frozen_; }
  // Weights (dtype) and gradient (fp32) of one segment, as views of fixed address; `count` joined segments as one matrix
  // whose rows are theirs together.
  at::Tensor Weight(int segment, int count = 1) const { return View(params_, segment, count); }
  // Undefined if frozen.
  at::Tensor Gradient(int segment, int count = 1) const { return frozen_ ? at::Tensor() : View(grads_, segment, count); }

  // This rank's owned range of the flat and its tensors, all fp32 and of that length.
  int64_t owned_begin() const { return owned_begin_; }
  int64_t owned_end() const { return owned_begin_ + owned_numel_; }
  // Of a frozen flat: fp32 memory to load into, until FinishLoading.
  at::Tensor& masters();
  at::Tensor& exp_avg() { return exp_avg_; }
  at::Tensor& exp_avg_sq() { return exp_avg_sq_; }
  at::Tensor OwnedGradient() const { return grads_.narrow(0, owned_begin_, owned_numel_); }
  // This rank's shard as elements of the flat: its share of a checkpoint, and what it counts in norms.
  int64_t shard_begin() const { return shard_numel_ * world_->rank(); }
  int64_t shard_numel() const { return shard_numel_; }
  at::Tensor ShardGradient() const { return grads_.narrow(0, shard_begin(), shard_numel_); }
  // The shard's part of an owned tensor.
  at::Tensor OfShard(const at::Tensor& owned) const { return owned.narrow(0, shard_begin() - owned_begin_, shard_numel_); }

  // Frozen: takes over what masters() was filled with.
  void FinishLoading();

  // The masters changed: the weights must be gathered before they are used again.
  void MarkStale() { stale_ = true; }
  // Starts bringing the weights up to date with all ranks' masters; nothing to do when they are.
  void StartGather();
  void FinishGather();

  void ZeroGradients() { grads_.zero_(); }
  // Starts summing the gradients over all ranks; after FinishReduce at least the owned range holds the sum.
  void StartReduce();
  void FinishReduce();

 private:
  at::Tensor View(const at::Tensor& flat, int segment, int count) const;

  FlatLayout layout_;
  World* world_;
  int zero_stage_;
  bool frozen_;
  int64_t shard_numel_ = 0, owned_begin_ = 0, owned_numel_ = 0;
  at::Tensor params_;             // [padded], dtype
  at::Tensor grads_;              // [padded], fp32
  at::Tensor masters_, exp_avg_, exp_avg_sq_;  // [owned], fp32; masters_ is a view of params_ when that is fp32
  bool stale_ = true;
  c10::intrusive_ptr<c10d::Work> gather_, reduce_;
};

}  // namespace muster::trainer
