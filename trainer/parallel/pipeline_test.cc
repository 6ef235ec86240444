// The orders of pipelines, run by a plain model of ranks that wait for each other's messages. The
// model knows nothing of how the orders are made.
#include "trainer/parallel/pipeline.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

namespace muster::trainer {
namespace {

struct Case {
  PipelineKind kind;
  int ranks, chunks, micros;
};

std::string Name(const Case& c) {
  return std::string(PipelineName(c.kind)) + ", " + std::to_string(c.ranks) + " ranks x " +
         std::to_string(c.chunks) + " stretches, " + std::to_string(c.micros) + " micro-batches";
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (int ranks = 2; ranks <= 8; ++ranks) {
    for (int micros = 1; micros <= 32; ++micros) {
      for (const PipelineKind kind :
           {PipelineKind::kGpipe, PipelineKind::k1F1B, PipelineKind::kZeroBubble})
        cases.push_back({kind, ranks, 1, micros});
      for (const int chunks : {2, 3, 4})
        cases.push_back({PipelineKind::kInterleaved, ranks, chunks, micros});
    }
  }
  return cases;
}

std::vector<std::vector<PipelineStep>> OrdersOf(const Case& c) {
  std::vector<std::vector<PipelineStep>> orders;
  for (int rank = 0; rank < c.ranks; ++rank)
    orders.push_back(PipelineOrder(c.kind, rank, c.ranks, c.chunks, c.micros));
  return orders;
}

// How long steps take.
struct Costs {
  int64_t forward, backward, weights;
};

// Ranks with a clock each, and for each neighbour and direction a queue of messages: (stage, micro)
// and when it was sent. A rank takes the head of a queue; whoever sends a message waits until the
// one before the last was taken: the engine keeps two.
class Simulation {
 public:
  Simulation(const Case& c, std::vector<std::vector<PipelineStep>> orders)
      : case_(c), orders_(std::move(orders)), next_(c.ranks, 0), clock_(c.ranks, 0) {}

  // "" or what went wrong.
  std::string Run(const Costs& costs) {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int rank = 0; rank < case_.ranks; ++rank) {
        while (next_[rank] < orders_[rank].size() && Step(rank, costs)) {
          if (!wrong_.empty()) return wrong_;
          moved = true;
        }
      }
    }
    for (int rank = 0; rank < case_.ranks; ++rank) {
      if (next_[rank] < orders_[rank].size())
        return "rank " + std::to_string(rank) + " waits for ever";
    }
    for (const auto& [edge, queue] : queues_) {
      if (!queue.empty()) return "a message is never taken";
    }
    return "";
  }

  int64_t makespan() const { return *std::max_element(clock_.begin(), clock_.end()); }

 private:
  using Message = std::tuple<int, int, int64_t>;  // for which stage, micro, when it is there

  int Stage(int rank, int chunk) const { return chunk * case_.ranks + rank; }

  bool Step(int rank, const Costs& costs) {
    const PipelineStep& step = orders_[rank][next_[rank]];
    const int stage = Stage(rank, step.chunk), stages = case_.ranks * case_.chunks;
    const bool forward = step.kind == PipelineStep::kForward;
    int64_t begin = clock_[rank];
    if (step.kind == PipelineStep::kWeights) {
      clock_[rank] = begin + costs.weights;
      ++next_[rank];
      return true;
    }
    const bool receives = forward ? stage > 0 : stage + 1 < stages,
               sends = forward ? stage + 1 < stages : stage > 0;
    const auto queue = [&](int from) -> std::deque<Message>& { return queues_[{from, forward}]; };
    const int neighbour = (rank + (forward ? case_.ranks - 1 : 1)) % case_.ranks;
    if (receives) {
      if (queue(neighbour).empty()) return false;
      const auto [for_stage, micro, there] = queue(neighbour).front();
      if (for_stage != stage || micro != step.micro) {
        wrong_ = "messages cross at rank " + std::to_string(rank);
        return true;
      }
      begin = std::max(begin, there);
    }
    if (sends && queue(rank).size() > 1) return false;
    if (receives) queue(neighbour).pop_front();
    clock_[rank] = begin + (forward ? costs.forward : costs.backward);
    if (sends) queue(rank).emplace_back(stage + (forward ? 1 : -1), step.micro, clock_[rank]);
    ++next_[rank];
    return true;
  }

  const Case case_;
  const std::vector<std::vector<PipelineStep>> orders_;
  std::vector<size_t> next_;
  std::vector<int64_t> clock_;
  std::map<std::pair<int, bool>, std::deque<Message>> queues_;  // by sender and direction
  std::string wrong_;
};

std::string Check(const Case& c, const std::vector<std::vector<PipelineStep>>& orders) {
  return Simulation(c, orders).Run({1, 2, 1});
}

TEST(PipelineOrder, EveryStepIsTakenOnceAndAfterWhatItNeeds) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Name(c));
    for (const std::vector<PipelineStep>& order : OrdersOf(c)) {
      std::set<std::tuple<int, int, int>> done;
      std::map<std::pair<int, int>, int> last;
      for (const PipelineStep& step : order) {
        ASSERT_TRUE(step.chunk >= 0 && step.chunk < c.chunks && step.micro >= 0 &&
                    step.micro < c.micros);
        ASSERT_TRUE(done.insert({step.kind, step.chunk, step.micro}).second) << "twice";
        if (step.kind != PipelineStep::kForward) {
          ASSERT_TRUE(done.contains({step.kind - 1, step.chunk, step.micro}));
        }
        // In the order of the micro-batches: sums have the bits of one rank's.
        const auto [before, first] = last.try_emplace({step.kind, step.chunk}, step.micro);
        ASSERT_TRUE(first || before->second == step.micro - 1);
        before->second = step.micro;
      }
      const int kinds = c.kind == PipelineKind::kZeroBubble ? 3 : 2;
      ASSERT_EQ(done.size(), static_cast<size_t>(kinds * c.chunks * c.micros));
    }
  }
}

TEST(PipelineOrder, MessagesMeetInOrderAndNobodyWaitsForEver) {
  for (const Case& c : Cases()) EXPECT_EQ(Check(c, OrdersOf(c)), "") << Name(c);
}

// The model must be able to fail: orders with one thing wrong each.
TEST(PipelineOrder, TheModelSeesCrossedMessagesAndRanksThatWaitForEver) {
  const Case c{PipelineKind::k1F1B, 4, 1, 8};
  auto crossed = OrdersOf(c);
  std::swap(crossed[1][0], crossed[1][1]);  // two forwards
  EXPECT_NE(Check(c, crossed).find("messages cross"), std::string::npos);
  auto waiting = OrdersOf(c);
  std::rotate(waiting[0].begin(), waiting[0].begin() + 4, waiting[0].begin() + 5);
  EXPECT_NE(Check(c, waiting).find("waits for ever"), std::string::npos);
  auto lost = OrdersOf(c);
  lost[3].pop_back();
  EXPECT_NE(Check(c, lost), "");
}

// Micro-batches (of a stretch each) between their forward and the end of their backward.
int MostInFlight(const Case& c, const std::vector<PipelineStep>& order) {
  const PipelineStep::Kind end =
      c.kind == PipelineKind::kZeroBubble ? PipelineStep::kWeights : PipelineStep::kBackward;
  int now = 0, most = 0;
  for (const PipelineStep& step : order) {
    now += step.kind == PipelineStep::kForward;
    most = std::max(most, now);
    now -= step.kind == end;
  }
  return most;
}

TEST(PipelineOrder, NoMoreIsKeptThanThePapersSay) {
  for (const Case& c : Cases()) {
    for (int rank = 0; rank < c.ranks; ++rank) {
      int bound = c.micros;  // GPipe
      if (c.kind == PipelineKind::k1F1B) bound = std::min(c.micros, c.ranks - rank);
      if (c.kind == PipelineKind::kZeroBubble) bound = std::min(c.micros, c.ranks);
      if (c.kind == PipelineKind::kInterleaved)
        bound =
            std::min(c.micros * c.chunks, 2 * (c.ranks - 1 - rank) + (c.chunks - 1) * c.ranks + 1);
      const int most = MostInFlight(c, PipelineOrder(c.kind, rank, c.ranks, c.chunks, c.micros));
      if (c.kind == PipelineKind::kInterleaved)
        EXPECT_LE(most, bound) << Name(c) << ", rank " << rank;
      else
        EXPECT_EQ(most, bound) << Name(c) << ", rank " << rank;
    }
  }
}

// Idle time as the papers have it, exactly, for costs that aren't alike; and BubbleShare. Printed
// for bench/run.sh pipeline-order.
TEST(PipelineOrder, RanksWaitExactlyAsLongAsTheFormulasSay) {
  int cases = 0, compared = 0, differing = 0;
  for (const Case& c : Cases()) {
    ++cases;
    const bool zero = c.kind == PipelineKind::kZeroBubble;
    // Where the formulas hold: whole groups of micro-batches, enough to fill the pipeline.
    if (c.kind == PipelineKind::kInterleaved && c.micros % c.ranks != 0) continue;
    if (zero && c.micros < c.ranks) continue;
    for (const Costs& costs : {Costs{1, 2, 0}, {2, 5, 0}, {1, 1, 1}, {4, 5, 3}}) {
      if (zero != (costs.weights > 0)) continue;
      Simulation simulation(c, OrdersOf(c));
      ASSERT_EQ(simulation.Run(costs), "");
      const int64_t work = (costs.forward + costs.backward + costs.weights) * c.micros * c.chunks;
      const int64_t idle =
          (c.ranks - 1) * (costs.forward + costs.backward - (zero ? costs.weights : 0));
      ++compared;
      differing += simulation.makespan() != work + idle;
      EXPECT_EQ(simulation.makespan(), work + idle) << Name(c);
      if (costs.backward == 2 * costs.forward || (zero && costs.forward == costs.weights)) {
        EXPECT_DOUBLE_EQ(BubbleShare(c.kind, c.ranks, c.chunks, c.micros),
                         static_cast<double>(idle) / static_cast<double>(work + idle));
      }
    }
  }
  std::printf("pipeline cases=%d bubbles=%d differing=%d\n", cases, compared, differing);
}

TEST(PipelineOrder, NamesAreThoseOfTheJobFile) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zero_bubble"}) {
    ASSERT_TRUE(PipelineNamed(name).has_value());
    EXPECT_EQ(PipelineName(*PipelineNamed(name)), name);
  }
  EXPECT_FALSE(PipelineNamed("1F1B").has_value());
}

TEST(CutLayers, MakesTheMostCostlyStretchAsCheapAsCanBe) {
  using Ints = std::vector<int>;
  const auto alike = [](int layers) { return std::vector<int64_t>(layers, 10); };
  EXPECT_EQ(CutLayers(alike(4), 0, 2), (Ints{0, 2, 4}));
  EXPECT_EQ(CutLayers(alike(4), 20, 2), (Ints{0, 3, 4}));  // the head is two layers
  EXPECT_EQ(CutLayers(alike(8), 23, 4), (Ints{0, 2, 4, 7, 8}));
  EXPECT_EQ(CutLayers(alike(4), 100, 4), (Ints{0, 1, 2, 3, 4}));
  EXPECT_EQ(CutLayers(alike(3), 0, 1), (Ints{0, 3}));
  EXPECT_EQ(CutLayers({10, 10, 40, 10, 10}, 0, 3), (Ints{0, 2, 3, 5}));
  EXPECT_THROW(CutLayers(alike(2), 0, 3), std::invalid_argument);
}

TEST(CutLayers, NoOtherCutIsBetter) {
  for (int layers = 1; layers <= 9; ++layers) {
    for (int stages = 1; stages <= layers; ++stages) {
      for (const int64_t end : {0, 5, 12, 31}) {
        std::vector<int64_t> costs(layers);
        for (int i = 0; i < layers; ++i) costs[i] = 5 + i * i % 7;
        const auto judge = [&](const std::vector<int>& first) {
          int64_t most = 0, squares = 0;
          for (int s = 0; s < stages; ++s) {
            const int64_t one = std::accumulate(costs.begin() + first[s],
                                                costs.begin() + first[s + 1], int64_t{0}) +
                                (s + 1 == stages ? end : 0);
            most = std::max(most, one), squares += one * one;
          }
          return std::pair(most, squares);
        };
        const std::vector<int> found = CutLayers(costs, end, stages);
        // All others: a bit between two layers says whether a stretch begins there.
        for (unsigned bits = 0; bits < 1u << (layers - 1); ++bits) {
          std::vector<int> first = {0};
          for (int i = 1; i < layers; ++i) {
            if ((bits >> (i - 1) & 1) != 0) first.push_back(i);
          }
          first.push_back(layers);
          if (static_cast<int>(first.size()) != stages + 1) continue;
          EXPECT_LE(judge(found), judge(first));
        }
      }
    }
  }
}

}  // namespace
}  // namespace muster::trainer
