#include "trainer/parallel/context_plan.h"

#include <algorithm>
#include <utility>

namespace muster::trainer {
namespace {

// FlashAttention computes queries in tiles of so many; one query costs as much as a whole tile.
constexpr int64_t kTile = 128;
// A key and its value are gathered, read and written, and their gradients added up, in the time in
// which an H100 computes so many pairs; and in that of a call it starts kernels.
// (docs/decisions/130 has the arithmetic.)
constexpr double kPairsAKey = 64, kPairsACall = 1 << 17;

struct Stretch {
  int64_t row = 0, begin = 0, end = 0;
};

// Cuts `whole` into the chunks of each rank: the early ones, then the late ones. `next`: who is
// dealt the next token beyond equal chunks.
std::vector<std::array<Stretch, 2>> CutChunks(const Stretch& whole, int ranks, int& next) {
  const int64_t chunks = 2 * static_cast<int64_t>(ranks), n = whole.end - whole.begin;
  std::vector<int64_t> sizes(static_cast<size_t>(chunks), n / chunks);
  const int beyond = static_cast<int>(n % chunks);
  for (int i = 0; i < beyond; ++i) {
    const int rank = (next + i) % ranks;
    ++sizes[i < ranks ? rank : chunks - 1 - rank];
  }
  next = (next + beyond) % ranks;
  std::vector<std::array<Stretch, 2>> cut(static_cast<size_t>(ranks));
  int64_t at = whole.begin;
  for (int64_t chunk = 0; chunk < chunks; at += sizes[chunk], ++chunk) {
    const bool late = chunk >= ranks;
    cut[late ? chunks - 1 - chunk : chunk][late ? 1 : 0] = {whole.row, at, at + sizes[chunk]};
  }
  // Neighbours become one: their keys need not be gathered twice.
  for (auto& [early, late] : cut) {
    if (early.end != late.begin) continue;
    early.end = late.end;
    late.begin = late.end;
  }
  return cut;
}

// What is cut: each document, or what documents take up of each row.
std::vector<Stretch> StretchesOf(const std::vector<ops::DocumentSpan>& documents, bool whole_rows) {
  std::vector<Stretch> stretches;
  for (const ops::DocumentSpan& span : documents) {
    if (whole_rows && !stretches.empty() && stretches.back().row == span.row)
      stretches.back().end = span.end;
    else
      stretches.push_back({span.row, span.begin, span.end});
  }
  return stretches;
}

// Appends what of `chunk` is in documents. `first`: of the documents, none of those before reaches
// into the chunk.
void AddSequences(const std::vector<ops::DocumentSpan>& documents, size_t first,
                  const Stretch& chunk, std::vector<ContextSequence>& call) {
  for (size_t d = first; d < documents.size(); ++d) {
    const ops::DocumentSpan& span = documents[d];
    if (span.row > chunk.row || (span.row == chunk.row && span.begin >= chunk.end)) break;
    const int64_t begin = std::max(span.begin, chunk.begin), end = std::min(span.end, chunk.end);
    if (span.row == chunk.row && begin < end) call.push_back({span.row, span.begin, begin, end});
  }
}

ContextPlan PlanAs(const std::vector<ops::DocumentSpan>& documents, int64_t batch, int64_t length,
                   int ranks, ContextSharding sharding) {
  ContextPlan plan{sharding, 1, std::vector<ContextPart>(static_cast<size_t>(ranks))};
  // By rank and row.
  std::vector<std::vector<std::vector<int64_t>>> taken(
      static_cast<size_t>(ranks), std::vector<std::vector<int64_t>>(static_cast<size_t>(batch)));
  int next = 0;
  int64_t row = -1;
  size_t first = 0;
  for (const Stretch& stretch : StretchesOf(documents, sharding == ContextSharding::kSequence)) {
    if (std::exchange(row, stretch.row) != stretch.row) next = 0;
    const auto cut = CutChunks(stretch, ranks, next);
    for (int rank = 0; rank < ranks; ++rank) {
      for (int call = 0; call < 2; ++call) {
        const Stretch& chunk = cut[rank][call];
        for (int64_t at = chunk.begin; at < chunk.end; ++at)
          taken[rank][chunk.row].push_back(chunk.row * length + at);
        AddSequences(documents, first, chunk, plan.parts[rank].calls[call]);
      }
    }
    while (first < documents.size() &&
           (documents[first].row < stretch.row ||
            (documents[first].row == stretch.row && documents[first].end <= stretch.end)))
      ++first;
  }
  for (const auto& rows : taken) {
    for (const std::vector<int64_t>& one : rows)
      plan.length = std::max(plan.length, static_cast<int64_t>(one.size()));
  }
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<int64_t>& tokens = plan.parts[rank].tokens;
    for (const std::vector<int64_t>& one : taken[rank]) {
      tokens.insert(tokens.end(), one.begin(), one.end());
      tokens.resize(tokens.size() + static_cast<size_t>(plan.length) - one.size(), -1);
    }
  }
  return plan;
}

}  // namespace

double ContextCost(const ContextPart& part) {
  double cost = 0;
  for (const std::vector<ContextSequence>& call : part.calls) {
    if (!call.empty()) cost += kPairsACall;
    for (const ContextSequence& one : call) {
      // A tile that isn't full is computed as if it were.
      const int64_t idle = (kTile - one.queries() % kTile) % kTile;
      cost += static_cast<double>(one.pairs()) + static_cast<double>(idle * one.keys()) +
              kPairsAKey * static_cast<double>(one.keys());
    }
  }
  return cost;
}

double ContextCost(const ContextPlan& plan) {
  double most = 0;
  for (const ContextPart& part : plan.parts) most = std::max(most, ContextCost(part));
  return most;
}

ContextPlan PlanContext(const std::vector<ops::DocumentSpan>& documents, int64_t batch,
                        int64_t length, int ranks, ContextSharding sharding) {
  if (sharding != ContextSharding::kAuto) return PlanAs(documents, batch, length, ranks, sharding);
  ContextPlan by_row = PlanAs(documents, batch, length, ranks, ContextSharding::kSequence),
              by_document = PlanAs(documents, batch, length, ranks, ContextSharding::kDocument);
  return ContextCost(by_document) < ContextCost(by_row) ? std::move(by_document)
                                                        : std::move(by_row);
}

}  // namespace muster::trainer
