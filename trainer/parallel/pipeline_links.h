// Messages between the stages of a pipeline: activations forward, their gradients backward, each
// way and each neighbour with a process group of its own (groups.h). Messages of one link come in
// the order in which they were sent; both sides know all shapes beforehand.
#pragma once

#include <deque>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "trainer/parallel/groups.h"

namespace muster::trainer {

// Not thread-safe.
class PipelineLinks {
 public:
  explicit PipelineLinks(const PipelineGroups& groups) : groups_(groups) {}

  // Starts to send; the memory is kept until it is sent. At most two a link are under way (as
  // pipeline_test.cc proves to be enough): a third waits for the first.
  void SendForward(const at::Tensor& activations) { Send(groups_.forward_to, 0, activations); }
  void SendBackward(const at::Tensor& gradient) { Send(groups_.backward_to, 1, gradient); }
  // Waits until everything is sent.
  void Flush();

  struct Message {
    at::Tensor tensor;
    c10::intrusive_ptr<c10d::Work> work;
  };
  // Asks for the next message, which comes into `memory`.
  Message AskForward(const at::Tensor& memory) const { return Ask(groups_.forward_from, memory); }
  Message AskBackward(const at::Tensor& memory) const { return Ask(groups_.backward_from, memory); }
  // Waits for it.
  at::Tensor Take(Message message);

  // Seconds that were waited for messages since the last call; of CPUs alone, as on a GPU it is its
  // stream that waits.
  double TakeWaited() { return std::exchange(waited_s_, 0); }

 private:
  static constexpr size_t kUnderWay = 2;
  void Send(const Link& link, int queue, const at::Tensor& tensor);
  static Message Ask(const Link& link, at::Tensor memory);
  void Wait(const c10::intrusive_ptr<c10d::Work>& work);

  const PipelineGroups groups_;
  std::deque<Message> sent_[2];  // forward, backward
  double waited_s_ = 0;
};

}  // namespace muster::trainer
