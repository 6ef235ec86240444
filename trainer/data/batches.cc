#include "trainer/data/batches.h"

#include <algorithm>
#include <utility>

namespace muster::trainer {

int64_t SharePerRank(int64_t global_batch, int ranks) { return (global_batch + ranks - 1) / ranks; }

BatchReader::BatchReader(Packer packer, const TokenShards& shards, int64_t max_length, int64_t global_batch, int64_t micro_batch, int rank,
                         int ranks, at::Device device)
    : packer_(std::move(packer)), masked_(shards.has_masks()), max_length_(max_length), global_batch_(global_batch), micro_batch_(micro_batch),
      share_(SharePerRank(global_batch, ranks)), rank_(rank), device_(device) {}

absl::StatusOr<StepBatches> BatchReader::Read(int64_t first) {
  StepBatches step;
  Sequence sequence;
  step.target_tokens = global_batch_ * max_length_;
  if (masked_) {
    // Every rank counts the whole batch, so that the loss can be scaled before the first backward.
    step.target_tokens = 0;
    for (int64_t k = 0; k < global_batch_; ++k) {
      if (absl::Status s = packer_.Get(first + k, sequence); !s.ok()) return s;
      step.target_tokens += std::count_if(sequence.counts.begin() + 1, sequence.counts.end(), [](uint8_t c) { return c != 0; });
    }
  }
  const float scale = 1.0f / static_cast<float>(std::max<int64_t>(1, step.target_tokens));
  for (int64_t begin = 0; begin < share_; begin += micro_batch_) {
    const int64_t n = std::min(micro_batch_, share_ - begin);
    const at::Tensor ids = at::zeros({n * max_length_}, at::kLong);
    const at::Tensor targets = at::zeros({n * max_length_}, at::kLong);
    const at::Tensor weights = at::zeros({n * max_length_}, at::kFloat);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t k = rank_ * share_ + begin + i;
      if (k >= global_batch_) break;
      if (absl::Status s = packer_.Get(first + k, sequence); !s.ok()) return s;
      std::copy_n(sequence.tokens.begin(), max_length_, ids.data_ptr<int64_t>() + i * max_length_);
      std::copy_n(sequence.tokens.begin() + 1, max_length_, targets.data_ptr<int64_t>() + i * max_length_);
      std::transform(sequence.counts.begin() + 1, sequence.counts.end(), weights.data_ptr<float>() + i * max_length_,
                     [scale](uint8_t c) { return c != 0 ? scale : 0.0f; });
    }
    step.micro.push_back({n, max_length_, ids.to(device_), targets.to(device_), weights.to(device_)});
  }
  return step;
}

absl::StatusOr<std::vector<int32_t>> BatchReader::ReadIds(int64_t first) {
  std::vector<int32_t> ids;
  Sequence sequence;
  for (int64_t k = 0; k < global_batch_; ++k) {
    if (absl::Status s = packer_.Get(first + k, sequence); !s.ok()) return s;
    ids.insert(ids.end(), sequence.tokens.begin(), sequence.tokens.end());
  }
  return ids;
}

}  // namespace muster::trainer
