// Gradients on their way from a GPU to state in the host's memory, and weights on their way back:
// chunks in a ring of pinned buffers, copied by a stream of their own. While one chunk is updated,
// the next comes and the one before goes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDAStream.h>

namespace muster::trainer {

// Not thread-safe. Chunks are numbered from 0 in each step, and fetched, used and sent in order. On
// the CPU, in tests, copies are done where they are started.
class HostStaging {
 public:
  // For chunks of at most `numel` elements.
  HostStaging(at::Device device, int64_t numel);

  // A step begins: gradients are as the computing stream, the current one, leaves them. The other
  // calls up to Sent may come from another thread.
  void Begin();
  // Starts to fetch chunk `chunk`; at most kBuffers - 1 ahead of the last that was sent.
  void Fetch(int64_t chunk, const at::Tensor& gradient);
  // Waits for it; on the host.
  at::Tensor Gradient(int64_t chunk);
  // Memory of the host for the chunk's bf16 weights, as many as `weights`; may wait for an earlier
  // chunk's to be sent.
  at::Tensor WeightsFor(int64_t chunk, const at::Tensor& weights);
  // Starts to bring what was written there to `weights`.
  void Send(int64_t chunk, const at::Tensor& weights);
  // Starts to copy memory of the host, pinned where the other isn't of the host, too.
  void Copy(const at::Tensor& from, const at::Tensor& to);
  // When all that was started is done; nothing on the CPU, where it is.
  std::optional<c10::Event> Sent() const;
  // The current stream goes on once `sent` has happened.
  void Await(const c10::Event& sent) const;

  static constexpr int64_t kBuffers = 3;

 private:
  struct Buffer {
    at::Tensor gradient, weights;  // bytes
    at::Tensor fetched_as;         // a view of gradient
    std::optional<c10::Event> fetched, sent;
  };
  at::Tensor ViewOf(const at::Tensor& bytes, const at::Tensor& like) const;
  Buffer& Of(int64_t chunk) { return buffers_[static_cast<size_t>(chunk % kBuffers)]; }

  const at::Device device_;
  std::optional<c10::cuda::CUDAStream> copies_;
  std::vector<Buffer> buffers_;
};

}  // namespace muster::trainer
