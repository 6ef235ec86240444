#include "trainer/model/projection.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trainer/model/init.h"
#include "trainer/ops/fused.h"

namespace muster::trainer {
namespace {

// Number of the segment `name`, or -1.
int FindSegment(const FlatParam& flat, const std::string& name) {
  const std::vector<Segment>& segments = flat.layout().segments();
  const auto found = std::find_if(segments.begin(), segments.end(),
                                  [&](const Segment& segment) { return segment.name == name; });
  return found == segments.end() ? -1 : static_cast<int>(found - segments.begin());
}

// Rows of the weight `name`; 0: no flat has it.
int64_t RowsOf(const FlatList& flats, const std::string& name) {
  for (const FlatParam* flat : flats) {
    if (const int segment = FindSegment(*flat, name); segment >= 0)
      return flat->layout().segments()[segment].shape[0];
  }
  return 0;
}

}  // namespace

Parameter::Parameter(const FlatList& flats, const std::string& name, int count) {
  for (FlatParam* flat : flats) {
    if (const int segment = FindSegment(*flat, name); segment >= 0)
      *this = Parameter(*flat, segment, count);
  }
}

at::Tensor Dropout::Keep(const std::string& module, const at::Tensor& x, const BatchMeta& meta,
                         const Columns& columns) const {
  const int64_t width = columns.all > 0 ? columns.all : x.size(1);
  at::Tensor keep = at::empty({meta.batch, meta.length, width}, at::kFloat);
  for (int64_t row = 0; row < meta.batch; ++row) {
    at::Tensor part = keep.select(0, row);
    FillUniform(seed_, absl::StrCat("dropout ", module, " ", meta.rows[row]), 0, part.numel(),
                part.data_ptr<float>());
  }
  keep = keep.narrow(2, columns.begin, x.size(1)).contiguous();
  return (keep > share_).to(at::kFloat).div_(1 - share_).view_as(x).to(x.options());
}

Dropout::Mask Dropout::For(const std::string& module, const at::Tensor& x, const BatchMeta& meta,
                           const Columns& columns) const {
  Mask mask;
  if (share_ == 0 || meta.loss_only) return mask;
  if (meta.row_numbers.defined() && ops::fused::DrawsBeside(x)) {
    mask.numbers_ = meta.row_numbers;
    mask.seed_ = seed_, mask.share_ = share_;
    mask.prefix_ = NameHash(absl::StrCat("dropout ", module, " "));
    mask.columns_ = columns;
  } else {
    mask.keep_ = Keep(module, x, meta, columns);
  }
  return mask;
}

at::Tensor Dropout::Mask::Apply(const at::Tensor& x) const {
  if (keep_.defined()) return x * keep_;
  if (!numbers_.defined()) return x;
  if (columns_.all == 0) return ops::fused::Dropout(x, numbers_, seed_, prefix_, share_);
  // The kernel counts in whole rows.
  const at::Tensor whole = at::zeros({x.size(0), columns_.all}, x.options());
  whole.narrow(1, columns_.begin, x.size(1)).copy_(x);
  return ops::fused::Dropout(whole, numbers_, seed_, prefix_, share_)
      .narrow(1, columns_.begin, x.size(1))
      .contiguous();
}

bool Dropout::DrawsOnHost(const at::Tensor& weight) const {
  return share_ > 0 && !ops::fused::DrawsBeside(weight);
}

Projection::Projection(const FlatList& flats, const std::vector<std::string>& modules,
                       const Adapters& adapters, const LinearOptions& options, Slices slices,
                       const std::string& joined)
    : base_(flats, modules[0] + ".weight", static_cast<int>(modules.size())),
      bias_(flats, modules[0] + ".bias", static_cast<int>(modules.size())),
      tensor_(options.tensor),
      context_(options.context),
      fp8_(options.fp8),
      slices_(slices),
      scale_(adapters.scale),
      dropout_(adapters) {
  for (const FlatParam* flat : flats) {
    const int segment = FindSegment(*flat, modules[0] + ".weight");
    if (segment < 0) continue;
    const Segment& found = flat->layout().segments()[segment];
    if (found.slice && found.slice->dim == 1)
      columns_ = {found.slice->begin, found.sliced_shape[1]};
  }
  int64_t begin = 0;
  for (const std::string& module : modules) {
    const int64_t out = RowsOf(flats, module + ".weight");
    if (const auto found = adapters.modules.find(module); found != adapters.modules.end())
      branches_.push_back({module, found->second, begin, out});
    begin += out;
  }
  if (const auto found = adapters.modules.find(joined); found != adapters.modules.end())
    branches_.push_back({joined, found->second, 0, begin});
}

// The largest absolute values of whole tensors of which this rank's parts have `each`.
at::Tensor Projection::Largest(const std::vector<at::Tensor>& each) const {
  return context_.Largest(tensor_.Largest(at::stack(each)));
}

// Of this rank's rows of x alone: of all tokens, or of its part of them, without what fills up.
at::Tensor Projection::LargestOfTokens(const at::Tensor& x, bool is_part,
                                       const BatchMeta& meta) const {
  const int64_t first = is_part ? std::min(tensor_.rank() * x.size(0), meta.tokens()) : 0;
  const int64_t rows = std::min(x.size(0), meta.tokens() - first);
  return ops::fp8::Largest(x.narrow(0, 0, rows), meta.in_documents.defined()
                                                     ? meta.in_documents.narrow(0, first, rows)
                                                     : at::Tensor());
}

// Of x, or of `in`, which is all its tokens; undefined: they are gathered as bytes.
ops::fp8::Matrix Projection::TokensInFp8(const at::Tensor& x, const at::Tensor& in, bool is_part,
                                         const at::Tensor& largest, at::ScalarType type,
                                         const BatchMeta& meta) const {
  if (in.defined()) return ops::fp8::Quantise(in, largest, type);
  ops::fp8::Matrix part = ops::fp8::Quantise(x, largest, type);
  if (is_part)
    part.codes =
        tensor_.GatherTokens(part.codes.view(at::kByte), meta.tokens()).contiguous().view(type);
  return part;
}

at::Tensor Projection::ProductInFp8(const at::Tensor& x, const at::Tensor& in,
                                    const BatchMeta& meta) const {
  const at::Tensor largest =
      Largest({LargestOfTokens(x, Gathers(), meta), ops::fp8::Largest(base_.w)});
  const ops::fp8::Matrix tokens =
      TokensInFp8(x, in, Gathers(), largest[0], ops::fp8::kForward, meta);
  const ops::fp8::Matrix w = ops::fp8::Quantise(base_.w, largest[1], ops::fp8::kForward);
  return ops::fp8::Product(tokens, w, x.scalar_type());
}

at::Tensor Projection::BackwardInFp8(const at::Tensor& dy, const at::Tensor& d_out,
                                     const at::Tensor& x, const at::Tensor& in,
                                     const BatchMeta& meta) const {
  const bool trained = base_.d.defined();
  std::vector<at::Tensor> each = {LargestOfTokens(dy, Scatters(), meta),
                                  ops::fp8::Largest(base_.w)};
  if (trained) each.push_back(LargestOfTokens(x, Gathers(), meta));
  const at::Tensor largest = Largest(each);
  const ops::fp8::Matrix d =
      TokensInFp8(dy, d_out, Scatters(), largest[0], ops::fp8::kBackward, meta);
  if (trained)
    ops::fp8::AddWeightGradient(
        d, TokensInFp8(x, in, Gathers(), largest[2], ops::fp8::kForward, meta), base_.d);
  const ops::fp8::Matrix w = ops::fp8::Quantise(base_.w, largest[1], ops::fp8::kForward);
  return ops::fp8::Product(d, ops::fp8::Transposed(w), dy.scalar_type());
}

at::Tensor Projection::Forward(const at::Tensor& x, const BatchMeta& meta) const {
  const bool adapted = !branches_.empty() && !meta.adapters_off;
  const at::Tensor in = fp8_ && !adapted ? at::Tensor() : Gather(x, Gathers(), meta);
  at::Tensor y;
  if (fp8_) {
    y = ProductInFp8(x, in, meta);
    if (bias_.w.defined() && !Scatters()) y.add_(bias_.w);
  } else {
    y = ops::Linear(in, base_.w, Scatters() ? at::Tensor() : bias_.w);
  }
  for (const LowRankBranch& branch : branches_) {
    if (!adapted) break;
    const at::Tensor kept = dropout_.For(branch.module, in, meta, columns_).Apply(in);
    const at::Tensor inner = ops::Linear(kept, branch.adapter.a);  // [T, rank]
    y.narrow(1, branch.begin, branch.out).add_(ops::Linear(inner, branch.adapter.b), scale_);
  }
  if (!Scatters()) return y;
  y = tensor_.SumScatterTokens(y);
  return bias_.w.defined() ? y.add_(bias_.w) : y;  // once, not once a rank
}

at::Tensor Projection::Backward(const at::Tensor& dy, const at::Tensor& x,
                                const BatchMeta& meta) const {
  const bool bytes = fp8_ && branches_.empty();  // are gathered, where any are
  const at::Tensor in = bytes ? at::Tensor() : Gather(x, Gathers(), meta);
  const at::Tensor d_out = bytes ? at::Tensor() : Gather(dy, Scatters(), meta);
  at::Tensor dx = fp8_ ? BackwardInFp8(dy, d_out, x, in, meta)
                       : ops::LinearBackward(d_out, in, base_.w, base_.d);
  ops::AddBiasGradient(dy, bias_.d);
  for (const LowRankBranch& branch : branches_) {
    const Dropout::Mask mask = dropout_.For(branch.module, in, meta, columns_);
    const at::Tensor kept = mask.Apply(in);
    const at::Tensor inner = ops::Linear(kept, branch.adapter.a);
    const at::Tensor d_inner =
        ops::LinearBackward(d_out.narrow(1, branch.begin, branch.out) * scale_, inner,
                            branch.adapter.b, branch.adapter.d_b);
    dx.add_(mask.Apply(ops::LinearBackward(d_inner, kept, branch.adapter.a, branch.adapter.d_a)));
  }
  return Gathers() ? tensor_.SumScatterTokens(dx) : dx;
}

}  // namespace muster::trainer
