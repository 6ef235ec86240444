#include "trainer/ops/experts.h"

#include <limits>
#include <tuple>
#include <utility>

#include "trainer/ops/ops.h"

namespace muster::trainer::ops {
namespace {

// Divides rows by their sums, which it returns. Sigmoids may all be next to nothing, so there
// transformers adds a little.
at::Tensor Normalise(const at::Tensor& weights, const RouterRule& rule) {
  at::Tensor sums = weights.sum({1}, /*keepdim=*/true);
  if (rule.sigmoid) sums.add_(1e-20);
  weights.div_(sums);
  return sums;
}

// What experts are chosen by: [T, E] of their scores.
at::Tensor ScoresForChoice(const at::Tensor& scores, const at::Tensor& bias,
                           const RouterRule& rule) {
  at::Tensor choice = bias.defined() ? scores + bias : scores;
  if (rule.groups == 1) return choice;
  constexpr int64_t kBest = 2;  // that a group is judged by
  const int64_t tokens = scores.size(0), count = scores.size(1);
  choice = choice.view({tokens, rule.groups, count / rule.groups});
  const at::Tensor by_group = std::get<0>(choice.topk(kBest, /*dim=*/2)).sum({2});
  const at::Tensor out = at::ones_like(by_group, at::kBool)
                             .scatter_(1, std::get<1>(by_group.topk(rule.top_groups, /*dim=*/1)),
                                       /*value=*/0);
  return choice.masked_fill(out.unsqueeze(2), -std::numeric_limits<float>::infinity())
      .view({tokens, count});
}

// Calls `body` with the number, the first row and the rows of each group that has any.
template <class Body>
void ForEachGroup(const std::vector<int64_t>& counts, const Body& body) {
  int64_t begin = 0;
  for (size_t group = 0; group < counts.size(); ++group) {
    if (counts[group] > 0) body(static_cast<int64_t>(group), begin, counts[group]);
    begin += counts[group];
  }
}

// Adds each group's product to its part of d_w.
void AddGroups(const at::Tensor& dy, const at::Tensor& x, const GradientSum& d_w,
               const std::vector<int64_t>& counts) {
  const std::vector<GradientSum> parts = d_w.Split(static_cast<int64_t>(counts.size()));
  ForEachGroup(counts, [&](int64_t group, int64_t begin, int64_t rows) {
    AddWeightGradient(dy.narrow(0, begin, rows), x.narrow(0, begin, rows), parts[group]);
  });
  for (const GradientSum& part : parts) part.ToAdd();  // zero, of a group without rows
}

}  // namespace

Routing Route(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
              const RouterRule& rule, const at::Tensor& experts) {
  Routing routing;
  const at::Tensor logits = at::mm(x.to(at::kFloat), w.to(at::kFloat).t());
  routing.probabilities = rule.sigmoid ? at::sigmoid(logits) : at::softmax(logits, /*dim=*/1);
  routing.experts = experts.defined()
                        ? experts
                        : std::get<1>(at::topk(ScoresForChoice(routing.probabilities, bias, rule),
                                               rule.per_token, /*dim=*/1));
  routing.weights = routing.probabilities.gather(1, routing.experts);
  if (rule.normalise) Normalise(routing.weights, rule);
  if (rule.scale != 1) routing.weights.mul_(rule.scale);
  return routing;
}

at::Tensor RouteBackward(const at::Tensor& d_weights, const at::Tensor& d_probabilities,
                         const at::Tensor& probabilities, const at::Tensor& experts,
                         const RouterRule& rule, const at::Tensor& x, const at::Tensor& w,
                         const GradientSum& d_w) {
  const at::Tensor d_shares = rule.scale == 1 ? d_weights : d_weights * rule.scale;
  at::Tensor d_chosen = d_shares;
  if (rule.normalise) {
    const at::Tensor shares = probabilities.gather(1, experts), sums = Normalise(shares, rule);
    d_chosen = (d_shares - (d_shares * shares).sum({1}, /*keepdim=*/true)) / sums;
  }
  const at::Tensor d_all =
      d_probabilities.defined() ? d_probabilities.clone() : at::zeros_like(probabilities);
  d_all.scatter_add_(1, experts, d_chosen);  // a token's experts differ
  const at::Tensor d_logits =
      rule.sigmoid ? at::sigmoid_backward(d_all, probabilities)
                   : at::_softmax_backward_data(d_all, probabilities, /*dim=*/1, at::kFloat);
  AddWeightGradient(d_logits, x.to(at::kFloat), d_w);
  return at::mm(d_logits, w.to(at::kFloat)).to(x.scalar_type());
}

ExpertOrder OrderByExpert(const at::Tensor& experts, int64_t count) {
  ExpertOrder order;
  const at::Tensor flat = experts.flatten();
  at::Tensor sorted;
  std::tie(sorted, order.pairs) = at::sort(flat, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  order.places = at::empty_like(order.pairs);
  order.places.scatter_(0, order.pairs, at::arange(flat.size(0), flat.options()));
  // How many have this expert or one before it.
  const at::Tensor ends =
      at::searchsorted(sorted, at::arange(count, flat.options()), /*out_int32=*/false,
                       /*right=*/true)
          .cpu();
  int64_t begin = 0;
  for (int64_t expert = 0; expert < count; ++expert) {
    const int64_t end = ends.data_ptr<int64_t>()[expert];
    order.counts.push_back(end - std::exchange(begin, end));
  }
  return order;
}

at::Tensor RowsOfPairs(const at::Tensor& x, const ExpertOrder& order) {
  const int64_t k = x.size(0) == 0 ? 1 : order.pairs.size(0) / x.size(0);
  return x.index_select(0, k == 1 ? order.pairs : order.pairs.div(k, "floor"));
}

at::Tensor SumOfPairs(const at::Tensor& rows, const ExpertOrder& order, int64_t k) {
  const at::Tensor by_token = rows.index_select(0, order.places);
  return k == 1 ? by_token : by_token.view({-1, k, rows.size(1)}).sum({1});
}

at::Tensor GroupedLinear(const at::Tensor& x, const at::Tensor& w,
                         const std::vector<int64_t>& counts) {
  const auto groups = static_cast<int64_t>(counts.size());
  const at::Tensor weights = w.view({groups, w.size(0) / groups, w.size(1)});
  at::Tensor y = at::empty({x.size(0), weights.size(1)}, x.options());
  ForEachGroup(counts, [&](int64_t group, int64_t begin, int64_t rows) {
    at::Tensor part = y.narrow(0, begin, rows);
    at::mm_out(part, x.narrow(0, begin, rows), weights[group].t());
  });
  return y;
}

at::Tensor GroupedLinearBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w,
                                 const GradientSum& d_w, const std::vector<int64_t>& counts) {
  const auto groups = static_cast<int64_t>(counts.size());
  const at::Tensor weights = w.view({groups, w.size(0) / groups, w.size(1)});
  if (d_w.defined()) AddOrPutOff([dy, x, d_w, counts] { AddGroups(dy, x, d_w, counts); });
  at::Tensor dx = at::empty({x.size(0), w.size(1)}, x.options());
  ForEachGroup(counts, [&](int64_t group, int64_t begin, int64_t rows) {
    at::Tensor part = dx.narrow(0, begin, rows);
    at::mm_out(part, dy.narrow(0, begin, rows), weights[group]);
  });
  return dx;
}

}  // namespace muster::trainer::ops
