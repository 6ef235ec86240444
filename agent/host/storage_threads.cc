#include "agent/host/storage_threads.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"
#include "common/base/log.h"

namespace muster::agent {
namespace {

constexpr int64_t kMostGivenUp =
    8;  // threads that wait in one place; who comes then is told at once
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

}  // namespace

struct StorageThreads::Shared {
  const Descriptor ready{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::mutex mutex;
  std::vector<std::pair<uint64_t, absl::Status>> done;  // guarded by mutex
};

StorageThreads::StorageThreads(int64_t patience_ns)
    : patience_ns_(patience_ns), shared_(std::make_shared<Shared>()) {}

StorageThreads::~StorageThreads() = default;

absl::Status StorageThreads::NoAnswer(const StorageWork& work) const {
  std::string text =
      absl::StrCat("no answer from ", work.where, " within ", FormatDuration(work.patience_ns));
  return work.of_this_host ? absl::DeadlineExceededError(std::move(text))
                           : absl::AbortedError(std::move(text));
}

absl::Status StorageThreads::Do(const StorageKey& key, StorageWork work) {
  if (work.patience_ns == 0) work.patience_ns = patience_ns_;
  absl::Status under_way = absl::UnavailableError("under way");
  if (const auto known = pieces_.find(key); known != pieces_.end()) {
    if (!known->second.answer.has_value()) return under_way;
    const Piece piece = std::move(pieces_.extract(known).mapped());
    if (piece.answer->ok() && piece.work.take) piece.work.take();
    return *piece.answer;
  }
  const auto waits = std::count_if(given_up_.begin(), given_up_.end(),
                                   [&](const auto& thread) { return thread.second == work.where; });
  if (work.may_be_given_up && waits >= kMostGivenUp) return NoAnswer(work);
  const uint64_t number = ++newest_;
  try {
    std::thread([shared = shared_, number, run = std::exchange(work.run, nullptr)] {
      absl::Status status = run();
      {
        std::lock_guard<std::mutex> lock(shared->mutex);
        shared->done.emplace_back(number, std::move(status));
      }
      const uint64_t one = 1;
      if (::write(shared->ready.get(), &one, sizeof one) < 0) return;  // full: it is ready anyway
    }).detach();
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("a thread: ", error.what()));
  }
  const int64_t until_ns = RealClock()->BootNs() + work.patience_ns;
  pieces_[key] = {number, std::move(work), until_ns, std::nullopt};
  return under_way;
}

bool StorageThreads::UnderWay(const StorageKey& key) const {
  const auto found = pieces_.find(key);
  return found != pieces_.end() && !found->second.answer.has_value();
}

std::vector<StorageKey> StorageThreads::TakeAnswered() {
  std::vector<StorageKey> answered;
  uint64_t count = 0;
  std::vector<std::pair<uint64_t, absl::Status>> done;
  if (::read(shared_->ready.get(), &count, sizeof count) > 0) {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    done.swap(shared_->done);
  }
  for (auto& [number, status] : done) {
    given_up_.erase(number);
    const auto piece =
        std::find_if(pieces_.begin(), pieces_.end(),
                     [number = number](const auto& p) { return p.second.number == number; });
    if (piece == pieces_.end() || piece->second.answer.has_value()) continue;
    piece->second.answer = std::move(status);
    answered.push_back(piece->first);
  }
  const int64_t now_ns = RealClock()->BootNs();
  for (auto& [key, piece] : pieces_) {
    if (piece.answer.has_value() || now_ns < piece.until_ns) continue;
    LogWarn("no answer", {{"where", piece.work.where},
                          {"job", key.attempt.job_uid},
                          {"task", key.attempt.task},
                          {"attempt", key.attempt.attempt}});
    piece.until_ns = kNever;
    if (!piece.work.may_be_given_up) continue;
    given_up_[piece.number] = piece.work.where;
    piece.answer = NoAnswer(piece.work);
    answered.push_back(key);
  }
  return answered;
}

void StorageThreads::Drop(const StorageKey& key) {
  const auto found = pieces_.find(key);
  if (found != pieces_.end() && found->second.answer.has_value()) pieces_.erase(found);
}

int StorageThreads::ready() const { return shared_->ready.get(); }

int64_t StorageThreads::next_ns() const {
  int64_t next = kNever;
  for (const auto& [key, piece] : pieces_) {
    if (!piece.answer.has_value()) next = std::min(next, piece.until_ns);
  }
  return next;
}

}  // namespace muster::agent
