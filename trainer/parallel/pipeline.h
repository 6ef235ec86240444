// The orders in which the ranks of a pipeline take micro-batches, as data: a list of steps for each
// rank, without shapes, messages or torch. The rank at place s of p has `chunks` stretches of the
// model; stretch c is stage c·p + s, and what stage k makes of a micro-batch goes to stage k + 1,
// which the next rank has (after the last rank the first again).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::trainer {

enum class PipelineKind {
  // Huang et al., arXiv 1811.06965, section 2: all forwards, then all backwards. Keeps all
  // micro-batches.
  kGpipe,
  // Narayanan et al., arXiv 2006.09503, section 3.2 (PipeDream-Flush): after p - s forwards one
  // backward and one forward in turn. Keeps at most p - s micro-batches.
  k1F1B,
  // Narayanan et al., arXiv 2104.04473, section 2.2: several stretches a rank, in groups of p
  // micro-batches. The idle time is 1/chunks of 1F1B's, and more is sent and kept.
  kInterleaved,
  // Qi et al., arXiv 2401.10241, section 2.1 (ZB-H1): as 1F1B, with the gradients of weights as
  // steps of their own, of which rank s puts off s. Keeps at most p micro-batches on each rank.
  kZeroBubble,
};

// "gpipe", "1f1b", "interleaved", "zero_bubble"
std::string_view PipelineName(PipelineKind kind);
std::optional<PipelineKind> PipelineNamed(std::string_view name);

struct PipelineStep {
  enum Kind {
    kForward,
    kBackward,  // of kZeroBubble: the gradient of the input alone
    kWeights,   // of kZeroBubble: the gradients of the weights
  };
  Kind kind;
  int chunk = 0, micro = 0;
  bool operator==(const PipelineStep&) const = default;
};

// What the rank at place `rank` of `ranks` does with `micros` micro-batches. `chunks`: 1 but for
// kInterleaved. A chunk's backwards, and its steps for weights, run in the order of the
// micro-batches, so sums of gradients have the same bits in every order.
std::vector<PipelineStep> PipelineOrder(PipelineKind kind, int rank, int ranks, int chunks,
                                        int micros);

// The share of a step's time in which a rank waits, where forward, backward and weights' gradients
// take as long as each other and messages no time.
double BubbleShare(PipelineKind kind, int ranks, int chunks, int micros);

// Cuts layers of these costs into `stages` stretches of at least one layer each, whose most costly
// is as cheap as can be and whose others are as even as that allows; the last has `end_cost`
// beside its layers. Returns each stretch's first layer, and their number behind them. There must
// be as many layers as stages.
std::vector<int> CutLayers(const std::vector<int64_t>& costs, int64_t end_cost, int stages);

}  // namespace muster::trainer
