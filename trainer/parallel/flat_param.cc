#include "trainer/parallel/flat_param.h"

#include <algorithm>
#include <utility>

namespace muster::trainer {
namespace {

constexpr int64_t kAlign = 32;  // elements

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

void FlatLayout::Add(std::string name, std::vector<int64_t> shape, bool weight_decay, bool joined) {
  Segment segment{std::move(name), std::move(shape), weight_decay, joined ? numel_ : RoundUp(numel_, kAlign), 1};
  for (const int64_t dim : segment.shape) segment.numel *= dim;
  numel_ = segment.offset + segment.numel;
  segments_.push_back(std::move(segment));
}

int64_t FlatLayout::PaddedNumel(int ranks) const { return RoundUp(numel_, kAlign * ranks); }

std::vector<SegmentPiece> PiecesIn(const FlatLayout& layout, int64_t begin, int64_t end) {
  std::vector<SegmentPiece> pieces;
  for (size_t i = 0; i < layout.segments().size(); ++i) {
    const Segment& segment = layout.segments()[i];
    const int64_t from = std::max(begin, segment.offset), to = std::min(end, segment.offset + segment.numel);
    if (from < to) pieces.push_back({static_cast<int>(i), from - segment.offset, from - begin, to - from});
  }
  return pieces;
}

FlatParam::FlatParam(FlatLayout layout, World* world, int zero_stage, at::ScalarType dtype, bool frozen)
    : layout_(std::move(layout)), world_(world), zero_stage_(frozen ? 0 : zero_stage), frozen_(frozen) {
  const int64_t padded = layout_.PaddedNumel(world->size());
  shard_numel_ = padded / world->size();
  owned_begin_ = zero_stage_ == 0 ? 0 : shard_begin();
  owned_numel_ = zero_stage_ == 0 ? padded : shard_numel_;
  const at::TensorOptions fp32 = at::TensorOptions().dtype(at::kFloat).device(world->device());
  params_ = at::zeros({padded}, fp32.dtype(dtype));
  if (frozen) return;
  grads_ = at::zeros({padded}, fp32);
  masters_ = dtype == at::kFloat ? params_.narrow(0, owned_begin_, owned_numel_) : at::zeros({owned_numel_}, fp32);
  exp_avg_ = at::zeros({owned_numel_}, fp32);
  exp_avg_sq_ = at::zeros({owned_numel_}, fp32);
}

at::Tensor& FlatParam::masters() {
  if (frozen_ && !masters_.defined()) {
    masters_ = params_.scalar_type() == at::kFloat ? params_ : at::zeros({owned_numel_}, params_.options().dtype(at::kFloat));
  }
  return masters_;
}

void FlatParam::FinishLoading() {
  TORCH_CHECK(frozen_ && masters_.defined(), "nothing was loaded");
  if (params_.scalar_type() != at::kFloat) params_.copy_(masters_);
  masters_ = at::Tensor();
  stale_ = false;
}

at::Tensor FlatParam::View(const at::Tensor& flat, int segment, int count) const {
  const Segment& first = layout_.segments()[segment];
  std::vector<int64_t> shape = first.shape;
  int64_t numel = first.numel;
  for (int i = 1; i < count; ++i) {
    const Segment& next = layout_.segments()[segment + i];
    TORCH_CHECK(next.offset == first.offset + numel, "segments are not joined: ", next.name);
    shape[0] += next.shape[0];
    numel += next.numel;
  }
  return flat.narrow(0, first.offset, numel).view(shape);
}

void FlatParam::StartGather() {
  if (!stale_) return;
  stale_ = false;
  at::Tensor owned = params_.narrow(0, owned_begin_, owned_numel_);
  if (params_.scalar_type() != at::kFloat) owned.copy_(masters_);
  if (zero_stage_ == 0 || world_->size() == 1) return;
  gather_ = world_->backend()->_allgather_base(params_, owned, {});
}

void FlatParam::FinishGather() {
  if (!gather_) return;
  gather_->wait();
  gather_.reset();
}

void FlatParam::StartReduce() {
  if (world_->size() == 1) return;
  if (zero_stage_ == 0 || world_->prefers_all_reduce()) {
    std::vector<at::Tensor> tensors = {grads_};
    reduce_ = world_->backend()->allreduce(tensors, {});
  } else {
    at::Tensor shard = ShardGradient();  // in place, as NCCL allows
    reduce_ = world_->backend()->_reduce_scatter_base(shard, grads_, {});
  }
}

void FlatParam::FinishReduce() {
  if (!reduce_) return;
  reduce_->wait();
  reduce_.reset();
}

}  // namespace muster::trainer
