// Where a document stands in a row of tokens. Needs no torch.
#pragma once

#include <cstdint>

namespace muster::trainer::ops {

// Tokens [begin, end) of a row.
struct DocumentSpan {
  int64_t row = 0, begin = 0, end = 0;
};

}  // namespace muster::trainer::ops
