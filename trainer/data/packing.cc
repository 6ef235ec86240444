#include "trainer/data/packing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/data/balance.h"
#include "trainer/data/pairs.h"

namespace muster::trainer {
namespace {

double Square(int64_t n) { return static_cast<double>(n) * static_cast<double>(n); }

class WrappedPacker : public Packer {
 public:
  WrappedPacker(const TokenShards* shards, const PackingOptions& options)
      : shards_(*shards),
        options_(options),
        windows_(std::max<int64_t>(0, (shards->num_tokens() - 1) / options.max_length)) {}

  int64_t rows_per_epoch() const override { return windows_; }
  int64_t row_length_max() const override { return options_.max_length; }
  bool uniform() const override { return !shards_.has_masks() && !options_.document_mask; }

  absl::Status Get(int64_t row, Sequence& out) override {
    if (row / windows_ != epoch_) LoadEpoch(row / windows_);
    const int64_t length = options_.max_length, first = row % windows_ * length,
                  last = first + length + 1;
    tokens_.resize(length + 1);
    counts_.resize(length + 1);
    out.bounds.clear();
    int64_t i = DocumentAt(first);
    for (int64_t at = first; at < last; ++i) {
      const int64_t end = std::min(start_[i + 1], last);
      if (at == end) continue;  // a document without tokens
      if (absl::Status s = shards_.Read(order_[i], at - start_[i], end - start_[i],
                                        &tokens_[at - first], &counts_[at - first]);
          !s.ok())
        return s;
      if (options_.document_mask && at < last - 1) out.bounds.push_back(at - first);
      at = end;
    }
    out.tokens.assign(tokens_.begin(), tokens_.end() - 1);
    out.targets.assign(tokens_.begin() + 1, tokens_.end());
    out.counts.assign(counts_.begin() + 1, counts_.end());
    if (options_.document_mask) {
      // No document's end predicts what happens to stand behind it.
      for (const int64_t bound : out.bounds) {
        if (bound > 0) out.counts[bound - 1] = 0;
      }
      if (std::binary_search(start_.begin(), start_.end(), last - 1)) out.counts[length - 1] = 0;
      out.bounds.push_back(length);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<RowCounts> Count(int64_t row) override {
    if (row / windows_ != epoch_) LoadEpoch(row / windows_);
    const int64_t length = options_.max_length, first = row % windows_ * length,
                  last = first + length + 1;
    RowCounts counts{.tokens = length};
    int64_t i = DocumentAt(first);
    for (int64_t at = first; at < last; ++i) {
      const int64_t end = std::min(start_[i + 1], last);
      if (at == end) continue;
      // The window's first token is no target, nor with document_mask a document's.
      const int64_t skipped = at == first || options_.document_mask ? 1 : 0;
      counts.targets += shards_.Counting(order_[i], at - start_[i] + skipped, end - start_[i]);
      if (options_.document_mask) counts.attended += Square(std::min(end, last - 1) - at);
      at = end;
    }
    if (!options_.document_mask) counts.attended = Square(length);
    return counts;
  }

 private:
  // The document, by its place in this epoch's order, that has the stream's token `at`.
  int64_t DocumentAt(int64_t at) const {
    return std::upper_bound(start_.begin(), start_.end(), at) - start_.begin() - 1;
  }
  void LoadEpoch(int64_t epoch) {
    const int64_t n = shards_.num_documents();
    order_.resize(n);
    std::iota(order_.begin(), order_.end(), 0);
    SplitMix64::ForEpoch(options_.seed, epoch).Shuffle(order_.data(), n);
    start_.resize(n + 1);
    start_[0] = 0;
    for (int64_t i = 0; i < n; ++i) start_[i + 1] = start_[i] + shards_.document_length(order_[i]);
    epoch_ = epoch;
  }

  const TokenShards& shards_;
  const PackingOptions options_;
  const int64_t windows_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;  // documents in this epoch's order
  std::vector<int64_t> start_;  // where each stands in the stream, plus the stream's length
  std::vector<int64_t> tokens_;
  std::vector<uint8_t> counts_;
};

// Which capacities 0..max have a bin, as a bitmap over bitmaps: the smallest one from `least` on in
// a few steps.
class CapacitySet {
 public:
  explicit CapacitySet(int64_t max) {
    for (int64_t n = max + 1;; n = (n + 63) / 64) {
      levels_.emplace_back((n + 63) / 64, 0);
      if (n <= 64) break;
    }
  }
  void Insert(int64_t value) {
    for (std::vector<uint64_t>& level : levels_) {
      level[value / 64] |= uint64_t{1} << (value % 64);
      value /= 64;
    }
  }
  void Erase(int64_t value) {
    for (std::vector<uint64_t>& level : levels_) {
      level[value / 64] &= ~(uint64_t{1} << (value % 64));
      if (level[value / 64] != 0) return;
      value /= 64;
    }
  }
  // The smallest member that is >= least, or -1.
  int64_t AtLeast(int64_t least) const {
    for (size_t up = 0; up < levels_.size(); ++up) {
      if (least / 64 >= static_cast<int64_t>(levels_[up].size())) return -1;
      if (const uint64_t bits = levels_[up][least / 64] >> (least % 64); bits != 0) {
        int64_t value = least + std::countr_zero(bits);
        while (up-- > 0) value = value * 64 + std::countr_zero(levels_[up][value]);
        return value;
      }
      least = least / 64 + 1;
    }
    return -1;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;
};

// bfd and none. A *slot* is a place for an item of a given length in a row; slots stand in order of
// falling length. Which rows hold which slots never changes; which item fills which slot of its
// length, and in which order rows come, is the epoch's.
class DocumentPacker : public Packer {
 public:
  DocumentPacker(const TokenShards* shards, const PackingOptions& options)
      : shards_(*shards), options_(options), items_(CutIntoItems(*shards, options.max_length)) {
    std::stable_sort(items_.begin(), items_.end(),
                     [](const Item& a, const Item& b) { return a.length > b.length; });
    std::vector<int64_t> row_of_slot(items_.size());
    int64_t rows = 0;
    if (options.kind == "none") {
      rows = static_cast<int64_t>(items_.size());
      std::iota(row_of_slot.begin(), row_of_slot.end(), 0);
    } else {
      std::vector<std::vector<int64_t>> open(options.max_length + 1);  // rows by room left
      CapacitySet rooms(options.max_length);
      for (size_t slot = 0; slot < items_.size(); ++slot) {
        const int64_t length = items_[slot].length, room = rooms.AtLeast(length);
        int64_t left = options.max_length - length;
        if (room < 0) {
          row_of_slot[slot] = rows++;
        } else {
          row_of_slot[slot] = open[room].back();
          open[room].pop_back();
          if (open[room].empty()) rooms.Erase(room);
          left = room - length;
        }
        if (left > 0) {
          open[left].push_back(row_of_slot[slot]);
          rooms.Insert(left);
        }
      }
    }
    // Slots by row, as offsets into one list.
    row_begin_.assign(rows + 1, 0);
    for (const int64_t row : row_of_slot) ++row_begin_[row + 1];
    std::partial_sum(row_begin_.begin(), row_begin_.end(), row_begin_.begin());
    slots_.resize(items_.size());
    std::vector<int64_t> next(row_begin_.begin(), row_begin_.end() - 1);
    for (size_t slot = 0; slot < items_.size(); ++slot)
      slots_[next[row_of_slot[slot]]++] = static_cast<int64_t>(slot);
  }

  int64_t rows_per_epoch() const override { return static_cast<int64_t>(row_begin_.size()) - 1; }
  int64_t row_length_max() const override { return options_.max_length; }
  bool uniform() const override { return false; }

  absl::Status Get(int64_t row, Sequence& out) override {
    out = {};
    for (const int64_t slot : SlotsOf(row)) {
      if (absl::Status s = AppendItem(shards_, items_[item_of_slot_[slot]], out); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<RowCounts> Count(int64_t row) override {
    RowCounts counts;
    for (const int64_t slot : SlotsOf(row)) CountItem(shards_, items_[item_of_slot_[slot]], counts);
    return counts;
  }

 private:
  std::span<const int64_t> SlotsOf(int64_t row) {
    if (row / rows_per_epoch() != epoch_) LoadEpoch(row / rows_per_epoch());
    const int64_t which = row_order_[row % rows_per_epoch()];
    return std::span<const int64_t>(slots_).subspan(
        static_cast<size_t>(row_begin_[which]),
        static_cast<size_t>(row_begin_[which + 1] - row_begin_[which]));
  }
  void LoadEpoch(int64_t epoch) {
    SplitMix64 random = SplitMix64::ForEpoch(options_.seed, epoch);
    item_of_slot_.resize(items_.size());
    std::iota(item_of_slot_.begin(), item_of_slot_.end(), 0);
    for (size_t begin = 0, end; begin < items_.size(); begin = end) {
      for (end = begin; end < items_.size() && items_[end].length == items_[begin].length; ++end) {
      }
      random.Shuffle(&item_of_slot_[begin], static_cast<int64_t>(end - begin));
    }
    row_order_.resize(rows_per_epoch());
    std::iota(row_order_.begin(), row_order_.end(), 0);
    random.Shuffle(row_order_.data(), rows_per_epoch());
    epoch_ = epoch;
  }

  const TokenShards& shards_;
  const PackingOptions options_;
  std::vector<Item> items_;  // by falling length
  std::vector<int64_t> row_begin_, slots_;
  int64_t epoch_ = -1;
  std::vector<int64_t> item_of_slot_, row_order_;
};

class BalancedPacker : public Packer {
 public:
  BalancedPacker(const TokenShards* shards, const PackingOptions& options)
      : shards_(*shards), options_(options), items_(CutIntoItems(*shards, options.max_length)) {}

  int64_t rows_per_epoch() const override { return -1; }
  int64_t row_length_max() const override { return options_.max_row_length; }
  bool uniform() const override { return false; }

  absl::Status Get(int64_t row, Sequence& out) override {
    out = {};
    for (const int64_t item : ItemsOf(row)) {
      if (absl::Status s = AppendItem(shards_, items_[order_[item]], out); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<RowCounts> Count(int64_t row) override {
    RowCounts counts;
    for (const int64_t item : ItemsOf(row)) CountItem(shards_, items_[order_[item]], counts);
    return counts;
  }

 private:
  // As indices into order_, which it loads.
  const std::vector<int64_t>& ItemsOf(int64_t row) {
    const int64_t step = row / options_.rows_per_step;
    while (step >=
           epoch_begin_.back() + EpochSteps(static_cast<int64_t>(epoch_begin_.size()) - 1)) {
      epoch_begin_.push_back(epoch_begin_.back() +
                             EpochSteps(static_cast<int64_t>(epoch_begin_.size()) - 1));
    }
    const int64_t epoch =
        std::upper_bound(epoch_begin_.begin(), epoch_begin_.end(), step) - epoch_begin_.begin() - 1;
    LoadEpoch(epoch);
    return steps_[step - epoch_begin_[epoch]][row % options_.rows_per_step];
  }
  int64_t EpochSteps(int64_t epoch) {
    LoadEpoch(epoch);
    return static_cast<int64_t>(steps_.size());
  }
  void LoadEpoch(int64_t epoch) {
    if (epoch == epoch_) return;
    order_.resize(items_.size());
    std::iota(order_.begin(), order_.end(), 0);
    SplitMix64::ForEpoch(options_.seed, epoch)
        .Shuffle(order_.data(), static_cast<int64_t>(items_.size()));
    std::vector<int64_t> lengths(items_.size());
    for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = items_[order_[i]].length;
    steps_ = BalanceSteps(lengths, {options_.max_length, options_.max_row_length,
                                    options_.rows_per_step, options_.linear_work});
    epoch_ = epoch;
  }

  const TokenShards& shards_;
  const PackingOptions options_;
  const std::vector<Item> items_;
  std::vector<int64_t> epoch_begin_ = {0};  // first step of the epochs known so far
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;
  std::vector<Step> steps_;
};

class Mixture : public Packer {
 public:
  Mixture(std::vector<std::unique_ptr<Packer>> packers, const std::vector<double>& weights)
      : packers_(std::move(packers)) {
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    // Shares of a cycle by largest remainder, none below one row.
    std::vector<std::pair<double, size_t>> remainders;
    int64_t given = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const double exact = weights[i] / sum * kCycle;
      shares_.push_back(std::max<int64_t>(1, static_cast<int64_t>(std::floor(exact))));
      given += shares_.back();
      remainders.emplace_back(static_cast<double>(shares_.back()) - exact, i);
    }
    std::sort(remainders.begin(), remainders.end());
    for (size_t i = 0; given < kCycle; i = (i + 1) % remainders.size(), ++given)
      ++shares_[remainders[i].second];
    while (given > kCycle) --*std::max_element(shares_.begin(), shares_.end()), --given;
    // The cycle's order: whoever is furthest behind his share comes next.
    std::vector<int64_t> had(shares_.size(), 0);
    for (int64_t at = 0; at < kCycle; ++at) {
      size_t next = 0;
      for (size_t i = 1; i < shares_.size(); ++i) {
        if (shares_[i] * (at + 1) - had[i] * kCycle > shares_[next] * (at + 1) - had[next] * kCycle)
          next = i;
      }
      cycle_.emplace_back(static_cast<int>(next), had[next]++);
    }
  }

  int64_t rows_per_epoch() const override { return -1; }
  int64_t row_length_max() const override {
    int64_t longest = 0;
    for (const auto& packer : packers_) longest = std::max(longest, packer->row_length_max());
    return longest;
  }
  bool uniform() const override {
    return std::all_of(packers_.begin(), packers_.end(),
                       [](const auto& packer) { return packer->uniform(); });
  }
  absl::Status Get(int64_t row, Sequence& out) override {
    const auto [source, own_row] = Locate(row);
    return packers_[source]->Get(own_row, out);
  }
  absl::StatusOr<RowCounts> Count(int64_t row) override {
    const auto [source, own_row] = Locate(row);
    return packers_[source]->Count(own_row);
  }

 private:
  // The source of a row, and its number there.
  std::pair<int, int64_t> Locate(int64_t row) const {
    const auto& [source, before] = cycle_[row % kCycle];
    return {source, row / kCycle * shares_[source] + before};
  }

  static constexpr int64_t kCycle = 1 << 16;
  std::vector<std::unique_ptr<Packer>> packers_;
  std::vector<int64_t> shares_;  // rows of each source in a cycle
  std::vector<std::pair<int, int64_t>>
      cycle_;  // of each row: its source, and how many of that came before
};

}  // namespace

SplitMix64 SplitMix64::ForEpoch(uint64_t seed, int64_t epoch) {
  SplitMix64 random{seed};
  random.state = random.Next() ^ static_cast<uint64_t>(epoch);
  return random;
}

uint64_t SplitMix64::Next() {
  uint64_t z = (state += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

uint64_t SplitMix64::Below(uint64_t n) {
  while (true) {
    const __uint128_t product = static_cast<__uint128_t>(Next()) * n;
    if (static_cast<uint64_t>(product) >= (0 - n) % n) return static_cast<uint64_t>(product >> 64);
  }
}

std::vector<Item> CutIntoItems(const TokenShards& shards, int64_t max_length) {
  std::vector<Item> items;
  for (int64_t document = 0; document < shards.num_documents(); ++document) {
    const int64_t predicting = shards.document_length(document) - 1;
    for (int64_t begin = 0; begin < predicting; begin += max_length)
      items.push_back({document, begin, std::min(max_length, predicting - begin)});
  }
  return items;
}

absl::Status AppendItem(const TokenShards& shards, const Item& item, Sequence& out) {
  const size_t at = out.tokens.size(), n = static_cast<size_t>(item.length);
  std::vector<int64_t> tokens(n + 1);
  std::vector<uint8_t> counts(n + 1);
  if (absl::Status s = shards.Read(item.document, item.begin, item.begin + item.length + 1,
                                   tokens.data(), counts.data());
      !s.ok())
    return s;
  out.tokens.insert(out.tokens.end(), tokens.begin(), tokens.end() - 1);
  out.targets.insert(out.targets.end(), tokens.begin() + 1, tokens.end());
  out.counts.insert(out.counts.end(), counts.begin() + 1, counts.end());
  if (out.bounds.empty()) out.bounds.push_back(0);
  out.bounds.push_back(static_cast<int64_t>(at + n));
  return absl::OkStatus();
}

void CountItem(const TokenShards& shards, const Item& item, RowCounts& counts) {
  counts.tokens += item.length;
  counts.targets += shards.Counting(item.document, item.begin + 1, item.begin + item.length + 1);
  counts.attended += Square(item.length);
}

RowCounts CountsOf(const Sequence& row) {
  RowCounts counts{.tokens = static_cast<int64_t>(row.tokens.size())};
  counts.targets =
      std::count_if(row.counts.begin(), row.counts.end(), [](uint8_t c) { return c != 0; });
  if (row.bounds.empty()) counts.attended = Square(counts.tokens);
  for (size_t i = 0; i + 1 < row.bounds.size(); ++i)
    counts.attended += Square(row.bounds[i + 1] - row.bounds[i]);
  return counts;
}

absl::StatusOr<RowCounts> Packer::Count(int64_t row) {
  Sequence sequence;
  if (absl::Status s = Get(row, sequence); !s.ok()) return s;
  return CountsOf(sequence);
}

absl::StatusOr<std::unique_ptr<Packer>> Packer::Make(const TokenShards* shards,
                                                     const PackingOptions& options) {
  if (options.kind == "wrapped") {
    auto packer = std::make_unique<WrappedPacker>(shards, options);
    if (packer->rows_per_epoch() >= 1) return packer;
    return absl::InvalidArgumentError(
        absl::StrCat("the data has ", shards->num_tokens(),
                     " tokens, too few for one sequence of max_length ", options.max_length));
  }
  if (options.kind == "pairs") return MakePairPacker(shards, options);
  bool some = false;
  for (int64_t document = 0; document < shards->num_documents() && !some; ++document)
    some = shards->document_length(document) > 1;
  if (!some)
    return absl::InvalidArgumentError(
        "the data has no document of two tokens: there is nothing to predict");
  if (options.kind == "balanced") return std::make_unique<BalancedPacker>(shards, options);
  return std::make_unique<DocumentPacker>(shards, options);
}

std::unique_ptr<Packer> MixPackers(std::vector<std::unique_ptr<Packer>> packers,
                                   const std::vector<double>& weights) {
  return std::make_unique<Mixture>(std::move(packers), weights);
}

}  // namespace muster::trainer
