// What a block's parts are made of: parameters as views of a flat, and linears with LoRA's low-rank
// branches beside them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "trainer/model/blocks.h"
#include "trainer/parallel/flat_param.h"

namespace muster::trainer {

// A weight beside its gradient: views of a FlatParam. Both undefined where the flat has no such
// segment.
struct Parameter {
  at::Tensor w, d;
  Parameter() = default;
  Parameter(const FlatParam& flat, int segment, int count = 1)
      : w(flat.Weight(segment, count)), d(flat.Gradient(segment, count)) {}
  Parameter(const FlatParam& flat, const std::string& name, int count = 1);
};

// Dropout of the adapters' inputs.
class Dropout {
 public:
  Dropout() = default;
  explicit Dropout(const Adapters& adapters) : share_(adapters.dropout), seed_(adapters.seed) {}

  // What is kept of x [T, d] for one module: by seed, module and the row's number, whoever computes
  // it and how often.
  class Mask {
   public:
    // x with what is kept scaled up, and the rest zero.
    at::Tensor Apply(const at::Tensor& x) const;

   private:
    friend class Dropout;
    at::Tensor keep_;     // drawn on the host; undefined where it is drawn by a kernel
    at::Tensor numbers_;  // of the rows; undefined where nothing is dropped
    uint64_t seed_ = 0, prefix_ = 0;
    double share_ = 0;
  };
  Mask For(const std::string& module, const at::Tensor& x, const BatchMeta& meta) const;
  // Whether it draws on the host for inputs beside `weight`.
  bool DrawsOnHost(const at::Tensor& weight) const;

 private:
  at::Tensor Keep(const std::string& module, const at::Tensor& x, const BatchMeta& meta) const;

  double share_ = 0;
  uint64_t seed_ = 0;
};

// y = x·wᵀ for one or several linears whose weights stand under each other, with the adapters
// beside them.
class Projection {
 public:
  Projection() = default;
  // `modules`: the linears' names, whose weights (and biases, if any) are joined segments of the
  // flat.
  Projection(const FlatParam& flat, const std::vector<std::string>& modules,
             const Adapters& adapters);

  at::Tensor Forward(const at::Tensor& x, const BatchMeta& meta) const;
  at::Tensor Backward(const at::Tensor& dy, const at::Tensor& x, const BatchMeta& meta) const;

  // Whether anything in it is drawn on the host.
  bool Draws() const { return !branches_.empty() && dropout_.DrawsOnHost(base_.w); }

 private:
  struct LowRankBranch {
    std::string module;
    Adapter adapter;
    int64_t begin = 0, out = 0;  // its columns of y
  };

  Parameter base_, bias_;
  std::vector<LowRankBranch> branches_;
  double scale_ = 1;
  Dropout dropout_;
};

}  // namespace muster::trainer
