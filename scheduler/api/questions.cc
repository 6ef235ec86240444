#include "scheduler/api/questions.h"

#include <utility>

namespace muster {

Questions::Questions(int threads, size_t most_waiting) : most_waiting_(most_waiting) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Answer(); });
}

Questions::~Questions() { Stop(); }

bool Questions::Ask(std::function<void()> question) {
  std::lock_guard lock(mutex_);
  if (waiting_.size() >= most_waiting_ || stopping_) return false;
  waiting_.push_back(std::move(question));
  asked_.notify_one();
  return true;
}

void Questions::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  asked_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Questions::Answer() {
  while (true) {
    std::function<void()> question;
    {
      std::unique_lock lock(mutex_);
      asked_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      question = std::move(waiting_.front());
      waiting_.pop_front();
    }
    question();
  }
}

}  // namespace muster
