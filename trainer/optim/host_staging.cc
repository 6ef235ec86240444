#include "trainer/optim/host_staging.h"

#include <c10/cuda/CUDAGuard.h>

namespace muster::trainer {

HostStaging::HostStaging(at::Device device, int64_t numel) : device_(device) {
  if (device.is_cuda())
    copies_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
  const at::TensorOptions bytes =
      at::TensorOptions().dtype(at::kByte).pinned_memory(device.is_cuda());
  for (int64_t i = 0; i < kBuffers; ++i)
    buffers_.push_back({at::empty({numel * 4}, bytes), at::zeros({numel * 2}, bytes), {}, {}, {}});
}

at::Tensor HostStaging::ViewOf(const at::Tensor& bytes, const at::Tensor& like) const {
  return bytes.narrow(0, 0, static_cast<int64_t>(like.nbytes())).view(like.scalar_type());
}

void HostStaging::Begin() {
  if (!copies_) return;
  c10::Event computed(at::kCUDA);
  computed.record(c10::cuda::getCurrentCUDAStream(device_.index()).unwrap());
  computed.block(copies_->unwrap());
}

void HostStaging::Fetch(int64_t chunk, const at::Tensor& gradient) {
  Buffer& buffer = Of(chunk);
  buffer.fetched_as = ViewOf(buffer.gradient, gradient);
  if (!copies_) {
    buffer.fetched_as.copy_(gradient);
    return;
  }
  const c10::cuda::CUDAStreamGuard guard(*copies_);
  buffer.fetched_as.copy_(gradient, /*non_blocking=*/true);
  buffer.fetched.emplace(at::kCUDA);
  buffer.fetched->record(copies_->unwrap());
}

at::Tensor HostStaging::Gradient(int64_t chunk) {
  Buffer& buffer = Of(chunk);
  if (buffer.fetched) buffer.fetched->synchronize();
  return buffer.fetched_as;
}

at::Tensor HostStaging::WeightsFor(int64_t chunk, const at::Tensor& weights) {
  Buffer& buffer = Of(chunk);
  if (buffer.sent) buffer.sent->synchronize();
  return ViewOf(buffer.weights, weights);
}

void HostStaging::Send(int64_t chunk, const at::Tensor& weights) {
  Buffer& buffer = Of(chunk);
  const at::Tensor made = ViewOf(buffer.weights, weights);
  if (!copies_) {
    weights.copy_(made);
    return;
  }
  const c10::cuda::CUDAStreamGuard guard(*copies_);
  weights.copy_(made, /*non_blocking=*/true);
  buffer.sent.emplace(at::kCUDA);
  buffer.sent->record(copies_->unwrap());
}

void HostStaging::Copy(const at::Tensor& from, const at::Tensor& to) {
  if (!copies_) {
    to.copy_(from);
    return;
  }
  const c10::cuda::CUDAStreamGuard guard(*copies_);
  to.copy_(from, /*non_blocking=*/true);
}

std::optional<c10::Event> HostStaging::Sent() const {
  std::optional<c10::Event> sent;
  if (!copies_) return sent;
  sent.emplace(at::kCUDA);
  sent->record(copies_->unwrap());
  return sent;
}

void HostStaging::Await(const c10::Event& sent) const {
  sent.block(c10::cuda::getCurrentCUDAStream(device_.index()).unwrap());
}

}  // namespace muster::trainer
