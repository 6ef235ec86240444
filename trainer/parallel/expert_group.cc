#include "trainer/parallel/expert_group.h"

#include <numeric>

#include "trainer/parallel/tensor_group.h"

namespace muster::trainer {

at::Tensor ExpertGroup::Exchange(const at::Tensor& rows, const std::vector<int64_t>& sent,
                                 const std::vector<int64_t>& received) const {
  std::vector<int64_t> shape = rows.sizes().vec();
  shape[0] = std::accumulate(received.begin(), received.end(), int64_t{0});
  at::Tensor from = rows.contiguous(), to = at::empty(shape, rows.options());
  std::vector<int64_t> out = received, in = sent;
  TensorGroup::WaitFor(group_.backend->alltoall_base(to, from, out, in, {}));
  return to;
}

at::Tensor ExpertGroup::TellCounts(const std::vector<int64_t>& counts) const {
  if (size() == 1) return {};
  const at::Tensor mine = at::tensor(counts, at::kLong).view({size(), experts_ / size()});
  const std::vector<int64_t> equal(static_cast<size_t>(size()), 1);
  return Exchange(mine.to(device_), equal, equal).cpu();
}

ExpertGroup::Route ExpertGroup::Plan(const std::vector<int64_t>& counts,
                                     const at::Tensor& told) const {
  Route route;
  if (size() == 1) {
    route.counts = counts;
    return route;
  }
  const int64_t own = experts_ / size();
  const auto* counted = told.data_ptr<int64_t>();
  std::vector<int64_t> keys;  // of each row that comes, its expert
  route.counts.assign(static_cast<size_t>(own), 0);
  for (int rank = 0; rank < size(); ++rank) {
    int64_t all = 0;
    for (int64_t expert = 0; expert < own; ++expert) {
      const int64_t rows = counted[rank * own + expert];
      keys.insert(keys.end(), static_cast<size_t>(rows), expert);
      route.counts[expert] += rows;
      all += rows;
    }
    route.received.push_back(all);
    route.sent.push_back(std::accumulate(counts.begin() + rank * own,
                                         counts.begin() + (rank + 1) * own, int64_t{0}));
  }
  const at::Tensor key = at::tensor(keys, at::kLong).to(device_);
  route.rows = std::get<1>(at::sort(key, /*stable=*/true, /*dim=*/0, /*descending=*/false));
  route.places = at::empty_like(route.rows);
  route.places.scatter_(0, route.rows, at::arange(key.size(0), key.options()));
  return route;
}

at::Tensor ExpertGroup::ToExperts(const at::Tensor& rows, const Route& route) const {
  if (size() == 1) return rows;
  return Exchange(rows, route.sent, route.received).index_select(0, route.rows);
}

at::Tensor ExpertGroup::FromExperts(const at::Tensor& rows, const Route& route) const {
  if (size() == 1) return rows;
  return Exchange(rows.index_select(0, route.places), route.received, route.sent);
}

}  // namespace muster::trainer
