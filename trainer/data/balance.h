// Rows of like work out of documents of very different lengths: WLB-LLM's variable-length packing
// with delayed outliers (Wang et al., arXiv 2503.17924, section 4), and a refinement of it.
//
// Attention costs the square of a document's length, so rows of equal length differ in work: the
// rank that got the longest document makes all others wait. Here a row may be longer than
// max_length where its documents are short. Documents that are long beside max_length (outliers)
// wait in queues until there is one of their class for every row of a step. Then documents go,
// longest first, to the row with the least work that has room, else to the shortest that has; what
// fits nowhere waits for the next step. The refinement then moves and swaps documents between the
// heaviest row and others while that lowers the larger of the two works; it changes neither which
// documents a step has nor what waits.
#pragma once

#include <cstdint>
#include <vector>

namespace muster::trainer {

struct BalanceOptions {
  int64_t max_length = 0;      // no document is longer
  int64_t max_row_length = 0;  // at least max_length
  int64_t rows_per_step = 1;
  int64_t linear_work = 1;  // a token's work beside attention, in pairs of tokens that attend
  bool refine = true;       // false: the paper's method alone
};

// Documents (as indices into the list given) of each row of a step. Rows may be empty in an epoch's
// last steps.
using Step = std::vector<std::vector<int64_t>>;

// A document's work: the pairs of causal attention, and linear_work for each token.
inline int64_t DocumentWork(int64_t length, int64_t linear_work) {
  return length * (length + 1) / 2 + length * linear_work;
}

// Packs documents of these lengths, in this order, into steps; each stands in exactly one row. A
// pure function.
std::vector<Step> BalanceSteps(const std::vector<int64_t>& lengths, const BalanceOptions& options);

}  // namespace muster::trainer
