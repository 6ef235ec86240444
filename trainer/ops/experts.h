// Routers and experts, in ATen's plain operations. Conventions as in ops.h. T tokens, E experts, of
// which each token meets k: T·k pairs, of token t those numbered t·k to t·k + k - 1.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "trainer/ops/gradient_sum.h"

namespace muster::trainer::ops {

// How a router chooses. With `sigmoid` as DeepSeek-V3 does (arXiv 2412.19437, section 2.1.2): an
// expert's score is by itself, not a share; a bias is added to it for the choice alone; and of
// `groups` equal groups of experts only the `top_groups` with the highest sums of their two best
// are chosen from.
struct RouterRule {
  int64_t per_token = 1;
  bool normalise = true;  // the weights of those that were chosen are divided by their sum
  bool sigmoid = false;   // else softmax, without a bias and groups
  int64_t groups = 1, top_groups = 1;
  double scale = 1;  // what weights are multiplied by in the end
};
// In fp32, whatever the type of x.
struct Routing {
  at::Tensor probabilities;  // [T, E]: softmax, or sigmoid, of x·wᵀ
  at::Tensor experts;        // [T, k] int64, those that were chosen
  at::Tensor weights;        // [T, k]: theirs
};
// x [T, d], w [E, d], bias [E] fp32 (undefined: none). `experts`: those that were chosen before;
// undefined: they are chosen.
Routing Route(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
              const RouterRule& rule, const at::Tensor& experts = {});
// Adds to d_w and returns d x. d_weights [T, k] fp32; d_probabilities [T, E] fp32: beside theirs,
// or undefined.
at::Tensor RouteBackward(const at::Tensor& d_weights, const at::Tensor& d_probabilities,
                         const at::Tensor& probabilities, const at::Tensor& experts,
                         const RouterRule& rule, const at::Tensor& x, const at::Tensor& w,
                         const GradientSum& d_w);

// The pairs in the order of their experts, those of one expert in that of their numbers: one
// product an expert then. Two experts' rows stand behind each other.
struct ExpertOrder {
  at::Tensor pairs, places;     // [T·k]: the pair at each place, and the place of each pair
  std::vector<int64_t> counts;  // pairs, by expert
};
ExpertOrder OrderByExpert(const at::Tensor& experts, int64_t count);
// The rows of x [T, …] for the pairs in that order: [T·k, …].
at::Tensor RowsOfPairs(const at::Tensor& x, const ExpertOrder& order);
// Sums of each token's rows, [T·k, d] → [T, d]: the other's backward.
at::Tensor SumOfPairs(const at::Tensor& rows, const ExpertOrder& order, int64_t k);

// One product a group of rows: of the first counts[0] rows with w[0], the next counts[1] with w[1],
// … x [R, in], w [G·out, in], the groups' weights under each other → [R, out]. A group without
// rows gets no gradient but zero.
at::Tensor GroupedLinear(const at::Tensor& x, const at::Tensor& w,
                         const std::vector<int64_t>& counts);
at::Tensor GroupedLinearBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w,
                                 const GradientSum& d_w, const std::vector<int64_t>& counts);

}  // namespace muster::trainer::ops
