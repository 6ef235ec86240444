#include "trainer/optim/adamw.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <ATen/Parallel.h>
#include <c10/cuda/CUDAFunctions.h>

#include "trainer/model/init.h"
#include "trainer/ops/fused.h"

namespace muster::trainer {
namespace {

// Elements that one thread takes at a time.
constexpr int64_t kGrain = 1 << 15;

// On a GPU without kernels: [3], as an ExactSum. Rounded to double a part.
void AddSquaresByAten(const at::Tensor& gradient, const at::Tensor& sum) {
  constexpr int64_t kPart = 1 << 22;  // each costs three launches, however short
  double all = 0;
  for (int64_t begin = 0; begin < gradient.numel(); begin += kPart) {
    const at::Tensor part =
        gradient.narrow(0, begin, std::min(kPart, gradient.numel() - begin)).to(at::kDouble);
    all += at::dot(part, part).item<double>();
  }
  const at::Tensor host = sum.cpu();
  auto* to = reinterpret_cast<kernels::ExactSum*>(host.data_ptr<int64_t>());
  kernels::ExactSum one;
  if (all < 0x1p+62) {
    one.high = static_cast<uint64_t>(all);
    one.low = static_cast<uint64_t>((all - static_cast<double>(one.high)) * 0x1p+64);
  } else {
    one.out_of_range = 1;
  }
  to->Add(one);
  sum.copy_(host);
}

}  // namespace

kernels::ExactSum ShardSquaredNorm(const std::vector<std::unique_ptr<FlatParam>>& flats) {
  kernels::ExactSum sum;
  at::Tensor on_device;  // what isn't summed here: asking a GPU for each part would wait for it
                         // each time
  for (const std::unique_ptr<FlatParam>& flat : flats) {
    if (flat->layout().router_bias()) continue;
    const at::Tensor gradient = flat->ShardGradient();
    if (!gradient.is_cuda()) {
      TORCH_CHECK(ops::fused::AddSquares(gradient, &sum), "gradients of another type");
      continue;
    }
    if (!on_device.defined())
      on_device = at::zeros({sizeof(kernels::ExactSum) / 8}, gradient.options().dtype(at::kLong));
    auto* total = reinterpret_cast<kernels::ExactSum*>(on_device.data_ptr<int64_t>());
    if (!ops::fused::AddSquares(gradient, total)) AddSquaresByAten(gradient, on_device);
  }
  if (on_device.defined()) {
    const at::Tensor host = on_device.cpu();
    sum.Add(*reinterpret_cast<const kernels::ExactSum*>(host.data_ptr<int64_t>()));
  }
  return sum;
}

double ClipCoefficient(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

AdamW::AdamW(std::vector<std::unique_ptr<FlatParam>>& flats, const AdamWConfig& config,
             CpuForm form, int64_t staged_numel)
    : flats_(flats), config_(config), form_(form), staged_numel_(staged_numel) {
  for (const std::unique_ptr<FlatParam>& flat : flats_) {
    std::vector<Run>& runs = runs_.emplace_back();
    if (flat->layout().router_bias()) continue;
    // The gaps between segments belong to none.
    for (const SegmentPiece& piece :
         PiecesIn(flat->layout(), flat->owned_begin(), flat->owned_end())) {
      const Segment& segment = flat->layout().segments()[piece.segment];
      const bool decay = config_.weight_decay != 0 && segment.weight_decay;
      ForEachRun(flat->layout(), piece, [&](int64_t at, int64_t in_parameter, int64_t count) {
        runs.push_back(
            {at, count, decay,
             static_cast<uint32_t>(NameHash(segment.name) + static_cast<uint64_t>(in_parameter))});
      });
    }
  }
}

AdamW::~AdamW() {
  if (!updating_.joinable()) return;
  updating_.join();
  for (const std::unique_ptr<FlatParam>& flat : flats_) flat->SetUpdate(nullptr);
}

void AdamW::Step(int64_t step, double learning_rate, double clip) {
  Start(step, learning_rate, clip);
  Finish();
}

void AdamW::Start(int64_t step, double learning_rate, double clip) {
  if (flats_.empty()) return;
  Finish();
  const at::Tensor state =
      flats_[0]->int8_moments() != nullptr ? flats_[0]->OwnedGradient() : flats_[0]->exp_avg();
  if (state.is_cuda() && ops::fused::KernelsFor(state) == nullptr) {
    StepByAten(step, learning_rate, clip);
  } else {
    const auto n = static_cast<double>(step);
    AdamWStep numbers;
    numbers.beta1 = static_cast<float>(config_.beta1),
    numbers.beta2 = static_cast<float>(config_.beta2);
    numbers.one_minus_beta1 = static_cast<float>(1 - config_.beta1),
    numbers.one_minus_beta2 = static_cast<float>(1 - config_.beta2);
    numbers.step_size = static_cast<float>(learning_rate / (1 - std::pow(config_.beta1, n)));
    numbers.inverse_root = static_cast<float>(1 / std::sqrt(1 - std::pow(config_.beta2, n)));
    numbers.epsilon = static_cast<float>(config_.epsilon);
    numbers.clip = static_cast<float>(clip);
    numbers.noise = static_cast<uint32_t>(step) * 0x9E3779B9u;
    if (state.is_cuda())
      StepOnDevice(numbers, learning_rate);
    else if (flats_[0]->OwnedGradient().is_cuda() || staged_numel_ < 0)
      StartStaged(numbers, learning_rate);
    else
      StepOnHost(numbers, learning_rate);
  }
  for (const std::unique_ptr<FlatParam>& flat : flats_) flat->MarkStale();
}

void AdamW::UpdateOnHost(const HostPart& part, const AdamWStep& numbers,
                         double learning_rate) const {
  AdamWStep decaying = numbers;
  decaying.keep = static_cast<float>(1 - learning_rate * config_.weight_decay);
  FlatParam& flat = *flats_[part.flat];
  const auto pointer = [](const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<char*>(tensor.data_ptr()) : nullptr;
  };
  char* masters = pointer(flat.masters());
  char* low_bits = pointer(flat.low_bits());
  char *exp_avg = pointer(flat.exp_avg()), *exp_avg_sq = pointer(flat.exp_avg_sq());
  const bool gradient16 = flat.OwnedGradient().scalar_type() == at::kBFloat16,
             moments16 = exp_avg != nullptr && flat.exp_avg().scalar_type() == at::kBFloat16;
  const int64_t gradient_size = gradient16 ? 2 : 4, moment_size = moments16 ? 2 : 4;
  Int8Moments* const coded = flat.int8_moments();
  int64_t done = part.begin;  // weights up to here are made
  const auto skip_gap = [&](int64_t until) {
    if (part.weights != nullptr)
      std::memset(part.weights + (done - part.begin) * 2, 0, static_cast<size_t>(until - done) * 2);
  };
  for (size_t r = 0; r < runs_[part.flat].size(); ++r) {
    const Run& run = runs_[part.flat][r];
    const int64_t first = std::max(run.begin, part.begin),
                  last = std::min(run.begin + run.numel, part.end);
    if (first >= last) continue;
    skip_gap(first);
    done = last;
    const auto update = [&](int64_t at, int64_t end, void* m, void* v) {
      AdamWSpan span;
      if (masters != nullptr) span.masters = reinterpret_cast<float*>(masters) + at;
      if (part.weights != nullptr)
        span.weights = reinterpret_cast<uint16_t*>(part.weights) + (at - part.begin);
      if (low_bits != nullptr) span.low_bits = reinterpret_cast<uint16_t*>(low_bits) + at;
      span.gradient = part.gradient + (at - part.begin) * gradient_size;
      span.gradient_bf16 = gradient16;
      span.exp_avg = m, span.exp_avg_sq = v, span.moments_bf16 = moments16;
      span.first_element = run.number + static_cast<uint32_t>(at - run.begin);
      span.numel = end - at;
      UpdateAdamW(form_, run.decay ? decaying : numbers, span);
    };
    if (coded != nullptr) {
      TORCH_CHECK(last - first == run.numel, "a part of blocks in 8 bits");
      coded->UpdateOnHost(coded->runs()[r], update);
      continue;
    }
    at::parallel_for(first, last, kGrain, [&](int64_t at, int64_t end) {
      update(at, end, exp_avg + at * moment_size, exp_avg_sq + at * moment_size);
    });
  }
  skip_gap(part.end);
}

// State and gradients in the host's memory.
void AdamW::StepOnHost(const AdamWStep& numbers, double learning_rate) {
  for (size_t f = 0; f < flats_.size(); ++f) {
    FlatParam& flat = *flats_[f];
    const at::Tensor gradient = flat.OwnedGradient();
    const at::Tensor& kept = flat.owned_weights();
    const bool bf16 = kept.scalar_type() == at::kBFloat16;
    UpdateOnHost({f, 0, gradient.numel(), static_cast<const char*>(gradient.data_ptr()),
                  bf16 ? static_cast<char*>(kept.data_ptr()) : nullptr},
                 numbers, learning_rate);
    if (!bf16 && !kept.is_same(flat.masters())) kept.copy_(flat.masters());
  }
}

std::vector<AdamW::HostPart> AdamW::StagedParts() const {
  const int64_t most = std::abs(staged_numel_);
  std::vector<HostPart> parts;
  for (size_t f = 0; f < flats_.size(); ++f) {
    if (flats_[f]->layout().router_bias()) continue;
    const int64_t numel = flats_[f]->owned_end() - flats_[f]->owned_begin();
    for (int64_t begin = 0; begin < numel; begin += most)
      parts.push_back({f, begin, std::min(begin + most, numel), nullptr, nullptr});
  }
  return parts;
}

// State in the host's memory, gradients in a GPU's.
void AdamW::StartStaged(const AdamWStep& numbers, double learning_rate) {
  const at::Device device = flats_[0]->OwnedGradient().device();
  if (!staging_) staging_.emplace(device, std::abs(staged_numel_));
  staging_->Begin();
  made_ = 0;
  failed_ = nullptr;
  sent_.clear();
  sent_.resize(flats_.size());
  for (size_t f = 0; f < flats_.size(); ++f) {
    if (!flats_[f]->layout().router_bias()) flats_[f]->SetUpdate([this, f] { Await(f); });
  }
  updating_ = std::thread([this, numbers, learning_rate, device] {
    try {
      at::NoGradGuard no_grad;
      if (device.is_cuda()) c10::cuda::set_device(device.index());
      UpdateStaged(numbers, learning_rate);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      failed_ = std::current_exception();
    }
    updated_.notify_all();
  });
}

void AdamW::UpdateStaged(const AdamWStep& numbers, double learning_rate) {
  const std::vector<HostPart> parts = StagedParts();
  const auto fetch = [&](size_t p) {
    if (p >= parts.size()) return;
    const HostPart& part = parts[p];
    staging_->Fetch(static_cast<int64_t>(p), flats_[part.flat]->OwnedGradient().narrow(
                                                 0, part.begin, part.end - part.begin));
  };
  fetch(0);
  size_t p = 0;
  for (size_t f = 0; f < flats_.size(); ++f) {
    for (; p < parts.size() && parts[p].flat == f; ++p) {
      fetch(p + 1);
      UpdateStagedPart(static_cast<int64_t>(p), parts[p], numbers, learning_rate);
    }
    std::optional<c10::Event> sent = staging_->Sent();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      sent_[f] = std::move(sent);
      made_ = f + 1;
    }
    updated_.notify_all();
  }
}

void AdamW::UpdateStagedPart(int64_t chunk, HostPart part, const AdamWStep& numbers,
                             double learning_rate) {
  FlatParam& flat = *flats_[part.flat];
  TORCH_CHECK(!flat.low_bits().defined(), "split masters would be read from weights elsewhere");
  const auto of_part = [&](const at::Tensor& owned) {
    return owned.narrow(0, part.begin, part.end - part.begin);
  };
  const at::Tensor kept = of_part(flat.owned_weights());
  const bool bf16 = kept.scalar_type() == at::kBFloat16;
  // Weights on the host are made in their place.
  const bool sent = bf16 && (!kept.is_cpu() || staged_numel_ < 0);
  part.gradient = static_cast<const char*>(staging_->Gradient(chunk).data_ptr());
  const at::Tensor made = sent ? staging_->WeightsFor(chunk, kept) : kept;
  if (bf16) part.weights = static_cast<char*>(made.data_ptr());
  UpdateOnHost(part, numbers, learning_rate);
  if (sent)
    staging_->Send(chunk, kept);
  else if (!bf16 && !flat.owned_weights().is_same(flat.masters()))
    staging_->Copy(of_part(flat.masters()), kept);
}

// Until the flat's weights are made; the current stream goes on once they are in their place.
void AdamW::Await(size_t flat) {
  std::unique_lock<std::mutex> lock(mutex_);
  updated_.wait(lock, [&] { return made_ > flat || failed_ != nullptr; });
  if (made_ <= flat) std::rethrow_exception(failed_);
  if (sent_[flat]) staging_->Await(*sent_[flat]);
}

void AdamW::Finish() {
  if (!updating_.joinable()) return;
  updating_.join();
  for (const std::unique_ptr<FlatParam>& flat : flats_) flat->SetUpdate(nullptr);
  if (failed_ != nullptr) std::rethrow_exception(failed_);
  Await(flats_.size() - 1);
}

void AdamW::StepOnDevice(const AdamWStep& numbers, double learning_rate) {
  kernels::AdamWArguments a;
  a.step = numbers;
  a.step.keep = static_cast<float>(1 - learning_rate * config_.weight_decay);
  for (size_t f = 0; f < flats_.size(); ++f) {
    FlatParam& flat = *flats_[f];
    const at::Tensor gradient = flat.OwnedGradient();
    const at::Tensor& kept = flat.owned_weights();
    AdamWSpan& span = a.span;
    span = {};
    if (flat.masters().defined()) span.masters = flat.masters().data_ptr<float>();
    if (kept.scalar_type() == at::kBFloat16) span.weights = static_cast<uint16_t*>(kept.data_ptr());
    if (flat.low_bits().defined())
      span.low_bits = static_cast<uint16_t*>(flat.low_bits().data_ptr());
    span.gradient = gradient.data_ptr(),
    span.gradient_bf16 = gradient.scalar_type() == at::kBFloat16;
    if (flat.int8_moments() != nullptr) {
      StepCoded(f, a);
      continue;
    }
    span.exp_avg = flat.exp_avg().data_ptr(), span.exp_avg_sq = flat.exp_avg_sq().data_ptr(),
    span.moments_bf16 = flat.exp_avg().scalar_type() == at::kBFloat16;
    for (size_t first = 0; first < runs_[f].size(); first += kernels::AdamWArguments::kMostRuns) {
      a.runs = static_cast<int>(
          std::min<size_t>(kernels::AdamWArguments::kMostRuns, runs_[f].size() - first));
      for (int r = 0; r < a.runs; ++r)
        a.run[r] = {runs_[f][first + r].begin, runs_[f][first + r].numel, runs_[f][first + r].decay,
                    runs_[f][first + r].number};
      ops::fused::KernelsFor(gradient)->adamw(a, ops::fused::StreamOf(gradient));
      ops::fused::CheckLaunch(gradient);
    }
    if (kept.scalar_type() == at::kFloat && !kept.is_same(flat.masters()))
      kept.copy_(flat.masters());
  }
}

// A flat whose moments are in 8 bits: `a` has all but them.
void AdamW::StepCoded(size_t f, kernels::AdamWArguments a) {
  FlatParam& flat = *flats_[f];
  const at::Tensor gradient = flat.OwnedGradient(), kept = flat.owned_weights();
  Int8Moments& coded = *flat.int8_moments();
  for (size_t r = 0; r < runs_[f].size(); ++r) {
    const Run& run = runs_[f][r];
    coded.UpdateByAten(coded.runs()[r],
                       [&](int64_t begin, const at::Tensor& m, const at::Tensor& v) {
                         // Of the owned range's first element, as the other pointers are.
                         a.span.exp_avg = m.data_ptr<float>() - begin;
                         a.span.exp_avg_sq = v.data_ptr<float>() - begin;
                         a.runs = 1;
                         a.run[0] = {begin, m.numel(), run.decay,
                                     run.number + static_cast<uint32_t>(begin - run.begin)};
                         ops::fused::KernelsFor(gradient)->adamw(a, ops::fused::StreamOf(gradient));
                         ops::fused::CheckLaunch(gradient);
                       });
  }
  if (kept.scalar_type() == at::kFloat && !kept.is_same(flat.masters())) kept.copy_(flat.masters());
}

void AdamW::StepByAten(int64_t step, double learning_rate, double clip) {
  for (const bool decayed : {true, false}) {
    std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs;
    for (size_t f = 0; f < flats_.size(); ++f) {
      FlatParam& flat = *flats_[f];
      const at::Tensor gradient = flat.OwnedGradient();
      for (const Run& run : runs_[f]) {
        if (run.decay != decayed) continue;
        params.push_back(flat.masters().narrow(0, run.begin, run.numel));
        grads.push_back(gradient.narrow(0, run.begin, run.numel).to(at::kFloat));
        if (clip != 1) grads.back() = grads.back().mul(clip);
        exp_avgs.push_back(flat.exp_avg().narrow(0, run.begin, run.numel));
        exp_avg_sqs.push_back(flat.exp_avg_sq().narrow(0, run.begin, run.numel));
      }
    }
    if (params.empty()) continue;
    while (steps_.size() < params.size()) steps_.push_back(at::zeros({}, params[0].options()));
    std::vector<at::Tensor> steps(steps_.begin(),
                                  steps_.begin() + static_cast<int64_t>(params.size()));
    for (at::Tensor& s : steps) s.fill_(static_cast<double>(step));
    at::_fused_adamw_(params, grads, exp_avgs, exp_avg_sqs, /*max_exp_avg_sqs=*/{}, steps,
                      learning_rate, config_.beta1, config_.beta2,
                      decayed ? config_.weight_decay : 0, config_.epsilon, /*amsgrad=*/false,
                      /*maximize=*/false);
  }
  for (const std::unique_ptr<FlatParam>& flat : flats_) {
    if (!flat->owned_weights().is_same(flat->masters()))
      flat->owned_weights().copy_(flat->masters());
  }
}

}  // namespace muster::trainer
