#include "trainer/parallel/tensor_group.h"

#include <chrono>
#include <utility>

namespace muster::trainer {
namespace {

// Of this thread, which is a rank's.
thread_local double waited_s = 0;

}  // namespace

void TensorGroup::WaitFor(const c10::intrusive_ptr<c10d::Work>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work->wait();
  waited_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double TensorGroup::TakeWaited() { return std::exchange(waited_s, 0); }

at::Tensor TensorGroup::Stack(const at::Tensor& mine) const {
  if (size() == 1) return mine.unsqueeze(0);
  std::vector<int64_t> shape = mine.sizes().vec();
  shape.insert(shape.begin(), size());
  at::Tensor all = at::empty({size() * mine.numel()}, mine.options());
  at::Tensor sent = mine.contiguous().view(-1);
  WaitFor(group_.backend->_allgather_base(all, sent, {}));
  return all.view(shape);
}

at::Tensor TensorGroup::Largest(const at::Tensor& mine) const {
  return size() == 1 ? mine : Stack(mine).amax({0});
}

at::Tensor TensorGroup::GatherTokens(const at::Tensor& part, int64_t tokens) const {
  if (size() == 1) return part;
  TORCH_CHECK(part.size(0) == PartSize(tokens), "a part of ", part.size(0), " of ", tokens);
  return Stack(part).flatten(0, 1).narrow(0, 0, tokens);
}

at::Tensor TensorGroup::SumScatterTokens(const at::Tensor& all) const {
  if (size() == 1) return all;
  const int64_t part = PartSize(all.size(0)), filled = part * size();
  at::Tensor sent = all.contiguous();
  if (filled > all.size(0))
    sent = at::cat({sent, at::zeros({filled - all.size(0), all.size(1)}, all.options())});
  at::Tensor received = at::empty_like(sent);
  std::vector<int64_t> equal;  // parts of one size
  WaitFor(group_.backend->alltoall_base(received, sent, equal, equal, {}));
  const at::Tensor parts = received.view({size(), part, all.size(1)});
  at::Tensor sum = parts[0].to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  for (int rank = 1; rank < size(); ++rank) sum.add_(parts[rank]);
  return sum.to(all.scalar_type());
}

}  // namespace muster::trainer
