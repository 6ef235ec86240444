#include "trainer/model/projection.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trainer/model/init.h"

namespace muster::trainer {
namespace {

// Number of the segment `name`, or -1.
int FindSegment(const FlatParam& flat, const std::string& name) {
  const std::vector<Segment>& segments = flat.layout().segments();
  const auto found = std::find_if(segments.begin(), segments.end(),
                                  [&](const Segment& segment) { return segment.name == name; });
  return found == segments.end() ? -1 : static_cast<int>(found - segments.begin());
}

}  // namespace

Parameter::Parameter(const FlatParam& flat, const std::string& name, int count) {
  if (const int segment = FindSegment(flat, name); segment >= 0)
    *this = Parameter(flat, segment, count);
}

at::Tensor Dropout::Keep(const std::string& module, const at::Tensor& x,
                         const BatchMeta& meta) const {
  if (share_ == 0 || meta.loss_only) return {};
  const at::Tensor keep = at::empty({meta.batch, meta.length, x.size(1)}, at::kFloat);
  for (int64_t row = 0; row < meta.batch; ++row) {
    at::Tensor part = keep.select(0, row);
    FillUniform(seed_, absl::StrCat("dropout ", module, " ", meta.rows[row]), 0, part.numel(),
                part.data_ptr<float>());
  }
  return (keep > share_).to(at::kFloat).div_(1 - share_).view_as(x).to(x.options());
}

Projection::Projection(const FlatParam& flat, const std::vector<std::string>& modules,
                       const Adapters& adapters)
    : base_(flat, modules[0] + ".weight", static_cast<int>(modules.size())),
      bias_(flat, modules[0] + ".bias", static_cast<int>(modules.size())),
      scale_(adapters.scale),
      dropout_(adapters) {
  int64_t begin = 0;
  for (const std::string& module : modules) {
    const int64_t out = flat.layout().segments()[FindSegment(flat, module + ".weight")].shape[0];
    if (const auto found = adapters.modules.find(module); found != adapters.modules.end())
      branches_.push_back({module, found->second, begin, out});
    begin += out;
  }
}

at::Tensor Projection::Forward(const at::Tensor& x, const BatchMeta& meta) const {
  at::Tensor y = ops::Linear(x, base_.w, bias_.w);
  for (const LowRankBranch& branch : branches_) {
    const at::Tensor keep = dropout_.Keep(branch.module, x, meta);
    const at::Tensor inner =
        ops::Linear(keep.defined() ? x * keep : x, branch.adapter.a);  // [T, rank]
    y.narrow(1, branch.begin, branch.out).add_(ops::Linear(inner, branch.adapter.b), scale_);
  }
  return y;
}

at::Tensor Projection::Backward(const at::Tensor& dy, const at::Tensor& x,
                                const BatchMeta& meta) const {
  at::Tensor dx = ops::LinearBackward(dy, x, base_.w, base_.d);
  ops::AddBiasGradient(dy, bias_.d);
  for (const LowRankBranch& branch : branches_) {
    const at::Tensor keep = dropout_.Keep(branch.module, x, meta);
    const at::Tensor kept = keep.defined() ? x * keep : x;
    const at::Tensor inner = ops::Linear(kept, branch.adapter.a);
    const at::Tensor d_inner = ops::LinearBackward(dy.narrow(1, branch.begin, branch.out) * scale_,
                                                   inner, branch.adapter.b, branch.adapter.d_b);
    at::Tensor d = ops::LinearBackward(d_inner, kept, branch.adapter.a, branch.adapter.d_a);
    if (keep.defined()) d.mul_(keep);
    dx.add_(d);
  }
  return dx;
}

}  // namespace muster::trainer
