// A server stream's sending half for gRPC's callback API: messages queue here, one write is in
// flight at a time.
//
// Base is the reactor class. Thread-safe. The object keeps itself alive until gRPC is done with the
// call.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace muster {

template <typename Base, typename Message>
class QueuedWriter : public Base {
 public:
  // Once, right after construction: the call's own reference.
  void KeepAlive(std::shared_ptr<QueuedWriter> self) { self_ = std::move(self); }

  // Messages that wait, the one being written apart.
  size_t backlog() const {
    std::lock_guard lock(mutex_);
    return queue_.size();
  }

  // What Push was told of them, together.
  size_t backlog_bytes() const {
    std::lock_guard lock(mutex_);
    return bytes_;
  }

  // Without effect once ended. `bytes`: for backlog_bytes.
  void Push(Message message, size_t bytes = 0) {
    {
      std::lock_guard lock(mutex_);
      if (end_.has_value()) return;
      queue_.emplace_back(std::move(message), bytes);
      bytes_ += bytes;
    }
    Advance();
  }

  // Finishes the call after what was pushed before; the first status counts.
  void Finally(grpc::Status status) {
    {
      std::lock_guard lock(mutex_);
      if (end_.has_value()) return;
      end_ = std::move(status);
    }
    Advance();
  }

  // Until Release the call isn't finished, so that a read may begin later. False: it is being
  // finished already, and there is nothing to release.
  [[nodiscard]] bool Hold() {
    std::lock_guard lock(mutex_);
    if (finished_) return false;
    ++holds_;
    return true;
  }
  void Release() {
    {
      std::lock_guard lock(mutex_);
      --holds_;
    }
    Advance();
  }

  void OnWriteDone(bool ok) override {
    {
      std::lock_guard lock(mutex_);
      writing_ = false;
      if (!ok) {
        Clear();
        if (!end_.has_value())
          end_ = grpc::Status(grpc::StatusCode::CANCELLED, "the other side is gone");
      }
    }
    if (ok) Written();
    Advance();
  }
  void OnCancel() override {
    {
      std::lock_guard lock(mutex_);
      Clear();
      if (!end_.has_value()) end_ = grpc::Status::CANCELLED;
    }
    Gone();
    Advance();
  }
  void OnDone() override {
    Gone();
    const std::shared_ptr<QueuedWriter> last = std::move(self_);
  }

 protected:
  // The call is over or was given up: nothing will be read any more. May be called more than once.
  virtual void Gone() {}
  // A message was handed to the transport, which may keep it until one follows.
  virtual void Written() {}

 private:
  void Clear() {  // under mutex_
    queue_.clear();
    bytes_ = 0;
  }

  void Advance() {
    std::unique_lock lock(mutex_);
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      current_ = std::move(queue_.front().first);
      bytes_ -= queue_.front().second;
      queue_.pop_front();
      writing_ = true;
      grpc::WriteOptions options;
      if (!queue_.empty()) options.set_buffer_hint();  // what follows takes it along
      lock.unlock();
      this->StartWrite(&current_, options);
    } else if (end_.has_value() && holds_ == 0) {
      finished_ = true;
      const grpc::Status status = *end_;
      lock.unlock();
      this->Finish(status);
    }
  }

  mutable std::mutex mutex_;
  std::deque<std::pair<Message, size_t>> queue_;
  size_t bytes_ = 0;  // of queue_
  Message current_;   // being written
  bool writing_ = false;
  bool finished_ = false;
  int holds_ = 0;
  std::optional<grpc::Status> end_;
  std::shared_ptr<QueuedWriter> self_;
};

}  // namespace muster
