#include "trainer/data/batches.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/Parallel.h>

#include "trainer/model/pairs.h"

// Of OpenMP's runtime. omp.h lies among GCC's own headers, where clang-tidy doesn't look.
extern "C" void omp_set_num_threads(int);

namespace muster::trainer {

int64_t SharePerRank(int64_t global_batch, int ranks) { return (global_batch + ranks - 1) / ranks; }

std::vector<Cut> CutBatch(int64_t global_batch, int64_t micro_batch, int rank, int ranks,
                          int tree_ranks) {
  std::vector<Cut> cuts;
  if (tree_ranks == 0) {
    const int64_t share = SharePerRank(global_batch, ranks);
    for (int64_t begin = 0; begin < share; begin += micro_batch)
      cuts.push_back({rank * share + begin, std::min(micro_batch, share - begin)});
    return cuts;
  }
  for (int64_t turn = 0; turn < global_batch; turn += tree_ranks * micro_batch) {
    const int64_t first = turn + rank * micro_batch;
    if (rank < tree_ranks && first < global_batch)
      cuts.push_back({first, std::min(micro_batch, global_batch - first)});
    else
      cuts.push_back({global_batch, 1});
  }
  return cuts;
}

BatchReader::BatchReader(Packer* packer, int64_t global_batch, int64_t micro_batch, int rank,
                         int ranks, at::Device device, int64_t rows, const ContextShare& context,
                         int tree_ranks)
    : packer_(*packer),
      global_batch_(global_batch),
      cuts_(CutBatch(global_batch, micro_batch, rank, ranks, tree_ranks)),
      device_(device),
      rows_(rows),
      context_(context) {}

absl::StatusOr<StepBatches> BatchReader::Read(int64_t first) {
  absl::StatusOr<StepBatches> step =
      ahead_.valid() && ahead_first_ == first ? ahead_.get() : (Wait(), ReadOnHost(first));
  if (!step.ok() || !device_.is_cuda()) return step;
  for (BatchMeta& meta : step->micro) {
    if (meta.context) MoveContext(*meta.context, device_);
    const auto move = [this](at::Tensor& one) {
      if (one.defined()) one = one.pin_memory().to(device_, /*non_blocking=*/true);
    };
    for (at::Tensor* one : {&meta.ids, &meta.targets, &meta.weights, &meta.positions,
                            &meta.row_numbers, &meta.sequences.bounds, &meta.in_documents})
      move(*one);
    if (meta.pairs) {
      for (at::Tensor* one : {&meta.pairs->chosen, &meta.pairs->rejected, &meta.pairs->shares})
        move(*one);
    }
  }
  return step;
}

void BatchReader::ReadAhead(int64_t first) {
  Wait();
  ahead_first_ = first;
  ahead_ = std::async(std::launch::async, [this, first] {
    at::get_num_threads();   // torch sets them when a thread first asks
    omp_set_num_threads(1);  // of this thread: OpenMP would start others beside it each time
    return ReadOnHost(first);
  });
}

namespace {

// What is known of rows that are pairs or fill up, of `length` tokens each. `share`: of the step's
// pairs.
std::shared_ptr<PairBatch> PairsOf(const std::vector<Sequence>& rows, int64_t length,
                                   double share) {
  const auto n = static_cast<int64_t>(rows.size());
  auto found = std::make_shared<PairBatch>();
  found->chosen = at::zeros({n * length}, at::kFloat);
  found->rejected = at::zeros({n * length}, at::kFloat);
  found->shares = at::zeros({n}, at::kDouble);
  for (int64_t i = 0; i < n; ++i) {
    const Sequence& row = rows[i];
    found->pairs.push_back(row.pair);
    if (row.pair < 0) continue;
    found->shares.data_ptr<double>()[i] = share;
    const int64_t middle = row.bounds[1];  // where the rejected document begins
    std::copy(row.counts.begin(), row.counts.begin() + middle,
              found->chosen.data_ptr<float>() + i * length);
    std::copy(row.counts.begin() + middle, row.counts.end(),
              found->rejected.data_ptr<float>() + i * length + middle);
  }
  return found;
}

}  // namespace

absl::StatusOr<StepBatches> BatchReader::ReadOnHost(int64_t first) {
  StepBatches step;
  // Every rank counts the whole batch, so that the loss can be scaled before the first backward. It
  // reads its own rows alone.
  if (packer_.uniform() && Exists(first + global_batch_ - 1)) {
    const double length = static_cast<double>(packer_.row_length_max());
    step.target_tokens = step.tokens = global_batch_ * packer_.row_length_max();
    step.attended_tokens = static_cast<double>(global_batch_) * length * length;
  } else {
    for (int64_t k = 0; k < global_batch_ && Exists(first + k); ++k) {
      const absl::StatusOr<RowCounts> row = packer_.Count(first + k);
      if (!row.ok()) return row.status();
      step.tokens += row->tokens;
      step.target_tokens += row->targets;
      step.attended_tokens += row->attended;
    }
  }
  const int64_t existing =
      rows_ < 0 ? global_batch_ : std::clamp<int64_t>(rows_ - first, 1, global_batch_);
  const float share = 1.0f / static_cast<float>(existing);
  const float scale = 1.0f / static_cast<float>(std::max<int64_t>(1, step.target_tokens));
  step.averaged = packer_.pairs() ? existing : step.target_tokens;
  for (const auto& [begin, n] : cuts_) {
    std::vector<Sequence> rows(n);
    std::vector<float> shares(n);
    bool documents = false;
    int64_t length = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t k = begin + i;
      if (k < global_batch_ && Exists(first + k)) {
        if (absl::Status s = packer_.Get(first + k, rows[i]); !s.ok()) return s;
      }
      shares[i] = rows[i].tokens.empty() ? 0 : share;
      documents |= !rows[i].bounds.empty();
      length = std::max(length, static_cast<int64_t>(rows[i].tokens.size()));
    }
    if (length == 0)
      documents = true, length = 1;  // a rank without a row runs along, with padding alone
    const bool padded = std::any_of(rows.begin(), rows.end(), [length](const Sequence& row) {
      return static_cast<int64_t>(row.tokens.size()) < length;
    });
    const at::Tensor ids = at::zeros({n * length}, at::kLong);
    const at::Tensor targets = at::zeros({n * length}, at::kLong);
    const at::Tensor weights = at::zeros({n * length}, at::kFloat);
    const at::Tensor positions = documents ? at::zeros({n * length}, at::kLong) : at::Tensor();
    const at::Tensor in_documents =
        documents || padded ? at::zeros({n * length}, at::kFloat) : at::Tensor();
    BatchMeta meta{.batch = n, .length = length};
    meta.row_shares = std::move(shares);
    for (int64_t i = 0; i < n; ++i) {
      const Sequence& row = rows[i];
      meta.rows.push_back(first + begin + i);
      std::copy(row.tokens.begin(), row.tokens.end(), ids.data_ptr<int64_t>() + i * length);
      std::copy(row.targets.begin(), row.targets.end(), targets.data_ptr<int64_t>() + i * length);
      std::transform(row.counts.begin(), row.counts.end(), weights.data_ptr<float>() + i * length,
                     [scale](uint8_t c) { return c != 0 ? scale : 0.0f; });
      if (in_documents.defined() && row.bounds.empty())
        std::fill_n(in_documents.data_ptr<float>() + i * length, row.tokens.size(), 1.0f);
      for (size_t d = 0; d + 1 < row.bounds.size(); ++d) {
        meta.documents.push_back({i, row.bounds[d], row.bounds[d + 1]});
        int64_t* at = positions.data_ptr<int64_t>() + i * length;
        std::iota(at + row.bounds[d], at + row.bounds[d + 1], 0);
        float* in = in_documents.data_ptr<float>() + i * length;
        std::fill(in + row.bounds[d], in + row.bounds[d + 1], 1.0f);
      }
    }
    meta.ids = ids, meta.targets = targets, meta.weights = weights, meta.positions = positions;
    meta.in_documents = in_documents;
    if (packer_.pairs()) meta.pairs = PairsOf(rows, length, 1 / static_cast<double>(existing));
    if (device_.is_cuda()) meta.row_numbers = at::tensor(meta.rows, at::kLong);
    if (documents && device_.is_cuda()) {
      const std::vector<int32_t> bounds = ops::SequenceBounds(meta.documents, n, length);
      for (size_t i = 0; i + 1 < bounds.size(); ++i)
        meta.sequences.longest =
            std::max<int64_t>(meta.sequences.longest, bounds[i + 1] - bounds[i]);
      meta.sequences.bounds = at::tensor(bounds, at::kInt);
    }
    step.micro.push_back(TakeContextPart(std::move(meta), context_, /*bounds=*/device_.is_cuda()));
  }
  return step;
}

absl::StatusOr<std::vector<int32_t>> BatchReader::ReadIds(int64_t first) {
  Wait();
  const int64_t width = packer_.row_length_max() + 1;
  std::vector<int32_t> ids(global_batch_ * width, -1);
  Sequence row;
  for (int64_t k = 0; k < global_batch_; ++k) {
    if (absl::Status s = packer_.Get(first + k, row); !s.ok()) return s;
    std::copy(row.tokens.begin(), row.tokens.end(), ids.begin() + k * width);
    if (!row.targets.empty())
      ids[k * width + static_cast<int64_t>(row.tokens.size())] =
          static_cast<int32_t>(row.targets.back());
  }
  return ids;
}

}  // namespace muster::trainer
