// Threads for questions that take a while, so that those hold up neither the engine nor the threads
// of gRPC, which carry agents' heartbeats.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace muster {

// Thread-safe.
class Questions {
 public:
  Questions(int threads, size_t most_waiting);
  ~Questions();
  Questions(const Questions&) = delete;
  Questions& operator=(const Questions&) = delete;

  // Runs the question on one of the threads, in turn. False: too many wait already, or it was
  // stopped.
  bool Ask(std::function<void()> question);
  // Ends the threads; questions that wait are answered first. Idempotent.
  void Stop();

 private:
  void Answer();

  const size_t most_waiting_;
  std::mutex mutex_;
  std::condition_variable asked_;
  std::deque<std::function<void()>> waiting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace muster
