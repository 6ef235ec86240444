// Ranks that share out a layer's experts: each has some of them whole. Rows go to the rank that has
// their expert and come back (all-to-all), however many there are: none, or all for one expert.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "trainer/parallel/groups.h"

namespace muster::trainer {

// Every rank of the group calls the same methods in the same order, with whatever it has; not
// thread-safe. With one rank everything is what it was given.
class ExpertGroup {
 public:
  ExpertGroup() = default;
  ExpertGroup(const Group& group, int64_t experts, at::Device device)
      : group_(group), experts_(experts), device_(device) {}

  int rank() const { return group_.rank; }
  int size() const { return group_.size; }

  // How rows travel.
  struct Route {
    std::vector<int64_t> sent, received;  // rows, by rank
    // Rows come from rank after rank, those of each by expert; and are brought into the order of
    // experts, those of one in the order of ranks. The row at each place then, and the place of
    // each row; undefined with one rank.
    at::Tensor rows, places;
    std::vector<int64_t> counts;  // rows here, by own expert
  };
  // Tells the others how many rows there are for each of their experts; returns what they tell:
  // [ranks, own experts] on the host. Undefined with one rank.
  at::Tensor TellCounts(const std::vector<int64_t>& counts) const;
  // Of rows in the order of their experts. `counts`: by expert; `told`: TellCounts's.
  Route Plan(const std::vector<int64_t>& counts, const at::Tensor& told) const;

  // [R, …] in the order of all experts → the rows of this rank's, in that of its own.
  at::Tensor ToExperts(const at::Tensor& rows, const Route& route) const;
  // The way back.
  at::Tensor FromExperts(const at::Tensor& rows, const Route& route) const;

 private:
  at::Tensor Exchange(const at::Tensor& rows, const std::vector<int64_t>& sent,
                      const std::vector<int64_t>& received) const;

  Group group_;
  int64_t experts_ = 0;
  at::Device device_ = at::kCPU;
};

}  // namespace muster::trainer
