// Routers and experts against autograd through the same functions written plainly, token by token.
#include "trainer/ops/experts.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "trainer/model/balance.h"
#include "trainer/ops/ops.h"
#include "trainer/parallel/groups.h"

namespace muster::trainer {
namespace {

constexpr int64_t kTokens = 11, kWidth = 6, kExperts = 5, kChosen = 2;

at::Tensor Random(at::IntArrayRef shape) { return at::randn(shape, at::kFloat); }

void ExpectClose(const at::Tensor& found, const at::Tensor& wanted, const std::string& what) {
  const double scale = std::max(1e-6, wanted.abs().max().item<double>());
  EXPECT_LT((found - wanted).abs().max().item<double>() / scale, 2e-5) << what;
}

class ExpertOps : public ::testing::Test {
 protected:
  void SetUp() override { at::manual_seed(1); }
  at::NoGradGuard no_grad_;
};

void ExpectRouterIsAutograds(const ops::RouterRule& rule, bool beside) {
  const at::Tensor x = Random({kTokens, kWidth}), w = Random({kExperts, kWidth}),
                   d_weights = Random({kTokens, kChosen}),
                   d_probabilities = beside ? Random({kTokens, kExperts}) : at::Tensor(),
                   bias = rule.sigmoid ? Random({kExperts}) : at::Tensor();
  const ops::Routing routing = ops::Route(x, w, bias, rule);
  at::Tensor leaf_x = x.clone(), leaf_w = w.clone();
  {
    at::AutoGradMode grad(true);
    leaf_x.set_requires_grad(true), leaf_w.set_requires_grad(true);
    const at::Tensor logits = at::mm(leaf_x, leaf_w.t()),
                     all = rule.sigmoid ? at::sigmoid(logits) : at::softmax(logits, 1);
    at::Tensor chosen = all.gather(1, routing.experts);
    if (rule.normalise) chosen = chosen / chosen.sum({1}, true);
    chosen = chosen * rule.scale;
    ExpectClose(routing.weights, chosen.detach(), "weights");
    at::Tensor sum = (chosen * d_weights).sum();
    if (beside) sum = sum + (all * d_probabilities).sum();
    sum.backward();
  }
  const at::Tensor d_w = at::ones({kExperts, kWidth});
  const at::Tensor dx = ops::RouteBackward(d_weights, d_probabilities, routing.probabilities,
                                           routing.experts, rule, x, w, d_w);
  ExpectClose(dx, leaf_x.grad(), "dx");
  ExpectClose(d_w - 1, leaf_w.grad(), "dw");
  // Asked again with what it chose, it gives the same bits.
  const ops::Routing again = ops::Route(x, w, bias, rule, routing.experts);
  EXPECT_TRUE(at::equal(again.weights, routing.weights));
  EXPECT_TRUE(at::equal(again.probabilities, routing.probabilities));
}

TEST_F(ExpertOps, RoutersBackwardIsAutograds) {
  for (const bool normalise : {false, true}) {
    for (const bool beside : {false, true}) {
      for (const bool sigmoid : {false, true}) {
        ExpectRouterIsAutograds({.per_token = kChosen,
                                 .normalise = normalise,
                                 .sigmoid = sigmoid,
                                 .scale = sigmoid ? 2.5 : 1.0},
                                beside);
      }
    }
  }
}

// Written down token by token, as DeepSeek-V3's report has it.
TEST_F(ExpertOps, OnlyTheBestGroupsAreChosenFromAndBiasesCountForTheChoiceAlone) {
  constexpr int64_t kCount = 12, kGroups = 4, kSize = kCount / kGroups;
  const ops::RouterRule rule{.per_token = 4,
                             .normalise = true,
                             .sigmoid = true,
                             .groups = kGroups,
                             .top_groups = 2,
                             .scale = 1.5};
  const at::Tensor x = Random({200, kWidth}), w = Random({kCount, kWidth}), bias = Random({kCount});
  const ops::Routing routing = ops::Route(x, w, bias, rule);
  int by_scores_alone = 0, without_groups = 0;  // tokens that these would send elsewhere
  for (int64_t token = 0; token < x.size(0); ++token) {
    const at::Tensor scores = at::sigmoid(at::mv(w, x[token])), choice = scores + bias;
    std::vector<std::pair<float, int64_t>> groups, experts;
    for (int64_t group = 0; group < kGroups; ++group) {
      const at::Tensor its = std::get<0>(choice.narrow(0, group * kSize, kSize).sort());
      groups.emplace_back((its[kSize - 1] + its[kSize - 2]).item<float>(), group);
    }
    std::sort(groups.rbegin(), groups.rend());
    for (int64_t expert = 0; expert < kCount; ++expert) {
      if (expert / kSize == groups[0].second || expert / kSize == groups[1].second)
        experts.emplace_back(choice[expert].item<float>(), expert);
    }
    std::sort(experts.rbegin(), experts.rend());
    const auto set = [](const at::Tensor& numbers) {
      const at::Tensor own = numbers.contiguous();
      return std::set<int64_t>(own.data_ptr<int64_t>(), own.data_ptr<int64_t>() + own.numel());
    };
    std::set<int64_t> wanted;
    double sum = 1e-20;
    for (int i = 0; i < rule.per_token; ++i) {
      wanted.insert(experts[i].second);
      sum += scores[experts[i].second].item<double>();
    }
    ASSERT_EQ(set(routing.experts[token]), wanted) << token;
    for (int64_t i = 0; i < rule.per_token; ++i) {
      const auto expert = routing.experts[token][i].item<int64_t>();
      EXPECT_NEAR(routing.weights[token][i].item<double>(),
                  rule.scale * scores[expert].item<double>() / sum, 1e-5);
    }
    by_scores_alone += set(std::get<1>(scores.topk(rule.per_token))) != wanted ? 1 : 0;
    without_groups += set(std::get<1>(choice.topk(rule.per_token))) != wanted ? 1 : 0;
  }
  EXPECT_GT(by_scores_alone, 20) << "the bias decides nothing";
  EXPECT_GT(without_groups, 20) << "the groups decide nothing";
}

TEST_F(ExpertOps, PairsStandByExpertThoseOfOneInTheOrderOfTokens) {
  const at::Tensor experts = at::tensor({3, 0, 0, 3, 4, 3}, at::kLong).view({3, 2});
  const ops::ExpertOrder order = ops::OrderByExpert(experts, 6);
  EXPECT_EQ(order.counts, (std::vector<int64_t>{2, 0, 0, 3, 1, 0}));
  EXPECT_TRUE(at::equal(order.pairs, at::tensor({1, 2, 0, 3, 5, 4}, at::kLong)));
  const at::Tensor x = Random({3, 4}), rows = ops::RowsOfPairs(x, order);
  EXPECT_TRUE(at::equal(rows[1], x[1]));
  EXPECT_TRUE(at::equal(rows[4], x[2]));
  ExpectClose(ops::SumOfPairs(rows, order, 2), 2 * x, "each token's pairs");
}

TEST_F(ExpertOps, GroupedProductsAreThoseOfEachGroup) {
  for (const std::vector<int64_t>& counts :
       {std::vector<int64_t>{3, 0, 7, 1}, {0, 0, 11, 0}, {0, 0, 0, 0}}) {
    const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0}), out = 4;
    const at::Tensor x = Random({rows, kWidth}), w = Random({4 * out, kWidth}),
                     dy = Random({rows, out});
    const at::Tensor d_w = at::ones_like(w), y = ops::GroupedLinear(x, w, counts);
    const at::Tensor dx = ops::GroupedLinearBackward(dy, x, w, d_w, counts);
    int64_t begin = 0;
    for (int64_t group = 0; group < 4; ++group) {
      const int64_t n = counts[group];
      const at::Tensor own = w.narrow(0, group * out, out), d_own = d_w.narrow(0, group * out, out);
      if (n == 0) {
        EXPECT_TRUE(at::equal(d_own, at::ones_like(d_own))) << "a gradient for no tokens";
        continue;
      }
      const at::Tensor x_own = x.narrow(0, begin, n), dy_own = dy.narrow(0, begin, n);
      ExpectClose(y.narrow(0, begin, n), at::mm(x_own, own.t()), "y");
      ExpectClose(dx.narrow(0, begin, n), at::mm(dy_own, own), "dx");
      ExpectClose(d_own - 1, at::mm(dy_own.t(), x_own), "dw");
      begin += n;
    }
    EXPECT_TRUE(at::equal(ops::GroupedLinear(x, w, counts), y));
  }
}

TEST_F(ExpertOps, PutOffGradientsOfGroupsAreTheSameBits) {
  const std::vector<int64_t> counts = {3, 0, 2};
  const at::Tensor x = Random({5, kWidth}), w = Random({6, kWidth}), dy = Random({5, 2});
  const at::Tensor at_once = at::zeros_like(w), later = at::zeros_like(w);
  ops::GroupedLinearBackward(dy, x, w, at_once, counts);
  ops::PutOff list;
  {
    const ops::PutOffWeights put_off(&list);
    ops::GroupedLinearBackward(dy, x, w, later, counts);
  }
  EXPECT_TRUE(at::equal(later, at::zeros_like(w)));
  for (const auto& add : list) add();
  EXPECT_TRUE(at::equal(later, at_once));
}

// All of a router's and its experts' operations, forward and backward, of the same numbers on any
// device. What comes of them, on the host.
std::vector<at::Tensor> PassOn(at::Device device, at::ScalarType type,
                               const ops::RouterRule& rule) {
  constexpr int64_t kRows = 37, kIn = 16, kOut = 24, kCount = 8;
  at::manual_seed(3);
  const auto random = [&](at::IntArrayRef shape) { return Random(shape).to(type).to(device); };
  const auto random32 = [&](at::IntArrayRef shape) { return Random(shape).to(device); };
  const at::Tensor x = random({kRows, kIn}), router = random({kCount, kIn}),
                   w = random({kCount * kOut, kIn}), dy = random({kRows * rule.per_token, kOut}),
                   d_weights = random32({kRows, rule.per_token}),
                   bias = rule.sigmoid ? random32({kCount}) : at::Tensor();
  const ops::Routing routing = ops::Route(x, router, bias, rule);
  const ops::ExpertOrder order = ops::OrderByExpert(routing.experts, kCount);
  const at::Tensor rows = ops::RowsOfPairs(x, order), y = ops::GroupedLinear(rows, w, order.counts);
  const at::Tensor d_w = at::ones({kCount * kOut, kIn}, d_weights.options()),
                   d_router = at::ones({kCount, kIn}, d_weights.options());
  const at::Tensor d_rows = ops::GroupedLinearBackward(dy, rows, w, d_w, order.counts),
                   dx = ops::RouteBackward(d_weights, {}, routing.probabilities, routing.experts,
                                           rule, x, router, d_router);
  std::vector<at::Tensor> found = {routing.experts,
                                   order.pairs,
                                   at::tensor(order.counts, at::kLong),
                                   routing.weights,
                                   y,
                                   d_rows,
                                   d_w,
                                   d_router,
                                   dx,
                                   ops::SumOfPairs(y, order, rule.per_token)};
  for (at::Tensor& one : found) one = one.to(at::kCPU, at::kFloat);
  return found;
}

class ExpertOpsOnGpu : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, ExpertOpsOnGpu, ::testing::Values("gpu"),
                         [](const auto& info) { return info.param; });

TEST_P(ExpertOpsOnGpu, GiveWhatTheyGiveOnTheHost) {
  const at::NoGradGuard no_grad;
  const at::Device device = *ChooseDevice(0);
  if (!device.is_cuda()) GTEST_SKIP() << "no GPU here";
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool sigmoid : {false, true}) {
      ops::RouterRule rule{.per_token = 2, .sigmoid = sigmoid, .scale = sigmoid ? 2.5 : 1.0};
      if (sigmoid) rule.groups = 4, rule.top_groups = 2;
      const std::vector<at::Tensor> found = PassOn(device, type, rule),
                                    wanted = PassOn(at::kCPU, type, rule);
      for (size_t i = 0; i < wanted.size(); ++i) {
        const double largest = std::max(1e-6, wanted[i].abs().max().item<double>()),
                     off = (found[i] - wanted[i]).abs().max().item<double>() / largest;
        EXPECT_LE(off, i < 3 ? 0 : type == at::kFloat ? 2e-5 : 2e-2) << i;
      }
    }
  }
}

// Of two rows, one with padding; a third only fills up.
BatchMeta Batch() {
  BatchMeta meta{.batch = 3, .length = 4};
  meta.positions = at::zeros({12}, at::kLong);
  meta.documents = {{0, 0, 4}, {1, 0, 2}, {1, 2, 3}};
  meta.row_shares = {0.5, 0.5, 0};
  return meta;
}

TEST_F(ExpertOps, TheLossThatBalancesAndItsGradientAreAutograds) {
  ModelConfig config;
  config.num_layers = 2;
  config.experts.count = kExperts, config.experts.per_token = kChosen;
  config.experts.sparse_layers = {true, true};
  constexpr double kCoefficient = 0.3;
  const std::vector<std::vector<int64_t>> rows = {{0, 1, 2, 3}, {4, 5, 6}};
  for (const BalanceKind kind : {BalanceKind::kSequence, BalanceKind::kBatch}) {
    std::vector<at::Tensor> probabilities, experts, counts, leaves;
    RouterBalance balance({kind, kCoefficient}, Batch(), config, TensorGroup(), TensorGroup(),
                          at::kCPU);
    for (int layer = 0; layer < 2; ++layer) {
      probabilities.push_back(at::softmax(Random({12, kExperts}), 1));
      experts.push_back(std::get<1>(probabilities.back().topk(kChosen)));
      counts.push_back(balance.Count(experts.back(), probabilities.back()));
      leaves.push_back(probabilities.back().clone());
    }
    at::Tensor loss;
    {
      at::AutoGradMode grad(true);
      for (at::Tensor& leaf : leaves) leaf.set_requires_grad(true);
      // Of these tokens of these layers: E · Σ share of tokens · mean probability.
      const auto one = [&](const std::vector<int>& layers, const std::vector<int64_t>& tokens) {
        std::vector<at::Tensor> chosen, probable;
        for (const int layer : layers) {
          chosen.push_back(experts[layer].index_select(0, at::tensor(tokens, at::kLong)));
          probable.push_back(leaves[layer].index_select(0, at::tensor(tokens, at::kLong)));
        }
        const at::Tensor all = at::cat(probable);
        const at::Tensor met = at::bincount(at::cat(chosen).flatten(), {}, kExperts).to(at::kFloat);
        return (met / all.size(0) * all.mean(0)).sum() * kExperts;
      };
      if (kind == BalanceKind::kBatch) {
        loss = one({0, 1}, {0, 1, 2, 3, 4, 5, 6});
      } else {
        loss = (one({0}, rows[0]) + one({0}, rows[1]) + one({1}, rows[0]) + one({1}, rows[1])) / 4;
      }
      loss = loss * kCoefficient;
      loss.backward();
    }
    EXPECT_NEAR(balance.Loss() / loss.item<double>(), 1, 1e-6);
    for (int layer = 0; layer < 2; ++layer)
      ExpectClose(balance.Gradient(counts[layer]), leaves[layer].grad(), "gradient");
  }
}

}  // namespace
}  // namespace muster::trainer
