#include "trainer/model/router_bias.h"

#include <algorithm>
#include <cstdint>

#include "trainer/model/balance.h"

namespace muster::trainer {

at::Tensor CountedPart(const BatchMeta& meta, const TensorGroup& tensor, at::Device device) {
  const std::vector<uint8_t> counts = CountedTokens(meta);
  const int64_t part = tensor.PartSize(meta.tokens()), first = tensor.rank() * part;
  const at::Tensor counted = at::zeros({part}, at::kFloat);
  for (int64_t i = 0; i < std::min(part, meta.tokens() - first); ++i)
    counted.data_ptr<float>()[i] = counts[first + i];
  return counted.to(device);
}

void MoveRouterBiases(const std::vector<std::unique_ptr<FlatParam>>& flats, double speed) {
  if (speed == 0) return;
  for (const std::unique_ptr<FlatParam>& flat : flats) {
    if (!flat->layout().router_bias()) continue;
    // Whole on every rank (OptionsOf), so each moves all of them alike.
    const int64_t count = flat->layout().segments()[0].numel;
    const at::Tensor met = flat->OwnedGradient().narrow(0, 0, count).to(at::kDouble);
    const at::Tensor up = at::sign(met.sum() - met * static_cast<double>(count)).to(at::kFloat);
    flat->masters().narrow(0, 0, count).add_(up, speed);
  }
}

}  // namespace muster::trainer
