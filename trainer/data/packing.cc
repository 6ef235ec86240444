#include "trainer/data/packing.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): the whole state is one counter, so an epoch's order needs no history.
struct SplitMix64 {
  uint64_t state;
  uint64_t Next() {
    uint64_t z = (state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  // Uniform below `n` (Lemire's multiply, with rejection).
  uint64_t Below(uint64_t n) {
    while (true) {
      const __uint128_t product = static_cast<__uint128_t>(Next()) * n;
      if (static_cast<uint64_t>(product) >= (0 - n) % n) return static_cast<uint64_t>(product >> 64);
    }
  }
};

}  // namespace

absl::StatusOr<Packer> Packer::Make(const TokenShards* shards, int64_t max_length, uint64_t seed) {
  Packer packer;
  packer.shards_ = shards;
  packer.max_length_ = max_length;
  packer.seed_ = seed;
  const int64_t stream = shards->num_tokens() + (shards->eos_id() >= 0 ? shards->num_documents() : 0);
  packer.windows_per_epoch_ = (stream - 1) / max_length;
  if (packer.windows_per_epoch_ < 1) {
    return absl::InvalidArgumentError(absl::StrCat("the data has ", stream, " tokens, too few for one sequence of max_length ", max_length));
  }
  return packer;
}

void Packer::LoadEpoch(int64_t epoch) {
  const int64_t n = shards_->num_documents();
  order_.resize(n);
  std::iota(order_.begin(), order_.end(), 0);
  SplitMix64 random{seed_};
  random.state = random.Next() ^ static_cast<uint64_t>(epoch);
  for (int64_t i = n - 1; i > 0; --i) std::swap(order_[i], order_[random.Below(static_cast<uint64_t>(i) + 1)]);
  start_.resize(n + 1);
  start_[0] = 0;
  const int64_t separator = shards_->eos_id() >= 0 ? 1 : 0;
  for (int64_t i = 0; i < n; ++i) start_[i + 1] = start_[i] + shards_->document_length(order_[i]) + separator;
  epoch_ = epoch;
}

absl::Status Packer::Get(int64_t sequence_number, Sequence& out) {
  const int64_t epoch = sequence_number / windows_per_epoch_;
  if (epoch != epoch_) LoadEpoch(epoch);
  const int64_t first = sequence_number % windows_per_epoch_ * max_length_;
  const int64_t last = first + max_length_ + 1;
  out.tokens.resize(max_length_ + 1);
  out.counts.resize(max_length_ + 1);
  int64_t i = std::upper_bound(start_.begin(), start_.end(), first) - start_.begin() - 1;
  for (int64_t at = first; at < last; ++i) {
    const int64_t length = shards_->document_length(order_[i]);
    const int64_t begin = at - start_[i];
    const int64_t end = std::min(length, last - start_[i]);
    if (begin < end) {
      shards_->Read(order_[i], begin, end, &out.tokens[at - first], &out.counts[at - first]);
      at += end - begin;
    }
    if (at < last && at == start_[i] + length && shards_->eos_id() >= 0) {
      out.tokens[at - first] = shards_->eos_id();
      out.counts[at - first] = 1;
      ++at;
    }
  }
  for (const int64_t id : out.tokens) {
    if (id >= shards_->vocab_size()) {
      return absl::DataLossError(absl::StrCat("the data holds token id ", id, ", but its vocab_size is ", shards_->vocab_size()));
    }
  }
  return absl::OkStatus();
}

}  // namespace muster::trainer
