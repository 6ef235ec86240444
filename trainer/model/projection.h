// What a block's parts are made of: parameters as views of a flat, and linears with LoRA's low-rank
// branches beside them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "trainer/model/blocks.h"
#include "trainer/model/config.h"
#include "trainer/ops/fp8.h"
#include "trainer/ops/ops.h"
#include "trainer/parallel/flat_param.h"

namespace muster::trainer {

// Where a block's weights stand: one flat, or that of its slices and that of the rest.
using FlatList = std::vector<FlatParam*>;

// A weight beside its gradient: views of a FlatParam. Both undefined where no flat has such a
// segment.
struct Parameter {
  at::Tensor w;
  ops::GradientSum d;
  Parameter() = default;
  Parameter(FlatParam& flat, int segment, int count = 1)
      : w(flat.Weight(segment, count)), d(flat.SumOf(segment, count)) {}
  Parameter(const FlatList& flats, const std::string& name, int count = 1);
};

// A norm of a model's; its weight is undefined where the model has no such norm.
class Norm {
 public:
  Norm() = default;
  Norm(const ModelConfig& config, Parameter weight)
      : weight_(std::move(weight)),
        epsilon_(config.rms_norm_eps),
        from_one_(config.norms_from_one) {}

  bool there() const { return weight_.w.defined(); }
  ops::RmsNormResult Forward(const at::Tensor& x) const {
    return ops::RmsNorm(x, weight_.w, epsilon_, from_one_);
  }
  ops::ResidualNormResult Forward(at::Tensor x, const at::Tensor& residual) const {
    return ops::ResidualRmsNorm(std::move(x), residual, weight_.w, epsilon_, from_one_);
  }
  at::Tensor Backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                      const at::Tensor& residual = {}) const {
    return ops::RmsNormBackward(dy, x, weight_.w, rstd, weight_.d, residual, from_one_);
  }
  // Of heads among columns, in place.
  ops::HeadNormResult Heads(const at::Tensor& qkv, int64_t begin, int64_t heads) const {
    return ops::NormHeads(qkv, begin, heads, weight_.w, epsilon_, from_one_);
  }
  void HeadsBackward(const at::Tensor& d_qkv, int64_t begin,
                     const ops::HeadNormResult& before) const {
    ops::NormHeadsBackward(d_qkv, begin, before, weight_.w, weight_.d, from_one_);
  }

 private:
  Parameter weight_;
  double epsilon_ = 0;
  bool from_one_ = false;
};

// The columns of an input that a rank has, from `begin` on, of `all`; 0: all of them.
struct Columns {
  int64_t begin = 0, all = 0;
};

// Dropout of the adapters' inputs.
class Dropout {
 public:
  Dropout() = default;
  explicit Dropout(const Adapters& adapters) : share_(adapters.dropout), seed_(adapters.seed) {}

  // What is kept of x [T, d] for one module: by seed, module, the row's number and the place in the
  // row, whoever computes it and how often.
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
    Columns columns_;
  };
  Mask For(const std::string& module, const at::Tensor& x, const BatchMeta& meta,
           const Columns& columns = {}) const;
  // Whether it draws on the host for inputs beside `weight`.
  bool DrawsOnHost(const at::Tensor& weight) const;

 private:
  at::Tensor Keep(const std::string& module, const at::Tensor& x, const BatchMeta& meta,
                  const Columns& columns) const;

  double share_ = 0;
  uint64_t seed_ = 0;
};

// How a block's linears are computed: the ranks that share out weights and rows, and whether
// products are of numbers in 8 bits.
struct LinearOptions {
  TensorGroup tensor, context;
  bool fp8 = false;
};

// y = x·wᵀ for one or several linears whose weights stand under each other, with the adapters
// beside them. Where a rank has a slice of the weights: of their outputs, then x is its part of the
// tokens and y all tokens; or of their inputs, then x is all tokens and y its part.
//
// In 8 bits (ops/fp8.h) the linears' weights together have one scale, and so have x and dy of a
// micro-batch. Scales are of whole tensors: of all ranks' slices and parts of rows, without
// padding. Adapters' products stay as they are.
class Projection {
 public:
  enum class Slices { kOfOutputs, kOfInputs };
  Projection() = default;
  // `modules`: the linears' names, whose weights (and biases, if any) are joined segments of a
  // flat. `joined`: the name of all of them as one linear, where an adapter may be beside that.
  Projection(const FlatList& flats, const std::vector<std::string>& modules,
             const Adapters& adapters, const LinearOptions& options, Slices slices,
             const std::string& joined = "");

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

  // All tokens of x, or of dy, where this rank has a part of them.
  at::Tensor Gather(const at::Tensor& x, bool gathers, const BatchMeta& meta) const {
    return gathers ? tensor_.GatherTokens(x, meta.tokens()) : x;
  }
  at::Tensor Largest(const std::vector<at::Tensor>& each) const;
  at::Tensor LargestOfTokens(const at::Tensor& x, bool is_part, const BatchMeta& meta) const;
  ops::fp8::Matrix TokensInFp8(const at::Tensor& x, const at::Tensor& in, bool is_part,
                               const at::Tensor& largest, at::ScalarType type,
                               const BatchMeta& meta) const;
  at::Tensor ProductInFp8(const at::Tensor& x, const at::Tensor& in, const BatchMeta& meta) const;
  at::Tensor BackwardInFp8(const at::Tensor& dy, const at::Tensor& d_out, const at::Tensor& x,
                           const at::Tensor& in, const BatchMeta& meta) const;

  bool Gathers() const { return tensor_.size() > 1 && slices_ == Slices::kOfOutputs; }
  bool Scatters() const { return tensor_.size() > 1 && slices_ == Slices::kOfInputs; }

  Parameter base_, bias_;
  TensorGroup tensor_, context_;
  bool fp8_ = false;
  Slices slices_ = Slices::kOfOutputs;
  Columns columns_;  // of its input
  std::vector<LowRankBranch> branches_;
  double scale_ = 1;
  Dropout dropout_;
};

}  // namespace muster::trainer
