#include "trainer/parallel/pipeline_links.h"

#include <chrono>
#include <vector>

namespace muster::trainer {

void PipelineLinks::Wait(const c10::intrusive_ptr<c10d::Work>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work->wait();
  waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void PipelineLinks::Send(const Link& link, int queue, const at::Tensor& tensor) {
  TORCH_CHECK(link.backend, "this stage has no neighbour there");
  std::deque<Message>& under_way = sent_[queue];
  while (under_way.size() >= kUnderWay) {
    Wait(under_way.front().work);
    under_way.pop_front();
  }
  Message message{tensor.contiguous(), {}};
  std::vector<at::Tensor> tensors = {message.tensor};
  message.work = link.backend->send(tensors, link.other, /*tag=*/0);
  under_way.push_back(std::move(message));
}

void PipelineLinks::Flush() {
  for (std::deque<Message>& under_way : sent_) {
    for (const Message& message : under_way) Wait(message.work);
    under_way.clear();
  }
}

PipelineLinks::Message PipelineLinks::Ask(const Link& link, at::Tensor memory) {
  TORCH_CHECK(link.backend, "this stage has no neighbour there");
  std::vector<at::Tensor> tensors = {memory};
  c10::intrusive_ptr<c10d::Work> work = link.backend->recv(tensors, link.other, /*tag=*/0);
  return {std::move(memory), std::move(work)};
}

at::Tensor PipelineLinks::Take(Message message) {
  Wait(message.work);
  return std::move(message.tensor);
}

}  // namespace muster::trainer
