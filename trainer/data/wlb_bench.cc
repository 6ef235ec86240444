// bench/run.sh wlb: rows of like work against rows of like length, on a long-tailed mix of document
// lengths.
//
// Context 128k, 8 ranks with 4 micro-batches each, one row a micro-batch. The latency of a row is a
// model (printed): an 8B model's flops at a fixed rate, and a fixed cost. A step takes as long as
// its slowest rank. Peers: fixed-length packing of the same whole documents (best fit decreasing
// into rows of 128k, rows shuffled: `packing: bfd`), and WLB-LLM's method without our refinement.
// The stream cut every 128k tokens is told beside them: it cuts documents, so it has less attention
// to compute and trains something else.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <vector>

#include "trainer/data/balance.h"
#include "trainer/data/long_tail.h"
#include "trainer/data/packing.h"

namespace muster::trainer {
namespace {

constexpr int64_t kContext = 131072, kRanks = 8, kMicroBatches = 4, kRows = kRanks * kMicroBatches;
// Llama-3.1-8B: 32 layers, 32 heads of 128, 7.5e9 weights in products.
constexpr double kWeights = 7.5e9, kPairFlops = 4.0 * 32 * 4096;
constexpr double kFlopsPerSecond = 400e12, kRowSeconds = 2e-3;
constexpr int64_t kLinearWork = static_cast<int64_t>(2 * kWeights / kPairFlops);

// Forward and backward of a row with documents of these lengths.
double RowSeconds(const std::vector<int64_t>& lengths) {
  double flops = 0;
  for (const int64_t n : lengths)
    flops += 2 * kWeights * static_cast<double>(n) +
             kPairFlops * static_cast<double>(n) * static_cast<double>(n + 1) / 2;
  return kRowSeconds + 3 * flops / kFlopsPerSecond;
}

struct Outcome {
  double seconds = 0, imbalance_sum = 0;
  int64_t tokens = 0, steps = 0, full_steps = 0;
  double Imbalance() const { return imbalance_sum / static_cast<double>(full_steps); }
  double TokensPerSecond() const { return static_cast<double>(tokens) / seconds; }
};

void Add(const std::vector<std::vector<int64_t>>& rows, Outcome& outcome) {
  std::vector<double> seconds;
  int64_t tokens = 0;
  bool full = true;
  for (const std::vector<int64_t>& row : rows) {
    seconds.push_back(row.empty() ? 0 : RowSeconds(row));
    full &= !row.empty();
    tokens += std::accumulate(row.begin(), row.end(), int64_t{0});
  }
  double slowest = 0;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    slowest = std::max(slowest, std::accumulate(seconds.begin() + rank * kMicroBatches,
                                                seconds.begin() + (rank + 1) * kMicroBatches, 0.0));
  }
  outcome.seconds += slowest;
  outcome.tokens += tokens;
  ++outcome.steps;
  if (!full) return;  // an epoch's end
  ++outcome.full_steps;
  outcome.imbalance_sum += *std::max_element(seconds.begin(), seconds.end()) * kRows /
                           std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

// Whole documents in rows of kContext.
Outcome FixedLength(std::vector<int64_t> lengths) {
  std::sort(lengths.rbegin(), lengths.rend());
  std::vector<std::vector<int64_t>> rows;
  std::multimap<int64_t, size_t> open;  // rows by room left
  for (const int64_t n : lengths) {
    auto fit = open.lower_bound(n);
    const int64_t room = fit == open.end() ? kContext : fit->first;
    const size_t row = fit == open.end() ? rows.size() : fit->second;
    if (fit == open.end())
      rows.emplace_back();
    else
      open.erase(fit);
    rows[row].push_back(n);
    if (room > n) open.emplace(room - n, row);
  }
  SplitMix64{7}.Shuffle(rows.data(), static_cast<int64_t>(rows.size()));
  rows.resize((rows.size() + kRows - 1) / kRows * kRows);
  Outcome outcome;
  for (size_t begin = 0; begin < rows.size(); begin += kRows)
    Add({rows.begin() + static_cast<int64_t>(begin),
         rows.begin() + static_cast<int64_t>(begin) + kRows},
        outcome);
  return outcome;
}

// The stream of documents cut every kContext tokens.
Outcome CutStream(const std::vector<int64_t>& lengths) {
  Outcome outcome;
  std::vector<std::vector<int64_t>> rows(1);
  int64_t room = kContext;
  for (int64_t n : lengths) {
    while (n > 0) {
      const int64_t part = std::min(n, room);
      rows.back().push_back(part);
      n -= part;
      room -= part;
      if (room > 0) continue;
      if (static_cast<int64_t>(rows.size()) == kRows) Add(rows, outcome), rows.clear();
      rows.emplace_back();
      room = kContext;
    }
  }
  rows.resize(kRows);
  Add(rows, outcome);
  return outcome;
}

Outcome Balanced(const std::vector<int64_t>& lengths, int64_t max_row_length, bool refine,
                 std::vector<int>& seen) {
  Outcome outcome;
  seen.assign(lengths.size(), 0);
  for (const Step& step :
       BalanceSteps(lengths, {kContext, max_row_length, kRows, kLinearWork, refine})) {
    std::vector<std::vector<int64_t>> rows;
    for (const std::vector<int64_t>& row : step) {
      rows.emplace_back();
      for (const int64_t document : row) rows.back().push_back(lengths[document]), ++seen[document];
    }
    Add(rows, outcome);
  }
  return outcome;
}

int Main(bool quick) {
  const std::vector<int64_t> lengths = LongTail(kContext, quick ? 60'000 : 600'000);
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  std::printf(
      "latency of a row: %.1f ms + 3 x (2 x %.1e x tokens + %.0f x pairs) / %.0e flop/s; %lld "
      "documents, %lld tokens, %lld of half the context or more\n",
      1e3 * kRowSeconds, kWeights, kPairFlops, kFlopsPerSecond,
      static_cast<long long>(lengths.size()), static_cast<long long>(tokens),
      static_cast<long long>(std::count_if(lengths.begin(), lengths.end(),
                                           [](int64_t n) { return n >= kContext / 2; })));
  const Outcome fixed = FixedLength(lengths), cut = CutStream(lengths);
  std::vector<int> seen;
  for (const int64_t quarters : {4, 5, 6, 8}) {
    const int64_t limit = kContext * quarters / 4;
    const Outcome plain = Balanced(lengths, limit, false, seen),
                  ours = Balanced(lengths, limit, true, seen);
    std::printf(
        "max_row_length %lldk: imbalance %.4f (plain %.4f, fixed length %.4f), throughput x%.3f "
        "(plain x%.3f), %lld steps\n",
        static_cast<long long>(limit / 1024), ours.Imbalance(), plain.Imbalance(),
        fixed.Imbalance(), ours.TokensPerSecond() / fixed.TokensPerSecond(),
        plain.TokensPerSecond() / fixed.TokensPerSecond(), static_cast<long long>(ours.steps));
  }
  const int64_t limit = kContext * 5 / 4;  // the default
  const Outcome plain = Balanced(lengths, limit, false, seen),
                ours = Balanced(lengths, limit, true, seen);
  const bool same = ours.tokens == tokens &&
                    std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; });
  const double ratio = ours.TokensPerSecond() / fixed.TokensPerSecond();
  std::printf(
      "{\"figure\":\"imbalance of rows "
      "(max/mean)\",\"value\":%.4f,\"unit\":\"\",\"peer\":%.4f,\"bar\":\"<= WLB-LLM's "
      "method\",\"holds\":%s}\n",
      ours.Imbalance(), plain.Imbalance(),
      ours.Imbalance() <= plain.Imbalance() ? "true" : "false");
  std::printf(
      "{\"figure\":\"predicted throughput over fixed-length packing of the same "
      "documents\",\"value\":%.3f,\"unit\":\"x\",\"peer\":%.3f,\"bar\":\">= 1.2\",\"holds\":%s}\n",
      ratio, plain.TokensPerSecond() / fixed.TokensPerSecond(), ratio >= 1.2 ? "true" : "false");
  std::printf(
      "{\"figure\":\"predicted throughput over the stream cut every 128k, which cuts "
      "documents\",\"value\":%.3f,\"unit\":\"x\",\"peer\":null,\"bar\":null,\"holds\":true}\n",
      ours.TokensPerSecond() / cut.TokensPerSecond());
  std::printf(
      "{\"figure\":\"documents trained exactly "
      "once\",\"value\":%lld,\"unit\":\"\",\"peer\":%lld,\"bar\":\"all\",\"holds\":%s}\n",
      static_cast<long long>(std::count(seen.begin(), seen.end(), 1)),
      static_cast<long long>(lengths.size()), same ? "true" : "false");
  return ours.Imbalance() <= plain.Imbalance() && ratio >= 1.2 && same ? 0 : 1;
}

}  // namespace
}  // namespace muster::trainer

int main(int argc, char** argv) {
  return muster::trainer::Main(argc > 1 && std::strcmp(argv[1], "--quick") == 0);
}
