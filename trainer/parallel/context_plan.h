// Who takes which tokens of a micro-batch where ranks share out its rows (context parallelism), and
// which queries each of them computes attention for. Pure: no torch, no ranks, only the places of
// documents.
//
// What is cut is a row (`sequence`) or each document for itself (`document`: WLB-LLM, arXiv
// 2503.17924, section 5). It is cut into 2·R chunks for R ranks, and rank r takes chunks r and
// 2·R-1-r: an early one, whose tokens see few keys, and a late one that makes up for it. Chunks
// differ by one token: the tokens beyond a multiple of 2·R are dealt to one rank after another, and
// the next document of the row goes on where the one before ended. So in each row ranks have the
// same number of tokens to within one, and no length is rounded.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "trainer/ops/document_span.h"

namespace muster::trainer {

enum class ContextSharding { kAuto, kSequence, kDocument };

// Queries [begin, end) of a row, all of one document, and their keys, [document_begin, end). The
// mask is causal and aligned at the end: the last query sees every key.
struct ContextSequence {
  int64_t row = 0, document_begin = 0, begin = 0, end = 0;

  int64_t queries() const { return end - begin; }
  int64_t keys() const { return end - document_begin; }
  // Of queries with the keys that they see.
  int64_t pairs() const {
    return queries() * (keys() - queries()) + queries() * (queries() + 1) / 2;
  }
};

// What one rank does. At most two calls of attention: one of early chunks and one of late ones, so
// that within a call no key stands twice.
struct ContextPart {
  // The micro-batch's token (row · length + place) at each place of the part, row by row; -1 fills
  // up a row.
  std::vector<int64_t> tokens;
  std::array<std::vector<ContextSequence>, 2> calls;
};

struct ContextPlan {
  ContextSharding sharding = ContextSharding::kSequence;  // never kAuto
  int64_t length = 0;                                     // of each rank's rows, at least 1
  std::vector<ContextPart> parts;                         // by rank
};

// Of `batch` rows of `length` tokens each; tokens outside of all `documents` are padding, which
// nobody takes. `documents`: in the order of rows and places, not empty, not overlapping. kAuto
// takes what ContextCost says is cheaper.
ContextPlan PlanContext(const std::vector<ops::DocumentSpan>& documents, int64_t batch,
                        int64_t length, int ranks, ContextSharding sharding);

// What attention costs the rank that has the most of it, in pairs of a query and a key. Beside
// pairs, in tiles of queries as kernels take them, it counts the keys that are gathered, and a
// fixed cost a call.
double ContextCost(const ContextPlan& plan);
double ContextCost(const ContextPart& part);

}  // namespace muster::trainer
