// Experts in place of a layer's MLP: a router chooses some of them for each token, and their
// results are summed, each with its weight.
//
// Three ways for ranks to share that out. Alone, a rank has all tokens and all experts. Where they
// have slices of the model (tp), each has its part of the tokens and a slice of every expert: the
// router chooses for its part, and tokens and choices are gathered. Where they have experts of
// their own (ep), each has other tokens and some experts whole, and rows go to the ranks that have
// them. Experts that every token meets are an MLP beside that, shared out as one.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "trainer/model/parts.h"
#include "trainer/ops/experts.h"
#include "trainer/parallel/expert_group.h"

namespace muster::trainer {

class MoePart : public FeedForward {
 public:
  enum Slot {
    kMiddle,
    kNorm,
    kRstd,
    kProbabilities,  // of this rank's tokens
    kExperts,        // that they meet
    kBalance,        // what the auxiliary loss counted
    kAllExperts,     // of all tokens that this rank's experts are shown: kExperts, or gathered ones
    kTold,           // of rows that other ranks send: how many
    kInputs,         // the rows themselves; undefined where they are taken from kNorm
    kRowWeights,     // of the experts' rows
    kGateUp,
    kAct,
    kSharedGateUp,  // of the shared experts
    kSharedAct,
    kCount
  };
  // `config`: of this rank's slice.
  MoePart(const ModelConfig& config, int64_t layer, const FlatList& flats, const Adapters& adapters,
          const TensorGroup& tensor, const ExpertGroup& group);

  int slots() const override { return kCount; }
  bool Complete(const BatchMeta& meta, SavedPart saved) const override;
  void Recompute(at::Tensor attention, const at::Tensor& residual, const BatchMeta& meta,
                 SavedPart saved) const override;
  at::Tensor Forward(const BatchMeta& meta, SavedPart saved) const override;
  at::Tensor Backward(const at::Tensor& dy, const BatchMeta& meta, SavedPart saved) const override;
  // The products depend on what the router chose.
  bool Recordable() const override { return false; }
  bool IsKept(int slot, RecomputeMode mode) const override { return Keeps(slot, mode); }

  // What was chosen is always kept: a router that is asked again might choose otherwise.
  static bool Keeps(int slot, RecomputeMode mode);
  static int64_t SavedElements(const ModelConfig& config, RecomputeMode mode, int slices,
                               int groups);

 private:
  // How this micro-batch's rows stand by expert.
  struct Rows {
    ops::ExpertOrder order;
    ExpertGroup::Route route;
  };
  Rows RowsOf(SavedPart saved) const;
  // Whether every rank has a slice of each expert.
  bool Cut() const { return tensor_.size() > 1 && group_.size() == 1; }
  at::Tensor Gathered(const at::Tensor& part, const BatchMeta& meta) const {
    return Cut() ? tensor_.GatherTokens(part, meta.tokens()) : part;
  }
  at::Tensor Inputs(const BatchMeta& meta, const Rows& rows, SavedPart saved) const;
  at::Tensor Weighted(SavedPart saved) const;
  at::Tensor RouterBackward(const at::Tensor& d_weights, const BatchMeta& meta,
                            SavedPart saved) const;
  at::Tensor SharedBackward(const at::Tensor& dy, const BatchMeta& meta, SavedPart saved) const;

  const ExpertsConfig experts_;
  const ops::RouterRule rule_;
  const TensorGroup tensor_;
  const ExpertGroup group_;
  Norm norm_;
  Parameter router_;
  Parameter router_bias_;                    // its gradient: tokens by expert (router_bias.h)
  Projection shared_gate_up_, shared_down_;  // as an MLP's
  Parameter gate_up_, down_;  // this rank's experts' under each other, each gate's above its up's
};

}  // namespace muster::trainer
