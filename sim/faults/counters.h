// How often a run met something rare: a check that nothing ever came near proves nothing. Each name
// stands in the list below, or what counts it doesn't compile; so what never happened is printed,
// too, and bench/sim_seeds.py and faults_test.cc ask for it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace muster::sim::faults {

inline constexpr auto kCounterNames = std::to_array<const char*>({
    // What was done to it.
    "faults",
    "cuts",
    "cuts one way",
    "mass cuts",
    "hosts silent one after the other",
    "acknowledgements held up",
    "faults of devices told",
    "checks of hosts that passed",
    "checks of hosts that failed",
    "checks of hosts that died with their agent",
    "messages lost",
    "messages doubled",
    "messages held up",
    "takeovers",
    "schedulers paused",
    "schedulers killed before a commit",
    "schedulers killed after a commit",
    "commits that failed without effect",
    "commits that failed with effect",
    "commits that failed: disk full",
    "backups restored",
    "stores cloned",
    "hosts confirmed off",
    "agents that stay away",
    "state directories lost while the machine was up",
    "attempts that were there when their state directory was lost",
    "storages that hung",
    "checkpoints that waited for storage",
    "exports that waited for storage",
    "launches given up for storage that hung",
    "files torn when the power went",
    "agents paused",
    "shims paused",
    "agents killed before a file was written",
    "agents killed after a file was written",
    "files not written: disk full",
    "exits written after a full disk",
    "syncs of events that failed",
    "shims killed before the claim",
    "shims killed between claim and start",
    "shims killed",
    "killed processes that are there for longer",
    "machines that slept",
    "prepares failed",
    "spawns failed",
    "reboots",
    "state directories lost",
    "commit numbers that were not synced when the power went",
    "markers that were not synced when the power went",
    "submissions repeated",
    "cancels",
    "queues edited",
    // What it did.
    "schedulers started",
    "starts from the real store",
    "commits",
    "commits replayed",
    "commits of a stale scheduler refused",
    "compared with the store",
    "sessions",
    "sessions ended by the agent's lease",
    "welcomes that an agent could not keep the epoch of",
    "agents refused",
    "agents refused for good",
    "commands of another session",
    "stops that lost the claim",
    "processes started",
    "shims that came too late",
    "fenced",
    "shims that came after their fence",
    "fenced tasks started after half of their fence",
    "killed by their fence at waking",
    "a fenced task replaced while its machine sleeps",
    "checkpoints recorded",
    "branches of checkpoints abandoned",
    "exports published",
    "exports published again",
    "exports published by an order from before a restore",
    "exports published by order of a scheduler whose store was cloned",
    "ends with an export that could not be published",
    "attempts ended",
    "attempts succeeded",
    "hosts that told what an attempt used",
    "attempts preempted",
    "attempts that hung",
    "attempts stopped at their time limit",
    "later attempts stopped at their time limit",
    "budgets of restarts that were spent",
    "starts below a limit",
    "starts below a limit further up",
    "devices taken out by quarantine",
    "hosts taken out by quarantine",
    "quarantines lifted",
    "schedulers that stood still",
    "checkpoints acknowledged that count",
    "lost while other hosts of its cluster are silent",
    "members of arrays",
    "jobs that waited for others",
    "jobs that waited for a time",
    "jobs that schedules submitted",
    "times of schedules left out",
    "gangs in multiples that were placed",
    "gangs in multiples that came back larger or smaller",
    "tasks that ended for good by an exit code",
    "placed in a cluster of one user's",
    "jobs that started on others' devices",
    "tasks that started together",
    "tasks that started again beside others",
    "tasks stopped together",
    "tasks that ended as nobody needed them",
    "jobs that others' ends kept from starting",
    "lost",
    "lost by a fence",
    "lost by an operator's word",
    "messages of a scheduler whose store was cloned",
    "schedulers that an agent told of a cloned store",
    "fences put off by a scheduler whose store was cloned",
    "started late after Lost",
    "replaced while it still runs",
    "placed beside a Lost attempt that its host has not answered Gone for",
    "stops of a Lost attempt that runs, while others wait for devices",
    "started after a restore that doesn't know it",
    "gangs started by an order that a restored store doesn't know",
    "replaced what a restored store didn't know, unheard",
});

// One of them.
class Counter {
 public:
  consteval Counter(const char* name) : index_(IndexOf(name)) {}  // NOLINT: counters["lost"]
  size_t index() const { return index_; }

 private:
  static consteval size_t IndexOf(std::string_view name) {
    for (size_t i = 0; i < kCounterNames.size(); ++i) {
      if (name == kCounterNames[i]) return i;
    }
    throw "this name isn't in kCounterNames";  // no constant: it doesn't compile
  }

  size_t index_;
};

class Counters {
 public:
  int64_t& operator[](Counter counter) { return counts_[counter.index()]; }
  void Add(const Counters& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  }
  // Of kCounterNames[i].
  int64_t at(size_t i) const { return counts_.at(i); }
  bool operator==(const Counters&) const = default;

 private:
  std::array<int64_t, kCounterNames.size()> counts_{};
};

}  // namespace muster::sim::faults
