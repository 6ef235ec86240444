// Work on jobs' storage that may take for ever: each piece has a thread of its own, and who wants
// it goes on (docs/decisions/044-dead-mounts.md).
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/reconcile/record.h"
#include "common/base/units.h"

namespace muster::agent {

enum class StorageUse { kPrepare, kFetch, kPublish };

struct StorageKey {
  AttemptId attempt;
  StorageUse use = StorageUse::kPrepare;
  auto operator<=>(const StorageKey&) const = default;
};

struct StorageWork {
  std::string where;  // for people: "/home (nfs4 of nas:/home)"
  bool may_be_given_up =
      false;  // when patience is over; else it is waited for, and only a warning is logged
  std::function<absl::Status()> run;  // by any thread; it may outlive this class
  int64_t patience_ns = 0;            // 0: the threads'
  bool of_this_host = true;  // so that it is to blame where there is no answer; else nobody is
  // By the caller's thread, once, where `run` succeeded and somebody asks for it: else what `run`
  // brought goes with this.
  std::function<void()> take = nullptr;
};

// All calls from one thread.
class StorageThreads {
 public:
  explicit StorageThreads(int64_t patience_ns = 20 * kSecond);
  // What is under way goes on, and dies with the process.
  ~StorageThreads();
  StorageThreads(const StorageThreads&) = delete;

  // Begins `work`, or asks for what was begun under this key. UNAVAILABLE: it is under way.
  // Anything else is its answer, given once; DEADLINE_EXCEEDED, or ABORTED for what isn't of this
  // host: there is none in time. What was given up may still happen.
  absl::Status Do(const StorageKey& key, StorageWork work);
  bool UnderWay(const StorageKey& key) const;
  // Under way, or its answer is there and nobody has asked for it yet.
  bool Has(const StorageKey& key) const { return pieces_.contains(key); }
  // Those that Do would give an answer by now and wouldn't at the last call.
  std::vector<StorageKey> TakeAnswered();
  // Nobody asks any more for an answer that is there.
  void Drop(const StorageKey& key);

  int ready() const;        // a descriptor: readable when some thread has done its work
  int64_t next_ns() const;  // BootNs: when somebody's patience ends; INT64_MAX: nobody waits

 private:
  struct Shared;
  struct Piece {
    uint64_t number = 0;  // of its thread
    StorageWork work;     // but `run`, which its thread has
    int64_t until_ns = 0;
    std::optional<absl::Status> answer;
  };

  absl::Status NoAnswer(const StorageWork& work) const;

  const int64_t patience_ns_;
  const std::shared_ptr<Shared> shared_;  // with the threads
  uint64_t newest_ = 0;
  std::map<StorageKey, Piece> pieces_;
  std::map<uint64_t, std::string> given_up_;  // threads that are still at it, and where
};

}  // namespace muster::agent
