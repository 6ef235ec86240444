#include "trainer/parallel/int8_moments.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "trainer/ops/low_bits.h"
#include "trainer/parallel/flat_param.h"

namespace muster::trainer {
namespace {

using low_bits::kByteBlock;

constexpr int64_t kSmall = 4096;  // elements of a parameter, below which it stays fp32
constexpr char kEmbedding[] = "model.embed_tokens.weight";

int64_t NumelOf(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (const int64_t dim : shape) numel *= dim;
  return numel;
}

// On the device of `like`.
at::Tensor MapOn(const at::Tensor& like, const low_bits::ByteMap& map) {
  return at::tensor(at::ArrayRef<float>(map.data(), map.size())).to(like.device());
}

}  // namespace

int64_t Int8Moments::Run::lead() const { return in_parameter % kByteBlock; }
int64_t Int8Moments::Run::blocks() const { return (lead() + numel + kByteBlock - 1) / kByteBlock; }

bool Int8Moments::IsExact(const Segment& segment) {
  return segment.name == kEmbedding || NumelOf(segment.parameter_shape()) < kSmall;
}

bool Int8Moments::IsFor(const FlatLayout& layout) {
  return std::any_of(layout.segments().begin(), layout.segments().end(),
                     [](const Segment& segment) { return !IsExact(segment); });
}

// A run of n elements touches at most n / 256 + 2 blocks; a slice of columns has a run a row.
int64_t Int8Moments::MostBlocks(const FlatLayout& layout, int64_t owned_numel) {
  int64_t runs = 0;
  for (const Segment& segment : layout.segments()) {
    if (!IsExact(segment)) runs += segment.slice && segment.slice->dim > 0 ? segment.shape[0] : 1;
  }
  return owned_numel / kByteBlock + 2 * runs;
}

int64_t Int8Moments::ExactNumel(const FlatLayout& layout) {
  int64_t numel = 0;
  for (const Segment& segment : layout.segments()) numel += IsExact(segment) ? segment.numel : 0;
  return numel;
}

int64_t Int8Moments::Bytes(const FlatLayout& layout, int64_t owned_numel) {
  return 2 * (owned_numel + 4 * MostBlocks(layout, owned_numel) + 4 * ExactNumel(layout));
}

int64_t Int8Moments::bytes() const {
  int64_t sum = 0;
  for (const Moment& one : of_)
    sum += static_cast<int64_t>(one.codes.nbytes() + one.scales.nbytes() + one.exact.nbytes());
  return sum;
}

Int8Moments::Int8Moments(const FlatLayout& layout, int64_t owned_begin, int64_t owned_numel,
                         at::Device device) {
  const at::TensorOptions fp32 = at::TensorOptions().dtype(at::kFloat).device(device);
  for (Moment& one : of_) {
    one.codes = at::zeros({owned_numel}, fp32.dtype(at::kByte));
    one.scales = at::zeros({MostBlocks(layout, owned_numel)}, fp32);
    one.exact = at::zeros({ExactNumel(layout)}, fp32);
  }
  int64_t blocks = 0, exact = 0;
  for (const SegmentPiece& piece : PiecesIn(layout, owned_begin, owned_begin + owned_numel)) {
    const bool is_exact = IsExact(layout.segments()[piece.segment]);
    ForEachRun(layout, piece, [&](int64_t at, int64_t in_parameter, int64_t count) {
      Run run{at, count, in_parameter, is_exact ? exact : blocks, is_exact};
      (is_exact ? exact : blocks) += is_exact ? count : run.blocks();
      runs_.push_back(run);
    });
  }
  TORCH_CHECK(blocks <= of_[0].scales.numel() && exact <= of_[0].exact.numel(), "too many blocks");
}

void Int8Moments::Copy(Which which, int64_t begin, const at::Tensor& out) const {
  const int64_t end = begin + out.numel();
  const low_bits::ByteMap map = low_bits::StableMap(which == kExpAvg);
  const at::Tensor codes = of_[which].codes.narrow(0, begin, out.numel()).cpu();
  const at::Tensor scales = of_[which].scales.cpu(), exact = of_[which].exact.cpu();
  const auto* code = codes.const_data_ptr<uint8_t>();
  const float *scale = scales.const_data_ptr<float>(), *kept = exact.const_data_ptr<float>();
  out.zero_();
  auto* to = out.data_ptr<float>();
  for (const Run& run : runs_) {
    const int64_t first = std::max(run.begin, begin), last = std::min(run.begin + run.numel, end);
    for (int64_t at = first; at < last; ++at) {
      const int64_t in_run = at - run.begin;
      to[at - begin] =
          run.exact ? kept[run.first + in_run]
                    : map[code[at - begin]] * scale[run.first + (run.lead() + in_run) / kByteBlock];
    }
  }
}

void Int8Moments::SetOwned(Which which, const at::Tensor& values) {
  const at::Tensor from = values.cpu().contiguous();
  Moment host;
  host.codes = at::zeros_like(of_[which].codes, at::kCPU);
  host.scales = at::zeros_like(of_[which].scales, at::kCPU);
  host.exact = at::zeros_like(of_[which].exact, at::kCPU);
  const float* x = from.const_data_ptr<float>();
  for (const Run& run : runs_) {
    if (run.exact) {
      std::copy_n(x + run.begin, run.numel, host.exact.data_ptr<float>() + run.first);
      continue;
    }
    at::parallel_for(0, run.blocks(), 64, [&](int64_t block, int64_t end) {
      for (; block < end; ++block) {
        const int64_t first = std::max<int64_t>(0, block * kByteBlock - run.lead()),
                      last = std::min(run.numel, (block + 1) * kByteBlock - run.lead());
        low_bits::QuantiseBytes(x + run.begin + first, last - first, which == kExpAvg,
                                host.codes.data_ptr<uint8_t>() + run.begin + first,
                                host.scales.data_ptr<float>() + run.first + block);
      }
    });
  }
  of_[which].codes.copy_(host.codes);
  of_[which].scales.copy_(host.scales);
  of_[which].exact.copy_(host.exact);
}

void Int8Moments::UpdateOnHost(const Run& run, const Update& update) {
  constexpr int64_t kGrain = 1 << 15, kGrainBlocks = kGrain / kByteBlock;
  if (run.exact) {
    at::parallel_for(0, run.numel, kGrain, [&](int64_t begin, int64_t end) {
      update(run.begin + begin, run.begin + end,
             of_[kExpAvg].exact.data_ptr<float>() + run.first + begin,
             of_[kExpAvgSq].exact.data_ptr<float>() + run.first + begin);
    });
    return;
  }
  at::parallel_for(0, run.blocks(), kGrainBlocks, [&](int64_t block, int64_t end) {
    for (; block < end; ++block) {
      const int64_t first = run.begin + std::max<int64_t>(0, block * kByteBlock - run.lead()),
                    last = run.begin + std::min(run.numel, (block + 1) * kByteBlock - run.lead());
      float values[2][kByteBlock];
      for (const Which which : {kExpAvg, kExpAvgSq})
        low_bits::DequantiseBytes(of_[which].codes.const_data_ptr<uint8_t>() + first,
                                  of_[which].scales.const_data_ptr<float>() + run.first + block,
                                  last - first, low_bits::DynamicMap(which == kExpAvg),
                                  values[which]);
      update(first, last, values[kExpAvg], values[kExpAvgSq]);
      for (const Which which : {kExpAvg, kExpAvgSq})
        low_bits::QuantiseBytes(values[which], last - first, which == kExpAvg,
                                of_[which].codes.data_ptr<uint8_t>() + first,
                                of_[which].scales.data_ptr<float>() + run.first + block);
    }
  });
}

// Of blocks [block, block + blocks) of a run what the run has of them, in their places, else zero.
at::Tensor Int8Moments::Values(Which which, const Run& run, int64_t block, int64_t blocks) const {
  const Moment& moment = of_[which];
  const int64_t first = std::max<int64_t>(0, block * kByteBlock - run.lead()),
                last = std::min(run.numel, (block + blocks) * kByteBlock - run.lead()),
                lead = block == 0 ? run.lead() : 0;
  const at::Tensor from = run.exact ? moment.exact.narrow(0, run.first + first, last - first)
                                    : moment.codes.narrow(0, run.begin + first, last - first);
  at::Tensor all = at::zeros({blocks * kByteBlock}, from.options());
  all.narrow(0, lead, last - first).copy_(from);
  if (run.exact) return all;
  return DequantiseByAten(
             {all.view({blocks, kByteBlock}), moment.scales.narrow(0, run.first + block, blocks)},
             which == kExpAvg)
      .view(-1);
}

// Takes over what Values gave.
void Int8Moments::Keep(Which which, const Run& run, int64_t block, const at::Tensor& values) {
  Moment& moment = of_[which];
  const int64_t blocks = values.numel() / kByteBlock,
                first = std::max<int64_t>(0, block * kByteBlock - run.lead()),
                last = std::min(run.numel, (block + blocks) * kByteBlock - run.lead()),
                lead = block == 0 ? run.lead() : 0;
  if (run.exact) {
    moment.exact.narrow(0, run.first + first, last - first)
        .copy_(values.narrow(0, lead, last - first));
    return;
  }
  const CodedBlocks coded = QuantiseByAten(values.view({blocks, kByteBlock}), which == kExpAvg);
  moment.codes.narrow(0, run.begin + first, last - first)
      .copy_(coded.codes.view(-1).narrow(0, lead, last - first));
  moment.scales.narrow(0, run.first + block, blocks).copy_(coded.scales);
}

void Int8Moments::UpdateByAten(const Run& run, const UpdateTensors& update) {
  constexpr int64_t kAtOnce = 1 << 14, kPack = 8;  // blocks; elements
  for (int64_t block = 0; block < run.blocks(); block += kAtOnce) {
    const int64_t blocks = std::min(kAtOnce, run.blocks() - block),
                  lead = block == 0 ? run.lead() : 0,
                  begin = run.begin + std::max<int64_t>(0, block * kByteBlock - run.lead()),
                  numel = std::min(run.begin + run.numel - begin, blocks * kByteBlock - lead);
    at::Tensor all[2], own[2];
    for (const Which which : {kExpAvg, kExpAvgSq}) {
      all[which] = Values(which, run, block, blocks);
      own[which] = at::empty({numel + kPack}, all[which].options()).narrow(0, begin % kPack, numel);
      own[which].copy_(all[which].narrow(0, lead, numel));
    }
    update(begin, own[kExpAvg], own[kExpAvgSq]);
    for (const Which which : {kExpAvg, kExpAvgSq}) {
      all[which].narrow(0, lead, numel).copy_(own[which]);
      Keep(which, run, block, all[which]);
    }
  }
}

CodedBlocks QuantiseByAten(const at::Tensor& values, bool is_signed) {
  const std::vector<uint8_t>& nearest = low_bits::Nearest(is_signed);
  const at::Tensor table =
      at::tensor(at::ArrayRef<uint8_t>(nearest.data(), nearest.size()), at::kByte)
          .to(values.device());
  CodedBlocks blocks;
  blocks.scales = values.abs().amax(1);
  const at::Tensor scales = blocks.scales.unsqueeze(1), none = scales == 0;
  const at::Tensor quotients = (values / scales).clamp_(-1, 1).nan_to_num_(1);
  const auto places = static_cast<double>(nearest.size() - 1);
  const at::Tensor place = quotients.add_(1).mul_(0.5).mul_(places).add_(0.5).to(at::kInt);
  blocks.codes = table.index({place}).masked_fill_(none, 0);
  return blocks;
}

at::Tensor DequantiseByAten(const CodedBlocks& blocks, bool is_signed) {
  return MapOn(blocks.codes, low_bits::DynamicMap(is_signed))
      .index({blocks.codes.to(at::kInt)})
      .mul_(blocks.scales.unsqueeze(1));
}

}  // namespace muster::trainer
