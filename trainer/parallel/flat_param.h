// FlatParam: parameters that are gathered, reduced and updated together. Flat, padded, sharded over
// the ranks that hold it: all, or where it is of slices (tensor parallelism) or of experts (expert
// parallelism) those that hold the same ones.
//
// Terms. A *segment* is one parameter inside the flat: name, shape, offset. The layout of segments
// doesn't depend on the number of ranks; only the padding at the end does. What a rank *owns*
// (masters, moments) is its *owned range*: the whole flat with ZeRO-0, else its part of the shard
// group's equal parts. Its *shard* is the part of the owned range that it alone saves and counts in
// norms: where several shard groups hold copies (hybrid sharding), each of them has another part.
// A *frozen* flat is not trained: there are no gradients, moments or masters. What a rank owns of a
// *quantised* one is bytes (quantised_weights.h); its weights are in a slot, whatever the stage.
//
// Which of a flat's memory is whole on every rank follows the stages of ZeRO (Rajbhandari et al.,
// arXiv 1910.02054): 1 shards masters and moments, 2 gradients as well, 3 weights as well. What is
// sharded is whole for a while only, in a *slot*: memory that flats take turns in. Weights are in
// theirs from StartUnshard to Reshard, the gradient of one micro-batch from OpenGradient to
// WaitReduce. A flat has the same slots all the time, so its views keep their addresses.
//
// A gradient begins with whatever stands in its memory. What is summed up in it (SumOf) is written
// first and added to from then on; where nothing came, and beside the segments, it is made zero
// before anyone reads it. So most of it is never made zero.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "trainer/ops/gradient_sum.h"
#include "trainer/parallel/groups.h"
#include "trainer/parallel/int8_moments.h"
#include "trainer/parallel/mesh.h"
#include "trainer/parallel/quantised_weights.h"
#include "trainer/parallel/slice.h"
#include "trainer/parallel/sum_tree.h"

namespace muster::trainer {

struct Segment {
  std::string name;  // Hugging Face's name of the parameter
  std::vector<int64_t> shape;
  bool weight_decay = true;
  int64_t offset = 0;  // in elements, in the flat
  int64_t numel = 0;
  // Where it is a part of the parameter: which, and the parameter's shape.
  std::optional<Slice> slice = {};
  std::vector<int64_t> sliced_shape = {};

  const std::vector<int64_t>& parameter_shape() const { return slice ? sliced_shape : shape; }
  SlicePlaces places() const { return {parameter_shape(), slice}; }
};

// Where segments stand. Value type.
class FlatLayout {
 public:
  // Adds a segment; `joined` puts it right behind the one before (so that both can be used as one
  // matrix), otherwise it starts at a multiple of 32 elements (128 bytes in fp32).
  void Add(std::string name, std::vector<int64_t> shape, bool weight_decay, bool joined = false);
  // The same of a slice of a parameter of `shape`.
  void AddSlice(std::string name, std::vector<int64_t> shape, const Slice& slice, bool weight_decay,
                bool joined = false);

  const std::vector<Segment>& segments() const { return segments_; }
  // Whether its segments are slices: all are, or none is.
  bool sliced() const { return !segments_.empty() && segments_[0].slice.has_value(); }
  Holding holding() const { return {sliced(), both_ends_, experts_}; }
  // Both ends of a pipeline hold it.
  void HoldAtBothEnds() { both_ends_ = true; }
  // It is of experts that ranks share out.
  void HoldByExperts() { experts_ = true; }
  // Its segments are matrices of linears alone, which may be quantised.
  void MarkLinears() { linears_ = true; }
  bool linears() const { return linears_; }
  // It is of a router's biases (model/router_bias.h): fp32, whole on every rank, not the
  // optimizer's.
  void MarkRouterBias() { router_bias_ = true; }
  bool router_bias() const { return router_bias_; }
  // Elements up to the end of the last segment.
  int64_t numel() const { return numel_; }
  // numel() padded so that `ranks` equal shards of a multiple of 32 elements make it up.
  int64_t PaddedNumel(int ranks) const;

 private:
  std::vector<Segment> segments_;
  int64_t numel_ = 0;
  bool both_ends_ = false, experts_ = false, linears_ = false, router_bias_ = false;
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
// Calls `body` for the runs of a piece that follow each other in the whole parameter, too: the
// first element inside the range, the first inside the parameter, and their number.
void ForEachRun(const FlatLayout& layout, const SegmentPiece& piece,
                const std::function<void(int64_t, int64_t, int64_t)>& body);

// How a flat is kept.
struct FlatOptions {
  int zero_stage = 0;
  at::ScalarType dtype = at::kFloat;  // of the weights that the model computes with
  bool frozen = false;
  Quantisation quantisation = Quantisation::kNone;  // of frozen weights, if they are of linears
  bool separate_gradients = false;  // a micro-batch's gradient is computed by itself and then
                                    // added; so it is from stage 2 on
  bool split_masters =
      false;  // dtype bf16: a master is its weight and 16 bits more, instead of fp32
  bool bf16_moments = false, int8_moments = false;
  bool bf16_gradients =
      false;  // what is summed up to; a micro-batch's own are fp32, and so are sums over ranks
  bool host_state = false;    // masters and moments in the host's memory
  bool host_weights = false;  // stage 3: the owned weights as well
  bool poison = false;        // what is left behind in a slot, and where a sum of gradients
                              // begins, becomes NaN
  bool sum_once = false;      // gradients are summed over ranks once a step, whatever the stage
  bool zero_first = false;  // a gradient begins with zeros: what runs by graphs can't tell whether
                            // it comes first
  // Of sums as trees (sum_tree.h): units that take parts, and sums under way; 0: sums are none.
  // Each micro-batch's gradient is summed over the ranks by itself, whatever the stage.
  int tree_units = 0, tree_levels = 0;
};
// Those of one flat where `options` are the model's: only linears are quantised; biases of routers
// are fp32 in one place; and where ranks of other stages hold it, they come to its sum at another
// time, so there is one a step, in fp32. (Of sums as trees, each stage has one, and they are added
// at the end.)
FlatOptions OptionsOf(const FlatLayout& layout, FlatOptions options);

// SplitMasters and JoinMasters (adamw_kernel.h) by ATen, for memory on any device: fp32 [n] into
// bf16 weights and, unless undefined, int16 `low_bits`; and back.
void SplitByAten(const at::Tensor& masters, const at::Tensor& weights, const at::Tensor& low_bits);
at::Tensor JoinByAten(const at::Tensor& weights, const at::Tensor& low_bits);

// Bytes that a flat takes on a rank, its slots aside, by what they hold; and which are in slots.
struct FlatMemory {
  int64_t weights = 0, gradients = 0, masters = 0,
          moments = 0;     // masters: 0 where the weights are the masters
  int64_t in_transit = 0;  // quantised weights of all ranks, from StartUnshard to WaitUnshard
  bool weights_in_slot = false, gradients_in_slot = false, reduces_slot = false;
  bool operator==(const FlatMemory&) const = default;
};
// The shard of one of the `ranks` ranks that hold a flat, in shard groups of `group`: elements
// [first, second).
std::pair<int64_t, int64_t> ShardRange(const FlatLayout& layout, int rank, int ranks, int group);
// As FlatParam will have it on one of `ranks` ranks that hold it, in shard groups of `group`.
FlatMemory MemoryOf(const FlatLayout& layout, int ranks, int group, const FlatOptions& options);

// Memory and collectives of one flat. Not thread-safe; all ranks call the collective ones in the
// same order.
class FlatParam {
 public:
  enum State { kMaster, kExpAvg, kExpAvgSq };

  // Where it needs slots they must be bound before Weight or Gradient are read.
  FlatParam(FlatLayout layout, World* world, const FlatOptions& options);

  const FlatLayout& layout() const { return layout_; }
  bool frozen() const { return options_.frozen; }
  // What this rank owns where the weights are quantised; else null.
  QuantisedWeights* quantised() { return quantised_ ? &*quantised_ : nullptr; }
  int64_t padded_numel() const { return params_.numel(); }
  // Weights (dtype) and gradient (fp32) of one segment, as views of fixed address; `count` joined
  // segments as one matrix whose rows are theirs together.
  at::Tensor Weight(int segment, int count = 1) const { return View(params_, segment, count); }
  // Undefined if frozen.
  at::Tensor Gradient(int segment, int count = 1) const {
    return frozen() ? at::Tensor() : View(grads_, segment, count);
  }
  // The same for those who compute it. Segments are always summed up in the same way, each by
  // itself or joined.
  ops::GradientSum SumOf(int segment, int count = 1);

  // The ranks that its weights are gathered from.
  const Group& gathered_from() const { return holders_.shard; }
  // Whether weights, or gradients, are in a slot; padded_numel() elements of dtype, or of fp32.
  bool weights_in_slot() const { return weights_in_slot_; }
  bool gradients_in_slot() const { return gradients_in_slot_; }
  // Whether each micro-batch's gradient must be summed over the ranks by itself.
  bool reduces_each_micro_batch() const { return reduces_slot_; }
  void BindWeights(void* memory) { Bind(params_, memory); }
  void BindGradient(void* memory) { Bind(grads_, memory); }

  // This rank's owned range of the flat.
  int64_t owned_begin() const { return owned_begin_; }
  int64_t owned_end() const { return owned_begin_ + owned_numel_; }
  // What is kept for it, as fp32 [owned]; may be a view. Of a trained flat.
  at::Tensor Owned(State which) const;
  // Takes over `values`, fp32 [owned]. kMaster makes the weights and marks them stale; of a frozen
  // flat it is the weights.
  void SetOwned(State which, const at::Tensor& values);
  // Where `which` is kept, if it is kept as fp32 [owned] on the host; undefined otherwise.
  at::Tensor InPlace(State which) const;
  // Memory to read `which` into before it is given to SetOwned, fp32 [owned] on the host, zero
  // where nothing was set: the place where it is kept, if it is kept so, which spares a copy.
  at::Tensor Landing(State which) const;
  // The sum of the step's gradients in the owned range; complete after WaitReduce.
  at::Tensor OwnedGradient() const {
    return sums_.numel() == owned_numel_ ? sums_ : sums_.narrow(0, owned_begin_, owned_numel_);
  }
  // The owned range as the optimizer sees it: fp32 masters, or undefined where they are split;
  // weights of dtype (the same memory as the masters where both are fp32 in one place); the split
  // masters' low bits (int16).
  const at::Tensor& masters() const { return masters_; }
  const at::Tensor& owned_weights() const { return owned_weights_; }
  const at::Tensor& low_bits() const { return low_bits_; }
  // The moments where they are in 8 bits; else null, and they are tensors.
  Int8Moments* int8_moments() { return int8_moments_ ? &*int8_moments_ : nullptr; }
  const at::Tensor& exp_avg() const { return exp_avg_; }
  const at::Tensor& exp_avg_sq() const { return exp_avg_sq_; }
  const FlatOptions& options() const { return options_; }

  // A rank's shard as elements of the flat: its share of a checkpoint, and what it counts in norms.
  int64_t shard_begin() const { return shard_begin_; }
  int64_t shard_numel() const { return shard_numel_; }
  // The shard's part of an owned tensor.
  at::Tensor OfShard(const at::Tensor& owned) const {
    return owned.narrow(0, shard_begin() - owned_begin_, shard_numel_);
  }
  at::Tensor ShardOf(State which) const { return OfShard(Owned(which)); }
  // Copies the elements of ShardOf(which) from `begin` on to `out`, fp32 on the host; needs room
  // for those alone. `wait` false, for pinned memory: from a GPU it may only be queued then.
  void CopyShard(State which, int64_t begin, const at::Tensor& out, bool wait = true) const;
  // Whether a copy of `which` comes from the host's memory, or by it anyway.
  bool KeptOnHost(State which) const;
  at::Tensor ShardGradient() const { return OfShard(OwnedGradient()); }

  // The owned weights changed: they must be gathered before they are used again.
  void MarkStale() { stale_ = true; }
  // Somebody updates the owned weights beside what comes next, and reads the step's gradients for
  // it. `wait` returns once what is queued from then on finds them made. StartUnshard calls it, and
  // begins the next step's gradients (FinishGradients does, of a flat that no block used); until
  // then they must not be begun, nor a checkpoint made of the state. Empty: nobody does.
  void SetUpdate(std::function<void()> wait) { update_ = std::move(wait); }
  bool being_updated() const { return static_cast<bool>(update_); }
  // Starts bringing the weights up to date with all ranks' owned ones; nothing to do when they are.
  void StartUnshard();
  void WaitUnshard();
  // Weights in a slot: another flat may take it.
  void Reshard();
  // Gathered weights in a slot get memory of their own for good, on the host, and another flat may
  // take the slot.
  void LeaveSlot();

  // A step begins.
  void BeginGradients();
  // Gradients in a slot: a micro-batch's begins.
  void OpenGradient();
  // Gradients in a slot that aren't summed over the ranks yet: adds this micro-batch's to the
  // step's.
  void AccumulateGradient();
  // Starts summing the step's gradient (of stage 2 and 3: the micro-batch's) over all ranks; after
  // WaitReduce at least the owned range of the step's holds it.
  void StartReduce();
  void WaitReduce();
  // All micro-batches of the step are summed over the ranks.
  void FinishGradients();

  // What it really takes.
  FlatMemory Memory() const;

  // Seconds that WaitUnshard and WaitReduce waited since the last call; on GPUs, that the stream
  // which computes stood still there.
  double TakeWaited();

 private:
  static void Bind(at::Tensor& tensor, void* memory);
  at::Tensor View(const at::Tensor& flat, int segment, int count) const;
  void MakeWeights(const at::Tensor& masters);
  void Wait(c10::intrusive_ptr<c10d::Work>& work);
  void BeginGradient();
  void CloseGradient();
  void AddToSums(const at::Tensor& gradient);
  void AwaitUpdate();
  void UnshardFromHost();
  void UnshardOwned();
  void StartWhole(const at::Tensor& all, const at::Tensor& owned);
  void StartUnshardQuantised();
  bool SumsWhole() const;
  const Group& whole() const { return holders_.whole; }
  const Group& shard() const { return holders_.shard; }
  const Group& replicate() const { return holders_.replicate; }
  void ReduceOverReplicas(const at::Tensor& owned);
  void StartTree();
  void WaitTree();
  void AddBothEnds();

  FlatLayout layout_;
  World* world_;
  const Holders holders_;
  const Group stage_;  // of those that hold it, this rank's stage's
  const FlatOptions options_;
  bool weights_in_slot_ = false, gradients_in_slot_ = false, reduces_slot_ = false;
  int64_t shard_begin_ = 0, shard_numel_ = 0, owned_begin_ = 0, owned_numel_ = 0;
  at::Tensor params_;  // [padded], dtype
  at::Tensor grads_;   // [padded], fp32
  // What is summed up in grads_, by its first element; and whether something came to it.
  struct SummedPart {
    int64_t numel = 0;
    std::shared_ptr<bool> begun;
  };
  std::map<int64_t, SummedPart> summed_parts_;
  bool open_ = false;  // a gradient has begun, and has not been closed
  at::Tensor
      sums_;  // grads_ itself; where they are in a slot: [padded], or [owned] from stage 2 on
  at::Tensor owned_weights_;  // [owned], dtype: a view of params_, or memory of their own where
                              // those are in a slot
  at::Tensor masters_, low_bits_;    // [owned], fp32 and int16
  at::Tensor exp_avg_, exp_avg_sq_;  // [owned], fp32 or bf16
  std::optional<Int8Moments> int8_moments_;
  at::Tensor staging_;  // owned weights on their way from the host
  std::optional<QuantisedWeights> quantised_;
  at::Tensor quantised_rows_;  // of all ranks, until the weights are made of them
  SumTree tree_;               // of owned gradients
  at::Tensor arrived_;         // [ranks, padded / ranks]: this rank's part of its stage's gradients
  std::function<void()> update_;  // waits for it
  bool stale_ = true, unsharded_ = false;
  bool summed_ = false;  // sums_ that aren't grads_: a micro-batch's came to them in this step
  double waited_s_ = 0;
  std::vector<std::pair<c10::Event, c10::Event>>
      stalls_;                        // on a GPU's stream, before and after it waited
  std::optional<c10::Event> copied_;  // staging_ is there (on its way from a GPU's host)
  std::vector<c10::intrusive_ptr<c10d::Work>> gathers_;  // under way
  c10::intrusive_ptr<c10d::Work> reduce_;
};

}  // namespace muster::trainer
