#include "trainer/optim/adamw.h"

#include <algorithm>
#include <cmath>

namespace muster::trainer {

double ShardSquaredNorm(const std::vector<std::unique_ptr<FlatParam>>& flats) {
  double sum = 0;
  for (const std::unique_ptr<FlatParam>& flat : flats) {
    // In double from the first addition on: the norm may not depend on how the shards lie.
    const at::Tensor gradient = flat->ShardGradient();
    constexpr int64_t kChunk = 1 << 20;
    for (int64_t begin = 0; begin < gradient.numel(); begin += kChunk) {
      const at::Tensor part = gradient.narrow(0, begin, std::min(kChunk, gradient.numel() - begin)).to(at::kDouble);
      sum += at::dot(part, part).item<double>();
    }
  }
  return sum;
}

double ClipCoefficient(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

AdamW::AdamW(std::vector<std::unique_ptr<FlatParam>>& flats, const AdamWConfig& config) : flats_(flats), config_(config) {
  for (const std::unique_ptr<FlatParam>& flat : flats_) {
    // Neighbours of one kind are updated as one stretch; the gaps between segments belong to none.
    for (const SegmentPiece& piece : PiecesIn(flat->layout(), flat->owned_begin(), flat->owned_end())) {
      const bool decay = config_.weight_decay != 0 && flat->layout().segments()[piece.segment].weight_decay;
      Add(decay ? decayed_ : plain_, *flat, piece.range_begin, piece.numel);
    }
  }
}

void AdamW::Add(Views& views, FlatParam& flat, int64_t begin, int64_t numel) {
  views.params.push_back(flat.masters().narrow(0, begin, numel));
  views.grads.push_back(flat.OwnedGradient().narrow(0, begin, numel));
  views.exp_avgs.push_back(flat.exp_avg().narrow(0, begin, numel));
  views.exp_avg_sqs.push_back(flat.exp_avg_sq().narrow(0, begin, numel));
  views.steps.push_back(at::zeros({}, flat.masters().options()));
}

void AdamW::Step(int64_t step, double learning_rate, double clip) {
  for (Views* views : {&decayed_, &plain_}) {
    if (views->params.empty()) continue;
    const double decay = views == &decayed_ ? config_.weight_decay : 0;
    for (at::Tensor& s : views->steps) s.fill_(static_cast<double>(step));
    if (clip != 1) {
      for (at::Tensor& grad : views->grads) grad.mul_(clip);
    }
    at::_fused_adamw_(views->params, views->grads, views->exp_avgs, views->exp_avg_sqs, /*max_exp_avg_sqs=*/{}, views->steps, learning_rate,
                      config_.beta1, config_.beta2, decay, config_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
  }
  for (const std::unique_ptr<FlatParam>& flat : flats_) flat->MarkStale();
}

}  // namespace muster::trainer
