#include "trainer/parallel/flat_param.h"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <utility>

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "trainer/optim/adamw_kernel.h"

namespace muster::trainer {
namespace {

constexpr int64_t kAlign = 32;  // elements

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A tensor whose memory comes later.
at::Tensor Unbound(int64_t numel, const at::TensorOptions& options) {
  const size_t bytes = static_cast<size_t>(numel) * options.dtype().itemsize();
  const at::Tensor tensor = at::empty({0}, options);
  return tensor.set_(
      c10::Storage(c10::Storage::use_byte_size_t{}, bytes, at::DataPtr(nullptr, options.device())),
      0, {numel}, {1});
}

double ThreadSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

constexpr size_t kHugePage = size_t{2} << 20;

// Takes the pages of fresh memory, which starts at a multiple of kHugePage, all at once. A huge one
// takes a quarter of the time that as many small ones do, where the kernel has it at hand; where it
// must compact memory first, or a hypervisor must find it, several times as long. Each tells by its
// time whether the next is worth it: after a slow one come small ones, for longer each time.
void TakePages(uint8_t* memory, size_t bytes) {
  constexpr int kPause = 16, kLongestPause = 128;  // small ones, in the room of so many huge ones
  thread_local double small_s = 0;  // the last kHugePage in small ones; 0: not known yet
  thread_local int left = 1, pause = kPause;
  for (size_t at = 0; at < bytes; at += kHugePage) {
    const size_t size = std::min(kHugePage, bytes - at);
    const bool huge = size == kHugePage && left == 0;
    if (huge) ::madvise(memory + at, size, MADV_HUGEPAGE);
    const double begin_s = ThreadSeconds();
    if (::madvise(memory + at, size, MADV_POPULATE_WRITE) != 0)
      return;  // a kernel before 5.14: the pages come at their first touch
    const double taken_s = ThreadSeconds() - begin_s;
    if (!huge) {
      if (size == kHugePage) small_s = taken_s, left = std::max(0, left - 1);
    } else if (taken_s > small_s) {
      left = pause;
      pause = std::min(2 * pause, kLongestPause);
    } else {
      pause = kPause;
    }
  }
}

// Zeros. On the host large ones are fresh pages, taken all at once: they are zero already, and
// touching them one by one would be a good part of a start. Where they are to be pinned, so are
// these pages: torch's allocator of pinned memory would round their size up to a power of two.
at::Tensor Zeros(int64_t numel, const at::TensorOptions& options) {
  const size_t bytes = static_cast<size_t>(numel) * options.dtype().itemsize();
  if (!options.device().is_cpu() || bytes < (size_t{1} << 20)) return at::zeros({numel}, options);
  const size_t mapped = bytes + kHugePage;
  void* memory =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(memory != MAP_FAILED, "no memory for ", bytes, " bytes");
  uint8_t* begin = reinterpret_cast<uint8_t*>(
      (reinterpret_cast<uintptr_t>(memory) + kHugePage - 1) / kHugePage * kHugePage);
  TakePages(begin, bytes);
  const bool pinned = options.pinned_memory();
  if (pinned) {
    const cudaError_t error = cudaHostRegister(begin, bytes, cudaHostRegisterDefault);
    TORCH_CHECK(error == cudaSuccess, "the host can't pin ", bytes,
                " bytes: ", cudaGetErrorString(error),
                "; offload less, or give the job more memory");
  }
  const auto give_back = [memory, mapped, begin, pinned](void*) {
    if (pinned) cudaHostUnregister(begin);
    ::munmap(memory, mapped);
  };
  return at::from_blob(begin, {numel}, give_back, options.pinned_memory(false));
}

Int8Moments::Which MomentOf(FlatParam::State which) {
  return which == FlatParam::kExpAvg ? Int8Moments::kExpAvg : Int8Moments::kExpAvgSq;
}

uint16_t* Bits(const at::Tensor& tensor) { return static_cast<uint16_t*>(tensor.data_ptr()); }

}  // namespace

void FlatLayout::Add(std::string name, std::vector<int64_t> shape, bool weight_decay, bool joined) {
  Segment segment{std::move(name), std::move(shape), weight_decay,
                  joined ? numel_ : RoundUp(numel_, kAlign), 1};
  for (const int64_t dim : segment.shape) segment.numel *= dim;
  numel_ = segment.offset + segment.numel;
  segments_.push_back(std::move(segment));
}

void FlatLayout::AddSlice(std::string name, std::vector<int64_t> shape, const Slice& slice,
                          bool weight_decay, bool joined) {
  std::vector<int64_t> own = shape;
  own[slice.dim] = slice.end - slice.begin;
  Add(std::move(name), std::move(own), weight_decay, joined);
  segments_.back().slice = slice;
  segments_.back().sliced_shape = std::move(shape);
}

int64_t FlatLayout::PaddedNumel(int ranks) const { return RoundUp(numel_, kAlign * ranks); }

std::vector<SegmentPiece> PiecesIn(const FlatLayout& layout, int64_t begin, int64_t end) {
  std::vector<SegmentPiece> pieces;
  for (size_t i = 0; i < layout.segments().size(); ++i) {
    const Segment& segment = layout.segments()[i];
    const int64_t from = std::max(begin, segment.offset),
                  to = std::min(end, segment.offset + segment.numel);
    if (from < to)
      pieces.push_back({static_cast<int>(i), from - segment.offset, from - begin, to - from});
  }
  return pieces;
}

void ForEachRun(const FlatLayout& layout, const SegmentPiece& piece,
                const std::function<void(int64_t, int64_t, int64_t)>& body) {
  const Segment& segment = layout.segments()[piece.segment];
  const SlicePlaces whole(segment.parameter_shape(), std::nullopt);
  ForEachCommon(segment.places(), piece.segment_begin, piece.segment_begin + piece.numel, whole, 0,
                whole.numel(), [&](int64_t own, int64_t in_parameter, int64_t count) {
                  body(piece.range_begin + own - piece.segment_begin, in_parameter, count);
                });
}

std::pair<int64_t, int64_t> ShardRange(const FlatLayout& layout, int rank, int ranks, int group) {
  const int64_t numel = layout.PaddedNumel(ranks) / ranks,
                begin = ((rank % group) * (ranks / group) + rank / group) * numel;
  return {begin, begin + numel};
}

FlatOptions OptionsOf(const FlatLayout& layout, FlatOptions options) {
  if (layout.router_bias())
    return {.frozen = options.frozen, .poison = options.poison, .zero_first = options.zero_first};
  if (!layout.linears()) options.quantisation = Quantisation::kNone;
  if (!Int8Moments::IsFor(layout)) options.int8_moments = false;
  if (!layout.holding().both_ends) return options;
  options.sum_once = true;
  options.bf16_gradients = false;
  return options;
}

FlatMemory MemoryOf(const FlatLayout& layout, int ranks, int group, const FlatOptions& options) {
  FlatMemory m;
  const int64_t padded = layout.PaddedNumel(ranks),
                element = static_cast<int64_t>(at::elementSize(options.dtype));
  // Frozen weights are whole on every rank unless weights are what is sharded.
  const int64_t owned = options.zero_stage >= (options.frozen ? 3 : 1) ? padded / group : padded;
  m.weights_in_slot = options.zero_stage == 3 && (group > 1 || options.host_weights);
  m.weights = (m.weights_in_slot ? owned : padded) * element;
  if (options.quantisation != Quantisation::kNone) {
    const int sharing = options.zero_stage == 3 ? group : 1;
    m.weights_in_slot = true;
    m.weights = QuantisedWeights::OwnedBytes(layout, options.quantisation, sharing);
    if (sharing > 1) m.in_transit = m.weights * sharing;
  }
  if (options.frozen) return m;
  const bool tree = options.tree_units > 0;
  m.gradients_in_slot = options.separate_gradients || options.bf16_gradients || tree ||
                        (options.zero_stage >= 2 && group > 1 && !options.sum_once);
  m.reduces_slot = tree || (m.gradients_in_slot && ranks > 1 && !options.sum_once &&
                            (options.zero_stage >= 2 || options.bf16_gradients));
  m.gradients = (m.reduces_slot ? owned : padded) * (options.bf16_gradients ? 2 : 4) +
                options.tree_levels * owned * 4;
  const bool one_memory =
      options.dtype == at::kFloat && (!options.host_state || options.host_weights);
  m.masters = options.split_masters ? owned * 2 : one_memory ? 0 : owned * 4;
  m.moments = options.int8_moments ? Int8Moments::Bytes(layout, owned)
                                   : 2 * owned * (options.bf16_moments ? 2 : 4);
  return m;
}

FlatParam::FlatParam(FlatLayout layout, World* world, const FlatOptions& options)
    : layout_(std::move(layout)),
      world_(world),
      holders_(world->holders(layout_.holding())),
      stage_(world->holders({layout_.sliced(), false, layout_.holding().experts}).whole),
      options_(options) {
  const int ranks = whole().size, group = shard().size;
  const int64_t padded = layout_.PaddedNumel(ranks);
  const FlatMemory memory = MemoryOf(layout_, ranks, group, options);
  weights_in_slot_ = memory.weights_in_slot, gradients_in_slot_ = memory.gradients_in_slot,
  reduces_slot_ = memory.reduces_slot;
  const auto [begin, end] = ShardRange(layout_, whole().rank, ranks, group);
  shard_begin_ = begin, shard_numel_ = end - begin;
  const bool sharded = options.zero_stage >= (options.frozen ? 3 : 1);
  owned_numel_ = sharded ? padded / group : padded;
  owned_begin_ = sharded ? shard().rank * owned_numel_ : 0;
  TORCH_CHECK(weights_in_slot_ || !options.host_weights, "weights on the host need stage 3");

  const at::TensorOptions fp32 = at::TensorOptions().dtype(at::kFloat).device(world->device());
  const at::TensorOptions half = fp32.dtype(at::kBFloat16);
  const auto on_host = [&](const at::TensorOptions& of, bool host) {
    return host ? of.device(at::kCPU).pinned_memory(world->device().is_cuda()) : of;
  };
  params_ = weights_in_slot_ ? Unbound(padded, fp32.dtype(options.dtype))
                             : Zeros(padded, fp32.dtype(options.dtype));
  if (options.quantisation != Quantisation::kNone) {
    TORCH_CHECK(options.frozen && !options.host_weights, "only frozen weights are quantised");
    const bool shares = options.zero_stage == 3 && group > 1;
    quantised_.emplace(layout_, options.quantisation, shares ? shard().rank : 0, shares ? group : 1,
                       world->device());
    return;
  }
  owned_weights_ =
      weights_in_slot_
          ? Zeros(owned_numel_, on_host(fp32.dtype(options.dtype), options.host_weights))
          : params_.narrow(0, owned_begin_, owned_numel_);
  if (options.frozen) return;
  if (gradients_in_slot_) {
    grads_ = Unbound(padded, fp32);
    sums_ = Zeros(reduces_slot_ ? owned_numel_ : padded, options.bf16_gradients ? half : fp32);
  } else {
    sums_ = grads_ = Zeros(padded, fp32);
  }
  for (int level = 0; level < options.tree_levels; ++level)
    tree_.TakeMemory(Zeros(owned_numel_, fp32));
  if (options.split_masters)
    low_bits_ = Zeros(owned_numel_, on_host(fp32.dtype(at::kShort), options.host_state));
  else
    masters_ = memory.masters == 0 ? owned_weights_
                                   : Zeros(owned_numel_, on_host(fp32, options.host_state));
  if (options.int8_moments) {
    TORCH_CHECK(!options.host_state, "moments in 8 bits stay with the weights");
    int8_moments_.emplace(layout_, owned_begin_, owned_numel_, world->device());
    return;
  }
  const at::TensorOptions moments = on_host(options.bf16_moments ? half : fp32, options.host_state);
  exp_avg_ = Zeros(owned_numel_, moments);
  exp_avg_sq_ = Zeros(owned_numel_, moments);
}

FlatMemory FlatParam::Memory() const {
  const auto bytes = [](const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  };
  return {
      quantised_         ? bytes(quantised_->owned())
      : weights_in_slot_ ? bytes(owned_weights_)
                         : bytes(params_),
      bytes(sums_) + tree_.bytes(),
      (masters_.is_same(owned_weights_) ? 0 : bytes(masters_)) + bytes(low_bits_),
      int8_moments_ ? int8_moments_->bytes() : bytes(exp_avg_) + bytes(exp_avg_sq_),
      quantised_ && quantised_->ranks() > 1 ? bytes(quantised_->owned()) * quantised_->ranks() : 0,
      weights_in_slot_,
      gradients_in_slot_,
      reduces_slot_};
}

void FlatParam::Bind(at::Tensor& tensor, void* memory) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(memory, tensor.device()));
}

at::Tensor FlatParam::Owned(State which) const {
  if (which != kMaster && int8_moments_) {
    const at::Tensor values = at::empty({owned_numel_}, at::kFloat);
    int8_moments_->Copy(MomentOf(which), 0, values);
    return values;
  }
  if (which != kMaster) return (which == kExpAvg ? exp_avg_ : exp_avg_sq_).to(at::kFloat);
  if (masters_.defined()) return masters_;
  if (owned_weights_.is_cuda()) return JoinByAten(owned_weights_, low_bits_);
  const at::Tensor joined = at::empty({owned_numel_}, low_bits_.options().dtype(at::kFloat));
  JoinMasters(Bits(owned_weights_), Bits(low_bits_), joined.data_ptr<float>(), owned_numel_);
  return joined;
}

bool FlatParam::KeptOnHost(State which) const {
  const at::Tensor& kept = which == kExpAvg     ? exp_avg_
                           : which == kExpAvgSq ? exp_avg_sq_
                           : masters_.defined() ? masters_
                                                : owned_weights_;
  return !kept.defined() || kept.is_cpu();  // undefined: in 8 bits, which are decoded on the host
}

void FlatParam::CopyShard(State which, int64_t begin, const at::Tensor& out, bool wait) const {
  TORCH_CHECK(!being_updated(), "state is read while it is updated");
  const auto part = [&](const at::Tensor& owned) {
    return OfShard(owned).narrow(0, begin, out.numel());
  };
  if (which != kMaster && int8_moments_) {
    int8_moments_->Copy(MomentOf(which), shard_begin() - owned_begin_ + begin, out);
  } else if (which != kMaster) {
    out.copy_(part(which == kExpAvg ? exp_avg_ : exp_avg_sq_), /*non_blocking=*/!wait);
  } else if (masters_.defined()) {
    out.copy_(part(masters_), /*non_blocking=*/!wait);
  } else if (owned_weights_.is_cuda()) {
    out.copy_(JoinByAten(part(owned_weights_), part(low_bits_)), /*non_blocking=*/!wait);
  } else {
    JoinMasters(Bits(part(owned_weights_)), Bits(part(low_bits_)), out.data_ptr<float>(),
                out.numel());
  }
}

at::Tensor FlatParam::InPlace(State which) const {
  TORCH_CHECK(!being_updated(), "state is read while it is updated");
  const at::Tensor& kept = which == kExpAvg     ? exp_avg_
                           : which == kExpAvgSq ? exp_avg_sq_
                           : frozen()           ? owned_weights_
                                                : masters_;
  return kept.defined() && kept.is_cpu() && kept.scalar_type() == at::kFloat ? kept : at::Tensor();
}

at::Tensor FlatParam::Landing(State which) const {
  const at::Tensor kept = InPlace(which);
  return kept.defined() ? kept : at::zeros({owned_numel_}, at::kFloat);
}

void FlatParam::SetOwned(State which, const at::Tensor& values) {
  if (which != kMaster && int8_moments_) return int8_moments_->SetOwned(MomentOf(which), values);
  if (which != kMaster) {
    (which == kExpAvg ? exp_avg_ : exp_avg_sq_).copy_(values);
    return;
  }
  if (masters_.defined()) masters_.copy_(values);
  MakeWeights(values);
  stale_ = true;
}

// As the optimizer rounds them: a resumed run has the weights of the one that wrote the checkpoint.
void FlatParam::MakeWeights(const at::Tensor& masters) {
  if (owned_weights_.is_same(masters_)) return;
  if (frozen() || owned_weights_.scalar_type() == at::kFloat) {
    owned_weights_.copy_(masters);
  } else if (owned_weights_.is_cuda() || masters.is_cuda()) {
    SplitByAten(masters.to(owned_weights_.device()), owned_weights_, low_bits_);
  } else {
    SplitMasters(masters.contiguous().data_ptr<float>(), Bits(owned_weights_),
                 low_bits_.defined() ? Bits(low_bits_) : nullptr, owned_numel_);
  }
}

void SplitByAten(const at::Tensor& masters, const at::Tensor& weights, const at::Tensor& low_bits) {
  const at::Tensor bits = masters.contiguous().view(at::kInt);
  weights.view(at::kShort).copy_(bits.add(0x8000).bitwise_right_shift(16));
  if (low_bits.defined()) low_bits.copy_(bits.bitwise_left_shift(16).bitwise_right_shift(16));
}

at::Tensor JoinByAten(const at::Tensor& weights, const at::Tensor& low_bits) {
  // `low_bits` is a signed distance.
  return weights.view(at::kShort)
      .to(at::kInt)
      .bitwise_left_shift(16)
      .add_(low_bits.to(at::kInt))
      .view(at::kFloat);
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

void FlatParam::AwaitUpdate() {
  if (!update_) return;
  std::exchange(update_, nullptr)();
  BeginGradients();
}

void FlatParam::StartUnshard() {
  AwaitUpdate();
  if (weights_in_slot_) {
    if (unsharded_) return;
    unsharded_ = true;
    if (quantised_) return StartUnshardQuantised();
    if (options_.host_weights && params_.is_cuda()) return UnshardFromHost();
    if (shard().size == 1)
      params_.copy_(owned_weights_);
    else
      UnshardOwned();
    return;
  }
  if (!stale_) return;
  stale_ = false;
  if (owned_numel_ < params_.numel()) UnshardOwned();
}

void FlatParam::UnshardOwned() { StartWhole(params_, owned_weights_); }

void FlatParam::StartUnshardQuantised() {
  if (quantised_->ranks() == 1) {
    quantised_rows_ = quantised_->owned();
    return;
  }
  quantised_rows_ = quantised_->MemoryForAll();
  StartWhole(quantised_rows_, quantised_->owned());
}

// `all`: equal parts of the shard group's ranks, of which this one's is `owned` or becomes it. In
// place: what NCCL sends from must be registered with it (World::RegisteredMemory) as well as what
// it brings to. Gloo's all-gather makes a copy of the whole; where each rank sends its part by a
// broadcast, the same bytes go straight to their place.
void FlatParam::StartWhole(const at::Tensor& all, const at::Tensor& owned) {
  const Group& group = shard();
  const int64_t count = owned.size(0);
  if (weights_in_slot_) all.narrow(0, group.rank * count, count).copy_(owned);
  if (!world_->prefers_all_reduce()) {
    at::Tensor to = all, from = staging_ = all.narrow(0, group.rank * count, count);
    gathers_.push_back(group.backend->_allgather_base(to, from, {}));
    return;
  }
  for (int rank = 0; rank < group.size; ++rank) {
    std::vector<at::Tensor> part = {all.narrow(0, rank * count, count)};
    c10d::BroadcastOptions options;
    options.rootRank = rank;
    gathers_.push_back(group.backend->broadcast(part, options));
  }
}

// The copy from the host runs on a stream of its own, beside what is computed until WaitUnshard,
// and so does what follows from it.
void FlatParam::UnshardFromHost() {
  static const c10::cuda::CUDAStream copies =
      c10::cuda::getStreamFromPool(/*isHighPriority=*/false, params_.device().index());
  // Whoever had the slot before is done with it where the computing stream stands now.
  c10::Event free(at::kCUDA);
  free.record(c10::cuda::getCurrentCUDAStream(params_.device().index()).unwrap());
  const c10::cuda::CUDAStreamGuard guard(copies);
  free.block(copies.unwrap());
  if (shard().size == 1) {
    params_.copy_(owned_weights_, /*non_blocking=*/true);
  } else {
    staging_ = owned_weights_.to(params_.device(), /*non_blocking=*/true);
    gathers_.push_back(shard().backend->_allgather_base(params_, staging_, {}));
  }
  copied_.emplace(at::kCUDA);
  copied_->record(copies.unwrap());
}

void FlatParam::WaitUnshard() {
  if (copied_) {
    const c10::cuda::CUDAStream computing =
        c10::cuda::getCurrentCUDAStream(params_.device().index());
    copied_->block(computing.unwrap());
    copied_.reset();
    if (staging_.defined()) staging_.record_stream(computing.unwrap());
  }
  for (c10::intrusive_ptr<c10d::Work>& gather : gathers_) Wait(gather);
  gathers_.clear();
  staging_ = at::Tensor();
  if (!quantised_rows_.defined()) return;
  quantised_->Dequantise(layout_, quantised_rows_, params_);
  quantised_rows_.reset();
}

void FlatParam::Reshard() {
  if (!weights_in_slot_) return;
  TORCH_CHECK(gathers_.empty() && !quantised_rows_.defined(), "resharded while it is made whole");
  unsharded_ = false;
  if (options_.poison) params_.fill_(std::numeric_limits<double>::quiet_NaN());
}

void FlatParam::LeaveSlot() {
  if (weights_in_slot_)
    params_ = params_.to(at::kCPU, params_.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

ops::GradientSum FlatParam::SumOf(int segment, int count) {
  if (frozen()) return {};
  const at::Tensor sum = View(grads_, segment, count);
  const int64_t begin = layout_.segments()[segment].offset;
  const auto [here, fresh] = summed_parts_.try_emplace(begin);
  SummedPart& part = here->second;
  if (fresh) part = {sum.numel(), std::make_shared<bool>(false)};
  const auto next = std::next(here);
  const bool apart = (here == summed_parts_.begin() ||
                      std::prev(here)->first + std::prev(here)->second.numel <= begin) &&
                     (next == summed_parts_.end() || begin + part.numel <= next->first);
  TORCH_CHECK(apart && part.numel == sum.numel(), layout_.segments()[segment].name,
              " is summed up in two ways");
  return {sum, part.begun};
}

void FlatParam::BeginGradients() {
  tree_.Clear();
  summed_ = false;
  if (!gradients_in_slot_)
    BeginGradient();
  else if (options_.poison)
    sums_.fill_(std::numeric_limits<double>::quiet_NaN());
}

void FlatParam::OpenGradient() {
  if (gradients_in_slot_) BeginGradient();
}

void FlatParam::BeginGradient() {
  if (options_.zero_first)
    grads_.zero_();
  else if (options_.poison)
    grads_.fill_(std::numeric_limits<double>::quiet_NaN());
  for (auto& [begin, part] : summed_parts_) *part.begun = options_.zero_first;
  open_ = !options_.zero_first;
}

// Whoever reads the gradient from here on finds zeros where nothing came.
void FlatParam::CloseGradient() {
  if (!std::exchange(open_, false)) return;
  int64_t known = 0;  // elements up to here are right
  const auto clear_to = [&](int64_t end) {
    if (known < end) grads_.narrow(0, known, end - known).zero_();
  };
  for (const auto& [begin, part] : summed_parts_) {
    if (!*part.begun) continue;
    clear_to(begin);
    known = begin + part.numel;
  }
  clear_to(grads_.numel());
}

void FlatParam::AddToSums(const at::Tensor& gradient) {
  if (std::exchange(summed_, true))
    sums_.add_(gradient);
  else
    sums_.copy_(gradient);
  if (options_.poison) grads_.fill_(std::numeric_limits<double>::quiet_NaN());
}

void FlatParam::AccumulateGradient() {
  if (!gradients_in_slot_ || reduces_slot_) return;
  CloseGradient();
  AddToSums(grads_);
}

// By one all-reduce of all ranks, instead of a reduce-scatter in the shard group and an all-reduce
// of its part in the replicate group. A shard group of one has nothing to scatter.
bool FlatParam::SumsWhole() const {
  return options_.zero_stage == 0 || shard().size == 1 || world_->prefers_all_reduce();
}

void FlatParam::StartReduce() {
  CloseGradient();
  if (options_.tree_units > 0) return StartTree();
  if (whole().size == 1) return;
  at::Tensor& sums = reduces_slot_ ? grads_ : sums_;
  if (SumsWhole()) {
    std::vector<at::Tensor> tensors = {sums};
    reduce_ = whole().backend->allreduce(tensors, {});
  } else {
    at::Tensor owned = sums.narrow(0, owned_begin_, owned_numel_);  // in place, as NCCL allows
    reduce_ = shard().backend->_reduce_scatter_base(owned, sums, {});
    if (owned.is_cuda() && replicate().size > 1) ReduceOverReplicas(owned);
  }
}

// On a GPU, where nothing has to wait for the sum of the shard group but that of the replicas,
// which a stream of its own does: computing goes on.
void FlatParam::ReduceOverReplicas(const at::Tensor& owned) {
  static const c10::cuda::CUDAStream sums =
      c10::cuda::getStreamFromPool(/*isHighPriority=*/true, owned.device().index());
  const c10::cuda::CUDAStreamGuard guard(sums);
  reduce_->wait();
  std::vector<at::Tensor> tensors = {owned};
  reduce_ = replicate().backend->allreduce(tensors, {});
}

// Each rank gets its part of the gradients of all that hold it in its stage.
void FlatParam::StartTree() {
  if (stage_.size == 1) return;
  arrived_ = at::empty_like(grads_);
  std::vector<int64_t> equal;
  reduce_ = stage_.backend->alltoall_base(arrived_, grads_, equal, equal, {});
}

void FlatParam::WaitTree() {
  const int ranks = stage_.size;
  at::Tensor owned = grads_.narrow(0, owned_begin_, owned_numel_);
  if (ranks > 1) {
    Wait(reduce_);
    const int64_t part = grads_.numel() / ranks;
    at::Tensor sum =
        SumOfTurn(arrived_.view({ranks, part}), world_->mesh().units(), options_.tree_units);
    if (owned_numel_ == part) {  // it owns no other
      owned = sum;
    } else {
      reduce_ = stage_.backend->_allgather_base(grads_, sum, {});
      Wait(reduce_);
    }
  }
  tree_.Add(owned);
  arrived_.reset();
  if (options_.poison) grads_.fill_(std::numeric_limits<double>::quiet_NaN());
}

void FlatParam::FinishGradients() {
  if (frozen()) return;
  AwaitUpdate();  // of what no block used, whose gradients nobody began
  if (options_.tree_units > 0) {
    tree_.CopyTotal(sums_);
    if (layout_.holding().both_ends) AddBothEnds();
    return;
  }
  // Of what no block used.
  CloseGradient();
  if (gradients_in_slot_ && !std::exchange(summed_, true)) sums_.zero_();
}

// What the first stage summed and what the last did. Copies of one stage have the same bits, so one
// of each gives them; of two summands and zeros there is one sum, in whatever order.
void FlatParam::AddBothEnds() {
  const int copies = replicate().size / 2;  // of a stage
  if (replicate().rank % copies != 0) sums_.zero_();
  std::vector<at::Tensor> tensors = {sums_};
  reduce_ = replicate().backend->allreduce(tensors, {});
  Wait(reduce_);
}

void FlatParam::WaitReduce() {
  if (options_.tree_units > 0) return WaitTree();
  if (!reduce_) return;
  Wait(reduce_);
  at::Tensor owned = (reduces_slot_ ? grads_ : sums_).narrow(0, owned_begin_, owned_numel_);
  if (replicate().size > 1 && !SumsWhole() && !owned.is_cuda()) {
    std::vector<at::Tensor> tensors = {owned};
    reduce_ = replicate().backend->allreduce(tensors, {});
    Wait(reduce_);
  }
  if (reduces_slot_) AddToSums(owned);
}

void FlatParam::Wait(c10::intrusive_ptr<c10d::Work>& work) {
  if (!work) return;
  const auto begin = std::chrono::steady_clock::now();
  if (params_.is_cuda()) {
    // The host goes on; what stands still is the stream.
    auto& [before, after] =
        stalls_.emplace_back(c10::Event(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT),
                             c10::Event(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT));
    const c10::Stream computing =
        c10::cuda::getCurrentCUDAStream(params_.device().index()).unwrap();
    before.record(computing);
    work->wait();
    after.record(computing);
  } else {
    work->wait();
    waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  work.reset();
}

double FlatParam::TakeWaited() {
  for (const auto& [before, after] : stalls_) {
    after.synchronize();
    waited_s_ += before.elapsedTime(after) / 1e3;
  }
  stalls_.clear();
  return std::exchange(waited_s_, 0);
}

}  // namespace muster::trainer
