#include "trainer/data/pairs.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

class PairPacker : public Packer {
 public:
  PairPacker(const TokenShards* shards, const PackingOptions& options, std::vector<int64_t> pairs,
             std::string note)
      : shards_(*shards),
        options_(options),
        pairs_(std::move(pairs)),
        order_(pairs_.size()),
        note_(std::move(note)) {}

  int64_t rows_per_epoch() const override { return static_cast<int64_t>(pairs_.size()); }
  int64_t row_length_max() const override {
    return 2 * (options_.max_length - (options_.scored ? 0 : 1));
  }
  bool uniform() const override { return false; }
  bool pairs() const override { return true; }
  std::string note() const override { return note_; }

  absl::Status Get(int64_t row, Sequence& out) override {
    out = {};
    out.pair = PairOf(row);
    for (const int64_t document : {2 * out.pair, 2 * out.pair + 1}) {
      const int64_t tokens = TokensOf(document);
      if (absl::Status s = options_.scored ? AppendScored(document, tokens, out)
                                           : AppendItem(shards_, {document, 0, tokens - 1}, out);
          !s.ok())
        return s;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<RowCounts> Count(int64_t row) override {
    const int64_t pair = PairOf(row);
    RowCounts counts;
    for (const int64_t document : {2 * pair, 2 * pair + 1}) {
      const int64_t tokens = TokensOf(document);
      if (!options_.scored) {
        CountItem(shards_, {document, 0, tokens - 1}, counts);
        continue;
      }
      counts.tokens += tokens;
      counts.targets += 1;  // where its score is read off
      counts.attended += static_cast<double>(tokens) * static_cast<double>(tokens);
    }
    return counts;
  }

 private:
  int64_t PairOf(int64_t row) {
    if (row / rows_per_epoch() != epoch_) LoadEpoch(row / rows_per_epoch());
    return pairs_[order_[row % rows_per_epoch()]];
  }
  int64_t TokensOf(int64_t document) const {
    return std::min(shards_.document_length(document), options_.max_length);
  }
  void LoadEpoch(int64_t epoch) {
    std::iota(order_.begin(), order_.end(), 0);
    SplitMix64::ForEpoch(options_.seed, epoch).Shuffle(order_.data(), rows_per_epoch());
    epoch_ = epoch;
  }

  absl::Status AppendScored(int64_t document, int64_t n, Sequence& out) const {
    std::vector<int64_t> tokens(n);
    std::vector<uint8_t> counts(n);
    if (absl::Status s = shards_.Read(document, 0, n, tokens.data(), counts.data()); !s.ok())
      return s;
    int64_t last = n - 1;
    while (last > 0 && tokens[last] == options_.pad_token) --last;
    std::fill(counts.begin(), counts.end(), 0);
    counts[last] = 1;
    out.tokens.insert(out.tokens.end(), tokens.begin(), tokens.end());
    // Nothing is predicted; they are there because rows have targets.
    out.targets.insert(out.targets.end(), tokens.begin() + 1, tokens.end());
    out.targets.push_back(tokens[n - 1]);
    out.counts.insert(out.counts.end(), counts.begin(), counts.end());
    if (out.bounds.empty()) out.bounds.push_back(0);
    out.bounds.push_back(static_cast<int64_t>(out.tokens.size()));
    return absl::OkStatus();
  }

  const TokenShards& shards_;
  const PackingOptions options_;
  const std::vector<int64_t> pairs_;  // that are trained on
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;
  const std::string note_;
};

// Whether one of a document's first `length` tokens counts.
absl::StatusOr<bool> Counts(const TokenShards& shards, int64_t document, int64_t length) {
  std::vector<int64_t> tokens(length);
  std::vector<uint8_t> counts(length);
  if (absl::Status s = shards.Read(document, 0, length, tokens.data(), counts.data()); !s.ok())
    return s;
  return std::any_of(counts.begin(), counts.end(), [](uint8_t c) { return c != 0; });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Packer>> MakePairPacker(const TokenShards* shards,
                                                       const PackingOptions& options) {
  const int64_t all = shards->num_documents() / 2;
  std::vector<int64_t> pairs;
  int64_t cut = 0;
  for (int64_t pair = 0; pair < all; ++pair) {
    bool kept = true, shortened = false;
    for (const int64_t document : {2 * pair, 2 * pair + 1}) {
      const int64_t length = shards->document_length(document);
      if (length < 2)
        return absl::DataLossError(
            absl::StrCat("document ", document, " of pairs has ", length,
                         " tokens; make the shards again with `muster-trainer prepare`"));
      if (length <= options.max_length) continue;
      shortened = true;
      if (options.scored) {
        kept = false;
        continue;
      }
      const absl::StatusOr<bool> counts = Counts(*shards, document, options.max_length);
      if (!counts.ok()) return counts.status();
      kept &= *counts;
    }
    cut += kept && shortened ? 1 : 0;
    if (kept) pairs.push_back(pair);
  }
  if (pairs.empty())
    return absl::InvalidArgumentError(
        absl::StrCat(options.scored ? "every pair is longer than max_length "
                                    : "every pair's prompt takes all of max_length ",
                     options.max_length, "; raise max_length"));
  std::string note;
  const int64_t lost = all - static_cast<int64_t>(pairs.size());
  if (options.scored && lost > 0)
    note = absl::StrCat("of ", all, " pairs, ", lost,
                        " are left out, as an answer with its prompt "
                        "is longer than max_length ",
                        options.max_length, "; raise max_length to keep them");
  else if (cut + lost > 0)
    note = absl::StrCat("of ", all, " pairs, ", cut, " lose their ends at max_length ",
                        options.max_length, ", and ", lost,
                        " are left out, as their prompts fill it; raise max_length to keep them");
  return std::make_unique<PairPacker>(shards, options, std::move(pairs), std::move(note));
}

}  // namespace muster::trainer
