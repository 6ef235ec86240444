#include "trainer/model/balance.h"

#include <algorithm>
#include <vector>

namespace muster::trainer {

std::vector<uint8_t> CountedTokens(const BatchMeta& meta) {
  TORCH_CHECK(static_cast<int64_t>(meta.row_shares.size()) == meta.batch, "rows without shares");
  std::vector<uint8_t> counts(static_cast<size_t>(meta.tokens()), meta.positions.defined() ? 0 : 1);
  if (meta.context) counts = meta.context->counts;
  for (const ops::DocumentSpan& span : meta.documents)
    std::fill_n(counts.begin() + span.row * meta.length + span.begin, span.end - span.begin,
                uint8_t{1});
  for (int64_t row = 0; row < meta.batch; ++row) {
    if (meta.row_shares[row] == 0)
      std::fill_n(counts.begin() + row * meta.length, meta.length, uint8_t{0});
  }
  return counts;
}

RouterBalance::RouterBalance(const BalanceOptions& options, const BatchMeta& meta,
                             const ModelConfig& config, const TensorGroup& tensor,
                             const TensorGroup& context, at::Device device)
    : options_(options), tensor_(tensor), context_(context), experts_(config.experts.count) {
  // Which tokens count, and how many of a row do.
  const std::vector<uint8_t> counts = CountedTokens(meta);
  std::vector<int64_t> in_row(static_cast<size_t>(meta.batch), 0);
  double share = 0;
  int64_t in_all = 0;
  for (int64_t row = 0; row < meta.batch; ++row) {
    if (meta.row_shares[row] == 0) continue;
    in_row[row] = meta.context ? meta.context->row_tokens[row]
                               : std::count(counts.begin() + row * meta.length,
                                            counts.begin() + (row + 1) * meta.length, uint8_t{1});
    share += meta.row_shares[row], in_all += in_row[row];
  }
  const bool by_row = options.kind == BalanceKind::kSequence;
  groups_ = by_row ? meta.batch : 1;
  const auto layers = static_cast<double>(config.NumSparseLayers());
  const int64_t part = tensor.PartSize(meta.tokens());
  const at::Tensor group = at::zeros({part}, at::kLong), scale = at::zeros({part}, at::kFloat);
  for (int64_t i = 0; i < part; ++i) {
    const int64_t token = tensor.rank() * part + i;
    if (token >= meta.tokens()) break;
    const int64_t row = token / meta.length;
    if (counts[token] == 0) continue;
    const auto n = static_cast<double>(by_row ? in_row[row] : in_all);
    const double of_group = by_row ? meta.row_shares[row] / layers : share / (layers * layers);
    group.data_ptr<int64_t>()[i] = by_row ? row : 0;
    scale.data_ptr<float>()[i] = static_cast<float>(options.coefficient * of_group *
                                                    static_cast<double>(experts_) / (n * n));
  }
  group_ = group.to(device), scale_ = scale.to(device);
  counts_ = at::zeros({1, experts_}, scale_.options());
  sums_ = at::zeros({experts_}, scale_.options().dtype(at::kDouble));
  loss_ = at::zeros({1}, scale_.options().dtype(at::kDouble));
}

// What a token's probabilities are multiplied by.
at::Tensor RouterBalance::Factors(const at::Tensor& counts) const {
  return counts.index_select(0, group_).mul_(scale_.unsqueeze(1));
}

at::Tensor RouterBalance::Count(const at::Tensor& experts, const at::Tensor& probabilities) {
  at::Tensor counts = at::zeros({groups_ * experts_}, scale_.options());
  const at::Tensor places = group_.unsqueeze(1) * experts_ + experts;
  counts.scatter_add_(0, places.flatten(),
                      scale_.ne(0).to(at::kFloat).unsqueeze(1).expand_as(experts).flatten());
  counts = tensor_.Stack(counts.view({groups_, experts_})).sum({0});  // whole numbers
  counts = context_.Stack(counts).sum({0});
  if (options_.kind == BalanceKind::kSequence) {
    loss_.add_((Factors(counts) * probabilities).sum(at::kDouble));
  } else {
    counts_.add_(counts);
    sums_.add_((scale_.unsqueeze(1) * probabilities).sum({0}, /*keepdim=*/false, at::kDouble));
  }
  return counts;
}

at::Tensor RouterBalance::Gradient(const at::Tensor& counts) const {
  return Factors(options_.kind == BalanceKind::kSequence ? counts : counts_);
}

double RouterBalance::Loss() const {
  return options_.kind == BalanceKind::kSequence
             ? loss_.item<double>()
             : (sums_ * counts_.view({-1})).sum().item<double>();
}

}  // namespace muster::trainer
