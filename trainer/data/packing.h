// Which tokens a row of a batch holds: a pure function of the shards, the options and the row's
// number, so of nothing that depends on the number of ranks. Row k of step s is number s *
// global_batch_size + k.
//
// Ways of packing:
//   wrapped   Each epoch's documents stand in an order shuffled by (seed, epoch), and the stream is
//   cut into windows of
//             max_length tokens; neighbours share one token. Every epoch has the same number of
//             windows; what is left over at its end is dropped. With document_mask, attention and
//             positions begin anew in each document.
//   bfd       Best fit decreasing: whole documents (those above max_length in parts of it), as many
//   as fit into a row of
//             max_length. An epoch's rows are the same lengths put together each time; which
//             document of a length stands where, and the rows' order, are shuffled by (seed,
//             epoch).
//   none      One document (or part) a row.
//   balanced  Rows of different lengths and like work (trainer/data/balance.h).
//   pairs     A pair of documents a row (trainer/data/pairs.h).
// But for `wrapped` without document_mask, attention stays within a document, positions start at 0
// in each, and a document's last token predicts nothing: rows give what their documents alone
// would.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/data/shards.h"

namespace muster::trainer {

inline constexpr int kPackingVersion = 1;  // changes when the same seed gives other rows

struct Sequence {
  std::vector<int64_t> tokens;   // [n]
  std::vector<int64_t> targets;  // [n], the token behind each
  std::vector<uint8_t> counts;   // [n]; whether the target counts in the loss
  std::vector<int64_t>
      bounds;         // where its documents begin, and n at the end; empty: attention goes across
  int64_t pair = -1;  // number of its pair in the data (data/pairs.h); -1: it is none
};

// What the whole step must know of a row, whoever takes it.
struct RowCounts {
  int64_t tokens = 0;
  int64_t targets = 0;  // that count in the loss
  double attended = 0;  // sum of the squares of the lengths that attention runs over
};
RowCounts CountsOf(const Sequence& row);

struct PackingOptions {
  std::string kind = "wrapped";
  bool document_mask = false;
  int64_t max_length = 0;
  uint64_t seed = 0;
  // balanced only:
  int64_t max_row_length = 0;  // at least max_length
  int64_t rows_per_step = 1;   // the global batch
  int64_t linear_work =
      1;  // what a token costs beside attention, in units of one token attending to another
  // pairs only:
  bool scored = false;     // of whole documents, whose last token alone counts
  int64_t pad_token = -1;  // which is none; -1: any is
};

// Not thread-safe: it keeps the last epoch's order.
class Packer {
 public:
  // Fails if the data is too short for one row. `shards` must outlive the packer.
  static absl::StatusOr<std::unique_ptr<Packer>> Make(const TokenShards* shards,
                                                      const PackingOptions& options);
  virtual ~Packer() = default;

  // Fills `out`. Fails on a token id that isn't below vocab_size.
  virtual absl::Status Get(int64_t row, Sequence& out) = 0;
  // Those of the row that Get would fill: from the documents' lengths and masks, without a token.
  // (By default from the row itself.)
  virtual absl::StatusOr<RowCounts> Count(int64_t row);
  // Rows that make up one pass over the data; -1 where that differs from epoch to epoch (balanced).
  virtual int64_t rows_per_epoch() const = 0;
  // No row is longer.
  virtual int64_t row_length_max() const = 0;
  // Whether every target of every row counts and all rows have row_length_max() tokens.
  virtual bool uniform() const = 0;
  // Whether every row is a pair.
  virtual bool pairs() const { return false; }
  // What a user should know of what it leaves out; empty: nothing is.
  virtual std::string note() const { return ""; }
};

// Rows from several packers, in proportion to `weights` (positive): after any number of rows each
// has had its share to within one row of what its weight, rounded to 1/65536, gives. Each source
// goes through its own epochs.
std::unique_ptr<Packer> MixPackers(std::vector<std::unique_ptr<Packer>> packers,
                                   const std::vector<double>& weights);

// A document, or a part of it: `length` tokens from `begin`, each of which predicts the next.
struct Item {
  int64_t document = 0, begin = 0, length = 0;
};
// All of them, parts of at most max_length tokens; documents of one token have none.
std::vector<Item> CutIntoItems(const TokenShards& shards, int64_t max_length);
// Appends an item to a row.
absl::Status AppendItem(const TokenShards& shards, const Item& item, Sequence& out);
// Adds to a row's counts what AppendItem adds to the row.
void CountItem(const TokenShards& shards, const Item& item, RowCounts& counts);

// SplitMix64 (Steele, Lea, Flood 2014): the whole state is one counter, so an epoch's order needs
// no history.
struct SplitMix64 {
  uint64_t state;
  static SplitMix64 ForEpoch(uint64_t seed, int64_t epoch);
  uint64_t Next();
  // Uniform below `n` (Lemire's multiply, with rejection).
  uint64_t Below(uint64_t n);
  template <typename T>
  void Shuffle(T* values, int64_t n) {
    for (int64_t i = n - 1; i > 0; --i)
      std::swap(values[i], values[Below(static_cast<uint64_t>(i) + 1)]);
  }
};

}  // namespace muster::trainer
