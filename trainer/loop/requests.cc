#include "trainer/loop/requests.h"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <system_error>
#include <thread>

namespace muster::trainer {

struct Requests::Seen {
  std::atomic<bool> save{false};
  std::atomic<int> profile{0};
  std::mutex mutex;
  std::condition_variable over_changed;
  bool over = false;

  void Look(const std::string& directory);
  void Watch(const std::string& directory, std::chrono::milliseconds between);
};

// Taken away first: what is asked again meanwhile is a request of its own.
void Requests::Seen::Look(const std::string& directory) {
  std::error_code error;
  if (std::filesystem::remove(directory + "/save", error)) save = true;
  int steps = 0;
  std::ifstream file(directory + "/profile");
  const bool read = file.is_open() && file >> steps;
  if (!file.is_open() || !std::filesystem::remove(directory + "/profile", error)) return;
  if (read && steps >= 1 && steps <= kMostProfiled)
    profile = steps;
  else
    std::fprintf(stderr, "a request for a profile is left: it wants a number of steps, 1 to %d\n",
                 kMostProfiled);
}

void Requests::Seen::Watch(const std::string& directory, std::chrono::milliseconds between) {
  std::unique_lock<std::mutex> lock(mutex);
  while (!over) {
    lock.unlock();
    Look(directory);
    lock.lock();
    over_changed.wait_for(lock, between, [this] { return over; });
  }
}

Requests::Requests(const std::string& directory, std::chrono::milliseconds between) {
  if (directory.empty()) return;
  seen_ = std::make_shared<Seen>();
  try {
    std::thread([seen = seen_, directory, between] { seen->Watch(directory, between); }).detach();
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "note: nobody looks for requests: %s\n", error.what());
  }
}

Requests::~Requests() {
  if (seen_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(seen_->mutex);
  seen_->over = true;
  seen_->over_changed.notify_all();
}

bool Requests::save() const { return seen_ != nullptr && seen_->save; }

void Requests::SaveBegins() {
  if (seen_ != nullptr) seen_->save = false;
}

int Requests::TakeProfile() { return seen_ == nullptr ? 0 : seen_->profile.exchange(0); }

}  // namespace muster::trainer
