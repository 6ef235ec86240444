// bench/run.sh cp-wlb: each document cut for itself against rows cut as they are, where ranks share
// out rows (context parallelism), on a long-tailed mix of document lengths.
//
// Rows of 128k tokens of whole documents, one a micro-batch, 8 ranks. What attention costs a rank
// is ContextCost (trainer/parallel/context_plan.h), in pairs; all ranks wait in each layer for the
// one that has most. Peer: WLB-LLM's per-document sharding written plainly (arXiv 2503.17924,
// section 5): equal chunks of each document, and each token beyond them dealt to a rank by itself.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "trainer/data/long_tail.h"
#include "trainer/data/packing.h"
#include "trainer/parallel/context_plan.h"

namespace muster::trainer {
namespace {

constexpr int64_t kContext = 131072;
constexpr int kRanks = 8;
// Llama-3.1-8B: 7.5e9 weights in products, 32 layers of 32 heads of 128.
constexpr double kLinearPairs = 2 * 7.5e9 / (4.0 * 32 * 4096);  // a token's products, in pairs

// Whole documents in the order they come, as many as fit.
std::vector<std::vector<ops::DocumentSpan>> Rows(const std::vector<int64_t>& lengths) {
  std::vector<std::vector<ops::DocumentSpan>> rows(1);
  int64_t at = 0;
  for (const int64_t n : lengths) {
    if (at + n > kContext) rows.emplace_back(), at = 0;
    rows.back().push_back({0, at, at + n});
    at += n;
  }
  return rows;
}

std::vector<ContextPart> PlainWlb(const std::vector<ops::DocumentSpan>& documents) {
  std::vector<ContextPart> parts(kRanks);
  int64_t next = 0;
  for (const ops::DocumentSpan& span : documents) {
    const int64_t chunk = (span.end - span.begin) / (2 * kRanks);
    const auto add = [&](int64_t rank, int call, int64_t begin, int64_t end) {
      if (begin < end) parts[rank].calls[call].push_back({0, span.begin, begin, end});
    };
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      const int64_t early = span.begin + rank * chunk,
                    late = span.begin + (2 * kRanks - 1 - rank) * chunk;
      add(rank, 0, early, early + chunk);
      add(rank, 1, late, late + chunk);
    }
    for (int64_t at = span.begin + 2 * kRanks * chunk; at < span.end; ++at, ++next)
      add(next % kRanks, 1, at, at + 1);
  }
  return parts;
}

// The slowest rank's cost and all ranks' mean, summed over rows.
struct Sum {
  double slowest = 0, mean = 0, tokens = 0;
  int by_document = 0;

  void Add(const std::vector<ContextPart>& parts, double row_tokens) {
    double most = 0, all = 0;
    for (const ContextPart& part : parts) {
      const double cost = ContextCost(part);
      most = std::max(most, cost), all += cost;
    }
    slowest += most, mean += all / kRanks, tokens += row_tokens;
  }
  double Whole() const { return slowest + kLinearPairs * tokens / kRanks; }
};

bool Figure(const char* name, double value, double peer, const char* bar, bool holds) {
  std::printf(
      "{\"figure\":\"%s\",\"value\":%.4f,\"unit\":\"x\",\"peer\":%.4f,\"bar\":\"%s\",\"holds\":%s}"
      "\n",
      name, value, peer, bar, holds ? "true" : "false");
  return holds;
}

int Main(bool quick) {
  const std::vector<int64_t> lengths = LongTail(kContext, quick ? 20'000 : 200'000);
  const auto rows = Rows(lengths);
  Sum sequence, document, chosen, wlb, wlb_chosen;
  for (const std::vector<ops::DocumentSpan>& row : rows) {
    const auto tokens = static_cast<double>(row.back().end);
    const auto plan = [&](ContextSharding sharding) {
      return PlanContext(row, 1, kContext, kRanks, sharding);
    };
    const ContextPlan by_row = plan(ContextSharding::kSequence),
                      automatic = plan(ContextSharding::kAuto);
    const std::vector<ContextPart> plain = PlainWlb(row);
    ContextPlan as_plain;
    as_plain.parts = plain;
    sequence.Add(by_row.parts, tokens);
    document.Add(plan(ContextSharding::kDocument).parts, tokens);
    chosen.Add(automatic.parts, tokens);
    chosen.by_document += automatic.sharding == ContextSharding::kDocument ? 1 : 0;
    wlb.Add(plain, tokens);
    wlb_chosen.Add(ContextCost(as_plain) < ContextCost(by_row) ? plain : by_row.parts, tokens);
  }
  std::printf(
      "%zu documents in %zu rows of %lldk, %d ranks; attention of the slowest rank over the mean: "
      "sequence %.3f, document %.3f, auto %.3f (%d rows by document), WLB-LLM plainly %.3f\n",
      lengths.size(), rows.size(), static_cast<long long>(kContext / 1024), kRanks,
      sequence.slowest / sequence.mean, document.slowest / document.mean,
      chosen.slowest / chosen.mean, chosen.by_document, wlb.slowest / wlb.mean);
  const auto speed_up = [&](const Sum& sum) { return sequence.slowest / sum.slowest; };
  bool holds = Figure("predicted speed-up of attention, by document over by sequence",
                      speed_up(document), speed_up(wlb), ">= 1.1 and >= WLB-LLM's, plainly",
                      speed_up(document) >= 1.1 && speed_up(document) >= speed_up(wlb));
  holds &=
      Figure("predicted speed-up of attention, auto over by sequence", speed_up(chosen),
             speed_up(wlb_chosen), ">= by document and >= WLB-LLM's choice",
             speed_up(chosen) >= speed_up(document) && speed_up(chosen) >= speed_up(wlb_chosen));
  Figure("predicted speed-up of layers as a whole (8B), auto over by sequence",
         sequence.Whole() / chosen.Whole(), sequence.Whole() / wlb_chosen.Whole(), "none", true);
  return holds ? 0 : 1;
}

}  // namespace
}  // namespace muster::trainer

int main(int argc, char** argv) {
  return muster::trainer::Main(argc > 1 && std::strcmp(argv[1], "--quick") == 0);
}
